"""What holds whatever the geometry and however tensors lie in memory: drawn requests and strides
against the oracle."""

import itertools
import math
from typing import NamedTuple

import oracle
import pytest
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool

hypothesis = pytest.importorskip("hypothesis")
strategies = hypothesis.strategies

DIVISORS = [(False, None), (True, None), (False, 5), (True, -3)]


@strategies.composite
def requests(draw):
    """A request that leaves at least one window, and spatial sizes for it."""
    rank = draw(strategies.integers(1, 3))
    largest = {1: 20, 2: 8, 3: 4}[rank]

    def entries(low, high):
        return tuple(draw(strategies.integers(low, high)) for _ in range(rank))

    sizes, window = entries(1, largest), entries(1, largest // 2 + 2)
    rest = entries(1, 4), entries(0, 4), entries(0, 4), entries(1, 3), draw(strategies.booleans())
    pooling = oracle.Pooling(window, *rest)
    hypothesis.assume(all(oracle.output_sizes(pooling, sizes)))
    return pooling, sizes


class Dimension(NamedTuple):
    """How a dimension lies in memory."""

    step: int
    before: int
    after: int
    is_expanded: bool
    stride_of_one: int
    """The stride it has if its size is 1, where any will do."""


class Layout(NamedTuple):
    """How a tensor lies in memory: its dimensions from the outermost to the innermost, each of
    them, and whether its elements lie at odd addresses."""

    order: list[int]
    dimensions: list[Dimension]
    is_unaligned: bool


@strategies.composite
def layouts(draw, rank):
    few = strategies.sampled_from([0, 0, 1, 2])
    dimensions = strategies.builds(
        Dimension,
        strategies.sampled_from([1, 1, 1, 2, 3]),
        few,
        few,
        strategies.sampled_from([False] * 9 + [True]),
        strategies.integers(0, 40),
    )
    channels_last = strategies.just([0, *range(2, rank), 1])
    order = draw(strategies.one_of(channels_last, strategies.permutations(range(rank))))
    drawn = draw(strategies.lists(dimensions, min_size=rank, max_size=rank))
    return Layout(list(order), drawn, draw(strategies.booleans()))


def laid_out(values, layout):
    """``values`` in that layout; where a dimension is expanded, those of its first element."""
    dimensions = layout.dimensions
    sizes = [
        one.before + size * one.step + one.after
        for size, one in zip(values.shape, dimensions, strict=True)
    ]
    memory = values.new_zeros([sizes[number] for number in layout.order])
    if layout.is_unaligned:
        memory = samples.unaligned(memory)
    else:
        memory = samples.fenced(memory, at_end=dimensions[0].stride_of_one % 4 > 0)
    view = memory.permute([layout.order.index(number) for number in range(values.dim())])
    for number, (size, along) in enumerate(zip(values.shape, dimensions, strict=True)):
        view = view.narrow(number, along.before, size * along.step)
        view = view[(slice(None),) * number + (slice(None, None, along.step),)]
    view.copy_(values)
    strides = [
        along.stride_of_one if size == 1 else 0 if along.is_expanded else stride
        for size, stride, along in zip(view.shape, view.stride(), dimensions, strict=True)
    ]
    return view.as_strided(view.shape, strides, view.storage_offset())


@hypothesis.given(request=requests(), data=strategies.data(), seed=strategies.integers(0, 2**16))
def test_any_geometry_in_any_strides(request, data, seed, device):
    """A1-A6, M1-M6, G4, G7 and E6: either direction, input and gradient laid out independently."""
    pooling, sizes = request
    leading = data.draw(strategies.sampled_from([(1, 1), (2, 1), (1, 3), (3, 2), (2, 9)]))
    dtype = data.draw(strategies.sampled_from(samples.FLOATS + samples.INTEGERS))
    given = samples.ties(*leading, *sizes, dtype=dtype, seed=seed).to(device)
    input = laid_out(given, data.draw(layouts(len(sizes) + 2)))
    samples.check_maximum(input, pooling)
    if not dtype.is_floating_point:
        return
    gradient = laid_out(samples.whole_gradient(input, pooling), data.draw(layouts(len(sizes) + 2)))
    samples.check_maximum_gradient(input, gradient, pooling)
    divisor = data.draw(strategies.sampled_from(DIVISORS))
    samples.check_average(input, pooling, *divisor)
    samples.check_average_gradient(gradient, sizes, pooling, *divisor)


GAPS = oracle.Pooling((1, 2, 2), (2, 5, 5), (0, 0, 0), (0, 0, 0), (1, 1, 1), False)
HALVES = samples.ties(2, 4, 5, 12, 6, dtype=torch.bfloat16)
FOUND: dict[str, tuple[Tensor, oracle.Pooling]] = {
    "one channel of several, whose strides look like those of channels_last": (
        samples.normal(3, 7, 6, 5, 4).movedim(-1, 1)[:, :1],
        oracle.Pooling((3, 2, 3), (2, 1, 2), (1, 0, 1), (1, 1, 1), (1, 1, 1), False),
    ),
    "volumes of the lowest value, of which the first inside wins": (
        samples.channels_last(torch.full((2, 1, 4, 5, 3), -math.inf)),
        oracle.Pooling((2, 3, 3), (1, 2, 1), (1, 1, 2), (1, 1, 2), (1, 1, 1), False),
    ),
    "gaps between windows": (HALVES, GAPS),
    "gaps, channels last": (samples.channels_last(HALVES), GAPS),
    "an empty window in depth padding over whole planes": (
        samples.ties(1, 1, 1, 2, 1, dtype=torch.float64),
        oracle.Pooling((1, 2, 1), (2, 1, 1), (1, 0, 0), (0, 0, 0), (2, 1, 1), False),
    ),
}
"""What was once wrong."""


@pytest.mark.parametrize("name", FOUND)
def test_what_was_once_wrong(name):
    """M2, A3 and G7: maxima, averages and the gradients of both."""
    input, pooling = FOUND[name]
    gradient = samples.whole_gradient(input, pooling)
    samples.check_maximum(input, pooling)
    samples.check_maximum_gradient(input, gradient, pooling)
    samples.check_average(input.clamp(min=-2), pooling)
    samples.check_average_gradient(gradient, input.shape[2:], pooling)


LARGE: list[tuple[int, torch.dtype, tuple[int, ...], tuple[tuple[int, ...], ...]]] = [
    (1, torch.float32, (4400,), ((3,), (2,), (1,))),
    (1, torch.float32, (17000,), ((20,), (40,), (0,))),
    (1, torch.float32, (2100,), ((20,), (1,), (9,))),
    (1, torch.float32, (200, 1), ((20, 1), (1, 1), (9, 0))),
    (1, torch.float64, (263,), ((7,), (4,), (0,))),
    (1, torch.float32, (1300,), ((11,), (9,), (0,))),
    (2, torch.float32, (140, 30), ((6, 6), (1, 1), (3, 3))),
    (3, torch.float32, (60, 9), ((7, 9), (2, 1), (0, 0))),
    (70, torch.float32, (40, 5, 5), ((9, 5, 5), (2, 1, 1), (0, 0, 0))),
    (600, torch.float32, (30, 20), ((3, 2), (2, 1), (1, 0))),
    (640, torch.float32, (30, 20), ((30, 20), (1, 1), (0, 0))),
    (6300, torch.float32, (26, 7), ((10, 2), (1, 1), (0, 0))),
    (1, torch.float16, (3, 17000), ((3, 2), (1, 4000), (1, 1))),
    (1, torch.float32, (270000,), ((270000,), (1,), (0,))),
    (1, torch.int8, (40000,), ((33000,), (70000,), (34000,))),
    (1, torch.int8, (30000,), ((30000,), (1,), (0,))),
    (3, torch.int8, (9000,), ((3,), (2,), (1,))),
]
"""Channels, and sizes, windows, strides and padding."""


@pytest.mark.parametrize(("channels", "dtype", "sizes", "asked"), LARGE, ids=str)
def test_what_is_computed_in_parts(channels, dtype, sizes, asked, device):
    """G4, M4 and Q1: rows, planes and windows longer than what is worked on at once, or than 16
    bits count."""
    pooling = oracle.Pooling(*asked, asked[2], (1,) * len(sizes))
    layout = samples.channels_last if channels > 3 else torch.clone
    shape = 1 + (3 < channels < 1000), channels, *sizes
    input = layout(samples.ties(*shape, dtype=dtype).to(device))
    samples.check_maximum(input, pooling)
    samples.check_maximum(layout(input.sort().values), pooling)  # winners that come late
    if dtype.is_floating_point:
        gradient = layout(samples.whole_gradient(input, pooling))
        samples.check_maximum_gradient(input, gradient, pooling)
        samples.check_average(layout(samples.normal(*input.shape, dtype=dtype).to(device)), pooling)
        samples.check_average_gradient(gradient, sizes, pooling)
    elif channels > 1:
        samples.check_quantized(input, samples.drawn(2, 3, (dtype, dtype)), pooling)


def test_rows_at_odd_addresses():
    """G7: operands may lie anywhere. Rows that are pooled where they lie, which the sanitizers of
    ``make sanitize`` look at: one test of all windows, as that runs every fourth test alone."""
    windows = (2, 2, 0), (3, 2, 0), (3, 3, 0), (4, 4, 0), (9, 5, 0), (6, 2, 1), (5, 1, 2)
    for dtype, (window, stride, padding) in itertools.product(samples.FLOATS, windows):
        pooling = oracle.Pooling((window,), (stride,), (padding,), (padding,), (1,), False)
        row = samples.unaligned(samples.ties(1, 1, 560, dtype=dtype))
        assert row.data_ptr() % 2 == 1
        samples.check_maximum(row, pooling)
        gradient = samples.unaligned(samples.whole_gradient(row, pooling))
        samples.check_maximum_gradient(row, gradient, pooling)
        samples.check_average(row, pooling)
        samples.check_average_gradient(gradient, (560,), pooling)


@pytest.mark.usefixtures("either_backend")
def test_windows_far_larger_than_the_input_cost_what_they_read():
    """A window of 2³¹ - 1 taps along an axis, or 2⁶² in all, reads those inside; all of them would
    not fit into memory."""
    largest = 2**31 - 1
    line = {"window_size": largest, "strides": largest}
    line |= {"start_padding": largest - 2, "end_padding": largest - 1}
    input = torch.tensor([[[3.0, 1.0, 2.0]]], requires_grad=True)
    values, indices = dmlpool.max_pooling(input, **line, return_indices=True)
    assert (values.tolist(), indices.tolist()) == ([[[3, 2]]], [[[0, 2]]])
    assert torch.autograd.grad(values.sum(), input)[0].tolist() == [[[1, 0, 1]]]
    assert dmlpool.average_pooling(input, **line).tolist() == [[[2, 2]]]
    arriving = torch.tensor([[[4.0, 6.0]]])
    gradient = dmlpool.average_pooling_grad(arriving, (1, 1, 3), **line, divisor_override=2)
    assert gradient.tolist() == [[[2, 2, 3]]]
    window = {"window_size": largest, "start_padding": largest - 2, "strides": 5}
    planes = samples.distinct(2, 3, 3, 3, dtype=torch.float32)
    read = planes[..., :2, :2]
    for layout in (planes, samples.channels_last(planes)):
        maxima = dmlpool.max_pooling(layout, **window)
        samples.assert_same(maxima, read.amax((2, 3), keepdim=True))
        sums = dmlpool.average_pooling(layout, **window, divisor_override=1)
        torch.testing.assert_close(sums, read.sum((2, 3), keepdim=True))
        means = dmlpool.average_pooling(layout, **window, include_padding=True)
        torch.testing.assert_close(means * float(largest) ** 2, sums)


AROUND = {"window_size": 3, "start_padding": 1, "end_padding": 1}


def test_strides_far_larger_than_the_input_cost_what_is_read():
    """One window of three elements, whatever comes after it: a row as long as the stride was made
    of it."""
    contiguous = samples.normal(2, 3, 5, 6)
    pools = dmlpool.max_pooling, dmlpool.average_pooling
    images = contiguous, samples.channels_last(contiguous)
    for stride, image, pool in itertools.product((10**7, 2**31 - 1), images, pools):
        far, near = (samples.results(pool, image, strides=s, **AROUND) for s in (stride, 100))
        for one, other in zip(far, near, strict=True):
            samples.assert_same(one, other)
