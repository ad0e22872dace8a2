"""Quantized averages: QLinearAveragePool, DequantizeLinear with QuantizeLinear, or exact arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_dmlpool.onnx.averages import averages
from torch_dmlpool.onnx.lowering import Emitter, Pool, reducible

_ONNX_RUNTIME = "com.microsoft"
_CHANNELS = 1
_MOST_EXACT_TAPS = 2**22 // 255
"""With so many taps a sum still survives its average in float32, the product with the taps, and rounding."""


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
    alike = scalars and input.dtype == output_dtype
    if alike and emit.contrib_operators:
        pool = _sayable(emit, input, window_arguments, include_padding)
        if pool is not None:
            return _qlinear(emit, input, sides, pool, include_padding)
    op, dtype = emit.op, emit.ir.DataType.FLOAT
    scale, zero_point = _parameters(emit, input, *sides[0])
    real = op.DequantizeLinear(input, scale, zero_point, axis=_CHANNELS)
    apart = not alike or any(dilation != 1 for dilation in window_arguments[4])
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


def _sayable(emit: Emitter, input: Any, arguments: Sequence[Any], include_padding: bool) -> Pool | None:
    """The window, if QLinearAveragePool can say it."""
    if any(reducible(input, arguments)) and not all(isinstance(entry, int) for entry in arguments[0]):
        return None
    pool = Pool(emit, input, arguments)
    divides_otherwise = pool.counts_padding(include_padding) and any(pool.overhang)
    if pool.is_dilated or pool.is_padded or any(pool.cut) or pool.may_be_empty or divides_otherwise:
        return None
    return pool


def _qlinear(emit: Emitter, input: Any, sides: Sequence[Any], pool: Pool, include_padding: bool) -> Any:
    parameters = [value for side in sides for value in _parameters(emit, input, *side)]
    return emit.custom(
        _ONNX_RUNTIME,
        "QLinearAveragePool",
        [input, *parameters],
        kernel_shape=[axis.window for axis in pool.window.axes],
        strides=[axis.stride for axis in pool.window.axes],
        pads=[*pool.start, *pool.end],
        count_include_pad=int(include_padding),
    )


def _exactly(emit: Emitter, input: Any, sides: Sequence[Any], arguments: Sequence[Any], include_padding: bool) -> Any:
    """Rules Q1 and Q6: integer sums, one division in float64, halves to even before the zero point is added."""
    op, types = emit.op, emit.ir.DataType
    (input_scale, input_zero_point, _), (output_scale, output_zero_point, output_dtype) = sides
    rank = len(input.shape) - 2

    def spread(parameter: Any, dtype: Any) -> Any:
        shaped = op.Reshape(parameter, emit.integers([1, -1, *[1] * rank]))
        return op.Cast(shaped, to=dtype)

    real = op.Cast(input, to=types.FLOAT)
    if input_zero_point is not None:
        real = op.Sub(real, spread(input_zero_point, types.FLOAT))
    reduced = reducible(input, arguments)
    if all(reduced):
        axes = emit.integers([axis + 2 for axis in range(rank)])
        sums = op.ReduceSum(op.Cast(real, to=types.DOUBLE), axes, keepdims=1)
        counts = op.Cast(op.ReduceProd(op.Shape(input, start=2), keepdims=0), to=types.DOUBLE)
    else:
        pool = Pool(emit, input, arguments)
        taps = pool.window.taps
        if taps > _MOST_EXACT_TAPS:
            raise ValueError(
                f"exact quantized averages can be written for windows of up to {_MOST_EXACT_TAPS} taps or of all of "
                f"the input, got {taps} taps: translations(exact=False) averages in float32"
            )
        shares = pool.sums(real, types.FLOAT)
        sums = op.Cast(op.Round(op.Mul(shares, emit.constant(float(taps), types.FLOAT))), to=types.DOUBLE)
        counts = pool.counts(pool.counts_padding(include_padding), types.DOUBLE)
    numerator = op.Mul(sums, spread(input_scale, types.DOUBLE))
    rounded = op.Round(op.Div(numerator, op.Mul(counts, spread(output_scale, types.DOUBLE))))
    if output_zero_point is not None:
        rounded = op.Add(rounded, spread(output_zero_point, types.DOUBLE))
    least, most = (emit.constant(float(bound), types.DOUBLE) for bound in (output_dtype.min, output_dtype.max))
    return op.Cast(op.Clip(rounded, least, most), to=output_dtype)
