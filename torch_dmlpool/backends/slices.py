"""Windows as slices of a tensor, for the plain PyTorch backend, where sizes are known and windows
small.

    input along an axis   0 1 2 3 4 5 6     window 3, stride 2
    tap 0                 0   2   4         input[0::2]
    tap 1                   1   3   5       input[1::2]
    tap 2                     2   4   6     input[2::2]

A slice is a view, so that each tap costs one pass over the results and no table of positions. A
gradient goes the other way: each tap adds the results' slice into the input's.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import tensors
from torch_dmlpool.backends import reductions
from torch_dmlpool.backends.interface import AnyWindow
from torch_dmlpool.backends.reductions import SUM, Reduction, Tensors, are_ints, covers, is_unpadded
from torch_dmlpool.window import Axis, Window

LARGEST_WINDOW = 32
"""For larger windows ``reductions.reduced``, whose passes grow with the logarithm of the window, is
as fast."""

MANY, ROWS = 128, 8
"""Sums of at least MANY elements first add ROWS at a time in float32, then in float64: that is
faster than float64 alone."""


def tile(axis: Axis, size: int) -> int:
    """The length of windows that lie side by side and fill the known size; 0 if they do not."""
    if not are_ints(size, axis.window, axis.stride, axis.dilation) or not is_unpadded(axis):
        return 0
    is_tiled = axis.window == axis.stride and axis.dilation == 1 and size % axis.window == 0
    return axis.window if is_tiled else 0


def is_sliceable(axis: Axis, size: int) -> bool:
    """Whether slices are faster than :func:`reductions.reduced` for the windows along an axis."""
    if not are_ints(size, axis.window, axis.stride, axis.start_padding, axis.end_padding):
        return False
    padded = size + axis.start_padding + axis.end_padding
    return axis.window <= LARGEST_WINDOW and padded + axis.extent <= 2 * size + 64


def sliced(tensors: Tensors, dim: int, axis: Axis, reduction: Reduction) -> Tensors:
    """Every window along ``dim`` reduced: tap by tap, or by doubling windows where that takes fewer
    passes. Sums have the depth of a tree.
    """
    size = tensors[0].shape[dim]
    outputs = axis.output_size(size)
    tensors = tuple(
        _padded(tensor, dim, axis, outputs, fill)
        for tensor, fill in zip(tensors, reduction.fills, strict=True)
    )

    def taps(level: Tensors, tap: int) -> Tensors:
        first = tap * axis.dilation
        end = first + (outputs - 1) * axis.stride + 1
        return tuple(_slice(each, dim, first, end, axis.stride) for each in level)

    # Either each tap is a slice, or windows of 1, 2, 4, ... taps are made at every position.
    passes = (axis.window.bit_length() - 1) * axis.stride + axis.window.bit_count() - 1
    if axis.window - 1 <= passes:
        return _tree([taps(tensors, tap) for tap in range(axis.window)], reduction)
    result, tap, width = None, 0, 1
    while True:
        if axis.window & width:
            block = taps(tensors, tap)
            result = block if result is None else reduction.combine(result, block)
            tap += width
        if 2 * width > axis.window:
            return result  # type: ignore[return-value]
        step, length = width * axis.dilation, tensors[0].shape[dim]
        earlier = tuple(each.narrow(dim, 0, length - step) for each in tensors)
        later = tuple(each.narrow(dim, step, length - step) for each in tensors)
        tensors = reduction.combine(earlier, later)
        width *= 2


def _tree(parts: list[Tensors], reduction: Reduction) -> Tensors:
    """All parts combined in pairs, the earlier one first."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        odd = parts[len(parts) // 2 * 2 :]
        parts = [reduction.combine(*pair) for pair in pairs] + odd
    return parts[0]


def _slice(tensor: Tensor, dim: int, start: int, end: int, step: int) -> Tensor:
    return torch.ops.aten.slice.Tensor(tensor, dim, start, end, step)


def _padded(tensor: Tensor, dim: int, axis: Axis, outputs: int, fill: float) -> Tensor:
    """``tensor`` padded with ``fill`` at both ends, as far as windows reach."""
    size = tensor.shape[dim]
    after = (outputs - 1) * axis.stride + axis.extent - axis.start_padding - size
    if axis.start_padding <= 0 and after <= 0:
        return tensor

    def filled(count: int) -> list[Tensor]:
        shape = list(tensor.shape)
        shape[dim] = count
        return [tensor.new_full((1,), fill).expand(shape)] if count > 0 else []

    return torch.cat([*filled(axis.start_padding), tensor, *filled(after)], dim)


def pooled(values: Tensors, windows: AnyWindow, reduction: Reduction) -> Tensors:
    """Every window, or every bin, in the way that suits its sizes."""
    parts = reductions.parts(windows)
    sizes = values[0].shape[2:]
    # Channels become the last dimension in channels_last, so that passes read memory in order.
    moves = are_ints(*values[0].shape) and tensors.is_channels_last(values[0])
    if moves:
        values = tuple(each.movedim(1, -1) for each in values)
    first = 1 if moves else 2
    if covers_all(windows, sizes):  # one dimension is reduced faster than several
        flat = tuple(each.flatten(first, first + len(parts) - 1) for each in values)
        results = _reduced(flat, first, reduction)
        values = tuple(each.unflatten(first, [1] * len(parts)) for each in results)
    else:
        for dim, (part, size) in enumerate(zip(parts, sizes, strict=True), first):
            values = _pooled_along(dim, part, size, values, reduction)
    return tuple(each.movedim(-1, 1) for each in values) if moves else values


def _pooled_along(
    dim: int, part: Axis | int, size: int, tensors: Tensors, reduction: Reduction
) -> Tensors:
    if isinstance(part, Axis):
        if covers(part, size):
            return _reduced(tensors, dim, reduction)
        length = tile(part, size)
        if length > 4:
            parts = tuple(each.unflatten(dim, (-1, length)) for each in tensors)
            return tuple(each.squeeze(dim + 1) for each in _reduced(parts, dim + 1, reduction))
        if is_sliceable(part, size):
            return sliced(tensors, dim, part, reduction)
    return reductions.reduced(tensors, dim, reductions.read_by(part, size, tensors[0]), reduction)


def _reduced(tensors: Tensors, dim: int, reduction: Reduction) -> Tensors:
    """The whole dimension, which keeps the size 1."""
    is_sum = reduction is SUM and are_ints(tensors[0].shape[dim])
    return (sum_of(tensors[0], dim),) if is_sum else reduction.whole(tensors, dim)


def covers_all(windows: AnyWindow, sizes: Sequence[int]) -> bool:
    """Whether one window is the whole plane, of known sizes."""
    if not isinstance(windows, Window) or not are_ints(*sizes):
        return False
    return all(covers(axis, size) for axis, size in zip(windows.axes, sizes, strict=True))


def sum_of(tensor: Tensor, dim: int) -> Tensor:
    """The sum along ``dim``, which keeps the size 1, within the error of rule E6.

    Its bits depend neither on the batch nor on the number of threads, because PyTorch's ``sum`` is
    never asked for a single result, which it would split among threads.
    """
    count = tensor.shape[dim]
    if not tensor.is_floating_point():
        return tensor.sum(dim, keepdim=True, dtype=tensor.dtype)
    if tensor.dtype is not torch.float32 or not tensor.is_cpu:
        return _sum_in_pairs(tensor, dim)
    if tensor.numel() == count:
        tensor = tensor.expand(2, *tensor.shape[1:])
        return sum_of(tensor, dim)[:1]
    tail, total = tensor, None
    if count >= MANY:
        # ROWS elements are added by ROWS - 1 additions. A tree over all elements has at least as
        # many levels.
        part, left = divmod(count, ROWS)
        tail = tensor.narrow(dim, count - left, left)
        added = tensor.narrow(dim, 0, count - left).unflatten(dim, (ROWS, part)).sum(dim)
        total = added.sum(dim, keepdim=True, dtype=torch.float64)
    if tail.shape[dim] > 0:
        last = tail.sum(dim, keepdim=True, dtype=torch.float64)
        total = last if total is None else total + last
    return total.to(torch.float32)  # type: ignore[union-attr]


def _sum_in_pairs(tensor: Tensor, dim: int) -> Tensor:
    """The sum as a binary tree, for any device and data type."""
    count = tensor.shape[dim]
    while count > 1:
        half = (count + 1) // 2
        added = tensor.narrow(dim, 0, count - half) + tensor.narrow(dim, half, count - half)
        if 2 * half > count:
            added = torch.cat((added, tensor.narrow(dim, half - 1, 1)), dim)
        tensor, count = added, half
    return tensor


def counts(windows: AnyWindow, sizes: Sequence[int], like: Tensor, include_padding: bool) -> Tensor:
    """The taps of windows over ``sizes`` that count (rules A1 and A2)."""
    total = torch.ones((), dtype=like.dtype, device=like.device)
    for part, size in zip(reductions.parts(windows), sizes, strict=True):
        if isinstance(part, Axis) and include_padding:
            along = reductions.taps_before(
                size + part.end_padding, reductions.firsts(part, size, like), part
            )
        else:
            along = reductions.read_by(part, size, like).counts
        total = total.unsqueeze(-1) * along.to(like.dtype)
    return total


def _counts_all_taps(window: Window, include_padding: bool) -> bool:
    """Whether every window is known to count all of its taps, whatever it is pooled over."""
    is_certain = type(window.taps) is int and not window.axes[0].ceil_mode
    return is_certain and (include_padding or all(map(is_unpadded, window.axes)))


def divisor(
    windows: AnyWindow,
    sizes: Sequence[int],
    like: Tensor,
    include_padding: bool = False,
    override: int | None = None,
) -> Any:
    """What sums of windows are divided by: ``override``, or the taps that count, at least 1 (rules
    A3 and A5). It is a number or a tensor.
    """
    if override is not None:
        return override
    if isinstance(windows, Window) and _counts_all_taps(windows, include_padding):
        taps = windows.taps
        return taps if taps < 2**63 else float(taps)  # as no tensor takes a longer int
    return counts(windows, sizes, like, include_padding).clamp(min=1)


def spread(gradients: Tensor, dim: int, axis: Axis | int, size: int) -> Tensor | None:
    """For each of ``size`` elements along ``dim`` the sum of ``gradients`` of the windows that read
    it, or None where :func:`reductions.reduced` is as fast.

    It adds one tap after the other, which rule E6 allows where at most three windows overlap.
    """
    if not isinstance(axis, Axis):
        return None
    length = tile(axis, size)
    if length > 0:
        return gradients.repeat_interleave(length, dim)
    overlap = min(axis.window, -(-axis.extent // axis.stride))
    if overlap > 3 or not is_sliceable(axis, size):
        return None
    outputs, shape = gradients.shape[dim], list(gradients.shape)
    reach = (outputs - 1) * axis.stride + axis.extent
    shape[dim] = max(reach, axis.start_padding + size)
    total = gradients.new_zeros(shape)
    for tap in range(axis.window):
        first = tap * axis.dilation
        end = first + (outputs - 1) * axis.stride + 1
        _slice(total, dim, first, end, axis.stride).add_(gradients)
    return total.narrow(dim, axis.start_padding, size)
