"""Sums over sliding windows as trees that share their blocks, and their division: device helpers of the averages.

A sequential sum of k terms rounds k - 1 times; here every term passes through a number of additions that grows with the
logarithm of the window, and neighbouring windows share blocks of 1, 2, 4, ... terms or a common core.
"""

# Triton's compiler knows no unpacking, and wants both branches of a compile-time choice to return.
# ruff: noqa: SIM108

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import INTERPRETED, counted_taps


@triton.constexpr_function
def greatest_common_divisor(a, b):
    while b:
        a, b = b, a % b
    return a


@triton.constexpr_function
def plan(K, S, P, D, ADJOINT, TILE, V):
    """Which source positions a tile of targets adds up along one axis, from the tile's own first source position on.

    ``(advance, targets, low, length, height, step, starts, counts, used, needed)``: target j is the sum of
    ``counts[j]`` positions from ``low + starts[j]`` on, ``step`` apart; all lie in ``length`` positions from ``low``,
    both multiples of ``V``; the next tile's first source position is ``advance`` further. ``used`` says of every ``V``
    positions whether any target adds one; ``needed[m * length + i]`` whether some target's tree holds the block of
    ``2 ** m`` positions from ``i`` on.
    """
    if ADJOINT:
        advance, targets, step = TILE, TILE * S, D // greatest_common_divisor(S, D)
        taps = [[t for t in range(K) if (j + P - t * D) % S == 0] for j in range(targets)]
        firsts = [(j + P - reaching[-1] * D) // S if reaching else None for j, reaching in enumerate(taps)]
        counts = [len(reaching) for reaching in taps]
    else:
        advance, targets, step = TILE * S, TILE, D
        firsts = [j * S - P for j in range(targets)]
        counts = [K] * targets
    used = [(first, first + (count - 1) * step) for first, count in zip(firsts, counts, strict=False) if count]
    low = min(first for first, _ in used) // V * V
    length = (max(last for _, last in used) // V + 1) * V - low
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
    return (
        advance,
        targets,
        low,
        length,
        height,
        step,
        starts,
        tuple(counts),
        used,
        tuple(flag for level in needed for flag in level),
    )


@triton.constexpr_function
def reciprocal_parts(divisor):
    """``1 / divisor`` as two float32 numbers of one sign: the first cut off after 24 bits, the second the rest."""
    reciprocal, scale = 1.0 / divisor, 1.0
    while abs(reciprocal) * scale < 2**23:
        scale *= 2.0
    first = int(reciprocal * scale) / scale
    return first, reciprocal - first


@triton.jit
def with_position(levels, values, PLAN: tl.constexpr, POSITION: tl.constexpr, T: tl.constexpr):
    """``levels`` with the ``T`` values of one more position, and the blocks that end there.

    ``levels[m]`` holds, ``T`` per position, the sums of ``2 ** m`` positions: blocks that neighbouring targets share.
    """
    HEIGHT: tl.constexpr = PLAN[4]
    STEP: tl.constexpr = PLAN[5]
    grown = (levels[0] + values,)
    for m in tl.static_range(1, HEIGHT):
        level = levels[m]
        if (2**m - 1) * STEP <= POSITION:
            for c in tl.static_range(T):
                if PLAN[9][m * PLAN[3] + POSITION - (2**m - 1) * STEP]:
                    block = (
                        grown[m - 1][(POSITION - (2**m - 1) * STEP) * T + c]
                        + grown[m - 1][(POSITION - (2 ** (m - 1) - 1) * STEP) * T + c]
                    )
                else:
                    block = values[c]  # never looked at
                level = level + (block,)
        grown = grown + (level,)
    return grown


@triton.jit
def no_levels(PLAN: tl.constexpr):
    HEIGHT: tl.constexpr = PLAN[4]
    levels = ()
    for _ in tl.static_range(HEIGHT):
        levels = levels + ((),)
    return levels


@triton.constexpr_function
def completed_at(plan, target):
    """The last position that a target adds up; 0 for one that adds up nothing."""
    step, start, count = plan[5], plan[6][target], plan[7][target]
    return start + (count - 1) * step if count else 0


@triton.jit
def with_entry(entries, NUMBER: tl.constexpr, entry, N: tl.constexpr):
    """A tuple with one entry exchanged."""
    changed = ()
    for i in tl.static_range(N):
        if i == NUMBER:
            changed = changed + (entry,)
        else:
            changed = changed + (entries[i],)
    return changed


@triton.jit
def target_totals(levels, zero, PLAN: tl.constexpr, TARGET: tl.constexpr, T: tl.constexpr):
    """The ``T`` sums of one target: its blocks, the largest first, added up from the smallest."""
    HEIGHT: tl.constexpr = PLAN[4]
    STEP: tl.constexpr = PLAN[5]
    totals = ()
    for c in tl.static_range(T):
        total = zero
        for m in tl.static_range(HEIGHT):
            if (PLAN[7][TARGET] >> m) % 2 == 1:
                block = levels[m][(PLAN[6][TARGET] + STEP * ((PLAN[7][TARGET] >> (m + 1)) << (m + 1))) * T + c]
                total = block if PLAN[7][TARGET] % (1 << m) == 0 else block + total
        totals = totals + (total,)
    return totals


@triton.jit
def sliding_sums(values, zero, PLAN: tl.constexpr):
    """One sum per target of ``PLAN`` over one value per position."""
    LENGTH: tl.constexpr = PLAN[3]
    TARGETS: tl.constexpr = PLAN[1]
    levels = no_levels(PLAN)
    for i in tl.static_range(LENGTH):
        levels = with_position(levels, (values[i],), PLAN, i, 1)
    sums = ()
    for j in tl.static_range(TARGETS):
        sums = sums + target_totals(levels, zero, PLAN, j, 1)
    return sums


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
def divisor_along(
    output, size, K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, E: tl.constexpr, D: tl.constexpr,
    COUNT: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Counted taps of window ``output`` along one axis, at least 1: a window without any sums to 0 anyway."""
    return tl.maximum(counted_taps(output * S - P, size, E, K, D, COUNT == 2), 1).to(ACC)


@triton.jit
def pairwise_sum(values, FIRST: tl.constexpr, COUNT: tl.constexpr):
    """The sum of ``COUNT`` entries of a tuple from ``FIRST`` on, as a balanced tree."""
    level = ()
    for i in tl.static_range(COUNT):
        level = level + (values[FIRST + i],)
    for m in tl.static_range((COUNT - 1).bit_length()):
        halved = ()
        for i in tl.static_range((COUNT + 2**m - 1) // 2**m // 2):
            halved = halved + (level[2 * i] + level[2 * i + 1],)
        if (COUNT + 2**m - 1) // 2**m % 2 == 1:
            halved = halved + (level[(COUNT + 2**m - 1) // 2**m - 1],)
        level = halved
    return level[0]


@triton.jit
def with_group(total, error, terms):
    """A running sum with eight more terms, and what all its additions have rounded away."""
    group = ((terms[0] + terms[1]) + (terms[2] + terms[3])) + ((terms[4] + terms[5]) + (terms[6] + terms[7]))
    grown = total + group
    back = grown - total
    return grown, error + ((total - (grown - back)) + (group - back))


@triton.constexpr_function
def additions(K, R):
    """The most additions that a term of ``logarithmic_sums`` goes through."""
    core = (K - R).bit_length() + 1
    return core - 1 if R == 1 else max(core, (R - 2).bit_length() + 2)


@triton.jit
def running_sums(values, OUTER: tl.constexpr, TOWARDS: tl.constexpr, COUNT: tl.constexpr):
    """Sums of the first 1, 2, ... ``COUNT`` entries from ``OUTER`` on in steps of ``TOWARDS``, each a balanced tree."""
    if COUNT == 1:
        return (values[OUTER],)
    else:
        HALF: tl.constexpr = 1 << ((COUNT - 1).bit_length() - 1)
        sums = running_sums(values, OUTER, TOWARDS, HALF)
        further = running_sums(values, OUTER + TOWARDS * HALF, TOWARDS, COUNT - HALF)
        for i in tl.static_range(COUNT - HALF):
            sums = sums + (sums[HALF - 1] + further[i],)
        return sums


@triton.jit
def logarithmic_sums(values, FIRST: tl.constexpr, K: tl.constexpr, R: tl.constexpr):
    """``R`` neighbouring sums of ``K >= R`` entries, the first from ``FIRST`` on: a core that all share, and edges."""
    core = pairwise_sum(values, FIRST + R - 1, K - R + 1)
    sums = ()
    if R == 1:
        sums = (core,)
    else:
        before = running_sums(values, FIRST + R - 2, -1, R - 1)
        after = running_sums(values, FIRST + K, 1, R - 1)
        for j in tl.static_range(R):
            if j == 0:
                sums = sums + (before[R - 2] + core,)
            elif j == R - 1:
                sums = sums + (after[R - 2] + core,)
            else:
                sums = sums + ((before[R - 2 - j] + after[j - 1]) + core,)
    return sums


@triton.constexpr_function
def core_is_shallow(rows, columns, R):
    """Whether ``logarithmic_sums`` along the columns, and blocks down the rows, add no deeper than rule E6 rounds."""
    # A sum of all taps may round as often as a balanced tree has levels, and once more beside the division.
    allowed = (rows * columns - 1).bit_length() + 1
    return columns >= R and additions(columns, R) + (rows - 1).bit_length() <= allowed


@triton.jit
def neighbouring_sums(values, FIRST: tl.constexpr, ROWS: tl.constexpr, K: tl.constexpr, R: tl.constexpr):
    """``R`` neighbouring sums of ``K`` entries, of which ``ROWS`` are added up afterwards: cheaply if not too deep.

    Otherwise from blocks of 1, 2, 4, ... entries, as deep as a balanced tree.
    """
    if core_is_shallow(ROWS, K, R):
        return logarithmic_sums(values, FIRST, K, R)
    else:
        WINDOWS: tl.constexpr = plan(K, 1, 0, 1, False, R, 1)
        of_windows = ()
        for i in tl.static_range(R + K - 1):
            of_windows = of_windows + (values[FIRST + i],)
        return sliding_sums(of_windows, tl.zeros_like(values[0]), WINDOWS)


@triton.constexpr_function
def kept_before(window, level):
    """How many blocks of fewer than ``2 ** level`` rows a walk remembers."""
    return sum(remembered(window, m) for m in range(level))


@triton.constexpr_function
def remembered(window, level):
    """How many blocks of ``2 ** level`` rows a walk remembers: as far as the next size, or the window, reaches back."""
    height = window.bit_length()
    if level < height - 1:
        return 2**level
    return window % 2**level


@triton.jit
def blocks_further(state, row, K: tl.constexpr):
    """``(state, total)`` one row further down: the sum of the ``K`` rows that end in ``row``, and what the next need.

    ``state`` holds, for each size 1, 2, 4, ..., the last blocks of as many rows, oldest first.
    """
    HEIGHT: tl.constexpr = K.bit_length()
    kept = ()
    total = row
    block = row
    for m in tl.static_range(HEIGHT):
        # The window's bits, the lowest at its end: a block of 2 ** m rows ends where the smaller ones begin.
        if (K >> m) % 2 == 1:
            if K % (1 << m) == 0:
                total = block
            else:
                total = state[kept_before(K, m + 1) - K % (1 << m)] + total
        longer = block
        if m < HEIGHT - 1:
            longer = state[kept_before(K, m)] + block
        for i in tl.static_range(kept_before(K, m) + 1, kept_before(K, m + 1)):
            kept = kept + (state[i],)
        if kept_before(K, m + 1) > kept_before(K, m):
            kept = kept + (block,)
        block = longer
    return kept, total
