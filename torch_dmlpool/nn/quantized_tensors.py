"""torch.nn's layers and functions on quantized tensors (quint8 and qint8): as in torch.nn, the
result has the scale and the zero point of the input.

Maxima and minima are those of the integers, bit for bit PyTorch's. Averages are exact, with halves
to even.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands, quantized
from torch_dmlpool.nn import dimensions, pools
from torch_dmlpool.ops.adaptive_pooling import bins
from torch_dmlpool.window import ArgumentError, Integers, OutputSize, Padding, shared


def _batched(family: str, pool_quantized: Callable[..., Any]) -> Callable[..., Any]:
    """``pool_quantized`` of batches as a function that takes unbatched tensors too."""

    def pool(
        plain: Callable[..., Any], rank: int, input: Tensor, mask: Tensor | None, *arguments: Any
    ) -> Any:
        if mask is not None:
            raise TypeError("mask must be None for a quantized tensor: pool its integers instead")
        batched, added = dimensions.with_batch(f"{family}{rank}d", rank, input, (input.dtype,))
        output = pool_quantized(plain, rank, batched, *arguments)
        return output if added is None else dimensions.without(output, added)

    return pool


def _extremes(pool: Callable[..., Any], rank: int, input: Tensor, *arguments: Any) -> Any:
    """Maxima or minima of a quantized tensor are those of its integers, which have the numbers'
    order.
    """
    return quantized.of_integers(input, lambda plain: pool(rank, plain, None, *arguments))


def _averages(
    _: Callable[..., Any],
    rank: int,
    input: Tensor,
    kernel_size: Integers,
    stride: Integers | None,
    padding: Padding,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    dilation: Integers,
) -> Tensor:
    if divisor_override is not None:
        raise ArgumentError(
            f"divisor_override must be None for a quantized tensor, got {divisor_override}"
        )
    types = quantized.check_quantized(input)
    geometry = (kernel_size, stride, padding, dilation, ceil_mode)
    window = pools.window_of(rank, input, *geometry)
    return quantized.average(input, types, window, count_include_pad, None, None, None)


def _adaptive_averages(
    pool: Callable[..., Any], rank: int, input: Tensor, output_size: OutputSize
) -> Tensor:
    types = quantized.check_quantized(input)
    _, window = bins(shared(output_size), tuple(input.shape[2:]), rank)
    if window is not None:
        return quantized.average(input, types, window, True, None, None, None)

    def exactly(plain: Tensor) -> Tensor:
        """Averages of integers as integers. Sums are exact, and a quotient in float64 is a half
        only if the true one is.
        """
        zero_point: Any = quantized.zero_point_of(input)
        average = pool(rank, plain.to(torch.float64) - zero_point, None, output_size)
        limits = torch.iinfo(plain.dtype)
        average = (average.round() + zero_point).clamp(limits.min, limits.max)
        return operands.laid_out_like(average.to(plain.dtype), plain)

    return quantized.of_integers(input, exactly)


_FAMILIES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("max_pool", "min_pool", "adaptive_max_pool", "adaptive_min_pool"), _extremes),
    "avg_pool": _averages,
    "adaptive_avg_pool": _adaptive_averages,
}
dimensions.QUANTIZED.update((family, _batched(family, pool)) for family, pool in _FAMILIES.items())
