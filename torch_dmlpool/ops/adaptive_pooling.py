"""Adaptive pooling: as many bins as the output has elements, spread evenly over the input. Their
sizes differ by at most one.

Along an axis bin ``i`` of ``outputs`` reads from ``floor(i · size / outputs)`` to ``ceil((i + 1) ·
size / outputs)``. Seen from the input it is the same: the bins that read element ``x`` are bin
``x`` of ``size`` over the ``outputs``. So the adjoint of adaptive sums is adaptive sums. Where
every size divides, the bins are an ordinary window with a stride.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends import serving
from torch_dmlpool.ops import average_pooling, max_pooling
from torch_dmlpool.ops.calls import Call, Plan, is_unobserved
from torch_dmlpool.ops.max_unpooling import gather_positions, scatter_positions
from torch_dmlpool.ops.registration import Operator
from torch_dmlpool.window import (
    LARGEST_ARGUMENT,
    ArgumentError,
    Axis,
    Window,
    check_spatial_sizes,
)


def bin_averages(input: Tensor, output_sizes: Sequence[int]) -> Tensor:
    """Average of every bin; the sizes say how many there are along each axis."""
    return _over_bins(adaptive_average_pooling, input, output_sizes)


def bin_averages_grad(arriving: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """The gradient of :func:`bin_averages` of an input of these spatial sizes."""
    gradient: Tensor = adaptive_average_pooling_grad(arriving, spatial_sizes)
    return gradient


def bin_maxima(input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Maximum of every bin, and its position in the plane."""
    return _over_bins(adaptive_max_pooling, input, output_sizes)


def _over_bins(operator: Operator, input: Tensor, output_sizes: Sequence[int]) -> Any:
    """The results of ``operator``, which is called with a size of 1 where an output size is 0.

    The results are then sliced to size 0, so that autograd returns a gradient of zeros.
    """
    if 0 not in [size for size in output_sizes if type(size) is int]:
        return operator(input, output_sizes)
    results = operator(
        input, [1 if type(size) is int and size == 0 else size for size in output_sizes]
    )
    asked: Any = (..., *(slice(size) for size in output_sizes))
    return (
        results[asked]
        if isinstance(results, Tensor)
        else tuple(result[asked] for result in results)
    )


def bins(
    output_size: Any, sizes: tuple[int, ...], rank: int
) -> tuple[tuple[int, ...], Window | None]:
    """The output's spatial sizes, and the window that gives the same bins, or None.

    ``output_size`` applies to the last ``rank`` of the input's spatial ``sizes``. The output has
    size 1 along the dimensions before them.
    """
    output_sizes = (1,) * (len(sizes) - rank) + operands.checked_output_size(
        output_size, sizes[-rank:]
    )
    _check_products(sizes, output_sizes)
    return output_sizes, _window_of_bins(sizes, output_sizes)


def _check_products(sizes: Sequence[int], output_sizes: Sequence[int]) -> None:
    """Reject bins whose bounds are computed from products that overflow 64-bit integers."""
    for size, count in zip(sizes, output_sizes, strict=True):
        if type(size) is type(count) is int and (count + 1) * size >= 2**63:
            raise ArgumentError(
                f"output_size + 1 times the input's size must be less than {2**63}, got {count} "
                f"for {size}"
            )


def _window_of_bins(sizes: tuple[int, ...], output_sizes: tuple[int, ...]) -> Window | None:
    """The window whose positions are the bins, or None. Symbolic sizes must be known to divide: a
    guess would become a guard of the compiled graph. In a trace of torch.jit, where sizes are
    tensors, it is None: the window would become a constant of the trace.
    """
    if isinstance(sizes[0], Tensor):
        return None
    steps = []
    for size, output in zip(sizes, output_sizes, strict=True):
        if type(output) is int and output < 1:
            return None
        divides = size % output == 0
        if type(divides) is not bool or torch.compiler.is_compiling():
            # It is imported here because that takes long.
            from torch.fx.experimental.symbolic_shapes import statically_known_true

            divides = statically_known_true(divides)
        steps.append(size // output)
        if not divides or (type(steps[-1]) is int and steps[-1] > LARGEST_ARGUMENT):
            return None
    return Window(tuple(Axis(step, step, 0, 0, 1, False) for step in steps))


def _output_sizes(input: Tensor, sizes: Sequence[int]) -> list[int]:
    check_spatial_sizes("the input", input.shape[2:], input.dim() - 2)
    check_spatial_sizes("the output", sizes, input.dim() - 2)
    _check_products(input.shape[2:], sizes)
    return [*input.shape[:2], *sizes]


class AdaptiveAveragePooling(torch.autograd.Function):
    """Averages of bins. Their gradient is ``adaptive_average_pooling_grad``."""

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
        return adaptive_average_pooling_grad(call.sharded(arriving), call.sizes), None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, _: None) -> Tensor:
        return adaptive_average_pooling(direction, *ctx.call.arguments)


class AdaptiveAveragePoolingGrad(torch.autograd.Function):
    """The gradient of averages of bins. It is linear: its own gradient is the average."""

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
        return adaptive_average_pooling(ctx.call.sharded(arriving), ctx.call.sizes), None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, _: None) -> Tensor:
        return adaptive_average_pooling_grad(direction, *ctx.call.arguments)


class AdaptiveMaxPooling(torch.autograd.Function):
    """Maxima of bins and their positions. Their gradient is ``scatter_positions``."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, call: Any) -> tuple[Tensor, Tensor]:
        values, positions = call.run(input)
        ctx.call = call
        ctx.save_for_backward(positions)
        ctx.save_for_forward(positions)
        ctx.mark_non_differentiable(positions)
        ctx.set_materialize_grads(False)
        return values, positions

    @staticmethod
    def backward(ctx: Any, arriving: Tensor | None, _: None) -> tuple[Tensor | None, None]:
        if arriving is None:
            return None, None
        call = ctx.call
        request = *ctx.saved_tensors, call.sizes, True, call.channels_last
        return scatter_positions(call.sharded(arriving), *request), None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, _: None) -> tuple[Tensor, None]:
        return gather_positions(direction, *ctx.saved_tensors, True), None


adaptive_average_pooling = Operator(
    "adaptive_average_pooling(Tensor input, SymInt[] output_sizes) -> Tensor",
    [operands.FLOAT_TYPES],
    _output_sizes,
    lambda backend: backend.adaptive_average_pooling,
    function=AdaptiveAveragePooling,
)
adaptive_average_pooling_grad = Operator(
    "adaptive_average_pooling_grad(Tensor input_gradient, SymInt[] spatial_sizes) -> Tensor",
    [operands.FLOAT_TYPES],
    _output_sizes,
    lambda backend: backend.adaptive_average_pooling_grad,
    function=AdaptiveAveragePoolingGrad,
)
adaptive_max_pooling = Operator(
    "adaptive_max_pooling(Tensor input, SymInt[] output_sizes) -> (Tensor, Tensor)",
    [operands.MAX_TYPES],
    _output_sizes,
    lambda backend: backend.adaptive_max_pooling,
    function=AdaptiveMaxPooling,
    dtypes=lambda input, sizes: (input.dtype, operands.position_dtype(math.prod(input.shape[2:]))),
)


def prepared_averages(like: Tensor, device: str, output_size: Any, rank: int) -> Call | None:
    """The call of averages of bins for plain tensors that lie as ``like``."""
    sizes, window = bins(output_size, tuple(like.shape)[2:], rank)
    if window is not None:
        return average_pooling.prepared(like, device, window, False, None)
    if like.dtype not in operands.FLOAT_TYPES or 0 in sizes:
        return None
    backend = serving(device)
    if backend.planned_averages is None:
        plan: Any = Plan(backend.adaptive_average_pooling, None, sizes)
    else:
        plan = backend.planned_averages(like.shape, like.stride(), like.dtype, sizes, False, None)
    return Call(adaptive_average_pooling.apply, plan, like, sizes)


def prepared_maxima(
    like: Tensor, device: str, output_size: Any, rank: int, *numbering: Any
) -> Call | None:
    """The call of maxima of bins that are a window, for plain tensors that lie as ``like``."""
    _, window = bins(output_size, tuple(like.shape)[2:], rank)
    return None if window is None else max_pooling.prepared(like, device, window, *numbering)
