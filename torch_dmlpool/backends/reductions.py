"""Reductions over windows and bins in plain PyTorch, one axis at a time.

Where sizes are known and windows small, each tap is a slice of the input. A slice is a view, so
that a tap costs one pass over the results:

    input along an axis   0 1 2 3 4 5 6     window 3, stride 2
    tap 0                 0   2   4         input[0::2]
    tap 1                   1   3   5       input[1::2]
    tap 2                     2   4   6     input[2::2]

All else is computed for any device and symbolic sizes. Along an axis a window, a bin, and the
windows that read an element are all the same: a number of elements at equal steps
(:class:`Steps`). They are combined in blocks of 1, 2, 4, ... elements. So time and memory grow with
the input, the results and the logarithm of the window, whatever padding and dilation are, and sums
have the depth of trees.

What is reduced is one dimension, ``dim``, of a tuple of tensors of one shape: values alone, or
values with their positions.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_dmlpool.backends.interface import AnyWindow
from torch_dmlpool.tensors import Tensors, ascending, lowest
from torch_dmlpool.window import Axis, Divisor, Sizes, Window, is_known

NOWHERE = 2**63 - 1
"""The position of padding, which is greater than all others."""


class Reduction(NamedTuple):
    """How the elements of a window become one."""

    fills: tuple[float, ...]  # the identity: what padding is filled with, for each tensor
    combine: Callable[[Tensors, Tensors], Tensors]  # combines two tuples elementwise
    whole: Callable[[Tensors, int], Tensors]  # reduces a dimension to the size 1


def _sum_of(tensors: Tensors, dim: int) -> Tensors:
    """The sum, of a known size as a binary tree: within the error of rule E6 and with bits that
    depend neither on the batch nor on the number of threads.
    """
    (tensor,) = tensors
    if not are_ints(tensor.shape[dim]):
        return (tensor.sum(dim, keepdim=True, dtype=tensor.dtype),)
    while (count := tensor.shape[dim]) > 1:
        half = count // 2
        added = tensor.narrow(dim, 0, half) + tensor.narrow(dim, half, half)
        odd = [tensor.narrow(dim, 2 * half, 1)] if count % 2 else []
        tensor = torch.cat((added, *odd), dim) if odd else added
    return (tensor,)


SUM = Reduction((0,), lambda one, other: (one[0] + other[0],), _sum_of)


def maximum(dtype: torch.dtype) -> Reduction:
    """The greatest value or NaN."""
    return Reduction(
        (lowest(dtype),),
        lambda one, other: (torch.maximum(one[0], other[0]),),
        lambda tensors, dim: (tensors[0].amax(dim, keepdim=True),),
    )


def first_maximum(dtype: torch.dtype) -> Reduction:
    """The greatest integer with its position; of several equal ones the lowest position."""

    def combine(one: Tensors, other: Tensors) -> Tensors:
        wins = (other[0] > one[0]) | ((other[0] == one[0]) & (other[1] < one[1]))
        return torch.where(wins, other[0], one[0]), torch.where(wins, other[1], one[1])

    def whole(tensors: Tensors, dim: int) -> Tensors:
        greatest = tensors[0].amax(dim, keepdim=True)
        return greatest, tensors[1].where(tensors[0] == greatest, NOWHERE).amin(dim, keepdim=True)

    return Reduction((lowest(dtype), NOWHERE), combine, whole)


class Steps(NamedTuple):
    """What each result along an axis is made of: ``counts`` elements from ``starts`` on, ``step``
    apart. No result has more than ``most``.
    """

    starts: Tensor
    counts: Tensor
    step: int
    most: int


def are_ints(*numbers: Any) -> bool:
    """Whether no number is symbolic."""
    return all(type(number) is int for number in numbers)


def added(total: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """``total`` with each of ``values`` added at its place along the first dimension, in their
    order.
    """
    if total.is_cpu:
        return total.index_add(0, places, values)
    return added_sorted(total, places, values)


def added_sorted(total: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """The same on other devices, where ``index_add`` has no fixed order: ``index_put`` sorts before
    it adds.
    """
    return total.index_put((places,), values, accumulate=True)


def firsts(axis: Axis, size: int, like: Tensor) -> Tensor:
    """Where the first tap of each window lies."""
    return ascending(axis.output_size(size), like) * axis.stride - axis.start_padding


def taps_before(bound: Tensor | int, first: Tensor, axis: Axis) -> Tensor:
    """How many taps of windows from ``first`` on lie before ``bound``."""
    return ((bound + (axis.dilation - 1) - first) // axis.dilation).clamp(0, axis.window)


def parts(windows: AnyWindow, sizes: Sizes) -> Iterator[tuple[int, Axis | int, int]]:
    """The number of each spatial dimension, its axis of windows or number of bins, and its size."""
    along = windows.axes if isinstance(windows, Window) else windows
    return zip(itertools.count(2), along, sizes, strict=False)


def read_by(part: Axis | int, size: int, like: Tensor) -> Steps:
    """The elements inside the input that each window or bin reads."""
    if not isinstance(part, Axis):
        # Bin ``i`` of n bins over a size reads ``floor(i · size / n)`` to ``ceil((i + 1) · size /
        # n)``.
        products = ascending(part + 1, like) * size
        starts = products[:-1] // part
        return Steps(starts, (products[1:] + part - 1) // part - starts, 1, -(-size // part) + 1)
    first = firsts(part, size, like)
    skipped = taps_before(0, first, part)
    most = (
        min(part.window, -(-size // part.dilation)) if are_ints(part.window, size) else part.window
    )
    return Steps(
        first + skipped * part.dilation,
        taps_before(size, first, part) - skipped,
        part.dilation,
        most,
    )


def windows_over(axis: Axis | int, outputs: int, size: int, like: Tensor) -> Steps:
    """The windows, or the bins, that read each of ``size`` elements."""
    # The bins that read an element are bins again.
    if not isinstance(axis, Axis):
        return read_by(size, outputs, like)
    # Among consecutive windows every ``step``-th has a tap at the same element.
    common = math.gcd(axis.stride, axis.dilation)
    step, stride = axis.dilation // common, axis.stride
    padded = ascending(size, like) + axis.start_padding
    residue = padded // common % step * pow(stride // common, -1, step) % step
    lowest = ((padded - axis.extent + stride) // stride).clamp(min=0)
    start = lowest + (residue - lowest) % step
    highest = (padded // stride).clamp(max=outputs - 1)
    counts = ((highest - start) // step + 1).clamp(min=0)
    most = -(-min(outputs, (axis.extent - 1) // stride + 1) // step)
    return Steps(start, counts.where(padded % common == 0, 0), step, most)


def reduced(tensors: Tensors, dim: int, steps: Steps, reduction: Reduction) -> Tensors:
    """The reduction of the elements of each result along ``dim``."""
    size = tensors[0].shape[dim]
    # One more element, the identity, stands for all elements outside.
    level = tuple(
        torch.cat((tensor, torch.full_like(tensor.narrow(dim, 0, 1), fill)), dim)
        for tensor, fill in zip(tensors, reduction.fills, strict=True)
    )
    result, position, width = None, steps.starts, 1
    while True:
        is_part = (steps.counts & width) != 0
        block = _taken(level, dim, position.where(is_part, size))
        result = block if result is None else reduction.combine(result, block)
        if 2 * width > steps.most:
            return result
        position = position + is_part * (width * steps.step)
        following = (ascending(size + 1, position) + width * steps.step).clamp(max=size)
        level = reduction.combine(level, _taken(level, dim, following))
        width *= 2


def _taken(tensors: Tensors, dim: int, positions: Tensor) -> Tensors:
    return tuple(tensor.index_select(dim, positions) for tensor in tensors)


def is_unpadded(axis: Axis) -> bool:
    """Whether there is no padding, of known sizes."""
    padding = axis.start_padding, axis.end_padding
    return are_ints(*padding) and padding == (0, 0)


def covers(axis: Axis, size: int) -> bool:
    """Whether one window is the whole dimension, without padding."""
    return is_unpadded(axis) and is_known(axis.dilation == 1) and is_known(axis.window == size)


LARGEST_WINDOW = 32
"""For larger windows ``reduced``, whose passes grow with the logarithm of the window, is
as fast."""


def is_sliceable(axis: Axis, size: int) -> bool:
    """Whether the windows along an axis are small, of known sizes, and padded by less than they
    span.
    """
    if not are_ints(size, *axis[:-1]):
        return False
    padding = max(axis.start_padding, axis.end_padding)
    return axis.window <= LARGEST_WINDOW and padding < axis.extent <= size + 64


def sliced(tensors: Tensors, dim: int, axis: Axis, reduction: Reduction) -> Tensors:
    """Every window along ``dim`` reduced, as a tree over its taps."""
    size = tensors[0].shape[dim]
    last = (axis.output_size(size) - 1) * axis.stride
    # As far as windows reach.
    pads = axis.start_padding, max(0, last + axis.extent - axis.start_padding - size)
    inner = [0, 0] * (tensors[0].dim() - 1 - dim)
    padded = tensors
    if any(pads):
        pairs = zip(tensors, reduction.fills, strict=True)
        padded = tuple(torch.constant_pad_nd(each, [*inner, *pads], fill) for each, fill in pairs)

    def tree(taps: range) -> Tensors:
        if len(taps) > 1:
            half = len(taps) // 2
            return reduction.combine(tree(taps[:half]), tree(taps[half:]))
        first = taps[0] * axis.dilation
        sliced = torch.ops.aten.slice.Tensor
        return tuple(sliced(each, dim, first, first + last + 1, axis.stride) for each in padded)

    return tree(range(axis.window))


def pooled(values: Tensors, windows: AnyWindow, reduction: Reduction) -> Tensors:
    """Every window, or every bin, in the way that suits its sizes."""
    for dim, part, size in parts(windows, values[0].shape[2:]):
        if isinstance(part, Axis) and covers(part, size):
            values = reduction.whole(values, dim)
        elif isinstance(part, Axis) and is_sliceable(part, size):
            values = sliced(values, dim, part, reduction)
        else:
            values = reduced(values, dim, read_by(part, size, values[0]), reduction)
    return values


def counts(windows: AnyWindow, sizes: Sizes, like: Tensor, include_padding: bool) -> Tensor:
    """The taps of windows over ``sizes`` that count (rules A1 and A2)."""
    total = torch.ones((), dtype=like.dtype, device=like.device)
    for _, part, size in parts(windows, sizes):
        if isinstance(part, Axis) and include_padding:
            along = taps_before(size + part.end_padding, firsts(part, size, like), part)
        else:
            along = read_by(part, size, like).counts
        total = total.unsqueeze(-1) * along.to(like.dtype)
    return total


def divisor(
    windows: AnyWindow,
    sizes: Sizes,
    like: Tensor,
    include_padding: bool,
    override: Divisor = None,
) -> Any:
    """What sums of windows are divided by: ``override``, or the taps that count, at least 1 (rules
    A3 and A5). It is a number or a tensor.
    """
    if override is not None:
        return override
    if isinstance(windows, Window):
        taps, axes = windows.taps, windows.axes
        is_certain = type(taps) is int and not axes[0].ceil_mode
        if is_certain and (include_padding or all(map(is_unpadded, axes))):
            # Every window counts all of its taps. No tensor takes a longer int.
            return taps if taps < 2**63 else float(taps)
    return counts(windows, sizes, like, include_padding).clamp(min=1)


def spread(gradient: Tensor, windows: AnyWindow, sizes: Sizes) -> Tensor:
    """For each element of planes of ``sizes`` the sum of the ``gradient`` of the windows, or bins,
    that read it.

    The windows that read an element are a window again, over gradients with zeros between them.
    """
    for dim, part, size in parts(windows, sizes):
        outputs, inner = gradient.shape[dim], [0, 0] * (gradient.dim() - 1 - dim)
        if isinstance(part, Axis) and covers(part, size):
            gradient = gradient.expand([*gradient.shape[:dim], size, *gradient.shape[dim + 1 :]])
        elif isinstance(part, Axis) and is_sliceable(part, size):
            # After a single window the stride, of any length, has no element to step over.
            stride, reach = part.stride if outputs > 1 else 1, part.extent - 1
            if stride > 1:
                blocks = torch.constant_pad_nd(gradient.unsqueeze(dim + 1), [*inner, 0, stride - 1])
                gradient = blocks.flatten(dim, dim + 1)
            before = reach - part.start_padding
            after = size + part.start_padding - gradient.shape[dim]
            readers = Axis(part.window, 1, before, after, part.dilation, ceil_mode=False)
            (gradient,) = sliced((gradient,), dim, readers, SUM)
        else:
            steps = windows_over(part, outputs, size, gradient)
            (gradient,) = reduced((gradient,), dim, steps, SUM)
    return gradient
