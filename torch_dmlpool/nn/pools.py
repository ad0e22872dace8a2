"""What torch.nn.functional's pooling functions compute here, for any number of spatial dimensions.

The functions themselves, for one, two and three, are in ``nn/functional``.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import tensors
from torch_dmlpool.nn import quantized_tensors
from torch_dmlpool.nn.dimensions import Family, window_of
from torch_dmlpool.operators import (
    adaptive_pooling,
    average_pooling,
    lp_pooling,
    max_pooling,
    max_unpooling,
    min_pooling,
)
from torch_dmlpool.operators.complex_pooling import by_parts
from torch_dmlpool.operators.max_pooling import Pooled
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


def _counted_windows(
    rank: int,
    batched: Tensor,
    kernel_size: Integers,
    stride: Integers | None,
    padding: Padding,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    dilation: Integers,
) -> tuple[Window, bool, int | None]:
    """A window of averages, whether padding counts, and the divisor."""
    tensors.check_flag("count_include_pad", count_include_pad)
    divisor_override = tensors.checked_divisor(divisor_override)
    window = window_of(rank, batched, kernel_size, stride, padding, dilation, ceil_mode)
    return window, count_include_pad, divisor_override


def _numbered_windows(
    rank: int,
    batched: Tensor,
    kernel_size: Integers,
    stride: Integers | None,
    padding: Padding,
    dilation: Integers,
    ceil_mode: bool,
    return_indices: bool,
) -> tuple[Any, ...]:
    """A window of maxima, with ``return_indices`` the index type and that indices count in each
    plane.
    """
    tensors.check_flag("return_indices", return_indices)
    window = window_of(rank, batched, kernel_size, stride, padding, dilation, ceil_mode)
    if not return_indices:
        return (window,)
    tensors.check_taps(window.taps, "kernel_size")
    return window, torch.int64, True


def _normed_windows(
    rank: int,
    batched: Tensor,
    norm_type: float,
    kernel_size: Integers,
    stride: Integers | None,
    ceil_mode: bool,
    padding: Padding,
    dilation: Integers,
) -> tuple[Window, float]:
    """A window of p-norms, and p."""
    window = window_of(rank, batched, kernel_size, stride, padding, dilation, ceil_mode)
    return window, float(tensors.checked_norm("norm_type", norm_type))


def _bins(rank: int, batched: Tensor, output_size: OutputSize) -> tuple[Any, int]:
    """How many bins there are, and along how many dimensions."""
    output_size = shared(output_size)
    tensors.checked_output_size(output_size, tuple(batched.shape[-rank:]))
    return output_size, rank


def _numbered_bins(
    rank: int, batched: Tensor, output_size: OutputSize, return_indices: bool
) -> tuple[Any, ...]:
    """The same of maxima, with ``return_indices`` as ``_numbered_windows``."""
    tensors.check_flag("return_indices", return_indices)
    return *_bins(rank, batched, output_size), *((torch.int64, True) if return_indices else ())


def _averages(input: Tensor, mask: Tensor | None, *request: Any) -> Tensor:
    return by_parts(lambda each: average_pooling.averages(each, mask, *request), input)


def _maxima(input: Tensor, mask: Tensor | None, *request: Any) -> Pooled:
    maxima: Pooled = max_pooling.of_bools(
        lambda each: max_pooling.maxima_of(each, mask, *request), input
    )
    return maxima


def _minima(input: Tensor, mask: Tensor | None, window: Window, *numbering: Any) -> Pooled:
    window.output_sizes(tensors.ints(input.shape[2:]))  # rejected before any work
    minima: Pooled = min_pooling.minima(
        lambda each: max_pooling.maxima_of(each, mask, window, *numbering), input
    )
    return minima


def _averages_of_bins(input: Tensor, mask: Tensor | None, *request: Any) -> Tensor:
    return by_parts(lambda each: adaptive_pooling.averages_of_bins(each, mask, *request), input)


def _maxima_of_bins(input: Tensor, mask: Tensor | None, *request: Any) -> Pooled:
    maxima: Pooled = max_pooling.of_bools(
        lambda each: adaptive_pooling.maxima_of_bins(each, mask, *request), input
    )
    return maxima


def _minima_of_bins(input: Tensor, mask: Tensor | None, *request: Any) -> Pooled:
    minima: Pooled = min_pooling.minima(
        lambda each: adaptive_pooling.maxima_of_bins(each, mask, *request), input
    )
    return minima


avg_pool = Family(
    "avg_pool",
    tensors.AVERAGED_TYPES,
    _counted_windows,
    _averages,
    average_pooling.prepared_average_pooling,
    quantized_tensors.averages,
)
max_pool = Family(
    "max_pool",
    tensors.ORDERED_TYPES,
    _numbered_windows,
    _maxima,
    max_pooling.prepared_max_pooling,
    quantized_tensors.extremes,
)
max_pool_with_indices = Family(
    "max_pool",
    tensors.ORDERED_TYPES,
    _numbered_windows,
    _maxima,
    max_pooling.prepared_max_pooling,
    quantized_tensors.extremes,
    "_with_indices",
)
min_pool = Family(
    "min_pool",
    tensors.ORDERED_TYPES,
    _numbered_windows,
    _minima,
    min_pooling.prepared_min_pooling,
    quantized_tensors.extremes,
)
lp_pool = Family(
    "lp_pool",
    tensors.FLOAT_TYPES,
    _normed_windows,
    lp_pooling.norms,
    lp_pooling.prepared_lp_pooling,
)
adaptive_avg_pool = Family(
    "adaptive_avg_pool",
    tensors.AVERAGED_TYPES,
    _bins,
    _averages_of_bins,
    adaptive_pooling.prepared_averages,
    quantized_tensors.adaptive_averages,
)
adaptive_max_pool = Family(
    "adaptive_max_pool",
    tensors.ORDERED_TYPES,
    _numbered_bins,
    _maxima_of_bins,
    adaptive_pooling.prepared_maxima,
    quantized_tensors.extremes,
)
adaptive_max_pool_with_indices = Family(
    "adaptive_max_pool",
    tensors.ORDERED_TYPES,
    _numbered_bins,
    _maxima_of_bins,
    adaptive_pooling.prepared_maxima,
    quantized_tensors.extremes,
    "_with_indices",
)
adaptive_min_pool = Family(
    "adaptive_min_pool",
    tensors.ORDERED_TYPES,
    _numbered_bins,
    _minima_of_bins,
    of_quantized=quantized_tensors.extremes,
)


def _unpooled_sizes(
    rank: int,
    input: Tensor,
    indices: Tensor,
    kernel_size: Integers,
    stride: Integers | None,
    padding: Padding,
    output_size: Sequence[int] | None,
) -> tuple[Tensor, list[int]]:
    """The indices of a batch, and the spatial sizes of the output."""
    if isinstance(indices, Tensor) and indices.dim() == input.dim() - 1:
        indices = indices.unsqueeze(0)
    max_unpooling.check(input, indices)
    window = Window.pytorch(rank, kernel_size, stride, padding)
    sizes = [
        (size - 1) * axis.stride + axis.window - axis.start_padding - axis.end_padding
        for size, axis in zip(tensors.ints(input.shape[-rank:]), window.axes, strict=True)
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
    check_spatial_sizes("the output", sizes, len(sizes))
    return indices, sizes


def _unpooled(input: Tensor, _: None, indices: Tensor, sizes: list[int]) -> Tensor:
    """Every element at its index, zeros elsewhere. It takes no mask."""
    return by_parts(lambda each: max_unpooling.unpooled(each, indices, sizes, True), input)


max_unpool = Family(
    "max_unpool", tensors.MAX_TYPES + tensors.COMPLEX_TYPES, _unpooled_sizes, _unpooled
)
