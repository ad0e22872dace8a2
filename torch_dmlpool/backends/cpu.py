"""The CPU backend: calls the compiled kernels (kernels/*.cpp), which ``cpu_library`` loads, for each operator."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends.cpu_library import (
    COUNTING_ALL,
    DATA_TYPES,
    Problem,
    Quantization,
    arranged,
    arranged_average,
    library,
    missing,
    planned,
    planned_average_of_bins,
    planned_bins,
)
from torch_dmlpool.window import Window

__all__ = [
    "adaptive_average_pooling",
    "adaptive_average_pooling_grad",
    "adaptive_max_pooling",
    "average_pooling",
    "average_pooling_grad",
    "gather_positions",
    "library",
    "max_pooling",
    "max_pooling_gather",
    "max_pooling_grad",
    "max_pooling_grad_from_taps",
    "max_pooling_indices",
    "max_pooling_with_indices",
    "max_pooling_with_taps",
    "missing",
    "quantized_linear_average_pooling",
    "scatter_positions",
    "unique_positions",
]


# As an object: a name takes PyTorch 0.4 µs more.
_CPU = torch.device("cpu")


def _laid_out(tensor: Tensor, memory_format: torch.memory_format) -> Tensor:
    """``tensor`` in one of the two layouts that the kernels read."""
    return (
        tensor if tensor.is_contiguous(memory_format=memory_format) else tensor.contiguous(memory_format=memory_format)
    )


def _empty(sizes: Sequence[int], dtype: torch.dtype, memory_format: torch.memory_format) -> Tensor:
    return torch.empty(sizes, dtype=dtype, device=_CPU, memory_format=memory_format)


# Max pooling.

TAPS, POSITIONS, INDICES = range(3)
"""What a winner is written as: the numbers of ``Numbering`` in kernels/max_pooling.cpp."""


def max_pooling(input: Tensor, window: Window) -> Tensor:
    """Maxima alone."""
    address, sizes, strides, memory_format, is_laid_out, _, _ = arranged(
        input.shape, input.stride(), window, torch.get_num_threads()
    )
    output = input.new_empty_strided(sizes, strides)
    if not is_laid_out:
        input = input.contiguous(memory_format=memory_format)
    if 0 not in sizes:
        library.dmlpool_max_pooling(DATA_TYPES[input.dtype], input.data_ptr(), output.data_ptr(), None, 0, 0, address)
    return output


def max_pooling_with_taps(input: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Maxima and the numbers of their taps."""
    return _with_winners(input, window, None, TAPS)


def max_pooling_with_indices(
    input: Tensor, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> tuple[Tensor, Tensor]:
    """Maxima and their indices."""
    return _with_winners(input, window, index_dtype, POSITIONS if per_plane else INDICES)


def _with_winners(
    input: Tensor, window: Window, winner_dtype: torch.dtype | None, numbering: int, only_winners: bool = False
) -> tuple[Tensor, Tensor]:
    address, sizes, strides, memory_format, is_laid_out, taps, _ = arranged(
        input.shape, input.stride(), window, torch.get_num_threads()
    )
    if winner_dtype is None:
        winner_dtype = operands.tap_dtype(taps)
    if taps > 2**15 and input.dtype.itemsize <= 2:
        # The kernel compares elements in lanes of two bytes, which do not hold the numbers of so many taps.
        values, winners = _with_winners(input.to(torch.float32), window, winner_dtype, numbering, only_winners)
        return values.to(input.dtype), winners
    values = input if only_winners else input.new_empty_strided(sizes, strides)
    winners = input.new_empty_strided(sizes, strides, dtype=winner_dtype)
    if not is_laid_out:
        input = input.contiguous(memory_format=memory_format)
    if 0 not in sizes:
        library.dmlpool_max_pooling(
            DATA_TYPES[input.dtype],
            input.data_ptr(),
            None if only_winners else values.data_ptr(),
            winners.data_ptr(),
            winner_dtype.itemsize,
            numbering,
            address,
        )
    return values, winners


def max_pooling_indices(
    taps: Tensor, spatial_sizes: Sequence[int], window: Window, index_dtype: torch.dtype, per_plane: bool
) -> Tensor:
    """Indices that tap numbers stand for."""
    memory_format = operands.suggested_memory_format(taps)
    indices = _empty(taps.shape, index_dtype, memory_format)
    if indices.numel():
        taps = _laid_out(taps, memory_format)
        channels_last = memory_format is not torch.contiguous_format
        shape = (*taps.shape[:2], *spatial_sizes)
        address, _, _ = planned(shape, window, channels_last, torch.get_num_threads())
        numbering = POSITIONS if per_plane else INDICES
        library.dmlpool_max_pooling_indices(
            taps.data_ptr(), taps.itemsize, indices.data_ptr(), indices.itemsize, numbering, address
        )
    return indices


def max_pooling_grad(input: Tensor, input_gradient: Tensor, window: Window) -> Tensor:
    """The gradient to the winners, which are found again from the input."""
    _, taps = _with_winners(input, window, None, TAPS, only_winners=True)
    return max_pooling_grad_from_taps(input_gradient, taps, input.shape[2:], window, operands.is_channels_last(input))


def max_pooling_grad_from_taps(
    input_gradient: Tensor, taps: Tensor, spatial_sizes: Sequence[int], window: Window, channels_last: bool
) -> Tensor:
    """Each window's gradient, added to its winner's."""
    memory_format = operands.named_memory_format(channels_last, window.rank)
    shape = (*taps.shape[:2], *spatial_sizes)
    gradient = _empty(shape, input_gradient.dtype, memory_format)
    if gradient.numel():
        input_gradient, taps = _laid_out(input_gradient, memory_format), _laid_out(taps, memory_format)
        address, _, _ = planned(shape, window, channels_last, torch.get_num_threads())
        library.dmlpool_max_pooling_grad(
            DATA_TYPES[gradient.dtype],
            input_gradient.data_ptr(),
            taps.data_ptr(),
            taps.itemsize,
            gradient.data_ptr(),
            address,
        )
    return gradient


def max_pooling_gather(input: Tensor, taps: Tensor, window: Window) -> Tensor:
    """The element at each window's tap, 0 where the window is empty."""
    memory_format = operands.suggested_memory_format(taps)
    gathered = _empty(taps.shape, input.dtype, memory_format)
    if gathered.numel():
        input, taps = _laid_out(input, memory_format), _laid_out(taps, memory_format)
        channels_last = memory_format is not torch.contiguous_format
        address, _, _ = planned(input.shape, window, channels_last, torch.get_num_threads())
        library.dmlpool_max_pooling_gather(
            input.data_ptr(), input.itemsize, taps.data_ptr(), taps.itemsize, gathered.data_ptr(), address
        )
    return gathered


def adaptive_max_pooling(input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Maxima of bins and their positions in the plane."""
    plane = math.prod(input.shape[2:])
    lane_type = torch.float32 if input.dtype.itemsize <= 2 else torch.float64 if plane >= 2**31 else input.dtype
    if lane_type is not input.dtype and input.dtype.itemsize < 8:
        # The kernel numbers positions in lanes as wide as an element.
        values, positions = adaptive_max_pooling(input.to(lane_type), output_sizes)
        return values.to(input.dtype), positions
    memory_format = operands.suggested_memory_format(input)
    channels_last = memory_format is not torch.contiguous_format
    address, sizes, _ = planned_bins(input.shape, tuple(output_sizes), channels_last, torch.get_num_threads())
    values = _empty(sizes, input.dtype, memory_format)
    positions = _empty(sizes, operands.position_dtype(plane), memory_format)
    if values.numel():
        input = _laid_out(input, memory_format)
        data_type, pointers = DATA_TYPES[input.dtype], (input.data_ptr(), values.data_ptr(), positions.data_ptr())
        library.dmlpool_max_pooling(data_type, *pointers, positions.itemsize, POSITIONS, address)
    return values, positions


# Elements by their positions in the plane.


def unique_positions(positions: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """Positions inside the plane; of several alike the one that comes last in row-major order."""
    memory_format = operands.suggested_memory_format(positions)
    unique = _empty(positions.shape, operands.position_dtype(math.prod(spatial_sizes)), memory_format)
    if unique.numel():
        positions = _laid_out(positions, memory_format)
        address, _, _ = _planned_positions(positions, spatial_sizes, memory_format)
        library.dmlpool_unique_positions(
            positions.data_ptr(), positions.itemsize, unique.data_ptr(), unique.itemsize, address
        )
    return unique


def gather_positions(input: Tensor, positions: Tensor) -> Tensor:
    """The element at each position, 0 where it lies outside the plane."""
    memory_format = operands.suggested_memory_format(positions)
    gathered = _empty(positions.shape, input.dtype, memory_format)
    if gathered.numel():
        input, positions = _laid_out(input, memory_format), _laid_out(positions, memory_format)
        address, _, _ = _planned_positions(positions, input.shape[2:], memory_format)
        library.dmlpool_gather_positions(
            input.data_ptr(), input.itemsize, positions.data_ptr(), positions.itemsize, gathered.data_ptr(), address
        )
    return gathered


def scatter_positions(
    input: Tensor,
    positions: Tensor,
    spatial_sizes: Sequence[int],
    bins: bool,  # noqa: ARG001 - sums are right for unique positions too
    channels_last: bool,
) -> Tensor:
    """Zeros with each element added at its position."""
    memory_format = operands.named_memory_format(channels_last, len(spatial_sizes))
    scattered = _empty((*input.shape[:2], *spatial_sizes), input.dtype, memory_format)
    if scattered.numel():
        input, positions = _laid_out(input, memory_format), _laid_out(positions, memory_format)
        address, _, _ = _planned_positions(positions, spatial_sizes, memory_format)
        data_type = DATA_TYPES[input.dtype]
        library.dmlpool_scatter_positions(
            data_type, input.data_ptr(), positions.data_ptr(), positions.itemsize, scattered.data_ptr(), address
        )
    return scattered


def _planned_positions(
    positions: Tensor, spatial_sizes: Sequence[int], memory_format: torch.memory_format
) -> tuple[int, tuple[int, ...], Problem]:
    shape = (*positions.shape[:2], *spatial_sizes)
    channels_last = memory_format is not torch.contiguous_format
    return planned_bins(shape, tuple(positions.shape[2:]), channels_last, torch.get_num_threads())


# Average pooling.


def average_pooling(input: Tensor, window: Window, include_padding: bool, divisor_override: int | None) -> Tensor:
    """Averages of windows."""
    address, counting, sizes, strides, memory_format, is_laid_out, _ = arranged_average(
        input.shape, input.stride(), None, window, include_padding, divisor_override, torch.get_num_threads()
    )
    output = input.new_empty_strided(sizes, strides)
    if not is_laid_out:
        input = input.contiguous(memory_format=memory_format)
    if 0 not in sizes:
        library.dmlpool_average_pooling(DATA_TYPES[input.dtype], input.data_ptr(), output.data_ptr(), address, counting)
    return output


def average_pooling_grad(
    input_gradient: Tensor,
    spatial_sizes: Sequence[int],
    window: Window,
    include_padding: bool,
    divisor_override: int | None,
) -> Tensor:
    """The adjoint of the average for an input of ``spatial_sizes``, in the layout of ``input_gradient``."""
    given, inner, threads = input_gradient, tuple(spatial_sizes), torch.get_num_threads()
    address, counting, sizes, strides, memory_format, is_laid_out, _ = arranged_average(
        given.shape, given.stride(), inner, window, include_padding, divisor_override, threads
    )
    gradient = given.new_empty_strided(sizes, strides)
    if not is_laid_out:
        given = given.contiguous(memory_format=memory_format)
    if 0 not in sizes:
        data_type = DATA_TYPES[given.dtype]
        library.dmlpool_average_pooling_grad(data_type, given.data_ptr(), gradient.data_ptr(), address, counting)
    return gradient


def adaptive_average_pooling(input: Tensor, output_sizes: Sequence[int]) -> Tensor:
    """Averages of bins."""
    memory_format = operands.suggested_memory_format(input)
    channels_last = memory_format is not torch.contiguous_format
    address, _ = planned_average_of_bins(input.shape, tuple(output_sizes), channels_last, torch.get_num_threads())
    output = _empty((*input.shape[:2], *output_sizes), input.dtype, memory_format)
    if output.numel():
        input = _laid_out(input, memory_format)
        library.dmlpool_average_pooling(
            DATA_TYPES[input.dtype], input.data_ptr(), output.data_ptr(), address, ctypes.addressof(COUNTING_ALL)
        )
    return output


def adaptive_average_pooling_grad(input_gradient: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """The adjoint of averages of bins, in the layout of ``input_gradient``."""
    memory_format = operands.suggested_memory_format(input_gradient)
    channels_last = memory_format is not torch.contiguous_format
    sizes = (*input_gradient.shape[:2], *spatial_sizes)
    address, _ = planned_average_of_bins(sizes, tuple(input_gradient.shape[2:]), channels_last, torch.get_num_threads())
    gradient = _empty(sizes, input_gradient.dtype, memory_format)
    if gradient.numel():
        arriving = _laid_out(input_gradient, memory_format)
        library.dmlpool_average_pooling_grad(
            DATA_TYPES[arriving.dtype],
            arriving.data_ptr(),
            gradient.data_ptr(),
            address,
            ctypes.addressof(COUNTING_ALL),
        )
    return gradient


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
    """Averages of integers that stand for real numbers, requantized exactly (rules Q1, Q2 and Q6)."""
    address, counting, sizes, strides, memory_format, _, _ = arranged_average(
        input.shape, input.stride(), None, window, include_padding, None, torch.get_num_threads()
    )
    output = input.new_empty_strided(sizes, strides, dtype=output_dtype)
    if output.numel():
        input = _laid_out(input, memory_format)
        scales = [_vector(scale, torch.float32) for scale in (input_scale, output_scale)]
        zeros = [_vector(0 if zero is None else zero, torch.int32) for zero in (input_zero_point, output_zero_point)]
        vectors = scales + zeros
        limits = torch.iinfo(output_dtype)
        quantization = Quantization(
            *(vector.data_ptr() for vector in vectors),
            *(vector.numel() for vector in vectors),
            input.shape[1],
            limits.min,
            limits.max,
        )
        library.dmlpool_quantized_average_pooling(
            input.dtype is torch.int8,
            input.data_ptr(),
            output.data_ptr(),
            address,
            counting,
            ctypes.addressof(quantization),
        )
    return output


def _vector(parameter: float | Tensor, dtype: torch.dtype) -> Tensor:
    """A scale or zero point as contiguous entries of ``dtype``: one for all channels, or one each."""
    if isinstance(parameter, Tensor):
        return parameter.to(dtype).contiguous()
    return torch.tensor([parameter], dtype=dtype, device="cpu")
