"""Where PyTorch's own pooling means the same as ours: what it computes for tensors too small to be worth recording.

ATen's pools know symmetric padding of at most half the window, and averages without dilation. Their loops visit one tap
after the other, so that a sum of more than five taps would leave the error bound of rule E6: those are made in double.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool.window import Window

MAX_WORK = 2**15
"""Taps read, over the whole tensor, below which ATen's maximum is faster than recording the passes."""
AVERAGE_WORK = 2**12
"""The same for averages, of one sample: the bits of a sample must not depend on how many others there are."""
_CHAIN = 5
"""Most taps whose sum, one after the other, keeps rule E6: taps - 1 additions and a division ≤ 2 + ⌈log₂ taps⌉."""
_UNKNOWN_TO_ATEN = (torch.uint16, torch.uint32, torch.uint64)


def max_pooling(input: Tensor, window: Window, output_sizes: tuple[int, ...]) -> Tensor | None:
    """Maxima of a small CPU tensor; None where ATen cannot or need not serve."""
    work = input.shape[0] * input.shape[1] * math.prod(output_sizes) * window.taps
    if work > MAX_WORK or work == 0 or not _expressible(input, window) or input.dtype in _UNKNOWN_TO_ATEN:
        return None
    dilations = [axis.dilation for axis in window.axes]
    values: Tensor = _apply(torch.max_pool2d, torch.max_pool3d, input, window, dilations)
    return values


def max_pooling_with_positions(input: Tensor, window: Window) -> tuple[Tensor, Tensor] | None:
    """Maxima of a small CPU tensor with int64 positions in their planes; None where ATen cannot or need not serve.

    Of several NaN in a window ATen names the last, and for an empty window a place outside the plane.
    """
    sizes = input.shape[2:]
    work = input.shape[0] * input.shape[1] * math.prod(window.output_sizes(sizes)) * window.taps
    if work > MAX_WORK or work == 0 or not _expressible(input, window) or input.dtype in _UNKNOWN_TO_ATEN:
        return None
    if any(axis.empty_windows(size) for axis, size in zip(window.axes, sizes, strict=True)):
        return None
    pools = torch._C._nn
    dilations = [axis.dilation for axis in window.axes]
    values, positions = _apply(pools.max_pool2d_with_indices, pools.max_pool3d_with_indices, input, window, dilations)
    if input.dtype.is_floating_point and math.isnan(values.sum().item()):
        return None
    return values, positions


def average_pooling(
    input: Tensor, window: Window, output_sizes: tuple[int, ...], include_padding: bool, divisor_override: int | None
) -> Tensor | None:
    """Averages of small samples on the CPU; None where ATen cannot or need not serve."""
    taps = window.taps
    work = input.shape[1] * math.prod(output_sizes) * taps
    if work > AVERAGE_WORK or input.numel() == 0 or not _expressible(input, window):
        return None
    if any(axis.dilation != 1 for axis in window.axes):
        return None
    # ATen's 3-D average refuses a window larger than the unpadded input, though ceil_mode makes one fit.
    if window.rank == 3 and any(axis.window > size for axis, size in zip(window.axes, input.shape[2:], strict=True)):
        return None
    dtype = input.dtype
    if dtype is torch.float64 and taps > _CHAIN:
        return None
    if taps > _CHAIN:
        input = input.double()
    elif dtype.itemsize == 2:
        input = input.float()
    pools = torch._C._nn
    pooled: Tensor = _apply(pools.avg_pool2d, pools.avg_pool3d, input, window, include_padding, divisor_override)
    return pooled if pooled.dtype is dtype else pooled.to(dtype)


def _expressible(input: Tensor, window: Window) -> bool:
    if input.device.type != "cpu":
        return False
    # Other layouts than these come out of ATen in another memory format than the one PyTorch suggests (rule G7), and
    # its 3-D pools turn float32 under autocast (rule E5).
    if window.rank != 2 and not input.is_contiguous():
        return False
    if window.rank == 3 and torch.is_autocast_enabled("cpu"):
        return False
    for axis in window.axes:
        if axis.start_padding != axis.end_padding or 2 * axis.start_padding > axis.window:
            return False
    return True


def _apply(in_2d: Any, in_3d: Any, input: Tensor, window: Window, *last: Any) -> Any:
    """Call ATen's function for the rank; a single axis is the second of two."""
    sizes = [axis.window for axis in window.axes]
    strides = [axis.stride for axis in window.axes]
    padding = [axis.start_padding for axis in window.axes]
    ceil_mode = window.axes[0].ceil_mode
    is_max = isinstance(last[0], list)
    if window.rank == 1:
        input, sizes, strides, padding = input.unsqueeze(2), [1, *sizes], [1, *strides], [0, *padding]
        last = ([1, *last[0]],) if is_max else last
    pool = in_3d if window.rank == 3 else in_2d
    arguments = (*last, ceil_mode) if is_max else (ceil_mode, *last)
    pooled = pool(input, sizes, strides, padding, *arguments)
    if window.rank > 1:
        return pooled
    return pooled.squeeze(2) if isinstance(pooled, Tensor) else tuple(tensor.squeeze(2) for tensor in pooled)
