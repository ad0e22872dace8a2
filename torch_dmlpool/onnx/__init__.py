"""ONNX: what ``torch.onnx.export`` writes for this package's operators.

A pooling node leaves nothing to the runtime's reading of ``ceil_mode``: the overhang becomes
padding, and windows too many are sliced off. Where padding is larger than runtimes accept it
becomes a Pad node. Divisors and empty windows that ONNX cannot express become constants, or are
computed in the graph if sizes are dynamic.

PyTorch's older exporter (``dynamo=False``) asks for a symbolic function by the name of each
operator that it has traced. It gets the same translations into its graph. They are registered when
an operator is first traced for it, so nothing has to be imported, as with PyTorch's own layers.
"""

import functools
import importlib.util
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.onnx import JitScalarType, symbolic_helper

from torch_dmlpool.onnx import operators
from torch_dmlpool.onnx.lowering import Emitter, spatial_sizes

__all__ = ["translations"]

OPERATORS = {
    name: getattr(operators, name) for name in torch.ops.dmlpool if hasattr(operators, name)
}
"""The function that writes each operator, of the same name."""


def translations(*, exact: bool = False) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Give the ``custom_translation_table`` with which PyTorch's ONNX exporter writes this
    package's operators.

    Args:
        exact: Whether results must be this package's even where ONNX leaves runtimes a choice, at
            the price of more nodes: NaN and windows of only -inf in maxima (several more MaxPool
            nodes), the rounding of quantized averages (arithmetic on float64), and which of several
            elements with one index max unpooling writes. Without it a runtime may lose a NaN, give
            the lowest finite number for -inf, round a quantized average that lies near or on a half
            to the other side, and write another element than the last.

    Returns:
        A translation for each operator of averages, maxima, maxima with indices, p-norms, adaptive
        averages and maxima, max unpooling, and quantized averages, which are written as
        DequantizeLinear, AveragePool and QuantizeLinear: runtimes make one kernel of the three.
        Averages, norms and their divisors are computed in float32 for float16 and bfloat16, maxima
        of other integers than int8 and uint8 in a float type that holds them. And translations of
        ``torch.where``, which applies masks and lacks types in ONNX Runtime, and of Python's
        ``//``, which sizes are computed with: the exporter's own rounds negative quotients towards
        zero.

    Raises:
        ImportError: onnxscript is not installed (``pip install torch-dmlpool[onnx]``).

    The table's functions raise ``ValueError`` or ``TypeError``, which the exporter reports as the
    cause of its own error, for what ONNX cannot express: windows that depend on dynamic sizes,
    unless they cover the whole dimension; maxima of 64-bit integers; dilated averages before opset
    19.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> from torch_dmlpool.onnx import translations
        >>> pool = dmlpool.nn.AvgPool2d(3, stride=1, padding=((1, 0), (2, 1)), dilation=2)
        >>> program = torch.onnx.export(  # doctest: +SKIP
        ...     torch.nn.Sequential(pool).eval(), (torch.ones(1, 1, 8, 8),), dynamo=True,
        ...     verbose=False, custom_translation_table=translations())
        >>> [node.op_type for node in program.model.graph]  # doctest: +SKIP
        ['AveragePool']

    """
    if importlib.util.find_spec("onnxscript") is None:
        raise ImportError(
            "translations needs onnxscript, which is not installed: pip install torch-dmlpool[onnx]"
        )

    def translation(function: Callable[..., Any]) -> Callable[..., Any]:
        # The exporter takes annotated arguments for attributes, and wants a function that has a
        # name.
        def translate(*arguments, **rest):  # type: ignore[no-untyped-def]
            return function(Emitter(exact), *arguments, **rest)

        translate.__name__ = function.__name__
        return translate

    table = {
        getattr(torch.ops.dmlpool, name).default: translation(function)
        for name, function in OPERATORS.items()
    }
    table[torch.ops.aten.where.self] = translation(operators.where)
    return {**table, operator.floordiv: translation(_floor_division)}


def _floor_division(emit: Emitter, dividend: Any, divisor: Any) -> Any:
    # The remainder has the divisor's sign, as in Python; without it nothing is left to round.
    return emit.op.Div(dividend - emit.op.Mod(dividend, divisor), divisor)


LEAST_OPSET = 18
"""The first opset in which nodes that the translations write take axes as inputs."""


def _adaptive(whole: Callable[..., Any], bins: Callable[..., Any]) -> Callable[..., Any]:
    """The translation of adaptive pooling for PyTorch's older exporter, whose traces keep the
    operator.

    It calls ``whole`` with a window if the bins are one, else ``bins``. A trace has -1 for a size
    that is the input's.
    """

    def translate(emit: Emitter, input: Any, output_sizes: Sequence[int]) -> Any:
        steps, asked = [], []
        for known, size, entry in zip(
            spatial_sizes(input), input.shape[2:], output_sizes, strict=True
        ):
            asked.append(size if entry == -1 else entry)
            divides = known is not None and entry > 0 and known % entry == 0
            steps.append(
                1 if entry == -1 else size if entry == 1 else known // entry if divides else None
            )
        if None in steps:
            return bins(emit, input, asked)
        zeros, ones = [0] * len(steps), [1] * len(steps)
        return whole(emit, input, steps, steps, zeros, zeros, ones, False)

    return translate


def _unpooling(emit: Emitter, input: Any, *arguments: Any) -> Any:
    """The translation of unpooling for PyTorch's older exporter, whose traces have the output's
    sizes as numbers.
    """
    if None in spatial_sizes(input):
        raise ValueError(
            "the output's sizes of max_unpooling depend on dynamic sizes, which a trace has not: "
            "export with dynamo=True, or without dynamic height and width"
        )
    return operators.max_unpooling(emit, input, *arguments)


_TRANSLATIONS: dict[str, Callable[..., Any]] = {
    **{
        name: function
        for name, function in OPERATORS.items()
        if "taps" not in name and name != "max_pooling_indices"
    },
    "max_unpooling": _unpooling,
    "adaptive_average_pooling": _adaptive(
        lambda *window: operators.average_pooling(*window, False, None),
        operators.adaptive_average_pooling,
    ),
    "adaptive_max_pooling": _adaptive(
        lambda emit, *window: operators.max_pooling_with_indices(
            emit, *window, emit.ir.DataType.INT64, True
        ),
        operators.adaptive_max_pooling,
    ),
}


@functools.cache
def register() -> None:
    """Give the exporter a symbolic function for every operator of this package."""
    for name in torch.ops.dmlpool:
        torch.onnx.register_custom_op_symbolic(
            f"dmlpool::{name}", functools.partial(_symbolic, name), 9
        )


def _symbolic(name: str, graph: Any, *arguments: Any) -> Any:
    """The symbolic function of the operator ``name``: it records the nodes of the translation, then
    writes them to ``graph``.
    """
    if name not in _TRANSLATIONS:
        raise ValueError(
            f"dmlpool::{name} cannot be written for ONNX: torch_dmlpool.onnx.translations says "
            "what can"
        )
    if importlib.util.find_spec("onnxscript") is None:
        raise ImportError(
            "pooling for ONNX needs onnxscript, which is not installed: pip install "
            "torch-dmlpool[onnx]"
        )
    version = symbolic_helper.GLOBALS.export_onnx_opset_version
    if version < LEAST_OPSET:
        raise ValueError(
            f"pooling is written for ONNX in opset {LEAST_OPSET} and later, got "
            f"opset_version={version}: "
            "export with a later one, or with dynamo=True and torch_dmlpool.onnx.translations()"
        )
    from onnxscript import evaluator, values
    from torch.onnx._internal.exporter._building import OpRecorder

    recorder: Any = OpRecorder(values.Opset("", version), {})  # type: ignore[abstract]
    written: dict[Any, Any] = {}
    declared = getattr(torch.ops.dmlpool, name).default._schema.arguments
    # The last, the revision, is empty in programs that are exported.
    kinds = [str(argument.real_type) for argument in declared if not argument.kwarg_only]
    pairs = zip(kinds, arguments[: len(kinds)], strict=True)
    translated = [_argument(recorder.opset, written, *pair) for pair in pairs]
    with evaluator.default_as(recorder):
        results = _TRANSLATIONS[name](Emitter(False), *translated)
    for node in recorder.nodes:
        outputs = _written(graph, node, [written[each] for each in node.inputs])
        written.update(zip(node.outputs, outputs, strict=True))
    return (
        tuple(written[each] for each in results) if isinstance(results, tuple) else written[results]
    )


def _argument(opset: Any, written: dict[Any, Any], kind: str, value: Any) -> Any:
    """An argument as the translations take it, made of a value of the older exporter's graph: a
    tensor, or a constant as Python has it. ``written`` gets the value of each tensor.
    """
    if value.node().mustBeNone():
        return None
    from onnxscript import ir
    from torch.onnx._internal.exporter._tensors import SymbolicTensor

    data_type: Any = ir.DataType
    if "Tensor" not in kind:
        descriptions: dict[str, Any] = {"List[int]": "is", "bool": "b", "float": "f"}
        constant = symbolic_helper._parse_arg(value, descriptions.get(kind, "i"))
        return data_type(JitScalarType(constant).onnx_type()) if kind == "ScalarType" else constant
    sizes = value.type().varyingSizes()
    if sizes is None:
        raise ValueError(
            "the number of dimensions of what is pooled is not known: export with dynamo=True"
        )
    shape = ir.Shape(["?" if size is None else size for size in sizes])
    dtype = data_type(JitScalarType.from_value(value).onnx_type())
    tensor = SymbolicTensor(opset, shape=shape, type=ir.TensorType(dtype))
    written[tensor] = value
    return tensor


def _written(graph: Any, node: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """Write ``node`` to the older exporter's graph, which wants a letter of the type at the end of
    an attribute's name, and return its outputs.
    """
    if (
        node.op_type == "Squeeze"
        and len(inputs) == 1
        and inputs[0].node().kind() == "onnx::Constant"
    ):
        # Runtimes look for scales that are scalars before they compute what follows from constants.
        return [graph.op("Constant", value_t=inputs[0].node().t("value").squeeze())]
    attributes = {
        f"{each.name}_{each.type.name[0].lower()}": torch.from_numpy(each.value.numpy().copy())
        if each.type.name == "TENSOR"
        else each.value
        for each in node.attributes.values()
    }
    outputs = graph.op(node.op_type, *inputs, outputs=len(node.outputs), **attributes)
    return outputs if isinstance(outputs, (list, tuple)) else [outputs]
