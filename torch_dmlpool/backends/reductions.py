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

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torch_dmlpool.backends.interface import AnyWindow
from torch_dmlpool.tensors import lowest
from torch_dmlpool.window import Axis, Window, is_known

Tensors: TypeAlias = tuple[Tensor, ...]
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


def numbers(count: int, like: Tensor) -> Tensor:
    """0, 1, ... on the device of ``like``."""
    return torch.arange(count, dtype=torch.int64, device=like.device)


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


def floored(numerator: Tensor, denominator: int) -> Tensor:
    if is_known(denominator == 1):
        return numerator
    return numerator.div(denominator, rounding_mode="floor")


def firsts(axis: Axis, size: int, like: Tensor) -> Tensor:
    """Where the first tap of each window lies."""
    return numbers(axis.output_size(size), like) * axis.stride - axis.start_padding


def taps_before(bound: Tensor | int, first: Tensor, axis: Axis) -> Tensor:
    """How many taps of windows from ``first`` on lie before ``bound``."""
    return floored(bound + (axis.dilation - 1) - first, axis.dilation).clamp(0, axis.window)


def parts(windows: AnyWindow) -> Sequence[Axis | int]:
    """The axis of windows, or the number of bins, along each spatial dimension."""
    return windows.axes if isinstance(windows, Window) else windows


def read_by(part: Axis | int, size: int, like: Tensor) -> Steps:
    """The elements inside the input that each window or bin reads."""
    if not isinstance(part, Axis):
        # Bin ``i`` of n bins over a size reads ``floor(i · size / n)`` to ``ceil((i + 1) · size /
        # n)``.
        products = numbers(part + 1, like) * size
        starts = floored(products[:-1], part)
        return Steps(
            starts, floored(products[1:] + part - 1, part) - starts, 1, -(-size // part) + 1
        )
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
    padded = numbers(size, like) + axis.start_padding
    residue = floored(padded, common) % step * pow(stride // common, -1, step) % step
    lowest = floored(padded - axis.extent + stride, stride).clamp(min=0)
    start = lowest + (residue - lowest) % step
    counts = (floored(floored(padded, stride).clamp(max=outputs - 1) - start, step) + 1).clamp(
        min=0
    )
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
        following = (numbers(size + 1, position) + width * steps.step).clamp(max=size)
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
    """Whether slices are faster than :func:`reduced` for the windows along an axis."""
    padding = axis.start_padding, axis.end_padding
    if not are_ints(size, axis.window, axis.stride, axis.dilation, *padding):
        return False
    padded = size + axis.start_padding + axis.end_padding
    # The slices of windows that lie apart are one pass over the input.
    largest = LARGEST_WINDOW if axis.window > axis.stride else 8 * LARGEST_WINDOW
    return axis.window <= largest and padded + axis.extent <= 2 * size + 64


def sliced(tensors: Tensors, dim: int, axis: Axis, reduction: Reduction) -> Tensors:
    """Every window along ``dim`` reduced, as a tree over its taps."""
    outputs = axis.output_size(tensors[0].shape[dim])
    pairs = zip(tensors, reduction.fills, strict=True)
    padded = [_padded(tensor, dim, axis, outputs, fill) for tensor, fill in pairs]

    def tree(taps: range) -> Tensors:
        if len(taps) > 1:
            half = len(taps) // 2
            return reduction.combine(tree(taps[:half]), tree(taps[half:]))
        first = taps[0] * axis.dilation
        end = first + (outputs - 1) * axis.stride + 1
        sliced = torch.ops.aten.slice.Tensor
        return tuple(sliced(each, dim, first, end, axis.stride) for each in padded)

    return tree(range(axis.window))


def _padded(tensor: Tensor, dim: int, axis: Axis, outputs: int, fill: float) -> Tensor:
    """``tensor`` padded with ``fill`` at both ends, as far as windows reach; negative padding cuts
    off elements.
    """
    start, size = axis.start_padding, tensor.shape[dim]
    after = (outputs - 1) * axis.stride + axis.extent - start - size
    if start == 0 and after <= 0:
        return tensor
    inner = [0, 0] * (tensor.dim() - 1 - dim)
    if min(start, after) >= -size:
        return torch.constant_pad_nd(tensor, [*inner, start, after], fill)
    # PyTorch cannot cut off more than there is before it pads.
    padded = torch.constant_pad_nd(tensor, [*inner, max(start, 0), max(after, 0)], fill)
    return padded.narrow(dim, max(-start, 0), size + start + after)


def pooled(values: Tensors, windows: AnyWindow, reduction: Reduction) -> Tensors:
    """Every window, or every bin, in the way that suits its sizes."""
    sizes = values[0].shape[2:]
    return along_axes(values, windows, sizes, functools.partial(_pooled_along, reduction))


def along_axes(
    values: Tensors, windows: AnyWindow, sizes: Sequence[int], change: Callable[..., Tensors]
) -> Tensors:
    """What ``change`` makes of ``values`` along one spatial dimension after the other. It gets the
    number of the dimension, its axis or number of bins, and its size.
    """
    for dim, (part, size) in enumerate(zip(parts(windows), sizes, strict=True), 2):
        values = change(values, dim, part, size)
    return values


def _pooled_along(
    reduction: Reduction, values: Tensors, dim: int, part: Axis | int, size: int
) -> Tensors:
    if isinstance(part, Axis):
        if covers(part, size):
            return reduction.whole(values, dim)
        if is_sliceable(part, size):
            return sliced(values, dim, part, reduction)
    return reduced(values, dim, read_by(part, size, values[0]), reduction)


def counts(windows: AnyWindow, sizes: Sequence[int], like: Tensor, include_padding: bool) -> Tensor:
    """The taps of windows over ``sizes`` that count (rules A1 and A2)."""
    total = torch.ones((), dtype=like.dtype, device=like.device)
    for part, size in zip(parts(windows), sizes, strict=True):
        if isinstance(part, Axis) and include_padding:
            along = taps_before(size + part.end_padding, firsts(part, size, like), part)
        else:
            along = read_by(part, size, like).counts
        total = total.unsqueeze(-1) * along.to(like.dtype)
    return total


def divisor(
    windows: AnyWindow,
    sizes: Sequence[int],
    like: Tensor,
    include_padding: bool = False,
    override: int | None = None,
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


def spread(gradients: Tensors, dim: int, part: Axis | int, size: int) -> Tensors:
    """For each of ``size`` elements along ``dim`` the sum of ``gradients`` of the windows that read
    it.

    The windows that read an element are a window again, over gradients with zeros between them.
    """
    (given,) = gradients
    outputs = given.shape[dim]
    if not isinstance(part, Axis) or not (covers(part, size) or is_sliceable(part, size)):
        steps = windows_over(part, outputs, size, given)
        return reduced(gradients, dim, steps, SUM)
    shape = list(given.shape)
    if covers(part, size):
        shape[dim] = size
        return (given.expand(shape),)
    # After a single window the stride, of any length, has no element to step over.
    stride = part.stride if outputs > 1 else min(part.stride, part.window)
    # Where windows lie apart, each gradient stands once for every element of its window.
    lie_apart = part.window <= stride and part.dilation == 1
    copies, taps = (part.window, 1) if lie_apart else (1, part.window)
    if stride > 1:
        shape.insert(dim + 1, copies)
        blocks = given.unsqueeze(dim + 1).expand(shape)
        shape[dim + 1] = stride - copies
        given = torch.cat((blocks, given.new_zeros(shape)), dim + 1).flatten(dim, dim + 1)
    before = (taps - 1) * part.dilation - part.start_padding
    after = size + (taps - 1) * part.dilation - before - given.shape[dim]
    readers = Axis(taps, 1, before, after, part.dilation, ceil_mode=False)
    return sliced((given,), dim, readers, SUM)
