"""ONNX by PyTorch's older exporter, ``torch.onnx.export(dynamo=False)``: the same translations, into its graph.

The exporter asks for a symbolic function by the name of each operator that it has traced. They are registered when an
operator is first traced for it, so nothing has to be imported for ``dynamo=False``, as with PyTorch's own layers.
"""

import functools
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.onnx import JitScalarType, symbolic_helper

from torch_dmlpool.onnx import OPERATORS, operators
from torch_dmlpool.onnx.lowering import Emitter, spatial_sizes

LEAST_OPSET = 18
"""The first in which the nodes that the translations write take axes as inputs."""


def _adaptive(whole: Callable[..., Any], bins: Callable[..., Any]) -> Callable[..., Any]:
    """The translation of adaptive pooling, which a trace records whole: ``whole`` of a window, where there is one."""

    def translate(emit: Emitter, input: Any, output_sizes: Sequence[int]) -> Any:
        steps, asked = [], []
        for known, size, entry in zip(spatial_sizes(input), input.shape[2:], output_sizes, strict=True):
            asked.append(size if entry == -1 else entry)
            divides = known is not None and entry > 0 and known % entry == 0
            steps.append(1 if entry == -1 else size if entry == 1 else known // entry if divides else None)
        if None in steps:
            return bins(emit, input, asked)
        zeros, ones = [0] * len(steps), [1] * len(steps)
        return whole(emit, input, steps, steps, zeros, zeros, ones, False)

    return translate


_TRANSLATIONS: dict[str, Callable[..., Any]] = {
    **{name: function for name, function in OPERATORS.items() if "taps" not in name and name != "max_pooling_indices"},
    "adaptive_average_pooling": _adaptive(
        lambda *window: operators.average_pooling(*window, False, None), operators.adaptive_average_pooling
    ),
    "adaptive_max_pooling": _adaptive(
        lambda emit, *window: operators.max_pooling_with_indices(emit, *window, emit.ir.DataType.INT64, True),
        operators.adaptive_max_pooling,
    ),
}


@functools.cache
def register() -> None:
    """Give the exporter a symbolic function for every operator of this package."""
    for name in torch.ops.dmlpool:
        torch.onnx.register_custom_op_symbolic(f"dmlpool::{name}", functools.partial(_symbolic, name), 9)


def _symbolic(name: str, graph: Any, *arguments: Any) -> Any:
    if name not in _TRANSLATIONS:
        raise ValueError(f"dmlpool::{name} cannot be written for ONNX: torch_dmlpool.onnx.translations says what can")
    if importlib.util.find_spec("onnxscript") is None:
        raise ImportError("pooling for ONNX needs onnxscript, which is not installed: pip install torch-dmlpool[onnx]")
    version = symbolic_helper.GLOBALS.export_onnx_opset_version
    if version < LEAST_OPSET:
        raise ValueError(
            f"pooling is written for ONNX in opset {LEAST_OPSET} and later, got opset_version={version}: "
            "export with a later one, or with dynamo=True and torch_dmlpool.onnx.translations()"
        )
    from onnxscript import evaluator, values
    from torch.onnx._internal.exporter._building import OpRecorder

    recorder: Any = OpRecorder(values.Opset("", version), {})  # type: ignore[abstract]
    written: dict[Any, Any] = {}
    declared = getattr(torch.ops.dmlpool, name).default._schema.arguments
    pairs = zip((str(argument.real_type) for argument in declared), arguments, strict=True)
    translated = [_argument(recorder.opset, written, *pair) for pair in pairs]
    with evaluator.default_as(recorder):
        results = _TRANSLATIONS[name](Emitter(False), *translated)
    for node in recorder.nodes:
        outputs = _written(graph, node, [written[each] for each in node.inputs])
        written.update(zip(node.outputs, outputs, strict=True))
    return tuple(written[each] for each in results) if isinstance(results, tuple) else written[results]


def _argument(opset: Any, written: dict[Any, Any], kind: str, value: Any) -> Any:
    """A value of the exporter's graph as the translations ask for it: constants as Python has them."""
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
        raise ValueError("the number of dimensions of what is pooled is not known: export with dynamo=True")
    shape = ir.Shape(["?" if size is None else size for size in sizes])
    dtype = data_type(JitScalarType.from_value(value).onnx_type())
    tensor = SymbolicTensor(opset, shape=shape, type=ir.TensorType(dtype))
    written[tensor] = value
    return tensor


def _written(graph: Any, node: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """The outputs of ``node`` in the exporter's graph, which has the type's letter in the names of attributes."""
    if node.op_type == "Squeeze" and len(inputs) == 1 and inputs[0].node().kind() == "onnx::Constant":
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
