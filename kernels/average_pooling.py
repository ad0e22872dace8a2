"""Average pooling and its gradient on the GPU: fill with 0, combine by addition, finish by dividing.

Both directions are one thing: every target element is the sum of an arithmetic progression of source elements along
each axis. Forward the source is the input and the sum is divided at the end; for the adjoint the source is the incoming
gradient, divided as it is read. ``sum_tile`` unrolls a window and adds up trees, whose roundings grow with the
logarithm of the taps; ``sum_axis`` adds up one axis of a window or bin of any size in a loop, with compensation.
"""

# Triton's compiler has no unpacking of tuples.

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
    ADVANCE,
    LENGTH,
    LOW,
    TARGETS,
    USED,
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
"""LAYOUT: a lane owns columns of a contiguous row: aligned vectors of V columns; for V = 1 any strides."""
CHANNELS = tl.constexpr(1)
"""LAYOUT: a lane owns a vector of V neighbouring channels at several columns; for V = 1 any strides."""
CONSTANT = tl.constexpr(0)
"""COUNT: every window has the same divisor; 1: the divisor counts taps inside the input; 2: inside the padded input."""


@triton.jit
def places_of_lane(
    lane, C, sn, sc, TD, TH, TW, column_tiles, row_tiles, depth_tiles, RANK: tl.constexpr, LAYOUT: tl.constexpr
):
    """``channel, column, row, depth`` of a lane's tile; the vectors before its plane or sample in source and target.

    The counts of vectors are 64-bit from the first factor on: a plane may have more than 2**31 elements.
    """
    if LAYOUT == COLUMNS:
        column, row, depth, plane = tile_of(lane, column_tiles, row_tiles, depth_tiles, RANK)
        return plane % C, column, row, depth, plane_offset(plane, C, sn, sc), plane.to(tl.int64) * TD * TH * TW
    else:
        column, row, depth, sample = tile_of(lane // C, column_tiles, row_tiles, depth_tiles, RANK)
        return lane % C, column, row, depth, sample.to(tl.int64) * sn, sample.to(tl.int64) * TD * TH * TW * C


@triton.jit
def first_vector(first_chunk, channel, sc, sw, LAYOUT: tl.constexpr, V: tl.constexpr):
    """The vectors before a lane's first one in its row, and from one of its vectors to the next."""
    if LAYOUT == COLUMNS:
        return (first_chunk, 1) if V > 1 else (first_chunk * sw, sw)
    else:
        return first_chunk * sw + (channel * sc if V == 1 else channel), sw


@triton.jit
def row_sums(
    chunks, weights, row_weight, WEIGHED: tl.constexpr, COLS: tl.constexpr, LAYOUT: tl.constexpr, N: tl.constexpr,
    B: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """One sum per target column over one source row, given as ``N`` chunks of V columns or vectors of channels."""
    columns = ()
    for c in tl.static_range(N):
        if LAYOUT == COLUMNS:
            split = split_columns(chunks[c], B, V)
            for v in tl.static_range(V):
                columns = columns + ((split[v] * weights[c * V + v] if WEIGHED else split[v]),)
        else:
            columns = columns + ((chunks[c] * weights[c][:, None] if WEIGHED else chunks[c]),)
    T: tl.constexpr = COLS[TARGETS]
    sums = sliding_sums(columns, tl.zeros_like(columns[0]), COLS)
    if WEIGHED:
        weighed = ()
        for j in tl.static_range(T):
            weighed = weighed + (sums[j] * (row_weight if LAYOUT == COLUMNS else row_weight[:, None]),)
        return weighed
    else:
        return sums


@triton.jit
def store_row(
    base, totals, column, line, channel, live, C, TW, counted, divisors,
    LAYOUT: tl.constexpr, COUNTED: tl.constexpr, COUNT: tl.constexpr, DIVISOR: tl.constexpr, TYPE: tl.constexpr,
    T: tl.constexpr, V: tl.constexpr, STORE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Divide the totals of one target row of a tile, round them once and write them."""
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
        elif COUNT == CONSTANT:
            total = constant_quotient(total, DIVISOR)
        finished = finished + (rounded(total, TYPE),)
    if LAYOUT == COLUMNS:
        piece = column * (T // STORE)
        pointers = (base + (line * TW + piece) * STORE)[:, None] + tl.arange(0, STORE)[None, :]
        for p in tl.static_range(T // STORE):
            values = join_columns(finished, p * STORE, 1, B, STORE)
            tl.store(pointers + p * STORE, values, mask=(live & (piece + p < TW))[:, None])
    else:
        first = column * T
        pointers = (base + ((line * TW + first) * C + channel) * V)[:, None] + tl.arange(0, V)[None, :]
        for i in tl.static_range(T):
            tl.store(pointers + i * (C * V), finished[i], mask=(live & (first + i < TW))[:, None])


_TILE_RUNTIME = [
    *("lanes", "C", "D", "H", "W", "sn", "sc", "sd", "sh", "sw", "TD", "TH", "TW"),
    *("column_tiles", "row_tiles", "depth_tiles"),
]


@triton.jit(do_not_specialize=_TILE_RUNTIME)
def sum_tile(
    source, target, lanes, C, D, H, W, sn, sc, sd, sh, sw, TD, TH, TW, column_tiles, row_tiles, depth_tiles,
    WINDOW: tl.constexpr, STRIDE: tl.constexpr, START: tl.constexpr, END: tl.constexpr, DILATION: tl.constexpr,
    RANK: tl.constexpr, LAYOUT: tl.constexpr, ADJOINT: tl.constexpr, COUNT: tl.constexpr, DIVISOR: tl.constexpr,
    TILE: tl.constexpr, V: tl.constexpr, STORE: tl.constexpr, WIDE: tl.constexpr, B: tl.constexpr,
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
    N_DEPTHS: tl.constexpr = DEPTHS[LENGTH]
    N_ROWS: tl.constexpr = ROWS[LENGTH]
    N_CHUNKS: tl.constexpr = COLS[LENGTH] // CHUNK
    T_DEPTHS: tl.constexpr = DEPTHS[TARGETS]
    T_ROWS: tl.constexpr = ROWS[TARGETS]
    T: tl.constexpr = COLS[TARGETS]
    WEIGHED: tl.constexpr = ADJOINT and COUNT != CONSTANT  # divide what is read
    COUNTED: tl.constexpr = COUNT != CONSTANT and not ADJOINT  # divide what is written, by counts

    lane = lane_numbers(B, WIDE)
    live = lane < lanes
    channel, column, row, depth, plane, target_plane = places_of_lane(
        lane, C, sn, sc, TD, TH, TW, column_tiles, row_tiles, depth_tiles, RANK, LAYOUT
    )
    base = source + plane * V
    base_target = target + target_plane * (STORE if LAYOUT == COLUMNS else V)
    zero = tl.zeros([B, V], ACC)
    nothing = tl.zeros([B], ACC)
    first_chunk = column * (COLS[ADVANCE] // CHUNK) + COLS[LOW] // CHUNK
    first_row = row * ROWS[ADVANCE] + ROWS[LOW]
    first_depth = depth * DEPTHS[ADVANCE] + DEPTHS[LOW]
    opening, apart = first_vector(first_chunk, channel, sc, sw, LAYOUT, V)

    chunks_live = ()
    for c in tl.static_range(N_CHUNKS):
        chunks_live = chunks_live + (((first_chunk + c >= 0) & (first_chunk + c < W))[:, None],)
    weights = ()  # reciprocals of the divisors of the source columns
    if WEIGHED:
        for i in tl.static_range(N_CHUNKS * CHUNK):
            counted = divisor_along(
                first_chunk * CHUNK + i, TW * STORE, WINDOW[2], STRIDE[2], START[2], END[2], DILATION[2], COUNT, ACC
            )
            weights = weights + (1.0 / counted,)
    divisors = ()  # taps counted along the target columns, and their reciprocals
    if COUNTED:
        for i in tl.static_range(T):
            counted = divisor_along(
                column * T + i, W * CHUNK, WINDOW[2], STRIDE[2], START[2], END[2], DILATION[2], COUNT, ACC
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
            line = (first_depth + d) * sd + (first_row + r) * sh + opening
            pointers = (base + line * V)[:, None] + tl.arange(0, V)[None, :]
            chunks = ()
            for c in tl.static_range(N_CHUNKS):
                if DEPTHS[USED][d] and ROWS[USED][r] and COLS[USED][c]:
                    loaded = tl.load(pointers + c * (apart * V), mask=row_live[:, None] & chunks_live[c], other=0.0)
                    chunks = chunks + (widened(loaded, ACC),)
                else:
                    chunks = chunks + (zero,)
            row_weight = nothing
            if WEIGHED:
                counted = divisor_along(
                    first_row + r, TH, WINDOW[1], STRIDE[1], START[1], END[1], DILATION[1], COUNT, ACC
                ) * divisor_along(first_depth + d, TD, WINDOW[0], STRIDE[0], START[0], END[0], DILATION[0], COUNT, ACC)
                row_weight = 1.0 / counted
            sums = row_sums(chunks, weights, row_weight, WEIGHED, COLS, LAYOUT, N_CHUNKS, B, V)
            rows = with_position(rows, sums, ROWS, r, T)
            empty = tl.zeros_like(sums[0])
            for j in tl.static_range(T_ROWS):
                if completed_at(ROWS, j) == r:
                    own_planes = with_position(planes[j], target_totals(rows, empty, ROWS, j, T), DEPTHS, d, T)
                    planes = with_entry(planes, j, own_planes, T_ROWS)
                    for e in tl.static_range(T_DEPTHS):
                        if completed_at(DEPTHS, e) == d:
                            target_row = row * T_ROWS + j
                            target_depth = depth * T_DEPTHS + e
                            target_live = live
                            if RANK >= 2:
                                target_live = target_live & (target_row < TH)
                            if RANK == 3:
                                target_live = target_live & (target_depth < TD)
                            counts = (nothing, nothing)
                            if COUNTED:
                                counted = divisor_along(
                                    target_row, H, WINDOW[1], STRIDE[1], START[1], END[1], DILATION[1], COUNT, ACC
                                ) * divisor_along(
                                    target_depth, D, WINDOW[0], STRIDE[0], START[0], END[0], DILATION[0], COUNT, ACC
                                )
                                counts = (counted, 1.0 / counted)
                            store_row(
                                base_target, target_totals(own_planes, empty, DEPTHS, e, T),
                                column, target_depth * TH + target_row, channel, target_live, C, TW, counts, divisors,
                                LAYOUT, COUNTED, COUNT, DIVISOR, target.dtype.element_ty, T, V, STORE, B,
                            )  # fmt: skip


@triton.jit
def coordinates_of(lane, T1, T2, T3, T4):
    """A dense five-dimensional tensor's five coordinates of an element; ``T1 .. T4`` are the inner four sizes."""
    rest = lane // T4
    outer = rest // T3 // T2
    return outer // T1, outer % T1, rest // T3 % T2, rest % T3, lane % T4


@triton.jit
def bin_start(number, size, bins):
    """First element of a bin; the bins that hold element ``x`` are bin ``x`` of as many bins as there are elements."""
    return number * size // bins


@triton.jit
def bin_stop(number, size, bins):
    """The element after a bin's last."""
    return ((number + 1) * size + bins - 1) // bins


@triton.jit
def divisor_of(number, size, windows, K, S, P, E, D, COUNT: tl.constexpr, BINS: tl.constexpr, ACC: tl.constexpr):
    """The divisor of a window, or bin, along one axis."""
    if BINS:
        return (bin_stop(number, size, windows) - bin_start(number, size, windows)).to(ACC)
    else:
        return tl.maximum(counted_taps(number * S - P, size, E, K, D, COUNT == 2), 1).to(ACC)


_AXIS_RUNTIME = [
    *("lanes", "T1", "T2", "T3", "T4", "s0", "s1", "s2", "s3", "s4", "source_size", "target_size"),
    *("K", "S", "P", "E", "D", "G", "INVERSE", "bound"),
]


@triton.jit(do_not_specialize=_AXIS_RUNTIME)
def sum_axis(
    source, target, lanes, T1, T2, T3, T4, s0, s1, s2, s3, s4, source_size, target_size,
    K, S, P, E, D, G, INVERSE, bound,
    AXIS: tl.constexpr, ADJOINT: tl.constexpr, BINS: tl.constexpr, COUNT: tl.constexpr, DIVISOR: tl.constexpr,
    WIDE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """One axis of windows or BINS of any size, in a loop over the elements inside: a lane adds up one target element.

    target: dense, its five dimensions in memory order (``T1 .. T4`` are the inner four sizes); source: the same order,
    any strides; the two differ along dimension ``AXIS`` alone. ``bound``: the most elements that one target adds up.
    The sum is divided by ``DIVISOR`` (COUNT 0), or by the window's own along this axis; integers are not divided.
    """
    FLOATING: tl.constexpr = source.dtype.element_ty.is_floating()
    WIDEST: tl.constexpr = tl.float64 if source.dtype.element_ty == tl.float64 else tl.float32
    ACC: tl.constexpr = WIDEST if FLOATING else target.dtype.element_ty
    lane = lane_numbers(B, WIDE)
    live = lane < lanes
    entry = coordinates_of(lane, T1, T2, T3, T4)
    strides = (s0, s1, s2, s3, s4)
    base = source
    for i in tl.static_range(5):
        if i != AXIS:
            base = base + entry[i].to(tl.int64) * strides[i]
    position = entry[AXIS]
    if BINS:
        first = bin_start(position, source_size, target_size)
        left = bin_stop(position, source_size, target_size) - first
        step = 1
    elif ADJOINT:
        tap, output, exists = first_covering(position + P, S, D, G, INVERSE)
        step = -(D // G)
        skipped = tl.maximum(output - source_size + (D // G), 0) // (D // G)  # windows past the last
        first = output + skipped * step
        left = tl.where(exists, (K - tap + S // G - 1) // (S // G) - skipped, 0)
    else:
        skipped = taps_before(position * S - P, 0, K, D)
        step = D
        first = position * S - P + skipped * D
        left = K - skipped

    total = tl.zeros([B], ACC)
    error = tl.zeros([B], ACC)
    for m in range(0, bound, 8):
        terms = ()
        for i in tl.static_range(8):
            place = first + (m + i) * step
            inside = live & (m + i < left) & (place >= 0) & (place < source_size)
            term = widened(tl.load(base + place * strides[AXIS], mask=inside, other=0), ACC)
            if ADJOINT and COUNT != CONSTANT:
                own = divisor_of(place, target_size, source_size, K, S, P, E, D, COUNT, BINS, ACC)
                term = quotient(term, own, 1.0 / own)
            terms = terms + (term,)
        if FLOATING:
            total, error = with_group(total, error, terms)
        else:
            for i in tl.static_range(8):
                total += terms[i]
    if FLOATING:
        compensated = total + error
        total = tl.where(compensated == compensated, compensated, total)  # the error of an infinite sum is NaN
        if COUNT == CONSTANT:
            total = constant_quotient(total, DIVISOR)
        elif not ADJOINT:
            own = divisor_of(position, source_size, target_size, K, S, P, E, D, COUNT, BINS, ACC)
            total = quotient(total, own, 1.0 / own)
    tl.store(target + lane, rounded(total, target.dtype.element_ty), mask=live)
