"""Maxima and their indices: MaxPool."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from torch_dmlpool.onnx.lowering import Emitter, Pool, bins, elements, reducible, shaped, spatial_sizes

_TAPS = ("torch_dmlpool", "Taps")
"""A node that no runtime has: it holds the indices that taps stand for until an operator asks for them."""


def max_pooling(emit: Emitter, input: Any, *arguments: Any) -> Any:
    if _is_whole(input, arguments):
        if input.dtype in float_types(emit) and not emit.exact:
            wide, dtype = emit.widened(input)
            return emit.cast(emit.op.GlobalMaxPool(wide), dtype, input.dtype)
        return _whole_maxima(emit, input)[0]
    return _maxima(emit, input, Pool(emit, input, arguments), False)[0]


def _is_whole(input: Any, arguments: Sequence[Any]) -> bool:
    """Whether the window is the whole plane, and longer than can be known before the model runs."""
    return None in spatial_sizes(input) and all(reducible(input, arguments))


def _whole_maxima(emit: Emitter, input: Any) -> tuple[Any, Any]:
    """Values, and indices into the whole tensor."""
    op, integers = emit.op, emit.integers
    dtype = reduced_type(emit, input.dtype)
    planes = op.Reshape(emit.cast(input, input.dtype, dtype), integers([0, 0, -1]))
    values, positions = greatest(emit, planes, dtype, input.dtype in float_types(emit))
    shape = op.Shape(values)
    # The number of each plane, times its size.
    numbers = op.Range(integers(0), op.Size(values), integers(1))
    plane = op.Squeeze(op.Shape(planes, start=2))
    indices = op.Add(positions, op.Reshape(op.Mul(numbers, plane), shape, allowzero=1))
    ones = integers([axis + 2 for axis in range(len(input.shape) - 2)])
    return emit.cast(op.Unsqueeze(values, ones), dtype, input.dtype), op.Unsqueeze(indices, ones)


def greatest(emit: Emitter, elements: Any, dtype: Any, is_float: bool) -> tuple[Any, Any]:
    """The greatest along the last axis, and where the first of them is."""
    op, last = emit.op, emit.integers([-1])
    if not (emit.exact and is_float):
        return op.ReduceMax(elements, last, keepdims=0), op.ArgMax(elements, axis=-1, keepdims=0)
    nan = op.IsNaN(elements)
    elements = op.Where(nan, emit.constant(-math.inf, dtype), elements)
    is_nan = op.Cast(nan, to=emit.ir.DataType.FLOAT)
    has_nan = op.Greater(op.ReduceMax(is_nan, last, keepdims=0), emit.constant(0.0, emit.ir.DataType.FLOAT))
    values = op.Where(has_nan, emit.constant(math.nan, dtype), op.ReduceMax(elements, last, keepdims=0))
    return values, op.Where(has_nan, op.ArgMax(is_nan, axis=-1, keepdims=0), op.ArgMax(elements, axis=-1, keepdims=0))


def reduced_type(emit: Emitter, dtype: Any) -> Any:
    """The type in which ReduceMax and ArgMax take maxima of ``dtype``."""
    types = emit.ir.DataType
    return types.FLOAT if dtype == types.FLOAT16 else pooled_type(emit, dtype, True)


def float_types(emit: Emitter) -> tuple[Any, ...]:
    types = emit.ir.DataType
    return types.FLOAT, types.DOUBLE, types.FLOAT16, types.BFLOAT16


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


def _lowest(emit: Emitter, dtype: Any) -> float | int:
    return -math.inf if dtype in float_types(emit) else int(dtype.min)


def _maxima(emit: Emitter, input: Any, pool: Pool, with_indices: bool) -> tuple[Any, Any]:
    """Values of the input's type and indices into the whole tensor; both right in empty windows."""
    op, types = emit.op, emit.ir.DataType
    dtype = pooled_type(emit, input.dtype, with_indices)
    lowest = _lowest(emit, input.dtype)
    tensor = emit.cast(input, input.dtype, dtype)
    # Padding that is written out must not be taken for an element: integers are above its -inf, floats may be alike.
    if input.dtype in float_types(emit) and (emit.exact or (with_indices and pool.is_padded)):
        values, indices = _exact_maxima(emit, tensor, dtype, pool)
    else:
        fill = -math.inf if dtype in float_types(emit) else lowest
        values, indices = pool.run("MaxPool", tensor, fill, dtype)
    empty = pool.empty_windows()
    if empty is not None:
        values = op.Where(empty, emit.constant(lowest, dtype), values)
    values = emit.cast(values, dtype, input.dtype)
    if not with_indices:
        return values, None
    if pool.is_padded:
        indices = _unpadded(emit, indices, pool)
    if empty is not None:
        indices = op.Where(empty, emit.constant(-1, types.INT64), indices)
    return values, indices


def _exact_maxima(emit: Emitter, tensor: Any, dtype: Any, pool: Pool) -> tuple[Any, Any]:
    """Maxima where the first NaN wins and -inf is a number like others (rules M2 and M3), whatever the runtime does."""
    op, float32 = emit.op, emit.ir.DataType.FLOAT
    lowest, zero = emit.constant(-math.inf, dtype), emit.constant(0.0, float32)

    def mask(condition: Any) -> tuple[Any, Any]:
        pooled, indices = pool.run("MaxPool", op.Cast(condition, to=float32), 0.0, float32)
        return op.Greater(pooled, zero), indices

    nan = op.IsNaN(tensor)
    values, indices = pool.run("MaxPool", op.Where(nan, lowest, tensor), -math.inf, dtype)
    has_number, _ = mask(op.Greater(tensor, lowest))
    has_nan, first_nan = mask(nan)
    _, first = mask(op.Equal(nan, nan))
    values = op.Where(has_nan, emit.constant(math.nan, dtype), op.Where(has_number, values, lowest))
    return values, op.Where(has_nan, first_nan, op.Where(has_number, indices, first))


def _plane_sizes(emit: Emitter, input: Any) -> list[Any]:
    """Spatial sizes as scalars."""
    op = emit.op
    return [
        op.Squeeze(op.Shape(input, start=axis, end=axis + 1)) if size is None else emit.integers(size)
        for axis, size in enumerate(spatial_sizes(input), 2)
    ]


def _unpadded(emit: Emitter, indices: Any, pool: Pool) -> Any:
    """Indices into the padded tensor as indices into the input."""
    op = emit.op
    sizes = _plane_sizes(emit, pool.input)
    rest, places = indices, []
    for size, start, end in zip(reversed(sizes), reversed(pool.start), reversed(pool.end), strict=True):
        padded = op.Add(size, emit.scalar(emit.sum(start, end)))
        places.append(op.Sub(op.Mod(rest, padded), emit.scalar(start)))
        rest = op.Div(rest, padded)
    for size, place in zip(sizes, reversed(places), strict=True):
        rest = op.Add(op.Mul(rest, size), place)
    return rest


def _numbered(emit: Emitter, indices: Any, input: Any, index_dtype: Any, per_plane: bool) -> Any:
    """Indices into the whole tensor in the form that is asked for."""
    op, types = emit.op, emit.ir.DataType
    if per_plane:
        plane = functools.reduce(op.Mul, _plane_sizes(emit, input))
        zero = emit.constant(0, types.INT64)
        indices = op.Where(op.Less(indices, zero), indices, op.Mod(indices, plane))
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
    values, first = greatest(emit, chosen_from, dtype, input.dtype in float_types(emit))
    outputs, most = positions.shape
    rows = emit.integers((torch.arange(outputs, dtype=torch.int64, device="cpu") * most).numpy())
    chosen = op.Gather(emit.integers(positions.flatten().numpy()), op.Add(first, rows))
    narrow = types.INT32 if math.prod(spatial_sizes(input)) < 2**31 else types.INT64
    return (
        emit.cast(shaped(emit, values, output_sizes), dtype, input.dtype),
        emit.cast(shaped(emit, chosen, output_sizes), types.INT64, narrow),
    )
