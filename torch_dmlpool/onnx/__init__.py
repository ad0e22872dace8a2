"""ONNX: what ``torch.onnx.export(dynamo=True)`` writes for this package's operators.

A pooling node leaves nothing to the runtime's reading of ``ceil_mode``: the overhang becomes padding, and windows too
many are sliced off. Where padding is larger than runtimes accept it becomes a Pad node, and where a divisor or an empty
window has no words in ONNX it becomes a constant, or is computed in the graph if sizes are dynamic.
"""

import importlib.util
import operator
from collections.abc import Callable
from typing import Any

import torch

from torch_dmlpool.onnx import operators
from torch_dmlpool.onnx.lowering import Emitter

__all__ = ["translations"]

OPERATORS = {name: getattr(operators, name) for name in torch.ops.dmlpool if hasattr(operators, name)}
"""The function that writes each operator, of the same name."""


def translations(*, exact: bool = False) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Give the ``custom_translation_table`` with which PyTorch's ONNX exporter writes this package's operators.

    Args:
        exact: Whether results must be this package's even where ONNX leaves runtimes a choice, at the price of more
            nodes: NaN and windows of only -inf in maxima (several more MaxPool nodes), and the rounding of quantized
            averages (arithmetic on float64). Without it a runtime may lose a NaN, give the lowest finite number for
            -inf, and round a quantized average that lies near or on a half to the other side.

    Returns:
        A translation for each operator of averages, maxima, maxima with indices, p-norms, adaptive averages and
        maxima, and quantized averages, which are written as DequantizeLinear, AveragePool and QuantizeLinear: runtimes
        make one kernel of the three. Averages, norms and their divisors are computed in float32 for float16 and
        bfloat16, maxima of other integers than int8 and uint8 in a float type that holds them. And a translation of
        Python's ``//``, which sizes are computed with: the exporter's own rounds negative quotients towards zero.

    Raises:
        ImportError: onnxscript is not installed (``pip install torch-dmlpool[onnx]``).

    The table's functions raise ``ValueError`` or ``TypeError``, which the exporter reports as the cause of its own
    error, for what ONNX has no words for: windows that depend on dynamic sizes, unless they cover the whole dimension;
    maxima of 64-bit integers; dilated averages before opset 19.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> from torch_dmlpool.onnx import translations
        >>> model = torch.nn.Sequential(dmlpool.nn.AvgPool2d(3, stride=1, padding=((1, 0), (2, 1)), dilation=2))
        >>> program = torch.onnx.export(model.eval(), (torch.ones(1, 1, 8, 8),), dynamo=True, verbose=False,
        ...                             custom_translation_table=translations())  # doctest: +SKIP
        >>> [node.op_type for node in program.model.graph]  # doctest: +SKIP
        ['AveragePool']

    """
    if importlib.util.find_spec("onnxscript") is None:
        raise ImportError("translations needs onnxscript, which is not installed: pip install torch-dmlpool[onnx]")

    def translation(function: Callable[..., Any]) -> Callable[..., Any]:
        # The exporter takes annotated arguments for attributes, and wants a function that has a name.
        def translate(*arguments, **rest):  # type: ignore[no-untyped-def]
            return function(Emitter(exact), *arguments, **rest)

        translate.__name__ = function.__name__
        return translate

    table = {getattr(torch.ops.dmlpool, name).default: translation(function) for name, function in OPERATORS.items()}
    return {**table, operator.floordiv: translation(_floor_division)}


def _floor_division(emit: Emitter, dividend: Any, divisor: Any) -> Any:
    # The remainder has the divisor's sign, as in Python; without it nothing is left to round.
    return emit.op.Div(dividend - emit.op.Mod(dividend, divisor), divisor)
