"""Other versions: of the package beside compiled graphs of its own past, of PyTorch without what may go, of Triton."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_dmlpool
from torch_dmlpool.ops import revision

PACKAGE = Path(torch_dmlpool.__file__).parent
KERNELS = PACKAGE.parent / "kernels" if (PACKAGE.parent / "kernels").is_dir() else PACKAGE / "kernels"


def run_python(source: str, *, folder: Path | None = None, warnings: str = "error", **environment: str) -> str:
    completed = subprocess.run(
        [sys.executable, "-W", warnings, "-c", source],
        env={**os.environ, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


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
    """A whole package in ``folder``; ``changed`` in its gradient of averages, under the same operators' names."""
    shutil.copytree(PACKAGE, folder / "torch_dmlpool", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(KERNELS, folder / "torch_dmlpool" / "kernels", dirs_exist_ok=True)
    source = folder / "torch_dmlpool" / "ops" / "average_pooling.py"
    if changed:
        source.write_text(source.read_text() + CHANGE)
    return folder


CHANGE = """

_given = AveragePooling.backward


def _doubled(context, *gradients):
    gradient, *rest = _given(context, *gradients)
    return gradient * 2, *rest


AveragePooling.backward = staticmethod(_doubled)
"""


@pytest.mark.slow
def test_no_graph_of_another_version_is_reused(tmp_path: Path) -> None:
    """One cache on disk for two versions: each computes its own gradient, and finds its own graph again.

    Without the mark the second version would run the first one's backward graph: that is tried too.
    """
    folders = {"old": copied_package(tmp_path / "old", False), "new": copied_package(tmp_path / "new", True)}

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
    assert values == [0.25], "PyTorch's caches tell derivatives apart by themselves now: the mark has become needless"
    assert hits > 0


def test_every_change_of_a_source_is_another_revision(tmp_path: Path) -> None:
    old, new = (copied_package(tmp_path / name, changed) for name, changed in (("old", False), ("new", True)))
    twin = copied_package(tmp_path / "twin", False)
    marks = [revision.revision(folder / "torch_dmlpool") for folder in (old, new, twin)]
    assert marks[0] == marks[2] != marks[1]
    (twin / "torch_dmlpool" / "window.py").rename(twin / "torch_dmlpool" / "frame.py")
    assert revision.revision(twin / "torch_dmlpool") != marks[0]


def test_compiled_graphs_carry_the_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    """In PyTorch's own setting for that, once, beside whatever the user has set there."""
    mark = f"torch_dmlpool={revision.revision()}"
    assert mark in torch.compiler.config.cache_key_tag.split()
    with torch.compiler.config.patch(cache_key_tag="mine"):
        revision.mark_compiled_graphs()
        revision.mark_compiled_graphs()
        assert torch.compiler.config.cache_key_tag == f"mine {mark}"


def test_pytorch_puts_the_mark_into_the_keys_of_its_caches() -> None:
    """If this fails, PyTorch has stopped to: ops/revision.py needs another way."""
    from torch._inductor.codecache import FxGraphHashDetails

    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    tags = []
    for tag in ("one", "another"):
        with torch.compiler.config.patch(cache_key_tag=tag):
            tags.append(vars(FxGraphHashDetails(graph, [], {}, [])))
    assert {name for name in tags[0] if name.endswith("tag") and tags[0][name] != tags[1][name]} == {"cache_key_tag"}


# PyTorch's private names: each by where it is used and what must be there.

PRIVATE_NAMES = {
    "torch._C._AutoDispatchBelowAutograd": {"ops.registration"},
    "torch._C._dispatch_tls_local_include_set": {"ops.registration"},
    "torch._C._are_functorch_transforms_active": {"ops.registration"},
    "torch._C._nn": {"nn.rerouting"},
    "torch._VF": {"ops.registration"},
    "torch._VF._unpack_dual": {"ops.registration"},
    "torch._C._functorch.is_functorch_wrapped_tensor": {"ops.registration"},
    "torch._functorch.autograd_function.enable_single_level_autograd_function": {"ops.registration"},
    "torch.autograd.forward_ad._set_fwd_grad_enabled": {"ops.registration"},
    "torch.autograd.forward_ad._current_level": {"ops.registration"},
    "torch._prims_common.suggest_memory_format": {"operands"},
    "torch._ops.OpOverload": set(),
    "torch.distributed._functional_collectives": {"distributed.exchange"},
    "torch.autograd.profiler._is_profiler_enabled": {"ops.registration"},
    "torch.onnx.symbolic_helper._parse_arg": {"onnx.torchscript"},
    "torch.nn.modules.pooling._AdaptiveAvgPoolNd": {"nn.conversion"},
    "torch.nn.modules.pooling._AdaptiveMaxPoolNd": {"nn.conversion"},
    "torch.nn.modules.pooling._LPPoolNd": {"nn.conversion"},
    "torch.nn.modules.pooling._MaxPoolNd": {"nn.conversion"},
    "torch.nn.modules.pooling._MaxUnpoolNd": {"nn.conversion"},
    "torch.ops.aten._to_copy": set(),
    "torch._subclasses.fake_tensor.is_fake": {"distributed.exchange"},
    "torch._subclasses.fake_tensor.unset_fake_temporarily": {"distributed.exchange"},
    "torch._assert_async": {"distributed.exchange"},
    "torch._empty_affine_quantized": {"quantized"},
    "torch._empty_per_channel_affine_quantized": {"quantized"},
}
"""Full names, and the modules that use them (none named: in annotations, or by another name, wherever it is)."""
QUANTIZED = {name for name, users in PRIVATE_NAMES.items() if users == {"quantized"}}
PRIVATE_ATTRIBUTES = {
    "_schema": lambda: torch.ops.aten.add.Tensor._schema.name,
    "_modules": lambda: torch.nn.Sequential(torch.nn.ReLU())._modules["0"],
}
"""Attributes of PyTorch's objects, and how to find out that they are there."""
OTHERS = {"_getframe"}
"""Python's own."""


def modules() -> dict[str, ast.Module]:
    """The package's sources by their dotted names; kernels know nothing of PyTorch."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] != "kernels":
            found[".".join(part for part in parts if part != "__init__")] = ast.parse(path.read_text())
    return found


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def private_names(tree: ast.Module) -> set[str]:
    """PyTorch's private names that a module imports or reads from what it imports, in full."""
    known, found = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                known[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)) and dotted(node):
            first, *rest = dotted(node).split(".")
            found.add(".".join([known.get(first, ""), *rest]))
    private = {name for name in found if name.startswith("torch.") and is_private(name)}
    # torch._C._nn.avg_pool2d is looked up in torch._C._nn: what is public below a private name is that name's matter.
    return {name for name in private if name.split(".")[-1].startswith("_") or name in PRIVATE_NAMES}


def test_private_names_of_pytorch_are_listed() -> None:
    """What PyTorch may change without notice: all of it, where it is used."""
    users: dict[str, set[str]] = {}
    for name, tree in modules().items():
        for private in private_names(tree):
            users.setdefault(private, set()).add(name)
    # A name that leads to a listed one only.
    paths = {name.rsplit(".", depth)[0] for name in PRIVATE_NAMES for depth in (1, 2) if name.count(".") > depth}
    unlisted = {name: where for name, where in users.items() if name not in PRIVATE_NAMES and name not in paths}
    assert not unlisted
    for name, where in PRIVATE_NAMES.items():
        assert not where or users.get(name, set()) == where, f"{name} is used in {users.get(name)}"


def test_private_attributes_of_pytorch_are_listed() -> None:
    """Read from tensors, modules, operators and storages: what no module of the package defines itself."""
    listed = {part for name in PRIVATE_NAMES for part in name.split(".")} | set(PRIVATE_ATTRIBUTES) | OTHERS
    trees = modules()
    own = set().union(*(declared(tree) for tree in trees.values()))
    read = {node.attr for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    private = {name for name in read if is_private(name)}
    assert private - own <= listed
    assert set(PRIVATE_ATTRIBUTES) <= private


def declared(tree: ast.Module) -> set[str]:
    """What a module defines: functions, classes, variables and the fields of its classes."""
    names = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
                    and isinstance(node.ctx, ast.Store)}  # fmt: skip


@pytest.mark.parametrize("name", PRIVATE_NAMES)
def test_pytorch_still_has_the_private_name(name: str) -> None:
    """If this fails, PyTorch has moved or renamed what the module named beside it in the table builds on."""
    if name in QUANTIZED and not hasattr(torch, "quint8"):
        pytest.skip("PyTorch has no quantized tensors any more")
    module, attribute = name.rsplit(".", 1)
    home = torch
    for part in module.split(".")[1:]:
        if not hasattr(home, part):
            importlib.import_module(f"{home.__name__}.{part}")
        home = getattr(home, part)
    found = hasattr(home, attribute) or importlib.util.find_spec(name) is not None
    assert found, f"{name} is gone; {', '.join(PRIVATE_NAMES[name]) or 'annotations'} need it"


@pytest.mark.parametrize("name", PRIVATE_ATTRIBUTES)
def test_pytorch_still_has_the_private_attribute(name: str) -> None:
    assert PRIVATE_ATTRIBUTES[name]() is not None


# PyTorch and Triton changed: what must survive it.

POOLING = """
input = torch.arange(16.0).view(1, 1, 4, 4).requires_grad_()
values, indices = dmlpool.max_pooling(input, 2, 2, return_indices=True)
values.sum().backward()
integers = input.detach().to(torch.uint8)
pooled = dmlpool.quantized_linear_average_pooling(integers, 0.5, 0, 0.5, 0, 2, 2)
print(values.flatten().tolist(), indices.flatten().tolist(), int(input.grad.sum()), pooled.flatten().tolist())
layer = dmlpool.nn.quantized.AvgPool2d(2)
print(layer(integers).flatten().tolist(), dmlpool.nn.AvgPool2d(4)(input).item())
"""
POOLED = "[5.0, 7.0, 13.0, 15.0] [5, 7, 13, 15] 4 [2, 4, 10, 12]\n[2, 4, 10, 12] 7.5\n"

WITHOUT_QUANTIZED_TYPES = """
import torch
for name in [name for name in dir(torch) if name.startswith(("quint", "qint", "quantize_", "per_channel_affine",
             "per_tensor_affine", "per_channel_symmetric", "per_tensor_symmetric", "_empty_affine",
             "_empty_per_channel", "_make_per"))]:
    delattr(torch, name)
import torch_dmlpool as dmlpool
""" + POOLING + """
for function in (dmlpool.quantized_average_pooling, dmlpool.quantized_max_pooling):
    try:
        function(torch.ones(1, 1, 4, 4), 2)
    except NotImplementedError as error:
        print(error)
"""  # fmt: skip


def test_pytorch_without_quantized_tensors() -> None:
    """PyTorch has announced it: all but the two functions of quantized tensors goes on, and those say what serves."""
    output = run_python(WITHOUT_QUANTIZED_TYPES)
    assert output.startswith(POOLED)
    refusals = output.removeprefix(POOLED).splitlines()
    assert len(refusals) == 2
    assert all("has no quantized tensors" in refusal for refusal in refusals)


WITHOUT_DISTRIBUTED = """
import sys
import torch
sys.modules["torch.distributed.tensor"] = None  # any import of it raises
torch.distributed.is_available = lambda: False
import torch_dmlpool as dmlpool
"""


def test_pytorch_without_distributed_tensors() -> None:
    """As PyTorch is built on some platforms."""
    assert run_python(WITHOUT_DISTRIBUTED + POOLING) == POOLED


def test_triton_without_a_gpu() -> None:
    """E7: where triton can be imported and no GPU is there, the reference serves every other device."""
    source = """
import torch, torch_dmlpool as dmlpool
from torch_dmlpool import backends
torch.cuda.is_available = lambda: False
print(*(backends.serving(device).__name__.split(".")[-1] for device in ("cuda", "mps", "xpu")))
"""
    assert run_python(source + POOLING, TRITON_INTERPRET="0") == " ".join(["reference"] * 3) + "\n" + POOLED


def test_triton_that_cannot_be_imported() -> None:
    """E7: half installed, or built for another Python: the CPU never asks."""
    source = """
import sys, importlib.abc, importlib.machinery
class Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name.split(".")[0] == "triton" else None
    def create_module(self, spec): raise ImportError("libtriton.so: undefined symbol")
    def exec_module(self, module): pass
import torch
sys.meta_path.insert(0, Broken())
import torch_dmlpool as dmlpool
"""
    assert run_python(source + POOLING, TRITON_INTERPRET="0") == POOLED
