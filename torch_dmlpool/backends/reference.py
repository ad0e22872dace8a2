"""Every operator in plain PyTorch, for any device: serves where neither the compiled CPU file nor Triton does.

The same functions take exported programs apart into ATen's operators: batch and image sizes may be symbolic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool.backends.reference_max import (
    adaptive_max_pooling,
    gather_positions,
    max_pooling,
    max_pooling_gather,
    max_pooling_grad,
    max_pooling_grad_from_taps,
    max_pooling_indices,
    max_pooling_with_indices,
    max_pooling_with_taps,
    scatter_positions,
    unique_positions,
)
from torch_dmlpool.backends.reference_windows import (
    SUM,
    are_ints,
    bin_ends,
    binned,
    in_blocks,
    is_known,
    laid_out_like,
    numbers,
    pooled,
    spread,
)
from torch_dmlpool.window import Window

__all__ = [
    "adaptive_average_pooling",
    "adaptive_average_pooling_grad",
    "adaptive_max_pooling",
    "average_pooling",
    "average_pooling_grad",
    "gather_positions",
    "max_pooling",
    "max_pooling_gather",
    "max_pooling_grad",
    "max_pooling_grad_from_taps",
    "max_pooling_indices",
    "max_pooling_with_indices",
    "max_pooling_with_taps",
    "quantized_linear_average_pooling",
    "scatter_positions",
    "unique_positions",
]


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The type that averages are summed in (rule A4)."""
    return torch.float32 if dtype.itemsize == 2 else dtype


def _product(factors: Sequence[Tensor]) -> Tensor:
    """One factor per axis, multiplied over the spatial dimensions."""
    product = factors[0]
    for factor in factors[1:]:
        product = product.unsqueeze(-1) * factor
    return product


def _counts(window: Window, sizes: Sequence[int], include_padding: bool, like: Tensor, dtype: torch.dtype) -> Any:
    """Taps that each window counts, at least 1 (rules A1 to A3): a number where all have as many."""
    padding = [padding for axis in window.axes for padding in (axis.start_padding, axis.end_padding)]
    unpadded = are_ints(*padding) and not any(padding)
    if not window.axes[0].ceil_mode and (include_padding or unpadded):
        return float(window.taps) if type(window.taps) is int else window.taps
    counts = []
    for axis, size in zip(window.axes, sizes, strict=True):
        first = numbers(axis.output_size(size), like) * axis.stride - axis.start_padding

        def before(bound: int, first: Tensor = first, dilation: int = axis.dilation, taps: int = axis.window) -> Tensor:
            return (bound - first + dilation - 1).div(dilation, rounding_mode="floor").clamp(0, taps)

        counted = before(size + axis.end_padding) if include_padding else before(size) - before(0)
        counts.append(counted.to(dtype))
    return _product(counts).clamp(min=1)


def average_pooling(input: Tensor, window: Window, include_padding: bool, divisor_override: int | None) -> Tensor:
    """Sums of windows, divided once."""
    wide, divisor = _wide(input.dtype), divisor_override
    if divisor is None:
        divisor = _counts(window, input.shape[2:], include_padding, input, wide)
    result = in_blocks(lambda block: (pooled(block.to(wide), window, SUM) / divisor).to(input.dtype), input)
    return laid_out_like(result, input)


def average_pooling_grad(
    input_gradient: Tensor,
    spatial_sizes: Sequence[int],
    window: Window,
    include_padding: bool,
    divisor_override: int | None,
) -> Tensor:
    """The exact adjoint (rule A6): each element's sum of the divided gradients of the windows that read it."""
    wide, divisor = _wide(input_gradient.dtype), divisor_override
    if divisor is None:
        divisor = _counts(window, spatial_sizes, include_padding, input_gradient, wide)

    def adjoint(block: Tensor) -> Tensor:
        block = block.to(wide) / divisor
        for number in range(-1, -window.rank - 1, -1):
            block = spread(block, number, window.axes[number], spatial_sizes[number], SUM)
        return block.to(input_gradient.dtype)

    return laid_out_like(in_blocks(adjoint, input_gradient), input_gradient)


def quantized_linear_average_pooling(
    input: Tensor,
    input_scale: float | Tensor,
    input_zero_point: int | Tensor | None,
    output_scale: float | Tensor,
    output_zero_point: int | Tensor | None,
    window: Window,
    include_padding: bool,
    output_dtype: torch.dtype,
) -> Tensor:
    """Exact sums of differences from the zero point, requantized once (rules Q1, Q2 and Q6)."""
    parameters: Any = (input_scale, input_zero_point, output_scale, output_zero_point)
    if input.device.type == "mps":  # has no float64
        parameters = [parameter.cpu() if isinstance(parameter, Tensor) else parameter for parameter in parameters]
        arguments = (*parameters, window, include_padding, output_dtype)
        return quantized_linear_average_pooling(input.cpu(), *arguments).to(input.device)
    sizes = input.shape[2:]
    reads = 1
    for axis, size in zip(window.axes, sizes, strict=True):
        reads *= min(axis.window, size) if are_ints(axis.window, size) else size if is_known(size > 0) else axis.window
    sum_type = torch.int32 if is_known(reads * 255 < 2**31) else torch.int64

    def vector(parameter: Any, dtype: torch.dtype) -> Tensor:
        if not isinstance(parameter, Tensor):
            parameter = torch.full((1,), parameter or 0, dtype=dtype, device=input.device)
        spread_out = parameter.to(dtype).view(1, -1, *(1 for _ in sizes))
        return spread_out.expand(*input.shape[:2], *(1 for _ in sizes))

    types = (torch.float64, sum_type, torch.float64, torch.float64)
    vectors = [vector(*pair) for pair in zip(parameters, types, strict=True)]
    divisor = _counts(window, sizes, include_padding, input, torch.float64)
    limits = torch.iinfo(output_dtype)

    def requantized(block: Tensor, scale: Tensor, zero: Tensor, step: Tensor, output_zero: Tensor) -> Tensor:
        sums = pooled(block.to(sum_type) - zero, window, SUM)
        real = sums.to(torch.float64) * scale / (divisor * step)
        # Up to 2^20 taps the quotient is rounded to no half that it is not.
        if not is_known(reads <= 2**20) or not is_known(window.taps <= 2**20):
            real = _on_its_side_of_a_half(real, sums.to(torch.int64), divisor, scale, step)
        return (real.round() + output_zero).clamp(limits.min, limits.max).to(output_dtype)

    return laid_out_like(in_blocks(requantized, input, *vectors), input)


def _on_its_side_of_a_half(real: Tensor, sums: Tensor, divisor: Any, scale: Tensor, step: Tensor) -> Tensor:
    """Quotients next to a half, moved to its exact side: twice the distance times the denominator is an integer."""
    whole = real.floor()
    near = ((real - whole - 0.5).abs() < 2.0**-40 * (1 + whole.abs())) & (whole.abs() < 512)
    (first, exponent), (second, other) = (
        ((parts := torch.frexp(each)).mantissa.mul(2.0**24).to(torch.int64), parts.exponent.to(torch.int64))
        for each in (scale, step)
    )
    exponent = exponent - other
    divisors = divisor.to(torch.int64) if isinstance(divisor, Tensor) else int(divisor)

    def shifted(integers: Tensor, bits: Tensor) -> Tensor:
        return (integers << bits.clamp(0, 32)) << (bits - 32).clamp(0, 32)

    # Both wrap around alike, and where the quotient is near a half their difference is small.
    product = shifted(sums * first, 1 + exponent.clamp(min=0))
    half = shifted((2 * whole.clamp(-512, 512).to(torch.int64) + 1) * divisors * second, (-exponent).clamp(min=0))
    return torch.where(near, whole + 0.5 + 0.25 * (product - half).sign(), real)


def _bin_counts(sizes: Sequence[int], output_sizes: Sequence[int], like: Tensor, dtype: torch.dtype) -> Tensor:
    ends = [bin_ends(*pair, like) for pair in zip(sizes, output_sizes, strict=True)]
    return _product([(stops - starts).to(dtype) for starts, stops in ends])


def adaptive_average_pooling(input: Tensor, output_sizes: Sequence[int]) -> Tensor:
    """Sums of bins, divided once."""
    wide = _wide(input.dtype)
    counts = _bin_counts(input.shape[2:], output_sizes, input, wide)
    result = in_blocks(lambda block: (binned(block.to(wide), output_sizes, SUM) / counts).to(input.dtype), input)
    return laid_out_like(result, input)


def adaptive_average_pooling_grad(input_gradient: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """The exact adjoint: the bins that read an element are bins again."""
    wide = _wide(input_gradient.dtype)
    counts = _bin_counts(spatial_sizes, input_gradient.shape[2:], input_gradient, wide)

    def adjoint(block: Tensor) -> Tensor:
        return binned(block.to(wide) / counts, spatial_sizes, SUM).to(input_gradient.dtype)

    return laid_out_like(in_blocks(adjoint, input_gradient), input_gradient)
