"""Min pooling, and maxima and minima of bools, against the oracle (N1, N2)."""

import math
from collections.abc import Callable

import cases
import numpy as np
import oracle
import pytest
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool import nn

EVERY_TYPE = [*samples.FLOATS, *samples.INTEGERS, torch.bool]


def image(case: cases.Case, dtype: torch.dtype, seed: int = 0) -> Tensor:
    if dtype is torch.bool:
        return samples.any_bytes(samples.ties(2, 3, *case.sizes, seed=seed) > 0)
    return samples.ties(2, 3, *case.sizes, dtype=dtype, seed=seed)


def check(found: tuple[Tensor, Tensor], expected: oracle.Maximum) -> None:
    values, indices = found
    samples.assert_same(values, expected.values)
    samples.assert_same(indices, expected.indices)


@cases.parametrized(cases.LINES + cases.FEW)
def test_values_and_indices(case: cases.Case, device: torch.device) -> None:
    """N2 over every geometry: the first of equal minima, and infinity for nothing."""
    input = image(case, torch.float32).to(device)
    expected = oracle.minimum(samples.to_numpy(input), case.pooling)
    check(dmlpool.min_pooling(input, **case.arguments, return_indices=True), expected)
    samples.assert_same(dmlpool.min_pooling(input, **case.arguments), expected.values)


@cases.in_pairs(case=cases.FEW, dtype=EVERY_TYPE)
def test_every_data_type(case: cases.Case, dtype: torch.dtype, device: torch.device) -> None:
    """N2: exact, the lowest and the highest value of every integer type included."""
    input = image(case, dtype, seed=1).to(device)
    expected = oracle.minimum(samples.to_numpy(input), case.pooling)
    found = dmlpool.min_pooling(input, **case.arguments, return_indices=True)
    assert found[0].dtype is dtype
    check(found, expected)


@cases.in_pairs(case=cases.FEW, dtype=samples.FLOATS)
def test_special_values(case: cases.Case, dtype: torch.dtype, device: torch.device) -> None:
    """N2: the first NaN wins, zeros tie, infinity beats padding."""
    input = -samples.special(2, 3, *case.sizes, dtype=dtype).to(device)
    expected = oracle.minimum(samples.to_numpy(input), case.pooling)
    check(dmlpool.min_pooling(input, **case.arguments, return_indices=True), expected)


@pytest.mark.parametrize("dtype", samples.INTEGERS, ids=samples.name_of)
def test_no_integer_overflows(dtype: torch.dtype, device: torch.device) -> None:
    """N2: negation would turn the lowest integer into itself, and 0 of an unsigned type too."""
    ends = torch.iinfo(dtype)
    row = torch.tensor([[[ends.max, ends.min, ends.max, ends.max]]], dtype=dtype).to(device)
    assert dmlpool.min_pooling(row, 2).tolist() == [[[ends.min, ends.min, ends.max]]]
    assert dmlpool.adaptive_min_pooling(row, 1).tolist() == [[[ends.min]]]


@pytest.mark.parametrize("layout", list(samples.LAYOUTS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint16, torch.bool], ids=samples.name_of)
def test_every_layout(layout: str, dtype: torch.dtype, device: torch.device) -> None:
    """G7."""
    case = cases.case("padded", "uneven padding")
    input = samples.LAYOUTS[layout](image(case, dtype).to(device))
    expected = oracle.minimum(samples.to_numpy(input), case.pooling)
    found = dmlpool.min_pooling(input, **case.arguments, return_indices=True)
    check(found, expected)
    wanted = dmlpool.max_pooling(input, **case.arguments)
    assert found[0].stride() == wanted.stride()


@cases.parametrized(cases.FEW)
def test_the_gradient_goes_to_the_winners(case: cases.Case, device: torch.device) -> None:
    """N2: one element of each window, overlaps added up."""
    leaf = image(case, torch.float64).to(device).requires_grad_()
    values = dmlpool.min_pooling(leaf, **case.arguments)
    arriving = samples.normal(*values.shape, dtype=torch.float64).to(device)
    (gradient,) = torch.autograd.grad(values, leaf, arriving)
    indices = oracle.minimum(samples.to_numpy(leaf), case.pooling).indices
    expected = np.zeros(leaf.numel())
    np.add.at(expected, indices[indices >= 0], samples.to_numpy(arriving)[indices >= 0])
    expected = torch.from_numpy(expected.reshape(leaf.shape)).to(device)
    torch.testing.assert_close(gradient, expected)


@cases.in_pairs(case=cases.FEW, dtype=EVERY_TYPE)
def test_bins(case: cases.Case, dtype: torch.dtype, device: torch.device) -> None:
    """N1 and N2 of adaptive pooling."""
    input, outputs = image(case, dtype).to(device), tuple(size // 2 + 1 for size in case.sizes)
    for pool, expected in (
        (dmlpool.adaptive_min_pooling, oracle.minimum),
        (dmlpool.adaptive_max_pooling, oracle.maximum),
    ):
        check(
            pool(input, outputs, return_indices=True),
            expected(samples.to_numpy(input), oracle.Bins(outputs)),
        )


@cases.parametrized(cases.FEW)
def test_maxima_of_bools(case: cases.Case, device: torch.device) -> None:
    """N1: whether any element is True, and the first that is; False and -1 for nothing."""
    input = image(case, torch.bool).to(device)
    expected = oracle.maximum(samples.to_numpy(input), case.pooling)
    found = dmlpool.max_pooling(input, **case.arguments, return_indices=True)
    assert found[0].dtype is torch.bool
    check(found, expected)
    values = dmlpool.max_pooling(input, **case.arguments)
    samples.assert_same(values, expected.values)
    assert all(int(each.view(torch.uint8).amax()) <= 1 for each in (values, found[0]))


def test_a_zero_is_not_negative(device: torch.device) -> None:
    """N2: an image of zeros has none that prints as -0."""
    for dtype in samples.FLOATS:
        zeros = torch.zeros(1, 1, 3, dtype=dtype, device=device)
        found = dmlpool.min_pooling(zeros, 2), dmlpool.adaptive_min_pooling(zeros, 2)
        assert not any(values.signbit().any() for values in found)


LAYERS = ["MaxPool", "MinPool"]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.bool], ids=samples.name_of)
@pytest.mark.parametrize("family", LAYERS)
def test_layers(family: str, dtype: torch.dtype, rank: int, device: torch.device) -> None:
    """N1 and N2 with PyTorch's words: indices of each plane, unbatched inputs, any padding."""
    case = cases.Case((cases.PADDED, cases.PLAIN, cases.PADDED)[:rank])
    input = image(case, dtype).to(device)
    pooling = oracle.Pooling((3,) * rank, (2,) * rank, (1,) * rank, (2,) * rank, (1,) * rank)
    rule: Callable[..., oracle.Maximum]
    rule = oracle.minimum if family == "MinPool" else oracle.maximum
    expected = rule(samples.to_numpy(input), pooling)
    layer = getattr(nn, f"{family}{rank}d")(3, 2, ((1, 2),) * rank, return_indices=True)
    values, indices = layer(input)
    samples.assert_same(values, expected.values)
    samples.assert_same(indices, expected.plane_indices)
    for whole, one in zip((values, indices), layer(input[0]), strict=True):
        assert torch.equal(whole[0], one)
    bins = getattr(nn, f"Adaptive{family}{rank}d")((2,) * rank, return_indices=True)
    expected = rule(samples.to_numpy(input), oracle.Bins((2,) * rank))
    for found, wanted in zip(bins(input), (expected.values, expected.plane_indices), strict=True):
        samples.assert_same(found, wanted)


def test_a_layer_of_minima_is_none_of_maxima() -> None:
    """Tools that replace torch.nn's maxima leave it alone."""
    layer = nn.MinPool2d(3, 2, 1)
    assert (
        repr(layer) == "MinPool2d(kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=False)"
    )
    assert not isinstance(layer, torch.nn.MaxPool2d)
    assert nn.convert(torch.nn.Sequential(layer)).left == {}
    with pytest.raises(ValueError, match=r"^stride must be at least 1"):
        nn.MinPool1d(3, 0)
    with pytest.raises(ValueError, match=r"^output_size must be at least 0"):
        nn.AdaptiveMinPool1d(-1)


def test_dilation_erosion_opening_and_closing(device: torch.device) -> None:
    """N1 and N2: opening takes a speck away, closing a hole, and neither changes the rest."""
    shape = torch.zeros(1, 1, 9, 9, dtype=torch.bool, device=device)
    shape[..., 2:7, 2:7] = True
    spotted = shape.clone()
    spotted[..., 0, 0], spotted[..., 4, 4] = True, False
    grow, shrink = nn.MaxPool2d(3, 1, "same"), nn.MinPool2d(3, 1, "same")
    hole = shape.clone()
    hole[..., 4, 4] = False
    assert torch.equal(shrink(grow(spotted))[..., 2:7, 2:7], shape[..., 2:7, 2:7])
    assert torch.equal(shrink(grow(hole)), shape)
    speck = shape.clone()
    speck[..., 0, 0] = True
    assert torch.equal(grow(shrink(speck)), shape)
    assert dmlpool.min_pooling(torch.full((1, 1, 2), -math.inf, device=device), 2) == -math.inf
