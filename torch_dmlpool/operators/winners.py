"""The winners of max pooling, by the numbers of their taps (rule M6): their indices, the gradient
that flows to them, and the elements there.

Two operators are linear given the taps and each other's adjoint: the gradient from taps (spread to
the winners) and the gather at taps (collect from the winners).
"""

from typing import Any

import torch
from torch import Tensor

from torch_dmlpool.operators.derivatives import Gradients, save, saved
from torch_dmlpool.operators.registration import Below, Operator, one_by_one
from torch_dmlpool.tensors import (
    FLOAT_TYPES,
    INTEGER_TYPES,
    check_index_type,
    check_sizes,
    check_type,
    full_sizes,
    tap_dtype,
)
from torch_dmlpool.window import Sizes, Window


class MaxPoolingGradFromTaps(torch.autograd.Function):
    """What arrives at each window, at its winner. It is linear, and its gradient is
    ``max_pooling_gather``.
    """

    @staticmethod
    def forward(ctx: Any, arriving: Tensor, call: Below, taps: Tensor) -> Any:
        save(ctx, call, taps)
        return call.run(arriving, taps)

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> Gradients:
        call, (taps,) = ctx.call, saved(ctx)
        return max_pooling_gather_op(call.sharded(arriving), taps, call.arguments[1]), None, None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, *_: None) -> Any:
        return max_pooling_grad_from_taps_op(direction, *ctx.saved_tensors, *ctx.call.arguments)


class MaxPoolingGather(torch.autograd.Function):
    """The element at each window's winner. It is linear, and its gradient is
    ``max_pooling_grad_from_taps``.
    """

    @staticmethod
    def forward(ctx: Any, input: Tensor, call: Below, taps: Tensor) -> Any:
        save(ctx, call, taps)
        return call.run(input, taps)

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> Gradients:
        call, (taps,) = ctx.call, saved(ctx)
        request = call.shape[2:], *call.arguments, call.channels_last
        return max_pooling_grad_from_taps_op(call.sharded(arriving), taps, *request), None, None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, *_: None) -> Any:
        return max_pooling_gather_op(direction, *ctx.saved_tensors, *ctx.call.arguments)


def _check_taps(taps: Tensor, spatial_sizes: Sizes, window: Window) -> Sizes:
    """Reject taps that do not fit the window; return the sizes of the input that they number."""
    check_sizes("taps", taps, full_sizes(taps, window.output_sizes(spatial_sizes)))
    check_type("taps", taps, tap_dtype(window.taps), "window's")
    return full_sizes(taps, spatial_sizes)


def _check_indices(
    taps: Tensor, sizes: Sizes, window: Window, dtype: torch.dtype, per_plane: bool
) -> Any:
    check_index_type(dtype, _check_taps(taps, sizes, window), per_plane)
    return taps.shape


def _check_grad_from_taps(
    arriving: Tensor, taps: Tensor, sizes: Any, window: Window, channels_last: bool
) -> Sizes:
    check_sizes("taps", taps, arriving.shape, arriving, "input_gradient's")
    return _check_taps(taps, sizes, window)


def _check_gather(input: Tensor, taps: Tensor, window: Window) -> Sizes:
    _check_taps(taps, input.shape[2:], window)
    check_sizes("taps", taps, full_sizes(input, taps.shape[2:]), input)
    return taps.shape


max_pooling_indices_op = Operator(
    "max_pooling_indices(Tensor taps, SymInt[] spatial_sizes, WINDOW, ScalarType index_dtype, "
    "bool per_plane) -> Tensor",
    types=[INTEGER_TYPES],
    output_sizes=_check_indices,
    kernel_of=lambda backend: backend.max_pooling_indices,
    dtypes=lambda taps, sizes, window, index_dtype, per_plane: (index_dtype,),
    vmap=one_by_one,
)


max_pooling_grad_from_taps_op = Operator(
    "max_pooling_grad_from_taps(Tensor input_gradient, Tensor taps, SymInt[] spatial_sizes, "
    "WINDOW, bool channels_last) -> Tensor",
    types=[FLOAT_TYPES, INTEGER_TYPES],
    output_sizes=_check_grad_from_taps,
    kernel_of=lambda backend: backend.max_pooling_grad_from_taps,
    function=MaxPoolingGradFromTaps,
)


max_pooling_gather_op = Operator(
    "max_pooling_gather(Tensor input, Tensor taps, WINDOW) -> Tensor",
    types=[FLOAT_TYPES, INTEGER_TYPES],
    output_sizes=_check_gather,
    kernel_of=lambda backend: backend.max_pooling_gather,
    function=MaxPoolingGather,
    layout_of=1,
)
