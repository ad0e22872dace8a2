"""Pairs: two numbers of up to 16 bits in a word, compared by one instruction; for bytes also with their positions.

Bytes and int16 are compared as int16 (unsigned ones with the first bit inverted), halves as such. A lane's
row of V elements makes pairs of columns that lie V / 2 outputs apart, so that neighbouring pairs are neighbouring
columns in both halves; a vector of channels makes pairs of channels. As a key a byte is the upper half of 16 bits and
a count that falls from position to position the lower one: the greatest key is the first maximum (M3).
"""

# ruff: noqa: SIM108  (Triton compiles no choice between tuples)

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import join_columns, split_columns

NOT_PACKED = tl.constexpr(0)
INTEGERS = tl.constexpr(1)
KEYED_BYTES = tl.constexpr(2)
"""A byte and the number of its position."""
FLOAT16 = tl.constexpr(3)
BFLOAT16 = tl.constexpr(4)


@triton.constexpr_function
def outside(dtype):
    """A word of what padding holds, as it is loaded."""
    if dtype.is_floating():
        return -8323200 if dtype.name == "bf16" else -67044352  # -inf twice
    if not dtype.is_int_signed():
        return 0
    return -2139062144 if dtype.primitive_bitwidth == 8 else -2147450880


@triton.constexpr_function
def sign_bits(dtype):
    """What makes a word of unsigned numbers one of signed ones in the same order, and back."""
    if dtype.is_floating() or dtype.is_int_signed():
        return 0
    return -2139062144 if dtype.primitive_bitwidth == 8 else -2147450880


@triton.constexpr_function
def picking(size, first, second, keyed):
    """PTX: elements ``first`` and ``second`` of two words as the halves of one: bytes with their sign, or as keys."""
    if size == 2:
        selector = f"0x{5 + 2 * second}{4 + 2 * second}{1 + 2 * first}{2 * first}"
    elif keyed:
        selector = f"0x{4 + second}{4 + second}{first}{first}"
    else:
        selector = f"0x{12 + second:X}{4 + second}{8 + first:X}{first}"
    return f"prmt.b32 $0, $1, $2, {selector};"


@triton.constexpr_function
def joining(selector):
    return f"prmt.b32 $0, $1, $2, {selector};"


@triton.constexpr_function
def greater(pairs):
    kind = {3: "NaN.f16x2", 4: "NaN.bf16x2"}.get(pairs, "s16x2")
    return f"max.{kind} $0, $1, $2;"


GREATEST_OF_THREE = tl.constexpr("{.reg .b32 m; max.s16x2 m, $1, $2; max.s16x2 $0, m, $3;}")
"""PTX: one instruction on sm_90, as long as nobody takes the two apart."""


@triton.jit
def element(word, SIZE: tl.constexpr, NUMBER: tl.constexpr):
    """An element of a word with its sign."""
    BITS: tl.constexpr = 8 * SIZE
    return (word << (32 - BITS - BITS * NUMBER)) >> (32 - BITS)


@triton.jit
def pair_of(
    a, b, SIZE: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, KEYED: tl.constexpr, ASM: tl.constexpr
):  # fmt: skip
    """Element FIRST of ``a`` and SECOND of ``b`` as halves of a word; KEYED bytes above, with 0 below."""
    if ASM:
        word = tl.inline_asm_elementwise(
            picking(SIZE, FIRST, SECOND, KEYED), "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
        )
        if KEYED:
            word = word & -16711936
        return word
    else:
        low = element(a, SIZE, FIRST)
        high = element(b, SIZE, SECOND)
        if KEYED:
            low = low << 8
            high = high << 8
        return (low & 0xFFFF) | (high << 16)


@triton.jit
def greater_packed(a, b, PACKED: tl.constexpr, ASM: tl.constexpr):
    """The maxima of both halves."""
    if ASM:
        return tl.inline_asm_elementwise(greater(PACKED), "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1)
    elif PACKED == BFLOAT16:
        return (greater_float(a << 16, b << 16) >> 16) & 0xFFFF | greater_float(a & -65536, b & -65536)
    elif PACKED == FLOAT16:
        return greater_half(a & 0xFFFF, b & 0xFFFF) | (greater_half((a >> 16) & 0xFFFF, (b >> 16) & 0xFFFF) << 16)
    else:
        return (tl.maximum(a << 16, b << 16) >> 16) & 0xFFFF | (tl.maximum(a >> 16, b >> 16) << 16)


@triton.jit
def greatest_packed(a, b, c, PACKED: tl.constexpr, ASM: tl.constexpr):
    """The maxima of three."""
    if ASM and PACKED < FLOAT16:
        return tl.inline_asm_elementwise(GREATEST_OF_THREE, "=r,r,r,r", [a, b, c], dtype=tl.int32, is_pure=True, pack=1)
    else:
        return greater_packed(greater_packed(a, b, PACKED, ASM), c, PACKED, ASM)


@triton.jit
def greater_half(a, b):
    """Of two float16, as bits."""
    a = a.to(tl.int16).to(tl.float16, bitcast=True)
    b = b.to(tl.int16).to(tl.float16, bitcast=True)
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF


@triton.jit
def greater_float(a, b):
    """Of two float32, as bits."""
    a = a.to(tl.float32, bitcast=True)
    b = b.to(tl.float32, bitcast=True)
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL).to(tl.int32, bitcast=True)


@triton.jit
def joined(a, b, SELECTOR: tl.constexpr, ASM: tl.constexpr):
    """Bytes of two words as one: those that SELECTOR names, as PTX's prmt counts them."""
    if ASM:
        return tl.inline_asm_elementwise(joining(SELECTOR), "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1)
    else:
        word = tl.zeros_like(a)
        for i in tl.static_range(4):
            number = (SELECTOR >> (4 * i)) & 15
            word = word | ((element(a if number < 4 else b, 1, number % 4) & 255) << (8 * i))
        return word


@triton.jit
def packed_row(
    base, offset, inside, first, W, xw, numbers, LOW: tl.constexpr, HIGH: tl.constexpr, ORIGIN: tl.constexpr,
    SPAN: tl.constexpr, APART: tl.constexpr, V: tl.constexpr, B: tl.constexpr, IN_COLUMNS: tl.constexpr,
    PACKED: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """One input row of a lane's block: SPAN columns of pairs, with their ``numbers`` if keyed.

    ``offset``, ``first``, W and ``xw`` count vectors of V elements, of which LOW to HIGH are read. In columns the first
    pair is that of the elements ORIGIN and ORIGIN + APART of those read.
    """
    TYPE: tl.constexpr = base.dtype.element_ty
    SIZE: tl.constexpr = TYPE.primitive_bitwidth // 8
    PER_WORD: tl.constexpr = 4 // SIZE
    WORDS: tl.constexpr = V // PER_WORD
    KEYED: tl.constexpr = PACKED == KEYED_BYTES
    FILL: tl.constexpr = outside(TYPE)
    SIGNS: tl.constexpr = sign_bits(TYPE)
    words = base.to(tl.pointer_type(tl.int32), bitcast=True)
    vector = tl.arange(0, WORDS)[None, :]
    read = ()
    for c in tl.static_range(LOW, HIGH + 1):
        column = first + c
        ok = (inside & (column >= 0) & (column < W))[:, None]
        if not IN_COLUMNS:
            column = column * xw
        at = ((offset + column) * WORDS)[:, None] + vector
        loaded = tl.load(words[:, None] + at, mask=ok, other=FILL) ^ SIGNS
        if IN_COLUMNS:
            read = read + split_columns(loaded, B, WORDS)
        else:
            read = read + (loaded,)
    pairs = ()
    for i in tl.static_range(SPAN):
        if IN_COLUMNS:
            pair = pair_of(
                read[(ORIGIN + i) // PER_WORD], read[(ORIGIN + i + APART) // PER_WORD], SIZE, (ORIGIN + i) % PER_WORD,
                (ORIGIN + i + APART) % PER_WORD, KEYED, ASM,
            )  # fmt: skip
        elif SIZE == 2:
            pair = read[i]
        else:
            evens = pair_of(read[i], read[i], 1, 0, 2, KEYED, ASM)
            odds = pair_of(read[i], read[i], 1, 1, 3, KEYED, ASM)
            pair = tl.reshape(tl.join(evens, odds), [B, V // 2])
        if KEYED:
            pair = pair | numbers[i]
        pairs = pairs + (pair,)
    return pairs


@triton.jit
def column_numbers(
    begin, PADDED: tl.constexpr, SPAN: tl.constexpr, APART: tl.constexpr, B: tl.constexpr, IN_COLUMNS: tl.constexpr
):  # fmt: skip
    """What the keys of a row's SPAN columns of pairs hold below; ``begin``: columns of padding that a lane begins with.

    The first position's count is 255, in both halves; each next column's is 1 less. Of padding it is what the first
    column inside bears: a window of nothing but the lowest number names that.
    """
    numbers = ()
    for i in tl.static_range(SPAN):
        if i >= PADDED:
            number = tl.full([1] if IN_COLUMNS else [1, 1], (255 - i) * 0x00010001, tl.int32)
        else:
            number = (255 - tl.maximum(begin, i)).to(tl.int32)
            if IN_COLUMNS:
                number = number | ((255 - tl.maximum(begin - APART, i)).to(tl.int32) << 16)
            else:
                number = (number * 0x00010001)[:, None]
        numbers = numbers + (number,)
    return numbers


@triton.jit
def taps_of_keys(keys, FIRST: tl.constexpr, Q: tl.constexpr, STEP: tl.constexpr, NUMBER: tl.constexpr,
                 V: tl.constexpr, B: tl.constexpr, IN_COLUMNS: tl.constexpr):  # fmt: skip
    """Of Q columns of keys, the first from position NUMBER on and each next one STEP further: their taps as int32.

    In columns V tensors, else Q vectors of V channels.
    """
    near = ()
    far = ()
    for v in tl.static_range(Q):
        taps = (255 - NUMBER - v * STEP) * 0x00010001 - (keys[FIRST + v] & 0x00FF00FF)
        if IN_COLUMNS:
            near = near + (taps & 0xFFFF,)
            far = far + (taps >> 16,)
        else:
            evens, odds = tl.split(tl.reshape(taps, [B, V // 4, 2]))
            both = tl.join(tl.join(evens & 0xFFFF, evens >> 16), tl.join(odds & 0xFFFF, odds >> 16))
            near = near + (tl.reshape(both, [B, V]),)
    return near + far


@triton.jit
def store_packed(
    base, vectors, pairs, FIRST: tl.constexpr, live, V: tl.constexpr, B: tl.constexpr, IN_COLUMNS: tl.constexpr,
    PACKED: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """The numbers of ``pairs[FIRST:]`` as one vector of V for each lane, ``vectors`` of them past ``base``."""
    TYPE: tl.constexpr = base.dtype.element_ty
    SIZE: tl.constexpr = TYPE.primitive_bitwidth // 8
    WORDS: tl.constexpr = V * SIZE // 4
    SIGNS: tl.constexpr = sign_bits(TYPE)
    BYTES: tl.constexpr = 0x7351 if PACKED == KEYED_BYTES else 0x6240
    if not IN_COLUMNS:
        stored = pairs[FIRST]
        if SIZE == 1:
            evens, odds = tl.split(tl.reshape(stored, [B, WORDS, 2]))
            stored = joined(evens, odds, BYTES, ASM)
    else:
        # Two elements from V / 2 columns before lie in the lower half of each unit, two from there on in the upper one.
        units = ()
        for i in tl.static_range(WORDS):
            if SIZE == 1:
                units = units + (joined(pairs[FIRST + 2 * i], pairs[FIRST + 2 * i + 1], BYTES, ASM),)
            else:
                units = units + (pairs[FIRST + i],)
        words = units
        if WORDS > 1:
            words = ()
            for half in tl.static_range(2):
                for i in tl.static_range(WORDS // 2):
                    words = words + (joined(units[2 * i], units[2 * i + 1], 0x7632 if half else 0x5410, ASM),)
        stored = join_columns(words, 0, 1, B, WORDS)
    at = (vectors * WORDS)[:, None] + tl.arange(0, WORDS)[None, :]
    target = base.to(tl.pointer_type(tl.int32), bitcast=True)
    tl.store(target[:, None] + at, stored ^ SIGNS, mask=live[:, None])
