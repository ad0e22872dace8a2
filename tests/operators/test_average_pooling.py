"""Average pooling and its gradient against the oracle, within the error bound, without and with a
mask (A1-A6, E6, G4, G5, G7, K1-K3, K6)."""

import math

import cases
import numpy as np
import oracle
import pytest
import samples
import torch

import torch_dmlpool as dmlpool

ALL = cases.LINES + cases.PLANES + cases.VOLUMES
DIVISORS = [(False, None), (True, None), (False, -3), (True, 5)]


def arriving(case, dtype=torch.float32):
    return samples.normal(2, 3, *case.output_sizes, dtype=dtype, seed=1)


@cases.in_pairs(case=ALL, divisor=DIVISORS, mask=["no mask", "each element"])
def test_averages_and_gradients(case, divisor, mask, device):
    """A1 to A3, A5, A6, K1 to K3 and K6 over every geometry (G4), within the bound of E6."""
    request = case.pooling, *divisor, mask
    samples.check_average(samples.normal(2, 3, *case.sizes).to(device), *request)
    samples.check_average_gradient(arriving(case).to(device), case.sizes, *request)


@cases.in_pairs(
    case=cases.FEW,
    layout=list(samples.LAYOUTS),
    dtype=samples.FLOATS,
    mask=["no mask", "each element", "each sample", "each channel", "one row"],
)
def test_every_layout_and_data_type(case, layout, dtype, mask, device):
    """A4, K2 and G7: any strided input and incoming gradient; one rounding for half precision, and
    float64 within 2⁻⁵³."""
    given = samples.normal(2, 3, *case.sizes, dtype=dtype), arriving(case, dtype)
    input, gradient = (samples.LAYOUTS[layout](each.to(device)) for each in given)
    samples.check_average(input, case.pooling, mask=mask)
    samples.check_average_gradient(gradient, case.sizes, case.pooling, mask=mask)


@cases.parametrized([case for case in ALL if case.has_empty_windows])
def test_a_window_that_counts_nothing(case, device):
    """A3: no gradient even from an infinite one; that its average is 0, the oracle says above."""
    gradient = torch.zeros(1, 1, *case.output_sizes, device=device)
    for reading in oracle.readings(case.pooling, case.sizes):
        if not reading.taps:
            gradient[(0, 0, *reading.output)] = math.inf
    assert gradient.any()
    for include_padding in (False, True):
        request = {**case.arguments, "include_padding": include_padding}
        assert not dmlpool.average_pooling_grad(gradient, (1, 1, *case.sizes), **request).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=samples.name_of)
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
def test_half_precision_is_summed_in_float32(layout, dtype, device):
    """A4: sums past the type's range and past its precision, forward and backward."""
    large = samples.LAYOUTS[layout](torch.full((1, 2, 6, 6), 60000.0, dtype=dtype, device=device))
    samples.assert_same(dmlpool.average_pooling(large, 3), samples.to_numpy(large[..., :4, :4]))
    back = dmlpool.average_pooling_grad(large[..., :4, :4], large.shape, 3, divisor_override=9)
    samples.assert_same(back[..., 2:4, 2:4], samples.to_numpy(large[..., 2:4, 2:4]))
    # 2048 is where float16 stops counting, 256 where bfloat16 does: the ones must not be lost one
    # after the other.
    counted = torch.ones(1, 2, 1, 40, dtype=dtype, device=device)
    counted[..., 0] = 2048
    result = dmlpool.average_pooling(samples.LAYOUTS[layout](counted), (1, 40), divisor_override=1)
    assert (result == torch.tensor(2087.0).to(dtype).item()).all()
    # And a sum halfway between two numbers there becomes the even one.
    even = torch.arange(40.0, device=device) * 2 + (2048 if dtype is torch.float16 else 256)
    pairs = samples.LAYOUTS[layout](
        torch.stack([even, torch.ones_like(even)], -1).to(dtype).view(1, 40, 1, 2)
    )
    result = dmlpool.average_pooling(pairs, (1, 2), divisor_override=1)
    assert torch.equal(result.flatten(), (even + 1).to(dtype))


@cases.in_pairs(
    window=[(9,), (25,), (65,), (16384,), (31, 31), (63, 63), (15, 17), (9, 9, 9)],
    stride=[1, 2, 31],
    layout=["contiguous", "channels last"],
    large=["first", "last", "each column"],
    dtype=[torch.float32, torch.float64],
)
def test_small_addends_are_not_lost_one_by_one(large, layout, window, stride, dtype, device):
    """E6 where it is tight: large elements and many that vanish beside one when added singly, or
    eight by eight."""
    sizes, eps = [size + 2 for size in window], torch.finfo(dtype).eps
    small = eps * (0.99 / 16 if math.prod(window) > 1000 else 0.99 / 2)
    input = torch.full((1, 2, *sizes), small, dtype=dtype)
    if large == "each column":
        input[..., :: window[-1]] = 1.0
    else:
        input.flatten(2)[..., 0 if large == "first" else -1] = 1.0
    input = samples.LAYOUTS[layout](input.to(device))
    others = [(entry,) * len(window) for entry in (0, 0, 1)]
    samples.check_average(input, oracle.Pooling(window, (stride,) * len(window), *others))


@cases.in_pairs(
    window=[2, 3, 4, 7, 16, 31],
    stride=[1, 2, 3],
    value=[math.inf, math.nan, 3e38],
    layout=["contiguous", "channels last"],
)
def test_an_element_stays_in_its_windows(layout, value, stride, window, device):
    """A1 and E6: running sums would carry one sample's infinity, NaN or rounding into windows that
    do not read it."""
    dtype = samples.FLOATS[(window + stride) % 4]
    input, column = torch.ones(1, 2, 40, 36, dtype=dtype, device=device), 18 if stride == 2 else 34
    input[0, 0, 20, column] = value
    pooling = oracle.Pooling((window, window), (stride, stride), (1, 0), (0, 1), (1, 1))
    touched = oracle.average(samples.to_numpy(input != 1), pooling)[0] > 0
    assert touched.any()
    result = samples.to_numpy(
        dmlpool.average_pooling(samples.LAYOUTS[layout](input), **vars(pooling))
    )
    assert (result[~touched] == 1).all()
    if not input.isfinite().all():
        np.testing.assert_array_equal(result[touched], input[0, 0, 20, column].item())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("window", "stride", "padding", "dilation"),
    [
        *((400, 160, 0, 1), (512, 512, 256, 1), (1024, 256, 512, 1), (25, 10, 3, 1)),
        *((24, 8, 0, 1), (20, 10, 10, 1), (17, 1, 8, 1), (9, 70, 4, 1), (3, 512, 0, 1)),
        *((12, 9, 5, 3), (40, 16, 0, 4)),
    ],
)
def test_gradients_of_frames(window, stride, padding, dilation, channels, device):
    """Windows of one row that overlap at a stride: elements between two edges of windows get the
    same sum, and rows are cut into tiles (A6, E6)."""
    for size, ceil_mode, include_padding, dtype in (
        *((4099, False, False, torch.float32), (1200, True, True, torch.float64)),
        (1101, True, False, torch.float16),
    ):
        pooling = oracle.Pooling(
            (window,), (stride,), (padding,), (padding,), (dilation,), ceil_mode
        )
        sizes = (size,)
        arriving = samples.normal(1, channels, *oracle.output_sizes(pooling, sizes), dtype=dtype)
        samples.check_average_gradient(arriving.to(device), sizes, pooling, include_padding)


@pytest.mark.parametrize("dtype", samples.FLOATS, ids=samples.name_of)
def test_subnormal_numbers_are_not_flushed(dtype, device):
    """A4: an average of subnormal numbers is their mean, and a maximum keeps the greatest of
    them."""
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    row = (
        (torch.tensor([1.0, 3.0, 5.0, 7.0], dtype=torch.float64) * smallest)
        .to(dtype)
        .view(1, 1, 4)
        .to(device)
    )
    # CUDA multiplies by the reciprocal of a divisor, which would be infinite.
    averages, maxima = (
        pool(row, 2).cpu().double() / smallest
        for pool in (dmlpool.average_pooling, dmlpool.max_pooling)
    )
    assert averages.tolist() == [[[2, 4, 6]]]
    assert maxima.tolist() == [[[3, 5, 7]]]


@cases.in_pairs(dtype=[torch.float64, torch.float32, torch.bfloat16], exponent=[17, 21, 22, 30])
def test_divisors_may_pass_64_bits(exponent, dtype, device):
    """A2: three axes of windows count up to 2**93 taps."""
    window, one = 1 << exponent, torch.ones(1, 1, 1, 1, 1, dtype=dtype, device=device)
    share = torch.full_like(one, 2.0 ** (-3 * exponent))
    for strides, ends in ((window, 0), (1, 1)):
        request = window, strides, window - 1, ends, 1, True
        found = dmlpool.average_pooling(one, *request)
        assert torch.equal(found, share.expand_as(found))
        masked = dmlpool.average_pooling(one, *request, mask=torch.ones_like(one) > 0)
        assert torch.equal(masked, found)
        arriving = torch.ones_like(found)
        gradient = dmlpool.average_pooling_grad(arriving, one.shape, *request)
        assert torch.equal(gradient, share * arriving.numel())
