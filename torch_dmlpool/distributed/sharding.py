"""What every operator does with DTensors: one line of :data:`RULES` each.

Operators pool every sample and channel alone, so shards of the batch and the channels are pooled
where they are. A spatial shard fetches the halo that its part of the result needs, then runs the
same operator on what it holds; a gradient is computed by the rank that owns the element, from the
windows that cover it, so nothing is ever added up between ranks. Operators are linear or not:
``Partial`` sums pass through a linear one as they are.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from torch_dmlpool import operands
from torch_dmlpool._private import OpOverload
from torch_dmlpool.distributed.exchange import ShardedAxis, Side, agree, shards
from torch_dmlpool.elements import first_indices
from torch_dmlpool.ops import registration
from torch_dmlpool.registry import NAMESPACE, WINDOW_SCHEMA
from torch_dmlpool.window import AXIS_NAMES, Window


class Rule(NamedTuple):
    """How one registered operator behaves on shards: the sides of its tensors and of its results,
    and the tensor that it is linear in.
    """

    arguments: Mapping[str, Side]
    results: tuple[Side, ...]
    linear_in: str | None = None


QUANTIZATION: dict[str, Side] = dict.fromkeys(operands.PARAMETERS, "channels")
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
"""A rule for each operator, by its name in the namespace ``dmlpool``. Operators without a window
have no halo: shards of D, H and W are gathered for them."""

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
        self.rule, self.has_indices = RULES[self.name], "index_dtype" in arguments
        self.sides = self.rule.arguments
        self.tensors: dict[str, DTensor] = {
            name: arguments[name] for name in self.sides if name not in operands.PARAMETERS
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
            operands.check_sizes(name, tensor, sizes[self.sides[name]])
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
        """Redistribute the tensors so that a rank needs nothing of another but halos; returns the
        placements of the results.

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
            kept = [
                each
                for each in others_first
                if type(each) is Shard and (each.dim < 2 or self.window)
            ]
            summed = held.get(linear_in or "")
            if not isinstance(summed, Partial) or summed.reduce_op not in ("sum", "avg"):
                summed = Replicate()
            results.append(kept[0] if kept else summed)
        for name, tensor in self.tensors.items():
            placements = [
                Replicate() if each.is_partial() and name != linear_in else each for each in results
            ]
            if list(tensor.placements) != placements:
                # Detached: below autograd, PyTorch 2.11 cannot redistribute uneven shards that
                # require a gradient.
                self.tensors[name] = tensor.detach().redistribute(placements=placements)  # type: ignore[attr-defined]
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
        axes = self._sharded_axes()
        held = {name: _local(tensor) for name, tensor in self.tensors.items()}
        self._agree(held, axes)
        for axis in axes:
            held = {name: axis.fetched(tensor, self.sides[name]) for name, tensor in held.items()}
        if not all(axis.portion.windows for axis in axes):
            # This rank has nothing to compute, but others may have needed what it owns.
            sides = zip(self._nothing(), self.rule.results, strict=True)
            return [
                nothing.new_zeros([len(part) for part in self._owned(side)])
                for nothing, side in sides
            ]
        results = self._run(held, axes)
        for axis in axes:
            results = [axis.kept(result) for result in results]
        if self.has_indices:
            results[-1] = self._numbered(results[-1], axes)
        return results

    def _sharded_axes(self) -> list[ShardedAxis]:
        """The axes of the window that are split over a mesh dimension."""
        if self.window is None:
            return []
        mesh_dimensions: dict[int, int] = {}
        for mesh_dimension, placement in enumerate(self.placements):
            if not isinstance(placement, Shard) or placement.dim < 2:
                continue
            if placement.dim in mesh_dimensions:
                raise ValueError(
                    f"{self.name}: {AXIS_NAMES[self.window.rank][placement.dim - 2]} is over two, "
                    f"placements {tuple(self.placements)}: shard another dimension over the "
                    "second, or make the two one"
                )
            mesh_dimensions[placement.dim] = mesh_dimension
        axes, sizes, to_input = self.window.axes, self.sizes["input"], self.rule.results[0]
        return [
            ShardedAxis(at, axes[at - 2], sizes[at], self.mesh, mesh_dimension, to_input == "input")
            for at, mesh_dimension in sorted(mesh_dimensions.items())
        ]

    def _owned(self, side: Side) -> list[range]:
        """The positions that this rank owns of a tensor of that side, in every dimension."""
        owned = [range(size) for size in self.sizes[side]]
        along = zip(self.placements, self.mesh.shape, self.mesh.get_coordinate() or (), strict=True)
        for placement, ranks, coordinate in along:
            if isinstance(placement, Shard):
                part = shards(len(owned[placement.dim]), ranks)[coordinate]
                owned[placement.dim] = owned[placement.dim][part.start : part.stop]
        return owned

    def _agree(self, held: Mapping[str, Tensor], axes: Sequence[ShardedAxis]) -> None:
        """Reject local tensors that are not the shards that they should be. If tensors are
        exchanged, all ranks raise the error together.
        """
        mistake = None
        for name, tensor in held.items():
            sizes = tuple(len(part) for part in self._owned(self.sides[name]))
            if tuple(tensor.shape) != sizes:
                mistake = (
                    f"{name} of {self.name} is {tuple(self.tensors[name].shape)} with placements "
                    f"{tuple(self.placements)}: this rank must hold {sizes} of it, but holds "
                    f"{tuple(tensor.shape)}"
                )
        sides = {self.sides[name] for name in held}
        mesh_dimensions = [axis.mesh_dimension for axis in axes if any(map(axis.exchanges, sides))]
        if mesh_dimensions:
            types = ", ".join(
                f"{name} {tensor.dtype}" for name, tensor in held.items() if name != "taps"
            )
            sizes, placements = tuple(self.sizes["input"]), tuple(self.placements)
            request = (
                f"{self.name} of an input {sizes} with placements {placements}, "
                f"{types}, {self.window}"
            )
            agree(request, mistake, next(iter(held.values())), self.mesh, mesh_dimensions)
        elif mistake is not None:
            raise ValueError(mistake)

    def _run(self, held: Mapping[str, Tensor], axes: Sequence[ShardedAxis]) -> list[Tensor]:
        """The results of the operator on what this rank holds, with the axes of this rank's
        portions.
        """
        arguments = {**self.arguments, **held}
        arguments.update(self._of_channels(self._owned("input")[1]))
        if self.has_indices:
            arguments.update(index_dtype=torch.int64, per_plane=True)
        if self.window is not None:
            window_axes, spatial_sizes = list(self.window.axes), self.sizes["input"][2:]
            for axis in axes:
                window_axes[axis.dimension - 2] = axis.portion.axis
                spatial_sizes[axis.dimension - 2] = len(axis.portion.elements)
            arguments.update(
                zip(WINDOW_ARGUMENTS, Window(tuple(window_axes)).arguments, strict=True)
            )
            arguments.update(spatial_sizes=spatial_sizes)
        return self._called(arguments)

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
        found = {name: self.arguments[name] for name in operands.PARAMETERS if name in self.sides}
        for name, parameter in found.items():
            if isinstance(parameter, DTensor):
                parameter = parameter.full_tensor()
            several = parameter is not None and parameter.numel() > 1
            found[name] = (
                parameter.reshape(-1)[channels.start : channels.stop] if several else parameter
            )
        return found

    def _numbered(self, positions: Tensor, axes: Sequence[ShardedAxis]) -> Tensor:
        """Positions in this rank's part of the planes as the indices that were asked for (rule M4);
        -1 stays -1.
        """
        per_plane, sizes = self.arguments["per_plane"], self.sizes["input"]
        if not axes and per_plane:
            return positions.to(self.arguments["index_dtype"])
        # This is the part that ``positions`` count in: what the rank owns of N and C, and what it
        # reads of the others.
        held = [*self._owned("output")[:2], *map(range, sizes[2:])]
        for axis in axes:
            held[axis.dimension] = axis.portion.elements
        left, whole, step = positions, torch.zeros_like(positions), 1
        for part, size in zip(reversed(held[2:]), reversed(sizes[2:]), strict=True):
            whole += (left % len(part) + part.start) * step
            left, step = left // len(part), step * size
        if not per_plane:
            samples, channels = (slice(part.start, part.stop) for part in held[:2])
            whole += first_indices(positions, sizes)[samples, channels]
        return torch.where(positions < 0, positions, whole).to(self.arguments["index_dtype"])

    def _wrapped(self, local: Tensor, side: Side) -> DTensor:
        """A result's part ``local`` as a DTensor."""
        sizes = torch.Size(self.sizes[side])
        memory_format = operands.suggested_memory_format(next(iter(self.tensors.values())))
        if "channels_last" in self.arguments:
            memory_format = operands.named_memory_format(
                self.arguments["channels_last"], len(sizes) - 2
            )
        like = torch.empty((), dtype=local.dtype, device="meta")
        strides = operands.empty(sizes, like, memory_format).stride()
        return DTensor.from_local(
            local, self.mesh, self.placements, run_check=False, shape=sizes, stride=strides
        )


def _local(tensor: DTensor) -> Tensor:
    """The local part of a DTensor, once it has arrived."""
    local = tensor.to_local()
    return local.wait() if isinstance(local, AsyncCollectiveTensor) else local
