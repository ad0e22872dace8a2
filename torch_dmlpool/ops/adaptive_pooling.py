"""Adaptive pooling: so many windows as are asked for, of sizes that may differ by one, as even as they can be.

Along an axis bin ``i`` of ``outputs`` reads from ``floor(i · size / outputs)`` to ``ceil((i + 1) · size / outputs)``.
Seen from the input it is the same: the bins that read element ``x`` are bin ``x`` of ``size`` over the ``outputs``. So
the adjoint of adaptive sums is adaptive sums. Where every size divides, the bins are an ordinary window with a stride.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.ops import average_pooling as average_operators
from torch_dmlpool.ops import max_pooling as max_operators
from torch_dmlpool.ops import positions as position_operators
from torch_dmlpool.ops import registration
from torch_dmlpool.window import Window


def adaptive_average_pooling(input: Tensor, output_sizes: Sequence[int]) -> Tensor:
    """Average of every bin; operands are checked already."""
    window = _even_window(input.shape[2:], output_sizes)
    if window is not None:
        return average_operators.average_pooling(input, window, False, None)
    if _is_empty(output_sizes):
        return _emptied(adaptive_average_pooling(input, _at_least_1(output_sizes)), output_sizes)
    return _bin_averages(input, output_sizes)


def adaptive_max_pooling(input: Tensor, output_sizes: Sequence[int]) -> Tensor:
    """Maximum of every bin; operands are checked already."""
    window = _even_window(input.shape[2:], output_sizes)
    if window is not None:
        return max_operators.max_pooling(input, window)
    if _is_empty(output_sizes):
        return _emptied(adaptive_max_pooling(input, _at_least_1(output_sizes)), output_sizes)
    return _bin_maxima(input, output_sizes)[0]


def adaptive_max_pooling_with_indices(
    input: Tensor, output_sizes: Sequence[int], index_dtype: torch.dtype, per_plane: bool
) -> tuple[Tensor, Tensor]:
    """Maxima of the bins and their indices, in the whole tensor or in each plane; operands are checked already."""
    window = _even_window(input.shape[2:], output_sizes)
    if window is not None:
        return max_operators.max_pooling_with_indices(input, window, index_dtype, per_plane)
    if _is_empty(output_sizes):
        both = adaptive_max_pooling_with_indices(input, _at_least_1(output_sizes), index_dtype, per_plane)
        return _emptied(both[0], output_sizes), _emptied(both[1], output_sizes)
    values, positions = _bin_maxima(input, output_sizes)
    return values, max_operators.numbered(positions, input.shape, index_dtype, per_plane)


def _is_empty(output_sizes: Sequence[int]) -> bool:
    return any(type(size) is int and size == 0 for size in output_sizes)


def _at_least_1(output_sizes: Sequence[int]) -> list[int]:
    return [1 if type(size) is int and size == 0 else size for size in output_sizes]


def _emptied(output: Tensor, output_sizes: Sequence[int]) -> Tensor:
    """``output`` without elements along the dimensions of which none is asked for: so it has a gradient, of zeros."""
    for dimension, size in enumerate(output_sizes, 2):
        if type(size) is int and size == 0:
            output = output.narrow(dimension, 0, 0)
    return output


def _even_window(sizes: Sequence[int], output_sizes: Sequence[int]) -> Window | None:
    """The window that the bins are, where that is sure: a guess about symbolic sizes would be compiled in."""
    if torch.compiler.is_compiling():
        return _window_of_bins(sizes, output_sizes)
    if torch.jit.is_tracing():  # a window would hold the sizes of the image that is traced
        return None
    try:
        return _cached_window_of_bins(sizes, output_sizes)
    except TypeError:  # symbolic sizes are no keys
        return _window_of_bins(sizes, output_sizes)


def _window_of_bins(sizes: Sequence[int], output_sizes: Sequence[int]) -> Window | None:
    steps = []
    for size, output in zip(sizes, output_sizes, strict=True):
        if type(output) is int and output <= 1:
            if output < 1:
                return None
            steps.append(size)
        elif _is_sure(size == output):
            steps.append(1)
        elif _is_sure(size % output == 0):
            steps.append(size // output)
        else:
            return None
    return Window.directml(len(steps), steps, steps)


_cached_window_of_bins = functools.lru_cache(maxsize=1024)(_window_of_bins)


def _is_sure(condition: bool) -> bool:
    if type(condition) is bool and not torch.compiler.is_compiling():
        return condition
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # takes long to import, and is there then

    return statically_known_true(condition)


def _bin_averages(input: Tensor, output_sizes: Sequence[int]) -> Tensor:
    if not registration.is_bare(input):
        return _adaptive_average_pooling(input, output_sizes)
    if registration.records_gradient(input):
        return registration.apply(AdaptiveAveragePooling, input, output_sizes)
    return registration.backend_of(input).adaptive_average_pooling(input, output_sizes)


def _bin_averages_grad(input_gradient: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    if not registration.is_bare(input_gradient):
        return _adaptive_average_pooling_grad(input_gradient, spatial_sizes)
    if registration.records_gradient(input_gradient):
        return registration.apply(AdaptiveAveragePoolingGrad, input_gradient, spatial_sizes)
    return registration.backend_of(input_gradient).adaptive_average_pooling_grad(input_gradient, spatial_sizes)


def _bin_maxima(input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    if not registration.is_bare(input):
        return _adaptive_max_pooling(input, output_sizes)
    if registration.records_gradient(input):
        return registration.apply(AdaptiveMaxPooling, input, output_sizes)
    return registration.backend_of(input).adaptive_max_pooling(input, output_sizes)


# The operators: what runs, what fake tensors see, what vmap does.


def _checked(name: str, tensor: Tensor, sizes: Sequence[int], types: tuple[torch.dtype, ...]) -> list[int]:
    operands.check_pooled(name, tensor, types)
    operands.check_spatial_sizes("the input", tensor.shape[2:], tensor.dim() - 2)
    sizes = [size if _is_kept(asked) else asked for asked, size in zip(sizes, tensor.shape[2:], strict=False)]
    operands.check_spatial_sizes("the output", sizes, tensor.dim() - 2)
    return [*tensor.shape[:2], *sizes]


def _is_kept(size: int) -> bool:
    """-1 stands for the input's size in a trace of torch.jit, where that is a tensor."""
    return type(size) is int and size == -1


def _average(input: Tensor, output_sizes: Sequence[int]) -> Tensor:
    sizes = _checked("input", input, output_sizes, operands.AVERAGE_TYPES)
    return registration.backend_of(input).adaptive_average_pooling(input, sizes[2:])


def _average_fake(input: Tensor, output_sizes: Sequence[int]) -> Tensor:
    sizes = _checked("input", input, output_sizes, operands.AVERAGE_TYPES)
    return operands.empty(sizes, input, operands.suggested_memory_format(input))


def _average_vmap(info: Any, dimensions: Any, input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, int]:
    pooled = _adaptive_average_pooling(registration.folded(input, dimensions[0], info.batch_size), output_sizes)
    return registration.unfolded(pooled, info.batch_size), 0


def _average_grad(input_gradient: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    _checked("input_gradient", input_gradient, spatial_sizes, operands.AVERAGE_TYPES)
    return registration.backend_of(input_gradient).adaptive_average_pooling_grad(input_gradient, spatial_sizes)


def _average_grad_fake(input_gradient: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    sizes = _checked("input_gradient", input_gradient, spatial_sizes, operands.AVERAGE_TYPES)
    return operands.empty(sizes, input_gradient, operands.suggested_memory_format(input_gradient))


def _average_grad_vmap(
    info: Any, dimensions: Any, input_gradient: Tensor, spatial_sizes: Sequence[int]
) -> tuple[Tensor, int]:
    gradient = registration.folded(input_gradient, dimensions[0], info.batch_size)
    return registration.unfolded(_adaptive_average_pooling_grad(gradient, spatial_sizes), info.batch_size), 0


def _max(input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    sizes = _checked("input", input, output_sizes, operands.MAX_TYPES)
    return registration.backend_of(input).adaptive_max_pooling(input, sizes[2:])


def _max_fake(input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    sizes = _checked("input", input, output_sizes, operands.MAX_TYPES)
    memory_format = operands.suggested_memory_format(input)
    dtype = operands.position_dtype(math.prod(input.shape[2:]))
    return operands.empty(sizes, input, memory_format), operands.empty(sizes, input, memory_format, dtype)


def _max_vmap(
    info: Any, dimensions: Any, input: Tensor, output_sizes: Sequence[int]
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    both = _adaptive_max_pooling(registration.folded(input, dimensions[0], info.batch_size), output_sizes)
    values, positions = (registration.unfolded(tensor, info.batch_size) for tensor in both)
    return (values, positions), (0, 0)


_adaptive_average_pooling = registration.define(
    "adaptive_average_pooling(Tensor input, SymInt[] output_sizes) -> Tensor",
    implementation=_average,
    fake=_average_fake,
    vmap=_average_vmap,
)
_adaptive_average_pooling_grad = registration.define(
    "adaptive_average_pooling_grad(Tensor input_gradient, SymInt[] spatial_sizes) -> Tensor",
    implementation=_average_grad,
    fake=_average_grad_fake,
    vmap=_average_grad_vmap,
)
_adaptive_max_pooling = registration.define(
    "adaptive_max_pooling(Tensor input, SymInt[] output_sizes) -> (Tensor, Tensor)",
    implementation=_max,
    fake=_max_fake,
    vmap=_max_vmap,
)


# Derivatives.


class AdaptiveAveragePooling(torch.autograd.Function):
    """The averages of bins; nothing is kept for the backward pass but sizes."""

    @staticmethod
    def forward(input: Tensor, output_sizes: Sequence[int]) -> Tensor:
        with registration.inside_forward(input):
            return _bin_averages(input, output_sizes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        input, ctx.output_sizes = inputs
        ctx.spatial_sizes = input.shape[2:]

    @staticmethod
    def backward(ctx: Any, input_gradient: Tensor) -> tuple[Tensor, None]:
        return _bin_averages_grad(input_gradient, ctx.spatial_sizes), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: Any) -> Tensor:
        return _bin_averages(tangent, ctx.output_sizes)


class AdaptiveAveragePoolingGrad(torch.autograd.Function):
    """The gradient operator, whose backward pass is the average again (rule A6)."""

    @staticmethod
    def forward(input_gradient: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
        with registration.inside_forward(input_gradient):
            return _bin_averages_grad(input_gradient, spatial_sizes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        input_gradient, ctx.spatial_sizes = inputs
        ctx.output_sizes = input_gradient.shape[2:]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _bin_averages(gradient, ctx.output_sizes), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: Any) -> Tensor:
        return _bin_averages_grad(tangent, ctx.spatial_sizes)


class AdaptiveMaxPooling(torch.autograd.Function):
    """Maxima of bins with their positions, which are kept: the gradient is added up there."""

    @staticmethod
    def forward(input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
        with registration.inside_forward(input):
            return _bin_maxima(input, output_sizes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        input, _ = inputs
        _, positions = output
        ctx.scatter = (input.shape[2:], True, operands.is_channels_last(input))
        ctx.mark_non_differentiable(positions)
        ctx.save_for_backward(positions)
        ctx.save_for_forward(positions)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, input_gradient: Tensor | None, _: Any) -> tuple[Tensor | None, None]:
        if input_gradient is None:
            return None, None
        return position_operators.scatter_positions(input_gradient, *ctx.saved_tensors, *ctx.scatter), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: Any) -> tuple[Tensor, None]:
        (positions,) = ctx.saved_tensors
        return position_operators.gather_positions(tangent, positions, True), None


def _average_autograd(input: Tensor, output_sizes: Sequence[int]) -> Tensor:
    sizes = _checked("input", input, output_sizes, operands.AVERAGE_TYPES)
    return registration.apply(AdaptiveAveragePooling, input, sizes[2:])


def _average_grad_autograd(input_gradient: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    _checked("input_gradient", input_gradient, spatial_sizes, operands.AVERAGE_TYPES)
    return registration.apply(AdaptiveAveragePoolingGrad, input_gradient, spatial_sizes)


def _max_autograd(input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    sizes = _checked("input", input, output_sizes, operands.MAX_TYPES)
    if registration.records_derivative(input):
        return registration.apply(AdaptiveMaxPooling, input, sizes[2:])
    with registration.below_autograd():
        return _adaptive_max_pooling(input, output_sizes)


registration.differentiate(_adaptive_average_pooling, _average_autograd)
registration.differentiate(_adaptive_average_pooling_grad, _average_grad_autograd)
registration.differentiate(_adaptive_max_pooling, _max_autograd)
