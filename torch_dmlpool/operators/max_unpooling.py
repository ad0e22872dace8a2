"""Max unpooling: each element is put where its maximum came from, with zeros elsewhere; and the
operators that it calls.

A position counts from 0 inside one ``(n, c)`` plane, in row-major order; -1, and what lies outside
the plane, stands for no element. The gather and the scatter are linear and each other's adjoint.
Scattered positions are either unique, as :func:`unique_positions` makes them, or those of adaptive
maxima (``bins``), which may coincide and then add up.
"""

import math
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import backends
from torch_dmlpool._private import _are_functorch_transforms_active, applied_at_a_single_level
from torch_dmlpool.keywords import with_directml_names
from torch_dmlpool.operators.calls import PublicPool
from torch_dmlpool.operators.derivatives import Gradients, records_gradient, save, saved
from torch_dmlpool.operators.dispatching import may_skip_dispatcher
from torch_dmlpool.operators.registration import Below, Operator
from torch_dmlpool.tensors import (
    COMPLEX_TYPES,
    FLOAT_TYPES,
    INDEX_TYPES,
    MAX_TYPES,
    check_pooled,
    check_sizes,
    checked_full_size,
    first_indices,
    full_sizes,
    is_channels_last,
    position_dtype,
)
from torch_dmlpool.window import ArgumentError, Sizes, check_spatial_sizes


@with_directml_names
def max_unpooling(input: Tensor, indices: Tensor, output_size: Sizes) -> Tensor:
    """Every element at the position of its maximum, zeros elsewhere (``DML_MAX_UNPOOLING``).

    The input always has a batch: three dimensions are ``(N, C, W)``, never an image.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; float32, float16, bfloat16,
            float64, complex64, complex128, or any integer type of 8 to 64 bits.
        indices: The same shape as ``input``; int32, int64, uint32 or uint64. Positions in the whole
            output, flattened in ``N, C, D, H, W`` order, as :func:`max_pooling` returns them. -1
            (all ones if unsigned) is skipped. A position outside the plane of its own sample and
            channel is an error on the CPU in eager mode, and is skipped elsewhere.
        output_size: All sizes of the output, ``(N, C, *spatial)``; N and C are the input's.

    Returns:
        A tensor of ``output_size`` and the input's data type. Where several elements have the same
        index, the last of them in row-major order is written, and it alone has a gradient. It can
        be differentiated to any order.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or device, or no window fits. It is a RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> row = torch.tensor([[[1., 4., 2., 3.]]])
        >>> dmlpool.max_unpooling(*dmlpool.max_pooling(row, 2, 2, return_indices=True), row.shape)
        tensor([[[0., 4., 0., 3.]]])

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_max_unpooling_operator_desc
    """
    check(input, indices)
    sizes = checked_full_size("output_size", output_size, input)
    if tuple(sizes[:2]) != tuple(input.shape[:2]):
        raise ArgumentError(
            f"output_size must begin with the input's N and C {tuple(input.shape[:2])}, got {sizes}"
        )
    check_spatial_sizes("the output", sizes[2:])
    return POOL.of(input, None, (indices, sizes[2:], False))


def _elements_at(
    input: Tensor, _: None, indices: Tensor, spatial_sizes: Sizes, per_plane: bool
) -> Tensor:
    """Zeros of ``spatial_sizes`` with the elements of ``input`` at ``indices``. The operands are
    checked already, but the values of the indices are not.
    """
    if not may_skip_dispatcher(input, indices):
        return max_unpooling_op(input, indices, spatial_sizes, per_plane)
    unpool = backends.serving(input.device.type).max_unpooling
    if unpool is None:
        rejects = indices.is_cpu and indices.numel() > 0
        return _unpooled(input, indices, spatial_sizes, per_plane, rejects)
    signed = _signed(indices, math.prod(full_sizes(input, spatial_sizes)))
    if records_gradient(input):
        return _apply(input, signed, unpool, spatial_sizes, per_plane)
    result, _, is_wrong = unpool(input, signed, spatial_sizes, per_plane, False)
    if is_wrong:
        _check_positions(signed, spatial_sizes, per_plane)
    return result


class MaxUnpooling(torch.autograd.Function):
    """Elements at their indices, of plain tensors. The gradient is ``gather_positions``."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, indices: Tensor, unpool: Any, sizes: Any, per_plane: bool
    ) -> Tensor:
        result, unique, is_wrong = unpool(input, indices, sizes, per_plane, True)
        if is_wrong:
            _check_positions(indices, sizes, per_plane)
        save(ctx, None, unique)
        return result

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> Gradients:
        return gather_positions_op(arriving, *saved(ctx), False), None, None, None, None


class GatherPositions(torch.autograd.Function):
    """The element at each position. It is linear, and its gradient is ``scatter_positions``."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, call: Below, positions: Tensor) -> Any:
        save(ctx, call, positions)
        return call.run(input, positions)

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> Gradients:
        call, (positions,) = ctx.call, saved(ctx)
        request = positions, call.shape[2:], *call.arguments, call.channels_last
        return scatter_positions_op(call.sharded(arriving), *request), None, None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, *_: None) -> Any:
        return gather_positions_op(direction, *ctx.saved_tensors, *ctx.call.arguments)


class ScatterPositions(torch.autograd.Function):
    """Each element at its position. It is linear, and its gradient is ``gather_positions``."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, call: Below, positions: Tensor) -> Any:
        save(ctx, call, positions)
        return call.run(input, positions)

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> Gradients:
        call, (positions,) = ctx.call, saved(ctx)
        return gather_positions_op(call.sharded(arriving), positions, call.arguments[1]), None, None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, *_: None) -> Any:
        return scatter_positions_op(direction, *ctx.saved_tensors, *ctx.call.arguments)


def _signed(indices: Tensor, elements: int) -> Tensor:
    """Unsigned indices in a tensor of ``elements`` as signed ones. The largest becomes -1."""
    if indices.dtype not in (torch.uint32, torch.uint64):
        return indices
    # PyTorch 2.11 has no rule by which vmap takes a view of another data type.
    has_view = torch.compiler.is_dynamo_compiling() or not _are_functorch_transforms_active()
    if indices.dtype is torch.uint64:
        return indices.view(torch.int64) if has_view else indices.to(torch.int64)
    if has_view and type(elements) is int and elements < 2**31:
        return indices.view(torch.int32)
    indices = indices.to(torch.int64)
    return torch.where(indices == 2**32 - 1, -1, indices)


def _positions(indices: Tensor, sizes: Sizes, per_plane: bool) -> Tensor:
    """The positions in planes of indices, which are -1 for no element."""
    if per_plane:
        return indices
    first = first_indices(indices, full_sizes(indices, sizes))
    return torch.where(indices == -1, -1, indices - first)


def _unpooled(
    input: Tensor, indices: Tensor, sizes: Sizes, per_plane: bool, rejects: bool = False
) -> Tensor:
    """``max_unpooling`` by a scatter. With ``rejects`` an index outside its plane is an error."""
    indices = _signed(indices, math.prod(full_sizes(input, sizes)))
    positions = _positions(indices, sizes, per_plane)
    if rejects:
        _check_positions(indices, sizes, per_plane)
    unique = unique_positions_op(positions, sizes)
    return scatter_positions_op(input, unique, sizes, False, is_channels_last(input))


def _check_positions(indices: Tensor, sizes: Sizes, per_plane: bool) -> None:
    """Reject the first of ``indices`` that is neither in its own plane nor -1."""
    positions, plane = _positions(indices, sizes, per_plane), math.prod(sizes)
    least, most = positions.aminmax()
    if least >= 0 and most < plane:
        return
    wrong = ((indices != -1) & ((positions < 0) | (positions >= plane))).nonzero()
    if len(wrong) == 0:
        return
    place = tuple(wrong[0].tolist())
    low = int(indices[place]) - int(positions[place])
    raise ArgumentError(
        f"indices must lie in the output's plane of their own sample and channel, from {low} to "
        f"{low + plane - 1}, or be -1 for no element; got {int(indices[place])} at {place}"
    )


def check(input: Tensor, indices: Tensor) -> None:
    """Reject indices that do not belong to ``input`` (rules G6 and G8)."""
    check_pooled(input, MAX_TYPES + COMPLEX_TYPES)
    check_pooled(indices, INDEX_TYPES, "indices")
    check_sizes("indices", indices, input.shape, input, "input's")


POOL = PublicPool(
    check=lambda input, indices, sizes, per_plane: (indices, sizes, per_plane), compute=_elements_at
)


def _check_operator(input: Tensor, indices: Tensor, spatial_sizes: Sizes, per_plane: bool) -> None:
    check(input, indices)
    check_spatial_sizes("the output", spatial_sizes, input.dim() - 2)


_apply = applied_at_a_single_level(MaxUnpooling)


max_unpooling_op = Operator(
    "max_unpooling(Tensor input, Tensor indices, SymInt[] spatial_sizes, bool per_plane) -> Tensor",
    types=[MAX_TYPES, INDEX_TYPES],
    output_sizes=_check_operator,
    compose=_unpooled,
)


POSITION_TYPES = (torch.int32, torch.int64)


def _check_unique(positions: Tensor, spatial_sizes: Sizes) -> Sizes:
    check_spatial_sizes("the output", spatial_sizes, positions.dim() - 2)
    return positions.shape


def _check_gather(input: Tensor, positions: Tensor, bins: bool) -> Sizes:
    check_spatial_sizes("the input", input.shape[2:])
    if positions.dim() != input.dim():
        raise ArgumentError(
            f"positions must have as many dimensions as the input, {input.dim()}, got shape "
            f"{tuple(positions.shape)}"
        )
    check_sizes("positions", positions, full_sizes(input, positions.shape[2:]), input)
    return positions.shape


def _check_scatter(
    input: Tensor, positions: Tensor, spatial_sizes: Sizes, bins: bool, channels_last: bool
) -> Sizes:
    check_pooled(input, FLOAT_TYPES if bins else MAX_TYPES)
    _check_unique(positions, spatial_sizes)
    check_sizes("positions", positions, input.shape, input, "input's")
    return full_sizes(input, spatial_sizes)


unique_positions_op = Operator(
    "unique_positions(Tensor positions, SymInt[] spatial_sizes) -> Tensor",
    types=[POSITION_TYPES],
    output_sizes=_check_unique,
    kernel_of=lambda backend: backend.unique_positions,
    dtypes=lambda positions, sizes: (position_dtype(sizes),),
)
"""``positions`` with -1 for what lies outside ``spatial_sizes``, and for all but the last of equal
ones."""


gather_positions_op = Operator(
    "gather_positions(Tensor input, Tensor positions, bool bins) -> Tensor",
    types=[MAX_TYPES, POSITION_TYPES],
    output_sizes=_check_gather,
    kernel_of=lambda backend: backend.gather_positions,
    function=GatherPositions,
    layout_of=1,
)
"""The element of ``input`` at each position, 0 where there is none."""


scatter_positions_op = Operator(
    "scatter_positions(Tensor input, Tensor positions, SymInt[] spatial_sizes, bool bins, bool "
    "channels_last) -> Tensor",
    types=[MAX_TYPES, POSITION_TYPES],
    output_sizes=_check_scatter,
    kernel_of=lambda backend: backend.scatter_positions,
    function=ScatterPositions,
)
"""Zeros of ``spatial_sizes`` with each element of ``input`` at its position."""
