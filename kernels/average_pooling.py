"""Average pooling and its gradient on the GPU: fill with 0, combine by addition, finish by dividing.

Both directions are one thing: every target element is the sum of an arithmetic progression of source elements along
each axis. Forward the source is the input and the sum is divided at the end; for the adjoint the source is the incoming
gradient, divided as it is read. Sums are trees (blocks of 1, 2, 4, ... shared by neighbouring targets), so rounding
grows with the logarithm of the taps; past the unrolling bound groups of 8 are added up with compensation, axis by axis.
"""

# Triton's compiler knows no unpacking of tuples.

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import (
    counted_taps,
    first_covering,
    join_columns,
    lane_numbers,
    plane_offset,
    rounded,
    split_columns,
    taps_before,
    tile_of,
    widened,
)
from .sums import (
    completed_at,
    constant_quotient,
    divisor_along,
    no_levels,
    plan,
    quotient,
    sliding_sums,
    target_totals,
    with_entry,
    with_group,
    with_position,
)

COLUMNS = tl.constexpr(0)
"""A lane owns columns of a contiguous row: aligned vectors of V columns; for V = 1 any strides."""
CHANNELS = tl.constexpr(1)
"""A lane owns a vector of V neighbouring channels at several columns; for V = 1 any strides."""

CONSTANT = tl.constexpr(0)
"""Every window has the same divisor."""
INSIDE = tl.constexpr(1)
"""The divisor counts taps inside the input."""
PADDED = tl.constexpr(2)
"""The divisor counts taps inside the padded input: the overhang of ceil_mode is not there."""


@triton.jit
def scaled(values, factor, N: tl.constexpr):
    """A tuple, each entry multiplied."""
    products = ()
    for i in tl.static_range(N):
        products = products + (values[i] * factor,)
    return products


@triton.jit
def column_sums(
    values, weights, zero, WEIGHED: tl.constexpr, COLS: tl.constexpr, LAYOUT: tl.constexpr, N: tl.constexpr,
    B: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """One sum per target column over one row, given as ``N`` chunks of V columns or vectors of channels."""
    columns = ()
    for c in tl.static_range(N):
        if LAYOUT == COLUMNS:
            split = split_columns(values[c], B, V)
            for v in tl.static_range(V):
                columns = columns + ((split[v] * weights[c * V + v] if WEIGHED else split[v]),)
        else:
            columns = columns + ((values[c] * weights[c] if WEIGHED else values[c]),)
    return sliding_sums(columns, tl.zeros_like(columns[0]), COLS)


@triton.jit
def store_row(
    base, totals, column, row, depth, channel, live, C, TD, TH, TW, counted, divisors,
    RANK: tl.constexpr, LAYOUT: tl.constexpr, COUNTED: tl.constexpr, COUNT: tl.constexpr, DIVISOR: tl.constexpr,
    TYPE: tl.constexpr, T: tl.constexpr, V: tl.constexpr, STORE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Divide the totals of one target row of a tile, round them once and write them."""
    if RANK >= 2:
        live = live & (row < TH)
    if RANK == 3:
        live = live & (depth < TD)
    mask = live[:, None]
    finished = ()
    for i in tl.static_range(T):
        total = totals[i]
        if COUNTED:
            divisor = counted[0] * divisors[i][0]
            reciprocal = counted[1] * divisors[i][1]
            if LAYOUT == CHANNELS:
                divisor = tl.broadcast_to(divisor[:, None], [B, V])
                reciprocal = tl.broadcast_to(reciprocal[:, None], [B, V])
            total = quotient(total, divisor, reciprocal)
        elif COUNT == 0:
            total = constant_quotient(total, DIVISOR)
        finished = finished + (rounded(total, TYPE),)
    line = depth * TH + row
    if LAYOUT == COLUMNS:
        piece = column * (T // STORE)
        pointers = (base + (line * TW + piece) * STORE)[:, None] + tl.arange(0, STORE)[None, :]
        for p in tl.static_range(T // STORE):
            values = join_columns(finished, p * STORE, 1, B, STORE)
            tl.store(pointers + p * STORE, values, mask=mask & (piece + p < TW)[:, None])
    else:
        first = column * T
        pointers = (base + ((line * TW + first) * C + channel) * V)[:, None] + tl.arange(0, V)[None, :]
        for i in tl.static_range(T):
            tl.store(pointers + i * (C * V), finished[i], mask=mask & (first + i < TW)[:, None])


_TILE_RUNTIME = [
    *("lanes", "C", "D", "H", "W", "sn", "sc", "sd", "sh", "sw", "TD", "TH", "TW"),
    *("column_tiles", "row_tiles", "depth_tiles"),
]


@triton.jit(do_not_specialize=_TILE_RUNTIME)
def sum_tile(
    source, target, lanes, C, D, H, W, sn, sc, sd, sh, sw, TD, TH, TW, column_tiles, row_tiles, depth_tiles,
    WINDOW: tl.constexpr, STRIDE: tl.constexpr, START: tl.constexpr, END: tl.constexpr, DILATION: tl.constexpr,
    RANK: tl.constexpr, LAYOUT: tl.constexpr, ADJOINT: tl.constexpr, COUNT: tl.constexpr, DIVISOR: tl.constexpr,
    TILE: tl.constexpr, V: tl.constexpr, STORE: tl.constexpr, B: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Every window unrolled: a lane adds up a tile of targets from the source rows they share.

    source: ``D, H, W`` spatial sizes and five strides. target: ``TD, TH, TW`` spatial sizes, dense, channels innermost
    for CHANNELS. In vectors of ``V`` elements are counted: all strides, and for COLUMNS ``W``, for CHANNELS ``C``; only
    ``V = 1`` reads the stride of the vectorised dimension. For COLUMNS ``TW`` counts vectors of ``STORE`` elements.
    ``TILE``: depths, rows and columns of source (ADJOINT) or target elements per lane.
    """
    ACC: tl.constexpr = tl.float64 if source.dtype.element_ty == tl.float64 else tl.float32
    CHUNK: tl.constexpr = V if LAYOUT == COLUMNS else 1  # source columns per load
    DEPTHS: tl.constexpr = plan(WINDOW[0], STRIDE[0], START[0], DILATION[0], ADJOINT, TILE[0], 1)
    ROWS: tl.constexpr = plan(WINDOW[1], STRIDE[1], START[1], DILATION[1], ADJOINT, TILE[1], 1)
    COLS: tl.constexpr = plan(WINDOW[2], STRIDE[2], START[2], DILATION[2], ADJOINT, TILE[2], CHUNK)
    N_DEPTHS: tl.constexpr = DEPTHS[3]
    N_ROWS: tl.constexpr = ROWS[3]
    N_CHUNKS: tl.constexpr = COLS[3] // CHUNK
    T_DEPTHS: tl.constexpr = DEPTHS[1]
    T_ROWS: tl.constexpr = ROWS[1]
    T_COLS: tl.constexpr = COLS[1]
    # Vectors of columns are added up downwards before they are split; vectors of channels need no splitting.
    HELD: tl.constexpr = N_CHUNKS if LAYOUT == COLUMNS else T_COLS
    WEIGHED: tl.constexpr = ADJOINT and COUNT > 0  # divide what is read
    COUNTED: tl.constexpr = COUNT > 0 and not ADJOINT  # divide what is written, by counts

    lane = lane_numbers(B, WIDE)
    live = lane < lanes
    within = tl.arange(0, V)[None, :]
    if LAYOUT == COLUMNS:
        column, row, depth, plane = tile_of(lane, column_tiles, row_tiles, depth_tiles, RANK)
        base = source + plane_offset(plane, C, sn, sc) * V
        base_target = target + plane.to(tl.int64) * (TD * TH * TW) * STORE
        channel = tl.zeros_like(lane)
    else:
        channel = lane % C
        column, row, depth, plane = tile_of(lane // C, column_tiles, row_tiles, depth_tiles, RANK)
        base = source + plane.to(tl.int64) * sn * V
        base_target = target + plane.to(tl.int64) * (TD * TH * TW) * C * V
    zero = tl.zeros([B, V], ACC)
    first_chunk = column * (COLS[0] // CHUNK) + COLS[2] // CHUNK
    first_row = row * ROWS[0] + ROWS[2]
    first_depth = depth * DEPTHS[0] + DEPTHS[2]
    if LAYOUT == COLUMNS and V > 1:
        opening = first_chunk
        apart = V
    else:
        opening = first_chunk * sw + (channel * sc if V == 1 else channel)
        apart = sw * V

    chunks_live = ()
    for c in tl.static_range(N_CHUNKS):
        chunks_live = chunks_live + (((first_chunk + c >= 0) & (first_chunk + c < W))[:, None],)
    weights = ()  # reciprocals of the divisors of the source columns
    if WEIGHED:
        for i in tl.static_range(N_CHUNKS * CHUNK):
            counted = divisor_along(
                first_chunk * CHUNK + i, TW * STORE, WINDOW[2], STRIDE[2], START[2], END[2], DILATION[2], COUNT, ACC
            )
            weights = weights + ((1.0 / counted if LAYOUT == COLUMNS else (1.0 / counted)[:, None]),)
    divisors = ()  # taps counted along the target columns, and their reciprocals
    if COUNTED:
        for i in tl.static_range(T_COLS):
            counted = divisor_along(
                column * T_COLS + i, W * CHUNK, WINDOW[2], STRIDE[2], START[2], END[2], DILATION[2], COUNT, ACC
            )
            divisors = divisors + ((counted, 1.0 / counted),)

    planes = ()  # blocks of depths, for each target row
    for _ in tl.static_range(T_ROWS):
        planes = planes + (no_levels(DEPTHS),)
    for d in tl.static_range(N_DEPTHS):
        depth_live = live
        if RANK == 3:
            depth_live = live & (first_depth + d >= 0) & (first_depth + d < D)
        rows = no_levels(ROWS)
        for r in tl.static_range(N_ROWS):
            row_live = depth_live
            if RANK >= 2:
                row_live = depth_live & (first_row + r >= 0) & (first_row + r < H)
            row_live = row_live[:, None]
            line = (first_depth + d) * sd + (first_row + r) * sh + opening
            pointers = (base + line * V)[:, None] + within
            values = ()
            for c in tl.static_range(N_CHUNKS):
                if DEPTHS[8][d] and ROWS[8][r] and COLS[8][c]:
                    loaded = tl.load(pointers + c * apart, mask=row_live & chunks_live[c], other=0.0)
                    values = values + (widened(loaded, ACC),)
                else:
                    values = values + (zero,)
            if LAYOUT == CHANNELS:
                values = column_sums(values, weights, zero, WEIGHED, COLS, LAYOUT, N_CHUNKS, B, V)
            if WEIGHED:
                counted = divisor_along(
                    first_row + r, TH, WINDOW[1], STRIDE[1], START[1], END[1], DILATION[1], COUNT, ACC
                ) * divisor_along(first_depth + d, TD, WINDOW[0], STRIDE[0], START[0], END[0], DILATION[0], COUNT, ACC)
                values = scaled(values, (1.0 / counted)[:, None], HELD)
            rows = with_position(rows, values, ROWS, r, HELD)
            for j in tl.static_range(T_ROWS):
                if completed_at(ROWS, j) == r:
                    own_planes = with_position(planes[j], target_totals(rows, zero, ROWS, j, HELD), DEPTHS, d, HELD)
                    planes = with_entry(planes, j, own_planes, T_ROWS)
                    for e in tl.static_range(T_DEPTHS):
                        if completed_at(DEPTHS, e) == d:
                            totals = target_totals(own_planes, zero, DEPTHS, e, HELD)
                            if LAYOUT == COLUMNS:
                                totals = column_sums(totals, weights, zero, WEIGHED, COLS, LAYOUT, N_CHUNKS, B, V)
                            target_row = row * T_ROWS + j
                            target_depth = depth * T_DEPTHS + e
                            counts = (zero, zero)
                            if COUNTED:
                                counted = divisor_along(
                                    target_row, H, WINDOW[1], STRIDE[1], START[1], END[1], DILATION[1], COUNT, ACC
                                ) * divisor_along(
                                    target_depth, D, WINDOW[0], STRIDE[0], START[0], END[0], DILATION[0], COUNT, ACC
                                )
                                counts = (counted, 1.0 / counted)
                            store_row(
                                base_target, totals,
                                column, target_row, target_depth, channel, live, C, TD, TH, TW, counts, divisors,
                                RANK, LAYOUT, COUNTED, COUNT, DIVISOR, target.dtype.element_ty, T_COLS, V, STORE, B,
                            )  # fmt: skip


_AXIS_RUNTIME = [
    *("lanes", "T1", "T2", "T3", "T4", "s0", "s1", "s2", "s3", "s4", "source_size", "target_size"),
    *("K", "S", "P", "E", "D", "G", "INVERSE", "bound"),
]


@triton.jit(do_not_specialize=_AXIS_RUNTIME)
def sum_axis(
    source, target, lanes, T1, T2, T3, T4, s0, s1, s2, s3, s4, source_size, target_size,
    K, S, P, E, D, G, INVERSE, bound,
    AXIS: tl.constexpr, ADJOINT: tl.constexpr, COUNT: tl.constexpr, DIVISOR: tl.constexpr,
    B: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One axis of a window of any size, as a run-time loop over the taps inside: a lane adds up one target element.

    target: dense, its five dimensions in memory order (``T1 .. T4`` are the inner four sizes); source: the same order,
    any strides; the two differ along dimension ``AXIS`` alone. ``bound``: the most taps that can lie inside. ``COUNT``
    divides by the taps counted along this axis, otherwise the sum is divided by ``DIVISOR``.
    """
    ACC: tl.constexpr = tl.float64 if source.dtype.element_ty == tl.float64 else tl.float32
    GROUP: tl.constexpr = 8
    lane = lane_numbers(B, WIDE)
    live = lane < lanes
    i4 = lane % T4
    rest = lane // T4
    i3 = rest % T3
    rest = rest // T3
    i2 = rest % T2
    rest = rest // T2
    i1 = rest % T1
    i0 = rest // T1
    position = (i0, i1, i2, i3, i4)[AXIS]
    base = source
    for i in tl.static_range(5):
        if i != AXIS:
            base = base + (i0, i1, i2, i3, i4)[i].to(tl.int64) * (s0, s1, s2, s3, s4)[i]
    stride = (s0, s1, s2, s3, s4)[AXIS]
    if ADJOINT:
        tap, output, exists = first_covering(position + P, S, D, G, INVERSE)
        step = -(D // G)
        skipped = tl.maximum(output - source_size + (D // G), 0) // (D // G)  # windows past the last
        first = output + skipped * step
        left = (K - tap + S // G - 1) // (S // G) - skipped
        live = live & exists
    else:
        opening = position * S - P
        skipped = taps_before(opening, 0, K, D)
        step = D
        first = opening + skipped * D
        left = K - skipped

    total = tl.zeros([B], ACC)
    error = tl.zeros([B], ACC)
    for m in range(0, bound, GROUP):
        terms = ()
        for i in tl.static_range(GROUP):
            place = first + (m + i) * step
            mask = live & (m + i < left) & (place >= 0) & (place < source_size)
            term = widened(tl.load(base + place * stride, mask=mask, other=0.0), ACC)
            if ADJOINT and COUNT > 0:
                term = term / tl.maximum(counted_taps(place * S - P, target_size, E, K, D, COUNT == 2), 1).to(ACC)
            terms = terms + (term,)
        total, error = with_group(total, error, terms)
    mended = total + error
    total = tl.where(mended == mended, mended, total)  # the error of an infinite sum is NaN
    if COUNT == 0:
        total = constant_quotient(total, DIVISOR)
    elif not ADJOINT:
        counted = tl.maximum(counted_taps(opening, source_size, E, K, D, COUNT == 2), 1).to(ACC)
        total = quotient(total, counted, 1.0 / counted)
    tl.store(target + lane, rounded(total, target.dtype.element_ty), mask=lane < lanes)
