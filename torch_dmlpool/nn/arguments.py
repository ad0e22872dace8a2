"""torch.nn's arguments understood: sizes, padding, tensors with and without a batch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from torch_dmlpool.window import AXIS_NAMES, Window

Sizes: TypeAlias = int | Sequence[int]
"""One int for every spatial dimension, or one per dimension."""

Padding: TypeAlias = int | Sequence[int] | Sequence[Sequence[int]] | Literal["same", "valid"]
"""Padding on both sides alike, as ``(start, end)`` pairs, or as a word."""


def window_of(
    rank: int,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    sizes: Sequence[int] | None = None,
) -> Window:
    """Build the window that torch.nn's arguments describe; bad ones are refused by name.

    PyTorch's two shorthands are understood: an empty ``stride`` means ``kernel_size``, and a one-entry list an int.
    """
    if stride is None or (isinstance(stride, Sequence) and not stride):
        stride = kernel_size
    if (
        type(kernel_size) is type(stride) is type(padding) is type(dilation) is int
        and not torch.compiler.is_compiling()
    ):
        return _window_of_ints(rank, kernel_size, stride, padding, dilation, ceil_mode)
    return Window.pytorch(
        rank, _shared(kernel_size), _shared(stride), _shared(padding), _shared(dilation), ceil_mode, sizes=sizes
    )


# Building one costs microseconds. Only plain ints are remembered: (2.0, 2.0) equals (2, 2), but is to be refused.
_window_of_ints = functools.lru_cache(maxsize=256, typed=True)(Window.pytorch)


def _shared(argument: Any) -> Any:
    """Return the one entry of a one-entry list, as PyTorch reads it, and any other argument, pairs too, as it is."""
    if isinstance(argument, (tuple, list)) and len(argument) == 1 and not isinstance(argument[0], Sequence):
        return argument[0]
    return argument


def with_batch(name: str, rank: int, input: Tensor) -> tuple[Tensor, bool]:
    """Return ``input`` with a batch dimension, and whether it was added here."""
    if not isinstance(input, Tensor):
        raise TypeError(f"{name}: input must be a torch.Tensor, got {type(input).__name__}")
    if input.dim() == rank + 2:
        return input, False
    if input.dim() == rank + 1:
        return input.unsqueeze(0), True
    spatial = ", ".join(AXIS_NAMES[rank])
    raise ValueError(
        f"{name}: input must be {rank + 2}-D (N, C, {spatial}) or, unbatched, {rank + 1}-D (C, {spatial}), "
        f"got {input.dim()}-D of shape {tuple(input.shape)}"
    )
