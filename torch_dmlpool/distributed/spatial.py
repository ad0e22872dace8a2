"""One spatial dimension that is split over the mesh: what its rank fetches, and what it keeps of what it computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from torch_dmlpool.distributed import exchange
from torch_dmlpool.distributed.halo import Portion, portions, shards
from torch_dmlpool.window import Axis

Side = Literal["input", "output", "channels"]
"""Whose sizes a tensor has: the forward input's, the forward output's, or one entry for all channels or one each."""


@dataclass(frozen=True)
class ShardedAxis:
    """An axis of the window, the mesh dimension it is split over, and which way the operator goes."""

    dimension: int
    """Its number in a tensor of samples, channels and spatial dimensions."""
    axis: Axis
    size: int
    mesh: DeviceMesh
    mesh_dimension: int
    to_input: bool
    """Whether the operator's result has the input's sizes, as a gradient has."""

    @property
    def portions(self) -> tuple[Portion, ...]:
        """What every rank along the mesh dimension computes."""
        return portions(self.axis, self.size, self.mesh.size(self.mesh_dimension), self.to_input)

    @property
    def portion(self) -> Portion:
        """What this rank computes."""
        return self.portions[self._coordinate]

    @property
    def _coordinate(self) -> int:
        return exchange.coordinate_along(self.mesh, self.mesh_dimension)

    def _owned(self, side: Side) -> tuple[range, ...]:
        size = self.size if side == "input" else self.axis.output_size(self.size)
        return shards(size, self.mesh.size(self.mesh_dimension))

    def _wanted(self, side: Side) -> tuple[range, ...]:
        if side == "input":
            return tuple(portion.elements for portion in self.portions)
        # Forwards, a rank's windows are its own.
        return tuple(portion.windows for portion in self.portions) if self.to_input else self._owned(side)

    def exchanges(self, side: Side) -> bool:
        """Whether any rank needs another's elements of a tensor of that side."""
        return exchange.needed(self._owned(side), self._wanted(side))

    def fetched(self, local: Tensor, side: Side) -> Tensor:
        """What this rank's portion reads of a tensor of which it holds ``local``."""
        owned, wanted = self._owned(side), self._wanted(side)
        local = exchange.fetch(local, self.dimension, owned, wanted, self.mesh, self.mesh_dimension)
        if side == "output" and not self.to_input:
            # Windows that are computed beside the rank's own are dropped again; any tap number serves them.
            local = exchange.assembled([(local, wanted[self._coordinate])], self.dimension, self.portion.windows)
        return local

    def kept(self, result: Tensor) -> Tensor:
        """What this rank owns of the ``result`` of its portion; an element that no window covers has gradient 0."""
        side: Side = "input" if self.to_input else "output"
        held = self.portion.elements if self.to_input else self.portion.windows
        return exchange.assembled([(result, held)], self.dimension, self._owned(side)[self._coordinate])


def whole_indices(positions: Tensor, sizes: Sequence[int], held: Sequence[range], per_plane: bool) -> Tensor:
    """Positions in the part of the planes that this rank has read as indices in the whole of ``sizes``; -1 stays -1.

    ``held`` is the part of every dimension: owned of N and C, read of the others.
    """
    rest, whole, step = positions, torch.zeros_like(positions), 1
    for part, size in zip(reversed(held[2:]), reversed(sizes[2:]), strict=True):
        whole += (rest % len(part) + part.start) * step
        rest, step = rest // len(part), step * size
    for dimension in () if per_plane else (1, 0):
        part = held[dimension]
        numbers = torch.arange(part.start, part.stop, dtype=torch.int64, device=positions.device)
        whole += numbers.view([-1 if number == dimension else 1 for number in range(positions.dim())]) * step
        step *= sizes[dimension]
    return torch.where(positions < 0, positions, whole)
