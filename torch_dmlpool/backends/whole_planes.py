"""One window that covers the whole plane, as global pooling has it: a reduction, with nothing to slide.

A plane's sum has the same bits whatever else is in the batch (rule E6): contiguous planes are added in double
precision, each of them by one thread, and vectors of channels as a tree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends import aten, threads
from torch_dmlpool.backends.tape import PARALLEL_GRAIN, PATIENCE
from torch_dmlpool.backends.ways import Way
from torch_dmlpool.window import Window

ELEMENTS_AT_ONCE = 2**19
"""Elements that are widened at a time, into memory that is used again."""
VECTORS_AT_ONCE = 2**20
"""Elements of vectors that are added at a time."""
_UNREDUCED = (torch.uint16, torch.uint32, torch.uint64)
"""Types that PyTorch does not compare."""


def covers(window: Window, sizes: Sequence[int]) -> bool:
    """Whether there is a single window, and every element is one of its taps."""
    return all(
        axis.dilation == 1 and axis.output_size(size) == 1 and axis.start_padding + size <= axis.window and size > 1
        for axis, size in zip(window.axes, sizes, strict=True)
    )


def way_of_maxima(input: Tensor, window: Window) -> Way | None:
    """How the maximum of every plane is found; None where that is not what is asked for."""
    if input.dtype in _UNREDUCED or input.numel() == 0 or not covers(window, input.shape[2:]):
        return None
    return _maxima


def _maxima(input: Tensor) -> Tensor:
    values = input.amax(list(range(2, input.dim())), keepdim=True)
    return operands.settled(values, operands.suggested_memory_format(input))


def has_sums(input: Tensor, window: Window) -> bool:
    """Whether the sum of every plane is what is asked for, and :func:`sums` exact enough."""
    if not input.is_cpu or input.numel() == 0 or not covers(window, input.shape[2:]):
        return False
    memory_format = operands.suggested_memory_format(input)
    if memory_format is not torch.contiguous_format:
        return input.is_contiguous(memory_format=memory_format)
    is_row = input.is_contiguous() and math.prod(input.shape[2:]) < PARALLEL_GRAIN
    return is_row and input.dtype is not torch.float64


def sums(input: Tensor) -> Tensor:
    """The sum of every plane, in float32 or wider."""
    samples, channels, *sizes = input.shape
    if operands.suggested_memory_format(input) is not torch.contiguous_format:
        return _sums_of_vectors(input).view(samples, channels, *(1 for _ in sizes))
    return _sums_of_rows(input.view(samples * channels, -1)).view(samples, channels, *(1 for _ in sizes))


def _sums_of_rows(rows: Tensor) -> Tensor:
    """In double precision, where the order of the additions does not matter to float32."""
    count, length = rows.shape
    totals = torch.empty(count, dtype=torch.float64)
    # Fewer rows than threads, and PyTorch would cut up the rows.
    step = 1 if count < torch.get_num_threads() else max(torch.get_num_threads(), ELEMENTS_AT_ONCE // length)
    starts = range(0, count, step)
    if step > 1 and count % step < torch.get_num_threads():
        starts = starts[: count // step]
    wide = torch.empty((max(min(step, count), count - starts[-1]), length), dtype=torch.float64)
    for start in threads.watched(starts, PATIENCE):
        stop = count if start == starts[-1] else start + step
        torch.sum(wide[: stop - start].copy_(rows[start:stop]), -1, out=totals[start:stop])
    return totals


def _sums_of_vectors(input: Tensor) -> Tensor:
    """Of a channels_last tensor: ATen adds neighbouring vectors, two or three at a time, until one is left.

    Three at a time read and write less; how often that may be is what rule E6 leaves beside ⌈log₂ taps⌉ additions.
    """
    rows = aten.as_rows(input)
    samples, channels, _, length = rows.shape
    dtype = torch.float64 if input.dtype is torch.float64 else torch.float32
    totals = torch.empty((samples, channels), dtype=dtype)
    step = max(1, VECTORS_AT_ONCE // (length * channels))
    for start in threads.watched(range(0, samples, step), PATIENCE):
        added = rows[start : start + step].to(dtype)
        left, additions = length, _doublings(length) + 1
        while left > 1:
            together = 3 if 2 + _doublings(-(-left // 3)) <= additions else 2
            added = torch._C._nn.avg_pool2d(added, (1, together), (1, together), (0, 0), True, False, 1)
            left, additions = -(-left // together), additions - together + 1
        totals[start : start + step] = added[:, :, 0, 0]
    return totals


def _doublings(length: int) -> int:
    return (length - 1).bit_length()
