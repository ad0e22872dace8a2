"""Adaptive pooling in plain PyTorch: axis by axis every bin's elements are lined up, then reduced together."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends import memory
from torch_dmlpool.backends.threads import considerate
from torch_dmlpool.backends.torch_positions import plane_blocks, signed_view


class Bins(NamedTuple):
    """The bins along one axis, each given as many places as the widest needs."""

    places: Tensor
    """``(outputs, widest)``: the element of each place; places past a bin's end name some element."""
    beyond: Tensor | None
    """Which places lie past their bin's end, where any does."""
    widths: Tensor
    """Elements of each bin."""


@functools.lru_cache(maxsize=128)
def bins_of(size: int, outputs: int, device: torch.device) -> Bins:
    """The bins of ``outputs`` windows over ``size`` elements."""
    numbers = torch.arange(outputs)
    starts = (numbers * size).div_(outputs, rounding_mode="floor")
    widths = -((numbers + 1).mul_(-size).div_(outputs, rounding_mode="floor")) - starts
    place = torch.arange(int(widths.max()))
    beyond = place >= widths.unsqueeze(1)
    places = (starts.unsqueeze(1) + place).clamp_(max=size - 1)
    return Bins(places.to(device), beyond.to(device) if bool(beyond.any()) else None, widths.to(device))


@considerate
def adaptive_average_pooling(input: Tensor, output_sizes: Sequence[int]) -> Tensor:
    """Sums of bins, divided once."""
    return _averages(input, output_sizes, adjoint=False)


@considerate
def adaptive_average_pooling_grad(input_gradient: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """The adjoint: gradients divided by their bins' elements, then summed over the bins that read an element."""
    if input_gradient.is_cpu and input_gradient.dtype.itemsize >= 4 and input_gradient.numel() > 0:
        return _gradient_by_aten(input_gradient, spatial_sizes)
    return _averages(input_gradient, spatial_sizes, adjoint=True)


def _gradient_by_aten(input_gradient: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """ATen's loop, which adds each bin's share to its elements in a fixed order; of the input it reads sizes alone."""
    memory_format = operands.suggested_memory_format(input_gradient)
    input = memory.empty((*input_gradient.shape[:2], *spatial_sizes), input_gradient, memory_format)
    rank = len(spatial_sizes)
    if rank == 3:
        spread = torch.ops.aten._adaptive_avg_pool3d_backward(input_gradient, input)
    elif rank == 2:
        spread = torch.ops.aten._adaptive_avg_pool2d_backward(input_gradient, input)
    else:
        planes = input_gradient.unsqueeze(2), input.unsqueeze(2)
        spread = torch.ops.aten._adaptive_avg_pool2d_backward(*planes).squeeze(2)
    return operands.settled(spread, memory_format)


def _averages(source: Tensor, target_sizes: Sequence[int], adjoint: bool) -> Tensor:
    memory_format = operands.suggested_memory_format(source)
    target = memory.empty((*source.shape[:2], *target_sizes), source, memory_format)
    dtype = torch.float64 if source.dtype is torch.float64 else torch.float32
    pairs = list(zip(source.shape[2:], target_sizes, strict=True))
    counts = [bins_of(*(pair[::-1] if adjoint else pair), source.device).widths for pair in pairs]
    divisor = functools.reduce(lambda left, right: left.unsqueeze(-1) * right, counts).to(dtype)
    first = 2
    if memory_format is not torch.contiguous_format:
        # Whole vectors of channels are lined up then.
        source, target_view, first = source.movedim(1, -1), target.movedim(1, -1), 1
        divisor = divisor.unsqueeze(-1)
    else:
        target_view = target
    plane = max(math.prod(source.shape[first:]), math.prod(target_view.shape[first:])) // (
        1 if first == 2 else max(1, target.shape[1])
    )
    for samples, channels in plane_blocks(target.shape[0], target.shape[1], plane):
        block = (samples, channels) if first == 2 else (samples, ..., channels)
        sums = source[block].to(dtype)
        if adjoint:
            sums = sums / divisor
        for axis, pair in enumerate(pairs):
            sums = _bin_sums(sums, first + axis, *pair)
        target_view[block] = sums if adjoint else sums / divisor
    return target


def _bin_sums(source: Tensor, dimension: int, size: int, outputs: int) -> Tensor:
    """Sums of the bins along one dimension, as trees: an element passes through few additions."""
    if size == outputs:
        return source
    lined_up = _lined_up(source, dimension, size, outputs, 0)
    left = lined_up.shape[dimension + 1]
    while left > 1:
        half = left // 2
        lower = lined_up.narrow(dimension + 1, 0, half)
        lower += lined_up.narrow(dimension + 1, left - half, half)
        left -= half
    return lined_up.select(dimension + 1, 0)


def _lined_up(source: Tensor, dimension: int, size: int, outputs: int, fill: float) -> Tensor:
    """The elements of each bin in a new dimension after ``dimension``, with ``fill`` past its end."""
    bins = bins_of(size, outputs, source.device)
    lined_up = source.index_select(dimension, bins.places.flatten()).unflatten(dimension, bins.places.shape)
    if bins.beyond is not None:
        beyond = bins.beyond.view(*bins.beyond.shape, *(1 for _ in range(source.dim() - dimension - 1)))
        lined_up.masked_fill_(beyond, fill)
    return lined_up


@considerate
def adaptive_max_pooling(input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Maxima of bins and their positions in the plane; along every axis the first of several wins (rules M2, M3)."""
    if input.is_cpu and input.dtype.is_floating_point and input.numel() > 0:
        values, positions = _maxima_by_aten(input, output_sizes)
        # Of several NaNs ATen takes the last.
        if not math.isnan(values.sum().item()):
            return values, positions
    memory_format = operands.suggested_memory_format(input)
    sizes = (*input.shape[:2], *output_sizes)
    values = memory.empty(sizes, input, memory_format)
    plane = math.prod(input.shape[2:])
    positions = memory.empty(sizes, input, memory_format, operands.position_dtype(plane))
    source, target = signed_view(input), signed_view(values)
    # Unsigned numbers that are read as signed ones keep their order with the highest bit changed.
    flipped = source.dtype is not input.dtype
    lowest = -math.inf if input.dtype.is_floating_point else torch.iinfo(source.dtype).min
    spatial_sizes = input.shape[2:]
    for block in plane_blocks(input.shape[0], input.shape[1], max(plane, math.prod(output_sizes))):
        maxima = source[block] ^ torch.iinfo(source.dtype).min if flipped else source[block]
        winners = torch.zeros((), dtype=torch.int64, device=input.device)
        for axis in reversed(range(len(spatial_sizes))):
            dimension, step = 2 + axis, math.prod(spatial_sizes[axis + 1 :])
            size, outputs = spatial_sizes[axis], output_sizes[axis]
            maxima, chosen = _lined_up(maxima, dimension, size, outputs, lowest).max(dimension + 1)
            bins = bins_of(size, outputs, input.device)
            starts = bins.places[:, 0].view(-1, *(1 for _ in range(len(spatial_sizes) - axis - 1)))
            along = (chosen + starts) * step
            if winners.dim() > 0:
                lined_up = _lined_up(winners, dimension, size, outputs, 0)
                along += lined_up.gather(dimension + 1, chosen.unsqueeze(dimension + 1)).squeeze(dimension + 1)
            winners = along
        target[block] = maxima ^ torch.iinfo(source.dtype).min if flipped else maxima
        positions[block] = winners
    return values, positions


def _maxima_by_aten(input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """ATen's loop over each bin, in row-major order: the first of equals."""
    memory_format = operands.suggested_memory_format(input)
    if len(output_sizes) == 1:
        both = torch.ops.aten.adaptive_max_pool2d(input.unsqueeze(2), [1, *output_sizes])
        values, positions = (tensor.squeeze(2) for tensor in both)
    elif len(output_sizes) == 2:
        values, positions = torch.ops.aten.adaptive_max_pool2d(input, list(output_sizes))
    else:
        values, positions = torch.ops.aten.adaptive_max_pool3d(input, list(output_sizes))
    positions = positions.to(operands.position_dtype(math.prod(input.shape[2:])))
    return operands.settled(values, memory_format), operands.settled(positions, memory_format)
