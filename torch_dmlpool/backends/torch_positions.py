"""Elements by their positions in plain PyTorch, a block of planes at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends import memory
from torch_dmlpool.backends.threads import considerate

BLOCK = 2**18
"""Elements of a block of planes, whose temporary numbers then stay in cache."""
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def plane_blocks(samples: int, channels: int, plane: int) -> Iterator[tuple[slice, slice]]:
    """Samples and channels of one block of planes after the other, each of ``plane`` elements."""
    planes = max(1, BLOCK // max(1, plane))
    together = max(1, planes // max(1, channels))
    apart = min(planes, channels) if together == 1 else channels
    for sample in range(0, samples, together):
        for channel in range(0, channels, max(1, apart)):
            yield slice(sample, sample + together), slice(channel, channel + apart)


def signed_view(tensor: Tensor) -> Tensor:
    """Wide unsigned integers, for which PyTorch lacks most operations, by their bits."""
    signed = _SIGNED.get(tensor.dtype)
    return tensor if signed is None else tensor.view(signed)


def _inside(positions: Tensor, plane: int) -> Tensor | None:
    """Which positions lie in the plane; None if all do, where that can be asked for without waiting for a device."""
    if positions.is_cpu and positions.numel() > 0:
        least, most = positions.aminmax()
        if least >= 0 and most < plane:
            return None
    return (positions >= 0) & (positions < plane)


def _masked(tensor: Tensor, inside: Tensor | None, other: int) -> Tensor:
    return tensor if inside is None else tensor.where(inside, other)


@considerate
def unique_positions(positions: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """Positions inside the plane; of several alike the one that comes last in row-major order."""
    plane = math.prod(spatial_sizes)
    memory_format = operands.suggested_memory_format(positions)
    unique = memory.empty(positions.shape, positions, memory_format, operands.position_dtype(plane))
    for block in plane_blocks(positions.shape[0], positions.shape[1], plane):
        part = positions[block].flatten(2).long()
        inside = _inside(part, plane)
        numbers = torch.arange(part.shape[2], device=part.device).expand(part.shape)
        places, writers = _masked(part, inside, 0), _masked(numbers, inside, -1)
        winners = part.new_full((*part.shape[:2], plane), -1)
        if inside is None and torch.equal(winners.scatter_(2, places, writers).gather(2, places), writers):
            # No two are alike: each found what it had written.
            unique[block] = part.view_as(unique[block])
            continue
        # A maximum has no order: whichever is written first, the last element wins.
        winners.fill_(-1).scatter_reduce_(2, places, writers, "amax")
        won = winners.gather(2, places) == numbers
        unique[block] = part.where(won if inside is None else inside & won, -1).view_as(unique[block])
    return unique


@considerate
def gather_positions(input: Tensor, positions: Tensor) -> Tensor:
    """The element at each position, 0 where it lies outside the plane."""
    gathered = memory.empty(positions.shape, input, operands.suggested_memory_format(positions))
    source, target = signed_view(input), signed_view(gathered)
    plane = math.prod(input.shape[2:])
    for block in plane_blocks(positions.shape[0], positions.shape[1], plane):
        part = positions[block].flatten(2).long()
        inside = _inside(part, plane)
        found = source[block].flatten(2).gather(2, _masked(part, inside, 0))
        target[block] = _masked(found, inside, 0).view_as(target[block])
    return gathered


@considerate
def scatter_positions(
    input: Tensor, positions: Tensor, spatial_sizes: Sequence[int], bins: bool, channels_last: bool
) -> Tensor:
    """Zeros with each element added at its position; ``bins`` says that several may meet, in half precision too."""
    memory_format = operands.named_memory_format(channels_last, len(spatial_sizes))
    scattered = memory.empty((*input.shape[:2], *spatial_sizes), input, memory_format)
    source, target = signed_view(input), signed_view(scattered)
    dtype = torch.float32 if bins and input.dtype.itemsize == 2 else source.dtype
    plane = math.prod(spatial_sizes)
    for block in plane_blocks(positions.shape[0], positions.shape[1], plane):
        part = positions[block].flatten(2).long()
        inside = _inside(part, plane)
        values = source[block].flatten(2).to(dtype)
        spread = values.new_zeros((*part.shape[:2], plane))
        # What is outside adds 0 to the first element.
        spread.scatter_add_(2, _masked(part, inside, 0), _masked(values, inside, 0))
        target[block] = spread.view_as(target[block])
    return scattered
