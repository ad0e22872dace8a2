"""Max pooling: (lowest value, maximum, identity), its winning taps, and the gradient that flows to them.

What training keeps is the number of each window's winning tap, or its position where the backend prefers that. Two
operators are linear given the taps and each other's adjoint: the gradient from taps (spread to the winners) and the
gather at taps (collect from the winners).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.ops import registration
from torch_dmlpool.window import Window

# The one way in, for layers, derivatives and users alike: straight to the backend where nothing else has to look on.


def max_pooling(input: Tensor, window: Window) -> Tensor:
    """Maximum of every window of ``input``; operands are checked already."""
    if not registration.is_bare(input):
        return _max_pooling(input, *window.arguments)
    if registration.records_gradient(input):
        return registration.apply(MaxPooling, input, window)[0]
    return registration.backend_of(input).max_pooling(input, window)


def max_pooling_with_taps(input: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Maxima and the numbers of their taps; operands are checked already."""
    if not registration.is_bare(input):
        return _max_pooling_with_taps(input, *window.arguments)
    if registration.records_gradient(input):
        return registration.apply(MaxPooling, input, window)
    return registration.backend_of(input).max_pooling_with_taps(input, window)


def max_pooling_with_indices(
    input: Tensor, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> tuple[Tensor, Tensor]:
    """Maxima and their indices, in the whole tensor or in each plane; operands are checked already."""
    if not registration.is_bare(input):
        return _max_pooling_with_indices(input, *window.arguments, index_dtype, per_plane)
    if registration.records_gradient(input):
        return _differentiable_with_indices(input, window, index_dtype, per_plane)
    return registration.backend_of(input).max_pooling_with_indices(input, window, index_dtype, per_plane)


def _differentiable_with_indices(
    input: Tensor, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> tuple[Tensor, Tensor]:
    values, taps = registration.apply(MaxPooling, input, window)
    return values, max_pooling_indices(taps, input.shape[2:], window, index_dtype, per_plane)


def max_pooling_indices(
    taps: Tensor, spatial_sizes: Sequence[int], window: Window, index_dtype: torch.dtype, per_plane: bool
) -> Tensor:
    """Indices that tap numbers stand for."""
    if not registration.is_bare(taps):
        return _max_pooling_indices(taps, spatial_sizes, *window.arguments, index_dtype, per_plane)
    return registration.backend_of(taps).max_pooling_indices(taps, spatial_sizes, window, index_dtype, per_plane)


def max_pooling_grad(input: Tensor, input_gradient: Tensor, window: Window) -> Tensor:
    """Gradient of max pooling straight from its input; operands are checked already."""
    if not registration.is_bare(input, input_gradient):
        return _max_pooling_grad(input, input_gradient, *window.arguments)
    if registration.records_gradient(input, input_gradient):
        return registration.apply(MaxPoolingGrad, input, input_gradient, window)[0]
    return registration.backend_of(input).max_pooling_grad(input, input_gradient, window)


def max_pooling_grad_from_taps(
    input_gradient: Tensor, taps: Tensor, spatial_sizes: Sequence[int], window: Window, channels_last: bool
) -> Tensor:
    """Gradient of max pooling from the taps that its forward pass kept."""
    if not registration.is_bare(input_gradient, taps):
        return _max_pooling_grad_from_taps(input_gradient, taps, spatial_sizes, *window.arguments, channels_last)
    if registration.records_gradient(input_gradient):
        return registration.apply(MaxPoolingGradFromTaps, input_gradient, taps, spatial_sizes, window, channels_last)
    backend = registration.backend_of(input_gradient)
    return backend.max_pooling_grad_from_taps(input_gradient, taps, spatial_sizes, window, channels_last)


def max_pooling_gather(input: Tensor, taps: Tensor, window: Window) -> Tensor:
    """The element of ``input`` at each window's tap."""
    if not registration.is_bare(input, taps):
        return _max_pooling_gather(input, taps, *window.arguments)
    if registration.records_gradient(input):
        return registration.apply(MaxPoolingGather, input, taps, window)
    return registration.backend_of(input).max_pooling_gather(input, taps, window)


# Checks that the operators and their fakes share.


def _checked(input: Tensor, arguments: Sequence[Any]) -> tuple[Window, list[int]]:
    operands.check_pooled("input", input, operands.MAX_TYPES)
    window = Window.directml(input.dim() - 2, *arguments)
    return window, [*input.shape[:2], *window.output_sizes(input.shape[2:])]


def _checked_taps(taps: Tensor, spatial_sizes: Sequence[int], arguments: Sequence[Any]) -> tuple[Window, list[int]]:
    operands.check_pooled("taps", taps, operands.INTEGER_TYPES)
    window = Window.directml(taps.dim() - 2, *arguments)
    operands.check_sizes("taps", taps, [*taps.shape[:2], *window.output_sizes(spatial_sizes)])
    operands.check_tap_type(taps, window.taps)
    return window, [*taps.shape[:2], *spatial_sizes]


def _checked_grad(input: Tensor, input_gradient: Tensor, arguments: Sequence[Any]) -> Window:
    operands.check_pooled("input", input, operands.FLOAT_TYPES)
    operands.check_pooled("input_gradient", input_gradient, operands.FLOAT_TYPES)
    window = Window.directml(input.dim() - 2, *arguments)
    output_sizes = [*input.shape[:2], *window.output_sizes(input.shape[2:])]
    operands.check_gradient("input_gradient", input_gradient, output_sizes, input)
    return window


def _checked_grad_from_taps(
    input_gradient: Tensor, taps: Tensor, spatial_sizes: Sequence[int], arguments: Sequence[Any]
) -> tuple[Window, list[int]]:
    operands.check_pooled("input_gradient", input_gradient, operands.FLOAT_TYPES)
    window, sizes = _checked_taps(taps, spatial_sizes, arguments)
    operands.check_sizes("input_gradient", input_gradient, taps.shape)
    operands.check_device("input_gradient", input_gradient, taps)
    return window, sizes


def _checked_gather(input: Tensor, taps: Tensor, arguments: Sequence[Any]) -> Window:
    operands.check_pooled("input", input, operands.FLOAT_TYPES)
    window, _ = _checked_taps(taps, input.shape[2:], arguments)
    operands.check_sizes("taps", taps, [*input.shape[:2], *taps.shape[2:]])
    operands.check_device("taps", taps, input)
    return window


# The operators: what runs, what fake tensors see, what vmap does.


def _values(input: Tensor, *arguments: Any) -> Tensor:
    window, _ = _checked(input, arguments)
    return registration.backend_of(input).max_pooling(input, window)


def _values_fake(input: Tensor, *arguments: Any) -> Tensor:
    _, sizes = _checked(input, arguments)
    return operands.empty(sizes, input, operands.suggested_memory_format(input))


def _values_vmap(info: Any, dimensions: Any, input: Tensor, *arguments: Any) -> tuple[Tensor, int]:
    values = _max_pooling(registration.folded(input, dimensions[0], info.batch_size), *arguments)
    return registration.unfolded(values, info.batch_size), 0


def _with_taps(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    window, _ = _checked(input, arguments)
    return registration.backend_of(input).max_pooling_with_taps(input, window)


def _with_taps_fake(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    window, sizes = _checked(input, arguments)
    memory_format = operands.suggested_memory_format(input)
    taps = operands.empty(sizes, input, memory_format, registration.backend_of(input).kept_dtype(input, window))
    return operands.empty(sizes, input, memory_format), taps


def _with_taps_vmap(
    info: Any, dimensions: Any, input: Tensor, *arguments: Any
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    both = _max_pooling_with_taps(registration.folded(input, dimensions[0], info.batch_size), *arguments)
    values, taps = (registration.unfolded(tensor, info.batch_size) for tensor in both)
    return (values, taps), (0, 0)


def _with_indices(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    *window_arguments, index_dtype, per_plane = arguments
    window, _ = _checked(input, window_arguments)
    operands.check_index_type(index_dtype, input.shape, per_plane)
    return registration.backend_of(input).max_pooling_with_indices(input, window, index_dtype, per_plane)


def _with_indices_fake(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    *window_arguments, index_dtype, per_plane = arguments
    _, sizes = _checked(input, window_arguments)
    operands.check_index_type(index_dtype, input.shape, per_plane)
    memory_format = operands.suggested_memory_format(input)
    return operands.empty(sizes, input, memory_format), operands.empty(sizes, input, memory_format, index_dtype)


def _with_indices_vmap(
    info: Any, dimensions: Any, input: Tensor, *arguments: Any
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    *window_arguments, index_dtype, per_plane = arguments
    folded = registration.folded(input, dimensions[0], info.batch_size)
    both = _max_pooling_with_indices(folded, *window_arguments, torch.int64, True)
    values, positions = (registration.unfolded(tensor, info.batch_size) for tensor in both)
    sample_sizes = [folded.shape[0] // info.batch_size, *folded.shape[1:]]
    return (values, numbered(positions, sample_sizes, index_dtype, per_plane)), (0, 0)


def _indices(taps: Tensor, spatial_sizes: Sequence[int], *arguments: Any) -> Tensor:
    *window_arguments, index_dtype, per_plane = arguments
    window, sizes = _checked_taps(taps, spatial_sizes, window_arguments)
    operands.check_index_type(index_dtype, sizes, per_plane)
    return registration.backend_of(taps).max_pooling_indices(taps, spatial_sizes, window, index_dtype, per_plane)


def _indices_fake(taps: Tensor, spatial_sizes: Sequence[int], *arguments: Any) -> Tensor:
    *window_arguments, index_dtype, per_plane = arguments
    _, sizes = _checked_taps(taps, spatial_sizes, window_arguments)
    operands.check_index_type(index_dtype, sizes, per_plane)
    return operands.empty(taps.shape, taps, operands.suggested_memory_format(taps), index_dtype)


def _indices_vmap(
    info: Any, dimensions: Any, taps: Tensor, spatial_sizes: Sequence[int], *arguments: Any
) -> tuple[Tensor, int]:
    *window_arguments, index_dtype, per_plane = arguments
    folded = registration.folded(taps, dimensions[0], info.batch_size)
    positions = _max_pooling_indices(folded, spatial_sizes, *window_arguments, torch.int64, True)
    sample_sizes = [folded.shape[0] // info.batch_size, folded.shape[1], *spatial_sizes]
    unfolded = registration.unfolded(positions, info.batch_size)
    return numbered(unfolded, sample_sizes, index_dtype, per_plane), 0


def numbered(positions: Tensor, sizes: Sequence[int], index_dtype: torch.dtype, per_plane: bool) -> Tensor:
    """Positions in each plane as indices in each of vmap's samples, whose sizes are ``(N, C, *spatial)``."""
    if not per_plane:
        samples, channels, *spatial_sizes = sizes
        plane = 1
        for size in spatial_sizes:
            plane = plane * size
        first = torch.arange(samples * channels, device=positions.device).mul_(plane)
        first = registration.replicated_like(first.view(samples, channels, *(1 for _ in spatial_sizes)), positions)
        positions = torch.where(positions < 0, positions, positions + first)
    return positions.to(index_dtype)


def _grad(input: Tensor, input_gradient: Tensor, *arguments: Any) -> Tensor:
    window = _checked_grad(input, input_gradient, arguments)
    return registration.backend_of(input).max_pooling_grad(input, input_gradient, window)


def _grad_fake(input: Tensor, input_gradient: Tensor, *arguments: Any) -> Tensor:
    _checked_grad(input, input_gradient, arguments)
    return operands.empty(input.shape, input, operands.suggested_memory_format(input))


def _grad_vmap(
    info: Any, dimensions: Any, input: Tensor, input_gradient: Tensor, *arguments: Any
) -> tuple[Tensor, int]:
    spread = _max_pooling_grad(
        registration.folded(input, dimensions[0], info.batch_size),
        registration.folded(input_gradient, dimensions[1], info.batch_size),
        *arguments,
    )
    return registration.unfolded(spread, info.batch_size), 0


def _grad_from_taps(input_gradient: Tensor, taps: Tensor, spatial_sizes: Sequence[int], *arguments: Any) -> Tensor:
    *window_arguments, channels_last = arguments
    window, _ = _checked_grad_from_taps(input_gradient, taps, spatial_sizes, window_arguments)
    backend = registration.backend_of(input_gradient)
    return backend.max_pooling_grad_from_taps(input_gradient, taps, spatial_sizes, window, channels_last)


def _grad_from_taps_fake(input_gradient: Tensor, taps: Tensor, spatial_sizes: Sequence[int], *arguments: Any) -> Tensor:
    *window_arguments, channels_last = arguments
    window, sizes = _checked_grad_from_taps(input_gradient, taps, spatial_sizes, window_arguments)
    return operands.empty(sizes, input_gradient, operands.named_memory_format(channels_last, window.rank))


def _grad_from_taps_vmap(
    info: Any, dimensions: Any, input_gradient: Tensor, taps: Tensor, spatial_sizes: Sequence[int], *arguments: Any
) -> tuple[Tensor, int]:
    spread = _max_pooling_grad_from_taps(
        registration.folded(input_gradient, dimensions[0], info.batch_size),
        registration.folded(taps, dimensions[1], info.batch_size),
        spatial_sizes,
        *arguments,
    )
    return registration.unfolded(spread, info.batch_size), 0


def _gather(input: Tensor, taps: Tensor, *arguments: Any) -> Tensor:
    window = _checked_gather(input, taps, arguments)
    return registration.backend_of(input).max_pooling_gather(input, taps, window)


def _gather_fake(input: Tensor, taps: Tensor, *arguments: Any) -> Tensor:
    _checked_gather(input, taps, arguments)
    return operands.empty(taps.shape, input, operands.suggested_memory_format(taps))


def _gather_vmap(info: Any, dimensions: Any, input: Tensor, taps: Tensor, *arguments: Any) -> tuple[Tensor, int]:
    gathered = _max_pooling_gather(
        registration.folded(input, dimensions[0], info.batch_size),
        registration.folded(taps, dimensions[1], info.batch_size),
        *arguments,
    )
    return registration.unfolded(gathered, info.batch_size), 0


_max_pooling = registration.define(
    "max_pooling(Tensor input, WINDOW) -> Tensor",
    implementation=_values,
    fake=_values_fake,
    vmap=_values_vmap,
)
_max_pooling_with_taps = registration.define(
    "max_pooling_with_taps(Tensor input, WINDOW) -> (Tensor, Tensor)",
    implementation=_with_taps,
    fake=_with_taps_fake,
    vmap=_with_taps_vmap,
)
_max_pooling_with_indices = registration.define(
    "max_pooling_with_indices(Tensor input, WINDOW, ScalarType index_dtype, bool per_plane) -> (Tensor, Tensor)",
    implementation=_with_indices,
    fake=_with_indices_fake,
    vmap=_with_indices_vmap,
)
_max_pooling_indices = registration.define(
    "max_pooling_indices(Tensor taps, SymInt[] spatial_sizes, WINDOW, ScalarType index_dtype, bool per_plane) "
    "-> Tensor",
    implementation=_indices,
    fake=_indices_fake,
    vmap=_indices_vmap,
)
_max_pooling_grad = registration.define(
    "max_pooling_grad(Tensor input, Tensor input_gradient, WINDOW) -> Tensor",
    implementation=_grad,
    fake=_grad_fake,
    vmap=_grad_vmap,
)
_max_pooling_grad_from_taps = registration.define(
    "max_pooling_grad_from_taps(Tensor input_gradient, Tensor taps, SymInt[] spatial_sizes, WINDOW, "
    "bool channels_last) -> Tensor",
    implementation=_grad_from_taps,
    fake=_grad_from_taps_fake,
    vmap=_grad_from_taps_vmap,
)
_max_pooling_gather = registration.define(
    "max_pooling_gather(Tensor input, Tensor taps, WINDOW) -> Tensor",
    implementation=_gather,
    fake=_gather_fake,
    vmap=_gather_vmap,
)


# Derivatives.


class MaxPooling(torch.autograd.Function):
    """Maxima with their taps, whose backward pass is the gradient from those taps."""

    @staticmethod
    def forward(input: Tensor, window: Window) -> tuple[Tensor, Tensor]:
        with registration.inside_forward(input):
            return max_pooling_with_taps(input, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        input, ctx.window = inputs
        _keep_taps(ctx, input, output[1])

    @staticmethod
    def backward(ctx: Any, input_gradient: Tensor | None, _: Any) -> tuple[Tensor | None, None]:
        if input_gradient is None:
            return None, None
        return max_pooling_grad_from_taps(input_gradient, *ctx.saved_tensors, *ctx.spread), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: Any) -> tuple[Tensor, None]:
        return max_pooling_gather(tangent, ctx.saved_tensors[0], ctx.window), None


def _keep_taps(ctx: Any, input: Tensor, taps: Tensor) -> None:
    ctx.spread = (input.shape[2:], ctx.window, operands.is_channels_last(input))
    ctx.mark_non_differentiable(taps)
    ctx.save_for_backward(taps)
    ctx.save_for_forward(taps)
    ctx.set_materialize_grads(False)


class MaxPoolingGrad(torch.autograd.Function):
    """DirectML's gradient operator: linear in the gradient, constant in the input; the taps are kept for both."""

    @staticmethod
    def forward(input: Tensor, input_gradient: Tensor, window: Window) -> tuple[Tensor, Tensor]:
        with registration.inside_forward(input):
            _, taps = max_pooling_with_taps(input, window)
        with registration.inside_forward(input_gradient):
            channels_last = operands.is_channels_last(input)
            return max_pooling_grad_from_taps(input_gradient, taps, input.shape[2:], window, channels_last), taps

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        input, input_gradient, ctx.window = inputs
        ctx.dtype = input_gradient.dtype
        _keep_taps(ctx, input, output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: Any) -> tuple[None, Tensor | None, None]:
        if gradient is None:
            return None, None, None
        return None, max_pooling_gather(gradient, ctx.saved_tensors[0], ctx.window), None

    @staticmethod
    def jvp(ctx: Any, _: Any, tangent: Tensor | None, __: Any) -> tuple[Tensor, None]:
        (taps,) = ctx.saved_tensors
        if tangent is None:
            spatial_sizes, *_ = ctx.spread
            return taps.new_zeros([*taps.shape[:2], *spatial_sizes], dtype=ctx.dtype), None
        return max_pooling_grad_from_taps(tangent, taps, *ctx.spread), None


class MaxPoolingGradFromTaps(torch.autograd.Function):
    """The gradient from taps, whose backward pass gathers at the taps."""

    @staticmethod
    def forward(input_gradient: Tensor, taps: Tensor, *spread: Any) -> Tensor:
        with registration.inside_forward(input_gradient):
            return max_pooling_grad_from_taps(input_gradient, taps, *spread)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        _, taps, *ctx.spread = inputs
        ctx.save_for_backward(taps)
        ctx.save_for_forward(taps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        _, window, _ = ctx.spread
        return max_pooling_gather(gradient, ctx.saved_tensors[0], window), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        return max_pooling_grad_from_taps(tangent, *ctx.saved_tensors, *ctx.spread)


class MaxPoolingGather(torch.autograd.Function):
    """The gather at taps, whose backward pass is the gradient from taps."""

    @staticmethod
    def forward(input: Tensor, taps: Tensor, window: Window) -> Tensor:
        with registration.inside_forward(input):
            return max_pooling_gather(input, taps, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        input, taps, ctx.window = inputs
        ctx.spread = (input.shape[2:], ctx.window, operands.is_channels_last(input))
        ctx.save_for_backward(taps)
        ctx.save_for_forward(taps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return max_pooling_grad_from_taps(gradient, *ctx.saved_tensors, *ctx.spread), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        return max_pooling_gather(tangent, ctx.saved_tensors[0], ctx.window)


def _values_autograd(input: Tensor, *arguments: Any) -> Tensor:
    if registration.records_derivative(input):
        window, _ = _checked(input, arguments)
        return registration.apply(MaxPooling, input, window)[0]
    with registration.below_autograd():
        return _max_pooling(input, *arguments)


def _with_taps_autograd(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    window, _ = _checked(input, arguments)
    return registration.apply(MaxPooling, input, window)


def _with_indices_autograd(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    if registration.records_derivative(input):
        *window_arguments, index_dtype, per_plane = arguments
        window, _ = _checked(input, window_arguments)
        operands.check_index_type(index_dtype, input.shape, per_plane)
        return _differentiable_with_indices(input, window, index_dtype, per_plane)
    with registration.below_autograd():
        return _max_pooling_with_indices(input, *arguments)


def _grad_autograd(input: Tensor, input_gradient: Tensor, *arguments: Any) -> Tensor:
    if registration.records_derivative(input, input_gradient):
        window = _checked_grad(input, input_gradient, arguments)
        return registration.apply(MaxPoolingGrad, input, input_gradient, window)[0]
    with registration.below_autograd():
        return _max_pooling_grad(input, input_gradient, *arguments)


def _grad_from_taps_autograd(
    input_gradient: Tensor, taps: Tensor, spatial_sizes: Sequence[int], *arguments: Any
) -> Tensor:
    *window_arguments, channels_last = arguments
    window, _ = _checked_grad_from_taps(input_gradient, taps, spatial_sizes, window_arguments)
    return registration.apply(MaxPoolingGradFromTaps, input_gradient, taps, spatial_sizes, window, channels_last)


def _gather_autograd(input: Tensor, taps: Tensor, *arguments: Any) -> Tensor:
    return registration.apply(MaxPoolingGather, input, taps, _checked_gather(input, taps, arguments))


registration.differentiate(_max_pooling, _values_autograd)
registration.differentiate(_max_pooling_with_taps, _with_taps_autograd)
registration.differentiate(_max_pooling_with_indices, _with_indices_autograd)
registration.differentiate(_max_pooling_grad, _grad_autograd)
registration.differentiate(_max_pooling_grad_from_taps, _grad_from_taps_autograd)
registration.differentiate(_max_pooling_gather, _gather_autograd)
