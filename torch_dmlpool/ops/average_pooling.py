"""Average pooling: (0, +, ÷ counted taps), and its gradient, its exact adjoint (rule A6)."""

from collections.abc import Sequence

from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends.interface import Backend
from torch_dmlpool.ops.registration import Linear
from torch_dmlpool.window import Window


def _check(
    input: Tensor, window: Window, include_padding: bool, divisor_override: int | None
) -> list[int]:
    operands.checked_divisor(divisor_override)
    return [*input.shape[:2], *window.output_sizes(input.shape[2:])]


def _check_grad(
    gradient: Tensor, sizes: Sequence[int], window: Window, _: bool, divisor: int | None
) -> list[int]:
    operands.checked_divisor(divisor)
    operands.check_sizes(
        "input_gradient", gradient, [*gradient.shape[:2], *window.output_sizes(sizes)]
    )
    return [*gradient.shape[:2], *sizes]


average_pooling: Linear = Linear(
    "average_pooling(Tensor input, WINDOW, bool include_padding, SymInt? divisor_override) -> "
    "Tensor",
    [operands.FLOAT_TYPES],
    _check,
    Backend.average_pooling,
    recorded=Backend.recorded_average_pooling,
    adjoint=lambda input, *arguments: (average_pooling_grad, (input.shape[2:], *arguments)),
)
average_pooling_grad: Linear = Linear(
    "average_pooling_grad(Tensor input_gradient, SymInt[] spatial_sizes, WINDOW, bool "
    "include_padding, "
    "SymInt? divisor_override) -> Tensor",
    [operands.FLOAT_TYPES],
    _check_grad,
    Backend.average_pooling_grad,
    adjoint=lambda input_gradient, spatial_sizes, *arguments: (average_pooling, arguments),
)
