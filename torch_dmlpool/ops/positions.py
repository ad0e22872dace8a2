"""Elements by their positions in a plane: gathered, scattered, and made unique.

A position counts from 0 inside one ``(n, c)`` plane, in row-major order; -1, and what lies outside the plane, stands
for no element. The gather and the scatter are linear and each other's adjoint. Scattered positions are either unique,
as :func:`unique_positions` makes them, or those of adaptive maxima (``bins``), which may coincide and then add up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.ops import registration

POSITION_TYPES = (torch.int32, torch.int64)


def unique_positions(positions: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """``positions`` with -1 for what lies outside ``spatial_sizes``, and for all but the last of several alike."""
    if not registration.is_bare(positions):
        return _unique_positions(positions, spatial_sizes)
    return registration.backend_of(positions).unique_positions(positions, spatial_sizes)


def gather_positions(input: Tensor, positions: Tensor, bins: bool) -> Tensor:
    """The element of ``input`` at each position, 0 where there is none."""
    if not registration.is_bare(input, positions):
        return _gather_positions(input, positions, bins)
    if registration.records_gradient(input):
        return registration.apply(GatherPositions, input, positions, bins)
    return registration.backend_of(input).gather_positions(input, positions)


def scatter_positions(
    input: Tensor, positions: Tensor, spatial_sizes: Sequence[int], bins: bool, channels_last: bool
) -> Tensor:
    """Zeros of ``spatial_sizes`` with each element of ``input`` at its position."""
    if not registration.is_bare(input, positions):
        return _scatter_positions(input, positions, spatial_sizes, bins, channels_last)
    if registration.records_gradient(input):
        return registration.apply(ScatterPositions, input, positions, spatial_sizes, bins, channels_last)
    backend = registration.backend_of(input)
    return backend.scatter_positions(input, positions, spatial_sizes, bins, channels_last)


def _check_sizes(positions: Tensor, spatial_sizes: Sequence[int]) -> None:
    operands.check_pooled("positions", positions, POSITION_TYPES)
    operands.check_spatial_sizes("the output", spatial_sizes, positions.dim() - 2)


def _check_gather(input: Tensor, positions: Tensor) -> None:
    operands.check_pooled("input", input, operands.MAX_TYPES)
    operands.check_pooled("positions", positions, POSITION_TYPES)
    operands.check_device("positions", positions, input)
    operands.check_sizes("positions", positions, [*input.shape[:2], *positions.shape[2:]])


def _check_scatter(input: Tensor, positions: Tensor, spatial_sizes: Sequence[int], bins: bool) -> None:
    operands.check_pooled("input", input, operands.FLOAT_TYPES if bins else operands.MAX_TYPES)
    _check_sizes(positions, spatial_sizes)
    operands.check_device("positions", positions, input)
    operands.check_sizes("positions", positions, input.shape)


def _unique(positions: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    _check_sizes(positions, spatial_sizes)
    return registration.backend_of(positions).unique_positions(positions, spatial_sizes)


def _unique_fake(positions: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    _check_sizes(positions, spatial_sizes)
    memory_format = operands.suggested_memory_format(positions)
    return operands.empty(positions.shape, positions, memory_format, operands.position_dtype(math.prod(spatial_sizes)))


def _unique_vmap(info: Any, dimensions: Any, positions: Tensor, spatial_sizes: Sequence[int]) -> tuple[Tensor, int]:
    unique = _unique_positions(registration.folded(positions, dimensions[0], info.batch_size), spatial_sizes)
    return registration.unfolded(unique, info.batch_size), 0


def _gather(input: Tensor, positions: Tensor, bins: bool) -> Tensor:  # noqa: ARG001 - for the derivatives alone
    _check_gather(input, positions)
    return registration.backend_of(input).gather_positions(input, positions)


def _gather_fake(input: Tensor, positions: Tensor, bins: bool) -> Tensor:  # noqa: ARG001
    _check_gather(input, positions)
    return operands.empty(positions.shape, input, operands.suggested_memory_format(positions))


def _gather_vmap(info: Any, dimensions: Any, input: Tensor, positions: Tensor, bins: bool) -> tuple[Tensor, int]:
    gathered = _gather_positions(
        registration.folded(input, dimensions[0], info.batch_size),
        registration.folded(positions, dimensions[1], info.batch_size),
        bins,
    )
    return registration.unfolded(gathered, info.batch_size), 0


def _scatter(input: Tensor, positions: Tensor, spatial_sizes: Sequence[int], bins: bool, channels_last: bool) -> Tensor:
    _check_scatter(input, positions, spatial_sizes, bins)
    backend = registration.backend_of(input)
    return backend.scatter_positions(input, positions, spatial_sizes, bins, channels_last)


def _scatter_fake(
    input: Tensor, positions: Tensor, spatial_sizes: Sequence[int], bins: bool, channels_last: bool
) -> Tensor:
    _check_scatter(input, positions, spatial_sizes, bins)
    memory_format = operands.named_memory_format(channels_last, input.dim() - 2)
    return operands.empty((*input.shape[:2], *spatial_sizes), input, memory_format)


def _scatter_vmap(info: Any, dimensions: Any, input: Tensor, positions: Tensor, *arguments: Any) -> tuple[Tensor, int]:
    scattered = _scatter_positions(
        registration.folded(input, dimensions[0], info.batch_size),
        registration.folded(positions, dimensions[1], info.batch_size),
        *arguments,
    )
    return registration.unfolded(scattered, info.batch_size), 0


_unique_positions = registration.define(
    "unique_positions(Tensor positions, SymInt[] spatial_sizes) -> Tensor",
    implementation=_unique,
    fake=_unique_fake,
    vmap=_unique_vmap,
)
_gather_positions = registration.define(
    "gather_positions(Tensor input, Tensor positions, bool bins) -> Tensor",
    implementation=_gather,
    fake=_gather_fake,
    vmap=_gather_vmap,
)
_scatter_positions = registration.define(
    "scatter_positions(Tensor input, Tensor positions, SymInt[] spatial_sizes, bool bins, bool channels_last) "
    "-> Tensor",
    implementation=_scatter,
    fake=_scatter_fake,
    vmap=_scatter_vmap,
)


class GatherPositions(torch.autograd.Function):
    """The gather, whose backward pass is the scatter."""

    @staticmethod
    def forward(input: Tensor, positions: Tensor, bins: bool) -> Tensor:
        with registration.inside_forward(input):
            return gather_positions(input, positions, bins)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        input, positions, ctx.bins = inputs
        ctx.scatter = (input.shape[2:], ctx.bins, operands.is_channels_last(input))
        ctx.save_for_backward(positions)
        ctx.save_for_forward(positions)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return scatter_positions(gradient, *ctx.saved_tensors, *ctx.scatter), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        (positions,) = ctx.saved_tensors
        return gather_positions(tangent, positions, ctx.bins)


class ScatterPositions(torch.autograd.Function):
    """The scatter, whose backward pass is the gather."""

    @staticmethod
    def forward(input: Tensor, positions: Tensor, *scatter: Any) -> Tensor:
        with registration.inside_forward(input):
            return scatter_positions(input, positions, *scatter)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        _, positions, *ctx.scatter = inputs
        ctx.save_for_backward(positions)
        ctx.save_for_forward(positions)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        (positions,), (_, bins, _) = ctx.saved_tensors, ctx.scatter
        return gather_positions(gradient, positions, bins), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        return scatter_positions(tangent, *ctx.saved_tensors, *ctx.scatter)


def _gather_autograd(input: Tensor, positions: Tensor, bins: bool) -> Tensor:
    _check_gather(input, positions)
    if registration.records_derivative(input):
        return registration.apply(GatherPositions, input, positions, bins)
    with registration.below_autograd():
        return _gather_positions(input, positions, bins)


def _scatter_autograd(
    input: Tensor, positions: Tensor, spatial_sizes: Sequence[int], bins: bool, channels_last: bool
) -> Tensor:
    _check_scatter(input, positions, spatial_sizes, bins)
    if registration.records_derivative(input):
        return registration.apply(ScatterPositions, input, positions, spatial_sizes, bins, channels_last)
    with registration.below_autograd():
        return _scatter_positions(input, positions, spatial_sizes, bins, channels_last)


registration.differentiate(_gather_positions, _gather_autograd)
registration.differentiate(_scatter_positions, _scatter_autograd)
