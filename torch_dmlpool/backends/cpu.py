"""The CPU backend: calls the compiled kernels (kernels/*.cpp), which ``cpu_library`` loads, for each operator.

What each operator computes is said in ``reference``.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends import reference
from torch_dmlpool.backends.cpu_library import INDICES, POSITIONS, TAPS, Plan, Quantization, planned
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


def _filled(output: Tensor, function: Any, plan: Plan, source: Tensor, numbers: Tensor | None = None) -> Tensor:
    """``output`` with what a function of the library computes from ``source`` and the ``numbers`` of winners."""
    if plan.is_empty:
        return output.zero_()
    if numbers is None:
        source = source if plan.is_laid_out else source.contiguous(memory_format=plan.memory_format)
        function(plan.problem, source.data_ptr(), output.data_ptr())
    else:
        source = source.contiguous(memory_format=plan.memory_format)
        numbers = numbers if plan.is_laid_out else numbers.contiguous(memory_format=plan.memory_format)
        function(plan.problem, source.data_ptr(), numbers.data_ptr(), output.data_ptr())
    return output


def max_pooling(input: Tensor, window: Window) -> Tensor:
    plan = planned(input.shape, input.stride(), input.dtype, window)
    values = _new(plan.output_sizes, plan.output_strides, input.dtype)
    if not plan.is_empty:
        source = input if plan.is_laid_out else input.contiguous(memory_format=plan.memory_format)
        library.dmlpool_max_pooling(plan.problem, source.data_ptr(), values.data_ptr(), None)
    return values


def max_pooling_with_taps(input: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    return _with_winners(input, window, None, TAPS)


def max_pooling_with_indices(
    input: Tensor, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> tuple[Tensor, Tensor]:
    return _with_winners(input, window, index_dtype, POSITIONS if per_plane else INDICES)


def adaptive_max_pooling(input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    dtype = operands.position_dtype(math.prod(input.shape[2:]))
    return _with_winners(input, tuple(output_sizes), dtype, POSITIONS)


def _with_winners(
    input: Tensor, window: Windows, winner_dtype: torch.dtype | None, numbering: int, only_winners: bool = False
) -> tuple[Tensor, Tensor]:
    """Maxima, or the input itself where they are not wanted, and which element of each window they are."""
    plan = planned(input.shape, input.stride(), input.dtype, window, None, None, (winner_dtype, numbering))
    if plan.wider is not None:
        values, winners = _with_winners(input.to(plan.wider), window, winner_dtype, numbering, only_winners)
        if not input.is_floating_point():  # the least of this type, not of the wider one, where a window is empty
            values = values.clamp(min=torch.iinfo(input.dtype).min)
        return values.to(input.dtype), winners
    values = input if only_winners else _new(plan.output_sizes, plan.output_strides, input.dtype)
    winners = _new(plan.output_sizes, plan.output_strides, plan.number_dtype)
    if not plan.is_empty:
        source = input if plan.is_laid_out else input.contiguous(memory_format=plan.memory_format)
        output = None if only_winners else values.data_ptr()
        library.dmlpool_max_pooling(plan.problem, source.data_ptr(), output, winners.data_ptr())
    return values, winners


def max_pooling_indices(
    taps: Tensor, spatial_sizes: Sequence[int], window: Window, index_dtype: torch.dtype, per_plane: bool
) -> Tensor:
    numbered = index_dtype, POSITIONS if per_plane else INDICES
    plan = planned(taps.shape, taps.stride(), taps.dtype, window, None, tuple(spatial_sizes), numbered)
    indices = _new(plan.output_sizes, plan.output_strides, index_dtype)
    return _filled(indices, library.dmlpool_max_pooling_indices, plan, taps)


def max_pooling_grad(input: Tensor, input_gradient: Tensor, window: Window) -> Tensor:
    """The gradient to the winners, which are found again from the input."""
    _, taps = _with_winners(input, window, None, TAPS, only_winners=True)
    return max_pooling_grad_from_taps(input_gradient, taps, input.shape[2:], window, operands.is_channels_last(input))


def max_pooling_grad_from_taps(
    input_gradient: Tensor, taps: Tensor, spatial_sizes: Sequence[int], window: Window, channels_last: bool
) -> Tensor:
    """Each window's gradient, added to its winner's."""
    memory_format = operands.named_memory_format(channels_last, window.rank)
    dtype, rest = input_gradient.dtype, (None, tuple(spatial_sizes), (taps.dtype, TAPS), memory_format)
    plan = planned(taps.shape, taps.stride(), dtype, window, *rest)
    gradient = _new(plan.sizes, plan.strides, dtype)
    return _filled(gradient, library.dmlpool_max_pooling_grad, plan, input_gradient, taps)


def max_pooling_gather(input: Tensor, taps: Tensor, window: Window) -> Tensor:
    sizes = input.shape[2:]
    positions = max_pooling_indices(taps, sizes, window, operands.position_dtype(math.prod(sizes)), True)
    return gather_positions(input, positions)


def unique_positions(positions: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    sizes, shape = tuple(spatial_sizes), positions.shape
    numbered = operands.position_dtype(math.prod(sizes)), POSITIONS
    plan = planned(shape, positions.stride(), positions.dtype, shape[2:], None, sizes, numbered)
    unique = _new(plan.output_sizes, plan.output_strides, plan.number_dtype)
    return _filled(unique, library.dmlpool_unique_positions, plan, positions)


def gather_positions(input: Tensor, positions: Tensor, _: bool = False) -> Tensor:
    """The element at each position, 0 outside the plane; whether bins chose them is for its adjoint alone."""
    shape, strides, numbered = positions.shape, positions.stride(), (positions.dtype, POSITIONS)
    plan = planned(shape, strides, input.dtype, shape[2:], None, input.shape[2:], numbered)
    gathered = _new(plan.output_sizes, plan.output_strides, input.dtype)
    return _filled(gathered, library.dmlpool_gather_positions, plan, input, positions)


def scatter_positions(
    input: Tensor, positions: Tensor, spatial_sizes: Sequence[int], _: bool, channels_last: bool
) -> Tensor:
    """Zeros with each element added at its position, which is right for unique positions too."""
    memory_format = operands.named_memory_format(channels_last, len(spatial_sizes))
    shape, strides, dtype, numbered = positions.shape, positions.stride(), input.dtype, (positions.dtype, POSITIONS)
    plan = planned(shape, strides, dtype, shape[2:], None, tuple(spatial_sizes), numbered, memory_format)
    scattered = _new(plan.sizes, plan.strides, dtype)
    return _filled(scattered, library.dmlpool_scatter_positions, plan, input, positions)


def average_pooling(input: Tensor, window: Windows, *counted: Any) -> Tensor:
    """Averages of windows; what is ``counted``: whether padding is, and the divisor where that is given."""
    plan = planned(input.shape, input.stride(), input.dtype, window, counted)
    output = _new(plan.output_sizes, plan.output_strides, input.dtype)
    return _filled(output, library.dmlpool_average_pooling, plan, input)


def adaptive_average_pooling(input: Tensor, output_sizes: Sequence[int]) -> Tensor:
    return average_pooling(input, tuple(output_sizes), False, None)


def average_pooling_grad(
    input_gradient: Tensor, spatial_sizes: Sequence[int], window: Windows, *counted: Any
) -> Tensor:
    """The adjoint of the average for an input of ``spatial_sizes``, in the layout of ``input_gradient``."""
    dtype = input_gradient.dtype
    plan = planned(input_gradient.shape, input_gradient.stride(), dtype, window, counted, tuple(spatial_sizes))
    gradient = _new(plan.sizes, plan.strides, dtype)
    return _filled(gradient, library.dmlpool_average_pooling_grad, plan, input_gradient)


def adaptive_average_pooling_grad(input_gradient: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    return average_pooling_grad(input_gradient, spatial_sizes, input_gradient.shape[2:], False, None)


def quantized_linear_average_pooling(input: Tensor, *arguments: Any) -> Tensor:
    scale, zero_point, output_scale, output_zero_point, window, include_padding, output_dtype = arguments
    plan = planned(input.shape, input.stride(), input.dtype, window, (include_padding, None))  # refuses bad windows
    if window.taps >= 1 << 23:  # sums of so many do not fit 32 bits
        return reference.quantized_linear_average_pooling(input, *arguments)
    output = _new(plan.output_sizes, plan.output_strides, output_dtype)
    if not plan.is_empty:
        source = input.contiguous(memory_format=plan.memory_format)
        vectors = [_vector(each, torch.float32, ctypes.c_float) for each in (scale, output_scale)]
        vectors += [_vector(each, torch.int32, ctypes.c_int32) for each in (zero_point, output_zero_point)]
        pointers, counts, _kept = zip(*vectors, strict=True)
        limits = torch.iinfo(output_dtype)
        quantization = Quantization(*pointers, *counts, input.shape[1], limits.min, limits.max)
        results = output.data_ptr(), ctypes.addressof(quantization)
        library.dmlpool_quantized_average_pooling(plan.problem, source.data_ptr(), *results)
    return output


def _vector(parameter: float | Tensor | None, dtype: torch.dtype, number: type[Any]) -> tuple[int, int, Any]:
    """A scale or zero point, one for all channels or one each: where its entries are, how many, and what holds them."""
    if isinstance(parameter, Tensor):
        entries = parameter.to(dtype).contiguous()
        return entries.data_ptr(), entries.numel(), entries
    entry = number(parameter or 0)
    return ctypes.addressof(entry), 1, entry
