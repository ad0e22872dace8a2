"""Average pooling: (0, +, ÷ counted taps), and its gradient, its exact adjoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.ops import registration
from torch_dmlpool.window import Window


def average_pooling(input: Tensor, window: Window, include_padding: bool, divisor_override: int | None) -> Tensor:
    """Average of every window of ``input``; operands are checked already."""
    if not registration.is_bare(input):
        return _average_pooling(input, *window.arguments, include_padding, divisor_override)
    if registration.records_gradient(input):
        return registration.apply(AveragePooling, input, window, include_padding, divisor_override)
    return registration.backend_of(input).average_pooling(input, window, include_padding, divisor_override)


def average_pooling_grad(
    input_gradient: Tensor,
    spatial_sizes: Sequence[int],
    window: Window,
    include_padding: bool,
    divisor_override: int | None,
) -> Tensor:
    """Gradient of average pooling for an input of ``spatial_sizes``; operands are checked already."""
    arguments = (include_padding, divisor_override)
    if not registration.is_bare(input_gradient):
        return _average_pooling_grad(input_gradient, spatial_sizes, *window.arguments, *arguments)
    if registration.records_gradient(input_gradient):
        return registration.apply(AveragePoolingGrad, input_gradient, spatial_sizes, window, *arguments)
    backend = registration.backend_of(input_gradient)
    return backend.average_pooling_grad(input_gradient, spatial_sizes, window, *arguments)


def _checked(input: Tensor, arguments: tuple[Any, ...], divisor_override: int | None) -> tuple[Window, list[int]]:
    operands.check_pooled("input", input, operands.AVERAGE_TYPES)
    operands.check_divisor(divisor_override)
    window = Window.directml(input.dim() - 2, *arguments)
    return window, [*input.shape[:2], *window.output_sizes(input.shape[2:])]


def _checked_grad(
    input_gradient: Tensor, spatial_sizes: Sequence[int], arguments: tuple[Any, ...], divisor_override: int | None
) -> tuple[Window, list[int]]:
    operands.check_pooled("input_gradient", input_gradient, operands.AVERAGE_TYPES)
    operands.check_divisor(divisor_override)
    window = Window.directml(input_gradient.dim() - 2, *arguments)
    samples_and_channels = input_gradient.shape[:2]
    output_sizes = window.output_sizes(spatial_sizes)
    operands.check_sizes("input_gradient", input_gradient, [*samples_and_channels, *output_sizes])
    return window, [*samples_and_channels, *spatial_sizes]


def _forward(input: Tensor, *arguments: Any) -> Tensor:
    *window_arguments, include_padding, divisor_override = arguments
    window, _ = _checked(input, tuple(window_arguments), divisor_override)
    return registration.backend_of(input).average_pooling(input, window, include_padding, divisor_override)


def _forward_fake(input: Tensor, *arguments: Any) -> Tensor:
    *window_arguments, _, divisor_override = arguments
    _, sizes = _checked(input, tuple(window_arguments), divisor_override)
    return operands.empty(sizes, input, operands.suggested_memory_format(input))


def _forward_vmap(info: Any, dimensions: Any, input: Tensor, *arguments: Any) -> tuple[Tensor, int]:
    pooled = _average_pooling(registration.folded(input, dimensions[0], info.batch_size), *arguments)
    return registration.unfolded(pooled, info.batch_size), 0


def _grad(input_gradient: Tensor, spatial_sizes: Sequence[int], *arguments: Any) -> Tensor:
    *window_arguments, include_padding, divisor_override = arguments
    window, _ = _checked_grad(input_gradient, spatial_sizes, tuple(window_arguments), divisor_override)
    return registration.backend_of(input_gradient).average_pooling_grad(
        input_gradient, spatial_sizes, window, include_padding, divisor_override
    )


def _grad_fake(input_gradient: Tensor, spatial_sizes: Sequence[int], *arguments: Any) -> Tensor:
    *window_arguments, _, divisor_override = arguments
    _, sizes = _checked_grad(input_gradient, spatial_sizes, tuple(window_arguments), divisor_override)
    return operands.empty(sizes, input_gradient, operands.suggested_memory_format(input_gradient))


def _grad_vmap(
    info: Any, dimensions: Any, input_gradient: Tensor, spatial_sizes: Sequence[int], *arguments: Any
) -> tuple[Tensor, int]:
    gradient = registration.folded(input_gradient, dimensions[0], info.batch_size)
    spread = _average_pooling_grad(gradient, spatial_sizes, *arguments)
    return registration.unfolded(spread, info.batch_size), 0


_average_pooling = registration.define(
    "average_pooling(Tensor input, WINDOW, bool include_padding, SymInt? divisor_override) -> Tensor",
    implementation=_forward,
    fake=_forward_fake,
    vmap=_forward_vmap,
)
_average_pooling_grad = registration.define(
    "average_pooling_grad(Tensor input_gradient, SymInt[] spatial_sizes, WINDOW, bool include_padding, "
    "SymInt? divisor_override) -> Tensor",
    implementation=_grad,
    fake=_grad_fake,
    vmap=_grad_vmap,
)


class AveragePooling(torch.autograd.Function):
    """The average, whose backward pass is :func:`average_pooling_grad`; nothing is kept for it but sizes."""

    @staticmethod
    def forward(input: Tensor, window: Window, include_padding: bool, divisor_override: int | None) -> Tensor:
        with registration.inside_forward(input):
            return average_pooling(input, window, include_padding, divisor_override)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        input, *ctx.arguments = inputs
        ctx.spatial_sizes = input.shape[2:]
        ctx.shards = registration.shards_of(input)

    @staticmethod
    def backward(ctx: Any, input_gradient: Tensor) -> tuple[Any, ...]:
        input_gradient = registration.sharded_like(input_gradient, ctx.shards)
        return average_pooling_grad(input_gradient, ctx.spatial_sizes, *ctx.arguments), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        return average_pooling(tangent, *ctx.arguments)


class AveragePoolingGrad(torch.autograd.Function):
    """The gradient operator, whose backward pass is the average again: each is the other's adjoint (rule A6)."""

    @staticmethod
    def forward(input_gradient: Tensor, spatial_sizes: Sequence[int], *arguments: Any) -> Tensor:
        with registration.inside_forward(input_gradient):
            return average_pooling_grad(input_gradient, spatial_sizes, *arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        input_gradient, ctx.spatial_sizes, *ctx.arguments = inputs
        ctx.shards = registration.shards_of(input_gradient)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return average_pooling(registration.sharded_like(gradient, ctx.shards), *ctx.arguments), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        return average_pooling_grad(tangent, ctx.spatial_sizes, *ctx.arguments)


def _autograd(input: Tensor, *arguments: Any) -> Tensor:
    *window_arguments, include_padding, divisor_override = arguments
    window, _ = _checked(input, tuple(window_arguments), divisor_override)
    return registration.apply(AveragePooling, input, window, include_padding, divisor_override)


def _grad_autograd(input_gradient: Tensor, spatial_sizes: Sequence[int], *arguments: Any) -> Tensor:
    *window_arguments, include_padding, divisor_override = arguments
    window, _ = _checked_grad(input_gradient, spatial_sizes, tuple(window_arguments), divisor_override)
    return registration.apply(
        AveragePoolingGrad, input_gradient, spatial_sizes, window, include_padding, divisor_override
    )


registration.differentiate(_average_pooling, _autograd)
registration.differentiate(_average_pooling_grad, _grad_autograd)
