"""The gradient of max pooling at stride 1 from one-byte taps, two windows to a word.

As in ``max_pooling_grad`` the gradients are first added up the rows, which also picks the winners' column, and then
along each row. Two taps, as two 16-bit numbers in one word, are compared by one instruction that sets two predicates;
the column is picked by a packed minimum, as what is left of a tap that won elsewhere is never a column. Small integers
are compared as the denormal half-precision numbers whose bits they are.
"""

# ruff: noqa: B007  (Triton compiles no unpacking)

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import join_columns, lane_numbers, plane_offset, split_columns, tile_of, widened

_RUNTIME = [
    *("lanes", "C", "H", "W", "OH", "OW", "across", "gn", "gc", "gh", "gw"),
    *("tn", "tc", "th", "tw", "xn", "xc", "xh", "xw"),
]


@triton.constexpr_function
def row_shift(taps, width):
    """How far right the product with ``row_multiplier`` is shifted: 8, which moves whole bytes, or more."""
    return next(s for s in range(8, 16) if all(tap * -(-(2**s) // width) >> s == tap // width for tap in range(taps)))


@triton.constexpr_function
def row_multiplier(taps, width):
    """A tap times this, shifted right by ``row_shift``, is the tap's row; the product has 16 bits."""
    return -(-(2 ** row_shift(taps, width)) // width)


@triton.constexpr_function
def packed(low, high):
    return f"0x{(high & 0xFFFF) << 16 | low & 0xFFFF:08x}"


@triton.constexpr_function
def conditional_sum(result, predicate, term, is_first):
    """PTX: ``result`` plus ``term`` under a predicate; the first term is selected, not added to 0."""
    if is_first:
        return f"selp.f32 {result}, {term}, 0f00000000, {predicate};"
    return f"@{predicate} add.rn.f32 {result}, {result}, {term};"


@triton.constexpr_function
def up_the_rows(rows, height, width, tap_row, halves):
    """PTX: a word of windows against ``rows`` input rows, of which row j is the windows' row ``tap_row + j``.

    ``halves`` says which of the two windows is asked for: 1, 2, or 3 for both.

    Outputs: two sums for each row, then a word of picked columns for each. Inputs: the same, then the word of the
    windows' winning rows, that of their taps, and the two gradients.
    """
    count = 3 * rows
    won, taps, first, second = (f"${2 * count + i}" for i in range(4))
    lines = []
    for j in range(rows):
        out = (2 * j, 2 * j + 1, 2 * rows + j)
        into = tuple(count + o for o in out)
        lines.append(f"mov.f32 ${out[0]}, ${into[0]}; mov.f32 ${out[1]}, ${into[1]};")
        if 0 <= tap_row + j < height:
            lines.append(f"mov.b32 c, {packed(tap_row + j, tap_row + j)}; setp.eq.f16x2 p|q, {won}, c;")
            # The windows' last row is the first to reach an input row.
            is_first = tap_row + j == height - 1
            if halves & 1:
                lines.append(conditional_sum(f"${out[0]}", "p", first, is_first))
            if halves & 2:
                lines.append(conditional_sum(f"${out[1]}", "q", second, is_first))
            before = -(tap_row + j) * width
            lines.append(
                f"mov.b32 c, {packed(before, before)}; add.u16x2 d, {taps}, c; min.u16x2 ${out[2]}, d, ${into[2]};"
            )
        else:
            lines.append(f"mov.b32 ${out[2]}, ${into[2]};")
    return "{.reg .pred p, q; .reg .b32 c, d; " + " ".join(lines) + "}"


@triton.constexpr_function
def row_constraints(rows):
    return ",".join(["=&f"] * (2 * rows) + ["=&r"] * rows + ["f"] * (2 * rows) + ["r"] * rows + ["r", "r", "f", "f"])


@triton.constexpr_function
def row_types(rows):
    return tuple([tl.float32] * (2 * rows) + [tl.int32] * rows)


@triton.constexpr_function
def along_the_row(width, first, second, targets):
    """PTX: a word of picked columns and two sums, spread over ``targets`` sums of their row.

    The first window's tap ``first + i`` lies on target i, the second's ``second + i``. Outputs: the targets; inputs:
    the same, the word, and the two sums.
    """
    word, one, other = (f"${2 * targets + i}" for i in range(3))
    lines = []
    for i in range(targets):
        low, high = (tap + i if 0 <= tap + i < width else None for tap in (first, second))
        lines.append(f"mov.f32 ${i}, ${targets + i};")
        if low is not None or high is not None:
            # No picked column equals a NaN.
            constant = packed(-1 if low is None else low, -1 if high is None else high)
            lines.append(f"mov.b32 c, {constant}; setp.eq.f16x2 p|q, {word}, c;")
        if low is not None:
            lines.append(conditional_sum(f"${i}", "p", one, low == width - 1))
        if high is not None:
            lines.append(conditional_sum(f"${i}", "q", other, high == width - 1))
    return "{.reg .pred p, q; .reg .b32 c; " + " ".join(lines) + "}"


@triton.constexpr_function
def two_along_the_row(width):
    """PTX: the same for two planes side by side, whose windows lie at the same column: taps 0 to ``width`` - 1.

    Outputs: the first plane's targets, then the second's; inputs: the same, the word, and the two sums.
    """
    word, one, other = (f"${4 * width + i}" for i in range(3))
    lines = []
    for i in range(width):
        lines.append(f"mov.f32 ${i}, ${2 * width + i}; mov.f32 ${width + i}, ${3 * width + i};")
        lines.append(f"mov.b32 c, {packed(i, i)}; setp.eq.f16x2 p|q, {word}, c;")
        lines.append(conditional_sum(f"${i}", "p", one, i == width - 1))
        lines.append(conditional_sum(f"${width + i}", "q", other, i == width - 1))
    return "{.reg .pred p, q; .reg .b32 c; " + " ".join(lines) + "}"


@triton.constexpr_function
def target_constraints(targets):
    return ",".join(["=&f"] * targets + ["f"] * targets + ["r", "f", "f"])


@triton.constexpr_function
def target_types(targets):
    return tuple([tl.float32] * targets)


BYTES_APART = tl.constexpr("prmt.b32 $0, $2, $3, 0x5150; prmt.b32 $1, $2, $3, 0x5352;")
"""PTX: the four bytes of a word as two words of two 16-bit numbers, with another word's second byte above each."""

HIGH_BYTES = tl.constexpr("prmt.b32 $0, $1, $2, 0x5351;")
"""PTX: the upper bytes of two 16-bit numbers, with another word's second byte above each."""

SPOILT = tl.constexpr(-16711936)
"""0xFF00FF00: what makes two 16-bit numbers equal to no tap and to no row, and a half-precision number NaN."""


@triton.jit
def bytes_apart(word, above, ASM: tl.constexpr):
    """The four bytes of a word as two words of two 16-bit numbers; ``above`` is 0 or SPOILT."""
    if ASM:
        return tl.inline_asm_elementwise(
            BYTES_APART, "=&r,=r,r,r", [word, above], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )
    else:
        low = (word & 255) | ((word & 0xFF00) << 8)
        high = ((word >> 16) & 255) | ((word >> 8) & 0xFF0000)
        return low | above, high | above


@triton.jit
def winning_rows(taps, above, KH: tl.constexpr, KW: tl.constexpr, ASM: tl.constexpr):
    """The rows in which two windows' taps lie; ``above`` is 0 or SPOILT."""
    product = taps * row_multiplier(KH * KW, KW)
    if ASM and row_shift(KH * KW, KW) == 8:
        return tl.inline_asm_elementwise(HIGH_BYTES, "=r,r,r", [product, above], dtype=tl.int32, is_pure=True, pack=1)
    else:
        return ((product >> row_shift(KH * KW, KW)) & ((65536 >> row_shift(KH * KW, KW)) - 1) * 0x00010001) | above


@triton.jit
def add_up_the_rows(
    state, taps, rows, first, second, TAP_ROW: tl.constexpr, R: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    HALVES: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """``state`` (two sums per input row, then a word of columns for each) with one more word of windows."""
    if ASM:
        return tl.inline_asm_elementwise(
            up_the_rows(R, KH, KW, TAP_ROW, HALVES), row_constraints(R), state + (rows, taps, first, second),
            dtype=row_types(R), is_pure=True, pack=1,
        )  # fmt: skip
    else:
        sums = ()
        columns = ()
        for j in tl.static_range(R):
            one = state[2 * j]
            other = state[2 * j + 1]
            column = state[2 * R + j]
            if TAP_ROW + j >= 0 and TAP_ROW + j < KH:
                one = tl.where((rows & 0xFFFF) == TAP_ROW + j, one + first, one)
                other = tl.where((rows >> 16) == TAP_ROW + j, other + second, other)
                low = ((taps & 0xFFFF) - (TAP_ROW + j) * KW) & 0xFFFF
                high = ((taps >> 16) - (TAP_ROW + j) * KW) & 0xFFFF
                low = tl.minimum(low, column & 0xFFFF)
                high = tl.minimum(high, (column >> 16) & 0xFFFF)
                column = low | (high << 16)
            sums = sums + (one, other)
            columns = columns + (column,)
        return sums + columns


@triton.jit
def no_windows(R: tl.constexpr, B: tl.constexpr):
    """What ``add_up_the_rows`` begins with."""
    sums = ()
    columns = ()
    for j in tl.static_range(R):
        sums = sums + (tl.zeros([B], tl.float32), tl.zeros([B], tl.float32))
        columns = columns + (tl.full([B], -1, tl.int32),)
    return sums + columns


@triton.jit
def spread(
    targets, columns, one, other, FIRST: tl.constexpr, SECOND: tl.constexpr, T: tl.constexpr, KW: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """T sums along a row with two windows' sums where these were won: tap ``FIRST + i`` (``SECOND + i``) at i."""
    if ASM:
        return tl.inline_asm_elementwise(
            along_the_row(KW, FIRST, SECOND, T), target_constraints(T), targets + (columns, one, other),
            dtype=target_types(T), is_pure=True, pack=1,
        )  # fmt: skip
    else:
        result = ()
        for i in tl.static_range(T):
            s = targets[i]
            if FIRST + i >= 0 and FIRST + i < KW:
                s = tl.where((columns & 0xFFFF) == FIRST + i, s + one, s)
            if SECOND + i >= 0 and SECOND + i < KW:
                s = tl.where(((columns >> 16) & 0xFFFF) == SECOND + i, s + other, s)
            result = result + (s,)
        return result


@triton.jit
def spread_two(targets, columns, one, other, KW: tl.constexpr, ASM: tl.constexpr):
    """The same for two planes: KW sums of the first, then KW of the second."""
    if ASM:
        return tl.inline_asm_elementwise(
            two_along_the_row(KW), target_constraints(2 * KW), targets + (columns, one, other),
            dtype=target_types(2 * KW), is_pure=True, pack=1,
        )  # fmt: skip
    else:
        firsts = ()
        seconds = ()
        for i in tl.static_range(KW):
            firsts = firsts + (tl.where((columns & 0xFFFF) == i, targets[i] + one, targets[i]),)
            second = targets[KW + i]
            seconds = seconds + (tl.where(((columns >> 16) & 0xFFFF) == i, second + other, second),)
        return firsts + seconds


@triton.jit
def nearest(position, size):
    """The position itself if it is inside, else the nearest that is."""
    return tl.minimum(tl.maximum(position, 0), size - 1)


@triton.jit
def outside(position, size):
    """SPOILT where a position is not inside, else 0."""
    return tl.where(position == nearest(position, size), 0, SPOILT)


@triton.jit(do_not_specialize=_RUNTIME)
def grad_words_of_columns(
    g, t, dx, lanes, C, H, W, OH, OW, extent, gn, gc, gh, gw, tn, tc, th, tw, xn, xc, xh, xw,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, M: tl.constexpr, Q: tl.constexpr,
    V: tl.constexpr, STORE: tl.constexpr, B: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """A lane owns Q columns of ``extent`` rows of inputs, and walks down them, M rows of windows per turn.

    g, t: incoming gradient and taps of sizes (N, C, OH, OW); dx: the result of sizes (N, C, H, W). OW and the strides
    of g and t count vectors of V windows, V a multiple of 4; W and the strides of dx vectors of STORE inputs; Q is a
    multiple of both. gw, tw and xw are 1. ``extent + KH - 1`` is a multiple of M. What lies outside is not masked: the
    nearest inside is read instead, and its tap is spoilt.
    """
    lane = lane_numbers(B, False)
    live = lane < lanes
    qg, rg, _, plane = tile_of(tl.minimum(lane, lanes - 1), (W * STORE + Q - 1) // Q, (H + extent - 1) // extent, 1, 2)
    # Windows FIRST to LAST reach the lane's columns; they are read in whole vectors LOW to HIGH.
    FIRST: tl.constexpr = PW - KW + 1
    LAST: tl.constexpr = Q - 1 + PW
    LOW: tl.constexpr = FIRST // V
    HIGH: tl.constexpr = LAST // V
    FIRST_WORD: tl.constexpr = FIRST // 2 - LOW * (V // 2)
    WORDS: tl.constexpr = LAST // 2 - FIRST // 2 + 1
    g0 = g + plane_offset(plane, C, gn, gc) * V
    t0 = (t + plane_offset(plane, C, tn, tc) * V).to(tl.pointer_type(tl.int32), bitcast=True)
    x0 = dx + plane_offset(plane, C, xn, xc) * STORE
    # For each word and each input row that the next windows reach: two sums and the picked columns.
    states = ()
    for i in tl.static_range(WORDS):
        states = states + no_windows(KH, B)
    first_row = rg * extent - (KH - 1)
    for turn in range(0, extent + (KH - 1), M):
        for k in tl.static_range(M):
            row = first_row + turn + k
            oh = nearest(row + PH, OH)
            no_row = outside(row + PH, OH)
            gradients = ()
            words = ()
            spoilers = ()
            for c in tl.static_range(LOW, HIGH + 1):
                vector = nearest(qg * (Q // V) + c, OW)
                spoiler = no_row | outside(qg * (Q // V) + c, OW)
                at = (g0 + (oh * gh + vector) * V)[:, None] + tl.arange(0, V)[None, :]
                gradients = gradients + split_columns(widened(tl.load(at), tl.float32), B, V)
                at = (t0 + (oh * th + vector) * (V // 4))[:, None] + tl.arange(0, V // 4)[None, :]
                read = split_columns(tl.load(at), B, V // 4)
                for i in tl.static_range(V // 4):
                    low, high = bytes_apart(read[i], spoiler, ASM)
                    words = words + (low, high)
                    spoilers = spoilers + (spoiler, spoiler)
            sums = ()
            for v in tl.static_range(Q):
                sums = sums + (tl.zeros([B], tl.float32),)
            new = ()
            for i in tl.static_range(WORDS):
                state = ()
                for e in tl.static_range(3 * KH):
                    state = state + (states[i * 3 * KH + e],)
                taps = words[FIRST_WORD + i]
                state = add_up_the_rows(
                    state, taps, winning_rows(taps, spoilers[FIRST_WORD + i], KH, KW, ASM),
                    gradients[2 * (FIRST_WORD + i)], gradients[2 * (FIRST_WORD + i) + 1], 0, KH, KH, KW,
                    (1 if 2 * (FIRST // 2 + i) >= FIRST else 0) + (2 if 2 * (FIRST // 2 + i) < LAST else 0), ASM,
                )  # fmt: skip
                # The first input row has seen all its windows. Window b starts at column b - PW of the lane's.
                sums = spread(
                    sums, state[2 * KH], state[0], state[1], PW - 2 * (FIRST // 2 + i), PW - 2 * (FIRST // 2 + i) - 1,
                    Q, KW, ASM,
                )  # fmt: skip
                new = new + one_row_further(state, KH, B)
            states = new
            ok = live & (turn + k >= KH - 1) & (row < H)
            for p in tl.static_range(Q // STORE):
                piece = join_columns(sums, p * STORE, 1, B, STORE).to(dx.dtype.element_ty)
                column = qg * (Q // STORE) + p
                at = (x0 + (row * xh + column) * STORE)[:, None] + tl.arange(0, STORE)[None, :]
                tl.store(at, piece, mask=(ok & (column < W))[:, None])


@triton.jit
def one_row_further(state, KH: tl.constexpr, B: tl.constexpr):
    """``state`` without its first row, and with a new last one."""
    sums = ()
    columns = ()
    for j in tl.static_range(1, KH):
        sums = sums + (state[2 * j], state[2 * j + 1])
        columns = columns + (state[2 * KH + j],)
    return sums + (tl.zeros([B], tl.float32), tl.zeros([B], tl.float32)) + columns + (tl.full([B], -1, tl.int32),)


@triton.jit(do_not_specialize=_RUNTIME)
def grad_words_of_channels(
    g, t, dx, lanes, C, H, W, OH, OW, extent, gn, gc, gh, gw, tn, tc, th, tw, xn, xc, xh, xw,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, R: tl.constexpr, M: tl.constexpr,
    B: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """A lane owns two channels of R rows by ``extent`` columns of inputs, and walks along them, M windows per turn.

    g, t: incoming gradient and taps of sizes (N, C, OH, OW); dx: the result of sizes (N, C, H, W); C and all strides
    count pairs of channels, which lie side by side. ``extent + KW - 1`` is a multiple of M. What lies outside is not
    masked: the nearest inside is read instead, and its tap is spoilt.
    """
    lane = lane_numbers(B, False)
    live = lane < lanes
    lane = tl.minimum(lane, lanes - 1)
    cc = lane % C
    strip, rg, _, sample = tile_of(lane // C, (W + extent - 1) // extent, (H + R - 1) // R, 1, 2)
    pair = tl.arange(0, 2)[None, :]
    sample = sample.to(tl.int64)
    g0 = g + (sample * gn + cc) * 2
    t0 = (t + (sample * tn + cc) * 2).to(tl.pointer_type(tl.int16), bitcast=True)
    x0 = dx + (sample * xn + cc) * 2
    gradient_rows = ()
    tap_rows = ()
    spoilers = ()
    for a in tl.static_range(R + KH - 1):
        oh = rg * R + (PH - KH + 1 + a)
        gradient_rows = gradient_rows + (nearest(oh, OH) * gh * 2,)
        tap_rows = tap_rows + (nearest(oh, OH) * th,)
        spoilers = spoilers + (outside(oh, OH),)
    # For each input row, the sums of the KW columns that the next windows reach: first channel, then second.
    sums = ()
    for i in tl.static_range(R * 2 * KW):
        sums = sums + (tl.zeros([B], tl.float32),)
    first_column = strip * extent - (KW - 1)
    for turn in range(0, extent + (KW - 1), M):
        for k in tl.static_range(M):
            column = first_column + turn + k
            ow = nearest(column + PW, OW)
            no_column = outside(column + PW, OW)
            state = no_windows(R, B)
            for a in tl.static_range(R + KH - 1):
                both = tl.load((g0 + ow * gw * 2 + gradient_rows[a])[:, None] + pair)
                gradients = split_columns(widened(both, tl.float32), B, 2)
                read = tl.load(t0 + ow * tw + tap_rows[a]).to(tl.int32)
                taps, _ = bytes_apart(read, spoilers[a], ASM)
                state = add_up_the_rows(
                    state, taps, winning_rows(taps, spoilers[a], KH, KW, ASM), gradients[0], gradients[1],
                    KH - 1 - a, R, KH, KW, 3, ASM,
                )  # fmt: skip
            new = ()
            for j in tl.static_range(R):
                targets = ()
                for i in tl.static_range(2 * KW):
                    targets = targets + (sums[j * 2 * KW + i],)
                # A column outside has won nothing.
                picked = state[2 * R + j] | no_column
                targets = spread_two(targets, picked, state[2 * j], state[2 * j + 1], KW, ASM)
                row = rg * R + j
                ok = live & (row < H) & (turn + k >= KW - 1) & (column < W)
                piece = join_columns((targets[0], targets[KW]), 0, 1, B, 2).to(dx.dtype.element_ty)
                tl.store((x0 + (row * xh + column * xw) * 2)[:, None] + pair, piece, mask=ok[:, None])
                for e in tl.static_range(2):
                    for i in tl.static_range(1, KW):
                        new = new + (targets[e * KW + i],)
                    new = new + (tl.zeros([B], tl.float32),)
            sums = new
