"""How an operator's work is cut up: samples and channels into blocks of planes, large planes into tiles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends import tape as tapes
from torch_dmlpool.backends import threads
from torch_dmlpool.backends.tape import Tape
from torch_dmlpool.window import Window

DECODED_BLOCK = 2**18
"""Elements of a block whose winners are decoded: its several temporary numbers should come from memory just used."""
KEPT_TAPES = 64
"""Units of work whose recording is kept for the next call; the oldest goes first."""
KEPT_PLANE = 2**17
"""Results per plane above which recording costs little beside the work, and its constants much memory."""


class Reach(NamedTuple):
    """Along one axis of a tile: the results computed, what they read, and where the first tap lies in that."""

    results: slice
    sources: slice
    first_position: int


Reaching = Callable[[int, int, int], Reach]
"""From an axis number and a range of results to its reach."""
Tiling = Callable[[int, tuple[Tensor, ...], tuple[Tensor, ...]], Iterator[Tape]]
"""Records the tapes of a unit of work whose operations may have so many elements."""
Recording = Callable[[Tape, tuple[Reach, ...], tuple[Tensor, ...], tuple[Tensor, ...]], None]
"""Records the operations that compute a tile: of planes, of the sources, of the results."""


def run(
    key: Hashable,
    sources: tuple[Tensor, ...],
    results: tuple[Tensor, ...],
    halo: Sequence[int],
    reach: Reaching,
    record: Recording,
    weight: int = 1,
) -> None:
    """Compute ``results`` from ``sources`` tile by tile, block by block; all are ``(N, C, *spatial)``.

    Among the results may be what is only read, of their sizes. ``halo`` is, per axis, the number of results below which
    a tile would read more halo than body. ``key`` stands for all that the recording depends on but the tensors.
    ``weight`` says how many times as much memory as others the operations take for an element.
    """
    memory_format = operands.suggested_memory_format(results[0])
    rank = len(halo)

    def tiles(limit: int, sources: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> Iterator[Tape]:
        limit //= weight
        per_plane = math.prod(results[0].shape[1:-rank])
        for tile in _tiles(results[0].shape[-rank:], limit // max(1, per_plane), halo, reach):
            reaches = tuple(reach(number, *bounds) for number, bounds in enumerate(tile))
            read = tuple(part(tensor, [along.sources for along in reaches]) for tensor in sources)
            made = tuple(part(tensor, [along.results for along in reaches]) for tensor in results)
            volume = per_plane * max(math.prod(read[0].shape[-rank:]), math.prod(made[0].shape[-rank:]))
            tape = Tape((*sources, *results), max(1, limit // max(1, volume)), memory_format)
            record(tape, reaches, read, made)
            yield tape

    _run_units(key, sources, results, memory_format, tiles)


def window_reach(window: Window, sizes: Sequence[int], number: int, start: int, stop: int) -> Reach:
    """What the windows ``start … stop - 1`` of axis ``number`` read of an input of ``sizes``."""
    axis, size = window.axes[number], sizes[number]
    first = axis.first_position(start)
    low = min(max(first, 0), size)
    high = max(low, min(axis.first_position(stop - 1) + axis.extent, size))
    return Reach(slice(start, stop), slice(low, high), first - low)


def covering_reach(window: Window, output_sizes: Sequence[int], number: int, start: int, stop: int) -> Reach:
    """The windows that cover input elements ``start … stop - 1``; the position counts from the padded box's start."""
    axis, outputs = window.axes[number], output_sizes[number]
    low = min(max(-(-(start + axis.start_padding - axis.extent + 1) // axis.stride), 0), outputs)
    high = max(low, min((stop - 1 + axis.start_padding) // axis.stride + 1, outputs))
    return Reach(slice(start, stop), slice(low, high), start + axis.start_padding - low * axis.stride)


def halo_of(window: Window) -> list[int]:
    """Per axis, the windows that overlap one another."""
    return [-(-axis.extent // axis.stride) for axis in window.axes]


def same_reach(_: int, start: int, stop: int) -> Reach:
    """Each result reads its own place."""
    return Reach(slice(start, stop), slice(start, stop), 0)


def run_planes(
    key: Hashable,
    sources: tuple[Tensor, ...],
    results: tuple[Tensor, ...],
    record: Recording,
    at_once: int | None = None,
) -> None:
    """Like :func:`run` without tiles: what reads or writes a plane anywhere needs the whole of it.

    ``at_once`` are the elements of a block where smaller ones are not faster.
    """
    memory_format = operands.suggested_memory_format(results[0])

    def whole_planes(limit: int, sources: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> Iterator[Tape]:
        wholes = (*sources, *results)
        largest = max(math.prod(tensor.shape[1:]) for tensor in wholes)
        elements = min(limit, DECODED_BLOCK) if at_once is None else at_once
        tape = Tape(wholes, max(1, elements // max(1, largest)), memory_format)
        record(tape, (), sources, results)
        yield tape

    _run_units(key, sources, results, memory_format, whole_planes)


def _run_units(
    key: Hashable,
    sources: tuple[Tensor, ...],
    results: tuple[Tensor, ...],
    memory_format: torch.memory_format,
    tiles: Tiling,
) -> None:
    keeps = math.prod(results[0].shape[2:]) <= KEPT_PLANE
    for unit_sources, unit_results in _units(sources, results, memory_format):
        _run_unit(key, unit_sources, unit_results, tiles, keeps)


def _units(
    sources: tuple[Tensor, ...], results: tuple[Tensor, ...], memory_format: torch.memory_format
) -> Iterator[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
    """Views whose first dimension may be cut anywhere: planes, where samples and channels merge in memory."""
    if memory_format is not torch.contiguous_format:
        yield sources, results
    elif all(_merges(tensor) for tensor in sources + results):
        yield tuple(tensor.flatten(0, 1) for tensor in sources), tuple(tensor.flatten(0, 1) for tensor in results)
    elif math.prod(results[0].shape[1:]) < tapes.PARALLEL_GRAIN:
        yield sources, results
    else:
        for sample in range(results[0].shape[0]):
            yield tuple(tensor[sample] for tensor in sources), tuple(tensor[sample] for tensor in results)


def _merges(tensor: Tensor) -> bool:
    samples, channels = tensor.shape[:2]
    return samples == 1 or channels == 1 or tensor.stride(0) == channels * tensor.stride(1)


def _run_unit(
    key: Hashable, sources: tuple[Tensor, ...], results: tuple[Tensor, ...], tiles: Tiling, keeps: bool
) -> None:
    wholes = (*sources, *results)
    watch = wholes[0].is_cpu and threads.can_be_fewer()
    recorded = iter(_kept_tapes(key, sources, results, tapes.block_elements(), tiles, keeps))
    for number, tape in enumerate(recorded):
        done = tape.replay(wholes, watch)
        if done < tape.planes:
            # What is left on fewer threads; of several tiles all again, as they share planes.
            first = done if number == 0 and next(recorded, None) is None else 0
            rest = [tuple(tensor[first:] for tensor in group) for group in (sources, results)]
            threads.stalled()
            with threads.fewer():
                _run_unit(key, rest[0], rest[1], tiles, keeps)
            return


_kept: dict[Hashable, tuple[Tape, ...]] = {}
"""The oldest first. Several threads may use it at once, so that each step below is one that Python cannot interrupt."""


def _kept_tapes(
    key: Hashable,
    sources: tuple[Tensor, ...],
    results: tuple[Tensor, ...],
    limit: int,
    tiles: Tiling,
    keeps: bool,
) -> Iterable[Tape]:
    """The tapes for a unit of work, recorded anew or kept from another call for tensors of the same layout."""
    if not keeps:
        return tiles(limit, sources, results)
    # Two elements may be read as one word, where the first of a tensor begins one.
    layouts = tuple((t.shape, t.stride(), t.dtype, t.storage_offset() % 2) for t in (*sources, *results))
    whole_key = (key, layouts, results[0].device, limit)
    kept = _kept.get(whole_key)
    if kept is None:
        kept = tuple(tiles(limit, sources, results))
        if not any(tape.shares_storage for tape in kept):
            _kept[whole_key] = kept
            for oldest in list(_kept)[:-KEPT_TAPES]:
                _kept.pop(oldest, None)
    return kept


def part(tensor: Tensor, slices: Sequence[slice]) -> Tensor:
    """A part of the last dimensions of ``tensor``."""
    everything: tuple[Any, ...] = (Ellipsis, *slices)
    return tensor[everything]


def _tiles(
    sizes: Sequence[int], limit: int, halo: Sequence[int], reach: Reaching
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Parts of a plane of results whose sources have about ``limit`` elements, cut along the outer axes first."""
    reads = [reach(number, 0, size).sources for number, size in enumerate(sizes)]
    extents = [max(along.stop - along.start, size) for along, size in zip(reads, sizes, strict=True)]
    steps = []
    for number, size in enumerate(sizes):
        step, volume = size, math.prod(extents)
        if volume > limit:
            step = min(size, max(1, halo[number], size * limit // volume - halo[number]))
            extents[number] = max(1, extents[number] * step // size)
        steps.append(step)
    yield from itertools.product(
        *(
            [(low, min(low + step, size)) for low in range(0, size, step)]
            for size, step in zip(sizes, steps, strict=True)
        )
    )
