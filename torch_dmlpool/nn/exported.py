"""Exported programs, quantized in PyTorch's reference form: averages of integers instead of dequantized numbers."""

import copy
import math
from collections.abc import Collection, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from torch_dmlpool import operands
from torch_dmlpool.ops.adaptive_pooling import window_of_bins
from torch_dmlpool.quantized import CHANNEL_AXIS
from torch_dmlpool.window import Window

__all__ = ["integer_pooling"]

_QUANTIZE = ("quantized_decomposed::quantize_per_tensor", "quantized_decomposed::quantize_per_channel")
_DEQUANTIZE = ("quantized_decomposed::dequantize_per_tensor", "quantized_decomposed::dequantize_per_channel")
_POOLS = {
    **{f"aten::{kind}_pool{rank}d": (rank,) for kind in ("avg", "adaptive_avg") for rank in (1, 2, 3)},
    "aten::mean": (1, 2, 3),  # what an adaptive pool to one element is decomposed to
    "dmlpool::average_pooling": (1, 2, 3),
}
"""The pools that are recognised, and over how many spatial dimensions."""
_aten = torch.ops.aten


def integer_pooling(program: ExportedProgram) -> ExportedProgram:
    """Replace ``dequantize → average pool → quantize`` by :func:`~torch_dmlpool.quantized_linear_average_pooling`.

    Args:
        program: What PyTorch's quantization of exported programs makes: ``quantized_decomposed.dequantize_per_tensor``
            and ``quantize_per_tensor`` (or ``…_per_channel``) of int8 or uint8 around ``aten.avg_pool1d`` to ``3d``,
            their adaptive forms and means where all windows are alike, or ``dmlpool.average_pooling``, in float32.

    Returns:
        A new program with the same signature, weights and names. Results differ by one step of the output at most, and
        only where rounding errors of the float program decide. docs/quantization.md lists what is left as it is.

    Raises:
        TypeError: ``program`` is no ``torch.export.ExportedProgram``.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> import torch.ao.quantization.fx._decomposed  # PyTorch's operators that the program consists of
        >>> quantized = torch.ops.quantized_decomposed
        >>> class Model(torch.nn.Module):
        ...     def forward(self, image):
        ...         real = quantized.dequantize_per_tensor(image, 0.5, 10, 0, 255, torch.uint8)
        ...         pooled = torch.nn.functional.avg_pool2d(real, 2)
        ...         return quantized.quantize_per_tensor(pooled, 0.25, 3, 0, 255, torch.uint8)
        >>> image = torch.tensor([[[[10, 12], [14, 18]]]], dtype=torch.uint8)
        >>> program = dmlpool.nn.integer_pooling(torch.export.export(Model(), (image,)))
        >>> program.module()(image)
        tensor([[[[10]]]], dtype=torch.uint8)
    """
    if not isinstance(program, ExportedProgram):
        raise TypeError(f"program must be a torch.export.ExportedProgram, got {type(program).__name__}")
    graph = copy.deepcopy(program.graph)
    for original, node in zip(program.graph.nodes, graph.nodes, strict=True):
        # A copy is renamed where Python or the copy has the name already (input, filter), and the signature is not.
        node.name = original.name
    signature, held = program.graph_signature, {**program.constants, **program.state_dict}
    targets = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    unchanged = held.keys() - set(signature.buffers_to_mutate.values())
    constants = {name: held[target] for name, target in targets.items() if target in unchanged}
    for node in list(graph.nodes):
        _replace(node, constants)
    graph.lint()
    module = fx.GraphModule(program.graph_module, graph)
    module.meta.update(program.graph_module.meta)
    return program._update(module, copy.deepcopy(program.graph_signature))


def _replace(quantize: fx.Node, constants: dict[str, Tensor]) -> None:
    """Pool the integers where ``quantize`` stands, if it ends the pattern: it keeps its name and its users."""
    pool = _input(quantize, _QUANTIZE)
    dequantize = _input(pool, _POOLS)
    integers = _input(dequantize, _DEQUANTIZE)
    # Where somebody needs the average itself it stays, and to pool the integers too would be work done twice.
    if integers is None or any(_name(user) not in _QUANTIZE for user in pool.users):
        return
    real = dequantize.meta["val"]
    if pool.meta["val"].dtype is not torch.float32 or real.dim() - 2 not in _POOLS[_name(pool)]:
        return
    window = _window(pool, real.shape[2:])
    sides = [_quantization(node, constants, real) for node in (dequantize, quantize)]
    if window is None or None in sides:
        return
    operator, (*_, dtype, limits) = torch.ops.dmlpool.quantized_linear_average_pooling.default, sides[1]
    with quantize.graph.inserting_before(quantize):
        parameters = [
            _as_tensor(quantize, parameter, kind, real.device)
            for scale, zero_point, narrow, _ in sides
            for parameter, kind in ((scale, torch.float32), (zero_point, narrow))
        ]
        arguments = (integers, *parameters, *window, dtype)
        if limits != (torch.iinfo(dtype).min, torch.iinfo(dtype).max):
            arguments = (_insert(quantize, operator, *arguments), *limits)
            operator = _aten.clamp.default
    quantize.target, quantize.args, quantize.kwargs = operator, arguments, {}
    for node in (pool, dequantize):
        if not node.users:
            node.graph.erase_node(node)


def _input(node: Any, names: Collection[str]) -> Any:
    """What ``node`` takes, if it calls an operator of these ``names``."""
    return node.args[0] if isinstance(node, fx.Node) and _name(node) in names else None


def _window(pool: fx.Node, sizes: Sequence[int]) -> tuple[Any, ...] | None:
    """The window of a pooling node, and whether padding counts, if the integer operator can have them."""
    name, rank, arguments = _name(pool), len(sizes), _arguments(pool)
    if arguments.get("divisor_override") is not None:
        return None
    if name == "dmlpool::average_pooling":
        return tuple(arguments.values())[1:8]
    if name == "aten::mean" or name.startswith("aten::adaptive"):
        outputs = tuple(arguments.get("output_size", [1] * rank))
        averaged = {dimension % (rank + 2) for dimension in arguments.get("dim") or ()}
        if name == "aten::mean" and not (arguments.get("keepdim") and averaged == set(range(2, rank + 2))):
            return None
        are_known = all(type(size) is int for size in (*sizes, *outputs))
        window = window_of_bins(tuple(sizes), outputs) if are_known else None
        return None if window is None else (*window.arguments, True)
    kernel_size, stride, padding, ceil_mode, counted = list(arguments.values())[1:6]
    return *Window.pytorch(rank, kernel_size, stride, padding, 1, ceil_mode).arguments, counted


def _quantization(node: fx.Node, constants: dict[str, Tensor], real: Tensor) -> Any:
    """Scale and zero point (numbers, or nodes that hold a constant), type and limits that ``node`` gives ``real``.

    None where the integer operator cannot have them (rules Q3 and Q4).
    """
    arguments = _arguments(node)
    dtype, axis = arguments["dtype"], arguments.get("axis", CHANNEL_AXIS)
    if dtype not in operands.QUANTIZED_TYPES or axis % real.dim() != CHANNEL_AXIS:
        return None
    scale: Any
    scale, zero_point = (arguments.get(name, arguments.get(f"{name}s")) for name in ("scale", "zero_point"))
    scales, zero_points = _values(scale, constants), _values(zero_point or 0, constants)
    limits = _values(arguments["quant_min"], constants) + _values(arguments["quant_max"], constants)
    bounds = torch.iinfo(dtype)
    rounded = torch.tensor(scales, dtype=torch.float32, device="cpu").tolist()
    is_known = len(limits) == 2 and scales and zero_points and all(0 < value < math.inf for value in rounded)
    if not is_known or any(type(value) is not int or not bounds.min <= value <= bounds.max for value in zero_points):
        return None
    return scale, zero_point, dtype, (max(limits[0], bounds.min), min(limits[1], bounds.max))


def _values(argument: Any, constants: dict[str, Tensor]) -> list[Any]:
    """The numbers that an argument stands for; none where they are not known before the program runs."""
    if not isinstance(argument, fx.Node):
        return [argument]
    constant = constants.get(argument.name)
    return [] if constant is None else constant.flatten().tolist()


def _as_tensor(before: fx.Node, parameter: Any, dtype: torch.dtype, device: torch.device) -> fx.Node | None:
    """A scale or zero point as the operator takes it, which has no numbers among its arguments."""
    if parameter is None:
        return None
    if not isinstance(parameter, fx.Node):
        return _insert(before, _aten.full.default, [1], parameter, dtype=dtype, device=device, pin_memory=False)
    if parameter.meta["val"].dtype is dtype:
        return parameter
    return _insert(before, _aten._to_copy.default, parameter, dtype=dtype)


def _insert(before: fx.Node, operator: Any, *arguments: Any, **rest: Any) -> fx.Node:
    """A call of ``operator`` with the origin of the node that it is ``before`` and with its own fake value."""
    node = before.graph.call_function(operator, arguments, rest)
    node.meta = dict(before.meta)
    values = fx.map_arg(arguments, lambda argument: argument.meta["val"])
    with before.meta["val"].fake_mode:
        node.meta["val"] = operator(*values, **rest)
    return node


def _name(node: fx.Node) -> str:
    """The operator that ``node`` calls, without its overload; empty for other nodes."""
    return node.target._schema.name if isinstance(node.target, torch._ops.OpOverload) else ""


def _arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operator's call by name, defaults included."""
    normalized = node.normalized_arguments(cast(Any, None), normalize_to_only_use_kwargs=True)
    return cast(fx.operator_schemas.ArgsKwargsPair, normalized).kwargs
