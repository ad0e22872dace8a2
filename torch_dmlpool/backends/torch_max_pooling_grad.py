"""The gradients of max pooling in plain PyTorch: to the winners, and back from them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends import aten, memory, operations
from torch_dmlpool.backends import tape as tapes
from torch_dmlpool.backends.blocks import DECODED_BLOCK, Reach, covering_reach, part, run_planes, window_reach
from torch_dmlpool.backends.positions import are_positions, decode, decoded_dtype, places, positions_of
from torch_dmlpool.backends.tape import Tape
from torch_dmlpool.backends.threads import considerate
from torch_dmlpool.backends.torch_max_pooling import max_pooling_with_taps
from torch_dmlpool.window import Axis, Window

DECODED_AT_ONCE = 2**19
"""Outputs whose winners' positions are held at a time."""
SCATTERED_BLOCK = 2**20
"""Elements of planes that are scattered into at a time, where fewer outputs than :data:`DECODED_BLOCK` go there."""
TILE_OF_GRADIENT = 2**18
"""Elements of a half-precision gradient that are summed in float32 at a time where a plane has more."""

Windows = tuple[tuple[int, int], ...]
"""A range of windows per axis."""


@considerate
def max_pooling_grad(input: Tensor, input_gradient: Tensor, window: Window) -> Tensor:
    """The gradient to the winners, which are found again from the input, a tile at a time where it is large."""
    channels_last = operands.suggested_memory_format(input) is not torch.contiguous_format
    large = input.numel() > tapes.block_elements()
    if not input.is_cpu or not large:
        _, taps = max_pooling_with_taps(input, window)
        return max_pooling_grad_from_taps(input_gradient, taps, input.shape[2:], window, channels_last)
    gradient = memory.empty(input.shape, input, operands.suggested_memory_format(input))
    if gradient.dtype.itemsize == 2:
        sizes = tuple(input.shape[2:])
        for some, rows, covering in _tiles_of_gradient(gradient, window):
            out, along = gradient[(*some, rows)], window_reach(window, sizes, 0, covering.start, covering.stop)
            read, part_of_window = input[(*some, along.sources)], _starting_at(window, along, sizes)
            if 0 in read.shape or covering.start == covering.stop:
                out.zero_()
                continue
            _, taps = max_pooling_with_taps(read, part_of_window)
            windows: Windows = tuple((0, size) for size in taps.shape[2:])
            first_row = rows.start - along.sources.start
            arriving = input_gradient[(*some, covering)]
            _add_in_float(part_of_window, tuple(read.shape[2:]), windows, first_row, arriving, taps, out)
        return gradient
    gradient.zero_()
    for samples_and_channels, along in _tiles_of_rows(input, input_gradient.shape, window):
        if along.sources.start == along.sources.stop:
            continue
        place = (*samples_and_channels, along.sources)
        part_of_window = _starting_at(window, along, input.shape[2:])
        arriving = input_gradient[(*samples_and_channels, along.results)]
        _, taps = max_pooling_with_taps(input[place], part_of_window)
        sizes, outputs = tuple(input[place].shape[2:]), tuple((0, size) for size in taps.shape[2:])
        _scatter(part_of_window, sizes, outputs, arriving, taps, gradient[place].flatten(2))
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


def _tiles_of_gradient(gradient: Tensor, window: Window) -> Iterator[tuple[tuple[slice, slice], slice, slice]]:
    """Samples and channels, rows of their gradient, and the windows that cover these, in tiles that overlap nowhere."""
    samples, channels, rows, *others = gradient.shape
    channel_step, plane = channels, rows * math.prod(others)
    if operands.suggested_memory_format(gradient) is torch.contiguous_format:
        channel_step = max(1, min(channels, TILE_OF_GRADIENT // plane))
    part_of_sample = plane * channel_step
    sample_step = max(1, TILE_OF_GRADIENT // part_of_sample) if channel_step == channels else 1
    # Windows that two tiles share are decoded for each of them.
    row_step = min(rows, max(window.axes[0].extent, TILE_OF_GRADIENT * rows // part_of_sample))
    outputs = [window.axes[0].output_size(rows)]
    for sample in range(0, samples, sample_step):
        for channel in range(0, channels, channel_step):
            some = (slice(sample, sample + sample_step), slice(channel, channel + channel_step))
            for row in range(0, rows, row_step):
                along = covering_reach(window, outputs, 0, row, min(row + row_step, rows))
                yield some, along.results, along.sources


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
    gradient = memory.empty((*taps.shape[:2], *sizes), input_gradient, memory_format)
    if gradient.numel() == 0:
        return gradient
    if gradient.device.type != "cpu":
        return _spread_by_comparison(input_gradient, taps, window, gradient)
    if _scatters_vectors(taps, sizes, window, gradient):
        aten.scatter_of_vectors(input_gradient, taps, gradient)
        return gradient
    channels = gradient.shape[1] if channels_last else 1
    if gradient.dtype.itemsize == 2 and math.prod(sizes) * channels > DECODED_AT_ONCE:
        for some, rows, covering in _tiles_of_gradient(gradient, window):
            windows = ((covering.start, covering.stop), *((0, size) for size in taps.shape[3:]))
            arriving, there = input_gradient[(*some, covering)], taps[(*some, covering)]
            _add_in_float(window, sizes, windows, rows.start, arriving, there, gradient[(*some, rows)])
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
            positions = _record_positions(tape, window, sizes, chunks[0], sources[1])
            scatter = partial(_scatter_at_once, window, sizes, chunks[0])
            tape.record(scatter, sources[0], positions, total.flatten(-window.rank))
        else:
            tape.record(_clear, total)
            for chunk in chunks:
                arriving, taps_there = (part(tensor, [slice(*bounds) for bounds in chunk]) for tensor in sources)
                tape.record(partial(_scatter, window, sizes, chunk), arriving, taps_there, total.flatten(-window.rank))
        if total is not result:
            tape.record(operations.copy, total, result)

    decoded = DECODED_BLOCK * math.prod(sizes) // math.prod(taps.shape[2:])
    key, at_once = ("max gradient", window, sizes, channels_last), min(SCATTERED_BLOCK, decoded)
    run_planes(key, (input_gradient, taps), (gradient,), record, at_once)
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


def _add_in_float(
    window: Window,
    sizes: tuple[int, ...],
    windows: Windows,
    first_row: int,
    arriving: Tensor,
    taps: Tensor,
    out: Tensor,
) -> None:
    """Write the rows from ``first_row`` on of a half-precision gradient, whose sums are float32 until then."""
    where, rank, row = places(window, sizes, windows, taps.device), window.rank, math.prod(sizes[1:])
    positions = positions_of(taps, window, sizes, where).to(torch.int64) - first_row * row
    elsewhere = (positions < 0).logical_or_(positions >= out.shape[2] * row)
    if where.empty is not None:
        elsewhere.logical_or_(where.empty)
    arriving = arriving.to(torch.float32).masked_fill_(elsewhere, 0)
    total = torch.zeros((*out.shape[:2], out.shape[2] * row), dtype=torch.float32)
    total.scatter_add_(-1, positions.masked_fill_(elsewhere, 0).flatten(-rank), arriving.flatten(-rank))
    out.copy_(total.view(out.shape))


def _record_positions(tape: Tape, window: Window, sizes: tuple[int, ...], windows: Windows, taps: Tensor) -> Tensor:
    """Record the decoding of the winners of all windows of a plane, into scratch."""
    where, shape = places(window, sizes, windows, taps.device), tuple(taps.shape[1:])
    positions = tape.scratch("positions", shape, torch.int64)
    if are_positions(taps, window):
        tape.record(_clamp_positions, taps, positions)
        return positions
    dtype = decoded_dtype(window, sizes)
    scratch = [tape.scratch(name, shape, dtype) for name in ("numbers", "quotient", "decoded")]
    tape.record(partial(decode, window, sizes, where), taps, *scratch)
    tape.record(operations.copy, scratch[-1], positions)
    return positions


def _clamp_positions(taps: Tensor, out: Tensor) -> None:
    """Of an empty window, −1, some position: nothing arrives there."""
    out.copy_(taps).clamp_(min=0)


def _scatter_at_once(
    window: Window, sizes: tuple[int, ...], windows: Windows, arriving: Tensor, positions: Tensor, out: Tensor
) -> None:
    """Add what arrives at the positions in a plane, clearing it first, with PyTorch's threads where there are several.

    ATen's adaptive pool has the one parallel scatter that knows no geometry, and it keeps the order of the windows too.
    """
    empty, rank = places(window, sizes, windows, positions.device).empty, window.rank
    if empty is not None:
        arriving = arriving.masked_fill(empty, 0)
    arriving, positions = (tensor.flatten(-rank) for tensor in (arriving.to(out.dtype), positions))
    if out.dim() == 2 and torch.get_num_threads() == 1:
        out.zero_().scatter_add_(-1, positions, arriving)
        return
    # As a row, not as a column: so it keeps the strides by which ATen knows channels_last.
    arriving, positions, out = (tensor.unsqueeze(-2) for tensor in (arriving, positions, out))
    torch.ops.aten.adaptive_max_pool2d_backward.grad_input(arriving, out, positions, grad_input=out)


@considerate
def max_pooling_gather(input: Tensor, taps: Tensor, window: Window) -> Tensor:
    """The element at each window's tap, 0 where the window is empty."""
    gathered = memory.empty(taps.shape, input, operands.suggested_memory_format(taps))
    if gathered.numel() == 0:
        return gathered
    sizes = tuple(input.shape[2:])

    def record(tape: Tape, _: tuple[Reach, ...], sources: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> None:
        for chunk in _chunks(results[0].shape[1:], window.rank):
            taps_there, out = (
                part(tensor, [slice(*bounds) for bounds in chunk]) for tensor in (sources[1], results[0])
            )
            # The rows that these windows read: a plane that does not lie together is copied by so much at a time.
            rows = window_reach(window, sizes, 0, *chunk[0]).sources
            rows = rows if rows.start < rows.stop else slice(0, 1)
            read = part(sources[0], [rows, *(slice(None) for _ in sizes[1:])])
            tape.record(partial(_gather, window, sizes, chunk, rows.start), read, taps_there, out)

    run_planes(("gather", window, sizes), (input, taps), (gathered,), record)
    return gathered


def _gather(
    window: Window,
    sizes: tuple[int, ...],
    windows: Windows,
    first_row: int,
    source: Tensor,
    taps: Tensor,
    out: Tensor,
) -> None:
    where = places(window, sizes, windows, taps.device)
    positions = positions_of(taps, window, sizes, where).to(torch.int64)
    if first_row > 0:
        positions = (positions - first_row * math.prod(sizes[1:])).clamp_(min=0)
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
