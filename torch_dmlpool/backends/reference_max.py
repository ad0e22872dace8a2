"""Max pooling in plain PyTorch: values, winning taps and indices, gradients, and elements by their positions.

Positions count from 0 inside a plane in row-major order; negative ones stand for no element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends.reference_windows import (
    Reduction,
    binned,
    in_blocks,
    is_known,
    laid_out,
    laid_out_like,
    numbers,
    pooled,
)
from torch_dmlpool.window import Axis, Window

SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Wide unsigned integers, for which PyTorch has few operators, and the types of the same bits."""
FLOAT_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def _lowest(dtype: torch.dtype) -> float:
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _maxima(dtype: torch.dtype) -> Reduction:
    return Reduction(_lowest(dtype), torch.maximum, lambda source, dim: source.amax(dim, keepdim=True))


# Numbers and positions in one tensor of shape (2, ...): the first dimension is neither sample nor channel nor spatial.


def _earlier_or_greater(earlier: Tensor, later: Tensor) -> Tensor:
    wins = (later[1] >= 0) & ((later[0] > earlier[0]) | (earlier[1] < 0))
    return torch.where(wins, later, earlier)


def _first_greatest(pairs: Tensor, dim: int) -> Tensor:
    # The first of equals, and so never padding, which comes last where a row is gathered.
    winners = pairs[0].max(dim, keepdim=True).indices
    return pairs.gather(dim, winners.expand(2, *winners.shape))


KEYS = _maxima(torch.int64)
PAIRS = Reduction(torch.iinfo(torch.int64).min, _earlier_or_greater, _first_greatest, last_axis_first=True)


def _signed(tensor: Tensor) -> Tensor:
    """The same bits in a type that PyTorch computes with."""
    return tensor.view(SIGNED.get(tensor.dtype, tensor.dtype))


def _flipped(tensor: Tensor) -> Tensor:
    """Bits of wide unsigned integers as signed integers in the same order, or back."""
    return tensor ^ torch.iinfo(tensor.dtype).min


def _ordered(source: Tensor) -> Tensor:
    """Signed integers in the order of the values: NaN is the greatest, zeros are alike."""
    if source.dtype in SIGNED:
        return _flipped(_signed(source))
    if not source.dtype.is_floating_point:
        return source
    wide = source if source.dtype is torch.float64 else source.float()
    bits = torch.where(wide.isnan(), math.nan, wide + 0.0).view(FLOAT_BITS[wide.dtype])
    return torch.where(bits < 0, bits ^ torch.iinfo(bits.dtype).max, bits)


def _winners(source: Tensor, rank: int, pool: Callable[[Tensor, Reduction], Tensor]) -> Tensor:
    """The position of each window's first greatest element or first NaN; -1 for a window of padding alone."""
    sizes = source.shape[-rank:]
    plane = math.prod(sizes)
    positions = numbers(plane, source).view(sizes)
    ordered = _ordered(source)
    if ordered.dtype is not torch.int64 and is_known(plane < 2**32):
        # One integer that orders as values do, and among equal ones as positions from the last to the first.
        keys = (ordered.to(torch.int64) << 32) + (plane - positions)
        found = plane - (pool(keys, KEYS) & 0xFFFFFFFF)
        return torch.where(found == plane, -1, found)
    pairs = torch.stack((ordered.to(torch.int64), positions.expand(source.shape)))
    return pool(pairs, PAIRS)[1].clamp(min=-1)


def _window_winners(source: Tensor, window: Window) -> Tensor:
    return _winners(source, window.rank, lambda keys, reduction: pooled(keys, window, reduction))


def _elements(source: Tensor, positions: Tensor, rank: int, fill: float) -> Tensor:
    """The element at each position, ``fill`` where there is none."""
    flat = positions.flatten(-rank)
    found = _signed(source).flatten(-rank).gather(-1, flat.clamp(min=0)).where(flat >= 0, fill)
    return found.view(source.dtype).view(positions.shape)


def _maxima_at(source: Tensor, positions: Tensor, rank: int) -> Tensor:
    return _elements(source, positions, rank, 0 if source.dtype in SIGNED else _lowest(source.dtype))


# Taps and positions.


def _axes(window: Window, sizes: Sequence[int], like: Tensor) -> Iterator[tuple[Axis, int, Tensor]]:
    """Each axis from the last to the first: its size, and where each window's first tap lies."""
    for number in range(window.rank - 1, -1, -1):
        axis, size = window.axes[number], sizes[number]
        firsts = numbers(axis.output_size(size), like) * axis.stride - axis.start_padding
        yield axis, size, firsts.view(-1, *(1 for _ in window.axes[number + 1 :]))


def _taps(positions: Tensor, sizes: Sequence[int], window: Window) -> Tensor:
    """The number of each window's winning tap, 0 where the window is empty (rule M6)."""
    taps: Any = 0
    step, rest = 1, positions
    for axis, size, firsts in _axes(window, sizes, positions):
        rest, position = _divided(rest, size)
        tap = position - firsts
        taps = taps + (tap if is_known(axis.dilation == 1) else _divided(tap, axis.dilation)[0]) * step
        step *= axis.window
    return torch.where(positions >= 0, taps, 0).to(operands.tap_dtype(window.taps))


def _positions(taps: Tensor, sizes: Sequence[int], window: Window) -> Tensor:
    """The position of each window's winning tap, -1 where it lies outside: the window is empty."""
    inside: Any = True
    positions: Any = 0
    step, rest = 1, taps.to(torch.int32)
    for axis, size, firsts in _axes(window, sizes, taps):
        rest, tap = _divided(rest, axis.window)
        position = (tap if is_known(axis.dilation == 1) else tap.to(torch.int64) * axis.dilation) + firsts
        inside = inside & (position >= 0) & (position < size)
        positions = positions + position * step
        step *= size
    return torch.where(inside, positions, -1)


def _divided(numerator: Tensor, denominator: int) -> tuple[Tensor, Tensor]:
    """Quotients and remainders, with one division for both."""
    quotient = numerator.div(denominator, rounding_mode="trunc")
    return quotient, numerator - quotient * denominator


def _numbered(positions: Tensor, sizes: Sequence[int], dtype: torch.dtype, per_plane: bool) -> Tensor:
    """Positions in planes as indices in the whole tensor where wanted; -1 stays."""
    if not per_plane:
        samples, channels = positions.shape[:2]
        first = (numbers(samples * channels, positions) * math.prod(sizes)).view(samples, channels, *(1 for _ in sizes))
        positions = torch.where(positions < 0, positions, positions + first)
    return positions.to(dtype)


# The backend's functions.


def max_pooling(input: Tensor, window: Window) -> Tensor:
    """Maxima."""
    source = _flipped(_signed(input)) if input.dtype in SIGNED else input
    values = in_blocks(lambda block: pooled(block, window, _maxima(block.dtype)), source)
    return laid_out_like(_flipped(values).view(input.dtype) if input.dtype in SIGNED else values, input)


def max_pooling_with_taps(input: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Maxima and the numbers of their taps."""
    sizes = input.shape[2:]

    def found(source: Tensor) -> tuple[Tensor, Tensor]:
        positions = _window_winners(source, window)
        return _signed(_maxima_at(source, positions, window.rank)), _taps(positions, sizes, window)

    values, taps = in_blocks(found, input)
    return laid_out_like(values.view(input.dtype), input), laid_out_like(taps, input)


def max_pooling_with_indices(
    input: Tensor, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> tuple[Tensor, Tensor]:
    """Maxima and their indices."""
    values, positions = _with_positions(input, lambda keys, reduction: pooled(keys, window, reduction))
    indices = _numbered(positions, input.shape[2:], index_dtype, per_plane)
    return values, laid_out_like(indices, input)


def _with_positions(input: Tensor, pool: Callable[[Tensor, Reduction], Tensor]) -> tuple[Tensor, Tensor]:
    rank = input.dim() - 2

    def found(source: Tensor) -> tuple[Tensor, Tensor]:
        positions = _winners(source, rank, pool)
        return _signed(_maxima_at(source, positions, rank)), positions

    values, positions = in_blocks(found, input)
    return laid_out_like(values.view(input.dtype), input), positions


def max_pooling_indices(
    taps: Tensor, spatial_sizes: Sequence[int], window: Window, index_dtype: torch.dtype, per_plane: bool
) -> Tensor:
    """Indices that tap numbers stand for."""
    positions = in_blocks(lambda block: _positions(block, spatial_sizes, window), taps)
    return laid_out_like(_numbered(positions, spatial_sizes, index_dtype, per_plane), taps)


def max_pooling_gather(input: Tensor, taps: Tensor, window: Window) -> Tensor:
    """The element at each window's tap, 0 where the window is empty."""
    sizes = input.shape[2:]

    def gathered(source: Tensor, taps: Tensor) -> Tensor:
        return _elements(source, _positions(taps, sizes, window), window.rank, 0)

    return laid_out_like(in_blocks(gathered, input, taps), taps)


def max_pooling_grad_from_taps(
    input_gradient: Tensor, taps: Tensor, spatial_sizes: Sequence[int], window: Window, channels_last: bool
) -> Tensor:
    """Each window's gradient added to its winner's, in the order of the windows."""

    def scattered(source: Tensor, taps: Tensor) -> Tensor:
        return _scattered(source, _positions(taps, spatial_sizes, window), spatial_sizes)

    gradient = in_blocks(scattered, input_gradient, taps)
    return laid_out(gradient, operands.named_memory_format(channels_last, window.rank))


def max_pooling_grad(input: Tensor, input_gradient: Tensor, window: Window) -> Tensor:
    """The same straight from the input, whose winners are found again."""
    sizes = input.shape[2:]

    def scattered(source: Tensor, gradient: Tensor) -> Tensor:
        return _scattered(gradient, _window_winners(source, window), sizes)

    return laid_out_like(in_blocks(scattered, input, input_gradient), input)


def adaptive_max_pooling(input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Maxima of bins and their positions."""
    values, positions = _with_positions(input, lambda keys, reduction: binned(keys, output_sizes, reduction))
    return values, laid_out_like(positions.to(operands.position_dtype(math.prod(input.shape[2:]))), input)


def _scattered(source: Tensor, positions: Tensor, sizes: Sequence[int]) -> Tensor:
    """Zeros of ``sizes`` with each element added at its position: half precision in float32, in the elements' order."""
    rank = len(sizes)
    flat = positions.flatten(-rank)
    wide = source.float() if source.dtype.is_floating_point and source.dtype.itemsize == 2 else source
    # What has no position adds 0 to the first element.
    added = wide.flatten(-rank).where(flat >= 0, 0)
    total = torch.zeros((*flat.shape[:-1], math.prod(sizes)), dtype=wide.dtype, device=source.device)
    add = torch.Tensor.scatter_add if source.is_cpu else _add_sorted
    return add(total, -1, flat.clamp(min=0), added).unflatten(-1, tuple(sizes)).to(source.dtype)


def _add_sorted(total: Tensor, dim: int, positions: Tensor, added: Tensor) -> Tensor:  # noqa: ARG001
    """In order, as a CPU's ``scatter_add`` does: elsewhere that has none, but ``index_put`` sorts before it adds."""
    rows = numbers(math.prod(total.shape[:-1]), total).view(*total.shape[:-1], 1).expand(positions.shape)
    return total.view(-1, total.shape[-1]).index_put((rows, positions), added, accumulate=True).view(total.shape)


def _inside(positions: Tensor, plane: int) -> Tensor:
    positions = positions.to(torch.int64)
    return positions.where((positions >= 0) & (positions < plane), -1)


def unique_positions(positions: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """Positions inside the plane; of several alike the one that comes last, the others -1."""
    plane, rank = math.prod(spatial_sizes), len(spatial_sizes)

    def unique(block: Tensor) -> Tensor:
        flat = _inside(block, plane).flatten(-rank)
        order = numbers(flat.shape[-1], flat).expand(flat.shape)
        nothing = torch.full((*flat.shape[:-1], plane), -1, dtype=torch.int64, device=flat.device)
        last = nothing.scatter_reduce(-1, flat.clamp(min=0), order.where(flat >= 0, -1), "amax")
        return flat.where(last.gather(-1, flat.clamp(min=0)) == order, -1).view(block.shape)

    return laid_out_like(in_blocks(unique, positions).to(operands.position_dtype(plane)), positions)


def gather_positions(input: Tensor, positions: Tensor) -> Tensor:
    """The element at each position, 0 where there is none."""
    plane, rank = math.prod(input.shape[2:]), input.dim() - 2

    def gathered(source: Tensor, block: Tensor) -> Tensor:
        return _signed(_elements(source, _inside(block, plane), rank, 0))

    return laid_out_like(in_blocks(gathered, input, positions).view(input.dtype), positions)


def scatter_positions(
    input: Tensor, positions: Tensor, spatial_sizes: Sequence[int], bins: bool, channels_last: bool
) -> Tensor:
    """Zeros with each element at its position; those of bins may coincide and then add up."""
    del bins
    plane = math.prod(spatial_sizes)

    def scattered(source: Tensor, block: Tensor) -> Tensor:
        return _scattered(source, _inside(block, plane), spatial_sizes)

    total = in_blocks(scattered, _signed(input), positions).view(input.dtype)
    return laid_out(total, operands.named_memory_format(channels_last, len(spatial_sizes)))
