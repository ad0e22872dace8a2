"""Pools under a mask on the CPU: calls of the compiled kernels. A mask has as many samples as the
input, or 1, and so with channels.
"""

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import tensors
from torch_dmlpool._private import empty_strided_cpu as _new
from torch_dmlpool.backends.interface import AnyWindow
from torch_dmlpool.backends.library import INDICES, POSITIONS, TAPS, Masking, error_of, library
from torch_dmlpool.backends.plans import CpuPlan, planned
from torch_dmlpool.tensors import lowest
from torch_dmlpool.window import Window


@functools.lru_cache(maxsize=1024)
def _masking(
    shape: tuple[int, ...], batch: tuple[int, ...], is_last: bool, dtype: torch.dtype, fill: float
) -> Any:
    """The struct for an input of ``shape`` and a mask with the first two sizes ``batch``."""
    if any(size not in (1, wanted) for size, wanted in zip(batch, shape, strict=False)):
        raise RuntimeError(f"a mask of {batch} samples and channels does not fit shape {shape}")
    samples, channels = shape[:2]
    is_of_sample, is_of_channel = batch[0] == samples, batch[1] == channels
    if is_last or is_of_sample == is_of_channel:
        groups, is_own, step = 1, is_of_sample, 0
    else:
        groups, is_own, step = samples, is_of_channel, int(is_of_sample)
    planes = (samples if is_last else samples * channels) // groups
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = torch.full((1,), fill, dtype=dtype, device="cpu").view(integers[dtype.itemsize]).item()
    return Masking(groups, planes, is_own, step, batch[1] if is_last else 1, bits)


def _laid_out(tensor: Tensor, plan: CpuPlan) -> Tensor:
    return tensors.in_format(tensor, plan.memory_format)


def _filled(
    function: Any, plan: CpuPlan, mask: Tensor, fill: float, output: Tensor, *operands: Any
) -> Tensor:
    """Call a function of the library and return ``output``. ``operands`` are the tensors or
    addresses that it takes after its structs, where the mask stands as it came.
    """
    if plan.is_empty:
        return output.zero_()
    mask_of_planes = mask.expand(*mask.shape[:2], *plan.sizes[2:])
    is_last = plan.memory_format is not torch.contiguous_format
    dtype = output.dtype
    masking = _masking(plan.sizes, tuple(mask.shape[:2]), is_last, dtype, fill)
    kept = [
        _laid_out(mask_of_planes if each is mask else each, plan)
        if isinstance(each, Tensor)
        else each
        for each in operands
    ]
    addresses = [each.data_ptr() if isinstance(each, Tensor) else each for each in kept]
    code = function(plan.problem, ctypes.addressof(masking), *addresses)
    if code:
        raise error_of(function, code)
    return output


def masked(input: Tensor, mask: Tensor, fills_lowest: bool) -> Tensor:
    plan = planned(input.shape, input.stride(), input.dtype, input.shape[2:])
    output, fill = (
        _new(plan.sizes, plan.strides, input.dtype),
        lowest(input.dtype) if fills_lowest else 0,
    )
    return _filled(library.dmlpool_masked, plan, mask, fill, output, input, mask, output.data_ptr())


def masked_average_pooling(
    input: Tensor, mask: Tensor, window: AnyWindow, include_padding: bool, divisor: int | None
) -> Tensor:
    counted = include_padding, divisor
    plan = planned(input.shape, input.stride(), input.dtype, window, counted)
    output = _new(plan.output_sizes, plan.output_strides, input.dtype)
    pool = library.dmlpool_masked_average_pooling
    return _filled(pool, plan, mask, 0, output, input, mask, output.data_ptr())


def masked_average_pooling_grad(
    input_gradient: Tensor,
    mask: Tensor,
    spatial_sizes: Sequence[int],
    window: AnyWindow,
    include_padding: bool,
    divisor: int | None,
    channels_last: bool,
) -> Tensor:
    """The gradient of the input, which is laid out as that is."""
    counted, sizes = (include_padding, divisor), tuple(spatial_sizes)
    memory_format = tensors.named_memory_format(channels_last, len(sizes))
    shape, strides, dtype = input_gradient.shape, input_gradient.stride(), input_gradient.dtype
    plan = planned(shape, strides, dtype, window, counted, sizes, None, memory_format)
    gradient = _new(plan.sizes, plan.strides, dtype)
    spread = library.dmlpool_masked_average_pooling_grad
    return _filled(spread, plan, mask, 0, gradient, input_gradient, mask, gradient.data_ptr())


def masked_max_pooling(input: Tensor, mask: Tensor, window: Window) -> Tensor:
    plan = planned(input.shape, input.stride(), input.dtype, window)
    values = _new(plan.output_sizes, plan.output_strides, input.dtype)
    pool, fill = library.dmlpool_masked_max_pooling, lowest(input.dtype)
    return _filled(pool, plan, mask, fill, values, input, mask, values.data_ptr(), None)


def masked_max_pooling_with_taps(
    input: Tensor, mask: Tensor, window: Window
) -> tuple[Tensor, Tensor]:
    """Maxima and the taps of their winners. The winner of a window without an element is masked, or
    in the padding.
    """
    return _with_winners(input, mask, window, None, TAPS)


def masked_max_pooling_with_indices(
    input: Tensor, mask: Tensor, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> tuple[Tensor, Tensor]:
    return _with_winners(input, mask, window, index_dtype, POSITIONS if per_plane else INDICES)


def masked_adaptive_max_pooling(
    input: Tensor, mask: Tensor, output_sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    dtype = tensors.position_dtype(math.prod(input.shape[2:]))
    return _with_winners(input, mask, tuple(output_sizes), dtype, POSITIONS)


def _with_winners(
    input: Tensor, mask: Tensor, window: AnyWindow, dtype: torch.dtype | None, numbering: int
) -> tuple[Tensor, Tensor]:
    plan = planned(input.shape, input.stride(), input.dtype, window, None, None, (dtype, numbering))
    if plan.wider is not None:
        wide = input.to(plan.wider)
        values, winners = _with_winners(wide, mask, window, dtype, numbering)
        # A window without an element has the lowest value of the input's type.
        if not input.is_floating_point():
            values = values.clamp(min=lowest(input.dtype))
        return values.to(input.dtype), winners
    values = _new(plan.output_sizes, plan.output_strides, input.dtype)
    winners = _new(plan.output_sizes, plan.output_strides, plan.number_dtype)
    pool, fill = library.dmlpool_masked_max_pooling, lowest(input.dtype)
    addresses = values.data_ptr(), winners.data_ptr()
    return _filled(pool, plan, mask, fill, values, input, mask, *addresses), winners


def masked_max_pooling_grad_from_taps(
    input_gradient: Tensor,
    taps: Tensor,
    mask: Tensor,
    spatial_sizes: Sequence[int],
    window: Window,
    channels_last: bool,
) -> Tensor:
    """The gradient of the input: each window's gradient is added to its winner's."""
    memory_format = tensors.named_memory_format(channels_last, window.rank)
    dtype, sizes, numbered = input_gradient.dtype, tuple(spatial_sizes), (taps.dtype, TAPS)
    shape, strides = input_gradient.shape, input_gradient.stride()
    plan = planned(shape, strides, dtype, window, None, sizes, numbered, memory_format)
    gradient = _new(plan.sizes, plan.strides, dtype)
    spread, address = library.dmlpool_masked_max_pooling_grad, gradient.data_ptr()
    return _filled(spread, plan, mask, 0, gradient, input_gradient, taps, mask, address)
