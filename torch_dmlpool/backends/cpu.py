"""The CPU backend: calls the compiled kernels (kernels/*.cpp), which ``cpu_library`` loads, for each operator."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch
from torch import Tensor, get_num_threads

from torch_dmlpool import operands
from torch_dmlpool.backends.cpu_library import DATA_TYPES, Quantization, planned
from torch_dmlpool.backends.cpu_library import library as library
from torch_dmlpool.backends.cpu_library import missing as missing
from torch_dmlpool.window import Window


def _laid_out(tensor: Tensor, memory_format: torch.memory_format) -> Tensor:
    """``tensor`` in one of the two layouts that the kernels read."""
    return (
        tensor if tensor.is_contiguous(memory_format=memory_format) else tensor.contiguous(memory_format=memory_format)
    )


# Max pooling.

TAPS, POSITIONS, INDICES = range(3)
"""What a winner is written as: the numbers of ``Numbering`` in kernels/max_pooling.cpp."""


def max_pooling(input: Tensor, window: Window) -> Tensor:
    """Maxima alone."""
    plan = planned(input.shape, input.stride(), window, None, None, None, get_num_threads())
    values = input.new_empty_strided(plan.output_sizes, plan.output_strides)
    if not plan.is_empty:
        source = input if plan.is_laid_out else input.contiguous(memory_format=plan.memory_format)
        pointers = source.data_ptr(), values.data_ptr(), None
        library.dmlpool_max_pooling(DATA_TYPES[input.dtype], *pointers, 0, 0, plan.problem)
    return values


def max_pooling_with_taps(input: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Maxima and the numbers of their taps."""
    return _with_winners(input, window, None, TAPS)


def max_pooling_with_indices(
    input: Tensor, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> tuple[Tensor, Tensor]:
    """Maxima and their indices."""
    return _with_winners(input, window, index_dtype, POSITIONS if per_plane else INDICES)


def adaptive_max_pooling(input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Maxima of bins and their positions in the plane."""
    dtype = operands.position_dtype(math.prod(input.shape[2:]))
    return _with_winners(input, tuple(output_sizes), dtype, POSITIONS)


def _with_winners(
    input: Tensor,
    window: Window | tuple[int, ...],
    winner_dtype: torch.dtype | None,
    numbering: int,
    only_winners: bool = False,
) -> tuple[Tensor, Tensor]:
    """Maxima, or the input itself where they are not wanted, and which element of each window they are."""
    plan = planned(input.shape, input.stride(), window, None, None, None, get_num_threads())
    if winner_dtype is None:
        winner_dtype = operands.tap_dtype(plan.taps)
    # The kernel numbers them in the lower half of integers of twice an element's size, of four bytes at least.
    highest = plan.taps if numbering == TAPS else plan.reach
    wider = torch.float32 if highest <= 2**31 else torch.float64
    if highest > 2**15 and input.dtype.itemsize < wider.itemsize:
        values, winners = _with_winners(input.to(wider), window, winner_dtype, numbering, only_winners)
        return values.to(input.dtype), winners
    values = input if only_winners else input.new_empty_strided(plan.output_sizes, plan.output_strides)
    winners = input.new_empty_strided(plan.output_sizes, plan.output_strides, dtype=winner_dtype)
    if not plan.is_empty:
        source = input if plan.is_laid_out else input.contiguous(memory_format=plan.memory_format)
        pointers = source.data_ptr(), None if only_winners else values.data_ptr(), winners.data_ptr()
        numbers = winner_dtype.itemsize, numbering
        library.dmlpool_max_pooling(DATA_TYPES[input.dtype], *pointers, *numbers, plan.problem)
    return values, winners


def max_pooling_indices(
    taps: Tensor, spatial_sizes: Sequence[int], window: Window, index_dtype: torch.dtype, per_plane: bool
) -> Tensor:
    """Indices that tap numbers stand for."""
    plan = planned(taps.shape, taps.stride(), window, tuple(spatial_sizes), None, None, get_num_threads())
    indices = taps.new_empty_strided(plan.output_sizes, plan.output_strides, dtype=index_dtype)
    if not plan.is_empty:
        source = _laid_out(taps, plan.memory_format)
        numbering = POSITIONS if per_plane else INDICES
        library.dmlpool_max_pooling_indices(
            source.data_ptr(), taps.itemsize, indices.data_ptr(), indices.itemsize, numbering, plan.problem
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
    plan = planned(taps.shape, taps.stride(), window, tuple(spatial_sizes), None, memory_format, get_num_threads())
    gradient = input_gradient.new_empty_strided(plan.sizes, plan.strides)
    if not plan.is_empty:
        arriving, winners = _laid_out(input_gradient, memory_format), _laid_out(taps, memory_format)
        pointers = arriving.data_ptr(), winners.data_ptr(), taps.itemsize, gradient.data_ptr()
        library.dmlpool_max_pooling_grad(DATA_TYPES[gradient.dtype], *pointers, plan.problem)
    return gradient


def max_pooling_gather(input: Tensor, taps: Tensor, window: Window) -> Tensor:
    """The element at each window's tap, 0 where the window is empty."""
    plan = planned(taps.shape, taps.stride(), window, input.shape[2:], None, None, get_num_threads())
    gathered = input.new_empty_strided(plan.output_sizes, plan.output_strides)
    if not plan.is_empty:
        source, winners = _laid_out(input, plan.memory_format), _laid_out(taps, plan.memory_format)
        pointers = source.data_ptr(), input.itemsize, winners.data_ptr(), taps.itemsize, gathered.data_ptr()
        library.dmlpool_max_pooling_gather(*pointers, plan.problem)
    return gathered


# Elements by their positions in the plane.


def unique_positions(positions: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """Positions inside the plane; of several alike the one that comes last in row-major order."""
    sizes, outputs = tuple(spatial_sizes), positions.shape[2:]
    plan = planned(positions.shape, positions.stride(), outputs, sizes, None, None, get_num_threads())
    dtype = operands.position_dtype(math.prod(sizes))
    unique = positions.new_empty_strided(plan.output_sizes, plan.output_strides, dtype=dtype)
    if not plan.is_empty:
        source = _laid_out(positions, plan.memory_format)
        pointers = source.data_ptr(), positions.itemsize, unique.data_ptr(), unique.itemsize
        library.dmlpool_unique_positions(*pointers, plan.problem)
    return unique


def gather_positions(input: Tensor, positions: Tensor) -> Tensor:
    """The element at each position, 0 where it lies outside the plane."""
    sizes, outputs = input.shape[2:], positions.shape[2:]
    plan = planned(positions.shape, positions.stride(), outputs, sizes, None, None, get_num_threads())
    gathered = input.new_empty_strided(plan.output_sizes, plan.output_strides)
    if not plan.is_empty:
        source, places = _laid_out(input, plan.memory_format), _laid_out(positions, plan.memory_format)
        pointers = source.data_ptr(), input.itemsize, places.data_ptr(), positions.itemsize, gathered.data_ptr()
        library.dmlpool_gather_positions(*pointers, plan.problem)
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
    sizes, outputs = tuple(spatial_sizes), positions.shape[2:]
    plan = planned(positions.shape, positions.stride(), outputs, sizes, None, memory_format, get_num_threads())
    scattered = input.new_empty_strided(plan.sizes, plan.strides)
    if plan.is_empty:
        return scattered.zero_()
    source, places = _laid_out(input, memory_format), _laid_out(positions, memory_format)
    pointers = source.data_ptr(), places.data_ptr(), positions.itemsize, scattered.data_ptr()
    library.dmlpool_scatter_positions(DATA_TYPES[input.dtype], *pointers, plan.problem)
    return scattered


# Average pooling.


def average_pooling(input: Tensor, window: Window, include_padding: bool, divisor_override: int | None) -> Tensor:
    """Averages of windows."""
    return _average(input, window, (include_padding, divisor_override))


def adaptive_average_pooling(input: Tensor, output_sizes: Sequence[int]) -> Tensor:
    """Averages of bins."""
    return _average(input, tuple(output_sizes), (False, None))


def _average(input: Tensor, window: Window | tuple[int, ...], counted: tuple[bool, int | None]) -> Tensor:
    plan = planned(input.shape, input.stride(), window, None, counted, None, get_num_threads())
    output = input.new_empty_strided(plan.output_sizes, plan.output_strides)
    if not plan.is_empty:
        source = input if plan.is_laid_out else input.contiguous(memory_format=plan.memory_format)
        pointers = source.data_ptr(), output.data_ptr()
        library.dmlpool_average_pooling(DATA_TYPES[input.dtype], *pointers, plan.problem, plan.counting)
    return output


def average_pooling_grad(
    input_gradient: Tensor,
    spatial_sizes: Sequence[int],
    window: Window,
    include_padding: bool,
    divisor_override: int | None,
) -> Tensor:
    """The adjoint of the average for an input of ``spatial_sizes``, in the layout of ``input_gradient``."""
    return _average_grad(input_gradient, spatial_sizes, window, (include_padding, divisor_override))


def adaptive_average_pooling_grad(input_gradient: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """The adjoint of averages of bins, in the layout of ``input_gradient``."""
    return _average_grad(input_gradient, spatial_sizes, input_gradient.shape[2:], (False, None))


def _average_grad(
    arriving: Tensor,
    spatial_sizes: Sequence[int],
    window: Window | tuple[int, ...],
    counted: tuple[bool, int | None],
) -> Tensor:
    shape, strides = arriving.shape, arriving.stride()
    plan = planned(shape, strides, window, tuple(spatial_sizes), counted, None, get_num_threads())
    gradient = arriving.new_empty_strided(plan.sizes, plan.strides)
    if not plan.is_empty:
        source = arriving if plan.is_laid_out else arriving.contiguous(memory_format=plan.memory_format)
        pointers = source.data_ptr(), gradient.data_ptr()
        library.dmlpool_average_pooling_grad(DATA_TYPES[arriving.dtype], *pointers, plan.problem, plan.counting)
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
    shape, strides = input.shape, input.stride()
    plan = planned(shape, strides, window, None, (include_padding, None), None, get_num_threads())
    output = input.new_empty_strided(plan.output_sizes, plan.output_strides, dtype=output_dtype)
    if not plan.is_empty:
        source = _laid_out(input, plan.memory_format)
        vectors = [_vector(scale, torch.float32) for scale in (input_scale, output_scale)]
        vectors += [_vector(0 if zero is None else zero, torch.int32) for zero in (input_zero_point, output_zero_point)]
        pointers, counts = [vector.data_ptr() for vector in vectors], [vector.numel() for vector in vectors]
        limits = torch.iinfo(output_dtype)
        quantization = Quantization(*pointers, *counts, shape[1], limits.min, limits.max)
        library.dmlpool_quantized_average_pooling(
            input.dtype is torch.int8,
            source.data_ptr(),
            output.data_ptr(),
            plan.problem,
            plan.counting,
            ctypes.addressof(quantization),
        )
    return output


def _vector(parameter: float | Tensor, dtype: torch.dtype) -> Tensor:
    """A scale or zero point as contiguous entries of ``dtype``: one for all channels, or one each."""
    if isinstance(parameter, Tensor):
        return parameter.to(dtype).contiguous()
    return torch.tensor([parameter], dtype=dtype, device="cpu")
