"""Where Triton cannot run on a GPU plain PyTorch does: one warning says why, and results are the
same."""

import gc
import importlib.util
import re
import warnings
import weakref
from types import SimpleNamespace

import pytest
import torch

triton = pytest.importorskip("triton")

from benchmarks import requests  # noqa: E402
from torch_dmlpool import backends  # noqa: E402
from torch_dmlpool.backends import fallbacks, reference  # noqa: E402
from torch_dmlpool.backends import triton as backend  # noqa: E402
from torch_dmlpool.window import Window  # noqa: E402


@pytest.fixture
def on_a_gpu(monkeypatch):
    """CPU tensors take the way to a GPU's driver, which is not there."""
    monkeypatch.setattr(backend, "launch", lambda how, *arguments: backend._run(how, arguments, 0))
    monkeypatch.setattr(backends, "serving", lambda _: backend.BACKEND)
    monkeypatch.setattr(fallbacks, "_warned", [])
    forget()
    yield monkeypatch
    forget()


def forget():
    """What was compiled for another driver. Plans keep it as well."""
    backend.planned.cache_clear()
    backend._compiled.cache_clear()


@pytest.fixture
def tried(on_a_gpu):
    """The kernels that were to be compiled; none can be."""
    names: list[str] = []

    def fails(name, *_):
        names.append(name)
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC")

    on_a_gpu.setattr(backend, "compiled", fails)
    return names


def test_every_call_is_served_by_the_reference_where_nothing_compiles(tried):
    asked = [(each, each.whole_numbers()) for each in requests.checked(types=False)]
    expected = [each.call(reference.BACKEND, *read) for each, read in asked]
    with pytest.warns(
        fallbacks.SlowBackendWarning, match=r"cannot compile .*Failed to find C compiler"
    ) as heard:
        found = [each.call(backend.BACKEND, *read) for each, read in asked]
    for wanted, got in zip(expected, found, strict=True):
        requests.compare(wanted, got)
    assert len(heard) == 1
    assert fallbacks.SWITCH in str(heard[0].message)
    assert len(set(tried)) > 4


def test_each_public_function_falls_back():
    """But those that are the reference's own."""
    shared = {
        name
        for name in vars(reference)
        if not name.startswith("_")
        and hasattr(backend, name)
        and name.endswith(("pooling", "averages", "taps", "indices", "grad"))
    }
    assert len(shared) > 5
    for name in shared:
        function = getattr(backend, name)
        assert function is getattr(reference, name) or hasattr(function, "__wrapped__"), name


def test_a_kernel_that_cannot_be_compiled_is_tried_once(tried):
    input, window = torch.zeros(1, 1, 8, 16), Window.directml(2, 2, 2)
    with pytest.warns(RuntimeWarning):
        backend.max_pooling(input, window)
    for _ in range(2):
        backend.max_pooling(input, window)
    assert len(tried) == 1


def test_what_a_driver_reports_is_no_reason_to_fall_back(on_a_gpu):
    """An error of a launch itself may have left the GPU unusable: nobody hides it."""

    def launched(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    hooks = SimpleNamespace(launch_enter_hook=None, launch_exit_hook=None)
    ready = None, hooks, lambda _: 0, launched, None, None, ()
    on_a_gpu.setattr(backend, "compiled", lambda *_: (None, ()))
    on_a_gpu.setattr(backend, "_ready", lambda *_: ready)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        backend.max_pooling(torch.zeros(1, 1, 8, 16), Window.directml(2, 2, 2))


def test_a_missing_kernel_keeps_no_tensor_alive(tried):
    input = torch.zeros(1, 1, 8, 16)
    seen = weakref.ref(input)
    with pytest.warns(RuntimeWarning):
        backend.max_pooling(input, Window.directml(2, 2, 2))
    del input
    gc.collect()
    assert seen() is None


@pytest.fixture
def beside_a_gpu(monkeypatch):
    """A process on a machine with a GPU, in which nothing has been pooled yet."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(fallbacks, "_warned", [])
    backends.serving.cache_clear()
    yield monkeypatch
    backends.serving.cache_clear()


def served():
    """The backends of devices, and what was warned of."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        names = [backends.serving(device).name for device in ("cuda", "cuda", "mps", "xpu")]
    return names, [str(each.message) for each in heard]


def test_a_gpu_without_triton_is_served_with_one_warning(beside_a_gpu):
    find = importlib.util.find_spec
    beside_a_gpu.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == "triton" else find(name, *more),
    )
    names, (heard,) = served()
    assert names == ["reference"] * 4
    assert re.fullmatch("Triton is not installed; plain PyTorch is used on the GPU .*", heard)


def test_a_variable_turns_triton_off_without_a_word(beside_a_gpu):
    assert served() == (["triton", "triton", "reference", "reference"], [])
    backends.serving.cache_clear()
    beside_a_gpu.setenv(fallbacks.SWITCH, "0")
    assert served() == (["reference"] * 4, [])
