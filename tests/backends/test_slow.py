"""A fallback speaks: the first call in plain PyTorch, for want of kernels, warns."""

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_dmlpool as dmlpool
from torch_dmlpool import backends
from torch_dmlpool.backends import cpu, library
from torch_dmlpool.decompositions import decompositions

ROOT = Path(dmlpool.__file__).resolve().parents[1]
MISSING = "cpu_avx2.so was not built: install a C++ compiler"
SAID = (
    "CPU tensors use plain PyTorch operations, several times slower than compiled kernels: "
    + MISSING
)
IMAGE = torch.arange(16.0).view(1, 1, 4, 4)


@pytest.fixture
def without_library(monkeypatch, request):
    """A process in which nothing has been pooled yet, and no library was built."""
    if request.config.getoption("--backend") == "reference":
        pytest.skip("the reference was asked for")
    monkeypatch.setattr(cpu, "library", None)
    monkeypatch.setattr(cpu, "missing", MISSING)
    backends.serving.cache_clear()
    yield
    backends.serving.cache_clear()


def of(call):
    """What a call warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return caught


CALLS: dict[str, Callable[[], Any]] = {
    "max": lambda: dmlpool.max_pooling(IMAGE, 2),
    "indices": lambda: dmlpool.max_pooling(IMAGE, 2, return_indices=True),
    "gradient": lambda: dmlpool.average_pooling(IMAGE.clone().requires_grad_(), 2).sum().backward(),
    "lp": lambda: dmlpool.lp_pooling(IMAGE, 2),
    "adaptive": lambda: dmlpool.adaptive_max_pooling(IMAGE, 3),
    "quantized": lambda: dmlpool.quantized_linear_average_pooling(
        IMAGE.to(torch.uint8), 0.5, 1, 0.5, 1, window_size=2
    ),
    "layer": lambda: dmlpool.nn.AvgPool2d(2)(IMAGE),
    "func": lambda: torch.func.grad(lambda x: dmlpool.max_pooling(x, 2).sum())(IMAGE),
    "registered": lambda: torch.ops.dmlpool.adaptive_average_pooling(IMAGE, [3, 3]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_first_pooled_call_warns_once(call, without_library):
    """E7: it says what is used, that it is slower, and what to do, where the call was written."""
    (warning,) = of(call)
    assert warning.category is dmlpool.SlowBackendWarning
    assert str(warning.message) == SAID
    assert warning.filename == __file__
    assert of(call) == []


def test_it_can_be_filtered_by_its_class(without_library):
    assert issubclass(dmlpool.SlowBackendWarning, RuntimeWarning)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(dmlpool.SlowBackendWarning, match="several times slower"):
            dmlpool.max_pooling(IMAGE, 2)
        warnings.filterwarnings("ignore", category=dmlpool.SlowBackendWarning)
        assert dmlpool.max_pooling(IMAGE, 2, 2).flatten().tolist() == [5, 7, 13, 15]


def test_graphs_are_traced_without_it(without_library, fresh_compiler):
    """torch.export and torch.compile meet it when a graph is run, if they meet it at all."""
    layer = dmlpool.nn.MaxPool2d(2).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error", dmlpool.SlowBackendWarning)
        program = torch.export.export(layer, (IMAGE,)).run_decompositions(decompositions())
        assert program.module()(IMAGE).flatten().tolist() == [5, 7, 13, 15]
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    caught = [each for each in of(lambda: compiled(IMAGE)) if str(each.message) == SAID]
    assert len(caught) == 1
    assert compiled(IMAGE).flatten().tolist() == [5, 7, 13, 15]


def test_asking_what_serves_is_not_pooling(without_library):
    """As ``python -m torch_dmlpool`` does, which says it in its own words. No library is missing on
    devices that have no kernels."""
    assert of(lambda: backends.chosen("cpu")) == []
    assert backends.chosen("cpu")[1] == MISSING
    assert not any(backends.chosen(device)[1] for device in ("mps", "xpu", "meta"))


def test_a_conversion_says_what_is_missing(without_library):
    """A model on another device does not miss them, nor does one in which nothing was replaced."""
    said = f"plain PyTorch pools here, several times slower: {MISSING}"
    assert said in str(dmlpool.nn.convert(torch.nn.Sequential(torch.nn.MaxPool2d(2))))
    elsewhere = torch.nn.Sequential(torch.nn.Linear(2, 2, device="meta"), torch.nn.MaxPool2d(2))
    assert said not in str(dmlpool.nn.convert(elsewhere))
    assert said not in str(dmlpool.nn.convert(torch.nn.Linear(2, 2)))


PROGRAM = """
import torch, torch_dmlpool
print("imported")
for size in (4, 5, 6):
    torch_dmlpool.max_pooling(torch.ones(1, 1, size, size), 2)
"""


@pytest.mark.skipif(not (ROOT / "kernels").is_dir(), reason="the package is installed")
def test_a_checkout_with_a_stale_library(python, tmp_path):
    """In a process of its own: import is quiet, and of three calls the first warns."""
    for name in ("torch_dmlpool", "kernels"):
        ignored = shutil.ignore_patterns("*.so", "*.dll", "__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    levels = library.LEVELS.get(torch.backends.cpu.get_cpu_capability(), ("default",))
    name = f"cpu_{levels[0]}.{library.ENDING}"
    # A library of PyTorch's stands for one that was built before there was a version.
    (built,) = (Path(torch.__file__).parent / "lib").glob("libc10.*")
    shutil.copy(built, tmp_path / "kernels" / name)
    program = f"import sys; sys.path[:] = [p for p in sys.path if p != {str(ROOT)!r}]\n{PROGRAM}"
    finished = python("-W", "always", "-c", program, cwd=tmp_path)
    assert finished.stdout == "imported\n"
    (line,) = (line for line in finished.stderr.splitlines() if "SlowBackendWarning" in line)
    assert "CPU tensors use plain PyTorch operations, several times slower" in line
    assert f"{name} was built from other sources than this package" in line
    assert "install" in line
