"""The gradient of max pooling at stride 1 from one-byte taps, two windows to a word.

As in ``max_pooling_grad`` the gradients are first added up the rows, which also picks the winners' column, and then
along each row. A lane walks and keeps what the next windows reach; what it does with a word of two taps stands in
``max_pooling_words``.
"""

# ruff: noqa: B007  (Triton compiles no unpacking)

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import each_lanes, join_columns, lane_numbers, plane_offset, split_columns, tile_of, widened
from .max_pooling_words import SPOILT, add_up_the_rows, bytes_apart, spread, spread_two, winning_rows

_RUNTIME = [
    *("lanes", "C", "H", "W", "OH", "OW", "extent", "gn", "gc", "gh", "gw"),
    *("tn", "tc", "th", "tw", "xn", "xc", "xh", "xw"),
]


@triton.jit
def no_windows(R: tl.constexpr, B: tl.constexpr):
    """What ``add_up_the_rows`` begins with."""
    sums = ()
    columns = ()
    for j in tl.static_range(R):
        sums = sums + (tl.zeros([B], tl.float32), tl.zeros([B], tl.float32))
        columns = columns + (tl.full([B], -1, tl.int32),)
    return sums + columns


@triton.jit
def nearest(position, size):
    """The position itself if it is inside, else the nearest that is."""
    return tl.minimum(tl.maximum(position, 0), size - 1)


@triton.jit
def outside(position, size):
    """SPOILT where a position is not inside, else 0."""
    return tl.where(position == nearest(position, size), 0, SPOILT)


@triton.jit(do_not_specialize=_RUNTIME)
def grad_words_of_columns(
    g, t, dx, lanes, C, H, W, OH, OW, extent, gn, gc, gh, gw, tn, tc, th, tw, xn, xc, xh, xw,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, M: tl.constexpr, Q: tl.constexpr,
    V: tl.constexpr, STORE: tl.constexpr, B: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """A lane owns Q columns of ``extent`` rows of inputs, and walks down them, M rows of windows per turn.

    g, t: incoming gradient and taps of sizes (N, C, OH, OW); dx: the result of sizes (N, C, H, W). OW and the strides
    of g and t count vectors of V windows, V a multiple of 4; W and the strides of dx vectors of STORE inputs; Q is a
    multiple of both. gw, tw and xw are 1. ``extent + KH - 1`` is a multiple of M. What lies outside is not masked: the
    nearest inside is read instead, and its tap is spoilt.
    """
    lane = lane_numbers(B, False)
    live = lane < lanes
    qg, rg, _, plane = tile_of(tl.minimum(lane, lanes - 1), (W * STORE + Q - 1) // Q, (H + extent - 1) // extent, 1, 2)
    # Windows FIRST to LAST reach the lane's columns; they are read in whole vectors LOW to HIGH.
    FIRST: tl.constexpr = PW - KW + 1
    LAST: tl.constexpr = Q - 1 + PW
    LOW: tl.constexpr = FIRST // V
    HIGH: tl.constexpr = LAST // V
    FIRST_WORD: tl.constexpr = FIRST // 2 - LOW * (V // 2)
    WORDS: tl.constexpr = LAST // 2 - FIRST // 2 + 1
    g0 = g + plane_offset(plane, C, gn, gc) * V
    t0 = (t + plane_offset(plane, C, tn, tc) * V).to(tl.pointer_type(tl.int32), bitcast=True)
    x0 = dx + plane_offset(plane, C, xn, xc) * STORE
    # For each word and each input row that the next windows reach: two sums and the picked columns.
    states = ()
    for i in tl.static_range(WORDS):
        states = states + no_windows(KH, B)
    first_row = rg * extent - (KH - 1)
    for turn in range(0, extent + (KH - 1), M):
        for k in tl.static_range(M):
            row = first_row + turn + k
            oh = nearest(row + PH, OH)
            no_row = outside(row + PH, OH)
            gradients = ()
            words = ()
            spoilers = ()
            for c in tl.static_range(LOW, HIGH + 1):
                vector = nearest(qg * (Q // V) + c, OW)
                spoiler = no_row | outside(qg * (Q // V) + c, OW)
                at = (g0 + (oh * gh + vector) * V)[:, None] + tl.arange(0, V)[None, :]
                gradients = gradients + split_columns(widened(tl.load(at), tl.float32), B, V)
                at = (t0 + (oh * th + vector) * (V // 4))[:, None] + tl.arange(0, V // 4)[None, :]
                read = split_columns(tl.load(at), B, V // 4)
                for i in tl.static_range(V // 4):
                    low, high = bytes_apart(read[i], spoiler, ASM)
                    words = words + (low, high)
                    spoilers = spoilers + (spoiler, spoiler)
            sums = ()
            for v in tl.static_range(Q):
                sums = sums + (tl.zeros([B], tl.float32),)
            new = ()
            for i in tl.static_range(WORDS):
                state = ()
                for e in tl.static_range(3 * KH):
                    state = state + (states[i * 3 * KH + e],)
                taps = words[FIRST_WORD + i]
                state = add_up_the_rows(
                    state, taps, winning_rows(taps, spoilers[FIRST_WORD + i], KH, KW, ASM),
                    gradients[2 * (FIRST_WORD + i)], gradients[2 * (FIRST_WORD + i) + 1], 0, KH, KH, KW,
                    (1 if 2 * (FIRST // 2 + i) >= FIRST else 0) + (2 if 2 * (FIRST // 2 + i) < LAST else 0), ASM,
                )  # fmt: skip
                # The first input row has seen all its windows. Window b starts at column b - PW of the lane's.
                sums = spread(
                    sums, state[2 * KH], state[0], state[1], PW - 2 * (FIRST // 2 + i), PW - 2 * (FIRST // 2 + i) - 1,
                    Q, KW, ASM,
                )  # fmt: skip
                new = new + one_row_further(state, KH, B)
            states = new
            ok = live & (each_lanes(turn + k, B) >= KH - 1) & (row < H)
            for p in tl.static_range(Q // STORE):
                piece = join_columns(sums, p * STORE, 1, B, STORE).to(dx.dtype.element_ty)
                column = qg * (Q // STORE) + p
                at = (x0 + (row * xh + column) * STORE)[:, None] + tl.arange(0, STORE)[None, :]
                tl.store(at, piece, mask=(ok & (column < W))[:, None])


@triton.jit
def one_row_further(state, KH: tl.constexpr, B: tl.constexpr):
    """``state`` without its first row, and with a new last one."""
    sums = ()
    columns = ()
    for j in tl.static_range(1, KH):
        sums = sums + (state[2 * j], state[2 * j + 1])
        columns = columns + (state[2 * KH + j],)
    return sums + (tl.zeros([B], tl.float32), tl.zeros([B], tl.float32)) + columns + (tl.full([B], -1, tl.int32),)


@triton.jit(do_not_specialize=_RUNTIME)
def grad_words_of_channels(
    g, t, dx, lanes, C, H, W, OH, OW, extent, gn, gc, gh, gw, tn, tc, th, tw, xn, xc, xh, xw,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, R: tl.constexpr, M: tl.constexpr,
    B: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """A lane owns two channels of R rows by ``extent`` columns of inputs, and walks along them, M windows per turn.

    g, t: incoming gradient and taps of sizes (N, C, OH, OW); dx: the result of sizes (N, C, H, W); C and all strides
    count pairs of channels, which lie side by side. ``extent + KW - 1`` is a multiple of M. What lies outside is not
    masked: the nearest inside is read instead, and its tap is spoilt.
    """
    lane = lane_numbers(B, False)
    live = lane < lanes
    lane = tl.minimum(lane, lanes - 1)
    cc = lane % C
    strip, rg, _, sample = tile_of(lane // C, (W + extent - 1) // extent, (H + R - 1) // R, 1, 2)
    pair = tl.arange(0, 2)[None, :]
    sample = sample.to(tl.int64)
    g0 = g + (sample * gn + cc) * 2
    t0 = (t + (sample * tn + cc) * 2).to(tl.pointer_type(tl.int16), bitcast=True)
    x0 = dx + (sample * xn + cc) * 2
    gradient_rows = ()
    tap_rows = ()
    spoilers = ()
    for a in tl.static_range(R + KH - 1):
        oh = rg * R + (PH - KH + 1 + a)
        gradient_rows = gradient_rows + (nearest(oh, OH) * gh * 2,)
        tap_rows = tap_rows + (nearest(oh, OH) * th,)
        spoilers = spoilers + (outside(oh, OH),)
    # For each input row, the sums of the KW columns that the next windows reach: first channel, then second.
    sums = ()
    for i in tl.static_range(R * 2 * KW):
        sums = sums + (tl.zeros([B], tl.float32),)
    first_column = strip * extent - (KW - 1)
    for turn in range(0, extent + (KW - 1), M):
        for k in tl.static_range(M):
            column = first_column + turn + k
            ow = nearest(column + PW, OW)
            no_column = outside(column + PW, OW)
            state = no_windows(R, B)
            for a in tl.static_range(R + KH - 1):
                both = tl.load((g0 + ow * gw * 2 + gradient_rows[a])[:, None] + pair)
                gradients = split_columns(widened(both, tl.float32), B, 2)
                read = tl.load(t0 + ow * tw + tap_rows[a]).to(tl.int32)
                taps, _ = bytes_apart(read, spoilers[a], ASM)
                state = add_up_the_rows(
                    state, taps, winning_rows(taps, spoilers[a], KH, KW, ASM), gradients[0], gradients[1],
                    KH - 1 - a, R, KH, KW, 3, ASM,
                )  # fmt: skip
            new = ()
            for j in tl.static_range(R):
                targets = ()
                for i in tl.static_range(2 * KW):
                    targets = targets + (sums[j * 2 * KW + i],)
                # A column outside has won nothing.
                picked = state[2 * R + j] | no_column
                targets = spread_two(targets, picked, state[2 * j], state[2 * j + 1], KW, ASM)
                row = rg * R + j
                ok = live & (row < H) & (each_lanes(turn + k, B) >= KW - 1) & (column < W)
                piece = join_columns((targets[0], targets[KW]), 0, 1, B, 2).to(dx.dtype.element_ty)
                tl.store((x0 + (row * xh + column * xw) * 2)[:, None] + pair, piece, mask=ok[:, None])
                for e in tl.static_range(2):
                    for i in tl.static_range(1, KW):
                        new = new + (targets[e * KW + i],)
                    new = new + (tl.zeros([B], tl.float32),)
            sums = new
