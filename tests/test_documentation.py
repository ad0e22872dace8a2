"""README.md, docs/ and examples/: code runs, pictures are what the operators compute,
names exist."""

import doctest
import importlib
import inspect
import json
import re
import runpy
from pathlib import Path
from typing import Any

import cases
import pytest
import torch

import torch_dmlpool as dmlpool

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(DOCS.rglob("*.md"))
}
PAGES["README.md"] = README
SETTINGS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")

PYTORCH_ANNOUNCES = pytest.mark.filterwarnings(
    "ignore:torch.quantize_per_tensor, torch.quantize_per_channel and"
)
ABOUT_QUANTIZED_TENSORS = {"docs/quantization.md", "docs/operators/quantized_average_pooling.md"}


COMPILES = {"docs/compile.md", "docs/export.md", "docs/pt2e.md"}
"""What takes longer than all other pages together."""
NEEDS = {
    "docs/export.md": ["onnxruntime", "onnxscript"],
    "docs/frameworks.md": ["lightning", "timm", "transformers"],
    "docs/pt2e.md": ["torchao"],
    "docs/tutorial.md": ["sklearn"],
}
"""What a page's code imports besides this package and PyTorch."""


def blocks(text, language, is_marked=False):
    """The code of a page; what needs several processes is marked."""
    mark = r" \{.*?\}" if is_marked else ""
    return re.findall(rf"(?ms)^```{language}{mark}\n(.*?)^```$", text)


def pages_with_code():
    found = []
    for page, text in PAGES.items():
        if blocks(text, "python"):
            announced = [PYTORCH_ANNOUNCES] * (page in ABOUT_QUANTIZED_TENSORS)
            slow = [pytest.mark.slow] * (page in COMPILES)
            found.append(pytest.param(page, marks=announced + slow, id=page))
    return found


@pytest.mark.parametrize("page", pages_with_code())
def test_the_code_of_a_page_runs(page, fresh_compiler, tmp_path, monkeypatch):
    """Block after block in one namespace, as a reader would type them, with something that could
    turn out wrong."""
    for name in NEEDS.get(page, []):
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)  # where pages save their files
    namespace: dict[str, Any] = {}
    code = blocks(PAGES[page], "python")
    assert any("assert " in block for block in code)
    for block in code:
        exec(compile(block, page, "exec"), namespace)


FOR_PROCESSES = [code for text in PAGES.values() for code in blocks(text, "python", True)]


@pytest.mark.slow
@pytest.mark.parametrize("code", FOR_PROCESSES)
def test_code_for_several_processes_runs(code, tmp_path, python):
    pytest.importorskip("torch.distributed.tensor")
    script = tmp_path / "block.py"
    script.write_text(f"{code}\ntorch.distributed.destroy_process_group()\n", encoding="utf-8")
    launch = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"
    python(*launch, script, cwd=tmp_path)


MODULES = [
    f"{path.parent.name}.{path.stem}".removeprefix("torch_dmlpool.")
    for folder in ("", "operators")
    for path in sorted((ROOT / "torch_dmlpool" / folder).glob("*.py"))
    if ">>> " in path.read_text("utf-8") and path.stem != "__init__"
]


@PYTORCH_ANNOUNCES
@pytest.mark.parametrize("name", ["", "nn.conversion", *MODULES])
def test_the_examples_of_docstrings_run(name):
    module = importlib.import_module(f"torch_dmlpool.{name}".rstrip("."))
    found = doctest.testmod(module, extraglobs={"torch": torch})
    assert found.attempted >= 2
    assert found.failed == 0


@pytest.mark.parametrize("module", ["nn", "nn.functional"])
def test_the_examples_of_layers_and_functions_run(module):
    """Their docstrings stand in modules of their own, family by family."""
    public = importlib.import_module(f"torch_dmlpool.{module}")
    runner, finder = doctest.DocTestRunner(), doctest.DocTestFinder(recurse=False)
    given = {**vars(public), "torch": torch}
    names = [name for name in public.__all__ if re.search(r"\dd$", name)]
    for name in names:
        for test in finder.find(getattr(public, name), name, module=False, globs=given):
            runner.run(test)
    assert runner.tries >= len(names)
    assert runner.failures == 0


def test_the_pictures_are_up_to_date():
    """`python docs/pictures.py` would write the same files."""
    script = runpy.run_path(str(DOCS / "pictures.py"))
    drawn = {path.name: path.read_text("utf-8") for path in script["IMAGES"].glob("*.svg")}
    assert drawn == script["pictures"]()


def test_every_window_argument_has_a_heading_and_its_picture():
    page = PAGES["docs/window.md"]
    for argument in inspect.signature(dmlpool.average_pooling).parameters:
        if argument not in ("input", "divisor_override", "mask"):
            section = re.search(rf"(?ms)^## [^\n]*\b{argument}\b.*?(?=^## )", page)
            assert section is not None, argument
            assert "](images/" in section[0], argument


STRUCTS = {page: blocks(text, "cpp")[0] for page, text in PAGES.items() if blocks(text, "cpp")}
IMPLIED = {"OutputTensor", "OutputGradientTensor", "DimensionCount"}
"""Fields that are what a function returns, or that it reads from the input."""


def test_every_struct_of_pooling_has_a_page():
    names = re.findall(r"(?m)^struct (DML_\w+)_OPERATOR_DESC", "\n".join(STRUCTS.values()))
    expected = "AVERAGE_POOLING1 AVERAGE_POOLING_GRAD LP_POOLING1 MAX_POOLING2 MAX_POOLING_GRAD "
    expected += "MAX_UNPOOLING QUANTIZED_LINEAR_AVERAGE_POOLING"
    assert sorted(names) == [f"DML_{name}" for name in expected.split()]


@pytest.mark.parametrize("page", STRUCTS)
def test_a_struct_has_the_arguments_of_the_function_beside_it(page):
    """Every field is an argument; every argument is a field, or one that the page names as going
    beyond."""
    name = Path(page).stem
    arguments = set(inspect.signature(getattr(dmlpool, name)).parameters)
    call = blocks(PAGES[page], "python")[0]
    fields = set(re.findall(r"(\w+)(?=;)", STRUCTS[page])) - IMPLIED
    names = {field.removesuffix("Tensor") for field in fields}
    spelled = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in names}
    expected = {argument.replace("output_indices", "return_indices") for argument in spelled}
    assert expected <= arguments
    tensors = {"input", "input_gradient", "indices"}
    assert all(f"{argument}=" in call for argument in expected - tensors)
    for argument in arguments - expected - {"index_dtype"}:
        assert f"`{argument}`" in PAGES[page], argument


def test_every_operator_has_a_page_with_its_reference():
    operators = {name for name in dmlpool.__all__ if inspect.isfunction(getattr(dmlpool, name))}
    described = {path.stem for path in (DOCS / "operators").glob("*.md")} - {"index"}
    assert described == operators
    for name in operators:
        assert f"\n::: torch_dmlpool.{name}\n" in PAGES[f"docs/operators/{name}.md"]


def test_the_navigation_has_every_page():
    """And docs/llms.txt, the list for language models. Other pages stay in the repository, and no
    page links to them; one is made of the notebook."""
    before, _, navigation = SETTINGS.partition("\nnav:\n")
    listed, left = (
        {f"docs/{page}" for page in re.findall(pattern, text)}
        for pattern, text in ((r"(?m)([\w/]+\.md)$", navigation), (r"(?m)^  (\w+\.md)$", before))
    )
    notebooks = {f"docs/{path.stem}.md" for path in EXAMPLES.glob("*.ipynb")}
    assert listed - notebooks | left | {"README.md"} == PAGES.keys()
    for page in listed - notebooks:
        assert not any(f"]({path.removeprefix('docs/')}" in PAGES[page] for path in left), page
    for_models = re.findall(r"\]\((\S+)\.html\)", (DOCS / "llms.txt").read_text("utf-8"))
    assert {f"docs/{page}.md" for page in for_models} == listed
    assert len(for_models) == len(listed)


def test_the_pages_of_layers_have_each_public_name_once():
    """And nothing that is not public."""
    pages = "".join(text for page, text in PAGES.items() if page.startswith("docs/layers/"))
    found = re.findall(r"(?m)^::: torch_dmlpool\.(nn[.\w]*)$", pages)
    nn = dmlpool.nn
    public = {f"nn.{name}" for name in nn.__all__} - {"nn.functional"}
    public |= {f"nn.functional.{name}" for name in nn.functional.__all__}
    assert sorted(found) == sorted(public)


CALLS = r"\| {} \| {} \| 1 \| 1 \| \d+ \| ([\d.]+)x"
FIGURES = {
    "README.md": [
        (r"compiled models \| 1 \| ([\d.]+)", r"SqueezeNet 1.1 \| ([\d.]+)"),
        (r"compiled models \| 1 \| [\d.]+; ([\d.]+)", r"ResNet-18 \| ([\d.]+)"),
        (
            r"compiled models \| 1 \| [\d.]+; [\d.]+; ([\d.]+)",
            r"mean\*\*(?: \|[^|]*){2} \| ([\d.]+)",
        ),
        (r"public models run ([\d.]+) times", CALLS.format("forward", "contiguous")),
        (r"([\d.]+) times in\s+channels_last", CALLS.format("forward", "channels_last")),
        (r"and ([\d.]+) and [\d.]+ times in training", CALLS.format("training", "contiguous")),
        (r"and [\d.]+ and ([\d.]+) times in training", CALLS.format("training", "channels_last")),
        (r"maxima at batch 32 run ([\d.]+) times", r"\| max \| \d+ \| ([\d.]+)x"),
        (r"averages ([\d.]+) times and", r"\| avg \| \d+ \| ([\d.]+)x"),
        (r"global averages ([\d.]+) times", r"\| adaptive avg \| \d+ \| ([\d.]+)x"),
    ],
    "docs/index.md": [
        (r"run ([\d.]+) times as fast", r"forward, contiguous, float32 \| ([\d.]+)x"),
        (r"([\d.]+) times in training", r"forward \+ backward, contiguous, float32 \| ([\d.]+)x"),
    ],
    "docs/limitations.md": [
        (
            rf"up to ([\d.]+) µs more in {words}",
            rf"{mode} \| channels_last \| 1 \| 1 .* / ([\d.]+) µs",
        )
        for words, mode in {"inference": "forward", "training": "training"}.items()
    ],
}
"""Where a page's prose has a figure, and where docs/benchmarks.md has it, which is made of the
results."""


@pytest.mark.parametrize("page", FIGURES)
def test_figures_in_prose_are_those_of_the_results(page):
    for said, measured in FIGURES[page]:
        figures = [
            float(re.search(pattern, PAGES[name])[1])
            for name, pattern in ((page, said), ("docs/benchmarks.md", measured))
        ]
        assert figures[0] == pytest.approx(figures[1], rel=0.06), said


def test_limitations_say_what_the_networks_lose():
    rows = json.loads((ROOT / "benchmarks/results/models.json").read_text("utf-8"))["rows"]
    losses = {
        row["name"]: 100 - 100 * row["seconds"]["original"] / row["seconds"]["ours"] for row in rows
    }
    page = PAGES["docs/limitations.md"]
    for name in ("EfficientNet-B0", "single ones"):
        said = re.search(rf"{name} (?:loses|lose) (\d+) %", page)
        ways = "EfficientNet-B0 eager, forward" if name[0] == "E" else "compiled, forward"
        assert said is not None
        worst = max(loss for way, loss in losses.items() if ways in way)
        assert worst < int(said[1]) + 0.5, name


GONE = {"slide", "sum_axis"}
"""Kernels that docs/contributing/kernels.md says were taken out."""


@pytest.mark.parametrize("page", ["docs/contributing/design.md", "docs/contributing/kernels.md"])
def test_names_in_the_texts_for_contributors_exist(page):
    """Each word of a name in backticks is in some source, or is a file's."""
    words: set[str] = set()
    for folder in ("torch_dmlpool", "kernels", "benchmarks", "tests", "tools", "docs"):
        for path in (ROOT / folder).rglob("*"):
            words |= {path.stem, path.suffix[1:]}
            if path.suffix in (".py", ".cpp", ".h") and path != Path(__file__):
                words |= set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    text = re.sub(r"(?s)```.*?```", "", PAGES[page])
    for name in re.findall(r"`([\w./]+)`", text):
        assert set(re.findall(r"\w+", name)) <= words | GONE, name


def test_the_files_that_pages_link_to_exist():
    for page, text in PAGES.items():
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", re.sub(r"(?s)```.*?```", "", text)):
            is_file = (ROOT / page).parent.joinpath(target).is_file()
            assert target.startswith("https://") or is_file, (page, target)


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/examples.md"])
def test_the_commands_are_targets_of_the_makefile(page):
    makefile = (ROOT / "Makefile").read_text("utf-8")
    commands = re.findall(r"(?m)(?:`|^)make ([a-z][a-z-]*)", PAGES[page])
    assert "demo" in commands
    for command in commands:
        assert re.search(rf"(?m)^{command}:", makefile), command


def test_the_changelog_begins_with_this_version():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"(?m)^## (\d+\.\d+\.\d+)", changelog)
    assert newest is not None
    assert newest.group(1) == dmlpool.__version__
    for page in ("mkdocs.yml", "CITATION.cff"):
        assert dmlpool.__version__ in (ROOT / page).read_text(encoding="utf-8"), page


EXAMPLES = ROOT / "examples"
SAID = {
    "beyond_torch.py": r"8-bit averages that are not exact\n"
    r"  torch.nn +25.*%\n  torch_dmlpool +0.0%(?s:.*)\n"
    r"  torch.nn +pool 12.2; .* 42.9; .* 42.9; .* 67.4\n"
    r"  torch_dmlpool +pool 1.5; .* 7.7; .* 32.2; .* 56.7",
    "digits.py": r"all 276 losses are equal bit for bit\n"
    r"torch.nn .* 672 KiB kept .*\ntorch_dmlpool.nn .* 504 KiB kept",
    "first_page.py": r"opening 31x31 +plain PyTorch +[\d.]+ ms, torch_dmlpool +[\d.]+ ms",
    "dilated_average.py": r"noise: 20.0 dB\ntorch_dmlpool, dilated average +24\..*\n.*\n"
    r"torch.nn, dilated convolution +23\.",
    "int8_inference.py": r"zero point 7: [1-9]\d*\n  torch_dmlpool: 0\n"
    r".*float32: 900 KiB\n.*: 225 KiB",
    "quantized_export.py": r"8 bits, pools of integers +9\d\.\d%|this example needs torchao",
    "sentence_embeddings.py": r"\d\d sentences of \d+ to \d+ words\n"
    r"the nearest sentence has the same topic for [1-9]\d+ of them",
}


@cases.each("script", SAID, ["beyond_torch.py"])
def test_an_example_ends_in_its_number_or_picture(script, tmp_path, python):
    pytest.importorskip("sklearn")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    finished = python(EXAMPLES / script, cwd=tmp_path)
    assert re.search(SAID[script], finished.stdout), finished.stdout
    for picture in re.findall(r"\w+\.png", (EXAMPLES / script).read_text()):
        assert pyplot.imread(tmp_path / picture).std() > 0.1


def test_the_notebook_prints_what_it_shows(python):
    """The outputs in the file are those of its code, but for their figures."""
    (notebook,) = EXAMPLES.glob("*.ipynb")
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    shown = "".join(
        line for cell in cells for output in cell.get("outputs", []) for line in output["text"]
    )
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    printed = python("-c", "\n".join(code)).stdout

    def words(text):
        return re.sub(r" *[-+\d.e]*\d", " #", text)

    assert words(printed) == words(shown)
    assert re.search(r"torch.nn .* keeps +4096 KiB\ntorch_dmlpool .* keeps +512 KiB", printed)


def test_every_example_is_run_and_fits_on_a_page():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAID)
    page = PAGES["docs/examples.md"]
    assert all(f"| `{path.name}` |" in page for path in EXAMPLES.glob("*.[pi]*"))
    assert all(len(path.read_text().splitlines()) <= 130 for path in EXAMPLES.glob("*.py"))
