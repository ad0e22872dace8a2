"""Ways that are decided once: for each layout its own, as few decisions as layouts, the oldest forgotten."""

from __future__ import annotations

import pytest
import samples
import torch
from torch import Tensor

from torch_dmlpool.backends import ways
from torch_dmlpool.backends.torch_average_pooling import way_of_averages
from torch_dmlpool.backends.torch_max_pooling import way_of_maxima
from torch_dmlpool.window import Window


def test_every_layout_data_type_and_request_is_decided_once() -> None:
    decisions: list[tuple[object, ...]] = []

    @ways.DecidedOnce
    def scaled(input: Tensor, factor: int) -> ways.Way:
        decisions.append((tuple(input.shape), input.stride(), input.dtype, factor))
        return lambda tensor: tensor * factor

    image = samples.normal(2, 3, 5, 4)
    kinds = [image, image[:1], samples.channels_last(image), image.double(), image[..., ::2]]
    for _ in range(3):
        for kind in kinds:
            for factor in (2, 3):
                assert torch.equal(scaled(kind, factor), kind * factor)
    assert len(decisions) == len(set(decisions)) == 2 * len(kinds)


def test_the_oldest_decision_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "KEPT_WAYS", 2)
    decided: list[int] = []

    @ways.DecidedOnce
    def same(input: Tensor) -> ways.Way:
        decided.append(input.shape[0])
        return lambda tensor: tensor

    for length in (1, 2, 3, 3, 2, 1, 1):
        same(torch.zeros(length))
    assert decided == [1, 2, 3, 1]


def test_a_refusal_is_no_decision() -> None:
    """G5: what leaves no output is refused each time anew."""
    window = Window.directml(2, 9)
    for _ in range(2):
        with pytest.raises(ValueError, match="the window leaves no output"):
            way_of_maxima(torch.zeros(1, 1, 4, 4), window)
        with pytest.raises(ValueError, match="the window leaves no output"):
            way_of_averages(torch.zeros(1, 1, 4, 4), window, False, None)


def test_a_way_holds_for_tensors_with_other_values() -> None:
    """M1 and A1: what was decided for zeros serves numbers, and a window over the whole plane as one of many."""
    for window_size in (2, 3, 6):
        window = Window.directml(2, window_size, 1, 0, 0)
        for layout in (samples.LAYOUTS["contiguous"], samples.channels_last):
            way_of_maxima(layout(torch.zeros(2, 3, 6, 6)), window)
            way_of_averages(layout(torch.zeros(2, 3, 6, 6)), window, False, None)
            image = layout(samples.normal(2, 3, 6, 6))
            pooled = torch.nn.functional.max_pool2d(image, window_size, 1)
            assert torch.equal(way_of_maxima(image, window), pooled)
            pooled = torch.nn.functional.avg_pool2d(image, window_size, 1)
            torch.testing.assert_close(way_of_averages(image, window, False, None), pooled, rtol=1e-6, atol=1e-6)
