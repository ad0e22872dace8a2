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
def row_multiplier(width):
    """A tap below 256 times this, shifted right by 8, is the tap's row."""
    return -(-256 // width)


@triton.constexpr_function
def packed(low, high):
    return f"0x{(high & 0xFFFF) << 16 | low & 0xFFFF:08x}"


@triton.constexpr_function
def up_the_rows(rows, height, width, tap_row):
    """PTX: a word of windows against ``rows`` input rows, of which row j is the windows' row ``tap_row + j``.

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
            lines.append(f"@p add.rn.f32 ${out[0]}, ${into[0]}, {first}; @q add.rn.f32 ${out[1]}, ${into[1]}, {second};")
            before = -(tap_row + j) * width
            lines.append(f"mov.b32 c, {packed(before, before)}; add.u16x2 d, {taps}, c; min.u16x2 ${out[2]}, d, ${into[2]};")
        else:
            lines.append(f"mov.b32 ${out[2]}, ${into[2]};")
    return "{.reg .pred p, q; .reg .b32 c, d; " + " ".join(lines) + "}"


@triton.constexpr_function
def row_constraints(rows):
    return ",".join(
        ["=&f"] * (2 * rows) + ["=&r"] * rows + ["f"] * (2 * rows) + ["r"] * rows + ["r", "r", "f", "f"]
    )


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
            lines.append(f"@p add.rn.f32 ${i}, ${i}, {one};")
        if high is not None:
            lines.append(f"@q add.rn.f32 ${i}, ${i}, {other};")
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
        lines.append(f"@p add.rn.f32 ${i}, ${i}, {one}; @q add.rn.f32 ${width + i}, ${width + i}, {other};")
    return "{.reg .pred p, q; .reg .b32 c; " + " ".join(lines) + "}"


@triton.constexpr_function
def target_constraints(targets):
    return ",".join(["=&f"] * targets + ["f"] * targets + ["r", "f", "f"])


@triton.constexpr_function
def target_types(targets):
    return tuple([tl.float32] * targets)


BYTES_APART = tl.constexpr("{.reg .b32 z; mov.b32 z, 0; prmt.b32 $0, $2, z, 0x4140; prmt.b32 $1, $2, z, 0x4342;}")
"""PTX: the four bytes of a word as two words of two 16-bit numbers."""

HIGH_BYTES = tl.constexpr("{.reg .b32 z; mov.b32 z, 0; prmt.b32 $0, $1, z, 0x4341;}")
"""PTX: the upper bytes of two 16-bit numbers."""


@triton.jit
def bytes_apart(word, ASM: tl.constexpr):
    """The four bytes of a word as two words of two 16-bit numbers."""
    if ASM:
        return tl.inline_asm_elementwise(
            BYTES_APART, "=r,=r,r", [word], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )
    else:
        low = (word & 255) | ((word & 0xFF00) << 8)
        high = ((word >> 16) & 255) | ((word >> 8) & 0xFF0000)
        return low, high


@triton.jit
def winning_rows(taps, KW: tl.constexpr, ASM: tl.constexpr):
    """The rows in which two windows' taps lie."""
    product = taps * row_multiplier(KW)
    if ASM:
        return tl.inline_asm_elementwise(HIGH_BYTES, "=r,r", [product], dtype=tl.int32, is_pure=True, pack=1)
    else:
        return (product >> 8) & 0x00FF00FF


@triton.jit
def add_up_the_rows(
    state, taps, rows, first, second, TAP_ROW: tl.constexpr, R: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """``state`` (two sums per input row, then a word of columns for each) with one more word of windows."""
    if ASM:
        return tl.inline_asm_elementwise(
            up_the_rows(R, KH, KW, TAP_ROW), row_constraints(R), state + (rows, taps, first, second),
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


@triton.jit(do_not_specialize=_RUNTIME)
def grad_words_of_columns(
    g, t, dx, lanes, C, H, W, OH, OW, across, gn, gc, gh, gw, tn, tc, th, tw, xn, xc, xh, xw,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, R: tl.constexpr, Q: tl.constexpr,
    V: tl.constexpr, STORE: tl.constexpr, B: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """A lane owns R rows by Q columns of inputs; a word holds two neighbouring windows of a row.

    g, t: incoming gradient and taps of sizes (N, C, OH, OW); dx: the result of sizes (N, C, H, W). OW and the strides
    of g and t count vectors of V windows, V a multiple of 4; W and the strides of dx vectors of STORE inputs; Q is a
    multiple of both. gw, tw, xw and ``across`` are 1.
    """
    lane = lane_numbers(B, False)
    live = lane < lanes
    qg, rg, _, plane = tile_of(lane, (W * STORE + Q - 1) // Q, (H + R - 1) // R, 1, 2)
    # Windows FIRST to LAST reach the lane's columns; they are read in whole vectors LOW to HIGH.
    FIRST: tl.constexpr = PW - KW + 1
    LAST: tl.constexpr = Q - 1 + PW
    LOW: tl.constexpr = FIRST // V
    HIGH: tl.constexpr = LAST // V
    FIRST_WORD: tl.constexpr = FIRST // 2 - LOW * (V // 2)
    WORDS: tl.constexpr = LAST // 2 - FIRST // 2 + 1
    first_vector = qg * (Q // V)
    g0 = g + plane_offset(plane, C, gn, gc) * V + first_vector * V
    t0 = (t + plane_offset(plane, C, tn, tc) * V).to(tl.pointer_type(tl.int32), bitcast=True) + first_vector * (V // 4)
    states = ()
    for i in tl.static_range(WORDS):
        states = states + no_windows(R, B)
    for a in tl.static_range(R + KH - 1):
        oh = rg * R + (PH - KH + 1 + a)
        inside = live & (oh.to(tl.uint32) < OH.to(tl.uint32))
        gradients = ()
        words = ()
        for c in tl.static_range(LOW, HIGH + 1):
            ok = (inside & ((first_vector + c).to(tl.uint32) < OW.to(tl.uint32)))[:, None]
            at = (g0 + oh * gh * V)[:, None] + (c * V + tl.arange(0, V)[None, :])
            gradients = gradients + split_columns(widened(tl.load(at, mask=ok, other=0.0), tl.float32), B, V)
            at = (t0 + oh * th * (V // 4))[:, None] + (c * (V // 4) + tl.arange(0, V // 4)[None, :])
            read = split_columns(tl.load(at, mask=ok, other=-1), B, V // 4)
            for i in tl.static_range(V // 4):
                low, high = bytes_apart(read[i], ASM)
                words = words + (low, high)
        new = ()
        for i in tl.static_range(WORDS):
            state = ()
            for e in tl.static_range(3 * R):
                state = state + (states[i * 3 * R + e],)
            taps = words[FIRST_WORD + i]
            new = new + add_up_the_rows(
                state, taps, winning_rows(taps, KW, ASM), gradients[2 * (FIRST_WORD + i)],
                gradients[2 * (FIRST_WORD + i) + 1], KH - 1 - a, R, KH, KW, ASM,
            )  # fmt: skip
        states = new
    x_plane = plane_offset(plane, C, xn, xc) * STORE
    for j in tl.static_range(R):
        sums = ()
        for v in tl.static_range(Q):
            sums = sums + (tl.zeros([B], tl.float32),)
        for i in tl.static_range(WORDS):
            # Window b starts at column b - PW of the lane's.
            sums = spread(
                sums, states[(i * 3 + 2) * R + j], states[i * 3 * R + 2 * j], states[i * 3 * R + 2 * j + 1],
                PW - 2 * (FIRST // 2 + i), PW - 2 * (FIRST // 2 + i) - 1, Q, KW, ASM,
            )  # fmt: skip
        row = rg * R + j
        for p in tl.static_range(Q // STORE):
            piece = join_columns(sums, p * STORE, 1, B, STORE).to(dx.dtype.element_ty)
            column = qg * (Q // STORE) + p
            at = x_plane[:, None] + ((row * xh + column) * STORE)[:, None] + tl.arange(0, STORE)[None, :]
            tl.store(dx + at, piece, mask=(live & (row < H) & (column < W))[:, None])


@triton.jit(do_not_specialize=_RUNTIME)
def grad_words_of_channels(
    g, t, dx, lanes, C, H, W, OH, OW, across, gn, gc, gh, gw, tn, tc, th, tw, xn, xc, xh, xw,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, R: tl.constexpr, M: tl.constexpr,
    B: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """A lane owns two channels of R rows by ``across`` columns of inputs, and walks along them, M windows per turn.

    g, t: incoming gradient and taps of sizes (N, C, OH, OW); dx: the result of sizes (N, C, H, W); C and all strides
    count pairs of channels, which lie side by side. ``across + KW - 1`` is a multiple of M.
    """
    lane = lane_numbers(B, False)
    live = lane < lanes
    cc = lane % C
    strip, rg, _, sample = tile_of(lane // C, (W + across - 1) // across, (H + R - 1) // R, 1, 2)
    pair = tl.arange(0, 2)[None, :]
    first_column = strip * across
    first = first_column + (PW - KW + 1)
    sample = sample.to(tl.int64)
    g0 = g + ((sample * gn + cc) + first.to(tl.int64) * gw) * 2
    t0 = (t + (sample * tn + cc) * 2).to(tl.pointer_type(tl.int16), bitcast=True) + first.to(tl.int64) * tw
    dx0 = dx + ((sample * xn + cc) + (first_column - (KW - 1)).to(tl.int64) * xw) * 2
    # For each input row, the sums of the KW columns that the next windows reach: first channel, then second.
    sums = ()
    for i in tl.static_range(R * 2 * KW):
        sums = sums + (tl.zeros([B], tl.float32),)
    # Which rows of windows there are, one bit for each: testing a bit is one instruction.
    rows_inside = tl.zeros([B], tl.int32)
    for a in tl.static_range(R + KH - 1):
        oh = rg * R + (PH - KH + 1 + a)
        rows_inside = rows_inside | tl.where(live & (oh.to(tl.uint32) < OH.to(tl.uint32)), 1 << a, 0)
    for turn in range(0, across + (KW - 1), M):
        for k in tl.static_range(M):
            ow = first + turn + k
            inside = tl.where(ow.to(tl.uint32) < OW.to(tl.uint32), rows_inside, 0)
            state = no_windows(R, B)
            for a in tl.static_range(R + KH - 1):
                oh = rg * R + (PH - KH + 1 + a)
                ok = (inside & (1 << a)) != 0
                both = tl.load((g0 + oh * gh * 2)[:, None] + pair, mask=ok[:, None], other=0.0)
                gradients = split_columns(widened(both, tl.float32), B, 2)
                read = tl.load(t0 + oh * th, mask=ok, other=-1).to(tl.int32)
                taps, _ = bytes_apart(read, ASM)
                state = add_up_the_rows(
                    state, taps, winning_rows(taps, KW, ASM), gradients[0], gradients[1], KH - 1 - a, R, KH, KW, ASM
                )
            new = ()
            column = first_column + turn + k - (KW - 1)
            for j in tl.static_range(R):
                targets = ()
                for i in tl.static_range(2 * KW):
                    targets = targets + (sums[j * 2 * KW + i],)
                targets = spread_two(targets, state[2 * R + j], state[2 * j], state[2 * j + 1], KW, ASM)
                row = rg * R + j
                ok = live & (row < H) & (turn + k >= KW - 1) & (column < W)
                piece = join_columns((targets[0], targets[KW]), 0, 1, B, 2).to(dx.dtype.element_ty)
                tl.store((dx0 + row * xh * 2)[:, None] + pair, piece, mask=ok[:, None])
                for e in tl.static_range(2):
                    for i in tl.static_range(1, KW):
                        new = new + (targets[e * KW + i],)
                    new = new + (tl.zeros([B], tl.float32),)
            sums = new
            g0 = g0 + gw.to(tl.int64) * 2
            t0 = t0 + tw.to(tl.int64)
            dx0 = dx0 + xw.to(tl.int64) * 2
