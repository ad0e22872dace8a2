"""Random requests of pools under a mask against the oracle (K1 to K4, E6), and large ones, which
are pooled in parts, against pools of a masked copy."""

import math
import random
from typing import Any

import numpy as np
import oracle
import pytest
import samples
import torch

import torch_dmlpool as dmlpool
from torch_dmlpool import backends, tensors
from torch_dmlpool.operators import adaptive_pooling, average_pooling, masks, max_pooling
from torch_dmlpool.window import Window


def drawn_mask(chance, sizes, seed):
    """A mask in one of all shapes that broadcast, of any bytes."""
    samples_of, channels_of = (chance.choice([1, size]) for size in sizes[:2])
    spatial = [size if chance.random() < 0.85 else 1 for size in sizes[2:]]
    shape = [*spatial] if chance.random() < 0.2 else [samples_of, channels_of, *spatial]
    rows = torch.rand(shape, generator=samples.seeded(*shape, seed=seed))
    return samples.any_bytes(rows < chance.choice([0.0, 0.1, 0.5, 0.9, 1.0]))


def drawn_pooling(chance, sizes):
    """Windows or bins over spatial sizes."""
    if chance.random() < 0.3:
        return oracle.Bins(tuple(chance.randint(1, size + 1) for size in sizes))
    while True:
        kinds = [[1, 2, 3, 5], [1, 2, 3], [0, 0, 1, 4], [0, 0, 1, 3], [1, 1, 1, 2]]
        drawn = [tuple(chance.choice(kind) for _ in sizes) for kind in kinds]
        if chance.random() < 0.2:
            drawn[0] = tuple(sizes)
        pooling = oracle.Pooling(*drawn, ceil_mode=chance.random() < 0.3)
        extents = [(a - 1) * b + 1 for a, b in zip(drawn[0], drawn[4], strict=True)]
        rooms = [sum(each) for each in zip(sizes, drawn[2], drawn[3], strict=True)]
        if all(a <= b for a, b in zip(extents, rooms, strict=True)):
            return pooling


def check_request(seed):
    """One random request: averages, maxima or minima of any type and layout, and gradients."""
    chance = random.Random(seed)
    rank = chance.choice([1, 2, 2, 3])
    spatial = [chance.randint(1, {1: 90, 2: 14, 3: 6}[rank]) for _ in range(rank)]
    sizes = chance.choice([1, 2, 3]), chance.choice([1, 2, 5, 17]), *spatial
    kind = chance.choice(["average", "average", "maximum", "minimum"])
    types = tensors.FLOAT_TYPES if kind == "average" else tensors.MAX_TYPES
    dtype = chance.choice(types)
    mask, pooling = drawn_mask(chance, sizes, seed), drawn_pooling(chance, spatial)
    whole = samples.to_numpy(mask.expand(sizes))
    input = (samples.normal if kind == "average" else samples.special)(
        *sizes, dtype=dtype, seed=seed
    )
    if dtype.is_floating_point:
        input = torch.where(mask, input, math.nan)
    if chance.random() < 0.5:
        input = samples.channels_last(input)
    leaf = input.detach().requires_grad_(dtype.is_floating_point)
    expected = samples.to_numpy(input)
    if kind == "average":
        counted = {
            "include_padding": chance.random() < 0.5,
            "divisor_override": chance.choice([None, None, 3]),
        }
        check_average(leaf, mask, whole, pooling, counted if is_window(pooling) else {})
        return
    found = (oracle.maximum if kind == "maximum" else oracle.minimum)(expected, pooling, whole)
    name, more = f"{kind[:3]}_pooling", {"mask": mask, "return_indices": True}
    if is_window(pooling):
        values, indices = getattr(dmlpool, name)(leaf, **vars(pooling), **more)
        alone = getattr(dmlpool, name)(leaf.detach(), **vars(pooling), mask=mask)
    else:
        values, indices = getattr(dmlpool, f"adaptive_{name}")(leaf, pooling.outputs, **more)
        alone = getattr(dmlpool, f"adaptive_{name}")(leaf.detach(), pooling.outputs, mask=mask)
    samples.assert_same(values, found.values)
    samples.assert_same(alone, found.values)
    samples.assert_same(indices, found.indices)
    if leaf.requires_grad:
        arriving = samples.normal(*values.shape, dtype=dtype, seed=seed + 1)
        (gradient,) = torch.autograd.grad(values, leaf, arriving)
        exact = oracle.handed_back(found, samples.to_numpy(arriving), sizes)
        largest = oracle.handed_back(found, np.abs(samples.to_numpy(arriving)), sizes)
        samples.assert_gradient(gradient, exact, largest, values[0, 0].numel())


def is_window(pooling):
    return isinstance(pooling, oracle.Pooling)


def check_average(leaf, mask, whole, pooling, counted):
    if is_window(pooling):
        pool = lambda x: dmlpool.average_pooling(x, **vars(pooling), **counted, mask=mask)  # noqa: E731
        taps = math.prod(pooling.window_size)
    else:
        pool = lambda x: dmlpool.adaptive_average_pooling(x, pooling.outputs, mask=mask)  # noqa: E731
        taps = leaf[0, 0].numel()
    output = pool(leaf)
    clean = np.where(whole, samples.to_numpy(leaf), 0)
    samples.assert_average(output, *oracle.average(clean, pooling, **counted, mask=whole), taps)
    assert torch.equal(output.detach(), pool(leaf.detach()))
    arriving = samples.normal(*output.shape, dtype=leaf.dtype, seed=7).requires_grad_()
    exact = oracle.average_grad(
        samples.to_numpy(arriving), leaf.shape[2:], pooling, **counted, mask=whole
    )
    (gradient,) = torch.autograd.grad(output, leaf, arriving, retain_graph=True)
    samples.assert_gradient(gradient, *exact, output[0, 0].numel())
    (again,) = torch.autograd.grad(output, leaf, arriving, create_graph=True)
    samples.assert_gradient(again.detach(), *exact, output[0, 0].numel())
    (second,) = torch.autograd.grad(again, arriving, torch.where(mask, leaf.detach(), 0))
    torch.testing.assert_close(second, output.detach(), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("first", range(0, 240, 40))
def test_random_requests(first):
    """K1 to K4: every type, layout, shape of a mask, window and bins, with NaN under the mask."""
    for seed in range(first, first + 40):
        try:
            check_request(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


LARGE: dict[str, tuple[Any, ...]] = {
    # sizes, window, strides, padding
    "rows": ((2, 2, 100_000), 3, 2, 1),
    "long windows": ((1, 2, 150_000), 5000, 2500, 0),
    "planes": ((2, 3, 400, 300), 3, 1, 1),
    "tiles": ((1, 2, 301, 400), 2, 2, 0),
    "dilated": ((1, 2, 300, 301), 3, 2, (1, 2), (3, 2)),
    "gaps": ((1, 2, 400, 200), (2, 1), (30, 2), 0),
    "volumes": ((1, 2, 40, 50, 60), 3, 2, 1),
    "deep": ((1, 2, 5, 200, 100), (5, 3, 3), (1, 2, 2), (0, 1, 1)),
    "wholes": ((1, 2, 300, 200), (300, 200), 1, 0),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("laid_out", [torch.clone, samples.channels_last], ids=["", "last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=samples.name_of)
@pytest.mark.parametrize("is_shared", [True, False], ids=["one mask", "masks of their own"])
def test_planes_that_are_pooled_in_parts(name, laid_out, dtype, is_shared):
    """Parts meet where the pools of a masked copy go on: averages within E6, all else equal."""
    sizes, *arguments = LARGE[name]
    window = Window.directml(len(sizes) - 2, *arguments[:3], arguments[2], *arguments[3:])
    batch = (1, 1) if is_shared else sizes[:2]
    mask = torch.rand(*batch, *sizes[2:], generator=samples.seeded(*batch)) < 0.7
    mask[..., : sizes[-1] // 3] = False
    input = laid_out(samples.normal(*sizes, dtype=dtype)).requires_grad_()
    compare(
        average_pooling.averages(input, mask, window, True, None),
        masks._composed_averages(average_pooling._sums, input, mask, window, True, None),
        input,
    )
    filled = torch.where(mask, input, -math.inf)
    numbering = tensors.Numbering(torch.int64, per_plane=False)
    values, indices = max_pooling.maxima_of(input, mask, window, numbering)
    expected, places = max_pooling.maxima_of(filled, None, window, numbering)
    places = torch.where(expected == -math.inf, -1, places)
    assert torch.equal(values, expected)
    assert torch.equal(indices, places)
    alone = max_pooling.maxima_of(input.detach(), mask, window, numbering)
    assert torch.equal(alone[0], values)
    assert torch.equal(alone[1], places)
    compare(values, expected, input)


def compare(found, expected, input):
    """Results and gradients of two ways."""
    rounding = {"rtol": 1e-5, "atol": 1e-5} if found.dtype is torch.float32 else {}
    torch.testing.assert_close(found, expected, **rounding)
    arriving = samples.normal(*found.shape, dtype=found.dtype, seed=9)
    gradients = [torch.autograd.grad(each, input, arriving)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients, **rounding)
    # What PyTorch's own operations compose, autograd lays out.
    if input.dim() > 3 and backends.serving(input.device.type).name != "reference":
        assert gradients[0].stride() == input.stride()


@pytest.mark.parametrize("laid_out", [torch.clone, samples.channels_last], ids=["", "last"])
def test_uneven_bins_of_large_planes(laid_out):
    """Bins are pooled one row of them at a time."""
    sizes = 1, 2, 301, 203
    mask = torch.rand(1, 1, *sizes[2:], generator=samples.seeded(1)) < 0.6
    mask[..., :100] = False
    input = laid_out(samples.normal(*sizes)).requires_grad_()
    compare(
        dmlpool.adaptive_average_pooling(input, (7, 9), mask=mask),
        masks._composed_averages(adaptive_pooling._sums, input, mask, (7, 9), False, None),
        input,
    )
    filled = torch.where(mask, input, -math.inf)
    request = {"output_size": (7, 9), "return_indices": True}
    values, indices = dmlpool.adaptive_max_pooling(input, **request, mask=mask)
    expected, places = dmlpool.adaptive_max_pooling(filled, **request)
    assert torch.equal(values, expected)
    assert torch.equal(indices, torch.where(expected == -math.inf, -1, places))


def test_a_sample_is_pooled_alone():
    """E6: bits do not depend on the batch, nor on the number of threads."""
    input, arriving = samples.normal(6, 5, 61, 67), samples.normal(6, 5, 30, 33, seed=2)
    mask = samples.mask_of("each sample", tuple(input.shape))

    def results(at):
        leaf = input[at].clone().requires_grad_()
        average = dmlpool.average_pooling(leaf, 3, 2, mask=mask[at])
        maxima = dmlpool.max_pooling(leaf, 3, 2, mask=mask[at])
        gradients = [torch.autograd.grad(each, leaf, arriving[at])[0] for each in (average, maxima)]
        return [average, maxima, *gradients]

    whole = results(slice(0, 6))
    threads = torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        for at in (slice(0, 6), slice(2, 3), slice(3, 6)):
            for found, expected in zip(results(at), whole, strict=True):
                assert torch.equal(found, expected[at])
    torch.set_num_threads(threads)
