"""Max pooling and everything that follows from its winning taps, against the oracle (M1-M6, G4, G5,
G7). Each data type, layout and special value is in test_min_pooling.py."""

import math

import cases
import oracle
import pytest
import samples
import torch

import torch_dmlpool as dmlpool

operators = torch.ops.dmlpool
ALL = cases.LINES + cases.PLANES + cases.VOLUMES


@cases.parametrized(ALL)
def test_values_indices_taps_and_gradients(case, device):
    """M1, M2 and M4 to M6 over every geometry (G4), with ties and negative zeros."""
    samples.check_maximum(samples.ties(2, 3, *case.sizes).to(device), case.pooling)
    input = samples.ties(2, 3, *case.sizes, seed=3).to(device)
    samples.check_maximum_gradient(input, samples.whole_gradient(input, case.pooling), case.pooling)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.uint64, torch.int32, torch.uint32], ids=samples.name_of
)
def test_wide_integers_make_no_detour_through_float(dtype, device):
    """M7: neighbours that a float64 (or float32) cannot tell apart."""
    top = torch.iinfo(dtype).max
    row = [top - 2, top - 1, top - 3, top, top - 1, 0, 1, torch.iinfo(dtype).min]
    input = torch.tensor([[row]], dtype=dtype).to(device)
    values, indices = dmlpool.max_pooling(input, 2, return_indices=True)
    assert values.tolist() == [[[top - 1, top - 1, top, top, top - 1, 1, 1]]]
    assert indices.tolist() == [[[1, 1, 3, 3, 4, 6, 6]]]


def check_many(input, pooling, layout, device):
    """Many planes with NaN in some and only -inf in others, and their gradients."""
    if input.is_floating_point():
        input[:, 1::3, 1:4, 2] = math.nan
        input[:, ::4, :, :3] = -math.inf
    samples.check_maximum(input := layout(input).to(device), pooling)
    if input.is_floating_point():
        samples.check_maximum_gradient(input, samples.whole_gradient(input, pooling), pooling)


@pytest.mark.parametrize("dtype", samples.FLOATS + samples.INTEGERS, ids=samples.name_of)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_channels_that_fill_vectors(stride, dtype, device):
    """M1, M2 and M5 in channels_last, where channels are compared together and the last few beside
    them."""
    numbers = (2, 3, 2), (1, stride, 2), (0, 3 if stride == 1 else 1, 0), (0, 1, 1), (2, 1, 2)
    # Positions of a wide plane are numbers that one byte does not hold; the first windows may lie
    # in padding.
    for channels, rank in ((16, 2), (37, 2), (70, 2), (70, 3)):
        pooling = oracle.Pooling(*(along[-rank:] for along in numbers))
        input = samples.ties(2, channels, *(4, 5, 70 if stride == 3 else 6)[-rank:], dtype=dtype)
        check_many(input, pooling, samples.channels_last, device)


@pytest.mark.parametrize("dtype", samples.FLOATS + samples.INTEGERS, ids=samples.name_of)
@pytest.mark.parametrize(
    ("sizes", "pooling"),
    [
        ((7, 6), ((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))),
        ((9, 4), ((3, 2), (2, 3), (0, 1), (1, 1), (1, 2))),
        ((2, 5, 3), ((2, 3, 2), (1, 2, 1), (1, 0, 1), (1, 2, 1), (1, 1, 1))),
        ((16, 15), ((2, 2), (3, 2), (1, 0), (0, 1), (5, 1))),
    ],
    ids=str,
)
def test_small_planes_side_by_side(sizes, pooling, dtype, device):
    """M1, M2 and M4 to M6 of many small planes, whose numbers vectors hold side by side."""
    for planes in (9, 37, 200):
        input = samples.ties(2, planes, *sizes, dtype=dtype)
        check_many(input, oracle.Pooling(*pooling), torch.clone, device)


@pytest.mark.parametrize("layout", list(samples.LAYOUTS))
def test_windows_far_apart_and_long_ones(layout, device):
    """G4: strides of many windows along any axis, and long windows that overlap, in every
    layout."""
    for window, strides in ((3, (1, 41)), (3, (41, 1)), (3, (30, 50)), (20, (9, 1))):
        pooling = oracle.Pooling((2, window), strides, (1, 1), (0, 1), (1, 2))
        for channels in (3, 70 if window == 20 else 40):
            samples.check_maximum(
                samples.LAYOUTS[layout](samples.ties(1, channels, 44, 90).to(device)), pooling
            )


@pytest.mark.parametrize(
    "bits", [0x7FC00000, 0xFFC00000 - 2**32, 0x7F800001, 0xFFFFFFFF - 2**32], ids=hex
)
def test_every_nan_wins(bits, device):
    """M3: a NaN's sign and payload make no difference to its winning; the first of several does."""
    input = torch.tensor([1.0, math.inf, 0.0, 2.0, 0.0, -1.0], device=device)
    input[2] = input[4] = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    values, indices = dmlpool.max_pooling(input.view(1, 1, 6), 3, return_indices=True)
    assert values.isnan().all()
    assert indices.tolist() == [[[2, 2, 2, 4]]]


@pytest.mark.parametrize(
    ("window", "size", "dtype"),
    [
        ((15, 15), (17, 16), torch.uint8),
        ((226,), (230,), torch.int16),
        ((16, 16), (17, 18), torch.int16),
        ((7, 7, 7), (8, 7, 9), torch.int16),
        ((2**15,), (2**15 + 3,), torch.int16),
        ((2**15 + 1,), (2**15 + 4,), torch.int32),
        ((256, 129), (258, 130), torch.int32),
    ],
    ids=str,
)
def test_taps_of_large_windows(window, size, dtype, device):
    """M6: one byte up to 225 taps, two up to 32,768, four above; the greatest numbers are
    reached."""
    input = samples.distinct(1, 2, *size, dtype=torch.float32).to(device)
    input.view(1, 2, -1)[..., -1] = 1e9
    windows = input
    for axis, extent in enumerate(window):
        windows = windows.unfold(2 + axis, extent, 1)
    expected, taps = windows.flatten(-len(window)).max(-1)
    arguments = samples.spelled_out(
        oracle.Pooling(window, *[(entry,) * len(window) for entry in (1, 0, 0, 1)])
    )
    values, found = operators.max_pooling_with_taps(input, *arguments)
    assert found.dtype == dtype
    samples.assert_same(values, expected)
    samples.assert_same(found, samples.to_numpy(taps))
    assert int(found.max()) == math.prod(window) - 1
    _, indices = operators.max_pooling_with_indices(input, *arguments, torch.int64, True)
    assert (indices.flatten(2)[..., -1] == math.prod(size) - 1).all()
    gradient = torch.ones_like(values)
    spread = operators.max_pooling_grad_from_taps(gradient, found, list(size), *arguments, False)
    assert spread.sum() == gradient.sum()
    samples.assert_same(operators.max_pooling_gather(input, found, *arguments), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=samples.name_of)
@pytest.mark.usefixtures("either_backend")
def test_half_precision_gradients_are_summed_in_float32(dtype, device):
    """M5 and M8: one rounding at the end, so that a sum may pass the type's range and its precision
    on the way."""
    input = torch.zeros(1, 1, 5, 5, dtype=dtype, device=device)
    input[0, 0, 2, 2] = 1
    gradient = torch.zeros(1, 1, 3, 3, dtype=dtype, device=device)
    gradient[0, 0, 0] = torch.tensor([60000.0, 60000.0, 1.0], dtype=dtype)
    gradient[0, 0, 2] = torch.tensor([-60000.0, -60000.0, 1.0], dtype=dtype)
    for layout in (samples.LAYOUTS["contiguous"], samples.channels_last):
        found = dmlpool.max_pooling_grad(layout(input), layout(gradient), 3)
        assert found[0, 0, 2, 2] == 2
        assert torch.count_nonzero(found) == 1


def test_gradients_of_large_volumes(device):
    """M5: what is added up in parts, by several threads; windows find their maxima in the part
    after theirs too."""
    input = samples.normal(1, 2, 30, 200, 200)
    input[..., 0, 0] = torch.arange(10.0, 40.0)
    input = input.to(device).requires_grad_()
    gradient = torch.randint(1, 9, (1, 2, 29, 199, 199), device=device).float()
    expected = torch.autograd.grad(torch.nn.functional.max_pool3d(input, 2, 1), input, gradient)
    for _ in range(4):  # threads differ
        assert torch.equal(
            *expected, *torch.autograd.grad(dmlpool.max_pooling(input, 2), input, gradient)
        )
