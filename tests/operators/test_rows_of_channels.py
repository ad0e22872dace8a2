"""Rows of one spatial dimension in (N, W, C) order: every operator pools them in place, and its
results stay in that order (G7)."""

from collections.abc import Callable
from typing import Any

import cases
import pytest
import samples
import torch
from operators import MASKED
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool import backends


def tokens(dtype: torch.dtype = torch.float32) -> Tensor:
    return samples.normal(3, 50, 20, dtype=dtype).transpose(1, 2)


def windowed(name: str, **more: Any) -> Callable[[Tensor], Any]:
    return lambda x: getattr(dmlpool, name)(x, 3, 2, 1, 1, **more)


POOLS: dict[str, Callable[[Tensor], Any]] = {
    "average_pooling": windowed("average_pooling"),
    "max_pooling": windowed("max_pooling"),
    "max_pooling, indices": windowed("max_pooling", return_indices=True),
    "min_pooling": windowed("min_pooling"),
    "lp_pooling": windowed("lp_pooling"),
    "adaptive_average_pooling": lambda x: dmlpool.adaptive_average_pooling(x, 7),
    "adaptive_max_pooling": lambda x: dmlpool.adaptive_max_pooling(x, 7, return_indices=True),
    "adaptive_average_pooling, whole": lambda x: dmlpool.adaptive_average_pooling(x, 1),
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=samples.name_of)
def test_results_and_gradients_stay_in_that_order(
    name: str, dtype: torch.dtype, device: torch.device
) -> None:
    leaf = tokens(dtype).to(device).requires_grad_()
    plain = leaf.detach().contiguous().requires_grad_()
    found, expected = samples.listed(POOLS[name](leaf)), samples.listed(POOLS[name](plain))
    assert not torch.equal(torch.tensor(leaf.stride()), torch.tensor(plain.stride()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride()[1] == 1
    arriving = torch.ones_like(found[0])
    (gradient,) = torch.autograd.grad(found[0], leaf, arriving)
    (other,) = torch.autograd.grad(expected[0], plain, torch.ones_like(expected[0]))
    torch.testing.assert_close(gradient, other)
    assert gradient.stride() == leaf.stride()


@cases.each("name", POOLS, ["average_pooling", "max_pooling, indices", "adaptive_max_pooling"])
def test_compiled_results_lie_as_eager_ones(name: str) -> None:
    """E2: fake and real results have the same strides, of rows in either order."""
    torch.compiler.reset()
    compiled = torch.compile(POOLS[name], backend="aot_eager", fullgraph=True)
    for input in (tokens(), tokens()[..., :40], tokens().contiguous()):
        pairs = zip(
            samples.listed(compiled(input)), samples.listed(POOLS[name](input)), strict=True
        )
        for found, expected in pairs:
            torch.testing.assert_close(found, expected)
            assert found.stride() == expected.stride()


@pytest.mark.parametrize("name", ["average_pooling", "max_pooling", "adaptive_average_pooling"])
@pytest.mark.parametrize("is_masked", [False, True])
def test_no_row_is_copied(name: str, is_masked: bool, device: torch.device) -> None:
    if backends.serving(device.type).name == "reference":
        pytest.skip("PyTorch's own operations copy rows to pad, mask and average them")
    input = tokens().to(device)
    mask = torch.ones(3, 1, 50, dtype=torch.bool, device=device)
    call = (lambda: MASKED[name](input, mask)) if is_masked else (lambda: POOLS[name](input))
    call()
    with torch.profiler.profile() as profile:
        call()
    copied = [event.name for event in profile.events() if event.name == "aten::copy_"]
    assert not copied or device.type != "cpu"


@pytest.mark.parametrize("masks", [1, 3])
def test_samples_that_are_joined_have_masks_of_their_own(masks: int, device: torch.device) -> None:
    """K2: windows that tile the rows of all samples as one read one mask for all, or one each."""
    leaf = tokens().to(device)
    mask = (torch.rand(masks, 1, 50, generator=samples.seeded(masks)) < 0.6).to(device)
    filled = torch.where(mask, leaf, -torch.inf)
    found = dmlpool.max_pooling(leaf, 2, 2, mask=mask)
    assert torch.equal(found, dmlpool.max_pooling(filled, 2, 2))
