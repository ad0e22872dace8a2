"""Reductions over windows and bins in plain PyTorch, one axis at a time, for any device and
symbolic sizes.

Along an axis a window, a bin, and the windows that read an element are all the same: a number of
elements at equal steps (:class:`Steps`). They are combined in blocks of 1, 2, 4, ... elements. So
time and memory grow with the input, the results and the logarithm of the window, whatever padding
and dilation are, and sums have the depth of trees.

What is reduced is one dimension, ``dim``, of a tuple of tensors of one shape: values alone, or
values with their positions.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torch_dmlpool.backends.interface import AnyWindow
from torch_dmlpool.tensors import lowest
from torch_dmlpool.window import Axis, Window

Tensors: TypeAlias = tuple[Tensor, ...]
NOWHERE = 2**63 - 1
"""The position of padding, which is greater than all others."""


class Reduction(NamedTuple):
    """How the elements of a window become one."""

    fills: tuple[float, ...]  # the identity: what padding is filled with, for each tensor
    combine: Callable[[Tensors, Tensors], Tensors]  # combines two tuples elementwise
    whole: Callable[[Tensors, int], Tensors]  # reduces a dimension to the size 1


SUM = Reduction(
    (0,),
    lambda one, other: (one[0] + other[0],),
    lambda tensors, dim: (tensors[0].sum(dim, keepdim=True, dtype=tensors[0].dtype),),
)


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


def is_known(condition: bool) -> bool:
    """Whether a condition on sizes holds. On symbolic sizes it must hold for all their values."""
    if type(condition) is bool:
        return condition
    # This import takes long, and has been done where sizes are symbolic.
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)


def are_ints(*numbers: Any) -> bool:
    """Whether no number is symbolic."""
    return all(type(number) is int for number in numbers)


def numbers(count: int, like: Tensor) -> Tensor:
    """0, 1, ... on the device of ``like``."""
    return torch.arange(count, dtype=torch.int64, device=like.device)


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
