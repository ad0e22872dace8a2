"""From exact integer sums to quantized results, exactly: what exact arithmetic on the float32 scales would give (Q1).

In float64, ``sum · input scale`` and ``divisor · output scale`` are exact (24-bit significands times integers of at
most 29 bits), so that their quotient is rounded once. A half is a float64 number, and is rounded to even from there. Up
to 2²⁰ taps nothing else is rounded to a half: the quotient then differs from the half h by more than the 2⁻⁵³ h that a
rounding moves it, because it is a fraction of that denominator. Past that, :func:`settle_halves` compares integers.

One float32 multiplication takes a third of the time. It is used where it was tried beforehand on every sum there can
be, and gave the float64 result each time.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

EXACT_TAPS = 2**20
"""Taps up to which the rounded quotient lies on the right side of every half."""
LARGEST_TRIAL = 2**18
"""Sums to try at most, over all divisors: a millisecond or two, once for each set of scales and zero points."""
TO_INTEGER = 1.5 * 2.0**23
"""Added to a float32 number below 2²² it rounds that half to even, and leaves the integer in the lowest bits."""


class Multipliers(NamedTuple):
    """How float32 requantizes the sums of a call."""

    by_divisor: tuple[tuple[int, float], ...]
    """For each divisor, what the sum is multiplied by."""
    addend: float
    """What is added to the product: afterwards the lowest byte is the result, but for ``shift``."""
    bounds: tuple[float, float] | None
    """Where the result is cut off, ``addend`` included; None where no sum comes so far."""
    shift: int
    """What remains to be added to the byte: an odd zero point, which would turn the rounding of halves to odd."""
    fusible: bool
    """Whether product and sum may be rounded together, as some machines do; else the product is rounded first."""


@functools.lru_cache(maxsize=256)
def float32_multipliers(
    scales: tuple[float, float],
    zero_points: tuple[int, int],
    types: tuple[torch.dtype, torch.dtype],
    taps: int,
    divisors: tuple[int, ...],
) -> Multipliers | None:
    """Multipliers that give the exact result for every sum of up to ``taps`` elements, or None if there are none."""
    (input_scale, output_scale), (input_zero, output_zero) = scales, zero_points
    information, result = (torch.iinfo(dtype) for dtype in types)
    low, high = taps * (information.min - input_zero), taps * (information.max - input_zero)
    if (high - low + 1) * len(divisors) > LARGEST_TRIAL:
        return None
    sums = torch.arange(low, high + 1, dtype=torch.float64)
    least, most = result.min - output_zero, result.max - output_zero
    multipliers, cut_off, fusible = [], False, True
    for divisor in divisors:
        expected = sums.mul(input_scale).div_(divisor * output_scale).round_()
        cut_off = cut_off or expected[0].item() < least or expected[-1].item() > most
        expected.clamp_(least, most)
        tried = _tried(sums, expected, input_scale / (divisor * output_scale))
        if tried is None:
            return None
        multipliers.append((divisor, tried[0]))
        fusible = fusible and tried[1]
    shift = output_zero % 2
    addend = TO_INTEGER + output_zero - shift
    bounds = (addend + least, addend + most) if cut_off else None
    return Multipliers(tuple(multipliers), addend, bounds, shift, fusible)


def _tried(sums: Tensor, expected: Tensor, multiplier: float) -> tuple[float, bool] | None:
    """The float32 number next to ``multiplier``, or one beside it, by which every sum gives what is expected.

    And whether it does so without the rounding of the product, which turns what lies next to a half into that half.
    """
    if not 2.0**-100 < multiplier < 2.0**100:
        return None
    nearest = torch.tensor(multiplier, dtype=torch.float32).view(torch.int32)
    least, most = expected[0].item(), expected[-1].item()
    found = None
    for steps in (0, 1, -1, 2, -2):
        candidate = (nearest + steps).view(torch.float32).item()
        product = sums * candidate  # exact in float64
        if torch.equal(product.float().double().round_().clamp_(least, most), expected):
            if torch.equal(product.round_().clamp_(least, most), expected):
                return candidate, True
            found = found or (candidate, False)
    return found


def settle_halves(real: Tensor, sums: Tensor, divisors: Tensor, input_scale: Tensor, output_scale: Tensor) -> None:
    """Move each of ``real = sums · input_scale / (divisors · output_scale)`` next to a half to its side of it.

    All are of one size; ``sums`` and ``divisors`` are int64, the others float64. Twice the distance from the half,
    times the denominator, is an integer that 64 bits hold though its terms may overflow them: the overflow cancels.
    """
    whole = real.floor()
    near = ((real - whole - 0.5).abs() < 2.0**-40 * (1 + whole.abs())) & (whole.abs() <= 2**9)
    if not near.any():
        return
    sums, divisors, whole = sums[near], divisors[near], whole[near]
    (first, exponent), (second, other) = (_integer_parts(scale[near]) for scale in (input_scale, output_scale))
    exponent = exponent - other
    product = _shifted(sums * first, 1 + exponent.clamp(min=0))
    half = _shifted((2 * whole.long() + 1) * divisors * second, (-exponent).clamp(min=0))
    real[near] = whole + 0.5 + 0.25 * (product - half).sign()


def _integer_parts(scales: Tensor) -> tuple[Tensor, Tensor]:
    """Integers ``significand`` and ``exponent`` with ``scale = significand · 2 ** exponent``."""
    significands, exponents = torch.frexp(scales)
    return (significands * 2.0**24).long(), exponents.long() - 24


def _shifted(integers: Tensor, bits: Tensor) -> Tensor:
    """``integers << bits`` modulo 2⁶⁴, for any number of bits."""
    first = bits.clamp(max=32)
    second = (bits - first).clamp(max=32)
    return (integers << first) << second


def spread_multipliers(multipliers: Sequence[tuple[int, float]], divisors: Tensor) -> Tensor:
    """The multiplier of each of ``divisors``."""
    table = torch.zeros(max(divisor for divisor, _ in multipliers) + 1)
    for divisor, multiplier in multipliers:
        table[divisor] = multiplier
    return table.to(divisors.device)[divisors]
