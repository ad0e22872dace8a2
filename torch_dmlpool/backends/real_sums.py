"""Sums of 8-bit integers as float32 numbers, which below 2²⁴ are exact in any order: PyTorch adds vectors of them.

Two kinds of windows gain by it. Those of channels_last tensors, whose channels ATen's average pool adds by vectors; and
windows of contiguous rows that share no element: the same pool adds the rows, which it takes for pixels of as many
channels, and a reduction adds what is left of each.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends import operations
from torch_dmlpool.backends.tape import Tape
from torch_dmlpool.window import Window

MOST_TAPS = 2**24 // 255
"""Taps whose sum, and whose sum of differences from a zero point, float32 holds."""
LARGEST_UNIT = 2**20
"""Elements that a channels_last sample, or a plane, may have."""
ELEMENTS_AT_ONCE = 2**19
"""Elements that are made float32 numbers at a time, if a sample or plane has no more."""
FEW_TAPS = 2
"""Taps of every window along a row up to which the passes of integers are faster."""
ADDED_TAPS = 8
"""Taps along a row up to which an addition for each beats a reduction."""
TAPS_PER_ELEMENT = 9
"""Taps of all channels_last windows for an element, up to which ATen's loop beats the passes along each axis."""


class Line(NamedTuple):
    """An axis as it is added up, with those inside it where a window is as wide as they are."""

    size: int
    window: int
    stride: int


def serves(input: Tensor, window: Window) -> bool:
    """Whether :func:`record` makes the sums of a tensor."""
    if not input.is_cpu or window.taps > MOST_TAPS or any(axis.dilation > 1 for axis in window.axes):
        return False
    sizes = tuple(input.shape[2:])
    output_sizes = window.output_sizes(sizes)
    if operands.suggested_memory_format(input) is not torch.contiguous_format:
        return (
            window.rank == 2
            and window.has_pytorchs_padding
            and window.taps * math.prod(output_sizes) <= TAPS_PER_ELEMENT * math.prod(sizes)
            and math.prod(input.shape[1:]) <= LARGEST_UNIT
        )
    disjoint = all(
        axis.start_padding == 0
        and (axis.stride >= axis.window or output == 1)
        and axis.first_position(output - 1) + axis.extent <= size
        for axis, size, output in zip(window.axes, sizes, output_sizes, strict=True)
    )
    return (
        disjoint
        and input.is_contiguous()
        and math.prod(sizes) <= LARGEST_UNIT
        and _lines(window, sizes)[-1].window > FEW_TAPS
    )


def record(tape: Tape, window: Window, source: Tensor, sums: Tensor) -> None:
    """Record how whole samples or planes of 8-bit integers become float32 sums."""
    real = tape.scratch("as real numbers", tuple(source.shape[1:]), torch.float32)
    tape.record(operations.copy, source, real)
    # Planes have their first dimension to themselves, samples of channels_last have channels beside it.
    if source.dim() > window.rank + 1:
        sizes, strides, padding, *_, ceil_mode = window.arguments
        tape.record(partial(_add_vectors, sizes, strides, padding, ceil_mode), real, sums)
        return
    *outer, last = _lines(window, tuple(source.shape[1:]))
    sizes = [line.size for line in (*outer, last)]
    outputs = list(sums.shape[1 : 1 + len(sizes)])
    for number, line in enumerate(outer):
        if (line.window, line.stride) == (1, 1):
            continue
        sizes[number] = outputs[number]
        added = tape.scratch(("lines", number), tuple(sizes), torch.float32)
        tape.record(partial(_add_lines, line, outputs[number], math.prod(sizes[number + 1 :])), real, added)
        real = added
    tape.record(partial(_add_elements, last, outputs[-1]), real, sums)


def _lines(window: Window, sizes: tuple[int, ...]) -> list[Line]:
    lines = [Line(size, axis.window, axis.stride) for axis, size in zip(window.axes, sizes, strict=True)]
    while len(lines) > 1 and lines[-1].window == lines[-1].size:
        inner, outer = lines.pop(), lines.pop()
        lines.append(Line(*(along * inner.size for along in outer)))
    return lines


# What is recorded: operations whose last operand is written.


def _add_vectors(
    sizes: list[int], strides: list[int], padding: list[int], ceil_mode: bool, source: Tensor, out: Tensor
) -> None:
    _pool(source, sizes, strides, padding, ceil_mode, True, 1, out=out)


def _add_lines(line: Line, outputs: int, inner: int, source: Tensor, out: Tensor) -> None:
    """Along one axis, with ``inner`` elements inside it for channels."""
    image, sums = (
        tensor.view(-1, size, 1, inner).permute(0, 3, 1, 2) for tensor, size in ((source, line.size), (out, outputs))
    )
    _pool(image, (line.window, 1), (line.stride, 1), (0, 0), False, True, 1, out=sums)


def _add_elements(line: Line, outputs: int, source: Tensor, out: Tensor) -> None:
    windows, sums = source.view(-1, line.size).unfold(-1, line.window, line.stride), out.view(-1, outputs)
    if line.window > ADDED_TAPS:
        torch.sum(windows, -1, out=sums)
        return
    torch.add(windows[..., 0], windows[..., 1], out=sums)
    for tap in range(2, line.window):
        sums += windows[..., tap]


_pool: Any = torch._C._nn.avg_pool2d
