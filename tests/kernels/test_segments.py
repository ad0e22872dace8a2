"""Pools of sets of rows on a GPU (T1, T2, T5): interpreted, or as compiled for sm_90 by the
emulator."""

import math

import cases
import numpy as np
import oracle
import pytest
import samples
import torch

backend = pytest.importorskip("torch_dmlpool.backends.triton")
pytest.importorskip("triton._C.libtriton")

STEPS = [1, 4, 4, 5, 45]
"""Offsets of an empty set, of one row, and of more rows than a tile has."""
REDUCTIONS = ["sum", "mean", "max", "min"]


@pytest.fixture(autouse=True)
def one_program_at_a_time(monkeypatch):
    """Sets differ in their turns, and the emulator lets all threads go the same way."""
    monkeypatch.setattr("emulator.machine.TOGETHER", 1)


def rows_of(channels, dtype, layout):
    """Rows whose sums are exact, with NaN, infinities and ties."""
    rows = torch.randn(47, channels, generator=torch.Generator().manual_seed(1)).mul(4).round()
    rows[20, 0] = rows[30, 0] = math.nan
    rows[1:4, -1] = -math.inf
    rows[5:45, -1] = math.inf
    rows = rows.div(4).to(dtype)
    if layout == "sliced":
        return torch.cat([rows, rows], 1)[:, channels:]
    return rows.t().contiguous().t() if layout == "transposed" else rows


def assert_pooled(found, rows, steps, mask, reduction):
    """Whether results are those of a loop over sets, whose winners are returned."""
    numbers, kept = samples.to_numpy(rows.double()), None if mask is None else mask.numpy()
    with np.errstate(invalid="ignore"):
        expected, winners = oracle.pooled_sets(numbers, steps, kept, reduction)
    assert found.dtype is rows.dtype
    if reduction == "mean":
        precision = torch.finfo(rows.dtype).eps * 2
        np.testing.assert_allclose(found.double().numpy(), expected, precision, precision)
    else:
        np.testing.assert_array_equal(
            found.double().numpy(), torch.from_numpy(expected).to(found.dtype).double().numpy()
        )
    return winners


@cases.in_pairs(
    reduction=REDUCTIONS,
    dtype=[torch.float32, torch.float16, torch.bfloat16, torch.float64],
    channels=[1, 8, 7, 132],
    layout=["contiguous", "sliced", "transposed"],
    is_masked=[False, True],
    of_offsets=[torch.int64, torch.int32],
)
def test_sets_are_pooled_as_by_a_loop(
    reduction, dtype, channels, layout, is_masked, of_offsets, launched
):
    """Ties, NaN and infinities, empty sets; rows under a mask are not read, as bytes say it."""
    rows, offsets = rows_of(channels, dtype, layout), torch.tensor(STEPS, dtype=of_offsets)
    mask = None
    if is_masked:
        mask = torch.arange(47) % 3 != 1
        mask[4] = False
        rows[~mask] = math.nan
        mask = torch.where(mask, 7, 0).to(torch.uint8).view(torch.bool)
    known = None if mask is None else mask.view(torch.uint8) != 0
    if reduction in ("sum", "mean"):
        found = backend.segment_sums(rows, offsets, mask, reduction == "mean")
        assert_pooled(found, rows, STEPS, known, reduction)
    else:
        found, indices = backend.segment_maxima(rows, offsets, mask, reduction == "min")
        winners = assert_pooled(found, rows, STEPS, known, reduction)
        np.testing.assert_array_equal(indices.numpy(), winners)
    assert [one.kernel for one in launched] == ["segments"]


@pytest.mark.parametrize("is_masked", [False, True])
def test_samples_are_sets_of_as_many_rows(is_masked, launched):
    """T4: winners count from a sample's first row."""
    tokens = rows_of(8, torch.float32, "contiguous")[:46].view(2, 23, 8)
    mask = torch.arange(46).view(2, 23) % 3 != 1 if is_masked else None
    flat = None if mask is None else mask.flatten()
    for reduction in REDUCTIONS:
        if reduction in ("sum", "mean"):
            found = backend.segment_sums(tokens, None, mask, reduction == "mean")
            assert_pooled(found, tokens.flatten(0, 1), [0, 23, 46], flat, reduction)
            continue
        found, indices = backend.segment_maxima(tokens, None, mask, reduction == "min")
        winners = assert_pooled(found, tokens.flatten(0, 1), [0, 23, 46], flat, reduction)
        np.testing.assert_array_equal(indices.numpy(), winners - [[0], [23]])
    assert len(launched) == 4


def test_a_sets_bits_depend_on_that_set_alone(launched):
    """T2, E6: tiles begin where a set begins."""
    rows = torch.randn(90, 8, generator=torch.Generator().manual_seed(2))
    every = backend.segment_sums(rows, torch.tensor([0, 3, 60, 90]), None, True)
    alone = backend.segment_sums(rows[3:60], torch.tensor([0, 57]), None, True)
    assert torch.equal(every[1:2], alone)
    assert launched


def test_long_sets_are_added_as_by_trees(launched):
    """E6: one large row and many small ones, which plain additions would lose."""
    rows = torch.full((3000, 4), 2.0**-13)
    rows[0] = 2.0**11
    found = backend.segment_sums(rows, torch.tensor([0, 3000]), None, False)
    assert (found.double() - rows.double().sum(0)).abs().max() <= 14 * 2.0**-24 * 2.0**11
    assert launched


def test_offsets_outside_the_rows_read_nothing_there(launched):
    """T3: on a device they are not checked, but limited to the rows that there are."""
    rows = torch.ones(5, 4)
    found = backend.segment_sums(rows, torch.tensor([-3, 2, 1, 90]), None, False)
    assert found[:, 0].tolist() == [2, 0, 4]
    assert launched


def test_what_the_kernel_does_not_take_is_the_references(launched):
    """T1: maxima of integers; and results without elements."""
    rows = torch.arange(12, dtype=torch.int32).view(4, 3)
    values, indices = backend.segment_maxima(rows, torch.tensor([0, 1, 4]), None, True)
    assert values.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert indices[:, 0].tolist() == [0, 1]
    assert backend.segment_sums(torch.ones(4, 0), torch.tensor([0, 4]), None, True).shape == (1, 0)
    assert not launched
