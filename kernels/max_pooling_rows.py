"""What the max pooling kernels are made of: reading a row, comparing, maxima along it, writing it.

Beside a maximum travels, where it is wanted, the number of the position that gave it; a later candidate replaces an
earlier one only where it is strictly greater or the first NaN (M2, M3).
"""

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import join_columns, split_columns
from .max_pooling_packed import NOT_PACKED, greater_packed

SCALAR = tl.constexpr(0)
"""One element per load, any strides; neighbouring lanes hold neighbouring columns."""
COLUMNS = tl.constexpr(1)
"""Aligned vectors along contiguous rows, split into columns inside the lane."""
CHANNELS = tl.constexpr(2)
"""Vectors of neighbouring channels (channels_last)."""
CODE_ZERO = tl.constexpr(8388608.0)
"""2²³: integers added to it, up to as many, stand in the low bits of the sum."""


@triton.constexpr_function
def lowest(dtype):
    """What padding holds: it loses against everything, and a window of nothing else gives it (M1)."""
    if dtype.is_floating():
        return float("-inf")
    return -(2 ** (dtype.primitive_bitwidth - 1)) if dtype.is_int_signed() else 0


@triton.constexpr_function
def read(offset, outputs, stride, window, dilation):
    """Whether any of a lane's ``outputs`` along one axis reads position ``offset`` of its block."""
    return any(tap_at(offset - output * stride, window, dilation) >= 0 for output in range(outputs))


@triton.constexpr_function
def tap_at(offset, window, dilation):
    """The tap that lies ``offset`` positions past the window's first; -1 where none does."""
    inside = 0 <= offset <= (window - 1) * dilation and offset % dilation == 0
    return offset // dilation if inside else -1


@triton.jit
def maximum(a, b):
    if a.dtype.is_floating():
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    else:
        return tl.maximum(a, b)


@triton.jit
def first_greatest(m, i, v, j, ASM: tl.constexpr):
    """``(v, j)`` where it beats the earlier ``(m, i)``: strictly greater, or the first NaN; else ``(m, i)``."""
    if ASM:
        # NaNs are canonical and zeros positive here, so the maximum's bits change exactly where the later one wins.
        # Codes are float32 and move by an addition: a predicated move would become a select on the pipe that compares.
        return tl.inline_asm_elementwise(
            "{.reg .pred p; .reg .b32 a, b; max.NaN.f32 $0, $2, $4; mov.b32 a, $0; mov.b32 b, $2;"
            " setp.ne.s32 p, a, b; mov.f32 $1, $3; @p add.rn.f32 $1, $5, 0f00000000;}",
            "=&f,=&f,f,f,f,f",
            [m, i, v, j],
            dtype=(tl.float32, tl.float32),
            is_pure=True,
            pack=1,
        )
    else:
        wins = v > m
        if m.dtype.is_floating():
            wins = wins | ((v != v) & (m == m))
        return tl.where(wins, v, m), tl.where(wins, j, i)


@triton.jit
def comparable(v, WIDEN: tl.constexpr, ASM: tl.constexpr):
    """The loaded value in the type in which it is compared; with ``ASM`` in a form whose bits are its value."""
    if WIDEN:
        v = v.to(tl.float32)
    if ASM:
        v = v + 0.0
    return v


@triton.jit
def as_code(number, ASM: tl.constexpr):
    """A position's number as it is carried beside a value: an integer, with ``ASM`` in the low bits of a float32."""
    if ASM:
        return number + CODE_ZERO
    else:
        return number


@triton.jit
def code_number(code, ASM: tl.constexpr):
    """The inverse of as_code."""
    if ASM:
        return code.to(tl.int32, bitcast=True) & 0x7FFFFF
    else:
        return code


@triton.jit
def row_columns(
    base, offset, inside, cc, first, W, xc, xw, LOW: tl.constexpr, HIGH: tl.constexpr,
    Q: tl.constexpr, SW: tl.constexpr, KW: tl.constexpr, JW: tl.constexpr, V: tl.constexpr, B: tl.constexpr,
    LAYOUT: tl.constexpr, WIDEN: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """One input row of a lane's block: its columns LOW..HIGH (in vectors for COLUMNS), the lowest value outside."""
    FILL: tl.constexpr = lowest(base.dtype.element_ty)
    vector = tl.arange(0, V)[None, :]
    columns = ()
    for c in tl.static_range(LOW, HIGH + 1):
        column = first + c
        ok = inside & (column >= 0) & (column < W)
        if LAYOUT == COLUMNS:
            # Offsets count vectors, so that the compiler knows every address to be aligned to one.
            at = ((offset + column) * V)[:, None] + vector
            v = tl.load(base[:, None] + at, mask=ok[:, None], other=FILL)
            columns = columns + split_columns(comparable(v, WIDEN, ASM), B, V)
        elif read(c, Q, SW, KW, JW):
            at = ((offset + column * xw + cc * xc) * V)[:, None] + vector
            v = tl.load(base[:, None] + at, mask=ok[:, None], other=FILL)
            columns = columns + (comparable(v, WIDEN, ASM),)
        else:
            columns = columns + (0,)
    return columns


@triton.jit
def better(m, i, v, j, ASM: tl.constexpr, WITH_TAPS: tl.constexpr, PACKED: tl.constexpr = NOT_PACKED):
    """The maximum of an earlier ``(m, i)`` and a later ``(v, j)``; without taps the second parts mean nothing."""
    if PACKED != NOT_PACKED:
        return greater_packed(m, v, PACKED, ASM), i
    elif WITH_TAPS:
        return first_greatest(m, i, v, j, ASM)
    else:
        return maximum(m, v), i


@triton.jit
def sliding_maxima(
    values, codes, first_codes, ORIGIN: tl.constexpr, Q: tl.constexpr, S: tl.constexpr, K: tl.constexpr,
    J: tl.constexpr, G: tl.constexpr, ASM: tl.constexpr, WITH_TAPS: tl.constexpr, PACKED: tl.constexpr = NOT_PACKED,
):  # fmt: skip
    """Maxima of Q windows along ``values[ORIGIN:]``; ``codes`` are the positions' numbers, absolute within the block.

    G neighbouring windows share their common core: each is what comes before it, the core, and what comes after. With
    G = 1 each is folded alone and begins with its own ``first_codes``: the number to give if nothing beats padding.
    """
    results = ()
    numbers = ()
    if G == 1:
        for v in tl.static_range(Q):
            m = values[ORIGIN + v * S]
            i = 0
            if WITH_TAPS:
                i = first_codes[v]
            for k in tl.static_range(1, K):
                m, i = better(m, i, values[ORIGIN + v * S + k * J], as_code(v * S + k, ASM), ASM, WITH_TAPS, PACKED)
            results = results + (m,)
            numbers = numbers + (i,)
    else:
        for g in tl.static_range(Q // G):
            core = values[ORIGIN + (g * G + G - 1) * S]
            i = codes[(g * G + G - 1) * S]
            for k in tl.static_range((G - 1) * S + 1, K):
                core, i = better(core, i, values[ORIGIN + g * G * S + k], codes[g * G * S + k], ASM, WITH_TAPS, PACKED)
            # What each window but the last reads before the core, from right to left.
            m = values[ORIGIN + (g * G + G - 1) * S - 1]
            n = codes[(g * G + G - 1) * S - 1]
            before = ()
            before_codes = ()
            for k in tl.static_range((G - 1) * S):
                if k > 0:
                    m, n = better(
                        values[ORIGIN + (g * G + G - 1) * S - 1 - k], codes[(g * G + G - 1) * S - 1 - k], m, n,
                        ASM, WITH_TAPS, PACKED,
                    )  # fmt: skip
                if (k + 1) % S == 0:
                    before = (m,) + before
                    before_codes = (n,) + before_codes
            for v in tl.static_range(G):
                if v > 0:
                    for k in tl.static_range(K + (v - 1) * S, K + v * S):
                        core, i = better(
                            core, i, values[ORIGIN + g * G * S + k], codes[g * G * S + k], ASM, WITH_TAPS, PACKED
                        )
                if v < G - 1:
                    m, n = better(before[v], before_codes[v], core, i, ASM, WITH_TAPS, PACKED)
                    results = results + (m,)
                    numbers = numbers + (n,)
                else:
                    results = results + (core,)
                    numbers = numbers + (i,)
    return results, numbers


@triton.jit
def better_rows(
    m, i, v, j, COUNT: tl.constexpr, ASM: tl.constexpr, WITH_TAPS: tl.constexpr, FROM: tl.constexpr = 0,
    PACKED: tl.constexpr = NOT_PACKED,
):  # fmt: skip
    """``better`` element by element: ``COUNT`` of the earlier ones from ``FROM`` on against the later ones."""
    values = ()
    codes = ()
    for e in tl.static_range(COUNT):
        a, b = better(m[FROM + e], i[FROM + e], v[e], j[e], ASM, WITH_TAPS, PACKED)
        values = values + (a,)
        codes = codes + (b,)
    return values, codes


@triton.jit
def as_block(per_lane, LAYOUT: tl.constexpr, B: tl.constexpr, V: tl.constexpr):
    """A number per lane in the shape of the lane's values: [B] columns or [B, V] vectors."""
    if LAYOUT == COLUMNS:
        return per_lane
    else:
        return tl.broadcast_to(per_lane[:, None], [B, V])


@triton.jit
def store_columns(
    base, out, columns, FIRST: tl.constexpr, live, qg, OW, B: tl.constexpr, V: tl.constexpr,
    WHOLE_VECTORS: tl.constexpr,
):  # fmt: skip
    """``columns[FIRST : FIRST + V]`` at ``base + out``: 16 bytes at a time, or singly where rows are not whole."""
    BYTES: tl.constexpr = base.dtype.element_ty.primitive_bitwidth // 8
    if WHOLE_VECTORS:
        # A wider store than 16 bytes would take the detour through shared memory.
        PIECE: tl.constexpr = V if V * BYTES <= 16 else 16 // BYTES
        for p in tl.static_range(V // PIECE):
            at = (out + p * PIECE)[:, None] + tl.arange(0, PIECE)[None, :]
            piece = join_columns(columns, FIRST + p * PIECE, 1, B, PIECE)
            tl.store(base[:, None] + at, piece.to(base.dtype.element_ty), mask=live[:, None])
    else:
        for v in tl.static_range(V):
            ok = live & (qg * V + v < OW)
            tl.store(base + out + v, columns[FIRST + v].to(base.dtype.element_ty), mask=ok)
