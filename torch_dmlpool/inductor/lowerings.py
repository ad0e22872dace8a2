"""The operators as Inductor's expressions: a lowering returns None where the operator is to be
called.

A lowering gets a call's arguments under the names of the schema; ``window`` has the six of a
window.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import sympy
import torch
from torch._inductor.ir import Pointwise, TensorBox, convert_shape_to_inductor
from torch._inductor.lowering import (
    fallback_handler,
    mean,
    reduce_amax,
    reduce_argmax,
    register_lowering,
    to_dtype,
)
from torch._inductor.virtualized import V, ops
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torch_dmlpool import tensors
from torch_dmlpool._private import OpOverload
from torch_dmlpool.inductor.setting import is_lowering
from torch_dmlpool.window import Axis, Function, Sizes, Window

Index: TypeAlias = Sequence[Any]

MOST_TAPS, MOST_FUSED_TAPS = 4, 9
"""The most taps of a window that is an expression on a GPU and in training, and of one whose input
is computed in its loop or, on a CPU, has its channels innermost.

By the model T of benchmarks/kernels.py for an H200 the operator's kernels take from 1.1 to 4.5
times less than expressions of longer windows, of taps and of gradients of windows that overlap, and
fusing saves at most a write and a read of the input."""

CHEAPEST_CALL = 2**14
"""The taps, of all windows together, that an expression on a CPU reads in less time than a call
takes, in whatever layout."""


def _results() -> list[tuple[list[Any], torch.dtype]]:
    """Sizes and data types of what the operator being lowered returns, from its fake
    implementation.
    """
    fakes = V.graph.current_node.meta["val"]
    fakes = [fakes] if isinstance(fakes, torch.Tensor) else fakes
    return [([*convert_shape_to_inductor(fake.shape)], fake.dtype) for fake in fakes]


def _pointwise(x: TensorBox, sizes: Sizes, dtype: torch.dtype, value: Function) -> TensorBox:
    """An expression on the device of ``x`` whose element at each index is ``value(index)``."""
    return Pointwise.create(
        device=x.get_device_or_error(),
        dtype=dtype,
        inner_fn=lambda index: ops.to_dtype(value(index), dtype),
        ranges=list(sizes),
    )


def _number(value: Any, dtype: torch.dtype) -> Any:
    """An expression of sizes and indices as a value of ``dtype``."""
    return ops.to_dtype(ops.index_expr(sympy.sympify(value), torch.int64), dtype)


def _tree(terms: Index) -> Any:
    """A sum whose chain of dependent additions is as short as possible (rule E6)."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return ops.add(_tree(terms[:half]), _tree(terms[half:]))


def _is_faster(x: TensorBox, outputs: Sizes, window: Window) -> bool:
    """Whether an expression, with what fusing saves, takes less time than the operator; the
    window's numbers are known then, and none of the windows may lie in padding alone.

    On a CPU Inductor makes vectors of channels that lie innermost, as they do after a convolution.
    """
    numbers = itertools.chain(*(axis[:-1] for axis in window.axes))
    if x.get_dtype() not in tensors.FLOAT_TYPES or not all(
        type(each) is int and each >= 0 for each in numbers
    ):
        return False
    if window.taps > MOST_FUSED_TAPS or any(axis.may_be_empty(None) for axis in window.axes):
        return False
    if x.get_device_or_error().type == "cpu":
        node: Any = V.graph.current_node.args[0]
        return (
            V.graph.sizevars.statically_known_leq(math.prod(outputs) * window.taps, CHEAPEST_CALL)
            or (len(outputs) == 4 and node in V.graph.nodes_prefer_channels_last)
            or tensors.is_channels_last(node.meta["val"])
        )
    if window.taps > MOST_TAPS:
        if any(axis.window > axis.stride == 1 for axis in window.axes):
            return False
        x.realize_hint()  # stores what reads several tensors
        return isinstance(getattr(x.data, "data", None), Pointwise)
    return True


def _tiles(window: Window, sizes: Sizes) -> bool:
    """Whether windows of few taps lie side by side and fill an input of spatial ``sizes``."""
    return window.taps <= MOST_TAPS and all(
        axis.window == axis.stride
        and axis.dilation == 1
        and axis.start_padding == axis.end_padding == 0
        and V.graph.sizevars.statically_known_multiple_of(size, axis.window)
        for axis, size in window.along(sizes)
    )


def _covered(x: TensorBox, sizes: Sizes, window: Window) -> list[int]:
    """The dimensions that the window covers where it leaves all others as they are; else none."""
    found, is_alone = [], x.get_dtype() in tensors.FLOAT_TYPES
    for dimension, (axis, size) in enumerate(window.along(sizes), 2):
        if axis.dilation == 1 and V.graph.sizevars.statically_known_equals(axis.window, size):
            found.append(dimension)
        else:
            is_alone = is_alone and axis.window == axis.stride == 1
        is_alone = is_alone and axis.start_padding == axis.end_padding == 0
    return found if is_alone else []


def _taps_of(x: TensorBox, outputs: Sizes, window: Window, fill: float) -> Function:
    """A function that reads the taps of a window of ``x``, and ``fill`` for those outside the
    input.
    """
    x.realize_hint()
    if any(axis.window > axis.stride for axis in window.axes):
        x.mark_reuse(window.taps)  # expensive input is not computed again for each window
    load, sizes, every = x.make_loader(), x.get_size(), [range(axis.window) for axis in window.axes]

    def tap_of(index: Index, taps: Sizes) -> Any:
        place, conditions = list(index[:2]), []
        for dimension, (axis, tap) in enumerate(window.along(taps), 2):
            offset, size = tap * axis.dilation - axis.start_padding, sizes[dimension]
            place.append(index[dimension] * axis.stride + offset)
            at = ops.index_expr(place[-1], torch.int64)
            if offset < 0:
                conditions.append(ops.ge(at, ops.constant(0, torch.int64)))
            last = (outputs[dimension] - 1) * axis.stride + offset
            if not V.graph.sizevars.statically_known_lt(last, size):
                conditions.append(ops.lt(at, ops.index_expr(size, torch.int64)))
        read = functools.partial(load, place)
        return (
            ops.masked(functools.reduce(ops.and_, conditions), read, fill) if conditions else read()
        )

    return lambda index: [tap_of(index, taps) for taps in itertools.product(*every)]


def _winner(taps: Index) -> Any:
    """The number of the first greatest tap or of the first NaN."""
    best, winner = taps[0], ops.constant(0, torch.int32)
    for number, tap in enumerate(taps[1:], 1):
        wins = ops.and_(ops.logical_not(ops.le(tap, best)), ops.eq(best, best))
        winner = ops.where(wins, ops.constant(number, torch.int32), winner)
        best = ops.where(wins, tap, best)
    return winner


def _max_pooling(input: TensorBox, window: Window) -> Any:
    """Maxima and, where the operator returns them, the numbers of their taps."""
    sizes, (outputs, dtype), *numbers = input.get_size()[2:], *_results()
    covered = _covered(input, sizes, window)
    if covered:
        values = reduce_amax(input, covered, True)
        taps = [reduce_argmax(input, covered, True) for _ in numbers]
    else:
        if not _is_faster(input, outputs, window) or (numbers and not _tiles(window, sizes)):
            return None
        taps_of = _taps_of(input, outputs, window, -math.inf)
        greatest = lambda index: functools.reduce(ops.maximum, taps_of(index))  # noqa: E731
        values = _pointwise(input, outputs, dtype, greatest)
        winner = lambda index: _winner(taps_of(index))  # noqa: E731
        taps = [_pointwise(input, outputs, kept, winner) for _, kept in numbers]
    return (values, to_dtype(taps[0], numbers[0][1])) if numbers else values


def _gradient(
    arriving: TensorBox, sizes: Sizes, window: Window, value: Function
) -> TensorBox | None:
    """The gradient where one window reads an element: ``value`` of the window's index and of the
    number of the tap that reads it (rule M6).
    """
    covered = _covered(arriving, sizes, window)
    is_faster = covered or _is_faster(arriving, arriving.get_size(), window)
    if not is_faster or not (covered or _tiles(window, sizes)):
        return None
    arriving.realize_hint()

    def of_one_window(index: Index) -> Any:
        place, number = list(index[:2]), sympy.S.Zero
        for dimension, axis in enumerate(window.axes, 2):
            at, is_covered = index[dimension], dimension in covered
            place.append(sympy.S.Zero if is_covered else FloorDiv(at, axis.stride))
            tap = at if is_covered else ModularIndexing(at, 1, axis.stride)
            number = number * axis.window + tap
        return value(place, number)

    sizes, dtype = _results()[0]
    return _pointwise(arriving, sizes, dtype, of_one_window)


def _max_pooling_grad_from_taps(
    arriving: TensorBox,
    taps: TensorBox,
    spatial_sizes: Sizes,
    window: Window,
    channels_last: bool,  # noqa: ARG001
) -> TensorBox | None:
    load, winner_of = arriving.make_loader(), taps.make_loader()

    def won(place: Index, number: Any) -> Any:
        wins = ops.eq(
            ops.to_dtype(winner_of(place), torch.int32), ops.index_expr(number, torch.int32)
        )
        return ops.where(wins, load(place), ops.constant(0.0, arriving.get_dtype()))

    return _gradient(arriving, spatial_sizes, window, won)


def _counted(index: Index, sizes: Sizes, window: Window, include_padding: bool) -> Any:
    """The number of taps that a window counts (rules A1 and A2)."""
    count = sympy.S.One
    for axis, output, size in zip(window.axes, index[2:], sizes, strict=True):
        first = output * axis.stride - axis.start_padding
        end = size + axis.end_padding if include_padding else size
        begin = first if include_padding else sympy.Max(first, 0)
        count *= sympy.Min(first + axis.window, end) - begin
    return count


def _average_pooling(
    input: TensorBox, window: Window, include_padding: bool, divisor_override: Any
) -> TensorBox | None:
    sizes, (outputs, dtype) = input.get_size()[2:], _results()[0]
    wide, is_on_cpu = tensors.sum_type(dtype), input.get_device_or_error().type == "cpu"
    covered = _covered(input, sizes, window)
    if covered and divisor_override is None and not (is_on_cpu and wide is torch.float64):
        # On a CPU Inductor adds elements one after another, which float64 alone does exactly enough
        # (rule E6). A GPU adds as a tree.
        exact = torch.float64 if is_on_cpu else None
        return to_dtype(mean(input, covered, True, dtype=exact), dtype)
    if not _is_faster(input, outputs, window) or any(axis.dilation > 1 for axis in window.axes):
        return None
    taps_of, tiles = _taps_of(input, outputs, window, 0.0), _tiles(window, sizes)
    counts_all = tiles or (include_padding and not window.axes[0].ceil_mode)

    def average(index: Index) -> Any:
        total = _tree([ops.to_dtype(tap, wide) for tap in taps_of(index)])
        count = window.taps if counts_all else _counted(index, sizes, window, include_padding)
        return ops.truediv(total, _number(divisor_override or count, wide))

    return _pointwise(input, outputs, dtype, average)


def _average_pooling_grad(
    arriving: TensorBox,
    spatial_sizes: Sizes,
    window: Window,
    include_padding: bool,
    divisor_override: Any,
) -> TensorBox | None:
    load, wide = arriving.make_loader(), tensors.sum_type(arriving.get_dtype())
    count = divisor_override or window.taps

    def share(place: Index, _number_of_tap: Any) -> Any:
        return ops.truediv(ops.to_dtype(load(place), wide), _number(count, wide))

    expression = _gradient(arriving, spatial_sizes, window, share)
    are_ones = all(axis.stride == axis.dilation == 1 for axis in window.axes)
    is_on_cpu = arriving.get_device_or_error().type == "cpu"
    if expression is None and is_on_cpu and are_ones and (include_padding or divisor_override):
        # An element gets an average of the gradients around it. For an H200 the operator is
        # predicted to take as long for float32, and up to 1.2 times less for halves.
        around = [
            axis._replace(
                start_padding=axis.window - 1 - axis.start_padding,
                end_padding=axis.window - 1 - axis.end_padding,
            )
            for axis in window.axes
        ]
        return _average_pooling(arriving, Window(tuple(around)), True, count)
    return expression


def _register(operation: OpOverload, lowering: Function) -> None:
    """Register a lowering. If it returns None, or lowerings are turned off, the operator is
    called.
    """
    call = fallback_handler(operation, add_to_fallback_set=False)
    names = [argument.name for argument in operation._schema.arguments]
    at = names.index("window_size")

    def lowered(*given: Any, **revision: Any) -> Any:
        # The revision tells graphs apart and computes nothing.
        *lists, ceil_mode = given[at : at + 6]
        window = Window(tuple(map(Axis, *lists, itertools.repeat(ceil_mode))))
        if is_lowering():
            expression = lowering(*given[:at], window, *given[at + 6 :])
            if expression is not None:
                return expression
        if "channels_last" in names:
            # Inductor may have chosen another layout than the traced program had.
            strides = given[1].maybe_get_stride()
            given = (*given[:-1], strides is not None and strides[1] == 1)
        return call(*given, **revision)

    register_lowering(operation, type_promotion_kind=None)(lowered)


_register(torch.ops.dmlpool.average_pooling.default, _average_pooling)
_register(torch.ops.dmlpool.average_pooling_grad.default, _average_pooling_grad)
_register(torch.ops.dmlpool.max_pooling.default, _max_pooling)
_register(torch.ops.dmlpool.max_pooling_with_taps.default, _max_pooling)
_register(torch.ops.dmlpool.max_pooling_grad_from_taps.default, _max_pooling_grad_from_taps)
