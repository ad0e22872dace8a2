"""A pass over PyTorch's graphs that pools first and computes monotone pointwise functions afterwards.

``max(f(x))`` over a window is ``f(max(x))`` where ``f`` never decreases, and costs as many evaluations of ``f`` less as
there are more inputs than outputs. To torch.compile the pooling operators are opaque, so it cannot see that.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch._inductor import custom_graph_pass
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torch_dmlpool.window import Axis, Window

__all__ = ["PoolFirst"]

Exactness = Literal["values", "gradients"]
"""What stays equal where a function moves: results alone, or the gradients of all inputs too."""

# Gradients. Where several elements of a window give the same f(x), f first sends the gradient to the first of them, and
# pooling first to the greatest x. So f may move where gradients flow only if its derivative is 0 wherever it is flat,
# the ends included, and if it never rounds two inputs to one result elsewhere. relu, hardtanh and threshold are that;
# clamp's derivative is 1 at its bounds, and whatever multiplies or casts rounds. (Sums of gradients stay the same too:
# the functions that may move pass a gradient on as it is, or drop it.)


def _relu(dtype: torch.dtype, inplace: bool = False) -> Exactness:  # noqa: ARG001
    return "gradients"


def _relu6(dtype: torch.dtype, inplace: bool = False) -> Exactness:  # noqa: ARG001
    return "gradients"


def _hardtanh(
    dtype: torch.dtype,  # noqa: ARG001
    min_val: Any = -1.0,
    max_val: Any = 1.0,
    inplace: bool = False,  # noqa: ARG001
) -> Exactness | None:
    return "gradients" if _is_number(min_val) and _is_number(max_val) and min_val <= max_val else None


def _threshold(dtype: torch.dtype, threshold: Any, value: Any, inplace: bool = False) -> Exactness | None:  # noqa: ARG001
    return "gradients" if _is_number(threshold) and _is_number(value) and value <= threshold else None


def _clamp(dtype: torch.dtype, min: Any = None, max: Any = None) -> Exactness | None:  # noqa: ARG001
    return "values" if all(bound is None or _is_number(bound) for bound in (min, max)) else None


def _clamp_min(dtype: torch.dtype, min: Any) -> Exactness | None:
    return _clamp(dtype, min)


def _clamp_max(dtype: torch.dtype, max: Any) -> Exactness | None:
    return _clamp(dtype, max)


def _leaky_relu(dtype: torch.dtype, negative_slope: Any = 0.01, inplace: bool = False) -> Exactness | None:  # noqa: ARG001
    # A slope of 0 makes a NaN of -inf.
    return "values" if _is_factor(dtype, negative_slope) else None


def _scaled(dtype: torch.dtype, other: Any) -> Exactness | None:
    return "values" if _is_factor(dtype, other) else None


def _smooth(dtype: torch.dtype) -> Exactness | None:
    return "values" if dtype.is_floating_point else None


_RULES: dict[str, Callable[..., Exactness | None]] = {
    "relu": _relu,
    "relu6": _relu6,
    "hardtanh": _hardtanh,
    "threshold": _threshold,
    "leaky_relu": _leaky_relu,
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": _clamp_min,
    "clamp_max": _clamp_max,
    "sigmoid": _smooth,
    "tanh": _smooth,
    "mul": _scaled,
    "multiply": _scaled,
    "div": _scaled,
    "divide": _scaled,
    "true_divide": _scaled,
    "truediv": _scaled,
}
"""PyTorch's names for what may move, and what decides it from the data type and the arguments after the input."""

_CASTS = {"to", "half", "bfloat16", "float", "double", "_to_copy", "convert_element_type"}
_COMMUTATIVE = {"mul", "multiply"}
_HOMES: tuple[Any, ...] = (torch, torch.nn.functional, torch._C._nn, operator)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and not math.isnan(value)


def _is_factor(dtype: torch.dtype, value: Any) -> bool:
    """Whether multiplying and dividing by ``value`` keeps order and gives no NaN that was none."""
    if not _is_number(value) or not dtype.is_floating_point:
        return False
    smallest = torch.finfo(dtype).smallest_normal
    return smallest <= value <= 1 / smallest


def _keeps_order(before: torch.dtype, after: torch.dtype) -> bool:
    """Whether a cast never turns a pair around: rounding does not, wrapping and undefined conversions do."""
    if before is after or before is torch.bool:
        return False
    if after.is_floating_point:
        return not before.is_complex
    if before.is_floating_point or after is torch.bool or after.is_complex:
        return False
    return torch.iinfo(after).min <= torch.iinfo(before).min and torch.iinfo(before).max <= torch.iinfo(after).max


class PoolFirst(
    getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", custom_graph_pass.CustomGraphPass)  # type: ignore[misc]
):
    """Moves monotone pointwise functions from before a max pooling to after it, where there is less to compute.

    For torch.compile it is a hook, for other graphs a function:

    >>> import torch, torch_dmlpool as dmlpool
    >>> from torch_dmlpool.graphs import PoolFirst
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), dmlpool.nn.MaxPool2d(2))
    >>> compiled = torch.compile(model, options={"pre_grad_custom_pass": PoolFirst()})
    >>> program = torch.export.export(model, (torch.rand(1, 3, 8, 8),))
    >>> PoolFirst(gradients=False)(program)
    1

    What moves are ``relu``, ``relu6``, ``hardtanh`` and ``threshold`` (to a value not above the threshold): results and
    the gradients of all inputs stay equal, ties and NaN included. Where no gradient flows, also ``leaky_relu`` with a
    positive slope, ``clamp``, ``clamp_min``, ``clamp_max``, multiplication and division by a positive number,
    ``sigmoid``, ``tanh``, and casts to floating point or to an integer type that holds all values. Their results stay
    equal, as far as the function as computed never decreases and gives equal results for equal inputs: true of all but
    ``sigmoid`` and ``tanh`` by IEEE 754, and of these two for all float32 numbers where it was tried; elsewhere the
    last place may differ.

    A function stays where it is if something else uses its result, if the pooling returns indices, has a stride of 1
    in every dimension or a window that may lie in padding alone, if it changes a tensor in place that something else
    may see, or if the graph does not say the sizes and types of its tensors (torch.compile, torch.export and make_fx
    do).

    Args:
        gradients: Whether gradients flow through the graph. None: the graph tells (torch.compile's do) or else they do.

    """

    def __init__(self, *, gradients: bool | None = None) -> None:
        if gradients is not None and type(gradients) is not bool:
            raise TypeError(f"gradients must be a bool or None, got {gradients!r} of type {type(gradients).__name__}")
        self.gradients = gradients

    def __call__(self, graph: Graph | GraphModule | ExportedProgram, is_inference: bool | None = None) -> int:
        """Change ``graph`` in place and return how many functions were moved.

        Inductor alone passes ``is_inference``, after it has differentiated: then results are all that must stay.
        """
        if isinstance(graph, ExportedProgram):
            with graph.graph_module._set_replace_hook(graph.graph_signature.get_replace_hook()):
                return self(graph.graph_module)
        if isinstance(graph, GraphModule):
            moved = self(graph.graph)
            graph.recompile()
            return moved
        if not isinstance(graph, Graph):
            raise TypeError(f"graph must be a Graph, a GraphModule or an ExportedProgram, got {type(graph).__name__}")
        gradients = False if is_inference is not None else self.gradients
        if gradients is None and any(_transforms(node) for node in graph.nodes):
            gradients = True
        moved = 0
        for node in list(graph.nodes):
            pooling: Node | None = node
            while pooling is not None:
                pooling = _moved(graph, pooling, gradients)
                moved += pooling is not None
        if moved:
            graph.lint()
        return moved

    def uuid(self) -> Any:
        """What Inductor's caches know this pass by."""
        return custom_graph_pass.get_hash_for_files((__file__,), repr(self.gradients))


def _moved(graph: Graph, pooling: Node, gradients: bool | None) -> Node | None:
    """Move the function before ``pooling`` behind it if it may; the pooling that then stands before it."""
    if pooling.target is not torch.ops.dmlpool.max_pooling.default or pooling.kwargs:
        return None
    function = pooling.args[0]
    if not isinstance(function, Node):
        return None
    for user in list(function.users):
        if _is_dead(user):  # tracing leaves aliases that nobody uses
            graph.erase_node(user)
    if list(function.users) != [pooling]:
        return None
    name = _name(function)
    source = _source(function, name)
    if source is None:
        return None
    before, between, after = _value(source), _value(function), _value(pooling)
    if before is None or between is None or after is None or not _alike(before, between):
        return None
    exactness, inplace = _exactness(function, name, source, before.dtype, between.dtype)
    if exactness is None:
        return None
    if gradients is None:
        gradients = "example_value" not in function.meta or between.requires_grad
    if gradients and before.dtype.is_floating_point and exactness == "values":
        return None
    if between.requires_grad != after.requires_grad:  # the one is under no_grad, the other not
        return None
    if not _is_worth_it(pooling, before) or (inplace and not _is_private(graph, source, function)):
        return None

    with graph.inserting_before(function):
        first = graph.call_function(pooling.target, (source, *pooling.args[1:]))
    first.meta = {**pooling.meta}
    for key in ("example_value", "val"):
        if key in pooling.meta:
            first.meta[key] = pooling.meta[key].to(before.dtype)
            function.meta[key] = pooling.meta[key]
    for meta in (first.meta, function.meta):
        meta.pop("tensor_meta", None)
    function.replace_input_with(source, first)
    pooling.replace_all_uses_with(function)
    graph.erase_node(pooling)
    return first


def _is_dead(node: Node) -> bool:
    return not node.users and isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.is_mutable


def _transforms(node: Node) -> bool:
    """Whether ``node`` belongs to torch.func or forward-mode differentiation inside the graph."""
    home, name = str(getattr(node.target, "__module__", "")), str(getattr(node.target, "__name__", ""))
    return "functorch" in home or "dual" in name


def _name(node: Node) -> str | None:
    """The name of PyTorch's pointwise function that ``node`` calls, if it calls one."""
    target = node.target
    if node.op == "call_method":
        return str(target)
    if node.op != "call_function":
        return None
    if isinstance(target, torch._ops.OpOverload):
        return target._opname if target.namespace in ("aten", "prims") else None
    name: str | None = getattr(target, "__name__", None)
    known = name is not None and any(getattr(home, name, None) is target for home in _HOMES)
    return name if known else None


def _source(function: Node, name: str | None) -> Node | None:
    """The tensor that ``function`` computes from, if it is the only one."""
    if name is None or len(function.all_input_nodes) != 1:
        return None
    (source,) = function.all_input_nodes
    if name in _COMMUTATIVE and len(function.args) == 2 and source in function.args:
        return source
    first = function.args[0] if function.args else function.kwargs.get("input")
    rest = (*function.args[1:], *(value for key, value in function.kwargs.items() if key != "input"))
    return source if first is source and source not in rest else None


def _exactness(
    function: Node, name: str | None, source: Node, before: torch.dtype, after: torch.dtype
) -> tuple[Exactness | None, bool]:
    """What a move keeps, if it may be, and whether ``function`` writes to its input."""
    if name in _CASTS:
        return ("values" if _keeps_order(before, after) else None), False
    rule = _RULES.get(str(name).rstrip("_"))
    if rule is None or before is not after:
        return None, False
    positional = tuple(argument for argument in function.args if argument is not source)
    keywords = {key: value for key, value in function.kwargs.items() if key != "input"}
    try:
        bound = inspect.signature(rule).bind(before, *positional, **keywords)
    except TypeError:
        return None, False
    return rule(*bound.args, **bound.kwargs), str(name).endswith("_") or bool(bound.arguments.get("inplace"))


def _value(node: Node) -> Tensor | None:
    """The tensor without data that stands for a node's result."""
    value = node.meta.get("example_value", node.meta.get("val"))
    return value if isinstance(value, Tensor) else None


def _alike(before: Tensor, between: Tensor) -> bool:
    """Whether the function changes neither device nor strides, so that the pooling's result has the same ones."""
    if before.device != between.device or before.dim() != between.dim():
        return False
    return all(statically_known_true(a == b) for a, b in zip(before.stride(), between.stride(), strict=True))


def _is_worth_it(pooling: Node, input: Tensor) -> bool:
    """Whether there are fewer windows than elements, none of which may lie in padding alone.

    There the result is -inf (or the type's lowest number), and what a function makes of that may be another number.
    """
    arguments: Any = pooling.args[1:]
    if not all(type(number) is int for numbers in arguments[:-1] for number in numbers):
        return False
    window = Window.directml(input.dim() - 2, *arguments)
    if not any(axis.stride > 1 for axis in window.axes):
        return False
    return all(_reads_everywhere(axis, size) for axis, size in zip(window.axes, input.shape[2:], strict=True))


def _reads_everywhere(axis: Axis, size: int) -> bool:
    """Whether every window along ``axis`` has a tap inside the input, as far as is known of its size."""
    reach = axis.extent - 1
    if axis.start_padding > reach or axis.end_padding > reach:
        return False
    # Taps farther apart than the input is wide may step over it.
    return axis.start_padding == 0 or statically_known_true(size >= axis.dilation)


def _is_private(graph: Graph, source: Node, function: Node) -> bool:
    """Whether nobody can see that ``function`` no longer writes to ``source``."""
    if source.op in ("placeholder", "get_attr") or list(source.users) != [function]:
        return False
    storage = _storage(source)
    return all(_storage(node) != storage for node in graph.nodes if node is not source and node is not function)


def _storage(node: Node) -> int | None:
    value = _value(node)
    return None if value is None else value.untyped_storage()._cdata
