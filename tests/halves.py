"""Sums whose quotient lies nearer to a half than float64 can tell, and true halves of the same size."""

from __future__ import annotations

from fractions import Fraction
from math import gcd
from typing import NamedTuple


class Quotient(NamedTuple):
    """``sum · input_scale / (divisor · output_scale)``."""

    sum: int
    divisor: int
    input_scale: float
    output_scale: float

    @property
    def exact(self) -> Fraction:
        return Fraction(self.input_scale) * self.sum / (self.divisor * Fraction(self.output_scale))

    @property
    def rounded_too_early(self) -> bool:
        """Whether float64 takes it for a half that it is not."""
        quotient = self.sum * self.input_scale / (self.divisor * self.output_scale)
        return Fraction(quotient) != self.exact and (2 * quotient) % 2 == 1


def near_halves(divisor: int, count: int) -> list[Quotient]:
    """Quotients one unit of their denominator beside ``k + 1/2``, on either side, for an odd ``divisor``.

    With significands ``m`` and ``n`` of the scales, ``2 · sum · m = (2k + 1) · divisor · n ± 1``: for a given ``m``
    that asks for one ``n`` modulo ``2m``.
    """
    found = []
    for m in range(2**24 - 1, 2**23, -2):
        for k, unit in ((97, 1), (98, 1), (97, -1), (98, -1)):
            if gcd((2 * k + 1) * divisor, m) > 1:
                continue
            n = -unit * pow((2 * k + 1) * divisor, -1, 2 * m) % (2 * m)
            total, rest = divmod((2 * k + 1) * divisor * n + unit, 2 * m)
            if n < 2**24 and total < 255 * divisor:
                assert rest == 0
                found.append(Quotient(total, divisor, float(m), float(n)))
        if len(found) >= count:
            return found
    raise AssertionError("no such quotients")


def true_halves(divisor: int) -> list[Quotient]:
    """``k + 1/2`` for an even and an odd ``k``, and the nearest sums beside them; ``divisor`` is even."""
    halves = [(2 * k + 1) * divisor // 2 for k in (98, 97)]
    return [Quotient(total + beside, divisor, 0.75, 0.75) for total in halves for beside in (-1, 0, 1)]
