"""Pooling under a mask against the oracle (K1 to K6): an element where the mask is False is not
there."""

import contextlib
import functools
import gc
import itertools
import math
import os
import weakref
from typing import Any

import cases
import pytest
import samples
import torch
from operators import MASKED

import torch_dmlpool as dmlpool
from torch_dmlpool import nn
from torch_dmlpool.decompositions import decompositions

operators = torch.ops.dmlpool
INPUT = (2, 3)


def test_half_precision_does_not_overflow_on_the_way(device):
    """K2: the sum of four is beyond float16, their average is not."""
    input = torch.full((1, 1, 3, 3), 4e4, dtype=torch.float16, device=device)
    mask = torch.ones(3, 3, dtype=torch.bool, device=device)
    for found in (
        dmlpool.average_pooling(input, 3, mask=mask),
        dmlpool.adaptive_average_pooling(input, 2, mask=mask),
    ):
        assert (found == input[0, 0, 0, 0]).all()


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="far too slow")
@cases.in_pairs(dtype=[torch.float32, torch.bfloat16], path=["eager", "compiled", "decomposed"])
def test_counts_are_exact_above_2_to_the_24(path, dtype):
    """K3: few elements of a large window are kept, with and without padding that counts, and in
    bins of different sizes."""
    sizes = 257, 256, 257
    input = torch.ones(1, 1, *sizes, dtype=dtype)
    mask = torch.zeros(sizes, dtype=torch.bool)
    mask.view(-1)[:3] = True

    def pools(input, mask):
        return (
            dmlpool.average_pooling(input, sizes, include_padding=True, mask=mask),
            dmlpool.average_pooling(input, sizes, 3, 1, 1, include_padding=True, mask=mask),
            dmlpool.adaptive_average_pooling(input, (1, 1, 2), mask=mask),
        )

    pool: Any = pools
    if path == "compiled":
        pool = torch.compile(pools, backend="aot_eager", fullgraph=True)
    elif path == "decomposed":

        class Model(torch.nn.Module):
            def forward(self, input, mask):
                return pools(input, mask)

        program = torch.export.export(Model(), (input, mask))
        pool = program.run_decompositions(decompositions()).module()
    whole, padded, bins = pool(input, mask)
    assert whole.item() == 1
    counted = 3 + math.prod(sizes) - math.prod(size - 1 for size in sizes)
    assert padded.item() == torch.tensor(3 / counted, dtype=dtype).item()
    assert bins.flatten().tolist() == [1, 0]


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_mask_lives_as_a_saved_tensor_alone(is_moved, device):
    """K4: backward frees it, and nothing keeps it beside saved tensors, which hooks may move."""
    alive, outputs = {}, []
    for name, pool in MASKED.items():
        input = samples.normal(*INPUT, 7, 8).to(device).requires_grad_()
        mask = samples.mask_of("each sample", (*INPUT, 7, 8)).to(device)
        alive[name] = weakref.ref(mask)
        hooks = torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone)
        with hooks if is_moved else contextlib.nullcontext():
            outputs.append(samples.listed(pool(input, mask))[0])
        if not is_moved:
            outputs.pop().sum().backward()
    del mask
    gc.collect()
    assert not [name for name, mask in alive.items() if mask() is not None]
    for output in outputs:
        output.sum().backward()


pools = pytest.mark.parametrize("name", MASKED)


def outputs_of(name, input, mask):
    return samples.results(lambda x: MASKED[name](x, mask), input)


@pools
@pytest.mark.parametrize("what", [math.nan, math.inf, -math.inf, 3e38], ids=str)
def test_what_is_under_the_mask_reaches_nothing(name, what, device):
    """K6: neither results nor gradients, bit for bit; nor does a gradient reach it."""
    mask = samples.mask_of("each sample", (*INPUT, 7, 8)).to(device)
    clean = samples.normal(*INPUT, 7, 8).to(device)
    clean = torch.where(mask, clean, 0)
    broken = torch.where(mask, clean, what)
    for found, expected in zip(
        outputs_of(name, broken, mask), outputs_of(name, clean, mask), strict=True
    ):
        assert samples.bits(found).tobytes() == samples.bits(expected).tobytes()
    if "indices" not in name:
        gradient = outputs_of(name, broken, mask)[-1]
        assert not torch.where(mask, 0, gradient).any()


def test_transforms_give_what_is_recorded(device):
    """K4 and K6: what eager autograd keeps for averages and maxima, and what is made of other
    operators where torch.func asks, give the same results."""
    mask = samples.mask_of("each element", (*INPUT, 7, 8)).to(device)
    normal = samples.normal(*INPUT, 7, 8).to(device)
    broken = torch.where(mask, torch.where(normal > 0, -math.inf, normal), math.nan)
    for input, name in itertools.product((normal, broken), MASKED):
        function = functools.partial(MASKED[name], mask=mask)
        if "indices" not in name:
            value, gradient = samples.results(function, input)
            expected, pullback = torch.func.vjp(function, input)
            pulled = pullback(samples.normal(*value.shape, seed=7).to(device))
            found = [value, gradient]
            torch.testing.assert_close(found, [expected, *pulled], equal_nan=True)


@pools
def test_a_mask_may_be_strided_or_expanded(name, device):
    """G7: every other element of a larger mask, and what is made of it."""
    input = samples.normal(*INPUT, 8, 8).to(device)
    large = samples.mask_of("each element", (*INPUT, 16, 16)).to(device)[..., ::2, 1::2]
    views = large.transpose(-1, -2), large[:, :1].expand(*INPUT, 8, 8), samples.channels_last(large)
    for mask in (large, *views):
        found, expected = outputs_of(name, input, mask), outputs_of(name, input, mask.contiguous())
        assert all(map(torch.equal, found, expected))


def test_exported_programs():
    """K1 to K6 and E2, of another batch than the traced one; bools too."""

    class Model(torch.nn.Module):
        def forward(self, x, mask):
            bools = dmlpool.max_pooling(mask, 3, 2, 1, 1), dmlpool.min_pooling(mask, 2)
            return [*bools, *(pool(x, mask) for pool in MASKED.values())]

    mask = samples.normal(2, 1, 9, 8) > 0
    mask[0, 0, :4] = False
    x, batch = torch.where(mask, samples.ties(2, 3, 9, 8), math.nan), torch.export.Dim("batch")
    program = torch.export.export(Model(), (x, mask), dynamic_shapes=({0: batch}, {0: batch}))
    x, mask = torch.cat([x, x.flip(-1)]), torch.cat([mask, mask.flip(-1)])
    torch.testing.assert_close(program.module()(x, mask), Model()(x, mask))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    "family",
    ["LPPool", *(f"{how}{kind}Pool" for how in ("", "Adaptive") for kind in ("Avg", "Max", "Min"))],
)
def test_layers(family, rank, device):
    """K1 with PyTorch's words: unbatched inputs, and functions."""
    sizes = (6, 5, 7)[-rank:]
    input = samples.normal(*INPUT, *sizes).to(device)
    mask = samples.mask_of("each sample", (*INPUT, *sizes)).to(device)
    arguments = (2,) if family.startswith("Adaptive") else (3, 2)
    arguments = (2, *arguments) if family == "LPPool" else arguments
    layer = getattr(nn, f"{family}{rank}d")(*arguments)
    full, found = mask.expand(input.shape), layer(input, mask=mask)
    assert not torch.equal(found, layer(input))
    assert torch.equal(found, layer(input, mask=full))
    assert torch.equal(found[0], layer(input[0], mask=mask[0]))
    assert torch.equal(layer(input[0], mask=full[0, 0]), layer(input[0], mask=full[0]))
    assert torch.equal(layer(input, mask=full[0, 0]), layer(input, mask=full[:1, :1]))
    function = getattr(nn.functional, layer._family.names[rank])
    assert torch.equal(function(input, *arguments, mask=mask), found)
