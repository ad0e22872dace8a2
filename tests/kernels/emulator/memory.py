"""A GPU's memory: tensors far from each other; who read and wrote each element, and what no kernel may do with it."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np
from torch import Tensor

APART = 44  # bits of an address inside one tensor
NOBODY = -1
SEVERAL = -(2**62)  # readers in several programs; below NOBODY: several threads of one program


class FaultError(Exception):
    """A launch did what no kernel may do."""


class Accesses(NamedTuple):
    """Who loads or stores: threads' numbers in the grid, threads of a program, barriers passed, the instruction."""

    threads: np.ndarray
    per_program: int
    epochs: np.ndarray
    text: str


class Segment:
    """Bytes that one tensor or the shared memory of programs occupies; without data (a meta tensor) only addresses."""

    def __init__(self, name: str, size: int, unit: int, data: np.ndarray | None) -> None:
        self.name, self.size, self.unit, self.data = name, size, unit, data
        self.inside: np.ndarray | None = None  # units that a view shows; None: all
        self.stored: list[tuple[int, int]] = []  # first and last byte of every store, where there is no data
        self.races: dict[str, None] = {}  # in order; values are computed all the same
        if data is not None:
            units = size // unit
            self.writer, self.reader = np.full(units, NOBODY), np.full(units, NOBODY)
            self.written, self.read = np.zeros(units, np.int32), np.zeros(units, np.int32)

    def view(self, width: int) -> np.ndarray:
        assert self.data is not None
        return self.data[: self.size // width * width].view(f"u{width}")

    def _race(self, what: str, by: Accesses) -> None:
        self.races[f"race: {what} {self.name}: {by.text}"] = None

    def check(self, offsets: np.ndarray, size: int) -> None:
        if (offsets % size).any():
            raise FaultError(f"misaligned access of {size} bytes to {self.name}")
        if offsets.min() < 0 or offsets.max() + size > self.size:
            extent = f"bytes {offsets.min()} to {offsets.max() + size} of {self.size}"
            raise FaultError(f"out of bounds of {self.name}: {extent}")

    def load(self, offsets: np.ndarray, width: int, count: int, by: Accesses) -> list[np.ndarray]:
        """``count`` elements of ``width`` bytes from each offset on."""
        self.check(offsets, width * count)
        if self.data is None:
            return [np.zeros(len(offsets), f"u{width}")] * count
        self._note_reads(self._units(offsets, width * count), by)
        data, first = self.view(width), offsets // width
        return [data[first + i] for i in range(count)]

    def store(self, offsets: np.ndarray, elements: list[np.ndarray], by: Accesses) -> None:
        width = elements[0].dtype.itemsize
        self.check(offsets, width * len(elements))
        if self.data is None:
            self.stored.append((int(offsets.min()), int(offsets.max()) + width * len(elements)))
            return
        units = self._units(offsets, width * len(elements))
        if self.inside is not None and not self.inside[units].all():
            raise FaultError(f"store beside the view of {self.name}")
        data, first = self.view(width), offsets // width
        others = self._others(units, self.writer, self.written, by)
        if others.any() and any((data[first + i] != each)[others].any() for i, each in enumerate(elements)):
            self._race("two threads write", by)
        readers = self.reader[units]
        owners = np.where(readers < NOBODY, -2 - readers, readers // by.per_program)
        theirs = (readers != NOBODY) & (readers != by.threads[:, None])
        now = (self.read[units] == by.epochs[:, None]) | (owners != (by.threads // by.per_program)[:, None])
        if (theirs & now).any():
            self._race("a thread writes what another one reads of", by)
        self.writer[units], self.written[units] = by.threads[:, None], by.epochs[:, None]
        for i, each in enumerate(elements):
            data[first + i] = each
        if any((data[first + i] != each).any() for i, each in enumerate(elements)):
            self._race("two threads write", by)

    def _units(self, offsets: np.ndarray, size: int) -> np.ndarray:
        if size % self.unit:
            raise FaultError(f"access of {size} bytes to elements of {self.unit} of {self.name}")
        return (offsets // self.unit)[:, None] + np.arange(size // self.unit)

    def _others(self, units: np.ndarray, whose: np.ndarray, when: np.ndarray, by: Accesses) -> np.ndarray:
        """Lanes that meet another thread's access which no barrier separates from theirs."""
        threads, found = by.threads[:, None], whose[units]
        same_program = found // by.per_program == threads // by.per_program
        meets = (found != NOBODY) & (found != threads) & (~same_program | (when[units] == by.epochs[:, None]))
        return meets.any(1)

    def _note_reads(self, units: np.ndarray, by: Accesses) -> None:
        if self._others(units, self.writer, self.written, by).any():
            self._race("a thread reads what another one writes of", by)
        threads, epochs = (np.broadcast_to(each[:, None], units.shape) for each in (by.threads, by.epochs))
        programs, before = threads // by.per_program, self.reader[units]
        owners = np.where(before < NOBODY, -2 - before, before // by.per_program)
        new = np.where((before == NOBODY) | (before == threads), threads, -2 - programs)
        new = np.where((owners == programs) & (self.read[units] != epochs), threads, new)
        new = np.where((before != NOBODY) & (owners != programs), SEVERAL, new)
        self.reader[units], self.read[units] = new, epochs
        alike = self.reader[units] != new  # lanes that read the same at once
        if alike.any():
            other = self.reader[units][alike]
            owner = np.where(other < NOBODY, -2 - other, other // by.per_program)
            np.minimum.at(self.reader, units[alike], np.where(owner == programs[alike], -2 - owner, SEVERAL))


class Memory:
    """Segments by address."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._bases: dict[int, int] = {}

    def address(self, tensor: Tensor, name: str) -> int:
        """Where a tensor's first element is; its storage is put into memory, views of one storage share it."""
        storage = tensor.untyped_storage()
        key = id(tensor) if tensor.is_meta else storage.data_ptr()
        if key not in self._bases:
            size = storage.nbytes()
            raw = None if tensor.is_meta else np.zeros(0, np.uint8)
            if size and raw is not None:
                raw = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(storage.data_ptr()))
            self._bases[key] = len(self.segments)
            self.segments.append(Segment(name, size, tensor.itemsize, raw))
        number = self._bases[key]
        segment = self.segments[number]
        if segment.data is not None and not tensor.is_contiguous():
            inside = np.zeros(segment.size // segment.unit, bool) if segment.inside is None else segment.inside
            places = np.full(1, tensor.storage_offset())
            for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
                places = np.unique(places[:, None] + np.arange(size) * stride)
            inside[places] = True
            segment.inside = inside
        return (number + 1 << APART) + tensor.storage_offset() * tensor.itemsize

    def at(self, addresses: np.ndarray) -> tuple[Segment, np.ndarray]:
        """The segment that addresses lie in, and their offsets there."""
        # Half a tensor's room before it belongs to it, so that a small negative offset names the right one.
        numbers = (addresses + (1 << APART - 1) >> APART) - 1
        number = int(numbers[0])
        if not 0 <= number < len(self.segments) or (numbers != number).any():
            raise FaultError(f"address {addresses[0]:#x} belongs to no tensor")
        return self.segments[number], addresses - (number + 1 << APART)
