"""The kernels of adaptive pooling and of positions under Triton's interpreter, and how they are launched."""

from __future__ import annotations

import math
from collections.abc import Callable

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
def test_maxima_and_their_gradient(name: str, layout: str) -> None:
    """M2 and M5."""
    sizes, outputs = ADAPTED[name]
    input = samples.LAYOUTS[layout](samples.ties(2, 3, *sizes))
    check_maximum(input, outputs)
    expected = oracle.maximum(samples.to_numpy(input), oracle.Bins(outputs))
    gradient = samples.LAYOUTS[layout](samples.ties(2, 3, *outputs, seed=1))
    spread = oracle.maximum_grad(samples.to_numpy(input), samples.to_numpy(gradient), oracle.Bins(outputs))
    positions = torch.from_numpy(expected.plane_indices)
    for channels_last in (False, True)[: len(sizes)]:
        for given in (positions, samples.LAYOUTS[layout](positions.int())):
            if layout != "expanded over channels" or given is positions:
                found = backend.scatter_positions(gradient, given, sizes, True, channels_last)
                samples.assert_same(found, spread)


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
    test_maxima_and_their_gradient("plane", "channels last")
    test_positions("contiguous", torch.int64)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=samples.name_of)
@pytest.mark.parametrize("layout", ["contiguous", "channels last", "sliced"])
def test_positions(layout: str, dtype: torch.dtype) -> None:
    """Unique ones, scattered and gathered; what lies outside the plane touches nothing."""
    lay_out: Callable[[Tensor], Tensor] = samples.LAYOUTS[layout]
    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(-2, 14, (2, 3, 3, 2), generator=generator)
    inside = torch.where((raw >= 0) & (raw < 12), raw, -1)
    values = samples.normal(2, 3, 3, 2)
    expected, kept = oracle.unpooled(values.numpy(), inside.numpy(), (3, 4))
    unique = backend.unique_positions(lay_out(raw.to(dtype)), (3, 4))
    samples.assert_same(unique, np.where(kept, inside.numpy(), -1))
    for channels_last in (False, True):
        scattered = backend.scatter_positions(lay_out(values), lay_out(unique), (3, 4), False, channels_last)
        samples.assert_same(scattered, expected)
    gathered = backend.gather_positions(lay_out(scattered), lay_out(raw.to(dtype)))
    picked = scattered.flatten(2).gather(2, inside.clamp(min=0).flatten(2)).view_as(raw)
    samples.assert_same(gathered, torch.where(inside >= 0, picked, 0))
    assert backend.unique_positions(raw[:0], (3, 4)).shape == (0, 3, 3, 2)


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
