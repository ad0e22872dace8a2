"""Lp pooling against the oracle: DirectML's meaning, its derivatives, and what the root does at
0."""

import math

import cases
import oracle
import pytest
import samples
import torch

import torch_dmlpool as dmlpool

NORMS = [1, 2, 3, 2.5, math.inf]
norms = pytest.mark.parametrize("p", NORMS)


@cases.in_pairs(
    is_masked=[False, True], case=cases.LINES + cases.FEW, p=NORMS, dtype=samples.FLOATS
)
def test_norms(is_masked, case, p, dtype, device):
    """P1, P2 and K5, over windows in padding, with dilation, overhanging and empty (G3, G4); an
    empty one has norm 0, and what is masked adds nothing. Half precision is powered and summed in
    float32 and rounded once."""
    input, mask = samples.normal(2, 3, *case.sizes, dtype=dtype).to(device), None
    if is_masked:
        mask = samples.mask_of("each element", tuple(input.shape)).to(device)
        input = torch.where(mask, input, 0)
    expected = oracle.norm(samples.to_numpy(input), case.pooling, p)
    if mask is not None:
        input = torch.where(mask, input, math.nan)
    found = dmlpool.lp_pooling(input, **case.arguments, p=p, mask=mask)
    assert found.dtype is dtype
    samples.assert_norms(found, expected, math.prod(case.pooling.window_size))


def test_half_precision_does_not_overflow_on_the_way(device):
    """P2: squares far beyond float16's range, norms within it."""
    input = torch.full((1, 1, 2, 2), -2e4, dtype=torch.float16, device=device)
    assert dmlpool.lp_pooling(input, 2).item() == 4e4
    assert torch.isinf(dmlpool.lp_pooling(torch.full((1, 1, 2), 1e30, device=device), 2)).all()


@norms
def test_not_a_number_and_infinity(p, device):
    """A NaN or an infinity reaches exactly the windows that read it."""
    input = samples.normal(1, 1, 9).to(device)
    input[0, 0, 1], input[0, 0, 7] = math.nan, -math.inf
    result = dmlpool.lp_pooling(input, 2, p=p)[0, 0]
    assert torch.isnan(result).tolist() == [True, True, *[False] * 6]
    assert torch.isinf(result).tolist() == [*[False] * 6, True, True]


@norms
def test_the_gradient_at_a_norm_of_zero_is_zero(p, device):
    """P3, for windows of zeros only, and windows in padding only; the second order too. (PyTorch's
    own gives NaN.)"""
    leaf = torch.zeros(1, 2, 4, 5, dtype=torch.float64, device=device)
    leaf[0, 1, :, 2:] = samples.normal(4, 3, dtype=torch.float64)
    leaf.requires_grad_()
    output = dmlpool.lp_pooling(leaf, 2, 1, 3, 3, p=p)
    (gradient,) = torch.autograd.grad(output.sum(), leaf, create_graph=True)
    assert not gradient[0, 0].any()
    assert gradient[0, 1, :, 2:].any() if p == math.inf else gradient[0, 1, :, 2:].all()
    # |x|^2.5 has an infinite third derivative at 0, no finite sum of them
    if gradient.requires_grad and p != 2.5:
        (second,) = torch.autograd.grad(gradient.square().sum(), leaf)
        assert torch.isfinite(second).all()
        assert not second[0, 0].any()


@norms
def test_the_gradient_of_a_norm(p, device):
    """P3: sign(x) (|x| / norm)^(p - 1); of p = inf all of it at the first greatest element."""
    leaf = torch.tensor([[[3.0, -4.0, 4.0, 1.0]]], dtype=torch.float64, device=device)
    norm = dmlpool.lp_pooling(leaf.requires_grad_(), 4, p=p)
    (found,) = torch.autograd.grad(norm.sum(), leaf)
    values = leaf.detach()
    if p == math.inf:
        expected = values * torch.tensor([0.0, 0.25, 0.0, 0.0], dtype=torch.float64, device=device)
    else:
        expected = values.sign() * (values.abs() / norm.detach()) ** (p - 1)
    torch.testing.assert_close(found, expected)
