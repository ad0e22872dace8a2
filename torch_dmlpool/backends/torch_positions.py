"""Elements by their positions in plain PyTorch, a block of planes at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torch_dmlpool import operands

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


def unique_positions(positions: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """Positions inside the plane; of several alike the one that comes last in row-major order."""
    plane = math.prod(spatial_sizes)
    memory_format = operands.suggested_memory_format(positions)
    unique = operands.empty(positions.shape, positions, memory_format, operands.position_dtype(plane))
    samples, channels = positions.shape[:2]
    for block in plane_blocks(samples, channels, plane):
        part = positions[block].flatten(2).long()
        inside = (part >= 0) & (part < plane)
        numbers = torch.arange(part.shape[2], device=part.device).expand(part.shape)
        places = part.where(inside, 0)
        # A maximum has no order: whichever is written first, the last element wins.
        winners = part.new_full((*part.shape[:2], plane), -1)
        winners.scatter_reduce_(2, places, numbers.where(inside, -1), "amax")
        won = inside & (winners.gather(2, places) == numbers)
        unique[block] = part.where(won, -1).view_as(unique[block])
    return unique


def gather_positions(input: Tensor, positions: Tensor) -> Tensor:
    """The element at each position, 0 where it lies outside the plane."""
    gathered = operands.empty(positions.shape, input, operands.suggested_memory_format(positions))
    source, target = signed_view(input), signed_view(gathered)
    plane = math.prod(input.shape[2:])
    samples, channels = positions.shape[:2]
    for block in plane_blocks(samples, channels, plane):
        part = positions[block].flatten(2).long()
        inside = (part >= 0) & (part < plane)
        found = source[block].flatten(2).gather(2, part.where(inside, 0))
        target[block] = found.where(inside, 0).view_as(target[block])
    return gathered


def scatter_positions(
    input: Tensor, positions: Tensor, spatial_sizes: Sequence[int], bins: bool, channels_last: bool
) -> Tensor:
    """Zeros with each element added at its position; ``bins`` says that several may meet, in half precision too."""
    memory_format = operands.named_memory_format(channels_last, len(spatial_sizes))
    scattered = operands.empty((*input.shape[:2], *spatial_sizes), input, memory_format)
    source, target = signed_view(input), signed_view(scattered)
    dtype = torch.float32 if bins and input.dtype.itemsize == 2 else source.dtype
    plane = math.prod(spatial_sizes)
    samples, channels = positions.shape[:2]
    for block in plane_blocks(samples, channels, plane):
        part = positions[block].flatten(2).long()
        inside = (part >= 0) & (part < plane)
        values = source[block].flatten(2).to(dtype)
        spread = values.new_zeros((*part.shape[:2], plane))
        # What is outside adds 0 to the first element.
        spread.scatter_add_(2, part.where(inside, 0), values.where(inside, 0))
        target[block] = spread.view_as(target[block])
    return scattered
