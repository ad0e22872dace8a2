"""Quotients on a half and beside it, where float64 is not exact enough, against rational arithmetic (Q1, Q4)."""

from __future__ import annotations

import oracle
import pytest
import samples
import torch
from torch_dmlpool.kernels import average_pooling_launch, launch

from torch_dmlpool.window import Window

backend = pytest.importorskip("torch_dmlpool.backends.triton")


def true_halves(divisor: int) -> list[samples.Quotient]:
    """``k + 1/2`` for an even and an odd ``k``, and the nearest sums beside them; ``divisor`` is even."""
    halves = [(2 * k + 1) * divisor // 2 for k in (98, 97)]
    return [(total + beside, 0.75, 0.75) for total in halves for beside in (-1, 0, 1)]


@pytest.mark.parametrize("divisor", [2**21 + 1, 2**21 + 2, 2**30 + 5, 2**30 + 6])
def test_what_float64_takes_for_a_half(divisor: int) -> None:
    """The kernel that requantizes sums of any size, given sums that no test could add up."""
    quotients = samples.near_halves(divisor, 24) if divisor % 2 else true_halves(divisor)
    # One window per channel, of as many counted taps: most of them in the padding.
    window, channels = Window.directml(1, divisor, 1, divisor - 1, 0), len(quotients)
    request = launch.Request(window, (1, channels, 1), (channels, 1, 1), (1,), 1, True, False, include_padding=True)
    *_, step = average_pooling_launch.quantized_launches(request, (2, 0, 2, 0))
    assert step.kernel == "requantization.requantize"
    sums, scales, steps = map(torch.tensor, zip(*quotients, strict=True))
    result = torch.empty(channels, dtype=torch.uint8)
    backend.launch(step, sums, result, scales, 0, steps, 0)
    expected = [oracle.requantized(total, divisor, m, n, 0, "uint8") for total, m, n in quotients]
    assert result.tolist() == expected


@pytest.mark.parametrize("scales", [(2.0**-149, 2.0**-149), (2.0**127, 2.0**-149), (2.0**-149, 2.0**127), (1.0, 2.0)])
def test_scales_far_apart(scales: tuple[float, float]) -> None:
    for window, size in ((3, 8), (15, 15)):
        input = samples.integers(1, 2, size, size, dtype=torch.uint8)
        parameters = samples.Parameters(scales[:1] * 2, (100, 3), scales[1:] * 2, (7, 40))
        request = oracle.Pooling(*((entry, entry) for entry in (window, 1, 1, 1, 1)))
        for form in ("per channel", "number"):
            samples.check_quantized(input, parameters, request, forms=[form] * 4)
