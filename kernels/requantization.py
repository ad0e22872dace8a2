"""Quantized averages on the GPU: how 8-bit elements are added up, and requantized as if in exact
arithmetic (Q1).

Four elements are loaded as one word and added up as two pairs of 16-bit fields, signed ones with
their sign bit flipped so that nothing borrows. Padding is loaded as the zero point: then every
window sums up as many elements, and the zero points leave as one constant.

For windows of up to 128 taps two additions round exactly: the float64 product of sum and factor is
off by less than 2⁻⁴² wherever it matters, and unless it is a half it lies further than 2⁻⁴¹ from
every half; so rounding it to a multiple of 2⁻⁴¹ first, then to an integer, turns neither into the
other.
"""

import triton
import triton.language as tl

from . import addressing, sums
from .addressing import LANES

NUMBER = tl.constexpr(0)
ONE = tl.constexpr(1)
"""How a scale or zero point is given: see ``launch.Mode``."""
LARGEST_FACTOR = tl.constexpr(2.0**15)
"""Larger factors are replaced by this one: any sum but 0 times it is clamped to the limits of the
type anyway, and no product reaches 2³¹."""
SNAP = tl.constexpr(1.5 * 2.0**11)
"""Added to a float64 number of less than 2¹⁰ it leaves a multiple of 2⁻⁴¹."""
TO_INTEGER = tl.constexpr(1.5 * 2.0**52 - 1.5 * 2.0**11)
"""Added after that it leaves the nearest integer, halves to even, in the lower 32 bits."""
NEAREST = tl.constexpr(1.5 * 2.0**52)
"""Added to a small float64 number and taken away again it leaves the nearest integer, halves to
even."""
FIELDS = tl.constexpr(0x00FF00FF)
SIGNS = tl.constexpr(0x80808080)


@triton.jit
def parameter(source, channel, KIND, TYPE):
    """A scale or zero point for ``channel``, of float32 or int32."""
    if KIND == NUMBER:
        return tl.full((), source, TYPE)
    elif KIND == ONE:
        return tl.load(source).to(TYPE)
    else:
        return tl.load(source + channel).to(TYPE)


@triton.jit
def quantities(channel, qparams, TAPS, SIGNED, FORM, MODE):
    """``(fill, factor, offset, output zero)`` of channels: what padding is filled with, and the
    arguments of ``requantized``.
    """
    V: tl.constexpr = FORM.vector
    KINDS: tl.constexpr = MODE.kinds
    if FORM.channels:
        channel = (channel * V)[:, None] + tl.arange(0, V)[None, :]
    scale = parameter(qparams[0], channel, KINDS[0], tl.float32).to(tl.float64)
    factor = scale / (
        parameter(qparams[2], channel, KINDS[2], tl.float32).to(tl.float64) * MODE.divisor
    )
    factor = tl.minimum(factor, LARGEST_FACTOR) + tl.zeros_like(channel).to(tl.float64)
    byte = parameter(qparams[1], channel, KINDS[1], tl.int32) + tl.zeros_like(channel).to(tl.int32)
    fill = byte if FORM.channels else byte[:, None]
    if V >= 4:
        fill = fill.to(tl.uint32, bitcast=True) & 0xFF
        if FORM.channels:
            evens, odds = tl.split(tl.reshape(fill, [LANES, V // 2, 2]))
            low, high = tl.split(tl.reshape(evens | (odds << 8), [LANES, V // 4, 2]))
            fill = low | (high << 16)
        else:
            fill *= 0x01010101
    if SIGNED:
        byte += 128
    offset = (byte * TAPS).to(tl.float64) + 2.0**52  # off the bits of a sum as a float64
    return fill, factor, offset, parameter(qparams[3], channel, KINDS[3], tl.int32)


@triton.jit
def fields(loaded, SIGNED, V):
    """Loaded words as two pairs of 16-bit fields, of their even and of their odd bytes; loaded
    elements as numbers. All are from 0 to 255.
    """
    if V >= 4:
        if SIGNED:
            loaded = loaded ^ SIGNS
        return tl.reshape(tl.join(loaded & FIELDS, (loaded >> 8) & FIELDS), [LANES, V // 2])
    else:
        return loaded + 128 if SIGNED else loaded


@triton.jit
def elements(words, V):
    """Sums of ``fields`` as integers ``[LANES, V]``, in the order of the elements that they are."""
    if V >= 4:
        evens, odds = tl.split(tl.reshape(words, [LANES, V // 4, 2]))
        both = tl.join(tl.join(evens & 0xFFFF, evens >> 16), tl.join(odds & 0xFFFF, odds >> 16))
        return tl.reshape(both, [LANES, V]).to(tl.int32)
    else:
        return words


@triton.jit
def results(totals, each, row, divisors, COLS, SIGNED, N, FORM, MODE):
    """The requantized results of one target row of a tile. ``totals`` are N vectors of sums: one
    per target where they hold channels, else of columns, which are added up here. ``row`` and
    ``divisors``: see ``average_pooling.quotients``.
    """
    LOWEST: tl.constexpr = -128 if SIGNED else 0
    T: tl.constexpr = COLS.targets
    own = ()
    for c in tl.static_range(N):
        own = own + (elements(totals[c], FORM.vector),)
    columns = addressing.columns_of(own, N, FORM)
    if not FORM.channels:
        columns = sums.sliding_sums(columns, COLS)
    finished = ()
    for i in tl.static_range(T):
        factor = each[1]
        if MODE.count > 0:
            factor *= addressing.as_block(row[1] * divisors[i][1], FORM)
        integers = requantized(columns[i], each[2], factor, each[3])
        finished = finished + (tl.minimum(tl.maximum(integers, LOWEST), LOWEST + 255),)
    return finished


@triton.jit
def requantized(sums, offset, factor, zero):
    """``(sums - zero points) * factor``, rounded, plus ``zero``; ``sums`` lie from 0 to 2**15."""
    # The bits of 2**52 + sums: cheaper than a conversion, of which a GPU makes few per clock.
    bits = sums.to(tl.uint32, bitcast=True).to(tl.uint64) | 0x4330000000000000
    real = (bits.to(tl.float64, bitcast=True) - offset) * factor
    whole = (real + SNAP) + TO_INTEGER
    return whole.to(tl.int64, bitcast=True).to(tl.int32) + zero


@triton.jit
def quotients(sums, divisor, channel, qparams, KINDS, TYPE):
    """Sums without zero points over ``divisor`` elements, requantized to TYPE.

    With up to 2**20 taps a float64 quotient is a half only if the exact quotient is one.
    """
    LOWEST: tl.constexpr = -128 if TYPE.is_int_signed() else 0
    scale = parameter(qparams[0], channel, KINDS[0], tl.float32) + tl.zeros(sums.shape, tl.float32)
    step = parameter(qparams[2], channel, KINDS[2], tl.float32) + tl.zeros(sums.shape, tl.float32)
    real = sums.to(tl.float64) * scale.to(tl.float64)
    real = real / (divisor.to(tl.float64) * step.to(tl.float64))
    real = tl.minimum(tl.maximum(real, -1024.0), 1024.0)
    whole = ((real + NEAREST) - NEAREST).to(tl.int32)
    whole += parameter(qparams[3], channel, KINDS[3], tl.int32)
    return tl.minimum(tl.maximum(whole, LOWEST), LOWEST + 255)
