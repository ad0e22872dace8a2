"""Requantization on the GPU: sums, scales and zero points turned into 8-bit results as exact arithmetic has them (Q1).

For windows of up to 128 taps two additions round exactly: the float64 product of sum and factor is off by less than
2⁻⁴² wherever it matters, and unless it is a half it lies further than 2⁻⁴¹ from every half; so rounding it to a
multiple of 2⁻⁴¹ first, then to an integer, turns neither into the other.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import counted_taps, lane_numbers
from .average_pooling import coordinates_of

NUMBER = tl.constexpr(0)
"""A scale or zero point is given as a number."""
ONE = tl.constexpr(1)
"""It is the one entry of a tensor."""
EACH = tl.constexpr(2)
"""It is a tensor of one entry per channel."""
LARGEST_FACTOR = tl.constexpr(2.0**15)
"""Any sum but 0 times this is cut off at the ends of the type, and no product reaches 2³¹."""
SNAP = tl.constexpr(1.5 * 2.0**11)
"""Added to a float64 number of less than 2¹⁰ it leaves a multiple of 2⁻⁴¹."""
TO_INTEGER = tl.constexpr(1.5 * 2.0**52 - 1.5 * 2.0**11)
"""Added after that it leaves the nearest integer, halves to even, in the lower 32 bits."""


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
def zero_byte(zero, SIGNED: tl.constexpr):
    """The input's zero point as what is added up for it: 0 to 255."""
    if SIGNED:
        return zero + 128
    else:
        return zero


@triton.jit
def float64_reciprocal(count):
    """``1 / count`` in float64, for a small positive integer, to a unit in the last place: two steps from float32."""
    divisor = count.to(tl.float64)
    guess = (1.0 / count.to(tl.float32)).to(tl.float64)
    guess = tl.fma(guess, tl.fma(-divisor, guess, 1.0), guess)
    return tl.fma(guess, tl.fma(-divisor, guess, 1.0), guess)


@triton.jit
def offset_of(zero_sum):
    """What is taken off a sum's bits as ``requantized`` reads them: the zero points, and what makes them a float64."""
    return zero_sum.to(tl.float64) + 2.0**52


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
    if SIGNED:
        return tl.minimum(tl.maximum(integers, -128), 127)
    else:
        return tl.minimum(tl.maximum(integers, 0), 255)


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


@triton.jit
def scale_parts(scale):
    """``significand, exponent`` of a positive float32 number: ``significand * 2 ** exponent``, both int64."""
    bits = scale.to(tl.int32, bitcast=True)
    field = bits >> 23
    significand = (bits & 0x7FFFFF) | tl.where(field > 0, 0x800000, 0)
    return significand.to(tl.int64), tl.maximum(field, 1).to(tl.int64) - 150


@triton.jit
def shifted(integers, bits):
    """``integers << bits`` modulo 2**64, for any number of bits."""
    first = tl.minimum(bits, 32)
    second = tl.minimum(bits - first, 32)
    return (integers << first) << second


@triton.jit
def rescaled(sums, scale, step, divisor):
    """``sums * scale / (step * divisor)`` rounded exactly, halves to even; cut off far outside the type."""
    real = sums.to(tl.float64) * scale.to(tl.float64) / (divisor.to(tl.float64) * step.to(tl.float64))
    real = tl.minimum(tl.maximum(real, -1024.0), 1024.0)
    whole = tl.floor(real)
    past = real - whole
    integer = whole.to(tl.int64)
    # Twice the distance from the half, times the denominator: 64 bits hold this integer, though perhaps not its terms.
    significand, exponent = scale_parts(scale)
    other, below = scale_parts(step)
    exponent = exponent - below
    product = shifted(sums * significand, 1 + tl.maximum(exponent, 0))
    half = shifted((2 * integer + 1) * divisor * other, tl.maximum(-exponent, 0))
    beyond = product - half
    near = tl.abs(past - 0.5) < 2.0**-30
    up = tl.where(near, (beyond > 0) | ((beyond == 0) & (integer % 2 != 0)), past > 0.5)
    return integer.to(tl.int32) + up.to(tl.int32)


_REQUANTIZE_RUNTIME = [
    *("input_scale", "input_zero", "output_scale", "output_zero"),
    *("lanes", "T1", "T2", "T3", "T4", "D", "H", "W"),
    *("K0", "K1", "K2", "S0", "S1", "S2", "P0", "P1", "P2", "E0", "E1", "E2", "D0", "D1", "D2"),
]


@triton.jit(do_not_specialize=_REQUANTIZE_RUNTIME)
def requantize(
    source, target, input_scale, input_zero, output_scale, output_zero, lanes, T1, T2, T3, T4, D, H, W,
    K0, K1, K2, S0, S1, S2, P0, P1, P2, E0, E1, E2, D0, D1, D2,
    CHANNELS_LAST: tl.constexpr, COUNT: tl.constexpr, KINDS: tl.constexpr, WIDE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Requantize sums of any size exactly: source int32 or int64, target int8 or uint8, both dense in the same order.

    The sums hold no padding and no zero point yet. ``D, H, W``: the input's spatial sizes; then window, stride, start
    and end padding and dilation along the three axes. ``COUNT``: the divisor counts taps inside the input (1) or
    inside the padded input (2).
    """
    lane = lane_numbers(B, WIDE)
    live = lane < lanes
    _, i1, i2, i3, i4 = coordinates_of(lane, T1, T2, T3, T4)
    if CHANNELS_LAST:
        channel, depth, row, column = i4, i1, i2, i3
    else:
        channel, depth, row, column = i1, i2, i3, i4
    inside = counted_taps(depth * S0 - P0, D, E0, K0, D0, False).to(tl.int64)
    inside *= counted_taps(row * S1 - P1, H, E1, K1, D1, False)
    inside *= counted_taps(column * S2 - P2, W, E2, K2, D2, False)
    divisor = inside
    if COUNT == 2:
        divisor = counted_taps(depth * S0 - P0, D, E0, K0, D0, True).to(tl.int64)
        divisor *= counted_taps(row * S1 - P1, H, E1, K1, D1, True)
        divisor *= counted_taps(column * S2 - P2, W, E2, K2, D2, True)
    divisor = tl.maximum(divisor, 1)
    zero_input = (parameter(input_zero, channel, KINDS[1], tl.int32) + tl.zeros([B], tl.int32)).to(tl.int64)
    sums = tl.load(source + lane, mask=live, other=0).to(tl.int64) - inside * zero_input
    scale = parameter(input_scale, channel, KINDS[0], tl.float32) + tl.zeros([B], tl.float32)
    step = parameter(output_scale, channel, KINDS[2], tl.float32) + tl.zeros([B], tl.float32)
    integer = rescaled(sums, scale, step, divisor) + parameter(output_zero, channel, KINDS[3], tl.int32)
    integer = clamped(integer, target.dtype.element_ty == tl.int8)
    tl.store(target + lane, integer.to(target.dtype.element_ty), mask=live)
