"""Max pooling and its gradient axis by axis on the GPU, for windows too large to unroll, and for adaptive bins.

One pass per axis, each a loop over its own taps: a window costs the sum of its sizes, not their product. A tap's number
grows by the outer axis' part in each pass; -1 marks what is not inside the input until the last.
"""

# ruff: noqa: E741  (I and O are an axis' sizes)

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import first_covering, first_tap_inside, lane_numbers, load_filled, lowest, rounded, widened
from .max_pooling import better, comparable, compared

_AXIS_RUNTIME = [
    *("lanes", "A1", "A2", "A3", "I", "O", "bound", "below"),
    *("x0", "x1", "x2", "x3", "xa", "y0", "y1", "y2", "y3", "ya"),
]


@triton.jit(do_not_specialize=_AXIS_RUNTIME)
def max_axis(
    x, inner, y, t, lanes, A1, A2, A3, I, O, bound, below, x0, x1, x2, x3, xa, y0, y1, y2, y3, ya,
    K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, J: tl.constexpr, BINS: tl.constexpr, FIRST: tl.constexpr,
    LAST: tl.constexpr, AXIS_INNERMOST: tl.constexpr, R: tl.constexpr, V: tl.constexpr, WITH_TAPS: tl.constexpr,
    WIDE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Maxima along one axis, of O windows (or adaptive BINS) over I elements; a lane owns R outputs by V.

    Axes are pooled innermost first, so that of equal maxima the first is kept. ``inner`` holds the numbers that the
    axes further in have found (unused on the FIRST pass), -1 where a window has been empty; ``t`` gets ``k * below``
    more, k the tap, for bins the position along the axis. x and ``inner`` have strides x0 .. xa, y and ``t`` y0 .. ya;
    the other axes have sizes .., A1, A2, A3. With V above 1 the strides count vectors along A3. With R above 1 windows
    overlap (dilation 1) and share their core. ``bound``: the most elements that one output reads where R is 1.
    """
    lane = lane_numbers(B, WIDE)
    live = lane < lanes
    groups = (O + R - 1) // R
    if AXIS_INNERMOST:
        group = lane % groups
        q = lane // groups
        a3 = q % A3
        q = q // A3
    else:
        a3 = lane % A3
        q = lane // A3
        group = q % groups
        q = q // groups
    a2 = (q % A2).to(tl.int64)
    q = q // A2
    a1 = (q % A1).to(tl.int64)
    a0 = (q // A1).to(tl.int64)
    vector = tl.arange(0, V)[None, :]
    source = ((a0 * x0 + a1 * x1 + a2 * x2 + a3.to(tl.int64) * x3) * V)[:, None] + vector
    target = ((a0 * y0 + a1 * y1 + a2 * y2 + a3.to(tl.int64) * y3) * V)[:, None] + vector
    CORE: tl.constexpr = (R - 1) * S
    before = ()
    before_taps = ()
    if R > 1:
        start = group * (R * S) - P
        m, i = element(x, inner, t, source, start, live, I, xa, CORE - 1, below, J, BINS, FIRST, V, WITH_TAPS)
        for step in tl.static_range(CORE):
            if step > 0:
                v, j = element(
                    x, inner, t, source, start, live, I, xa, CORE - 1 - step, below, J, BINS, FIRST, V, WITH_TAPS
                )
                m, i = better_inside(v, j, m, i, WITH_TAPS)
            if (step + 1) % S == 0:
                before = (m,) + before
                before_taps = (i,) + before_taps
        core, tap = element(x, inner, t, source, start, live, I, xa, CORE, below, J, BINS, FIRST, V, WITH_TAPS)
        for k in range(CORE + 1, K):
            v, j = element(x, inner, t, source, start, live, I, xa, k, below, J, BINS, FIRST, V, WITH_TAPS)
            core, tap = better_inside(core, tap, v, j, WITH_TAPS)
    else:
        if BINS:
            start = group * I // O
            count = ((group + 1) * I + O - 1) // O - start
            first = group * 0
        else:
            start = group * S - P
            first = first_tap_inside(start, K, J)
            count = K
        core, tap = element(x, inner, t, source, start, live, 0, xa, 0, below, J, BINS, FIRST, V, WITH_TAPS)
        for k in range(0, bound):
            ok = live & (first + k < count)
            v, j = element(x, inner, t, source, start, ok, I, xa, first + k, below, J, BINS, FIRST, V, WITH_TAPS)
            core, tap = better_inside(core, tap, v, j, WITH_TAPS)
    for j in tl.static_range(R):
        if j > 0:
            for k in tl.static_range(S):
                v, i = element(
                    x, inner, t, source, start, live, I, xa, K + (j - 1) * S + k, below, J, BINS, FIRST, V, WITH_TAPS
                )
                core, tap = better_inside(core, tap, v, i, WITH_TAPS)
        m = core
        i = tap
        if j < R - 1:
            m, i = better_inside(before[j], before_taps[j], core, tap, WITH_TAPS)
        o = group * R + j
        at = target + ((o * ya) * V)[:, None]
        ok = (live & (o < O))[:, None]
        tl.store(y + at, rounded(m, y.dtype.element_ty), mask=ok)
        if WITH_TAPS:
            i = tl.where(i < 0, 0 if LAST else -1, i - j * S * below)
            tl.store(t + at, i.to(t.dtype.element_ty), mask=ok)


@triton.jit
def element(
    x, inner, t, source, start, live, I, xa, k, below, J: tl.constexpr, BINS: tl.constexpr, FIRST: tl.constexpr,
    V: tl.constexpr, WITH_TAPS: tl.constexpr,
):  # fmt: skip
    """Element ``k`` taps on from ``start`` and its number in the taps' terms; the lowest value and -1 outside."""
    CODE: tl.constexpr = tl.int64 if t.dtype.element_ty == tl.int64 else tl.int32
    TYPE: tl.constexpr = compared(x.dtype.element_ty, True)
    position = start + k * J
    ok = (live & (position >= 0) & (position < I))[:, None]
    at = source + ((position * xa) * V)[:, None]
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


_GRAD_RUNTIME = [
    *("lanes", "A1", "A2", "A3", "I", "O", "bound"),
    *("g0", "g1", "g2", "g3", "ga", "t0", "t1", "t2", "t3", "ta", "x0", "x1", "x2", "x3", "xa"),
]


@triton.jit(do_not_specialize=_GRAD_RUNTIME)
def grad_axis(
    g, t, dx, rest, lanes, A1, A2, A3, I, O, bound, g0, g1, g2, g3, ga, t0, t1, t2, t3, ta, x0, x1, x2, x3, xa,
    K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, J: tl.constexpr, COMMON: tl.constexpr, INVERSE: tl.constexpr,
    BELOW: tl.constexpr, LAST: tl.constexpr, AXIS_INNERMOST: tl.constexpr, WIDE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """One axis of the gradient, for windows too large to unroll: O windows' gradients to I inputs along that axis.

    A tap is k * BELOW + what the inner axes' taps are; the inputs' gradients go to dx, and what is left of the taps of
    those that won there, all alike, to ``rest`` (both with strides x0..xa) unless this axis is the LAST. The other
    axes have sizes .., A1, A2, A3; ``bound`` is the most windows that reach one input.
    """
    SUM: tl.constexpr = tl.float64 if g.dtype.element_ty == tl.float64 else tl.float32
    lane = lane_numbers(B, WIDE)
    live = lane < lanes
    if AXIS_INNERMOST:
        position = lane % I
        q = lane // I
        a3 = q % A3
        q = q // A3
    else:
        a3 = lane % A3
        q = lane // A3
        position = q % I
        q = q // I
    a2 = q % A2
    q = q // A2
    a1 = (q % A1).to(tl.int64)
    a0 = (q // A1).to(tl.int64)
    a2 = a2.to(tl.int64)
    a3 = a3.to(tl.int64)
    gradients = g + a0 * g0 + a1 * g1 + a2 * g2 + a3 * g3
    taps = t + a0 * t0 + a1 * t1 + a2 * t2 + a3 * t3
    # The window numbers fall as the taps rise; those past the last window are stepped over at once.
    tap_number, o, exists = first_covering(position + P, S, J, COMMON, INVERSE)
    skipped = tl.maximum(o - O + J // COMMON, 0) // (J // COMMON)
    tap_number += skipped * (S // COMMON)
    o -= skipped * (J // COMMON)
    # As many as both progressions have left: taps below K, windows from 0 on.
    TAP_STEP: tl.constexpr = S // COMMON
    STEP: tl.constexpr = J // COMMON
    windows = tl.minimum(tl.maximum(K + TAP_STEP - 1 - tap_number, 0) // TAP_STEP, tl.maximum(o + STEP, 0) // STEP)
    windows = tl.where(live & exists, windows, 0)
    tap_at_o = o * ta
    gradient_at_o = o * ga
    first_tap = tap_number * BELOW
    total = tl.zeros([B], SUM)
    left = tl.zeros([B], tl.int32)
    for m in range(0, bound):
        tap = tl.load(taps + tap_at_o, mask=m < windows, other=-1).to(tl.int32)
        below = tap - first_tap
        wins = (m < windows) & (tap >= 0) & (below >= 0) & (below < BELOW)
        # The gradients of windows won elsewhere are not even read.
        total += widened(tl.load(gradients + gradient_at_o, mask=wins, other=0.0), SUM)
        left = tl.where(wins, below, left).to(tl.int32)
        first_tap += TAP_STEP * BELOW
        tap_at_o -= STEP * ta
        gradient_at_o -= STEP * ga
    at = a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3 + position.to(tl.int64) * xa
    tl.store(dx + at, rounded(total, dx.dtype.element_ty), mask=live)
    if not LAST:
        tl.store(rest + at, left.to(rest.dtype.element_ty), mask=live)
