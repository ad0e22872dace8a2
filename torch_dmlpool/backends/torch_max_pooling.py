"""Max pooling and its winners in plain PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends import aten, memory, operations, whole_planes
from torch_dmlpool.backends.blocks import Reach, halo_of, run, same_reach, window_reach
from torch_dmlpool.backends.combinations import Elements, Maximum, Winner, as_float
from torch_dmlpool.backends.positions import Places, places, plane_numbers, positions_of
from torch_dmlpool.backends.separable import record_axes
from torch_dmlpool.backends.tape import Tape
from torch_dmlpool.backends.threads import considerate
from torch_dmlpool.backends.ways import DecidedOnce, Way
from torch_dmlpool.window import Window

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
    output = memory.empty((*input.shape[:2], *output_sizes), input, operands.suggested_memory_format(input))
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
    values = memory.empty(sizes, input, memory_format)
    winners = memory.empty(sizes, input, memory_format, winner_dtype)
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
        source, (result, found, *numbers) = sources[0], results
        values = result
        if result.dtype.is_floating_point and result.dtype.itemsize == 2:
            # Rows shorter than two of the processor's vectors of them are compared one element at a time.
            source, values = as_float(tape, source), tape.scratch("values", tuple(result.shape[1:]), torch.float32)
        source = _as_signed(tape, source)
        taps = tape.scratch("taps", tuple(found.shape[1:]), operands.tap_dtype(window.taps)) if as_indices else found
        signed = _signed_view(values)
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
        if values is not result:
            tape.record(operations.copy, values, result)
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
    reach = partial(window_reach, window, sizes)
    # Positions are computed in 32 and 64 bits, several of them for an element.
    run(key, (input,), (values, winners, *numbers), halo_of(window), reach, record, weight=2 if as_indices else 1)


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
    indices = memory.empty(taps.shape, taps, operands.suggested_memory_format(taps), index_dtype)
    if indices.numel() == 0:
        return indices
    sizes = tuple(spatial_sizes)

    def record(
        tape: Tape, reaches: tuple[Reach, ...], sources: tuple[Tensor, ...], results: tuple[Tensor, ...]
    ) -> None:
        outputs = tuple((along.results.start, along.results.stop) for along in reaches)
        tape.record(partial(_index, window, sizes, places(window, sizes, outputs, taps.device)), *sources, *results)

    sources = (taps,) if per_plane else (taps, plane_numbers(taps, math.prod(sizes)))
    run(("indices", window, sizes, per_plane), sources, (indices,), [1] * window.rank, same_reach, record, weight=2)
    return indices


def _fill_where(mask: Tensor, value: int, out: Tensor) -> None:
    out.masked_fill_(mask, value)
