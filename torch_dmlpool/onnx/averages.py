"""Averages, p-norms and quantized averages: AveragePool, LpPool, or exact arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch_dmlpool.onnx.lowering import Emitter, Pool, bins, elements, reducible, shaped, spatial_sizes

_CHANNELS = 1
_MOST_EXACT_TAPS = 2**22 // 255
"""With so many taps a sum still survives its average in float32, the product with the taps, and rounding."""


def average_pooling(emit: Emitter, input: Any, *arguments: Any) -> Any:
    *window_arguments, include_padding, divisor = arguments
    wide, dtype = emit.widened(input)
    return emit.cast(averages(emit, input, wide, dtype, window_arguments, include_padding, divisor), dtype, input.dtype)


def averages(
    emit: Emitter,
    input: Any,
    wide: Any,
    dtype: Any,
    arguments: Sequence[Any],
    include_padding: bool,
    divisor: Any,
    apart: bool = False,
) -> Any:
    """Averages of ``wide``, which is ``input`` as real numbers of type ``dtype``.

    ``apart`` is for quantized averages that ONNX Runtime has no kernel for: of an AveragePool alone between
    quantization nodes it makes a QLinearAveragePool all the same, and then refuses it.
    """
    op = emit.op
    if divisor is not None and not isinstance(divisor, int):
        raise ValueError("divisor_override depends on dynamic sizes, but must be a number for ONNX")
    reduced = reducible(input, arguments) if divisor is None else [False]
    if all(reduced) and not apart:
        return op.GlobalAveragePool(wide)
    if any(reduced):
        wide = op.ReduceMean(wide, [axis for axis, done in enumerate(reduced, 2) if done], keepdims=1)
        if all(reduced):
            return wide
    pool = Pool(emit, input, arguments, reduced, wide)
    if divisor is not None:
        return pool.sums(wide, dtype) / emit.constant(float(divisor), dtype)
    counts_padding = pool.counts_padding(include_padding)
    if not apart:
        if counts_padding and not any(pool.overhang):
            return pool.shares(wide, dtype)
        if not counts_padding and not pool.is_padded and not pool.may_be_empty:
            return pool.run("AveragePool", wide, 0.0, dtype)
    return pool.sums(wide, dtype) / pool.counts(counts_padding, dtype)


def lp_pooling(emit: Emitter, input: Any, *arguments: Any) -> Any:
    *window_arguments, p = arguments
    op = emit.op
    wide, dtype = emit.widened(input)
    reduced = reducible(input, window_arguments)
    if None in spatial_sizes(input) and all(reduced) and float(p).is_integer():
        return emit.cast(op.GlobalLpPool(wide, p=int(p)), dtype, input.dtype)
    pool = Pool(emit, input, window_arguments)
    empty = pool.empty_windows()
    if p == math.inf:
        norms = pool.run("MaxPool", op.Abs(wide), 0.0, dtype)[0]
    elif float(p).is_integer():
        norms = pool.run("LpPool", wide, 0.0, dtype, p=int(p))
    else:
        sums = pool.sums(op.Pow(op.Abs(wide), emit.constant(p, dtype)), dtype)
        norms = op.Pow(sums, emit.constant(1 / p, dtype))
    if empty is not None:
        norms = op.Where(empty, emit.constant(0.0, dtype), norms)
    return emit.cast(norms, dtype, input.dtype)


def adaptive_average_pooling(emit: Emitter, input: Any, output_sizes: Sequence[Any]) -> Any:
    wide, dtype = emit.widened(input)
    positions, counts = bins(input, output_sizes)
    inside = [[place < count for place in range(len(positions[0]))] for count in counts]
    mask, zero = emit.constant(inside, emit.ir.DataType.BOOL), emit.constant(0.0, dtype)
    sums = emit.op.ReduceSum(emit.op.Where(mask, elements(emit, wide, positions), zero), [-1], keepdims=0)
    averages = sums / emit.constant([float(count) for count in counts], dtype)
    return emit.cast(shaped(emit, averages, output_sizes), dtype, input.dtype)


def quantized_linear_average_pooling(
    emit: Emitter,
    input: Any,
    input_scale: Any,
    input_zero_point: Any,
    output_scale: Any,
    output_zero_point: Any,
    *arguments: Any,
) -> Any:
    *window_arguments, include_padding, output_dtype = arguments
    sides = (input_scale, input_zero_point, input.dtype), (output_scale, output_zero_point, output_dtype)
    if emit.exact:
        return _exactly(emit, input, sides, window_arguments, include_padding)
    scalars = all(_is_scalar(scale) and _is_scalar(zero_point) for scale, zero_point, _ in sides)
    op, dtype = emit.op, emit.ir.DataType.FLOAT
    scale, zero_point = _parameters(emit, input, *sides[0])
    real = op.DequantizeLinear(input, scale, zero_point, axis=_CHANNELS)
    apart = not scalars or input.dtype != output_dtype or any(dilation != 1 for dilation in window_arguments[4])
    pooled = averages(emit, input, real, dtype, window_arguments, include_padding, None, apart)
    scale, zero_point = _parameters(emit, input, *sides[1])
    return op.QuantizeLinear(pooled, scale, zero_point, axis=_CHANNELS)


def _is_scalar(parameter: Any) -> bool:
    return parameter is None or parameter.shape[0] == 1


def _parameters(emit: Emitter, input: Any, scale: Any, zero_point: Any, dtype: Any) -> tuple[Any, Any]:
    """A scale and a zero point of one shape: scalars, or one entry per channel each."""
    op = emit.op
    alone = [_is_scalar(scale), _is_scalar(zero_point)]
    pair = [scale, emit.constant([0], dtype) if zero_point is None else zero_point]
    if all(alone):
        scale, zero_point = (op.Squeeze(parameter) for parameter in pair)
        return scale, zero_point
    channels = op.Shape(input, start=_CHANNELS, end=_CHANNELS + 1)
    scale, zero_point = (op.Expand(one, channels) if single else one for one, single in zip(pair, alone, strict=True))
    return scale, zero_point


def _exactly(emit: Emitter, input: Any, sides: Sequence[Any], arguments: Sequence[Any], include_padding: bool) -> Any:
    """Rules Q1 and Q6: integer sums, one division in float64, halves to even before the zero point is added."""
    op, types = emit.op, emit.ir.DataType
    (input_scale, input_zero_point, _), (output_scale, output_zero_point, output_dtype) = sides
    rank = len(input.shape) - 2

    def spread(parameter: Any, dtype: Any) -> Any:
        return op.Cast(op.Reshape(parameter, [1, -1, *[1] * rank]), to=dtype)

    real = op.Cast(input, to=types.FLOAT)
    if input_zero_point is not None:
        real = real - spread(input_zero_point, types.FLOAT)
    if all(reducible(input, arguments)):
        sums = op.ReduceSum(op.Cast(real, to=types.DOUBLE), list(range(2, rank + 2)), keepdims=1)
        counts = op.Cast(op.ReduceProd(op.Shape(input, start=2), keepdims=0), to=types.DOUBLE)
    else:
        pool = Pool(emit, input, arguments)
        taps = pool.window.taps
        if taps > _MOST_EXACT_TAPS:
            raise ValueError(
                f"exact quantized averages can be written for windows of up to {_MOST_EXACT_TAPS} taps or of all of "
                f"the input, got {taps} taps: translations(exact=False) averages in float32"
            )
        sums = op.Cast(op.Round(pool.sums(real, types.FLOAT)), to=types.DOUBLE)
        counts = pool.counts(pool.counts_padding(include_padding), types.DOUBLE)
    rounded = op.Round(sums * spread(input_scale, types.DOUBLE) / (counts * spread(output_scale, types.DOUBLE)))
    if output_zero_point is not None:
        rounded = rounded + spread(output_zero_point, types.DOUBLE)
    least, most = (emit.constant(float(bound), types.DOUBLE) for bound in (output_dtype.min, output_dtype.max))
    return op.Cast(op.Clip(rounded, least, most), to=output_dtype)
