"""The CPU backend: a call of the compiled kernels for each operator.

What each operator computes is said in ``reference``, and how the library is loaded in ``library``.
"""

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool._private import empty_strided_cpu as _new
from torch_dmlpool.backends import cpu_masks, reference
from torch_dmlpool.backends.interface import AnyWindow, Backend, Recorded
from torch_dmlpool.backends.library import (
    DONE,
    INDICES,
    OUTSIDE,
    POSITIONS,
    TAPS,
    error_of,
    library,
)
from torch_dmlpool.backends.library import missing as missing
from torch_dmlpool.backends.plans import CpuPlan, planned, quantization
from torch_dmlpool.backends.rows import (
    segment_maxima as segment_maxima,
)
from torch_dmlpool.backends.rows import (
    segment_shares as segment_shares,
)
from torch_dmlpool.backends.rows import (
    segment_sums as segment_sums,
)
from torch_dmlpool.backends.rows import (
    statistics as statistics,
)
from torch_dmlpool.backends.rows import (
    statistics_grad as statistics_grad,
)
from torch_dmlpool.elements import lowest
from torch_dmlpool.window import Window


def _filled(
    output: Tensor, function: Any, plan: CpuPlan, source: Tensor, *more: int | None
) -> Tensor:
    """Call a function of the library and return ``output``, which it fills. It gets the plan's
    problem, ``source`` and, after the output, ``more`` addresses.
    """
    if plan.is_empty:
        return output.zero_()
    if not plan.is_laid_out:
        source = operands.in_format(source, plan.memory_format)
    code = function(plan.problem, source.data_ptr(), output.data_ptr(), *more)
    if code:
        raise error_of(function, code)
    return output


def _filled_from_numbers(
    output: Tensor, function: Any, plan: CpuPlan, source: Tensor, numbers: Tensor
) -> Tensor:
    """The ``output`` of a function of the library that gets ``numbers`` (taps or positions) before
    it. The plan was made for the numbers, so that it is checked that the source fits them.
    """
    sizes = plan.sizes if output.shape == plan.output_sizes else plan.output_sizes
    if source.shape != sizes or not (source.is_cpu and numbers.is_cpu):
        raise RuntimeError(
            f"winners' numbers of sizes {tuple(numbers.shape)} on {numbers.device} fit a tensor of "
            f"sizes {tuple(sizes)}, but that has sizes {tuple(source.shape)} on {source.device}"
        )
    if plan.is_empty:
        return output.zero_()
    source = operands.in_format(source, plan.memory_format)
    if not plan.is_laid_out:
        numbers = operands.in_format(numbers, plan.memory_format)
    code = function(plan.problem, source.data_ptr(), numbers.data_ptr(), output.data_ptr())
    if code:
        raise error_of(function, code)
    return output


_TAPS = None, TAPS  # winners are taps, in the data type that holds the window's


class _CpuGradientPlan:
    """The plan of a call and the plan of its gradient: ``interface.GradientPlan``."""

    __slots__ = ("back", "dtype", "function", "like", "plan")

    def __init__(
        self, request: tuple[Any, ...], plan: CpuPlan, function: Any, *of_gradient: Any
    ) -> None:
        shape, strides, self.dtype, window, counted, *_ = request
        self.like = torch.empty_strided(shape, strides, dtype=self.dtype, device="meta")
        self.plan, self.function = plan, function
        output = plan.output_sizes, plan.output_strides, self.dtype
        self.back = planned(*output, window, counted, shape[2:], *of_gradient)

    def gradient(self, arriving: Tensor, choice: Tensor | None = None) -> Tensor | None:
        """The gradient; None where the operands do not lie in memory as the output does."""
        back, dtype = self.back, self.dtype
        if back.is_empty or not _lies_as(arriving, back, dtype):
            return None
        if choice is not None and not _lies_as(choice, back, back.number_dtype):
            return None
        gradient = _new(back.sizes, back.strides, dtype)
        taps = () if choice is None else (choice.data_ptr(),)
        code = self.function(back.problem, arriving.data_ptr(), *taps, gradient.data_ptr())
        if code:
            raise error_of(self.function, code)
        return gradient


def _lies_as(tensor: Tensor, plan: CpuPlan, dtype: torch.dtype) -> bool:
    """Whether ``tensor`` has the sizes, strides and data type of the results of a plan."""
    return (
        tensor.stride() == plan.output_strides
        and tensor.shape == plan.output_sizes
        and tensor.dtype is dtype
        and tensor.is_cpu
    )


def max_pooling(input: Tensor, window: Window) -> Tensor:
    plan = planned(input.shape, input.stride(), input.dtype, window)
    values = _new(plan.output_sizes, plan.output_strides, input.dtype)
    return _filled(values, library.dmlpool_max_pooling, plan, input, None)


def max_pooling_with_taps(input: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    return _with_winners(input, window, None, TAPS)


def recorded_max_pooling(input: Tensor, window: Window) -> Recorded:
    """Maxima and what their gradient needs."""
    plans = _plans_of_maxima(input.shape, input.stride(), input.dtype, window)
    values, taps = _with_winners(input, window, None, TAPS, plan=plans.plan)
    return values, (taps,), plans


@functools.lru_cache(maxsize=4096)
def _plans_of_maxima(*request: Any) -> _CpuGradientPlan:
    plan = planned(*request, None, None, _TAPS)
    numbered = (plan.number_dtype, TAPS), plan.memory_format
    return _CpuGradientPlan((*request, None), plan, library.dmlpool_max_pooling_grad, *numbered)


def max_pooling_with_indices(
    input: Tensor, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> tuple[Tensor, Tensor]:
    return _with_winners(input, window, index_dtype, POSITIONS if per_plane else INDICES)


def adaptive_max_pooling(input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    dtype = operands.position_dtype(math.prod(input.shape[2:]))
    return _with_winners(input, tuple(output_sizes), dtype, POSITIONS)


def _with_winners(
    input: Tensor,
    window: AnyWindow,
    winner_dtype: torch.dtype | None,
    numbering: int,
    plan: CpuPlan | None = None,
) -> tuple[Tensor, Tensor]:
    """Maxima and the numbers of their winners. ``plan`` is the call's plan, if it was looked up
    already.
    """
    if plan is None:
        numbered = winner_dtype, numbering
        plan = planned(input.shape, input.stride(), input.dtype, window, None, None, numbered)
    if plan.wider is not None:
        values, winners = _with_winners(input.to(plan.wider), window, winner_dtype, numbering)
        # An empty window's maximum is the lowest value of the input's type, not of the wider one.
        if not input.is_floating_point():
            values = values.clamp(min=lowest(input.dtype))
        return values.to(input.dtype), winners
    values = _new(plan.output_sizes, plan.output_strides, input.dtype)
    winners = _new(plan.output_sizes, plan.output_strides, plan.number_dtype)
    _filled(values, library.dmlpool_max_pooling, plan, input, winners.data_ptr())
    return values, winners


def max_pooling_indices(
    taps: Tensor,
    spatial_sizes: Sequence[int],
    window: Window,
    index_dtype: torch.dtype,
    per_plane: bool,
) -> Tensor:
    numbered = index_dtype, POSITIONS if per_plane else INDICES
    sizes = tuple(spatial_sizes)
    plan = planned(taps.shape, taps.stride(), taps.dtype, window, None, sizes, numbered)
    indices = _new(plan.output_sizes, plan.output_strides, index_dtype)
    return _filled(indices, library.dmlpool_max_pooling_indices, plan, taps)


def max_pooling_grad_from_taps(
    input_gradient: Tensor,
    taps: Tensor,
    spatial_sizes: Sequence[int],
    window: Window,
    channels_last: bool,
) -> Tensor:
    """The gradient of the input: each window's gradient is added to its winner's."""
    memory_format = operands.named_memory_format(channels_last, window.rank)
    dtype, sizes, numbered = input_gradient.dtype, tuple(spatial_sizes), (taps.dtype, TAPS)
    plan = planned(taps.shape, taps.stride(), dtype, window, None, sizes, numbered, memory_format)
    gradient = _new(plan.sizes, plan.strides, dtype)
    return _filled_from_numbers(
        gradient, library.dmlpool_max_pooling_grad, plan, input_gradient, taps
    )


def max_unpooling(
    input: Tensor, indices: Tensor, spatial_sizes: Sequence[int], per_plane: bool, has_unique: bool
) -> tuple[Tensor, Tensor | None, bool]:
    """Zeros with each element at its index, with ``has_unique`` the positions that the gradient
    reads, and whether an index is outside its plane.
    """
    sizes, memory_format = tuple(spatial_sizes), operands.suggested_memory_format(input)
    shape, strides, dtype = input.shape, input.stride(), input.dtype
    numbered = indices.dtype, POSITIONS if per_plane else INDICES
    plan = planned(shape, strides, dtype, shape[2:], None, sizes, numbered, memory_format)
    output, unique = _new(plan.sizes, plan.strides, dtype), None
    if has_unique:
        position_dtype = operands.position_dtype(math.prod(sizes))
        unique = _new(plan.output_sizes, plan.output_strides, position_dtype)
    if plan.is_empty:
        return output.zero_(), unique, False
    source = operands.in_format(input, memory_format)
    indices = operands.in_format(indices, memory_format)
    unpool = library.dmlpool_max_unpooling
    addresses = source.data_ptr(), indices.data_ptr(), output.data_ptr()
    positions = None if unique is None else unique.data_ptr()
    code = unpool(plan.problem, *addresses, positions)
    if code not in (DONE, OUTSIDE):
        raise error_of(unpool, code)
    return output, unique, code == OUTSIDE


def unique_positions(positions: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """Positions, with -1 for those outside the plane and for all but the last of equal ones."""
    sizes, shape = tuple(spatial_sizes), positions.shape
    numbered = operands.position_dtype(math.prod(sizes)), POSITIONS
    plan = planned(shape, positions.stride(), positions.dtype, shape[2:], None, sizes, numbered)
    unique = _new(plan.output_sizes, plan.output_strides, plan.number_dtype)
    return _filled(unique, library.dmlpool_unique_positions, plan, positions)


def gather_positions(input: Tensor, positions: Tensor, _: bool = False) -> Tensor:
    """The element at each position, 0 outside the plane.

    The last argument is unused: the operator has it for its adjoint.
    """
    shape, strides, numbered = positions.shape, positions.stride(), (positions.dtype, POSITIONS)
    plan = planned(shape, strides, input.dtype, shape[2:], None, input.shape[2:], numbered)
    gathered = _new(plan.output_sizes, plan.output_strides, input.dtype)
    return _filled_from_numbers(gathered, library.dmlpool_gather_positions, plan, input, positions)


def scatter_positions(
    input: Tensor, positions: Tensor, spatial_sizes: Sequence[int], _: bool, channels_last: bool
) -> Tensor:
    """Zeros with each element added at its position. The operator's flag ``bins``, whether
    positions may be equal, makes no difference here.
    """
    memory_format = operands.named_memory_format(channels_last, len(spatial_sizes))
    shape, strides, sizes = positions.shape, positions.stride(), tuple(spatial_sizes)
    numbered = positions.dtype, POSITIONS
    plan = planned(shape, strides, input.dtype, shape[2:], None, sizes, numbered, memory_format)
    scattered = _new(plan.sizes, plan.strides, input.dtype)
    return _filled_from_numbers(
        scattered, library.dmlpool_scatter_positions, plan, input, positions
    )


def average_pooling(input: Tensor, window: AnyWindow, *counted: Any) -> Tensor:
    """Averages of windows. ``counted``: whether padding counts, and the divisor or None."""
    plan = planned(input.shape, input.stride(), input.dtype, window, counted)
    output = _new(plan.output_sizes, plan.output_strides, input.dtype)
    return _filled(output, library.dmlpool_average_pooling, plan, input)


def recorded_average_pooling(input: Tensor, window: AnyWindow, *counted: Any) -> Recorded:
    """Averages and what their gradient needs."""
    plans = _plans_of_averages(input.shape, input.stride(), input.dtype, window, counted)
    plan = plans.plan
    output = _new(plan.output_sizes, plan.output_strides, plans.dtype)
    return _filled(output, library.dmlpool_average_pooling, plan, input), (), plans


@functools.lru_cache(maxsize=4096)
def _plans_of_averages(*request: Any) -> _CpuGradientPlan:
    return _CpuGradientPlan(request, planned(*request), library.dmlpool_average_pooling_grad)


def recorded_adaptive_average_pooling(input: Tensor, output_sizes: Sequence[int]) -> Recorded:
    return recorded_average_pooling(input, tuple(output_sizes), False, None)


def average_pooling_grad(
    input_gradient: Tensor, spatial_sizes: Sequence[int], window: AnyWindow, *counted: Any
) -> Tensor:
    """The gradient of an input of ``spatial_sizes``, in the memory format of ``input_gradient``."""
    shape, dtype, sizes = input_gradient.shape, input_gradient.dtype, tuple(spatial_sizes)
    plan = planned(shape, input_gradient.stride(), dtype, window, counted, sizes)
    gradient = _new(plan.sizes, plan.strides, dtype)
    return _filled(gradient, library.dmlpool_average_pooling_grad, plan, input_gradient)


def quantized_linear_average_pooling(input: Tensor, *arguments: Any) -> Tensor:
    *parameters, window, include_padding, output_dtype = arguments
    # This raises an error if a window does not fit.
    plan = planned(input.shape, input.stride(), input.dtype, window, (include_padding, None))
    if window.taps >= 1 << 23:  # their sums do not fit 32 bits
        return reference.quantized_linear_average_pooling(input, *arguments)
    output = _new(plan.output_sizes, plan.output_strides, output_dtype)
    struct, _kept = quantization(input.shape[1], output_dtype, *parameters)
    pool = library.dmlpool_quantized_average_pooling
    return _filled(output, pool, plan, input, ctypes.addressof(struct))


BACKEND = Backend.of("cpu", vars(cpu_masks) | globals(), takes_bools=True)
