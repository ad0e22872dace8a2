"""Averages over windows that lie side by side (A1, A2, A5, E6, G7)."""

from __future__ import annotations

import math

import pytest
import samples
import torch
from cutting import cut_up

from torch_dmlpool.backends import tape, tiles, torch_backend
from torch_dmlpool.window import Window

LAYOUTS = ["contiguous", "sliced", "transposed", "expanded over columns"]
REQUESTS = [
    ((8, 8), (8, 8), (32, 40)),
    ((5, 7), (5, 7), (23, 30)),
    ((16, 3), (20, 4), (60, 13)),
    ((6, 10), (9, 10), (15, 10)),
    ((40, 2), (40, 2), (80, 5)),
]
"""Window, strides and the plane: every number of halvings, gaps between windows, elements beyond the last."""


@pytest.mark.parametrize("elements", [2**19, 40])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("taps", "strides", "sizes"), REQUESTS, ids=str)
def test_averages(
    taps: tuple[int, int],
    strides: tuple[int, int],
    sizes: tuple[int, int],
    layout: str,
    elements: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within half of the roundings that E6 allows: as many as the additions in float32, and one for the result."""
    cut_up(monkeypatch, elements)
    monkeypatch.setattr(tiles, "ELEMENTS_AT_ONCE", elements)
    window = Window.directml(2, taps, strides)
    input = samples.LAYOUTS[layout](samples.normal(2, 3, *sizes))
    for divisor in (None, -3):
        way = tiles.way_of_averages(input, window, divisor)
        assert way is not None
        result = way(input)
        windows = input.double().unfold(2, taps[0], strides[0]).unfold(3, taps[1], strides[1])
        divided_by = math.prod(taps) if divisor is None else divisor
        exact, magnitude = windows.sum((-2, -1)) / divided_by, windows.abs().sum((-2, -1)) / abs(divided_by)
        assert bool(((result.double() - exact).abs() <= (tiles.MOST_HALVINGS + 1) * 2.0**-24 * magnitude).all())
        assert torch.equal(torch_backend.average_pooling(input, window, divisor is None, divisor), result)


def test_a_sample_is_alone_in_its_batch() -> None:
    """E6: bit for bit."""
    window = Window.directml(2, 12, 12)
    input = samples.normal(5, 3, 60, 60)
    whole = torch_backend.average_pooling(input, window, False, None)
    for sample in range(5):
        alone = torch_backend.average_pooling(input[sample : sample + 1], window, False, None)
        assert torch.equal(alone, whole[sample : sample + 1])


def test_a_stall_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """E3: what is left is made on fewer threads."""
    window, input = Window.directml(2, 10, 10), samples.normal(8, 64, 60, 60)
    expected = torch_backend.average_pooling(input, window, False, None)
    monkeypatch.setattr(tape, "PATIENCE", 0.0)
    assert torch.equal(torch_backend.average_pooling(input, window, False, None), expected)


@pytest.mark.parametrize(
    ("request_", "input"),
    [
        pytest.param({"window_size": 6, "strides": 5}, samples.normal(1, 2, 30, 30), id="windows overlap"),
        pytest.param({"window_size": 6, "strides": 6, "start_padding": 1}, samples.normal(1, 2, 30, 30), id="padding"),
        pytest.param({"window_size": 6, "strides": 6, "ceil_mode": True}, samples.normal(1, 2, 32, 30), id="overhang"),
        pytest.param({"window_size": 6, "strides": 60, "dilations": 2}, samples.normal(1, 2, 30, 30), id="dilation"),
        pytest.param({"window_size": 4, "strides": 4}, samples.normal(1, 2, 32, 32), id="few taps"),
        pytest.param({"window_size": 6, "strides": 6}, samples.normal(1, 2, 30, 30).half(), id="half precision"),
        pytest.param({"window_size": 6, "strides": 6}, samples.normal(0, 2, 30, 30), id="empty"),
        pytest.param(
            {"window_size": 6, "strides": 6}, samples.channels_last(samples.normal(1, 2, 30, 30)), id="channels last"
        ),
    ],
)
def test_what_is_left_to_others(request_: dict[str, int], input: torch.Tensor) -> None:
    assert tiles.way_of_averages(input, Window.directml(2, **request_), None) is None
