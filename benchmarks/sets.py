"""Pools of tokens, ragged sets and frames of real models, beside what people write: rows of
``python -m benchmarks calls tokens``."""

import functools

import torch

import torch_dmlpool as dmlpool
from benchmarks.common import ATEN, OURS, Calls

SIZES = {
    "tokens MiniLM": (32, 128, 384),
    "tokens BGE": (8, 512, 1024),
    "statistics ECAPA": (8, 300, 1536),
    "statistics pyannote": (32, 293, 1500),
    "ragged words": (5000, 8, 64),
    "ragged sentences": (32, 64, 768),
}
"""Samples, rows of each, and channels; half of the rows are kept."""
PRODUCT = "bmm"


def calls(pool: str, mode: str, device: str = "cpu") -> Calls:
    """The formula and ours, of the same result; of tokens a product of matrices, too."""
    samples, length, channels = SIZES[pool]
    with torch.device(device):
        x = torch.randn(samples, length, channels, requires_grad=mode == "training")
        kept = torch.arange(length) < torch.randint(2, length + 1, (samples, 1))
        gradient = torch.randn(samples, channels)
    weights = kept.unsqueeze(-1).to(x.dtype)
    count = weights.sum(1)
    mean = lambda x: (x * weights).sum(1) / count  # noqa: E731
    pools = {
        ATEN: mean,
        OURS: lambda x: dmlpool.token_pooling(x, kept),
        PRODUCT: lambda x: torch.bmm(weights.mT / count[:, None], x)[:, 0],
    }
    if pool.startswith("statistics"):
        of_frames = kept[:, None]
        pools = {
            ATEN: lambda x: ((x - mean(x)[:, None]) * weights).square().sum(1).div(count).sqrt(),
            OURS: lambda x: dmlpool.statistics_pooling(x.mT, of_frames, correction=0)[1],
        }
    elif pool.startswith("ragged"):
        x, lengths = x.detach()[kept].requires_grad_(x.requires_grad), kept.sum(1)
        offsets, which = lengths.cumsum(0) - lengths, kept.nonzero()[:, 0]
        ends = torch.cat([offsets, lengths.sum()[None]])
        pools = {
            ATEN: lambda x: x.new_zeros(samples, channels).index_add(0, which, x) / count,
            OURS: lambda x: dmlpool.segment_pooling(x, ends),
        }

    def call(formula):
        result = formula(x)
        return torch.autograd.grad(result, x, gradient)[0] if x.requires_grad else result

    made = {who: functools.partial(call, formula) for who, formula in pools.items()}
    expected, *others = (each() for each in made.values())
    for found in others:
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4, equal_nan=True)
    return made
