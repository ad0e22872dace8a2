"""What lowerings know of a window: where its taps lie, which of them may lie outside the input, and
how many count.
"""

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor.ir import TensorBox
from torch._inductor.virtualized import V, ops

from torch_dmlpool import tensors
from torch_dmlpool.window import Axis, Window

LARGEST_FUSED = 25
"""The taps of the largest window that is an expression. For each tap the operations before the
window are computed once more. That is cheaper than a pass over memory for this number of taps, to
which Inductor unrolls ATen's pools. It was not measured on a GPU yet."""


all_hold = functools.partial(functools.reduce, ops.and_)


_TYPES = (*tensors.FLOAT_TYPES, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def is_sure(condition: Any) -> bool:
    """Whether a condition on sizes, which may be symbolic, is known to hold."""
    return condition is True or (
        condition is not False and V.graph.sizevars.statically_known_true(condition)
    )


def _is_served(x: TensorBox) -> bool:
    """Whether lowerings take the data type and the device of ``x``."""
    return x.get_dtype() in _TYPES and x.get_device_or_error().type in ("cpu", "cuda")


def small_window(x: TensorBox, sizes: Sequence[Any], arguments: Sequence[Any]) -> Window | None:
    """The window that a lowering writes out as an expression, tap by tap.

    None, and the operator is called, where the data type or device has no lowerings, a number of
    the window is symbolic, it has more than ``LARGEST_FUSED`` taps or it may read padding alone.
    """
    numbers = [number for entry in arguments[:5] for number in entry]
    if not _is_served(x) or not all(isinstance(number, (int, sympy.Integer)) for number in numbers):
        return None
    lists: list[Any] = [[int(number) for number in entry] for entry in arguments[:5]]
    window = Window.directml(len(sizes), *lists, *arguments[5:])
    known = [int(size) if isinstance(size, sympy.Integer) else size for size in sizes]
    may_be_empty = any(map(Axis.may_be_empty, window.axes, known))
    return window if window.taps <= LARGEST_FUSED and not may_be_empty else None


def covered_axes(x: TensorBox, sizes: Sequence[Any], arguments: Sequence[Any]) -> list[bool] | None:
    """For each dimension, whether the window covers all of it: such a window is a reduction.

    None, and the window is no reduction, where the data type or device has no lowerings, there is
    padding, no dimension is covered, or a dimension is neither covered nor left as it is (window
    and stride 1).
    """
    windows, strides, starts, ends, dilations = (list(numbers) for numbers in arguments[:5])
    if not _is_served(x) or any(number != 0 for number in (*starts, *ends)):
        return None
    covered = [
        is_sure(sympy.Eq(*pair)) and step == 1
        for *pair, step in zip(windows, sizes, dilations, strict=True)
    ]
    alone = [window == stride == 1 for window, stride in zip(windows, strides, strict=True)]
    return covered if any(covered) and all(map(operator.or_, covered, alone)) else None


def index_type(*sizes: Any) -> torch.dtype:
    """int32 if positions near the ends of an axis are known to fit, else int64."""
    return torch.int32 if all(is_sure(size < 2**30) for size in sizes) else torch.int64


class Geometry:
    """Where the taps of a window lie in an input of ``sizes``, and which of them may lie
    outside.
    """

    def __init__(self, window: Window, sizes: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.axes, self.sizes, self.outputs = window.axes, sizes, outputs
        self.taps = list(itertools.product(*(range(axis.window) for axis in window.axes)))
        self.overlaps = any(axis.window > axis.stride for axis in window.axes)

    def position(self, dimension: int, output: Any, tap: Any) -> Any:
        """The input's position of a tap along a dimension."""
        axis = self.axes[dimension]
        return output * axis.stride + (tap * axis.dilation - axis.start_padding)

    def conditions(
        self, dimension: int, output: Any, tap: Any, counted_padding: int | None = None
    ) -> list[Any]:
        """The conditions under which a tap reads the input; none where it always does.

        With ``counted_padding``, the end padding of the dimension, they are those under which the
        tap counts.
        """
        axis, size = self.axes[dimension], self.sizes[dimension] + (counted_padding or 0)
        position = self.position(dimension, output, tap)
        offset, dtype = tap * axis.dilation, index_type(size)
        conditions = []
        if counted_padding is None and not is_sure(offset >= axis.start_padding):
            conditions.append(ops.ge(ops.index_expr(position, dtype), ops.constant(0, dtype)))
        last = self.position(dimension, self.outputs[dimension] - 1, tap)
        is_inside = not axis.ceil_mode and is_sure(
            offset + axis.end_padding - (counted_padding or 0) < axis.extent
        )
        if not is_inside and not is_sure(last < size):
            conditions.append(ops.lt(ops.index_expr(position, dtype), ops.index_expr(size, dtype)))
        return conditions

    def loader(self, x: TensorBox, fill: Any) -> Callable[..., Any]:
        """A function that reads a tap of ``x``, or ``fill`` where the tap is outside the input."""
        x.realize_hint()
        if self.overlaps:  # expensive input is not computed again for each window
            x.mark_reuse(len(self.taps))
        load = x.make_loader()

        def tap_of(index: Sequence[Any], taps: Sequence[Any]) -> Any:
            spatial = list(enumerate(zip(index[2:], taps, strict=True)))
            conditions = [
                held for i, (output, tap) in spatial for held in self.conditions(i, output, tap)
            ]
            place = [*index[:2], *(self.position(i, output, tap) for i, (output, tap) in spatial)]
            return (
                ops.masked(all_hold(conditions), lambda: load(place), fill)
                if conditions
                else load(place)
            )

        return tap_of

    def counted(self, index: Sequence[Any], include_padding: bool, dtype: torch.dtype) -> Any:
        """The number of taps that a window counts (rules A1 and A2)."""
        one, none, along = ops.constant(1.0, dtype), ops.constant(0.0, dtype), []
        for i, axis in enumerate(self.axes):
            padding = axis.end_padding if include_padding else None
            held = [self.conditions(i, index[2 + i], tap, padding) for tap in range(axis.window)]
            always = ops.constant(float(sum(not conditions for conditions in held)), dtype)
            varying = [
                ops.where(all_hold(conditions), one, none) for conditions in held if conditions
            ]
            along.append(functools.reduce(ops.add, varying, always))
        return functools.reduce(ops.mul, along)


def number_of(taps: Sequence[Any], windows: Sequence[Any]) -> Any:
    """The number of a tap, counted row by row (rule M6)."""
    along = zip(taps, windows, strict=True)
    return functools.reduce(lambda number, axis: number * axis[1] + axis[0], along, sympy.S.Zero)
