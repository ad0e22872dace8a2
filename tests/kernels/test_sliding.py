"""Long windows that overlap, of every operation, data type and layout, and their edges.

Interpreted or, where it does not take long to compile and emulate, as compiled for sm_90.
"""

import itertools
import random

import numpy as np
import pytest
import samples
import test_results as results
import torch
from test_folding import (
    BF16,
    F16,
    F32,
    F64,
    I8,
    I64,
    U8,
    U32,
    averages,
    maxima,
    quantized,
    taps,
)
from test_results import only_interpreted, pooling

backend = pytest.importorskip("torch_dmlpool.backends.triton")
by_axis = pytest.importorskip("torch_dmlpool.kernels.by_axis")

from torch_dmlpool.window import Window  # noqa: E402

COMPILED = [
    (averages, (1, 3, 12, 40), pooling(2, 31, 1, 15), "contiguous", F32),
    (averages, (1, 16, 40, 12), pooling(2, (20, 9), 1, (9, 4)), "channels last", F16),
    (taps, (1, 2, 70, 40), pooling(2, (33, 17), (2, 1), (16, 8)), "contiguous", F16),
    (maxima, (2, 3, 300), pooling(1, 65, 3, 40), "contiguous", I8),
    (quantized, (1, 3, 12, 300), pooling(2, (4, 40), (2, 1), (1, 20)), "contiguous", U8),
]
MORE = [
    # strides of every group, and those beside the largest
    (taps, (1, 2, 257), pooling(1, 67, 1), "contiguous", F32),
    (averages, (1, 1, 1030), pooling(1, 300, 1), "sliced", F32),
    *((maxima, (1, 1, 190), pooling(1, 99, s, 50), "contiguous", BF16) for s in (7, 16)),
    *((taps, (1, 2, 40, 9), pooling(2, (33, 2), (s, 1)), "channels last", U32) for s in (3, 8)),
    (averages, (1, 1, 80, 9), pooling(2, (70, 3)), "contiguous", F64),
    # nothing inside some windows, before, after, or along another axis
    (taps, (1, 2, 6, 5), pooling(2, (70, 19), (16, 4), (140, 19), (140, 60)), "contiguous", F32),
    (quantized, (1, 2, 6, 5), pooling(2, (70, 19), (16, 4), (140, 19), (140, 60)), "sliced", I8),
    # one axis folded, one not; rounded up; elements of 64 bits
    (taps, (2, 2, 30, 9), pooling(2, (20, 66), (3, 9), (9, 40)), "transposed", F16),
    (averages, (1, 1, 40, 37), pooling(2, 21, 5, 3, 1, 1, True), "contiguous", F32),
    (taps, (1, 1, 160), pooling(1, 70, 2, 10), "contiguous", I64),
]
"""Operator, shape, window, layout and data type."""


def rows() -> list[object]:
    """Two of three are slow."""
    every = COMPILED + (MORE if results.INTERPRETED else [])
    names = [f"{row[0].__name__}-{i}-{samples.name_of(row[4])}" for i, row in enumerate(every)]
    marks = [[pytest.mark.slow] if i % 3 else [] for i in range(len(every))]
    found = zip(every, names, marks, strict=True)
    return [pytest.param(*row, id=name, marks=slow) for row, name, slow in found]


@pytest.mark.parametrize(("operator", "shape", "request_", "layout", "dtype"), rows())
def test_edges(
    operator: results.Operator,
    shape: results.Shape,
    request_: results.Request,
    layout: str,
    dtype: torch.dtype,
    launched: list,
) -> None:
    """E6, M1 to M3, A1 to A4, Q1 and Q2: the oracle's results, from the kernel that shares what
    windows have in common."""
    operator(samples.LAYOUTS[layout](results.hard(operator, shape, dtype)), request_)
    assert "share" in {one.kernel for one in launched}


@pytest.mark.slow
@only_interpreted
@pytest.mark.parametrize("seed", range(12))
def test_a_random_draw(seed: int, launched: list) -> None:
    """Every operator on the same request, of data types and layouts in turn."""
    chosen = random.Random(seed)
    rank = chosen.choice((1, 2))
    shortest, longest = {1: (65, 150), 2: (16, 40)}[rank]  # none that straight-line code takes
    window = tuple(chosen.randint(shortest, longest) for _ in range(rank))
    stride = tuple(chosen.randint(1, min(16, each // 4)) for each in window)
    start, end = (tuple(chosen.randint(0, each) for each in window) for _ in "ab")
    sizes = tuple(each + chosen.randint(0, 60 // rank) for each in window)
    sizes = tuple(each + (each == 80) for each in sizes)  # which hard() keeps for a column
    request = pooling(rank, window, stride, start, end, 1, chosen.random() < 0.3)
    for operator in (maxima, taps, averages, quantized):
        dtype = chosen.choice(results.OPERATORS[operator][0])
        layout = chosen.choice(results.LAYOUTS)
        operator(samples.LAYOUTS[layout](results.hard(operator, (1, 3, *sizes), dtype)), request)
    assert "share" in {one.kernel for one in launched}


@only_interpreted
def test_infinity_and_nan_stay_in_their_windows() -> None:
    """Nothing is subtracted: sums beside an infinite one are as they would be without it."""
    input = samples.normal(1, 1, 400)
    window = Window.directml(1, 40)
    plain = backend.average_pooling(input, window, False, None)
    input[..., 150], input[..., 300] = float("inf"), float("nan")
    found = backend.average_pooling(input, window, False, None)
    reached = np.array([o <= 150 < o + 40 or o <= 300 < o + 40 for o in range(361)])
    assert (found.isfinite().numpy().reshape(-1) == ~reached).all()
    assert torch.equal(found[..., ~reached], plain[..., ~reached])


@only_interpreted
def test_no_length_makes_another_kernel() -> None:
    """A window's length, stride and padding, and the image's sizes, are numbers."""
    for operation in (by_axis.SUM, by_axis.FIRST_GREATEST):
        made = set()
        for window, stride in itertools.product(range(33, 257), (1, 2, 4, 8)):
            request = backend.kernel_named("launch", "Request")(
                Window.directml(1, window, stride, window // 2, window // 2),
                (4, 8, 1000),
                (8000, 1000, 1),
                ((1000 + 2 * (window // 2) - window) // stride + 1,),
                4,
                True,
                False,
            )
            found = by_axis.folds(request, operation)
            made |= {(each.kernel, each.constants) for each in found}
        assert {kernel for kernel, _ in made} == {"sliding.share"}
        assert len(made) <= 8
