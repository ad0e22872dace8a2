"""What each operator is written as: AveragePool, LpPool, MaxPool, or exact arithmetic."""

import itertools
from math import inf, nan, prod
from typing import Any

from torch_dmlpool.onnx.lowering import (
    Asked,
    Emitter,
    Entries,
    InputWindow,
    Pair,
    reducible,
    spatial_sizes,
)
from torch_dmlpool.window import Arguments, Function

_CHANNELS = 1
_MOST_EXACT_TAPS = 2**22 // 255
"""The most taps with which a sum of 8-bit integers is found exactly: by its average in float32,
multiplied by the taps and rounded."""


def average_pooling(
    emit: Emitter, input: Any, window: Asked, include_padding: bool, divisor: Any
) -> Any:
    wide, dtype = emit.widened(input)
    averages = _averages(emit, input, wide, dtype, window, include_padding, divisor)
    return emit.cast(averages, dtype, input.dtype)


def _averages(
    emit: Emitter,
    input: Any,
    wide: Any,
    dtype: Any,
    window: Asked,
    include_padding: bool,
    divisor: Any = None,
    apart: bool = False,
) -> Any:
    """Averages of ``wide``, which is ``input`` as real numbers of type ``dtype``.

    ``apart`` keeps a quantized average from being one AveragePool: between quantization nodes ONNX
    Runtime makes a QLinearAveragePool of that, even if it has no kernel for it and rejects it then.
    """
    reduced = reducible(input, window)
    axes = [axis for axis, done in enumerate(reduced, 2) if done]
    if divisor is not None:
        if not isinstance(divisor, int):
            raise ValueError(
                "divisor_override depends on dynamic sizes, but must be a number for ONNX"
            )
        sums = (
            emit.reduced("Sum", wide, axes, keepdims=1)
            if _is_dynamic_plane(input, window)
            else InputWindow(emit, input, window).sums(wide, dtype)
        )
        return sums / emit.constant(float(divisor), dtype)
    if all(reduced) and not apart:
        return emit.op.GlobalAveragePool(wide)
    if axes:
        wide = emit.reduced("Mean", wide, axes, keepdims=1)
        if all(reduced):
            return wide
    pool = InputWindow(emit, input, window, reduced, wide)
    counts_padding = pool.counts_padding(include_padding)
    if not apart:
        if counts_padding and not any(pool.overhang):
            return pool.shares(wide, dtype)
        if not counts_padding and not pool.is_padded and not pool.may_be_empty:
            return pool.run("AveragePool", wide, 0.0, dtype)
    return pool.sums(wide, dtype) / pool.counts(counts_padding, dtype)


def lp_pooling(emit: Emitter, input: Any, window: Asked, p: float) -> Any:
    op, is_dynamic_plane = emit.op, _is_dynamic_plane(input, window)
    wide, dtype = emit.widened(input)
    if p == inf and is_dynamic_plane:
        norms = op.GlobalMaxPool(op.Abs(wide))
    elif p == inf:
        greatest, _ = InputWindow(emit, input, window).run("MaxPool", op.Abs(wide), 0.0, dtype)
        # A runtime may give its lowest number for an empty window.
        norms = op.Max(greatest, emit.constant(0.0, dtype))
    elif float(p).is_integer() and not is_dynamic_plane:
        norms = InputWindow(emit, input, window).run("LpPool", wide, 0.0, dtype, p=int(p))
    else:
        powers = op.Pow(op.Abs(wide), emit.constant(p, dtype))
        sums = _averages(emit, input, powers, dtype, window, False, 1)
        norms = op.Pow(sums, emit.constant(1 / p, dtype))
    return emit.cast(norms, dtype, input.dtype)


def quantized_linear_average_pooling(
    emit: Emitter,
    input: Any,
    input_scale: Any,
    input_zero_point: Any,
    output_scale: Any,
    output_zero_point: Any,
    window: Asked,
    include_padding: bool,
    output_dtype: Any,
) -> Any:
    before = _side(emit, input_scale, input_zero_point, input.dtype)
    after = _side(emit, output_scale, output_zero_point, output_dtype)
    if emit.exact:
        return _exactly(emit, input, before, after, window, include_padding)
    op = emit.op
    scale, zero_point = _parameters(emit, input, *before)
    real = op.DequantizeLinear(input, scale, zero_point, axis=_CHANNELS)
    apart = (
        not all(map(_is_scalar, (*before[:2], *after[:2])))
        or input.dtype != output_dtype
        or any(dilation != 1 for dilation in window.dilations)
    )
    pooled = _averages(emit, input, real, emit.types.FLOAT, window, include_padding, apart=apart)
    scale, zero_point = _parameters(emit, input, *after)
    return op.QuantizeLinear(pooled, scale, zero_point, axis=_CHANNELS)


quantized_linear_average_pooling_of_numbers = quantized_linear_average_pooling


def _side(emit: Emitter, scale: Any, zero_point: Any, dtype: Any) -> Arguments:
    """How the input or the output is quantized, to ``dtype``; numbers become constants."""
    if isinstance(scale, float):
        scale = emit.constant([scale], emit.types.FLOAT)
        zero_point = emit.constant([zero_point], dtype)
    return scale, zero_point, dtype


def _is_scalar(parameter: Any) -> bool:
    """Whether a scale or zero point has one entry for all channels."""
    return parameter is None or parameter.shape is None or parameter.shape[0] == 1


def _parameters(emit: Emitter, input: Any, scale: Any, zero_point: Any, dtype: Any) -> Arguments:
    """A scale and a zero point of equal shapes: two scalars, or two vectors of one entry per
    channel.
    """
    op = emit.op
    pair = scale, emit.constant([0], dtype) if zero_point is None else zero_point
    if all(map(_is_scalar, pair)):
        return tuple(map(op.Squeeze, pair))
    channels = op.Shape(input, start=_CHANNELS, end=_CHANNELS + 1)
    return tuple(op.Expand(each, channels) if _is_scalar(each) else each for each in pair)


def _exactly(
    emit: Emitter, input: Any, before: Any, after: Any, window: Asked, include_padding: bool
) -> Any:
    """Rules Q1 and Q6: integer sums, one division in float64, halves to even before the zero point
    is added.
    """
    op, types = emit.op, emit.types
    (input_scale, input_zero_point, _), (output_scale, output_zero_point, output_dtype) = (
        before,
        after,
    )
    rank = len(input.shape) - 2

    def spread(parameter: Any, dtype: Any) -> Any:
        return op.Cast(op.Reshape(parameter, [1, -1, *[1] * rank]), to=dtype)

    real = op.Cast(input, to=types.FLOAT)
    if input_zero_point is not None:
        real = real - spread(input_zero_point, types.FLOAT)
    if all(reducible(input, window)):
        axes = list(range(2, rank + 2))
        sums = emit.reduced("Sum", op.Cast(real, to=types.DOUBLE), axes, keepdims=1)
        counts = op.Cast(emit.reduced("Prod", op.Shape(input, start=2)), to=types.DOUBLE)
    else:
        pool = InputWindow(emit, input, window)
        taps = pool.window.taps
        if taps > _MOST_EXACT_TAPS:
            raise ValueError(
                f"exact quantized averages can be written for windows of up to {_MOST_EXACT_TAPS} "
                f"taps or of all of the input, got {taps} taps: translations(exact=False) averages "
                "in float32"
            )
        sums = op.Cast(op.Round(pool.sums(real, types.FLOAT)), to=types.DOUBLE)
        counts = pool.counts(pool.counts_padding(include_padding), types.DOUBLE)
    rounded = op.Round(
        sums * spread(input_scale, types.DOUBLE) / (counts * spread(output_scale, types.DOUBLE))
    )
    if output_zero_point is not None:
        rounded = rounded + spread(output_zero_point, types.DOUBLE)
    least, most = (
        emit.constant(float(bound), types.DOUBLE) for bound in (output_dtype.min, output_dtype.max)
    )
    return op.Cast(op.Clip(rounded, least, most), to=output_dtype)


def max_pooling(emit: Emitter, input: Any, window: Asked) -> Any:
    if _is_dynamic_plane(input, window) and input.dtype.is_floating_point() and not emit.exact:
        wide, dtype = emit.widened(input)
        return emit.cast(emit.op.GlobalMaxPool(wide), dtype, input.dtype)
    return _maxima(emit, input, window, False)[0]


def _is_dynamic_plane(input: Any, window: Asked) -> bool:
    """Whether the window is a whole plane whose size is known only when the model runs."""
    return None in spatial_sizes(input) and all(reducible(input, window))


def _whole_maxima(emit: Emitter, input: Any) -> Pair:
    """Maxima of whole planes, and their indices into the whole tensor."""
    op, ones = emit.op, list(range(2, len(input.shape)))
    values, positions = _greatest(emit, input, lambda planes: op.Reshape(planes, [0, 0, -1]))
    indices = positions + _first_indices(emit, input, prod(_plane_sizes(emit, input)))
    return op.Unsqueeze(values, ones), op.Unsqueeze(indices, ones)


def _first_indices(emit: Emitter, input: Any, plane: Any) -> Any:
    """The index of the first element of each plane, for each sample and channel."""
    planes = emit.op.Shape(input, start=0, end=2)
    first = emit.op.Range(0, emit.reduced("Prod", planes), 1) * plane
    return emit.op.Reshape(first, planes, allowzero=1)


def _greatest(emit: Emitter, input: Any, arrange: Function) -> Pair:
    """The greatest of what ``arrange`` puts along the last axis, and where the first of them is."""
    op, last, dtype = emit.op, [-1], _pooled_type(emit, input.dtype, True)
    elements, is_float = (
        arrange(emit.cast(input, input.dtype, dtype)),
        input.dtype.is_floating_point(),
    )
    if emit.exact and is_float:
        nans = op.IsNaN(elements)
        elements = op.Where(nans, emit.constant(-inf, dtype), elements)
        is_nan = op.Cast(nans, to=emit.types.FLOAT)
        has_nan = emit.reduced("Max", is_nan, last) > 0.0
    values, first = emit.reduced("Max", elements, last), op.ArgMax(elements, axis=-1, keepdims=0)
    if emit.exact and is_float:
        values = op.Where(has_nan, emit.constant(nan, dtype), values)
        first = op.Where(has_nan, op.ArgMax(is_nan, axis=-1, keepdims=0), first)
    return emit.cast(values, dtype, input.dtype), first


def _pooled_type(emit: Emitter, dtype: Any, more_nodes: bool) -> Any:
    """The type in which maxima of ``dtype`` are taken: the nodes take it, and it holds every number
    of ``dtype``.

    ``more_nodes`` says whether other nodes follow one MaxPool node, for indices or for empty
    windows.
    """
    types = emit.types
    # Some runtimes give no index to an 8-bit integer that is its type's lowest, have no Where of
    # int8, and no reduction of float16.
    narrow = types.FLOAT16, types.INT8, types.UINT8
    if dtype in (types.FLOAT, types.DOUBLE) or (dtype in narrow and not more_nodes):
        return dtype
    if dtype in (*narrow, types.BFLOAT16, types.INT16, types.UINT16):
        return types.FLOAT
    if dtype in (types.INT32, types.UINT32):
        return types.DOUBLE
    raise TypeError(
        f"maxima of {dtype.name.lower()} cannot be written for ONNX: cast them to 32 bits or "
        "float64"
    )


def _maxima(emit: Emitter, input: Any, window: Asked, with_indices: bool) -> Pair:
    """Values of the input's type and indices into the whole tensor; both right in empty windows."""
    if _is_dynamic_plane(input, window):
        return _whole_maxima(emit, input)
    pool = InputWindow(emit, input, window)
    op, dtype = emit.op, _pooled_type(emit, input.dtype, with_indices or pool.may_be_empty)
    is_float, tensor = input.dtype.is_floating_point(), emit.cast(input, input.dtype, dtype)
    lowest = -inf if is_float else int(input.dtype.min)
    # The -inf of a Pad node must not win over an element. Integers are above it, floats may be
    # equal to it.
    if is_float and (emit.exact or (with_indices and pool.is_padded)):
        values, indices = _exact_maxima(emit, tensor, dtype, pool)
    else:
        values, indices = pool.run(
            "MaxPool", tensor, -inf if dtype.is_floating_point() else lowest, dtype
        )
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


def _exact_maxima(emit: Emitter, tensor: Any, dtype: Any, pool: InputWindow) -> Pair:
    """Maxima where the first NaN wins and -inf is a number like others (rules M2 and M3), whatever
    the runtime does.
    """
    op, float32 = emit.op, emit.types.FLOAT
    lowest = emit.constant(-inf, dtype)

    def mask(condition: Any) -> Pair:
        pooled, indices = pool.run("MaxPool", op.Cast(condition, to=float32), 0.0, float32)
        return pooled > 0.0, indices

    nans = op.IsNaN(tensor)
    values, indices = pool.run("MaxPool", op.Where(nans, lowest, tensor), -inf, dtype)
    has_number, _ = mask(op.Greater(tensor, lowest))
    has_nan, first_nan = mask(nans)
    _, first = mask(op.Equal(nans, nans))
    values = op.Where(has_nan, emit.constant(nan, dtype), op.Where(has_number, values, lowest))
    return values, op.Where(has_nan, first_nan, op.Where(has_number, indices, first))


def _plane_sizes(emit: Emitter, input: Any) -> list[Any]:
    """Spatial sizes, known or computed."""
    op, sizes = emit.op, enumerate(spatial_sizes(input), 2)
    return [
        op.Squeeze(op.Shape(input, start=i, end=i + 1)) if size is None else size
        for i, size in sizes
    ]


def _unpadded(emit: Emitter, indices: Any, pool: InputWindow) -> Any:
    """Indices into the padded tensor as indices into the input."""
    sizes = _plane_sizes(emit, pool.input)
    places = []
    for size, start, end in list(zip(sizes, pool.start, pool.end, strict=True))[::-1]:
        padded = size + (start + end)
        places.append(indices % padded - start)
        indices = emit.op.Div(indices, padded)
    for size, place in zip(sizes, reversed(places), strict=True):
        indices = indices * size + place
    return indices


def max_pooling_with_indices(
    emit: Emitter, input: Any, window: Asked, index_dtype: Any, per_plane: bool
) -> Pair:
    op, (values, indices) = emit.op, _maxima(emit, input, window, True)
    if per_plane:
        indices = op.Where(indices < 0, indices, indices % prod(_plane_sizes(emit, input)))
    is_cast = index_dtype != emit.types.INT64
    return values, op.Cast(indices, to=index_dtype) if is_cast else op.Identity(indices)


def _bins(input: Any, output_sizes: Entries) -> list[list[int]]:
    """The positions of the elements in each bin."""
    sizes = spatial_sizes(input)
    if None in sizes or not all(isinstance(size, int) for size in output_sizes):
        raise ValueError(
            f"adaptive pooling of spatial sizes {tuple(input.shape[2:])} to {tuple(output_sizes)} "
            "has windows that depend on dynamic sizes: export with spatial sizes that are not "
            "dynamic, or pool to size 1"
        )
    bins = [[0]]
    for size, outputs in zip(sizes, output_sizes, strict=True):
        along = [
            range(bin * size // outputs, -(-(bin + 1) * size // outputs)) for bin in range(outputs)
        ]
        bins = [
            [before * size + position for before in outer for position in inner]
            for outer, inner in itertools.product(bins, along)
        ]
    return bins


def _gathered(emit: Emitter, tensor: Any, bins: list[list[int]]) -> Any:
    """The elements of ``tensor`` in each bin, as ``(N, C, bins, elements)``.

    ONNX has no bins of uneven sizes. Here the elements of a bin lie along the last axis, to be
    reduced, and a short bin is filled up with its first element.
    """
    most = max(map(len, bins))
    places = [[*bin, *bin[:1] * (most - len(bin))] for bin in bins]
    planes = emit.op.Reshape(tensor, [0, 0, -1])
    return emit.op.Gather(planes, emit.constant(places, emit.types.INT64), axis=2)


def adaptive_average_pooling(emit: Emitter, input: Any, output_sizes: Entries) -> Any:
    (wide, dtype), bins = emit.widened(input), _bins(input, output_sizes)
    elements, counts = _gathered(emit, wide, bins), [len(bin) for bin in bins]
    inside = [[place < count for place in range(max(counts))] for count in counts]
    mask, zero = emit.constant(inside, emit.types.BOOL), emit.constant(0.0, dtype)
    sums = emit.reduced("Sum", emit.op.Where(mask, elements, zero), [-1])
    averages = sums / emit.constant([float(count) for count in counts], dtype)
    return emit.cast(emit.op.Reshape(averages, [0, 0, *output_sizes]), dtype, input.dtype)


def adaptive_max_pooling(emit: Emitter, input: Any, output_sizes: Entries) -> Pair:
    """Maxima, and the positions of the first of them in their planes."""
    op, types, bins = emit.op, emit.types, _bins(input, output_sizes)
    values, first = _greatest(emit, input, lambda tensor: _gathered(emit, tensor, bins))
    starts = list(itertools.accumulate(map(len, bins[:-1]), initial=0))
    chosen = op.Gather(emit.constant(list(itertools.chain(*bins)), types.INT64), first + starts)
    narrow = types.INT32 if prod(spatial_sizes(input)) < 2**31 else types.INT64
    values, chosen = (op.Reshape(each, [0, 0, *output_sizes]) for each in (values, chosen))
    return values, emit.cast(chosen, types.INT64, narrow)


def max_unpooling(
    emit: Emitter, input: Any, indices: Any, output_sizes: Entries, per_plane: bool
) -> Any:
    """Unpooling as a scatter into one row for each plane, which has one place more: elements
    without an index of the plane are written there.

    A MaxUnpool node would have no place for index -1, and runtimes read its indices differently
    where the size of the output is given.
    """
    op = emit.op
    plane = prod(output_sizes)
    places = op.Reshape(emit.cast(indices, indices.dtype, emit.types.INT64), [0, 0, -1])
    if not per_plane:
        places = places - op.Unsqueeze(_first_indices(emit, input, plane), [2])
    places = op.Clip(places, -1, plane)
    sizes = op.Concat(op.Shape(input, start=0, end=2), op.Reshape(plane + 1, [1]), axis=0)
    if emit.exact:
        places = _last_of_several(emit, places, sizes)
    zeros = op.ConstantOfShape(sizes, value=emit.ir.tensor([0], dtype=input.dtype))
    rows = op.ScatterElements(zeros, places, op.Reshape(input, [0, 0, -1]), axis=2)
    return op.Reshape(op.Slice(rows, [0], op.Reshape(plane, [1]), [2]), [0, 0, *output_sizes])


def _last_of_several(emit: Emitter, places: Any, sizes: Any) -> Any:
    """``places`` with -1 for all but the last of equal ones, so that the order in which a runtime
    writes does not matter.
    """
    op = emit.op
    numbers = op.Expand(op.Range(0, op.Squeeze(op.Shape(places, start=2)), 1), op.Shape(places))
    none = op.ConstantOfShape(sizes, value=emit.ir.tensor([-1], dtype=emit.types.INT64))
    last = op.ScatterElements(none, places, numbers, axis=2, reduction="max")
    return op.Where(op.Equal(op.GatherElements(last, places, axis=2), numbers), places, -1)


def where(emit: Emitter, condition: Any, input: Any, other: Any) -> Any:
    """``torch.where``, by which masks are applied, of types for which ONNX Runtime has no Where
    too: in a type that holds their numbers.
    """
    types = emit.types
    narrow = types.INT8, types.INT16, types.UINT16, types.BFLOAT16
    dtype = types.FLOAT if input.dtype in narrow else input.dtype
    dtype = types.INT64 if dtype == types.UINT32 else dtype
    wide = [emit.cast(each, each.dtype, dtype) for each in (input, other)]
    return emit.cast(emit.op.Where(condition, *wide), dtype, input.dtype)
