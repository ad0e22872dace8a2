"""Max pooling on the GPU: fill with the lowest value, combine by maximum, finish with the value, its tap or its index.

A lane owns a small block of outputs and walks over the input rows they share: every input row is reduced along the
window's columns once, then folded into each output row that covers it. The walk is in row-major order, so the first
tap wins ties (M3).
"""

# ruff: noqa: B007, SIM109  (Triton needs the else, compiles neither unpacking nor `in`)

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import first_tap_inside, lane_numbers, plane_offset, tile_of
from .max_pooling_packed import KEYED_BYTES, NOT_PACKED, column_numbers, packed_row, store_packed, taps_of_keys
from .max_pooling_rows import (
    CHANNELS,
    COLUMNS,
    SCALAR,
    as_block,
    as_code,
    better,
    better_rows,
    code_number,
    read,
    row_columns,
    sliding_maxima,
    store_columns,
    tap_at,
)

NO_TAPS = tl.constexpr(0)
TAPS = tl.constexpr(1)
PLANE_INDICES = tl.constexpr(2)
INDICES = tl.constexpr(3)

_RUNTIME = [
    *("lanes", "C", "D", "H", "W", "OD", "OH", "OW"),
    *("xn", "xc", "xd", "xh", "xw", "yn", "yc", "yd", "yh", "yw"),
]


@triton.jit
def no_tap_inside(start, size, WINDOW: tl.constexpr, DILATION: tl.constexpr):
    """Whether a window that starts at ``start`` reads nothing of an axis of ``size`` elements."""
    first = first_tap_inside(start, WINDOW, DILATION)
    return (first >= WINDOW) | (start + first * DILATION >= size)


@triton.jit
def row_of_block(
    x0, depth, depth_inside, ih0, rg, r: tl.constexpr, cc, first_column, H, W, xc, xd, xh, xw, column_codes,
    first_codes,
    LOW: tl.constexpr, HIGH: tl.constexpr, ORIGIN: tl.constexpr, R: tl.constexpr, Q: tl.constexpr, GROUP: tl.constexpr,
    STREAM: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, JW: tl.constexpr,
    V: tl.constexpr, B: tl.constexpr, RANK: tl.constexpr, LAYOUT: tl.constexpr, WIDEN: tl.constexpr,
    ASM: tl.constexpr, WITH_TAPS: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Row r of a lane's block: the maxima under its Q windows, with codes that include the row's where rows share."""
    row = ih0 + r
    inside = depth_inside
    if RANK > 1:
        inside = depth_inside & (row >= 0) & (row < H)
    FIRST: tl.constexpr = ORIGIN if PACKED == NOT_PACKED else 0
    if PACKED == NOT_PACKED:
        columns = row_columns(
            x0, depth * xd + row * xh, inside, cc, first_column, W, xc, xw, LOW, HIGH, Q, SW, KW, JW, V, B, LAYOUT,
            WIDEN, ASM,
        )  # fmt: skip
    else:
        columns = packed_row(
            x0, depth * xd + row * xh + cc, inside, first_column, W, xw, column_codes, LOW, HIGH, ORIGIN,
            (Q - 1) * SW + (KW - 1) * JW + 1, Q * SW, V, B, LAYOUT == COLUMNS, PACKED, ASM,
        )  # fmt: skip
    values, codes = sliding_maxima(
        columns, column_codes, first_codes, FIRST, Q, SW, KW, JW, GROUP, ASM, WITH_TAPS, PACKED
    )
    if PACKED == KEYED_BYTES:
        numbered = ()
        for v in tl.static_range(Q):
            behind = r * (KW * 0x00010001)
            if r < PH:
                behind = as_block(
                    (tl.maximum(PH - rg * (R * SH), r) * (KW * 0x00010001)).to(tl.int32), LAYOUT, B, V // 2
                )
            numbered = numbered + (values[v] - behind,)
        values = numbered
    if WITH_TAPS and STREAM:
        row_code = r
        if r < PH:
            row_code = as_block(tl.maximum(PH - rg * (R * SH), r).to(tl.int32), LAYOUT, B, V)
        numbered = ()
        for v in tl.static_range(Q):
            numbered = numbered + (codes[v] + row_code * KW,)
        codes = numbered
    return values, codes


@triton.jit(do_not_specialize=_RUNTIME)
def max_windows(
    x, y, t, lanes, C, D, H, W, OD, OH, OW, xn, xc, xd, xh, xw, yn, yc, yd, yh, yw,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, JD: tl.constexpr, JH: tl.constexpr, JW: tl.constexpr,
    RANK: tl.constexpr, R: tl.constexpr, Q: tl.constexpr, GROUP: tl.constexpr, STREAM: tl.constexpr, V: tl.constexpr,
    B: tl.constexpr, LAYOUT: tl.constexpr, WIDE: tl.constexpr, WIDEN: tl.constexpr, ASM: tl.constexpr,
    WITH: tl.constexpr, EMPTY: tl.constexpr, WHOLE_VECTORS: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Windows unrolled at compile time; a lane owns R rows by Q columns of outputs.

    x: input of sizes (N, C, D, H, W) with strides xn..xw, where N x C planes or, with CHANNELS, N x C/V channel
    groups are meant. y, t: values and taps or indices (WITH), both with strides yn..yw. For COLUMNS W and the strides
    of x count vectors of V elements, xw is 1 and Q is V, or half of it where numbers are PACKED; for CHANNELS all
    strides but xc (1, or any where V is 1) count vectors along C.
    Strides of y count vectors where WHOLE_VECTORS, else elements.
    """
    lane = lane_numbers(B, WIDE)
    live = lane < lanes
    # Whole vectors are stored at offsets that count vectors: the compiler then knows them to be aligned.
    UNIT: tl.constexpr = V if WHOLE_VECTORS else 1
    cc = 0
    rest = lane
    if LAYOUT == CHANNELS:
        cc = lane % C
        rest = lane // C
    ACROSS: tl.constexpr = V if LAYOUT == COLUMNS else Q
    qg, rg, od, rest = tile_of(rest, (OW + ACROSS - 1) // ACROSS, (OH + R - 1) // R, OD, RANK)
    if LAYOUT == CHANNELS:
        plane = rest.to(tl.int64)
        x0 = x + plane * xn * V
        y_plane = plane * yn * V
    else:
        x0 = x + plane_offset(rest, C, xn, xc) * V
        y_plane = plane_offset(rest, C, yn, yc) * UNIT

    # A key holds its position: nothing travels beside it.
    WITH_TAPS: tl.constexpr = WITH != NO_TAPS and PACKED == NOT_PACKED
    REACH: tl.constexpr = (ACROSS - 1) * SW + (KW - 1) * JW
    LOW: tl.constexpr = (-PW) // V if LAYOUT == COLUMNS else 0
    HIGH: tl.constexpr = (REACH - PW) // V if LAYOUT == COLUMNS else REACH
    ORIGIN: tl.constexpr = -PW - LOW * V if LAYOUT == COLUMNS else 0
    first_column = qg * SW
    if LAYOUT != COLUMNS:
        first_column = qg * (Q * SW) - PW
    id0 = od * SD - PD
    ih0 = rg * (R * SH) - PH
    # Codes number a block's positions, row * KW + column; an output's tap is a code less its own first position's.
    # Where a window holds nothing above padding's value, the first tap inside is to be named: so padding before the
    # input bears the code of the first position inside.
    column_codes = ()
    first_codes = ()
    if PACKED == KEYED_BYTES:
        column_codes = column_numbers(
            PW - qg * (ACROSS * SW), PW, (Q - 1) * SW + (KW - 1) * JW + 1, Q * SW, B, LAYOUT == COLUMNS
        )
    elif WITH_TAPS:
        for c in tl.static_range((Q - 1) * SW + KW):
            if c < PW and GROUP > 1:
                code = tl.maximum(PW - qg * (Q * SW), c).to(tl.int32)
                column_codes = column_codes + (as_code(as_block(code, LAYOUT, B, V), ASM),)
            else:
                column_codes = column_codes + (as_code(c, ASM),)
        for v in tl.static_range(Q):
            code = tl.zeros([B], tl.int32) + v * SW
            if PW > 0:
                code = first_tap_inside((qg * Q + v) * SW - PW, KW, JW).to(tl.int32) + v * SW
            first_codes = first_codes + (as_code(as_block(code, LAYOUT, B, V), ASM),)
    else:
        for c in tl.static_range((Q - 1) * SW + KW):
            column_codes = column_codes + (0,)

    values = ()
    codes = ()
    for kd in tl.static_range(KD):
        depth = id0 + kd * JD
        depth_inside = live
        if RANK > 2:
            depth_inside = live & (depth >= 0) & (depth < D)
        in_slice = ()
        in_slice_codes = ()
        if STREAM:
            # R windows below one another share their core rows, as the columns do: the rows before it from the bottom
            # up, then the core, then the rows after it.
            before = ()
            before_codes = ()
            for step in tl.static_range((R - 1) * SH):
                found, found_codes = row_of_block(
                    x0, depth, depth_inside, ih0, rg, (R - 1) * SH - 1 - step, cc, first_column, H, W, xc, xd, xh, xw,
                    column_codes, first_codes, LOW, HIGH, ORIGIN, R, Q, GROUP, STREAM, SH, SW, KW, PH, JW, V, B, RANK,
                    LAYOUT, WIDEN, ASM, WITH_TAPS, PACKED,
                )  # fmt: skip
                if step > 0:
                    found, found_codes = better_rows(
                        found, found_codes, in_slice, in_slice_codes, Q, ASM, WITH_TAPS, PACKED=PACKED
                    )
                in_slice = found
                in_slice_codes = found_codes
                if (step + 1) % SH == 0:
                    before = found + before
                    before_codes = found_codes + before_codes
            core = ()
            core_codes = ()
            results = ()
            result_codes = ()
            for r in tl.static_range((R - 1) * SH, (R - 1) * SH + KH):
                found, found_codes = row_of_block(
                    x0, depth, depth_inside, ih0, rg, r, cc, first_column, H, W, xc, xd, xh, xw, column_codes,
                    first_codes,
                    LOW, HIGH, ORIGIN, R, Q, GROUP, STREAM, SH, SW, KW, PH, JW, V, B, RANK, LAYOUT, WIDEN, ASM,
                    WITH_TAPS, PACKED,
                )  # fmt: skip
                if r > (R - 1) * SH:
                    found, found_codes = better_rows(
                        core, core_codes, found, found_codes, Q, ASM, WITH_TAPS, PACKED=PACKED
                    )
                core = found
                core_codes = found_codes
                if r >= KH - 1 and (r - KH + 1) % SH == 0:
                    if (r - KH + 1) // SH < R - 1:
                        # The first window's core ends at row KH - 1; each next one's ends a stride further down.
                        whole, whole_codes = better_rows(
                            before, before_codes, core, core_codes, Q, ASM, WITH_TAPS, (r - KH + 1) // SH * Q, PACKED
                        )
                        results = results + whole
                        result_codes = result_codes + whole_codes
                    else:
                        results = results + core
                        result_codes = result_codes + core_codes
            in_slice = results
            in_slice_codes = result_codes
        else:
            for i in tl.static_range(R * Q):
                in_slice = in_slice + (0,)
                in_slice_codes = in_slice_codes + (0,)
            for r in tl.static_range((R - 1) * SH + (KH - 1) * JH + 1):
                if read(r, R, SH, KH, JH):
                    found, found_codes = row_of_block(
                        x0, depth, depth_inside, ih0, rg, r, cc, first_column, H, W, xc, xd, xh, xw, column_codes,
                        first_codes, LOW, HIGH, ORIGIN, R, Q, GROUP, STREAM, SH, SW, KW, PH, JW, V, B, RANK, LAYOUT,
                        WIDEN, ASM, WITH_TAPS, PACKED,
                    )  # fmt: skip
                    new = ()
                    new_codes = ()
                    for j in tl.static_range(R):
                        for v in tl.static_range(Q):
                            m = in_slice[j * Q + v]
                            i = in_slice_codes[j * Q + v]
                            if tap_at(r - j * SH, KH, JH) == 0:
                                m = found[v]
                                i = found_codes[v]
                                if WITH_TAPS:
                                    i = i + j * SH * KW
                                    if PH > 0:
                                        above = first_tap_inside((rg * R + j) * SH - PH, KH, JH).to(tl.int32) * KW
                                        i = i + as_block(above, LAYOUT, B, V)
                            elif tap_at(r - j * SH, KH, JH) > 0:
                                j_code = 0
                                if WITH_TAPS:
                                    j_code = found_codes[v] + (j * SH + tap_at(r - j * SH, KH, JH)) * KW
                                m, i = better(m, i, found[v], j_code, ASM, WITH_TAPS, PACKED)
                            new = new + (m,)
                            new_codes = new_codes + (i,)
                    in_slice = new
                    in_slice_codes = new_codes
        if kd == 0:
            values = in_slice
            codes = in_slice_codes
            if WITH_TAPS and RANK > 2 and PD > 0:
                ahead = as_block(first_tap_inside(id0, KD, JD).to(tl.int32) * (KH * KW), LAYOUT, B, V)
                new_codes = ()
                for i in tl.static_range(R * Q):
                    new_codes = new_codes + (codes[i] + ahead,)
                codes = new_codes
        else:
            if WITH_TAPS:
                new_codes = ()
                for i in tl.static_range(R * Q):
                    new_codes = new_codes + (in_slice_codes[i] + kd * (KH * KW),)
                in_slice_codes = new_codes
            values, codes = better_rows(values, codes, in_slice, in_slice_codes, R * Q, ASM, WITH_TAPS, PACKED=PACKED)

    for j in tl.static_range(R):
        oh = rg * R + j
        row_live = live
        if RANK > 1:
            row_live = live & (oh < OH)
        encoded = ()
        if WITH != NO_TAPS:
            keyed = ()
            if PACKED == KEYED_BYTES:
                keyed = taps_of_keys(values, j * Q, Q, SW, j * SH * KW, V, B, LAYOUT == COLUMNS)
            for v in tl.static_range(ACROSS):
                if PACKED == KEYED_BYTES:
                    code = keyed[v]
                else:
                    code = code_number(codes[j * Q + v] - (j * SH * KW + v * SW), ASM)
                ow = qg * ACROSS + v
                start_h = oh * SH - PH
                start_w = ow * SW - PW
                if WITH == PLANE_INDICES or WITH == INDICES:
                    first_d = id0
                    first_h = start_h
                    first_w = start_w
                    if LAYOUT != COLUMNS:
                        first_w = first_w[:, None]
                        if RANK > 1:
                            first_h = first_h[:, None]
                        if RANK > 2:
                            first_d = first_d[:, None]
                    columns_of_row = W * V if LAYOUT == COLUMNS else W
                    code = position_of(code, first_d, first_h, first_w, H, columns_of_row, KH, KW, JD, JH, JW, RANK)
                    if WITH == INDICES:
                        elements = tl.cast(D, tl.int64) * H * columns_of_row
                        if LAYOUT == CHANNELS:
                            channel = (cc * V)[:, None] + tl.arange(0, V)[None, :]
                            code = code + (rest.to(tl.int64) * (C * V))[:, None] * elements + channel * elements
                        elif LAYOUT == SCALAR:
                            code = code + (rest.to(tl.int64) * elements)[:, None]
                        else:
                            code = code + rest.to(tl.int64) * elements
                if EMPTY:
                    empty = no_tap_inside(start_w, W * V if LAYOUT == COLUMNS else W, KW, JW)
                    if RANK > 1:
                        empty = empty | no_tap_inside(start_h, H, KH, JH)
                    if RANK > 2:
                        empty = empty | no_tap_inside(id0, D, KD, JD)
                    if LAYOUT != COLUMNS:
                        empty = empty[:, None]
                    code = tl.where(empty, 0 if WITH == TAPS else -1, code)
                encoded = encoded + (code,)
        if LAYOUT == COLUMNS:
            out = (od * yd + oh * yh) * UNIT + qg * V
            if WHOLE_VECTORS:
                out = (od * yd + oh * yh + qg) * V
            if PACKED == NOT_PACKED:
                store_columns(y + y_plane, out, values, j * Q, row_live, qg, OW, B, V, WHOLE_VECTORS)
            else:
                store_packed(y + y_plane, od * yd + oh * yh + qg, values, j * Q, row_live, V, B, True, PACKED, ASM)
            if WITH != NO_TAPS:
                store_columns(t + y_plane, out, encoded, 0, row_live, qg, OW, B, V, WHOLE_VECTORS)
        else:
            vector = tl.arange(0, V)[None, :]
            for v in tl.static_range(Q):
                ow = qg * Q + v
                ok = (row_live & (ow < OW))[:, None]
                at = od * yd + oh * yh + ow * yw + cc * yc
                out = y_plane[:, None] + (at * V)[:, None] + vector
                if PACKED == NOT_PACKED:
                    tl.store(y + out, values[j * Q + v].to(y.dtype.element_ty), mask=ok)
                else:
                    store_packed(y + y_plane, at, values, j * Q + v, row_live & (ow < OW), V, B, False, PACKED, ASM)
                if WITH != NO_TAPS:
                    tl.store(t + out, encoded[v].to(t.dtype.element_ty), mask=ok)


@triton.jit
def position_of(
    tap, first_d, first_h, first_w, H, W, KH: tl.constexpr, KW: tl.constexpr, JD: tl.constexpr, JH: tl.constexpr,
    JW: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """Row-major position in the input plane (64-bit) of tap number ``tap`` of the window that starts at ``first_*``."""
    above = tap // KW
    position = (first_w + (tap - above * KW) * JW).to(tl.int64)
    if RANK > 1:
        kd = above // KH
        row = first_h + (above - kd * KH) * JH
        if RANK > 2:
            row = row + (first_d + kd * JD).to(tl.int64) * H
        position = position + row.to(tl.int64) * W
    return position
