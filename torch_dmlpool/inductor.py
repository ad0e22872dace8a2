"""Lowerings for Inductor: under torch.compile small windows become expressions that fuse with their neighbours.

Inductor computes what stands before and after such a window in the window's own loop, forward and backward. Windows of
more taps, and whatever an expression would compute otherwise than the operator, call the operator, which takes tensors
in the layout that Inductor has. The private names of Inductor that this takes are used in this file alone; where one
is missing, every operator is called.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor.ir import Pointwise, Reduction, TensorBox
from torch._inductor.lowering import fallback_handler, lowerings, register_lowering, to_dtype
from torch._inductor.virtualized import V, ops
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torch_dmlpool import operands
from torch_dmlpool.window import Axis, Window

LARGEST_FUSED = {"cpu": 25, "cuda": 25}
"""Taps of the largest window that is an expression, by device; elsewhere none is. Each tap is computed from what stands
before it once more, which is cheaper than a pass over memory for as many taps as Inductor unrolls of ATen's pools. No
GPU has measured it yet."""

_OFF = "torch_dmlpool.inductor=off"
_SMALL = (torch.float16, torch.bfloat16)
_LOWERED_TYPES = (
    *operands.FLOAT_TYPES,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
)


def lower(enabled: bool = True) -> None:
    """Have torch.compile see through the operators from now on, or call them as they are.

    The setting is a word in ``torch.compiler.config.cache_key_tag``, so that graphs compiled either way are kept apart
    in torch.compile's caches. What has been compiled before stays as it is.
    """
    operands.check_flag("enabled", enabled)
    settings = torch.compiler.config
    words = [word for word in settings.cache_key_tag.split() if word != _OFF]
    settings.cache_key_tag = " ".join(words if enabled else [*words, _OFF])


def is_lowering() -> bool:
    """Whether torch.compile sees through the operators that it compiles from now on."""
    return _OFF not in torch.compiler.config.cache_key_tag.split()


def register() -> None:
    """Add the lowerings to Inductor's; again does nothing."""
    for name, lowering in _LOWERINGS.items():
        operation = getattr(torch.ops.dmlpool, name).default
        if operation not in lowerings:
            register_lowering(operation, type_promotion_kind=None)(_or_the_operator(operation, lowering))


def _or_the_operator(operation: torch._ops.OpOverload, lowering: Callable[..., Any]) -> Callable[..., Any]:
    call = fallback_handler(operation, add_to_fallback_set=False)

    def lowered(*arguments: Any, **named: Any) -> Any:
        expression = lowering(*arguments) if is_lowering() and not named else None
        return call(*arguments, **named) if expression is None else expression

    return lowered


# What an expression needs to know.


def _integers(numbers: Sequence[Any]) -> list[int] | None:
    if all(isinstance(number, (int, sympy.Integer)) for number in numbers):
        return [int(number) for number in numbers]
    return None


def _is_sure(condition: Any) -> bool:
    return condition is True or (condition is not False and V.graph.sizevars.statically_known_true(condition))


def _expressions(sizes: Sequence[Any]) -> list[Any]:
    return [size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size) for size in sizes]


def _results() -> list[tuple[list[Any], torch.dtype]]:
    """Sizes and data types of what the operator being lowered returns, from its fake implementation."""
    value = V.graph.current_node.meta["val"]
    fakes = [value] if isinstance(value, torch.Tensor) else value
    return [(_expressions(fake.shape), fake.dtype) for fake in fakes]


def _is_served(x: TensorBox) -> bool:
    return x.get_dtype() in _LOWERED_TYPES and x.get_device().type in LARGEST_FUSED


def _small_window(x: TensorBox, sizes: Sequence[Any], arguments: Sequence[Any]) -> Window | None:
    """The window, if it has few taps, and one of them at least inside the input wherever it lies."""
    lists = [_integers(numbers) for numbers in arguments[:5]]
    if not _is_served(x) or None in lists:
        return None
    window = Window.directml(len(sizes), *lists, arguments[5])
    few = window.taps <= LARGEST_FUSED[x.get_device().type]
    return window if few and all(map(_reads_everywhere, window.axes, sizes)) else None


def _reads_everywhere(axis: Axis, size: Any) -> bool:
    if axis.start_padding >= axis.extent or axis.end_padding >= axis.extent:
        return False
    # Taps farther apart than the input is wide may step over it.
    return axis.dilation == 1 or axis.start_padding == 0 or _is_sure(size >= axis.dilation)


def _covered(x: TensorBox, sizes: Sequence[Any], arguments: Sequence[Any]) -> list[bool] | None:
    """Of each dimension whether the window covers it in one, if it covers some and leaves the others alone."""
    windows, strides, starts, ends, dilations = (list(numbers) for numbers in arguments[:5])
    if not _is_served(x) or any(number != 0 for number in (*starts, *ends)):
        return None
    covered = []
    for window, stride, dilation, size in zip(windows, strides, dilations, sizes, strict=True):
        if _is_sure(sympy.Eq(window, size)) and dilation == 1:
            covered.append(True)
        elif window == 1 and stride == 1:
            covered.append(False)
        else:
            return None
    return covered if any(covered) else None


def _index_type(*sizes: Any) -> torch.dtype:
    """int32 where everything near an axis' ends is sure to fit."""
    return torch.int32 if all(_is_sure(size < 2**30) for size in sizes) else torch.int64


def _both(conditions: Sequence[Any]) -> Any:
    return functools.reduce(ops.and_, conditions)


def _tree(terms: Sequence[Any]) -> Any:
    """A sum in as few steps one after another as can be (rule E6)."""
    while len(terms) > 1:
        terms = [ops.add(*terms[i : i + 2]) if i + 1 < len(terms) else terms[i] for i in range(0, len(terms), 2)]
    return terms[0]


def _sum_type(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _SMALL else dtype


class _Geometry:
    """Where the taps of a window lie in an input of ``sizes``, and which of them may lie outside."""

    def __init__(self, window: Window, sizes: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.axes, self.sizes, self.outputs = window.axes, sizes, outputs
        self.taps = list(itertools.product(*(range(axis.window) for axis in window.axes)))
        self.overlaps = any(axis.window > axis.stride for axis in window.axes)

    def position(self, dimension: int, output: Any, tap: int) -> Any:
        axis = self.axes[dimension]
        return output * axis.stride + (tap * axis.dilation - axis.start_padding)

    def conditions(self, dimension: int, output: Any, tap: int, counted: int | None = None) -> list[Any]:
        """What must hold for a tap to read the input, or to count where padding does; nothing where it always does."""
        axis, size = self.axes[dimension], self.sizes[dimension] + (counted or 0)
        position, offset, dtype = self.position(dimension, output, tap), tap * axis.dilation, _index_type(size)
        conditions = []
        if counted is None and offset < axis.start_padding:
            conditions.append(ops.ge(ops.index_expr(position, dtype), ops.constant(0, dtype)))
        last = self.position(dimension, self.outputs[dimension] - 1, tap)
        is_inside = not axis.ceil_mode and offset + axis.end_padding - (counted or 0) < axis.extent
        if not is_inside and not _is_sure(last < size):
            conditions.append(ops.lt(ops.index_expr(position, dtype), ops.index_expr(size, dtype)))
        return conditions

    def loader(self, x: TensorBox, fill: Any) -> Callable[..., Any]:
        """What reads a tap of ``x``, or ``fill`` where it lies outside."""
        x.realize_hint()
        if self.overlaps:  # what is dear to compute is not computed again for each window
            x.mark_reuse(len(self.taps))
        load = x.make_loader()

        def tap_of(index: Sequence[Any], taps: Sequence[int]) -> Any:
            spatial = list(enumerate(zip(index[2:], taps, strict=True)))
            conditions = [held for i, (output, tap) in spatial for held in self.conditions(i, output, tap)]
            place = [*index[:2], *(self.position(i, output, tap) for i, (output, tap) in spatial)]
            return ops.masked(_both(conditions), lambda: load(place), fill) if conditions else load(place)

        return tap_of

    def counted(self, index: Sequence[Any], include_padding: bool, dtype: torch.dtype) -> Any:
        """How many taps of a window count (rules A1 and A2): a number where that is the same for all."""
        constant, varying = 1, []
        for i, axis in enumerate(self.axes):
            padding = axis.end_padding if include_padding else None
            held = [self.conditions(i, index[2 + i], tap, padding) for tap in range(axis.window)]
            always = sum(not conditions for conditions in held)
            if always == axis.window:
                constant *= always
                continue
            one, none = ops.constant(1.0, dtype), ops.constant(0.0, dtype)
            counts = [ops.where(_both(conditions), one, none) for conditions in held if conditions]
            varying.append(functools.reduce(ops.add, counts, ops.constant(float(always), dtype)))
        return functools.reduce(ops.mul, varying, ops.constant(float(constant), dtype)) if varying else constant


def _pointwise(x: TensorBox, sizes: Sequence[Any], dtype: torch.dtype, value: Callable[..., Any]) -> TensorBox:
    def converted(index: Sequence[Any]) -> Any:
        return ops.to_dtype(value(index), dtype)

    return Pointwise.create(device=x.get_device(), dtype=dtype, inner_fn=converted, ranges=list(sizes))


def _reduced(
    x: TensorBox, covered: Sequence[bool], kind: str, source: torch.dtype, result: torch.dtype
) -> TensorBox:
    """A reduction of the dimensions that are covered, each of which stays with one element."""
    load, sizes = x.make_loader(), x.get_size()[2:]
    reduced = [size for size, is_covered in zip(sizes, covered, strict=True) if is_covered]
    parts = _parts(reduced[0]) if kind == "sum" else 1
    height = reduced[0] if parts == 1 else reduced[0] // parts

    def inner(index: Sequence[Any], elements: Sequence[Any]) -> Any:
        def part(number: int) -> Any:
            place, rest = list(index), iter([elements[0] + number * height, *elements[1:]])
            for i, is_covered in enumerate(covered, 2):
                place[i] = next(rest) if is_covered else place[i]
            return ops.to_dtype(load(place), _sum_type(x.get_dtype()) if kind == "sum" else source)

        return ops.to_dtype(_tree([part(number) for number in range(parts)]), source)

    reduction = Reduction.create(
        device=x.get_device(),
        dst_dtype=result,
        src_dtype=source,
        inner_fn=inner,
        ranges=_results()[0][0],
        reduction_ranges=[height, *reduced[1:]],
        reduction_type=kind,
        input_node=x,
    )
    reduction.realize()
    return reduction


def _parts(size: Any) -> int:
    """How many rows are added as a tree before their sum is added to the others'."""
    return max((n for n in range(2, 9) if _is_sure(sympy.Eq(size % n, 0))), default=1)


# Maxima.


def _lowest(dtype: torch.dtype) -> Any:
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _maxima(x: TensorBox, geometry: _Geometry, outputs: Sequence[Any]) -> TensorBox:
    tap_of = geometry.loader(x, _lowest(x.get_dtype()))

    def greatest(index: Sequence[Any]) -> Any:
        return functools.reduce(ops.maximum, (tap_of(index, taps) for taps in geometry.taps))

    return _pointwise(x, outputs, x.get_dtype(), greatest)


def _winners(
    x: TensorBox,
    geometry: _Geometry,
    outputs: Sequence[Any],
    dtype: torch.dtype,
    weights: Sequence[Any],
    first: Callable[[Sequence[Any]], Any] | None = None,
) -> TensorBox:
    """The sum of ``weights`` times the winning tap's number along each axis, counted on from the number ``first``."""
    lowest, tap_of = _lowest(x.get_dtype()), geometry.loader(x, _lowest(x.get_dtype()))
    is_float, wide = x.get_dtype().is_floating_point, torch.int32 if first is None else torch.int64

    def weighted(numbers: Sequence[Any]) -> Any:
        return ops.index_expr(sum(n * weight for n, weight in zip(numbers, weights, strict=True)) + sympy.S.Zero, wide)

    def winner(index: Sequence[Any]) -> Any:
        best, number = tap_of(index, geometry.taps[0]), ops.constant(0, wide)
        for taps in geometry.taps[1:]:
            value = tap_of(index, taps)
            wins = ops.gt(value, best)
            if is_float:  # the first NaN wins
                wins = ops.and_(ops.logical_not(ops.le(value, best)), ops.eq(best, best))
            best, number = ops.where(wins, value, best), ops.where(wins, weighted(taps), number)
        if any(axis.start_padding for axis in geometry.axes):
            # Where nothing is above the padding, the first tap inside wins.
            alike = ops.eq(best, ops.constant(lowest, x.get_dtype()))
            inside = [_first_inside(axis, output) for axis, output in zip(geometry.axes, index[2:], strict=True)]
            number = ops.where(alike, ops.masked(alike, lambda: weighted(inside), 0), number)
        return number if first is None else ops.add(number, ops.index_expr(first(index), wide))

    return _pointwise(x, outputs, dtype, winner)


def _first_inside(axis: Axis, output: Any) -> Any:
    missing = axis.start_padding - output * axis.stride
    return sympy.Max(0, FloorDiv(missing + axis.dilation - 1, axis.dilation)) if axis.start_padding else sympy.S.Zero


def _row_major(sizes: Sequence[Any]) -> list[Any]:
    """How many elements one step along each dimension skips."""
    steps = [sympy.S.One]
    for size in reversed(sizes[1:]):
        steps.insert(0, steps[0] * size)
    return steps


def _window_of_maxima(x: TensorBox, sizes: Sequence[Any], arguments: Sequence[Any]) -> Window | None:
    """The small window, unless a CPU's loop over it would read every other element of a row.

    Inductor makes no vectors of that: 3/2 in 2x64x112x112 takes 5.2 ms forward, the operator 2.5, ATen's in Inductor 3.4;
    forward and backward 16.4, 13.6 and 11.2. Averages take .39 ms there to ATen's 1.08, as the compiler makes vectors.
    """
    window = _small_window(x, sizes, arguments)
    is_strided = window is not None and window.axes[-1].stride > 1 and x.get_device().type == "cpu"
    return None if is_strided and not _has_channels_innermost(x) else window


def _has_channels_innermost(x: TensorBox) -> bool:
    fake = V.graph.current_node.args[0].meta["val"]
    strides = x.maybe_get_stride()
    return operands.is_channels_last(fake) if strides is None else _is_sure(sympy.Eq(strides[1], 1))


def _max_pooling(x: TensorBox, *arguments: Any) -> TensorBox | None:
    window, (outputs, dtype) = _window_of_maxima(x, x.get_size()[2:], arguments), _results()[0]
    if window is not None:
        return _maxima(x, _Geometry(window, x.get_size()[2:], outputs[2:]), outputs)
    covered = _covered(x, x.get_size()[2:], arguments)
    return None if covered is None else _reduced(x, covered, "max", dtype, dtype)


def _max_pooling_with_taps(x: TensorBox, *arguments: Any) -> tuple[TensorBox, TensorBox] | None:
    window, ((outputs, dtype), (_, kept)) = _window_of_maxima(x, x.get_size()[2:], arguments), _results()
    if window is not None:
        geometry = _Geometry(window, x.get_size()[2:], outputs[2:])
        weights = _row_major([axis.window for axis in window.axes])
        return _maxima(x, geometry, outputs), _winners(x, geometry, outputs, kept, weights)
    covered = _covered(x, x.get_size()[2:], arguments)
    if covered is None:
        return None
    values = _reduced(x, covered, "max", dtype, dtype)
    return values, to_dtype(_reduced(x, covered, "argmax", dtype, torch.int64), kept)


def _max_pooling_with_indices(x: TensorBox, *arguments: Any) -> tuple[TensorBox, TensorBox] | None:
    *window_arguments, index_dtype, per_plane = arguments
    sizes, (outputs, _) = x.get_size(), _results()[0]
    window = _window_of_maxima(x, sizes[2:], window_arguments)
    if window is None or index_dtype not in _LOWERED_TYPES:
        return None
    geometry = _Geometry(window, sizes[2:], outputs[2:])
    first, weights = _numbering(window, sizes, per_plane)
    return _maxima(x, geometry, outputs), _winners(x, geometry, outputs, index_dtype, weights, first)


def _numbering(window: Window, sizes: Sequence[Any], per_plane: bool) -> tuple[Callable[..., Any], list[Any]]:
    """The index of a window's first tap, and what one tap along each axis adds to it (rule M4)."""
    steps = _row_major(sizes)

    def first(index: Sequence[Any]) -> Any:
        starts = [output * axis.stride - axis.start_padding for output, axis in zip(index[2:], window.axes, strict=True)]
        within = sum(start * step for start, step in zip(starts, steps[2:], strict=True))
        return within if per_plane else within + index[0] * steps[0] + index[1] * steps[1]

    return first, [step * axis.dilation for step, axis in zip(steps[2:], window.axes, strict=True)]


def _max_pooling_indices(taps: TensorBox, spatial_sizes: Sequence[Any], *arguments: Any) -> TensorBox | None:
    *window_arguments, index_dtype, per_plane = arguments
    window, (outputs, _) = _small_window(taps, spatial_sizes, window_arguments), _results()[0]
    if window is None or index_dtype not in _LOWERED_TYPES:
        return None
    first, weights = _numbering(window, [*outputs[:2], *spatial_sizes], per_plane)
    tap_counts, number_of, wide = _row_major([axis.window for axis in window.axes]), taps.make_loader(), torch.int64

    def position(index: Sequence[Any]) -> Any:
        rest, total = ops.to_dtype(number_of(index), wide), ops.index_expr(first(index), wide)
        for count, weight in zip(tap_counts, weights, strict=True):
            number = rest if count == 1 else ops.floordiv(rest, ops.constant(int(count), wide))
            rest = ops.sub(rest, ops.mul(number, ops.constant(int(count), wide)))
            total = ops.add(total, ops.mul(number, ops.index_expr(weight, wide)))
        return total

    return _pointwise(taps, outputs, index_dtype, position)


# Gradients: an element of the input gathers from the windows that read it.


def _readers(
    gradient: TensorBox, sizes: Sequence[Any], arguments: Sequence[Any], window: Window | None
) -> Callable[..., Any] | None:
    """What lists the windows that read an element: each one's place, the tap that reads it, and conditions."""
    covered, outputs = _covered(gradient, sizes, arguments), gradient.get_size()[2:]
    if covered is not None:

        def only(index: Sequence[Any]) -> list[Any]:
            spatial = list(zip(covered, index[2:], strict=True))
            place = [sympy.S.Zero if is_covered else element for is_covered, element in spatial]
            return [([*index[:2], *place], [element if is_covered else 0 for is_covered, element in spatial], [])]

        return only

    if window is None or any(axis.dilation > 1 and axis.window > 1 for axis in window.axes):
        return None

    backs = list(itertools.product(*(range((axis.window - 1) // axis.stride + 1) for axis in window.axes)))

    def readers(index: Sequence[Any]) -> list[Any]:
        return [_reader(window.axes, sizes, outputs, index, back) for back in backs]

    return readers


def _reader(
    axes: Sequence[Axis], sizes: Sequence[Any], outputs: Sequence[Any], index: Sequence[Any], backs: Sequence[int]
) -> tuple[list[Any], list[Any], list[Any]]:
    """The window so many before the last one that reads an element, along each axis."""
    place, numbers, conditions = list(index[:2]), [], []
    for axis, size, count, element, back in zip(axes, sizes, outputs, index[2:], backs, strict=True):
        dtype, padded = _index_type(size), element + axis.start_padding
        output = FloorDiv(padded, axis.stride) - back
        tap = ModularIndexing(padded, 1, axis.stride) + back * axis.stride
        place.append(output)
        numbers.append(tap)
        if axis.start_padding // axis.stride < back:
            conditions.append(ops.ge(ops.index_expr(output, dtype), ops.constant(0, dtype)))
        if not _is_sure(FloorDiv(size - 1 + axis.start_padding, axis.stride) - back < count):
            conditions.append(ops.lt(ops.index_expr(output, dtype), ops.index_expr(count, dtype)))
        if (back + 1) * axis.stride > axis.window:
            conditions.append(ops.lt(ops.index_expr(tap, dtype), ops.constant(axis.window, dtype)))
    return place, numbers, conditions


def _gathered(gradient: TensorBox, readers: Callable[..., Any], term: Callable[..., Any]) -> TensorBox:
    """The sum of every element's terms."""
    sizes, dtype = _results()[0]

    def total(index: Sequence[Any]) -> Any:
        terms = []
        for place, numbers, conditions in readers(index):
            value = functools.partial(term, place, numbers)
            terms.append(ops.masked(_both(conditions), value, 0.0) if conditions else value())
        return _tree(terms)

    return _pointwise(gradient, sizes, dtype, total)


def _max_pooling_grad_from_taps(
    gradient: TensorBox, taps: TensorBox, sizes: Sequence[Any], *arguments: Any
) -> TensorBox | None:
    readers = _readers(gradient, sizes, arguments[:-1], _window_of_maxima(gradient, sizes, arguments[:-1]))
    if readers is None:
        return None
    gradient.realize_hint()
    load, number_of, dtype = gradient.make_loader(), taps.make_loader(), _sum_type(gradient.get_dtype())
    weights = _row_major(arguments[0])

    def term(place: Sequence[Any], taps: Sequence[Any]) -> Any:
        number = sum(tap * weight for tap, weight in zip(taps, weights, strict=True)) + sympy.S.Zero
        wins = ops.eq(ops.to_dtype(number_of(place), torch.int32), ops.index_expr(number, torch.int32))
        return ops.where(wins, ops.to_dtype(load(place), dtype), ops.constant(0.0, dtype))

    return _gathered(gradient, readers, term)


# Averages.


def _divided(total: Any, divisor: Any, dtype: torch.dtype) -> Any:
    """A quotient; the divisor is a number, an expression of sizes or a value."""
    if isinstance(divisor, (int, sympy.Integer)):
        divisor = ops.constant(float(divisor), dtype)
    elif isinstance(divisor, sympy.Expr):
        divisor = ops.to_dtype(ops.index_expr(divisor, torch.int64), dtype)
    return ops.truediv(total, divisor)


def _average_pooling(x: TensorBox, *arguments: Any) -> TensorBox | None:
    *window_arguments, include_padding, divisor = arguments
    sizes, (outputs, dtype), summed = x.get_size(), _results()[0], _sum_type(x.get_dtype())
    window = _small_window(x, sizes[2:], window_arguments)
    if window is None:
        covered = _covered(x, sizes[2:], window_arguments)
        return None if covered is None else _reduced_average(x, covered, divisor or math.prod(window_arguments[0]))
    geometry = _Geometry(window, sizes[2:], outputs[2:])
    tap_of = geometry.loader(x, 0.0)

    def average(index: Sequence[Any]) -> Any:
        total = _tree([ops.to_dtype(tap_of(index, taps), summed) for taps in geometry.taps])
        return _divided(total, divisor or geometry.counted(index, include_padding, summed), summed)

    return _pointwise(x, outputs, dtype, average)


def _reduced_average(x: TensorBox, covered: Sequence[bool], divisor: Any) -> TensorBox:
    # A CPU adds in a row, which only float64 makes exact enough (rule E6); a GPU adds as a tree.
    is_row = x.get_device().type == "cpu"
    (outputs, dtype), wide = _results()[0], torch.float64 if is_row else _sum_type(x.get_dtype())
    total = _reduced(x, covered, "sum", wide, wide).make_loader()
    return _pointwise(x, outputs, dtype, lambda index: _divided(total(index), divisor, wide))


def _average_pooling_grad(gradient: TensorBox, sizes: Sequence[Any], *arguments: Any) -> TensorBox | None:
    *window_arguments, include_padding, divisor = arguments
    window, dtype = _small_window(gradient, sizes, window_arguments), _sum_type(gradient.get_dtype())
    readers = _readers(gradient, sizes, window_arguments, window)
    if readers is None:
        return None
    gradient.realize_hint()
    load, geometry = gradient.make_loader(), None
    if window is not None and not divisor:
        geometry = _Geometry(window, sizes, gradient.get_size()[2:])

    def share(index: Sequence[Any]) -> Any:
        count = geometry.counted(index, include_padding, dtype) if geometry else divisor
        return _divided(ops.to_dtype(load(index), dtype), count or math.prod(window_arguments[0]), dtype)

    if geometry and geometry.overlaps:  # each window is divided once, not by every element that it reads
        shares = _pointwise(gradient, gradient.get_size(), dtype, share)
        shares.realize()
        share = shares.make_loader()
    return _gathered(gradient, readers, lambda place, _: share(place))


_LOWERINGS: dict[str, Callable[..., Any]] = {
    "average_pooling": _average_pooling,
    "average_pooling_grad": _average_pooling_grad,
    "max_pooling": _max_pooling,
    "max_pooling_grad_from_taps": _max_pooling_grad_from_taps,
    "max_pooling_indices": _max_pooling_indices,
    "max_pooling_with_indices": _max_pooling_with_indices,
    "max_pooling_with_taps": _max_pooling_with_taps,
}
