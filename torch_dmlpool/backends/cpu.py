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

Windows = Window | tuple[int, ...]
"""A sliding window, or the output sizes of bins."""
try:
    # Half the time of torch.empty_strided.
    from torch._C._dynamo.guards import _empty_strided_cpu as _new  # type: ignore[attr-defined]
except ImportError:  # a PyTorch whose generated code allocates otherwise

    def _new(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(sizes, strides, dtype=dtype, device="cpu")


# Max pooling.

TAPS, POSITIONS, INDICES = range(3)
"""What a winner is written as: the numbers of ``Numbering`` in kernels/max_pooling.cpp."""


def max_pooling(input: Tensor, window: Window) -> Tensor:
    """Maxima alone."""
    plan = planned(input.shape, input.stride(), get_num_threads(), window)
    values = _new(plan.output_sizes, plan.output_strides, input.dtype)
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
    input: Tensor, window: Windows, winner_dtype: torch.dtype | None, numbering: int, only_winners: bool = False
) -> tuple[Tensor, Tensor]:
    """Maxima, or the input itself where they are not wanted, and which element of each window they are."""
    plan = planned(input.shape, input.stride(), get_num_threads(), window)
    if winner_dtype is None:
        winner_dtype = operands.tap_dtype(plan.taps)
    # The kernel numbers them in the lower half of integers of twice an element's size, of four bytes at least.
    highest = plan.taps if numbering == TAPS else plan.reach
    wider = torch.float32 if highest <= 2**31 else torch.float64
    if highest > 2**15 and input.dtype.itemsize < wider.itemsize:
        values, winners = _with_winners(input.to(wider), window, winner_dtype, numbering, only_winners)
        if not input.is_floating_point():  # the least of this type, not of the wider one, where a window is empty
            values = values.clamp(min=torch.iinfo(input.dtype).min)
        return values.to(input.dtype), winners
    values = input if only_winners else _new(plan.output_sizes, plan.output_strides, input.dtype)
    winners = _new(plan.output_sizes, plan.output_strides, winner_dtype)
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
    plan = planned(taps.shape, taps.stride(), get_num_threads(), window, tuple(spatial_sizes))
    indices = _new(plan.output_sizes, plan.output_strides, index_dtype)
    if not plan.is_empty:
        source = taps.contiguous(memory_format=plan.memory_format)
        results = indices.data_ptr(), indices.itemsize, POSITIONS if per_plane else INDICES
        library.dmlpool_max_pooling_indices(source.data_ptr(), taps.itemsize, *results, plan.problem)
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
    sizes = tuple(spatial_sizes)
    plan = planned(taps.shape, taps.stride(), get_num_threads(), window, sizes, None, memory_format)
    gradient = _new(plan.sizes, plan.strides, input_gradient.dtype)
    if not plan.is_empty:
        arriving = input_gradient.contiguous(memory_format=memory_format)
        winners = taps if plan.is_laid_out else taps.contiguous(memory_format=memory_format)
        pointers = arriving.data_ptr(), winners.data_ptr(), taps.itemsize, gradient.data_ptr()
        library.dmlpool_max_pooling_grad(DATA_TYPES[gradient.dtype], *pointers, plan.problem)
    return gradient


def max_pooling_gather(input: Tensor, taps: Tensor, window: Window) -> Tensor:
    """The element at each window's tap, 0 where the window is empty."""
    sizes = input.shape[2:]
    return gather_positions(
        input, max_pooling_indices(taps, sizes, window, operands.position_dtype(math.prod(sizes)), True)
    )


# Elements by their positions in the plane.


def unique_positions(positions: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """Positions inside the plane; of several alike the one that comes last in row-major order."""
    sizes, outputs = tuple(spatial_sizes), positions.shape[2:]
    plan = planned(positions.shape, positions.stride(), get_num_threads(), outputs, sizes)
    unique = _new(plan.output_sizes, plan.output_strides, operands.position_dtype(math.prod(sizes)))
    if not plan.is_empty:
        source = positions.contiguous(memory_format=plan.memory_format)
        pointers = source.data_ptr(), positions.itemsize, unique.data_ptr(), unique.itemsize
        library.dmlpool_unique_positions(*pointers, plan.problem)
    return unique


def gather_positions(input: Tensor, positions: Tensor, bins: bool = False) -> Tensor:  # noqa: ARG001
    """The element at each position, 0 outside the plane; whether ``bins`` chose them is for its adjoint alone."""
    plan = planned(positions.shape, positions.stride(), get_num_threads(), positions.shape[2:], input.shape[2:])
    gathered = _new(plan.output_sizes, plan.output_strides, input.dtype)
    if not plan.is_empty:
        source, places = (each.contiguous(memory_format=plan.memory_format) for each in (input, positions))
        pointers = source.data_ptr(), input.itemsize, places.data_ptr(), places.itemsize, gathered.data_ptr()
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
    plan = planned(positions.shape, positions.stride(), get_num_threads(), outputs, sizes, None, memory_format)
    scattered = _new(plan.sizes, plan.strides, input.dtype)
    if plan.is_empty:
        return scattered.zero_()
    source, places = (each.contiguous(memory_format=memory_format) for each in (input, positions))
    pointers = source.data_ptr(), places.data_ptr(), positions.itemsize, scattered.data_ptr()
    library.dmlpool_scatter_positions(DATA_TYPES[input.dtype], *pointers, plan.problem)
    return scattered


# Average pooling.


def average_pooling(input: Tensor, window: Windows, include_padding: bool, divisor_override: int | None) -> Tensor:
    """Averages of windows."""
    counted = include_padding, divisor_override
    plan = planned(input.shape, input.stride(), get_num_threads(), window, None, counted)
    output = _new(plan.output_sizes, plan.output_strides, input.dtype)
    if not plan.is_empty:
        source = input if plan.is_laid_out else input.contiguous(memory_format=plan.memory_format)
        pointers = source.data_ptr(), output.data_ptr()
        library.dmlpool_average_pooling(DATA_TYPES[input.dtype], *pointers, plan.problem, plan.counting)
    return output


def adaptive_average_pooling(input: Tensor, output_sizes: Sequence[int]) -> Tensor:
    """Averages of bins."""
    return average_pooling(input, tuple(output_sizes), False, None)


def average_pooling_grad(
    input_gradient: Tensor,
    spatial_sizes: Sequence[int],
    window: Windows,
    include_padding: bool,
    divisor_override: int | None,
) -> Tensor:
    """The adjoint of the average for an input of ``spatial_sizes``, in the layout of ``input_gradient``."""
    shape, strides, counted = input_gradient.shape, input_gradient.stride(), (include_padding, divisor_override)
    plan = planned(shape, strides, get_num_threads(), window, tuple(spatial_sizes), counted)
    gradient = _new(plan.sizes, plan.strides, input_gradient.dtype)
    if not plan.is_empty:
        source = input_gradient if plan.is_laid_out else input_gradient.contiguous(memory_format=plan.memory_format)
        pointers = source.data_ptr(), gradient.data_ptr()
        library.dmlpool_average_pooling_grad(DATA_TYPES[gradient.dtype], *pointers, plan.problem, plan.counting)
    return gradient


def adaptive_average_pooling_grad(input_gradient: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """The adjoint of averages of bins, in the layout of ``input_gradient``."""
    return average_pooling_grad(input_gradient, spatial_sizes, input_gradient.shape[2:], False, None)


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
    plan = planned(input.shape, input.stride(), get_num_threads(), window, None, (include_padding, None))
    output = _new(plan.output_sizes, plan.output_strides, output_dtype)
    if not plan.is_empty:
        source = input.contiguous(memory_format=plan.memory_format)
        vectors = [_vector(scale, torch.float32) for scale in (input_scale, output_scale)]
        vectors += [_vector(0 if zero is None else zero, torch.int32) for zero in (input_zero_point, output_zero_point)]
        pointers, counts = [vector.data_ptr() for vector in vectors], [vector.numel() for vector in vectors]
        limits = torch.iinfo(output_dtype)
        quantization = Quantization(*pointers, *counts, input.shape[1], limits.min, limits.max)
        structs = plan.problem, plan.counting, ctypes.addressof(quantization)
        are_signed = input.dtype is torch.int8
        library.dmlpool_quantized_average_pooling(are_signed, source.data_ptr(), output.data_ptr(), *structs)
    return output


def _vector(parameter: float | Tensor, dtype: torch.dtype) -> Tensor:
    """A scale or zero point as contiguous entries of ``dtype``: one for all channels, or one each."""
    if isinstance(parameter, Tensor):
        return parameter.to(dtype).contiguous()
    return torch.tensor([parameter], dtype=dtype, device="cpu")
