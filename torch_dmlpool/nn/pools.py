"""What torch.nn.functional's pooling functions compute here, for any number of spatial dimensions.

The functions themselves, for one, two and three, are in ``nn/functional``.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool.nn.family import Family
from torch_dmlpool.operators import (
    adaptive_pooling,
    average_pooling,
    lp_pooling,
    max_pooling,
    max_unpooling,
    min_pooling,
)
from torch_dmlpool.operators import quantized_tensors as quantized
from torch_dmlpool.operators.adaptive_pooling import bins
from torch_dmlpool.tensors import (
    AVERAGED_TYPES,
    COMPLEX_TYPES,
    FLOAT_TYPES,
    MAX_TYPES,
    ORDERED_TYPES,
    Numbering,
    TensorFunction,
    check_taps,
    checked_divisor,
    checked_norm,
    checked_output_size,
    ints,
    laid_out_like,
)
from torch_dmlpool.window import (
    AXIS_NAMES,
    ArgumentError,
    Arguments,
    Divisor,
    Integers,
    OutputSize,
    Padding,
    Sizes,
    Stride,
    Window,
    check_flag,
    check_spatial_sizes,
    entries,
    is_sure,
    listed,
    shared,
    shown,
)


def _window(
    rank: int, batched: Tensor, size: Integers, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> Window:
    """The Window of torch.nn's arguments."""
    sizes = ints(batched.shape[-rank:]) if isinstance(padding, str) and stride != 1 else None
    return Window.pytorch(rank, size, stride, padding, dilation, ceil, sizes)


def _counted_windows(
    rank: int,
    batched: Tensor,
    kernel_size: Integers,
    stride: Stride,
    padding: Padding,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: Divisor,
    dilation: Integers,
) -> tuple[Window, bool, Divisor]:
    """A window of averages, whether padding counts, and the divisor."""
    check_flag("count_include_pad", count_include_pad)
    divisor_override = checked_divisor(divisor_override)
    window = _window(rank, batched, kernel_size, stride, padding, dilation, ceil_mode)
    return window, count_include_pad, divisor_override


def _numbered_windows(
    rank: int,
    batched: Tensor,
    kernel_size: Integers,
    stride: Stride,
    padding: Padding,
    dilation: Integers,
    ceil_mode: bool,
    return_indices: bool,
) -> Arguments:
    """A window of maxima, and with ``return_indices`` that indices count in each plane."""
    check_flag("return_indices", return_indices)
    window = _window(rank, batched, kernel_size, stride, padding, dilation, ceil_mode)
    if not return_indices:
        return (window,)
    check_taps(window.taps, "kernel_size")
    return window, Numbering(torch.int64, per_plane=True)


def _normed_windows(
    rank: int,
    batched: Tensor,
    norm_type: float,
    kernel_size: Integers,
    stride: Stride,
    ceil_mode: bool,
    padding: Padding,
    dilation: Integers,
) -> tuple[Window, float]:
    """A window of p-norms, and p."""
    window = _window(rank, batched, kernel_size, stride, padding, dilation, ceil_mode)
    return window, float(checked_norm("norm_type", norm_type))


def _bins(rank: int, batched: Tensor, output_size: OutputSize) -> Arguments:
    """``output_size``, checked, as it is given: its Nones stay."""
    output_size = shared(output_size)
    checked_output_size(output_size, tuple(batched.shape[-rank:]))
    return (output_size,)


def _numbered_bins(
    rank: int, batched: Tensor, output_size: OutputSize, return_indices: bool
) -> Arguments:
    """The same of maxima, with ``return_indices`` as ``_numbered_windows``."""
    check_flag("return_indices", return_indices)
    numbering = Numbering(torch.int64, per_plane=True) if return_indices else None
    return *_bins(rank, batched, output_size), numbering


# Pools of quantized tensors (quint8 and qint8): as in torch.nn, the result has the scale and the
# zero point of the input. Maxima and minima are those of the integers, bit for bit PyTorch's.
# Averages are exact, with halves to even.


def _extremes(pool: TensorFunction, input: Tensor, _: Any) -> Any:
    """Maxima or minima of a quantized tensor are those of its integers, which have the numbers'
    order.
    """
    return quantized.of_integers(input, pool)


def _quantized_averages(
    _: TensorFunction, input: Tensor, request: tuple[Window, bool, Divisor]
) -> Tensor:
    """Averages over windows, by the operator of integers."""
    window, include_padding, divisor_override = request
    if divisor_override is not None:
        raise ArgumentError(
            f"divisor_override must be None for a quantized tensor, got {shown(divisor_override)}"
        )
    types = quantized.check_quantized(input)
    return quantized.average(input, types, window, include_padding, None, None, None)


def _quantized_averages_of_bins(
    pool: TensorFunction, input: Tensor, request: tuple[OutputSize]
) -> Tensor:
    """Averages over windows that cover the input, by the same operator where they have one size."""
    _, window = bins(request[0], tuple(input.shape[2:]))
    if window is not None:
        return _quantized_averages(pool, input, (window, True, None))

    def exactly(plain: Tensor) -> Tensor:
        """Averages of integers as integers. Sums are exact, and a quotient in float64 is a half
        only if the true one is.
        """
        zero_point = quantized.zero_point_of(input)
        average = pool(plain.to(torch.float64) - zero_point)
        limits = torch.iinfo(plain.dtype)
        average = (average.round() + zero_point).clamp(limits.min, limits.max)
        return laid_out_like(average.to(plain.dtype), plain)

    return quantized.of_integers(input, exactly)


avg_pool = Family(
    "avg_pool", AVERAGED_TYPES, _counted_windows, average_pooling.POOL, _quantized_averages
)
lp_pool = Family("lp_pool", FLOAT_TYPES, _normed_windows, lp_pooling.POOL)
adaptive_avg_pool = Family(
    "adaptive_avg_pool",
    AVERAGED_TYPES,
    _bins,
    adaptive_pooling.AVERAGES,
    _quantized_averages_of_bins,
)


max_pool = Family("max_pool", ORDERED_TYPES, _numbered_windows, max_pooling.POOL, _extremes)
max_pool_with_indices = replace(max_pool, suffix="_with_indices")
min_pool = replace(max_pool, name="min_pool", pool=min_pooling.POOL)
adaptive_max_pool = replace(
    max_pool, name="adaptive_max_pool", request_of=_numbered_bins, pool=adaptive_pooling.MAXIMA
)
adaptive_max_pool_with_indices = replace(adaptive_max_pool, suffix="_with_indices")
adaptive_min_pool = replace(
    adaptive_max_pool, name="adaptive_min_pool", pool=adaptive_pooling.MINIMA
)


def _unpooled_sizes(
    rank: int,
    input: Tensor,
    indices: Tensor,
    kernel_size: Integers,
    stride: Stride,
    padding: Padding,
    output_size: Sizes | None,
) -> tuple[Tensor, list[int], bool]:
    """The indices of a batch, the spatial sizes of the output, and that indices count in planes."""
    if isinstance(indices, Tensor) and indices.dim() == input.dim() - 1:
        indices = indices.unsqueeze(0)
    max_unpooling.check(input, indices)
    window = Window.pytorch(rank, kernel_size, stride, padding)
    sizes = [
        (size - 1) * axis.stride + axis.window - axis.start_padding - axis.end_padding
        for axis, size in window.along(ints(input.shape[-rank:]))
    ]
    if output_size is not None:
        full = listed(output_size) or ()
        spatial = full[2:] if len(full) == rank + 2 else output_size
        asked = entries("output_size", spatial, rank, 1)
        for size, usual, axis, name in zip(
            asked, sizes, window.axes, AXIS_NAMES[rank], strict=True
        ):
            least, most = usual - axis.stride + 1, usual + axis.stride - 1
            if is_sure(size < least) or is_sure(size > most):
                raise ArgumentError(
                    f"output_size must be {max(least, 1)} to {most} for this window in spatial "
                    f"dimension {name}, got {size} (output_size={shown(output_size)})"
                )
        sizes = list(asked)
    check_spatial_sizes("the output", sizes)
    return indices, sizes, True


max_unpool = Family("max_unpool", MAX_TYPES + COMPLEX_TYPES, _unpooled_sizes, max_unpooling.POOL)
