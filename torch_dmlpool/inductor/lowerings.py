"""The operators as Inductor's expressions: a lowering returns None where the operator is to be
called.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import config
from torch._inductor.ir import Reduction, TensorBox
from torch._inductor.lowering import to_dtype
from torch._inductor.virtualized import ops
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torch_dmlpool import tensors
from torch_dmlpool.inductor.choice import MOST_TAPS, window_of_maxima, window_on_gpu
from torch_dmlpool.inductor.expressions import pointwise, reduced_over, register_as, results, tree
from torch_dmlpool.inductor.geometry import (
    LARGEST_FUSED,
    Geometry,
    all_hold,
    covered_axes,
    index_type,
    is_sure,
    number_of,
    small_window,
)
from torch_dmlpool.window import Axis, Window

LARGEST_TREE = 8
"""The most elements that a CPU adds in float32, as a tree, before it adds such sums in float64."""


SUM_TYPES = {
    dtype: torch.float32 if dtype.itemsize == 2 else dtype for dtype in tensors.FLOAT_TYPES
}


def _maxima(x: TensorBox, geometry: Geometry, outputs: Sequence[Any]) -> TensorBox:
    """Maxima over windows as a reduction, which Inductor unrolls if they are small."""
    device, dtype = x.get_device_or_error(), x.get_dtype()
    windows = [axis.window for axis in geometry.axes]
    tap_of = geometry.loader(x, Reduction.default_accumulator("max", dtype))
    # More taps than MOST_TAPS were measured to be faster in a loop there.
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
            # If no element is above the padding, the first tap inside the input wins.
            alike = ops.eq(best, ops.constant(lowest, x.get_dtype()))
            inside = list(map(first_inside, geometry.axes, index[2:]))
            number = ops.where(alike, ops.masked(alike, lambda: numbered(inside), 0), number)
        return number

    return pointwise(x, outputs, dtype, winner)


def _max_pooling(x: TensorBox, *arguments: Any) -> Any:
    """Maxima and, where the operator returns them, the numbers of their taps; None where the
    operator must be called.
    """
    (outputs, dtype), *taps = results()
    sizes = x.get_size()[2:]
    window = window_of_maxima(x, sizes, arguments, outputs, bool(taps))
    covered = covered_axes(x, sizes, arguments)
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
    """A function that lists the windows that read an element: each one's place, the tap that reads
    it, and the conditions under which it does.

    None where the operator must be called.
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
        # ``back`` counts windows back from the last one that reads the element.
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
    """For each element, the sum of ``term`` over the windows that read it."""
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
    """Each element's sum of the gradients of windows that it won; None where the operator must be
    called.
    """
    window = window_of_maxima(gradient, sizes, arguments[:-1], gradient.get_size())
    readers = _readers(gradient, sizes, arguments[:-1], window)
    if readers is None:
        return None
    gradient.realize_hint()
    load, winner_of = gradient.make_loader(), taps.make_loader()
    dtype = SUM_TYPES[gradient.get_dtype()]

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
    """The sums, as trees, of up to LARGEST_TREE elements at equal steps along ``axis``, so that
    fewer elements are left to add in float64. The number of elements in a sum divides the axis.
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
    """Averages of a small window or over whole dimensions; None where the operator must be
    called.
    """
    *window_arguments, include_padding, divisor = arguments
    sizes, (outputs, dtype), summed = x.get_size(), results()[0], SUM_TYPES[x.get_dtype()]
    window = window_on_gpu(x, small_window(x, sizes[2:], window_arguments), True)
    if window is None:
        covered = covered_axes(x, sizes[2:], window_arguments)
        # On a CPU Inductor adds elements one after another. To be exact enough (rule E6) float32 is
        # added in float64, and float64 is left to the operator. A GPU adds as a tree.
        is_in_a_row = x.get_device_or_error().type == "cpu"
        if covered is None or (is_in_a_row and summed is torch.float64):
            return None
        wide = torch.float64 if is_in_a_row else summed
        count = divisor or math.prod(window_arguments[0])
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
    """The gradient of the same averages; None where the operator must be called."""
    *window_arguments, include_padding, divisor = arguments
    window, dtype = small_window(gradient, sizes, window_arguments), SUM_TYPES[gradient.get_dtype()]
    window = window_on_gpu(gradient, window, False)
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
    # Each window's gradient is divided once, not again for every element that it reads.
    if geometry and geometry.overlaps:
        shares = pointwise(gradient, gradient.get_size(), dtype, share)
        shares.realize()
        share_of = shares.make_loader()
    return _gathered(gradient, readers, lambda place, _: share_of(place))


register_as(torch.ops.dmlpool.average_pooling.default, _average_pooling)
register_as(torch.ops.dmlpool.average_pooling_grad.default, _average_pooling_grad)
register_as(torch.ops.dmlpool.max_pooling.default, _max_pooling)
register_as(torch.ops.dmlpool.max_pooling_with_taps.default, _max_pooling)
register_as(torch.ops.dmlpool.max_pooling_grad_from_taps.default, _max_pooling_grad_from_taps)
