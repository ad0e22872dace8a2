"""Keys: a 16-bit number and the tap that it comes from as one integer, of which the greatest is the first maximum.

Above lies the number, as an int16 of the same order; below a count that falls from position to position. One integer
maximum then does what else takes a comparison and two selections. Each path in inline assembly has a plain twin.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import join_columns


@triton.constexpr_function
def ordering(bfloat16):
    """PTX: a word of two halves as two int16 in the same order: -0 as 0, every NaN as the same greatest number.

    Adding 0 makes zeros positive and NaNs 0x7FFF; then all but the sign of the negative ones is inverted. prmt with
    0xBB99 spreads both signs.
    """
    add = "mov.b32 o, 0x3F803F80; fma.rn.bf16x2 c, $1, o, z;" if bfloat16 else "mov.b32 o, z; add.rn.f16x2 c, $1, o;"
    return (
        f"{{.reg .b32 z, o, c, s; mov.b32 z, 0; {add} prmt.b32 s, c, c, 0xBB99; lop3.b32 $0, c, s, 0x7FFF7FFF, 0x78;}}"
    )


RESTORING = tl.constexpr(
    "{.reg .b32 s, t; prmt.b32 t, $1, $2, 0x7632; prmt.b32 s, t, t, 0xBB99; lop3.b32 $0, t, s, 0x7FFF7FFF, 0x78;}"
)
"""PTX: the word of the values that two keys begin with."""

LOW_HALVES = tl.constexpr("prmt.b32 $0, $1, $2, 0x5410;")
"""PTX: the lower halves of two words as one."""

EVEN_BYTES = tl.constexpr("prmt.b32 $0, $1, $2, 0x6420;")
"""PTX: the even bytes of two words as one."""

TWO_BYTES = tl.constexpr("{.reg .b32 t; prmt.b32 t, $1, $1, 0x6420; cvt.u16.u32 $0, t;}")
"""PTX: the even bytes of a word as 16 bits."""

GREATEST_OF_THREE = tl.constexpr("{.reg .s32 m; max.s32 m, $1, $2; max.s32 $0, m, $3;}")
"""PTX: one instruction on sm_90, as long as nobody takes the two apart."""

KEY_BASE = tl.constexpr(0x7FFF)
"""The lower half of a lane's first position's key; each next position's is 1 less, and a row's the window's width."""
PADDING = tl.constexpr(-2147450880)
"""Two ordered halves 0x8000: below every number, and equal to none."""


@triton.jit
def ordered(word, BFLOAT16: tl.constexpr, ASM: tl.constexpr):
    """A word of two halves as a word of two int16 in the same order; every NaN is the same and the greatest."""
    if ASM:
        return tl.inline_asm_elementwise(ordering(BFLOAT16), "=r,r", [word], dtype=tl.int32, is_pure=True, pack=1)
    else:
        return ordered_half(word & 0xFFFF, BFLOAT16) | (ordered_half((word >> 16) & 0xFFFF, BFLOAT16) << 16)


@triton.jit
def ordered_half(bits, BFLOAT16: tl.constexpr):
    INFINITY: tl.constexpr = 0x7F80 if BFLOAT16 else 0x7C00
    bits = tl.where(bits == 0x8000, 0, bits)
    bits = tl.where((bits & 0x7FFF) > INFINITY, 0x7FFF, bits)
    return tl.where(bits >= 0x8000, bits ^ 0x7FFF, bits)


@triton.jit
def restored(first, second, ASM: tl.constexpr):
    """The word of the two values of two keys."""
    if ASM:
        return tl.inline_asm_elementwise(RESTORING, "=r,r,r", [first, second], dtype=tl.int32, is_pure=True, pack=1)
    else:
        low = (first >> 16) & 0xFFFF
        high = (second >> 16) & 0xFFFF
        low = tl.where(low >= 0x8000, low ^ 0x7FFF, low)
        high = tl.where(high >= 0x8000, high ^ 0x7FFF, high)
        return low | (high << 16)


@triton.jit
def low_halves(first, second, ASM: tl.constexpr):
    """The lower halves of two words, as one."""
    if ASM:
        return tl.inline_asm_elementwise(LOW_HALVES, "=r,r,r", [first, second], dtype=tl.int32, is_pure=True, pack=1)
    else:
        return (first & 0xFFFF) | (second << 16)


@triton.jit
def even_bytes(first, second, ASM: tl.constexpr):
    """The even bytes of two words whose odd ones are 0, as one."""
    if ASM:
        return tl.inline_asm_elementwise(EVEN_BYTES, "=r,r,r", [first, second], dtype=tl.int32, is_pure=True, pack=1)
    else:
        first = (first | (first >> 8)) & 0xFFFF
        second = (second | (second >> 8)) & 0xFFFF
        return first | (second << 16)


@triton.jit
def two_bytes(word, ASM: tl.constexpr):
    """The even bytes of a word whose odd ones are 0, as an int16."""
    if ASM:
        return tl.inline_asm_elementwise(TWO_BYTES, "=h,r", [word], dtype=tl.int16, is_pure=True, pack=1)
    else:
        return (word | (word >> 8)).to(tl.int16)


@triton.jit
def greatest(a, b, c, ASM: tl.constexpr):
    if ASM:
        return tl.inline_asm_elementwise(GREATEST_OF_THREE, "=r,r,r,r", [a, b, c], dtype=tl.int32, is_pure=True, pack=1)
    else:
        return tl.maximum(tl.maximum(a, b), c)


@triton.jit
def keys_apart(first, second, origin, ASM: tl.constexpr):
    """The word of two keys' values, and that of their taps, counted from where the lower halves are ``origin``'s."""
    return restored(first, second, ASM), origin - low_halves(first, second, ASM)


@triton.jit
def store_keys(y, t, out, keys, origin, ok, V: tl.constexpr, B: tl.constexpr, ASM: tl.constexpr):
    """Values and taps of V columns, V a multiple of 4: one store each."""
    words = ()
    taps = ()
    for i in tl.static_range(V // 4):
        word, first = keys_apart(keys[4 * i], keys[4 * i + 1], origin - (0x00010000 + 0x00010001 * 4 * i), ASM)
        words = words + (word,)
        word, second = keys_apart(keys[4 * i + 2], keys[4 * i + 3], origin - (0x00030002 + 0x00010001 * 4 * i), ASM)
        words = words + (word,)
        taps = taps + (even_bytes(first, second, ASM),)
    at = (out * (V // 2))[:, None] + tl.arange(0, V // 2)[None, :]
    values = join_columns(words, 0, 1, B, V // 2)
    tl.store(y.to(tl.pointer_type(tl.int32), bitcast=True)[:, None] + at, values, mask=ok[:, None])
    at = (out * (V // 4))[:, None] + tl.arange(0, V // 4)[None, :]
    joined = join_columns(taps, 0, 1, B, V // 4)
    tl.store(t.to(tl.pointer_type(tl.int32), bitcast=True)[:, None] + at, joined, mask=ok[:, None])
