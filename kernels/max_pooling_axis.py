"""Max pooling and its gradient axis by axis on the GPU, for windows too large to unroll, and for adaptive bins.

One pass per axis, each a loop over its own taps: a window costs the sum of its sizes, not their product. A tap's number
grows by the outer axis' part in each pass; -1 marks what is not inside the input until the last.
"""

# ruff: noqa: E741  (I and O are an axis' sizes)

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import (
    first_covering,
    first_tap_inside,
    lane_numbers,
    launched,
    load_filled,
    lowest,
    rounded,
    widened,
)
from .max_pooling import better, comparable, compared


@triton.jit
def place_along(lane, INNER, groups):
    """``(group, inner, outer)`` of a lane: groups of outputs along an axis, with INNER vectors further in."""
    q = lane // INNER
    return q % groups, lane % INNER, (q // groups).to(tl.int64)


@launched(4)
def max_axis(
    x, inner, y, t, lanes, INNER, I, O, bound, below,
    AXIS: tl.constexpr, BINS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr,
    V: tl.constexpr, WITH_TAPS: tl.constexpr, WIDE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Maxima along one axis, of O windows (or adaptive BINS) over I elements; a lane owns R outputs by V.

    Axes are pooled innermost first, so that of equal maxima the first is kept. ``inner`` holds the numbers that the
    axes further in have found (unused on the FIRST pass), -1 where a window has been empty; ``t`` gets ``k * below``
    more, k the tap, for bins the position along the axis. All are dense, with INNER vectors between neighbours along
    the axis. With R above 1 windows overlap (dilation 1) and share their core, of which ``bound`` elements at most are
    read, or else of a window.
    """
    K: tl.constexpr = AXIS.window
    S: tl.constexpr = AXIS.stride
    J: tl.constexpr = AXIS.dilation
    lane = lane_numbers(B, WIDE)
    live = lane < lanes
    group, within, outer = place_along(lane, INNER, (O + R - 1) // R)
    vector = tl.arange(0, V)[None, :]
    source = ((outer * I * INNER + within) * V)[:, None] + vector
    target = ((outer * O * INNER + within) * V)[:, None] + vector
    CORE: tl.constexpr = (R - 1) * S
    before = ()
    before_taps = ()
    if BINS:
        start = group * I // O
        count = ((group + 1) * I + O - 1) // O - start
        first = group * 0
    else:
        start = group * (R * S) - AXIS.start
        count = K
        first = first_tap_inside(start, K, J) if R == 1 else group * 0 + CORE
    if R > 1:
        m, i = element(x, inner, t, source, start, live, I, INNER, CORE - 1, below, J, BINS, FIRST, V, WITH_TAPS)
        for step in tl.static_range(CORE):
            if step > 0:
                v, j = element(
                    x, inner, t, source, start, live, I, INNER, CORE - 1 - step, below, J, BINS, FIRST, V, WITH_TAPS
                )
                m, i = better_inside(v, j, m, i, WITH_TAPS)
            if (step + 1) % S == 0:
                before = (m,) + before
                before_taps = (i,) + before_taps
    ok = live & (first < count)
    core, tap = element(x, inner, t, source, start, ok, I, INNER, first, below, J, BINS, FIRST, V, WITH_TAPS)
    for k in range(1, bound):
        ok = live & (first + k < count)
        v, j = element(x, inner, t, source, start, ok, I, INNER, first + k, below, J, BINS, FIRST, V, WITH_TAPS)
        core, tap = better_inside(core, tap, v, j, WITH_TAPS)
    for j in tl.static_range(R):
        if j > 0:
            for k in tl.static_range(S):
                v, i = element(
                    x, inner, t, source, start, live, I, INNER, K + (j - 1) * S + k, below, J, BINS, FIRST, V, WITH_TAPS
                )
                core, tap = better_inside(core, tap, v, i, WITH_TAPS)
        m = core
        i = tap
        if j < R - 1:
            m, i = better_inside(before[j], before_taps[j], core, tap, WITH_TAPS)
        o = group * R + j
        at = target + ((o * INNER) * V)[:, None]
        ok = (live & (o < O))[:, None]
        tl.store(y + at, rounded(m, y.dtype.element_ty), mask=ok)
        if WITH_TAPS:
            i = tl.where(i < 0, 0 if LAST else -1, i - j * S * below)
            tl.store(t + at, i.to(t.dtype.element_ty), mask=ok)


@triton.jit
def element(
    x, inner, t, source, start, live, I, INNER, k, below, J: tl.constexpr, BINS: tl.constexpr, FIRST: tl.constexpr,
    V: tl.constexpr, WITH_TAPS: tl.constexpr,
):  # fmt: skip
    """Element ``k`` taps on from ``start`` and its number in the taps' terms; the lowest value and -1 outside."""
    CODE: tl.constexpr = tl.int64 if t.dtype.element_ty == tl.int64 else tl.int32
    TYPE: tl.constexpr = compared(x.dtype.element_ty, True)
    position = start + k * J
    ok = (live & (position >= 0) & (position < I))[:, None]
    at = source + ((position * INNER) * V)[:, None]
    v = comparable(load_filled(x + at, ok, lowest(x.dtype.element_ty), TYPE), WITH_TAPS)
    i = tl.zeros_like(at).to(CODE)
    if WITH_TAPS:
        number = position if BINS else (position - start) // J
        i = (i + (number.to(CODE) * below)[:, None]).to(CODE)
        if not FIRST:
            so_far = tl.load(inner + at, mask=ok, other=-1).to(CODE)
            ok = ok & (so_far >= 0)
            i = i + so_far
        i = tl.where(ok, i, -1).to(CODE)
    return v, i


@triton.jit
def better_inside(m, i, v, j, WITH_TAPS: tl.constexpr):
    """``better``, but anything inside the input beats what is not (number -1), even if neither is greater."""
    if WITH_TAPS:
        wins = v > m
        if m.dtype.is_floating():
            wins = (m == m) & ~(v <= m)  # greater, or the first NaN
        wins = wins | ((i < 0) & (j >= 0))
        return tl.where(wins, v, m), tl.where(wins, j, i)
    else:
        return better(m, i, v, j, False, False)


@launched(4)
def grad_axis(
    g, t, dx, rest, lanes, INNER, I, O, bound,
    AXIS: tl.constexpr, COMMON: tl.constexpr, INVERSE: tl.constexpr, BELOW: tl.constexpr, LAST: tl.constexpr,
    WIDE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """One axis of the gradient, for windows too large to unroll: O windows' gradients to I inputs along that axis.

    A tap is k * BELOW + what the inner axes' taps are; the inputs' gradients go to dx, and what is left of the taps of
    those that won there, all alike, to ``rest`` unless this axis is the LAST. All are dense, with INNER elements
    between neighbours along the axis; ``bound`` is the most windows that reach one input.
    """
    K: tl.constexpr = AXIS.window
    S: tl.constexpr = AXIS.stride
    J: tl.constexpr = AXIS.dilation
    SUM: tl.constexpr = tl.float64 if g.dtype.element_ty == tl.float64 else tl.float32
    lane = lane_numbers(B, WIDE)
    live = lane < lanes
    position, within, outer = place_along(lane, INNER, I)
    gradients = g + (outer * O * INNER + within)
    taps = t + (outer * O * INNER + within)
    # The window numbers fall as the taps rise; those past the last window are stepped over at once.
    tap_number, o, exists = first_covering(position + AXIS.start, S, J, COMMON, INVERSE)
    skipped = tl.maximum(o - O + J // COMMON, 0) // (J // COMMON)
    tap_number += skipped * (S // COMMON)
    o -= skipped * (J // COMMON)
    # As many as both progressions have left: taps below K, windows from 0 on.
    TAP_STEP: tl.constexpr = S // COMMON
    STEP: tl.constexpr = J // COMMON
    windows = tl.minimum(tl.maximum(K + TAP_STEP - 1 - tap_number, 0) // TAP_STEP, tl.maximum(o + STEP, 0) // STEP)
    windows = tl.where(live & exists, windows, 0)
    at = o * INNER
    first_tap = tap_number * BELOW
    total = tl.zeros([B], SUM)
    left = tl.zeros([B], tl.int32)
    for m in range(0, bound):
        tap = tl.load(taps + at, mask=m < windows, other=-1).to(tl.int32)
        below = tap - first_tap
        wins = (m < windows) & (tap >= 0) & (below >= 0) & (below < BELOW)
        # The gradients of windows won elsewhere are not even read.
        total += widened(tl.load(gradients + at, mask=wins, other=0.0), SUM)
        left = tl.where(wins, below, left).to(tl.int32)
        first_tap += TAP_STEP * BELOW
        at -= STEP * INNER
    own = outer * I * INNER + within + position.to(tl.int64) * INNER
    tl.store(dx + own, rounded(total, dx.dtype.element_ty), mask=live)
    if not LAST:
        tl.store(rest + own, left.to(rest.dtype.element_ty), mask=live)
