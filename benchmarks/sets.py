"""Pools of tokens, ragged sets and frames of real models, beside what people write: rows of
``python -m benchmarks calls tokens``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from benchmarks.common import Disagreement
from torch_dmlpool.timing import Call

SIZES = {
    "tokens MiniLM": (32, 128, 384),
    "tokens BGE": (8, 512, 1024),
    "statistics ECAPA": (8, 300, 1536),
    "statistics pyannote": (32, 293, 1500),
    "ragged words": (5000, 8, 64),
    "ragged sentences": (32, 64, 768),
}
"""Samples, rows of each, and channels; half of the rows are kept."""


@dataclass(frozen=True)
class SetRow:
    """A call as ``calls.Row`` has it."""

    pool: str
    mode: str
    threads: int

    @property
    def column(self) -> str:
        return f"{self.mode} of sets threads={self.threads}"

    @property
    def name(self) -> str:
        return f"{self.pool} {self.column}"

    def calls(self, names: Sequence[str]) -> dict[str, Call]:
        """The formula and ours, of the same result, under these names."""
        samples, length, channels = SIZES[self.pool]
        x = torch.randn(samples, length, channels, requires_grad=self.mode == "training")
        kept = torch.arange(length) < torch.randint(1, length + 1, (samples, 1))
        weights = kept.unsqueeze(-1).to(x.dtype)
        count = weights.sum(1)
        mean = lambda x: (x * weights).sum(1) / count  # noqa: E731
        pools: list[Callable[..., Any]] = [mean, lambda x: dmlpool.token_pooling(x, kept)]
        if self.pool.startswith("statistics"):
            of_frames = kept[:, None]
            pools = [
                lambda x: ((x - mean(x)[:, None]) * weights).square().sum(1).div(count).sqrt(),
                lambda x: dmlpool.statistics_pooling(x.mT, of_frames, correction=0)[1],
            ]
        elif self.pool.startswith("ragged"):
            x, lengths = x.detach()[kept].requires_grad_(x.requires_grad), kept.sum(1)
            offsets, which = lengths.cumsum(0) - lengths, kept.nonzero()[:, 0]
            ends = torch.cat([offsets, lengths.sum()[None]])
            pools = [
                lambda x: torch.zeros(count.shape[0], channels).index_add(0, which, x) / count,
                lambda x: dmlpool.segment_pooling(x, ends),
            ]
        gradient = torch.randn(samples, channels)

        def call(pool: Callable[[Tensor], Tensor]) -> Any:
            result = pool(x)
            return torch.autograd.grad(result, x, gradient)[0] if x.requires_grad else result

        found, expected = call(pools[1]), call(pools[0])
        if not torch.allclose(found, expected, rtol=1e-3, atol=1e-4, equal_nan=True):
            raise Disagreement(self.name)
        both = (lambda: call(pools[0])), (lambda: call(pools[1]))
        return dict(zip(names, both[-len(names) :], strict=True))


def rows(threads: Sequence[int]) -> list[SetRow]:
    """Every call, forward and in training."""
    modes = "forward", "training"
    return [SetRow(pool, mode, each) for each in threads for mode in modes for pool in SIZES]
