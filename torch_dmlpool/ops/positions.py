"""Elements by their positions in a plane: gathered, scattered, and made unique.

A position counts from 0 inside one ``(n, c)`` plane, in row-major order; -1, and what lies outside the plane, stands
for no element. The gather and the scatter are linear and each other's adjoint. Scattered positions are either unique,
as :func:`unique_positions` makes them, or those of adaptive maxima (``bins``), which may coincide and then add up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.ops.registration import Operator

POSITION_TYPES = (torch.int32, torch.int64)


def _check_unique(positions: Tensor, spatial_sizes: Sequence[int]) -> Sequence[int]:
    operands.check_spatial_sizes("the output", spatial_sizes, positions.dim() - 2)
    return positions.shape


def _check_gather(input: Tensor, positions: Tensor, bins: bool) -> Sequence[int]:
    operands.check_device("positions", positions, input)
    operands.check_sizes("positions", positions, [*input.shape[:2], *positions.shape[2:]])
    return positions.shape


def _check_scatter(
    input: Tensor, positions: Tensor, spatial_sizes: Sequence[int], bins: bool, channels_last: bool
) -> list[int]:
    operands.check_pooled("input", input, operands.FLOAT_TYPES if bins else operands.MAX_TYPES)
    _check_unique(positions, spatial_sizes)
    operands.check_device("positions", positions, input)
    operands.check_sizes("positions", positions, input.shape)
    return [*input.shape[:2], *spatial_sizes]


unique_positions: Operator = Operator(
    "unique_positions(Tensor positions, SymInt[] spatial_sizes) -> Tensor",
    [POSITION_TYPES],
    _check_unique,
    results=lambda positions, sizes: [
        (operands.suggested_memory_format(positions), operands.position_dtype(math.prod(sizes)))
    ],
)
"""``positions`` with -1 for what lies outside ``spatial_sizes``, and for all but the last of several alike."""

gather_positions: Operator = Operator(
    "gather_positions(Tensor input, Tensor positions, bool bins) -> Tensor",
    [operands.MAX_TYPES, POSITION_TYPES],
    _check_gather,
    results=lambda input, positions, bins: [(operands.suggested_memory_format(positions), input.dtype)],
    # Whether positions may coincide is for the adjoint alone.
    call=lambda backend, input, positions, bins: backend.gather_positions(input, positions),
    adjoint=lambda input, positions, bins: (
        scatter_positions,
        (input.shape[2:], bins, operands.is_channels_last(input)),
    ),
)
"""The element of ``input`` at each position, 0 where there is none."""

scatter_positions: Operator = Operator(
    "scatter_positions(Tensor input, Tensor positions, SymInt[] spatial_sizes, bool bins, bool channels_last) "
    "-> Tensor",
    [operands.MAX_TYPES, POSITION_TYPES],
    _check_scatter,
    results=lambda input, positions, sizes, bins, channels_last: [
        (operands.named_memory_format(channels_last, len(sizes)), input.dtype)
    ],
    adjoint=lambda input, positions, sizes, bins, channels_last: (gather_positions, (bins,)),
)
"""Zeros of ``spatial_sizes`` with each element of ``input`` at its position."""
