"""The walks: maxima down the rows, gradients two windows to a word; under the interpreter, against the oracle."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import samples
import torch
from kernel_checks import Ran, Recorder, assert_gradient, awkward, backend, pooling_of
from torch_dmlpool.kernels import max_pooling_stream as stream
from torch_dmlpool.kernels import max_pooling_stream_launch as launches
from torch_dmlpool.kernels import max_pooling_words as words

from torch_dmlpool.backends import triton as triton_launches
from torch_dmlpool.window import Window


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Ran]:
    """What the calls of a test launch, in order."""
    recorder = Recorder(triton_launches.earlier_launch)
    monkeypatch.setattr(triton_launches, "earlier_launch", recorder)
    return recorder.record


SEVEN = Window.directml(2, 7, 1, 3, 3)
LAST = "channels last"
UNEVEN = Window.directml(2, (6, 4), 1, (2, 1), (3, 2))
FORWARD = {
    "keys": (torch.float16, (2, 4, 9, 16), SEVEN, "contiguous", launches.KEYS, "columns"),
    "keys of bfloat16": (torch.bfloat16, (1, 2, 20, 8), UNEVEN, "contiguous", launches.KEYS, "columns"),
    "keys along channels": (torch.float16, (1, 4, 9, 9), SEVEN, "channels last", launches.KEYS, "channels"),
    "keys of bfloat16 along channels": (torch.bfloat16, (1, 4, 9, 5), UNEVEN, LAST, launches.KEYS, "channels"),
    "pairs": (torch.float32, (2, 4, 9, 16), SEVEN, "contiguous", launches.PAIRS, "columns"),
    "pairs along channels": (torch.float32, (1, 4, 9, 5), UNEVEN, "channels last", launches.PAIRS, "channels"),
    "pairs of an odd width": (torch.float64, (1, 2, 10, 7), SEVEN, "contiguous", launches.PAIRS, "columns"),
    "pairs of integers": (torch.int32, (1, 2, 10, 8), UNEVEN, "contiguous", launches.PAIRS, "columns"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARD)
def test_taps_and_values(name: str, ran: list[Ran]) -> None:
    """M1 to M3, M6: the first maximum or NaN of a window, never padding, in each form of the walk; values alone too."""
    dtype, sizes, window, layout, mode, form = FORWARD[name]
    input = samples.LAYOUTS[layout](awkward(*sizes, dtype=dtype))
    expected = oracle.maximum(samples.to_numpy(input), pooling_of(window))
    values, taps = backend.max_pooling_with_taps(input, window)
    samples.assert_same(values, expected.values)
    samples.assert_same(taps, expected.taps)
    samples.assert_same(backend.max_pooling(input, window), expected.values)
    assert [one.form for one in ran] == [f"max_stream, {form}"] * 2
    assert [one.launch.constants["MODE"] for one in ran] == [mode, launches.VALUES]


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 4, 5, 6, 8, 9, 11, 13, 15])
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=samples.name_of)
def test_sizes(size: int, layout: str, dtype: torch.dtype) -> None:
    """M1 to M3, M5, M6: windows of every size that is walked, with uneven padding."""
    input = samples.LAYOUTS[layout](awkward(1, 4, 20, 16, dtype=dtype))
    window = Window.directml(2, size, 1, size // 2, (size - 1) // 2)
    expected = oracle.maximum(samples.to_numpy(input), pooling_of(window))
    values, taps = backend.max_pooling_with_taps(input, window)
    samples.assert_same(values, expected.values)
    samples.assert_same(taps, expected.taps)
    assert_gradient(input, window, samples.LAYOUTS[layout])


FAR = Window.directml(2, (6, 5), 1, (8, 2), (2, 6))
BELOW = Window.directml(2, (4, 5), 1, (0, 2), 2)
BEYOND = Window.directml(2, (6, 4), 1, (8, 7), (2, 7))
GRADIENTS = {
    "columns": (torch.float16, (2, 2, 9, 16), Window.directml(2, 5, 1, 2, 2), "contiguous"),
    "columns, padding before": (torch.float32, (1, 2, 9, 16), FAR, "contiguous"),
    "columns, no padding before": (torch.bfloat16, (1, 2, 9, 12), BELOW, "contiguous"),
    "channels": (torch.float16, (1, 4, 12, 9), Window.directml(2, (4, 9), 1, (3, 8), (2, 7)), "channels last"),
    "channels, empty windows": (torch.float32, (1, 4, 9, 7), BEYOND, LAST),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_by_words(name: str, ran: list[Ran]) -> None:
    """M5: each window's gradient goes to its winner, whatever lies outside."""
    dtype, sizes, window, layout = GRADIENTS[name]
    assert_gradient(samples.LAYOUTS[layout](awkward(*sizes, dtype=dtype)), window, samples.LAYOUTS[layout])
    assert ran[-1].kernel == f"grad_words_of_{name.split(',')[0]}"


def test_several_strips(ran: list[Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    """G7: where a lane's rows end, the next lane goes on; the rows between are read twice."""
    assert launches.rows_of_lane(112, 7, 4, 10**6) == 58
    assert launches.rows_of_lane(112, 7, 4, 100) == 10
    input = awkward(1, 2, 21, 8, dtype=torch.float16)
    values, taps = backend.max_pooling_with_taps(input, SEVEN)
    expected = oracle.maximum(samples.to_numpy(input), pooling_of(SEVEN))
    samples.assert_same(taps, expected.taps)
    samples.assert_same(values, expected.values)
    *_, rows = ran[0].launch.sizes[:7]
    assert rows < 21


@pytest.mark.parametrize("ways", [2, 3])
def test_growth(ways: int) -> None:
    """Blocks that grow by overlapping parts cover a window, whole and without going past it."""
    for window in range(2, 40):
        size, kept = 1, 0
        for step, (before, distances) in enumerate(stream.growth.fn(window, ways)):
            assert before == size
            covered = {distance + i for distance in distances for i in range(size)}
            assert covered == set(range(distances[0] + size))
            assert stream.kept_at.fn(window, ways, step, len(distances) - 1) == kept + distances[0]
            size, kept = distances[0] + size, kept + distances[0]
        assert (size, kept) == (window, window - 1)


def test_rows_of_taps() -> None:
    """A product and a shift divide every tap of every window that is gathered by words, within 16 bits."""
    for width in range(4, 16):
        for height in range(4, 225 // width + 1):
            taps = np.arange(height * width)
            product = taps * words.row_multiplier.fn(height * width, width)
            assert product.max() < 2**16
            assert (product >> words.row_shift.fn(height * width, width) == taps // width).all()
