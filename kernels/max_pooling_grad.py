"""The gradient of max pooling on the GPU, as a gather: fill with 0, combine by addition, finish with one store.

Every input element asks the windows that cover it whether their winning tap is the one that lies on it, and adds up
the gradients of those that say yes (M5). Nothing is written twice and nothing needs zeroing first, so results are the
same run after run. A window without a tap inside the input has tap 0, which then lies outside: it sends nothing.

Where windows overlap much the gather goes axis by axis. For one input row and one output column every window won by
that row has its winner in the same column: the first maximum of the row's segment. So gradients are first added up the
rows, which also picks the winner's column, and then along each row: the windows cost their size, not its square.
"""

# ruff: noqa: B007, E741  (Triton needs the else and compiles no unpacking; I and O are an axis' sizes)

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import first_covering, join_columns, lane_numbers, plane_offset, split_columns, tile_of
from .max_pooling_rows import CHANNELS, COLUMNS, as_block, tap_at

_RUNTIME = [
    *("lanes", "C", "D", "H", "W", "OD", "OH", "OW", "gn", "gc", "gd", "gh", "gw"),
    *("tn", "tc", "td", "th", "tw", "xn", "xc", "xd", "xh", "xw"),
]


@triton.constexpr_function
def first_window(K, S, P, J):
    """The lowest window, relative to a lane's own first, that reaches one of its inputs."""
    return -(((K - 1) * J - P) // S)


@triton.constexpr_function
def last_window(inputs, S, P):
    """The highest window, relative to a lane's own first, that reaches one of its ``inputs``."""
    return (inputs - 1 + P) // S


@triton.constexpr_function
def float_bits(value):
    """The float32 ``value``, a small non-negative integer, as a PTX literal's eight hexadecimal digits."""
    if value == 0:
        return "00000000"
    exponent = value.bit_length() - 1
    return f"{((127 + exponent) << 23) | ((value << (23 - exponent)) & 0x7FFFFF):08x}"


@triton.constexpr_function
def add_where_equal(tap):
    """PTX: the sum $1, plus the gradient $3 where the tap $2 is ``tap``; as one predicated addition."""
    return f"{{.reg .pred p; setp.eq.s32 p, $2, {tap}; mov.f32 $0, $1; @p add.rn.f32 $0, $1, $3;}}"


@triton.constexpr_function
def add_where_column(column):
    """PTX: the same for picked columns, which are float32."""
    return f"{{.reg .pred p; setp.eq.f32 p, $2, 0f{float_bits(column)}; mov.f32 $0, $1; @p add.rn.f32 $0, $1, $3;}}"


@triton.constexpr_function
def pick_in_row(first, KW):
    """PTX: where the tap $4 (as float32) is one of the KW taps from ``first`` on, the sum $2 plus the gradient $5, and
    the tap's column for the one picked so far, $3.

    The range is one unsigned comparison of the difference's bits, as negative floats are the largest; the column moves
    by an addition, because a predicated move would become a select on the busier pipe.
    """
    return (
        "{.reg .pred p; .reg .f32 d; .reg .b32 b;"
        f" sub.rn.f32 d, $4, 0f{float_bits(first)}; mov.b32 b, d; setp.lt.u32 p, b, 0x{float_bits(KW)};"
        " mov.f32 $0, $2; mov.f32 $1, $3; @p add.rn.f32 $0, $2, $5; @p add.rn.f32 $1, d, 0f00000000;}"
    )


@triton.jit
def add_winner(s, tap, gradient, TAP: tl.constexpr, ASM: tl.constexpr):
    """``s``, plus ``gradient`` where ``tap`` is TAP."""
    if ASM:
        return tl.inline_asm_elementwise(
            add_where_equal(TAP), "=&f,f,r,f", [s, tap, gradient], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        # In this form, not as the addition of a selected 0, it becomes one predicated instruction.
        return tl.where(tap == TAP, s + gradient, s)


@triton.jit
def add_picked(s, column, gradient, COLUMN: tl.constexpr, ASM: tl.constexpr):
    """``s``, plus ``gradient`` where ``column`` is COLUMN."""
    if ASM:
        return tl.inline_asm_elementwise(
            add_where_column(COLUMN), "=&f,f,f,f", [s, column, gradient], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.where(column == COLUMN, s + gradient, s)


@triton.jit
def add_in_row(s, picked, tap, gradient, FIRST: tl.constexpr, KW: tl.constexpr, ASM: tl.constexpr):
    """``(s, picked)``, with ``gradient`` added and the tap's column picked where ``tap`` is in the row from FIRST."""
    if ASM:
        return tl.inline_asm_elementwise(
            pick_in_row(FIRST, KW),
            "=&f,=&f,f,f,f,f",
            [s, picked, tap, gradient],
            dtype=(tl.float32, tl.float32),
            is_pure=True,
            pack=1,
        )
    else:
        column = tap - FIRST
        wins = (column >= 0) & (column < KW)
        return tl.where(wins, s + gradient, s), tl.where(wins, column, picked)


@triton.jit
def window_row(
    base, offset, inside, cc, first, OW, along_c, stride, OTHER, LOW: tl.constexpr, HIGH: tl.constexpr, V: tl.constexpr,
    B: tl.constexpr, LAYOUT: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """One row of windows as a tuple: columns LOW..HIGH (in vectors for COLUMNS) of gradients or of taps."""
    vector = tl.arange(0, V)[None, :]
    columns = ()
    for c in tl.static_range(LOW, HIGH + 1):
        column = first + c
        ok = inside & (column >= 0) & (column < OW)
        if LAYOUT == COLUMNS:
            at = ((offset + column) * V)[:, None] + vector
            v = tl.load(base[:, None] + at, mask=ok[:, None], other=OTHER).to(TYPE)
            columns = columns + split_columns(v, B, V)
        else:
            at = ((offset + column * stride + cc * along_c) * V)[:, None] + vector
            v = tl.load(base[:, None] + at, mask=ok[:, None], other=OTHER).to(TYPE)
            columns = columns + (v,)
    return columns


@triton.jit(do_not_specialize=_RUNTIME)
def grad_windows(
    g, t, dx, lanes, C, D, H, W, OD, OH, OW, gn, gc, gd, gh, gw, tn, tc, td, th, tw, xn, xc, xd, xh, xw,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, JD: tl.constexpr, JH: tl.constexpr, JW: tl.constexpr,
    RANK: tl.constexpr, R: tl.constexpr, Q: tl.constexpr, V: tl.constexpr, STORE: tl.constexpr, B: tl.constexpr,
    LAYOUT: tl.constexpr, WIDE: tl.constexpr, SEPARABLE: tl.constexpr, DOUBLE: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """Windows unrolled at compile time; a lane owns SD by R by Q inputs, R and Q multiples of SH and SW.

    g, t: incoming gradient and taps of sizes (N, C, OD, OH, OW); dx: the result of sizes (N, C, D, H, W). For COLUMNS,
    OW and the strides of g and t count vectors of V windows, gw and tw are 1, Q is a multiple of V * SW, and W and the
    strides of dx count vectors of STORE inputs, xw being 1. For CHANNELS, C and all strides (but gc, tc and xc) count
    vectors of V channels.
    """
    SUM: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    TAP: tl.constexpr = tl.float32 if ASM and SEPARABLE else tl.int32
    lane = lane_numbers(B, WIDE)
    live = lane < lanes
    cc = 0
    rest = lane
    columns_of_row = W
    if LAYOUT == COLUMNS:
        columns_of_row = W * STORE
    if LAYOUT == CHANNELS:
        cc = lane % C
        rest = lane // C
    qg, rg, dg, rest = tile_of(rest, (columns_of_row + Q - 1) // Q, (H + R - 1) // R, (D + SD - 1) // SD, RANK)
    UNIT: tl.constexpr = STORE if LAYOUT == COLUMNS else V
    if LAYOUT == CHANNELS:
        sample = rest.to(tl.int64)
        g0 = g + sample * gn * V
        t0 = t + sample * tn * V
        x_plane = sample * xn * UNIT
    else:
        g0 = g + plane_offset(rest, C, gn, gc) * V
        t0 = t + plane_offset(rest, C, tn, tc) * V
        x_plane = plane_offset(rest, C, xn, xc) * UNIT

    FIRST: tl.constexpr = first_window(KW, SW, PW, JW)
    LAST: tl.constexpr = last_window(Q, SW, PW)
    LOW: tl.constexpr = FIRST // V if LAYOUT == COLUMNS else FIRST
    HIGH: tl.constexpr = LAST // V if LAYOUT == COLUMNS else LAST
    # Position of window FIRST in what window_row returns.
    ORIGIN: tl.constexpr = FIRST - LOW * V if LAYOUT == COLUMNS else 0
    WINDOWS: tl.constexpr = LAST - FIRST + 1
    # Read where there is no window: no tap of any row (one byte holds taps 0 to 224).
    NO_TAP: tl.constexpr = 255 if t.dtype.element_ty == tl.uint8 else -1
    # The lane's first window, in vectors for COLUMNS.
    first_column = qg * (Q // SW // V if LAYOUT == COLUMNS else Q // SW)

    for e in tl.static_range(SD):
        sums = ()
        for i in tl.static_range(R * Q):
            sums = sums + (as_block(tl.zeros([B], SUM), LAYOUT, B, V),)
        for z in tl.static_range(first_window(KD, SD, PD, JD), last_window(SD, SD, PD) + 1):
            if tap_at(e + PD - z * SD, KD, JD) >= 0:
                od = dg + z
                slice_inside = live
                if RANK > 2:
                    slice_inside = live & (od >= 0) & (od < OD)
                gathered = ()
                picked = ()
                if SEPARABLE:
                    for i in tl.static_range(R * WINDOWS):
                        gathered = gathered + (as_block(tl.zeros([B], SUM), LAYOUT, B, V),)
                        picked = picked + (as_block(tl.zeros([B], TAP), LAYOUT, B, V),)
                for a in tl.static_range(first_window(KH, SH, PH, JH), last_window(R, SH, PH) + 1):
                    oh = rg * (R // SH) + a
                    inside = slice_inside
                    if RANK > 1:
                        inside = slice_inside & (oh >= 0) & (oh < OH)
                    gradients = window_row(
                        g0, od * gd + oh * gh, inside, cc, first_column, OW, gc, gw, 0.0, LOW, HIGH, V, B, LAYOUT, SUM
                    )
                    taps = window_row(
                        t0,
                        od * td + oh * th,
                        inside,
                        cc,
                        first_column,
                        OW,
                        tc,
                        tw,
                        NO_TAP,
                        LOW,
                        HIGH,
                        V,
                        B,
                        LAYOUT,
                        TAP,
                    )
                    if SEPARABLE:
                        new = ()
                        new_picked = ()
                        for j in tl.static_range(R):
                            for b in tl.static_range(WINDOWS):
                                s = gathered[j * WINDOWS + b]
                                kw = picked[j * WINDOWS + b]
                                if tap_at(j + PH - a * SH, KH, JH) >= 0:
                                    s, kw = add_in_row(
                                        s, kw, taps[ORIGIN + b], gradients[ORIGIN + b],
                                        (tap_at(e + PD - z * SD, KD, JD) * KH + tap_at(j + PH - a * SH, KH, JH)) * KW,
                                        KW, ASM,
                                    )  # fmt: skip
                                new = new + (s,)
                                new_picked = new_picked + (kw,)
                        gathered = new
                        picked = new_picked
                    else:
                        new = ()
                        for j in tl.static_range(R):
                            for v in tl.static_range(Q):
                                s = sums[j * Q + v]
                                if tap_at(j + PH - a * SH, KH, JH) >= 0:
                                    for b in tl.static_range(WINDOWS):
                                        if tap_at(v + PW - (FIRST + b) * SW, KW, JW) >= 0:
                                            s = add_winner(
                                                s, taps[ORIGIN + b], gradients[ORIGIN + b],
                                                (
                                                    tap_at(e + PD - z * SD, KD, JD) * KH
                                                    + tap_at(j + PH - a * SH, KH, JH)
                                                ) * KW + tap_at(v + PW - (FIRST + b) * SW, KW, JW),
                                                ASM,
                                            )  # fmt: skip
                                new = new + (s,)
                        sums = new
                if SEPARABLE:
                    new = ()
                    for j in tl.static_range(R):
                        for v in tl.static_range(Q):
                            s = sums[j * Q + v]
                            for b in tl.static_range(WINDOWS):
                                if tap_at(v + PW - (FIRST + b) * SW, KW, JW) >= 0:
                                    s = add_picked(
                                        s, picked[j * WINDOWS + b], gathered[j * WINDOWS + b],
                                        tap_at(v + PW - (FIRST + b) * SW, KW, JW), ASM,
                                    )  # fmt: skip
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
            if LAYOUT == COLUMNS:
                for p in tl.static_range(Q // STORE):
                    piece = join_columns(sums, j * Q + p * STORE, 1, B, STORE).to(dx.dtype.element_ty)
                    column = qg * (Q // STORE) + p
                    at = x_plane[:, None] + ((out + column) * STORE)[:, None] + tl.arange(0, STORE)[None, :]
                    tl.store(dx + at, piece, mask=(row_live & (column < W))[:, None])
            else:
                vector = tl.arange(0, V)[None, :]
                for v in tl.static_range(Q):
                    column = qg * Q + v
                    at = x_plane[:, None] + ((out + column * xw + cc * xc) * V)[:, None] + vector
                    value = sums[j * Q + v].to(dx.dtype.element_ty)
                    tl.store(dx + at, value, mask=(row_live & (column < W))[:, None])


_AXIS_RUNTIME = [
    *("lanes", "A1", "A2", "A3", "I", "O", "bound"),
    *("g0", "g1", "g2", "g3", "ga", "t0", "t1", "t2", "t3", "ta", "x0", "x1", "x2", "x3", "xa"),
]


@triton.jit(do_not_specialize=_AXIS_RUNTIME)
def grad_axis(
    g, t, dx, rest, lanes, A1, A2, A3, I, O, bound, g0, g1, g2, g3, ga, t0, t1, t2, t3, ta, x0, x1, x2, x3, xa,
    K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, J: tl.constexpr, COMMON: tl.constexpr, INVERSE: tl.constexpr,
    BELOW: tl.constexpr, LAST: tl.constexpr, AXIS_INNERMOST: tl.constexpr, B: tl.constexpr, WIDE: tl.constexpr,
    DOUBLE: tl.constexpr,
):  # fmt: skip
    """One axis of the gradient, for windows too large to unroll: O windows' gradients to I inputs along that axis.

    A tap is k * BELOW + what the inner axes' taps are; the inputs' gradients go to dx, and what is left of the taps of
    those that won there, all alike, to ``rest`` (both with strides x0..xa) unless this axis is the LAST. The other
    axes have sizes .., A1, A2, A3; ``bound`` is the most windows that reach one input.
    """
    SUM: tl.constexpr = tl.float64 if DOUBLE else tl.float32
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
        total += tl.load(gradients + gradient_at_o, mask=wins, other=0.0).to(SUM)
        left = tl.where(wins, below, left).to(tl.int32)
        first_tap += TAP_STEP * BELOW
        tap_at_o -= STEP * ta
        gradient_at_o -= STEP * ga
    at = a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3 + position.to(tl.int64) * xa
    tl.store(dx + at, total.to(dx.dtype.element_ty), mask=live)
    if not LAST:
        tl.store(rest + at, left.to(rest.dtype.element_ty), mask=live)
