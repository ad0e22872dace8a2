"""Averages over large windows: along the rows into a little scratch, then down it as a walk.

A program owns a block of columns times a few vectors of channels, or a few planes, and goes down the rows, ``M`` of
them per turn. First its lanes add up ``R`` neighbouring windows of one row each, which share what they can; then each
lane follows its columns, with the blocks of 2, 4, 8, ... rows that the next windows need in registers. DRAM sees the
source and the target alone, and no element goes through more additions than rule E6 has roundings.
"""

# Triton's compiler knows no unpacking, and wants both branches of a compile-time choice to return.

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import (
    each_lanes,
    join_columns,
    lanes_of_walk,
    plane_offset,
    rounded,
    split_columns,
    task_of_walk,
    widened,
)
from .average_pooling import CHANNELS, COLUMNS
from .sums import blocks_further, constant_quotient, divisor_along, neighbouring_sums, quotient

_RUNTIME = [
    *("tasks", "programs", "groups", "group", "blocks", "width", "strips", "rows", "lines", "planes"),
    *("C", "H", "W", "TH", "TW", "sn", "sc", "sh", "sw"),
]


@triton.jit
def columns_of_row(
    at, to_next, chunk, end, table, N: tl.constexpr, V: tl.constexpr, B: tl.constexpr, LAYOUT: tl.constexpr,
    WEIGHED: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """``N`` chunks of a row from ``chunk`` on, 0 from ``end`` on, each column multiplied by its entry of ``table``."""
    columns = ()
    for c in tl.static_range(N):
        # Without a sign what lies below 0 is beyond every width.
        mask = (chunk + c).to(tl.uint32) < end
        if LAYOUT == COLUMNS:
            values = widened(tl.load(at + c * V, mask=mask[:, None], other=0.0), ACC)
            if WEIGHED:
                values = values * tl.load(table[:, None] + (c * V + tl.arange(0, V))[None, :])
            columns = columns + split_columns(values, B, V)
        else:
            values = widened(tl.load(at, mask=mask[:, None], other=0.0), ACC)
            if WEIGHED:
                values = values * tl.load(table + c)[:, None]
            columns = columns + (values,)
            # By one addition: products, which do not change from turn to turn, would fill the registers.
            at = at + to_next
    return columns


@triton.jit(do_not_specialize=_RUNTIME)
def sum_walk(
    source, target, scratch, tasks, programs, groups, group, blocks, width, strips, rows, lines, planes,
    C, H, W, TH, TW, sn, sc, sh, sw,
    WINDOW: tl.constexpr, START: tl.constexpr, END: tl.constexpr,
    ADJOINT: tl.constexpr, COUNT: tl.constexpr, DIVISOR: tl.constexpr, LAYOUT: tl.constexpr,
    R: tl.constexpr, M: tl.constexpr, V: tl.constexpr, DOWN: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Stride 1, no dilation, a dense target; ``WINDOW, START, END`` are those of rows and columns.

    A task is ``rows`` target rows by ``width`` columns (a multiple of R) by ``group`` vectors of channels or planes;
    ``strips`` by ``blocks`` by ``groups`` of them make a sample, or all ``planes``. A program goes through many, ``M``
    rows a turn and ``lines`` of these at once, with a scratch of its own: two turns of ``M * width * group``, and the
    reciprocals of the divisors of its columns. For CHANNELS C and all strides count vectors of V channels, DOWN is V
    and ``lines`` R; sc is 1, or any stride where V is 1. For COLUMNS rows are contiguous: W and the strides count
    vectors of V columns, TW vectors of DOWN.
    """
    ACC: tl.constexpr = tl.float64 if source.dtype.element_ty == tl.float64 else tl.float32
    WEIGHED: tl.constexpr = ADJOINT and COUNT > 0  # divide what is read
    COUNTED: tl.constexpr = COUNT > 0 and not ADJOINT  # divide what is written, by counts
    # The adjoint adds up the windows that reach an element: those from this many before it on.
    ABOVE: tl.constexpr = WINDOW[0] - 1 - START[0] if ADJOINT else START[0]
    BEFORE: tl.constexpr = WINDOW[1] - 1 - START[1] if ADJOINT else START[1]
    CHUNK: tl.constexpr = V if LAYOUT == COLUMNS else 1  # columns of a load
    PER_LANE: tl.constexpr = DOWN if LAYOUT == COLUMNS else 1  # columns of a lane on its way down
    ACROSS: tl.constexpr = 1 if LAYOUT == COLUMNS else V  # elements of a column
    LOW: tl.constexpr = (-BEFORE) // CHUNK
    CHUNKS: tl.constexpr = (R + WINDOW[1] - 2 - BEFORE) // CHUNK + 1 - LOW
    program = tl.program_id(0)
    turn_size = M * width * group * ACROSS
    own = scratch + program.to(tl.int64) * (2 * turn_size)
    table = scratch + tl.cast(programs, tl.int64) * (2 * turn_size) + program * (width // CHUNK + CHUNKS) * CHUNK
    within = tl.arange(0, V)[None, :]
    down = tl.arange(0, DOWN)[None, :]
    item = tl.arange(0, B)
    per_line = width // PER_LANE
    member, segment, line, walked, across = lanes_of_walk(width, group, R, PER_LANE, LAYOUT == CHANNELS, B)
    apart = 1
    if LAYOUT == CHANNELS:
        apart = group
        lines = R
    to_next = tl.cast(sw, tl.int64) * V
    zero = tl.zeros([B, DOWN], ACC)
    for task in range(program, tasks, programs):
        first_member, first_column, top, sample = task_of_walk(task, groups, group, blocks, width, strips, rows)
        first = first_column // CHUNK + segment * (R // CHUNK) + LOW
        column = first_column // PER_LANE + across
        if LAYOUT == COLUMNS:
            plane = first_member + member
            pointers = source + plane_offset(plane, C, sn, sc) * V
            reading = (plane < planes) & (line < lines)
            plane = first_member + walked
            base_target = (target + plane.to(tl.int64) * (TH * TW) * DOWN)[:, None]
            writing = (plane < planes) & (walked < group) & (column < TW)
        else:
            channel = first_member + member
            pointers = source + (sample * sn + channel * sc) * V
            reading = (channel < C) & (line < R)
            base_target = target + sample * (TH * TW) * C * V
            writing = (channel < C) & (across < width) & (column < TW)
        pointers = (pointers + first * sw * V)[:, None] + within
        of_column = zero
        by_column = zero
        if COUNTED:
            of_columns = divisor_along(
                (column * PER_LANE)[:, None] + tl.arange(0, PER_LANE)[None, :], W * CHUNK,
                WINDOW[1], 1, START[1], END[1], 1, COUNT, ACC,
            )  # fmt: skip
            of_column = tl.broadcast_to(of_columns, [B, DOWN])
            by_column = tl.broadcast_to(1.0 / of_columns, [B, DOWN])
        if WEIGHED:
            # From memory: the compiler would keep as many reciprocals as a lane reads columns.
            for begin in tl.static_range(0, B * PER_LANE + CHUNKS * CHUNK, B):
                of_item = divisor_along(
                    first_column + LOW * CHUNK + begin + item, TW * PER_LANE,
                    WINDOW[1], 1, START[1], END[1], 1, COUNT, ACC,
                )  # fmt: skip
                tl.store(table + begin + item, 1.0 / of_item, mask=begin + item < width + CHUNKS * CHUNK)
            tl.debug_barrier()
        state = ()
        for _ in tl.static_range(WINDOW[0] - 1):
            state = state + (zero,)
        # Rows above the source add nothing; those that end a window count all the same.
        opening = tl.minimum(tl.maximum(ABOVE - top, 0), WINDOW[0] - 1)
        closing = tl.minimum(top + rows, TH)
        for turn in range(opening, closing - top + (WINDOW[0] - 1), M):
            buffer = own + ((turn - opening) // M % 2) * turn_size
            above = top + turn - ABOVE
            # As many lines at a time as there are lanes for, and none where all of them lie outside.
            for part in range(tl.maximum(-above, 0) // lines, (tl.minimum(H - above, M) + (lines - 1)) // lines):
                own_line = part * lines + line
                row = above + own_line
                kept = reading
                if LAYOUT == COLUMNS:
                    kept = reading & (own_line < M)
                # Of a row outside nothing lies within.
                end = tl.where(kept & (row >= 0) & (row < H), W, 0).to(tl.uint32)
                columns = columns_of_row(
                    pointers + (row * sh * V)[:, None], to_next, first, end, table + segment * R,
                    CHUNKS, V, B, LAYOUT, WEIGHED, ACC,
                )  # fmt: skip
                sums = neighbouring_sums(columns, -BEFORE - LOW * CHUNK, WINDOW[0], WINDOW[1], R)
                of_row = zero
                if WEIGHED:
                    counts = divisor_along(row, TH, WINDOW[0], 1, START[0], END[0], 1, COUNT, ACC)
                    of_row = tl.broadcast_to((1.0 / counts)[:, None], [B, DOWN])
                if LAYOUT == COLUMNS:
                    put = (own_line * group + member) * per_line + segment * (R // DOWN)
                else:
                    put = (own_line * width + segment * R) * group + member
                puts = buffer + (put * DOWN)[:, None] + down
                for j in tl.static_range(R // PER_LANE):
                    total = join_columns(sums, j * DOWN, 1, B, DOWN) if LAYOUT == COLUMNS else sums[j]
                    if WEIGHED:
                        total = total * of_row
                    tl.store(puts + j * (apart * DOWN), total, mask=kept[:, None])
            # The other buffer is not written before all have passed the next barrier: one for each turn will do.
            tl.debug_barrier()
            get = buffer + (item * DOWN)[:, None] + down
            for k in tl.static_range(M):
                row = each_lanes(above + k, B)
                filled = writing & (row >= 0) & (row < H)
                values = tl.load(get + k * (per_line * group * DOWN), mask=filled[:, None], other=0.0)
                state, total = blocks_further(state, values, WINDOW[0])
                number = turn + k - (WINDOW[0] - 1)
                target_row = top + number
                if COUNTED:
                    counts = divisor_along(target_row, H, WINDOW[0], 1, START[0], END[0], 1, COUNT, ACC)
                    total = quotient(total, of_column * counts, by_column * (1.0 / counts))
                elif COUNT == 0:
                    total = constant_quotient(total, DIVISOR)
                live = writing & (each_lanes(number, B) >= 0) & (each_lanes(target_row, B) < closing)
                place = target_row * TW + column
                if LAYOUT == CHANNELS:
                    place = place * C + channel
                to = base_target + (place * DOWN)[:, None] + down
                tl.store(to, rounded(total, target.dtype.element_ty), mask=live[:, None])
        tl.debug_barrier()
