"""Decompositions of the operators into ATen's, for programs that run without this package."""

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from torch_dmlpool._private import OpOverload
from torch_dmlpool.backends import reference
from torch_dmlpool.backends.reductions import are_ints, covers
from torch_dmlpool.ops import registration
from torch_dmlpool.window import AXIS_NAMES, Window

__all__ = ["decompositions"]
_DYNAMIC = (
    "average_pooling",
    "max_pooling",
    "max_pooling_with_indices",
    "quantized_linear_average_pooling",
    "quantized_linear_average_pooling_of_numbers",
)
"""Operators that are decomposed even where image sizes are dynamic. Batch sizes may be dynamic for
all operators."""


def decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """The table with which ``ExportedProgram.run_decompositions`` replaces the pooling operators by
    ATen's.

    Returns:
        A decomposition for each operator. Results are the operators' own: averages within the
        error bound of rule E6, all others equal. With dynamic image sizes averages, maxima, maxima
        with indices, p-norms and quantized averages are decomposed; the others stay operators.

    Raises:
        ValueError: While a program is decomposed: a window that depends on dynamic sizes, unless
            it covers the whole dimension without padding.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> from torch_dmlpool.decompositions import decompositions
        >>> layer = dmlpool.nn.MaxPool2d(3, 2, padding="same").eval()
        >>> program = torch.export.export(layer, (torch.ones(1, 3, 8, 8),))
        >>> program = program.run_decompositions(decompositions())
        >>> [node.name for node in program.graph.nodes if "dmlpool" in str(node.target)]
        []
    """
    return {
        operator.overload: operator.composed
        if operator.is_composite
        else functools.partial(_decomposed, operator)
        for operator in registration.OPERATORS
    }


def _decomposed(operator: registration.Operator, *arguments: Any, **_: str) -> Any:
    """The results of the reference backend for a call of ``operator``. NotImplemented, which keeps
    the call, if image sizes are dynamic and the operator is not one of ``_DYNAMIC``.
    """
    # The reference reads the bits of elements, and the bits of a lazily negated view lack the
    # negation.
    arguments = tuple(
        argument.resolve_neg() if isinstance(argument, Tensor) else argument
        for argument in arguments
    )
    sizes = [
        size
        for argument in arguments
        if isinstance(argument, Tensor)
        for size in argument.shape[2:]
    ]
    sizes += [size for argument in arguments if isinstance(argument, list) for size in argument]
    if operator.name not in _DYNAMIC and not are_ints(*sizes):
        return NotImplemented
    before = operator.window_at
    if before is not None:
        window = Window.directml(arguments[0].dim() - 2, *arguments[before : before + 6])
        for axis, size, dimension in zip(
            window.axes, arguments[0].shape[2:], AXIS_NAMES[window.rank], strict=True
        ):
            if type(axis.window) is not int and not covers(axis, size):
                raise ValueError(
                    f"window_size depends on dynamic sizes in spatial dimension {dimension}: it "
                    "can be decomposed "
                    "if it is a number, or if it covers the whole dimension without padding"
                )
        arguments = (*arguments[:before], window, *arguments[before + 6 :])
    return operator.computed_by(reference.BACKEND)(*arguments)
