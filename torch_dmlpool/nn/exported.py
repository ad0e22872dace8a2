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
import operator
import re
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.export import ExportedProgram

from torch_dmlpool import tensors
from torch_dmlpool._private import OpOverload
from torch_dmlpool.operators.adaptive_pooling import bins
from torch_dmlpool.window import Arguments, Axis, Named, Window

_QUANTIZE = "quantized_decomposed::quantize_per_tensor"
_DEQUANTIZE = "quantized_decomposed::dequantize_per_tensor"
_POOL = re.compile(
    r"aten::(adaptive_)?(avg|max)_pool[123]d(_with_indices)?|aten::(mean|amax)|"
    r"dmlpool::(adaptive_)?(average|max)_pooling"
)
"""The pools that are recognised. Averages to one element are decomposed to ``mean``; maxima with
indices are replaced where nothing uses the indices.
"""
_aten, _ours = torch.ops.aten, torch.ops.dmlpool
_SCALES = 2.0**-100, 2.0**100
"""Between these, ``quantize`` gives back the integers that ``dequantize`` has read."""


class _Quantization(NamedTuple):
    """What a ``quantize`` or a ``dequantize`` says of its integers."""

    scale: float
    zero_point: int
    dtype: torch.dtype
    limits: tuple[int, int]

    @property
    def is_whole(self) -> bool:
        """Whether the limits are those of the type."""
        bounds = torch.iinfo(self.dtype)
        return self.limits == (bounds.min, bounds.max)


def integer_pooling(
    program: ExportedProgram, report: dict[str, str] | None = None
) -> ExportedProgram:
    """Replace ``dequantize → pool → quantize`` by a pool of integers.

    Args:
        program: What PyTorch's quantization of exported programs makes:
            ``quantized_decomposed.dequantize_per_tensor`` and ``quantize_per_tensor`` of int8 or
            uint8, with scales and zero points that are numbers, around a pool of one to three
            dimensions, in float32. Averages are ``aten.avg_pool1d`` to ``3d``, their adaptive forms
            where all windows are alike, means over all spatial dimensions, and
            ``dmlpool.average_pooling``.
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
    said = {} if report is None else report
    for node in list(graph.nodes):
        if _POOL.fullmatch(_name(node)):
            said[node.name] = _replace(node)
    for node in list(graph.nodes):
        if _name(node) == _QUANTIZE:
            _undo(node)
    graph.eliminate_dead_code()
    graph.lint()
    module = fx.GraphModule(program.graph_module, graph)
    module.meta.update(program.graph_module.meta)
    return program._update(module, copy.deepcopy(program.graph_signature))


def _replace(pool: fx.Node) -> str:
    """Pool integers in place of the numbers that they are dequantized to, and say so; else say why
    not.
    """
    dequantize: Any = pool.args[0]
    name, integers = _name(pool), _dequantized(dequantize)
    if integers is None:
        return "left: its input is not dequantized per tensor"
    sizes, result = dequantize.meta["val"].shape[2:], pool.meta["val"]
    rank, result = len(sizes), result[0] if isinstance(result, (tuple, list)) else result
    ranks = re.findall(r"[123](?=d)", name) or "123"
    if result.dtype is not torch.float32 or str(rank) not in ranks:
        return f"left: its result has data type {result.dtype} and {rank + 2} dimensions"
    if name != "dmlpool::average_pooling" and len(pool.all_input_nodes) > 1:
        return "left: its window is computed"
    if _quantization(dequantize) is None:
        return f"left: {_UNKNOWN}"
    named, dims, bins_of = _arguments(pool), list(range(2, rank + 2)), None
    arguments = list(named.values())[1:]
    if name in ("aten::mean", "aten::amax"):
        if sorted(dim % (rank + 2) for dim in named.get("dim") or ()) != dims:
            return "left: it is not over all spatial dimensions"
        bins_of = [1] * rank
    elif "adaptive" in name:
        bins_of = arguments[0]
    squeezed = dims if result.dim() < rank + 2 else []
    replace = _replace_maximum if "max" in name else _replace_average
    return replace(pool, integers, arguments, bins_of, squeezed)


_UNKNOWN = "a scale or zero point is not known, or not one of the integer operators"


def _replace_average(
    pool: fx.Node, integers: fx.Node, arguments: list[Any], bins_of: Any, squeezed: list[int]
) -> str:
    """Pool integers in place of each ``quantize`` of an average, and say so; else say why not.

    ``bins_of`` has how many bins there are, if it is no pool of windows. ``squeezed`` are the
    dimensions that the result lacks.
    """
    # Where the program uses the average itself the pool stays. To pool the integers too would be
    # work done twice.
    if not pool.users or any(_name(user) != _QUANTIZE for user in pool.users):
        return "left: its result is not quantized per tensor"
    dequantize: Any = pool.args[0]
    first: Any = _quantization(dequantize)
    outputs = {user: output for user in pool.users if (output := _quantization(user)) is not None}
    if len(outputs) < len(pool.users):
        return f"left: {_UNKNOWN}"
    sizes = list(dequantize.meta["val"].shape[2:])
    window = _window_of_averages(pool, integers, sizes, arguments, bins_of)
    if window is None:
        return "left: its windows are not alike, or it has a divisor_override"
    for quantize, output in outputs.items():
        with pool.graph.inserting_before(quantize):
            target = _ours.quantized_linear_average_pooling_of_numbers.default
            numbers = *first[:2], *output[:2]
            pooled = _insert(quantize, target, integers, *numbers, *window, output.dtype)
            if squeezed:
                pooled = _insert(quantize, _aten.squeeze.dims, pooled, squeezed)
            if not output.is_whole:
                pooled = _insert(quantize, _aten.clamp.default, pooled, *output.limits)
            _replace_by(quantize, pooled)
    return "replaced by quantized_linear_average_pooling"


def _replace_maximum(
    pool: fx.Node, integers: fx.Node, arguments: list[Any], bins_of: Any, squeezed: list[int]
) -> str:
    """Exchange a max pool with the ``dequantize`` before it, and say so; else say why not."""
    dequantize: Any = pool.args[0]
    real, result = dequantize.meta["val"], pool
    if isinstance(pool.meta["val"], (tuple, list)):
        used = [user for user in pool.users if user.users]
        if len(used) != 1 or used[0].args[1] != 0:
            return "left: the program uses the indices"
        (result,) = used
    with pool.graph.inserting_before(result):
        if bins_of is None:
            make, count = (Window.directml, 6) if "dmlpool" in _name(pool) else (Window.pytorch, 5)
            window = make(real.dim() - 2, *arguments[:count])
            if any(map(Axis.may_be_empty, window.axes, real.shape[2:])):
                return "left: a window may hold padding alone, whose maximum is -inf"
            pooled = _insert(pool, _ours.max_pooling.default, integers, *window.arguments)
        else:
            pooled = _insert(pool, _ours.adaptive_max_pooling.default, integers, bins_of)
            pooled = _insert(pool, operator.getitem, pooled, 0)
        if squeezed:
            pooled = _insert(pool, _aten.squeeze.dims, pooled, squeezed)
        numbers = list(_arguments(dequantize).values())[1:6]
        _replace_by(result, _insert(pool, dequantize.target, pooled, *numbers))
    return "replaced by max_pooling of integers"


def _undo(quantize: fx.Node) -> None:
    """Take out a ``quantize`` that undoes the ``dequantize`` before it."""
    dequantize: Any = quantize.args[0]
    integers = _dequantized(dequantize)
    if integers is None:
        return
    first, last = _quantization(dequantize), _quantization(quantize)
    if first is None or last is None or first[:3] != last[:3]:
        return
    if last.is_whole and not any(user.op == "output" for user in quantize.users):
        quantize.replace_all_uses_with(integers)
        quantize.graph.erase_node(quantize)
        return
    with quantize.graph.inserting_before(quantize):
        _replace_by(quantize, _insert(quantize, _aten.clamp.default, integers, *last.limits))


def _replace_by(node: fx.Node, result: fx.Node) -> None:
    """Put ``result`` in the place of ``node``, whose name the signature of an output may have."""
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)
    result.name = node.name


def _dequantized(node: Any) -> Any:
    """The integers that ``node`` dequantizes, if it does that."""
    return node.args[0] if isinstance(node, fx.Node) and _name(node) == _DEQUANTIZE else None


def _window_of_averages(
    pool: fx.Node, integers: fx.Node, sizes: list[Any], arguments: list[Any], bins_of: Any
) -> Arguments | None:
    """The window arguments and ``include_padding`` for an average, or None if the integer operator
    has no such window.
    """
    rank = len(sizes)
    if bins_of is not None:
        if all(type(size) is int for size in (*sizes, *bins_of)):
            window = bins(bins_of, tuple(sizes))[1]
            return None if window is None else (*window.arguments, True)
        if list(bins_of) != [1] * rank:
            return None
        with pool.graph.inserting_before(pool):
            whole = [_insert(pool, _aten.sym_size.int, integers, dim) for dim in range(2, rank + 2)]
        ones, zeros = [1] * rank, [0] * rank
        return whole, ones, zeros, zeros, ones, False, True
    if _arguments(pool).get("divisor_override") is not None:
        return None
    if "dmlpool" in _name(pool):
        return tuple(arguments[:7])
    kernel_size, stride, padding, ceil_mode, counted = arguments[:5]
    return *Window.pytorch(rank, kernel_size, stride, padding, 1, ceil_mode).arguments, counted


def _quantization(node: fx.Node) -> _Quantization | None:
    """What ``node`` says of its integers; None if that is not known before the program runs, or if
    rules Q3 and Q4 do not allow it.
    """
    named = _arguments(node)
    dtype, scale, zero_point = named["dtype"], named["scale"], named["zero_point"]
    least, most = named["quant_min"], named["quant_max"]
    if dtype not in tensors.QUANTIZED_INTEGERS or any(
        isinstance(each, fx.Node) for each in (scale, zero_point, least, most)
    ):
        return None
    bounds = torch.iinfo(dtype)
    if not _SCALES[0] < scale < _SCALES[1] or not bounds.min <= zero_point <= bounds.max:
        return None
    limits = max(least, bounds.min), min(most, bounds.max)
    return _Quantization(float(scale), zero_point, dtype, limits)


def _insert(before: fx.Node, target: Any, *operands: Any) -> fx.Node:
    """A call of ``target`` at the graph's insertion point, with the metadata of the node ``before``
    and a fake value of its own.
    """
    node = before.graph.call_function(target, operands)
    values = fx.map_arg(operands, lambda operand: operand.meta["val"])
    node.meta = {**before.meta, "val": target(*values)}
    return node


def _name(node: fx.Node) -> str:
    """The operator that ``node`` calls, without its overload; empty for other nodes."""
    return node.target._schema.name if isinstance(node.target, OpOverload) else ""


def _arguments(node: fx.Node) -> Named:
    """The arguments of an operator's call by name, defaults included."""
    normalized: Any = node.normalized_arguments(
        None,  # type: ignore[arg-type]
        normalize_to_only_use_kwargs=True,
    )
    return normalized.kwargs
