"""One-byte taps, two to a word, and the gradients of their windows: added up the rows, then along them.

Two taps, as two 16-bit numbers in one word, are compared by one instruction that sets two predicates; the column is
picked by a packed minimum, as what is left of a tap that won elsewhere is never a column. Small integers are compared
as the denormal half-precision numbers whose bits they are. Each path in inline assembly has a plain twin.
"""

from __future__ import annotations

import triton
import triton.language as tl


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
