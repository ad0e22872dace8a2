"""The layers and functions that tools/write_dimensions.py writes into the source."""

import ast
import inspect
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import torch_dmlpool as dmlpool
from torch_dmlpool.nn import functional, layers

ROOT = Path(dmlpool.__file__).parent.parent
TOOL = ROOT / "tools" / "write_dimensions.py"


@pytest.mark.skipif(not TOOL.is_file(), reason="not in a checkout")
def test_the_source_is_what_the_tool_writes():
    """``python tools/write_dimensions.py`` would change nothing."""
    written: dict[Path, str] = runpy.run_path(str(TOOL))["files"]()
    assert sum("2d" in text for text in written.values()) == 9
    for path, text in written.items():
        assert path.read_text(encoding="utf-8") == text, path.name


OF_ROWS = {"segment_pooling", "token_pooling", "statistics_pooling"}
"""Functions that take other masks, and describe them."""
PUBLIC = {
    **{f"nn.functional.{name}": getattr(functional, name) for name in functional.__all__},
    **{f"nn.{name}": getattr(layers, name) for name in layers.__all__},
    **{
        name: getattr(dmlpool, name)
        for name in dmlpool.__all__
        if inspect.isfunction(getattr(dmlpool, name)) and name not in OF_ROWS
    },
}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_docstring_and_a_signature_stand_in_the_source(name):
    """What ``help()`` shows is what an editor reads: no text is put together at run time."""
    public: Any = PUBLIC[name]
    if inspect.isclass(public):
        paths = sorted((ROOT / "torch_dmlpool").glob("nn/layers/*.py"))
    else:
        paths = [Path(inspect.getsourcefile(inspect.unwrap(public)) or "")]
    definitions = [
        node
        for path in paths
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == public.__name__
    ]
    definition = definitions[-1]  # the last of several is the implementation of overloads
    # From Python 3.13 on the compiler takes the indentation out.
    assert inspect.getdoc(public) == ast.get_docstring(definition)
    assert not re.search(r"[{}]|\b(?:WINDOW|PADDED|MASK|SIZES)\b", public.__doc__)
    if isinstance(definition, ast.FunctionDef):
        declared = [*definition.args.args, *definition.args.kwonlyargs]
        names = [argument.arg for argument in declared]
        assert names == list(inspect.signature(public).parameters)
    else:  # a layer may inherit its constructor, whose arguments are written out in its family
        names = list(inspect.signature(public).parameters)
    assert not {"args", "kwargs"} & {*names}
    listed = set(re.findall(r"^ *(\w+): ", public.__doc__, re.MULTILINE))
    assert set(names) <= listed or name.endswith("_with_indices")


ARGUMENTS = {
    "": "window_size strides start_padding end_padding dilations ceil_mode include_padding mask "
    "return_indices",
    "nn.": "kernel_size stride padding dilation ceil_mode count_include_pad mask return_indices "
    "output_size",
}


@pytest.mark.parametrize(
    ("where", "argument"),
    [(where, each) for where in ARGUMENTS for each in ARGUMENTS[where].split()],
)
def test_all_say_the_same_of_the_same_argument(where, argument):
    """Docstrings that stand written out could drift apart. Unpooling's window is another one's."""
    texts = set()
    for name, function in PUBLIC.items():
        if name.startswith("nn.") == bool(where) and (not where or "2d" in name):
            text = f"{inspect.getdoc(function)}\n    end"
            found = re.search(rf"^    ({argument}: .*?)(?=^ {{0,4}}\w|^$)", text, re.M | re.S)
            if found is not None and "npool" not in name:
                said = re.sub("(max|min)ima", "...", found[1])
                for last in (", as :func:", "``. Padding is", "``. A padded"):
                    said = said.partition(last)[0]
                texts.add(said.strip().rstrip("."))
    assert len(texts) == 1, texts
