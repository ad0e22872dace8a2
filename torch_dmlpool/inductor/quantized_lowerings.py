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

CHEAPEST_CALL = 2**18
"""The most taps, of all windows together, that an expression on a CPU reads in less time than a
call of the operator takes. Averages of 8x128x8x8 uint8, window 2/2, take 95 us as an expression and
114 us with a call, 8x32x64x64 504 and 271 (channels_last, Zen 4, one thread)."""


def average_of_numbers(x: TensorBox, *arguments: Any) -> TensorBox | None:
    """The averages of a small window or over whole dimensions; None where the operator must be
    called.
    """
    *numbers, include_padding, _ = arguments
    window_arguments, sizes, (outputs, _) = numbers[4:], x.get_size(), results()[0]
    window = small_window(x, sizes[2:], window_arguments)
    covered = covered_axes(x, sizes[2:], window_arguments)
    taps = math.prod(window_arguments[0])
    if x.get_device_or_error().type == "cpu" and not is_sure(
        math.prod(outputs) * taps <= CHEAPEST_CALL
    ):
        return None
    if window is not None:
        geometry = Geometry(window, sizes[2:], outputs[2:])
        tap_of = geometry.loader(x, numbers[1])

        def total(index: Sequence[Any]) -> Any:
            return tree([ops.to_dtype(tap_of(index, tap), torch.int32) for tap in geometry.taps])

        def count(index: Sequence[Any]) -> Any:
            return geometry.counted(index, include_padding, torch.float64)

        return _requantized(x, numbers, window.taps, total, count)
    if covered is None or not is_sure(taps * 255 < 2**31) or not isinstance(taps, int):
        return None
    wide = to_dtype(x, torch.int32)
    summed = reduced_over(wide, covered, "sum", torch.int32).make_loader()
    return _requantized(
        x, numbers, taps, summed, lambda _: ops.constant(float(taps), torch.float64)
    )


def _requantized(
    x: TensorBox,
    numbers: Sequence[Any],
    taps: int,
    total: Callable[..., Any],
    count: Callable[..., Any],
) -> TensorBox:
    """The output from a window's sum, ``total(index)``, and its divisor, ``count(index)``.

    Each sum is of ``taps`` integers, with the zero point in place of padding.
    """
    (outputs, dtype), wide = results()[0], torch.float64
    zero_point, output_zero_point = int(numbers[1]), float(numbers[3])
    scale, step = (
        torch.tensor(numbers[at], dtype=torch.float32, device="cpu").item() for at in (0, 2)
    )
    limits = torch.iinfo(dtype)

    def average(index: Sequence[Any]) -> Any:
        centred = ops.sub(total(index), ops.constant(taps * zero_point, torch.int32))
        real = ops.mul(ops.to_dtype(centred, wide), ops.constant(scale, wide))
        quotient = ops.truediv(real, ops.mul(count(index), ops.constant(step, wide)))
        rounded = ops.add(ops.round(quotient), ops.constant(output_zero_point, wide))
        least, most = (ops.constant(float(each), wide) for each in (limits.min, limits.max))
        return ops.minimum(ops.maximum(rounded, least), most)

    return pointwise(x, outputs, dtype, average)


register_as(
    torch.ops.dmlpool.quantized_linear_average_pooling_of_numbers.default, average_of_numbers
)
