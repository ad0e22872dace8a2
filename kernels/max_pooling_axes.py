"""Max pooling axis by axis on the GPU, for windows too large to unroll, and what taps point at.

One pass per axis, innermost first, each a loop over its own taps: a window costs the sum of its sizes, not their
product. Along an axis neighbouring windows share their common core. A tap's number grows by the outer axis' part in
each pass; -1 marks what is not inside the input until the last.
"""

# ruff: noqa: E741  (Triton needs the else and compiles no unpacking; I and O are an axis' sizes)

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import first_tap_inside, lane_numbers, tile_of
from .max_pooling import INDICES, NO_TAPS
from .max_pooling_rows import comparable, lowest, maximum

_LOOKUP_RUNTIME = [
    *("lanes", "C", "D", "H", "W", "OD", "OH", "OW"),
    *("xn", "xc", "xd", "xh", "xw", "tn", "tc", "td", "th", "tw", "yn", "yc", "yd", "yh", "yw"),
]


@triton.jit(do_not_specialize=_LOOKUP_RUNTIME)
def at_taps(
    x, t, y, lanes, C, D, H, W, OD, OH, OW, xn, xc, xd, xh, xw, tn, tc, td, th, tw, yn, yc, yd, yh, yw,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, JD: tl.constexpr, JH: tl.constexpr, JW: tl.constexpr,
    WITH: tl.constexpr, EMPTY: tl.constexpr, CHANNELS_INNERMOST: tl.constexpr, V: tl.constexpr, B: tl.constexpr,
    WIDE: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """What taps point at: with NO_TAPS the elements of x (0 for an empty window), else their indices (-1), into y.

    V outputs of (N, C, OD, OH, OW) per lane, neighbours in y's memory order. Where V is not 1, the strides of t and y
    count vectors of V, and along these vectors lie side by side.
    """
    lane = lane_numbers(B, WIDE)
    live = (lane < lanes)[:, None]
    rest = lane
    c = lane
    if CHANNELS_INNERMOST:
        c = lane % (C // V)
        rest = lane // (C // V)
        ow, oh, od, rest = tile_of(rest, OW, OH, OD, RANK)
        n = rest.to(tl.int64)
    else:
        ow, oh, od, rest = tile_of(rest, OW // V, OH, OD, RANK)
        c = (rest % C).to(tl.int64)
        n = (rest // C).to(tl.int64)
    vector = tl.arange(0, V)[None, :]
    near = od * td + oh * th + ow * tw
    tap = tl.load(t + ((n * tn + c * tc + near) * V)[:, None] + vector, mask=live, other=0).to(tl.int32)
    out = ((n * yn + c * yc + (od * yd + oh * yh + ow * yw)) * V)[:, None] + vector
    first_d = (od * SD - PD)[:, None]
    first_h = (oh * SH - PH)[:, None]
    if CHANNELS_INNERMOST:
        c = c * V
        first_w = (ow * SW - PW)[:, None]
    else:
        first_w = (ow * (V * SW) - PW)[:, None] + vector * SW
    # A tap is kw + KW * (kh + KH * kd); what lies a row or a slice further is corrected by what kw + KW * kh counts.
    above = tap // KW
    kd = above // KH if KD > 1 else 0
    if WITH == NO_TAPS:
        offset = first_d * xd + first_h * xh + first_w * xw
        offset += tap * (JW * xw) + above * (JH * xh - KW * JW * xw) + kd * (JD * xd - KH * JH * xh)
    else:
        offset = (first_d * H + first_h) * W + first_w
        offset += tap * JW + above * (JH * W - KW * JW) + kd * ((JD * H - KH * JH) * W)
    ok = live
    if EMPTY:
        # An empty window's tap is 0 and lies outside along some axis; any other winner is inside.
        depth = first_d + kd * JD
        row = first_h + (above - kd * KH) * JH
        column = first_w + (tap - above * KW) * JW
        ok = live & (depth >= 0) & (depth < D) & (row >= 0) & (row < H) & (column >= 0) & (column < W)
    if WITH == NO_TAPS:
        base = (n * xn + c.to(tl.int64) * xc)[:, None]
        if CHANNELS_INNERMOST:
            base = base + vector * xc
        result = tl.load(x + (base + offset), mask=ok, other=0)
    else:
        result = offset.to(tl.int64)
        if WITH == INDICES:
            plane = tl.cast(D, tl.int64) * H * W
            base = ((n * C + c) * plane)[:, None]
            if CHANNELS_INNERMOST:
                base = base + vector * plane
            result = base + offset
        if EMPTY:
            result = tl.where(ok, result, -1)
    tl.store(y + out, result.to(y.dtype.element_ty), mask=live)


_AXIS_RUNTIME = [
    *("lanes", "A1", "A2", "A3", "I", "O", "bound"),
    *("x0", "x1", "x2", "x3", "xa", "y0", "y1", "y2", "y3", "ya"),
]


@triton.jit(do_not_specialize=_AXIS_RUNTIME)
def max_axis(
    x, inner, y, t, lanes, A1, A2, A3, I, O, bound, x0, x1, x2, x3, xa, y0, y1, y2, y3, ya,
    K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, J: tl.constexpr, BELOW: tl.constexpr, FIRST: tl.constexpr,
    LAST: tl.constexpr, AXIS_INNERMOST: tl.constexpr, R: tl.constexpr, V: tl.constexpr, B: tl.constexpr,
    WIDE: tl.constexpr, WIDEN: tl.constexpr, WITH_TAPS: tl.constexpr,
):  # fmt: skip
    """One axis of a window too large to unroll: maxima of O windows along I elements; a lane owns R outputs by V.

    ``inner`` holds the taps so far, over the axes further in (unused on the FIRST pass), -1 where a window has been
    empty; ``t`` gets ``k * BELOW`` more. x and ``inner`` have strides x0..xa, y and ``t`` y0..ya; the other axes have
    sizes .., A1, A2, A3. With V above 1 the strides count vectors along A3. With R above 1 windows overlap (dilation
    1) and share their core: what comes before it is folded right to left, the core in a loop, what comes after it
    last. With R = 1 the loop takes ``bound`` taps from the first inside the input.
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
    start = group * (R * S) - P

    if R > 1:
        m, i = along_axis(x, inner, source, start, live, I, xa, (R - 1) * S - 1, J, BELOW, FIRST, V, WIDEN, WITH_TAPS)
        before = ()
        before_taps = ()
        for step in tl.static_range((R - 1) * S):
            if step > 0:
                v, j = along_axis(
                    x, inner, source, start, live, I, xa, (R - 1) * S - 1 - step, J, BELOW, FIRST, V, WIDEN, WITH_TAPS
                )
                m, i = better_inside(v, j, m, i, WITH_TAPS)
            if (step + 1) % S == 0:
                before = (m,) + before
                before_taps = (i,) + before_taps
        core, tap = along_axis(x, inner, source, start, live, I, xa, (R - 1) * S, J, BELOW, FIRST, V, WIDEN, WITH_TAPS)
        for k in range((R - 1) * S + 1, K):
            v, j = along_axis(x, inner, source, start, live, I, xa, k, J, BELOW, FIRST, V, WIDEN, WITH_TAPS)
            core, tap = better_inside(core, tap, v, j, WITH_TAPS)
    else:
        first = first_tap_inside(start, K, J)
        core, tap = along_axis(x, inner, source, start, live, 0, xa, 0, J, BELOW, FIRST, V, WIDEN, WITH_TAPS)
        for k in range(0, bound):
            v, j = along_axis(
                x, inner, source, start, live & (first + k < K), I, xa, first + k, J, BELOW, FIRST, V, WIDEN, WITH_TAPS
            )
            core, tap = better_inside(core, tap, v, j, WITH_TAPS)
    for j in tl.static_range(R):
        if j > 0:
            for k in tl.static_range(S):
                v, i = along_axis(
                    x, inner, source, start, live, I, xa, K + (j - 1) * S + k, J, BELOW, FIRST, V, WIDEN, WITH_TAPS
                )
                core, tap = better_inside(core, tap, v, i, WITH_TAPS)
        m = core
        i = tap
        if j < R - 1:
            m, i = better_inside(before[j], before_taps[j], core, tap, WITH_TAPS)
        o = group * R + j
        at = target + ((o * ya) * V)[:, None]
        ok = (live & (o < O))[:, None]
        tl.store(y + at, m.to(y.dtype.element_ty), mask=ok)
        if WITH_TAPS:
            i = tl.where(i < 0, 0 if LAST else -1, i - j * S * BELOW)
            tl.store(t + at, i.to(t.dtype.element_ty), mask=ok)


@triton.jit
def along_axis(
    x, inner, source, start, live, I, xa, k, J: tl.constexpr, BELOW: tl.constexpr, FIRST: tl.constexpr,
    V: tl.constexpr, WIDEN: tl.constexpr, WITH_TAPS: tl.constexpr,
):  # fmt: skip
    """Element ``k`` taps on from ``start`` and its number in the taps' terms; the lowest value and -1 outside."""
    FILL: tl.constexpr = lowest(x.dtype.element_ty)
    position = start + k * J
    ok = (live & (position >= 0) & (position < I))[:, None]
    at = source + ((position * xa) * V)[:, None]
    v = comparable(tl.load(x + at, mask=ok, other=FILL), WIDEN, False)
    i = tl.zeros_like(at).to(tl.int32)
    if WITH_TAPS:
        i = i + ((position - start) // J * BELOW)[:, None]
        if not FIRST:
            so_far = tl.load(inner + at, mask=ok, other=-1).to(tl.int32)
            ok = ok & (so_far >= 0)
            i = (i.to(tl.int32) + so_far).to(tl.int32)
        i = tl.where(ok, i, -1).to(tl.int32)
    return v, i


@triton.jit
def better_inside(m, i, v, j, WITH_TAPS: tl.constexpr):
    """``better``, but anything inside the input beats what is not (number -1), even if neither is greater."""
    if WITH_TAPS:
        wins = (v > m) | ((i < 0) & (j >= 0))
        if m.dtype.is_floating():
            wins = wins | ((v != v) & (m == m))
        return tl.where(wins, v, m), tl.where(wins, j, i)
    else:
        return maximum(m, v), i
