"""ONNX: what ``torch.onnx.export`` writes for this package's operators.

A pooling node leaves nothing to the runtime's reading of ``ceil_mode``: the overhang becomes
padding, and windows too many are sliced off. Where padding is larger than runtimes accept it
becomes a Pad node. Divisors and empty windows that ONNX cannot express become constants, or are
computed in the graph if sizes are dynamic.
"""

import gc
import importlib.util
import operator
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakSet

import torch

from torch_dmlpool import registry
from torch_dmlpool._private import TracingContext
from torch_dmlpool.onnx import operators
from torch_dmlpool.onnx.lowering import Asked, Emitter
from torch_dmlpool.window import Function

__all__ = ["translations"]

OPERATORS = {
    name: getattr(operators, name) for name in torch.ops.dmlpool if hasattr(operators, name)
}
"""The function that writes each operator, of the same name."""


def translations(*, exact: bool = False) -> dict[Function, Function]:
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

    return _Table(exact)  # type: ignore[return-value]


class _Table(Mapping[Any, Function]):
    """The translations. Each look-up makes a function, which lives as long as the export that has
    looked it up, or as a table that was made of this one: by that :func:`is_translated` knows.
    """

    def __init__(self, exact: bool) -> None:
        ours = torch.ops.dmlpool
        self.exact = exact
        self.functions = {getattr(ours, name).default: each for name, each in OPERATORS.items()}
        self.functions |= {
            torch.ops.aten.where.self: operators.where,
            operator.floordiv: _floor_division,
        }

    def __getitem__(self, target: Any) -> Function:
        function, exact = self.functions[target], self.exact
        name = target.__name__.split(".")[0]
        window_at = getattr(registry.OPERATORS.get(name), "window_at", None)

        # The exporter takes annotated arguments for attributes, and wants a function that has a
        # name.
        def translate(*arguments, **rest):  # type: ignore[no-untyped-def]
            named = list(arguments)
            if window_at is not None:
                named[window_at : window_at + 6] = [Asked._make(named[window_at : window_at + 6])]
            return function(Emitter(exact), *named, **rest)

        translate.__name__ = name
        _looked_up.add(translate)
        return translate

    def __iter__(self) -> Iterator[Any]:
        return iter(self.functions)

    def __len__(self) -> int:
        return len(self.functions)


def _floor_division(emit: Emitter, dividend: Any, divisor: Any) -> Any:
    # The remainder has the divisor's sign, as in Python; without it nothing is left to round.
    return emit.op.Div(dividend - emit.op.Mod(dividend, divisor), divisor)


_looked_up: WeakSet[Any] = WeakSet()
"""The functions that tables have made."""
_contexts: WeakSet[Any] = WeakSet()
"""The programs in whose capture it was asked whether an operator is translated."""


def is_translated(overload: Any) -> bool:
    """Whether the export that is running has the translation of an operator. What an operator is
    made of inside needs none.
    """
    if overload._opname not in OPERATORS:
        return True
    context = TracingContext.try_get()
    if context is not None and context not in _contexts:
        _contexts.add(context)
        gc.collect()  # PyTorch leaves what an export has looked up in circles of references
    return any(function.__name__ == overload._opname for function in _looked_up)
