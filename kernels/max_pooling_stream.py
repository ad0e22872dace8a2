"""Max pooling at stride 1 as a walk down the rows: what windows below one another share stays in registers.

A lane owns a strip of columns and loops over its input rows, a few per turn. Each row is reduced along the window's
columns; from the results of the last rows grow, in two or three steps, the maxima over 3, 9, ... of them, and so over
the whole window. A window then costs the logarithm of its height, an input row is read once per lane, and the code is
as long as a turn, not as a tile.
"""

# ruff: noqa: B007, SIM108  (Triton needs the else and compiles no unpacking)

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import each_lanes, first_tap_inside, lane_numbers, plane_offset, split_columns, tile_of
from .max_pooling_keys import KEY_BASE, PADDING, greatest, keys_apart, ordered, store_keys, two_bytes
from .max_pooling_packed import INTEGERS, NOT_PACKED, greater_packed, greatest_packed, packed_row, store_packed
from .max_pooling_rows import (
    CHANNELS,
    COLUMNS,
    as_block,
    as_code,
    code_number,
    first_greatest,
    lowest,
    maximum,
    row_columns,
    sliding_maxima,
    store_columns,
)

VALUES = tl.constexpr(0)
"""Maxima alone."""
PAIRS = tl.constexpr(1)
"""A value and the number of its tap, side by side."""
KEYS = tl.constexpr(2)
"""A 16-bit value and its tap as one integer."""

_RUNTIME = ["lanes", "C", "H", "W", "OH", "OW", "rows", "xn", "xc", "xh", "xw", "yn", "yc", "yh", "yw"]


@triton.constexpr_function
def growth(window, ways):
    """How maxima over ``window`` neighbours grow: for each step ``(size, distances)``, the sizes at the start and how
    far back the blocks of that size lie that make one of the next, the first furthest.
    """
    steps, size = [], 1
    while size < window:
        grown = min(ways * size, window)
        back = grown - size
        steps.append((size, (back, 0) if back <= size else (back, back // 2, 0)))
        size = grown
    return tuple(steps)


@triton.constexpr_function
def steps(window, ways):
    return len(growth(window, ways))


@triton.constexpr_function
def size_before(window, ways, step):
    return growth(window, ways)[step][0]


@triton.constexpr_function
def parts(window, ways, step):
    return len(growth(window, ways)[step][1])


@triton.constexpr_function
def distance(window, ways, step, part):
    return growth(window, ways)[step][1][part]


@triton.constexpr_function
def kept_at(window, ways, step, part):
    """Where among the rows remembered the one for ``part`` of ``step`` lies."""
    plan = growth(window, ways)
    return sum(distances[0] for _, distances in plan[:step]) + plan[step][1][0] - plan[step][1][part]


@triton.jit
def keys_of_row(
    words, to_next, inside, first, W, origin, LOW: tl.constexpr, HIGH: tl.constexpr, ORIGIN: tl.constexpr,
    COUNT: tl.constexpr, V: tl.constexpr, B: tl.constexpr, LAYOUT: tl.constexpr, BFLOAT16: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """The keys of ``COUNT`` columns of an input row, from ``origin`` downwards; for CHANNELS an even and an odd one."""
    HALF: tl.constexpr = V // 2
    read = ()
    for c in tl.static_range(LOW, HIGH + 1):
        # Below 0 is, without a sign, beyond every width.
        ok = inside & ((first + c).to(tl.uint32) < tl.cast(W, tl.uint32))
        if LAYOUT == COLUMNS:
            # The distance between vectors is an offset within the instruction.
            at = words[:, None] + (c * HALF + tl.arange(0, HALF)[None, :])
            columns = split_columns(tl.load(at, mask=ok[:, None], other=0), B, HALF)
            for i in tl.static_range(HALF):
                read = read + (tl.where(ok, ordered(columns[i], BFLOAT16, ASM), PADDING),)
        else:
            loaded = tl.load(words[:, None] + tl.arange(0, HALF)[None, :], mask=ok[:, None], other=0)
            read = read + (tl.where(ok[:, None], ordered(loaded, BFLOAT16, ASM), PADDING),)
            # From column to column by one addition: a product for each would be more than its maxima.
            words = words + to_next
    keys = ()
    for c in tl.static_range(COUNT):
        if LAYOUT == COLUMNS:
            word = read[(ORIGIN + c) // 2]
            if (ORIGIN + c) % 2 == 0:
                keys = keys + ((word << 16) | (origin - c),)
            else:
                keys = keys + ((word & -65536) | (origin - c),)
        else:
            keys = keys + ((read[c] << 16) | (origin - c), (read[c] & -65536) | (origin - c))
    return keys


@triton.jit
def maxima_along(
    keys, K: tl.constexpr, WAYS: tl.constexpr, OUTPUTS: tl.constexpr, PLANES: tl.constexpr, PACKED: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """Maxima of ``OUTPUTS`` neighbouring windows over keys or pairs; ``PLANES`` of them lie at each position."""
    level = keys
    for s in tl.static_range(steps(K, WAYS)):
        # Blocks of the next size begin at as many positions as the windows still reach from there.
        made = ()
        for i in tl.static_range(PLANES * (OUTPUTS + K - size_before(K, WAYS, s) - distance(K, WAYS, s, 0))):
            last = level[i + PLANES * distance(K, WAYS, s, 0)]
            if parts(K, WAYS, s) == 3:
                middle = level[i + PLANES * (distance(K, WAYS, s, 0) - distance(K, WAYS, s, 1))]
                made = made + (greatest_of(level[i], middle, last, PACKED, ASM),)
            else:
                made = made + (greater_of(level[i], last, PACKED, ASM),)
        level = made
    return level


@triton.jit
def greatest_of(a, b, c, PACKED: tl.constexpr, ASM: tl.constexpr):
    """The maximum of three keys, or of three pairs."""
    if PACKED == NOT_PACKED:
        return greatest(a, b, c, ASM)
    else:
        return greatest_packed(a, b, c, PACKED, ASM)


@triton.jit
def greater_of(a, b, PACKED: tl.constexpr, ASM: tl.constexpr):
    """The maximum of two keys or values, or of two pairs."""
    if PACKED == NOT_PACKED:
        return maximum(a, b)
    else:
        return greater_packed(a, b, PACKED, ASM)


@triton.jit
def row_further(
    state, row, K: tl.constexpr, WAYS: tl.constexpr, COUNT: tl.constexpr, MODE: tl.constexpr, ASM: tl.constexpr,
    PACKED: tl.constexpr = NOT_PACKED,
):  # fmt: skip
    """``(state, maxima)`` one row further down: the windows that end in ``row``, and what the next ones need.

    ``state`` holds, oldest first, for each step of growth the rows of block maxima that later blocks reach back to.
    """
    ENTRIES: tl.constexpr = 2 * COUNT if MODE == PAIRS else COUNT
    current = row
    kept = ()
    for s in tl.static_range(steps(K, WAYS)):
        made = ()
        made_codes = ()
        for e in tl.static_range(COUNT):
            oldest = state[kept_at(K, WAYS, s, 0) * ENTRIES + e]
            if MODE == PAIRS:
                m, i = first_greatest(
                    oldest, state[kept_at(K, WAYS, s, 0) * ENTRIES + COUNT + e], current[e], current[COUNT + e], ASM
                )
                made = made + (m,)
                made_codes = made_codes + (i,)
            elif parts(K, WAYS, s) == 3:
                middle = state[kept_at(K, WAYS, s, 1) * ENTRIES + e]
                made = made + (greatest_of(oldest, middle, current[e], PACKED, ASM),)
            else:
                made = made + (greater_of(oldest, current[e], PACKED, ASM),)
        for d in tl.static_range(ENTRIES, distance(K, WAYS, s, 0) * ENTRIES):
            kept = kept + (state[kept_at(K, WAYS, s, 0) * ENTRIES + d],)
        kept = kept + current
        current = made + made_codes
    return kept, current


@triton.jit(do_not_specialize=_RUNTIME)
def max_stream(
    x, y, t, lanes, C, H, W, OH, OW, rows, xn, xc, xh, xw, yn, yc, yh, yw,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, M: tl.constexpr, Q: tl.constexpr,
    GROUP: tl.constexpr, V: tl.constexpr, B: tl.constexpr, LAYOUT: tl.constexpr, MODE: tl.constexpr,
    WIDEN: tl.constexpr, ASM: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Stride 1, no dilation; a lane owns ``rows`` rows by Q columns of outputs, and takes M rows per turn.

    x: input of sizes (N, C, H, W) with strides xn..xw; y, t: values and, unless MODE is VALUES, taps, both with strides
    yn..yw. ``rows + KH - 1`` is a multiple of M. For COLUMNS W, OW and the strides count vectors of V elements, xw and
    yw are 1 and Q is V, or half of it where numbers are PACKED; for CHANNELS C and all strides count vectors of V
    channels, and channels lie side by side.
    """
    lane = lane_numbers(B, False)
    live = lane < lanes
    cc = 0
    rest = lane
    if LAYOUT == CHANNELS:
        cc = lane % C
        rest = lane // C
    PER_TILE: tl.constexpr = 1 if LAYOUT == COLUMNS else Q
    IN_STEP: tl.constexpr = V if LAYOUT == COLUMNS else 1
    qg, rg, _, rest = tile_of(rest, (OW + PER_TILE - 1) // PER_TILE, (OH + rows - 1) // rows, 1, 2)
    if LAYOUT == CHANNELS:
        x_plane = (rest.to(tl.int64) * xn + cc) * V
        y_plane = (rest.to(tl.int64) * yn + cc) * V
    else:
        x_plane = plane_offset(rest, C, xn, xc) * V
        y_plane = plane_offset(rest, C, yn, yc) * V
    LOW: tl.constexpr = (-PW) // V if LAYOUT == COLUMNS else 0
    HIGH: tl.constexpr = (V + KW - 2 - PW) // V if LAYOUT == COLUMNS else Q + KW - 2
    ORIGIN: tl.constexpr = -PW - LOW * V if LAYOUT == COLUMNS else 0
    # The last strip of channels overlaps the one before it: both write the same, and none has to ask where it ends.
    first_output = qg if LAYOUT == COLUMNS else tl.minimum(qg * Q, OW - Q)
    first_column = first_output if LAYOUT == COLUMNS else first_output - PW
    first_row = rg * rows - PH
    WAYS: tl.constexpr = 3 if MODE == KEYS or PACKED == INTEGERS else 2
    PLANES: tl.constexpr = 2 if MODE == KEYS and LAYOUT == CHANNELS else 1

    state = ()
    column_codes = ()
    first_codes = ()
    if MODE == KEYS:
        half = tl.arange(0, V // 2)[None, :]
        x_words = (x + x_plane).to(tl.pointer_type(tl.int32), bitcast=True)
        if LAYOUT == COLUMNS:
            x_words = x_words + first_column * (V // 2)
            for e in tl.static_range((KH - 1) * Q):
                state = state + (tl.full([B], PADDING, tl.int32),)
        else:
            for e in tl.static_range((KH - 1) * Q * PLANES):
                state = state + (tl.full([B, V // 2], PADDING, tl.int32),)
            x_words = x_words + first_column.to(tl.int64) * xw * (V // 2)
    elif PACKED != NOT_PACKED:
        # What lies above a lane's first row is in no window that it writes.
        for e in tl.static_range((KH - 1) * Q):
            state = state + (as_block(tl.zeros([B], tl.int32), LAYOUT, B, V // 2),)
    else:
        TYPE: tl.constexpr = tl.float32 if WIDEN else x.dtype.element_ty
        for r in tl.static_range(KH - 1):
            for e in tl.static_range(Q):
                state = state + (as_block(tl.full([B], lowest(x.dtype.element_ty), TYPE), LAYOUT, B, V),)
            if MODE == PAIRS:
                for e in tl.static_range(Q):
                    state = state + (as_code(as_block(tl.zeros([B], tl.int32), LAYOUT, B, V), ASM),)
        # Padding is as low as -inf: it bears the number of the first position inside, which is to be named.
        for c in tl.static_range(Q + KW - 1):
            code = c
            if MODE == PAIRS and c < PW and GROUP > 1:
                code = as_block(tl.maximum(PW - first_output * IN_STEP, c).to(tl.int32), LAYOUT, B, V)
            column_codes = column_codes + (as_code(code, ASM),)
        if MODE == PAIRS:
            for v in tl.static_range(Q):
                code = first_tap_inside(first_output * IN_STEP + v - PW, KW, 1).to(tl.int32) + v
                first_codes = first_codes + (as_code(as_block(code, LAYOUT, B, V), ASM),)

    for turn in range(0, rows + (KH - 1), M):
        for k in tl.static_range(M):
            row = first_row + turn + k
            inside = live & (row.to(tl.uint32) < tl.cast(H, tl.uint32))
            if MODE == KEYS:
                keys = keys_of_row(
                    x_words + row * xh * (V // 2), tl.cast(xw, tl.int64) * (V // 2), inside, first_column, W,
                    KEY_BASE - (turn + k) * KW, LOW, HIGH, ORIGIN, Q + KW - 1, V, B, LAYOUT,
                    x.dtype.element_ty == tl.bfloat16, ASM,
                )  # fmt: skip
                found = maxima_along(keys, KW, WAYS, Q, PLANES, NOT_PACKED, ASM)
            elif PACKED != NOT_PACKED:
                pairs = packed_row(
                    x + x_plane, row * xh, inside, first_column, W, xw, (), LOW, HIGH, ORIGIN, Q + KW - 1, Q, V, B,
                    LAYOUT == COLUMNS, PACKED, ASM,
                )  # fmt: skip
                found = maxima_along(pairs, KW, WAYS, Q, 1, PACKED, ASM)
            else:
                columns = row_columns(
                    x + x_plane, row * xh, inside, 0, first_column, W, 0, xw, LOW, HIGH, Q, 1, KW, 1, V, B, LAYOUT,
                    WIDEN, ASM,
                )  # fmt: skip
                found, codes = sliding_maxima(
                    columns, column_codes, first_codes, ORIGIN, Q, 1, KW, 1, GROUP, ASM, MODE == PAIRS
                )
                if MODE == PAIRS:
                    row_code = as_block((tl.maximum(-first_row, turn + k) * KW).to(tl.int32), LAYOUT, B, V)
                    for v in tl.static_range(Q):
                        found = found + (codes[v] + row_code,)
            state, ended = row_further(state, found, KH, WAYS, Q * PLANES, MODE, ASM, PACKED)
            number = turn + k - (KH - 1)
            oh = rg * rows + number
            ok = live & (each_lanes(number, B) >= 0) & (oh < OH)
            y_row = y + y_plane
            t_row = t + y_plane
            if MODE == KEYS:
                # Of two taps at once: none of them borrows.
                origin = (KEY_BASE - number * KW) * 0x00010001
                if LAYOUT == COLUMNS:
                    store_keys(y_row, t_row, oh * yh + first_output, ended, origin, ok, V, B, ASM)
                else:
                    at = (oh * yh + first_output * yw) * (V // 2)
                    y_words = (y_row.to(tl.pointer_type(tl.int32), bitcast=True) + at)[:, None] + half
                    t_pairs = (t_row.to(tl.pointer_type(tl.int16), bitcast=True) + at)[:, None] + half
                    for v in tl.static_range(Q):
                        words, taps = keys_apart(ended[2 * v], ended[2 * v + 1], origin - 0x00010001 * v, ASM)
                        tl.store(y_words, words, mask=ok[:, None])
                        tl.store(t_pairs, two_bytes(taps, ASM), mask=ok[:, None])
                        y_words = y_words + tl.cast(yw, tl.int64) * (V // 2)
                        t_pairs = t_pairs + tl.cast(yw, tl.int64) * (V // 2)
            elif PACKED != NOT_PACKED:
                if LAYOUT == COLUMNS:
                    store_packed(y_row, oh * yh + first_output, ended, 0, ok, V, B, True, PACKED, ASM)
                else:
                    for v in tl.static_range(Q):
                        at = oh * yh + (first_output + v) * yw
                        store_packed(y_row, at, ended, v, ok, V, B, False, PACKED, ASM)
            else:
                taps = ()
                if MODE == PAIRS:
                    for v in tl.static_range(Q):
                        taps = taps + (code_number(ended[Q + v] - (number * KW + v), ASM),)
                if LAYOUT == COLUMNS:
                    out = (oh * yh + first_output) * V
                    store_columns(y_row, out, ended, 0, ok, first_output, OW, B, V, True)
                    if MODE == PAIRS:
                        store_columns(t_row, out, taps, 0, ok, first_output, OW, B, V, True)
                else:
                    for v in tl.static_range(Q):
                        at = ((oh * yh + (first_output + v) * yw) * V)[:, None] + tl.arange(0, V)[None, :]
                        tl.store(y_row[:, None] + at, ended[v].to(y.dtype.element_ty), mask=ok[:, None])
                        if MODE == PAIRS:
                            tl.store(t_row[:, None] + at, taps[v].to(t.dtype.element_ty), mask=ok[:, None])
