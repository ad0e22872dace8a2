"""The operators as Inductor's expressions: a lowering returns None where the operator is to be
called.

First what they know of a window: where its taps lie, which of them may lie outside, how many count.
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import config
from torch._inductor.ir import ComputedBuffer, FlexibleLayout, Pointwise, Reduction, TensorBox
from torch._inductor.lowering import fallback_handler, make_reduction, register_lowering, to_dtype
from torch._inductor.virtualized import V, ops
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torch_dmlpool import operands
from torch_dmlpool._private import OpOverload
from torch_dmlpool.inductor import is_lowering
from torch_dmlpool.window import Axis, Window

LARGEST_FUSED = 25
"""Taps of the largest window that is an expression. Each tap is computed from what stands before it
once more, which is cheaper than a pass over memory for as many taps as Inductor unrolls of ATen's
pools. No GPU has measured it yet."""

# elements that a CPU adds in float32 before float64 takes over, which costs half as much so, or
# less
LARGEST_TREE = 8
SUM_TYPES = {
    dtype: torch.float32 if dtype.itemsize == 2 else dtype for dtype in operands.FLOAT_TYPES
}
all_hold = functools.partial(functools.reduce, ops.and_)
_TYPES = (*operands.FLOAT_TYPES, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def is_sure(condition: Any) -> bool:
    return condition is True or (
        condition is not False and V.graph.sizevars.statically_known_true(condition)
    )


def _is_served(x: TensorBox) -> bool:
    return x.get_dtype() in _TYPES and x.get_device_or_error().type in ("cpu", "cuda")


def is_never_empty(window: Window, sizes: Sequence[Any]) -> bool:
    """Whether a tap of the window at least is inside the input wherever it lies."""
    for axis, size in zip(window.axes, sizes, strict=True):
        # Taps farther apart than the input is wide may step over it.
        is_near = axis.dilation == 1 or axis.start_padding == 0 or is_sure(size >= axis.dilation)
        if not is_near or max(axis.start_padding, axis.end_padding) >= axis.extent:
            return False
    return True


def small_window(x: TensorBox, sizes: Sequence[Any], arguments: Sequence[Any]) -> Window | None:
    """The window, if it has few taps and is never empty."""
    numbers = [number for entry in arguments[:5] for number in entry]
    if not _is_served(x) or not all(isinstance(number, (int, sympy.Integer)) for number in numbers):
        return None
    lists: list[Any] = [[int(number) for number in entry] for entry in arguments[:5]]
    window = Window.directml(len(sizes), *lists, *arguments[5:])
    return window if window.taps <= LARGEST_FUSED and is_never_empty(window, sizes) else None


def covered_axes(x: TensorBox, sizes: Sequence[Any], arguments: Sequence[Any]) -> list[bool] | None:
    """Of each dimension whether the window covers it in one, if it covers some and leaves the
    others alone.
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
    """int32 where everything near an axis' ends is sure to fit."""
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
        axis = self.axes[dimension]
        return output * axis.stride + (tap * axis.dilation - axis.start_padding)

    def conditions(
        self, dimension: int, output: Any, tap: Any, counted: int | None = None
    ) -> list[Any]:
        """What must hold for a tap to read the input, or to count where padding does; nothing where
        it always does.
        """
        axis, size = self.axes[dimension], self.sizes[dimension] + (counted or 0)
        position, offset, dtype = (
            self.position(dimension, output, tap),
            tap * axis.dilation,
            index_type(size),
        )
        conditions = []
        if counted is None and not is_sure(offset >= axis.start_padding):
            conditions.append(ops.ge(ops.index_expr(position, dtype), ops.constant(0, dtype)))
        last = self.position(dimension, self.outputs[dimension] - 1, tap)
        is_inside = not axis.ceil_mode and is_sure(
            offset + axis.end_padding - (counted or 0) < axis.extent
        )
        if not is_inside and not is_sure(last < size):
            conditions.append(ops.lt(ops.index_expr(position, dtype), ops.index_expr(size, dtype)))
        return conditions

    def loader(self, x: TensorBox, fill: Any) -> Callable[..., Any]:
        """What reads a tap of ``x``, or ``fill`` where it lies outside."""
        x.realize_hint()
        if self.overlaps:  # what is dear to compute is not computed again for each window
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
        """How many taps of a window count (rules A1 and A2)."""
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


def results() -> list[tuple[list[Any], torch.dtype]]:
    """Sizes and data types of what the operator being lowered returns, from its fake
    implementation.
    """
    value = V.graph.current_node.meta["val"]
    fakes = [value] if isinstance(value, torch.Tensor) else value

    def as_expression(size: Any) -> Any:
        return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)

    return [([*map(as_expression, fake.shape)], fake.dtype) for fake in fakes]


def tree(terms: Sequence[Any]) -> Any:
    """A sum in as few steps one after another as can be (rule E6)."""
    while len(terms) > 1:
        terms = [
            ops.add(*terms[i : i + 2]) if i + 1 < len(terms) else terms[i]
            for i in range(0, len(terms), 2)
        ]
    return terms[0]


def pointwise(
    x: TensorBox, sizes: Sequence[Any], dtype: torch.dtype, value: Callable[..., Any]
) -> TensorBox:
    converted = lambda index: ops.to_dtype(value(index), dtype)  # noqa: E731
    return Pointwise.create(
        device=x.get_device_or_error(), dtype=dtype, inner_fn=converted, ranges=list(sizes)
    )


def reduced_over(
    x: TensorBox, covered: Sequence[bool], kind: Any, result: torch.dtype
) -> TensorBox:
    """A reduction of the dimensions that are covered, each of which stays with one element."""
    axes = [axis for axis, is_covered in enumerate(covered, 2) if is_covered]
    return make_reduction(kind, result)(x, axes, True, dtype=result if kind == "sum" else None)


def _maxima(x: TensorBox, geometry: Geometry, outputs: Sequence[Any]) -> TensorBox:
    device, dtype, windows = (
        x.get_device_or_error(),
        x.get_dtype(),
        [axis.window for axis in geometry.axes],
    )
    tap_of = geometry.loader(x, Reduction.default_accumulator("max", dtype))
    # where more taps were measured to be faster in a loop
    is_looped = device.type == "cpu" and len(windows) > 1
    with config.patch(unroll_reductions_threshold=1 + (MOST_TAPS if is_looped else LARGEST_FUSED)):
        maxima: Any = Reduction.create(
            device, dtype, dtype, tap_of, outputs, windows, "max", input_node=x
        )
    if isinstance(maxima.data.data, Reduction):
        maxima.realize()
    return maxima


def _winners(
    x: TensorBox, geometry: Geometry, outputs: Sequence[Any], dtype: torch.dtype
) -> TensorBox:
    """The numbers of the winning taps (rule M6)."""
    lowest: Any = Reduction.default_accumulator("max", x.get_dtype())
    tap_of = geometry.loader(x, lowest)

    def numbered(taps: Sequence[Any]) -> Any:
        return ops.index_expr(number_of(taps, [axis.window for axis in geometry.axes]), torch.int32)

    def first_inside(axis: Axis, output: Any) -> Any:
        missing = axis.start_padding - output * axis.stride
        return (
            sympy.Max(0, FloorDiv(missing + axis.dilation - 1, axis.dilation))
            if axis.start_padding
            else 0
        )

    def winner(index: Sequence[Any]) -> Any:
        best, number = tap_of(index, geometry.taps[0]), ops.constant(0, torch.int32)
        for taps in geometry.taps[1:]:
            value = tap_of(index, taps)
            wins = ops.gt(value, best)
            if x.get_dtype().is_floating_point:  # the first NaN wins
                wins = ops.and_(ops.logical_not(ops.le(value, best)), ops.eq(best, best))
            best, number = ops.where(wins, value, best), ops.where(wins, numbered(taps), number)
        if any(axis.start_padding for axis in geometry.axes):
            # Where nothing is above the padding, the first tap inside wins.
            alike = ops.eq(best, ops.constant(lowest, x.get_dtype()))
            inside = list(map(first_inside, geometry.axes, index[2:]))
            number = ops.where(alike, ops.masked(alike, lambda: numbered(inside), 0), number)
        return number

    return pointwise(x, outputs, dtype, winner)


def number_of(taps: Sequence[Any], windows: Sequence[Any]) -> Any:
    """The number of a tap, row by row (rule M6)."""
    along = zip(taps, windows, strict=True)
    return functools.reduce(lambda number, axis: number * axis[1] + axis[0], along, sympy.S.Zero)


MOST_TAPS, CHEAPEST_CALL = 16, 2**14
"""On a CPU: the taps of the largest window of maxima at stride 1, in rows or with taps, that is an
expression (for 25 the operator takes half of the time), and the taps in all that are computed in
less time than a call takes."""

_LARGEST_NARROW = {
    (1, False): 2**14,
    (1, True): 2**20,
    (2, False): 2**16,
    (2, True): 2**16,
}
"""On a CPU: the taps in all of maxima of integers of so many bytes, in channels_last or not, that
an expression reads in less time than a call of the operator takes. Bytes matter at stride 1 alone.
Inductor makes poor vectors of them: 3/1 on 8x192x28x28 takes 22.6 ms as an expression and 1.4 ms
with a call (uint8, contiguous), .33 and .14 (channels_last), int16 2.7 and .83, 2.6 and .27; 2/2 of
int16 in channels_last .30 and .12 (Zen 4, one thread)."""


def _is_narrow_and_many(x: TensorBox, window: Window, windows: Sequence[Any]) -> bool:
    """Whether the operator is faster because Inductor has no good vectors of the data type."""
    dtype = x.get_dtype()
    if dtype.is_floating_point or dtype.itemsize > 2:
        return False
    is_dense = all(axis.stride == 1 for axis in window.axes)
    if dtype.itemsize == 1 and not is_dense:
        return False
    limit = _LARGEST_NARROW[dtype.itemsize, _has_channels_innermost(x)]
    return not is_sure(math.prod(windows) * window.taps <= limit)


def window_of_maxima(
    x: TensorBox,
    sizes: Sequence[Any],
    arguments: Sequence[Any],
    windows: Sequence[Any],
    with_taps: bool = True,
) -> Window | None:
    """The small window, of which there are so many ``windows``, unless a CPU's operator is faster.

    Inductor makes no vectors of a loop that reads every other element of a row: a product and 3/2
    in 64x112x112 take 3.7 ms forward, the operator 0.8, ATen's in Inductor 1.6. Averages and maxima
    of one dimension are no slower.
    """
    window = small_window(x, sizes, arguments)
    if window is None or x.get_device_or_error().type != "cpu":
        return window
    if _is_narrow_and_many(x, window, windows):
        return None
    is_short = window.taps <= MOST_TAPS * math.prod(axis.stride for axis in window.axes)
    is_vector = not with_taps and (window.rank == 1 or (is_short and _has_channels_innermost(x)))
    if is_vector or is_sure(math.prod(windows) * window.taps <= CHEAPEST_CALL):
        return window
    is_strided = window.axes[-1].stride > 1 and not _has_channels_innermost(x)
    return None if is_strided or window.taps > MOST_TAPS else window


def _has_channels_innermost(x: TensorBox) -> bool:
    """Whether Inductor has or is going to have ``x`` in channels_last, which convolutions may
    choose for themselves.
    """
    inner: Any = getattr(x.data, "data", None)
    loops = (
        inner.data
        if isinstance(inner, ComputedBuffer) and isinstance(inner.layout, FlexibleLayout)
        else inner
    )
    strides = x.maybe_get_stride()
    if isinstance(loops, (Pointwise, Reduction)):
        layout = FlexibleLayout(x.get_device_or_error(), x.get_dtype(), x.get_size())
        planned = ComputedBuffer(name=None, layout=layout, data=loops)
        planned.decide_layout()
        strides = planned.get_stride()
    return strides is not None and is_sure(sympy.Eq(strides[1], 1))


def _max_pooling(x: TensorBox, *arguments: Any) -> Any:
    """Maxima, and where the operator returns them the numbers of their taps."""
    (outputs, dtype), *taps = results()
    sizes = x.get_size()[2:]
    window, covered = (
        window_of_maxima(x, sizes, arguments, outputs, bool(taps)),
        covered_axes(x, sizes, arguments),
    )
    if window is not None:
        geometry = Geometry(window, sizes, outputs[2:])
        found = [
            _maxima(x, geometry, outputs),
            *(_winners(x, geometry, outputs, kept) for _, kept in taps),
        ]
    elif covered is not None:
        numbers = (
            to_dtype(reduced_over(x, covered, "argmax", torch.int64), kept) for _, kept in taps
        )
        found = [reduced_over(x, covered, "max", dtype), *numbers]
    else:
        return None
    return tuple(found) if taps else found[0]


def _readers(
    gradient: TensorBox, sizes: Sequence[Any], arguments: Sequence[Any], window: Window | None
) -> Any:
    """A function that lists the windows that read an element, if there is one: place, reading tap
    and conditions.
    """
    covered, outputs = covered_axes(gradient, sizes, arguments), gradient.get_size()[2:]
    if covered is None and (
        window is None or any(axis.dilation > 1 and axis.window > 1 for axis in window.axes)
    ):
        return None

    def along(number: int, element: Any) -> list[tuple[Any, Any, list[Any]]]:
        if covered is not None:
            return [(sympy.S.Zero, element, []) if covered[number] else (element, 0, [])]
        axis, size, count = window.axes[number], sizes[number], outputs[number]  # type: ignore[union-attr]
        dtype, padded, found = index_type(size), element + axis.start_padding, []
        # so many before the last window that reads it
        for back in range((axis.window - 1) // axis.stride + 1):
            output, conditions = FloorDiv(padded, axis.stride) - back, []
            tap = ModularIndexing(padded, 1, axis.stride) + back * axis.stride
            if axis.start_padding // axis.stride < back:
                conditions.append(ops.ge(ops.index_expr(output, dtype), ops.constant(0, dtype)))
            if not is_sure(FloorDiv(size - 1 + axis.start_padding, axis.stride) - back < count):
                conditions.append(
                    ops.lt(ops.index_expr(output, dtype), ops.index_expr(count, dtype))
                )
            if (back + 1) * axis.stride > axis.window:
                conditions.append(
                    ops.lt(ops.index_expr(tap, dtype), ops.constant(axis.window, dtype))
                )
            found.append((output, tap, conditions))
        return found

    def readers(index: Sequence[Any]) -> Any:
        for windows in itertools.product(*itertools.starmap(along, enumerate(index[2:]))):
            place, taps, conditions = zip(*windows, strict=True)
            yield [*index[:2], *place], taps, list(itertools.chain(*conditions))

    return readers


def _gathered(
    gradient: TensorBox, readers: Callable[..., Any], term: Callable[..., Any]
) -> TensorBox:
    """The sum of every element's terms."""
    sizes, dtype = results()[0]

    def total(index: Sequence[Any]) -> Any:
        terms = []
        for place, numbers, conditions in readers(index):
            value = functools.partial(term, place, numbers)
            terms.append(ops.masked(all_hold(conditions), value, 0.0) if conditions else value())
        return tree(terms)

    return pointwise(gradient, sizes, dtype, total)


def _max_pooling_grad_from_taps(
    gradient: TensorBox, taps: TensorBox, sizes: Sequence[Any], *arguments: Any
) -> Any:
    window = window_of_maxima(gradient, sizes, arguments[:-1], gradient.get_size())
    readers = _readers(gradient, sizes, arguments[:-1], window)
    if readers is None:
        return None
    gradient.realize_hint()
    load, winner_of, dtype = (
        gradient.make_loader(),
        taps.make_loader(),
        SUM_TYPES[gradient.get_dtype()],
    )

    def term(place: Sequence[Any], taps: Sequence[Any]) -> Any:
        number = ops.index_expr(number_of(taps, arguments[0]), torch.int32)
        wins = ops.eq(ops.to_dtype(winner_of(place), torch.int32), number)
        return ops.where(wins, ops.to_dtype(load(place), dtype), ops.constant(0.0, dtype))

    return _gathered(gradient, readers, term)


def _divided(total: Any, divisor: Any, dtype: torch.dtype) -> Any:
    """A quotient; the divisor is a number, an expression of sizes or a value."""
    if isinstance(divisor, (int, sympy.Integer)):
        divisor = ops.constant(float(divisor), dtype)
    elif isinstance(divisor, sympy.Expr):
        divisor = ops.to_dtype(ops.index_expr(divisor, torch.int64), dtype)
    return ops.truediv(total, divisor)


def _in_trees(x: TensorBox, axis: int, dtype: torch.dtype) -> TensorBox:
    """Sums of a few elements along an axis, as many as divide it: there are fewer for float64 to
    add.
    """
    sizes, load = list(x.get_size()), x.make_loader()
    few = max(count for count in range(1, LARGEST_TREE + 1) if sizes[axis] % count == 0)
    sizes[axis] //= few

    def total(index: Sequence[Any]) -> Any:
        places = [
            [*index[:axis], index[axis] + step * sizes[axis], *index[axis + 1 :]]
            for step in range(few)
        ]
        return tree([ops.to_dtype(load(place), dtype) for place in places])

    return pointwise(x, sizes, dtype, total)


def _average_pooling(x: TensorBox, *arguments: Any) -> TensorBox | None:
    *window_arguments, include_padding, divisor = arguments
    sizes, (outputs, dtype), summed = x.get_size(), results()[0], SUM_TYPES[x.get_dtype()]
    window = small_window(x, sizes[2:], window_arguments)
    if window is None:
        covered = covered_axes(x, sizes[2:], window_arguments)
        # A CPU adds in a row, which is exact enough for float32 alone, and in float64 (rule E6); a
        # GPU adds as a tree.
        is_in_a_row = x.get_device_or_error().type == "cpu"
        if covered is None or (is_in_a_row and summed is torch.float64):
            return None
        wide, count = (
            torch.float64 if is_in_a_row else summed,
            divisor or math.prod(window_arguments[0]),
        )
        x = _in_trees(x, covered.index(True) + 2, summed) if is_in_a_row else x
        total = reduced_over(x, covered, "sum", wide).make_loader()
        return pointwise(x, outputs, dtype, lambda index: _divided(total(index), count, wide))
    geometry = Geometry(window, sizes[2:], outputs[2:])
    tap_of = geometry.loader(x, 0.0)

    def average(index: Sequence[Any]) -> Any:
        total = tree([ops.to_dtype(tap_of(index, taps), summed) for taps in geometry.taps])
        return _divided(total, divisor or geometry.counted(index, include_padding, summed), summed)

    return pointwise(x, outputs, dtype, average)


def _average_pooling_grad(
    gradient: TensorBox, sizes: Sequence[Any], *arguments: Any
) -> TensorBox | None:
    *window_arguments, include_padding, divisor = arguments
    window, dtype = small_window(gradient, sizes, window_arguments), SUM_TYPES[gradient.get_dtype()]
    readers = _readers(gradient, sizes, window_arguments, window)
    if readers is None:
        return None
    gradient.realize_hint()
    load = gradient.make_loader()
    geometry = (
        Geometry(window, sizes, gradient.get_size()[2:])
        if window is not None and not divisor
        else None
    )

    def share(index: Sequence[Any]) -> Any:
        count = geometry.counted(index, include_padding, dtype) if geometry else divisor
        return _divided(
            ops.to_dtype(load(index), dtype), count or math.prod(window_arguments[0]), dtype
        )

    share_of: Callable[..., Any] = share
    # each window is divided once, not by every element that it reads
    if geometry and geometry.overlaps:
        shares = pointwise(gradient, gradient.get_size(), dtype, share)
        shares.realize()
        share_of = shares.make_loader()
    return _gathered(gradient, readers, lambda place, _: share_of(place))


def register_as(operation: OpOverload, lowering: Callable[..., Any]) -> None:
    call = fallback_handler(operation, add_to_fallback_set=False)

    def lowered(*arguments: Any, **named: Any) -> Any:
        # What is named is the revision, which tells graphs apart and computes nothing.
        expression = lowering(*arguments) if is_lowering() else None
        return call(*arguments, **named) if expression is None else expression

    register_lowering(operation, type_promotion_kind=None)(lowered)


register_as(torch.ops.dmlpool.average_pooling.default, _average_pooling)
register_as(torch.ops.dmlpool.average_pooling_grad.default, _average_pooling_grad)
register_as(torch.ops.dmlpool.max_pooling.default, _max_pooling)
register_as(torch.ops.dmlpool.max_pooling_with_taps.default, _max_pooling)
register_as(torch.ops.dmlpool.max_pooling_grad_from_taps.default, _max_pooling_grad_from_taps)
