"""What torch.nn.functional's pooling functions compute here, for any number of spatial dimensions.

The functions themselves, for one, two and three, are in ``nn/functional``.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.functional import Pooled
from torch_dmlpool.nn import quantized_tensors
from torch_dmlpool.nn.dimensions import for_batches, window_of
from torch_dmlpool.ops import (
    average_pooling,
    masked_pooling,
    max_pooling,
    max_unpooling,
    min_pooling,
)
from torch_dmlpool.ops.complex_pooling import by_parts
from torch_dmlpool.window import (
    AXIS_NAMES,
    ArgumentError,
    Integers,
    OutputSize,
    Padding,
    Window,
    check_spatial_sizes,
    entries,
    is_sure,
    listed,
    shared,
    shown,
)


@for_batches(operands.AVERAGED_TYPES, quantized_tensors.averages)
def avg_pool(
    rank: int,
    input: Tensor,
    mask: Tensor | None,
    kernel_size: Integers,
    stride: Integers | None,
    padding: Padding,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    dilation: Integers,
) -> Tensor:
    """Averages over windows."""
    operands.check_flag("count_include_pad", count_include_pad)
    divisor_override = operands.checked_divisor(divisor_override)
    window = window_of(rank, input, kernel_size, stride, padding, dilation, ceil_mode)
    if mask is None and not input.is_complex():
        return average_pooling.average_pooling(input, window, count_include_pad, divisor_override)
    request = mask, window, count_include_pad, divisor_override
    return by_parts(lambda each: masked_pooling.averages(each, *request), input)


_extremes = for_batches(operands.ORDERED_TYPES, quantized_tensors.extremes)
_with_indices = for_batches(
    operands.ORDERED_TYPES, quantized_tensors.extremes, suffix="_with_indices"
)


@_extremes
def max_pool(
    rank: int,
    input: Tensor,
    mask: Tensor | None,
    kernel_size: Integers,
    stride: Integers | None,
    padding: Padding,
    dilation: Integers,
    ceil_mode: bool,
    return_indices: bool,
) -> Pooled:
    """Maxima over windows, with ``return_indices`` a pair with their indices."""
    operands.check_flag("return_indices", return_indices)
    window = window_of(rank, input, kernel_size, stride, padding, dilation, ceil_mode)
    if return_indices:
        operands.check_taps(window.taps, "kernel_size")
    numbering = (torch.int64, True) if return_indices else ()
    if mask is None and input.dtype is not torch.bool:
        if return_indices:
            return max_pooling.max_pooling_with_indices(input, window, *numbering)
        return max_pooling.max_pooling(input, window)
    request = mask, window, *numbering
    return min_pooling.maxima(lambda each: masked_pooling.maxima(each, *request), input)


max_pool_with_indices = _with_indices(max_pool.__wrapped__)


@_extremes
def min_pool(
    rank: int,
    input: Tensor,
    mask: Tensor | None,
    kernel_size: Integers,
    stride: Integers | None,
    padding: Padding,
    dilation: Integers,
    ceil_mode: bool,
    return_indices: bool,
) -> Pooled:
    """Minima over windows, with ``return_indices`` a pair with their indices."""
    operands.check_flag("return_indices", return_indices)
    window = window_of(rank, input, kernel_size, stride, padding, dilation, ceil_mode)
    if return_indices:
        operands.check_taps(window.taps, "kernel_size")
    window.output_sizes(operands.ints(input.shape[2:]))  # rejected before any work
    numbering = (torch.int64, True) if return_indices else ()
    request = mask, window, *numbering
    return min_pooling.minima(lambda each: masked_pooling.maxima(each, *request), input)


@for_batches(operands.FLOAT_TYPES)
def lp_pool(
    rank: int,
    input: Tensor,
    mask: Tensor | None,
    norm_type: float,
    kernel_size: Integers,
    stride: Integers | None,
    ceil_mode: bool,
    padding: Padding,
    dilation: Integers,
) -> Tensor:
    """p-norms of windows."""
    window = window_of(rank, input, kernel_size, stride, padding, dilation, ceil_mode)
    norm_type = operands.checked_norm("norm_type", norm_type)
    return masked_pooling.norms(input, mask, window, float(norm_type))


@for_batches(operands.AVERAGED_TYPES, quantized_tensors.adaptive_averages)
def adaptive_avg_pool(
    rank: int, input: Tensor, mask: Tensor | None, output_size: OutputSize
) -> Tensor:
    """Averages over ``output_size`` windows."""
    if mask is None and not input.is_complex():
        return masked_pooling.adaptive_averages(input, None, shared(output_size), rank)
    asked = mask, shared(output_size), rank
    return by_parts(lambda each: masked_pooling.adaptive_averages(each, *asked), input)


@_extremes
def adaptive_max_pool(
    rank: int, input: Tensor, mask: Tensor | None, output_size: OutputSize, return_indices: bool
) -> Pooled:
    """Maxima over ``output_size`` windows, with ``return_indices`` a pair with their indices."""
    operands.check_flag("return_indices", return_indices)
    asked = (shared(output_size), rank, *((torch.int64, True) if return_indices else ()))
    return min_pooling.maxima(
        lambda each: masked_pooling.adaptive_maxima(each, mask, *asked), input
    )


adaptive_max_pool_with_indices = _with_indices(adaptive_max_pool.__wrapped__)


@_extremes
def adaptive_min_pool(
    rank: int, input: Tensor, mask: Tensor | None, output_size: OutputSize, return_indices: bool
) -> Pooled:
    """Minima over ``output_size`` windows, with ``return_indices`` a pair with their indices."""
    operands.check_flag("return_indices", return_indices)
    output_size = shared(output_size)
    operands.checked_output_size(output_size, tuple(input.shape[-rank:]))
    asked = (output_size, rank, *((torch.int64, True) if return_indices else ()))
    return min_pooling.minima(
        lambda each: masked_pooling.adaptive_maxima(each, mask, *asked), input
    )


@for_batches(operands.MAX_TYPES + operands.COMPLEX_TYPES)
def max_unpool(
    rank: int,
    input: Tensor,
    _: None,
    indices: Tensor,
    kernel_size: Integers,
    stride: Integers | None,
    padding: Padding,
    output_size: Sequence[int] | None,
) -> Tensor:
    """Every element at its index, zeros elsewhere. It takes no mask."""
    is_row = input.dim() > rank + 2
    if isinstance(indices, Tensor) and indices.dim() == input.dim() - 1:
        indices = indices.unsqueeze(2 if is_row else 0)
    max_unpooling.check(input, indices)
    window = Window.pytorch(rank, kernel_size, stride, padding)
    sizes = [
        (size - 1) * axis.stride + axis.window - axis.start_padding - axis.end_padding
        for size, axis in zip(operands.ints(input.shape[-rank:]), window.axes, strict=True)
    ]
    if output_size is not None:
        full = listed(output_size) or ()
        spatial: Any = full[2:] if len(full) == rank + 2 else output_size
        asked = entries("output_size", spatial, rank, 1)
        for size, usual, axis, name in zip(
            asked, sizes, window.axes, AXIS_NAMES[rank], strict=True
        ):
            if is_sure(size <= usual - axis.stride) or is_sure(size >= usual + axis.stride):
                least, most = max(usual - axis.stride + 1, 1), usual + axis.stride - 1
                where = (
                    f"in spatial dimension {name}, got {size} (output_size={shown(output_size)})"
                )
                raise ArgumentError(
                    f"output_size must be {least} to {most} for this window {where}"
                )
        sizes = list(asked)
    sizes = [1] * is_row + sizes
    check_spatial_sizes("the output", sizes, len(sizes))
    return by_parts(lambda each: max_unpooling.max_unpooling(each, indices, sizes, True), input)
