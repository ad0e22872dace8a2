"""Every operator of the Triton backend as compiled for sm_90, run by the emulator: values, bounds, alignment, races.

Every day each operator meets every window, with types and layouts in turn; the slow tests have every layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import oracle
import pytest
import samples
import torch
from torch import Tensor

triton = pytest.importorskip("triton")
pytest.importorskip("triton._C.libtriton")

from emulator.launches import Emulated  # noqa: E402

from torch_dmlpool.backends import triton as backend  # noqa: E402
from torch_dmlpool.window import Window  # noqa: E402

FLOATS = [torch.float16, torch.float32, torch.bfloat16, torch.float64]
NUMBERS = [
    torch.float16,
    torch.int8,
    torch.float32,
    torch.int16,
    torch.bfloat16,
    torch.uint8,
    torch.float64,
    torch.int32,
]
LAYOUTS = ["contiguous", "channels last", "sliced", "storage offset", "batch and channels transposed"]
EVERY_DAY = [LAYOUTS[i] for i in (0, 1, 0, 1, 2, 1, 0, 3)]
PROBLEMS = [
    ((1, 8, 10, 28), (2, 2, 0)),
    ((2, 16, 9, 16), (3, 1, 1)),
    ((1, 2, 20, 24), (31, 1, 15)),
    ((2, 4, 48), (3, 2, 1)),
    ((1, 4, 4, 6, 8), (2, 2, 0)),
]
"""Shape; size of the window, stride, padding and perhaps dilation."""
MORE_PROBLEMS = [
    ((1, 16, 9, 28), (3, 2, 1)),
    ((1, 8, 7, 15), (3, 1, 1)),
    ((1, 8, 12, 16), (5, 1, 2)),
    ((1, 4, 9, 16), (7, 1, 3)),
    ((1, 8, 9, 16), (3, 1, 2, 2)),
    ((1, 8, 3, 5, 8), (3, 1, 1)),
    ((1, 16, 10, 14), (2, 2, 0)),
    ((1, 8, 9, 17), (3, 2, 0)),
    ((1, 4, 33, 16), ((9, 3), (1, 2), (4, 0))),
    ((1, 2, 12, 12), (12, 1, 0)),
    ((1, 2, 20, 24), (17, 1, 8)),
    ((2, 8, 5, 5), (3, 1, (2, 1))),
    ((2, 3, 64), (33, 1, 16)),
    ((1, 2, 9, 9, 10), (7, 2, 3)),
]


def awkward(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Ties everywhere; NaNs and infinities; of signed integers nothing above -2, so that no padding is greater."""
    values = samples.ties(*shape, dtype=dtype)
    if dtype.is_floating_point:
        flat = values.flatten(2)
        flat[0, 0, : flat.shape[2] // 2] = -math.inf
        flat[-1, -1, flat.shape[2] // 3 :: 7] = math.nan
        flat[-1, 0, 5::11] = math.inf
    return values if dtype in samples.UNSIGNED or dtype.is_floating_point else values.clamp(max=-2)


def pooling_of(window: Window) -> oracle.Pooling:
    *entries, ceil_mode = window.arguments
    return oracle.Pooling(*(tuple(entry) for entry in entries), ceil_mode)


def maxima(input: Tensor, window: Window) -> None:
    expected = oracle.maximum(samples.to_numpy(input), pooling_of(window))
    samples.assert_same(backend.max_pooling(input, window), expected.values)


def maxima_with_taps(input: Tensor, window: Window) -> None:
    expected = oracle.maximum(samples.to_numpy(input), pooling_of(window))
    values, taps = backend.max_pooling_with_taps(input, window)
    samples.assert_same(values, expected.values)
    samples.assert_same(taps, expected.taps)
    samples.assert_same(
        backend.max_pooling_indices(taps, input.shape[2:], window, torch.int32, True), expected.plane_indices
    )


def maxima_with_indices(input: Tensor, window: Window) -> None:
    expected = oracle.maximum(samples.to_numpy(input), pooling_of(window))
    values, indices = backend.max_pooling_with_indices(input, window, torch.int64, False)
    samples.assert_same(values, expected.values)
    samples.assert_same(indices, expected.indices)


def gathered_maxima(input: Tensor, window: Window) -> None:
    expected = oracle.maximum(samples.to_numpy(input), pooling_of(window))
    taps = torch.from_numpy(expected.taps).to(backend.operands.tap_dtype(window.taps))
    inside = torch.from_numpy(expected.indices >= 0)
    result = backend.max_pooling_gather(input, taps, window)
    samples.assert_same(result.where(inside, 0), torch.from_numpy(expected.values).to(input.dtype).where(inside, 0))


def max_gradient(input: Tensor, window: Window) -> None:
    values, pooling = samples.to_numpy(input), pooling_of(window)
    winners = oracle.maximum(values, pooling)
    given = samples.normal(*winners.values.shape, dtype=input.dtype)
    taps = torch.from_numpy(winners.taps).to(backend.operands.tap_dtype(window.taps))
    last = input.stride(1) == 1
    if last:
        given, taps = samples.channels_last(given), samples.channels_last(taps)
    result = backend.max_pooling_grad_from_taps(given, taps, input.shape[2:], window, last and window.rank > 1)
    exact, magnitudes = (oracle.maximum_grad(values, samples.to_numpy(each), pooling) for each in (given, given.abs()))
    samples.assert_gradient(result, exact, magnitudes, window.taps)


def averages(input: Tensor, window: Window) -> None:
    values, pooling = samples.to_numpy(input), pooling_of(window)
    for include_padding in (True, False):
        exact, magnitudes = oracle.average(values, pooling, include_padding)
        samples.assert_average(
            backend.average_pooling(input, window, include_padding, None), exact, magnitudes, window.taps
        )


def average_gradient(input: Tensor, window: Window) -> None:
    pooling = pooling_of(window)
    given = samples.normal(*input.shape[:2], *window.output_sizes(input.shape[2:]), dtype=input.dtype)
    given = samples.channels_last(given) if input.stride(1) == 1 else given
    for include_padding in (True, False):
        result = backend.average_pooling_grad(given, input.shape[2:], window, include_padding, None)
        exact, magnitudes = oracle.average_grad(samples.to_numpy(given), input.shape[2:], pooling, include_padding)
        samples.assert_gradient(result, exact, magnitudes, window.taps)


def quantized_averages(input: Tensor, window: Window) -> None:
    channels, name = input.shape[1], samples.name_of(input.dtype)
    scales, zeros = torch.linspace(0.02, 0.3, channels), torch.arange(channels).to(input.dtype)
    for each, zero, padded in (
        (torch.tensor([0.1]), torch.tensor([3], dtype=input.dtype), True),
        (scales, zeros, False),
    ):
        result = backend.quantized_linear_average_pooling(
            input, each, zero, each * 0.7, zero, window, padded, input.dtype
        )
        given = [(each.expand(channels) * by).tolist() for by in (1, 0.7)]
        numbers = zero.expand(channels).tolist()
        expected = oracle.quantized_average(
            samples.to_numpy(input), given[0], numbers, given[1], numbers, pooling_of(window), padded, name
        )
        samples.assert_same(result, expected)


def bins(input: Tensor, window: Window) -> None:
    """Of the window only the output's sizes count."""
    outputs = window.output_sizes(input.shape[2:])
    values, of_bins = samples.to_numpy(input), oracle.Bins(outputs)
    taps = math.prod(input.shape[2:])
    expected = oracle.maximum(values, of_bins)
    maxima, positions = backend.adaptive_max_pooling(input, outputs)
    samples.assert_same(maxima, expected.values)
    samples.assert_same(positions, expected.plane_indices)
    finite = samples.normal(*input.shape, dtype=input.dtype)
    averages = backend.adaptive_average_pooling(finite, outputs)
    samples.assert_average(averages, *oracle.average(samples.to_numpy(finite), of_bins), taps)
    gradient = backend.adaptive_average_pooling_grad(averages, input.shape[2:])
    exact = oracle.average_grad(samples.to_numpy(averages), input.shape[2:], of_bins)
    samples.assert_gradient(gradient, *exact, taps)


OPERATORS: dict[Callable[[Tensor, Window], None], list[torch.dtype]] = {
    maxima: NUMBERS,
    maxima_with_taps: NUMBERS,
    maxima_with_indices: NUMBERS,
    gathered_maxima: FLOATS,
    max_gradient: FLOATS,
    averages: FLOATS,
    average_gradient: FLOATS,
    quantized_averages: [torch.uint8, torch.int8],
    bins: FLOATS,
}
OF_FINITE_NUMBERS = (averages, average_gradient)


def cases() -> list[object]:
    """Each operator with each problem and layout, types in turn; of the first problems one layout every day."""
    return [
        pytest.param(
            operator, *problem, layout, dtypes[(o + i + i // 3 + 2 * j) % len(dtypes)],
            marks=() if problem in PROBLEMS and layout == EVERY_DAY[(o + i) % len(EVERY_DAY)] else pytest.mark.slow,
        )
        for o, (operator, dtypes) in enumerate(OPERATORS.items())
        for i, problem in enumerate(PROBLEMS + MORE_PROBLEMS)
        for j, layout in enumerate(LAYOUTS)
    ]  # fmt: skip


def named(value: object) -> str:
    return value.__name__ if callable(value) else samples.name_of(value).replace(" ", "")


@pytest.mark.parametrize(("operator", "shape", "window", "layout", "dtype"), cases(), ids=named)
def test_launches(
    operator: Callable[[Tensor, Window], None],
    shape: tuple[int, ...],
    window: tuple[object, ...],
    layout: str,
    dtype: torch.dtype,
    emulated: Emulated,
) -> None:
    """E7: what is compiled for a GPU gives the oracle's results and touches no more than it may."""
    size, stride, padding, dilation = (*window, 1)[:4]
    given = Window.directml(len(shape) - 2, size, stride, padding, padding, dilation)
    values = samples.ties(*shape, dtype=dtype) if operator in OF_FINITE_NUMBERS else awkward(shape, dtype)
    operator(samples.LAYOUTS[layout](values), given)
    assert emulated.record


HUGE = [(1, 2, 65537, 65537), (2, 8, 50001, 50001)]


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("shape", HUGE, ids=str)
def test_planes_of_more_elements_than_32_bits_count(shape: tuple[int, ...], last: bool, emulated: Emulated) -> None:
    """G7: the last program writes the end of the last plane: maxima, averages, their gradients, quantized averages."""
    window = Window.directml(2, (1, 3), 1, (0, 1), (0, 1))
    form = torch.channels_last if last else torch.contiguous_format
    for dtype in (torch.float16, torch.uint8):
        input = torch.empty(shape, dtype=dtype, device="meta", memory_format=form)
        if dtype is torch.uint8:
            backend.quantized_linear_average_pooling(input, 0.5, 3, 0.5, 3, window, False, dtype)
        else:
            output = backend.average_pooling(input, window, False, None)
            backend.average_pooling_grad(output, shape[2:], window, False, None)
            output, taps = backend.max_pooling_with_taps(input, window)
            backend.max_pooling_grad_from_taps(output, taps, shape[2:], window, last)
    assert [kernel for kernel, _ in emulated.record] == ["sum_tile", "sum_tile", "max_tile", "grad_tile", "sum_tile"]
