"""Max pooling, of bools and under a mask too, and its gradient.

Training saves the number of each window's winning tap (rule M6).
"""

from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import overloads
from torch_dmlpool._private import applied_at_a_single_level
from torch_dmlpool.backends.interface import Backend, Plan
from torch_dmlpool.keywords import with_directml_names
from torch_dmlpool.operators.calls import Call, PublicPool
from torch_dmlpool.operators.derivatives import (
    Gradients,
    may_be_differentiated,
    records_gradient,
    save,
    saved,
)
from torch_dmlpool.operators.dispatching import is_unobserved, may_skip_dispatcher
from torch_dmlpool.operators.masks import (
    Winners,
    as_bools,
    as_pooled,
    by_kernel,
    gathered,
    kept,
    over_planes,
    winners_of,
    with_checked_mask,
)
from torch_dmlpool.operators.registration import Below, Operator, one_by_one
from torch_dmlpool.operators.winners import (
    max_pooling_gather_op,
    max_pooling_grad_from_taps_op,
    max_pooling_indices_op,
)
from torch_dmlpool.tensors import (
    FLOAT_TYPES,
    MAX_TYPES,
    ORDERED_TYPES,
    Mask,
    Numbering,
    Pair,
    Pooled,
    TensorFunction,
    check_index_type,
    check_pooled,
    check_sizes,
    check_taps,
    check_type,
    is_channels_last,
    laid_out_like,
    numbered,
    pooled_sizes,
    tap_dtype,
    where,
)
from torch_dmlpool.window import Arguments, Integers, Sizes, Window, check_flag


@overloads.pooling
def max_pooling(
    input: Tensor,
    window_size: Integers,
    strides: Integers = 1,
    start_padding: Integers = 0,
    end_padding: Integers = 0,
    dilations: Integers = 1,
    *,
    ceil_mode: bool = False,
    return_indices: bool = False,
    index_dtype: torch.dtype = torch.int64,
    mask: Mask = None,
) -> Pooled:
    """Maximum of the elements in a sliding window, and its index if ``return_indices`` is True
    (``DML_MAX_POOLING2``).

    The input always has a batch: three dimensions are ``(N, C, W)``, never an image.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; float32, float16, bfloat16,
            float64, bool, or any signed or unsigned integer type of 8 to 64 bits. The maximum of
            bools is whether any is True.
        window_size: Size of the window, at least 1. This and the next four arguments are one int
            for all spatial dimensions or one each, in ``D, H, W`` order.
        strides: Step from one window to the next, at least 1.
        start_padding: Padding before the first element, at least 0. Any amount is allowed.
        end_padding: Padding after the last element.
        dilations: Step from one element of a window to the next, at least 1.
        ceil_mode: Whether a last window may reach past the padded input, if it starts inside the
            input or the padding before it. What lies there never counts.
        return_indices: Whether to return the indices of the maxima too.
        index_dtype: int32, int64, uint32 or uint64.
        mask: A bool tensor of the input's dimensions, where sizes of 1 broadcast, or of the spatial
            ones alone. An element where it is False is left out, NaN too: it never wins, adds
            nothing, is not counted and has no gradient.

    Returns:
        ``(N, C, *output)`` of the input's data type, where
        ``output = (size + start_padding + end_padding - extent) // strides + 1`` and
        ``extent = (window_size - 1) * dilations + 1``;
        with ``return_indices`` the pair of it and its indices, which count from 0 over the whole
        input read as a contiguous ``N, C, D, H, W`` array. Among equal maxima the one with the
        lowest index wins (−0.0 equals 0.0), the first NaN wins over everything. Padding never wins:
        a window that reads no element gives −inf, False or the type's lowest value, and index −1
        (all ones if unsigned).

    It can be differentiated to any order, except for integers and bools. The gradient goes to the
    winning elements (:func:`max_pooling_grad`).

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or device, or no window fits. It is a RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> row = torch.tensor([[[1., 4., 2., 3.]]])
        >>> dmlpool.max_pooling(row, window_size=2, return_indices=True)
        (tensor([[[4., 4., 3.]]]), tensor([[[1, 1, 3]]]))

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_max_pooling2_operator_desc
    """
    return POOL(
        input,
        mask,
        return_indices,
        window_size,
        strides,
        start_padding,
        end_padding,
        dilations,
        ceil_mode,
        dtypes=(index_dtype,),
    )


def numbered_windows(
    input: Tensor, index_dtype: torch.dtype, return_indices: bool, *window: Any
) -> Arguments:
    """The window and, with ``return_indices``, that indices count in the whole tensor. All are
    checked.
    """
    check_pooled(input, ORDERED_TYPES)
    check_flag("return_indices", return_indices)
    made = Window.directml(input.dim() - 2, *window)
    check_index_type(index_dtype, input.shape)
    if not return_indices:
        return (made,)
    check_taps(made.taps)
    return made, Numbering(index_dtype, per_plane=False)


@with_directml_names
def max_pooling_grad(
    input: Tensor,
    input_gradient: Tensor,
    window_size: Integers,
    strides: Integers = 1,
    start_padding: Integers = 0,
    end_padding: Integers = 0,
    dilations: Integers = 1,
    *,
    ceil_mode: bool = False,
) -> Tensor:
    """Gradient of :func:`max_pooling` with respect to its input (``DML_MAX_POOLING_GRAD``); needs
    no indices.

    Args:
        input: The forward input, ``(N, C, *spatial)``; float32, float16, bfloat16 or float64.
        input_gradient: The gradient of the forward output, of its sizes; the input's data type and
            device.
        window_size: Size of the window, at least 1. This and the next four arguments are one int
            for all spatial dimensions or one each, in ``D, H, W`` order.
        strides: Step from one window to the next, at least 1.
        start_padding: Padding before the first element, at least 0. Any amount is allowed.
        end_padding: Padding after the last element.
        dilations: Step from one element of a window to the next, at least 1.
        ceil_mode: Whether a last window may reach past the padded input, if it starts inside the
            input or the padding before it. What lies there never counts.

    Returns:
        A tensor of the input's sizes: each window's gradient at its winning element, added up where
        windows share one (in float32 for float16 and bfloat16), 0 elsewhere. It is constant in
        ``input``.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or device, or no window fits. It is a RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> row = torch.tensor([[[1., 4., 2., 3.]]])
        >>> dmlpool.max_pooling_grad(row, torch.tensor([[[1., 2., 5.]]]), window_size=2)
        tensor([[[0., 3., 0., 5.]]])

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_max_pooling_grad_operator_desc
    """
    check_pooled(input, FLOAT_TYPES)
    check_pooled(input_gradient, FLOAT_TYPES, "input_gradient")
    window = Window.directml(
        input.dim() - 2, window_size, strides, start_padding, end_padding, dilations, ceil_mode
    )
    max_pooling_grad_op.output_sizes(input, input_gradient, window)
    return max_pooling_grad_op(input, input_gradient, window)


def prepared_max_pooling(
    like: Tensor, backend: Backend, window: Window, numbering: Numbering | None = None
) -> Call | None:
    """The call of maxima for plain tensors that lie as ``like``; with a ``numbering`` of them and
    their indices.
    """
    if like.dtype is torch.bool and not backend.takes_bools:
        return None
    plan = backend.planned_maxima(like, window, numbering)
    return Call(max_pooling_with_taps_op.apply, plan, like, window)


def maxima_of(input: Tensor, mask: Mask, window: Window, numbering: Numbering | None = None) -> Any:
    """Maxima, under a mask if there is one; with a ``numbering`` their indices too."""
    if numbering is None:
        if mask is None:
            return max_pooling_op(input, window)
        return masked_max_pooling_op(input, mask, window)
    if mask is None:
        return max_pooling_with_indices_op(input, window, numbering.dtype, numbering.per_plane)
    return masked_max_pooling_with_indices_op(
        input, mask, window, numbering.dtype, numbering.per_plane
    )


def of_bools(pool: TensorFunction, input: Tensor) -> Any:
    """The maxima of ``input``, which may be bool, by a ``pool`` of numbers (rule N1)."""
    if input.dtype is not torch.bool:
        return pool(input)
    return laid_out_like(with_values(as_bools, pool(as_pooled(input))), input)


def with_values(change: TensorFunction, results: Any) -> Any:
    """The results of a pool, values alone or with indices, with ``change`` applied to the
    values.
    """
    if isinstance(results, Tensor):
        return change(results)
    values, indices = results
    return change(values), indices


def train_under_mask(input: Tensor, mask: Tensor, call: Call) -> Any:
    """The results of a prepared call under a mask. The graph records their gradient."""
    return _apply_masked_max_pooling(input, mask, call.arguments[0], call.plan)[0]


POOL = PublicPool(
    check=numbered_windows,
    compute=maxima_of,
    prepare=prepared_max_pooling,
    wrap=of_bools,
    train=train_under_mask,
)


class MaxPooling(torch.autograd.Function):
    """Maxima of windows. Their gradient is ``max_pooling_grad_from_taps``."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, call: Call | Below) -> Any:
        *results, taps = call.run_with_taps(input)  # with indices if these are wanted
        ctx.set_materialize_grads(False)  # there is no gradient of indices
        if call.is_planned:
            ctx.call = call
            ctx.save_for_backward(taps)  # `saved` is spared: `backward` looks at what comes back
        else:
            results.append(taps)  # the results of the operator have the taps, too
            save(ctx, call, taps)
        if len(results) == 1:
            return results[0]
        ctx.mark_non_differentiable(*results[1:])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, arriving: Tensor | None, *_: None) -> Gradients:
        if arriving is None:
            return None, None
        call, (taps,) = ctx.call, ctx.saved_tensors
        if call.is_planned:
            if is_unobserved(arriving, taps):
                return call.plan.gradient(arriving, taps), None
            dtype = tap_dtype(call.arguments[0].taps)
            ctx.kinds = [(tuple(arriving.shape), dtype, arriving.device)]
        request = *saved(ctx), call.shape[2:], call.arguments[0], call.channels_last
        return max_pooling_grad_from_taps_op(call.sharded(arriving), *request), None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, *_: None) -> tuple[Tensor, None]:
        return max_pooling_gather_op(direction, *ctx.saved_tensors, *ctx.call.arguments), None


def _check_with_indices(
    input: Tensor, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> Sizes:
    check_index_type(index_dtype, input.shape, per_plane)
    check_taps(window.taps)
    return pooled_sizes(input, window)


def _check_grad(input: Tensor, arriving: Tensor, window: Window) -> Sizes:
    check_type("input_gradient", arriving, input.dtype, "input's")
    check_sizes("input_gradient", arriving, pooled_sizes(input, window), input)
    check_taps(window.taps)
    return input.shape


def _composed_with_indices(
    input: Tensor, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> Pair:
    values, taps = max_pooling_with_taps_op(input, window)
    return values, max_pooling_indices_op(taps, input.shape[2:], window, index_dtype, per_plane)


def _composed_grad(input: Tensor, arriving: Tensor, window: Window) -> Tensor:
    """Linear in the gradient, constant in the input."""
    _, taps = max_pooling_with_taps_op(input.detach(), window)
    return max_pooling_grad_from_taps_op(
        arriving, taps, input.shape[2:], window, is_channels_last(input)
    )


max_pooling_with_taps_op = Operator(
    "max_pooling_with_taps(Tensor input, WINDOW) -> (Tensor, Tensor)",
    types=[MAX_TYPES],
    output_sizes=pooled_sizes,
    kernel_of=lambda backend: backend.max_pooling_with_taps,
    function=MaxPooling,
    dtypes=lambda input, window: (input.dtype, tap_dtype(window.taps)),
)


max_pooling_op = Operator(
    "max_pooling(Tensor input, WINDOW) -> Tensor",
    types=[MAX_TYPES],
    output_sizes=pooled_sizes,
    kernel_of=lambda backend: backend.max_pooling,
    compose=lambda input, window: max_pooling_with_taps_op(input, window)[0],
)


max_pooling_with_indices_op = Operator(
    "max_pooling_with_indices(Tensor input, WINDOW, ScalarType index_dtype, bool per_plane) -> "
    "(Tensor, Tensor)",
    types=[MAX_TYPES],
    output_sizes=_check_with_indices,
    kernel_of=lambda backend: backend.max_pooling_with_indices,
    compose=_composed_with_indices,
    dtypes=lambda input, window, index_dtype, per_plane: (input.dtype, index_dtype),
    vmap=one_by_one,
)


max_pooling_grad_op = Operator(
    "max_pooling_grad(Tensor input, Tensor input_gradient, WINDOW) -> Tensor",
    types=[FLOAT_TYPES, FLOAT_TYPES],
    output_sizes=_check_grad,
    kernel_of=lambda backend: backend.max_pooling_grad,
    compose=_composed_grad,
)


class MaskedMaxPooling(torch.autograd.Function):
    """Maxima of plain tensors under a mask, by a plan if there is one, and the taps of their
    winners. A window without an element has the tap -1, which has no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, mask: Tensor, window: Window, plan: Plan | None = None
    ) -> Pair:
        found = (
            by_kernel(max_pooling_with_taps_op.kernel_of, input, window, mask=mask)
            if plan is None
            else plan.run_with_taps(input, mask)
        )
        if found is None:
            values, taps, are_there = _winners(input, mask, window)
            found = values, where(are_there, taps, -1)
        values, taps = found
        save(ctx, None, taps)
        ctx.request = input.shape[2:], window, is_channels_last(input)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(taps)
        return values, taps

    @staticmethod
    def backward(ctx: Any, arriving: Tensor | None, _: None) -> Gradients:
        if arriving is None:
            return None, None, None, None
        gradient = max_pooling_grad_from_taps_op(arriving, *saved(ctx), *ctx.request)
        return gradient, None, None, None


def _winners(input: Tensor, mask: Tensor, window: Window) -> Winners:
    return winners_of(input, mask, lambda each: max_pooling_with_taps_op(each, window))


def _masked(
    input: Tensor,
    mask: Tensor,
    window: Window,
    index_dtype: torch.dtype | None = None,
    per_plane: bool = False,
) -> Any:
    """Maxima under a mask; with an ``index_dtype`` their indices too."""
    sizes = input.shape[2:]
    window.output_sizes(sizes)  # rejected before any work
    if may_be_differentiated(input):
        if may_skip_dispatcher(input, mask) and records_gradient(input):
            values, taps = _apply_masked_max_pooling(input, mask, window)
            are_there = None
        else:
            winners = _winners(input, mask, window)
            gather = lambda each, taps: max_pooling_gather_op(each, taps, window)  # noqa: E731
            values, taps, are_there = gathered(input, winners, gather), *winners[1:]
        if index_dtype is None:
            return values
        if are_there is None:
            are_there = as_bools(max_pooling_op(as_pooled(over_planes(mask, input)), window))
        indices = max_pooling_indices_op(taps, sizes, window, index_dtype, per_plane)
        return values, where(are_there, indices, -1)
    if index_dtype is None:
        values = by_kernel(max_pooling_op.kernel_of, input, window, mask=mask)
        return max_pooling_op(kept(input, mask, True), window) if values is None else values
    found = by_kernel(
        max_pooling_with_indices_op.kernel_of, input, window, index_dtype, per_plane, mask=mask
    )
    if found is not None:
        return found
    # Positions can be exported where numbers of taps cannot.
    with_positions = max_pooling_with_indices_op
    winners = winners_of(input, mask, lambda each: with_positions(each, window, torch.int64, True))
    positions = torch.where(winners.are_there, winners.places, -1)
    return winners.values, numbered(positions, input.shape, index_dtype, per_plane)


_apply_masked_max_pooling = applied_at_a_single_level(MaskedMaxPooling)


masked_max_pooling_op = Operator(
    "masked_max_pooling(Tensor input, Tensor mask, WINDOW) -> Tensor",
    types=[MAX_TYPES],
    output_sizes=lambda *_: None,
    complete=with_checked_mask,
    compose=_masked,
)


masked_max_pooling_with_indices_op = Operator(
    "masked_max_pooling_with_indices(Tensor input, Tensor mask, WINDOW, ScalarType index_dtype, "
    "bool per_plane) -> (Tensor, Tensor)",
    types=[MAX_TYPES],
    output_sizes=lambda input, mask, window, dtype, per_plane: check_index_type(
        dtype, input.shape, per_plane
    ),
    complete=with_checked_mask,
    compose=_masked,
)
