"""Max pooling with large windows at stride 1, as one kernel: along the rows into scratch, then down the columns.

Each program works through strips of rows. The maxima along a strip's rows go to the program's own scratch, which is
small enough to stay in the second-level cache, and from there the windows' other axis is reduced: DRAM sees the input
once (plus the rows that strips share) and the output once. Along both axes neighbouring windows share their common
core, so what a window costs hardly grows with it.
"""

# ruff: noqa: SIM108  (Triton compiles no unpacking)

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import join_columns, plane_offset, split_columns
from .max_pooling_rows import comparable, lowest, maximum

_RUNTIME = [
    *("strips", "programs", "C", "H", "W", "OH", "OW", "strips_per_plane", "rows"),
    *("xn", "xc", "xh", "yn", "yc", "yh"),
]


@triton.jit
def vector_at(base, column, inside, W, V: tl.constexpr, WIDEN: tl.constexpr):
    """Vector number ``column`` of a row; the lowest value where it is not inside."""
    FILL: tl.constexpr = lowest(base.dtype.element_ty)
    ok = inside & (column >= 0) & (column < W)
    at = (column * V)[:, None] + tl.arange(0, V)[None, :]
    return comparable(tl.load(base[:, None] + at, mask=ok[:, None], other=FILL), WIDEN, False)


@triton.jit
def row_of_maxima(
    base, chunk, inside, W, KW: tl.constexpr, PW: tl.constexpr, V: tl.constexpr, B: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """The V windows of chunk ``chunk`` of a row, as a tuple of columns; KW is at least 2 V."""
    LOW: tl.constexpr = (-PW) // V
    ORIGIN: tl.constexpr = -PW - LOW * V
    # Vectors BEGIN to END - 1 lie in every one of the V windows.
    BEGIN: tl.constexpr = (ORIGIN + 2 * V - 2) // V
    END: tl.constexpr = (ORIGIN + KW) // V
    LAST: tl.constexpr = (ORIGIN + V + KW - 2) // V
    first = chunk + LOW
    head = ()
    for c in tl.static_range(BEGIN):
        head = head + split_columns(vector_at(base, first + c, inside, W, V, WIDEN), B, V)
    shared = vector_at(base, first + BEGIN, inside, W, V, WIDEN)
    for c in range(BEGIN + 1, END):
        shared = maximum(shared, vector_at(base, first + c, inside, W, V, WIDEN))
    tail = ()
    for c in tl.static_range(END, LAST + 1):
        tail = tail + split_columns(vector_at(base, first + c, inside, W, V, WIDEN), B, V)
    columns = split_columns(shared, B, V)
    core = columns[0]
    for i in tl.static_range(1, V):
        core = maximum(core, columns[i])
    for i in tl.static_range(ORIGIN + V - 1, BEGIN * V):
        core = maximum(core, head[i])
    for i in tl.static_range(END * V, ORIGIN + KW):
        core = maximum(core, tail[i - END * V])
    m = head[ORIGIN + V - 2]
    before = (m,)
    for i in tl.static_range(1, V - 1):
        m = maximum(head[ORIGIN + V - 2 - i], m)
        before = (m,) + before
    results = ()
    for v in tl.static_range(V):
        if v > 0:
            core = maximum(core, tail[ORIGIN + KW - 1 + v - END * V])
        if v < V - 1:
            results = results + (maximum(before[v], core),)
        else:
            results = results + (core,)
    return results


@triton.jit
def scratch_row(base, row, rows, live, OW, V: tl.constexpr, WIDEN: tl.constexpr):
    """A vector ``row`` rows below; rows past the strip feed only outputs that are not stored."""
    FILL: tl.constexpr = lowest(base.dtype.element_ty)
    loaded = tl.load(base + row * OW * V, mask=(live & (row < rows))[:, None], other=FILL)
    return comparable(loaded, WIDEN, False)


@triton.jit(do_not_specialize=_RUNTIME)
def max_strips(
    x, y, scratch, strips, programs, C, H, W, OH, OW, strips_per_plane, rows, xn, xc, xh, yn, yc, yh,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, R: tl.constexpr, V: tl.constexpr,
    B: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """x, y: (N, C, H, W) and (N, C, OH, OW) with contiguous rows; W, OW and all strides count vectors of V.

    scratch: ``programs`` times ``rows + KH - 1`` rows of OW vectors. A lane owns R rows by V columns; KH is above R.
    """
    program = tl.program_id(0)
    scratch_rows = rows + KH - 1
    own = scratch + program.to(tl.int64) * scratch_rows * OW * V
    vector = tl.arange(0, V)[None, :]
    for strip in range(program, strips, programs):
        plane = strip // strips_per_plane
        first_row = strip % strips_per_plane * rows
        x0 = x + plane_offset(plane, C, xn, xc) * V
        y0 = y + plane_offset(plane, C, yn, yc) * V
        for start in range(0, scratch_rows * OW, B):
            item = start + tl.arange(0, B)
            row = first_row - PH + item // OW
            inside = (item < scratch_rows * OW) & (row >= 0) & (row < H)
            maxima = row_of_maxima(x0 + row * xh * V, item % OW, inside, W, KW, PW, V, B, WIDEN)
            joined = join_columns(maxima, 0, 1, B, V).to(scratch.dtype.element_ty)
            tl.store(own + (item * V)[:, None] + vector, joined, mask=(item < scratch_rows * OW)[:, None])
        # The columns read what other lanes of this program have written.
        tl.debug_barrier()
        items = (rows + R - 1) // R * OW
        for start in range(0, items, B):
            item = start + tl.arange(0, B)
            live = item < items
            group = item // OW
            chunk = item % OW
            base = own + ((group * R * OW + chunk) * V)[:, None] + vector
            below = scratch_rows - group * R
            m = scratch_row(base, R - 2, below, live, OW, V, WIDEN)
            before = (m,)
            for i in tl.static_range(1, R - 1):
                m = maximum(scratch_row(base, R - 2 - i, below, live, OW, V, WIDEN), m)
                before = (m,) + before
            core = scratch_row(base, R - 1, below, live, OW, V, WIDEN)
            for k in range(R, KH):
                core = maximum(core, scratch_row(base, k, below, live, OW, V, WIDEN))
            for j in tl.static_range(R):
                if j > 0:
                    core = maximum(core, scratch_row(base, KH - 1 + j, below, live, OW, V, WIDEN))
                m = core
                if j < R - 1:
                    m = maximum(before[j], core)
                in_strip = group * R + j
                oh = first_row + in_strip
                ok = live & (in_strip < rows) & (oh < OH)
                at = ((oh * yh + chunk) * V)[:, None] + vector
                tl.store(y0 + at, m.to(y.dtype.element_ty), mask=ok[:, None])
        # The next strip's rows overwrite what this one's columns have read.
        tl.debug_barrier()
