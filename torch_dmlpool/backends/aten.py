"""Where PyTorch's own pooling means the same as ours: what it computes for tensors too small to be worth recording.

ATen's pools know symmetric padding of at most half the window, and averages without dilation. Their loops visit one tap
after the other, so that a sum of more than five taps would leave the error bound of rule E6: those are made in double.
"""

from __future__ import annotations

import functools
import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_dmlpool.backends.positions import Places, places, taps_of
from torch_dmlpool.operands import empty, settled, suggested_memory_format, tap_dtype
from torch_dmlpool.window import Window

MAX_WORK = 2**15
"""Taps read, over the whole tensor, below which ATen's maximum is faster than recording the passes."""
AVERAGE_WORK = 2**12
"""The same for averages, of one sample: the bits of a sample must not depend on how many others there are."""
FEW_TAPS_PER_STEP = 3.5
"""Taps per element stepped over up to which ATen's channels_last maximum beats one pass per axis: 3/2, 2/2, not 3/1."""
TABLE_ENTRIES = 2**14
"""Windows times positions up to which the taps of ATen's indices are looked up instead of computed."""
_CHAIN = 5
"""Most taps whose sum, one after the other, keeps rule E6: taps - 1 additions and a division ≤ 2 + ⌈log₂ taps⌉."""
_UNKNOWN_TO_ATEN = (torch.uint16, torch.uint32, torch.uint64)


class Request(NamedTuple):
    """A small request in ATen's words: a single axis is the second of two."""

    rank: int
    taps: int
    sizes: list[int]
    strides: list[int]
    padding: list[int]
    dilations: list[int]
    ceil_mode: bool
    small_maximum: bool
    small_average: bool
    places: Places
    table: Tensor | None
    """Where few enough, the tap of every window at every position, and what to add to a position to find it there."""
    first_in_table: Tensor | None


@functools.lru_cache(maxsize=1024)
def _request(window: Window, shape: torch.Size) -> Request | None:
    sizes = shape[2:]
    output_sizes = window.output_sizes(sizes)
    sample_work = shape[1] * math.prod(output_sizes) * window.taps
    small_maximum = sample_work * shape[0] <= MAX_WORK
    small_average = sample_work <= AVERAGE_WORK and all(axis.dilation == 1 for axis in window.axes)
    if window.rank == 3 and any(axis.window > size for axis, size in zip(window.axes, sizes, strict=True)):
        # ATen's 3-D average refuses such a window even where ceil_mode makes it fit.
        small_average = False
    if shape.numel() == 0 or not (small_maximum or small_average):
        return None
    if not _expressible(window):
        return None
    *arguments, ceil_mode = window.arguments
    sizes_, strides, padding, _, dilations = arguments
    if window.rank == 1:
        sizes_, strides, padding, dilations = [1, *sizes_], [1, *strides], [0, *padding], [1, *dilations]
    where = places(window, tuple(sizes), tuple((0, size) for size in output_sizes), torch.device("cpu"))
    return Request(
        window.rank,
        window.taps,
        sizes_,
        strides,
        padding,
        dilations,
        ceil_mode,
        small_maximum,
        small_average,
        where,
        *_table(window, tuple(sizes), output_sizes, where),
    )


def _table(
    window: Window, sizes: tuple[int, ...], output_sizes: tuple[int, ...], where: Places
) -> tuple[Tensor | None, Tensor | None]:
    plane, windows = math.prod(sizes), math.prod(output_sizes)
    if plane * windows > TABLE_ENTRIES:
        return None, None
    every = torch.arange(plane).view(plane, *(1 for _ in sizes)).expand(plane, *output_sizes)
    table = taps_of(every, window, sizes, where.first).to(tap_dtype(window.taps)).movedim(0, -1).contiguous()
    return table, torch.arange(0, windows * plane, plane).view(output_sizes)


def max_pooling_of_vectors(input: Tensor, window: Window) -> Tensor | None:
    """Maxima of a channels_last CPU tensor whose windows hardly overlap: there ATen is as fast as a copy."""
    memory_format = _vectors(input, window)
    if memory_format is None:
        return None
    pool = torch.max_pool2d if window.rank == 2 else partial(_in_3d, torch.max_pool3d)
    return settled(pool(input, *_in_words_of_aten(window)), memory_format)


def max_pooling_of_vectors_with_taps(input: Tensor, window: Window) -> tuple[Tensor, Tensor] | None:
    """The same with taps, sample by sample, as ATen's indices take eight bytes each."""
    memory_format = _vectors(input, window)
    if memory_format is None:
        return None
    sizes, output_sizes = tuple(input.shape[2:]), window.output_sizes(input.shape[2:])
    where = places(window, sizes, tuple((0, size) for size in output_sizes), input.device)
    if where.empty is not None:
        return None
    shape = (*input.shape[:2], *output_sizes)
    values = empty(shape, input, memory_format)
    taps = empty(shape, input, memory_format, tap_dtype(window.taps))
    pools: Any = torch._C._nn
    pool = pools.max_pool2d_with_indices if window.rank == 2 else partial(_in_3d, pools.max_pool3d_with_indices)
    for sample in range(input.shape[0]):
        one = slice(sample, sample + 1)
        maxima, positions = pool(input[one], *_in_words_of_aten(window))
        if input.dtype.is_floating_point and math.isnan(maxima.sum().item()):
            return None
        values[one] = maxima
        taps[one] = taps_of(positions, window, sizes, where.first)
    return values, taps


def _vectors(input: Tensor, window: Window) -> torch.memory_format | None:
    """The memory format of a channels_last tensor that ATen pools faster than one pass per axis; None for others."""
    taps_per_step = window.taps / math.prod(axis.stride for axis in window.axes)
    if not input.is_cpu or window.rank == 1 or taps_per_step > FEW_TAPS_PER_STEP or input.numel() == 0:
        return None
    if input.dtype in _UNKNOWN_TO_ATEN or not _expressible(window):
        return None
    memory_format = suggested_memory_format(input)
    return None if memory_format is torch.contiguous_format else memory_format


def _in_words_of_aten(window: Window) -> tuple[Any, ...]:
    sizes, strides, padding, _, dilations, ceil_mode = window.arguments
    return sizes, strides, padding, dilations, ceil_mode


def _expressible(window: Window) -> bool:
    return all(axis.start_padding == axis.end_padding and 2 * axis.start_padding <= axis.window for axis in window.axes)


def _served(input: Tensor, window: Window) -> Request | None:
    if not input.is_cpu:
        return None
    return _request(window, input.shape)


def _in_3d(pool: Any, *arguments: Any) -> Any:
    # Autocast would turn the operands of ATen's 3-D pools into float32 (rule E5).
    if not torch.is_autocast_enabled("cpu"):
        return pool(*arguments)
    with torch.autocast("cpu", enabled=False):
        return pool(*arguments)


def max_pooling(input: Tensor, window: Window) -> Tensor | None:
    """Maxima of a small CPU tensor; None where ATen cannot or need not serve."""
    request = _served(input, window)
    if request is None or not request.small_maximum or input.dtype in _UNKNOWN_TO_ATEN:
        return None
    rest = (request.sizes, request.strides, request.padding, request.dilations, request.ceil_mode)
    if request.rank == 3:
        values = _in_3d(torch.max_pool3d, input, *rest)
    elif request.rank == 2:
        values = torch.max_pool2d(input, *rest)
    else:
        values = torch.max_pool2d(input.unsqueeze(2), *rest).squeeze(2)
    return settled(values, suggested_memory_format(input))


def max_pooling_with_taps(input: Tensor, window: Window) -> tuple[Tensor, Tensor] | None:
    """Maxima of a small CPU tensor with their taps; None where ATen cannot or need not serve."""
    found = max_pooling_with_positions(input, window)
    if found is None:
        return None
    values, positions = found
    request = _request(window, input.shape)
    assert request is not None
    if request.table is not None and request.first_in_table is not None:
        taps = torch.take(request.table, positions + request.first_in_table)
    else:
        taps = taps_of(positions, window, input.shape[2:], request.places.first).to(tap_dtype(window.taps))
    return values, settled(taps, suggested_memory_format(input))


def max_pooling_with_positions(input: Tensor, window: Window) -> tuple[Tensor, Tensor] | None:
    """Maxima of a small CPU tensor with int64 positions in their planes; None where ATen cannot or need not serve.

    Of several NaN in a window ATen names the last, and for an empty window a place outside the plane.
    """
    request = _served(input, window)
    if request is None or not request.small_maximum or input.dtype in _UNKNOWN_TO_ATEN:
        return None
    if request.places.empty is not None:
        return None
    rest = (request.sizes, request.strides, request.padding, request.dilations, request.ceil_mode)
    pools: Any = torch._C._nn
    if request.rank == 3:
        values, positions = _in_3d(pools.max_pool3d_with_indices, input, *rest)
    else:
        values, positions = pools.max_pool2d_with_indices(input.unsqueeze(2) if request.rank == 1 else input, *rest)
    if input.dtype.is_floating_point and math.isnan(values.sum().item()):
        return None
    if request.rank == 1:
        values, positions = values.squeeze(2), positions.squeeze(2)
    memory_format = suggested_memory_format(input)
    return settled(values, memory_format), settled(positions, memory_format)


def average_pooling(
    input: Tensor, window: Window, include_padding: bool, divisor_override: int | None
) -> Tensor | None:
    """Averages of small samples on the CPU; None where ATen cannot or need not serve."""
    request = _served(input, window)
    if request is None or not request.small_average:
        return None
    dtype, memory_format = input.dtype, suggested_memory_format(input)
    if request.taps > _CHAIN:
        if dtype is torch.float64:
            return None
        input = input.double()
    elif dtype.itemsize == 2:
        input = input.float()
    rest = (request.sizes, request.strides, request.padding, request.ceil_mode, include_padding, divisor_override)
    pools: Any = torch._C._nn
    if request.rank == 3:
        pooled = _in_3d(pools.avg_pool3d, input, *rest)
    elif request.rank == 2:
        pooled = pools.avg_pool2d(input, *rest)
    else:
        pooled = pools.avg_pool2d(input.unsqueeze(2), *rest).squeeze(2)
    return settled(pooled if pooled.dtype is dtype else pooled.to(dtype), memory_format)


def average_pooling_grad(
    input_gradient: Tensor, window: Window, include_padding: bool, divisor_override: int | None, out: Tensor
) -> bool:
    """Write the gradient of small samples of float32 or float64 on the CPU; False where ATen cannot or need not."""
    if input_gradient.dtype.itemsize == 2:
        return False
    request, contiguous = _served(out, window), out.is_contiguous()
    # ATen writes the gradient of its 3-D average as if it were contiguous.
    if request is None or not request.small_average or request.rank == 1 or (request.rank == 3 and not contiguous):
        return False
    rest = (request.sizes, request.strides, request.padding, request.ceil_mode, include_padding, divisor_override)
    if request.rank == 3:
        _in_3d(partial(torch.ops.aten.avg_pool3d_backward.grad_input, grad_input=out), input_gradient, out, *rest)
    else:
        torch.ops.aten.avg_pool2d_backward.grad_input(input_gradient, out, *rest, grad_input=out)
    return True
