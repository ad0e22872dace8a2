"""Each implementation of the CPU kernels, forced on every request that it can serve: maxima and
quantized averages are the same, and averages within the bound of E6."""

import contextlib
import ctypes
import itertools
import math
import os
from typing import Any

import cases
import pytest
import samples
import torch
from torch import Tensor
from torch.nn import functional as torch_nn

from torch_dmlpool.backends import cpu, library, reference
from torch_dmlpool.nn import functional as nn
from torch_dmlpool.window import Window

pytestmark = cases.OF_THE_LIBRARY
NAMES = ["planes", "rows", "boxes", "windows", "turned", "compared", "gathered", "scattered"]
"""``Strategy`` in kernels/cpu/choose.h, after AUTOMATIC, which is 0."""
AUTOMATIC, PLANES, ROWS, BOXES, WINDOWS = range(5)
STRATEGIES = pytest.mark.parametrize("strategy", range(1, len(NAMES) + 1), ids=NAMES)
OF_SUMS = pytest.mark.parametrize("strategy", range(1, 6), ids=NAMES[:5])


@contextlib.contextmanager
def forced(strategy):
    """The strategy computes what it can; yields how many calls it has computed."""
    force = library.library.dmlpool_force
    force.argtypes, force.restype = [ctypes.c_int64] * 2, None
    library.library.dmlpool_calls_forced.restype = ctypes.c_int64
    force(strategy, 0)
    try:
        yield library.library.dmlpool_calls_forced
    finally:
        force(AUTOMATIC, 0)


def test_verbose_says_what_ran_and_why_not_others(python):
    """A line for each choice, with reasons in the list's order."""
    call = "import torch, torch_dmlpool as d; d.nn.functional.max_pool2d(torch.ones(1, 3, 9, 9), 2)"
    run = python("-c", call, environment={**os.environ, "DMLPOOL_VERBOSE": "1"})
    sizes = " of 4 bytes, 3 planes of 1 channels, 1 by 1/1, 9 by 2/2, 9 by 2/2: "
    assert run.stderr == (
        f"dmlpool: maxima{sizes}pool; not turned: there are few planes\n"
        f"dmlpool: pool{sizes}rows; not planes: windows are not whole planes; "
        "not boxes: windows are small or share little\n"
    )


@OF_SUMS
@pytest.mark.parametrize(
    "named",
    [
        cases.FEW,
        pytest.param([*cases.LINES, *cases.PLANES, *cases.VOLUMES], marks=pytest.mark.slow),
    ],
    ids=["few", "all"],
)
def test_named_cases(strategy, named):
    """Named cases, contiguous and channels_last, against the oracle."""
    with forced(strategy) as served:
        for case in named:
            for channels in (2, 70):
                image = samples.ties(1, channels, *case.sizes)
                if channels > 2 and len(case.sizes) > 1:
                    image = samples.channels_last(image)
                elif channels > 2:
                    continue
                samples.check_maximum(image, case.pooling)
                for include_padding in (False, True):
                    samples.check_average(image, case.pooling, include_padding)
                gradient = samples.whole_gradient(image, case.pooling)
                samples.check_average_gradient(gradient, case.sizes, case.pooling)
        assert served() > len(named) or strategy not in (ROWS, BOXES, WINDOWS)


def sums(image, arriving, window):
    return [
        cpu.average_pooling(image, window, False, None),
        cpu.average_pooling(image, window, True, None),
        cpu.average_pooling_grad(arriving, image.shape[2:], window, False, None),
    ]


def results(sizes, window, is_last):
    """What a request gives that must be equal, and sums with what bounds their error."""
    layout = samples.channels_last if is_last else Tensor.contiguous
    image = layout(samples.ties(*sizes))
    quantized = image.to(torch.int8)
    values, taps = cpu.max_pooling_with_taps(image, window)
    arriving = layout(samples.normal(*values.shape))
    reals = image + samples.normal(*sizes)
    equal = [
        cpu.max_pooling(image, window),
        cpu.max_pooling(quantized, window),
        values,
        taps,
        cpu.max_pooling_with_indices(image, window, torch.int64, True)[1],
        cpu.max_pooling_grad_from_taps(arriving, taps, sizes[2:], window, is_last),
        cpu.quantized_averages(quantized, (0.5, 1, 0.25, 0), window, False, torch.int8),
    ]
    return [equal, sums(reals, arriving, window), sums(reals.abs(), arriving.abs(), window)]


@OF_SUMS
@pytest.mark.parametrize("layout", [Tensor.contiguous, samples.channels_last])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8], ids=str)
def test_quantized_averages_of_windows_five_wide(strategy, layout, dtype):
    """Sums of int16 of five neighbours, which a compiler once made of the wrong elements."""
    image = layout(torch.randint(0, 256, (2, 3, 11, 43)).to(dtype))
    for height, stride, dilation in itertools.product((1, 3, 5), (1, 2, 5), (1, 2)):
        window = Window.directml(2, (height, 5), stride, 0, 0, dilation)
        request = image, (0.5, 1, 0.25, 0), window, False, dtype
        with forced(strategy):
            found = cpu.quantized_averages(*request)
        assert torch.equal(found, reference.quantized_averages(*request))


@STRATEGIES
@pytest.mark.parametrize(
    "seeds", [range(40), pytest.param(range(40, 3000), marks=pytest.mark.slow)], ids=["40", "3000"]
)
def test_drawn_requests(strategy, seeds):
    """What the strategy gives is what the one that is chosen gives."""
    calls = 0
    for seed in seeds:
        sizes, window, is_last = cases.random_request(seed)
        if window.taps * torch.Size(sizes).numel() > 2**26:
            continue
        chosen = results(sizes, window, is_last)
        with forced(strategy) as served:
            found = results(sizes, window, is_last)
            calls += served()
        for one, other in zip(chosen[0], found[0], strict=True):
            assert torch.equal(one, other), f"seed {seed}"
        # Both may err by E6's bound.
        factor = 2 * (2 + window.taps.bit_length()) * 2.0**-24
        for one, other, bound in zip(chosen[1], found[1], chosen[2], strict=True):
            assert bool(((one - other).abs() <= factor * bound * 1.01).all()), f"seed {seed}"
    assert calls > len(seeds) or strategy not in (ROWS, BOXES, WINDOWS)
    assert calls > 0


def check_alone(pool, whole, dimension, places):
    """What a part of a tensor gives by itself has the bits of its part of the whole's result."""
    together = samples.listed(pool(whole))
    for at in places:
        part = whole.narrow(dimension, at, 1).clone()
        for one, result in zip(samples.listed(pool(part)), together, strict=True):
            assert torch.equal(one, result.narrow(dimension, at, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("sizes", "window", "stride", "padding"),
    [
        ((1, 3), 2, 1, 1),
        ((4, 5), 2, 2, 0),
        ((5, 12), 3, 2, 1),
        ((8, 8), 5, 1, 2),
        ((14, 14), 2, 3, 1),
        ((2, 2, 4), (1, 1, 2), (1, 1, 2), 0),
        ((4, 4, 4), 3, 1, 1),
        ((300,), 2, 2, 0),
        ((5,), 5, 1, 0),
        ((17,), 3, 1, 1),
        ((20,), 6, 5, 2),
        ((50,), 8, 8, 0),
        ((1, 64), (1, 3), (1, 2), 1),
        ((30,), 3, 2, 1),
        ((1, 20), (1, 5), (1, 3), 1),
        ((12, 14), 2, 2, 0),
        ((21, 28), 3, 2, 1),
        ((35, 36), 3, 2, 0),
        # Whole planes.
        *(
            (sizes, sizes, 1, 0)
            for sizes in [(1, 1), (1, 2), (3, 5), (7, 7), (8, 9), (40, 33), (99, 98)]
        ),
    ],
)
def test_small_planes_by_themselves(sizes, window, stride, padding, dtype):
    """Maxima, winners, averages and gradients of planes are the bits of each plane's own, and read
    nothing else."""
    made = Window.directml(len(sizes), window, stride, padding, padding)
    outputs = made.output_sizes(sizes)
    for planes in (1, 16, 37):
        # Thirds have all bits of float64, so that sums of them are rounded too.
        image = samples.fenced((samples.normal(1, planes, *sizes).double() / 3).to(dtype))
        arriving = samples.fenced((samples.normal(1, planes, *outputs).double() / 3).to(dtype))
        check_alone(lambda x: cpu.max_pooling(x, made), image, 1, range(planes))
        check_alone(lambda x: cpu.max_pooling_with_taps(x, made), image, 1, range(planes))
        for counted in ((False, None), (True, None), (False, -3)):
            averages = lambda x, how=counted: cpu.average_pooling(x, made, *how)  # noqa: E731
            check_alone(averages, image, 1, range(planes))
            gradients = lambda x, how=counted: cpu.average_pooling_grad(x, sizes, made, *how)  # noqa: E731
            check_alone(gradients, arriving, 1, range(planes))
        taps = samples.fenced(cpu.max_pooling_with_taps(image, made)[1])
        of_maxima = cpu.max_pooling_grad_from_taps(arriving, taps, sizes, made, False)
        for plane in range(planes):
            alone = arriving[:, plane : plane + 1].clone(), taps[:, plane : plane + 1].clone()
            expected = cpu.max_pooling_grad_from_taps(*alone, sizes, made, False)
            assert torch.equal(of_maxima[:, plane : plane + 1], expected)


def test_small_planes_of_bools():
    """Every byte but 0 is True, in planes that vectors hold side by side, too."""
    bools = samples.any_bytes(samples.integers(1, 70, 6, 6, dtype=torch.int8) > 50)
    made = Window.pytorch(2, 3, 1, 1)
    values, taps = cpu.max_pooling_with_taps(bools, made)
    expected, winners = cpu.max_pooling_with_taps(bools.to(torch.uint8).ne(0), made)
    for found in (values, cpu.max_pooling(bools, made)):
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(taps, winners)


Request = tuple[tuple[int, ...], Any, Any, Any, Any]
"""Spatial sizes, window, stride, padding at both ends, and dilation."""


def pooled(request):
    """The sizes and the window of a request."""
    sizes, window, stride, padding, dilation = request
    return sizes, Window.directml(len(sizes), window, stride, padding, padding, dilation)


SHARE_NO_ELEMENT = [
    ((40, 50), 2, 2, 0, 1),
    ((41, 51), 2, 2, 1, 1),
    ((40, 50), 1, 2, 0, 1),
    ((33, 47), (2, 3), (5, 4), (1, 2), (2, 1)),
    ((9, 20, 21), (1, 2, 2), (1, 2, 3), 0, 1),
    ((40, 40), 7, 9, 6, 1),
]
"""Sizes, windows, strides, padding and dilations of windows that share no element."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=samples.name_of)
@pytest.mark.parametrize(
    "pool",
    [
        *SHARE_NO_ELEMENT,
        ((2, 9000), (1, 2), (3, 2), 0, 1),
        # Windows that share elements: those that the same taps read are added in one loop.
        ((28, 30), 3, 2, 1, 1),
        ((15, 15), 3, 2, 0, 1),
        ((3, 400), (1, 5), (1, 2), (0, 2), 1),
        ((17, 19), (2, 3), (1, 2), 1, (2, 3)),
        ((5, 8, 9), 3, 2, 1, 1),
    ],
)
def test_gradients_of_averages_are_those_of_single_windows(pool, dtype):
    """Copied and gathered elements have the bits that each window gives by itself."""
    sizes, made = pooled(pool)
    layouts = [(3, True), (5, True), (43, True)]
    for channels, is_last in [*layouts, (5, False)] if pool in SHARE_NO_ELEMENT else layouts:
        arriving = samples.normal(2, channels, *made.output_sizes(sizes)).to(dtype)
        arriving = samples.channels_last(arriving) if is_last else arriving
        for counted in ((False, None), (True, None), (False, -3)):
            found = cpu.average_pooling_grad(arriving, sizes, made, *counted)
            with forced(WINDOWS):
                assert torch.equal(found, cpu.average_pooling_grad(arriving, sizes, made, *counted))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16], ids=samples.name_of
)
@pytest.mark.parametrize(
    "pool",
    [
        *SHARE_NO_ELEMENT,
        ((1, 1800), (1, 2), (1, 3), (0, 1), 1),
        # Windows that share elements, which two to nine windows may win.
        ((40, 50), 3, 2, 1, 1),
        ((33, 47), 3, 1, 1, 1),
        ((30, 41), (3, 2), (2, 3), (2, 1), (3, 2)),
        ((2, 400), (1, 3), (1, 1), (0, 2), (1, 2)),
        ((2, 900), (2, 3), (1, 2), (0, 1), 1),
        ((9, 10, 11), 2, (1, 2, 1), 1, 1),
    ],
)
def test_gradients_of_maxima_of_many_channels(pool, dtype):
    """Channels innermost are added up in vectors, in rows of several tiles: the same bits as of
    contiguous planes, whose elements are added one by one."""
    sizes, made = pooled(pool)
    image = samples.ties(2, 43, *sizes).to(dtype)
    _, taps = cpu.max_pooling_with_taps(image, made)
    arriving = samples.normal(*taps.shape).to(dtype)
    arriving[:, :, ::2] = -0.0
    expected = cpu.max_pooling_grad_from_taps(arriving, taps, sizes, made, False)
    arriving, taps = samples.channels_last(arriving), samples.channels_last(taps)
    found = cpu.max_pooling_grad_from_taps(arriving, taps, sizes, made, True)
    assert torch.equal(found, expected)
    assert torch.equal(found.signbit(), expected.signbit())


@pytest.mark.parametrize(
    ("shape", "pool"),
    [
        ((30, 130), ((32, 31), 2, (1, 3), 1, 3)),
        ((7, 258), ((32, 33), 2, 2, 1, 1)),
        # Rows of less than 8 KB.
        ((700, 64), ((9, 9), 2, 2, 0, 1)),
        ((9, 512), ((1, 800), (1, 2), (1, 2), (0, 1), 1)),
        ((14, 1024), ((17, 17), 3, 1, 1, 1)),
        ((9, 32), ((112, 113), (112, 113), 1, 0, 1)),
        # The gradient's first window begins inside what arrives.
        ((14, 1024), ((11, 12), 3, 1, (1, 5), 1)),
        ((2, 128), ((9, 28, 28), 3, (1, 2, 2), 1, 1)),
        ((2, 256), ((47, 47), 47, 1, 0, 1)),
        # Rows of one channel, which are read a few at a time, and rows in tiles.
        ((150, 1), ((163, 150), 3, 2, 1, 1)),
        ((2, 1), ((1100, 1003), 2, 2, 0, 1)),
        ((400, 1), ((1, 4200), (1, 5), (1, 4), 0, 1)),
    ],
)
def test_inputs_larger_than_caches(shape, pool):
    """Each sample of a large input, which is read in order before it is combined, has the bits
    that it has alone, and no other memory is read."""
    sizes, made = pooled(pool)
    count, channels = 2 * shape[0], shape[1]
    images = samples.fenced(samples.channels_last(samples.normal(count, channels, *sizes)))
    assert images.nbytes > 8 << 20
    maxima, _ = cpu.max_pooling_with_taps(images, made)
    assert torch.equal(cpu.max_pooling(images, made), maxima)
    arriving = samples.fenced(samples.channels_last(samples.normal(*maxima.shape)))
    places = 0, count // 2, count - 1
    check_alone(lambda x: cpu.average_pooling(x, made, True, None), images, 0, places)
    check_alone(lambda x: cpu.max_pooling_with_taps(x, made), images, 0, places)
    gradients = lambda x: cpu.average_pooling_grad(x, sizes, made, True, None)  # noqa: E731
    check_alone(gradients, arriving, 0, places)


@pytest.mark.parametrize("pool", ["max_pool2d", "avg_pool2d"])
def test_wide_windows_at_strides(pool):
    """Windows that are made of windows of 4 and 16 taps: strides take some of these."""
    image = samples.normal(1, 3, 70, 1000)
    for window in (11, 15, 63):
        ours, theirs = (getattr(each, pool)(image, window, 2) for each in (nn, torch_nn))
        torch.testing.assert_close(ours, theirs)


def test_windows_beside_inputs_larger_than_caches():
    """Windows that all lie in the padding read nothing, and no memory before the input."""
    sizes, made = pooled(((1300, 2), (9, 7), (1, 12), (0, 8), 1))
    images = samples.channels_last(samples.normal(60, 16, *sizes))
    assert images.nbytes > 8 << 20
    images = samples.fenced(images, at_end=False)
    assert not cpu.average_pooling(images, made, False, None).any()


DIVIDED = {4: (2, 2, 0), 9: (3, 1, 1), 12: ((4, 3), (4, 3), 0), 7: (3, 2, (5, 1))}
"""Windows, strides and padding, each by the number that its sums are divided by."""


@OF_SUMS
@pytest.mark.parametrize("channels", [1, 3, 16, 20, 70])
@pytest.mark.parametrize("divisor", DIVIDED)
def test_an_average_is_its_sum_divided_once(strategy, channels, divisor):
    """A4: float32 sums become the numbers nearest to their quotients, in each loop that divides:
    infinities, NaN and windows in the padding, too."""
    images = samples.integers(2, channels, 12, 11, dtype=torch.int16).float()
    images[0] *= 2.0**-100
    images[1, :, 5:7] *= 2.0**100
    images[0, 0, 0, :2] = torch.tensor([math.inf, math.nan])
    images = samples.channels_last(images)
    _, window = pooled(((12, 11), *DIVIDED[divisor], 1))
    with forced(strategy):
        sums = cpu.average_pooling(images, window, True, 1)
        averages = cpu.average_pooling(images, window, True, divisor)
    expected = (sums.double() / divisor).float()
    torch.testing.assert_close(averages, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(1, 3), (1, 1, 5), (96, 97)])
def test_positions_in_whole_planes(sizes, dtype):
    """M4: a window that is the whole plane has its positions, in every data type of indices. Large
    planes are read at four places in turn."""
    image, made = samples.ties(2, 70, *sizes).to(dtype), Window.pytorch(len(sizes), sizes)
    for index_dtype in (torch.int32, torch.int64):
        for per_plane in (True, False):
            given = made, index_dtype, per_plane
            _, expected = reference.max_pooling_with_indices(image, *given)
            for images in (image, samples.channels_last(image)):
                assert torch.equal(cpu.max_pooling_with_indices(images, *given)[1], expected)


@pytest.mark.parametrize("scale", [0.5, 0.031, 0.3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8], ids=samples.name_of)
def test_quantized_averages_of_small_planes(dtype, scale):
    """Small planes side by side, unless channels have scales of their own, and whole planes: what
    plain PyTorch computes, ties included, and no other memory is read."""
    zero, scale = 3, torch.tensor(scale).item()  # operators round scales to float32
    pools = [((4, 4), 2, 2), ((5, 3), 3, 1, 1), ((2, 3, 4), 2, 1), ((7, 12), 3, 2)]
    whole = [(sizes, sizes) for sizes in ((1, 1), (2, 3), (4, 4), (7, 7), (9, 20))]
    for sizes, *given in [*pools, *whole]:
        made = Window.directml(len(sizes), *given, *given[2:])
        for planes in (1, 37):
            levels = torch.randint(0, 256, (3, planes, *sizes), dtype=torch.uint8)
            image = samples.fenced(levels.view(dtype))
            scales = torch.linspace(scale, 2 * scale, planes)
            for output_scale, includes_padding in ((0.5, True), (scales, True), (scale, False)):
                parameters = 0.5, zero, output_scale, 2
                arguments = image, parameters, made, includes_padding, dtype
                expected = reference.quantized_averages(*arguments)
                found = cpu.quantized_averages(*arguments)
                assert torch.equal(found, expected)
