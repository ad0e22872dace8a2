"""Minima, and maxima of bools and under masks, against the oracle (N1, N2, K4)."""

import itertools
from typing import Any

import cases
import oracle
import pytest
import samples
import torch

import torch_dmlpool as dmlpool
from torch_dmlpool import nn

EVERY_TYPE = [*samples.FLOATS, *samples.INTEGERS, torch.bool]
KINDS = {
    "max": (dmlpool.max_pooling, dmlpool.adaptive_max_pooling, oracle.maximum),
    "min": (dmlpool.min_pooling, dmlpool.adaptive_min_pooling, oracle.minimum),
}
MASKS = ["no mask", "each element", "one plane"]


def image(case, dtype, seed=0):
    if dtype is torch.bool:
        return samples.any_bytes(samples.ties(2, 3, *case.sizes, seed=seed) > 0)
    return samples.ties(2, 3, *case.sizes, dtype=dtype, seed=seed)


def check(found, expected):
    values, indices = found
    samples.assert_same(values, expected.values)
    samples.assert_same(indices, expected.indices)


@cases.in_pairs(kind=list(KINDS), mask=MASKS[:2], case=cases.LINES + cases.FEW)
def test_values_and_indices(kind, mask, case, device):
    """N2 and K4 over every geometry: the first of equal ones, and infinity and -1 for nothing."""
    pool, _, rule = KINDS[kind]
    input = image(case, torch.float32).to(device)
    there, whole = samples.masked(mask, input)
    request: dict[str, Any] = {**case.arguments, "mask": there}
    expected = rule(samples.to_numpy(input), case.pooling, whole)
    check(pool(input, **request, return_indices=True), expected)
    samples.assert_same(pool(input, **request), expected.values)


@cases.in_pairs(kind=list(KINDS), mask=MASKS, case=cases.FEW, dtype=EVERY_TYPE)
def test_every_data_type(kind, mask, case, dtype, device):
    """N1, N2, K4 and K6: exact, both ends of every integer type included. The first NaN wins, zeros
    tie, infinity beats padding, and wins with its own index where nothing else is there. The
    gradient goes to one element of each window."""
    pool, _, rule = KINDS[kind]
    input = image(case, dtype, seed=1)
    if dtype.is_floating_point:
        input = samples.special(2, 3, *case.sizes, dtype=dtype).mul(1 if kind == "max" else -1)
    leaf = input.to(device).requires_grad_(dtype.is_floating_point)
    there, whole = samples.masked(mask, leaf)
    expected = rule(samples.to_numpy(leaf), case.pooling, whole)
    check(pool(leaf, **case.arguments, mask=there, return_indices=True), expected)
    values = pool(leaf, **case.arguments, mask=there)
    samples.assert_same(values, expected.values)
    assert values.dtype is dtype
    if dtype is torch.bool:
        assert int(values.view(torch.uint8).amax()) <= 1
    if dtype.is_floating_point:
        arriving = samples.ties(*values.shape, dtype=dtype).to(device)
        (gradient,) = torch.autograd.grad(values, leaf, arriving)
        wanted = oracle.handed_back(expected, samples.to_numpy(arriving), leaf.shape)
        samples.assert_same(gradient.double(), wanted)


@cases.in_pairs(kind=list(KINDS), mask=MASKS[:2], case=cases.FEW, dtype=EVERY_TYPE)
def test_bins(kind, mask, case, dtype, device):
    """N1, N2 and K4 of adaptive pooling: windows of one size, and of sizes that differ."""
    _, pool, rule = KINDS[kind]
    input = image(case, dtype).to(device)
    there, whole = samples.masked(mask, input)
    for outputs in (tuple(size // 2 + 1 for size in case.sizes), (1,) * case.rank, case.sizes):
        expected = rule(samples.to_numpy(input), oracle.Bins(outputs), whole)
        check(pool(input, outputs, mask=there, return_indices=True), expected)
        samples.assert_same(pool(input, outputs, mask=there), expected.values)


@cases.in_pairs(kind=list(KINDS), mask=MASKS[:2], index_dtype=samples.INDEX_TYPES)
def test_indices_of_every_type(kind, mask, index_dtype, device):
    """M4 and K4: -1, all ones in an unsigned type, of windows, bins and bins that are windows."""
    pool, adaptive, rule = KINDS[kind]
    case = cases.case("padding above the window", "padded")
    input = image(case, torch.float32).to(device)
    there, whole = samples.masked(mask, input)
    request: dict[str, Any] = {"mask": there, "return_indices": True, "index_dtype": index_dtype}
    found = {case.pooling: pool(input, **case.arguments, **request)}
    for outputs in ((3, 2), (2, 5)):
        found[oracle.Bins(outputs)] = adaptive(input, outputs, **request)
    for windows, (_, indices) in found.items():
        assert indices.dtype is index_dtype
        expected = rule(samples.to_numpy(input), windows, whole).indices
        samples.assert_same(indices, expected.astype(samples.name_of(index_dtype)))
    if (kind, mask) == ("max", "no mask"):
        arguments = *samples.spelled_out(case.pooling), index_dtype, True
        _, positions = torch.ops.dmlpool.max_pooling_with_indices(input, *arguments)
        expected = rule(samples.to_numpy(input), case.pooling).plane_indices
        samples.assert_same(positions, expected.astype(samples.name_of(index_dtype)))


@cases.in_pairs(
    kind=list(KINDS),
    mask=["no mask", "each element", "each sample", "each channel", "one row"],
    layout=list(samples.LAYOUTS),
    dtype=[torch.float32, torch.float16, torch.int8, torch.int64, torch.uint16, torch.bool],
)
def test_every_layout(kind, mask, layout, dtype, device):
    """G7: results are laid out as those of maxima without a mask."""
    pool, _, rule = KINDS[kind]
    case = cases.case("padded", "uneven padding")
    input = samples.LAYOUTS[layout](image(case, dtype).to(device))
    there, whole = samples.masked(mask, input)
    found = pool(input, **case.arguments, mask=there, return_indices=True)
    check(found, rule(samples.to_numpy(input), case.pooling, whole))
    wanted = dmlpool.max_pooling(input, **case.arguments)
    assert found[0].stride() == wanted.stride()


def test_a_gradient_is_laid_out_as_that_of_maxima(device):
    """G7: also where the negated input has other strides than the input, whose stride along a
    dimension of one sample says nothing."""
    numbers = torch.arange(1024.0, device=device)
    input = numbers.as_strided((1, 4, 3, 64), (1, 1, 256, 4)).requires_grad_()
    for kind in ("adaptive_{}_pooling", "{}_pooling"):
        pools = [getattr(dmlpool, kind.format(each)) for each in ("max", "min")]
        gradients = [torch.autograd.grad(pool(input, 2).sum(), input)[0] for pool in pools]
        assert gradients[0].stride() == gradients[1].stride() == (768, 192, 64, 1)


def test_a_zero_is_not_negative(device):
    """N2: an image of zeros has none that prints as -0."""
    for dtype in samples.FLOATS:
        zeros = torch.zeros(1, 1, 3, dtype=dtype, device=device)
        found = dmlpool.min_pooling(zeros, 2), dmlpool.adaptive_min_pooling(zeros, 2)
        assert not any(values.signbit().any() for values in found)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["Max", "Min"])
def test_layers(kind, rank, device):
    """N1 and N2 with PyTorch's words: indices of each plane, unbatched inputs, any padding."""
    case = cases.Case((cases.PADDED, cases.PLAIN, cases.PADDED)[:rank])
    input = image(case, torch.bool if rank == 2 else torch.float32).to(device)
    entries = ((entry,) * rank for entry in (3, 2, 1, 2, 1))
    asked = {
        f"{kind}Pool{rank}d": ((3, 2, ((1, 2),) * rank), oracle.Pooling(*entries)),
        f"Adaptive{kind}Pool{rank}d": ((2,), oracle.Bins((2,) * rank)),
    }
    for name, (arguments, windows) in asked.items():
        layer = getattr(nn, name)(*arguments, return_indices=True)
        expected = KINDS[kind.lower()][2](samples.to_numpy(input), windows)
        wanted = expected.values, expected.plane_indices
        for found, right, one in zip(layer(input), wanted, layer(input[0]), strict=True):
            samples.assert_same(found, right)
            assert torch.equal(found[0], one)


@pytest.mark.parametrize("sizes", [(2, 3, 9, 11), (1, 2, 300, 500), (2, 2, 5, 9, 11), (3, 9, 100)])
@pytest.mark.parametrize("dtype", EVERY_TYPE, ids=str)
def test_minima_without_indices_are_those_with_indices(dtype, sizes, device):
    """N1, N2, K2 and E6: in every layout, under a mask, for planes that are pooled in bands, and
    for any number of threads."""
    if dtype is torch.bool:
        plain = samples.any_bytes(samples.ties(*sizes) > 0)
    else:
        make = samples.special if dtype.is_floating_point else samples.ties
        plain = make(*sizes, dtype=dtype)
    innermost = plain.transpose(1, -1).contiguous().transpose(1, -1)
    layouts = [plain, innermost, plain[..., ::2]]
    threads = torch.get_num_threads()
    for at, laid_out in enumerate(layouts):
        input = laid_out.to(device)
        masks = [None, samples.mask_of("each sample", tuple(input.shape)).to(device)]
        for mask, window in itertools.product(masks, [(2, 2), (3, 2, 1, 1), (5, 1, 4, 4)]):
            torch.set_num_threads(1 + at % 2)
            found = dmlpool.min_pooling(input, *window, mask=mask)
            expected, _ = dmlpool.min_pooling(input, *window, mask=mask, return_indices=True)
            samples.assert_same(found, samples.to_numpy(expected))
    torch.set_num_threads(threads)


def test_gradients_of_minima_without_indices_are_those_with_indices(device):
    """N2: the gradient goes to the first of equal minima, of planes pooled in bands too."""
    for sizes in ((2, 3, 9, 11), (1, 2, 300, 500)):
        leaf = samples.ties(*sizes).to(device).requires_grad_()
        found = dmlpool.min_pooling(leaf, 3, 2, 1, 1)
        expected, _ = dmlpool.min_pooling(leaf, 3, 2, 1, 1, return_indices=True)
        arriving = samples.normal(*found.shape).to(device)
        pair = [torch.autograd.grad(each, leaf, arriving)[0] for each in (found, expected)]
        assert torch.equal(*pair)


def test_a_layer_of_minima_is_none_of_maxima():
    """Tools that replace torch.nn's maxima leave it alone."""
    layer = nn.MinPool2d(3, 2, 1)
    assert (
        repr(layer) == "MinPool2d(kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=False)"
    )
    assert not isinstance(layer, torch.nn.MaxPool2d)
    assert nn.convert(torch.nn.Sequential(layer)).left == {}
