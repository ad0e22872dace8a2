"""Averages and unpooling of complex numbers (A7)."""

import math
from collections.abc import Callable

import cases
import oracle
import pytest
import samples
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import torch_dmlpool as dmlpool
from torch_dmlpool import nn

COMPLEX = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def image(*sizes, dtype=torch.complex128):
    return torch.complex(
        samples.normal(*sizes, dtype=COMPLEX[dtype]),
        samples.normal(*sizes, dtype=COMPLEX[dtype], seed=1),
    )


@pytest.mark.parametrize("dtype", COMPLEX, ids=samples.name_of)
@cases.parametrized(cases.FEW)
def test_averages(case, dtype, device):
    """A7 and E6: each part is the average of the parts."""
    input = image(2, 3, *case.sizes, dtype=dtype).to(device)
    mask = samples.normal(2, 1, *case.sizes).to(device) > 0
    found = dmlpool.average_pooling(input, **case.arguments, include_padding=True)
    masked = dmlpool.average_pooling(input, **case.arguments, mask=mask)
    assert found.dtype is masked.dtype is dtype
    taps = math.prod(case.pooling.window_size)
    for part in ("real", "imag"):
        values = samples.to_numpy(getattr(input, part))
        exact = oracle.average(values, case.pooling, include_padding=True)
        samples.assert_average(getattr(found, part), *exact, taps)
        exact = oracle.average(values, case.pooling, mask=mask.cpu().numpy())
        samples.assert_average(getattr(masked, part), *exact, taps)


def unpooled(values):
    indices = torch.tensor([[[1, 3, -1, 6, 6]]], device=values.device).expand(1, 1, 5)
    return dmlpool.max_unpooling(values, indices, (1, 1, 8))


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "average_pooling": (lambda x: dmlpool.average_pooling(x, 2, 1, 1, 1), (1, 2, 4, 3)),
    "average_pooling, masked": (
        lambda x: dmlpool.average_pooling(x, 2, mask=torch.tensor([[True, False, True]])),
        (1, 2, 4, 3),
    ),
    "average_pooling_grad": (
        lambda g: dmlpool.average_pooling_grad(g, (1, 2, 4, 3), 2),
        (1, 2, 3, 2),
    ),
    "adaptive_average_pooling": (
        lambda x: dmlpool.adaptive_average_pooling(x, (3, 2)),
        (1, 2, 4, 3),
    ),
    "max_unpooling": (unpooled, (1, 1, 5)),
    "nn.AvgPool2d": (nn.AvgPool2d(2, 1, 1, dilation=2), (1, 2, 4, 3)),
    "nn.AdaptiveAvgPool2d": (nn.AdaptiveAvgPool2d(2), (2, 4, 3)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives(name):
    """A7 and E1: reverse and forward mode, first and second order, in PyTorch's convention."""
    function, sizes = FUNCTIONS[name]
    input = image(*sizes).requires_grad_()
    modes = {"check_batched_grad": True, "check_forward_ad": True, "fast_mode": True}
    assert gradcheck(function, input, **modes)
    assert gradgradcheck(lambda x: function(x).square(), input, fast_mode=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_transforms_and_compiled_graphs(name, fresh_compiler):
    """E1 and E2."""
    function, sizes = FUNCTIONS[name]
    inputs = torch.stack([image(*sizes), image(*sizes).conj()])
    mapped = torch.func.vmap(function)(inputs)
    torch.testing.assert_close(mapped, torch.stack([function(one) for one in inputs]))
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(inputs[0]), function(inputs[0]))


@pytest.mark.parametrize("layout", ["contiguous", "channels last", "sliced"])
def test_conjugates_that_are_not_computed_yet(layout):
    """G7: and results are laid out as the parts' are."""
    input = samples.LAYOUTS[layout](image(2, 3, 6, 8))
    for x in (input, input.conj(), input.conj().imag + 0j):
        found = dmlpool.average_pooling(x, 3, 2, 1)
        plain = x.resolve_conj().clone()
        torch.testing.assert_close(found, dmlpool.average_pooling(plain, 3, 2, 1))
    real = dmlpool.average_pooling(input.real, 3, 2, 1)
    assert dmlpool.average_pooling(input, 3, 2, 1).stride() == real.stride()


def test_unpooling_undoes_pooling(device):
    """A7: complex numbers at the places of other maxima."""
    values = image(2, 3, 6, 6).to(device)
    magnitudes, indices = dmlpool.max_pooling(values.abs(), 2, 2, return_indices=True)
    chosen = values.flatten()[indices.flatten()].view(indices.shape)
    found = dmlpool.max_unpooling(chosen, indices, values.shape)
    assert torch.equal(found[found != 0], values[found != 0])
    torch.testing.assert_close(dmlpool.max_pooling(found.abs(), 2, 2), magnitudes)
    layered = nn.MaxUnpool2d(2)(*(each[:1, :1] for each in (chosen, indices)))
    assert torch.equal(layered, found[:1, :1])
