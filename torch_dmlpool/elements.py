"""Elements of each data type, and their numbers: what operators and backends compute with alike."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Unsigned integers for which PyTorch has few operators, and signed ones of the same size."""


def signed(tensor: Tensor) -> Tensor:
    """A view of wide unsigned integers as signed ones; other tensors as they are."""
    return tensor.view(SIGNED[tensor.dtype]) if tensor.dtype in SIGNED else tensor


def widened(tensor: Tensor) -> Tensor:
    """``tensor`` in the type that sums are computed in: float32 for half precision (rule A4)."""
    is_half = tensor.dtype.is_floating_point and tensor.dtype.itemsize == 2
    return tensor.float() if is_half else tensor


def lowest(dtype: torch.dtype) -> float:
    """The lowest value of a data type, -inf for floats (rule M1)."""
    if dtype.is_floating_point:
        return -math.inf
    return int(torch.iinfo(dtype).min) if dtype.is_signed else 0


def is_lowest(values: Tensor) -> Tensor:
    """Whether each value is the lowest of its type."""
    return signed(values) == lowest(values.dtype)


def where(condition: Tensor, tensor: Tensor, other: float) -> Tensor:
    """``torch.where`` with a number, for wide unsigned types too. It has a derivative."""
    if tensor.dtype in SIGNED:
        return torch.where(condition, signed(tensor), other).view(tensor.dtype)
    return torch.where(condition, tensor, other)


def shards_of(tensor: Tensor) -> Any:
    """The placements of a DTensor; None for other tensors."""
    return None if type(tensor) is Tensor else getattr(tensor, "placements", None)


def beside(tensor: Tensor, like: Tensor) -> Tensor:
    """``tensor`` for arithmetic with ``like``: as a replicated DTensor if that is a DTensor."""
    if shards_of(like) is None:
        return tensor
    return type(like).from_local(tensor, like.device_mesh)  # type: ignore[attr-defined]


def first_indices(like: Tensor, sizes: Sequence[int]) -> Tensor:
    """The index of each plane's first element in a tensor of ``sizes`` (N, C, *spatial), which
    broadcasts over it.
    """
    samples, channels, *spatial_sizes = sizes
    planes = torch.arange(samples * channels, dtype=torch.int64, device=like.device)
    first = planes * math.prod(spatial_sizes)
    return beside(first.view(samples, channels, *(1 for _ in spatial_sizes)), like)


def numbered(
    positions: Tensor, sizes: Sequence[int], index_dtype: torch.dtype, per_plane: bool
) -> Tensor:
    """Positions in each plane as indices in a tensor of ``sizes`` (N, C, *spatial); -1 stays."""
    if not per_plane:
        indices = positions + first_indices(positions, sizes)
        positions = torch.where(positions < 0, positions, indices)
    return positions.to(index_dtype)
