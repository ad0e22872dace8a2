"""Pools of quantized tensors (quint8 and qint8): as in torch.nn, the result has the scale and the
zero point of the input.

Maxima and minima are those of the integers, bit for bit PyTorch's. Averages are exact, with halves
to even.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import tensors
from torch_dmlpool.operators import quantized_tensors as quantized
from torch_dmlpool.operators.adaptive_pooling import bins
from torch_dmlpool.window import ArgumentError, OutputSize, Window, shown

BatchPool = Callable[[Tensor], Any]


def extremes(pool: BatchPool, input: Tensor, _: Any) -> Any:
    """Maxima or minima of a quantized tensor are those of its integers, which have the numbers'
    order.
    """
    return quantized.of_integers(input, pool)


def averages(_: BatchPool, input: Tensor, request: tuple[Window, bool, int | None]) -> Tensor:
    """Averages over windows, by the operator of integers."""
    window, include_padding, divisor_override = request
    if divisor_override is not None:
        raise ArgumentError(
            f"divisor_override must be None for a quantized tensor, got {shown(divisor_override)}"
        )
    types = quantized.check_quantized(input)
    return quantized.average(input, types, window, include_padding, None, None, None)


def adaptive_averages(pool: BatchPool, input: Tensor, request: tuple[OutputSize, int]) -> Tensor:
    """Averages over windows that cover the input, by the same operator where they have one size."""
    _, window = bins(request[0], tuple(input.shape[2:]), request[1])
    if window is not None:
        return averages(pool, input, (window, True, None))

    def exactly(plain: Tensor) -> Tensor:
        """Averages of integers as integers. Sums are exact, and a quotient in float64 is a half
        only if the true one is.
        """
        zero_point: Any = quantized.zero_point_of(input)
        average = pool(plain.to(torch.float64) - zero_point)
        limits = torch.iinfo(plain.dtype)
        average = (average.round() + zero_point).clamp(limits.min, limits.max)
        return tensors.laid_out_like(average.to(plain.dtype), plain)

    return quantized.of_integers(input, exactly)
