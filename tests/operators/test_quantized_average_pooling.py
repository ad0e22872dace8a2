"""Quantized average pooling against rational arithmetic, bit for bit (Q1-Q4, Q6, A1-A3, G1-G8,
E2-E7)."""

import itertools

import cases
import numpy as np
import oracle
import pytest
import samples
import torch

import torch_dmlpool as dmlpool
from torch_dmlpool.operators import quantized_linear_average_pooling as quantized

pool = dmlpool.quantized_linear_average_pooling
operators = torch.ops.dmlpool
ALL = cases.LINES + cases.PLANES + cases.VOLUMES
BOTH = list(itertools.product(samples.QUANTIZED_INTEGERS, repeat=2))


@cases.in_pairs(case=ALL, include_padding=[False, True])
def test_every_geometry(case, include_padding, device):
    """Q1 to Q3, A1 to A3 and G4; types, every form of each parameter and kinds of scale take
    turns."""
    number = 2 * ALL.index(case) + include_padding
    pair = BOTH[number % 4]
    forms = [samples.PARAMETER_FORMS[(number + 2 * i) % 5] for i in range(4)]
    parameters = samples.drawn(number, 3, pair, ties=number % 3 == 0)
    input = samples.integers(1, 3, *case.sizes, dtype=pair[0]).to(device)
    samples.check_quantized(
        input, parameters, case.pooling, include_padding, output_dtype=pair[1], forms=forms
    )


@cases.in_pairs(layout=list(samples.LAYOUTS), types=BOTH)
def test_every_layout(layout, types, device):
    """G7, with parameters per channel and for all."""
    for case in cases.FEW[3:8:2] + cases.FEW[-1:]:
        channels = 1 + 2 * (case is not cases.FEW[-1])
        input = samples.LAYOUTS[layout](
            samples.integers(2, channels, *case.sizes, dtype=types[0]).to(device)
        )
        for form in ("number", "per channel"):
            parameters = samples.drawn(5, channels, types)
            result = samples.check_quantized(
                input, parameters, case.pooling, output_dtype=types[1], forms=[form] * 4
            )
            assert result.stride() == dmlpool.max_pooling(input, **case.arguments).stride()


def test_data_types_that_follow(device):
    """Q3: a zero point is 0 unless given; the output has its zero point's type, or the input's."""
    input = samples.integers(1, 2, 4, 6, dtype=torch.int8).to(device)
    zero = torch.tensor(7, dtype=torch.uint8, device=device)
    assert pool(input, 0.1, None, 0.1, None, 2).dtype == torch.int8
    assert pool(input, 0.1, None, 0.1, zero, 2).dtype == torch.uint8
    assert pool(input, 0.1, None, 0.1, 7, 2, output_dtype=torch.uint8).dtype == torch.uint8
    assert torch.equal(pool(input, 0.1, None, 0.1, None, 2), pool(input, 0.1, 0, 0.1, 0, 2))
    assert torch.equal(
        pool(input, 0.1, None, 0.1, zero, 2),
        pool(input, 0.1, 0, 0.1, 7, 2, output_dtype=torch.uint8),
    )
    double = torch.tensor(0.1, dtype=torch.float64, device=device)
    assert torch.equal(
        pool(input, double, None, 0.3, None, 2), pool(input, double.float(), None, 0.3, None, 2)
    )


def every_sum(taps, dtype, copies):
    """``(copies, 1, sums * taps)``: one adjacent window for each sum there can be."""
    ends = torch.iinfo(dtype)
    sums = torch.arange(taps * ends.min, taps * ends.max + 1)
    shares = (sums[:, None] + torch.arange(taps)).div(taps, rounding_mode="floor")
    assert torch.equal(shares.sum(1), sums)
    return shares.to(dtype).view(1, 1, -1).repeat(copies, 1, 1)


SCALES = [
    (1.0, 1.0),
    (0.5, 3.0),
    (3.0, 0.25),
    (0.1, 0.1),
    (0.02, 0.07),
    (1.0, 7.0),
    (0.3, 0.1),
    (2.0**-149, 2.0**-149),
]


@cases.in_pairs(taps=[1, 2, 4, 6, 7, 9, 25, 49], zeros=[(0, 0), (3, 5), (128, 1), (255, 254)])
def test_every_sum(taps, zeros, device):
    """Q1: no sum is requantized wrongly, by few outputs and by many; ties are rounded before odd
    zero points too."""
    input_zero, output_zero = zeros
    small = every_sum(taps, torch.uint8, 1).to(device)
    many = (
        small.expand(1 + 2**15 // (small.shape[2] // taps), 1, small.shape[2])
        if taps <= 12
        else small
    )
    sums = range(-taps * input_zero, taps * (255 - input_zero) + 1)
    for input_scale, output_scale in SCALES[taps % 2 :: 2] if taps > 12 else SCALES:
        scales = samples.float32(input_scale), samples.float32(output_scale)
        expected = torch.tensor(
            [oracle.requantized(each, taps, *scales, output_zero, np.uint8) for each in sums],
            dtype=torch.uint8,
        ).to(device)
        for input in (small, many):
            result = pool(input, input_scale, input_zero, output_scale, output_zero, taps, taps)
            assert (result == expected).all(), (input_scale, output_scale)


EXTREMES = [
    2.0**-149,
    3 * 2.0**-149,
    2.0**-126,
    1e-30,
    1.0,
    1e30,
    2.0**127,
    (2.0 - 2.0**-23) * 2.0**127,
]


@pytest.mark.parametrize("form", ["number", "per channel"])
@pytest.mark.parametrize("input_scale", EXTREMES)
def test_scales_far_apart(input_scale, form, device):
    """Q1 and Q4: subnormal scales and quotients past every range."""
    input = samples.integers(1, 2, 9, 16, dtype=torch.uint8).to(device)
    scale = samples.float32(input_scale)
    for output_scale in map(samples.float32, EXTREMES):
        parameters = samples.Parameters((scale,) * 2, (100, 3), (output_scale,) * 2, (7, 40))
        pooling = oracle.Pooling((3, 3), (2, 2), (1, 1), (1, 0), (1, 1))
        samples.check_quantized(input, parameters, pooling, forms=[form] * 4)


@pytest.mark.parametrize("window", [(129,), (12, 11), (40, 9), (5, 6, 7)], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
def test_many_taps(layout, window, device):
    """Q6: past 128 taps sums leave 16 bits."""
    sizes = [size + 3 for size in window]
    input = samples.integers(2, 3, *sizes, dtype=torch.uint8)
    input[:, 1] = 255
    others = [(entry,) * len(window) for entry in (1, 1, 2, 1)]
    for ties in (False, True):
        parameters = samples.drawn(len(window), 3, (torch.uint8, torch.int8), ties)
        samples.check_quantized(
            samples.LAYOUTS[layout](input.to(device)),
            parameters,
            oracle.Pooling(window, *others),
            output_dtype=torch.int8,
            forms=["per channel", "number"] * 2,
        )


@pytest.mark.usefixtures("either_backend")
def test_sums_of_a_large_image():
    """Q6: 3000 x 3000 elements of 255, more than 31 bits."""
    for size in (600, 3000):
        image = torch.full((1, 1, size, size), 255, dtype=torch.uint8)
        assert pool(image, 0.1, None, 0.1, None, size).item() == 255


@pytest.mark.usefixtures("either_backend")
def test_quotients_beside_a_half():
    """Q1."""
    samples.check_near_halves(2**23 + 1)


# Derivatives, transforms, compilation.


def test_a_gradient_is_refused():
    """Q: integers have none, and a scale's would be silently lost."""
    input = samples.integers(1, 2, 5, 6, dtype=torch.uint8)
    scale = torch.tensor(0.5)

    def pooled(scale):
        return pool(input, scale, 3, 0.5, 3, 2).float().sum()

    text = (
        "quantized_linear_average_pooling has no gradient, but input_scale requires one: detach it"
    )
    window = dmlpool.Window.directml(2, 2).arguments
    by_name = scale.clone().requires_grad_(), None, scale, None, *window, False, torch.uint8
    for call in (
        lambda: pooled(scale.clone().requires_grad_()),
        lambda: torch.func.grad(pooled)(scale),
        lambda: torch.func.jvp(pooled, (scale,), (scale,)),
        lambda: operators.quantized_linear_average_pooling(input, *by_name),
    ):
        with pytest.raises(RuntimeError, match=text):
            call()
    with torch.no_grad():
        assert torch.equal(pooled(scale.clone().requires_grad_()), pooled(scale))
    leaf = torch.tensor(2.0, requires_grad=True)
    assert torch.autograd.grad(leaf * pooled(scale), leaf)[0] == pooled(scale)


def test_vmap():
    """E1: over the input, over scales and zero points, over all of them, in any dimension."""

    def pooled(input, scale, zero, step):
        return pool(input, scale, zero, step, 5, 3, 2, 1, 1)

    input = samples.integers(4, 2, 3, 6, 5, dtype=torch.uint8)
    scales, vectors = torch.rand(4) + 0.5, torch.rand(4, 3) + 0.5
    arguments = input, scales, torch.arange(4, dtype=torch.uint8), vectors
    none = None, None, None
    for dimensions in (
        (0, 0, 0, 1),
        (0, *none),
        (1, None, 0, 1),
        (None, 0, None, None),
        (*none, 1),
    ):
        pairs = list(zip(arguments, dimensions, strict=True))
        held = [each[1] if at is None else each.movedim(0, at) for each, at in pairs]
        one_by_one = [
            pooled(*(each[1] if at is None else each[number] for each, at in pairs))
            for number in range(4)
        ]
        assert torch.equal(torch.func.vmap(pooled, dimensions)(*held), torch.stack(one_by_one))


def test_a_scale_is_that_of_float32_after_a_trace():
    """What a trace has checked is not kept as it was given; NumPy's numbers raise no warning."""
    image = torch.full((1, 1, 4), 5, dtype=torch.uint8)
    pool = torch.compile(dmlpool.quantized_linear_average_pooling, backend="eager")
    for scale in (0.0123, np.float32(0.25)):
        pool(image, float(scale), 0, 1.0, 0, 2)
        kept, *_ = quantized.checked_quantization(image, (scale, 0, 1.0, 0), None)[0]
        assert kept == torch.tensor(scale, dtype=torch.float32).item()


def test_padding_that_counts_more_than_64_bits_is_rejected(device):
    """Q1: below that the quotient is exact, and at half of the output's step rounded to even."""
    image = torch.full((1, 1, 1, 1, 1), 128, dtype=torch.uint8, device=device)
    for exponent, scale, average in ((20, 2.0**60, 128), (20, 5 * 2.0**52, 2), (21, 1.0, None)):
        window = 1 << exponent
        request = image, scale, 0, 1.0, 0, window, window, window - 1
        if average is None:
            with pytest.raises(ValueError, match="window_size must be less than"):
                dmlpool.quantized_linear_average_pooling(*request, include_padding=True)
            continue
        found = dmlpool.quantized_linear_average_pooling(*request, include_padding=True)
        assert found.item() == average
