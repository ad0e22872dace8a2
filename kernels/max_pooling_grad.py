"""The gradient of max pooling on the GPU, and what taps point at.

The gradient is a gather: every input element asks the windows that cover it whether their winning tap is the one that
lies on it, and adds up the gradients of those that say yes (M5). Nothing is written twice and nothing needs zeroing
first, so results are the same run after run. A window without a tap inside the input has tap 0, which then lies
outside: it sends nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import (
    as_block,
    lane_numbers,
    load_row,
    plane_offset,
    rounded,
    store_row,
    tap_at,
    tile_of,
)


@triton.constexpr_function
def first_window(K, S, P, J):
    """The lowest window, relative to a lane's own first, that reaches one of its inputs."""
    return -(((K - 1) * J - P) // S)


@triton.constexpr_function
def last_window(inputs, S, P):
    """The highest window, relative to a lane's own first, that reaches one of its ``inputs``."""
    return (inputs - 1 + P) // S


_RUNTIME = [
    *("lanes", "C", "D", "H", "W", "OD", "OH", "OW", "gn", "gc", "gd", "gh", "gw"),
    *("tn", "tc", "td", "th", "tw", "xn", "xc", "xd", "xh", "xw"),
]


@triton.jit(do_not_specialize=_RUNTIME)
def grad_tile(
    g, t, dx, lanes, C, D, H, W, OD, OH, OW, gn, gc, gd, gh, gw, tn, tc, td, th, tw, xn, xc, xd, xh, xw,
    WINDOW: tl.constexpr, STRIDE: tl.constexpr, START: tl.constexpr, DILATION: tl.constexpr, RANK: tl.constexpr,
    R: tl.constexpr, Q: tl.constexpr, LAYOUT: tl.constexpr, V: tl.constexpr, STORE: tl.constexpr,
    WIDE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Windows unrolled at compile time; a lane owns SD by R by Q inputs, R and Q multiples of the strides SH and SW.

    g, t: incoming gradient and taps of sizes (N, C, OD, OH, OW); dx: the result of sizes (N, C, D, H, W). LAYOUT
    "columns": OW and the strides of g and t count vectors of V windows, Q is a multiple of V * SW, and W and the
    strides of dx count vectors of STORE inputs. "channels": vectors of V channels; C and all strides count vectors,
    STORE is V. "any": V is 1, any strides.
    """
    KD: tl.constexpr = WINDOW[0]
    KH: tl.constexpr = WINDOW[1]
    KW: tl.constexpr = WINDOW[2]
    SD: tl.constexpr = STRIDE[0]
    SH: tl.constexpr = STRIDE[1]
    SW: tl.constexpr = STRIDE[2]
    PD: tl.constexpr = START[0]
    PH: tl.constexpr = START[1]
    PW: tl.constexpr = START[2]
    JD: tl.constexpr = DILATION[0]
    JH: tl.constexpr = DILATION[1]
    JW: tl.constexpr = DILATION[2]
    SPLIT: tl.constexpr = LAYOUT == "columns"
    SUM: tl.constexpr = tl.float64 if dx.dtype.element_ty == tl.float64 else tl.float32
    lane = lane_numbers(B, WIDE)
    live = lane < lanes
    cc = 0
    rest = lane
    if LAYOUT == "channels":
        cc = lane % C
        rest = lane // C
    columns_of_row = W * STORE if SPLIT else W
    qg, rg, dg, rest = tile_of(rest, (columns_of_row + Q - 1) // Q, (H + R - 1) // R, (D + SD - 1) // SD, RANK)
    if LAYOUT == "channels":
        sample = rest.to(tl.int64)
        g0 = g + sample * gn * V
        t0 = t + sample * tn * V
        x_plane = sample * xn * STORE
    else:
        g0 = g + plane_offset(rest, C, gn, gc) * V
        t0 = t + plane_offset(rest, C, tn, tc) * V
        x_plane = plane_offset(rest, C, xn, xc) * STORE

    # The windows that the lane asks: FIRST to LAST along a row, in vectors LOW to HIGH; FIRST is entry ORIGIN.
    FIRST: tl.constexpr = first_window(KW, SW, PW, JW)
    LAST: tl.constexpr = last_window(Q, SW, PW)
    LOW: tl.constexpr = FIRST // V if SPLIT else FIRST
    HIGH: tl.constexpr = LAST // V if SPLIT else LAST
    ORIGIN: tl.constexpr = FIRST - LOW * V if SPLIT else 0
    # Read where there is no window: no tap of any row (one byte holds taps 0 to 224).
    NO_TAP: tl.constexpr = 255 if t.dtype.element_ty == tl.uint8 else -1
    first_column = qg * (Q // SW // V if SPLIT else Q // SW)

    for e in tl.static_range(SD):
        sums = ()
        for _ in tl.static_range(R * Q):
            sums = sums + (as_block(tl.zeros([B], SUM), not SPLIT, B, V),)
        for z in tl.static_range(first_window(KD, SD, PD, JD), last_window(SD, SD, PD) + 1):
            if tap_at(e + PD - z * SD, KD, JD) >= 0:
                od = dg + z
                in_slice = live
                if RANK > 2:
                    in_slice = live & (od >= 0) & (od < OD)
                for a in tl.static_range(first_window(KH, SH, PH, JH), last_window(R, SH, PH) + 1):
                    oh = rg * (R // SH) + a
                    inside = in_slice
                    if RANK > 1:
                        inside = in_slice & (oh >= 0) & (oh < OH)
                    gradients = load_row(
                        g0, od * gd + oh * gh + cc * gc, inside, first_column, OW, 1 if SPLIT else gw, LOW, HIGH, 0.0,
                        SUM, V, B, SPLIT,
                    )  # fmt: skip
                    taps = load_row(
                        t0, od * td + oh * th + cc * tc, inside, first_column, OW, 1 if SPLIT else tw, LOW, HIGH,
                        NO_TAP, tl.int32, V, B, SPLIT,
                    )  # fmt: skip
                    new = ()
                    for j in tl.static_range(R):
                        for v in tl.static_range(Q):
                            s = sums[j * Q + v]
                            if tap_at(j + PH - a * SH, KH, JH) >= 0:
                                for b in tl.static_range(LAST - FIRST + 1):
                                    if tap_at(v + PW - (FIRST + b) * SW, KW, JW) >= 0:
                                        tap = (
                                            tap_at(e + PD - z * SD, KD, JD) * KH + tap_at(j + PH - a * SH, KH, JH)
                                        ) * KW + tap_at(v + PW - (FIRST + b) * SW, KW, JW)
                                        # In this form, not as the addition of a selected 0, one predicated instruction.
                                        s = tl.where(taps[ORIGIN + b] == tap, s + gradients[ORIGIN + b], s)
                            new = new + (s,)
                    sums = new
        depth = dg * SD + e
        for j in tl.static_range(R):
            row = rg * R + j
            row_live = live
            if RANK > 1:
                row_live = row_live & (row < H)
            if RANK > 2:
                row_live = row_live & (depth < D)
            out = depth * xd + row * xh
            if SPLIT:
                first = qg * (Q // STORE)
                store_row(dx + x_plane, out + first, sums, row_live, first, W, j * Q, 1, Q, STORE, B)
            else:
                for v in tl.static_range(Q):
                    column = qg * Q + v
                    at = x_plane[:, None] + ((out + column * xw + cc * xc) * V)[:, None] + tl.arange(0, V)[None, :]
                    value = rounded(sums[j * Q + v], dx.dtype.element_ty)
                    tl.store(dx + at, value, mask=(row_live & (column < W))[:, None])


_LOOKUP_RUNTIME = [
    *("lanes", "C", "D", "H", "W", "OD", "OH", "OW"),
    *("xn", "xc", "xd", "xh", "xw", "tn", "tc", "td", "th", "tw", "yn", "yc", "yd", "yh", "yw"),
]


@triton.jit(do_not_specialize=_LOOKUP_RUNTIME)
def at_taps(
    x, t, y, lanes, C, D, H, W, OD, OH, OW, xn, xc, xd, xh, xw, tn, tc, td, th, tw, yn, yc, yd, yh, yw,
    WINDOW: tl.constexpr, STRIDE: tl.constexpr, START: tl.constexpr, DILATION: tl.constexpr, RANK: tl.constexpr,
    WITH: tl.constexpr, EMPTY: tl.constexpr, CHANNELS_INNERMOST: tl.constexpr, V: tl.constexpr, WIDE: tl.constexpr,
    B: tl.constexpr,
):  # fmt: skip
    """What taps point at: WITH "values" the elements of x (0 for an empty window), else their indices (-1), into y.

    V outputs of (N, C, OD, OH, OW) per lane, neighbours in y's memory order. Where V is not 1, the strides of t and y
    count vectors of V, and along these vectors lie side by side.
    """
    KD: tl.constexpr = WINDOW[0]
    KH: tl.constexpr = WINDOW[1]
    KW: tl.constexpr = WINDOW[2]
    JD: tl.constexpr = DILATION[0]
    JH: tl.constexpr = DILATION[1]
    JW: tl.constexpr = DILATION[2]
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
    first_d = (od * STRIDE[0] - START[0])[:, None]
    first_h = (oh * STRIDE[1] - START[1])[:, None]
    if CHANNELS_INNERMOST:
        c = c * V
        first_w = (ow * STRIDE[2] - START[2])[:, None]
    else:
        first_w = (ow * (V * STRIDE[2]) - START[2])[:, None] + vector * STRIDE[2]
    # A tap is kw + KW * (kh + KH * kd); what lies a row or a slice further is corrected by what kw + KW * kh counts.
    above = tap // KW
    kd = above // KH if KD > 1 else 0
    if WITH == "values":
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
    if WITH == "values":
        base = (n * xn + c.to(tl.int64) * xc)[:, None]
        if CHANNELS_INNERMOST:
            base = base + vector * xc
        result = tl.load(x + (base + offset), mask=ok, other=0)
    else:
        result = offset.to(tl.int64)
        if WITH == "indices":
            plane = tl.cast(D, tl.int64) * H * W
            base = ((n * C + c) * plane)[:, None]
            if CHANNELS_INNERMOST:
                base = base + vector * plane
            result = base + offset
        if EMPTY:
            result = tl.where(ok, result, -1)
    tl.store(y + out, result.to(y.dtype.element_ty), mask=live)
