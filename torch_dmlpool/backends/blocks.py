"""How an operator's work is cut up: samples and channels into blocks of planes, large planes into tiles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends import tape as tapes
from torch_dmlpool.backends.tape import Tape


class Reach(NamedTuple):
    """Along one axis of a tile: the results computed, what they read, and where the first tap lies in that."""

    results: slice
    sources: slice
    first_position: int


Reaching = Callable[[int, int, int], Reach]
"""From an axis number and a range of results to its reach."""
Recording = Callable[[Tape, tuple[Reach, ...], tuple[Tensor, ...], tuple[Tensor, ...]], None]
"""Records the operations that compute a tile: of planes, of the sources, of the results."""


def run(
    sources: tuple[Tensor, ...], results: tuple[Tensor, ...], halo: Sequence[int], reach: Reaching, record: Recording
) -> None:
    """Compute ``results`` from ``sources`` tile by tile, block by block; all are ``(N, C, *spatial)``.

    Among the results may be what is only read, of their sizes. ``halo`` is, per axis, the number of results below which a tile would read more halo than body.
    """
    memory_format = operands.suggested_memory_format(results[0])
    for unit_sources, unit_results in _units(sources, results, memory_format):
        whole = tuple((0, size) for size in unit_results[0].shape[-len(halo) :])
        _run_region(unit_sources, unit_results, whole, halo, reach, record, memory_format)


def same_reach(_: int, start: int, stop: int) -> Reach:
    """Each result reads its own place."""
    return Reach(slice(start, stop), slice(start, stop), 0)


def run_planes(sources: tuple[Tensor, ...], results: tuple[Tensor, ...], record: Recording) -> None:
    """Like :func:`run` without tiles: what reads or writes a plane anywhere needs the whole of it."""
    memory_format = operands.suggested_memory_format(results[0])
    for unit_sources, unit_results in _units(sources, results, memory_format):
        done = 0
        while done < unit_results[0].shape[0]:
            rest_sources = tuple(tensor[done:] for tensor in unit_sources)
            rest_results = tuple(tensor[done:] for tensor in unit_results)
            serial = tapes.prefers_serial()
            largest = max(math.prod(tensor.shape[1:]) for tensor in unit_sources + unit_results)
            planes = max(1, tapes.block_elements(serial) // max(1, largest))
            tape = Tape(unit_results[0].shape[0] - done, planes, memory_format, results[0].device)
            record(tape, (), rest_sources, rest_results)
            done += tape.replay(watch=not serial)


def _units(
    sources: tuple[Tensor, ...], results: tuple[Tensor, ...], memory_format: torch.memory_format
) -> Iterator[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
    """Views whose first dimension may be cut anywhere: planes, where samples and channels are one dimension in memory."""
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


def _run_region(
    sources: tuple[Tensor, ...],
    results: tuple[Tensor, ...],
    region: tuple[tuple[int, int], ...],
    halo: Sequence[int],
    reach: Reaching,
    record: Recording,
    memory_format: torch.memory_format,
) -> None:
    on_cpu = results[0].device.type == "cpu"
    serial = on_cpu and tapes.prefers_serial()
    limit = tapes.block_elements(serial)
    rank, planes = len(region), results[0].shape[0]
    per_plane = math.prod(results[0].shape[1:-rank])
    for tile in _tiles(region, limit // max(1, per_plane), halo, reach):
        reaches = tuple(reach(number, *bounds) for number, bounds in enumerate(tile))
        tile_sources = tuple(part(tensor, [along.sources for along in reaches]) for tensor in sources)
        tile_results = tuple(part(tensor, [along.results for along in reaches]) for tensor in results)
        volume = per_plane * max(math.prod(tile_sources[0].shape[-rank:]), math.prod(tile_results[0].shape[-rank:]))
        tape = Tape(planes, max(1, limit // max(1, volume)), memory_format, results[0].device)
        record(tape, reaches, tile_sources, tile_results)
        done = tape.replay(watch=on_cpu and not serial)
        if done < planes:
            rest_sources = tuple(tensor[done:] for tensor in sources)
            rest_results = tuple(tensor[done:] for tensor in results)
            _run_region(rest_sources, rest_results, tile, halo, reach, record, memory_format)


def part(tensor: Tensor, slices: Sequence[slice]) -> Tensor:
    """A part of the last dimensions of ``tensor``."""
    everything: tuple[Any, ...] = (Ellipsis, *slices)
    return tensor[everything]


def _tiles(
    region: tuple[tuple[int, int], ...], limit: int, halo: Sequence[int], reach: Reaching
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Parts of a region of results whose sources have about ``limit`` elements, cut along the outer axes first."""
    reads = [reach(number, *bounds).sources for number, bounds in enumerate(region)]
    extents = [max(along.stop - along.start, stop - start) for along, (start, stop) in zip(reads, region, strict=True)]
    steps = []
    for number, (start, stop) in enumerate(region):
        volume = math.prod(extents)
        step = stop - start
        if volume > limit:
            step = max(1, halo[number], step * limit // volume)
            step = min(step, stop - start)
            extents[number] = max(1, extents[number] * step // (stop - start))
        steps.append(step)
    yield from itertools.product(
        *(
            [(low, min(low + step, stop)) for low in range(start, stop, step)]
            for (start, stop), step in zip(region, steps, strict=True)
        )
    )
