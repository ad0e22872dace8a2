"""Averages over large windows with channels innermost: along the rows into a little scratch, then down it as a walk.

A program owns a block of columns times a few vectors of channels and goes down the rows, ``M`` of them per turn. First
its lanes add up ``R`` neighbouring windows of one row each, which share a core; then each lane follows one column, with
the blocks of 2, 4, 8, ... rows that the next windows need in registers. DRAM sees the source and the target alone, and
every element goes through as many additions as a balanced tree over the window has levels, or few more.
"""

# Triton's compiler knows no unpacking, and wants both branches of a compile-time choice to return.

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import each_lanes, rounded, widened
from .sums import blocks_further, constant_quotient, divisor_along, logarithmic_sums, quotient

_RUNTIME = [
    *("tasks", "programs", "groups", "group", "blocks", "width", "strips", "rows"),
    *("C", "H", "W", "TH", "TW", "sn", "sc", "sh", "sw"),
]


@triton.jit(do_not_specialize=_RUNTIME)
def sum_walk(
    source, target, scratch, tasks, programs, groups, group, blocks, width, strips, rows,
    C, H, W, TH, TW, sn, sc, sh, sw,
    WINDOW: tl.constexpr, START: tl.constexpr, END: tl.constexpr,
    ADJOINT: tl.constexpr, COUNT: tl.constexpr, DIVISOR: tl.constexpr,
    R: tl.constexpr, M: tl.constexpr, V: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Stride 1, no dilation, channels innermost in the target; ``WINDOW, START, END`` are those of rows and columns.

    A task is ``rows`` target rows (``rows + WINDOW[0] - 1`` is a multiple of M) by ``width`` columns (a multiple of R)
    by ``group`` vectors of V channels; ``strips`` by ``blocks`` by ``groups`` of them make a sample, and a program goes
    through many with a scratch of its own: two turns of ``M * width * group`` vectors, and the
    reciprocals of the divisors of its columns. Strides and C count vectors; sc is 1, or any stride where V is 1.
    """
    ACC: tl.constexpr = tl.float64 if source.dtype.element_ty == tl.float64 else tl.float32
    WEIGHED: tl.constexpr = ADJOINT and COUNT > 0  # divide what is read
    COUNTED: tl.constexpr = COUNT > 0 and not ADJOINT  # divide what is written, by counts
    # The adjoint adds up the windows that reach an element: those from this many before it on.
    ABOVE: tl.constexpr = WINDOW[0] - 1 - START[0] if ADJOINT else START[0]
    BEFORE: tl.constexpr = WINDOW[1] - 1 - START[1] if ADJOINT else START[1]
    program = tl.program_id(0)
    turn_size = M * width * group * V
    own = scratch + program.to(tl.int64) * (2 * turn_size)
    table = scratch + tl.cast(programs, tl.int64) * (2 * turn_size) + program * (B + WINDOW[1] - 1)
    within = tl.arange(0, V)[None, :]
    item = tl.arange(0, B)
    vector = item % group
    across = item // group  # the column of the walk
    segments = width // R
    segment = across % segments
    line = across // segments
    to_next = tl.cast(sw, tl.int64) * V
    zero = tl.zeros([B, V], ACC)
    for task in range(program, tasks, programs):
        first_channel = task % groups * group
        rest = task // groups
        first_column = rest % blocks * width
        rest = rest // blocks
        top = rest % strips * rows
        sample = (rest // strips).to(tl.int64)
        channel = first_channel + vector
        first = first_column + segment * R - BEFORE
        pointers = (source + sample * sn * V) + ((channel * sc + first * sw) * V)[:, None] + within
        base_target = target + sample * (TH * TW) * C * V
        # The columns inside, as bits: a test of one is cheaper than two comparisons.
        reading = (channel < C) & (line < R)
        column = first_column + across
        writing = (channel < C) & (across < width) & (column < TW)
        of_column = zero
        by_column = zero
        if COUNTED:
            counts = divisor_along(column, W, WINDOW[1], 1, START[1], END[1], 1, COUNT, ACC)
            of_column = tl.broadcast_to(counts[:, None], [B, V])
            by_column = tl.broadcast_to((1.0 / counts)[:, None], [B, V])
        if WEIGHED:
            # From memory: the compiler would keep as many reciprocals as a lane reads columns.
            for begin in tl.static_range(0, B + WINDOW[1] - 1, B):
                counts = divisor_along(
                    first_column - BEFORE + begin + item, TW, WINDOW[1], 1, START[1], END[1], 1, COUNT, ACC
                )
                tl.store(table + begin + item, 1.0 / counts, mask=begin + item < B + WINDOW[1] - 1)
            tl.debug_barrier()
        state = ()
        for _ in tl.static_range(WINDOW[0] - 1):
            state = state + (zero,)
        for turn in range(0, rows + (WINDOW[0] - 1), M):
            buffer = own + (turn // M % 2) * turn_size
            above = top + turn - ABOVE
            # R lines at a time, and none where all of them lie outside.
            for part in range(tl.maximum(-above, 0) // R, (tl.minimum(H - above, M) + (R - 1)) // R):
                own_line = part * R + line
                row = above + own_line
                # Without a sign what lies below 0 is beyond every width; of a row outside nothing lies within.
                end = tl.where(reading & (row >= 0) & (row < H), W, 0).to(tl.uint32)
                at = pointers + (row * sh * V)[:, None]
                columns = ()
                for c in tl.static_range(R + WINDOW[1] - 1):
                    mask = (first + c).to(tl.uint32) < end
                    values = widened(tl.load(at, mask=mask[:, None], other=0.0), ACC)
                    if WEIGHED:
                        values = values * tl.load(table + segment * R + c)[:, None]
                    columns = columns + (values,)
                    # By one addition: products, which do not change from turn to turn, would fill the registers.
                    at = at + to_next
                sums = logarithmic_sums(columns, WINDOW[1], R)
                of_row = zero
                if WEIGHED:
                    counts = divisor_along(row, TH, WINDOW[0], 1, START[0], END[0], 1, COUNT, ACC)
                    of_row = tl.broadcast_to((1.0 / counts)[:, None], [B, V])
                put = buffer + (((own_line * width + segment * R) * group + vector) * V)[:, None] + within
                for j in tl.static_range(R):
                    total = sums[j]
                    if WEIGHED:
                        total = total * of_row
                    tl.store(put + j * (group * V), total, mask=(line < R)[:, None])
            # The other buffer is not written before all have passed the next barrier: one for each turn will do.
            tl.debug_barrier()
            get = buffer + (item * V)[:, None] + within
            for k in tl.static_range(M):
                row = each_lanes(above + k, B)
                filled = (across < width) & (row >= 0) & (row < H)
                values = tl.load(get + k * (width * group * V), mask=filled[:, None], other=0.0)
                state, total = blocks_further(state, values, WINDOW[0])
                number = turn + k - (WINDOW[0] - 1)
                target_row = top + number
                if COUNTED:
                    counts = divisor_along(target_row, H, WINDOW[0], 1, START[0], END[0], 1, COUNT, ACC)
                    total = quotient(total, of_column * counts, by_column * (1.0 / counts))
                elif COUNT == 0:
                    total = constant_quotient(total, DIVISOR)
                live = writing & (each_lanes(number, B) >= 0) & (each_lanes(target_row, B) < TH)
                to = base_target + (((target_row * TW + column) * C + channel) * V)[:, None] + within
                tl.store(to, rounded(total, target.dtype.element_ty), mask=live[:, None])
        tl.debug_barrier()
