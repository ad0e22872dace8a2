"""How exact averages are (A4, E6), and what infinity, NaN and subnormal numbers become."""

import math

import pytest
import samples
import torch

import torch_dmlpool as dmlpool
from benchmarks import numerics


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("dtype", samples.FLOATS, ids=samples.name_of)
@pytest.mark.parametrize("window", [3, pytest.param(31, marks=pytest.mark.slow), 63])
def test_worst_errors_stay_within_the_bound(window: int, dtype: torch.dtype, layout: str, device: torch.device) -> None:
    """E6, on inputs whose sum one after the other would be far off."""

    def average(image: torch.Tensor, window: int) -> torch.Tensor:
        return dmlpool.average_pooling(image.to(device), window).cpu()

    error = numerics.worst(average, window, dtype, layout == "channels last", trials=2)
    # The rounding of a half-precision result, and what the accumulation adds to it.
    assert error <= (1.01 if dtype.itemsize == 2 else 2 + math.ceil(math.log2(window**2)))


def test_the_inputs_are_unkind() -> None:
    """A sum of one element after the other does leave the bound on them."""
    assert numerics.worst(numerics.atens, 31, torch.float32, False, trials=2) > 10 * (2 + math.ceil(math.log2(31**2)))


@pytest.mark.parametrize("dtype", samples.FLOATS, ids=samples.name_of)
def test_subnormal_numbers_are_not_flushed(dtype: torch.dtype, device: torch.device) -> None:
    """A4: an average of subnormal numbers is their mean, and a maximum keeps the greatest of them."""
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    row = (torch.tensor([1.0, 3.0, 5.0, 7.0], dtype=torch.float64) * smallest).to(dtype).view(1, 1, 4).to(device)
    assert (dmlpool.average_pooling(row, 2).double() / smallest).tolist() == [[[2, 4, 6]]]
    assert (dmlpool.max_pooling(row, 2).double() / smallest).tolist() == [[[3, 5, 7]]]
