"""How the PyTorch backend requantizes: float32 only where it was tried on every sum, integers next to a half (Q1)."""

from __future__ import annotations

import halves
import numpy as np
import oracle
import pytest
import quantities
import torch

from torch_dmlpool.backends import requantization

UNSIGNED = (torch.uint8, torch.uint8)


@pytest.mark.parametrize("scales", [(0.05, 0.07), (1.0, 1.0), (0.5, 3.0), (0.1, 0.1), (2.0, 0.01)], ids=str)
@pytest.mark.parametrize("zeros", [(0, 0), (128, 7), (255, 200)], ids=str)
def test_float32_is_right_for_every_sum(scales: tuple[float, float], zeros: tuple[int, int]) -> None:
    """Q1: rounded once or twice, as machines differ, and cut off where it must be."""
    scales = tuple(map(quantities.float32, scales))
    taps, divisors = 9, (4, 6, 9)
    multipliers = requantization.float32_multipliers(scales, zeros, UNSIGNED, taps, divisors)
    assert multipliers is not None
    assert [divisor for divisor, _ in multipliers.by_divisor] == list(divisors)
    sums = torch.arange(-taps * zeros[0], taps * (255 - zeros[0]) + 1)
    for divisor, multiplier in multipliers.by_divisor:
        expected = [oracle.requantized(int(each), divisor, *scales, zeros[1], np.uint8) for each in sums]
        once = (sums.double() * multiplier + multipliers.addend).float()
        twice = sums.float() * multiplier + multipliers.addend
        for real in (once, twice) if multipliers.fusible else (twice,):
            if multipliers.bounds is not None:
                real = real.clamp(*multipliers.bounds)
            assert ((real.view(torch.int32) + multipliers.shift) & 0xFF).tolist() == expected


def test_float32_is_not_used_where_it_fails() -> None:
    """Q1: one sum that comes out wrong, too many sums to try, a quotient that float32 does not hold."""
    sums = torch.arange(1000.0, dtype=torch.float64)
    right = (sums / 6).round()
    assert requantization._tried(sums, right, 1 / 6) is not None
    for position in (3, 500, 999):
        wrong = right.clone()
        wrong[position] += 1
        assert requantization._tried(sums, wrong, 1 / 6) is None
    assert requantization.float32_multipliers((1.0, 1.0), (0, 0), UNSIGNED, 100, tuple(range(1, 100))) is None
    assert requantization.float32_multipliers((2.0**100, 2.0**-100), (0, 0), UNSIGNED, 4, (4,)) is None


@pytest.mark.parametrize("divisor", [2**26 + 3, 2**30 + 5])
def test_what_float64_takes_for_a_half(divisor: int) -> None:
    """Q1 past 2²⁰ taps: integers decide, though their products leave 64 bits."""
    quotients = halves.near_halves(divisor, 40) + halves.true_halves(divisor + 1)
    assert any(quotient.rounded_too_early for quotient in quotients)
    columns = [torch.tensor(column) for column in zip(*quotients, strict=True)]
    sums, divisors, *scales = columns
    input_scale, output_scale = (scale.double() for scale in scales)
    real = sums.double() * input_scale / (divisors.double() * output_scale)
    wrong = [int(each) for each in real.round()] != [round(quotient.exact) for quotient in quotients]
    requantization.settle_halves(real, sums, divisors, input_scale, output_scale)
    assert [int(each) for each in real.round()] == [round(quotient.exact) for quotient in quotients]
    assert wrong


def test_where_the_bound_on_taps_lies() -> None:
    """Q1: at 2²⁰ taps float64 still tells every quotient from a half."""
    for quotient in halves.near_halves(2**20 - 1, 40) + halves.true_halves(2**20):
        rounded = round(quotient.sum * quotient.input_scale / (quotient.divisor * quotient.output_scale))
        assert rounded == round(quotient.exact)
        assert not quotient.rounded_too_early
