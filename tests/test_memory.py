"""Memory: nothing is left behind by a call, caches have an end, and what training keeps is what the
contract allows."""

import ctypes
import functools
import gc
import importlib
import os
import pkgutil
import weakref
from collections.abc import Callable
from pathlib import Path

import operators
import pytest
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool import backends, nn
from torch_dmlpool.backends import reference
from torch_dmlpool.operators import calls

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.quantize_per_tensor, torch.quantize_per_channel:UserWarning"
)
MEBIBYTE = 2**20


def resident():
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.fixture
def old_objects_aside():
    """The collector leaves alone what earlier tests made."""
    gc.collect()
    gc.freeze()  # For good: no test needs what earlier ones left.


def left_behind(call, times):
    """How many Python objects and bytes of memory there are more after ``times`` calls, once caches
    are warm."""
    for _ in range(20):
        call()
    gc.collect()
    objects, memory = len(gc.get_objects()), resident()
    for _ in range(times):
        call()
    gc.collect()
    return len(gc.get_objects()) - objects, resident() - memory


def highest(call):
    """The most bytes that this process has in memory during a call, beyond those before it."""
    getattr(ctypes.CDLL(None), "malloc_trim", id)(0)  # keeps nothing that a call could use again
    Path("/proc/self/clear_refs").write_text("5")  # from here on
    before = resident()
    result = call()
    status = Path("/proc/self/status").read_text()
    del result
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 - before


@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1" or not os.access("/proc/self/clear_refs", os.W_OK),
    reason="reads Linux's account of what compiled kernels take",
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["average_pooling", "max_pooling", "lp_pooling", "min_pooling"])
@pytest.mark.parametrize("trains", [False, True], ids=["forward", "training"])
def test_a_mask_takes_at_most_64_mebibytes(trains, name, dtype):
    """K4, beside a call without one."""
    if backends.serving("cpu") is reference.BACKEND:
        pytest.skip("plain PyTorch copies what it masks")
    input = torch.ones(1, 32, 1536, 1024, dtype=dtype, requires_grad=trains)
    mask = torch.ones(1, 1, 1536, 1024, dtype=torch.bool)

    def call(**under):
        pooled = getattr(dmlpool, name)(input, 4, 4, **under)
        return torch.autograd.grad(pooled.sum(), input) if trains else pooled

    call(mask=mask)
    assert highest(lambda: call(mask=mask)) - highest(call) <= 64 * MEBIBYTE


@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1" or not Path("/proc/self/statm").exists(),
    reason="reads Linux's account of what compiled kernels take",
)
@pytest.mark.parametrize("times", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_nothing_leaks(times, old_objects_aside):
    """Per call of each operator, forward and backward, far less than one result (3 KiB at least)
    stays behind."""
    each = times // len(operators.EVERYTHING)
    image = samples.normal(4, 3, 32, 32)
    for name in operators.EVERYTHING:
        call = functools.partial(operators.everything, name, image)
        # A cache may fill once more where the machine is busy: what leaks does so again.
        twice = left_behind(call, each), left_behind(call, each)
        objects, memory = map(min, zip(*twice, strict=True))
        assert objects < 50, f"{name} leaves {objects} objects after {each} calls"
        # A few pages come and go with the allocator; a leak of every smallest result would be more.
        allowed = max(MEBIBYTE, 3 * 2**10 * each // 4)
        assert memory < allowed, f"{name} leaves {memory} bytes after {each} calls"


def caches():
    """Every function of the package that remembers its results."""
    found = {}
    for module in pkgutil.walk_packages(dmlpool.__path__, "torch_dmlpool."):
        if ".kernels" in module.name or "triton" in module.name or module.name.endswith("__main__"):
            continue
        for name, member in vars(importlib.import_module(module.name)).items():
            home = str(getattr(member, "__module__", ""))
            if isinstance(member, type(functools.cache(len))) and home.startswith("torch_dmlpool"):
                found[f"{home}.{name}"] = member
    return found


ENDLESS = {
    "torch_dmlpool.backends.serving",
    "torch_dmlpool.operators.quantized_tensors._hide_the_warning",
}
"""By the name of a device type, and by nothing at all."""


def test_caches_have_an_end():
    """However many windows and sizes a process meets."""
    found = caches()
    assert len(found) > 4
    endless = {name for name, each in found.items() if each.cache_parameters()["maxsize"] is None}
    assert endless <= ENDLESS


def test_remembered_calls_have_an_end(monkeypatch):
    """They are in no cache of functools. A new size beyond the most makes room, and is right."""
    monkeypatch.setattr(calls, "_MOST", 5)
    monkeypatch.setattr(calls, "_CALLS", {})
    for width in range(4, 20):
        input = samples.normal(1, 2, 3, width)
        expected = torch.nn.functional.max_pool2d(input, 2)
        assert torch.equal(dmlpool.nn.functional.max_pool2d(input, 2), expected)
        assert 0 < len(calls._CALLS) <= 5


@pytest.mark.parametrize(
    "pool", [nn.AvgPool2d(2), nn.MaxPool2d(2), nn.MinPool2d(2), nn.LPPool2d(2, 2)]
)
@pytest.mark.parametrize("is_single", [False, True])
def test_a_remembered_call_keeps_no_tensor(pool, is_single):
    """Neither the input that it was prepared for nor its mask."""
    input, mask = samples.normal(2, 3, 4, 5), torch.ones(4, 5, dtype=torch.bool)
    input = input[0] if is_single else input
    pool(input), pool(input, mask), pool(input.requires_grad_()).sum().backward()
    kept = [weakref.ref(each) for each in (input, mask)]
    del input, mask
    assert [each() for each in kept] == [None, None]


def kept_by(pool, leaf):
    """What is saved for the backward pass: elements of each data type, but for the input and the
    output themselves."""
    saved: dict[int, Tensor] = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: saved.setdefault(tensor.data_ptr(), tensor), lambda tensor: tensor
    ):
        output = pool(leaf)
    assert torch.is_grad_enabled() or not (saved or output.requires_grad)
    own = {leaf.data_ptr(), output.data_ptr()}
    kept: dict[torch.dtype, int] = {}
    for tensor in [tensor for pointer, tensor in saved.items() if pointer not in own]:
        kept[tensor.dtype] = kept.get(tensor.dtype, 0) + tensor.numel()
    return kept


KEPT: dict[str, tuple[Callable[[Tensor], Tensor], dict[torch.dtype, int]]] = {
    "average_pooling": (lambda x: dmlpool.average_pooling(x, 2, 2), {}),
    "average_pooling, whole planes": (lambda x: dmlpool.average_pooling(x, 8), {}),
    "adaptive_average_pooling": (lambda x: dmlpool.adaptive_average_pooling(x, 3), {}),
    "max_pooling": (lambda x: dmlpool.max_pooling(x, 2, 2), {torch.uint8: 96}),
    "max_pooling, whole planes": (lambda x: dmlpool.max_pooling(x, 8), {torch.uint8: 6}),
    "adaptive_max_pooling": (lambda x: dmlpool.adaptive_max_pooling(x, 3), {torch.int32: 54}),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_for_the_gradient(name):
    """M6, for every family: taps or positions of 32 bits; of averages nothing."""
    pool, expected = KEPT[name]
    assert kept_by(pool, samples.normal(2, 3, 8, 8).requires_grad_()) == expected
    with torch.no_grad():
        assert kept_by(pool, samples.normal(2, 3, 8, 8).requires_grad_()) == {}
