"""ONNX by PyTorch's older exporter, ``torch.onnx.export(dynamo=False)``: the same translations, into its graph.

The exporter asks for a symbolic function by the name of each operator that it has traced. They are registered when an
operator is first traced for it, so nothing has to be imported for ``dynamo=False``, as with PyTorch's own layers.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_dmlpool.onnx import OPERATORS, averages, maxima
from torch_dmlpool.onnx.lowering import Emitter, spatial_sizes

LEAST_OPSET = 18
"""The first in which the nodes that the translations write take axes as inputs."""


class _Value:
    """A value of the exporter's graph, with the names that the translations ask for."""

    def __init__(self, emit: Emitter, value: Any) -> None:
        self.emit, self.value = emit, value

    @functools.cached_property
    def shape(self) -> tuple[Any, ...]:
        """Sizes; "?" for one that is not known."""
        sizes = self.value.type().varyingSizes()
        if sizes is None:
            raise ValueError("the number of dimensions of what is pooled is not known: export with dynamo=True")
        return tuple("?" if size is None else size for size in sizes)

    @functools.cached_property
    def dtype(self) -> Any:
        from torch.onnx import JitScalarType

        return self.emit.ir.DataType(JitScalarType.from_value(self.value).onnx_type())

    def producer(self) -> None: ...


class _Operators:
    """ONNX's operators as functions that add a node to ``graph``."""

    def __init__(self, emit: Emitter, graph: Any) -> None:
        from torch.onnx import symbolic_helper

        self.emit, self.graph, self.version = emit, graph, symbolic_helper.GLOBALS.export_onnx_opset_version

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return functools.partial(self._node, name)

    def _node(self, name: str, *inputs: Any, **attributes: Any) -> Any:
        if name == "Squeeze" and len(inputs) == 1 and inputs[0].value.node().kind() == "onnx::Constant":
            # Runtimes look for scales that are scalars before they compute what follows from constants.
            return self.Constant(value=inputs[0].value.node().t("value").squeeze())
        named = dict(_attribute(*pair) for pair in attributes.items())
        values = [input.value for input in inputs]
        if name == "MaxPool":
            return [_Value(self.emit, output) for output in self.graph.op(name, *values, outputs=2, **named)]
        return _Value(self.emit, self.graph.op(name, *values, **named))


def _attribute(name: str, value: Any) -> tuple[str, Any]:
    """As the exporter has it: with the type's letter in the name."""
    if isinstance(value, int):
        return f"{name}_i", int(value)
    if isinstance(value, torch.Tensor):
        return f"{name}_t", value
    if hasattr(value, "numpy"):
        return f"{name}_t", torch.from_numpy(value.numpy().copy())
    first = value[0] if isinstance(value, Sequence) else value
    return f"{name}_{'f' if isinstance(first, float) else 'i'}", value


class _Emitter(Emitter):
    """Writes nodes to a graph of the older exporter."""

    def __init__(self, graph: Any) -> None:
        from onnxscript import ir

        self.exact, self.ir = False, ir
        self.op = _Operators(self, graph)


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
        lambda *window: averages.average_pooling(*window, False, None), averages.adaptive_average_pooling
    ),
    "adaptive_max_pooling": _adaptive(
        lambda emit, *window: maxima.max_pooling_with_indices(emit, *window, emit.ir.DataType.INT64, True),
        maxima.adaptive_max_pooling,
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
    emit = _Emitter(graph)
    if emit.op.version < LEAST_OPSET:
        raise ValueError(
            f"pooling is written for ONNX in opset {LEAST_OPSET} and later, got opset_version={emit.op.version}: "
            "export with a later one, or with dynamo=True and torch_dmlpool.onnx.translations()"
        )
    declared = getattr(torch.ops.dmlpool, name).default._schema.arguments
    kinds = [str(argument.real_type) for argument in declared]
    results = _TRANSLATIONS[name](emit, *(_argument(emit, *pair) for pair in zip(kinds, arguments, strict=True)))
    return results.value if isinstance(results, _Value) else tuple(result.value for result in results)


def _argument(emit: Emitter, kind: str, value: Any) -> Any:
    from torch.onnx import JitScalarType, symbolic_helper

    if value.node().mustBeNone():
        return None
    if "Tensor" in kind:
        return _Value(emit, value)
    descriptions: dict[str, Any] = {"List[int]": "is", "bool": "b", "float": "f"}
    constant = symbolic_helper._parse_arg(value, descriptions.get(kind, "i"))
    return emit.ir.DataType(JitScalarType(constant).onnx_type()) if kind == "ScalarType" else constant
