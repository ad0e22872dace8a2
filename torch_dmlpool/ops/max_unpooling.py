"""Max unpooling: every element put back where its maximum came from, zeros elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.ops import positions, registration
from torch_dmlpool.window import ArgumentError


def max_unpooling(input: Tensor, indices: Tensor, spatial_sizes: Sequence[int], per_plane: bool) -> Tensor:
    """``input`` at ``indices`` of zeros of ``spatial_sizes``; operands are checked already, but not each index."""
    if not registration.is_bare(input, indices):
        return _max_unpooling(input, indices, spatial_sizes, per_plane)
    if indices.is_cpu:
        _check_indices(indices, spatial_sizes, per_plane)
    return _unpooled(input, indices, spatial_sizes, per_plane)


def _unpooled(input: Tensor, indices: Tensor, spatial_sizes: Sequence[int], per_plane: bool) -> Tensor:
    unique = positions.unique_positions(_in_planes(indices, spatial_sizes, per_plane), spatial_sizes)
    return positions.scatter_positions(input, unique, spatial_sizes, False, operands.is_channels_last(input))


def _in_planes(indices: Tensor, spatial_sizes: Sequence[int], per_plane: bool) -> Tensor:
    """Indices of any type as int32 or int64 positions in their planes; negative ones, and all ones, as -1."""
    if indices.dtype is torch.uint64:
        indices = indices.view(torch.int64)
    elif indices.dtype is torch.uint32:
        indices = indices.to(torch.int64)
        indices = torch.where(indices == 2**32 - 1, -1, indices)
    if per_plane:
        return indices
    first = _first_indices(indices, spatial_sizes)
    return torch.where(indices < 0, -1, (indices - first).clamp(min=-1))


def _first_indices(indices: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """The index of each plane's first element in the whole output, which broadcasts over ``indices``."""
    samples, channels = indices.shape[:2]
    planes = torch.arange(samples * channels, dtype=torch.int64, device=indices.device).view(samples, channels)
    return planes.mul(math.prod(spatial_sizes)).view(samples, channels, *(1 for _ in spatial_sizes))


def _check_indices(indices: Tensor, spatial_sizes: Sequence[int], per_plane: bool) -> None:
    """Refuse the first index that is neither in its own plane nor -1."""
    signed = _in_planes(indices, spatial_sizes, True).long()
    plane = math.prod(spatial_sizes)
    first = (
        torch.zeros((), dtype=torch.int64, device=indices.device)
        if per_plane
        else _first_indices(indices, spatial_sizes)
    )
    within = signed - first
    if indices.numel() == 0:
        return
    least, most = within.aminmax()
    if least >= 0 and most < plane:
        return
    empty = signed == -1
    wrong = ~empty & ((within < 0) | (within >= plane))
    if not bool(wrong.any()):
        return
    place = tuple(wrong.nonzero()[0].tolist())
    low = int(first.expand(indices.shape)[place])
    raise ArgumentError(
        f"indices must lie in the output's plane of their own sample and channel, from {low} to {low + plane - 1}, or "
        f"be -1 for no element; got {int(signed[place])} at {place}"
    )


def _composition(input: Tensor, indices: Tensor, spatial_sizes: Sequence[int], per_plane: bool) -> Tensor:
    check(input, indices)
    return _unpooled(input, indices, spatial_sizes, per_plane)


def check(input: Tensor, indices: Tensor) -> None:
    """Refuse indices that do not belong to ``input`` (rules G6 and G8)."""
    operands.check_pooled("input", input, operands.MAX_TYPES)
    operands.check_pooled("indices", indices, operands.INDEX_TYPES)
    operands.check_device("indices", indices, input)
    if tuple(indices.shape) != tuple(input.shape):
        raise ArgumentError(
            f"indices must have the input's shape {tuple(input.shape)}, got shape {tuple(indices.shape)}"
        )


_max_unpooling = registration.compose(
    "max_unpooling(Tensor input, Tensor indices, SymInt[] spatial_sizes, bool per_plane) -> Tensor", _composition
)
