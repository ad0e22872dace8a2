"""torch.nn's layers on quantized tensors (quint8 and qint8), as torch.nn has them: the result has
the scale and the zero point of the input.

Maxima and minima are those of the integers, bit for bit PyTorch's. Averages are exact, with halves
to even.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import quantized
from torch_dmlpool.nn import dimensions, pools
from torch_dmlpool.ops.adaptive_pooling import bins
from torch_dmlpool.window import ArgumentError, Integers, OutputSize, Padding, shared


def accepting(function: Callable[..., Any], family: str, rank: int) -> Callable[..., Any]:
    """A function of :mod:`torch_dmlpool.nn.functional` that takes quantized tensors too, if its
    ``family`` has them.
    """
    pool = _FAMILIES.get(family)
    if pool is None:
        return function

    @functools.wraps(function)
    def either(input: Tensor, *arguments: Any, **keywords: Any) -> Any:
        if not (type(input) is Tensor and input.is_quantized):
            return function(input, *arguments, **keywords)
        if keywords.get("mask") is not None:
            raise TypeError("mask must be None for a quantized tensor: pool its integers instead")
        keywords.pop("mask", None)
        name = f"{family}{rank}d"
        batched, added = dimensions.with_batch(name, rank, input, (input.dtype,))
        pooled = pool(function, rank, batched, *arguments, **keywords)
        return pooled if added is None else dimensions.without(pooled, added)

    return either


def _extremes(
    function: Callable[..., Any], _: int, input: Tensor, *arguments: Any, **keywords: Any
) -> Any:
    """Maxima or minima of a quantized tensor are those of its integers, which have the numbers'
    order.
    """
    return quantized.of_integers(input, lambda plain: function(plain, *arguments, **keywords))


def _averages(
    _: Callable[..., Any],
    rank: int,
    input: Tensor,
    kernel_size: Integers,
    stride: Integers | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    dilation: Integers = 1,
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
    function: Callable[..., Any], rank: int, input: Tensor, output_size: OutputSize
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
        average = function(plain.to(torch.float64) - zero_point, output_size)
        limits = torch.iinfo(plain.dtype)
        return (average.round() + zero_point).clamp(limits.min, limits.max).to(plain.dtype)

    return quantized.of_integers(input, exactly)


_FAMILIES: dict[str, Callable[..., Any]] = {
    "max_pool": _extremes,
    "min_pool": _extremes,
    "adaptive_max_pool": _extremes,
    "adaptive_min_pool": _extremes,
    "avg_pool": _averages,
    "adaptive_avg_pool": _adaptive_averages,
}
"""The functions' names without ``1d`` to ``3d``, and what pools a batched quantized tensor."""
