"""Average pooling and its gradient in plain PyTorch: sums by axis, divided once."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends import aten, memory, operations, tiles, whole_planes
from torch_dmlpool.backends.blocks import Reach, covering_reach, halo_of, run, window_reach
from torch_dmlpool.backends.combinations import Elements, Sum, as_float
from torch_dmlpool.backends.separable import Pass, record_axes
from torch_dmlpool.backends.tape import Tape
from torch_dmlpool.backends.threads import considerate
from torch_dmlpool.backends.ways import DecidedOnce, Way
from torch_dmlpool.window import Axis, Window


@considerate
def average_pooling(input: Tensor, window: Window, include_padding: bool, divisor_override: int | None) -> Tensor:
    """Sums by axis, divided once."""
    return way_of_averages(input, window, include_padding, divisor_override)


@DecidedOnce
def way_of_averages(input: Tensor, window: Window, include_padding: bool, divisor_override: int | None) -> Way:
    """How averages are made: by ATen where it can and is faster, as a reduction, or by axis."""
    for served in (aten.way_of_averages, aten.way_of_vector_averages):
        way = served(input, window, include_padding, divisor_override)
        if way is not None:
            return way
    if whole_planes.has_sums(input, window):
        divisor = _divisor(
            window, tuple(input.shape[2:]), [slice(0, 1)] * window.rank, include_padding, divisor_override, input
        )
        return partial(_averages_of_planes, divisor=divisor)
    side_by_side = tiles.way_of_averages(input, window, divisor_override)
    if side_by_side is not None:
        return side_by_side
    return partial(_averages_by_axis, window=window, include_padding=include_padding, divisor_override=divisor_override)


def _averages_of_planes(input: Tensor, divisor: Tensor | int) -> Tensor:
    averages = (whole_planes.sums(input) / divisor).to(input.dtype)
    return operands.settled(averages, operands.suggested_memory_format(input))


def _averages_by_axis(input: Tensor, window: Window, include_padding: bool, divisor_override: int | None) -> Tensor:
    sizes = tuple(input.shape[2:])
    output_sizes = window.output_sizes(sizes)
    output = memory.empty((*input.shape[:2], *output_sizes), input, operands.suggested_memory_format(input))
    if output.numel() == 0:
        return output
    order = range(window.rank)

    def record(
        tape: Tape, reaches: tuple[Reach, ...], sources: tuple[Tensor, ...], results: tuple[Tensor, ...]
    ) -> None:
        (source,), (result,) = sources, results
        sums = result
        if input.dtype.itemsize == 2:
            source = as_float(tape, source)
            sums = tape.scratch("sums", tuple(result.shape[1:]), torch.float32)
        record_axes(
            tape,
            [Sum()] * window.rank,
            window,
            [along.first_position for along in reaches],
            Elements(source),
            Elements(sums),
            order,
        )
        outputs = [along.results for along in reaches]
        divisor = _divisor(window, sizes, outputs, include_padding, divisor_override, input)
        _record_division(tape, divisor, sums, sums)
        if sums is not result:
            tape.record(operations.copy, sums, result)

    key = ("average", window, sizes, include_padding, divisor_override)
    run(key, (input,), (output,), halo_of(window), partial(window_reach, window, sizes), record)
    return output


def _divide(divisor: Tensor | int, dividend: Tensor, out: Tensor) -> None:
    torch.div(dividend, divisor, out=out)


def _record_division(tape: Tape, divisor: Tensor | int, dividend: Tensor, out: Tensor) -> None:
    if dividend.dtype is not out.dtype:
        tape.record(operations.copy, dividend, out)
        dividend = out
    if isinstance(divisor, Tensor) or divisor != 1:
        tape.record(partial(_divide, divisor), dividend, out)
    elif dividend is not out:
        tape.record(operations.copy, dividend, out)


def _divisor(
    window: Window,
    sizes: tuple[int, ...],
    outputs: Sequence[slice],
    include_padding: bool,
    divisor_override: int | None,
    like: Tensor,
) -> Tensor | int:
    """What divides the sums of the windows ``outputs``: a number where all agree, else a tensor of their sizes."""
    if divisor_override is not None:
        return divisor_override
    counts = [
        axis_counts(axis, size, along, include_padding)
        for axis, size, along in zip(window.axes, sizes, outputs, strict=True)
    ]
    if all(isinstance(count, int) for count in counts):
        return max(1, math.prod(counts))
    vectors = [torch.full((1,), count) if isinstance(count, int) else count for count in counts]
    product = functools.reduce(lambda left, right: left.unsqueeze(-1) * right, vectors)
    product = product.expand([along.stop - along.start for along in outputs])
    # A window that counts nothing sums to 0: dividing it by 1 keeps it there (rule A3).
    return product.clamp(min=1).to(like.device, torch.float64 if like.dtype is torch.float64 else torch.float32)


def axis_counts(axis: Axis, size: int, outputs: slice, include_padding: bool) -> Tensor | int:
    """Counted taps of each window along an axis; one number where all windows agree."""
    if outputs.start >= outputs.stop:
        return axis.window
    end = size + axis.end_padding if include_padding else size
    first, last = axis.first_position(outputs.start), axis.first_position(outputs.stop - 1)
    if (include_padding or first >= 0) and last + axis.extent <= end:
        return axis.window
    firsts = torch.arange(first, last + 1, axis.stride)
    below_end, below_start = (
        (firsts - bound).div_(axis.dilation, rounding_mode="floor").neg_().clamp_(0, axis.window) for bound in (end, 0)
    )
    return below_end if include_padding else below_end - below_start


@considerate
def average_pooling_grad(
    input_gradient: Tensor,
    spatial_sizes: Sequence[int],
    window: Window,
    include_padding: bool,
    divisor_override: int | None,
) -> Tensor:
    """The adjoint: gradients divided by their windows' divisors, then summed over the windows that cover an element.

    The elements of one residue of the stride are themselves a window of stride 1 over the gradient, of every
    ``stride``-th tap and in reverse.
    """
    sizes = tuple(spatial_sizes)
    gradient = memory.empty(
        (*input_gradient.shape[:2], *sizes), input_gradient, operands.suggested_memory_format(input_gradient)
    )
    if gradient.numel() == 0:
        return gradient
    if aten.average_pooling_grad(input_gradient, window, include_padding, divisor_override, gradient):
        return gradient
    if whole_planes.covers(window, sizes):
        outputs = [slice(0, 1)] * window.rank
        divisor = _divisor(window, sizes, outputs, include_padding, divisor_override, input_gradient)
        wide = input_gradient.float() if input_gradient.dtype.itemsize == 2 else input_gradient
        return gradient.copy_(wide / divisor)
    output_sizes = window.output_sizes(sizes)

    def record(
        tape: Tape, reaches: tuple[Reach, ...], sources: tuple[Tensor, ...], results: tuple[Tensor, ...]
    ) -> None:
        (source,), (result,) = sources, results
        rank = window.rank
        narrow = input_gradient.dtype.itemsize == 2
        spread = tape.scratch("spread", tuple(result.shape[1:]), torch.float32) if narrow else result
        shares = tape.scratch("shares", tuple(source.shape[1:]), spread.dtype)
        outputs = [along.sources for along in reaches]
        divisor = _divisor(window, sizes, outputs, include_padding, divisor_override, input_gradient)
        _record_division(tape, divisor, source, shares)
        # The last axis first: its strided writes are then made on the small side.
        held = shares
        for number in reversed(range(rank)):
            dimension = result.dim() - rank + number
            into = spread
            if number > 0:
                between = list(held.shape)
                between[dimension] = result.shape[dimension]
                into = tape.scratch(("spread", number), tuple(between[1:]), spread.dtype)
            _record_spread(tape, window.axes[number], reaches[number], held, dimension, into)
            held = into
        if spread is not result:
            tape.record(operations.copy, spread, result)

    key = ("average gradient", window, sizes, include_padding, divisor_override)
    reach = partial(covering_reach, window, output_sizes)
    run(key, (input_gradient,), (gradient,), [axis.extent for axis in window.axes], reach, record)
    return gradient


def _record_spread(tape: Tape, axis: Axis, reach: Reach, source: Tensor, dimension: int, out: Tensor) -> None:
    """Sum over the windows that cover each element, along one axis."""
    shared = math.gcd(axis.stride, axis.dilation)
    period, reversed_dilation = axis.stride // shared, axis.dilation // shared
    elements = out.shape[dimension]
    for offset in range(min(axis.stride, elements)):
        index = (slice(None),) * dimension + (slice(offset, None, axis.stride),)
        target = Elements(out[index])
        # Counted from the first tap of the first window at hand, the element lies at this position.
        position = reach.first_position + offset
        tap = next(
            (tap for tap in range(min(period, axis.window)) if (position - tap * axis.dilation) % axis.stride == 0),
            None,
        )
        if tap is None:
            Sum().clear(tape, target)
            continue
        taps = (axis.window - tap + period - 1) // period
        first = (position - tap * axis.dilation) // axis.stride - (taps - 1) * reversed_dilation
        residue = Axis(taps, 1, 0, 0, reversed_dilation, False)
        Pass(tape, Sum(), residue, first, Elements(source), dimension, target).record()
