"""Sums over sliding windows as trees that share their blocks, and their division: device helpers of
the averages.

Every term passes through a number of additions that grows with the logarithm of the window (rule
E6). Neighbouring windows share blocks of 1, 2, 4, ... terms.
"""

# Triton's compiler has no unpacking of tuples.
# ruff: noqa: SIM108

from typing import NamedTuple

import triton
import triton.language as tl

from .addressing import INTERPRETED


class SumPlan(NamedTuple):
    """Which source positions a tile of targets adds up along one axis, from the tile's own first
    source position on.

    Target j is the sum of ``counts[j]`` positions from ``low + starts[j]`` on, ``step`` apart, the
    last of which is ``lasts[j]`` (0 for no position); all lie in ``length`` positions from ``low``.
    """

    advance: int  # from a tile's first source position to the next tile's
    targets: int
    low: int
    length: int
    step: int
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    lasts: tuple[int, ...]


@triton.constexpr_function
def plan(axis, ADJOINT, TILE, V):
    """The plan of a tile of targets (of windows, for an adjoint), with positions in vectors of
    ``V``.
    """
    K, S, P, _, D = axis
    if ADJOINT:
        advance, targets = TILE, TILE * S
        # the windows that have a tap on a target, the lowest first
        places = [[j + P - (K - 1 - t) * D for t in range(K)] for j in range(targets)]
        added = [[place // S for place in each if place % S == 0] for each in places]
    else:
        advance, targets = TILE * S, TILE
        added = [[j * S - P + t * D for t in range(K)] for j in range(targets)]
    every = {position for each in added for position in each}
    low = min(every) // V * V
    length = (max(every) // V + 1) * V - low
    step = max([each[1] - each[0] for each in added if len(each) > 1], default=1)
    starts = tuple([each[0] - low if each else 0 for each in added])
    lasts = tuple([each[-1] - low if each else 0 for each in added])
    return SumPlan(advance, targets, low, length, step, starts, tuple(map(len, added)), lasts)


@triton.constexpr_function
def block_of(count):
    """The largest power of two below ``count``."""
    return 1 << (count - 1).bit_length() >> 1


@triton.jit
def tree(values, FIRST, STEP, COUNT):
    """The sum of COUNT entries of a tuple. The compiler computes once what trees have in common."""
    if COUNT == 0:
        return tl.zeros_like(values[0])
    elif COUNT == 1:
        return values[FIRST]
    else:
        BLOCK: tl.constexpr = block_of(COUNT)
        return tree(values, FIRST + BLOCK * STEP, STEP, COUNT - BLOCK) + tree(
            values, FIRST, STEP, BLOCK
        )


@triton.jit
def target_totals(values, PLAN, TARGET, T):
    """The T sums of one target, where each position has T values."""
    totals = ()
    for c in tl.static_range(T):
        totals = totals + (
            tree(values, PLAN.starts[TARGET] * T + c, PLAN.step * T, PLAN.counts[TARGET]),
        )
    return totals


@triton.jit
def sliding_sums(values, PLAN):
    """One sum per target of ``PLAN`` over one value per position."""
    T: tl.constexpr = PLAN.targets
    sums = ()
    for j in tl.static_range(T):
        sums = sums + target_totals(values, PLAN, j, 1)
    return sums


@triton.jit
def with_group(total, error, group):
    """Adds a group to a running sum. Returns the sum, and what all additions so far have rounded
    away.
    """
    grown = total + group
    back = grown - total
    return grown, error + ((total - (grown - back)) + (group - back))


@triton.jit
def compensated(total, error):
    """The sum plus what was rounded away, unless that is NaN, as it is for infinite sums."""
    whole = total + error
    return tl.where(whole == whole, whole, total)


@triton.jit
def quotient(total, divisor, reciprocal):
    """``total / divisor``; in float32 one Newton step makes an approximate reciprocal as good as a
    division.
    """
    if total.dtype == tl.float64:
        return total / divisor
    else:
        product = total * reciprocal
        rest = tl.fma(-product, divisor, total)
        # The rest of an infinite product is NaN; any number instead keeps the product. A maximum
        # gives the other operand of a NaN in one instruction, but in the interpreter gives NaN.
        if INTERPRETED:
            rest = tl.where(rest == rest, rest, 0.0)
        else:
            rest = tl.maximum(rest, -3.0e38)
        return tl.fma(rest, reciprocal, product)


@triton.jit
def taps_before(first, bound, K, D):
    """How many of the taps ``first, first + D, ...`` (``K`` of them) lie below ``bound``."""
    return tl.minimum((tl.maximum(bound - first, 0) + (D - 1)) // D, K)


@triton.jit
def divisor_along(output, size, axis, COUNT, ACC):
    """The taps of window ``output`` along one axis that an average counts, inside the input (COUNT
    1) or the padded input (2), but at least 1: a window that has none has the sum 0.
    """
    # Triton 3.6 cannot unpack an axis that is known when it compiles.
    K, S, P, END, D = axis[0], axis[1], axis[2], axis[3], axis[4]
    first = output * S - P
    if COUNT == 2:
        count = taps_before(first, size.to(first.dtype) + END, K, D)
    else:
        count = taps_before(first, size, K, D) - taps_before(first, 0, K, D)
    return tl.maximum(count, 1).to(ACC)


@triton.jit
def divisor_across(row, depth, H, D, ROW, DEPTH, COUNT, ACC):
    """The same along rows and depths together."""
    return divisor_along(row, H, ROW, COUNT, ACC) * divisor_along(depth, D, DEPTH, COUNT, ACC)
