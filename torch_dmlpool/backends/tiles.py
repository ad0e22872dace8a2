"""Averages over windows that lie side by side, as pyramid pooling has them: each element is read by one of them.

Their rows are added by halves, which are long, as often as float32 may (rule E6). What is left is added in double
precision by ATen's pool, whose loop over the taps then is as exact as any.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends import memory, operations
from torch_dmlpool.backends.blocks import Reach, run_planes
from torch_dmlpool.backends.tape import Tape
from torch_dmlpool.backends.ways import Way
from torch_dmlpool.window import Window

FEWEST_TAPS = 25
"""Taps of a window below which passes along each axis are as fast."""
ELEMENTS_AT_ONCE = 2**19
"""Elements of a block."""
MOST_HALVINGS = 3
"""Additions in float32, one behind the other; the next would save less than it takes."""


def way_of_averages(input: Tensor, window: Window, divisor_override: int | None) -> Way | None:
    """How averages over such windows are made; None where windows are others."""
    if not input.is_cpu or window.rank != 2 or input.dtype is not torch.float32 or input.numel() == 0:
        return None
    if operands.suggested_memory_format(input) is not torch.contiguous_format or window.taps < FEWEST_TAPS:
        return None
    for axis, size in zip(window.axes, input.shape[2:], strict=True):
        last = axis.first_position(axis.output_size(size) - 1)
        apart = axis.stride >= axis.window > 1 and axis.dilation == 1
        if not apart or axis.start_padding > 0 or last + axis.window > size:
            return None
    return partial(_averages, window=window, divisor=window.taps if divisor_override is None else divisor_override)


def _averages(input: Tensor, window: Window, divisor: int) -> Tensor:
    sizes = window.output_sizes(input.shape[2:])
    output = memory.empty((*input.shape[:2], *sizes), input, torch.contiguous_format)

    def record(tape: Tape, _: tuple[Reach, ...], sources: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> None:
        (source,), (result,) = sources, results
        rows, columns = window.axes
        # A dimension of windows and one of the rows in them, in the place of the one of rows.
        *planes, step, across = source.stride()
        shape = (*source.shape[:-2], sizes[0], rows.window, source.shape[-1])
        held = source.as_strided(shape, (*planes, rows.stride * step, step, across), source.storage_offset())
        for halving in range(MOST_HALVINGS):
            if held.shape[-2] % 2 > 0:
                break
            upper, lower = held.chunk(2, -2)
            held = tape.scratch(("halves", halving), tuple(upper.shape[1:]), torch.float32)
            tape.record(operations.add, upper, lower, held)
        wide = tape.scratch("wide", tuple(held.shape[1:]), torch.float64)
        averages = tape.scratch("averages", tuple(result.shape[1:]), torch.float64)
        tape.record(operations.copy, held, wide)
        left = held.shape[-2]
        pool = partial(_pool_windows, (left, columns.window), (left, columns.stride), divisor)
        tape.record(pool, wide.flatten(-3, -2), averages)
        tape.record(operations.copy, averages, result)

    key = ("averages of tiles", window, divisor)
    run_planes(key, (input,), (output,), record, max(ELEMENTS_AT_ONCE, math.prod(input.shape[2:])))
    return output


def _pool_windows(sizes: tuple[int, int], strides: tuple[int, int], divisor: int, source: Tensor, out: Tensor) -> None:
    _pool(source, sizes, strides, (0, 0), False, True, divisor, out=out)


_pool: Any = torch._C._nn.avg_pool2d
