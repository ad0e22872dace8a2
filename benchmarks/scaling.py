"""Curves: cost against the window, against the size of the tensor, against the threads.

Each point is a row like any other, measured by the same harness. ATen's operator reads every tap of
a window, so that its cost grows with the square of the window; where it would take minutes, ATen
along one axis at a time stands for it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.harness import Settings, measure
from benchmarks.load import cores
from benchmarks.machine import memory_bytes
from benchmarks.peers import ATEN, BY_AXIS, COPY, OURS, Peer
from benchmarks.results import Curve, RowResult
from benchmarks.workloads import MODES, Workload

# Powers of two need the fewest additions, and the numbers below them the most: both are here.
WINDOWS = (2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 45, 63)
LARGEST_OF_ATEN = 16
ELEMENTS = tuple(2**exponent for exponent in range(10, 30, 2))
COPIES = 12
"""Tensors of a curve's largest size that the machine's memory must hold; half of them are
needed."""
LEAST_MEMORY = 2**33
"""Bytes, where the machine does not tell."""


@dataclass(frozen=True)
class Point:
    """One place on a curve."""

    curve: str
    variable: str
    value: int
    workload: Workload

    @property
    def name(self) -> str:
        return f"{self.curve}, {self.variable} {self.value}"

    def measure(self, peers: Sequence[Peer], settings: Settings) -> RowResult:
        chosen = [peer for peer in peers if peer.name in self._contestants()]
        with _threads(self.value if self.variable == "threads" else torch.get_num_threads()):
            return measure(self.workload, chosen, replace(settings, memory=False))

    def _contestants(self) -> tuple[str, ...]:
        if self.variable != "window":
            return OURS, COPY, ATEN
        return (
            (OURS, COPY, BY_AXIS, ATEN) if self.value <= LARGEST_OF_ATEN else (OURS, COPY, BY_AXIS)
        )


def points(device: str, quick: bool) -> Iterator[Point]:
    """Curve after curve; the quick ones are short and their tensors small."""
    modes = [("forward", False), ("forward", True), ("training", False)]
    for mode, channels_last in modes:
        for family in ("max", "average"):
            layout = "channels_last" if channels_last else "contiguous"
            name = f"{family}, {MODES[mode] or mode}, {layout}"
            for window in WINDOWS[::3] if quick else WINDOWS:
                sizes = (1, 4, 64, 64) if quick else (1, 32, 112, 112)
                pool = _pool(family, sizes, window, 1, (window - 1) // 2)
                yield Point(
                    name, "window", window, replace(pool, mode=mode, channels_last=channels_last)
                )
    largest = (
        2**20 if quick else (memory_bytes() or LEAST_MEMORY) // (COPIES * torch.float32.itemsize)
    )
    for family, window, stride, padding in (("max", 3, 2, 1), ("average", 2, 2, 0)):
        for elements in ELEMENTS:
            if elements <= largest:
                pool = _pool(family, sizes_of(elements), window, stride, padding)
                yield Point(f"{family} window {window}/{stride}", "elements", elements, pool)
    if device != "cpu":
        return
    sizes = (1, 8, 56, 56) if quick else (8, 64, 112, 112)
    for family, mode in (("max", "forward"), ("average", "forward"), ("max", "training")):
        for threads in thread_counts(cores()):
            pool = replace(_pool(family, sizes, 3, 2, 1), mode=mode)
            yield Point(f"{family} window 3/2, {MODES[mode] or mode}", "threads", threads, pool)


def sizes_of(elements: int) -> tuple[int, ...]:
    """A power of two as planes of 64x64 at most, then channels up to 64, then samples."""
    side = min(64, 2 ** (int(math.log2(elements)) // 2))
    channels = min(64, elements // side**2)
    return elements // side**2 // channels, channels, side, side


def thread_counts(most: int) -> list[int]:
    """Powers of two, and all cores; nothing where there is only one."""
    return (
        sorted({2**exponent for exponent in range(most.bit_length())} | {most}) if most > 1 else []
    )


def curves(measured: Sequence[tuple[Point, RowResult]]) -> tuple[Curve, ...]:
    """Points of one name and variable are a curve."""
    found: dict[tuple[str, str], list[tuple[Point, RowResult]]] = {}
    for point, row in measured:
        found.setdefault((point.curve, point.variable), []).append((point, row))
    return tuple(
        Curve(
            name, variable, tuple(point.value for point, _ in along), tuple(row for _, row in along)
        )
        for (name, variable), along in found.items()
    )


def _pool(family: str, sizes: tuple[int, ...], window: int, stride: int, padding: int) -> Workload:
    pairs = ((number, number) for number in (window, stride, padding, 1))
    return Workload(family, sizes, *pairs, groups=("scaling",))


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
