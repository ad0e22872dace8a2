"""ATen's pools, for the plain PyTorch backend: where a plain tensor on the CPU asks for what ATen
answers by the same rules.

ATen has no uneven padding and none above half a window, takes the last of several NaN where rule
M3 takes the first, and adds the elements of a window one after the other, so that windows of more
than three elements along an axis can exceed the error of rule E6. Its positions become taps, and
taps positions, by tables:

    position in the plane - place of the window's first tap = place of the tap -> number of the tap
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool._private import _len_torch_dispatch_stack
from torch_dmlpool.window import Axis, Window

LARGEST_TABLE = 2**16
"""Places between the first and the last tap of a window for which a table is made."""
MOST_BORDERS = 8
"""Windows along an axis that reach past the input and whose taps are checked one by one."""


def is_eager(tensor: Tensor) -> bool:
    """Whether ``tensor`` is a plain one on the CPU whose values may be looked at and that may be
    written into: nothing is traced.
    """
    return (
        type(tensor) is Tensor
        and tensor.is_cpu
        and not torch.compiler.is_compiling()
        and _len_torch_dispatch_stack() == 0
    )


def maxima(input: Tensor, window: Window) -> Tensor | None:
    """ATen's maxima where channels lie innermost and it is faster than slices; None elsewhere."""
    if not (is_eager(input) and _is_atens(window, input) and operands.is_channels_last(input)):
        return None
    return _pool(input, window)[0]


def winners(input: Tensor, window: Window) -> tuple[Tensor, Tensor] | None:
    """ATen's maxima and their positions in planes, or None where its answer may be another.

    Of several NaN in a window ATen takes the last (rule M3), and it has no uneven padding.
    """
    if not (is_eager(input) and _is_atens(window, input)):
        return None
    values, positions = _pool(input, window)
    # The maximum of all is NaN where one of them is.
    return None if values.amax().isnan() else (values, positions)


LONGEST_SUM = 3
"""Elements that ATen adds up in as many roundings as a tree has levels."""


def sums(input: Tensor, window: Window) -> Tensor | None:
    """ATen's sums of windows where channels lie innermost and it is faster than slices; None
    elsewhere.
    """
    if not (is_eager(input) and operands.is_channels_last(input) and _are_added(window, input)):
        return None
    operator = torch.ops.aten.avg_pool3d if window.rank == 3 else torch.ops.aten.avg_pool2d
    for arguments in _in_turn(window):
        input = operator(input, *arguments, window.axes[0].ceil_mode, True, 1)
    return input


def gradients_of_sums(gradient: Tensor, sizes: Sequence[int], window: Window) -> Tensor | None:
    """The adjoint of :func:`sums` under the same conditions."""
    is_fit = is_eager(gradient) and operands.is_channels_last(gradient)
    if not (is_fit and _are_added(window, gradient)):
        return None
    aten = torch.ops.aten
    operator = aten.avg_pool3d_backward if window.rank == 3 else aten.avg_pool2d_backward
    shape = list(gradient.shape)
    memory_format = operands.named_memory_format(True, window.rank)
    turns = _in_turn(window)
    for number in reversed(range(len(turns))):
        dims = range(window.rank) if len(turns) == 1 else [number]
        for dim in dims:
            shape[2 + dim] = sizes[dim]
        # The operator reads no more of this tensor than its shape and layout.
        like = operands.empty(shape, gradient, memory_format)
        arguments = (*turns[number], window.axes[0].ceil_mode, True, 1)
        gradient = operator(gradient, like, *arguments)
    return gradient


def _are_added(window: Window, tensor: Tensor) -> bool:
    return (
        window.rank > 1
        and _is_atens(window, tensor)
        and (window.taps <= 4 or all(axis.window <= LONGEST_SUM for axis in window.axes))
    )


def _in_turn(window: Window) -> list[tuple[list[int], list[int], list[int]]]:
    """The windows, strides and paddings of one call, or of one for each axis."""
    axes = window.axes
    if window.taps <= 4:
        whole = [axis.window for axis in axes], [axis.stride for axis in axes]
        return [(*whole, [axis.start_padding for axis in axes])]
    turns = []
    for at, axis in enumerate(axes):
        window_size, strides, padding = [1] * len(axes), [1] * len(axes), [0] * len(axes)
        window_size[at], strides[at], padding[at] = axis.window, axis.stride, axis.start_padding
        turns.append((window_size, strides, padding))
    return turns


def _pool(input: Tensor, window: Window) -> tuple[Tensor, Tensor]:
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
    """Whether ATen has such windows and none of them is empty."""
    return (
        tensor.is_floating_point()
        and 0 not in tensor.shape
        and all(
            axis.dilation == 1
            and axis.start_padding == axis.end_padding
            and 2 * axis.start_padding <= axis.window
            for axis in window.axes
        )
    )


def _arguments(window: Window) -> tuple[list[int], list[int], list[int], list[int], bool]:
    axes: list[Axis | None] = [*([None] if window.rank == 1 else []), *window.axes]
    return (
        [axis.window if axis else 1 for axis in axes],
        [axis.stride if axis else 1 for axis in axes],
        [axis.start_padding if axis else 0 for axis in axes],
        [1] * len(axes),
        window.axes[0].ceil_mode,
    )


def gradient_from_taps(
    gradient: Tensor,
    taps: Tensor,
    sizes: Sequence[int],
    window: Window,
    channels_last: bool,
) -> Tensor | None:
    """ATen's gradient of maxima with these winners, or None where it has none."""
    if not (is_eager(gradient) and is_eager(taps) and _is_atens(window, gradient)):
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


@functools.lru_cache(maxsize=64)
def _first_places(window: Window, sizes: tuple[int, ...], outputs: tuple[int, ...]) -> Tensor:
    """Where each window begins, as a place in the plane, which padding may make negative."""
    places = torch.zeros((), dtype=torch.int64, device="cpu")
    for axis, size, count in zip(window.axes, sizes, outputs, strict=True):
        first = torch.arange(count, dtype=torch.int64, device="cpu") * axis.stride
        places = places.unsqueeze(-1) * size + (first - axis.start_padding)
    return places


@functools.lru_cache(maxsize=64)
def _places_of_taps(window: Window, sizes: tuple[int, ...]) -> Tensor | None:
    """How far after its window's first place each tap lies; None where taps may share a place."""
    places, reach = torch.zeros((1,), dtype=torch.int64, device="cpu"), 1
    for number, (axis, size) in enumerate(zip(window.axes, sizes, strict=True)):
        if number > 0 and axis.extent > size:
            return None
        along = torch.arange(axis.window, dtype=torch.int64, device="cpu") * axis.dilation
        places = (places.unsqueeze(-1) * size + along).flatten()
        reach = (reach - 1) * size + axis.extent
    return places if reach <= LARGEST_TABLE else None


@functools.lru_cache(maxsize=64)
def _taps_of_places(window: Window, sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The inverse of :func:`_places_of_taps`, which is known to be there."""
    places = _places_of_taps(window, sizes)
    table = torch.zeros(int(places[-1]) + 1, dtype=torch.int64, device="cpu")  # type: ignore[index]
    table[places] = torch.arange(window.taps, dtype=torch.int64, device="cpu")
    return table.to(dtype)


def _looked_up(table: Tensor, at: Tensor) -> Tensor:
    """``table[at]`` in the layout of ``at``."""
    if at.is_contiguous():
        return table.index_select(0, at.view(-1)).view(at.shape)
    inner = at.movedim(1, -1).contiguous()
    return table.index_select(0, inner.view(-1)).view(inner.shape).movedim(-1, 1)


def taps_at(
    positions: Tensor, sizes: Sequence[int], window: Window, dtype: torch.dtype
) -> Tensor | None:
    """The tap of each window that lies at its position in the plane, none of which is -1."""
    places = _places_of_taps(window, tuple(sizes))
    if places is None:
        return None
    table = _taps_of_places(window, tuple(sizes), dtype)
    first = _first_places(window, tuple(sizes), tuple(positions.shape[2:]))
    return _looked_up(table, positions - first)


def positions_at(taps: Tensor, sizes: Sequence[int], window: Window) -> Tensor | None:
    """The position in the plane of each window's tap; None where a tap lies outside the input."""
    places = _places_of_taps(window, tuple(sizes))
    if places is None or not _are_inside(taps, sizes, window):
        return None
    first = _first_places(window, tuple(sizes), tuple(taps.shape[2:]))
    try:
        return _looked_up(places, taps.to(torch.int32)) + first
    except IndexError:  # no tap of the window
        return None


def _are_inside(taps: Tensor, sizes: Sequence[int], window: Window) -> bool:
    """Whether every tap of the windows that reach past the input lies inside the input."""
    numbers = torch.arange(window.taps, dtype=torch.int64, device="cpu")
    for dim, (axis, size) in enumerate(zip(window.axes, sizes, strict=True), -window.rank):
        inner = 1
        for later in window.axes[window.rank + dim + 1 :]:
            inner *= later.window
        along = numbers // inner % axis.window
        borders = _borders(axis, size)
        if len(borders) > MOST_BORDERS:
            return False
        for output in borders:
            low, high = axis.taps_before(output, 0), axis.taps_before(output, size)
            is_inside = (along >= low) & (along < high)
            at = taps.select(dim, output).to(torch.int64)
            if not is_inside[at.clamp(0, window.taps - 1)].all():
                return False
    return True


def _borders(axis: Axis, size: int) -> list[int]:
    """The windows along an axis that reach past the input."""
    outputs = axis.output_size(size)
    before = -(-axis.start_padding // axis.stride)
    inside = (size + axis.start_padding - axis.extent) // axis.stride + 1
    return [*range(min(before, outputs)), *range(max(before, inside), outputs)]
