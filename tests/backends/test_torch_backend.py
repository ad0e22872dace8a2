"""The PyTorch backend where its work is cut up: blocks, tiles, ATen's share, scratch memory (E3, E6, E7, M7)."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import cases
import checks
import oracle
import pytest
import samples
import torch
from cutting import cut_up
from torch import Tensor
from torch.nn import functional

from torch_dmlpool.backends import (
    tape,
    torch_backend,
    torch_max_pooling_grad,
)
from torch_dmlpool.window import Window

ALL = cases.LINES + cases.PLANES + cases.VOLUMES


@cases.in_pairs(case=ALL, elements=[2**20, 40])
def test_maxima_of_every_geometry(case: cases.Case, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """M1-M6: in one block, in blocks of planes, and in tiles of planes, without ATen's help."""
    cut_up(monkeypatch, elements)
    input = samples.ties(3, 3, *case.sizes)
    checks.check_maximum(input, case.pooling)
    checks.check_maximum_gradient(input, checks.whole_gradient(input, case.pooling), case.pooling)


@cases.in_pairs(case=ALL, elements=[2**20, 40])
def test_averages_of_every_geometry(case: cases.Case, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A1-A6 and E6, likewise."""
    cut_up(monkeypatch, elements)
    gradient = samples.normal(3, 3, *case.output_sizes)
    for include_padding in (False, True):
        checks.check_average(samples.normal(3, 3, *case.sizes), case.pooling, include_padding)
        checks.check_average_gradient(gradient, case.sizes, case.pooling, include_padding)


@cases.in_pairs(
    case=cases.FEW,
    layout=["contiguous", "channels last", "sliced", "transposed", "expanded over columns"],
    dtype=samples.FLOATS + samples.INTEGERS,
)
def test_data_types_and_layouts_in_blocks(
    case: cases.Case, layout: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M7 and G7 where a block begins in the middle of a tensor."""
    cut_up(monkeypatch, 100)
    input = samples.LAYOUTS[layout](samples.ties(2, 3, *case.sizes, dtype=dtype))
    checks.check_maximum(input, case.pooling)
    if dtype.is_floating_point:
        gradient = samples.LAYOUTS[layout](checks.whole_gradient(input, case.pooling))
        checks.check_maximum_gradient(input, gradient, case.pooling)
        checks.check_average(samples.LAYOUTS[layout](samples.normal(2, 3, *case.sizes, dtype=dtype)), case.pooling)
        gradient = samples.LAYOUTS[layout](samples.normal(2, 3, *case.output_sizes, dtype=dtype))
        checks.check_average_gradient(gradient, case.sizes, case.pooling)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=samples.name_of)
@cases.parametrized(cases.FEW)
def test_not_a_number_without_aten(case: cases.Case, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """M3: the first NaN of several, in every block."""
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0], dtype=dtype)
    sizes = (3, 3, *case.sizes)
    input = special[torch.randint(0, 6, sizes, generator=samples.seeded(*sizes))]
    for elements in (2**20, 60):
        cut_up(monkeypatch, elements)
        for layout in (input, samples.channels_last(input)):
            checks.check_maximum(layout, case.pooling)


@pytest.mark.parametrize("cut", [False, True], ids=["small", "in blocks"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("sizes", [(2, 3, 9, 8), (2, 3, 9, 5, 8), (1, 1, 6, 5, 7)], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
def test_windows_of_the_lowest_numbers_alone(
    layout: str, sizes: tuple[int, ...], dtype: torch.dtype, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M2: their first tap. ATen's is another one in volumes whose channels are vectors."""
    if cut:
        cut_up(monkeypatch, 2**20)
    lowest = -float("inf") if dtype.is_floating_point else torch.iinfo(dtype).min
    input = samples.ties(*sizes, dtype=dtype)
    input[:, :, 3:] = lowest
    rank = len(sizes) - 2
    for window, stride, padding in ((2, 2, 0), (3, 1, 1), (3, 2, 0)):
        pooling = oracle.Pooling(*((value,) * rank for value in (window, stride, padding, padding, 1)))
        laid_out = samples.LAYOUTS[layout](input)
        checks.check_maximum(laid_out, pooling)
        if dtype.is_floating_point:
            checks.check_maximum_gradient(laid_out, checks.whole_gradient(laid_out, pooling), pooling)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=samples.name_of)
@pytest.mark.parametrize("layout", ["contiguous", "channels last", "sliced"])
@cases.parametrized([*cases.FEW, cases.case("wide", "wide with stride")])
def test_gradients_of_maxima_of_large_planes(
    case: cases.Case, layout: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M4 to M6 and M8 by rows: half-precision sums are float32 until all windows that cover a row have been added."""
    cut_up(monkeypatch, 30)
    monkeypatch.setattr(torch_max_pooling_grad, "DECODED_AT_ONCE", 40)
    monkeypatch.setattr(torch_max_pooling_grad, "TILE_OF_GRADIENT", 25)
    input = samples.LAYOUTS[layout](samples.ties(2, 3, *case.sizes, dtype=dtype))
    checks.check_maximum_gradient(input, checks.whole_gradient(input, case.pooling), case.pooling)


@pytest.mark.parametrize(
    ("sizes", "window_size", "strides"), [((40, 9), 3, 2), ((40, 9), (2, 3), (5, 1)), ((70,), 4, 7)]
)
def test_rows_that_no_window_covers(
    sizes: tuple[int, ...], window_size: int, strides: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M4: between strides and past the last window a half-precision gradient is zero, also where no window is."""
    cut_up(monkeypatch, 30)
    monkeypatch.setattr(torch_max_pooling_grad, "DECODED_AT_ONCE", 40)
    monkeypatch.setattr(torch_max_pooling_grad, "TILE_OF_GRADIENT", 2)
    window = Window.directml(len(sizes), window_size, strides)
    input = samples.ties(2, 3, *sizes, dtype=torch.float16)
    gradient = samples.normal(2, 3, *window.output_sizes(sizes)).half()
    expected = torch_backend.max_pooling_grad(input.float(), gradient.float(), window)
    torch.testing.assert_close(
        torch_backend.max_pooling_grad(input, gradient, window).float(), expected, rtol=1e-3, atol=1e-4
    )
    taps = torch_backend.max_pooling_with_taps(input, window)[1]
    spread = torch_backend.max_pooling_grad_from_taps(gradient, taps, sizes, window, False)
    torch.testing.assert_close(spread.float(), expected, rtol=1e-3, atol=1e-4)


def outputs_of(input: Tensor, pooling: oracle.Pooling) -> list[Tensor]:
    """Every result that is rounded on the way."""
    window = Window.directml(pooling.rank, **vars(pooling))
    sizes = window.output_sizes(input.shape[2:])
    gradient = samples.normal(*input.shape[:2], *sizes, dtype=input.dtype, seed=4)
    return [
        torch_backend.average_pooling(input, window, False, None),
        torch_backend.average_pooling(input, window, True, None),
        torch_backend.average_pooling_grad(gradient, input.shape[2:], window, False, None),
        torch_backend.max_pooling_grad(input, gradient, window),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=samples.name_of)
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@cases.parametrized([*cases.FEW, cases.case("wide", "wide with stride"), cases.case("wide and dilated", "wide")])
def test_bits_do_not_depend_on_blocks_threads_or_the_clock(
    case: cases.Case, layout: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E3 and E6: how work is cut up depends on the machine's mood; the result must not."""
    input = samples.LAYOUTS[layout](samples.normal(4, 3, *case.sizes, dtype=dtype))
    cut_up(monkeypatch, 2**20)
    expected = outputs_of(input, case.pooling)
    threads = torch.get_num_threads()
    try:
        for elements, patience, count in [
            (200, 1.0, threads),
            (17, 1.0, threads),
            (2**20, -1.0, threads),
            (90, 1.0, 1),
        ]:
            cut_up(monkeypatch, elements, patience)
            torch.set_num_threads(count)
            for result, reference in zip(outputs_of(input, case.pooling), expected, strict=True):
                assert (samples.bits(result) == samples.bits(reference)).all()
    finally:
        torch.set_num_threads(threads)


LARGE = {
    "planes": ((3, 5, 700, 610), {"kernel_size": 3, "stride": 1, "padding": 1}),
    "many planes": ((40, 64, 30, 28), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "adjacent windows": ((2, 32, 300, 200), {"kernel_size": 2, "stride": 2, "padding": 0}),
    "one large plane": ((1, 1, 1500, 1300), {"kernel_size": (5, 2), "stride": (3, 1), "padding": (2, 1)}),
    "wide windows": ((1, 4, 260, 240), {"kernel_size": 31, "stride": 1, "padding": 15}),
    "ceil_mode": ((2, 16, 223, 225), {"kernel_size": 4, "stride": 3, "padding": 2, "ceil_mode": True}),
    "a line": ((2, 3, 600_001), {"kernel_size": 7, "stride": 2, "padding": 3}),
    "volumes": ((2, 3, 40, 120, 110), {"kernel_size": (3, 2, 3), "stride": (1, 2, 2), "padding": (1, 0, 1)}),
}
"""Large enough for several blocks and tiles in their true sizes, with ATen as the oracle."""
POOLS = {
    1: (functional.max_pool1d, functional.avg_pool1d),
    2: (functional.max_pool2d, functional.avg_pool2d),
    3: (functional.max_pool3d, functional.avg_pool3d),
}


@pytest.mark.parametrize("layout", ["contiguous", "channels last", "sliced"])
@pytest.mark.parametrize("name", LARGE)
def test_large_tensors(name: str, layout: str) -> None:
    """M2, M5, A1 and E6 at full size; whole numbers make every sum exact."""
    sizes, request = LARGE[name]
    window = Window.pytorch(len(sizes) - 2, **request)
    input = samples.LAYOUTS[layout](torch.randint(-9, 10, sizes, generator=samples.seeded(*sizes)).float())
    max_pool, average_pool = POOLS[len(sizes) - 2]
    leaf = input.detach().requires_grad_()
    expected, positions = max_pool(leaf, **request, return_indices=True)
    values, indices = torch_backend.max_pooling_with_indices(input, window, torch.int64, True)
    assert torch.equal(values, expected)
    assert torch.equal(indices, positions)
    assert torch.equal(torch_backend.max_pooling(input, window), expected)
    gradient = torch.randint(-9, 10, values.shape, generator=samples.seeded(*values.shape)).float()
    (spread,) = torch.autograd.grad(expected, leaf, gradient)
    assert torch.equal(torch_backend.max_pooling_grad(input, gradient, window), spread)

    average = average_pool(leaf, **request, divisor_override=1) if len(sizes) > 3 else average_pool(leaf, **request)
    divisor = 1 if len(sizes) > 3 else None
    torch.testing.assert_close(torch_backend.average_pooling(input, window, True, divisor), average)
    (spread,) = torch.autograd.grad(average, leaf, gradient)
    found = torch_backend.average_pooling_grad(gradient, sizes[2:], window, True, divisor)
    torch.testing.assert_close(found, spread)


MEBIBYTE = 2**20
MOST_SCRATCH = 24 * MEBIBYTE
"""A dozen buffers of one block."""
SCRATCH_OFTEN = ("many planes",)
SCRATCH_SIZES = {
    "many planes": ((21, 64, 112, 112), (3, 2, 1)),
    "large planes": ((2, 2, 2100, 2000), (3, 1, 1)),
    "one plane": ((1, 1, 4200, 4000), (2, 2, 0)),
    "wide windows": ((3, 64, 300, 300), (31, 4, 15)),
    "a line": ((1, 2, 8_400_000), (5, 1, 2)),
    "volumes": ((2, 8, 60, 140, 126), (3, 2, 1)),
    "one volume": ((1, 1, 150, 400, 280), (3, 1, 1)),
}


PROCESS = Path("/proc/self")


def resident(field: str) -> int:
    """Bytes of memory that the process holds now (VmRSS) or has held at most (VmHWM)."""
    (line,) = (line for line in (PROCESS / "status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def scratch_of(function: Callable[[], object]) -> int:
    """Bytes that a call holds at its worst beyond what it returns, as the operating system sees it."""
    gc.collect()
    (PROCESS / "clear_refs").write_text("5")  # the peak starts anew
    before = resident("VmRSS")
    result = function()
    returned = sum(tensor.nbytes for tensor in (result if isinstance(result, tuple) else (result,)))
    return resident("VmHWM") - before - returned


measured = pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="Linux tells a process its peak")


@measured
def test_scratch_memory_is_seen() -> None:
    """The measurement below notices a temporary, and does not count a result."""
    input = torch.ones(16 * MEBIBYTE)
    assert scratch_of(lambda: input + 1) < 8 * MEBIBYTE
    # Meanwhile the system may have put away memory that was not used for long.
    assert max(scratch_of(lambda: (input + 1).sum()) for _ in range(3)) > 56 * MEBIBYTE


def calls_on(input: Tensor, window: Window) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every function of the backend."""
    spatial, sizes = tuple(input.shape[2:]), window.output_sizes(input.shape[2:])
    yield "max_pooling", lambda: torch_backend.max_pooling(input, window)
    yield "max_pooling_with_taps", lambda: torch_backend.max_pooling_with_taps(input, window)
    yield "max_pooling_with_indices", lambda: torch_backend.max_pooling_with_indices(input, window, torch.int64, False)
    if input.dtype.is_floating_point:
        gradient = torch.ones((), dtype=input.dtype).expand(*input.shape[:2], *sizes)
        taps = torch_backend.max_pooling_with_taps(input, window)[1]
        last = input.dim() > 3 and not input.is_contiguous()
        yield "average_pooling", lambda: torch_backend.average_pooling(input, window, False, None)
        yield "average_pooling_grad", lambda: torch_backend.average_pooling_grad(gradient, spatial, window, False, None)
        yield "max_pooling_grad", lambda: torch_backend.max_pooling_grad(input, gradient, window)
        yield (
            "max_pooling_grad_from_taps",
            lambda: torch_backend.max_pooling_grad_from_taps(gradient, taps, spatial, window, last),
        )
        yield "max_pooling_gather", lambda: torch_backend.max_pooling_gather(input, taps, window)
        yield (
            "max_pooling_indices",
            lambda: torch_backend.max_pooling_indices(taps, spatial, window, torch.int64, True),
        )


@measured
@pytest.mark.parametrize(
    ("dtype", "layout"),
    [
        pytest.param(torch.float32, "contiguous", id="float32"),
        pytest.param(torch.float32, "channels last", id="float32 channels last"),
        pytest.param(torch.float16, "contiguous", id="float16", marks=pytest.mark.slow),
        pytest.param(torch.bfloat16, "channels last", id="bfloat16 channels last", marks=pytest.mark.slow),
        pytest.param(torch.uint16, "contiguous", id="uint16", marks=pytest.mark.slow),
        pytest.param(torch.float32, "sliced", id="float32 sliced", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "sizes", [name if name in SCRATCH_OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in SCRATCH_SIZES]
)
def test_scratch_memory_is_bounded_by_the_block(sizes: str, dtype: torch.dtype, layout: str) -> None:
    """Not by the tensor, of which there are 64 MiB or more in float32."""
    shape, (kernel, stride, padding) = SCRATCH_SIZES[sizes]
    window = Window.pytorch(len(shape) - 2, kernel, stride, padding)
    input = samples.LAYOUTS[layout](torch.ones(shape, dtype=dtype))
    assert input.numel() * 4 >= 64 * MEBIBYTE
    too_much = {name: scratch for name, call in calls_on(input, window) if (scratch := scratch_of(call)) > MOST_SCRATCH}
    assert not too_much


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("sizes", [(2, 3, 14, 15), (3, 8, 200, 190), (2, 3, 6, 7, 8), (2, 4, 40, 41, 42)], ids=str)
@pytest.mark.parametrize(("window_size", "strides", "padding"), [(2, 2, 0), (3, 2, 1), (3, 1, 1), (7, 1, 3)])
def test_channels_last_equals_contiguous(
    window_size: int, strides: int, padding: int, sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    """E6: whether ATen serves it or not; its positions of narrow integers would not number these planes."""
    window = Window.directml(len(sizes) - 2, window_size, strides, padding, padding)
    input = samples.ties(*sizes, dtype=dtype)
    last = samples.channels_last(input)
    for per_plane in (True, False):
        expected = torch_backend.max_pooling_with_indices(input, window, torch.int64, per_plane)
        found = torch_backend.max_pooling_with_indices(last, window, torch.int64, per_plane)
        for one, other in zip(expected, found, strict=True):
            samples.assert_same(one, other)
    samples.assert_same(torch_backend.max_pooling(last, window), expected[0])
    if dtype.is_floating_point:
        spatial = input.shape[2:]
        (values, taps), (_, kept) = (torch_backend.max_pooling_with_taps(each, window) for each in (input, last))
        gradient = samples.ties(*values.shape, dtype=dtype, seed=1)
        expected = torch_backend.max_pooling_grad_from_taps(gradient, taps, spatial, window, False)
        found = torch_backend.max_pooling_grad_from_taps(gradient, kept, spatial, window, True)
        samples.assert_same(expected, found)
        samples.assert_same(
            torch_backend.max_pooling_gather(input, taps, window), torch_backend.max_pooling_gather(last, kept, window)
        )
        average, same = (torch_backend.average_pooling(each, window, False, None) for each in (input, last))
        torch.testing.assert_close(average, same, rtol=0, atol=16 * torch.finfo(dtype).eps)
        shared, same = (
            torch_backend.average_pooling_grad(each, spatial, window, True, None)
            for each in (gradient, samples.channels_last(gradient))
        )
        torch.testing.assert_close(shared, same, rtol=0, atol=64 * torch.finfo(dtype).eps)


@pytest.mark.parametrize(("window_size", "strides"), [(3, 2), (3, 1), (5, 3), (7, 1)])
def test_an_average_has_the_same_bits_however_it_is_cut_up(
    window_size: int, strides: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E3: a busy machine cuts planes into smaller tiles than an idle one, and the sums keep their order."""
    window = Window.directml(2, window_size, strides, 1, 1)
    input = samples.normal(2, 2, 300, 200)
    results = set()
    for elements in (2**21, 2**15 - 1, 2**13):
        monkeypatch.setattr(tape, "block_elements", lambda elements=elements: elements)
        average = torch_backend.average_pooling(input, window, False, None)
        gradient = torch_backend.average_pooling_grad(average, input.shape[2:], window, False, None)
        results.add((average.numpy().tobytes(), gradient.numpy().tobytes()))
    assert len(results) == 1
