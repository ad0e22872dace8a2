"""Operations recorded once and replayed for every block of planes, so that Python costs little per block.

Each operation runs on all of PyTorch's threads or, below PyTorch's parallel grain, on the calling thread alone. Many
small parallel regions are fast on an idle machine and ruinous on a busy one, where each of them waits until the
scheduler lets its last thread run. So a replay watches the clock: where one operation takes far longer than its size
explains, it goes on in blocks that stay below the grain, and so do the replays of the next moments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

PARALLEL_GRAIN = 2**15
"""PyTorch runs an elementwise operation of fewer elements on the calling thread."""
PARALLEL_BLOCK = 2**19
"""Elements per thread of a block in parallel replays: long enough to pay for a region, small enough for the cache."""
SINGLE_THREAD_BLOCK = 2**16
"""Elements of a block where PyTorch may use one thread only: a few of its size fit the second-level cache."""
PATIENCE = 3e-3
"""Seconds that one operation on such a block may take; an idle machine needs a tenth of it."""
CALM_AFTER = 0.5
"""Seconds for which replays stay serial once one operation took longer."""

_serial_until = 0.0


def prefers_serial() -> bool:
    """Whether operations should stay below the parallel grain at this moment."""
    return torch.get_num_threads() == 1 or time.monotonic() < _serial_until


def block_elements(serial: bool) -> int:
    """Elements that one operation on a block may have."""
    if torch.get_num_threads() == 1:
        return SINGLE_THREAD_BLOCK
    return PARALLEL_GRAIN - 1 if serial else PARALLEL_BLOCK * torch.get_num_threads()


class Tape:
    """Operations on whole tensors, whose first dimension is cut into blocks, and on scratch memory of one block."""

    def __init__(
        self, planes: int, planes_per_block: int, memory_format: torch.memory_format, device: torch.device
    ) -> None:
        self.planes, self.planes_per_block = planes, min(planes, planes_per_block)
        self._memory_format, self._device = memory_format, device
        self._scratch: dict[tuple[object, ...], Tensor] = {}
        self._operations: list[tuple[Callable[..., None], tuple[Tensor, ...]]] = []

    def scratch(self, purpose: object, sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory for one block of planes of ``sizes``, the same whenever asked for the same purpose."""
        key = (purpose, sizes, dtype)
        held = self._scratch.get(key)
        if held is None:
            shape = (self.planes_per_block, *sizes)
            held = torch.empty(shape, dtype=dtype, device=self._device, memory_format=self._memory_format)
            self._scratch[key] = held
        return held

    def record(self, operation: Callable[..., None], *operands: Tensor) -> None:
        """Append an operation on tensors, of which the last is written."""
        self._operations.append((operation, operands))

    def replay(self, watch: bool) -> int:
        """Run everything; the number of planes done, short of all where ``watch`` lost patience."""
        blocks = -(-self.planes // self.planes_per_block)
        operations = [operation for operation, _ in self._operations]
        columns = [
            zip(*(self._cut(operand, blocks) for operand in operands), strict=True) for _, operands in self._operations
        ]
        for block, row in enumerate(zip(*columns, strict=True)):
            started = time.perf_counter() if watch else 0.0
            for operation, operands in zip(operations, row, strict=True):
                operation(*operands)
                if watch:
                    ended = time.perf_counter()
                    if ended - started > PATIENCE:
                        _stay_serial()
                        return block * self.planes_per_block
                    started = ended
        return self.planes

    def _cut(self, tensor: Tensor, blocks: int) -> Sequence[Tensor]:
        if blocks == 1:
            return (tensor,)
        if tensor.shape[0] == self.planes:
            return tensor.split(self.planes_per_block)
        rest = self.planes % self.planes_per_block
        return [tensor] * blocks if rest == 0 else [tensor] * (blocks - 1) + [tensor[:rest]]


def _stay_serial() -> None:
    global _serial_until
    _serial_until = time.monotonic() + CALM_AFTER
