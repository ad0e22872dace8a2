"""Pools of sets of rows: tokens of padded batches, points of clouds, nodes of graphs (rules T1 to
T5).

Sums and their shares are linear and each other's adjoint. Maxima return the row of each winner, and
their derivatives scatter to these rows and gather from them.
"""

import functools
from typing import Any, Literal, overload

import torch
from torch import Tensor

from torch_dmlpool import backends
from torch_dmlpool.backends import reference_segments
from torch_dmlpool.operators.derivatives import Gradients, save, saved
from torch_dmlpool.operators.dispatching import is_unobserved
from torch_dmlpool.operators.registration import Below, Operator, of_rows, one_by_one, over_batches
from torch_dmlpool.tensors import (
    FLOAT_TYPES,
    INTEGER_TYPES,
    ORDERED_TYPES,
    Mask,
    Offsets,
    Pair,
    Types,
    check_dense,
    check_device,
    check_sizes,
)
from torch_dmlpool.window import ArgumentError, Arguments

Reduction = Literal["mean", "sum", "max", "min"]


class SegmentSums(torch.autograd.Function):
    """Sums or means of sets. Their gradient is ``segment_shares``."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, call: Below, offsets: Any, mask: Any) -> Any:
        save(ctx, call, offsets, mask)
        return call.run(input, offsets, mask)

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> Gradients:
        (offsets, mask), rows, (is_mean,) = saved(ctx), ctx.call.shape[-2], ctx.call.arguments
        return segment_shares_op(arriving, offsets, mask, rows, is_mean), None, None, None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, *_: None) -> Any:
        return segment_sums_op(direction, *ctx.saved_tensors, *ctx.call.arguments)


class SegmentShares(torch.autograd.Function):
    """Each row's share of what arrives at its set. It is linear, and its gradient is
    ``segment_sums``.
    """

    @staticmethod
    def forward(ctx: Any, input: Tensor, call: Below, offsets: Any, mask: Any) -> Any:
        save(ctx, call, offsets, mask)
        return call.run(input, offsets, mask)

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> Gradients:
        (offsets, mask), (_rows, is_mean) = saved(ctx), ctx.call.arguments
        return segment_sums_op(arriving, offsets, mask, is_mean), None, None, None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, *_: None) -> Any:
        return segment_shares_op(direction, *ctx.saved_tensors, *ctx.call.arguments)


class SegmentMaxima(torch.autograd.Function):
    """Maxima or minima of sets and their rows. The gradient arrives at these rows."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, call: Below, offsets: Any, mask: Any) -> Pair:
        values, indices = call.run(input, offsets, mask)
        save(ctx, call, indices, offsets)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(indices)
        return values, indices

    @staticmethod
    def backward(ctx: Any, arriving: Tensor | None, _: None) -> Gradients:
        if arriving is None:
            return None, None, None, None
        (indices, offsets), rows = saved(ctx), ctx.call.shape[-2]
        if is_unobserved(arriving, indices):
            # Not the operator, which has no indices.
            scatter = backends.serving(arriving.device.type).segment_shares
            gradient = scatter(arriving, offsets, None, rows, False, indices)
        else:
            gradient = reference_segments.scattered(arriving, indices, rows, offsets is None)
        return gradient, None, None, None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, *_: Any) -> tuple[Tensor, None]:
        indices, offsets = ctx.saved_tensors
        return _gathered(direction, indices, offsets is None), None


def _gathered(input: Tensor, indices: Tensor, is_batch: bool) -> Tensor:
    """The elements at ``indices``, 0 for -1."""
    places = torch.where(indices < 0, input.shape[-2], indices)
    padded = torch.nn.functional.pad(input, (0, 0, 0, 1))
    if is_batch:
        return padded.gather(-2, places.unsqueeze(-2)).squeeze(-2)
    return padded.gather(-2, places)


def _check(input: Tensor, offsets: Offsets, mask: Mask, types: Any) -> None:
    """Reject what is no rows of ``types``, and offsets and masks that do not belong to them."""
    check_dense("input", input, types)
    rank = 3 if offsets is None else 2
    if input.dim() != rank:
        wanted = "(B, T, C)" if offsets is None else "(L, C)"
        raise ArgumentError(f"input must be {wanted}, got shape {tuple(input.shape)}")
    if offsets is not None:
        check_dense("offsets", offsets, (torch.int64,))
        check_device("offsets", offsets, input)
        if offsets.dim() != 1 or offsets.shape[0] == 0:
            raise ArgumentError(
                "offsets must have one dimension and at least one entry, got shape "
                f"{tuple(offsets.shape)}"
            )
    if mask is not None:
        check_dense("mask", mask, (torch.bool,))
        check_sizes("mask", mask, input.shape[:-1], input, "rows'")


def _check_sets(types: Any, input: Tensor, offsets: Offsets, mask: Mask, _: bool) -> Any:
    """The sizes of results: a row for each set."""
    _check(input, offsets, mask, types)
    return reference_segments.set_sizes(input, offsets)


def _check_shares(arriving: Tensor, offsets: Offsets, mask: Mask, rows: int, is_mean: bool) -> Any:
    shape = reference_segments.row_sizes(arriving, offsets, rows)
    _check(arriving.new_empty(()).expand(shape), offsets, mask, FLOAT_TYPES)
    if offsets is not None:
        sizes = offsets.shape[0] - 1, arriving.shape[-1]
        check_sizes("input_gradient", arriving, sizes)
    return shape


def _mapped(operator: Operator, info: Any, dimensions: Any, arguments: Arguments) -> Any:
    """The vmap rule: batches without offsets are merged."""
    rule = over_batches if arguments[1] is None else one_by_one
    return rule(operator, info, dimensions, arguments)


segment_sums_op = Operator(
    "segment_sums(Tensor input, Tensor? offsets, Tensor? mask, bool is_mean) -> Tensor",
    output_sizes=functools.partial(_check_sets, FLOAT_TYPES),
    kernel_of=lambda backend: backend.segment_sums,
    function=SegmentSums,
    vmap=_mapped,
)
"""The sum or the mean of each set."""
segment_shares_op = Operator(
    "segment_shares(Tensor input_gradient, Tensor? offsets, Tensor? mask, SymInt rows, "
    "bool is_mean) -> Tensor",
    output_sizes=_check_shares,
    kernel_of=lambda backend: backend.segment_shares,
    function=SegmentShares,
    vmap=_mapped,
)
"""The gradient of sums and means: of ``rows`` rows, in each sample of a batch."""
segment_maxima_op = Operator(
    "segment_maxima(Tensor input, Tensor? offsets, Tensor? mask, bool are_minima) -> "
    "(Tensor, Tensor)",
    output_sizes=functools.partial(_check_sets, ORDERED_TYPES),
    kernel_of=lambda backend: backend.segment_maxima,
    function=SegmentMaxima,
    dtypes=lambda input, *_: (input.dtype, torch.int64),
    vmap=_mapped,
)
"""The greatest or least element of each channel of a set, and its row."""


def _as_bools(mask: Mask) -> Mask:
    """A mask as bools: what is not 0 is kept."""
    if mask is None:
        return None
    check_dense("mask", mask, (torch.bool, *INTEGER_TYPES))
    return mask if mask.dtype is torch.bool else mask != 0


def check_reduction(reduction: str) -> Types:
    """The data types that a reduction takes; rejects what is none."""
    if reduction not in ("mean", "sum", "max", "min"):
        raise ArgumentError(f"reduction must be 'mean', 'sum', 'max' or 'min', got {reduction!r}")
    return FLOAT_TYPES if reduction in ("mean", "sum") else ORDERED_TYPES


def _pooled(input: Tensor, offsets: Any, mask: Any, reduction: str) -> Any:
    """The results of a reduction, and the rows of maxima and minima."""
    if reduction in ("mean", "sum"):
        return of_rows(segment_sums_op, input, offsets, mask, reduction == "mean"), None
    return of_rows(segment_maxima_op, input, offsets, mask, reduction == "min")


@overload
def segment_pooling(
    input: Tensor,
    offsets: Tensor,
    reduction: Reduction = ...,
    *,
    mask: Mask = ...,
    return_indices: Literal[False] = ...,
) -> Tensor: ...
@overload
def segment_pooling(
    input: Tensor,
    offsets: Tensor,
    reduction: Reduction = ...,
    *,
    mask: Mask = ...,
    return_indices: Literal[True],
) -> Pair: ...
def segment_pooling(
    input: Tensor,
    offsets: Tensor,
    reduction: Reduction = "mean",
    *,
    mask: Mask = None,
    return_indices: bool = False,
) -> Any:
    """Pool ragged sets of rows: set i has the rows from ``offsets[i]`` up to ``offsets[i + 1]``.

    Nodes of graphs, points of clouds and values of nested tensors come as such rows. Offsets are
    those of ``torch.segment_reduce``: PyG calls them ``ptr``, nested tensors ``offsets()``.

    Args:
        input: ``(L, *features)``, L rows in all sets. Means and sums take float32, float16,
            bfloat16 and float64; maxima and minima every ordered data type.
        offsets: ``(S + 1,)`` int32 or int64, for S sets. They begin at 0 or above, do not fall and
            end at L or below. Rows before the first set and after the last belong to none.
        reduction: ``"mean"``, ``"sum"``, ``"max"`` or ``"min"``.
        mask: ``(L,)`` bool, or integers where what is not 0 is kept. Other rows are not there: they
            are not read, and so may hold NaN.
        return_indices: With ``"max"`` and ``"min"``, return ``(values, indices)``: the row of
            the input that has each value, int64.

    Returns:
        ``(S, *features)`` of the input's data type. A set without a row gives 0 for means and sums,
        the data type's lowest value (highest for minima) and index -1 for maxima. The first of
        equal elements wins, and so does the first NaN. Half precision is added in float32 and
        rounded once. A set's result does not depend on other sets.

    Raises:
        ValueError: Offsets fall, begin below 0 or end past L, in eager mode on a CPU: elsewhere a
            check would wait for the device, and they are limited to the rows that there are. Also
            for another reduction, and shapes and devices that do not belong together.
        TypeError: A tensor has a data type that is not supported, or ``return_indices`` goes with
            means or sums.

    The gradient of a mean is shared equally among the rows that are kept; that of a maximum goes to
    its row. Rows outside all sets, and rows that the mask leaves out, get 0.

    >>> import torch, torch_dmlpool as dmlpool
    >>> rows = torch.tensor([[1.0, 8.0], [3.0, 2.0], [5.0, 5.0]])
    >>> dmlpool.segment_pooling(rows, torch.tensor([0, 2, 2, 3]))
    tensor([[2., 5.],
            [0., 0.],
            [5., 5.]])

    DirectML has no such operator. https://pytorch.org/docs/stable/generated/torch.segment_reduce.html
    is PyTorch's, of which this has the offsets.
    """
    types = check_reduction(reduction)
    if return_indices and reduction in ("mean", "sum"):
        raise TypeError(f"return_indices needs reduction 'max' or 'min', got {reduction!r}")
    check_dense("input", input, types)
    check_dense("offsets", offsets, (torch.int32, torch.int64))
    if input.dim() == 0:
        raise ArgumentError("input must be (L, *features), got a tensor without dimensions")
    features = input.shape[1:]
    rows = input if input.dim() == 2 else input.reshape(input.shape[0], features.numel())
    values, indices = _pooled(rows, offsets.long(), _as_bools(mask), reduction)
    if input.dim() != 2:
        values = values.reshape(values.shape[0], *features)
        indices = None if indices is None else indices.reshape(values.shape)
    return (values, indices) if return_indices else values


def token_pooling(tokens: Tensor, mask: Mask = None, reduction: Reduction = "mean") -> Tensor:
    """Pool the tokens of each sample of a padded batch, such as words into a sentence's embedding.

    Args:
        tokens: ``(B, T, C)``, such as a transformer's ``last_hidden_state``. Means and sums take
            float32, float16, bfloat16 and float64; maxima and minima every ordered data type.
        mask: ``(B, T)``, an attention mask as tokenizers return it: bool, or integers where what is
            not 0 is kept. Other tokens are not there: they are not read, and so may hold NaN.
            ``key_padding_mask`` of ``torch.nn.MultiheadAttention`` means the opposite: write
            ``~key_padding_mask``. None keeps all tokens.
        reduction: ``"mean"``, ``"sum"``, ``"max"`` or ``"min"``.

    Returns:
        ``(B, C)`` of the tokens' data type, the same numbers as :func:`segment_pooling` of the
        tokens that are kept. A sample without a token gives 0 for means and sums, the data type's
        lowest value (highest for minima) for maxima. Half precision is added in float32 and rounded
        once.

    Raises:
        ValueError: Shapes or devices do not belong together, or there is no such reduction.
        TypeError: A tensor has a data type that is not supported.

    The gradient of a mean is shared equally among the tokens that are kept; that of a maximum goes
    to the first token that has it. Other tokens get 0.

    >>> import torch, torch_dmlpool as dmlpool
    >>> tokens = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]])
    >>> dmlpool.token_pooling(tokens, torch.tensor([[1, 1, 0]]))
    tensor([[2., 3.]])

    DirectML has no such operator; it is the mean pooling of https://www.sbert.net.
    """
    check_dense("tokens", tokens, check_reduction(reduction))
    if tokens.dim() != 3:
        raise ArgumentError(f"tokens must be (B, T, C), got shape {tuple(tokens.shape)}")
    return _pooled(tokens, None, _as_bools(mask), reduction)[0]
