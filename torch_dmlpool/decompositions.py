"""The operators taken apart into PyTorch's own, for programs that must run without this package.

An exported program names the operators it calls, and loads only where this package is imported. Taken apart, it is
plain ATen: slices of the padded input, one for each tap along an axis, combined in pairs; a compiler fuses them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torch_dmlpool import operands
from torch_dmlpool.window import AXIS_NAMES, Axis, Window

__all__ = ["decompositions"]

_COMPARED = (*operands.FLOAT_TYPES, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
"""What ATen can compare."""


def decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """Give a table for ``ExportedProgram.run_decompositions`` that takes the pooling operators apart.

    Returns:
        A decomposition for each operator of averages, maxima, maxima with indices and quantized averages. Results are
        the operators' own: maxima, indices and quantized averages equal them, averages but for the order of their sums.
        p-norms and unpooling are made of other operators: the decompositions that PyTorch adds by default take them
        apart. Maxima of unsigned integers wider than 8 bits, which ATen cannot compare, stay operators.

    Raises:
        ValueError: While a program is taken apart: a window that depends on dynamic sizes, unless it covers the whole
            dimension without padding.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> from torch_dmlpool.decompositions import decompositions
        >>> layer = dmlpool.nn.MaxPool2d(3, 2, padding="same").eval()
        >>> program = torch.export.export(layer, (torch.ones(1, 3, 8, 8),)).run_decompositions(decompositions())
        >>> [node.name for node in program.graph.nodes if "dmlpool" in str(node.target)]
        []

    """
    operators = torch.ops.dmlpool
    return {
        operators.average_pooling.default: _average_pooling,
        operators.max_pooling.default: _max_pooling,
        operators.max_pooling_with_indices.default: _max_pooling_with_indices,
        operators.quantized_linear_average_pooling.default: _quantized_linear_average_pooling,
    }


def _average_pooling(input: Tensor, *arguments: Any) -> Tensor:
    *window_arguments, include_padding, divisor = arguments
    window = _window(input, window_arguments)
    wide = input.float() if input.dtype.itemsize == 2 else input
    counts = _counts(window, input, include_padding) if divisor is None else divisor
    return (_sums(wide, window) / counts).to(input.dtype)


def _max_pooling(input: Tensor, *arguments: Any) -> Tensor:
    if input.dtype not in _COMPARED:
        return NotImplemented
    window = _window(input, arguments)
    maxima = _padded(input, window, _lowest(input.dtype))
    for dimension, axis in enumerate(window.axes, 2):
        if _covers(axis, input.shape[dimension]):
            maxima = maxima.amax(dimension, keepdim=True)
        else:
            slices = _slices(maxima, dimension, axis, axis.output_size(input.shape[dimension]))
            maxima = _combined(torch.maximum, slices)
    return maxima


def _max_pooling_with_indices(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    *window_arguments, index_dtype, per_plane = arguments
    if input.dtype not in _COMPARED:
        return NotImplemented
    window = _window(input, window_arguments)
    sizes = input.shape[2:]
    plane = math.prod(sizes)
    positions = torch.arange(plane, device=input.device).view(1, 1, *sizes)
    values = _padded(input, window, _lowest(input.dtype))
    # Padding has no position, and never wins (rule M1).
    positions = _padded(positions, window, -1)
    # Along the last axis first: of equal maxima the first of the first row is the lowest index (rule M2).
    for dimension in range(input.dim() - 1, 1, -1):
        axis = window.axes[dimension - 2]
        along = (dimension, axis, axis.output_size(input.shape[dimension]))
        pairs = list(zip(_slices(values, *along), _slices(positions, *along), strict=True))
        values, positions = _combined(_first_maximum, pairs)
    if not per_plane:
        samples, channels = input.shape[:2]
        planes = torch.arange(samples * channels, device=input.device).view(samples, channels, *(1 for _ in sizes))
        positions = torch.where(positions < 0, positions, positions + planes * plane)
    return values, positions.expand(values.shape).to(index_dtype)


def _first_maximum(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    greater = second[0] > first[0]
    if first[0].dtype.is_floating_point:
        greater = greater | (second[0].isnan() & ~first[0].isnan())
    better = (second[1] >= 0) & (greater | (first[1] < 0))
    values, positions = (torch.where(better, *pair) for pair in zip(second, first, strict=True))
    return values, positions


def _quantized_linear_average_pooling(
    input: Tensor,
    input_scale: Tensor,
    input_zero_point: Tensor | None,
    output_scale: Tensor,
    output_zero_point: Tensor | None,
    *arguments: Any,
) -> Tensor:
    *window_arguments, include_padding, output_dtype = arguments
    window = _window(input, window_arguments)

    def spread(parameter: Tensor) -> Tensor:
        return parameter.view(1, -1, *(1 for _ in window.axes))

    differences = input.to(torch.int32)
    if input_zero_point is not None:
        differences = differences - spread(input_zero_point).to(torch.int32)
    # Sums are exact, products of them with scales too, and float64 holds their quotient far enough to tell a half.
    numerator = _sums(differences, window).double() * spread(input_scale).double()
    quotient = numerator / (_counts(window, input, include_padding, torch.float64) * spread(output_scale).double())
    rounded = quotient.round()
    if output_zero_point is not None:
        rounded = rounded + spread(output_zero_point)
    bounds = torch.iinfo(output_dtype)
    return rounded.clamp(bounds.min, bounds.max).to(output_dtype)


def _window(input: Tensor, arguments: Sequence[Any]) -> Window:
    window = Window.directml(input.dim() - 2, *arguments)
    window.output_sizes(input.shape[2:])
    for axis, size, name in zip(window.axes, input.shape[2:], AXIS_NAMES[window.rank], strict=True):
        if type(axis.window) is not int and not _covers(axis, size):
            raise ValueError(
                f"window_size depends on dynamic sizes in spatial dimension {name}: it can be taken apart if it is a "
                f"number, or if it covers the whole dimension without padding"
            )
    return window


def _covers(axis: Axis, size: int) -> bool:
    """Whether there is one window, which is the whole dimension."""
    return not (_is_some(axis.start_padding) or _is_some(axis.end_padding)) and statically_known_true(
        axis.extent == size
    )


def _is_some(padding: int) -> bool:
    return type(padding) is not int or padding != 0


def _lowest(dtype: torch.dtype) -> float:
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _padded(tensor: Tensor, window: Window, fill: float) -> Tensor:
    """``tensor`` with as many elements as all windows together span, or more."""
    pads: list[int] = []
    for axis, size in zip(window.axes, tensor.shape[2:], strict=True):
        if _covers(axis, size):
            start = end = 0
        else:
            start = axis.start_padding
            last = axis.first_position(axis.output_size(size) - 1) + axis.extent
            end = torch.sym_max(0, last - size)
        # PyTorch asks whether padding is above 0, and would hold a program to the answer. One more element is.
        pads = [*(pad if type(pad) is int else pad + 1 for pad in (start, end)), *pads]
    return torch.nn.functional.pad(tensor, pads, value=fill) if any(map(_is_some, pads)) else tensor


def _slices(padded: Tensor, dimension: int, axis: Axis, outputs: int) -> list[Tensor]:
    """For each tap along an axis, what it reads."""
    starts = [tap * axis.dilation for tap in range(axis.window)]
    if type(axis.start_padding) is not int or type(axis.end_padding) is not int:
        # Of a slice PyTorch asks whether it ends inside. The padding has one element more, see there.
        first = torch.arange(outputs, device=padded.device) * axis.stride
        first = first if type(axis.start_padding) is int else first + 1
        return [padded.index_select(dimension, first + start) for start in starts]
    span = (outputs - 1) * axis.stride + 1
    return [torch.ops.aten.slice(padded, dimension, start, start + span, axis.stride) for start in starts]


def _combined(combine: Callable[[Any, Any], Any], parts: Sequence[Any]) -> Any:
    """All of ``parts`` in their order, combined in pairs: a sum of n has log n roundings, as rule E6 wants."""
    while len(parts) > 1:
        pairs = [combine(*parts[index : index + 2]) for index in range(0, len(parts) - 1, 2)]
        parts = [*pairs, *parts[len(pairs) * 2 :]]
    return parts[0]


def _sums(input: Tensor, window: Window) -> Tensor:
    sums = _padded(input, window, 0)
    for dimension, axis in enumerate(window.axes, 2):
        size = input.shape[dimension]
        if _covers(axis, size):
            sums = sums.sum(dimension, keepdim=True, dtype=sums.dtype)
        else:
            sums = _combined(torch.add, _slices(sums, dimension, axis, axis.output_size(size)))
    return sums


def _counts(window: Window, input: Tensor, include_padding: bool, dtype: torch.dtype | None = None) -> Any:
    """Taps that each window counts, at least 1 (rules A1 to A3): a number where all have as many."""
    counts: list[Any] = []
    for axis, size in zip(window.axes, input.shape[2:], strict=True):
        is_padded = _is_some(axis.start_padding) or _is_some(axis.end_padding)
        if not axis.ceil_mode and (include_padding or not is_padded):
            counts.append(axis.window)
            continue
        first = torch.arange(axis.output_size(size), device=input.device) * axis.stride - axis.start_padding

        def before(bound: int, axis: Axis = axis, first: Tensor = first) -> Tensor:
            reached = (bound - first + axis.dilation - 1).div(axis.dilation, rounding_mode="floor")
            return reached.clamp(0, axis.window)

        counted = before(size + axis.end_padding) if include_padding else before(size) - before(0)
        counts.append(counted.view(-1, *(1 for _ in window.axes[len(counts) + 1 :])))
    product = functools.reduce(lambda before, along: before * along, counts)
    if not isinstance(product, Tensor):
        return product
    wide = torch.float64 if input.dtype is torch.float64 else torch.float32
    return product.clamp(min=1).to(dtype or wide)
