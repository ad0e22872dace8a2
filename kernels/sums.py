"""Sums over sliding windows as trees that share their blocks, and their division: device helpers of the averages.

A sequential sum of k terms rounds k - 1 times; here every term passes through a number of additions that grows with the
logarithm of the window (rule E6), and neighbouring windows share blocks of 1, 2, 4, ... terms.
"""

# Triton's compiler has no unpacking of tuples.
# ruff: noqa: SIM108

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from .addressing import INTERPRETED, counted_taps


class Plan(NamedTuple):
    """Which source positions a tile of targets adds up along one axis, from the tile's own first source position on.

    Target j is the sum of ``counts[j]`` positions from ``low + starts[j]`` on, ``step`` apart, the last of which is
    ``lasts[j]`` (0 for no position); all lie in ``length`` positions from ``low``.
    """

    advance: int  # from a tile's first source position to the next tile's
    targets: int
    low: int
    length: int
    height: int  # the most levels of a target's tree
    step: int
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    lasts: tuple[int, ...]
    used: tuple[bool, ...]  # of every vector of positions whether any target adds one
    needed: tuple[bool, ...]  # of number m * length + i whether some tree has the block of 2 ** m positions from i on


@triton.constexpr_function
def plan(axis, ADJOINT, TILE, V):
    """The plan of a tile of targets (of windows, for an adjoint), with positions in vectors of ``V``."""
    K, S, P, _, D = axis
    if ADJOINT:
        a, step = S, D
        while step:  # the greatest common divisor
            a, step = step, a % step
        advance, targets, step = TILE, TILE * S, D // a
        taps = [[t for t in range(K) if (j + P - t * D) % S == 0] for j in range(targets)]
        firsts = [(j + P - reaching[-1] * D) // S if reaching else None for j, reaching in enumerate(taps)]
        counts = [len(reaching) for reaching in taps]
    else:
        advance, targets, step = TILE * S, TILE, D
        firsts = [j * S - P for j in range(targets)]
        counts = [K] * targets
    spans = [(first, first + (count - 1) * step) for first, count in zip(firsts, counts, strict=False) if count]
    low = min(first for first, _ in spans) // V * V
    length = (max(last for _, last in spans) // V + 1) * V - low
    starts = tuple(0 if first is None else first - low for first in firsts)
    height = max(counts).bit_length()
    needed = [[False] * length for _ in range(height)]
    for start, count in zip(starts, counts, strict=False):
        for m in range(height):
            if count >> m & 1:
                first = start + step * (count >> (m + 1) << (m + 1))
                for below in range(m + 1):
                    for i in range(2 ** (m - below)):
                        needed[below][first + step * 2**below * i] = True
    used = tuple(any(needed[0][i : i + V]) for i in range(0, length, V))
    every = tuple(flag for level in needed for flag in level)
    lasts = tuple(start + (count - 1) * step if count else 0 for start, count in zip(starts, counts, strict=False))
    return Plan(advance, targets, low, length, height, step, starts, tuple(counts), lasts, used, every)


@triton.jit
def no_levels(PLAN: tl.constexpr):
    LEVELS: tl.constexpr = PLAN.height
    return ((),) * LEVELS


@triton.jit
def with_position(levels, values, PLAN: tl.constexpr, POSITION: tl.constexpr, T: tl.constexpr):
    """``levels`` with the ``T`` values of one more position, and the blocks that end there.

    ``levels[m]`` holds, ``T`` per position, the sums of ``2 ** m`` positions: blocks that neighbouring targets share.
    """
    LEVELS: tl.constexpr = PLAN.height
    grown = (levels[0] + values,)
    for m in tl.static_range(1, LEVELS):
        level = levels[m]
        if (2**m - 1) * PLAN.step <= POSITION:
            for c in tl.static_range(T):
                if PLAN.needed[m * PLAN.length + POSITION - (2**m - 1) * PLAN.step]:
                    block = (
                        grown[m - 1][(POSITION - (2**m - 1) * PLAN.step) * T + c]
                        + grown[m - 1][(POSITION - (2 ** (m - 1) - 1) * PLAN.step) * T + c]
                    )
                else:
                    block = values[c]  # never read
                level = level + (block,)
        grown = grown + (level,)
    return grown


@triton.jit
def target_totals(levels, zero, PLAN: tl.constexpr, TARGET: tl.constexpr, T: tl.constexpr):
    """The ``T`` sums of one target: its blocks, the largest first in memory, added up from the smallest."""
    LEVELS: tl.constexpr = PLAN.height
    COUNT: tl.constexpr = PLAN.counts[TARGET]
    totals = ()
    for c in tl.static_range(T):
        total = zero
        for m in tl.static_range(LEVELS):
            if (COUNT >> m) % 2 == 1:
                block = levels[m][(PLAN.starts[TARGET] + PLAN.step * ((COUNT >> (m + 1)) << (m + 1))) * T + c]
                total = block if COUNT % (1 << m) == 0 else block + total
        totals = totals + (total,)
    return totals


@triton.jit
def sliding_sums(values, zero, PLAN: tl.constexpr):
    """One sum per target of ``PLAN`` over one value per position."""
    POSITIONS: tl.constexpr = PLAN.length
    T: tl.constexpr = PLAN.targets
    levels = no_levels(PLAN)
    for i in tl.static_range(POSITIONS):
        levels = with_position(levels, (values[i],), PLAN, i, 1)
    sums = ()
    for j in tl.static_range(T):
        sums = sums + target_totals(levels, zero, PLAN, j, 1)
    return sums


@triton.jit
def with_group(total, error, terms):
    """A running sum with eight more terms, and what all its additions have rounded away (compensated summation)."""
    group = ((terms[0] + terms[1]) + (terms[2] + terms[3])) + ((terms[4] + terms[5]) + (terms[6] + terms[7]))
    grown = total + group
    back = grown - total
    return grown, error + ((total - (grown - back)) + (group - back))


@triton.constexpr_function
def reciprocal_parts(divisor):
    """``1 / divisor`` as two float32 numbers of one sign: the first cut off after 24 bits, the second the rest."""
    reciprocal, scale = 1.0 / divisor, 1.0
    while abs(reciprocal) * scale < 2**23:
        scale *= 2.0
    first = int(reciprocal * scale) / scale
    return first, reciprocal - first


@triton.jit
def constant_quotient(total, DIVISOR: tl.constexpr):
    """``total / DIVISOR`` for a divisor known at compile time, as exact as a division; infinities stay."""
    PARTS: tl.constexpr = reciprocal_parts(DIVISOR)
    if PARTS[1] == 0.0:
        return total * PARTS[0]
    elif total.dtype == tl.float64:
        return total / tl.full(total.shape, DIVISOR, tl.float64)
    else:
        rest = total * PARTS[1]
        return tl.fma(total, tl.full(total.shape, PARTS[0], tl.float32), rest)


@triton.jit
def reciprocal(count):
    """``1 / count``; of a small positive integer in float64, to a unit in the last place: two steps from float32."""
    if count.dtype.is_floating():
        return 1.0 / count
    else:
        divisor = count.to(tl.float64)
        guess = (1.0 / count.to(tl.float32)).to(tl.float64)
        guess = tl.fma(guess, tl.fma(-divisor, guess, 1.0), guess)
        return tl.fma(guess, tl.fma(-divisor, guess, 1.0), guess)


@triton.jit
def quotient(total, divisor, reciprocal):
    """``total / divisor``; in float32 one Newton step makes an approximate reciprocal as good as a division."""
    if total.dtype == tl.float64:
        return total / divisor
    else:
        product = total * reciprocal
        rest = tl.fma(-product, divisor, total)
        # The rest of an infinite product is NaN; any number instead keeps the product. A maximum gives the other
        # operand of a NaN in one instruction, but in the interpreter gives NaN.
        if INTERPRETED:
            rest = tl.where(rest == rest, rest, 0.0)
        else:
            rest = tl.maximum(rest, -3.0e38)
        return tl.fma(rest, reciprocal, product)


@triton.jit
def divisor_along(output, size, axis, COUNT: tl.constexpr, ACC: tl.constexpr):
    """Counted taps of window ``output`` along one axis, at least 1: a window without any sums to 0 anyway."""
    first = output * axis[1] - axis[2]
    return tl.maximum(counted_taps(first, size, axis[3], axis[0], axis[4], COUNT == 2), 1).to(ACC)


@triton.jit
def divisor_across(
    row, depth, H, D, ROW: tl.constexpr, DEPTH: tl.constexpr, COUNT: tl.constexpr, ACC: tl.constexpr
):  # fmt: skip
    """The same along rows and depths together."""
    return divisor_along(row, H, ROW, COUNT, ACC) * divisor_along(depth, D, DEPTH, COUNT, ACC)
