"""Quantized averages as an expression of Inductor's, where the numbers of both sides are known.

integers -> sum of taps - taps · zero point -> · scale / (divisor · step) -> round -> + zero point
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import to_dtype
from torch._inductor.virtualized import ops

from torch_dmlpool.inductor.choice import has_channels_innermost
from torch_dmlpool.inductor.expressions import (
    pointwise,
    reduced_over,
    register_as,
    results,
    tree,
)
from torch_dmlpool.inductor.geometry import (
    Geometry,
    covered_axes,
    is_sure,
    small_window,
)

MOST_OF_CHANNELS = {torch.float32: 2**20, torch.float64: 2**17}
MOST_OF_PLANES, MOST_IN_ROWS = 2**19, 2**14
"""On a CPU: taps in all that an expression reads in less time than a call of the operator takes. In
channels_last the limit depends on the type that the expression computes in, or is the second one
for averages over whole dimensions; in other layouts it is the last one. Microseconds as an
expression and with a call, uint8, Zen 4, one thread:

    channels_last, float32   2/2 of 8x64x56x56  142 and 204   3/1 of 1x192x35x35   143 and 109
    channels_last, float64   2/2 of 1x64x28x28   34 and 61    2/2 of 8x64x28x28    182 and 153
    channels_last, planes    8x1024x7x7          38 and 62    8x2048x8x8           137 and 81
    contiguous               2/2 of 2x64x14x14   32 and 65    3/1 of 1x64x28x28  1,203 and 113
"""
LARGEST_PARTS = 2**14
"""Averages are computed in float32 for up to this many taps, times step / scale where that is above
1. A quotient below 512, as all are that need no clamp, is rounded to float32 once and errs by
2**-16 at most; one that is no half lies 2**-15 from the next half at least."""


def average_of_numbers(x: TensorBox, *arguments: Any) -> TensorBox | None:
    """The averages of a small window or over whole dimensions; None where the operator must be
    called.
    """
    *numbers, include_padding, _ = arguments
    window_arguments, sizes, (outputs, _) = numbers[4:], x.get_size(), results()[0]
    window = small_window(x, sizes[2:], window_arguments)
    covered = covered_axes(x, sizes[2:], window_arguments)
    taps, wide = math.prod(window_arguments[0]), torch.float64
    if x.get_device_or_error().type == "cpu":
        wide = _type_for(numbers, taps)
        most = MOST_OF_CHANNELS[wide] if covered is None else MOST_OF_PLANES
        most = most if has_channels_innermost(x) else MOST_IN_ROWS
        if not is_sure(math.prod(outputs) * taps <= most):
            return None
    if window is not None:
        geometry = Geometry(window, sizes[2:], outputs[2:])
        tap_of = geometry.loader(x, numbers[1])

        def total(index: Sequence[Any]) -> Any:
            return tree([ops.to_dtype(tap_of(index, tap), torch.float32) for tap in geometry.taps])

        def count(index: Sequence[Any]) -> Any:
            return geometry.counted(index, include_padding, wide)

        return _requantized(x, numbers, window.taps, wide, total, count)
    if covered is None or not is_sure(taps * 255 < 2**31) or not isinstance(taps, int):
        return None
    widened = to_dtype(x, torch.int32)
    summed = reduced_over(widened, covered, "sum", torch.int32).make_loader()
    return _requantized(x, numbers, taps, wide, summed, lambda _: ops.constant(float(taps), wide))


def _scales(numbers: Sequence[Any]) -> tuple[float, float]:
    """The scales of the input and of the output, rounded to float32."""
    scale, step = (
        torch.tensor(numbers[at], dtype=torch.float32, device="cpu").item() for at in (0, 2)
    )
    return scale, step


def _type_for(numbers: Sequence[Any], taps: Any) -> torch.dtype:
    """The type in which a CPU computes averages of ``taps`` elements without changing a result.

    Where one scale is the other one times a power of two, all but the quotient is exact in float32.
    """
    scale, step = _scales(numbers)
    is_power = math.frexp(scale / step)[0] == 0.5 and scale / step < 2**60
    is_exact = is_power and is_sure(taps * max(1.0, step / scale) <= LARGEST_PARTS)
    return torch.float32 if is_exact else torch.float64


def _requantized(
    x: TensorBox,
    numbers: Sequence[Any],
    taps: int,
    wide: torch.dtype,
    total: Callable[..., Any],
    count: Callable[..., Any],
) -> TensorBox:
    """The output from a window's sum, ``total(index)``, and its divisor, ``count(index)``.

    Each sum is of ``taps`` integers, with the zero point in place of padding.
    """
    outputs, dtype = results()[0]
    zero_point, output_zero_point = int(numbers[1]), float(numbers[3])
    scale, step = _scales(numbers)
    if wide is torch.float32:
        scale, step = scale / step, 1.0
    limits = torch.iinfo(dtype)

    def average(index: Sequence[Any]) -> Any:
        total_of_zeros = ops.constant(float(taps * zero_point), wide)
        centred = ops.sub(ops.to_dtype(total(index), wide), total_of_zeros)
        real = ops.mul(centred, ops.constant(scale, wide))
        quotient = ops.truediv(real, ops.mul(count(index), ops.constant(step, wide)))
        rounded = ops.add(ops.round(quotient), ops.constant(output_zero_point, wide))
        least, most = (ops.constant(float(each), wide) for each in (limits.min, limits.max))
        return ops.minimum(ops.maximum(rounded, least), most)

    return pointwise(x, outputs, dtype, average)


register_as(
    torch.ops.dmlpool.quantized_linear_average_pooling_of_numbers.default, average_of_numbers
)
