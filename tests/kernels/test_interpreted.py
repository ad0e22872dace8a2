"""What no result of a kernel shows: additions counted, and quotients on a half and beside it (E6, Q1, Q4)."""

import numpy as np
import oracle
import pytest
import samples
import torch
from torch_dmlpool.kernels import average_pooling_launch, launch

from torch_dmlpool.window import Window

interpreter = pytest.importorskip("triton.runtime.interpreter")
backend = pytest.importorskip("torch_dmlpool.backends.triton")


def deeper(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The depth of a sum of two sums."""
    return np.maximum(left, right) + ((left > 0) & (right > 0)).astype(np.float32)


# Where trees are tight: powers of two, products just below and just above one, and unlike sides.
WINDOWS = [(1, 7), (2, 2), (3, 3), (3, 5), (5, 5), (4, 7), (7, 7), (8, 3), (1, 9)]


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize(("rows", "columns"), WINDOWS)
def test_unrolled_windows_add_up_trees(
    rows: int, columns: int, layout: str, monkeypatch: pytest.MonkeyPatch, launched: list
) -> None:
    """E6 in worst-case terms: (2 + ⌈log₂ taps⌉) roundings, the division's among them; no tree is flatter than that.

    The interpreter computes in an algebra where a number is how deep a sum is: a source element is 1, what is not there
    0, and a sum of two numbers the greater one plus 1. So a result is the most additions that a term has gone through,
    plus 1; an addition of 0 rounds nothing and counts nothing. The divisor is 1.
    """
    builder = interpreter.InterpreterBuilder
    monkeypatch.setattr(builder, "create_fadd", lambda self, left, right: self.binary_op(left, right, deeper))
    # The window lies wherever it can among 16 columns.
    source = samples.LAYOUTS[layout](torch.ones(1, 4, rows, 16 * -(-(columns + 15) // 16)))
    depth = int(backend.average_pooling(source, Window.directml(2, (rows, columns), 1), True, 1).max()) - 1
    balanced = (rows * columns - 1).bit_length()
    assert balanced <= depth <= balanced + 1
    assert [one.kernel for one in launched] == ["sum_tile"]


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
