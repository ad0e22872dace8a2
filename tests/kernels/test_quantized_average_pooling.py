"""The quantized kernels under Triton's interpreter against rational arithmetic, and which serves what (Q1-Q6)."""

from __future__ import annotations

from fractions import Fraction
from math import gcd
from typing import NamedTuple

import cases
import oracle
import pytest
import samples
import torch
from torch import Tensor
from torch_dmlpool.kernels import average_pooling_launch, launch

import torch_dmlpool as dmlpool
from torch_dmlpool.window import Window


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


backend = pytest.importorskip("torch_dmlpool.backends.triton")
EACH = ["per channel"] * 4


def request(rank: int, window: int, stride: int = 1, padding: int = 0, dilation: int = 1) -> oracle.Pooling:
    return oracle.Pooling(*((entry,) * rank for entry in (window, stride, padding, padding, dilation)))


@cases.parametrized(cases.LINES + cases.FEW)
def test_geometry(case: cases.Case) -> None:
    """Q1, Q2, A1-A3 and G4."""
    for include_padding in (False, True):
        types = (torch.uint8, torch.int8)[:: -1 if include_padding else 1]
        input = samples.integers(1, 3, *case.sizes, dtype=types[0])
        parameters = samples.drawn(len(case.name), 3, types, ties=include_padding)
        forms = EACH if include_padding else ["number", "0-D"] * 2
        samples.check_quantized(input, parameters, case.pooling, include_padding, output_dtype=types[1], forms=forms)


SHAPES = {
    "16 columns": ("contiguous", (2, 3, 6, 32)),
    "8 columns": ("contiguous", (2, 3, 6, 24)),
    "4 columns": ("contiguous", (2, 3, 6, 12)),
    "odd columns": ("contiguous", (2, 3, 6, 13)),
    "16 channels": ("channels last", (2, 32, 6, 5)),
    "4 channels": ("channels last", (2, 12, 6, 5)),
    "odd channels": ("channels last", (2, 7, 6, 5)),
    "planes apart": ("expanded over the batch", (2, 3, 6, 32)),
    "rows apart": ("sliced", (2, 3, 6, 12)),
    "unaligned": ("storage offset", (2, 3, 6, 32)),
    "16 columns in a volume": ("contiguous", (1, 2, 5, 6, 16)),
    "16 channels in a volume": ("channels last", (1, 16, 5, 6, 4)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_vectors(name: str) -> None:
    """Q1 and G7: words of four elements, of either type, and what has no such words."""
    layout, shape = SHAPES[name]
    for turn, (window, stride, padding) in enumerate(((2, 2, 0), (3, 1, 1), (3, 2, 1))):
        pair = (torch.int8, torch.uint8) if turn % 2 else (torch.uint8, torch.int8)
        input = samples.LAYOUTS[layout](samples.integers(*shape, dtype=pair[0]))
        parameters = samples.drawn(turn, shape[1], pair, ties=turn == 0)
        for forms in (EACH, ["number"] * 4):
            samples.check_quantized(
                input, parameters, request(len(shape) - 2, window, stride, padding), turn == 2,
                output_dtype=pair[1], forms=forms,
            )  # fmt: skip


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("window", [(7, 7), (11, 11), (128,), (4, 4, 8)], ids=str)
def test_the_most_taps_of_a_tile(window: tuple[int, ...], layout: str) -> None:
    """Q6: fields of 16 bits hold the sum of up to 257 elements; up to 128 of them two additions requantize."""
    input = torch.full((1, 4, *(size + 4 for size in window)), 255, dtype=torch.uint8)
    input[:, 1:] = samples.integers(*input[:, 1:].shape, dtype=torch.uint8)
    pooling = oracle.Pooling(window, *((entry,) * len(window) for entry in (1, 0, 0, 1)))
    parameters = samples.drawn(1, 4, (torch.uint8, torch.uint8), ties=True)
    samples.check_quantized(samples.LAYOUTS[layout](input), parameters, pooling, forms=EACH)


@pytest.mark.parametrize("layout", ["contiguous", "channels last", "sliced"])
def test_large_windows(layout: str, ran: list) -> None:
    """Q1 and Q6: axis by axis, requantized at the end."""
    input = samples.LAYOUTS[layout](samples.integers(2, 3, 20, 16, dtype=torch.int8))
    for include_padding in (False, True):
        for ties in (False, True):
            parameters = samples.drawn(3, 3, (torch.int8, torch.uint8), ties)
            samples.check_quantized(
                input, parameters, oracle.Pooling((17, 10), (2, 1), (8, 3), (9, 2), (1, 2)), include_padding,
                output_dtype=torch.uint8, forms=["per channel", "number"] * 2,
            )  # fmt: skip
    assert [one.kernel for one in ran] == ["sum_axis", "sum_axis", "requantize"] * 4


@pytest.mark.parametrize(
    "far_apart", [(2.0**-149, 2.0**-149), (2.0**127, 2.0**-149), (2.0**-149, 2.0**127), (1.0, 2.0)]
)
def test_scales_far_apart(far_apart: tuple[float, float]) -> None:
    """Q1 and Q4."""
    for window, size in ((3, 8), (15, 15)):
        input = samples.integers(1, 2, size, size, dtype=torch.uint8)
        input_scale, output_scale = far_apart
        parameters = samples.Parameters((input_scale,) * 2, (100, 3), (output_scale,) * 2, (7, 40))
        for forms in (EACH, ["number"] * 4):
            samples.check_quantized(input, parameters, request(2, window, 1, 1), forms=forms)


@pytest.mark.parametrize("divisor", [2**21 + 1, 2**30 + 5])
def test_what_float64_takes_for_a_half(divisor: int) -> None:
    """Q1: the kernel that requantizes sums of any size, given sums that no test could add up."""
    for count in (divisor, divisor + 1):
        quotients = near_halves(count, 24) if count % 2 else true_halves(count)
        # One window per channel, of as many counted taps: most of them in the padding.
        window = Window.directml(1, count, 1, count - 1, 0)
        size, channels = 1, len(quotients)
        request = launch.Request(
            window, (1, channels, size), (channels, 1, 1), (size,), 1, True, False, include_padding=True
        )
        *_, step = average_pooling_launch.quantized_launches(request, (2, 0, 2, 0))
        assert step.kernel == "requantization.requantize"
        sums, scales, steps = (torch.tensor([row[i] for row in quotients]) for i in (0, 2, 3))
        result = torch.empty(channels, dtype=torch.uint8)
        backend.launch(step, sums, result, scales, 0, steps, 0)
        assert result.tolist() == [round(quotient.exact) for quotient in quotients]


def test_empty(ran: list) -> None:
    """G5."""
    for shape in ((0, 3, 5, 6), (2, 0, 5, 6)):
        result: Tensor = dmlpool.quantized_linear_average_pooling(
            torch.empty(shape, dtype=torch.int8), 0.1, 3, 0.1, 3, 2
        )
        assert result.shape == (*shape[:2], 4, 5)
    assert not ran
