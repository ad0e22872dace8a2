"""Each implementation of the CPU kernels, forced on every request that it can serve: maxima and
quantized averages are the same, and averages within the bound of E6."""

import contextlib
import ctypes
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import cases
import pytest
import samples
import torch

from torch_dmlpool.backends import cpu, library, reference
from torch_dmlpool.window import Window

pytestmark = [
    pytest.mark.skipif(library.library is None, reason=f"no library: {library.missing}"),
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1", reason="Triton's interpreter serves the CPU"
    ),
]
NAMES = [
    *("planes", "rows", "boxes", "windows"),
    *("turned", "compared", "copied", "gathered", "scattered"),
]
"""``Strategy`` in kernels/cpu/choose.h, after AUTOMATIC, which is 0."""
AUTOMATIC, PLANES, ROWS, BOXES, WINDOWS = range(5)
STRATEGIES = pytest.mark.parametrize("strategy", range(1, len(NAMES) + 1), ids=NAMES)
OF_SUMS = pytest.mark.parametrize("strategy", range(1, 6), ids=NAMES[:5])


@contextlib.contextmanager
def forced(strategy: int) -> Iterator[Callable[[], int]]:
    """The strategy computes what it can; yields how many calls it has computed."""
    force = library.library.dmlpool_force
    force.argtypes, force.restype = (ctypes.c_int64,), None
    library.library.dmlpool_calls_forced.restype = ctypes.c_int64
    force(strategy)
    try:
        yield library.library.dmlpool_calls_forced
    finally:
        force(AUTOMATIC)


def test_verbose_says_what_ran_and_why_not_others() -> None:
    """A line for each call, in the list's order."""
    call = "import torch, torch_dmlpool as d; d.nn.functional.max_pool2d(torch.ones(1, 3, 9, 9), 2)"
    run = subprocess.run(
        [sys.executable, "-c", call],
        env={**os.environ, "DMLPOOL_VERBOSE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stderr == (
        "dmlpool: maxima of float32, 3 planes of 1 channels, 1 by 1/1, 9 by 2/2, 9 by 2/2: rows; "
        "not planes: windows are not whole planes; not boxes: windows are small or share little\n"
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
def test_named_cases(strategy: int, named: list[cases.Case]) -> None:
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


def results(sizes: tuple[int, ...], window: Window, is_last: bool) -> dict[str, Any]:
    """What a request gives that must be equal, and sums with what bounds their error."""
    image = samples.ties(*sizes)
    if is_last:
        image = samples.channels_last(image)
    quantized = image.to(torch.int8)
    values, taps = cpu.max_pooling_with_taps(image, window)
    outputs = window.output_sizes(sizes[2:])
    arriving = samples.normal(*sizes[:2], *outputs)
    if is_last:
        arriving = samples.channels_last(arriving)
    reals = image + samples.normal(*sizes)
    return {
        "equal": [
            cpu.max_pooling(image, window),
            cpu.max_pooling(quantized, window),
            values,
            taps,
            cpu.max_pooling_with_indices(image, window, torch.int64, True)[1],
            cpu.max_pooling_grad_from_taps(arriving, taps, sizes[2:], window, is_last),
            cpu.quantized_linear_average_pooling(
                quantized, 0.5, 1, 0.25, 0, window, False, torch.int8
            ),
        ],
        "sums": [
            cpu.average_pooling(reals, window, False, None),
            cpu.average_pooling(reals, window, True, None),
            cpu.average_pooling_grad(arriving, sizes[2:], window, False, None),
        ],
        "bounds": [
            cpu.average_pooling(reals.abs(), window, False, None),
            cpu.average_pooling(reals.abs(), window, True, None),
            cpu.average_pooling_grad(arriving.abs(), sizes[2:], window, False, None),
        ],
    }


@STRATEGIES
@pytest.mark.parametrize(
    "seeds", [range(40), pytest.param(range(40, 3000), marks=pytest.mark.slow)], ids=["40", "3000"]
)
def test_drawn_requests(strategy: int, seeds: range) -> None:
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
        for one, other in zip(chosen["equal"], found["equal"], strict=True):
            assert torch.equal(one, other), f"seed {seed}"
        # Both may err by E6's bound.
        factor = 2 * (2 + window.taps.bit_length()) * 2.0**-24
        for one, other, bound in zip(chosen["sums"], found["sums"], chosen["bounds"], strict=True):
            assert bool(((one - other).abs() <= factor * bound * 1.01).all()), f"seed {seed}"
    assert calls > len(seeds) or strategy not in (ROWS, BOXES, WINDOWS)
    assert calls > 0


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
    ],
)
def test_small_planes_by_themselves(
    sizes: tuple[int, ...], window: Any, stride: Any, padding: int, dtype: torch.dtype
) -> None:
    """Maxima, averages and gradients of planes are the bits of each plane's own, and read nothing
    else."""
    made = Window.directml(len(sizes), window, stride, padding, padding)
    outputs = made.output_sizes(sizes)
    for planes in (1, 16, 37):
        # Thirds have all bits of float64, so that sums of them are rounded too.
        image = samples.fenced((samples.normal(1, planes, *sizes).double() / 3).to(dtype))
        arriving = samples.fenced((samples.normal(1, planes, *outputs).double() / 3).to(dtype))
        maxima = cpu.max_pooling(image, made)
        for k in range(planes):
            assert torch.equal(
                cpu.max_pooling(image[:, k : k + 1].clone(), made)[0, 0], maxima[0, k]
            )
        for counted in ((False, None), (True, None), (False, -3)):
            averages = cpu.average_pooling(image, made, *counted)
            gradients = cpu.average_pooling_grad(arriving, sizes, made, *counted)
            for k in range(planes):
                alone = image[:, k : k + 1].clone()
                found = cpu.average_pooling(alone, made, *counted)
                assert torch.equal(found, averages[:, k : k + 1])
                alone = arriving[:, k : k + 1].clone()
                found = cpu.average_pooling_grad(alone, sizes, made, *counted)
                assert torch.equal(found, gradients[:, k : k + 1])


Request = tuple[tuple[int, ...], Any, Any, Any, Any]
"""Spatial sizes, window, stride, padding at both ends, and dilation."""


def pooled(request: Request) -> tuple[tuple[int, ...], Window]:
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


@pytest.mark.parametrize("is_last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=samples.name_of)
@pytest.mark.parametrize(
    "pool",
    [*SHARE_NO_ELEMENT, ((2, 9000), (1, 2), (3, 2), 0, 1)],
)
def test_gradients_of_windows_that_share_no_element(
    pool: Request,
    dtype: torch.dtype,
    is_last: bool,
) -> None:
    """What arrives is copied to the elements of its window: the bits that each strategy adds up."""
    sizes, made = pooled(pool)
    arriving = samples.normal(2, 5, *made.output_sizes(sizes)).to(dtype)
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
def test_gradients_of_maxima_of_many_channels(
    pool: Request,
    dtype: torch.dtype,
) -> None:
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
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=samples.name_of
)
@pytest.mark.parametrize(
    "sizes", [(1, 1), (1, 2), (3, 2), (2, 4), (3, 5), (4, 4), (7, 7), (8, 9), (40, 33)]
)
def test_planes_by_themselves(sizes: tuple[int, int], dtype: torch.dtype) -> None:
    """Several whole planes are folded together, and so are their gradients written: each has the
    bits that it has alone, and no other memory is read."""
    image = samples.fenced(samples.normal(3, 13, *sizes).to(dtype))
    arriving = samples.fenced(samples.normal(3, 13, 1, 1).to(dtype))
    made = Window.pytorch(2, sizes)
    averages = cpu.average_pooling(image, made, False, None)
    maxima = cpu.max_pooling(image, made)
    gradients = cpu.average_pooling_grad(arriving, sizes, made, False, None)
    assert torch.equal(maxima, image.amax((2, 3), keepdim=True))
    shares = arriving.double() / math.prod(sizes)
    torch.testing.assert_close(gradients, shares.to(dtype).expand_as(image))
    for at in range(39):
        plane = image.view(1, 39, *sizes)[:, at : at + 1].clone()
        alone = cpu.average_pooling(plane, made, False, None)
        assert torch.equal(alone.flatten(), averages.flatten()[at : at + 1])
        assert cpu.max_pooling(plane, made).item() == maxima.flatten()[at].item()
        share = arriving.view(1, 39, 1, 1)[:, at : at + 1].clone()
        alone = cpu.average_pooling_grad(share, sizes, made, False, None)
        assert torch.equal(alone[0, 0], gradients.view(39, *sizes)[at])


@pytest.mark.parametrize(
    ("shape", "pool"),
    [
        ((30, 128), ((32, 33), 2, 2, 0, 1)),
        ((30, 130), ((32, 31), 2, (1, 3), 1, 3)),
        ((30, 130), ((32, 31), 4, 4, 2, 1)),
        ((7, 258), ((32, 33), 2, 2, 1, 1)),
        # Rows of less than 8 KB.
        ((700, 64), ((9, 9), 2, 2, 0, 1)),
        ((62, 60), ((29, 31), (3, 2), (4, 2), 2, 1)),
        ((9, 512), ((1, 800), (1, 2), (1, 2), (0, 1), 1)),
        ((8, 1008), ((21, 20), 1, 2, 0, 1)),
        ((14, 1024), ((17, 17), 3, 1, 1, 1)),
        ((9, 32), ((112, 113), (112, 113), 1, 0, 1)),
        ((4, 512), ((29, 30), 3, 2, 1, 1)),
        ((9, 128), ((41, 40), 3, 2, 2, 2)),
        # The gradient's first window begins inside what arrives.
        ((14, 1024), ((11, 12), 3, 1, (1, 5), 1)),
        ((2, 128), ((9, 28, 28), 3, (1, 2, 2), 1, 1)),
    ],
)
def test_inputs_larger_than_caches(shape: tuple[int, int], pool: Request) -> None:
    """Each sample of a large channels_last input, which is read in order before it is combined,
    has the bits that it has alone, and no other memory is read."""
    sizes, made = pooled(pool)
    count, channels = 2 * shape[0], shape[1]
    images = samples.fenced(samples.channels_last(samples.normal(count, channels, *sizes)))
    assert images.nbytes > 8 << 20
    averages, maxima = cpu.average_pooling(images, made, True, None), cpu.max_pooling(images, made)
    arriving = samples.fenced(samples.channels_last(samples.normal(*averages.shape)))
    gradients = cpu.average_pooling_grad(arriving, sizes, made, True, None)
    for at in (0, count // 2, count - 1):
        alone = samples.channels_last(images[at : at + 1].clone())
        assert torch.equal(cpu.average_pooling(alone, made, True, None), averages[at : at + 1])
        assert torch.equal(cpu.max_pooling(alone, made), maxima[at : at + 1])
        alone = samples.channels_last(arriving[at : at + 1].clone())
        found = cpu.average_pooling_grad(alone, sizes, made, True, None)
        assert torch.equal(found, gradients[at : at + 1])


def test_windows_beside_inputs_larger_than_caches() -> None:
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
def test_an_average_is_its_sum_divided_once(strategy: int, channels: int, divisor: int) -> None:
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
@pytest.mark.parametrize("sizes", [(1, 3), (1, 1, 5)])
def test_positions_in_planes_of_one_row_of_channels(
    sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    """M4: a window that is the whole plane has its positions, in every data type of indices."""
    image, made = samples.ties(2, 70, *sizes).to(dtype), Window.pytorch(len(sizes), sizes)
    for index_dtype in (torch.int32, torch.int64):
        for per_plane in (True, False):
            given = made, index_dtype, per_plane
            _, expected = reference.max_pooling_with_indices(image, *given)
            _, found = cpu.max_pooling_with_indices(samples.channels_last(image), *given)
            assert torch.equal(found, expected)


@pytest.mark.parametrize("is_last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize(
    ("sizes", "window", "stride"),
    [
        ((2, 2, 4), (1, 1, 2), (1, 1, 2)),
        ((3, 5, 6), (1, 1, 1), (1, 1, 2)),
        ((3, 4, 5), (1, 2, 1), (1, 2, 1)),
        ((3, 4, 6), (2, 1, 3), (2, 1, 3)),
        ((7, 5), 1, 1),
        ((300, 600), (1, 2), (1, 2)),
        # Whole planes: of 8 elements and of more, and with a stride that is not used.
        ((2, 4), (2, 4), (2, 4)),
        ((3, 3), 3, 1),
        ((1, 9), (1, 8), 9),
    ],
)
def test_rows_that_windows_tile_are_one_row(
    sizes: tuple[int, ...], window: Any, stride: Any, is_last: bool
) -> None:
    """Maxima, their winners in every numbering, and gradients of both families, as plain PyTorch
    computes them."""
    made = Window.directml(len(sizes), window, stride)
    image = samples.ties(2, 3, *sizes)
    arriving = samples.normal(2, 3, *made.output_sizes(sizes))
    if is_last:
        image, arriving = samples.channels_last(image), samples.channels_last(arriving)
    _, taps = found = cpu.max_pooling_with_taps(image, made)
    calls = [
        lambda backend: backend.max_pooling_with_taps(image, made),
        lambda backend: backend.max_pooling_with_indices(image, made, torch.int64, True),
        lambda backend: backend.max_pooling_with_indices(image, made, torch.int32, False),
        lambda backend: backend.max_pooling_indices(taps, sizes, made, torch.int64, False),
        lambda backend: backend.max_pooling_grad_from_taps(arriving, taps, sizes, made, is_last),
        lambda backend: backend.average_pooling(image, made, False, None),
        lambda backend: backend.average_pooling_grad(arriving, sizes, made, True, None),
    ]
    for call in calls:
        ours, theirs = call(cpu), call(reference)
        for one, other in zip(samples.listed(ours), samples.listed(theirs), strict=True):
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride()
    assert torch.equal(found[0], cpu.max_pooling(image, made))


def test_channels_that_are_read_in_order() -> None:
    """Channels that fill more than a cache are read before they are combined, up to the end of
    memory: the same bits as of each sample by itself, whose values become averages in parts."""
    image = samples.fenced(samples.normal(6, 90, 75, 83)).permute(0, 3, 1, 2)
    for made in (Window.pytorch(2, 2), Window.pytorch(2, 3, 2, 1), Window.pytorch(2, 2, 1)):
        averages = cpu.average_pooling(image, made, False, None)
        maxima, taps = cpu.max_pooling_with_taps(image, made)
        for sample in range(6):
            at = slice(sample, sample + 1)
            part = image[at].clone()
            assert torch.equal(averages[at], cpu.average_pooling(part, made, False, None))
            found, of_part = cpu.max_pooling_with_taps(part, made)
            assert torch.equal(maxima[at], found)
            assert torch.equal(taps[at], of_part)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=samples.name_of)
@pytest.mark.parametrize(
    "pool",
    [
        ((28, 30), 3, 2, 1, 1),
        ((15, 15), 3, 2, 0, 1),
        ((3, 400), (1, 5), (1, 2), (0, 2), 1),
        ((17, 19), (2, 3), (1, 2), 1, (2, 3)),
        ((5, 8, 9), 3, 2, 1, 1),
    ],
)
def test_gradients_of_averages_of_few_channels(
    pool: Request,
    dtype: torch.dtype,
) -> None:
    """Elements that the same taps read are added in one loop: the bits that each window gives by
    itself."""
    sizes, made = pooled(pool)
    for channels in (3, 43):
        arriving = samples.normal(2, channels, *made.output_sizes(sizes)).to(dtype)
        arriving = samples.channels_last(arriving)
        for counted in ((False, None), (True, None), (False, -3)):
            found = cpu.average_pooling_grad(arriving, sizes, made, *counted)
            with forced(WINDOWS):
                assert torch.equal(found, cpu.average_pooling_grad(arriving, sizes, made, *counted))


@pytest.mark.parametrize("sizes", [(1, 1), (3, 5), (5, 5), (9, 13), (23, 41)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=samples.name_of)
def test_whole_planes_of_channels(sizes: tuple[int, int], dtype: torch.dtype) -> None:
    """Positions are combined eight at a time, with any number left over: -0.0, infinities and NaNs
    come out as of contiguous planes, and averages differ by E6's bound."""
    made = Window.pytorch(2, sizes)
    for channels in (1, 3, 20, 70, 300):
        image = samples.normal(2, channels, *sizes)
        last = samples.channels_last(image.to(dtype))
        assert torch.equal(cpu.max_pooling(last, made), cpu.max_pooling(image.to(dtype), made))
        found = cpu.average_pooling(last, made, False, None).double()
        expected = last.double().mean((2, 3), keepdim=True)
        error = 2.0**-8 if dtype == torch.bfloat16 else (3 + made.taps.bit_length()) * 2.0**-24
        bound = last.double().abs().mean((2, 3), keepdim=True)
        assert bool(((found - expected).abs() <= error * bound).all())
        assert bool((cpu.average_pooling(last * -0.0, made, False, None) == 0).all())
        last[:, 0, -1, -1] = torch.nan
        assert bool(cpu.max_pooling(last, made)[:, 0].isnan().all())


def test_planes_of_integers_are_reduced_together() -> None:
    """One run of all planes gives each plane's own average: planes shorter and longer than a
    vector, and as many as one call takes and more."""
    for sizes in ((1, 1), (2, 3), (4, 4), (7, 7), (9, 20)):
        made = Window.pytorch(2, sizes)
        for planes in (1, 2, 63, 65, 200):
            image = torch.randint(-128, 128, (1, planes, *sizes), dtype=torch.int8)
            found = cpu.quantized_linear_average_pooling(
                image, 0.5, 3, 0.5, 3, made, False, torch.int8
            )
            expected = (image.double() - 3).mean((2, 3), keepdim=True).round() + 3
            assert torch.equal(found.double(), expected), (sizes, planes)


@pytest.mark.parametrize("length", [2**15 - 40, 2**15, 2**16 + 1, 2**16 + 100])
def test_rows_longer_than_what_is_kept(length: int) -> None:
    """Runs of a row are found once a call for rows of up to 2**15 outputs, and counts of taps kept
    for up to 2**16. Longer rows, and several of them, give the same averages and maxima."""
    made = Window.directml(1, 70, 1, start_padding=3, end_padding=66)
    image = torch.randint(-8, 8, (1, 3, length)).float()
    zeros = torch.nn.functional.pad(image, (3, 66)).double()
    sums = zeros.cumsum(-1)
    sums = sums[..., 69:] - torch.nn.functional.pad(sums, (1, 0))[..., : sums.shape[-1] - 69]
    start = torch.arange(sums.shape[-1]) - 3
    counted = (start + 70).clamp(max=length) - start.clamp(min=0)
    for strategy in (AUTOMATIC, WINDOWS):
        with forced(strategy):
            averages = cpu.average_pooling(image, made, False, None)
            maxima = cpu.max_pooling(image, made)
        torch.testing.assert_close(averages.double(), sums / counted, rtol=2**-20, atol=1e-6)
        padded = torch.nn.functional.pad(image, (3, 66), value=-torch.inf)
        assert torch.equal(maxima, padded.unfold(-1, 70, 1).amax(-1))
    made = Window.directml(1, 3)
    arriving = torch.randint(-8, 8, (1, 3, length - 2)).float()
    _, taps = cpu.max_pooling_with_taps(image, made)
    at = torch.arange(length - 2) + image.unfold(-1, 3, 1).argmax(-1)
    expected = torch.zeros_like(image).scatter_add(-1, at, arriving)
    found = cpu.max_pooling_grad_from_taps(arriving, taps, (length,), made, False)
    assert torch.equal(found, expected)


def test_large_inputs_are_read_first() -> None:
    """Rows that are pooled in tiles, and positions of 1 KB, are read before they are combined: the
    same bits as of each plane by itself, and nothing else is read."""
    rows = samples.fenced(samples.normal(3, 500, 2100))
    arriving = samples.fenced(samples.normal(3, 260, 4200))
    for made in (Window.pytorch(1, 3, 2), Window.pytorch(1, 5, 4)):
        sizes = ((4200 - 1) * made.axes[0].stride + made.axes[0].window,)
        gradients = cpu.average_pooling_grad(arriving, sizes, made, True, None)
        alone = arriving[-1:, -1:].clone()
        found = cpu.average_pooling_grad(alone, sizes, made, True, None)
        assert torch.equal(found, gradients[-1:, -1:])
    positions = samples.normal(4, 256, 47, 47).contiguous(memory_format=torch.channels_last)
    positions = samples.fenced(positions)
    for image, made in ((rows, Window.pytorch(1, 3, 2, 1)), (positions, Window.pytorch(2, 47))):
        maxima = cpu.max_pooling(image, made)
        averages = cpu.average_pooling(image, made, False, None)
        for at in ((slice(0, 1), slice(0, 256)), (slice(-1, None), slice(-256, None))):
            alone = image[at].clone()
            assert torch.equal(cpu.max_pooling(alone, made), maxima[at])
            assert torch.equal(cpu.average_pooling(alone, made, False, None), averages[at])


@pytest.mark.parametrize("sizes", [(2, 70, 163, 150), (1, 3, 1100, 1003)])
def test_rows_that_are_read_ahead(sizes: tuple[int, ...]) -> None:
    """Rows of planes that fill more than a cache are prefetched, up to the end of memory: the same
    bits as of each plane by itself."""
    image = samples.fenced(samples.normal(*sizes))
    for made in (Window.pytorch(2, 3, 2), Window.pytorch(2, 2), Window.pytorch(2, 3, 2, 1)):
        averages = cpu.average_pooling(image, made, True, None)
        maxima, taps = cpu.max_pooling_with_taps(image, made)
        for channel in (0, sizes[1] // 2, sizes[1] - 1):
            at = slice(-1, None), slice(channel, channel + 1)
            part = image[at].clone()
            assert torch.equal(averages[at], cpu.average_pooling(part, made, True, None))
            found, of_part = cpu.max_pooling_with_taps(part, made)
            assert torch.equal(maxima[at], found)
            assert torch.equal(taps[at], of_part)


@pytest.mark.parametrize("scale", [0.5, 0.031, 0.3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8], ids=samples.name_of)
def test_quantized_averages_of_small_planes(dtype: torch.dtype, scale: float) -> None:
    """Small planes side by side, unless channels have scales of their own: what plain PyTorch
    computes, ties included, and no other memory is read."""
    zero, scale = 3, torch.tensor(scale).item()  # operators round scales to float32
    for sizes, *given in (((4, 4), 2, 2), ((5, 3), 3, 1, 1), ((2, 3, 4), 2, 1), ((7, 12), 3, 2)):
        made = Window.directml(len(sizes), *given, *given[2:])
        for planes in (1, 37):
            levels = torch.randint(0, 256, (3, planes, *sizes), dtype=torch.uint8)
            image = samples.fenced(levels.view(dtype))
            scales = torch.linspace(scale, 2 * scale, planes)
            for output_scale, includes_padding in ((0.5, True), (scales, True), (scale, False)):
                arguments = image, 0.5, zero, output_scale, 2, made, includes_padding, dtype
                expected = reference.quantized_linear_average_pooling(*arguments)
                found = cpu.quantized_linear_average_pooling(*arguments)
                assert torch.equal(found, expected)
