"""Spatial dimensions that are split over a mesh: what each rank fetches from the others, and what
it keeps of its results.

A rank that owns some windows reads the elements that they span; a rank that owns some elements of a
gradient reads the windows that cover them. Both are the same :class:`Portion`: windows, the
elements they span, and an axis for these elements alone, on which every divisor, tap number and
empty window is what it is in the whole tensor. Before halos are moved the ranks make sure that they
make the same request.
"""

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake, unset_fake_temporarily
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh

from torch_dmlpool import operands
from torch_dmlpool._private import _assert_async
from torch_dmlpool.window import Axis

Side = Literal["input", "output", "channels"]
"""The sizes that a tensor has: the forward input's, the forward output's, or those of a scale or
zero point."""


@dataclass(frozen=True, slots=True)
class Portion:
    """What one rank computes along one axis, in positions of the whole tensor."""

    # the windows that it computes: more than it owns only if those that it owns read no element
    windows: range
    elements: range  # the input's elements from the first to the last that the windows can read
    axis: Axis  # with an input of these elements alone it has exactly these windows

    def of(self, side: Side) -> range:
        """The elements or the windows, by the side of a tensor."""
        return self.elements if side == "input" else self.windows


def shards(size: int, parts: int) -> tuple[range, ...]:
    """How DTensor's ``Shard`` splits ``size`` over ``parts`` ranks: equal chunks, the last ones
    short or empty.
    """
    chunk = -(-size // parts)
    return tuple(
        range(min(part * chunk, size), min((part + 1) * chunk, size)) for part in range(parts)
    )


@functools.lru_cache(maxsize=1024)
def portions(axis: Axis, size: int, parts: int, of_elements: bool) -> tuple[Portion, ...]:
    """The portion of each of ``parts`` ranks: the windows that it owns or, with ``of_elements``,
    the windows that cover an element that it owns.
    """
    outputs = axis.output_size(size)
    owned = shards(size if of_elements else outputs, parts)
    return tuple(
        _portion(axis, size, _covering(axis, outputs, own) if of_elements else own) for own in owned
    )


def overlap(first: range, second: range) -> range:
    """The positions in both ranges."""
    start = max(first.start, second.start)
    return range(start, max(start, min(first.stop, second.stop)))


def contains(outer: range, inner: range) -> bool:
    return not inner or (outer.start <= inner.start and inner.stop <= outer.stop)


def _covering(axis: Axis, outputs: int, elements: range) -> range:
    """The windows that span one of ``elements``."""
    if not elements:
        return range(0)
    low = -(-(elements.start + axis.start_padding - axis.extent + 1) // axis.stride)
    high = (elements.stop - 1 + axis.start_padding) // axis.stride + 1
    low = min(max(low, 0), outputs)
    return range(low, max(low, min(high, outputs)))


def _portion(axis: Axis, size: int, windows: range) -> Portion:
    """The portion with ``windows``, to which others are added if they read no element."""
    if not windows:
        return Portion(range(0), range(0), axis)
    first = axis.first_position(windows.start)
    stop = axis.first_position(windows.stop - 1) + axis.extent
    if stop <= 0:
        # All windows are in the start padding. An operator needs an element, so windows are added
        # until one may be read.
        alone = axis._replace(start_padding=-first, end_padding=0)
        return Portion(range(windows.start, windows.start + alone.output_size(1)), range(1), alone)
    elements = range(min(max(first, 0), size - 1), min(stop, size))
    if first >= size:
        # All windows are past the input: others are added in front, down to one that may read the
        # last element.
        added = -(-(first - elements.start) // axis.stride)
        windows, first = range(windows.start - added, windows.stop), first - added * axis.stride
    # What lies past the counted padding is the overhang of ceil_mode, as in the whole tensor.
    end_padding = min(stop, size + axis.end_padding) - elements.stop
    return Portion(
        windows,
        elements,
        axis._replace(start_padding=elements.start - first, end_padding=end_padding),
    )


@dataclass(frozen=True)
class ShardedAxis:
    """An axis of the window, the mesh dimension that it is split over, and whether the operator's
    result is on the input's side.
    """

    dimension: int  # its number in a tensor of samples, channels and spatial dimensions
    axis: Axis
    size: int
    mesh: DeviceMesh
    mesh_dimension: int
    to_input: bool  # whether the operator's result has the input's sizes, as a gradient has

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
        """The position of this rank along the mesh dimension."""
        return (self.mesh.get_coordinate() or ())[self.mesh_dimension]

    def _owned(self, side: Side) -> tuple[range, ...]:
        """What each rank owns of a tensor of that side."""
        size = self.size if side == "input" else self.axis.output_size(self.size)
        return shards(size, self.mesh.size(self.mesh_dimension))

    def _wanted(self, side: Side) -> tuple[range, ...]:
        """What each rank's portion reads of a tensor of that side."""
        # In the forward direction a rank reads only windows that it owns.
        is_own = side == "output" and not self.to_input
        return self._owned(side) if is_own else tuple(portion.of(side) for portion in self.portions)

    def exchanges(self, side: Side) -> bool:
        """Whether any rank needs what another owns of a tensor of that side; all ranks get the same
        answer.
        """
        return not all(map(contains, self._owned(side), self._wanted(side)))

    def fetched(self, local: Tensor, side: Side) -> Tensor:
        """What this rank's portion reads of a tensor: its own part is ``local``, and the rest comes
        from other ranks.
        """
        pieces = [(local, self._owned(side)[self._coordinate])]
        if self.exchanges(side):
            pieces += self._received(local, side)
        # Tap numbers of windows that were added to the rank's own are zeros here. Any number is
        # right for them, as ``kept`` drops their results.
        return assembled(pieces, self.dimension, self.portion.of(side))

    def _received(self, local: Tensor, side: Side) -> list[tuple[Tensor, range]]:
        """The parts that other ranks own of what this rank wants, each with its positions.

        All ranks take part in one all-to-all, in which an element comes from its owner alone.
        """
        owned, wanted, dimension = self._owned(side), self._wanted(side), self.dimension
        own, want = owned[self._coordinate], wanted[self._coordinate]
        # A group is in the order of global ranks, but a mesh need not be.
        index: list[Any] = list(self.mesh.get_coordinate() or ())
        index[self.mesh_dimension] = slice(None)
        with unset_fake_temporarily():
            ranks = self.mesh.mesh[tuple(index)].tolist()
        group = self.mesh.get_group(self.mesh_dimension)
        others = [ranks.index(rank) for rank in dist.get_process_group_ranks(group)]
        sent = [
            overlap(own, wanted[other]) if other != self._coordinate else range(0)
            for other in others
        ]
        received = [
            overlap(owned[other], want) if other != self._coordinate else range(0)
            for other in others
        ]
        # The elements are moved as bytes: no backend of torch.distributed takes every data type.
        across = math.prod(size for number, size in enumerate(local.shape) if number != dimension)
        # The list has views alone, on every rank: compilers drop an exchange that repeats another,
        # and must do so on every rank or on none.
        pieces = torch.cat([_part(local, dimension, own, part).reshape(-1) for part in sent])
        arriving, leaving = (
            [len(part) * across * local.itemsize for part in parts] for parts in (received, sent)
        )
        arrived = collectives.all_to_all_single(pieces.view(torch.uint8), arriving, leaving, group)
        flat = (
            collectives.wait_tensor(arrived)
            .view(local.dtype)
            .split([len(part) * across for part in received])
        )
        before, after = local.shape[:dimension], local.shape[dimension + 1 :]
        return [
            (piece.view(*before, len(part), *after), part)
            for piece, part in zip(flat, received, strict=True)
        ]

    def kept(self, result: Tensor) -> Tensor:
        """What this rank owns of the ``result`` of its portion; an element that no window covers
        has gradient 0.
        """
        side: Side = "input" if self.to_input else "output"
        return assembled(
            [(result, self.portion.of(side))], self.dimension, self._owned(side)[self._coordinate]
        )


def assembled(pieces: Sequence[tuple[Tensor, range]], dimension: int, wanted: range) -> Tensor:
    """A tensor of the positions ``wanted`` along a dimension. Each piece holds a range of
    positions; where none holds one there are zeros.
    """
    first, held = pieces[0]
    memory_format = operands.suggested_memory_format(first)
    if contains(held, wanted):
        part = _part(first, dimension, held, wanted)
        if held == wanted or operands.lies_in(part, memory_format):
            return part
    sizes = list(first.shape)
    sizes[dimension] = len(wanted)
    whole = operands.empty(sizes, first, memory_format)
    both = [overlap(held, wanted) for _, held in pieces]
    if sum(map(len, both)) < len(wanted):
        whole.zero_()
    for (piece, held), numbers in zip(pieces, both, strict=True):
        if numbers:
            _part(whole, dimension, wanted, numbers).copy_(_part(piece, dimension, held, numbers))
    return whole


def _part(tensor: Tensor, dimension: int, held: range, part: range) -> Tensor:
    """The positions ``part`` of a tensor that holds the positions ``held`` along ``dimension``."""
    return tensor.narrow(dimension, part.start - held.start if part else 0, len(part))


def agree(
    request: str,
    mistake: str | None,
    like: Tensor,
    mesh: DeviceMesh,
    mesh_dimensions: Sequence[int],
) -> None:
    """Raise an error on every rank alike where ranks ask for different things or one of them has
    made a ``mistake``.

    Otherwise they would wait for one another's halos until the process group gives up. Sixteen
    bytes per mesh dimension are reduced; on a device other than the CPU nobody waits for the
    verdict, which is a device-side assertion there.
    """
    if is_fake(like):
        return
    number = int.from_bytes(
        hashlib.blake2b((mistake or request).encode(), digest_size=7).digest(), "little"
    )
    # This gives the maximum of all numbers and that of all negated ones. Their sum is 0 only if all
    # numbers are equal.
    extremes = torch.tensor([number, -number], dtype=torch.int64, device=like.device)
    for mesh_dimension in mesh_dimensions:
        extremes = collectives.all_reduce(extremes, "max", mesh.get_group(mesh_dimension))
        extremes = collectives.wait_tensor(extremes)
    if like.device.type != "cpu":
        if mistake is not None:
            raise ValueError(mistake)
        _assert_async(
            extremes.sum() == 0,
            "the ranks of a spatially sharded pooling disagree about the request",
        )
        return
    if extremes.sum().item() == 0 and mistake is None:
        return
    told: list[str] = []
    for mesh_dimension in mesh_dimensions:
        group = mesh.get_group(mesh_dimension)
        answers: list[str] = [""] * dist.get_world_size(group)
        dist.all_gather_object(answers, f"rank {dist.get_rank()}: {mistake or request}", group)
        told += answers
    raise ValueError(
        "the ranks disagree about what is pooled:\n  " + "\n  ".join(dict.fromkeys(told))
    )
