"""Exported programs that PyTorch's quantization has made: pools of dequantized numbers become pools
of integers.

    before   integers -> dequantize -> max pool -> quantize -> ...
    after    integers -> max pool of integers -> ...

    before   integers -> dequantize -> average pool -> quantize -> ...
    after    integers -> quantized_linear_average_pooling -> ...

The largest of dequantized numbers is the dequantized largest integer, so a max pool changes places
with the ``dequantize`` before it, whatever comes after; a ``quantize`` that then undoes the
``dequantize`` goes.
"""

import copy
import itertools
import math
import operator
from collections.abc import Collection, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from torch_dmlpool import tensors
from torch_dmlpool._private import OpOverload
from torch_dmlpool.operators import quantized_tensors as quantized
from torch_dmlpool.operators.adaptive_pooling import bins
from torch_dmlpool.window import Axis, Window

_QUANTIZE, _DEQUANTIZE = (
    [f"quantized_decomposed::{name}_per_{what}" for what in ("tensor", "channel")]
    for name in ("quantize", "dequantize")
)
_ANY = 1, 2, 3


def _pools(kind: str) -> dict[str, tuple[int, ...]]:
    """PyTorch's pools of a kind, and over how many spatial dimensions."""
    names = itertools.product((f"{kind}_pool", f"adaptive_{kind}_pool"), _ANY)
    return {f"aten::{name}{rank}d": (rank,) for name, rank in names}


_AVERAGES = {
    **_pools("avg"),
    "aten::mean": _ANY,  # what an adaptive pool to one element is decomposed to
    "dmlpool::average_pooling": _ANY,
    "dmlpool::adaptive_average_pooling": _ANY,
}
"""The averages that are recognised, and over how many spatial dimensions."""
_MAXIMA = {
    **_pools("max"),
    "aten::max_pool2d_with_indices": (2,),
    "aten::max_pool3d_with_indices": (3,),
    "aten::amax": _ANY,
    "dmlpool::max_pooling": _ANY,
    "dmlpool::adaptive_max_pooling": _ANY,
}
"""The maxima likewise; those that return a pair are replaced where nothing uses the indices."""
_aten = torch.ops.aten
_ORDINARY_SCALES = 2.0**-100, 2.0**100
"""Between these, ``quantize`` gives back the integers that ``dequantize`` has read."""


def integer_pooling(
    program: ExportedProgram, report: dict[str, str] | None = None
) -> ExportedProgram:
    """Replace ``dequantize → pool → quantize`` by a pool of integers.

    Args:
        program: What PyTorch's quantization of exported programs makes:
            ``quantized_decomposed.dequantize_per_tensor`` and ``quantize_per_tensor`` (or
            ``…_per_channel``) of int8 or uint8 around a pool of one to three dimensions, in
            float32. Averages are ``aten.avg_pool1d`` to ``3d``, their adaptive forms where all
            windows are alike, means over all spatial dimensions, and ``dmlpool.average_pooling``.
            Maxima are ``aten.max_pool1d`` to ``3d``, their adaptive forms, ``amax`` over all
            spatial dimensions, and ``dmlpool.max_pooling``.
        report: A dict that receives, for the node of each of these pools, what became of it:
            ``"replaced by …"`` or ``"left: …"`` with the reason.

    Returns:
        A new program with the same signature, weights and names. Maxima are equal bit for bit.
        Averages differ by one step of the output at most, and only where rounding errors of the
        float program decide. docs/quantization.md lists what is left as it is.

    Raises:
        TypeError: ``program`` is no ``torch.export.ExportedProgram``, or ``report`` no dict.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> # PyTorch's operators that the program consists of
        >>> import torch.ao.quantization.fx._decomposed
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
        raise TypeError(
            f"program must be a torch.export.ExportedProgram, got {type(program).__name__}"
        )
    if report is not None and not isinstance(report, dict):
        raise TypeError(f"report must be a dict or None, got {type(report).__name__}")
    graph = copy.deepcopy(program.graph)
    for original, node in zip(program.graph.nodes, graph.nodes, strict=True):
        # A copy is renamed where Python or the copy has the name already (input, filter), and the
        # signature is not.
        node.name = original.name
    signature, held = program.graph_signature, {**program.constants, **program.state_dict}
    targets = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    unchanged = held.keys() - set(signature.buffers_to_mutate.values())
    constants = {name: held[target] for name, target in targets.items() if target in unchanged}
    said = {} if report is None else report
    for node in list(graph.nodes):
        name = _name(node)
        if name in _MAXIMA:
            said[node.name] = _replace_maximum(node, constants)
        elif name in _AVERAGES and node.meta["val"].dim() > 1:
            said[node.name] = _replace_average(node, constants)
    for node in list(graph.nodes):
        if _name(node) in _QUANTIZE:
            _undo(node, constants)
    graph.lint()
    module = fx.GraphModule(program.graph_module, graph)
    module.meta.update(program.graph_module.meta)
    return program._update(module, copy.deepcopy(program.graph_signature))


def _replace_maximum(pool: fx.Node, constants: dict[str, Tensor]) -> str:
    """Exchange a max pool with the ``dequantize`` before it, and say so; else say why not."""
    dequantize = cast(fx.Node, pool.args[0])
    integers = _input(dequantize, _DEQUANTIZE)
    if integers is None:
        return "left: its input is not dequantized"
    real = dequantize.meta["val"]
    rank = real.dim() - 2
    if real.dtype is not torch.float32 or rank not in _MAXIMA[_name(pool)]:
        return f"left: its input has data type {real.dtype} and {real.dim()} dimensions"
    side = _quantization(dequantize, constants, real)
    if side is None or not _are_ordinary(side, constants):
        return "left: its scale or zero point is not known, or not one of the integer operators"
    result = pool
    if isinstance(pool.meta["val"], (tuple, list)):
        unused = [user for user in pool.users if not user.users]
        for user in unused:
            pool.graph.erase_node(user)
        results = list(pool.users)
        if len(results) != 1 or results[0].args[1] != 0:
            return "left: the program uses the indices"
        (result,) = results
    with result.graph.inserting_before(result):
        pooled = _maximum_of(pool, integers, real.shape[2:])
        if isinstance(pooled, str):
            return pooled
        result.target, result.kwargs = dequantize.target, dict(dequantize.kwargs)
        result.args = (pooled, *dequantize.args[1:])
    for node in (pool, dequantize):
        if node is not result and not node.users:
            node.graph.erase_node(node)
    return "replaced by max_pooling of integers"


def _maximum_of(pool: fx.Node, integers: fx.Node, sizes: Sequence[Any]) -> fx.Node | str:
    """Insert the integer operator before a max pool and return it, or return why there is none."""
    name, rank, arguments = _name(pool), len(sizes), _arguments(pool)
    if name == "aten::amax":
        if not _is_over_all(arguments, rank):
            return "left: it is no maximum over all spatial dimensions"
        pooled = _insert(pool, torch.ops.dmlpool.adaptive_max_pooling.default, integers, [1] * rank)
        pooled = _insert(pool, operator.getitem, pooled, 0)
        if arguments.get("keepdim"):
            return pooled
        return _insert(pool, _aten.squeeze.dims, pooled, list(range(2, rank + 2)))
    if "adaptive" in name:
        sizes = cast(Any, list(arguments.values())[1])
        pooled = _insert(pool, torch.ops.dmlpool.adaptive_max_pooling.default, integers, sizes)
        return _insert(pool, operator.getitem, pooled, 0)
    if name == "dmlpool::max_pooling":
        window = Window.directml(rank, *list(arguments.values())[1:7])
    else:
        kernel_size, stride, padding, dilation, ceil_mode = list(arguments.values())[1:6]
        window = Window.pytorch(rank, kernel_size, stride, padding, dilation, ceil_mode)
    if any(map(Axis.may_be_empty, window.axes, sizes)):
        return "left: a window may hold padding alone, whose maximum is -inf"
    return _insert(pool, torch.ops.dmlpool.max_pooling.default, integers, *window.arguments)


def _undo(quantize: fx.Node, constants: dict[str, Tensor]) -> None:
    """Take out a ``quantize`` that undoes the ``dequantize`` of pooled integers before it."""
    dequantize = quantize.args[0]
    pooled = _input(dequantize, _DEQUANTIZE)
    if pooled is None or not _is_pooled(pooled):
        return
    real = cast(fx.Node, dequantize).meta["val"]
    nodes = cast(fx.Node, dequantize), quantize
    sides = [_quantization(node, constants, real) for node in nodes]
    if None in sides or not _are_ordinary(sides[0], constants):
        return
    numbers = [[_values(each or 0, constants) for each in side[:2]] for side in sides]
    if numbers[0] != numbers[1] or sides[0][2] is not sides[1][2]:
        return
    dtype, limits = sides[1][2:]
    is_whole = limits == (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if is_whole and not any(user.op == "output" for user in quantize.users):
        quantize.replace_all_uses_with(pooled)
        quantize.graph.erase_node(quantize)
    else:  # it keeps its name, which an output's signature knows
        quantize.target, quantize.args, quantize.kwargs = _aten.clamp.default, (pooled, *limits), {}
    if not cast(fx.Node, dequantize).users:
        quantize.graph.erase_node(cast(fx.Node, dequantize))


def _is_pooled(node: fx.Node) -> bool:
    """Whether ``node`` has maxima of integers; their spatial dimensions may be gone."""
    while node.target in (operator.getitem, _aten.squeeze.dims):
        node = cast(fx.Node, node.args[0])
    return _name(node) in ("dmlpool::max_pooling", "dmlpool::adaptive_max_pooling")


def _replace_average(pool: fx.Node, constants: dict[str, Tensor]) -> str:
    """Pool the integers where ``quantize`` nodes end the pattern: they keep their names and users.

    Say what was done, or why nothing was.
    """
    dequantize = cast(fx.Node, pool.args[0])
    integers = _input(dequantize, _DEQUANTIZE)
    if integers is None:
        return "left: its input is not dequantized"
    # Where the program uses the average itself the pool stays. To pool the integers too would be
    # work done twice.
    if not pool.users or any(_name(user) not in _QUANTIZE for user in pool.users):
        return "left: its result is not quantized"
    real = dequantize.meta["val"]
    rank = real.dim() - 2
    if pool.meta["val"].dtype is not torch.float32 or rank not in _AVERAGES[_name(pool)]:
        return f"left: its result has data type {pool.meta['val'].dtype} and {rank + 2} dimensions"
    first = _quantization(dequantize, constants, real)
    outputs = [_quantization(user, constants, real) for user in pool.users]
    if first is None or None in outputs:
        return "left: a scale or zero point is not known, or not one of the integer operator"
    with pool.graph.inserting_before(pool):
        window = _window(pool, integers, real.shape[2:])
    if window is None:
        return "left: its windows are not alike, or it has a divisor_override"
    keeps = pool.meta["val"].dim() == real.dim()
    for quantize, output in zip(list(pool.users), outputs, strict=True):
        _average_of(quantize, integers, first, output, window, None if keeps else rank)
    for node in (pool, dequantize):
        if not node.users:
            node.graph.erase_node(node)
    return "replaced by quantized_linear_average_pooling"


def _average_of(
    quantize: fx.Node,
    integers: fx.Node,
    first: Any,
    output: Any,
    window: tuple[Any, ...],
    squeezed: int | None,
) -> None:
    """Turn the node ``quantize`` into the average of ``integers``.

    ``first`` and ``output`` are what :func:`_quantization` says of the input and of the output.
    ``squeezed`` is the number of spatial dimensions to take away, or None.
    """
    dtype, limits = output[2:]
    parameters = [*first[:2], *output[:2]]
    with quantize.graph.inserting_before(quantize):
        if any(isinstance(each, fx.Node) for each in parameters):
            target = torch.ops.dmlpool.quantized_linear_average_pooling.default
            kinds = torch.float32, first[2], torch.float32, dtype
            device = integers.meta["val"].device
            parameters = [
                _as_tensor(quantize, *pair, device) for pair in zip(parameters, kinds, strict=True)
            ]
        else:
            target = torch.ops.dmlpool.quantized_linear_average_pooling_of_numbers.default
            scale, zero_point, step, output_zero_point = parameters
            parameters = [float(scale), zero_point or 0, float(step), output_zero_point or 0]
        arguments = (integers, *parameters, *window, dtype)
        if squeezed is not None:
            pooled = _insert(quantize, target, *arguments)
            target, arguments = _aten.squeeze.dims, (pooled, list(range(2, squeezed + 2)))
        if limits != (torch.iinfo(dtype).min, torch.iinfo(dtype).max):
            arguments = (_insert(quantize, target, *arguments), *limits)
            target = _aten.clamp.default
    quantize.target, quantize.args, quantize.kwargs = target, arguments, {}


def _input(node: Any, names: Collection[str]) -> Any:
    """What ``node`` takes, if it calls an operator of these ``names``."""
    return node.args[0] if isinstance(node, fx.Node) and _name(node) in names else None


def _is_over_all(arguments: dict[str, Any], rank: int) -> bool:
    """Whether a reduction is one over all spatial dimensions."""
    reduced = {dimension % (rank + 2) for dimension in arguments.get("dim") or ()}
    return reduced == set(range(2, rank + 2))


def _window(pool: fx.Node, integers: fx.Node, sizes: Sequence[Any]) -> tuple[Any, ...] | None:
    """The window arguments and ``include_padding`` for an average, or None if the integer operator
    has no such window.
    """
    name, rank, arguments = _name(pool), len(sizes), _arguments(pool)
    if arguments.get("divisor_override") is not None:
        return None
    if name == "dmlpool::average_pooling":
        return tuple(arguments.values())[1:8]
    if name == "aten::mean" or "adaptive" in name:
        asked = arguments.get("output_size", arguments.get("output_sizes", [1] * rank))
        outputs = tuple(cast(Any, asked))
        if name == "aten::mean" and not _is_over_all(arguments, rank):
            return None
        if all(type(size) is int for size in (*sizes, *outputs)):
            window = bins(outputs, tuple(sizes), rank)[1]
            return None if window is None else (*window.arguments, True)
        if outputs != (1,) * rank:
            return None
        whole = [
            size if type(size) is int else _insert(pool, _aten.sym_size.int, integers, dim)
            for dim, size in enumerate(sizes, 2)
        ]
        ones, zeros = [1] * rank, [0] * rank
        return whole, ones, zeros, zeros, ones, False, True
    kernel_size, stride, padding, ceil_mode, counted = list(arguments.values())[1:6]
    return *Window.pytorch(rank, kernel_size, stride, padding, 1, ceil_mode).arguments, counted


def _are_ordinary(side: Any, constants: dict[str, Tensor]) -> bool:
    """Whether scales are so far from the ends of float32 that no product of one rounds to them."""
    least, most = _ORDINARY_SCALES
    return all(least < scale < most for scale in _values(side[0], constants))


def _quantization(node: fx.Node, constants: dict[str, Tensor], real: Tensor) -> Any:
    """Scale and zero point (numbers or nodes), type and limits of the integers, or None if rules Q3
    and Q4 do not allow them. ``real`` is the fake value of what they stand for.
    """
    arguments = _arguments(node)
    dtype, axis = arguments["dtype"], arguments.get("axis", quantized.CHANNEL_AXIS)
    if dtype not in tensors.QUANTIZED_TYPES or axis % real.dim() != quantized.CHANNEL_AXIS:
        return None
    scale: Any
    scale, zero_point = (
        arguments.get(name, arguments.get(f"{name}s")) for name in ("scale", "zero_point")
    )
    scales, zero_points = _values(scale, constants), _values(zero_point or 0, constants)
    limits = _values(arguments["quant_min"], constants) + _values(arguments["quant_max"], constants)
    bounds = torch.iinfo(dtype)
    rounded = torch.tensor(scales, dtype=torch.float32, device="cpu").tolist()
    is_known = (
        len(limits) == 2
        and scales
        and zero_points
        and all(0 < value < math.inf for value in rounded)
    )
    if not is_known or any(
        type(value) is not int or not bounds.min <= value <= bounds.max for value in zero_points
    ):
        return None
    return scale, zero_point, dtype, (max(limits[0], bounds.min), min(limits[1], bounds.max))


def _values(argument: Any, constants: dict[str, Tensor]) -> list[Any]:
    """The numbers that an argument holds; none if they are not known before the program runs."""
    if not isinstance(argument, fx.Node):
        return [argument]
    constant = constants.get(argument.name)
    return [] if constant is None else constant.flatten().tolist()


def _as_tensor(
    before: fx.Node, parameter: Any, dtype: torch.dtype, device: torch.device
) -> fx.Node | None:
    """A node with the scale or zero point as a tensor: the operator takes no numbers."""
    if parameter is None:
        return None
    if not isinstance(parameter, fx.Node):
        return _insert(
            before, _aten.full.default, [1], parameter, dtype=dtype, device=device, pin_memory=False
        )
    if parameter.meta["val"].dtype is dtype:
        return parameter
    return _insert(before, _aten._to_copy.default, parameter, dtype=dtype)


def _insert(before: fx.Node, target: Any, *arguments: Any, **options: Any) -> fx.Node:
    """A call of ``target`` at the graph's insertion point, with the metadata of the node ``before``
    and a fake value of its own.
    """
    node = before.graph.call_function(target, arguments, options)
    node.meta = dict(before.meta)
    values = fx.map_arg(arguments, lambda argument: argument.meta["val"])
    example = before.meta["val"]
    example = example[0] if isinstance(example, (tuple, list)) else example
    with example.fake_mode:
        node.meta["val"] = target(*values, **options)
    return node


def _name(node: fx.Node) -> str:
    """The operator that ``node`` calls, without its overload; empty for other nodes."""
    return node.target._schema.name if isinstance(node.target, OpOverload) else ""


def _arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operator's call by name, defaults included."""
    normalized = node.normalized_arguments(cast(Any, None), normalize_to_only_use_kwargs=True)
    return cast(fx.operator_schemas.ArgsKwargsPair, normalized).kwargs
