"""Average pooling and its gradient on the GPU: fill with 0, combine by addition, finish by
dividing.

Both directions are one thing: every target element is the sum of an arithmetic progression of
source elements along each axis. Forward the source is the input and the sum is divided at the end;
for the adjoint the source is the incoming gradient, divided as it is read. ``sum_tile`` unrolls a
window and adds up trees, whose roundings grow with the logarithm of the taps. What is too large for
it, ``folding`` adds up; ``sum_axis`` is its gradient where windows overlap, with compensation.
"""

import triton
import triton.language as tl

from . import addressing, requantization, sums

CONSTANT = tl.constexpr(0)
"""COUNT: every window has the same divisor; 1: the divisor counts taps inside the input; 2: inside
the padded input."""


@triton.jit
def row_sums(
    chunks,
    weights,
    row_weight,
    WEIGHED: tl.constexpr,
    COLS: tl.constexpr,
    CHANNELS: tl.constexpr,
    N: tl.constexpr,
    B: tl.constexpr,
    V: tl.constexpr,
):
    """One sum per target column over one source row, given as ``N`` chunks of V columns or vectors
    of channels.
    """
    columns = ()
    for c in tl.static_range(N):
        columns = columns + (
            (chunks[c],) if CHANNELS else addressing.split_columns(chunks[c], B, V)
        )
    POSITIONS: tl.constexpr = COLS.length
    if WEIGHED:
        weighed = ()
        for i in tl.static_range(POSITIONS):
            weighed = weighed + (
                columns[i] * addressing.as_block(weights[i] * row_weight, CHANNELS, B, V),
            )
        columns = weighed
    return sums.sliding_sums(columns, COLS)


@triton.jit
def quotients(
    totals,
    row,
    divisors,
    COUNTED: tl.constexpr,
    COUNT: tl.constexpr,
    DIVISOR: tl.constexpr,
    CHANNELS: tl.constexpr,
    T: tl.constexpr,
    V: tl.constexpr,
    B: tl.constexpr,
):
    """The totals of one target row of a tile, divided; divisors come with their reciprocals."""
    finished = ()
    for i in tl.static_range(T):
        total = totals[i]
        if COUNTED:
            divisor = addressing.as_block(row[0] * divisors[i][0], CHANNELS, B, V)
            total = sums.quotient(
                total, divisor, addressing.as_block(row[1] * divisors[i][1], CHANNELS, B, V)
            )
        elif COUNT == CONSTANT:
            total = sums.quotient(total, DIVISOR * 1.0, 1.0 / DIVISOR)
        finished = finished + (total,)
    return finished


@addressing.launched(2)
def sum_tile(
    source,
    target,
    input_scale,
    input_zero,
    output_scale,
    output_zero,
    lengths,
    strides,
    targets,
    tiles,
    DEPTH: tl.constexpr,
    ROW: tl.constexpr,
    COLUMN: tl.constexpr,
    RANK: tl.constexpr,
    CHANNELS: tl.constexpr,
    ADJOINT: tl.constexpr,
    COUNT: tl.constexpr,
    DIVISOR: tl.constexpr,
    KINDS: tl.constexpr,
    TILE: tl.constexpr,
    V: tl.constexpr,
    STORE: tl.constexpr,
    WIDE: tl.constexpr,
    B: tl.constexpr,
):
    """Every window unrolled: a lane adds up a tile of targets from the source rows they share.

    source: ``D, H, W`` spatial sizes and five strides. target: ``TD, TH, TW`` spatial sizes, dense.
    ``TILE``: depths, rows and columns of source (ADJOINT) or target elements per lane. CHANNELS and
    what is counted in vectors: see ``launch.tile_launch``. Elements of 8 bits are quantized:
    windows have at most 128 taps, and ``KINDS`` says how scales (float32) and zero points (of their
    side's type) are given; else these are not read.
    """
    QUANTIZED: tl.constexpr = source.dtype.element_ty.primitive_bitwidth == 8
    SIGNED: tl.constexpr = source.dtype.element_ty == tl.int8
    SIGNED_RESULTS: tl.constexpr = target.dtype.element_ty == tl.int8
    PACKED: tl.constexpr = QUANTIZED and V >= 4
    WORDS: tl.constexpr = V // 4 if PACKED else V
    FIELDS: tl.constexpr = V // 2 if PACKED else V  # that hold a vector as it is added up
    FLOAT: tl.constexpr = tl.float64 if source.dtype.element_ty == tl.float64 else tl.float32
    ACC: tl.constexpr = (tl.uint32 if PACKED else tl.int32) if QUANTIZED else FLOAT
    DIVISORS: tl.constexpr = tl.int32 if QUANTIZED else FLOAT
    CHUNK: tl.constexpr = 1 if CHANNELS else V  # source columns per load
    DEPTHS: tl.constexpr = sums.plan(DEPTH, ADJOINT, TILE[0], 1)
    ROWS: tl.constexpr = sums.plan(ROW, ADJOINT, TILE[1], 1)
    COLS: tl.constexpr = sums.plan(COLUMN, ADJOINT, TILE[2], CHUNK)
    N_DEPTHS: tl.constexpr = DEPTHS.length
    N_ROWS: tl.constexpr = ROWS.length
    N_CHUNKS: tl.constexpr = COLS.length // CHUNK
    T_DEPTHS: tl.constexpr = DEPTHS.targets
    T_ROWS: tl.constexpr = ROWS.targets
    T: tl.constexpr = COLS.targets
    # words are added up before their columns
    HELD: tl.constexpr = N_CHUNKS if QUANTIZED and not CHANNELS else T
    WEIGHED: tl.constexpr = ADJOINT and COUNT != CONSTANT  # divide what is read
    COUNTED: tl.constexpr = COUNT != CONSTANT and not ADJOINT  # divide what is written, by counts

    lanes, C, D, H, W = lengths
    sn, sc, sd, sh, sw = strides
    TD, TH, TW = targets
    lane = addressing.lane_numbers(B, WIDE)
    live = lane < lanes
    column, row, depth, channel, outer = addressing.place_of_lane(lane, C, tiles, RANK, CHANNELS)
    base = source
    if PACKED:
        base = source.to(tl.pointer_type(tl.uint32), bitcast=True)
    base += addressing.source_plane(outer, C, sn, sc, CHANNELS) * WORDS
    base_target = target + addressing.target_plane(outer, C, TD, TH, TW, CHANNELS) * STORE
    each = (0.0,)
    if QUANTIZED:
        given = (input_scale, input_zero, output_scale, output_zero)
        TAPS: tl.constexpr = DEPTH.window * ROW.window * COLUMN.window
        each = requantization.quantities(
            channel, given, TAPS, DIVISOR, KINDS, SIGNED, CHANNELS, V, B
        )
    zero = tl.zeros([B, FIELDS], ACC)
    ones = tl.full([B], 1, tl.float64 if QUANTIZED else FLOAT)
    first_chunk = column * (COLS.advance // CHUNK) + COLS.low // CHUNK
    first_row = row * ROWS.advance + ROWS.low
    first_depth = depth * DEPTHS.advance + DEPTHS.low
    opening, apart = addressing.first_vector(first_chunk, channel, sc, sw, CHANNELS, V)

    chunks_live = ()
    for c in tl.static_range(N_CHUNKS):
        chunks_live = chunks_live + (((first_chunk + c >= 0) & (first_chunk + c < W))[:, None],)
    weights = ()  # reciprocals of the divisors of the source columns
    if WEIGHED:
        for i in tl.static_range(N_CHUNKS * CHUNK):
            width = TW if CHANNELS else TW * STORE
            counted = sums.divisor_along(first_chunk * CHUNK + i, width, COLUMN, COUNT, DIVISORS)
            weights = weights + (1.0 / counted,)
    divisors = ()  # taps counted along the target columns, and their reciprocals
    if COUNTED:
        for i in tl.static_range(T):
            counted = sums.divisor_along(column * T + i, W * CHUNK, COLUMN, COUNT, DIVISORS)
            divisors = divisors + ((counted, sums.reciprocal(counted)),)

    planes = ((),) * T_ROWS  # totals of each depth so far, for each target row
    for d in tl.static_range(N_DEPTHS):
        depth_live = live
        if RANK == 3:
            depth_live = live & (first_depth + d >= 0) & (first_depth + d < D)
        rows = ()
        for r in tl.static_range(N_ROWS):
            row_live = depth_live
            if RANK >= 2:
                row_live = depth_live & (first_row + r >= 0) & (first_row + r < H)
            line = (first_depth + d) * sd + (first_row + r) * sh + opening
            pointers = (base + line * WORDS)[:, None] + tl.arange(0, WORDS)[None, :]
            values = ()
            for c in tl.static_range(N_CHUNKS):
                if DEPTHS.used[d] and ROWS.used[r] and COLS.used[c]:
                    loaded = addressing.load_filled(
                        pointers + c * (apart * WORDS),
                        row_live[:, None] & chunks_live[c],
                        each[0],
                        ACC,
                    )
                    values = values + (
                        (requantization.fields(loaded, SIGNED, V, B) if QUANTIZED else loaded),
                    )
                else:
                    values = values + (zero,)
            if not QUANTIZED:
                row_weight = ones
                if WEIGHED:
                    row_weight = 1.0 / sums.divisor_across(
                        first_row + r, first_depth + d, TH, TD, ROW, DEPTH, COUNT, ACC
                    )
                values = row_sums(
                    values, weights, row_weight, WEIGHED, COLS, CHANNELS, N_CHUNKS, B, V
                )
            elif CHANNELS:
                values = sums.sliding_sums(values, COLS)
            rows = rows + values
            new_planes = ()
            for j in tl.static_range(T_ROWS):
                own_planes = planes[j]
                if ROWS.lasts[j] == r:
                    own_planes = own_planes + sums.target_totals(rows, ROWS, j, HELD)
                    for e in tl.static_range(T_DEPTHS):
                        if DEPTHS.lasts[e] == d:
                            totals = sums.target_totals(own_planes, DEPTHS, e, HELD)
                            target_row = row * T_ROWS + j
                            target_depth = depth * T_DEPTHS + e
                            out = target_depth * TH + target_row
                            target_live = live
                            if RANK >= 2:
                                target_live = target_live & (target_row < TH)
                            if RANK == 3:
                                target_live = target_live & (target_depth < TD)
                            counts = (ones, ones)
                            if COUNTED:
                                counted = sums.divisor_across(
                                    target_row, target_depth, H, D, ROW, DEPTH, COUNT, DIVISORS
                                )
                                counts = (counted, sums.reciprocal(counted))
                            if QUANTIZED:
                                finished = requantization.results(
                                    totals,
                                    each,
                                    counts[1],
                                    divisors,
                                    COLS,
                                    COUNTED,
                                    CHANNELS,
                                    SIGNED_RESULTS,
                                    HELD,
                                    T,
                                    V,
                                    B,
                                )
                            else:
                                finished = quotients(
                                    totals,
                                    counts,
                                    divisors,
                                    COUNTED,
                                    COUNT,
                                    DIVISOR,
                                    CHANNELS,
                                    T,
                                    V,
                                    B,
                                )
                            addressing.store_row(
                                base_target,
                                finished,
                                column,
                                out,
                                channel,
                                target_live,
                                C,
                                TW,
                                0,
                                1,
                                T,
                                CHANNELS,
                                STORE,
                                B,
                            )
                new_planes = new_planes + (own_planes,)
            planes = new_planes


@addressing.launched(2)
def sum_axis(
    source, target, lengths, axis, reach, COUNT: tl.constexpr, WIDE: tl.constexpr, B: tl.constexpr
):
    """One axis of the gradient of windows of any size, in a loop: an element adds up the gradients
    of the windows that cover it, at most ``bound``.

    Both are dense, with INNER elements between neighbours along the axis. Sums are divided by
    ``divisor`` (COUNT 0), or each gradient by its window's own along this axis.
    """
    lanes, INNER, windows, size, bound, divisor = lengths
    K, S, P, _, D = axis
    G, INVERSE = reach
    ACC: tl.constexpr = tl.float64 if source.dtype.element_ty == tl.float64 else tl.float32
    lane = addressing.lane_numbers(B, WIDE)
    live = lane < lanes
    position, within, outer = addressing.place_along(lane, INNER, size)
    base = source + (outer * windows * INNER + within)
    tap, output, exists = addressing.first_covering(position + P, S, D, G, INVERSE)
    # windows past the last
    skipped = tl.maximum(output - windows + (D // G), 0) // (D // G)
    first = output - skipped * (D // G)
    left = tl.where(live & exists, (K - tap + S // G - 1) // (S // G) - skipped, 0)
    total = tl.zeros([B], ACC)
    error = tl.zeros([B], ACC)
    for m in range(0, bound, 8):
        terms = ()
        for i in tl.static_range(8):
            place = first - (m + i) * (D // G)
            inside = (m + i < left) & (place >= 0) & (place < windows)
            term = addressing.widened(tl.load(base + place * INNER, mask=inside, other=0), ACC)
            if COUNT != CONSTANT:
                own = sums.divisor_along(place, size, axis, COUNT, ACC)
                term = sums.quotient(term, own, 1.0 / own)
            terms = terms + (term,)
        total, error = sums.with_group(total, error, sums.tree(terms, 0, 1, 8))
    total = sums.compensated(total, error)
    if COUNT == CONSTANT:
        whole = tl.zeros([B], ACC) + divisor
        total = sums.quotient(total, whole, 1.0 / whole)
    tl.store(target + lane, addressing.rounded(total, target.dtype.element_ty), mask=live)
