"""Whole planes, bins, long windows, and gradients of windows that do not overlap: slices and blocks
at their edges, and a random draw.

Interpreted or, where it does not take long to compile and emulate, as compiled for sm_90.
"""

import math
import random
from fractions import Fraction

import cases
import numpy as np
import oracle
import pytest
import samples
import test_results as results
import torch
from test_results import only_interpreted, pooling

backend = pytest.importorskip("torch_dmlpool.backends.triton")
triton = pytest.importorskip("triton")
pytest.importorskip("triton._C.libtriton")


from torch_dmlpool.window import Window  # noqa: E402

F16, F32, BF16, F64 = torch.float16, torch.float32, torch.bfloat16, torch.float64
I8, I16, I64 = torch.int8, torch.int16, torch.int64
U8, U32, U64 = torch.uint8, torch.uint32, torch.uint64
maxima, taps, averages = results.maxima, results.maxima_with_taps, results.averages
gradients, average_gradients = results.max_gradients, results.average_gradients
bins, quantized, masked = results.bins, results.quantized_averages, results.under_masks
COMPILED = [
    (taps, (3, 5, 7, 7), pooling(2, 7), "contiguous", F16),
    (averages, (3, 40, 7, 7), pooling(2, 7), "channels last", BF16),
    (averages, (3, 5, 14, 14), pooling(2, 14), "contiguous", F16),
    (gradients, (3, 5, 7, 7), pooling(2, 7), "channels last", F16),
    (average_gradients, (3, 5, 7, 7), pooling(2, 7), "contiguous", F32),
    (bins, (2, 3, 9, 16), oracle.Bins((4, 5)), "contiguous", F16),
    (taps, (1, 2, 90, 9), pooling(2, (70, 3), (20, 2), (65, 3)), "contiguous", I8),
    (quantized, (2, 3, 14, 14), pooling(2, 14), "contiguous", I8),
    (quantized, (1, 3, 12, 40), pooling(2, (6, 30), (6, 7), (2, 29)), "channels last", U8),
    (gradients, (1, 2, 40), pooling(1, 9, 1, 4), "contiguous", F32),
    (gradients, (1, 2, 20, 19), pooling(2, 9, 1, 4), "contiguous", F32),
    (gradients, (1, 2, 29, 30), pooling(2, (9, 11), (10, 11), (3, 2)), "contiguous", F32),
    (average_gradients, (1, 2, 9, 4, 20), pooling(3, (4, 1, 9), (5, 2, 10)), "channels last", F16),
    (averages, (1, 1, 17_000), pooling(1, 17_000), "contiguous", F32),
]
MORE = [
    # slices, of both layouts; one more and one less than any
    (taps, (1, 2, 16_385), pooling(1, 16_385), "contiguous", I16),
    (taps, (1, 3, 33, 32), pooling(2, (33, 32)), "channels last", F32),
    (maxima, (1, 2, 2, 20_000), pooling(2, (1, 20_000)), "contiguous", U32),
    (averages, (2, 3, 25, 41), pooling(2, (25, 41)), "channels last", F16),
    (bins, (1, 2, 1030, 5), oracle.Bins((1, 2)), "contiguous", U64),
    (quantized, (1, 2, 130, 130), pooling(2, 130), "contiguous", U8),
    # blocks of every length, whole and not; test_additions.py has averages of them
    *((taps, (1, 3, n), pooling(1, n), "sliced", F16) for n in (4, 5, 97, 768, 1537)),
    (averages, (1, 3, 2000), pooling(1, 900, 300, 400), "contiguous", F32),
    (taps, (1, 2, 500, 3), pooling(2, (200, 2), (70, 1), (90, 1)), "contiguous", BF16),
    (taps, (1, 2, 70, 40), pooling(2, (33, 17), (2, 1), (16, 8)), "contiguous", F16),
    # a vector would hold channels of two columns, of which a mask of all channels has two bytes
    (masked, (1, 6, 19, 4), oracle.Bins((1, 4)), "channels last", F16),
]
"""Operator, shape, window or bins, layout and data type."""
SHARED = [
    (averages, (1, 1, 12, 40), pooling(2, 31, 1, 15), "contiguous", F32),
    (averages, (1, 16, 40, 12), pooling(2, (20, 9), 1, (9, 4)), "channels last", F16),
    (maxima, (2, 3, 300), pooling(1, 65, 3, 40), "contiguous", I8),
    (quantized, (1, 3, 12, 300), pooling(2, (4, 40), (2, 1), (1, 20)), "contiguous", U8),
]
"""Long windows that overlap, and share what they read."""


SLOW = [
    SHARED[1],
    SHARED[3],
    *(row for row in COMPILED if row[2] == pooling(2, 9, 1, 4)),
]
"""The last takes ten seconds to compile."""


def rows():
    every = COMPILED + (MORE if results.INTERPRETED else []) + SHARED
    return [
        pytest.param(
            *row,
            row in SHARED,
            id=name_of(i, row),
            marks=[pytest.mark.slow] if row in SLOW else [],
        )
        for i, row in enumerate(every)
    ]


def name_of(i, row):
    operator, shape, _, layout, dtype = row
    return f"{operator.__name__}-{i}-{shape}-{layout}-{samples.name_of(dtype)}".replace(" ", "")


@pytest.mark.parametrize(("operator", "shape", "request_", "layout", "dtype", "shares"), rows())
def test_edges(operator, shape, request_, layout, dtype, shares, launched):
    """E6, E7, M1 to M5, Q1 to Q6: the oracle's results; what is compiled touches no more than it
    may."""
    operator(samples.LAYOUTS[layout](results.hard(operator, shape, dtype)), request_)
    assert launched
    assert "share" in {one.kernel for one in launched} or not shares


def drawn(chosen):
    """A window or bins over few elements, mostly too large for straight-line code."""
    rank = chosen.choice((1, 2, 2, 3))
    sizes = tuple(chosen.randint(1, (150, 20, 7)[rank - 1]) for _ in range(rank))
    shape = (chosen.randint(1, 2), chosen.randint(1, 4), *sizes)
    if chosen.random() < 0.2:
        return shape, oracle.Bins(tuple(chosen.randint(1, 2 * size) for size in sizes))
    while True:
        kind = chosen.choice(("whole", "apart", "any", "any"))
        window = [size if kind == "whole" else chosen.randint(1, 2 * size) for size in sizes]
        window[-1] += 66 * (kind == "any")
        stride = [chosen.randint(1, 9) + (kind == "apart") * each for each in window]
        start, end = (
            [(kind != "whole") * chosen.randint(0, each) for each in window] for _ in "ab"
        )
        dilation = [chosen.choice((1, 1, 2)) if kind == "any" else 1 for _ in sizes]
        entries = (tuple(each) for each in (window, stride, start, end, dilation))
        request = oracle.Pooling(*entries, chosen.random() < 0.3)
        try:
            outputs = Window.directml(rank, *vars(request).values()).output_sizes(sizes)
        except ValueError:
            continue
        if math.prod(outputs) * math.prod(window) < 40_000:
            return shape, request


@only_interpreted
@cases.each("seed", range(24), range(1, 24, 3))
def test_a_random_draw(seed, launched):
    """Every operator on the same request, of data types and layouts in turn."""
    chosen = random.Random(seed)
    shape, request = drawn(chosen)
    windows = [maxima, taps, averages, gradients, average_gradients, quantized, masked]
    for operator in [bins, masked] if isinstance(request, oracle.Bins) else windows:
        dtype = chosen.choice(results.OPERATORS[operator][0])
        layout = chosen.choice(results.LAYOUTS)
        operator(samples.LAYOUTS[layout](results.hard(operator, shape, dtype)), request)
    assert launched


@pytest.mark.slow
@only_interpreted
def test_more_taps_than_float64_divides_exactly():
    """Q6: one window of more than 2²⁰ taps, which the reference serves."""
    taps = 2**20 + 16
    input = torch.zeros(1, 1, taps, dtype=torch.uint8)
    for ones in (taps // 2 - 1, taps // 2, taps // 2 + 1):
        input[..., :ones] = 1
        found = backend.quantized_averages(
            input, (1.0, 0, 1.0, 0), Window.directml(1, taps), False, torch.uint8
        )
        assert found.item() == round(Fraction(ones, taps))


@only_interpreted
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("size", [1500, 2**21, 2**22, 2**31 - 1])
def test_windows_of_more_taps_than_integers_count(size, ceil_mode):
    """A1: divisors are floating-point numbers, in gradients as well."""
    one = torch.ones(1, 1, 1, 1, 1, dtype=torch.float64)
    window = Window.directml(3, size, size, size - 1, 0, 1, ceil_mode)
    for average in (
        backend.average_pooling(one, window, True, None),
        backend.average_pooling_grad(one, (1, 1, 1), window, True, None),
    ):
        assert average.item() == pytest.approx(float(size) ** -3, rel=1e-14, abs=0)


@only_interpreted
def test_a_long_window_of_a_large_sum_does_not_lose_small_addends():
    """E6: in rows and in columns, whole or not."""
    for length, window in ((5000, 5000), (20_000, 20_000), (3000, 2001)):
        tiny = torch.full((1, 1, length), 2.0**-27 * 0.99)
        tiny[..., 0] = 1
        results.averages(tiny, pooling(1, window, 999))
        column = tiny[..., None].expand(1, 1, length, 2).contiguous()
        results.averages(column, pooling(2, (window, 1), (999, 1)))


@only_interpreted
@pytest.mark.parametrize(
    ("size", "window"), [(130, (130,)), (7, (7,)), (8, (3, 1, 1, 1)), (8, (31, 1, 15, 15))]
)
def test_a_sample_does_not_depend_on_its_batch(size, window):
    """E6: bit for bit, slices of large planes among them."""
    for layout in ("contiguous", "channels last"):
        input, how = samples.LAYOUTS[layout](samples.normal(2, 2, size, size)), Window.directml
        together = backend.average_pooling(input, how(2, *window), False, None)
        alone = [
            backend.average_pooling(each, how(2, *window), False, None) for each in input.split(1)
        ]
        assert np.array_equal(samples.bits(together), samples.bits(torch.cat(alone)))
