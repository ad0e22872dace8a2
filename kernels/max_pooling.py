"""Max pooling on the GPU: windows unrolled at compile time.

Beside a maximum travels, where it is wanted, the number of the position that gave it. A later
candidate replaces an earlier one only where it is strictly greater or the first NaN: the first tap
in row-major order wins (M2, M3).
"""

import triton
import triton.language as tl

from . import addressing


@triton.constexpr_function
def compared(dtype, with_taps):
    """The type in which values are compared: bfloat16 and integers below 32 bits have no maximum of
    their own.
    """
    if dtype.is_floating():
        widens = dtype == tl.bfloat16 or (dtype == tl.float16 and with_taps)
        return tl.float32 if widens else dtype
    return tl.int32 if dtype.primitive_bitwidth < 16 else dtype


@triton.jit
def comparable(v, WITH_TAPS: tl.constexpr):
    """A float32 whose zeros are positive: their bits tell values apart, and no compiler compares it
    as a half again.
    """
    if WITH_TAPS and v.dtype == tl.float32:
        return v + 0.0
    else:
        return v


CODE_ZERO = tl.constexpr(8388608.0)
"""2^23: integers added to it, up to as many, stand in the low bits of the sum."""


@triton.jit
def better(m, i, v, j, WITH_TAPS: tl.constexpr, ASM: tl.constexpr):
    """The maximum of an earlier ``(m, i)`` and a later ``(v, j)``; without taps the numbers mean
    nothing.
    """
    if WITH_TAPS and ASM:
        # NaNs are canonical and zeros positive here: the maximum's bits change exactly where the
        # later one wins. The number moves by an addition to 0 times the old: a move, or an addition
        # alone, which can be made once for several winners, would become a select on the pipe that
        # compares.
        return tl.inline_asm_elementwise(
            "{.reg .pred p; .reg .b32 a, b; max.NaN.f32 $0, $2, $4; mov.b32 a, $0; mov.b32 b, $2;"
            " setp.ne.s32 p, a, b; mov.f32 $1, $3; @p fma.rn.f32 $1, $1, 0f00000000, $5;}",
            "=&f,=&f,f,f,f,f",
            [m, i, v, j],
            dtype=(tl.float32, tl.float32),
            is_pure=True,
            pack=1,
        )
    elif WITH_TAPS:
        wins = v > m
        if m.dtype.is_floating():
            wins = (m == m) & ~(v <= m)  # greater, or the first NaN
        return tl.where(wins, v, m), tl.where(wins, j, i)
    elif m.dtype.is_floating():
        return tl.maximum(m, v, propagate_nan=tl.PropagateNan.ALL), i
    else:
        return tl.maximum(m, v), i


@triton.jit
def sliding(
    values,
    codes,
    FIRST: tl.constexpr,
    STEP: tl.constexpr,
    Q: tl.constexpr,
    AXIS: tl.constexpr,
    G: tl.constexpr,
    WITH_TAPS: tl.constexpr,
    ASM: tl.constexpr,
):
    """Maxima of Q windows along every STEP-th entry of ``values`` from FIRST on, and the numbers of
    the winners.

    G neighbouring windows share their common core: each is what comes before the core, the core,
    and what comes after.
    """
    K: tl.constexpr = AXIS.window
    S: tl.constexpr = AXIS.stride
    CORE: tl.constexpr = (G - 1) * S
    results = ()
    numbers = ()
    for g in tl.static_range(Q // G):
        before = ()
        before_numbers = ()
        if G > 1:
            m = values[FIRST + (g * G * S + CORE - 1) * STEP]
            n = codes[FIRST + (g * G * S + CORE - 1) * STEP]
            for k in tl.static_range(CORE):
                if k > 0:
                    v = values[FIRST + (g * G * S + CORE - 1 - k) * STEP]
                    m, n = better(
                        v, codes[FIRST + (g * G * S + CORE - 1 - k) * STEP], m, n, WITH_TAPS, ASM
                    )
                if (k + 1) % S == 0:
                    before = (m,) + before
                    before_numbers = (n,) + before_numbers
        core = values[FIRST + (g * G * S + CORE) * STEP]
        i = codes[FIRST + (g * G * S + CORE) * STEP]
        for k in tl.static_range(CORE + 1, K):
            v = values[FIRST + (g * G * S + k * AXIS.dilation) * STEP]
            core, i = better(
                core, i, v, codes[FIRST + (g * G * S + k * AXIS.dilation) * STEP], WITH_TAPS, ASM
            )
        for w in tl.static_range(G):
            if w > 0:
                for k in tl.static_range(K + (w - 1) * S, K + w * S):
                    v = values[FIRST + (g * G * S + k) * STEP]
                    core, i = better(
                        core, i, v, codes[FIRST + (g * G * S + k) * STEP], WITH_TAPS, ASM
                    )
            if w < G - 1:
                m, n = better(before[w], before_numbers[w], core, i, WITH_TAPS, ASM)
                results = results + (m,)
                numbers = numbers + (n,)
            else:
                results = results + (core,)
                numbers = numbers + (i,)
    return results, numbers


@triton.jit
def number_of(c: tl.constexpr, start, AXIS: tl.constexpr):
    """The number of position ``c`` of a block that begins at ``start``: c, or before the input that
    of the first tap inside it, so that a window of nothing but the lowest value names that one.
    Only the padding's lie before.
    """
    J: tl.constexpr = AXIS.dilation
    if c < AXIS.start:
        return c + J * ((tl.maximum(-c - start, 0) + (J - 1)) // J).to(tl.int32)
    else:
        return c


@triton.jit
def no_tap_inside(start, size, AXIS: tl.constexpr):
    """Whether a window that starts at ``start`` reads nothing of an axis of ``size`` elements."""
    first = addressing.taps_before(start, 0, AXIS.window, AXIS.dilation)
    return (first >= AXIS.window) | (start + first * AXIS.dilation >= size)


@addressing.launched(3)
def max_tile(
    x,
    y,
    t,
    lengths,
    strides,
    targets,
    tiles,
    DEPTH: tl.constexpr,
    ROW: tl.constexpr,
    COLUMN: tl.constexpr,
    RANK: tl.constexpr,
    CHANNELS: tl.constexpr,
    TILE: tl.constexpr,
    GROUPS: tl.constexpr,
    V: tl.constexpr,
    STORE: tl.constexpr,
    WITH_TAPS: tl.constexpr,
    EMPTY: tl.constexpr,
    ASM: tl.constexpr,
    WIDE: tl.constexpr,
    B: tl.constexpr,
):
    """Windows unrolled at compile time; a lane owns a TILE of 1 depth by R rows by Q columns of
    outputs.

    x: the input, N x C planes of D x H x W, of any strides; y, t: values and, WITH_TAPS, taps,
    dense. CHANNELS and what is counted in vectors: see ``launch.tile_launch``. GROUPS: rows and
    columns of outputs that share a core. EMPTY: some window has no tap inside the input.
    """
    DEPTHS: tl.constexpr = DEPTH.window
    PLANE: tl.constexpr = ROW.window * COLUMN.window  # taps of one depth
    R: tl.constexpr = TILE[1]
    Q: tl.constexpr = TILE[2]
    TYPE: tl.constexpr = compared(x.dtype.element_ty, WITH_TAPS)
    FILL: tl.constexpr = addressing.lowest(x.dtype.element_ty)
    lanes, C, D, H, W = lengths
    sn, sc, sd, sh, sw = strides
    OD, OH, OW = targets
    lane = addressing.lane_numbers(B, WIDE)
    live = lane < lanes
    qg, rg, od, channel, outer = addressing.place_of_lane(lane, C, tiles, RANK, CHANNELS)
    x0 = x + addressing.source_plane(outer, C, sn, sc, CHANNELS) * V
    plane = addressing.target_plane(outer, C, OD, OH, OW, CHANNELS) * STORE

    # The columns that the lane reads are COUNT vectors from number ``first`` on; its own first
    # column is entry ORIGIN.
    CHUNK: tl.constexpr = 1 if CHANNELS else V
    REACH: tl.constexpr = (Q - 1) * COLUMN.stride + (COLUMN.window - 1) * COLUMN.dilation
    LOW: tl.constexpr = (-COLUMN.start) // CHUNK
    ORIGIN: tl.constexpr = -COLUMN.start - LOW * CHUNK
    COUNT: tl.constexpr = (ORIGIN + REACH) // CHUNK + 1
    ROWS: tl.constexpr = (R - 1) * ROW.stride + (ROW.window - 1) * ROW.dilation + 1
    DENSE: tl.constexpr = COLUMN.dilation == 1 and ROW.dilation == 1
    # what a row of the block counts in a position's number
    LINE: tl.constexpr = COLUMN.window if DENSE else REACH + 1
    id0 = od * DEPTH.stride - DEPTH.start
    ih0 = rg * (R * ROW.stride) - ROW.start
    iw0 = qg * (Q * COLUMN.stride) - COLUMN.start
    first = qg * (Q * COLUMN.stride // CHUNK) + LOW
    opening, step = addressing.first_vector(first, channel, sc, sw, CHANNELS, V)
    column_codes = ()
    for c in tl.static_range(COUNT * CHUNK):
        if WITH_TAPS and c >= ORIGIN:
            code = number_of(c - ORIGIN, iw0, COLUMN)
            if c - ORIGIN < COLUMN.start:
                code = addressing.as_block(code, CHANNELS, B, V)
            column_codes = column_codes + ((code + CODE_ZERO) if ASM else code,)
        else:
            column_codes = column_codes + (0,)

    values = ()
    taps = ()
    for kd in tl.static_range(DEPTHS):
        depth = id0 + kd * DEPTH.dilation
        in_slice = live
        if RANK > 2:
            in_slice = live & (depth >= 0) & (depth < D)
        found = ()
        found_codes = ()
        for r in tl.static_range(ROWS):
            row = ih0 + r
            inside = in_slice
            if RANK > 1:
                inside = in_slice & (row >= 0) & (row < H)
            offset = depth * sd + row * sh + opening
            loaded = addressing.load_row(
                x0, offset, step, inside, first, W, COUNT, FILL, TYPE, CHANNELS, V, B
            )
            columns = ()
            for c in tl.static_range(COUNT * CHUNK):
                columns = columns + (comparable(loaded[c], WITH_TAPS),)
            maxima, codes = sliding(
                columns, column_codes, ORIGIN, 1, Q, COLUMN, GROUPS[1], WITH_TAPS, ASM
            )
            found = found + maxima
            line = number_of(r, ih0, ROW) * LINE
            if WITH_TAPS and r < ROW.start:
                line = addressing.as_block(line, CHANNELS, B, V)
            for v in tl.static_range(Q):
                found_codes = found_codes + ((codes[v] + line) if WITH_TAPS else 0,)
        new = ()
        new_taps = ()
        for v in tl.static_range(Q):
            maxima, codes = sliding(found, found_codes, v, Q, R, ROW, GROUPS[0], WITH_TAPS, ASM)
            for j in tl.static_range(R):
                tap = 0
                m = maxima[j]
                code = codes[j]
                if WITH_TAPS and ASM:
                    code = code.to(tl.int32, bitcast=True) & 0x7FFFFF
                if WITH_TAPS:
                    if DENSE:
                        tap = code - (j * ROW.stride * LINE + v * COLUMN.stride)
                    else:
                        row_number = code // LINE
                        row_tap = (row_number - j * ROW.stride) // ROW.dilation
                        column_tap = (
                            code - row_number * LINE - v * COLUMN.stride
                        ) // COLUMN.dilation
                        tap = row_tap * COLUMN.window + column_tap
                    if kd > 0:
                        tap += kd * PLANE
                    elif DEPTH.start > 0:
                        above = addressing.taps_before(id0, 0, DEPTHS, DEPTH.dilation).to(tl.int32)
                        tap += addressing.as_block(above * PLANE, CHANNELS, B, V)
                if kd > 0:
                    m, tap = better(values[v * R + j], taps[v * R + j], m, tap, WITH_TAPS, False)
                new = new + (m,)
                new_taps = new_taps + (tap,)
        values = new
        taps = new_taps

    width = W * CHUNK
    for j in tl.static_range(R):
        oh = rg * R + j
        row_live = live
        if RANK > 1:
            row_live = live & (oh < OH)
        encoded = ()
        for v in tl.static_range(Q if WITH_TAPS else 0):
            zeros = addressing.as_block(tl.zeros([B], tl.int32), CHANNELS, B, V)
            code = zeros + taps[v * R + j]  # which of one tap is a number alone
            iw = iw0 + v * COLUMN.stride
            ih = ih0 + j * ROW.stride
            if EMPTY:
                empty = no_tap_inside(iw, width, COLUMN)
                if RANK > 1:
                    empty = empty | no_tap_inside(ih, H, ROW)
                if RANK > 2:
                    empty = empty | no_tap_inside(id0, D, DEPTH)
                code = tl.where(addressing.as_block(empty, CHANNELS, B, V), 0, code)
            encoded = encoded + (code,)
        line = od * OH + oh
        addressing.store_row(
            y + plane, values, qg, line, channel, row_live, C, OW, j, R, Q, CHANNELS, STORE, B
        )
        if WITH_TAPS:
            addressing.store_row(
                t + plane, encoded, qg, line, channel, row_live, C, OW, 0, 1, Q, CHANNELS, STORE, B
            )
