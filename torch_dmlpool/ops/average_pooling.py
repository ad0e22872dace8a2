"""Average pooling: (0, +, ÷ counted taps), and its gradient, its exact adjoint (rule A6)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends import serving
from torch_dmlpool.ops.calls import Call, Plan, is_unobserved
from torch_dmlpool.ops.registration import Operator
from torch_dmlpool.window import Window


class AveragePooling(torch.autograd.Function):
    """Averages of windows. Their gradient is ``average_pooling_grad``."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, call: Any) -> Tensor:
        ctx.call = call
        ctx.set_materialize_grads(False)
        output: Tensor = call.run(input)
        return output

    @staticmethod
    def backward(ctx: Any, arriving: Tensor | None) -> tuple[Tensor | None, None]:
        if arriving is None:
            return None, None
        call = ctx.call
        if call.is_planned and is_unobserved(arriving):
            return call.gradient(arriving), None
        return average_pooling_grad(call.sharded(arriving), call.sizes, *call.arguments), None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, _: None) -> Tensor:
        return average_pooling(direction, *ctx.call.arguments)


class AveragePoolingGrad(torch.autograd.Function):
    """The gradient of averages. It is linear: its own gradient is the average."""

    @staticmethod
    def forward(ctx: Any, input_gradient: Tensor, call: Any) -> Tensor:
        ctx.call = call
        ctx.set_materialize_grads(False)
        output: Tensor = call.run(input_gradient)
        return output

    @staticmethod
    def backward(ctx: Any, arriving: Tensor | None) -> tuple[Tensor | None, None]:
        if arriving is None:
            return None, None
        return average_pooling(ctx.call.sharded(arriving), *ctx.call.arguments[1:]), None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, _: None) -> Tensor:
        return average_pooling_grad(direction, *ctx.call.arguments)


def _output_sizes(
    input: Tensor, window: Window, include_padding: bool, divisor_override: int | None
) -> list[int]:
    operands.checked_divisor(divisor_override)
    return [*input.shape[:2], *window.output_sizes(input.shape[2:])]


def _input_sizes(
    gradient: Tensor, sizes: Sequence[int], window: Window, _: bool, divisor: int | None
) -> list[int]:
    operands.checked_divisor(divisor)
    operands.check_sizes(
        "input_gradient", gradient, [*gradient.shape[:2], *window.output_sizes(sizes)]
    )
    return [*gradient.shape[:2], *sizes]


average_pooling = Operator(
    "average_pooling(Tensor input, WINDOW, bool include_padding, SymInt? divisor_override) -> "
    "Tensor",
    [operands.FLOAT_TYPES],
    _output_sizes,
    lambda backend: backend.average_pooling,
    function=AveragePooling,
)
average_pooling_grad = Operator(
    "average_pooling_grad(Tensor input_gradient, SymInt[] spatial_sizes, WINDOW, bool "
    "include_padding, "
    "SymInt? divisor_override) -> Tensor",
    [operands.FLOAT_TYPES],
    _input_sizes,
    lambda backend: backend.average_pooling_grad,
    function=AveragePoolingGrad,
)


def prepared(
    like: Tensor, device: str, window: Window, include_padding: bool, divisor: int | None
) -> Call | None:
    """The call of averages for plain tensors that lie as ``like``."""
    if like.dtype not in operands.FLOAT_TYPES:
        return None
    request, backend = (window, include_padding, divisor), serving(device)
    window.output_sizes(like.shape[2:])  # rejected before any work
    if backend.planned_averages is None:
        plan: Any = Plan(backend.average_pooling, None, *request)
    else:
        plan = backend.planned_averages(like.shape, like.stride(), like.dtype, *request)
    return Call(average_pooling.apply, plan, like, *request)
