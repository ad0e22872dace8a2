"""Averages under a mask in one call of the CPU's library: how it counts, masks and divides, on
requests that are drawn."""

import cases
import pytest
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool.backends import cpu, reference
from torch_dmlpool.ops import masked_pooling
from torch_dmlpool.window import Window

pytestmark = cases.OF_THE_LIBRARY
SHARES = [lambda shape: shape, lambda shape: (shape[0], 1, *shape[2:])]
SHARES += [lambda shape: (1, *shape[1:]), lambda shape: (1, 1, *shape[2:])]
"""A mask for each element, for each sample, for each channel, and for all."""


def mask_for(input: Tensor, share: int) -> Tensor:
    shape = SHARES[share](tuple(input.shape))
    return samples.any_bytes(torch.rand(shape, generator=samples.seeded(*shape)) < 0.4)


def added(input: Tensor, window: Window) -> Tensor:
    """Sums of windows, in float64."""
    return reference.average_pooling(input.double().contiguous(), window, False, 1)


def counts(mask: Tensor, window: Window, include_padding: bool) -> Tensor:
    """What sums under the mask are divided by, in float64."""
    if not include_padding:
        return added(mask, window).clamp(min=1)
    taps = reference.window_counts(window, mask.shape[2:], mask.double())
    return (taps - added(~mask, window)).clamp(min=1)


def check(input: Tensor, mask: Tensor, window: Window, include_padding: bool) -> None:
    """K2 and K3: divisors are exact, and averages within E6's bound."""
    found, divisors = cpu.masked_average_pooling(input, mask, window, include_padding)
    exact = counts(mask, window, include_padding)
    assert divisors.dtype is (torch.uint8 if window.taps < 256 else torch.int32)
    assert torch.equal(divisors.double(), exact)
    kept = torch.where(mask, input, 0)
    bound = (2 + window.taps.bit_length()) * 2.0**-24 * added(kept.abs(), window) / exact
    bound += {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}.get(input.dtype, 0) * found.abs()
    errors = (found.double() - added(kept, window) / exact).abs()
    assert bool((errors <= 1.01 * bound + 2.0**-25).all())
    assert found.stride() == cpu.average_pooling(input, window, False, None).stride()


@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 3000), marks=pytest.mark.slow)], ids=["60", "3000"]
)
def test_drawn_requests(seeds: range) -> None:
    """Windows whose taps are counted over whole planes, and those that are pooled; bytes and
    integers; every layout and share of a mask."""
    kinds = [torch.float32, torch.float16, torch.float64, torch.bfloat16]
    for seed in seeds:
        sizes, window, is_last = cases.random_request(seed)
        if window.taps * torch.Size(sizes).numel() > 2**24:
            continue
        input = samples.normal(*sizes, seed=seed).to(kinds[seed // 4 % 4])
        if is_last:
            input = samples.channels_last(input)
        check(input, mask_for(input, seed % 4), window, seed % 3 == 0)


@pytest.mark.parametrize("share", range(len(SHARES)))
@pytest.mark.parametrize("is_last", [False, True], ids=["contiguous", "channels_last"])
def test_large_tensors_are_masked_plane_by_plane(share: int, is_last: bool) -> None:
    """The bits are those of samples that are pooled alone, which are small enough to be masked
    whole."""
    input = samples.normal(6, 20, 100, 112)
    if is_last:
        input = samples.channels_last(input[:, :5].contiguous().repeat(6, 1, 1, 1))
    assert input.numel() * 4 > 2**22
    mask = mask_for(input, share)
    window = Window.directml(2, window_size=3, strides=2, start_padding=1)
    found, _ = cpu.masked_average_pooling(input, mask, window, False)
    for sample, result in enumerate(found):
        alone = mask[sample % mask.shape[0]][None]
        expected, _ = cpu.masked_average_pooling(input[sample][None], alone, window, False)
        assert torch.equal(result, expected[0])


@pytest.mark.parametrize("dtype", samples.FLOATS, ids=samples.name_of)
def test_the_same_bits_as_the_operators_that_others_are_made_of(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results and gradients, of the first and of the second order: whoever asks a backend that has
    no such call gets the same."""

    def results(input: Tensor, mask: Tensor) -> list[Tensor]:
        leaf = input.clone().requires_grad_()
        value = dmlpool.average_pooling(leaf, 3, 2, 1, 1, mask=mask)
        arriving = samples.normal(*value.shape, seed=9).to(dtype).requires_grad_()
        (gradient,) = torch.autograd.grad(value, leaf, arriving, create_graph=True)
        (second,) = torch.autograd.grad(gradient, arriving, torch.ones_like(gradient))
        with torch.no_grad():
            alone = dmlpool.average_pooling(leaf, 3, 2, 1, 1, mask=mask)
        return [value.detach(), gradient.detach(), second, alone]

    for share in range(len(SHARES)):
        input = samples.normal(2, 5, 17, 33).to(dtype)
        mask = mask_for(input, share)
        at_once = results(input, mask)
        with monkeypatch.context() as patch:
            patch.setattr(masked_pooling, "_has_backend_averages", lambda *_: False)
            composed = results(input, mask)
        assert all(map(torch.equal, at_once, composed))
