"""Max pooling on the GPU: windows unrolled at compile time.

If taps are wanted, each maximum is kept with the number of the position that gave it. A later
candidate replaces an earlier one only if it is strictly greater or the first NaN, so that the first
tap in row-major order wins (M2, M3).
"""

import triton
import triton.language as tl

from . import addressing, folding
from .addressing import LANES


@triton.constexpr_function
def compared(dtype, with_taps):
    """The type in which values are compared. Integers of 8 bits and bfloat16 are widened always,
    float16 only where taps are wanted.
    """
    if dtype.is_floating():
        widens = dtype == tl.bfloat16 or (dtype == tl.float16 and with_taps)
        return tl.float32 if widens else dtype
    return tl.int32 if dtype.primitive_bitwidth < 16 else dtype


@triton.jit
def comparable(v, WITH_TAPS):
    """A float32 with positive zeros where taps are wanted: equal values then have equal bits. The
    addition also keeps the compiler from comparing values as the halves that they came from.
    """
    if WITH_TAPS and v.dtype == tl.float32:
        return v + 0.0
    else:
        return v


MASKED = tl.constexpr(2)
"""``MODE.with_taps`` under a mask."""
NOT_THERE = tl.constexpr(-(2**31))
"""Added to the number of an element that a mask leaves out. It is -CODE_ZERO with ``MODE.asm``."""
CODE_ZERO = tl.constexpr(8388608.0)
"""2^23. With ``MODE.asm`` numbers of positions are kept as float32s, this plus the number, so that
``better`` can move them by FMA. The low 23 bits are the number."""


_MOVES = "mov.f32 $1, $3; @p fma.rn.f32 $1, $1, 0f00000000, $5;}"
_WINS = (
    "{.reg .pred p; .reg .b32 a, b; max.NaN.f32 $0, $2, $4; mov.b32 a, $0; mov.b32 b, $2;"
    " setp.ne.s32 p, a, b; "
)
IS_BETTER = tl.constexpr(_WINS + _MOVES)
IS_BETTER_UNDER_A_MASK = tl.constexpr(_WINS + "setp.lt.or.f32 p, $3, 0f4B000000, p; " + _MOVES)


@triton.jit
def better(m, i, v, j, WITH_TAPS, ASM):
    """The greater of an earlier ``(m, i)`` and a later ``(v, j)``, each a value and its number.
    Without taps the numbers mean nothing. An element that a mask leaves out is never greater.
    """
    if WITH_TAPS and ASM:
        # NaNs are canonical and zeros positive here: the maximum's bits change exactly where the
        # later one wins. Its number is then computed as 0 * old + new, an FMA. The compiler would
        # turn a move into a select, which takes the same pipe as the comparison. It would do so
        # with 0 + new, too, as that does not depend on the old number.
        return tl.inline_asm_elementwise(
            IS_BETTER_UNDER_A_MASK if WITH_TAPS == MASKED else IS_BETTER,
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
        if WITH_TAPS == MASKED:
            wins = wins | (i < 0)
        return tl.where(wins, v, m), tl.where(wins, j, i)
    else:
        return folding.greater(m, v), i


@triton.jit
def entry(values, codes, FIRST, STEP, PLACE):
    """Entry PLACE of every STEP-th one from FIRST on, and its number."""
    return values[FIRST + PLACE * STEP], codes[FIRST + PLACE * STEP]


@triton.jit
def sliding(values, codes, FIRST, STEP, Q, AXIS, G, WITH_TAPS, ASM):
    """Maxima of Q windows along every STEP-th entry of ``values`` from FIRST on, and the numbers of
    the winners.

    The core, which G neighbouring windows have in common, is computed once. Each window is then
    what comes before the core, the core, and what comes after.
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
            m, n = entry(values, codes, FIRST, STEP, g * G * S + CORE - 1)
            for k in tl.static_range(CORE):
                if k > 0:
                    v, j = entry(values, codes, FIRST, STEP, g * G * S + CORE - 1 - k)
                    m, n = better(v, j, m, n, WITH_TAPS, ASM)
                if (k + 1) % S == 0:
                    before = (m,) + before
                    before_numbers = (n,) + before_numbers
        core, i = entry(values, codes, FIRST, STEP, g * G * S + CORE)
        for k in tl.static_range(CORE + 1, K):
            v, j = entry(values, codes, FIRST, STEP, g * G * S + k * AXIS.dilation)
            core, i = better(core, i, v, j, WITH_TAPS, ASM)
        for w in tl.static_range(G):
            if w > 0:
                for k in tl.static_range(K + (w - 1) * S, K + w * S):
                    v, j = entry(values, codes, FIRST, STEP, g * G * S + k)
                    core, i = better(core, i, v, j, WITH_TAPS, ASM)
            if w < G - 1:
                m, n = better(before[w], before_numbers[w], core, i, WITH_TAPS, ASM)
                results = results + (m,)
                numbers = numbers + (n,)
            else:
                results = results + (core,)
                numbers = numbers + (i,)
    return results, numbers


@triton.jit
def number_of(c, start, AXIS):
    """The number of position ``c`` of a block that begins at ``start``. Inside the input it is c.

    Before the input, where only padding lies, it is the number of the first position inside that
    a tap reaches. A window of nothing but the lowest value then names its first tap inside.
    """
    J: tl.constexpr = AXIS.dilation
    if c < AXIS.start:
        return c + J * ((tl.maximum(-c - start, 0) + (J - 1)) // J).to(tl.int32)
    else:
        return c


@triton.jit
def column_numbers(start, COUNT, ORIGIN, COLUMN, FORM, MODE):
    """The numbers of a row's positions from ORIGIN on, which lies at ``start``."""
    numbers = ()
    for c in tl.static_range(COUNT):
        if MODE.with_taps and c >= ORIGIN:
            number = number_of(c - ORIGIN, start, COLUMN)
            if c - ORIGIN < COLUMN.start:
                number = addressing.as_block(number, FORM)
            numbers = numbers + ((number + CODE_ZERO) if MODE.asm else number,)
        else:
            numbers = numbers + (0,)
    return numbers


@addressing.launched
def max_tile(x, mask, y, t, sizes, DEPTH, ROW, COLUMN, FORM, MODE):
    """Windows unrolled at compile time; a lane owns a tile of 1 depth by R rows by Q columns of
    outputs.

    x: the input, N x C planes of D x H x W, of any strides; mask: bytes, 0 where an element is not
    there, if ``FORM.mask`` says so; y, t: maxima and, if wanted, taps, dense. Under a mask the tap
    of a window without an element is -1. What is counted in vectors: see ``launch.tile_launch``.
    """
    R: tl.constexpr = FORM.tile[1]
    Q: tl.constexpr = FORM.tile[2]
    WITH_TAPS: tl.constexpr = MODE.with_taps
    ASM: tl.constexpr = MODE.asm
    TYPE: tl.constexpr = compared(x.dtype.element_ty, WITH_TAPS)
    DEPTHS: tl.constexpr = DEPTH.window
    FILL: tl.constexpr = addressing.lowest(x.dtype.element_ty)
    lengths, strides, targets, _, _ = sizes
    _, C, D, H, W = lengths
    _, OH, OW = targets
    place, live, before, plane = addressing.tile_of_lane(sizes, FORM)
    x0 = x + before * FORM.vector
    plane = plane * FORM.store
    column_tile, row_tile, od, channel, _ = place

    # The columns that the lane reads are COUNT vectors from number ``first`` on; its own first
    # column is entry ORIGIN.
    CHUNK: tl.constexpr = 1 if FORM.channels else FORM.vector
    REACH: tl.constexpr = (Q - 1) * COLUMN.stride + (COLUMN.window - 1) * COLUMN.dilation
    LOW: tl.constexpr = (-COLUMN.start) // CHUNK
    ORIGIN: tl.constexpr = -COLUMN.start - LOW * CHUNK
    COUNT: tl.constexpr = (ORIGIN + REACH) // CHUNK + 1
    ROWS: tl.constexpr = (R - 1) * ROW.stride + (ROW.window - 1) * ROW.dilation + 1
    depth = od * DEPTH.stride - DEPTH.start
    row = row_tile * (R * ROW.stride) - ROW.start
    column = column_tile * (Q * COLUMN.stride) - COLUMN.start
    first = column_tile * (Q * COLUMN.stride // CHUNK) + LOW
    opening, step = addressing.first_vector(first, channel, strides, FORM)
    numbers = column_numbers(column, COUNT * CHUNK, ORIGIN, COLUMN, FORM, MODE)
    kept = addressing.mask_of_lane(mask, sizes, place, first, FORM)

    values = ()
    taps = ()
    for kd in tl.static_range(DEPTHS):
        own_depth = depth + kd * DEPTH.dilation
        in_slice = addressing.inside(live, own_depth, D, FORM.rank > 2)
        found = ()
        codes = ()
        for r in tl.static_range(ROWS):
            inside = addressing.inside(in_slice, row + r, H, FORM.rank > 1)
            vectors = (own_depth * strides[2] + (row + r) * strides[3] + opening, step, first)
            loaded = addressing.load_row(x0, vectors, inside, W, COUNT, FILL, TYPE, FORM)
            there = addressing.kept_row(kept, own_depth, row + r, inside, W, COUNT, 0, FORM)
            columns = ()
            own = ()
            for c in tl.static_range(COUNT * CHUNK):
                v = comparable(loaded[c], WITH_TAPS)
                number = numbers[c]
                if FORM.mask > 0:
                    v = tl.where(there[c] != 0, v, FILL)
                    if WITH_TAPS:  # below all others
                        number += tl.where(there[c] != 0, 0, -CODE_ZERO if ASM else NOT_THERE)
                columns = columns + (v,)
                own = own + (number,)
            maxima, winners = sliding(
                columns, own, ORIGIN, 1, Q, COLUMN, MODE.groups[1], WITH_TAPS, ASM
            )
            found = found + maxima
            line = number_of(r, row, ROW) * COLUMN.window  # with taps, only 1D is dilated
            if WITH_TAPS and r < ROW.start:
                line = addressing.as_block(line, FORM)
            for q in tl.static_range(Q):
                codes = codes + ((winners[q] + line) if WITH_TAPS else 0,)
        new = ()
        new_taps = ()
        for q in tl.static_range(Q):
            maxima, winners = sliding(found, codes, q, Q, R, ROW, MODE.groups[0], WITH_TAPS, ASM)
            for r in tl.static_range(R):
                m = maxima[r]
                tap = 0
                if WITH_TAPS:
                    tap = winners[r]
                    is_there = tap >= (CODE_ZERO if ASM else 0)
                    if ASM:
                        tap = tap.to(tl.int32, bitcast=True) & 0x7FFFFF
                    tap -= r * ROW.stride * COLUMN.window + q * COLUMN.stride
                    if COLUMN.dilation > 1:
                        tap = tap // COLUMN.dilation
                    tap += kd * (ROW.window * COLUMN.window)
                    if kd == 0 and DEPTH.start > 0:
                        above = number_of(0, depth, DEPTH) * (ROW.window * COLUMN.window)
                        tap += addressing.as_block(above, FORM)
                    if WITH_TAPS == MASKED:
                        tap = tl.where(is_there, tap, -1)
                if kd > 0:
                    m, tap = better(values[q * R + r], taps[q * R + r], m, tap, WITH_TAPS, False)
                new = new + (m,)
                new_taps = new_taps + (tap,)
        values = new
        taps = new_taps

    no_tap = addressing.as_block(tl.zeros([LANES], tl.int32), FORM)
    rows = (od * OH + row_tile * R, tl.where(live, OH - row_tile * R, 0))
    for r in tl.static_range(R):
        addressing.store_row(y + plane, values, place, rows, r, C, OW, r, R, Q, FORM)
        if WITH_TAPS:
            numbered = ()
            for q in tl.static_range(Q):
                # The tap of a window that has only one is a scalar; here it becomes a block.
                numbered = numbered + (no_tap + taps[q * R + r],)
            addressing.store_row(t + plane, numbered, place, rows, r, C, OW, 0, 1, Q, FORM)
