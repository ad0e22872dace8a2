"""What the Triton backend asks of Triton beyond its documented interface; a new Triton that differs
fails here."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")

from torch_dmlpool.kernels.launches import Request, max_launches  # noqa: E402

from benchmarks import overhead  # noqa: E402
from torch_dmlpool.backends import compiling  # noqa: E402
from torch_dmlpool.backends import triton as backend  # noqa: E402
from torch_dmlpool.window import Window  # noqa: E402


@pytest.fixture
def launched():
    """What Triton's launcher would hand to the driver."""
    record: list[tuple[object, ...]] = []

    class Driver(overhead.Driver):
        # A loaded kernel is its machine code, so that one can be told from another.
        utils = SimpleNamespace(
            load_binary=lambda _, code, *__: (1, code, 32, 0, 1024),
            get_device_properties=overhead.Driver.utils.get_device_properties,
        )

        @staticmethod
        def launcher_cls(*_):
            return lambda *arguments: record.append(arguments)

    try:
        before = triton.runtime.driver.active
        before.get_current_device()
    except RuntimeError:  # no GPU
        before = None
    triton.runtime.driver.set_active(Driver())
    for cache in (backend.planned, backend._compiled):
        cache.cache_clear()
    yield record
    for cache in (backend.planned, backend._compiled):
        cache.cache_clear()
    if before is not None:
        triton.runtime.driver.set_active(before)


def a_launch():
    window = Window.directml(2, 2, 2)
    return max_launches(
        Request(window, (1, 1, 8, 16), (128, 128, 16, 1), (4, 8), 4, True, False), False
    )[0]


def test_a_compiled_kernel_takes_tensors_sizes_and_constants_by_position(launched):
    """``JITFunction.warmup`` and ``arg_names``, ``CompiledKernel.__getitem__``: a launch by hand is
    Triton's own."""
    input = torch.zeros(1, 1, 8, 16)
    how = a_launch()
    for _ in range(2):
        backend._run(how, (input,) * 4, 0)
    kernel = backend.kernel_named(*how.kernel.split("."))
    kernel[(how.programs,)](*(input,) * 4, how.sizes, **dict(how.constants), enable_fp_fusion=True)
    by_hand, again, by_triton = launched
    assert backend._compiled.cache_info().misses == 1
    assert by_hand[:3] == by_triton[:3] == (how.programs, 1, 1)
    assert by_hand[9:] == again[9:] == by_triton[9:]
    assert by_hand[4] == again[4]  # not Triton's own, which is compiled for the sizes


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(backend, "launch", lambda how, *given: backend._run(how, given, 0))


@pytest.mark.usefixtures("as_on_a_gpu")
def test_kernels_are_kept_for_the_types_and_alignment_of_a_call(launched, monkeypatch):
    """A call of the same sizes runs what was compiled for it; a tensor of another type, or one that
    does not start at 16 bytes, never runs that."""
    kinds, codes = [], []
    compile = backend.compiled

    def noted(*given):
        result = compile(*given)
        kinds.append(given[3])
        codes.append(result[0].asm["cubin"])
        return result

    monkeypatch.setattr(backend, "compiled", noted)
    memory = torch.zeros(513)
    for input in (memory[:512], memory[1:], memory[:512].half()):
        for _ in range(2):
            backend.max_pooling(input.view(1, 1, 16, 32), Window.directml(2, 3, 2, 1, 1))
    assert len(set(kinds)) == len(kinds) == 3
    assert [each[4] for each in launched] == [code for code in codes for _ in range(2)]


SCALES = torch.full((2,), 0.5), torch.zeros(2, dtype=torch.uint8)
FLOAT, BYTE = torch.float32, torch.uint8
CALLS = {  # the data types of operands of 1x2x9x17, and a call with a window of stride 2
    "max": ([FLOAT], lambda w, x: backend.max_pooling(x, w)),
    "taps": ([FLOAT], lambda w, x: backend.max_pooling_with_taps(x, w)),
    "average": ([FLOAT], lambda w, x: backend.average_pooling(x, w, False, None)),
    "masked": (
        [FLOAT, BYTE],
        lambda w, x, mask: backend.average_pooling(x, w, False, None, mask=mask.view(torch.bool)),
    ),
    "average grad": (
        [FLOAT],
        lambda w, g: backend.average_pooling_grad(g, (17, 33), w, False, None),
    ),
    "max grad": (
        [FLOAT, BYTE],
        lambda w, g, t: backend.max_pooling_grad_from_taps(g, t, (17, 33), w, False),
    ),
    "gather": ([FLOAT, BYTE], lambda w, x, t: backend.BACKEND.max_pooling_gather(x, t, w)),
    "indices": (
        [BYTE],
        lambda w, t: backend.max_pooling_indices(t, (17, 33), w, torch.int64, False),
    ),
    "quantized": (
        [BYTE, FLOAT, BYTE],
        lambda w, x, scale, zero: backend.quantized_averages(
            x, (scale[0, :, 0, 0], zero[0, :, 0, 0], *SCALES), w, True, BYTE
        ),
    ),
}


def operands_of(dtype):
    """Tensors of the same sizes: at 16 bytes, not at 16 bytes, both with gaps, which a kernel may
    read from a copy, and one of another type."""
    memory = torch.zeros(613, dtype=dtype)
    dense, gaps = (306, 153, 17, 1), (612, 306, 34, 2)
    made = [memory.as_strided((1, 2, 9, 17), how, at) for how in (gaps, dense) for at in (0, 1)]
    return [*made, made[2].to({FLOAT: torch.float16, BYTE: torch.int8}[dtype])]


@pytest.mark.parametrize("size", [3, 31])
@pytest.mark.parametrize("name", CALLS)
def test_a_launch_gets_operands_of_the_same_kinds_in_every_call(name, size, monkeypatch):
    """A launch keeps the kernel that was compiled for its first call. Machine code that loads 16
    bytes at once fails where a tensor does not start there."""
    dtypes, call = CALLS[name]
    first: dict[int, Any] = {}
    kept = []  # an address is not used again

    def launch(how, *given):
        kept.append(how)
        compiled = backend.what_is_compiled(how, given, 0)
        assert first.setdefault(id(how), compiled) == compiled

    monkeypatch.setattr(backend, "launch", launch)
    window = Window.directml(2, size, 2, size // 2, size // 2)
    for operands in itertools.product(*map(operands_of, dtypes)):
        call(window, *operands)
    assert first or (name, size) == ("max grad", 31)  # which no kernel computes


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_profiler_sees_every_launch(launched, monkeypatch):
    """Triton's hooks reach the launcher also where a plan has run before they were set."""
    input, window = torch.zeros(1, 1, 16, 32), Window.directml(2, 31, 1, 15, 15)
    seen: list[object] = []
    for hook in (None, seen.append):
        monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", hook)
        backend.average_pooling(input, window, False, None)
    before, after = launched[:2], launched[2:]
    assert all(each[6] is None and each[7] is None for each in before)
    assert [each[7] for each in after] == [seen.append] * 2
    assert [each[6].get()["name"] for each in after] == ["share", "share"]


@pytest.mark.usefixtures("launched")
def test_a_stand_in_for_a_tensor_says_whether_it_is_aligned():
    """Triton compiles from a data type and an address: aligned pointers are read 16 bytes at a
    time, others are not."""
    how = a_launch()
    for aligned in (True, False):
        kinds = ((torch.float32, aligned),) * 4
        compiled, _ = backend._compiled(how.kernel, how.constants, how.size_types, 0, kinds)
        assert ("ld.global.v4" in compiled.asm["ptx"]) is aligned


def test_keys_of_kernels_do_not_depend_on_which_is_compiled_first():
    """Triton finds what another process compiled in another order."""
    kernels = [backend.kernel_named(*each) for each in (("sliding", "share"), ("folding", "fold"))]
    keys = set()
    for order in (kernels, kernels[::-1]):
        for each in itertools.chain(*[kernel.__globals__.values() for kernel in kernels]):
            if "cache_key" in dir(type(each)):
                each.hash, each.used_global_vals = None, {}
        list(map(compiling.make_keys, order))
        keys.add(tuple(kernel.cache_key for kernel in kernels))
    assert len(keys) == 1


@pytest.mark.parametrize(("wave", "warps"), [(64, 2), (32, 4)])
def test_a_program_has_128_lanes_on_every_amd_gpu(wave, warps, monkeypatch):
    """E7: waves of CDNA have 64 lanes, those of RDNA 32."""
    assert backend._warps(0) == 4
    monkeypatch.setattr(torch.version, "hip", "7.0")
    properties = SimpleNamespace(warp_size=wave)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert backend._warps(0) == warps
