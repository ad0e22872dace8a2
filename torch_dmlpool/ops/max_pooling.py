"""Max pooling: (lowest value, maximum, identity), its winning taps, and the gradient that flows to
them.

Training saves the number of each window's winning tap (rule M6). Two operators are linear given the
taps and each other's adjoint: the gradient from taps (spread to the winners) and the gather at taps
(collect from the winners).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends import serving
from torch_dmlpool.elements import numbered
from torch_dmlpool.ops.calls import Call, Plan, is_unobserved
from torch_dmlpool.ops.registration import Operator
from torch_dmlpool.window import Window


class MaxPooling(torch.autograd.Function):
    """Maxima of windows. Their gradient is ``max_pooling_grad_from_taps``."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, call: Any) -> Any:
        *results, taps = call.record(input)  # with indices if these are wanted
        if call.returns_winners:
            results.append(taps)
        ctx.call, ctx.further = call, len(results) - 1
        ctx.save_for_backward(taps)
        ctx.save_for_forward(taps)
        ctx.set_materialize_grads(False)
        if not ctx.further:
            return results[0]
        ctx.mark_non_differentiable(*results[1:])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, arriving: Tensor | None, *_: None) -> tuple[Tensor | None, None]:
        if arriving is None:
            return None, None
        (taps,), call = ctx.saved_tensors, ctx.call
        if call.is_planned and is_unobserved(arriving, taps):
            return call.gradient(arriving, taps), None
        request = call.sizes, call.arguments[0], call.channels_last
        return max_pooling_grad_from_taps(call.sharded(arriving), taps, *request), None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, _: None) -> Any:
        tangent = max_pooling_gather(direction, *ctx.saved_tensors, ctx.call.arguments[0])
        return (tangent, *[None] * ctx.further) if ctx.further else tangent


class MaxPoolingGradFromTaps(torch.autograd.Function):
    """What arrives at each window, at its winner. It is linear, and its gradient is
    ``max_pooling_gather``.
    """

    @staticmethod
    def forward(ctx: Any, input_gradient: Tensor, taps: Tensor, call: Any) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(taps)
        ctx.save_for_forward(taps)
        ctx.set_materialize_grads(False)
        output: Tensor = call.run(input_gradient, taps)
        return output

    @staticmethod
    def backward(ctx: Any, arriving: Tensor | None) -> tuple[Tensor | None, None, None]:
        if arriving is None:
            return None, None, None
        _, window, _ = ctx.call.arguments
        arriving = ctx.call.sharded(arriving)
        return max_pooling_gather(arriving, *ctx.saved_tensors, window), None, None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, *_: None) -> Tensor:
        return max_pooling_grad_from_taps(direction, *ctx.saved_tensors, *ctx.call.arguments)


class MaxPoolingGather(torch.autograd.Function):
    """The element at each window's winner. It is linear, and its gradient is
    ``max_pooling_grad_from_taps``.
    """

    @staticmethod
    def forward(ctx: Any, input: Tensor, taps: Tensor, call: Any) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(taps)
        ctx.save_for_forward(taps)
        ctx.set_materialize_grads(False)
        output: Tensor = call.run(input, taps)
        return output

    @staticmethod
    def backward(ctx: Any, arriving: Tensor | None) -> tuple[Tensor | None, None, None]:
        if arriving is None:
            return None, None, None
        call = ctx.call
        request = *ctx.saved_tensors, call.sizes, *call.arguments, call.channels_last
        return max_pooling_grad_from_taps(call.sharded(arriving), *request), None, None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, *_: None) -> Tensor:
        return max_pooling_gather(direction, *ctx.saved_tensors, *ctx.call.arguments)


def _output_sizes(input: Tensor, window: Window) -> list[int]:
    return [*input.shape[:2], *window.output_sizes(input.shape[2:])]


def _check_with_indices(
    input: Tensor, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> list[int]:
    operands.check_index_type(index_dtype, input.shape, per_plane)
    operands.check_taps(window.taps)
    return _output_sizes(input, window)


def _check_taps(taps: Tensor, spatial_sizes: Sequence[int], window: Window) -> list[int]:
    """Reject taps that do not fit the window; return the sizes of the input that they number."""
    operands.check_sizes("taps", taps, [*taps.shape[:2], *window.output_sizes(spatial_sizes)])
    operands.check_type("taps", taps, operands.tap_dtype(window.taps), "window's")
    return [*taps.shape[:2], *spatial_sizes]


def _check_indices(
    taps: Tensor, sizes: Sequence[int], window: Window, dtype: torch.dtype, per_plane: bool
) -> Any:
    operands.check_index_type(dtype, _check_taps(taps, sizes, window), per_plane)
    return taps.shape


def _check_grad(input: Tensor, input_gradient: Tensor, window: Window) -> Sequence[int]:
    operands.check_type("input_gradient", input_gradient, input.dtype, "input's")
    operands.check_sizes("input_gradient", input_gradient, _output_sizes(input, window), input)
    operands.check_taps(window.taps)
    return input.shape


def _check_grad_from_taps(
    input_gradient: Tensor, taps: Tensor, sizes: Any, window: Window, channels_last: bool
) -> list[int]:
    operands.check_sizes("taps", taps, input_gradient.shape, input_gradient, "input_gradient's")
    return _check_taps(taps, sizes, window)


def _check_gather(input: Tensor, taps: Tensor, window: Window) -> Sequence[int]:
    _check_taps(taps, input.shape[2:], window)
    operands.check_sizes("taps", taps, [*input.shape[:2], *taps.shape[2:]], input)
    return taps.shape


def _numbered_over_batches(
    operator: Operator, info: Any, dimensions: Any, tensor: Tensor, *arguments: Any
) -> Any:
    """The vmap rule of an operator that returns indices, with or without values.

    It computes positions in planes over the merged batch, then converts them to indices in each
    example. Operators that return indices alone take the spatial sizes as an argument.
    """
    *request, index_dtype, per_plane = arguments
    results, mapped = operator.over_batches(info, dimensions, tensor, *request, torch.int64, True)
    if isinstance(results, Tensor):
        return numbered(results, [*results.shape[1:3], *request[0]], index_dtype, per_plane), mapped
    values, positions = results
    sizes = [*values.shape[1:3], *tensor.movedim(dimensions[0], 0).shape[3:]]
    return (values, numbered(positions, sizes, index_dtype, per_plane)), mapped


def _composed_with_indices(input: Tensor, window: Window, *numbering: Any) -> tuple[Tensor, Tensor]:
    values, taps = max_pooling_with_taps(input, window)
    return values, max_pooling_indices(taps, input.shape[2:], window, *numbering)


def _composed_grad(input: Tensor, input_gradient: Tensor, window: Window) -> Tensor:
    """Linear in the gradient, constant in the input."""
    _, taps = max_pooling_with_taps(input.detach(), window)
    return max_pooling_grad_from_taps(
        input_gradient, taps, input.shape[2:], window, operands.is_channels_last(input)
    )


max_pooling_with_taps = Operator(
    "max_pooling_with_taps(Tensor input, WINDOW) -> (Tensor, Tensor)",
    [operands.MAX_TYPES],
    _output_sizes,
    lambda backend: backend.max_pooling_with_taps,
    function=MaxPooling,
    dtypes=lambda input, window: (input.dtype, operands.tap_dtype(window.taps)),
)
max_pooling = Operator(
    "max_pooling(Tensor input, WINDOW) -> Tensor",
    [operands.MAX_TYPES],
    _output_sizes,
    lambda backend: backend.max_pooling,
    function=MaxPooling,
    recorded=max_pooling_with_taps,
)
max_pooling_with_indices: Operator = Operator(
    "max_pooling_with_indices(Tensor input, WINDOW, ScalarType index_dtype, bool per_plane) -> "
    "(Tensor, Tensor)",
    [operands.MAX_TYPES],
    _check_with_indices,
    lambda backend: backend.max_pooling_with_indices,
    compose=_composed_with_indices,
    dtypes=lambda input, window, index_dtype, per_plane: (input.dtype, index_dtype),
    vmap=lambda *arguments: _numbered_over_batches(max_pooling_with_indices, *arguments),
)
max_pooling_indices: Operator = Operator(
    "max_pooling_indices(Tensor taps, SymInt[] spatial_sizes, WINDOW, ScalarType index_dtype, "
    "bool per_plane) "
    "-> Tensor",
    [operands.INTEGER_TYPES],
    _check_indices,
    lambda backend: backend.max_pooling_indices,
    dtypes=lambda taps, sizes, window, index_dtype, per_plane: (index_dtype,),
    vmap=lambda *arguments: _numbered_over_batches(max_pooling_indices, *arguments),
)
max_pooling_grad = Operator(
    "max_pooling_grad(Tensor input, Tensor input_gradient, WINDOW) -> Tensor",
    [operands.FLOAT_TYPES, operands.FLOAT_TYPES],
    _check_grad,
    lambda backend: backend.max_pooling_grad,
    compose=_composed_grad,
)
max_pooling_grad_from_taps = Operator(
    "max_pooling_grad_from_taps(Tensor input_gradient, Tensor taps, SymInt[] spatial_sizes, "
    "WINDOW, "
    "bool channels_last) -> Tensor",
    [operands.FLOAT_TYPES, operands.INTEGER_TYPES],
    _check_grad_from_taps,
    lambda backend: backend.max_pooling_grad_from_taps,
    function=MaxPoolingGradFromTaps,
)
max_pooling_gather = Operator(
    "max_pooling_gather(Tensor input, Tensor taps, WINDOW) -> Tensor",
    [operands.FLOAT_TYPES, operands.INTEGER_TYPES],
    _check_gather,
    lambda backend: backend.max_pooling_gather,
    function=MaxPoolingGather,
    layout_of=1,
)


def prepared(like: Tensor, device: str, window: Window, *numbering: Any) -> Call | None:
    """The call of maxima for plain tensors that lie as ``like``. With ``numbering``, an index type
    and whether indices count in each plane, indices are returned too.
    """
    backend = serving(device)
    if like.dtype is torch.bool and not backend.takes_bools:
        return None
    window.output_sizes(like.shape[2:])  # rejected before any work
    if backend.planned_maxima is not None:
        plan = backend.planned_maxima(like.shape, like.stride(), like.dtype, window, *numbering)
    elif numbering:
        return None
    else:
        plan = Plan(backend.max_pooling, backend.max_pooling_with_taps, window)
    return Call(max_pooling.apply, plan, like, window)
