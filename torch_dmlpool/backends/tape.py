"""Operations recorded once and replayed for every block of planes, so that Python costs little per block.

Many operations on all threads are fast on an idle machine and ruinous on a busy one. So a replay watches the clock and
stops where one of them takes far longer than its size explains: :mod:`~torch_dmlpool.backends.threads` says what then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

PARALLEL_GRAIN = 2**15
"""PyTorch runs an elementwise operation of fewer elements on the calling thread."""
BLOCK, THREAD_BLOCK = 2**19, 2**18
"""Elements of a block at least, and for each of several threads: long enough to pay for a parallel region, small
enough for the cache, and for the C library to hand out the scratch of the call before instead of fresh pages."""
MOST_THREADS = 8
"""Threads whose blocks are added up; beyond them scratch memory would grow with the machine."""
PATIENCE = 3e-3
"""Seconds that one operation on such a block may take; an idle machine needs a tenth of it."""


def block_elements() -> int:
    """Elements that one operation on a block may have."""
    return max(BLOCK, THREAD_BLOCK * min(torch.get_num_threads(), MOST_THREADS))


class Place(NamedTuple):
    """Where an operand lies: which tensor it is a view of, and which view; ``offset`` is in bytes."""

    base: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def view(self, base: Tensor) -> Tensor:
        """The same place in another tensor like the one that was recorded."""
        offset = (base.storage_offset() * base.dtype.itemsize + self.offset) // self.dtype.itemsize
        if base.dtype is self.dtype:
            return base.as_strided(self.sizes, self.strides, offset)
        held: Any = base.new_empty(0, dtype=self.dtype)
        view: Tensor = held.set_(base.untyped_storage(), offset, self.sizes, self.strides)
        return view


class Tape:
    """Records operations on whole tensors, whose first dimension is cut into blocks, and on scratch of one block.

    What is recorded holds for all tensors of the same sizes and strides that begin at a word as these do, so that a
    tape can be kept and replayed on others.
    """

    def __init__(self, wholes: Sequence[Tensor], planes_per_block: int, memory_format: torch.memory_format) -> None:
        self.planes = wholes[0].shape[0]
        self.planes_per_block = min(self.planes, planes_per_block)
        self._memory_format, self._device = memory_format, wholes[0].device
        self._scratch: dict[tuple[object, tuple[int, ...], torch.dtype], Tensor] = {}
        self._bases = [(_storage(whole), _first_byte(whole)) for whole in wholes]
        self._operations: list[tuple[Callable[..., None], tuple[Place, ...]]] = []

    @property
    def has_rows(self) -> bool:
        """Whether scratch has contiguous rows, and may have more dimensions than the tensors."""
        return self._memory_format is torch.contiguous_format

    @property
    def reads_words(self) -> bool:
        """Whether these rows may be read as wider integers, whose low ends come first in memory."""
        return self.has_rows and self._device.type in ("cpu", "meta") and sys.byteorder == "little"

    @property
    def shares_storage(self) -> bool:
        """Whether two of the whole tensors lie in one storage: then their places hold for these alone."""
        return len({storage for storage, _ in self._bases}) < len(self._bases)

    def scratch(self, purpose: object, sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory for one block of planes of ``sizes``, the same whenever asked for the same purpose."""
        key = (purpose, sizes, dtype)
        held = self._scratch.get(key)
        if held is None:
            # Recording needs sizes and strides only: memory is taken by each replay.
            held = self._empty(sizes, dtype, torch.device("meta"))
            self._scratch[key] = held
            self._bases.append((_storage(held), 0))
        return held

    def _empty(self, sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        shape = (self.planes_per_block, *sizes)
        return torch.empty(shape, dtype=dtype, device=device, memory_format=self._memory_format)

    def record(self, operation: Callable[..., None], *operands: Tensor) -> None:
        """Append an operation on tensors, of which the last is written."""
        self._operations.append((operation, tuple(self._place(operand) for operand in operands)))

    def _place(self, operand: Tensor) -> Place:
        storage = _storage(operand)
        base = next(number for number, (held, _) in enumerate(self._bases) if held == storage)
        offset = _first_byte(operand) - self._bases[base][1]
        return Place(base, operand.dtype, tuple(operand.shape), operand.stride(), offset)

    def replay(self, wholes: Sequence[Tensor], watch: bool) -> int:
        """Run everything on ``wholes``; the number of planes done, short of all where ``watch`` lost patience."""
        bases = [*wholes, *(self._empty(sizes, dtype, self._device) for _, sizes, dtype in self._scratch)]
        blocks = -(-self.planes // self.planes_per_block)
        operations = [operation for operation, _ in self._operations]
        columns = [[place.view(bases[place.base]) for place in places] for _, places in self._operations]
        if blocks == 1:
            rows: Iterable[Sequence[Sequence[Tensor]]] = [columns]
        else:
            rows = zip(*(zip(*map(self._cut, operands), strict=True) for operands in columns), strict=True)
        for block, row in enumerate(rows):
            started = time.perf_counter() if watch else 0.0
            for operation, views in zip(operations, row, strict=True):
                operation(*views)
                if watch:
                    ended = time.perf_counter()
                    if ended - started > PATIENCE:
                        return block * self.planes_per_block
                    started = ended
        return self.planes

    def _cut(self, tensor: Tensor) -> Sequence[Tensor]:
        if tensor.shape[0] == self.planes:
            return tensor.split(self.planes_per_block)
        blocks, rest = divmod(self.planes, self.planes_per_block)
        return [tensor] * blocks + ([tensor[:rest]] if rest else [])


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _first_byte(tensor: Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.dtype.itemsize


def same_place(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors begin at the same element of the same storage."""
    return first.storage_offset() == second.storage_offset() and _storage(first) == _storage(second)
