"""Moving halos between the ranks of a mesh dimension, after making sure that they speak of the same request."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake, unset_fake_temporarily
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh

from torch_dmlpool import operands
from torch_dmlpool.distributed.halo import contains, overlap


def needed(owned: Sequence[range], wanted: Sequence[range]) -> bool:
    """Whether any rank wants what another owns; all of them come to the same answer."""
    return not all(contains(own, want) for own, want in zip(owned, wanted, strict=True))


def fetch(
    local: Tensor,
    dimension: int,
    owned: Sequence[range],
    wanted: Sequence[range],
    mesh: DeviceMesh,
    mesh_dimension: int,
) -> Tensor:
    """What this rank wants along ``dimension``: ``local`` is what it owns, the rest comes from the other ranks.

    ``owned`` and ``wanted`` go by the coordinate in the mesh dimension. Where any rank needs something all of them take
    part in one exchange, in which each element that a rank wants and does not own is sent to it once, by its owner.
    """
    coordinate = coordinate_along(mesh, mesh_dimension)
    own, want = owned[coordinate], wanted[coordinate]
    if not needed(owned, wanted):
        return assembled([(local, own)], dimension, want)
    coordinates = _coordinates(mesh, mesh_dimension)
    sent = [overlap(own, wanted[other]) if other != coordinate else range(0) for other in coordinates]
    received = [overlap(owned[other], want) if other != coordinate else range(0) for other in coordinates]
    # Moved as bytes: no backend of torch.distributed knows every data type.
    across = math.prod(size for number, size in enumerate(local.shape) if number != dimension)
    # Views alone: compilers drop an exchange that repeats another, and must do so on every rank or on none.
    pieces = torch.cat([_part(local, dimension, own, part).reshape(-1) for part in sent])
    arrived = collectives.all_to_all_single(
        pieces.view(torch.uint8),
        [len(part) * across * local.itemsize for part in received],
        [len(part) * across * local.itemsize for part in sent],
        mesh.get_group(mesh_dimension),
    )
    arrived = collectives.wait_tensor(arrived).view(local.dtype)
    sizes = [(*local.shape[:dimension], len(part), *local.shape[dimension + 1 :]) for part in received]
    flat = arrived.split([len(part) * across for part in received])
    others = [piece.view(shape) for piece, shape in zip(flat, sizes, strict=True)]
    return assembled([(local, own), *zip(others, received, strict=True)], dimension, want)


def assembled(pieces: Sequence[tuple[Tensor, range]], dimension: int, wanted: range) -> Tensor:
    """The numbers ``wanted`` along a dimension, of which each piece holds a range; zeros where none does."""
    first, held = pieces[0]
    memory_format = operands.suggested_memory_format(first)
    if contains(held, wanted):
        part = _part(first, dimension, held, wanted)
        if held == wanted or part.is_contiguous(memory_format=memory_format):
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
    """The numbers ``part`` of a tensor that holds the numbers ``held`` along ``dimension``."""
    return tensor.narrow(dimension, part.start - held.start if part else 0, len(part))


def coordinate_along(mesh: DeviceMesh, mesh_dimension: int) -> int:
    """Where this rank stands in a mesh dimension."""
    return (mesh.get_coordinate() or ())[mesh_dimension]


def _coordinates(mesh: DeviceMesh, mesh_dimension: int) -> list[int]:
    """The coordinate of each rank of the group: groups are in the order of global ranks, a mesh need not be."""
    index: list[Any] = list(mesh.get_coordinate() or ())
    index[mesh_dimension] = slice(None)
    with unset_fake_temporarily():
        ranks = mesh.mesh[tuple(index)].tolist()
    return [ranks.index(rank) for rank in dist.get_process_group_ranks(mesh.get_group(mesh_dimension))]


def agree(request: str, mistake: str | None, like: Tensor, mesh: DeviceMesh, mesh_dimensions: Sequence[int]) -> None:
    """Refuse, on every rank alike, where ranks ask for different things or one of them has made a ``mistake``.

    Otherwise they would wait for one another's halos until the process group gives up. Sixteen bytes per mesh dimension
    are reduced; on a device other than the CPU nobody waits for the verdict, which is a device-side assertion there.
    """
    if is_fake(like):
        return
    number = int.from_bytes(hashlib.blake2b((mistake or request).encode(), digest_size=7).digest(), "little")
    # The largest number and the largest negated one: all numbers are equal if the two are.
    extremes = torch.tensor([number, -number], dtype=torch.int64, device=like.device)
    for mesh_dimension in mesh_dimensions:
        extremes = collectives.all_reduce(extremes, "max", mesh.get_group(mesh_dimension))
        extremes = collectives.wait_tensor(extremes)
    if like.device.type != "cpu":
        if mistake is not None:
            raise ValueError(mistake)
        torch._assert_async(extremes.sum() == 0, "the ranks of a spatially sharded pooling disagree about the request")
        return
    if extremes.sum().item() == 0 and mistake is None:
        return
    told: list[str] = []
    for mesh_dimension in mesh_dimensions:
        group = mesh.get_group(mesh_dimension)
        answers: list[str] = [""] * dist.get_world_size(group)
        dist.all_gather_object(answers, mistake or request, group)
        ranks = dist.get_process_group_ranks(group)
        told += [f"rank {rank}: {answer}" for rank, answer in zip(ranks, answers, strict=True)]
    raise ValueError("the ranks disagree about what is pooled:\n  " + "\n  ".join(dict.fromkeys(told)))
