"""Windows that cover a whole plane, which the PyTorch backend reduces at once (A1, A3-A6, M3, E6, G7)."""

from __future__ import annotations

import math

import pytest
import samples
import torch

from torch_dmlpool.backends import torch_backend, whole_planes
from torch_dmlpool.window import Window

SIZES = [(3, 5, 7, 7), (1, 1, 28, 28), (2, 3, 31), (2, 4, 5, 6, 7), (1, 2, 150, 170), (9, 64, 3, 5)]
PADDING = [(0, 0), (0, 2), (3, 1)]


def covering(sizes: tuple[int, ...], padding: tuple[int, int]) -> Window:
    return Window.directml(len(sizes) - 2, [size + sum(padding) for size in sizes[2:]], 1, *padding)


@pytest.mark.parametrize("layout", ["contiguous", "channels last", "sliced"])
@pytest.mark.parametrize("dtype", samples.FLOATS, ids=samples.name_of)
@pytest.mark.parametrize("padding", PADDING, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_averages_and_gradients(
    sizes: tuple[int, ...], padding: tuple[int, int], dtype: torch.dtype, layout: str
) -> None:
    """A1, A4, A6 and the bound of E6, with and without the padding in the divisor."""
    input, window = samples.LAYOUTS[layout](samples.normal(*sizes, dtype=dtype)), covering(sizes, padding)
    assert whole_planes.covers(window, sizes[2:])
    planes = list(range(2, len(sizes)))
    exact, magnitude = input.double().sum(planes, keepdim=True), input.double().abs().sum(planes, keepdim=True)
    wide = 2.0**-53 if dtype is torch.float64 else 2.0**-24
    rounding = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}.get(dtype, 0)
    for include_padding in (False, True):
        taps = window.taps if include_padding else math.prod(sizes[2:])
        average = torch_backend.average_pooling(input, window, include_padding, None)
        assert average.dtype == dtype
        bound = (2 + math.ceil(math.log2(window.taps))) * wide * magnitude / taps
        assert bool(
            ((average.double() - exact / taps).abs() <= bound + rounding * (exact / taps).abs() + 1e-7 * rounding).all()
        )
        gradient = samples.normal(*average.shape, dtype=dtype, seed=1)
        found = torch_backend.average_pooling_grad(gradient, sizes[2:], window, include_padding, None)
        expected = (gradient.double() / taps).expand(sizes)
        torch.testing.assert_close(found.double(), expected, rtol=2 * max(rounding, wide), atol=1e-7)


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("sizes", [(5, 3, 7, 7), (3, 1, 40, 41), (4, 2, 5, 6, 7)], ids=str)
def test_a_sample_is_alone_in_its_batch(sizes: tuple[int, ...], layout: str) -> None:
    """E6: bit for bit, fewer planes than threads included."""
    input, window = samples.LAYOUTS[layout](samples.normal(*sizes)), covering(sizes, (0, 0))
    whole = torch_backend.average_pooling(input, window, False, None)
    for sample in range(sizes[0]):
        alone = torch_backend.average_pooling(input[sample : sample + 1], window, False, None)
        assert torch.equal(alone, whole[sample : sample + 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.uint16, torch.int64], ids=samples.name_of)
def test_maxima(dtype: torch.dtype) -> None:
    """M1 to M3: padding never wins, NaN does."""
    input = samples.ties(2, 3, 5, 6, dtype=dtype)
    window = covering(tuple(input.shape), (1, 1))
    expected = [max(row) for row in input.flatten(2).flatten(0, 1).tolist()]
    assert torch_backend.max_pooling(input, window).flatten().tolist() == expected
    if dtype.is_floating_point:
        input[0, 1, 2, 3] = math.nan
        values = torch_backend.max_pooling(input, window)
        assert values.isnan().sum() == 1
        assert values[0, 1].isnan().all()
