"""Sums, means, maxima and minima of sets of rows on the GPU, each set by itself.

A program owns one set and a block of channels, and reads a tile of its rows at once:

    rows of all sets    | set 0 | set 1     | set 2 | ...
    channels 0 ...          .     t t t t .     .
    channels G ...          .     . . . . .     .        t: a tile

Nothing is written twice, so results are the same in every run. What a set gives depends on that set
alone: tiles begin where it begins. A sum's additions are as deep as a balanced tree's (E6).
"""

import triton.language as tl

from . import addressing, folding, sums

MEAN = tl.constexpr(1)
LEAST = tl.constexpr(3)
"""OP: what a set gives. 0 is the sum, 2 the greatest; 2 and 3 also give the first row."""
T = tl.constexpr(16)
"""Rows of a tile."""


@addressing.launched
def segments(x, offsets, mask, y, winners, sizes, OP, RAGGED, MASKED, V, G):
    """Writes a row of ``y`` for each set of the rows of ``x``, which lie ``apart`` vectors apart.

    Set i has the rows ``offsets[i]`` to ``offsets[i + 1]``, as far as they are among the ``rows``
    that there are. With MASKED a row whose byte of ``mask`` is 0 is left out and not read.
    ``winners`` are rows of ``x``, or unless RAGGED rows of the set; -1 where there is none.
    """
    rows, channels, apart, blocks = sizes
    TYPE: tl.constexpr = folding.accumulated(x.dtype.element_ty)
    LOWEST: tl.constexpr = float("-inf") if OP > MEAN else 0.0
    number = (tl.program_id(0) // blocks).to(tl.int64)
    start = tl.maximum(tl.load(offsets + number).to(tl.int64), 0)
    limit = tl.minimum(tl.load(offsets + number + 1), rows) - start
    channel = tl.program_id(0) % blocks * G + tl.arange(0, G)[None, :]
    live = channel < channels * V
    k = tl.arange(0, T)[:, None]
    total = tl.full([T, G], LOWEST, TYPE)
    error = total
    best = tl.full([T, G], folding.NOWHERE, tl.int32)
    count = k * 0
    for _ in range(0, limit, T):
        kept = k < limit
        if MASKED:
            kept = tl.load(mask + start + k, mask=kept, other=0) != 0
        count += kept.to(tl.int32)
        exists = kept & live
        v = addressing.load_filled(x + (start + k) * apart * V + channel, exists, LOWEST, TYPE)
        if OP <= MEAN:
            total, error = sums.with_group(total, error, v)
        else:
            if OP == LEAST:
                v = tl.where(exists, -v, LOWEST)
            total, best = folding.first_greater(total, best, v, tl.where(kept, k, folding.NOWHERE))
        k += T
    own = number * channels * V + channel
    if OP > MEAN:
        total, best = tl.reduce((total, best), 0, folding.first_greater, keep_dims=True)
        total = -total if OP == LEAST else total
        row = tl.where(best == folding.NOWHERE, -1, best + (start if RAGGED else 0))
        tl.store(winners + own, row.to(tl.int64), mask=live)
    else:
        total = tl.sum(sums.compensated(total, error), 0, keep_dims=True)
        if OP == MEAN:
            kept = tl.maximum(tl.sum(count, 0, keep_dims=True), 1)
            divisor = tl.zeros_like(total) + kept.to(TYPE)
            total = sums.quotient(total, divisor, 1.0 / divisor)
    tl.store(y + own, addressing.rounded(total, y.dtype.element_ty), mask=live)
