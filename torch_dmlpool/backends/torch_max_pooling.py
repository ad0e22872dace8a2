"""Max pooling, its winners and its gradients in plain PyTorch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends import aten, whole_planes
from torch_dmlpool.backends import tape as tapes
from torch_dmlpool.backends.blocks import Reach, halo_of, part, run, run_planes, same_reach, window_reach
from torch_dmlpool.backends.positions import (
    Places,
    are_positions,
    places,
    plane_numbers,
    positions_of,
)
from torch_dmlpool.backends.separable import Elements, Maximum, Winner, copy, record_axes
from torch_dmlpool.backends.tape import Tape
from torch_dmlpool.backends.threads import considerate
from torch_dmlpool.backends.ways import DecidedOnce, Way
from torch_dmlpool.window import Axis, Window

DECODED_AT_ONCE = 2**19
"""Outputs whose winners' positions are held at a time."""

Windows = tuple[tuple[int, int], ...]
"""A range of windows per axis."""
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _lowest(dtype: torch.dtype) -> float:
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


@considerate
def max_pooling(input: Tensor, window: Window) -> Tensor:
    """Maxima by axis."""
    return way_of_maxima(input, window)


@DecidedOnce
def way_of_maxima(input: Tensor, window: Window) -> Way:
    """How maxima are made: by ATen where it can and is faster, as a reduction, or by axis."""
    for served in (aten.way_of_maxima, whole_planes.way_of_maxima, aten.way_of_row_maxima, aten.way_of_vector_maxima):
        way = served(input, window)
        if way is not None:
            return way
    return partial(_maxima_by_axis, window=window)


def _maxima_by_axis(input: Tensor, window: Window) -> Tensor:
    sizes = tuple(input.shape[2:])
    output_sizes = window.output_sizes(sizes)
    output = operands.empty((*input.shape[:2], *output_sizes), input, operands.suggested_memory_format(input))
    if output.numel() == 0:
        return output
    # Rows first: whole rows are contiguous, and the stride leaves fewer of them to pool.
    order = range(window.rank)

    def record(
        tape: Tape, reaches: tuple[Reach, ...], sources: tuple[Tensor, ...], results: tuple[Tensor, ...]
    ) -> None:
        source, result = _as_signed(tape, sources[0]), _signed_view(results[0])
        combination = Maximum(_lowest(result.dtype))
        record_axes(
            tape,
            [combination] * window.rank,
            window,
            [along.first_position for along in reaches],
            Elements(source),
            Elements(result),
            order,
        )
        _record_unsigned(tape, input.dtype, result)

    run(("max", window, sizes), (input,), (output,), halo_of(window), partial(window_reach, window, sizes), record)
    return output


def _signed_view(tensor: Tensor) -> Tensor:
    signed = _SIGNED.get(tensor.dtype)
    return tensor if signed is None else tensor.view(signed)


def _flip(lowest: int, source: Tensor, out: Tensor) -> None:
    torch.bitwise_xor(source, lowest, out=out)


def _as_signed(tape: Tape, source: Tensor) -> Tensor:
    """Wide unsigned integers, which PyTorch cannot compare, as signed ones in the same order."""
    signed = _SIGNED.get(source.dtype)
    if signed is None:
        return source
    flipped = tape.scratch("signed", tuple(source.shape[1:]), signed)
    tape.record(partial(_flip, torch.iinfo(signed).min), source.view(signed), flipped)
    return flipped


def _record_unsigned(tape: Tape, dtype: torch.dtype, result: Tensor) -> None:
    if dtype in _SIGNED:
        tape.record(partial(_flip, torch.iinfo(result.dtype).min), result, result)


def kept_dtype(input: Tensor, window: Window) -> torch.dtype:
    """The type of what training keeps of each window: its tap's, or that of positions (rule M6).

    In channels_last ATen gathers and scatters whole vectors, so that its positions are worth their four bytes.
    """
    vectors = window.rank > 1 and operands.suggested_memory_format(input) is not torch.contiguous_format
    if vectors and input.device.type in ("cpu", "meta") and math.prod(input.shape[2:]) <= torch.iinfo(torch.int32).max:
        return torch.int32
    return operands.tap_dtype(window.taps)


@considerate
def max_pooling_with_taps(input: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Maxima and the numbers of their taps, or their positions."""
    dtype = kept_dtype(input, window)
    if dtype is not operands.tap_dtype(window.taps):
        return max_pooling_with_indices(input, window, dtype, per_plane=True)
    small = aten.max_pooling_with_taps(input, window)
    return _winners(input, window, dtype, as_indices=False) if small is None else small


@considerate
def max_pooling_with_indices(
    input: Tensor, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> tuple[Tensor, Tensor]:
    """Maxima and their indices, decoded from the taps block by block."""
    small = aten.max_pooling_with_positions(input, window)
    if small is not None:
        values, positions = small
        if not per_plane:
            positions += plane_numbers(positions, math.prod(input.shape[2:]))
        return values, positions.to(index_dtype)
    vectors = aten.max_pooling_of_vectors_with_indices(input, window, index_dtype, per_plane)
    if vectors is not None:
        return vectors
    return _winners(input, window, index_dtype, as_indices=True, per_plane=per_plane)


def _winners(
    input: Tensor, window: Window, winner_dtype: torch.dtype, as_indices: bool, per_plane: bool = True
) -> tuple[Tensor, Tensor]:
    memory_format = operands.suggested_memory_format(input)
    sizes = (*input.shape[:2], *window.output_sizes(input.shape[2:]))
    values = operands.empty(sizes, input, memory_format)
    winners = operands.empty(sizes, input, memory_format, winner_dtype)
    if values.numel() == 0:
        return values, winners
    # Seeing NaN costs more operations; only the CPU can be asked whether there is one without waiting for a device.
    may_hold_nan = input.dtype.is_floating_point
    ask = may_hold_nan and input.device.type == "cpu"
    find = partial(_find_winners, input, window, values, winners, as_indices, per_plane)
    find(nan_wins=may_hold_nan and not ask)
    if ask and math.isnan(values.sum().item()):
        find(nan_wins=True)
    return values, winners


def _find_winners(
    input: Tensor,
    window: Window,
    values: Tensor,
    winners: Tensor,
    as_indices: bool,
    per_plane: bool,
    nan_wins: bool,
) -> None:
    sizes = tuple(input.shape[2:])
    units = [math.prod(axis.window for axis in window.axes[number + 1 :]) for number in range(window.rank)]
    # The last axis first: of equal maxima the first row's first column then wins.
    order = range(window.rank - 1, -1, -1)

    def record(
        tape: Tape, reaches: tuple[Reach, ...], sources: tuple[Tensor, ...], results: tuple[Tensor, ...]
    ) -> None:
        source, (result, found, *numbers) = _as_signed(tape, sources[0]), results
        taps = tape.scratch("taps", tuple(found.shape[1:]), operands.tap_dtype(window.taps)) if as_indices else found
        signed = _signed_view(result)
        combinations = [Winner(_lowest(signed.dtype), unit, nan_wins) for unit in units]
        record_axes(
            tape,
            combinations,
            window,
            [along.first_position for along in reaches],
            Elements(source),
            Elements(signed, taps),
            order,
        )
        _record_unsigned(tape, input.dtype, signed)
        where = places(
            window, sizes, tuple((along.results.start, along.results.stop) for along in reaches), input.device
        )
        if where.empty is not None:
            # The rows above may have found a tap where the columns of a window are all padding.
            tape.record(partial(_fill_where, where.empty, 0), taps)
        if as_indices:
            tape.record(partial(_index, window, sizes, where), taps, *numbers, found)

    numbers = () if per_plane else (plane_numbers(values, math.prod(sizes)),)
    key = ("winners", window, sizes, as_indices, per_plane, nan_wins)
    run(key, (input,), (values, winners, *numbers), halo_of(window), partial(window_reach, window, sizes), record)


def _index(window: Window, sizes: tuple[int, ...], where: Places, taps: Tensor, *numbers_and_out: Tensor) -> None:
    """Taps as indices, −1 (all ones) where the window is empty."""
    *numbers, out = numbers_and_out
    indices = positions_of(taps, window, sizes, where)
    for first_of_plane in numbers:
        indices = indices.to(torch.int64).add_(first_of_plane)
    if where.empty is not None:
        indices.masked_fill_(where.empty, -1)
    out.copy_(indices)


@considerate
def max_pooling_indices(
    taps: Tensor, spatial_sizes: Sequence[int], window: Window, index_dtype: torch.dtype, per_plane: bool
) -> Tensor:
    """Indices that tap numbers stand for."""
    indices = operands.empty(taps.shape, taps, operands.suggested_memory_format(taps), index_dtype)
    if indices.numel() == 0:
        return indices
    sizes = tuple(spatial_sizes)

    def record(
        tape: Tape, reaches: tuple[Reach, ...], sources: tuple[Tensor, ...], results: tuple[Tensor, ...]
    ) -> None:
        outputs = tuple((along.results.start, along.results.stop) for along in reaches)
        tape.record(partial(_index, window, sizes, places(window, sizes, outputs, taps.device)), *sources, *results)

    sources = (taps,) if per_plane else (taps, plane_numbers(taps, math.prod(sizes)))
    run(("indices", window, sizes, per_plane), sources, (indices,), [1] * window.rank, same_reach, record)
    return indices


@considerate
def max_pooling_grad(input: Tensor, input_gradient: Tensor, window: Window) -> Tensor:
    """The gradient to the winners, which are found again from the input, a tile at a time where it is large."""
    channels_last = operands.suggested_memory_format(input) is not torch.contiguous_format
    large = input.numel() > tapes.block_elements()
    if input.dtype.itemsize == 2 or not input.is_cpu or not large:
        _, taps = max_pooling_with_taps(input, window)
        return max_pooling_grad_from_taps(input_gradient, taps, input.shape[2:], window, channels_last)
    gradient = operands.empty(input.shape, input, operands.suggested_memory_format(input)).zero_()
    for samples_and_channels, along in _tiles_of_rows(input, input_gradient.shape, window):
        if along.sources.start == along.sources.stop:
            continue
        rows = (*samples_and_channels, along.sources)
        part_of_window = _starting_at(window, along, input.shape[2:])
        arriving = input_gradient[(*samples_and_channels, along.results)]
        _, taps = max_pooling_with_taps(input[rows], part_of_window)
        sizes, outputs = tuple(input[rows].shape[2:]), tuple((0, size) for size in taps.shape[2:])
        _scatter(part_of_window, sizes, outputs, arriving, taps, gradient[rows].flatten(2))
    return gradient


def _tiles_of_rows(
    input: Tensor, output_shape: Sequence[int], window: Window
) -> Iterator[tuple[tuple[slice, slice], Reach]]:
    """Samples, channels and a range of the first axis, of about :data:`DECODED_AT_ONCE` outputs each."""
    samples, channels, *sizes = output_shape
    plane = math.prod(sizes)
    channel_step = max(1, min(channels, DECODED_AT_ONCE // plane))
    sample_step = max(1, DECODED_AT_ONCE // (plane * channels)) if channel_step == channels else 1
    if operands.suggested_memory_format(input) is not torch.contiguous_format:
        channel_step, plane = channels, plane * channels
    row_step = max(1, -(-window.axes[0].extent // window.axes[0].stride), DECODED_AT_ONCE * sizes[0] // plane)
    for sample in range(0, samples, sample_step):
        for channel in range(0, channels, channel_step):
            for row in range(0, sizes[0], row_step):
                along = window_reach(window, input.shape[2:], 0, row, min(row + row_step, sizes[0]))
                yield (slice(sample, sample + sample_step), slice(channel, channel + channel_step)), along


def _starting_at(window: Window, along: Reach, sizes: Sequence[int]) -> Window:
    """The window over a tile of rows: padded by what the tile lacks of the first and the last window's reach.

    For a maximum an overhang is padding, so that no axis needs ceil_mode.
    """
    first, *others = window.axes
    rows, outputs = along.sources.stop - along.sources.start, along.results.stop - along.results.start
    axes = [_padded_to(replace(first, start_padding=-along.first_position), rows, outputs)]
    axes += [_padded_to(axis, size, axis.output_size(size)) for axis, size in zip(others, sizes[1:], strict=True)]
    return Window(tuple(axes))


def _padded_to(axis: Axis, size: int, outputs: int) -> Axis:
    reached = (outputs - 1) * axis.stride + axis.extent - axis.start_padding - size
    return replace(axis, end_padding=max(0, reached), ceil_mode=False)


@considerate
def max_pooling_grad_from_taps(
    input_gradient: Tensor, taps: Tensor, spatial_sizes: Sequence[int], window: Window, channels_last: bool
) -> Tensor:
    """Each window's gradient, added to its winner's."""
    sizes = tuple(spatial_sizes)
    memory_format = operands.named_memory_format(channels_last, window.rank)
    gradient = operands.empty((*taps.shape[:2], *sizes), input_gradient, memory_format)
    if gradient.numel() == 0:
        return gradient
    if gradient.device.type != "cpu":
        return _spread_by_comparison(input_gradient, taps, window, gradient)
    if _scatters_vectors(taps, sizes, window, gradient):
        aten.scatter_of_vectors(input_gradient, taps, gradient)
        return gradient
    if gradient.numel() < tapes.PARALLEL_GRAIN and gradient.dtype.itemsize > 2:
        windows = tuple((0, size) for size in taps.shape[2:])
        _scatter(window, sizes, windows, input_gradient, taps, gradient.zero_().flatten(2))
        return gradient

    def record(tape: Tape, _: tuple[Reach, ...], sources: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> None:
        (result,) = results
        total = result
        if result.dtype.itemsize == 2:
            total = tape.scratch("total", tuple(result.shape[1:]), torch.float32)
        chunks = list(_chunks(sources[0].shape[1:], window.rank))
        if len(chunks) == 1:
            tape.record(partial(_scatter_at_once, window, sizes, chunks[0]), *sources, total.flatten(-window.rank))
        else:
            tape.record(_clear, total)
            for chunk in chunks:
                arriving, taps_there = (part(tensor, [slice(*bounds) for bounds in chunk]) for tensor in sources)
                tape.record(partial(_scatter, window, sizes, chunk), arriving, taps_there, total.flatten(-window.rank))
        if total is not result:
            tape.record(copy, total, result)

    run_planes(("max gradient", window, sizes, channels_last), (input_gradient, taps), (gradient,), record)
    return gradient


def _scatters_vectors(kept: Tensor, sizes: Sequence[int], window: Window, gradient: Tensor) -> bool:
    """Whether positions were kept, of channels_last tensors through and through, and every window has one."""
    memory_format = operands.suggested_memory_format(gradient)
    if memory_format is torch.contiguous_format or gradient.dtype.itemsize == 2 or not are_positions(kept, window):
        return False
    if aten.fills_a_block(kept.shape):
        return False
    return kept.is_contiguous(memory_format=memory_format) and not window.has_empty_windows(sizes)


def _scatter(
    window: Window, sizes: tuple[int, ...], windows: Windows, arriving: Tensor, taps: Tensor, out: Tensor
) -> None:
    """Add what arrives to the winners in a plane, in the order of the windows: the CPU's scatter keeps it."""
    where = places(window, sizes, windows, taps.device)
    positions = positions_of(taps, window, sizes, where)
    if where.empty is not None:
        arriving = arriving.masked_fill(where.empty, 0)
    rank = window.rank
    out.scatter_add_(-1, positions.to(torch.int64).flatten(-rank), arriving.to(out.dtype).flatten(-rank))


def _scatter_at_once(
    window: Window, sizes: tuple[int, ...], windows: Windows, arriving: Tensor, taps: Tensor, out: Tensor
) -> None:
    """The same for all windows of a plane, clearing it first, with PyTorch's threads where there are several.

    ATen's adaptive pool has the one parallel scatter that knows no geometry, and it keeps the order of the windows too.
    """
    if out.dim() == 2 and torch.get_num_threads() == 1:
        _scatter(window, sizes, windows, arriving, taps, out.zero_())
        return
    where = places(window, sizes, windows, taps.device)
    positions = positions_of(taps, window, sizes, where)
    if where.empty is not None:
        arriving = arriving.masked_fill(where.empty, 0)
    # As a row, not as a column: so it keeps the strides by which ATen knows channels_last.
    rank, out = window.rank, out.unsqueeze(-2)
    arriving, positions = (
        tensor.flatten(-rank).unsqueeze(-2) for tensor in (arriving.to(out.dtype), positions.to(torch.int64))
    )
    torch.ops.aten.adaptive_max_pool2d_backward.grad_input(arriving, out, positions, grad_input=out)


@considerate
def max_pooling_gather(input: Tensor, taps: Tensor, window: Window) -> Tensor:
    """The element at each window's tap, 0 where the window is empty."""
    gathered = operands.empty(taps.shape, input, operands.suggested_memory_format(taps))
    if gathered.numel() == 0:
        return gathered
    sizes = tuple(input.shape[2:])

    def record(tape: Tape, _: tuple[Reach, ...], sources: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> None:
        for chunk in _chunks(results[0].shape[1:], window.rank):
            taps_there, out = (
                part(tensor, [slice(*bounds) for bounds in chunk]) for tensor in (sources[1], results[0])
            )
            tape.record(partial(_gather, window, sizes, chunk), sources[0], taps_there, out)

    run_planes(("gather", window, sizes), (input, taps), (gathered,), record)
    return gathered


def _gather(
    window: Window, sizes: tuple[int, ...], windows: Windows, source: Tensor, taps: Tensor, out: Tensor
) -> None:
    where = places(window, sizes, windows, taps.device)
    positions = positions_of(taps, window, sizes, where).to(torch.int64)
    found = torch.gather(source.flatten(-window.rank), -1, positions.flatten(-window.rank)).view(positions.shape)
    out.copy_(found if where.empty is None else found.masked_fill_(where.empty, 0))


def _chunks(sizes: Sequence[int], rank: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Parts of the output planes small enough to be decoded at once; ``sizes`` are those of all that is not cut."""
    rows, *others = sizes[-rank:]
    step = max(1, DECODED_AT_ONCE * rows // max(1, math.prod(sizes)))
    for start in range(0, rows, step):
        yield (start, min(start + step, rows)), *((0, size) for size in others)


def _clear(out: Tensor) -> None:
    out.zero_()


def _fill_where(mask: Tensor, value: int, out: Tensor) -> None:
    out.masked_fill_(mask, value)


def _spread_by_comparison(input_gradient: Tensor, taps: Tensor, window: Window, gradient: Tensor) -> Tensor:
    """Tap by tap without a scatter, whose order of additions no device but the CPU fixes (rule E3)."""
    sizes = gradient.shape[2:]
    total = torch.zeros_like(gradient, dtype=torch.float32) if gradient.dtype.itemsize == 2 else gradient.zero_()
    for tap, numbers in enumerate(itertools.product(*(range(axis.window) for axis in window.axes))):
        outputs, inputs = [], []
        for axis, size, count, number in zip(window.axes, sizes, taps.shape[2:], numbers, strict=True):
            first = -axis.start_padding + number * axis.dilation
            low = max(0, -(first // axis.stride))
            high = min(count, -((first - size) // axis.stride))
            outputs.append(slice(low, max(low, high)))
            start = first + low * axis.stride
            inputs.append(slice(start, start + max(0, (high - low - 1) * axis.stride + 1), axis.stride))
        if all(along.stop > along.start for along in outputs):
            arriving = torch.where(part(taps, outputs) == tap, part(input_gradient, outputs), 0)
            part(total, inputs).add_(arriving)
    return gradient if total is gradient else gradient.copy_(total)
