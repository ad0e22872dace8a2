"""From the number of a window's winning tap to the place of the winner in its plane or in the whole tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from torch_dmlpool.backends.blocks import Reach
from torch_dmlpool.backends.tape import Tape
from torch_dmlpool.window import Window

CHUNK = 2**18
"""Outputs of one plane that are decoded at a time."""


def plane_numbers(like: Tensor, plane: int) -> Tensor:
    """For each element of ``like`` (N, C, *spatial), the index of its plane's first element, as an expanded view."""
    samples, channels, *sizes = like.shape
    first = torch.arange(0, samples * channels * plane, plane, device=like.device)
    return first.view(samples, channels, *(1 for _ in sizes)).expand(like.shape)


class Decoder:
    """Decodes the taps of one window over planes of one size."""

    def __init__(self, window: Window, sizes: tuple[int, ...]) -> None:
        self.window, self.sizes = window, sizes
        self._strides = [math.prod(sizes[number + 1 :]) for number in range(window.rank)]
        self._empty = [axis.empty_windows(size) for axis, size in zip(window.axes, sizes, strict=True)]
        self._dtype = torch.int32 if math.prod(sizes) < 2**31 and window.taps <= 225 else torch.int64

    def chunks(self, like: Tensor) -> Iterator[tuple[slice, ...]]:
        """Parts of the output planes small enough to be decoded at once."""
        sizes = like.shape[-self.window.rank :]
        rows = max(1, CHUNK * sizes[0] // max(1, math.prod(sizes)))
        for start in range(0, sizes[0], rows):
            yield slice(start, min(start + rows, sizes[0])), *(slice(0, size) for size in sizes[1:])

    def chunk_elements(self, like: Tensor) -> int:
        """Elements of the largest part, of all that share a first dimension."""
        return min(math.prod(like.shape[1:]), math.prod(like.shape[1 : -self.window.rank]) * CHUNK)

    def record_positions(
        self, tape: Tape, outputs: Sequence[slice], taps: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Record the decoding of ``taps`` of the windows ``outputs`` into int64 positions in the plane.

        An empty window's position is 0, and the mask that comes with it marks it.
        """
        sizes = tuple(taps.shape[1:])
        base, empty = self._base(outputs, taps.device)
        wide = tape.scratch("wide", sizes, self._dtype)
        tape.record(_copy, taps, wide)
        offset = wide
        per_tap = self.window.axes[-1].dilation
        if per_tap != 1:
            offset = tape.scratch("offset", sizes, self._dtype)
            tape.record(partial(_scale, per_tap), wide, offset)
        taps_below = 1
        for number in range(self.window.rank - 2, -1, -1):
            axis, below = self.window.axes[number], self.window.axes[number + 1]
            taps_below *= below.window
            per_row = axis.dilation * self._strides[number] - (
                below.window * below.dilation * self._strides[number + 1]
            )
            if per_row != 0 and (axis.window > 1 or number > 0):
                rows = tape.scratch(("rows", number), sizes, self._dtype)
                self._record_quotient(tape, wide, taps_below, rows)
                tape.record(partial(_scale, per_row), rows, rows)
                tape.record(_add, rows, offset, rows if offset is wide else offset)
                offset = rows if offset is wide else offset
        tape.record(partial(_shift_by, base), offset, offset)
        positions = tape.scratch("positions", sizes, torch.int64)
        tape.record(_copy, offset, positions)
        return positions, empty

    def record_indices(
        self, tape: Tape, reaches: Sequence[Reach], taps: Tensor, first_of_plane: Tensor | None, out: Tensor
    ) -> None:
        """Record the decoding into indices of the output's type, −1 (all ones) where the window is empty."""
        positions, empty = self.record_positions(tape, [along.results for along in reaches], taps)
        if first_of_plane is not None:
            tape.record(_add, positions, first_of_plane, positions)
        if empty is not None:
            tape.record(partial(_fill_where, empty, -1), positions)
        tape.record(_copy, positions, out)

    def _record_quotient(self, tape: Tape, numbers: Tensor, divisor: int, out: Tensor) -> None:
        if divisor == 1:
            tape.record(_copy, numbers, out)
        elif self.window.taps <= 2**15:
            # Multiply and shift: exact because numbers · (factor · divisor − 2^bits) stays below 2^bits.
            bits = 16 if self._dtype is torch.int32 else 40
            tape.record(partial(_scale, -(-(2**bits) // divisor)), numbers, out)
            tape.record(partial(_halve, bits), out, out)
        else:
            tape.record(partial(_divide_down, divisor), numbers, out)

    def _base(self, outputs: Sequence[slice], device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Position of tap 0 of each window, and the mask of the empty ones where there are any."""
        base = torch.zeros((), dtype=self._dtype, device=device)
        marked: list[Tensor | None] = []
        for axis, along, stride, empty in zip(self.window.axes, outputs, self._strides, self._empty, strict=True):
            first = torch.arange(along.start, along.stop, dtype=self._dtype, device=device)
            first.mul_(axis.stride).sub_(axis.start_padding).mul_(stride)
            base = base.unsqueeze(-1) + first
            inside = [window - along.start for window in empty if along.start <= window < along.stop]
            mask = torch.zeros(along.stop - along.start, dtype=torch.bool, device=device)
            if inside:
                mask[torch.tensor(inside, device=device)] = True
            marked.append(mask if inside else None)
        if all(mask is None for mask in marked):
            return base, None
        union = torch.zeros(base.shape, dtype=torch.bool, device=device)
        for number, mask in enumerate(marked):
            if mask is not None:
                union |= mask.view(-1, *(1 for _ in range(len(marked) - number - 1)))
        # An empty window's tap is 0, so that its position is its base.
        return base.masked_fill_(union, 0), union


def _copy(source: Tensor, out: Tensor) -> None:
    out.copy_(source)


def _add(first: Tensor, second: Tensor, out: Tensor) -> None:
    torch.add(first, second, out=out)


def _scale(factor: int, source: Tensor, out: Tensor) -> None:
    torch.mul(source, factor, out=out)


def _shift_by(base: Tensor, source: Tensor, out: Tensor) -> None:
    torch.add(source, base, out=out)


def _halve(bits: int, source: Tensor, out: Tensor) -> None:
    torch.bitwise_right_shift(source, bits, out=out)


def _divide_down(divisor: int, source: Tensor, out: Tensor) -> None:
    torch.div(source, divisor, rounding_mode="floor", out=out)


def _fill_where(mask: Tensor, value: int, out: Tensor) -> None:
    out.masked_fill_(mask, value)
