"""Average pooling between integer layers: of int8 and uint8 with the layer's scales, and of
quantized tensors.

In exported programs, quantized in PyTorch's reference form, averages of dequantized numbers become
those of integers.
"""

import copy
import math
from collections.abc import Collection, Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from torch_dmlpool import operands, quantized
from torch_dmlpool.nn import dimensions, functional
from torch_dmlpool.nn.functional import Padding, Sizes
from torch_dmlpool.nn.layers import Pool
from torch_dmlpool.ops.adaptive_pooling import bins
from torch_dmlpool.ops.registration import is_readable
from torch_dmlpool.window import ArgumentError, Window

__all__ = ["AvgPool1d", "AvgPool2d", "AvgPool3d"]

_QUANTIZE = (
    "quantized_decomposed::quantize_per_tensor",
    "quantized_decomposed::quantize_per_channel",
)
_DEQUANTIZE = (
    "quantized_decomposed::dequantize_per_tensor",
    "quantized_decomposed::dequantize_per_channel",
)
_POOLS = {
    **{
        f"aten::{kind}_pool{rank}d": (rank,)
        for kind in ("avg", "adaptive_avg")
        for rank in (1, 2, 3)
    },
    "aten::mean": (1, 2, 3),  # what an adaptive pool to one element is decomposed to
    "dmlpool::average_pooling": (1, 2, 3),
}
"""The pools that are recognised, and over how many spatial dimensions."""
_aten = torch.ops.aten


class _AvgPool(Pool):
    """:class:`torch.nn.AvgPool{rank}d` of integers that stand for ``scale * (integer -
    zero_point)``.

    It is :func:`~torch_dmlpool.quantized_linear_average_pooling` of int8 and uint8 tensors,
    ``{batched}`` or ``{unbatched}``, and :func:`~torch_dmlpool.quantized_average_pooling` of
    quantized tensors (quint8, qint8), which bring ``input_scale`` and ``input_zero_point`` of their
    own. Scales and zero points are buffers, so that a ``state_dict`` holds them. One loaded from
    another layer brings its number of entries along.

    Args:
        {window}
        count_include_pad: Whether padding counts in the divisor; it adds nothing to the sum.
        input_scale: Real numbers per step of a plain input: a number for all channels, or a tensor
            of ``(C,)``.
        input_zero_point: The integer that stands for 0 in a plain input, in the same forms.
        output_scale: The output's scale; the input's unless given.
        output_zero_point: The output's zero point; the input's unless given.
        output_dtype: int8 or uint8; the input's unless given.

    >>> scales = dict(input_scale=0.5, input_zero_point=10, output_scale=0.25, output_zero_point=3)
    >>> layer = AvgPool{rank}d(({ones}2), **scales)
    >>> layer(torch.tensor([10, 12, 14, 18], dtype=torch.uint8).view(1, {ones}4)).flatten()
    tensor([ 5, 15], dtype=torch.uint8)
    """

    input_scale: Tensor
    input_zero_point: Tensor
    output_scale: Tensor | None
    output_zero_point: Tensor | None

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Padding = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        *,
        dilation: Sizes = 1,
        input_scale: float | Tensor = 1.0,
        input_zero_point: int | Tensor = 0,
        output_scale: float | Tensor | None = None,
        output_zero_point: int | Tensor | None = None,
        output_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        Window.pytorch(self._rank, kernel_size, stride, padding, dilation, ceil_mode)
        operands.check_flag("count_include_pad", count_include_pad)
        operands.check_output_type(output_dtype)
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation, self.ceil_mode = padding, dilation, ceil_mode
        self.count_include_pad, self.output_dtype = count_include_pad, output_dtype
        given = (input_scale, input_zero_point, output_scale, output_zero_point)
        for name, parameter in zip(operands.PARAMETERS, given, strict=True):
            inherited = parameter is None and name.startswith("output")
            self.register_buffer(name, None if inherited else self._checked(name, parameter))

    @classmethod
    def from_float(cls, layer: torch.nn.Module, **quantization: Any) -> Self:
        """The layer with the window of a float ``layer``, torch.nn's or this package's, and the
        scales given here.
        """
        if not isinstance(layer, getattr(torch.nn, cls.__name__)):
            raise TypeError(f"layer must be a torch.nn.{cls.__name__}, got {type(layer).__name__}")
        divisor = getattr(layer, "divisor_override", None)
        if divisor is not None:
            raise ArgumentError(
                f"layer must have no divisor_override, which integers do not take, got {divisor}"
            )
        pool: Any = layer
        window = (
            pool.kernel_size,
            pool.stride,
            pool.padding,
            pool.ceil_mode,
            bool(pool.count_include_pad),
        )
        return cls(*window, dilation=getattr(layer, "dilation", 1), **quantization)

    def forward(self, input: Tensor) -> Tensor:
        # also on a PyTorch without quantized tensors
        is_quantized = getattr(input, "is_quantized", False)
        types = (input.dtype,) if is_quantized else operands.QUANTIZED_TYPES
        batched, added = dimensions.with_batch(f"avg_pool{self._rank}d", self._rank, input, types)
        geometry = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        window, counted = (
            functional.window_of(self._rank, batched, *geometry),
            self.count_include_pad,
        )
        output = self.output_scale, self.output_zero_point
        if is_quantized:
            plain_types = quantized.check_quantized(batched)
            pooled = quantized.average(
                batched, plain_types, window, counted, *output, self.output_dtype
            )
        else:
            own = self.input_scale, self.input_zero_point
            inherited = [
                mine if given is None else given for mine, given in zip(own, output, strict=True)
            ]
            dtype = self.output_dtype or input.dtype
            pooled = quantized.average_of_integers(
                batched, (*own, *inherited), window, counted, dtype
            )
        return pooled if added is None else dimensions.without(pooled, added)

    def _checked(self, name: str, parameter: Any) -> Tensor:
        """One entry for all channels or one each: a scale in float32, a zero point in int64,
        PyTorch's type for it.

        Which type a zero point must fit is known with the input; here it must fit the output's or
        one of the two.
        """
        is_tensor, dtype = (
            isinstance(parameter, Tensor),
            torch.float32 if name.endswith("scale") else torch.int64,
        )
        count, device = (
            (parameter.numel(), parameter.device) if is_tensor else (1, torch.device("cpu"))
        )
        # What it is checked against is an input with as many channels as it has entries.
        like = torch.empty(0, count, *(1,) * self._rank, dtype=torch.int8, device=device)
        if is_tensor and dtype is torch.int64 and parameter.dtype in operands.INTEGER_TYPES:
            parameter = parameter.to(torch.int64)
        checked = operands.checked_parameter(name, parameter, dtype, like)
        vector = (
            torch.as_tensor(0 if checked is None else checked, dtype=dtype, device=device)
            .detach()
            .reshape(-1)
        )
        if dtype is torch.int64:
            is_negative = is_readable(vector) and bool((vector < 0).any())
            own = self.output_dtype if name.startswith("output") else None
            quantized.narrowed(name, vector, own or (torch.int8 if is_negative else torch.uint8))
        elif is_readable(vector):
            operands.check_scale_values(name, vector)
        return vector

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        scales = {name: getattr(self, name) for name in ("input_scale", "output_scale")}
        super()._apply(fn, recurse)
        for name, scale in scales.items():
            # A model turned to half precision keeps its scales in float32: they follow to another
            # device alone.
            if scale is not None and getattr(self, name).dtype is not scale.dtype:
                setattr(self, name, scale.to(getattr(self, name).device))
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Take over what was saved as it is: the layer may have been built with another number of
        entries, or none.
        """
        for name in operands.PARAMETERS:
            saved = state_dict.get(prefix + name)
            if saved is not None:
                setattr(
                    self, name, self._checked(name, saved).to(self.input_scale.device, copy=True)
                )
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def extra_repr(self) -> str:
        usual = {"ceil_mode": False, "count_include_pad": True, "dilation": 1, "output_dtype": None}
        names = ("kernel_size", "stride", "padding", *usual)
        shown = {
            name: getattr(self, name)
            for name in names
            if getattr(self, name) != usual.get(name, self)
        }
        for name, parameter in self.named_buffers(recurse=False):
            is_number = (
                parameter.numel() == 1 and type(parameter) is Tensor and not parameter.is_meta
            )
            shown[name] = (
                f"{parameter.item():.6g}" if is_number else f"<{parameter.numel()} entries>"
            )
        return ", ".join(f"{name}={value}" for name, value in shown.items())


class AvgPool1d(_AvgPool, rank=1): ...


class AvgPool2d(_AvgPool, rank=2): ...


class AvgPool3d(_AvgPool, rank=3): ...


def integer_pooling(program: ExportedProgram) -> ExportedProgram:
    """Replace ``dequantize → average pool → quantize`` by
    :func:`~torch_dmlpool.quantized_linear_average_pooling`.

    Args:
        program: What PyTorch's quantization of exported programs makes:
            ``quantized_decomposed.dequantize_per_tensor`` and ``quantize_per_tensor`` (or
            ``…_per_channel``) of int8 or uint8 around ``aten.avg_pool1d`` to ``3d``, their adaptive
            forms and means where all windows are alike, or ``dmlpool.average_pooling``, in float32.

    Returns:
        A new program with the same signature, weights and names. Results differ by one step of the
        output at most, and only where rounding errors of the float program decide.
        docs/quantization.md lists what is left as it is.

    Raises:
        TypeError: ``program`` is no ``torch.export.ExportedProgram``.

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
    graph = copy.deepcopy(program.graph)
    for original, node in zip(program.graph.nodes, graph.nodes, strict=True):
        # A copy is renamed where Python or the copy has the name already (input, filter), and the
        # signature is not.
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
    """Pool the integers where ``quantize`` stands, if it ends the pattern: it keeps its name and
    its users.
    """
    pool = _input(quantize, _QUANTIZE)
    dequantize = _input(pool, _POOLS)
    integers = _input(dequantize, _DEQUANTIZE)
    # Where somebody needs the average itself it stays, and to pool the integers too would be work
    # done twice.
    if integers is None or any(_name(user) not in _QUANTIZE for user in pool.users):
        return
    real = dequantize.meta["val"]
    if pool.meta["val"].dtype is not torch.float32 or real.dim() - 2 not in _POOLS[_name(pool)]:
        return
    window = _window(pool, real.shape[2:])
    sides = [_quantization(node, constants, real) for node in (dequantize, quantize)]
    if window is None or None in sides:
        return
    operator, (*_, dtype, limits) = (
        torch.ops.dmlpool.quantized_linear_average_pooling.default,
        sides[1],
    )
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
    """The window of a pooling node, and whether padding counts, if the integer operator can have
    them.
    """
    name, rank, arguments = _name(pool), len(sizes), _arguments(pool)
    if arguments.get("divisor_override") is not None:
        return None
    if name == "dmlpool::average_pooling":
        return tuple(arguments.values())[1:8]
    if name == "aten::mean" or name.startswith("aten::adaptive"):
        outputs = tuple(arguments.get("output_size", [1] * rank))
        averaged = {dimension % (rank + 2) for dimension in arguments.get("dim") or ()}
        if name == "aten::mean" and not (
            arguments.get("keepdim") and averaged == set(range(2, rank + 2))
        ):
            return None
        are_known = all(type(size) is int for size in (*sizes, *outputs))
        window = bins(outputs, tuple(sizes), rank)[1] if are_known else None
        return None if window is None else (*window.arguments, True)
    kernel_size, stride, padding, ceil_mode, counted = list(arguments.values())[1:6]
    return *Window.pytorch(rank, kernel_size, stride, padding, 1, ceil_mode).arguments, counted


def _quantization(node: fx.Node, constants: dict[str, Tensor], real: Tensor) -> Any:
    """Scale and zero point (numbers or nodes), type and limits of ``real``, if rules Q3 and Q4
    allow them.
    """
    arguments = _arguments(node)
    dtype, axis = arguments["dtype"], arguments.get("axis", quantized.CHANNEL_AXIS)
    if dtype not in operands.QUANTIZED_TYPES or axis % real.dim() != quantized.CHANNEL_AXIS:
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
    """The numbers that an argument stands for; none where they are not known before the program
    runs.
    """
    if not isinstance(argument, fx.Node):
        return [argument]
    constant = constants.get(argument.name)
    return [] if constant is None else constant.flatten().tolist()


def _as_tensor(
    before: fx.Node, parameter: Any, dtype: torch.dtype, device: torch.device
) -> fx.Node | None:
    """A scale or zero point as the operator takes it, which has no numbers among its arguments."""
    if parameter is None:
        return None
    if not isinstance(parameter, fx.Node):
        return _insert(
            before, _aten.full.default, [1], parameter, dtype=dtype, device=device, pin_memory=False
        )
    if parameter.meta["val"].dtype is dtype:
        return parameter
    return _insert(before, _aten._to_copy.default, parameter, dtype=dtype)


def _insert(before: fx.Node, operator: Any, *arguments: Any, **rest: Any) -> fx.Node:
    """A call of ``operator`` with the origin of the node that it is ``before`` and with its own
    fake value.
    """
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
