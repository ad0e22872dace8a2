"""Functions that lowerings are written with: sums as trees, reductions, and the registration of a
lowering.
"""

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor.ir import Pointwise, TensorBox
from torch._inductor.lowering import fallback_handler, make_reduction, register_lowering
from torch._inductor.virtualized import V, ops

from torch_dmlpool._private import OpOverload
from torch_dmlpool.inductor.setting import is_lowering


def results() -> list[tuple[list[Any], torch.dtype]]:
    """Sizes and data types of what the operator being lowered returns, from its fake
    implementation.
    """
    value = V.graph.current_node.meta["val"]
    fakes = [value] if isinstance(value, torch.Tensor) else value

    def as_expression(size: Any) -> Any:
        return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)

    return [([*map(as_expression, fake.shape)], fake.dtype) for fake in fakes]


def tree(terms: Sequence[Any]) -> Any:
    """A sum whose chain of dependent additions is as short as possible (rule E6)."""
    while len(terms) > 1:
        terms = [
            ops.add(*terms[i : i + 2]) if i + 1 < len(terms) else terms[i]
            for i in range(0, len(terms), 2)
        ]
    return terms[0]


def pointwise(
    x: TensorBox, sizes: Sequence[Any], dtype: torch.dtype, value: Callable[..., Any]
) -> TensorBox:
    """An expression on the device of ``x`` whose element at each index is ``value(index)``."""
    converted = lambda index: ops.to_dtype(value(index), dtype)  # noqa: E731
    return Pointwise.create(
        device=x.get_device_or_error(), dtype=dtype, inner_fn=converted, ranges=list(sizes)
    )


def reduced_over(
    x: TensorBox, covered: Sequence[bool], kind: Any, result: torch.dtype
) -> TensorBox:
    """``x`` with each covered spatial dimension reduced to one element."""
    axes = [axis for axis, is_covered in enumerate(covered, 2) if is_covered]
    return make_reduction(kind, result)(x, axes, True, dtype=result if kind == "sum" else None)


def register_as(operation: OpOverload, lowering: Callable[..., Any]) -> None:
    """Register a lowering. If it returns None, or lowerings are turned off, the operator is
    called.
    """
    call = fallback_handler(operation, add_to_fallback_set=False)

    def lowered(*arguments: Any, **named: Any) -> Any:
        # The named argument is the revision, which tells graphs apart and computes nothing.
        expression = lowering(*arguments) if is_lowering() else None
        return call(*arguments, **named) if expression is None else expression

    register_lowering(operation, type_promotion_kind=None)(lowered)
