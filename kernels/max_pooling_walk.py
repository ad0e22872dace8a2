"""Max pooling with large windows at stride 1: along the rows into a little scratch, then down it as a walk.

A program goes down the rows of a block of columns, ``M`` of them per turn. First its lanes reduce the rows along the
window's columns, ``R`` neighbouring windows with a common core each; then every lane follows a few columns downwards,
with the maxima over 2, 4, 8, ... rows that the next windows need in registers. Beside a maximum travels, where it is
wanted, the tap that gave it: as a second number, or, for values of 16 bits, as the lower half of an integer.
"""

# ruff: noqa: B007  (Triton's tuples of constants know no underscore twice)

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import each_lanes, join_columns, lanes_of_walk, plane_offset, task_of_walk
from .max_pooling_keys import PADDING, ordered, restored
from .max_pooling_rows import (
    CHANNELS,
    COLUMNS,
    as_code,
    code_number,
    comparable,
    first_greatest,
    lowest,
    maximum,
    row_columns,
    sliding_maxima,
)
from .max_pooling_stream import KEYS, PAIRS, keys_of_row, row_further

LINE = tl.constexpr(64)
"""What the lower half of a key falls by from line to line; from column to column by 1."""

CODE_BITS = tl.constexpr(0x4B000000)
"""The bits of 2²³ as float32: an integer added to them is the same integer added to the number."""

_RUNTIME = [
    *("tasks", "programs", "groups", "group", "blocks", "width", "strips", "rows", "lines", "planes"),
    *("C", "H", "W", "OH", "OW", "xn", "xc", "xh", "xw", "yn", "yc", "yh", "yw"),
]


@triton.jit
def column_of_channels(
    at, first, opening, c, end, origin, MODE: tl.constexpr, BFLOAT16: tl.constexpr, WIDEN: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """Column ``first + c`` of a row: values and columns' codes, or keys of even and of odd channels.

    Of what is not below ``end`` the lowest value, and as a code the first column inside.
    """
    # Without a sign what lies below 0 is beyond every width.
    inside = ((first + c).to(tl.uint32) < end)[:, None]
    if MODE == KEYS:
        words = tl.where(inside, ordered(tl.load(at, mask=inside, other=0), BFLOAT16, ASM), PADDING)
        low = (origin - c)[:, None]
        return (words << 16) | low, (words & -65536) | low
    else:
        value = comparable(tl.load(at, mask=inside, other=lowest(at.dtype.element_ty)), WIDEN, ASM)
        if MODE == PAIRS:
            return value, numbered(tl.broadcast_to(tl.maximum(opening, c).to(tl.int32)[:, None], value.shape), ASM)
        else:
            return value, value


@triton.jit
def better_of(m, i, v, j, MODE: tl.constexpr, ASM: tl.constexpr):
    """The maximum of an earlier ``(m, i)`` and a later ``(v, j)``: of both as keys, or of the first as values."""
    if MODE == KEYS:
        return tl.maximum(m, v), tl.maximum(i, j)
    elif MODE == PAIRS:
        return first_greatest(m, i, v, j, ASM)
    else:
        return maximum(m, v), i


@triton.jit
def maxima_of_channels(
    at, to_next, first, opening, end, origin, R: tl.constexpr, KW: tl.constexpr, MODE: tl.constexpr,
    BFLOAT16: tl.constexpr, WIDEN: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """``R`` neighbouring windows of a row of vectors of channels: what comes before their core, the core in a loop, and
    what comes after it. Two tuples, as ``column_of_channels`` has them.
    """
    m, i = column_of_channels(at + (R - 2) * to_next, first, opening, R - 2, end, origin, MODE, BFLOAT16, WIDEN, ASM)
    before = (m,)
    before_codes = (i,)
    for e in tl.static_range(1, R - 1):
        v, j = column_of_channels(
            at + (R - 2 - e) * to_next, first, opening, R - 2 - e, end, origin, MODE, BFLOAT16, WIDEN, ASM
        )
        m, i = better_of(v, j, m, i, MODE, ASM)
        before = (m,) + before
        before_codes = (i,) + before_codes
    core, i = column_of_channels(at + (R - 1) * to_next, first, opening, R - 1, end, origin, MODE, BFLOAT16, WIDEN, ASM)
    for c in range(R, KW):
        v, j = column_of_channels(at + c * to_next, first, opening, c, end, origin, MODE, BFLOAT16, WIDEN, ASM)
        core, i = better_of(core, i, v, j, MODE, ASM)
    maxima = ()
    codes = ()
    for e in tl.static_range(R):
        if e > 0:
            v, j = column_of_channels(
                at + (KW - 1 + e) * to_next, first, opening, KW - 1 + e, end, origin, MODE, BFLOAT16, WIDEN, ASM
            )
            core, i = better_of(core, i, v, j, MODE, ASM)
        m = core
        n = i
        if e < R - 1:
            m, n = better_of(before[e], before_codes[e], core, i, MODE, ASM)
        maxima = maxima + (m,)
        codes = codes + (n,)
    return maxima, codes


@triton.jit(do_not_specialize=_RUNTIME)
def max_walk(
    x, y, t, between, between_taps, tasks, programs, groups, group, blocks, width, strips, rows, lines, planes,
    C, H, W, OH, OW, xn, xc, xh, xw, yn, yc, yh, yw,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, R: tl.constexpr, M: tl.constexpr,
    V: tl.constexpr, DOWN: tl.constexpr, B: tl.constexpr, LAYOUT: tl.constexpr, MODE: tl.constexpr,
    WIDEN: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Stride 1, no dilation; x: (N, C, H, W) with strides xn..xw; y, t: values and taps, both with strides yn..yw.

    A task is ``rows`` output rows by ``width`` columns (a multiple of R) by ``group`` vectors of channels or planes; a
    program goes through many, ``M`` rows a turn and ``lines`` of these at once, with scratch of its own: two turns of
    ``M * width * group``, maxima in ``between`` and, for PAIRS, their columns in ``between_taps``. For CHANNELS C and
    all strides count vectors of V channels; for COLUMNS W and the strides of x count vectors of V, OW and those of y
    vectors of DOWN columns.
    """
    ACROSS: tl.constexpr = V if LAYOUT == CHANNELS else 1  # elements of a column
    PER_LANE: tl.constexpr = 1 if LAYOUT == CHANNELS else DOWN  # columns of a lane on its way down
    LOW: tl.constexpr = (-PW) // V if LAYOUT == COLUMNS else 0
    HIGH: tl.constexpr = (R + KW - 2 - PW) // V if LAYOUT == COLUMNS else R + KW - 2
    ORIGIN: tl.constexpr = -PW - LOW * V if LAYOUT == COLUMNS else 0
    program = tl.program_id(0)
    turn_size = M * width * group * ACROSS
    own = between + program.to(tl.int64) * (2 * turn_size)
    own_taps = between_taps + program.to(tl.int64) * (2 * turn_size)
    item = tl.arange(0, B)
    per_line = width // PER_LANE
    down = tl.arange(0, DOWN)[None, :]
    half = tl.arange(0, DOWN // 2 if MODE == KEYS else 1)[None, :]
    member, segment, line, walked, across = lanes_of_walk(width, group, R, PER_LANE, LAYOUT == CHANNELS, B)
    # 32 bits hold all offsets within a plane; keys multiply in a loop, the others would rather add 64 bits.
    to_next = xw * V if MODE == KEYS else tl.cast(xw, tl.int64) * V
    for task in range(program, tasks, programs):
        first_member, first_column, top, sample = task_of_walk(task, groups, group, blocks, width, strips, rows)
        if LAYOUT == CHANNELS:
            x_plane = (sample * xn + (first_member + member)) * V
            y_plane = (sample * yn + (first_member + member)) * V
            reading = (first_member + member < C) & (line < lines)
            writing = (first_member + member < C) & (across < width) & (first_column + across < OW)
        else:
            plane = first_member + member
            x_plane = plane_offset(plane, C, xn, xc) * V
            reading = (plane < planes) & (line < lines)
            plane = first_member + walked
            y_plane = plane_offset(plane, C, yn, yc) * DOWN
            writing = (plane < planes) & (walked < group) & (first_column // DOWN + across < OW)
        first_output = first_column + segment * R
        first = first_output - PW
        column = first_column // PER_LANE + across
        TYPE: tl.constexpr = between.dtype.element_ty
        # What padding before a row counts as: the first column inside.
        if LAYOUT == CHANNELS:
            inner = tl.broadcast_to(tl.maximum(PW - column, 0)[:, None], [B, DOWN])
        else:
            inner = tl.maximum(PW - (column * DOWN)[:, None] - down, 0)
        state = ()
        for r in tl.static_range(KH - 1):
            if MODE == KEYS:
                state = state + (tl.full([B, DOWN // 2], PADDING, tl.int32), tl.full([B, DOWN // 2], PADDING, tl.int32))
            else:
                state = state + (tl.full([B, DOWN], lowest(TYPE), TYPE),)
                if MODE == PAIRS:
                    state = state + (numbered(inner + tl.maximum(PH - top, 0) * KW, ASM),)
        # Rows above the input are padding, as the state is; those that end a window count all the same.
        opening_row = tl.minimum(tl.maximum(PH - top, 0), KH - 1)
        closing_row = tl.minimum(top + rows, OH)
        for turn in range(opening_row, closing_row - top + (KH - 1), M):
            buffer = (turn - opening_row) // M % 2 * turn_size
            above = top + turn - PH
            for part in range(tl.maximum(-above, 0) // lines, (tl.minimum(H - above, M) + (lines - 1)) // lines):
                own_line = part * lines + line
                row = above + own_line
                inside = reading & (own_line < M) & (row >= 0) & (row < H)
                end = tl.where(inside, W, 0).to(tl.uint32)
                origin = 0xFFFF - (turn + own_line) * LINE
                # Of a row outside nothing is looked at: said so that the compiler does not keep what follows from it.
                opening = tl.where(inside, -first, 0)
                if LAYOUT == CHANNELS:
                    at = x + x_plane + (row * xh * V + first * to_next)
                    if MODE == KEYS:
                        words = at.to(tl.pointer_type(tl.int32), bitcast=True)[:, None] + half
                        maxima, codes = maxima_of_channels(
                            words, to_next // 2, first, opening, end, origin, R, KW, MODE,
                            x.dtype.element_ty == tl.bfloat16, WIDEN, ASM,
                        )  # fmt: skip
                    else:
                        maxima, codes = maxima_of_channels(
                            at[:, None] + down, to_next, first, opening, end, origin, R, KW, MODE, False, WIDEN, ASM
                        )
                elif MODE == KEYS:
                    words = (x + x_plane).to(tl.pointer_type(tl.int32), bitcast=True)
                    words = words + (row * xh + first_output // V) * (V // 2)
                    keys = keys_of_row(
                        words, to_next, inside, first_output // V, W, origin, LOW, HIGH, ORIGIN, R + KW - 1, V, B,
                        LAYOUT, x.dtype.element_ty == tl.bfloat16, ASM,
                    )  # fmt: skip
                    maxima, codes = sliding_maxima(keys, keys, keys, 0, R, 1, KW, 1, R, False, False)
                else:
                    column_codes = ()
                    for c in tl.static_range(R + KW - 1):
                        # Padding is as low as -inf: it bears the number of the first position inside, to be named.
                        if MODE == PAIRS and c < PW:
                            column_codes = column_codes + (numbered(tl.maximum(opening, c).to(tl.int32), ASM),)
                        else:
                            column_codes = column_codes + (as_code(c, ASM),)
                    columns = row_columns(
                        x + x_plane, row * xh, inside, 0, first_output // V, W, 0, xw, LOW, HIGH, R, 1, KW, 1,
                        V, B, LAYOUT, WIDEN, ASM,
                    )  # fmt: skip
                    maxima, codes = sliding_maxima(
                        columns, column_codes, (), ORIGIN, R, 1, KW, 1, R, ASM, MODE == PAIRS
                    )
                put_mask = ((line < lines) & (own_line < M))[:, None]
                for j in tl.static_range(R // PER_LANE):
                    if LAYOUT == CHANNELS:
                        put = buffer + ((own_line * width + first_output - first_column + j) * group + member) * V
                        value = maxima[j]
                        if MODE == KEYS:
                            value = tl.reshape(tl.join(value + j, codes[j] + j), [B, V])
                    else:
                        put = buffer + (own_line * group + member) * width + (first_output - first_column) + j * DOWN
                        value = join_columns(maxima, j * DOWN, 1, B, DOWN)
                        if MODE == KEYS:
                            # From the segment's columns to each window's own.
                            value = value + (j * DOWN + down)
                    put = put[:, None] + down
                    tl.store(own + put, value, mask=put_mask)
                    if MODE == PAIRS:
                        if LAYOUT == CHANNELS:
                            number = code_number(codes[j], ASM) - j
                        else:
                            numbers = ()
                            for e in tl.static_range(DOWN):
                                numbers = numbers + (code_number(codes[j * DOWN + e], ASM) - (j * DOWN + e),)
                            number = join_columns(numbers, 0, 1, B, DOWN)
                        tl.store(own_taps + put, number.to(between_taps.dtype.element_ty), mask=put_mask)
            # The other buffer is not written before all have passed the next barrier: one for each turn will do.
            tl.debug_barrier()
            for k in tl.static_range(M):
                get = (buffer + (k * (per_line * group) + item) * DOWN)[:, None] + down
                row = each_lanes(above + k, B)
                filled = writing & (row >= 0) & (row < H)
                number = turn + k - (KH - 1)
                target_row = top + number
                ok = (writing & (each_lanes(number, B) >= 0) & (each_lanes(target_row, B) < closing_row))[:, None]
                to = y_plane + (target_row * yh + column * yw) * DOWN
                if MODE == KEYS:
                    keys = tl.load(own + get, mask=filled[:, None], other=PADDING)
                    even, odd = tl.split(tl.reshape(keys, [B, DOWN // 2, 2]))
                    state, ended = row_further(state, (even, odd), KH, 3, 2, MODE, ASM)
                    to = (to // 2)[:, None] + half
                    values = restored(ended[0], ended[1], ASM)
                    tl.store(y.to(tl.pointer_type(tl.int32), bitcast=True) + to, values, mask=ok)
                    first_tap = tap_of(ended[0], KW) - number * KW
                    second_tap = tap_of(ended[1], KW) - number * KW
                    pair = (first_tap & 0xFFFF) | (second_tap << 16)
                    tl.store(t.to(tl.pointer_type(tl.int32), bitcast=True) + to, pair, mask=ok)
                else:
                    to = to[:, None] + down
                    value = tl.load(own + get, mask=filled[:, None], other=lowest(TYPE))
                    if MODE == PAIRS:
                        taken = tl.load(own_taps + get, mask=filled[:, None], other=0).to(tl.int32)
                        code = tl.where(filled[:, None], taken, inner) + tl.maximum(PH - top, turn + k) * KW
                        state, ended = row_further(state, (value, numbered(code, ASM)), KH, 2, 1, MODE, ASM)
                        tap = code_number(ended[1], ASM) - number * KW
                        tl.store(t + to, tap.to(t.dtype.element_ty), mask=ok)
                    else:
                        state, ended = row_further(state, (value,), KH, 2, 1, MODE, ASM)
                    tl.store(y + to, ended[0].to(y.dtype.element_ty), mask=ok)
        tl.debug_barrier()


@triton.jit
def tap_of(key, KW: tl.constexpr):
    """The tap of a key, counted in lines of KW from the walk's first."""
    place = (key & 0xFFFF) ^ 0xFFFF
    return (place >> 6) * (KW - LINE) + place


@triton.jit
def numbered(number, ASM: tl.constexpr):
    """``as_code`` of an integer that is not known at compile time, without a conversion."""
    if ASM:
        return (number + CODE_BITS).to(tl.float32, bitcast=True)
    else:
        return number
