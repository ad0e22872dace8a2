"""Each strategy of the CPU kernels, forced on every request that it can serve.

``choose`` takes the fastest; whichever it takes, maxima, winners and quantized averages are the
same, and averages are within the bound of E6, as they add in other orders.
"""

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from typing import Any

import cases
import drawn
import pytest
import samples
import torch

from torch_dmlpool.backends import cpu, library
from torch_dmlpool.window import Window

pytestmark = [
    pytest.mark.skipif(library.library is None, reason=f"no library: {library.missing}"),
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1", reason="Triton's interpreter serves the CPU"
    ),
]
AUTOMATIC, PLANES, ROWS, BOXES, WINDOWS = range(5)
"""``Strategy`` in kernels/cpu/choose.h."""
STRATEGIES = pytest.mark.parametrize(
    "strategy",
    [PLANES, ROWS, BOXES, WINDOWS],
    ids=["planes", "rows", "boxes", "windows"],
)


@contextlib.contextmanager
def forced(strategy: int) -> Iterator[Callable[[], int]]:
    """The strategy serves what it can; how many calls it has served."""
    force = library.library.dmlpool_force
    force.argtypes, force.restype = (ctypes.c_int64,), None
    library.library.dmlpool_calls_forced.restype = ctypes.c_int64
    force(strategy)
    try:
        yield library.library.dmlpool_calls_forced
    finally:
        force(AUTOMATIC)


@STRATEGIES
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
        assert served() > len(named) or strategy == PLANES


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
        sizes, window, is_last = drawn.request(seed)
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
    assert calls > len(seeds) or strategy == PLANES
    assert calls > 0
