"""Means and standard deviations of planes (T6)."""

import math
from typing import Any

import numpy as np
import oracle
import pytest
import torch

import torch_dmlpool as dmlpool

LAYOUTS = ["planes", "rows", "sliced"]


def laid_out(frames, layout):
    """``(N, C, W)`` frames, contiguous, in (N, W, C) order, or a part of a larger tensor."""
    if layout == "rows":
        return frames.transpose(1, 2).contiguous().transpose(1, 2)
    return frames if layout == "planes" else torch.cat([frames, frames], 2)[..., frames.shape[2] :]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 3, 1), (3, 5, 7), (2, 40, 300), (1, 1100, 9), (1, 2, 5000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_statistics_equal_a_loop_over_planes(layout, shape, dtype, device):
    torch.manual_seed(len(layout) + shape[1])
    frames = torch.randn(shape).mul(3).add(1).to(dtype)
    for mask in (None, torch.rand(shape[0], 1, shape[2]) < 0.6, torch.rand(shape) < 0.6):
        masked = frames.clone()
        if mask is not None:
            masked[~mask.expand(shape)] = math.nan
        kept = np.ones(shape, bool) if mask is None else mask.expand(shape).numpy()
        where = None if mask is None else mask.to(device)
        for correction in (0, 1):
            found = dmlpool.statistics_pooling(
                laid_out(masked, layout).to(device), where, correction=correction
            )
            expected = oracle.statistics(masked.double().numpy(), kept, correction)
            for mine, theirs in zip(found, expected, strict=True):
                assert mine.dtype is dtype
                wide = torch.from_numpy(theirs.astype(np.float64))
                tolerance = {8: 1e-13, 4: 1e-6, 2: 8e-3}[dtype.itemsize]
                torch.testing.assert_close(mine.cpu().double(), wide, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_large_mean_does_not_cancel(layout, device):
    """Deviations of numbers around 10,000 that differ by 1: sums of squares would lose them."""
    torch.manual_seed(0)
    frames = torch.randn(2, 20, 3000).add(10_000)
    found = dmlpool.statistics_pooling(laid_out(frames, layout).to(device))[1]
    torch.testing.assert_close(found.cpu().double(), frames.double().std(-1), rtol=1e-5, atol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("correction", [0, 1, 3])
def test_too_few_elements_give_0_and_no_gradient(layout, correction, device):
    """T6: never NaN, neither in the deviation nor in its gradient."""
    frames = laid_out(torch.randn(4, 3, 5), layout).to(device).requires_grad_()
    mask = torch.arange(5, device=device) < torch.tensor([0, 1, 3, 5], device=device)[:, None]
    mean, deviation = dmlpool.statistics_pooling(frames, mask[:, None], correction=correction)
    counts = mask.sum(1)
    assert (deviation[counts <= max(correction, 0)] == 0).all()
    assert (mean[0] == 0).all()
    assert (deviation[1] == 0).all()
    (gradient,) = torch.autograd.grad(deviation.sum(), frames)
    assert gradient.isfinite().all()
    assert (gradient[counts <= correction] == 0).all()
    assert (gradient.movedim(1, 2)[~mask] == 0).all()
    flat = torch.ones(1, 2, 6, requires_grad=True)  # equal elements
    (gradient,) = torch.autograd.grad(dmlpool.statistics_pooling(flat)[1].sum(), flat)
    assert (gradient == 0).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_masked", [False, True])
def test_derivatives_of_every_order(layout, is_masked):
    torch.manual_seed(0)
    frames = torch.randn(3, 2, 5, dtype=torch.double, requires_grad=True)
    mask = torch.tensor([[1, 1, 0, 1, 1], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0]]).bool()
    where = mask[:, None] if is_masked else None

    def pool(each):
        return dmlpool.statistics_pooling(laid_out(each, layout), where)

    every: Any = {"check_batched_grad": True}
    assert torch.autograd.gradcheck(pool, frames, check_forward_ad=True, **every)
    assert torch.autograd.gradgradcheck(pool, frames, check_fwd_over_rev=True, **every)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_training_gets_the_gradient_of_the_formula(layout):
    """The gradient's kernel, in float32."""
    torch.manual_seed(0)
    values, mask = torch.randn(3, 70, 333), torch.rand(3, 1, 333) < 0.5
    found, expected = (values.clone().requires_grad_() for _ in range(2))
    dmlpool.nn.StatisticsPool()(laid_out(found, layout), mask).square().sum().backward()
    weights = mask.double()
    mean = (expected * weights).sum(-1) / weights.sum(-1)
    squares = ((expected - mean[..., None]) * weights).square().sum(-1)
    deviation = (squares / (weights.sum(-1) - 1)).sqrt()
    torch.cat([mean, deviation], 1).square().sum().backward()
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-6)


def test_images_volumes_and_their_masks():
    """All spatial dimensions, in channels_last where they lie so; the layer has both side by
    side."""
    for rank, memory_format in ((2, torch.channels_last), (3, torch.channels_last_3d)):
        images = torch.randn(2, 3, *range(4, 4 + rank))
        mean, deviation = dmlpool.statistics_pooling(images)
        torch.testing.assert_close(mean, images.flatten(2).mean(-1))
        torch.testing.assert_close(deviation, images.flatten(2).std(-1))
        last = dmlpool.statistics_pooling(images.to(memory_format=memory_format))
        torch.testing.assert_close(last, (mean, deviation))
        mask = torch.rand(images.shape[2:]) < 0.5
        found = dmlpool.nn.StatisticsPool(0)(images, mask)
        kept = images.flatten(2)[..., mask.flatten()]
        torch.testing.assert_close(found, torch.cat([kept.mean(-1), kept.std(-1, correction=0)], 1))


def test_bits_do_not_depend_on_threads_or_the_batch():
    """E6."""
    frames, before = torch.randn(4, 300, 700), torch.get_num_threads()
    for layout in ("planes", "rows"):
        each = laid_out(frames, layout)
        try:
            torch.set_num_threads(1)
            one = dmlpool.statistics_pooling(each)
            torch.set_num_threads(3)
            three = dmlpool.statistics_pooling(each)
        finally:
            torch.set_num_threads(before)
        alone = dmlpool.statistics_pooling(each[2:3])
        for first, second, third in zip(one, three, alone, strict=True):
            assert torch.equal(first, second)
            assert torch.equal(first[2:3], third)


@pytest.mark.parametrize("sizes", [(0, 3, 7), (2, 0, 4, 5)], ids=str)
@pytest.mark.parametrize("channels", [0, 1], ids=["masks of their own", "one mask"])
def test_nothing_gives_nothing(sizes, channels):
    """G5: no samples or no channels, under a mask too, with a gradient."""
    mask = torch.ones(sizes[0], channels or sizes[1], *sizes[2:], dtype=torch.bool)
    for each in (None, mask):
        leaf = torch.zeros(sizes, requires_grad=True)
        mean, deviation = dmlpool.statistics_pooling(leaf, each)
        assert mean.shape == deviation.shape == sizes[:2]
        (mean.sum() + deviation.sum()).backward()
        assert leaf.grad.shape == sizes
