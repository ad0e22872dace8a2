"""Adaptive averages and maxima: every bin's elements side by side, then reduced. ONNX has no bins of uneven sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool.onnx.lowering import Emitter, spatial_sizes
from torch_dmlpool.onnx.maxima import float_types, greatest, reduced_type


def adaptive_average_pooling(emit: Emitter, input: Any, output_sizes: Sequence[Any]) -> Any:
    op = emit.op
    wide, dtype = emit.widened(input)
    positions, counts = _bins(input, output_sizes)
    inside = torch.arange(positions.shape[1], dtype=torch.int64, device="cpu") < counts[:, None]
    elements = op.Where(
        emit.constant(inside.numpy(), emit.ir.DataType.BOOL),
        _elements(emit, wide, positions),
        emit.constant(0.0, dtype),
    )
    sums = op.ReduceSum(elements, emit.integers([-1]), keepdims=0)
    averages = op.Div(sums, emit.constant(counts.double().numpy(), dtype))
    return emit.cast(_shaped(emit, averages, output_sizes), dtype, input.dtype)


def adaptive_max_pooling(emit: Emitter, input: Any, output_sizes: Sequence[Any]) -> tuple[Any, Any]:
    """Maxima, and the positions of the first of them in their planes."""
    op, types = emit.op, emit.ir.DataType
    dtype = reduced_type(emit, input.dtype)
    positions, _ = _bins(input, output_sizes)
    elements = _elements(emit, emit.cast(input, input.dtype, dtype), positions)
    values, first = greatest(emit, elements, dtype, input.dtype in float_types(emit))
    outputs, most = positions.shape
    rows = emit.integers((torch.arange(outputs, dtype=torch.int64, device="cpu") * most).numpy())
    chosen = op.Gather(emit.integers(positions.flatten().numpy()), op.Add(first, rows))
    narrow = types.INT32 if math.prod(spatial_sizes(input)) < 2**31 else types.INT64
    return (
        emit.cast(_shaped(emit, values, output_sizes), dtype, input.dtype),
        emit.cast(_shaped(emit, chosen, output_sizes), types.INT64, narrow),
    )


def _bins(input: Any, output_sizes: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Positions of each bin's elements in their plane, filled up with the first one, and how many there are."""
    sizes = spatial_sizes(input)
    if None in sizes or not all(isinstance(size, int) for size in output_sizes):
        raise ValueError(
            f"adaptive pooling of spatial sizes {tuple(input.shape[2:])} to {tuple(output_sizes)} has windows that "
            f"depend on dynamic sizes: export with spatial sizes that are not dynamic, or pool to size 1"
        )
    bins = [[0]]
    for size, outputs in zip(sizes, output_sizes, strict=True):
        along = [range(bin * size // outputs, -(-(bin + 1) * size // outputs)) for bin in range(outputs)]
        bins = [
            [before * size + position for before in outer for position in inner]
            for outer, inner in itertools.product(bins, along)
        ]
    most = max(map(len, bins))
    positions = torch.tensor([[*bin, *bin[:1] * (most - len(bin))] for bin in bins], dtype=torch.int64, device="cpu")
    return positions, torch.tensor([len(bin) for bin in bins], dtype=torch.int64, device="cpu")


def _elements(emit: Emitter, input: Any, positions: Tensor) -> Any:
    """``(N, C, bins, elements)``."""
    planes = emit.op.Reshape(input, emit.integers([0, 0, -1]))
    return emit.op.Gather(planes, emit.integers(positions.numpy()), axis=2)


def _shaped(emit: Emitter, flat: Any, output_sizes: Sequence[int]) -> Any:
    # One -1, because PyTorch's older exporter fails on shapes that copy sizes and have none.
    return emit.op.Reshape(flat, emit.integers([0, -1, *output_sizes]))
