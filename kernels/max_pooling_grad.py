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
    first_vector,
    lane_numbers,
    launched,
    load_row,
    place_of_lane,
    source_plane,
    store_row,
    tap_at,
    target_plane,
)


@triton.constexpr_function
def first_window(K, S, P, J):
    """The lowest window, relative to a lane's own first, that reaches one of its inputs."""
    return -(((K - 1) * J - P) // S)


@triton.constexpr_function
def last_window(inputs, S, P):
    """The highest window, relative to a lane's own first, that reaches one of its ``inputs``."""
    return (inputs - 1 + P) // S


@launched(3)
def grad_tile(
    g, t, dx, lanes, C, OD, OH, OW, sn, sc, sd, sh, sw, D, H, W, column_tiles, row_tiles, depth_tiles,
    WINDOW: tl.constexpr, STRIDE: tl.constexpr, START: tl.constexpr, DILATION: tl.constexpr, RANK: tl.constexpr,
    CHANNELS: tl.constexpr, TILE: tl.constexpr, V: tl.constexpr, STORE: tl.constexpr, WIDE: tl.constexpr,
    B: tl.constexpr,
):  # fmt: skip
    """Windows unrolled at compile time; a lane owns the inputs of a TILE of windows: as many times the strides.

    g, t: incoming gradient and taps of sizes (N, C, OD, OH, OW) and the same strides; dx: the result of sizes
    (N, C, D, H, W), dense. CHANNELS and what is counted in vectors: see ``launch.tile_launch``.
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
    R: tl.constexpr = TILE[1] * SH
    Q: tl.constexpr = TILE[2] * SW
    CHUNK: tl.constexpr = 1 if CHANNELS else V
    SUM: tl.constexpr = tl.float64 if dx.dtype.element_ty == tl.float64 else tl.float32
    # Read where there is no window: no tap of any row (one byte holds taps 0 to 224).
    NO_TAP: tl.constexpr = 255 if t.dtype.element_ty == tl.uint8 else -1
    lane = lane_numbers(B, WIDE)
    live = lane < lanes
    qg, rg, dg, channel, outer = place_of_lane(lane, C, column_tiles, row_tiles, depth_tiles, RANK, CHANNELS)
    plane = source_plane(outer, C, sn, sc, CHANNELS) * V
    target = dx + target_plane(outer, C, D, H, W, CHANNELS) * STORE

    # The windows that the lane asks: N from entry ORIGIN on of COUNT vectors.
    FIRST: tl.constexpr = first_window(KW, SW, PW, JW)
    N: tl.constexpr = last_window(Q, SW, PW) + 1 - FIRST
    ORIGIN: tl.constexpr = FIRST - FIRST // CHUNK * CHUNK
    COUNT: tl.constexpr = (ORIGIN + N - 1) // CHUNK + 1
    first = qg * (TILE[2] // CHUNK) + FIRST // CHUNK
    opening, step = first_vector(first, channel, sc, sw, CHANNELS, V)
    for e in tl.static_range(SD):
        sums = ()
        for _ in tl.static_range(R * Q):
            sums = sums + (as_block(tl.zeros([B], SUM), CHANNELS, B, V),)
        for z in tl.static_range(first_window(KD, SD, PD, JD), last_window(SD, SD, PD) + 1):
            if tap_at(e + PD - z * SD, KD, JD) >= 0:
                od = dg + z
                in_slice = live
                if RANK > 2:
                    in_slice = live & (od >= 0) & (od < OD)
                for a in tl.static_range(first_window(KH, SH, PH, JH), last_window(R, SH, PH) + 1):
                    oh = rg * TILE[1] + a
                    inside = in_slice
                    if RANK > 1:
                        inside = in_slice & (oh >= 0) & (oh < OH)
                    offset = od * sd + oh * sh + opening
                    gradients = load_row(g + plane, offset, step, inside, first, OW, COUNT, 0.0, SUM, CHANNELS, V, B)
                    taps = load_row(t + plane, offset, step, inside, first, OW, COUNT, NO_TAP, tl.int32, CHANNELS, V, B)
                    new = ()
                    for j in tl.static_range(R):
                        for v in tl.static_range(Q):
                            s = sums[j * Q + v]
                            if tap_at(j + PH - a * SH, KH, JH) >= 0:
                                row = tap_at(e + PD - z * SD, KD, JD) * KH + tap_at(j + PH - a * SH, KH, JH)
                                for b in tl.static_range(N):
                                    if tap_at(v + PW - (FIRST + b) * SW, KW, JW) >= 0:
                                        tap = row * KW + tap_at(v + PW - (FIRST + b) * SW, KW, JW)
                                        # In this form, not as the addition of a selected 0, one predicated instruction.
                                        s = tl.where(taps[ORIGIN + b] == tap, s + gradients[ORIGIN + b], s)
                            new = new + (s,)
                    sums = new
        depth = dg * SD + e
        for j in tl.static_range(R):
            row_live = live
            if RANK > 1:
                row_live = row_live & (rg * R + j < H)
            if RANK > 2:
                row_live = row_live & (depth < D)
            line = depth * H + rg * R + j
            store_row(target, sums, qg, line, channel, row_live, C, W, j * Q, 1, Q, CHANNELS, STORE, B)


@launched(3)
def at_taps(
    x, t, y, lanes, C, D, H, W, xn, xc, xd, xh, xw, depths, rows, columns,
    WINDOW: tl.constexpr, STRIDE: tl.constexpr, START: tl.constexpr, DILATION: tl.constexpr, RANK: tl.constexpr,
    CHANNELS: tl.constexpr, ELEMENTS: tl.constexpr, V: tl.constexpr, WIDE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """What taps point at: ELEMENTS of x (0 for an empty window), or the sums of its strides (-1), into y.

    Taps and y are dense and alike: a lane has V neighbours, CHANNELS or columns; C or ``columns`` counts these.
    """
    KH: tl.constexpr = WINDOW[1]
    KW: tl.constexpr = WINDOW[2]
    lane = lane_numbers(B, WIDE)
    live = (lane < lanes)[:, None]
    vector = tl.arange(0, V)[None, :]
    own = (lane.to(tl.int64) * V)[:, None] + vector
    column, row, depth, c, outer = place_of_lane(lane, C, columns, rows, depths, RANK, CHANNELS)
    n = outer
    c = c[:, None]
    column = column[:, None]
    if CHANNELS:
        c = c * V + vector
    else:
        n = outer // C
        column = column * V + vector
    tap = tl.load(t + own, mask=live, other=0).to(tl.int32)
    above = tap // KW
    d = (depth * STRIDE[0] - START[0])[:, None] + above // KH * DILATION[0]
    h = (row * STRIDE[1] - START[1])[:, None] + above % KH * DILATION[1]
    w = column * STRIDE[2] - START[2] + (tap - above * KW) * DILATION[2]
    # An empty window's tap is 0 and lies outside along some axis; any other winner is inside.
    ok = live & (d >= 0) & (d < D) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
    at = n.to(tl.int64)[:, None] * xn + c.to(tl.int64) * xc + (d * xd + h * xh + w * xw)
    result = tl.load(x + at, mask=ok, other=0) if ELEMENTS else tl.where(ok, at, -1)
    tl.store(y + own, result.to(y.dtype.element_ty), mask=live)
