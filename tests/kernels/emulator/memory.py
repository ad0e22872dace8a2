"""A GPU's memory: tensors far from each other; who read and wrote each element, and what no kernel
may do with it."""

import numpy as np
import torch

APART = 44  # bits of an address inside one tensor
NOBODY, SEVERAL = -1, -2


class FaultError(Exception):
    """A launch did what no kernel may do."""


class Segment:
    """Bytes of one tensor, or of the shared memory of programs; without data (a meta tensor) only
    addresses.

    What one thread writes no other one may read or write, but for the same number, until
    ``forget``: in shared memory at a barrier, in a tensor never.
    """

    def __init__(self, name, size, unit, data):
        self.name, self.size, self.unit, self.data = name, size, unit, data
        self.stored = 0  # the end of what was stored, where there is no data
        self.races: dict[str, None] = {}  # in order; values are computed all the same
        if data is not None:
            self.writer, self.reader = np.full(size // unit, NOBODY), np.full(size // unit, NOBODY)

    def forget(self):
        self.writer[:] = self.reader[:] = NOBODY

    def _check(self, offsets, width, size):
        """The data in elements of ``width``, the numbers of the first ones accessed, and all their
        units."""
        if (offsets % size).any():
            raise FaultError(f"misaligned access of {size} bytes to {self.name}")
        first, end = offsets.min(), offsets.max() + size
        if first < 0 or end > self.size:
            raise FaultError(f"out of bounds of {self.name}: bytes {first} to {end} of {self.size}")
        if size % self.unit:
            raise FaultError(f"access of {size} bytes to elements of {self.unit} of {self.name}")
        if self.data is None:
            return offsets, offsets, offsets
        data = self.data[: self.size // width * width].view(f"u{width}")
        return (
            data,
            offsets // width,
            (offsets // self.unit)[:, None] + np.arange(size // self.unit),
        )

    def _race(self, when, what, text):
        if when.any():
            self.races[f"race: {what} {self.name}: {text}"] = None

    def load(self, offsets, width, count, threads, text):
        """``count`` elements of ``width`` bytes from each offset on."""
        data, first, units = self._check(offsets, width, width * count)
        if self.data is None:
            return [np.zeros(len(offsets), f"u{width}")] * count
        who, writer, reader = threads[:, None], self.writer[units], self.reader[units]
        self._race(
            (writer != NOBODY) & (writer != who), "a thread reads what another one writes of", text
        )
        new = np.where((reader == NOBODY) | (reader == who), who, SEVERAL)
        self.reader[units] = new
        alike = self.reader[units] != new  # lanes that read the same at once
        self.reader[units[alike]] = SEVERAL
        return [data[first + i] for i in range(count)]

    def store(self, offsets, elements, threads, text):
        width = elements[0].dtype.itemsize
        data, first, units = self._check(offsets, width, width * len(elements))
        if self.data is None:
            self.stored = max(self.stored, int(offsets.max()) + width * len(elements))
            return
        who, writer, reader = threads[:, None], self.writer[units], self.reader[units]
        others = ((writer != NOBODY) & (writer != who)).any(1)
        changed = np.any([data[first + i] != each for i, each in enumerate(elements)], axis=0)
        self._race(
            (reader != NOBODY) & (reader != who), "a thread writes what another one reads of", text
        )
        for i, each in enumerate(elements):
            data[first + i] = each
        lost = np.any([data[first + i] != each for i, each in enumerate(elements)], axis=0)
        self._race((others & changed) | lost, "two threads write", text)
        self.writer[units] = who


class Memory:
    """Segments by address."""

    def __init__(self):
        self.segments: list[Segment] = []
        self._bases: dict[int, int] = {}

    def address(self, tensor, name):
        """Where a tensor's first element is; its storage is put into memory, views of one storage
        share it."""
        storage = tensor.untyped_storage()
        key = id(tensor) if tensor.is_meta else storage.data_ptr()
        if key not in self._bases:
            raw = (
                None if tensor.is_meta else torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            )
            self._bases[key] = len(self.segments)
            self.segments.append(Segment(name, storage.nbytes(), tensor.itemsize, raw))
        return (self._bases[key] + 1 << APART) + tensor.storage_offset() * tensor.itemsize

    def at(self, addresses):
        """The segment that addresses lie in, and their offsets there."""
        # Half a tensor's room before it belongs to it, so that a small negative offset names the
        # right one.
        numbers = (addresses + (1 << APART - 1) >> APART) - 1
        number = int(numbers[0])
        if not 0 <= number < len(self.segments) or (numbers != number).any():
            raise FaultError(f"address {addresses[0]:#x} belongs to no tensor")
        return self.segments[number], addresses - (number + 1 << APART)
