"""Compiled graphs carry the revision of the package, and nothing else does: PyTorch's caches keep
the graphs of two versions apart, and find those without pooling again."""

import compileall
import os
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

import cases
import operators
import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

import torch_dmlpool
from torch_dmlpool.operators import revision

PACKAGE = Path(torch_dmlpool.__file__).parent
KERNELS = (
    PACKAGE.parent / "kernels" if (PACKAGE.parent / "kernels").is_dir() else PACKAGE / "kernels"
)


COMPILED = """
import sys, threading
import torch, torch_dmlpool as dmlpool
from torch._dynamo.utils import counters

leaf = torch.ones(1, 1, 4, 4, requires_grad=True)
window = [2, 2], [2, 2], [0, 0], [0, 0], [1, 1], False, False, None

class Model(torch.nn.Module):
    def forward(self, x):
        return dmlpool.average_pooling(x, 2, 2)

FUNCTIONS = {
    "public": lambda x: dmlpool.average_pooling(x, 2, 2),
    "by name": lambda x: torch.ops.dmlpool.average_pooling(x, *window),
    "exported": lambda x: x,
    "without pooling": lambda x: torch.nn.functional.avg_pool2d(x, 2, 2) * 3,
}
if sys.argv[1] == "exported":
    FUNCTIONS["exported"] = torch.export.export(Model(), (leaf.detach(),)).module()

def run():
    function = torch.compile(FUNCTIONS[sys.argv[1]], fullgraph=True)
    (gradient,) = torch.autograd.grad(function(leaf), leaf, torch.ones(1, 1, 2, 2))
    hits = counters["aot_autograd"]["autograd_cache_hit"]
    hits += counters["inductor"]["fxgraph_cache_hit"]
    print(dmlpool.__file__, gradient.unique().tolist(), hits)

if sys.argv[2] == "thread":
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
else:
    run()
"""


CHANGE = """

old_gradient = average_pooling_grad_op
average_pooling_grad_op = lambda arriving, sizes, window, include_padding, _: (
    old_gradient(arriving, sizes, window, include_padding, 2)
)
"""


@pytest.fixture
def compiled_by(python, tmp_path):
    """The gradient that a version of the package gives for a function, and whether it found graphs
    in the cache that both versions share. The new one has another gradient of averages."""
    for version in ("old", "new"):
        package, skips = tmp_path / version / "torch_dmlpool", shutil.ignore_patterns("__pycache__")
        shutil.copytree(PACKAGE, package, ignore=skips)
        shutil.copytree(KERNELS, package / "kernels", dirs_exist_ok=True)
    with (tmp_path / "new/torch_dmlpool/operators/average_pooling.py").open("a") as source:
        source.write(CHANGE)

    def gradient(version, function, where):
        environment = {
            **os.environ,
            "PYTHONPATH": str(tmp_path / version),
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
            "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
        }
        arguments = ("-c", COMPILED, function, where)
        output = python(*arguments, cwd=tmp_path / version, environment=environment).stdout
        found = re.fullmatch(r"(\S+) \[(.*)\] (\d+)\n", output)
        assert found is not None, output
        assert found[1].startswith(str(tmp_path / version))
        return [float(number) for number in found[2].split(",")], int(found[3]) > 0

    return gradient


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "where"),
    [
        *[("public", "main"), ("public", "thread"), ("by name", "main"), ("exported", "main")],
        ("without pooling", "main"),
    ],
)
def test_no_graph_with_pooling_is_reused_by_another_version(function, where, compiled_by):
    """One cache on disk for two versions: each computes its own gradient, and finds its own graph
    again. A graph without pooling is found by both."""
    has_pool = function != "without pooling"
    old, new = ([0.25], [0.5]) if has_pool else ([0.75], [0.75])
    assert compiled_by("old", function, where) == (old, False)
    assert compiled_by("new", function, where) == (new, not has_pool)
    assert compiled_by("old", function, where) == (old, True)


@pytest.mark.parametrize(
    "form", ["sources", "renamed", "compiled files alone", "archive", "frozen"]
)
def test_every_change_of_code_is_another_revision(form, tmp_path, monkeypatch):
    """The digest is of sources, of compiled files alone or of an archive. A frozen program has its
    version alone."""
    marks = []
    for version in ("1", "1 again", "2"):
        package = tmp_path / version / "package"
        package.mkdir(parents=True)
        source = package / ("renamed.py" if (version, form) == ("2", "renamed") else "module.py")
        source.write_text(f"VERSION = {version[0] if form != 'renamed' else 0}\n")
        found: Any = package
        if form == "compiled files alone":
            by_hash = PycInvalidationMode.UNCHECKED_HASH  # not by the time of the source
            how: dict[str, Any] = {"legacy": True, "ddir": "", "invalidation_mode": by_hash}
            assert compileall.compile_dir(package, quiet=2, **how)
            source.unlink()
        elif form == "archive":
            with zipfile.ZipFile(tmp_path / f"{version}.zip", "w") as archive:
                archive.write(source, "package/module.py")
            found = zipfile.Path(tmp_path / f"{version}.zip", "package/")
        elif form == "frozen":
            source.unlink()
            monkeypatch.setattr(torch_dmlpool, "__version__", version[0])
        revision.revision.cache_clear()
        marks.append(revision.revision(found))
    revision.revision.cache_clear()
    assert marks[0] == marks[1] != marks[2]


def graphs_of(function, input):
    """What torch.compile makes of a function and its gradient: Dynamo's graph, then those that
    Inductor gets, whose code is in the keys of the caches."""
    found: list[torch.fx.GraphModule] = []

    def keep(graph, _):
        found.append(graph)
        return graph.forward

    for backend in (keep, aot_autograd(fw_compiler=keep, bw_compiler=keep)):
        torch._dynamo.reset()
        result = torch.compile(function, backend=backend, fullgraph=True)(input)
        if result.requires_grad and backend is not keep:
            torch.autograd.grad(result.sum(), input)
    return found


WINDOW = ([2, 2], [2, 2], [0, 0], [0, 0], [1, 1], False)
CALLED = "max_pooling", "lp_pooling, p 3", "max_unpooling", "adaptive_max_pooling"
SIGNED_FOR: dict[str, Callable[[Tensor], Any]] = {
    **{name: operators.EVERYTHING[name] for name in CALLED},
    "an average by its name": lambda x: torch.ops.dmlpool.average_pooling(x, *WINDOW, True, None),
    "a maximum by its overload": lambda x: torch.ops.dmlpool.max_pooling.default(x, *WINDOW),
    "a batch": lambda x: torch.vmap(lambda y: torch_dmlpool.average_pooling(y, 2))(x[:, None]),
    "a gradient": lambda x: torch.func.grad(lambda y: torch_dmlpool.max_pooling(y, 2).sum())(x),
    "quantized averages": operators.EVERYTHING["quantized_linear_average_pooling"],
}


@pytest.mark.filterwarnings("ignore:Your compiler for AOTAutograd is returning a function")
@cases.in_pairs(what=list(SIGNED_FOR), mode=["enable_grad", "no_grad", "inference_mode"])
def test_every_operator_in_a_compiled_graph_carries_the_revision(what, mode):
    """And nothing else does."""
    with getattr(torch, mode)():
        input = torch.rand(2, 3, 6, 5, requires_grad=mode == "enable_grad")
        graphs = graphs_of(SIGNED_FOR[what], input)
    calls = [
        node for graph in graphs for node in graph.graph.nodes if "dmlpool" in str(node.target)
    ]
    assert len(calls) >= 2
    for node in calls:
        assert node.kwargs == {"revision": revision.revision()}, node.format_node()
    for graph in graphs:
        others = len(re.findall("revision", graph.code)) - len(
            re.findall(r"ops\.dmlpool", graph.code)
        )
        assert others == 0, graph.code


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_exported_programs_carry_no_revision(strict):
    """They outlive it."""

    class Model(torch.nn.Module):
        def forward(self, input):
            return [function(input) for function in list(SIGNED_FOR.values())[:6]]

    program = torch.export.export(Model(), (torch.rand(2, 3, 6, 5),), strict=strict)
    for each in (program, program.run_decompositions(), program.run_decompositions({})):
        assert "dmlpool" in each.graph_module.code
        assert "revision" not in each.graph_module.code
