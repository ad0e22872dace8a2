"""Other versions: of the package beside compiled graphs of its own past, of PyTorch without what
may go, of Triton."""

import ast
import contextlib
import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import cases
import pytest
import torch

import torch_dmlpool
from torch_dmlpool import ops

PACKAGE = Path(torch_dmlpool.__file__).parent
KERNELS = (
    PACKAGE.parent / "kernels" if (PACKAGE.parent / "kernels").is_dir() else PACKAGE / "kernels"
)


@pytest.fixture
def run_python(python: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., str]:
    def run(
        source: str, *, folder: Path | None = None, warnings: str = "error", **environment: str
    ) -> str:
        return python(
            "-W", warnings, "-c", source, cwd=folder, environment={**os.environ, **environment}
        ).stdout

    return run


# The package's own versions, which share the folder that torch.compile keeps its graphs in.

COMPILED = """
import torch, torch_dmlpool as dmlpool
from torch._dynamo.utils import counters
{setting}
leaf = torch.ones(1, 1, 4, 4, requires_grad=True)
pool = torch.compile(lambda x: dmlpool.average_pooling(x, 2, 2), fullgraph=True)
(gradient,) = torch.autograd.grad(pool(leaf), leaf, torch.ones(1, 1, 2, 2))
hits = counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"]
print(dmlpool.__file__, gradient.unique().tolist(), hits)
"""


def copied_package(folder: Path, changed: bool) -> Path:
    """A whole package in ``folder``; ``changed`` in its gradient of averages, under the same
    operators' names."""
    shutil.copytree(PACKAGE, folder / "torch_dmlpool", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(KERNELS, folder / "torch_dmlpool" / "kernels", dirs_exist_ok=True)
    source = folder / "torch_dmlpool" / "ops" / "average_pooling.py"
    if changed:
        source.write_text(source.read_text() + CHANGE)
    return folder


CHANGE = """

average_pooling.adjoint = lambda input, window, include_padding, _: (
    average_pooling_grad, (input.shape[2:], window, include_padding, 2)
)
"""


@pytest.mark.slow
def test_no_graph_of_another_version_is_reused(
    run_python: Callable[..., str], tmp_path: Path
) -> None:
    """One cache on disk for two versions: each computes its own gradient, and finds its own graph
    again.

    Without the mark the second version would run the first one's backward graph: that is tried too.
    """
    folders = {
        "old": copied_package(tmp_path / "old", False),
        "new": copied_package(tmp_path / "new", True),
    }

    def gradient(version: str, cache: str, setting: str = "") -> tuple[list[float], int]:
        output = run_python(
            COMPILED.format(setting=setting),
            folder=folders[version],
            warnings="default",
            PYTHONPATH=str(folders[version]),
            TORCHINDUCTOR_CACHE_DIR=str(tmp_path / cache),
            TORCHINDUCTOR_FX_GRAPH_CACHE="1",
            TORCHINDUCTOR_AUTOGRAD_CACHE="1",
        )
        found = re.fullmatch(r"(\S+) \[(.*)\] (\d+)\n", output)
        assert found is not None, output
        assert found[1].startswith(str(folders[version]))
        return [float(number) for number in found[2].split(",")], int(found[3])

    assert gradient("old", "shared") == ([0.25], 0)
    values, hits = gradient("new", "shared")
    assert (values, hits) == ([0.5], 0)
    values, hits = gradient("old", "shared")
    assert values == [0.25]
    assert hits > 0
    unmarked = 'torch.compiler.config.cache_key_tag = ""'
    assert gradient("old", "unmarked", unmarked) == ([0.25], 0)
    values, hits = gradient("new", "unmarked", unmarked)
    assert values == [0.25], (
        "PyTorch's caches tell derivatives apart by themselves now: the mark has become needless"
    )
    assert hits > 0


def test_every_change_of_a_source_is_another_revision(tmp_path: Path) -> None:
    old, new = (
        copied_package(tmp_path / name, changed)
        for name, changed in (("old", False), ("new", True))
    )
    twin = copied_package(tmp_path / "twin", False)
    marks = [ops.revision(folder / "torch_dmlpool") for folder in (old, new, twin)]
    assert marks[0] == marks[2] != marks[1]
    (twin / "torch_dmlpool" / "window.py").rename(twin / "torch_dmlpool" / "frame.py")
    assert ops.revision(twin / "torch_dmlpool") != marks[0]


def test_compiled_graphs_carry_the_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    """In PyTorch's own setting for that, once, beside whatever the user has set there."""
    mark = f"torch_dmlpool={ops.revision()}"
    assert mark in torch.compiler.config.cache_key_tag.split()
    with torch.compiler.config.patch(cache_key_tag="mine"):
        ops.mark_compiled_graphs()
        ops.mark_compiled_graphs()
        assert torch.compiler.config.cache_key_tag == f"mine {mark}"


def test_pytorch_puts_the_mark_into_the_keys_of_its_caches() -> None:
    """If this fails, PyTorch has stopped to: ops/__init__.py needs another way."""
    from torch._inductor.codecache import FxGraphHashDetails

    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    tags = []
    for tag in ("one", "another"):
        with torch.compiler.config.patch(cache_key_tag=tag):
            tags.append(vars(FxGraphHashDetails(graph, [], {}, [])))
    assert {
        name for name in tags[0] if name.endswith("tag") and tags[0][name] != tags[1][name]
    } == {"cache_key_tag"}


# PyTorch's private names, which may change without notice.


def modules() -> dict[str, ast.Module]:
    """The package's sources by their dotted names; kernels know nothing of PyTorch."""
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if "kernels" not in path.parts]
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): ast.parse(path.read_text())
        for path in paths
    }


def private_names(tree: ast.Module) -> set[str]:
    """PyTorch's private names that a module imports or reads from what it imports, in full."""
    known, found = {"torch": "torch"}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            known |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)):
            first, *rest = ast.unparse(node).split(".")
            found.add(".".join([known.get(first, ""), *rest]))
    # Of torch._inductor modules alone are there before something is compiled.
    return {
        name
        for name in found
        if re.match(r"torch\.[\w.]*\b_[a-zA-Z][\w.]*$", name) and ".V." not in name
    }


USERS: dict[str, set[str]] = {}
for module, tree in modules().items():
    for private in private_names(tree):
        USERS.setdefault(private, set()).add(module)


@pytest.mark.parametrize("name", sorted(USERS))
def test_pytorch_still_has_the_private_name(name: str) -> None:
    """If this fails, PyTorch has moved or renamed what a module builds on."""
    home, rest = torch, name.split(".")[1:]
    for done, part in enumerate(rest, 2):
        if not hasattr(home, part) and isinstance(home, ModuleType):
            with contextlib.suppress(ImportError):
                importlib.import_module(".".join(name.split(".")[:done]))
        if part == "quint8" or (part.startswith("_empty_") and not hasattr(torch, "quint8")):
            pytest.skip("PyTorch has no quantized tensors any more")
        assert hasattr(home, part), f"{name} is gone; {', '.join(USERS[name])} need it"
        home = getattr(home, part)


def test_private_names_are_used_in_few_places() -> None:
    """How operators are registered is one module's matter."""
    assert len(USERS) > 15
    assert USERS["torch._C._AutoDispatchBelowAutograd"] == {"ops.registration"}


# What a process lacks, or has broken: the CPU goes on, results and gradients.

POOLING = """
import torch_dmlpool as dmlpool
input = torch.arange(16.0).view(1, 1, 4, 4).requires_grad_()
values, indices = dmlpool.max_pooling(input, 2, 2, return_indices=True)
values.sum().backward()
integers = input.detach().to(torch.uint8)
pooled = dmlpool.quantized_linear_average_pooling(integers, 0.5, 0, 0.5, 0, 2, 2)
gradient = int(input.grad.sum())
print(values.flatten().tolist(), indices.flatten().tolist(), gradient, pooled.flatten().tolist())
averages = dmlpool.nn.quantized.AvgPool2d(2)(integers)
print(averages.flatten().tolist(), dmlpool.nn.AvgPool2d(4)(input).item())
"""
POOLED = "[5.0, 7.0, 13.0, 15.0] [5, 7, 13, 15] 4 [2, 4, 10, 12]\n[2, 4, 10, 12] 7.5\n"
WITHOUT = {
    "quantized tensors, which PyTorch has announced": """
announced = ("quint", "qint", "quantize_", "per_channel_affine", "per_tensor_affine",
             "per_channel_symmetric", "per_tensor_symmetric", "_empty_affine",
             "_empty_per_channel", "_make_per")
for name in [name for name in dir(torch) if name.startswith(announced)]:
    delattr(torch, name)
""",
    "distributed tensors, as on some platforms": """
import sys
sys.modules["torch.distributed.tensor"] = None
torch.distributed.is_available = lambda: False
""",
    "the allocator of Inductor's code": """
import torch._C._dynamo.guards
del torch._C._dynamo.guards._empty_strided_cpu
""",
    "triton": """
import sys
sys.modules["triton"] = None
""",
    "a triton that can be imported": """
import sys, importlib.abc, importlib.machinery
class Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            return importlib.machinery.ModuleSpec(name, self)
    def create_module(self, spec): raise ImportError("libtriton.so: undefined symbol")
    def exec_module(self, module): pass
sys.meta_path.insert(0, Broken())
""",
}


@cases.each("what", WITHOUT, list(WITHOUT)[:1])
def test_a_process_without(what: str, run_python: Callable[..., str]) -> None:
    """E7: all but the two functions of quantized tensors, and those say what serves instead."""
    ending = """
functions = dmlpool.quantized_average_pooling, dmlpool.quantized_max_pooling
for function in functions * (not hasattr(torch, "quint8")):
    try: function(torch.ones(1, 1, 4, 4), 2)
    except NotImplementedError as error: print(error)
"""
    output = run_python("import torch" + WITHOUT[what] + POOLING + ending, TRITON_INTERPRET="0")
    assert output.startswith(POOLED)
    refusals = output.removeprefix(POOLED).splitlines()
    assert len(refusals) == 2 * what.startswith("quantized")
    assert all("has no quantized tensors" in refusal for refusal in refusals)


def test_importing_does_nothing_but_register(run_python: Callable[..., str]) -> None:
    """E7: operators are there before the first call, settings stay; neither triton nor a kernel of
    it is loaded."""
    program = """
import sys, torch
before = set(sys.modules), torch.get_num_threads(), torch.get_default_dtype()
import torch_dmlpool
operators = torch.ops.dmlpool
print(*(operator.default._schema.name
        for operator in (operators.max_pooling, operators.average_pooling)))
print((torch.get_num_threads(), torch.get_default_dtype()) == before[1:], torch.is_grad_enabled())
torch_dmlpool.max_pooling(torch.ones(1, 1, 4, 4), 2)
unwanted = ("triton", "torch_dmlpool.kernels.", "torch_dmlpool.backends.triton",
            "torch._inductor", "torch._dynamo")
print([name for name in set(sys.modules) - before[0] if name.startswith(unwanted)])
from torch_dmlpool import backends
torch.cuda.is_available = lambda: False
print(*(backends.serving(device).__name__.split(".")[-1] for device in ("cuda", "mps", "xpu")))
"""
    assert run_python(program, TRITON_INTERPRET="0").splitlines() == [
        "dmlpool::max_pooling dmlpool::average_pooling",
        "True True",
        "[]",
        "reference reference reference",
    ]
