"""Maxima and their indices: MaxPool."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

from torch_dmlpool.onnx.lowering import Emitter, Pool, bins, elements, reducible, shaped, spatial_sizes

_TAPS = ("torch_dmlpool", "Taps")
"""A node that no runtime has: it holds the indices that taps stand for until an operator asks for them."""


def max_pooling(emit: Emitter, input: Any, *arguments: Any) -> Any:
    if _is_whole(input, arguments):
        if input.dtype.is_floating_point() and not emit.exact:
            wide, dtype = emit.widened(input)
            return emit.cast(emit.op.GlobalMaxPool(wide), dtype, input.dtype)
        return _whole_maxima(emit, input)[0]
    return _maxima(emit, input, Pool(emit, input, arguments), False)[0]


def _is_whole(input: Any, arguments: Sequence[Any]) -> bool:
    """Whether the window is the whole plane, and longer than can be known before the model runs."""
    return None in spatial_sizes(input) and all(reducible(input, arguments))


def _whole_maxima(emit: Emitter, input: Any) -> tuple[Any, Any]:
    """Values, and indices into the whole tensor."""
    op, dtype = emit.op, reduced_type(emit, input.dtype)
    planes = op.Reshape(emit.cast(input, input.dtype, dtype), [0, 0, -1])
    values, positions = greatest(emit, planes, dtype, input.dtype.is_floating_point())
    # The number of each plane, times its size.
    before = op.Range(0, op.Size(values), 1) * op.Squeeze(op.Shape(planes, start=2))
    indices = positions + op.Reshape(before, op.Shape(values), allowzero=1)
    ones = list(range(2, len(input.shape)))
    return emit.cast(op.Unsqueeze(values, ones), dtype, input.dtype), op.Unsqueeze(indices, ones)


def greatest(emit: Emitter, elements: Any, dtype: Any, is_float: bool) -> tuple[Any, Any]:
    """The greatest along the last axis, and where the first of them is."""
    op, last = emit.op, [-1]
    if not (emit.exact and is_float):
        return op.ReduceMax(elements, last, keepdims=0), op.ArgMax(elements, axis=-1, keepdims=0)
    nan = op.IsNaN(elements)
    elements = op.Where(nan, emit.constant(-math.inf, dtype), elements)
    is_nan = op.Cast(nan, to=emit.ir.DataType.FLOAT)
    has_nan = op.ReduceMax(is_nan, last, keepdims=0) > 0.0
    values = op.Where(has_nan, emit.constant(math.nan, dtype), op.ReduceMax(elements, last, keepdims=0))
    return values, op.Where(has_nan, op.ArgMax(is_nan, axis=-1, keepdims=0), op.ArgMax(elements, axis=-1, keepdims=0))


def reduced_type(emit: Emitter, dtype: Any) -> Any:
    """The type in which ReduceMax and ArgMax take maxima of ``dtype``."""
    types = emit.ir.DataType
    return types.FLOAT if dtype == types.FLOAT16 else pooled_type(emit, dtype, True)


def pooled_type(emit: Emitter, dtype: Any, with_indices: bool) -> Any:
    """The type in which maxima of ``dtype`` are taken: one that MaxPool has and that holds every number."""
    types = emit.ir.DataType
    if dtype in (types.FLOAT, types.DOUBLE, types.FLOAT16):
        return dtype
    if dtype in (types.INT8, types.UINT8):
        # Some runtimes number no element whose value is the type's lowest.
        return types.FLOAT if with_indices else dtype
    if dtype in (types.BFLOAT16, types.INT16, types.UINT16):
        return types.FLOAT
    if dtype in (types.INT32, types.UINT32):
        return types.DOUBLE
    raise TypeError(
        f"maxima of {dtype.name.lower()} cannot be written for ONNX, whose MaxPool has float types and 8-bit integers: "
        f"pool integers of up to 32 bits, or cast them to float64 before"
    )


def _maxima(emit: Emitter, input: Any, pool: Pool, with_indices: bool) -> tuple[Any, Any]:
    """Values of the input's type and indices into the whole tensor; both right in empty windows."""
    op, dtype = emit.op, pooled_type(emit, input.dtype, with_indices)
    is_float, tensor = input.dtype.is_floating_point(), emit.cast(input, input.dtype, dtype)
    lowest = -math.inf if is_float else int(input.dtype.min)
    # Padding that is written out must not be taken for an element: integers are above its -inf, floats may be alike.
    if is_float and (emit.exact or (with_indices and pool.is_padded)):
        values, indices = _exact_maxima(emit, tensor, dtype, pool)
    else:
        values, indices = pool.run("MaxPool", tensor, -math.inf if dtype.is_floating_point() else lowest, dtype)
    empty = pool.empty_windows()
    if empty is not None:
        values = op.Where(empty, emit.constant(lowest, dtype), values)
    values = emit.cast(values, dtype, input.dtype)
    if not with_indices:
        return values, None
    if pool.is_padded:
        indices = _unpadded(emit, indices, pool)
    if empty is not None:
        indices = op.Where(empty, -1, indices)
    return values, indices


def _exact_maxima(emit: Emitter, tensor: Any, dtype: Any, pool: Pool) -> tuple[Any, Any]:
    """Maxima where the first NaN wins and -inf is a number like others (rules M2 and M3), whatever the runtime does."""
    op, float32 = emit.op, emit.ir.DataType.FLOAT
    lowest = emit.constant(-math.inf, dtype)

    def mask(condition: Any) -> tuple[Any, Any]:
        pooled, indices = pool.run("MaxPool", op.Cast(condition, to=float32), 0.0, float32)
        return pooled > 0.0, indices

    nan = op.IsNaN(tensor)
    values, indices = pool.run("MaxPool", op.Where(nan, lowest, tensor), -math.inf, dtype)
    has_number, _ = mask(op.Greater(tensor, lowest))
    has_nan, first_nan = mask(nan)
    _, first = mask(op.Equal(nan, nan))
    values = op.Where(has_nan, emit.constant(math.nan, dtype), op.Where(has_number, values, lowest))
    return values, op.Where(has_nan, first_nan, op.Where(has_number, indices, first))


def _plane_sizes(emit: Emitter, input: Any) -> list[Any]:
    """Spatial sizes, known or computed."""
    op, sizes = emit.op, enumerate(spatial_sizes(input), 2)
    return [op.Squeeze(op.Shape(input, start=i, end=i + 1)) if size is None else size for i, size in sizes]


def _unpadded(emit: Emitter, indices: Any, pool: Pool) -> Any:
    """Indices into the padded tensor as indices into the input."""
    sizes = _plane_sizes(emit, pool.input)
    rest, places = indices, []
    for size, start, end in zip(reversed(sizes), reversed(pool.start), reversed(pool.end), strict=True):
        padded = size + (start + end)
        places.append(rest % padded - start)
        rest = emit.op.Div(rest, padded)
    for size, place in zip(sizes, reversed(places), strict=True):
        rest = rest * size + place
    return rest


def _numbered(emit: Emitter, indices: Any, input: Any, index_dtype: Any, per_plane: bool) -> Any:
    """Indices into the whole tensor in the form that is asked for."""
    op, types = emit.op, emit.ir.DataType
    if per_plane:
        plane = functools.reduce(operator.mul, _plane_sizes(emit, input))
        indices = op.Where(indices < 0, indices, indices % plane)
    return op.Cast(indices, to=index_dtype) if index_dtype != types.INT64 else op.Identity(indices)


def max_pooling_with_indices(emit: Emitter, input: Any, *arguments: Any) -> tuple[Any, Any]:
    *window_arguments, index_dtype, per_plane = arguments
    if _is_whole(input, window_arguments):
        values, indices = _whole_maxima(emit, input)
    else:
        values, indices = _maxima(emit, input, Pool(emit, input, window_arguments), True)
    return values, _numbered(emit, indices, input, index_dtype, per_plane)


def max_pooling_with_taps(emit: Emitter, input: Any, *arguments: Any) -> tuple[Any, Any]:
    values, indices = _maxima(emit, input, Pool(emit, input, arguments), True)
    node = emit.ir.Node(*_TAPS, [indices, input], version=1)
    emit.recorder.nodes.append(node)
    return values, node.outputs[0]


def max_pooling_indices(emit: Emitter, taps: Any, spatial_sizes: Sequence[Any], *arguments: Any) -> Any:  # noqa: ARG001
    *_, index_dtype, per_plane = arguments
    origin = taps.producer()
    if origin is None or (origin.domain, origin.op_type) != _TAPS:
        raise ValueError("taps can be written for ONNX only where they come straight from max_pooling_with_taps")
    indices, input = origin.inputs
    return _numbered(emit, indices, input, index_dtype, per_plane)


def adaptive_max_pooling(emit: Emitter, input: Any, output_sizes: Sequence[Any]) -> tuple[Any, Any]:
    """Maxima, and the positions of the first of them in their planes."""
    op, types = emit.op, emit.ir.DataType
    dtype = reduced_type(emit, input.dtype)
    positions, _ = bins(input, output_sizes)
    chosen_from = elements(emit, emit.cast(input, input.dtype, dtype), positions)
    values, first = greatest(emit, chosen_from, dtype, input.dtype.is_floating_point())
    rows = [row * len(positions[0]) for row in range(len(positions))]
    chosen = op.Gather(emit.constant([place for bin in positions for place in bin], types.INT64), first + rows)
    narrow = types.INT32 if math.prod(spatial_sizes(input)) < 2**31 else types.INT64
    return (
        emit.cast(shaped(emit, values, output_sizes), dtype, input.dtype),
        emit.cast(shaped(emit, chosen, output_sizes), types.INT64, narrow),
    )
