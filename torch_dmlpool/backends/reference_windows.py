"""Reductions over sliding windows and bins in plain PyTorch, one axis at a time, for any device and symbolic sizes.

The last dimensions of a tensor are spatial; dimensions are counted from the end. A window over several axes is a window
over one axis after the other. Along an axis it is a tree of ``combine`` over its taps, or for larger windows over
blocks of 1, 2, 4, ... taps. Padding holds what never counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.window import Axis, Window

BLOCK = 2**18
"""Elements that a CPU pools at a time, so that intermediates stay in its cache."""
DIRECT_TAPS = 3
"""Taps up to which each is combined by itself; more are combined in blocks of 1, 2, 4, ... taps."""


class Reduction(NamedTuple):
    """What a window does with its elements."""

    fill: float
    """The element that never counts."""
    combine: Callable[[Tensor, Tensor], Tensor]
    """Earlier elements with later ones, one by one."""
    reduce: Callable[[Tensor, int], Tensor]
    """All elements along a dimension, which keeps the size 1."""
    last_axis_first: bool = False


def is_known(condition: bool) -> bool:
    """Whether a condition on sizes holds, for sure where they are symbolic."""
    if type(condition) is bool:
        return condition
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # takes long to import, and is there then

    return statically_known_true(condition)


def are_ints(*numbers: Any) -> bool:
    """Whether no number is symbolic."""
    return all(type(number) is int for number in numbers)


def pooled(source: Tensor, window: Window, reduction: Reduction) -> Tensor:
    """Every window of ``source``."""
    outputs = window.output_sizes(source.shape[-window.rank :])
    axes = list(zip(range(-window.rank, 0), window.axes, outputs, strict=True))
    for dim, axis, count in reversed(axes) if reduction.last_axis_first else axes:
        if covers(axis, source.shape[dim]):
            source = reduction.reduce(source, dim)
        else:
            source = slide(source, dim, axis, axis.first_position(0), count, reduction)
    return source


def covers(axis: Axis, size: int) -> bool:
    """Whether there is one window, which is the whole dimension without padding."""
    unpadded = are_ints(axis.start_padding, axis.end_padding) and axis.start_padding == axis.end_padding == 0
    return unpadded and is_known(axis.dilation == 1) and is_known(axis.window == size)


def slide(source: Tensor, dim: int, axis: Axis, first: int, outputs: int, reduction: Reduction) -> Tensor:
    """Windows ``0 … outputs - 1`` along ``dim``, of which window 0 has its first tap at position ``first``."""
    size, window, stride, dilation = source.shape[dim], axis.window, axis.stride, axis.dilation
    last = first + (outputs - 1) * stride + axis.extent
    if not are_ints(size, outputs):
        if type(first) is not int:
            return _gathered_windows(source, dim, axis, first, outputs, reduction)
        padded = _padded(source, dim, -first, torch.sym_max(0, last - size), reduction.fill)
        return _tree(reduction.combine, _taps(padded, dim, axis, outputs))
    if first == 0 and dilation == 1 and window == stride and last <= size:
        return reduction.reduce(source.narrow(dim, 0, last).unflatten(dim, (outputs, window)), dim).squeeze(dim)
    # Padding costs as much as it has elements: past that, taps inside the input are gathered.
    inside = outputs * min(window, -(-size // dilation))
    if last - first > 4 * max(size, inside) + 64 or first >= size or last <= 0:
        return _gathered_windows(source, dim, axis, first, outputs, reduction)
    source = _padded(source, dim, -first, last - size, reduction.fill)
    if window <= DIRECT_TAPS or window <= stride:
        return _tree(reduction.combine, _taps(source, dim, axis, outputs))
    result, behind, width = None, 0, 1
    while True:
        if window & width:
            block = _cut(source, dim, behind * dilation, outputs, stride)
            result = block if result is None else reduction.combine(result, block)
            behind += width
        if 2 * width > window:
            assert result is not None
            return result
        left = source.shape[dim] - width * dilation
        source = reduction.combine(source.narrow(dim, 0, left), source.narrow(dim, width * dilation, left))
        width *= 2


def _taps(padded: Tensor, dim: int, axis: Axis, outputs: int) -> list[Tensor]:
    return [_cut(padded, dim, tap * axis.dilation, outputs, axis.stride) for tap in range(axis.window)]


def _cut(tensor: Tensor, dim: int, start: int, outputs: int, stride: int) -> Tensor:
    # Indexing asks of symbolic sizes whether the slice ends inside, and a compiler would be held to the answer.
    cut: Tensor = torch.ops.aten.slice(tensor, dim, start, start + (outputs - 1) * stride + 1, stride)
    return cut


def _padded(tensor: Tensor, dim: int, before: int, after: int, fill: float) -> Tensor:
    if is_known(before == 0) and is_known(after == 0):
        return tensor
    # PyTorch asks whether padding is above 0: one element more is, whatever a symbolic size turns out to be.
    after = after if type(after) is int else after + 1
    return torch.nn.functional.pad(tensor, [0, 0] * (-dim - 1) + [before, after], value=fill)


def _tree(combine: Callable[[Tensor, Tensor], Tensor], parts: list[Tensor]) -> Tensor:
    """In pairs, earlier ones first: n of them are log n deep."""
    while len(parts) > 1:
        parts = [combine(*parts[i : i + 2]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    return parts[0]


def _gathered_windows(source: Tensor, dim: int, axis: Axis, first: int, outputs: int, reduction: Reduction) -> Tensor:
    """Each window from its first tap inside on, for as many taps as can lie inside."""
    size, dilation = source.shape[dim], axis.dilation
    count = max(1, min(axis.window, -(-size // dilation))) if type(size) is int else axis.window
    starts = numbers(outputs, source).unsqueeze(1) * axis.stride + first
    skipped = ((-starts).clamp(min=0) + dilation - 1).div(dilation, rounding_mode="floor")
    taps = skipped + numbers(count, source)
    index = starts + taps * dilation
    return _gathered(source, dim, index, (taps < axis.window) & (index < size), reduction)


def _gathered(source: Tensor, dim: int, index: Tensor, inside: Tensor, reduction: Reduction) -> Tensor:
    """The reduction of the elements at every row of ``index`` that are inside."""
    size = source.shape[dim]
    taps = source.index_select(dim, index.clamp(0, size - 1).flatten()).unflatten(dim, index.shape)
    taps = taps.masked_fill(~inside.view(*inside.shape, *(1 for _ in range(-dim - 1))), reduction.fill)
    return reduction.reduce(taps, dim).squeeze(dim)


def numbers(count: int, like: Tensor) -> Tensor:
    """0, 1, ... on the device of ``like``."""
    return torch.arange(count, dtype=torch.int64, device=like.device)


def spread(source: Tensor, dim: int, axis: Axis, size: int, reduction: Reduction) -> Tensor:
    """The adjoint of a sum over windows: for each of ``size`` elements the sum of the windows that read it."""
    outputs, stride, dilation = source.shape[dim], axis.stride, axis.dilation
    # Of the windows one after the other every so-manieth has a tap at the same element.
    common = math.gcd(stride, dilation)
    step = dilation // common
    count = -(-min(outputs, (axis.extent - 1) // stride + 1) // step)
    length = (outputs - 1) * stride + axis.extent
    if length <= 4 * max(outputs, size * count) + 64:
        if stride > 1:
            stretched = _padded(source.unsqueeze(dim), dim, 0, stride - 1, 0).flatten(dim - 1, dim)
            source = stretched.narrow(dim, 0, (outputs - 1) * stride + 1)
        reverse = Axis(axis.window, 1, 0, 0, dilation, False)
        return slide(source, dim, reverse, axis.start_padding - axis.extent + 1, size, reduction)
    padded = numbers(size, source).unsqueeze(1) + axis.start_padding
    residue = padded.div(common, rounding_mode="floor") % step * pow(stride // common, -1, step) % step
    lowest = (padded - axis.extent + stride).div(stride, rounding_mode="floor").clamp(min=0)
    index = lowest + (residue - lowest) % step + numbers(count, source) * step
    inside = (padded % common == 0) & (index * stride <= padded) & (index < outputs)
    return _gathered(source, dim, index, inside, reduction)


def binned(source: Tensor, output_sizes: Sequence[int], reduction: Reduction) -> Tensor:
    """Bins for windows: of n over a size, bin ``i`` reads ``floor(i · size / n)`` to ``ceil((i + 1) · size / n)``."""
    axes = list(enumerate(output_sizes, -len(output_sizes)))
    for dim, outputs in reversed(axes) if reduction.last_axis_first else axes:
        size = source.shape[dim]
        if size == outputs:
            continue
        starts, stops = bin_ends(size, outputs, source)
        if size % outputs == 0:
            source = reduction.reduce(source.unflatten(dim, (outputs, size // outputs)), dim).squeeze(dim)
        else:
            index = starts.unsqueeze(1) + numbers(-(-size // outputs) + 1, source)
            source = _gathered(source, dim, index, index < stops.unsqueeze(1), reduction)
    return source


def bin_ends(size: int, outputs: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Where each bin starts, and where the first element after it lies."""
    products = numbers(outputs + 1, like) * size
    return (
        products[:-1].div(outputs, rounding_mode="floor"),
        (products[1:] + outputs - 1).div(outputs, rounding_mode="floor"),
    )


# Sums.


def _sum(source: Tensor, dim: int) -> Tensor:
    """By halves, which is as deep as a tree, and the same in every layout and for every number of threads."""
    length = source.shape[dim]
    if type(length) is not int or not source.dtype.is_floating_point:
        return source.sum(dim, keepdim=True, dtype=source.dtype)
    rest = None
    while length > 1:
        half = length // 2
        if length % 2:
            last = source.narrow(dim, length - 1, 1)
            rest = last if rest is None else last + rest
        source, length = source.narrow(dim, 0, half) + source.narrow(dim, half, half), half
    return source if rest is None else source + rest


SUM = Reduction(0, torch.add, _sum)


# A few planes at a time.


def in_blocks(function: Callable[..., Any], *tensors: Tensor) -> Any:
    """``function`` of tensors ``(N, C, ...)``, on a CPU of a few planes (samples in channels_last) at a time.

    It sees tensors without their first dimension where planes are cut, and must ask for dimensions from the end alone.
    """
    first = tensors[0]
    if not first.is_cpu or type(first) not in (Tensor, torch.nn.Parameter) or first.numel() <= BLOCK:
        return function(*tensors)
    cuts_planes = not all(operands.is_channels_last(tensor) for tensor in tensors)
    if cuts_planes:
        tensors = tuple(tensor.flatten(0, 1) for tensor in tensors)
    step = max(1, BLOCK // max(math.prod(tensor.shape[1:]) for tensor in tensors))
    pieces = [function(*block) for block in _blocks(tensors, step)]

    def joined(parts: Sequence[Tensor]) -> Tensor:
        whole = parts[0] if len(parts) == 1 else torch.cat(tuple(parts))
        return whole.unflatten(0, first.shape[:2]) if cuts_planes else whole

    return joined(pieces) if isinstance(pieces[0], Tensor) else tuple(map(joined, zip(*pieces, strict=True)))


def _blocks(tensors: Sequence[Tensor], step: int) -> Iterator[list[Tensor]]:
    for start in range(0, tensors[0].shape[0], step):
        yield [tensor[start : start + step] for tensor in tensors]


def laid_out(tensor: Tensor, memory_format: torch.memory_format) -> Tensor:
    """``tensor`` in a memory format, with the very strides of a new tensor where sizes are known."""
    if are_ints(*tensor.shape):
        return operands.settled(tensor, memory_format)
    return tensor.contiguous(memory_format=memory_format)


def laid_out_like(tensor: Tensor, like: Tensor) -> Tensor:
    """``tensor`` in the memory format that PyTorch suggests for results computed from ``like`` (rule G7)."""
    return laid_out(tensor, operands.suggested_memory_format(like))
