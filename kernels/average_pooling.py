"""Average pooling and its gradient on the GPU: fill with 0, combine by addition, finish by
dividing.

Along each axis every target element is the sum of source elements at equal steps. Forward the
source is the input, and the sum is divided at the end. For the adjoint the source is the incoming
gradient, which is divided as it is read.
"""

import triton
import triton.language as tl

from . import addressing, requantization, sums
from .addressing import LANES

CONSTANT = tl.constexpr(0)
"""``MODE.count``: every window has the same divisor (see ``launch.Mode``)."""
KEPT = tl.constexpr(4)
PADDED = tl.constexpr(5)
"""Windows are divided by how many elements the mask keeps, or how many of these and the padding."""


@triton.constexpr_function
def held_as(source, vector):
    """``(accumulator, words)``: a vector of ``source`` elements is loaded as ``words`` numbers and
    added up in the type ``accumulator``. For quantized vectors of 4 or more elements, a loaded
    number holds four elements and an added one two sums.
    """
    if source.primitive_bitwidth == 8:
        return (tl.uint32, vector // 4) if vector >= 4 else (tl.int32, vector)
    return tl.float64 if source == tl.float64 else tl.float32, vector


@triton.jit
def loaded_row(base, row, mask, width, fill, N, SOURCE, FORM):
    """Loads N chunks of a source row in the form in which they are added up. A chunk is a vector of
    columns, or a column's vector of channels. Those that do not exist are ``fill``.
    """
    ACC: tl.constexpr = held_as(SOURCE, FORM.vector)[0]
    WORDS: tl.constexpr = held_as(SOURCE, FORM.vector)[1]
    loaded = addressing.load_vectors(base, row, mask, width, N, fill, ACC, WORDS)
    if SOURCE.primitive_bitwidth == 8:
        values = ()
        for c in tl.static_range(N):
            values = values + (
                requantization.fields(loaded[c], SOURCE.is_int_signed(), FORM.vector),
            )
        return values
    else:
        return loaded


@triton.jit
def row_sums(chunks, there, weights, row_weight, IS_WEIGHED, COLS, N, FORM):
    """One sum per target column over one source row of N chunks. With IS_WEIGHED each column is
    multiplied by its weight first, the reciprocal of its divisor. Where ``there`` has a mask, the
    elements that each sum has are counted after all sums.
    """
    columns = addressing.columns_of(chunks, N, FORM)
    own = ()
    ones = ()
    POSITIONS: tl.constexpr = COLS.length
    for i in tl.static_range(POSITIONS):
        column = columns[i]
        if IS_WEIGHED:
            column *= addressing.as_block(weights[i][1] * row_weight, FORM)
        if len(there) > 0:
            ones = ones + (tl.where(there[i] != 0, 1, 0).to(column.dtype),)
            column = tl.where(there[i] != 0, column, 0)
        own = own + (column,)
    if len(there) > 0:
        return sums.sliding_sums(own, COLS) + sums.sliding_sums(ones, COLS)
    else:
        return sums.sliding_sums(own, COLS)


@triton.jit
def quotients(totals, row, divisors, there, T, FORM, MODE):
    """The totals of one target row of a tile, divided, and 0 where ``there``, the mask of an
    adjoint's targets, is. ``row`` and ``divisors`` have the counts along rows and depths and along
    columns, each with its reciprocal.
    """
    finished = ()
    for i in tl.static_range(T):
        total = totals[i]
        if MODE.count >= KEPT:
            own = tl.maximum(totals[T + i], 1)
            total = sums.quotient(total, own, 1.0 / own)
        elif MODE.count == CONSTANT:
            total = sums.quotient(total, MODE.divisor * 1.0, 1.0 / MODE.divisor)
        elif not MODE.adjoint:
            divisor = addressing.as_block(row[0] * divisors[i][0], FORM)
            reciprocal = addressing.as_block(row[1] * divisors[i][1], FORM)
            total = sums.quotient(total, divisor, reciprocal)
        if len(there) > 0:
            total = tl.where(there[i] != 0, total, 0)
        finished = finished + (total,)
    return finished


@triton.jit
def divisors_along(first, size, COUNT, COLUMN, TYPE, MODE):
    """Divisors of COUNT columns from ``first`` on, and their reciprocals."""
    result = ()
    for i in tl.static_range(COUNT):
        counted = sums.divisor_along(first + i, size, COLUMN, MODE.count, TYPE)
        result = result + ((counted, 1.0 / counted),)
    return result


@addressing.launched
def sum_tile(
    source, mask, target, x_scale, x_zero, y_scale, y_zero, sizes, DEPTH, ROW, COLUMN, FORM, MODE
):
    """Every window unrolled: a lane computes a tile of targets from the source rows they share.

    source: ``D, H, W`` spatial sizes and five strides. target: ``TD, TH, TW`` spatial sizes, dense.
    ``FORM.tile`` counts targets, or for an adjoint source elements. Which sizes and strides count
    vectors says ``launch.tile_launch``. Elements of 8 bits are quantized, and windows of these have
    at most 128 taps. For other elements scales and zero points are not read. ``mask``: see
    ``max_pooling.max_tile``; for an adjoint it is that of the targets.
    """
    SOURCE: tl.constexpr = source.dtype.element_ty
    QUANTIZED: tl.constexpr = SOURCE.primitive_bitwidth == 8
    DIVISORS: tl.constexpr = tl.float64 if QUANTIZED else held_as(SOURCE, 1)[0]
    CHUNK: tl.constexpr = 1 if FORM.channels else FORM.vector  # source columns per load
    DEPTHS: tl.constexpr = sums.plan(DEPTH, MODE.adjoint, FORM.tile[0], 1)
    ROWS: tl.constexpr = sums.plan(ROW, MODE.adjoint, FORM.tile[1], 1)
    COLS: tl.constexpr = sums.plan(COLUMN, MODE.adjoint, FORM.tile[2], CHUNK)
    N: tl.constexpr = COLS.length // CHUNK
    T: tl.constexpr = COLS.targets
    T_ROWS: tl.constexpr = ROWS.targets
    T_DEPTHS: tl.constexpr = DEPTHS.targets
    N_ROWS: tl.constexpr = ROWS.length
    N_DEPTHS: tl.constexpr = DEPTHS.length
    IS_WEIGHED: tl.constexpr = MODE.adjoint and MODE.count != CONSTANT  # divide what is read
    # Divide what is written by counts of taps, which differ between windows.
    IS_COUNTED: tl.constexpr = (MODE.count > 0) & (MODE.count < 4) & (not MODE.adjoint)

    lengths, strides, targets, _, _ = sizes
    _, C, D, H, W = lengths
    TD, TH, TW = targets
    place, live, plane, base_target = addressing.tile_of_lane(sizes, FORM)
    base = source
    if QUANTIZED and FORM.vector >= 4:
        base = source.to(tl.pointer_type(tl.uint32), bitcast=True)
    base += plane * held_as(SOURCE, FORM.vector)[1]
    base_target = target + base_target * FORM.store
    each = (0.0,)
    if QUANTIZED:
        given = (x_scale, x_zero, y_scale, y_zero)
        TAPS: tl.constexpr = DEPTH.window * ROW.window * COLUMN.window
        each = requantization.quantities(place[3], given, TAPS, SOURCE.is_int_signed(), FORM, MODE)
    ones = tl.full([LANES], 1, DIVISORS)
    first_chunk = place[0] * (COLS.advance // CHUNK) + COLS.low // CHUNK
    first_row = place[1] * ROWS.advance + ROWS.low
    first_depth = place[2] * DEPTHS.advance + DEPTHS.low
    opening, apart = addressing.first_vector(first_chunk, place[3], strides, FORM)
    left = ()
    kept = addressing.mask_of_lane(mask, sizes, place, first_chunk, FORM)
    if MODE.adjoint:
        kept = ()
        left = addressing.mask_of_lane(mask, sizes, place, place[0] * (T // CHUNK), FORM)
    # words are added up before their columns
    SUMS: tl.constexpr = N if QUANTIZED and not FORM.channels else T * (1 + (len(kept) > 0))
    width = TW if FORM.channels else TW * FORM.store

    divisors = ()  # taps counted along the target columns, and their reciprocals
    weights = ()  # the same along the source columns
    if IS_COUNTED:
        divisors = divisors_along(place[0] * T, W * CHUNK, T, COLUMN, DIVISORS, MODE)
    if IS_WEIGHED:
        weights = divisors_along(first_chunk * CHUNK, width, N * CHUNK, COLUMN, DIVISORS, MODE)

    planes = ((),) * T_ROWS  # totals of each depth so far, for each target row
    for d in tl.static_range(N_DEPTHS):
        in_slice = addressing.inside(live, first_depth + d, D, FORM.rank == 3)
        rows = ()
        for r in tl.static_range(N_ROWS):
            inside = addressing.inside(in_slice, first_row + r, H, FORM.rank >= 2)
            line = (first_depth + d) * strides[2] + (first_row + r) * strides[3] + opening
            values = loaded_row(
                base, (line, apart, first_chunk), inside, W, each[0], N, SOURCE, FORM
            )
            there = addressing.kept_row(
                kept, first_depth + d, first_row + r, inside, W, N, MODE.count == PADDED, FORM
            )
            if not QUANTIZED:
                weight = ones
                if IS_WEIGHED:
                    weight = 1.0 / sums.divisor_across(
                        first_row + r, first_depth + d, TH, TD, ROW, DEPTH, MODE.count, DIVISORS
                    )
                values = row_sums(values, there, weights, weight, IS_WEIGHED, COLS, N, FORM)
            elif FORM.channels:
                values = sums.sliding_sums(values, COLS)
            rows = rows + values
            new_planes = ()
            for j in tl.static_range(T_ROWS):
                own_planes = planes[j]
                if ROWS.lasts[j] == r:
                    own_planes = own_planes + sums.target_totals(rows, ROWS, j, SUMS)
                    for e in tl.static_range(T_DEPTHS):
                        if DEPTHS.lasts[e] == d:
                            totals = sums.target_totals(own_planes, DEPTHS, e, SUMS)
                            above = place[1] * T_ROWS
                            row = above + j
                            depth = place[2] * T_DEPTHS + e
                            below = addressing.inside(live, depth, TD, FORM.rank == 3)
                            ok = addressing.inside(below, row, TH, FORM.rank >= 2)
                            there = addressing.kept_row(
                                left, depth, row, ok, width // CHUNK, T // CHUNK, 0, FORM
                            )
                            counts = (ones, ones)
                            if IS_COUNTED:
                                counted = sums.divisor_across(
                                    row, depth, H, D, ROW, DEPTH, MODE.count, DIVISORS
                                )
                                counts = (counted, 1.0 / counted)
                            if QUANTIZED:
                                finished = requantization.results(
                                    totals,
                                    each,
                                    counts,
                                    divisors,
                                    COLS,
                                    target.dtype.element_ty == tl.int8,
                                    SUMS,
                                    FORM,
                                    MODE,
                                )
                            else:
                                finished = quotients(totals, counts, divisors, there, T, FORM, MODE)
                            lines = (depth * TH + above, tl.where(below, TH - above, 0))
                            addressing.store_row(
                                base_target, finished, place, lines, j, C, TW, 0, 1, T, FORM
                            )
                new_planes = new_planes + (own_planes,)
            planes = new_planes
