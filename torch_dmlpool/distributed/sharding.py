"""What every operator does with DTensors: one line of :data:`RULES` each.

Operators pool every sample and channel alone, so shards of the batch and the channels are pooled
where they are. Shards of D, H and W are gathered first. Operators are linear or not: ``Partial``
sums pass through a linear one as they are.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from torch_dmlpool import tensors
from torch_dmlpool._private import OpOverload
from torch_dmlpool.operators import registration
from torch_dmlpool.operators.quantized_linear_average_pooling import PARAMETERS
from torch_dmlpool.registry import NAMESPACE, WINDOW_SCHEMA
from torch_dmlpool.tensors import first_indices
from torch_dmlpool.window import Window

Side = Literal["input", "output", "channels"]
"""The sizes that a tensor has: the forward input's, the forward output's, or those of a scale or
zero point."""


class Rule(NamedTuple):
    """How one registered operator behaves on shards: the sides of its tensors and of its results,
    and the tensor that it is linear in.
    """

    arguments: Mapping[str, Side]
    results: tuple[Side, ...]
    linear_in: str | None = None


QUANTIZATION: dict[str, Side] = dict.fromkeys(PARAMETERS, "channels")
RULES = {
    "average_pooling": Rule({"input": "input"}, ("output",), "input"),
    "average_pooling_grad": Rule({"input_gradient": "output"}, ("input",), "input_gradient"),
    "max_pooling": Rule({"input": "input"}, ("output",)),
    "max_pooling_with_taps": Rule({"input": "input"}, ("output", "output")),
    "max_pooling_with_indices": Rule({"input": "input"}, ("output", "output")),
    "max_pooling_indices": Rule({"taps": "output"}, ("output",)),
    "max_pooling_grad": Rule(
        {"input": "input", "input_gradient": "output"}, ("input",), "input_gradient"
    ),
    "max_pooling_grad_from_taps": Rule(
        {"input_gradient": "output", "taps": "output"}, ("input",), "input_gradient"
    ),
    "max_pooling_gather": Rule({"input": "input", "taps": "output"}, ("output",), "input"),
    "quantized_linear_average_pooling": Rule({"input": "input", **QUANTIZATION}, ("output",)),
    "quantized_linear_average_pooling_of_numbers": Rule({"input": "input"}, ("output",)),
    "adaptive_average_pooling": Rule({"input": "input"}, ("output",), "input"),
    "adaptive_average_pooling_grad": Rule(
        {"input_gradient": "output"}, ("input",), "input_gradient"
    ),
    "adaptive_max_pooling": Rule({"input": "input"}, ("output", "output")),
    "gather_positions": Rule({"input": "input", "positions": "output"}, ("output",), "input"),
    "scatter_positions": Rule({"input": "output", "positions": "output"}, ("input",), "input"),
    "unique_positions": Rule({"positions": "output"}, ("output",)),
}
"""A rule for each operator, by its name in the namespace ``dmlpool``."""

MOVED = dict.fromkeys((torch.int16, torch.uint16), torch.float16)
MOVED |= {torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Data types that gloo does not move, with one of their size that it does."""

WINDOW_ARGUMENTS = [word.split()[1] for word in WINDOW_SCHEMA.split(", ")]


def pool(_kind: Any, operator: OpOverload, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """The function that PyTorch calls in place of ``operator`` when a tensor among its arguments is
    a DTensor.
    """
    names = [argument.name for argument in operator._schema.arguments]
    arguments = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
    with torch.no_grad():
        return _Request(operator, arguments).answer()


class _Request:
    """One call of an operator on DTensors."""

    def __init__(self, operator: OpOverload, arguments: dict[str, Any]) -> None:
        self.operator, self.arguments = operator, arguments
        self.name = operator._schema.name.removeprefix(f"{NAMESPACE}::")
        self.rule = RULES[self.name]
        self.sides = self.rule.arguments
        self.tensors: dict[str, DTensor] = {
            name: arguments[name] for name in self.sides if name not in PARAMETERS
        }
        self.mesh, self.window = self._common_mesh(), None
        if "window_size" in arguments:
            words = [arguments[word] for word in WINDOW_ARGUMENTS]
            self.window = Window.directml(len(words[0]), *words)
        self.placements = self._place()
        self.sizes = self._sizes()

    def _sizes(self) -> dict[Side, list[int]]:
        """The sizes of the whole input and of the whole output."""
        sizes = {self.sides[name]: list(tensor.shape) for name, tensor in self.tensors.items()}
        both = next(iter(sizes.values()))[:2]
        if "input" not in sizes:
            sizes["input"] = [*both, *self.arguments["spatial_sizes"]]
        if self.window is not None:
            sizes["output"] = [*both, *self.window.output_sizes(sizes["input"][2:])]
        elif "output" not in sizes:
            sizes["output"] = [*both, *self.arguments["output_sizes"]]
        for name, tensor in self.tensors.items():
            tensors.check_sizes(name, tensor, sizes[self.sides[name]])
        return sizes

    def _common_mesh(self) -> DeviceMesh:
        """The mesh of all tensors; rejects a tensor that is no DTensor or is on another mesh."""
        for name, tensor in self.tensors.items():
            if not isinstance(tensor, DTensor):
                raise TypeError(
                    f"{name} must be a DTensor, as others of {self.name} are, got "
                    f"{type(tensor).__name__}"
                )
        meshes = [tensor.device_mesh for tensor in self.tensors.values()]
        if any(mesh != meshes[0] for mesh in meshes):
            raise ValueError(f"the tensors of {self.name} must be on one device mesh, got {meshes}")
        return meshes[0]

    def _place(self) -> list[Placement]:
        """Redistribute the tensors so that a rank needs nothing of another; returns the placements
        of the results.

        Where placements differ, the tensor that the operator is linear in takes those of the
        others.
        """
        linear_in = self.rule.linear_in
        results: list[Placement] = []
        for mesh_dimension in range(self.mesh.ndim):
            held = {
                name: tensor.placements[mesh_dimension] for name, tensor in self.tensors.items()
            }
            others_first = [held[name] for name in sorted(held, key=lambda name: name == linear_in)]
            kept = [each for each in others_first if type(each) is Shard and each.dim < 2]
            summed = held.get(linear_in or "")
            if not isinstance(summed, Partial) or summed.reduce_op not in ("sum", "avg"):
                summed = Replicate()
            results.append(kept[0] if kept else summed)
        for name, tensor in self.tensors.items():
            placements = [
                Replicate() if each.is_partial() and name != linear_in else each for each in results
            ]
            if list(tensor.placements) != placements:
                self.tensors[name] = _redistributed(tensor, placements)
        return results

    def answer(self) -> Any:
        """The operator's results, as DTensors."""
        results = self._nothing() if self.mesh.get_coordinate() is None else self._own_results()
        wrapped = tuple(
            self._wrapped(*pair) for pair in zip(results, self.rule.results, strict=True)
        )
        return wrapped if len(wrapped) > 1 else wrapped[0]

    def _own_results(self) -> list[Tensor]:
        """The parts of the results that this rank owns."""
        held = {name: _local(tensor) for name, tensor in self.tensors.items()}
        owned = self._owned()
        for name, tensor in held.items():
            sizes = (*map(len, owned), *self.sizes[self.sides[name]][2:])
            if tuple(tensor.shape) != sizes:
                raise ValueError(
                    f"{name} of {self.name} is {tuple(self.tensors[name].shape)} with placements "
                    f"{tuple(self.placements)}: this rank must hold {sizes} of it, but holds "
                    f"{tuple(tensor.shape)}"
                )
        arguments = {**self.arguments, **held, **self._of_channels(owned[1])}
        is_renumbered = not arguments.get("per_plane", True)
        if is_renumbered:
            arguments.update(index_dtype=torch.int64, per_plane=True)
        results = self._called(arguments)
        if is_renumbered:
            # Indices count in the whole tensor (rule M4), of which this rank has some planes.
            positions = results[-1]
            samples, channels = (slice(part.start, part.stop) for part in owned)
            whole = positions + first_indices(positions, self.sizes["input"])[samples, channels]
            indices = torch.where(positions < 0, positions, whole)
            results[-1] = indices.to(self.arguments["index_dtype"])
        return results

    def _owned(self) -> list[range]:
        """The samples and the channels that this rank owns, in the chunks that Shard cuts: equal
        ones, the last of them short or empty.
        """
        owned = [range(size) for size in self.sizes["input"][:2]]
        along = zip(self.placements, self.mesh.shape, self.mesh.get_coordinate() or (), strict=True)
        for placement, ranks, coordinate in along:
            if isinstance(placement, Shard):
                part = owned[placement.dim]
                chunk = -(-len(part) // ranks)
                owned[placement.dim] = part[coordinate * chunk : (coordinate + 1) * chunk]
        return owned

    def _called(self, arguments: Mapping[str, Any]) -> list[Tensor]:
        """The results of the operator as a list."""
        results = registration.call(
            self.operator,
            *(
                arguments[argument.name]
                for argument in self.operator._schema.arguments
                if not argument.kwarg_only
            ),
        )
        return [results] if isinstance(results, Tensor) else list(results)

    def _nothing(self) -> list[Tensor]:
        """Empty results of the data types that the operator gives: it is called without samples."""
        empty_sizes = {name: (0, *self.sizes[self.sides[name]][1:]) for name in self.tensors}
        empty = {
            name: _local(tensor).new_empty(empty_sizes[name])
            for name, tensor in self.tensors.items()
        }
        whole = self._of_channels(range(self.sizes["input"][1]))
        return [
            result.new_empty(0) for result in self._called({**self.arguments, **empty, **whole})
        ]

    def _of_channels(self, channels: range) -> dict[str, Tensor | None]:
        """Scales and zero points, cut to ``channels`` if they have one entry for each channel."""
        found = {name: self.arguments[name] for name in PARAMETERS if name in self.sides}
        for name, parameter in found.items():
            if isinstance(parameter, DTensor):
                parameter = parameter.full_tensor()
            several = parameter is not None and parameter.numel() > 1
            found[name] = (
                parameter.reshape(-1)[channels.start : channels.stop] if several else parameter
            )
        return found

    def _wrapped(self, local: Tensor, side: Side) -> DTensor:
        """A result's part ``local`` as a DTensor."""
        sizes = torch.Size(self.sizes[side])
        memory_format = tensors.suggested_memory_format(next(iter(self.tensors.values())))
        if "channels_last" in self.arguments:
            memory_format = tensors.named_memory_format(
                self.arguments["channels_last"], len(sizes) - 2
            )
        like = torch.empty((), dtype=local.dtype, device="meta")
        strides = tensors.empty(sizes, like, memory_format).stride()
        return DTensor.from_local(
            local, self.mesh, self.placements, run_check=False, shape=sizes, stride=strides
        )


def _redistributed(tensor: DTensor, placements: list[Placement]) -> DTensor:
    # Detached: below autograd, PyTorch 2.11 cannot redistribute uneven shards that require a
    # gradient.
    tensor, dtype = cast("DTensor", tensor.detach()), tensor.dtype
    if any(each.is_partial() for each in tensor.placements):
        return tensor.redistribute(placements=placements)
    moved = _as_type(tensor, MOVED.get(dtype, dtype)).redistribute(placements=placements)
    return _as_type(moved, dtype)


def _as_type(tensor: DTensor, dtype: torch.dtype) -> DTensor:
    """The bits of a tensor as another data type of their size."""
    if tensor.dtype is dtype:
        return tensor
    local, how = _local(tensor).view(dtype), (tensor.device_mesh, tensor.placements)
    return DTensor.from_local(
        local, *how, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def _local(tensor: DTensor) -> Tensor:
    """The local part of a DTensor, once it has arrived. What was gathered has lost its layout."""
    local = tensor.to_local()
    local = local.wait() if isinstance(local, AsyncCollectiveTensor) else local
    if not tensors.is_channels_last(tensor):
        return local
    return tensors.laid_out(local, tensors.suggested_memory_format(tensor))
