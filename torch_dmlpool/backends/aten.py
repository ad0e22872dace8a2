"""ATen's max pools, for the plain PyTorch backend: they compute plain CPU tensors wherever their
answer is the same by the rules.

ATen has no uneven padding and none above half a window, and takes the last of several NaN where
rule M3 takes the first. Its positions become taps, and taps positions, by tables:

    position in the plane - place of the window's first tap = place of the tap -> number of the tap
"""

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool._private import _len_torch_dispatch_stack
from torch_dmlpool.window import Window

LARGEST_TABLE = 2**16
"""The most entries of a table: one for each place from a window's first tap to its last, or one for
each tap of the windows that reach past the input."""


def is_plain_cpu(tensor: Tensor) -> bool:
    """Whether ``tensor`` is a plain CPU tensor and nothing is traced, so that values can be read.

    Transforms and modes above a backend are checked before, by
    ``dispatching.may_skip_dispatcher``.
    """
    return (
        type(tensor) is Tensor
        and tensor.is_cpu
        and not torch.compiler.is_compiling()
        and _len_torch_dispatch_stack() == 0
    )


def maxima(input: Tensor, window: Window) -> Tensor | None:
    """ATen's maxima of channels_last tensors, where it is faster than slices; None elsewhere."""
    if not (is_plain_cpu(input) and _is_atens(window, input) and operands.is_channels_last(input)):
        return None
    return _pool(input, window)[0]


def winners(input: Tensor, window: Window) -> tuple[Tensor, Tensor] | None:
    """ATen's maxima and their positions in planes, or None where its answer may be another.

    ATen takes the last of several NaN in a window (rule M3), and it has no uneven padding. In
    volumes in channels_last it gives a window of -inf alone the index of another (rule M2).
    """
    if not (is_plain_cpu(input) and _is_atens(window, input)):
        return None
    values, positions = _pool(input, window)
    least, most = values.aminmax()
    if math.isnan(most):  # as it is where one of them is
        return None
    if window.rank == 3 and least == -math.inf and operands.is_channels_last(input):
        return None
    return values, positions


def _pool(input: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """ATen's maxima and their positions in planes."""
    if window.rank == 3:
        return _POOL_3D(input, *_arguments(window))
    if window.rank == 2:
        return _POOL_2D(input, *_arguments(window))
    values, positions = _POOL_2D(input.unsqueeze(2), *_arguments(window))
    return values.squeeze(2), positions.squeeze(2)


_POOL_2D = torch.ops.aten.max_pool2d_with_indices.default
_POOL_3D = torch.ops.aten.max_pool3d_with_indices.default
_GRADIENT_2D = torch.ops.aten.max_pool2d_with_indices_backward.default
_GRADIENT_3D = torch.ops.aten.max_pool3d_with_indices_backward.default


def _is_atens(window: Window, tensor: Tensor) -> bool:
    """Whether ATen's max pooling takes this window and tensor, and no window is empty."""
    return tensor.is_floating_point() and 0 not in tensor.shape and _arguments(window) is not None


@functools.lru_cache(maxsize=256)
def _arguments(window: Window) -> Any:
    """The arguments of a window whose taps lie side by side. Nobody writes into the lists."""
    return None if any(axis.dilation != 1 for axis in window.axes) else arguments_of(window)


def arguments_of(window: Window) -> Any:
    """The window as the arguments of ATen's max pooling, or None where ATen has none like it. Rows
    are pooled as images of height 1.
    """
    arguments = window.as_pytorch()
    if arguments is None or window.rank > 1:
        return arguments
    sizes, strides, padding, dilations, *flags = arguments
    return [1, *sizes], [1, *strides], [0, *padding], [1, *dilations], *flags


def gradient_from_taps(
    gradient: Tensor,
    taps: Tensor,
    sizes: Sequence[int],
    window: Window,
    channels_last: bool,
) -> Tensor | None:
    """ATen's gradient of maxima whose winners are ``taps``, or None where ATen has none."""
    if not (is_plain_cpu(gradient) and is_plain_cpu(taps) and _is_atens(window, gradient)):
        return None
    positions = positions_at(taps, sizes, window)
    if positions is None:
        return None
    memory_format = operands.named_memory_format(channels_last, window.rank)
    like = operands.empty((*gradient.shape[:2], *sizes), gradient, memory_format)
    if window.rank == 1:
        gradient, positions, like = (each.unsqueeze(2) for each in (gradient, positions, like))
    operator = _GRADIENT_3D if window.rank == 3 else _GRADIENT_2D
    result = operator(gradient, like, *_arguments(window), positions)
    return result.squeeze(2) if window.rank == 1 else result


class _Places(NamedTuple):
    """Where windows and their taps lie in a plane. A place is an index into the flattened plane."""

    first: Tensor  # the place of each window's first tap; in the padding it may be negative
    after: Tensor  # for each tap, its distance from the first tap
    taps: Tensor  # for each such distance, the tap
    reaching: Tensor  # the windows that reach past the input
    flags: Tensor  # for each of those and each tap, whether the tap lies inside the input
    rows: Tensor  # where the flags of each of those begin


@functools.lru_cache(maxsize=64)
def _places(window: Window, sizes: tuple[int, ...], outputs: tuple[int, ...]) -> _Places | None:
    """The places of these windows; None if two taps may have the same distance from the first one,
    or if tables were too large.

    They are cached, because to make them takes longer than to pool a small tensor.
    """
    first, after, reach = _integers([0])[0], _integers([0]), 1
    are_reaching = first.to(torch.bool)
    inside = []
    for number, (axis, size, count) in enumerate(zip(window.axes, sizes, outputs, strict=True)):
        if number > 0 and axis.extent > size:
            return None
        starts = _integers(range(count)) * axis.stride - axis.start_padding
        along = _integers(range(axis.window)) * axis.dilation
        first = first.unsqueeze(-1) * size + starts
        after = (after.unsqueeze(-1) * size + along).flatten()
        reach = (reach - 1) * size + axis.extent
        at = starts.unsqueeze(-1) + along
        inside.append((at >= 0) & (at < size))
        are_reaching = are_reaching.unsqueeze(-1) | inside[-1].logical_not().any(-1)
    coordinates = are_reaching.nonzero(as_tuple=True)
    count = coordinates[0].numel()
    if max(reach, count * window.taps) > LARGEST_TABLE:
        return None
    taps = torch.zeros((reach,), dtype=operands.tap_dtype(window.taps), device="cpu")
    taps[after] = _integers(range(window.taps)).to(taps.dtype)
    flags = torch.ones((count, 1), dtype=torch.bool, device="cpu")
    for along, at in zip(inside, coordinates, strict=True):
        flags = (flags.unsqueeze(-1) & along[at].unsqueeze(-2)).flatten(1)
    reaching = are_reaching.flatten().nonzero().flatten()
    rows = _integers(range(count)) * window.taps
    return _Places(first, after, taps, reaching, flags.flatten(), rows)


def _integers(numbers: Iterable[int]) -> Tensor:
    return torch.tensor([*numbers], dtype=torch.int64, device="cpu")


def _looked_up(table: Tensor, at: Tensor) -> Tensor:
    """``table[at]`` in the layout of ``at``."""
    rank = at.dim() - 2
    if not (
        at.is_contiguous()
        or (rank > 1 and at.is_contiguous(memory_format=operands.named_memory_format(True, rank)))
    ):
        at = at.contiguous()
    in_order = at.as_strided((at.numel(),), (1,), at.storage_offset())
    return table.index_select(0, in_order).as_strided(at.shape, at.stride())


def taps_at(positions: Tensor, sizes: Sequence[int], window: Window) -> Tensor | None:
    """The tap of each window that lies at its position in the plane, or None where ``_places`` has
    no tables. No position may be -1.

    Unless it returns None it overwrites ``positions``, whose memory is still in a cache.
    """
    places = _places(window, tuple(sizes), tuple(positions.shape[2:]))
    return None if places is None else _looked_up(places.taps, positions.sub_(places.first))


def positions_at(taps: Tensor, sizes: Sequence[int], window: Window) -> Tensor | None:
    """The position in the plane of each window's tap; None where ``_places`` has no tables, or a
    tap lies outside the input.
    """
    places = _places(window, tuple(sizes), tuple(taps.shape[2:]))
    if places is None:
        return None
    try:
        after = _looked_up(places.after, taps.to(torch.int32))
    except IndexError:  # not the number of a tap
        return None
    if places.reaching.numel():
        at = taps.flatten(2).index_select(2, places.reaching) + places.rows
        if not places.flags.index_select(0, at.flatten()).all():
            return None
    return after.add_(places.first)
