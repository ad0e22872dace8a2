"""Quantized averages on the GPU: 8-bit elements as they are added up, and requantized as exact arithmetic has it (Q1).

Four elements are loaded as one word and added up as two pairs of 16-bit fields, signed ones with their sign bit flipped
so that nothing borrows. Padding is loaded as the zero point: then every window sums up as many elements, and the zero
points leave as one constant.

For windows of up to 128 taps two additions round exactly: the float64 product of sum and factor is off by less than
2⁻⁴² wherever it matters, and unless it is a half it lies further than 2⁻⁴¹ from every half; so rounding it to a
multiple of 2⁻⁴¹ first, then to an integer, turns neither into the other. Of larger windows the kernels give the sums.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import join_columns, split_columns
from .sums import sliding_sums

NUMBER = tl.constexpr(0)
ONE = tl.constexpr(1)
"""How a scale or zero point is given: as a number, or as the one entry of a tensor; else one per channel."""
LARGEST_FACTOR = tl.constexpr(2.0**15)
"""Any sum but 0 times this is cut off at the ends of the type, and no product reaches 2³¹."""
SNAP = tl.constexpr(1.5 * 2.0**11)
"""Added to a float64 number of less than 2¹⁰ it leaves a multiple of 2⁻⁴¹."""
TO_INTEGER = tl.constexpr(1.5 * 2.0**52 - 1.5 * 2.0**11)
"""Added after that it leaves the nearest integer, halves to even, in the lower 32 bits."""
FIELDS = tl.constexpr(0x00FF00FF)
SIGNS = tl.constexpr(0x80808080)


@triton.jit
def parameter(source, channel, KIND: tl.constexpr, TYPE: tl.constexpr):
    """A scale or zero point for ``channel``, of float32 or int32."""
    if KIND == NUMBER:
        return tl.full((), source, TYPE)
    elif KIND == ONE:
        return tl.load(source).to(TYPE)
    else:
        return tl.load(source + channel).to(TYPE)


@triton.jit
def parameters_of(channel, given, TAPS: tl.constexpr, DIVISOR: tl.constexpr, KINDS: tl.constexpr, SIGNED: tl.constexpr):
    """``(zero byte, factor, offset, output zero)`` of channels: see ``requantized``; the zero byte is 0 to 255."""
    scale = parameter(given[0], channel, KINDS[0], tl.float32).to(tl.float64)
    factor = scale / (parameter(given[2], channel, KINDS[2], tl.float32).to(tl.float64) * DIVISOR)
    byte = parameter(given[1], channel, KINDS[1], tl.int32) + tl.zeros_like(channel).to(tl.int32)
    if SIGNED:
        byte += 128
    offset = (byte * TAPS).to(tl.float64) + 2.0**52  # off the bits of a sum as a float64
    factor = tl.minimum(factor, LARGEST_FACTOR) + tl.zeros_like(channel).to(tl.float64)
    return byte, factor, offset, parameter(given[3], channel, KINDS[3], tl.int32)


@triton.jit
def quantities(
    channel, given, TAPS: tl.constexpr, DIVISOR: tl.constexpr, KINDS: tl.constexpr, SIGNED: tl.constexpr,
    CHANNELS: tl.constexpr, V: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """What padding is loaded as, and a tuple of ``parameters_of`` for each byte of a word, or for a whole row."""
    PACKED: tl.constexpr = V >= 4
    if CHANNELS:
        each = ()
        fill = tl.zeros([1, WORDS], tl.int32)
        for k in tl.static_range(4 if PACKED else 1):
            own = (channel * V)[:, None] + (4 * tl.arange(0, WORDS)[None, :] + k)
            one = parameters_of(own, given, TAPS, DIVISOR, KINDS, SIGNED)
            each = each + (one,)
            fill = fill | (one[0] << (8 * k))
    else:
        each = (parameters_of(channel[:, None], given, TAPS, DIVISOR, KINDS, SIGNED),)
        fill = each[0][0] * 0x01010101 if PACKED else each[0][0]
    if PACKED:
        fill = fill.to(tl.uint32, bitcast=True)
        if SIGNED:
            fill = fill ^ SIGNS
    elif SIGNED:
        fill = fill - 128
    return fill, each


@triton.jit
def fields(loaded, SIGNED: tl.constexpr, PACKED: tl.constexpr):
    """Loaded words as two tensors of 16-bit fields, or single elements as one: numbers from 0 to 255."""
    if PACKED:
        if SIGNED:
            loaded = loaded ^ SIGNS
        return (loaded & FIELDS, (loaded >> 8) & FIELDS)
    else:
        return (loaded + 128 if SIGNED else loaded,)


@triton.jit
def sums_of_fields(values, zero, COLS: tl.constexpr, PAIRS: tl.constexpr, N: tl.constexpr):
    """One sum per target column over the ``N`` vectors of channels of a row, of each of their words' halves."""
    sums = ()
    for h in tl.static_range(PAIRS):
        halves = ()
        for c in tl.static_range(N):
            halves = halves + (values[c * PAIRS + h],)
        sums = sums + sliding_sums(halves, zero, COLS)
    return sums


@triton.jit
def store_quantized_columns(
    base, totals, each, row_reciprocal, divisors, column, line, live, TW,
    COLS: tl.constexpr, COUNTED: tl.constexpr, PACKED: tl.constexpr, N: tl.constexpr, T: tl.constexpr,
    V: tl.constexpr, STORE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Add up the columns of one target row of a tile, requantize and write them."""
    columns = ()
    reciprocals = ()
    for c in tl.static_range(N):
        if PACKED:
            evens = split_columns(totals[2 * c], B, V // 4)
            odds = split_columns(totals[2 * c + 1], B, V // 4)
            for w in tl.static_range(V // 4):
                columns = columns + unpacked(evens[w], odds[w])
        else:
            columns = columns + (tl.reshape(totals[c], [B]),)
    sums = sliding_sums(columns, tl.zeros_like(columns[0]), COLS)
    for i in tl.static_range(T):
        reciprocals = reciprocals + (divisors[i][1] if COUNTED else 1,)
    SIGNED: tl.constexpr = base.dtype.element_ty == tl.int8
    WORDS: tl.constexpr = STORE // 4 if STORE >= 4 else STORE
    first = column * (T // STORE)
    target = base
    if STORE >= 4:
        target = base.to(tl.pointer_type(tl.int32), bitcast=True)
    pointers = (target + (line * TW + first) * WORDS)[:, None] + tl.arange(0, WORDS)[None, :]
    for p in tl.static_range(T // STORE):
        factor = each[0][1]
        if COUNTED:
            factor = (factor * row_reciprocal[:, None]) * join_columns(reciprocals, p * STORE, 1, B, STORE)
        values = requantized(join_columns(sums, p * STORE, 1, B, STORE), each[0][2], factor, each[0][3])
        if STORE >= 4:
            evens, odds = tl.split(tl.reshape(values, [B, WORDS, 2, 2]))
            first_, third = tl.split(evens)
            second, fourth = tl.split(odds)
            values = packed(first_, second, third, fourth, SIGNED)
        else:
            values = clamped(values, SIGNED).to(base.dtype.element_ty)
        tl.store(pointers + p * WORDS, values, mask=(live & (first + p < TW))[:, None])


@triton.jit
def store_quantized_channels(
    base, totals, each, row_reciprocal, divisors, column, line, channel, live, C, TW,
    COUNTED: tl.constexpr, PACKED: tl.constexpr, T: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """Requantize the vectors of channels of one target row of a tile and write them."""
    SIGNED: tl.constexpr = base.dtype.element_ty == tl.int8
    WORDS: tl.constexpr = V // 4 if PACKED else 1
    target = base
    if PACKED:
        target = base.to(tl.pointer_type(tl.int32), bitcast=True)
    first = column * T
    pointers = (target + ((line * TW + first) * C + channel) * WORDS)[:, None] + tl.arange(0, WORDS)[None, :]
    for j in tl.static_range(T):
        sums = unpacked(totals[j], totals[T + j]) if PACKED else (totals[j],)
        bytes_ = ()
        for k in tl.static_range(4 if PACKED else 1):
            factor = each[k][1]
            if COUNTED:
                factor = factor * (row_reciprocal * divisors[j][1])[:, None]
            bytes_ = bytes_ + (requantized(sums[k], each[k][2], factor, each[k][3]),)
        if PACKED:
            values = packed(bytes_[0], bytes_[1], bytes_[2], bytes_[3], SIGNED)
        else:
            values = clamped(bytes_[0], SIGNED).to(base.dtype.element_ty)
        tl.store(pointers + j * (C * WORDS), values, mask=(live & (first + j < TW))[:, None])


@triton.jit
def requantized(sums, offset, factor, zero):
    """``(sums - zero points) * factor``, rounded, and ``zero``; ``sums`` from 0 to 2**15."""
    # The bits of 2**52 + sums: cheaper than a conversion, of which a GPU makes few per clock.
    bits = sums.to(tl.uint32, bitcast=True).to(tl.uint64) | 0x4330000000000000
    real = (bits.to(tl.float64, bitcast=True) - offset) * factor
    whole = (real + SNAP) + TO_INTEGER
    return whole.to(tl.int64, bitcast=True).to(tl.int32) + zero


@triton.jit
def clamped(integers, SIGNED: tl.constexpr):
    """Cut off at the ends of int8 or uint8."""
    LOWEST: tl.constexpr = -128 if SIGNED else 0
    return tl.minimum(tl.maximum(integers, LOWEST), LOWEST + 255)


@triton.jit
def packed(first, second, third, fourth, SIGNED: tl.constexpr):
    """Four results, cut off at the ends of the type, as the bytes of one word."""
    low = (clamped(first, SIGNED) & 0xFF) | ((clamped(second, SIGNED) & 0xFF) << 8)
    return low | ((clamped(third, SIGNED) & 0xFF) << 16) | (clamped(fourth, SIGNED) << 24)


@triton.jit
def unpacked(evens, odds):
    """Two words of 16-bit fields as four tensors of integers, in the order of the bytes they came from."""
    return (
        (evens & 0xFFFF).to(tl.int32),
        (odds & 0xFFFF).to(tl.int32),
        (evens >> 16).to(tl.int32),
        (odds >> 16).to(tl.int32),
    )
