"""Adaptive pooling against the oracle and against ATen: bins of every kind, ties, NaN, gradients,
symbolic sizes."""

import numpy as np
import oracle
import pytest
import samples
import torch

import torch_dmlpool as dmlpool

operators = torch.ops.dmlpool
ADAPTED: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "bins overlap": ((7,), (3,)),
    "bins alternate": ((8,), (5,)),
    "more outputs than elements": ((5,), (8,)),
    "twice as many outputs": ((4,), (8,)),
    "one element": ((1,), (3,)),
    "as it was": ((5,), (5,)),
    "global": ((13,), (1,)),
    "wide bins": ((67,), (3,)),
    "many bins in a row": ((1100,), (77,)),
    "planes of short bins": ((33, 35), (7, 6)),
    "divided evenly": ((12,), (4,)),
    "rows uneven, columns even": ((7, 6), (3, 2)),
    "rows kept": ((5, 9), (5, 4)),
    "global rows, more columns": ((6, 5), (1, 7)),
    "both uneven": ((8, 11), (5, 4)),
    "all even": ((6, 8), (3, 2)),
    "uneven volume": ((5, 4, 7), (2, 3, 3)),
    "volume with one kept": ((3, 5, 6), (3, 4, 1)),
}


def check_average(input, outputs):
    """The average within the bound of E6, and that of what is there (K2)."""
    bins = oracle.Bins(outputs)
    taps = max(len(reading.taps) for reading in oracle.readings(bins, input.shape[2:]))
    # An average under a mask is the quotient of two, which is one rounding more.
    for name, count in (("no mask", taps), ("each element", 2 * taps)):
        mask, whole = samples.masked(name, input)
        result = dmlpool.adaptive_average_pooling(input, outputs, mask=mask)
        assert result.dtype is input.dtype
        exact = oracle.average(samples.to_numpy(input), bins, mask=whole)
        samples.assert_average(result, *exact, count)


def check_maximum(input, outputs):
    """Values and both kinds of index."""
    expected = oracle.maximum(samples.to_numpy(input), oracle.Bins(outputs))
    samples.assert_same(dmlpool.adaptive_max_pooling(input, outputs), expected.values)
    values, indices = dmlpool.adaptive_max_pooling(input, outputs, return_indices=True)
    assert (values.dtype, indices.dtype) == (input.dtype, torch.int64)
    samples.assert_same(values, expected.values)
    samples.assert_same(indices, expected.indices)
    values, positions = operators.adaptive_max_pooling(input, list(outputs))
    assert positions.dtype is torch.int32
    samples.assert_same(values, expected.values)
    samples.assert_same(positions, expected.plane_indices)


@pytest.mark.parametrize("dtype", samples.FLOATS, ids=samples.name_of)
@pytest.mark.parametrize("name", ADAPTED)
def test_bins_of_every_kind(name, dtype, device):
    """B1 and B2: the first of several, NaN too (M2, M3), the average's adjoint (A6), the winner's
    share added up where bins overlap (M5); in half precision sums in float32,
    rounded once (A4)."""
    sizes, outputs = ADAPTED[name]
    bins = oracle.Bins(outputs)
    check_average(samples.normal(2, 3, *sizes, dtype=dtype).to(device), outputs)
    input = samples.special(2, 3, *sizes, dtype=dtype).to(device)
    check_maximum(input, outputs)
    # Averages spread NaN and infinity to the bins that hold them and to no other.
    with np.errstate(invalid="ignore"):
        expected, _ = oracle.average(samples.to_numpy(input), bins)
        found = samples.to_numpy(dmlpool.adaptive_average_pooling(input, outputs))
    for kind in (np.isnan, np.isneginf, np.isposinf):
        np.testing.assert_array_equal(kind(found), kind(expected))
    gradient = samples.normal(2, 3, *outputs, dtype=dtype, seed=1).to(device)
    (found,) = torch.autograd.grad(
        dmlpool.adaptive_average_pooling(input.requires_grad_(), outputs), input, gradient
    )
    samples.assert_gradient(
        found, *oracle.average_grad(samples.to_numpy(gradient), sizes, bins), 2 ** len(sizes)
    )
    whole = samples.ties(2, 3, *outputs, dtype=dtype, seed=2).to(device)
    (found,) = torch.autograd.grad(dmlpool.adaptive_max_pooling(input, outputs), input, whole)
    samples.assert_same(
        found, oracle.maximum_grad(samples.to_numpy(input), samples.to_numpy(whole), bins)
    )


def test_wide_rows_in_channels_last(device):
    """M2 and A6: those are pooled in parts, each of which reads columns of its own."""
    input = samples.ties(1, 2, 8, 35000).to(device, memory_format=torch.channels_last)
    check_average(input, (1, 5))
    check_maximum(input, (1, 5))


def test_no_size_and_a_size_of_zero(device):
    """B1: None keeps the input's size, 0 gives an empty result."""
    input = samples.normal(2, 3, 4, 5).to(device)
    for function in (dmlpool.adaptive_average_pooling, dmlpool.adaptive_max_pooling):
        samples.assert_same(function(input, None), input)
        samples.assert_same(function(input, (None, 5)), input)
        assert function(input, (0, 2)).shape == (2, 3, 0, 2)


@pytest.mark.parametrize("pool", [dmlpool.adaptive_average_pooling, dmlpool.adaptive_max_pooling])
def test_bins_whose_places_have_no_integer_are_rejected(pool):
    """Bin i begins at i times the size, divided: a product of 64 bits in every backend."""
    with pytest.raises(ValueError, match=r"output_size \+ 1 times the input's size"):
        pool(torch.empty(1, 1, 2**33, device="meta"), 2**31 - 1)
