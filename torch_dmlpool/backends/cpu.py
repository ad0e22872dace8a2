"""The CPU backend: a call of the compiled kernels for each operator.

What each operator computes is said in ``reference``, and how the library is loaded in ``library``.
"""

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import tensors
from torch_dmlpool._private import empty_strided_cpu as _new
from torch_dmlpool.backends import cpu_masks, reference
from torch_dmlpool.backends.interface import AnyWindow, Backend
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
from torch_dmlpool.backends.plans import CpuPlan, plan_of, planned, quantization
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
from torch_dmlpool.tensors import lowest
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
        source = tensors.in_format(source, plan.memory_format)
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
    source = tensors.in_format(source, plan.memory_format)
    if not plan.is_laid_out:
        numbers = tensors.in_format(numbers, plan.memory_format)
    code = function(plan.problem, source.data_ptr(), numbers.data_ptr(), output.data_ptr())
    if code:
        raise error_of(function, code)
    return output


class Averages:
    """Averages of tensors of one kind, over a window or bins: ``interface.Plan``."""

    __slots__ = ("back", "dtype", "plan", "request")
    is_planned = True

    def __init__(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: torch.dtype,
        window: AnyWindow,
        *counted: Any,
    ) -> None:
        self.plan, self.dtype = plan_of(shape, strides, dtype, window, counted), dtype
        self.request = shape[2:], window, counted
        self.back: CpuPlan | None = None  # that of the gradient, from the first one on

    def run(self, input: Tensor) -> Tensor:
        plan = self.plan
        output = _new(plan.output_sizes, plan.output_strides, self.dtype)
        return _filled(output, library.dmlpool_average_pooling, plan, input)

    def gradient(self, arriving: Tensor) -> Tensor:
        sizes, window, counted = self.request
        back = self.back
        if back is None:
            output = self.plan.output_sizes, self.plan.output_strides, self.dtype
            back = self.back = plan_of(*output, window, counted, sizes)
        if back.is_empty or not _lies_as(arriving, back, self.dtype):
            return average_pooling_grad(arriving, sizes, window, *counted)
        gradient = _new(back.sizes, back.strides, self.dtype)
        function = library.dmlpool_average_pooling_grad
        code = function(back.problem, arriving.data_ptr(), gradient.data_ptr())
        if code:
            raise error_of(function, code)
        return gradient


class Maxima:
    """Maxima of tensors of one kind, with ``numbering`` their indices too: ``interface.Plan``."""

    __slots__ = ("back", "kind", "numbering", "plan", "recorded", "window")
    is_planned = True

    def __init__(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: torch.dtype,
        window: Window,
        *numbering: Any,
    ) -> None:
        self.kind, self.window, self.numbering = (shape, strides, dtype), window, numbering
        window.output_sizes(shape[2:])  # rejected before any work
        # The plan of the results, that with taps, and that of the gradient, from the first call on
        # that needs them.
        self.plan: CpuPlan | None = None
        self.recorded: CpuPlan | None = None
        self.back: CpuPlan | None = None

    def run(self, input: Tensor) -> Any:
        plan = self.plan
        if plan is None:
            numbered = None
            if self.numbering:
                index_dtype, per_plane = self.numbering
                numbered = index_dtype, POSITIONS if per_plane else INDICES
            plan = self.plan = plan_of(*self.kind, self.window, None, None, numbered)
        if self.numbering:
            return _with_winners(input, plan)
        values = _new(plan.output_sizes, plan.output_strides, input.dtype)
        return _filled(values, library.dmlpool_max_pooling, plan, input, None)

    def record(self, input: Tensor) -> tuple[Tensor, ...]:
        """The results, and then the taps of the winners."""
        plan = self.recorded
        if plan is None:
            plan = self.recorded = self._plan_with_taps()
        values, taps = _with_winners(input, plan)
        if not self.numbering:
            return values, taps
        sizes = self.kind[0][2:]
        return values, max_pooling_indices(taps, sizes, self.window, *self.numbering), taps

    def _plan_with_taps(self) -> CpuPlan:
        return plan_of(*self.kind, self.window, None, None, (None, TAPS))

    def gradient(self, arriving: Tensor, taps: Tensor) -> Tensor:
        (shape, _, dtype), window, plan, back = self.kind, self.window, self.recorded, self.back
        if back is None or plan is None:
            plan = self.recorded = plan or self._plan_with_taps()
            numbered = tensors.tap_dtype(window.taps), TAPS
            output = plan.output_sizes, plan.output_strides, dtype
            back = plan_of(*output, window, None, shape[2:], numbered, plan.memory_format)
            self.back = back
        is_fit = _lies_as(arriving, back, dtype) and _lies_as(taps, back, back.number_dtype)
        if back.is_empty or not is_fit:
            last = plan.memory_format is not torch.contiguous_format
            return max_pooling_grad_from_taps(arriving, taps, shape[2:], window, last)
        gradient = _new(back.sizes, back.strides, dtype)
        function, where = library.dmlpool_max_pooling_grad, gradient.data_ptr()
        code = function(back.problem, arriving.data_ptr(), taps.data_ptr(), where)
        if code:
            raise error_of(function, code)
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
    return _numbered(input, window, None, TAPS)


def max_pooling_with_indices(
    input: Tensor, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> tuple[Tensor, Tensor]:
    return _numbered(input, window, index_dtype, POSITIONS if per_plane else INDICES)


def adaptive_max_pooling(input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    dtype = tensors.position_dtype(math.prod(input.shape[2:]))
    return _numbered(input, tuple(output_sizes), dtype, POSITIONS)


def _numbered(
    input: Tensor, window: AnyWindow, number_dtype: torch.dtype | None, numbering: int
) -> tuple[Tensor, Tensor]:
    """Maxima and the numbers of their winners."""
    kind, numbered = (input.shape, input.stride(), input.dtype), (number_dtype, numbering)
    return _with_winners(input, planned(*kind, window, None, None, numbered))


def _with_winners(input: Tensor, plan: CpuPlan) -> tuple[Tensor, Tensor]:
    """The maxima of a plan and the numbers of their winners."""
    source = input if plan.wider is None else input.to(plan.wider)
    values = _new(plan.output_sizes, plan.output_strides, source.dtype)
    winners = _new(plan.output_sizes, plan.output_strides, plan.number_dtype)
    _filled(values, library.dmlpool_max_pooling, plan, source, winners.data_ptr())
    if plan.wider is not None:
        # An empty window's maximum is the lowest value of the input's type, not of the wider one.
        if not input.is_floating_point():
            values = values.clamp(min=lowest(input.dtype))
        values = values.to(input.dtype)
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
    memory_format = tensors.named_memory_format(channels_last, window.rank)
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
    sizes, memory_format = tuple(spatial_sizes), tensors.suggested_memory_format(input)
    shape, strides, dtype = input.shape, input.stride(), input.dtype
    numbered = indices.dtype, POSITIONS if per_plane else INDICES
    plan = planned(shape, strides, dtype, shape[2:], None, sizes, numbered, memory_format)
    output, unique = _new(plan.sizes, plan.strides, dtype), None
    if has_unique:
        position_dtype = tensors.position_dtype(math.prod(sizes))
        unique = _new(plan.output_sizes, plan.output_strides, position_dtype)
    if plan.is_empty:
        return output.zero_(), unique, False
    source = tensors.in_format(input, memory_format)
    indices = tensors.in_format(indices, memory_format)
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
    numbered = tensors.position_dtype(math.prod(sizes)), POSITIONS
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
    memory_format = tensors.named_memory_format(channels_last, len(spatial_sizes))
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


BACKEND = Backend.of(
    "cpu",
    vars(cpu_masks) | globals(),
    takes_bools=True,
    planned_averages=Averages,
    planned_maxima=Maxima,
)
