"""The kernels of adaptive pooling under Triton's interpreter, and how they are launched."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest
import samples
import torch
from torch import Tensor
from torch_dmlpool.kernels import launch

backend = pytest.importorskip("torch_dmlpool.backends.triton")

ADAPTED = {
    "line": ((13,), (5,)),
    "wide bins": ((67,), (3,)),
    "more outputs": ((3, 5), (7, 9)),
    "plane": ((9, 11), (4, 5)),
    "rows kept": ((5, 9), (5, 4)),
    "global": ((6, 5), (1, 1)),
    "volume": ((5, 4, 7), (2, 6, 3)),
}
LAYOUTS = ["contiguous", "channels last", "sliced", "expanded over channels"]
laid_out = pytest.mark.parametrize(
    ("name", "layout"), [(name, "contiguous") for name in ADAPTED] + [("plane", layout) for layout in LAYOUTS[1:]]
)


@laid_out
def test_averages_and_their_adjoint(name: str, layout: str) -> None:
    sizes, outputs = ADAPTED[name]
    bins = oracle.Bins(outputs)
    input = samples.LAYOUTS[layout](samples.normal(2, 3, *sizes))
    taps = max(len(reading.taps) for reading in oracle.readings(bins, sizes))
    result = backend.adaptive_average_pooling(input, outputs)
    samples.assert_average(result, *oracle.average(samples.to_numpy(input), bins), taps)
    gradient = samples.LAYOUTS[layout](samples.normal(2, 3, *outputs))
    spread = backend.adaptive_average_pooling_grad(gradient, sizes)
    samples.assert_gradient(spread, *oracle.average_grad(samples.to_numpy(gradient), sizes, bins), 4 ** len(sizes))


@laid_out
def test_maxima(name: str, layout: str) -> None:
    """M2."""
    sizes, outputs = ADAPTED[name]
    check_maximum(samples.LAYOUTS[layout](samples.ties(2, 3, *sizes)), outputs)


def check_maximum(input: Tensor, outputs: tuple[int, ...]) -> None:
    expected = oracle.maximum(samples.to_numpy(input), oracle.Bins(outputs))
    values, positions = backend.adaptive_max_pooling(input, outputs)
    assert values.dtype is input.dtype
    samples.assert_same(values, expected.values)
    samples.assert_same(positions, expected.plane_indices)


@pytest.mark.parametrize("dtype", samples.FLOATS + samples.INTEGERS, ids=samples.name_of)
def test_every_data_type(dtype: torch.dtype) -> None:
    """A4 and M7."""
    check_maximum(samples.ties(2, 3, 7, 9, dtype=dtype), (3, 4))
    if dtype.is_floating_point:
        input = samples.normal(2, 3, 7, 9, dtype=dtype)
        result = backend.adaptive_average_pooling(input, (3, 4))
        samples.assert_average(result, *oracle.average(samples.to_numpy(input), oracle.Bins((3, 4))), 12)


def test_not_a_number_and_infinity() -> None:
    """M3: the first NaN; averages keep infinities, which the compensation of sums must not turn into NaN."""
    input = samples.ties(1, 2, 5, 40)
    input[0, 0, 3:, 20:23] = math.nan
    input[0, 1, 1, 7] = math.inf
    check_maximum(input, (2, 3))
    result = backend.adaptive_average_pooling(input, (2, 3))
    expected = torch.from_numpy(oracle.average(input.numpy(), oracle.Bins((2, 3)))[0].astype(np.float32))
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert torch.isinf(result).sum() == 1


@pytest.mark.usefixtures("wide")
def test_64_bit_offsets() -> None:
    """Every kernel again, with the arithmetic that tensors of more than 2³¹ elements take."""
    test_averages_and_their_adjoint("plane", "sliced")
    test_maxima("plane", "channels last")


@pytest.mark.parametrize(
    ("size", "outputs"), [(7, 3), (8, 5), (5, 8), (4, 8), (12, 4), (1, 3), (67, 3), (100, 99), (3, 1)]
)
def test_the_widest_bin(size: int, outputs: int) -> None:
    """A bound never below the truth, and exact where one divides the other."""
    widest = max(len(oracle.bin_positions(size, outputs, output)) for output in range(outputs))
    bound = launch.widest_bin(size, outputs)
    assert widest <= bound <= widest + 1
    if size % outputs == 0 or outputs % size == 0:
        assert bound == widest
