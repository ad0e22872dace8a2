"""Adaptive pooling, and elements by their positions, in Triton: allocate, choose the launch, launch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends import triton_launches


def adaptive_average_pooling(input: Tensor, output_sizes: Sequence[int]) -> Tensor:
    """Averages of bins, axis by axis."""
    return _averages(input, output_sizes, adjoint=False)


def adaptive_average_pooling_grad(input_gradient: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """The adjoint: gradients divided by their bins' elements, summed over the bins that hold an element."""
    return _averages(input_gradient, spatial_sizes, adjoint=True)


def _averages(source: Tensor, target_sizes: Sequence[int], adjoint: bool) -> Tensor:
    from torch_dmlpool.kernels import adaptive_pooling as kernels
    from torch_dmlpool.kernels import bins_launch

    memory_format = operands.suggested_memory_format(source)
    target = operands.empty((*source.shape[:2], *target_sizes), source, memory_format)
    if target.numel() == 0:
        return target
    source = source.resolve_neg()  # kernels read raw memory
    channels_last = memory_format is not torch.contiguous_format
    passes = bins_launch.bin_passes(
        tuple(source.shape), source.stride(), tuple(target_sizes), channels_last, {"ADJOINT": adjoint}
    )
    accumulated = torch.float64 if source.dtype is torch.float64 else torch.float32
    for step in passes:
        last = step is passes[-1]
        result = target if last else torch.empty(step.elements, dtype=accumulated, device=source.device)
        triton_launches.launch(kernels.sum_bins, step.launch, source, result)
        source = result
    return target


def adaptive_max_pooling(input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Maxima of bins and their positions, axis by axis."""
    from torch_dmlpool.kernels import adaptive_pooling as kernels
    from torch_dmlpool.kernels import bins_launch

    memory_format = operands.suggested_memory_format(input)
    sizes = (*input.shape[:2], *output_sizes)
    values = operands.empty(sizes, input, memory_format)
    positions = operands.empty(sizes, input, memory_format, operands.position_dtype(math.prod(input.shape[2:])))
    if values.numel() == 0:
        return values, positions
    source = input.resolve_neg()
    found = positions
    channels_last = memory_format is not torch.contiguous_format
    passes = bins_launch.bin_passes(
        tuple(source.shape), source.stride(), tuple(output_sizes), channels_last, {}, with_steps=True
    )
    for step in passes:
        if step is passes[-1]:
            result, result_positions = values, positions
        else:
            result = torch.empty(step.elements, dtype=input.dtype, device=input.device)
            result_positions = torch.empty(step.elements, dtype=positions.dtype, device=input.device)
        triton_launches.launch(kernels.max_bins, step.launch, source, found, result, result_positions)
        source, found = result, result_positions
    return values, positions


def unique_positions(positions: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """Positions inside the plane; of several alike the one that comes last in row-major order."""
    from torch_dmlpool.kernels import bins_launch
    from torch_dmlpool.kernels import max_unpooling as kernels

    plane = math.prod(spatial_sizes)
    dtype = operands.position_dtype(plane)
    unique = torch.empty(positions.shape, dtype=dtype, device=positions.device)
    if unique.numel() > 0:
        planes, outputs = math.prod(positions.shape[:2]), math.prod(positions.shape[2:])
        dense = positions.contiguous()
        winners = torch.full((planes * plane,), -1, dtype=operands.position_dtype(outputs), device=positions.device)
        launch = bins_launch.unique_launch(planes, outputs, plane)
        triton_launches.launch(kernels.claim, launch, dense, winners)
        triton_launches.launch(kernels.settle, launch, dense, winners, unique)
    return operands.settled(unique, operands.suggested_memory_format(positions))


def gather_positions(input: Tensor, positions: Tensor) -> Tensor:
    """The element at each position, 0 where it lies outside the plane."""
    gathered = operands.empty(positions.shape, input, operands.suggested_memory_format(positions))
    return _move(input.resolve_neg(), positions, gathered, scatter=False)


def scatter_positions(
    input: Tensor, positions: Tensor, spatial_sizes: Sequence[int], bins: bool, channels_last: bool
) -> Tensor:
    """Zeros with each element at its position; those of ``bins`` may meet, and are added up element by element."""
    from torch_dmlpool.kernels import adaptive_pooling as kernels
    from torch_dmlpool.kernels import bins_launch

    memory_format = operands.named_memory_format(channels_last, len(spatial_sizes))
    scattered = operands.empty((*input.shape[:2], *spatial_sizes), input, memory_format)
    input = input.resolve_neg()  # kernels read raw memory
    if not bins:
        return _move(input, positions, scattered.zero_(), scatter=True)
    if scattered.numel() > 0:
        launch = bins_launch.bins_gradient(
            tuple(input.shape), input.stride(), positions.stride(), tuple(spatial_sizes), channels_last
        )
        triton_launches.launch(kernels.grad_bins, launch, input, positions, scattered)
    return scattered


def _move(source: Tensor, positions: Tensor, target: Tensor, *, scatter: bool) -> Tensor:
    from torch_dmlpool.kernels import bins_launch
    from torch_dmlpool.kernels import max_unpooling as kernels

    if positions.numel() > 0:
        sizes = (target if scatter else source).shape[2:]
        launch = bins_launch.move_launch(
            tuple(positions.shape), tuple(sizes), source.stride(), positions.stride(), target.stride(), scatter
        )
        triton_launches.launch(kernels.move_positions, launch, source, positions, target)
    return target
