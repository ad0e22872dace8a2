"""What every operator does with DTensors.

Operators pool every sample and channel alone, so shards of the batch and the channels are pooled
where they are. Shards of D, H and W are gathered first. Operators are linear or not: ``Partial``
sums pass through a linear one as they are. Sizes, data types and layouts of the whole results are
those that the operator gives for meta tensors.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Placement

from torch_dmlpool import tensors
from torch_dmlpool._private import OpOverload
from torch_dmlpool.operators import registration
from torch_dmlpool.operators.quantized_linear_average_pooling import PARAMETERS
from torch_dmlpool.window import Named

RULES: dict[str, str | None] = {
    "average_pooling": "input",
    "average_pooling_grad": "input_gradient",
    "max_pooling": None,
    "max_pooling_with_taps": None,
    "max_pooling_with_indices": None,
    "max_pooling_indices": None,
    "max_pooling_grad": "input_gradient",
    "max_pooling_grad_from_taps": "input_gradient",
    "max_pooling_gather": "input",
    "quantized_linear_average_pooling": None,
    "quantized_linear_average_pooling_of_numbers": None,
    "adaptive_average_pooling": "input",
    "adaptive_average_pooling_grad": "input_gradient",
    "adaptive_max_pooling": None,
    "gather_positions": "input",
    "scatter_positions": "input",
    "unique_positions": None,
}
"""The tensor that each operator is linear in, by the operator's name in the namespace ``dmlpool``;
None if it is linear in none.
"""

MOVED = {
    torch.int16: torch.float16,
    torch.uint16: torch.float16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}
"""Data types that gloo does not move, with one of their size that it does."""


def pool(_kind: Any, operator: OpOverload, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """The function that PyTorch calls in place of ``operator`` when a tensor among its arguments is
    a DTensor.
    """
    names = [argument.name for argument in operator._schema.arguments]
    named = dict(zip(names, args, strict=False)) | (kwargs or {})
    shards: Named = {
        each: value
        for each, value in named.items()
        if isinstance(value, Tensor) and each not in PARAMETERS
    }
    with torch.no_grad():
        mesh = _common_mesh(operator, shards)
        placements = _place(mesh, shards, RULES[operator._opname])
        named |= shards
        wholes = _called(operator, {each: _meta(value) for each, value in named.items()})
        if mesh.get_coordinate() is None:
            parts = [torch.empty(0, dtype=each.dtype, device=mesh.device_type) for each in wholes]
        else:
            parts = _own_parts(operator, named, shards, mesh, placements)
        results = tuple(
            DTensor.from_local(
                part, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
            )
            for part, whole in zip(parts, wholes, strict=True)
        )
    return results if len(results) > 1 else results[0]


def _common_mesh(operator: OpOverload, shards: Named) -> DeviceMesh:
    """The mesh of all tensors; rejects a tensor that is no DTensor or is on another mesh."""
    for name, tensor in shards.items():
        if not isinstance(tensor, DTensor):
            raise TypeError(
                f"{name} must be a DTensor, as others of {operator._opname} are, got "
                f"{type(tensor).__name__}"
            )
    meshes = [tensor.device_mesh for tensor in shards.values()]
    if any(mesh != meshes[0] for mesh in meshes):
        raise ValueError(
            f"the tensors of {operator._opname} must be on one device mesh, got {meshes}"
        )
    return meshes[0]


def _place(mesh: DeviceMesh, shards: dict[str, DTensor], linear_in: str | None) -> list[Placement]:
    """Redistribute the tensors so that a rank needs nothing of another; returns the placements of
    the results.

    Where placements differ, the tensor that the operator is linear in takes those of the others.
    """
    results: list[Placement] = []
    others_first = sorted(shards, key=lambda name: name == linear_in)
    for dimension in range(mesh.ndim):
        held = {name: shards[name].placements[dimension] for name in others_first}
        kept = [each for each in held.values() if type(each) is Shard and each.dim < 2]
        summed = held.get(linear_in or "")
        if not isinstance(summed, Partial) or summed.reduce_op not in ("sum", "avg"):
            summed = Replicate()
        results.append(kept[0] if kept else summed)
    for name, tensor in shards.items():
        placements = [
            Replicate() if each.is_partial() and name != linear_in else each for each in results
        ]
        if list(tensor.placements) != placements:
            shards[name] = _redistributed(tensor, placements)
    return results


def _meta(value: Any) -> Any:
    """A tensor of the same sizes, strides and data type without memory; other values as they
    are.
    """
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _called(operator: OpOverload, named: Named) -> list[Tensor]:
    """The results of the operator as a list."""
    accepted = [each.name for each in operator._schema.arguments if not each.kwarg_only]
    results = registration.call(operator, tuple(map(named.__getitem__, accepted)))
    return [results] if isinstance(results, Tensor) else list(results)


def _own_parts(
    operator: OpOverload,
    named: Named,
    shards: dict[str, DTensor],
    mesh: DeviceMesh,
    placements: list[Placement],
) -> list[Tensor]:
    """The parts of the results that this rank owns."""
    for name, tensor in shards.items():
        local = _local(tensor)
        sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
        if local.shape != sizes:
            raise ValueError(
                f"{name} of {operator._opname} is {tuple(tensor.shape)} with placements "
                f"{tuple(placements)}: this rank must hold {sizes} of it, but holds "
                f"{tuple(local.shape)}"
            )
        named[name] = local
    samples, channels = (
        slice(first, first + count) for first, count in zip(offsets[:2], sizes, strict=False)
    )
    for name in PARAMETERS:
        given: Any = named.get(name)
        given = given.full_tensor() if isinstance(given, DTensor) else given
        is_vector = isinstance(given, Tensor) and given.numel() != 1
        named[name] = given.reshape(-1)[channels] if is_vector else given
    is_renumbered = not named.get("per_plane", True)
    index_dtype = named.get("index_dtype")
    if is_renumbered:
        named.update(index_dtype=torch.int64, per_plane=True)
    results = _called(operator, named)
    if is_renumbered:
        # Indices count in the whole tensor (rule M4), of which this rank has some planes.
        whole = next(iter(shards.values())).shape
        whole_sizes = [*whole[:2], *named.get("spatial_sizes", whole[2:])]
        first = tensors.first_indices(results[-1], whole_sizes)[samples, channels]
        results[-1] = torch.where(results[-1] < 0, results[-1], results[-1] + first).to(index_dtype)
    return results


def _redistributed(tensor: DTensor, placements: list[Placement]) -> DTensor:
    # Detached: below autograd, PyTorch 2.11 cannot redistribute uneven shards that require a
    # gradient.
    tensor, dtype = tensor.detach(), tensor.dtype  # type: ignore[assignment]
    if any(each.is_partial() for each in tensor.placements):
        return tensor.redistribute(placements=placements)
    moved = _as_type(tensor, MOVED.get(dtype, dtype)).redistribute(placements=placements)
    return _as_type(moved, dtype)


def _as_type(tensor: DTensor, dtype: torch.dtype) -> DTensor:
    """The bits of a tensor as another data type of their size."""
    if tensor.dtype is dtype:
        return tensor
    return DTensor.from_local(
        _local(tensor).view(dtype),
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def _local(tensor: DTensor) -> Tensor:
    """The local part of a DTensor, once it has arrived. What was gathered has lost its layout."""
    local = tensor.to_local()
    local = local.wait() if isinstance(local, AsyncCollectiveTensor) else local
    return tensors.laid_out(local, True) if tensors.is_channels_last(tensor) else local
