"""Between the number of a window's winning tap and the winner's position in its plane.

What training keeps is one or the other (rule M6): tap numbers, or where those would take longer to decode than to read,
the positions themselves as int32, told apart by their data type.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torch_dmlpool.operands import tap_dtype
from torch_dmlpool.window import Window

KEPT_WINDOWS = 2**15
"""Windows up to which places are kept for the next call; those of more are soon computed beside the work."""


class Places(NamedTuple):
    """Where the windows of a part of the output lie."""

    first: tuple[Tensor, ...]
    """Per axis, the position of each window's first tap, shaped to broadcast over the output's spatial dimensions."""
    base: Tensor
    """The position of tap 0 in the plane; 0 for an empty window, whose tap is 0."""
    empty: Tensor | None
    """Which windows read nothing, where there are any."""


def places(
    window: Window, sizes: tuple[int, ...], outputs: tuple[tuple[int, int], ...], device: torch.device
) -> Places:
    """Where windows ``outputs`` (a range per axis) lie in a plane of ``sizes``."""
    if math.prod(stop - start for start, stop in outputs) > KEPT_WINDOWS:
        return _places(window, sizes, outputs, device)
    return _kept_places(window, sizes, outputs, device)


def _places(
    window: Window, sizes: tuple[int, ...], outputs: tuple[tuple[int, int], ...], device: torch.device
) -> Places:
    base = torch.zeros((), dtype=torch.int64, device=device)
    empty = torch.zeros((), dtype=torch.bool, device=device)
    some_empty = False
    firsts = []
    for number, (axis, size, (start, stop)) in enumerate(zip(window.axes, sizes, outputs, strict=True)):
        first = torch.arange(start, stop, device=device).mul_(axis.stride).sub_(axis.start_padding)
        inside = [output - start for output in axis.empty_windows(size) if start <= output < stop]
        mask = torch.zeros(stop - start, dtype=torch.bool, device=device)
        if inside:
            some_empty = True
            mask[torch.tensor(inside, device=device)] = True
        base = base.unsqueeze(-1) + first * math.prod(sizes[number + 1 :])
        empty = empty.unsqueeze(-1) | mask
        firsts.append(first.view(-1, *(1 for _ in range(window.rank - number - 1))))
    return Places(tuple(firsts), base.masked_fill_(empty, 0), empty if some_empty else None)


_kept_places = functools.lru_cache(maxsize=128)(_places)


def are_positions(kept: Tensor, window: Window) -> bool:
    """Whether what was kept of each window is its winner's position, not the number of its tap."""
    return kept.dtype is torch.int32 and tap_dtype(window.taps) is not torch.int32


def positions_of(taps: Tensor, window: Window, sizes: Sequence[int], where: Places) -> Tensor:
    """The position of each tap in its plane, as int32 where that is enough; an empty window's is somewhere in it."""
    if are_positions(taps, window):
        return taps if where.empty is None else taps.clamp(min=0)
    dtype = decoded_dtype(window, sizes)
    scratch = [torch.empty_like(taps, dtype=dtype) for _ in range(3)]
    decode(window, tuple(sizes), where, taps, *scratch)
    return scratch[-1]


def decoded_dtype(window: Window, sizes: Sequence[int]) -> torch.dtype:
    """The type in which tap numbers are decoded."""
    return torch.int32 if window.taps <= 225 and math.prod(sizes) < 2**31 else torch.int64


def decode(
    window: Window,
    sizes: Sequence[int],
    where: Places,
    taps: Tensor,
    numbers: Tensor,
    quotient: Tensor,
    positions: Tensor,
) -> None:
    """Write the position of each tap number; all tensors but the taps are of :func:`decoded_dtype`.

    A tap number is a number of mixed radix, and so is a position: one is the other plus, for each axis, the quotient by
    the taps below it times what a step along the axis is longer in the plane than in the window.
    """
    last = window.axes[-1]
    numbers.copy_(taps)
    # Of one type: a sum of two types is not vectorised.
    torch.add(where.base.to(positions.dtype), numbers, alpha=last.dilation, out=positions)
    taps_below, step_below = last.window, last.dilation
    stride = sizes[-1]
    for number in range(window.rank - 2, -1, -1):
        axis = window.axes[number]
        longer = axis.dilation * stride - window.axes[number + 1].window * step_below
        if longer != 0:
            _divide(numbers, taps_below, quotient)
            positions.add_(quotient, alpha=longer)
        taps_below, step_below = taps_below * axis.window, axis.dilation * stride
        stride *= sizes[number]


def _divide(numbers: Tensor, divisor: int, out: Tensor) -> None:
    if numbers.dtype is torch.int32:
        # Exact for numbers up to 225: the factor is at most divisor / 2¹⁶ too large, relatively.
        torch.mul(numbers, 2**16 // divisor + 1, out=out).bitwise_right_shift_(16)
    else:
        torch.div(numbers, divisor, rounding_mode="floor", out=out)


def taps_of(positions: Tensor, window: Window, sizes: Sequence[int], first: Sequence[Tensor]) -> Tensor:
    """The tap number, int64, by which each window reads the position it names."""
    rest = positions
    taps: Tensor | None = None
    for number, axis in enumerate(window.axes):
        stride = math.prod(sizes[number + 1 :])
        along = rest
        if number < window.rank - 1:
            along = rest.div(stride, rounding_mode="floor")
            rest = torch.sub(rest, along, alpha=stride)
        tap = along - first[number]
        if axis.dilation > 1:
            tap = tap.div_(axis.dilation, rounding_mode="floor")
        taps = tap if taps is None else tap.add_(taps, alpha=axis.window)
    assert taps is not None
    return taps


def plane_numbers(like: Tensor, plane: int) -> Tensor:
    """For each element of ``like`` (N, C, *spatial), the index of its plane's first element, as an expanded view."""
    samples, channels, *sizes = like.shape
    first = torch.arange(0, samples * channels * plane, plane, device=like.device) if plane * like.numel() else None
    if first is None:
        return like.new_zeros((), dtype=torch.int64).expand(like.shape)
    return first.view(samples, channels, *(1 for _ in sizes)).expand(like.shape)
