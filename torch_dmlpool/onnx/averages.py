"""Averages and p-norms: AveragePool and LpPool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch_dmlpool.onnx.lowering import Emitter, Pool, reducible, spatial_sizes


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

    ``apart`` is for quantized averages that QLinearAveragePool cannot say: of an AveragePool alone between quantization
    nodes ONNX Runtime makes one all the same, and then refuses it.
    """
    op = emit.op
    if divisor is not None and not isinstance(divisor, int):
        raise ValueError("divisor_override depends on dynamic sizes, but must be a number for ONNX")
    reduced = reducible(input, arguments) if divisor is None else [False]
    if all(reduced) and not apart:
        return op.GlobalAveragePool(wide)
    if any(reduced):
        wide = op.ReduceMean(wide, emit.integers([axis + 2 for axis, done in enumerate(reduced) if done]), keepdims=1)
        if all(reduced):
            return wide
    pool = Pool(emit, input, arguments, reduced, wide)
    if divisor is not None:
        sums = op.Mul(pool.sums(wide, dtype), emit.constant(float(pool.window.taps), dtype))
        return op.Div(sums, emit.constant(float(divisor), dtype))
    counts_padding = pool.counts_padding(include_padding)
    if not apart:
        if counts_padding and not any(pool.overhang):
            return pool.sums(wide, dtype)
        if not counts_padding and not pool.is_padded and not pool.may_be_empty:
            return pool.run("AveragePool", wide, 0.0, dtype)
    sums = op.Mul(pool.sums(wide, dtype), emit.constant(float(pool.window.taps), dtype))
    return op.Div(sums, pool.counts(counts_padding, dtype))


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
        powers = pool.sums(op.Pow(op.Abs(wide), emit.constant(p, dtype)), dtype)
        sums = op.Mul(powers, emit.constant(float(pool.window.taps), dtype))
        norms = op.Pow(sums, emit.constant(1 / p, dtype))
    if empty is not None:
        norms = op.Where(empty, emit.constant(0.0, dtype), norms)
    return emit.cast(norms, dtype, input.dtype)
