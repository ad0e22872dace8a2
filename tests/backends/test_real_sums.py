"""Float32 sums of 8-bit integers: as exact as integers, in every layout and in blocks of any size (Q1, Q6)."""

from __future__ import annotations

from typing import Any

import oracle
import pytest
import quantities
import samples
import torch

import torch_dmlpool as dmlpool
from torch_dmlpool.backends import real_sums, torch_backend
from torch_dmlpool.window import Window

ROWS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((57,), {"window_size": 7, "strides": 7}),
    ((60,), {"window_size": 9, "strides": 11}),
    ((41,), {"window_size": 41}),
    ((21, 23), {"window_size": (2, 3), "strides": (2, 3)}),
    ((15, 29), {"window_size": (7, 9), "strides": (8, 10)}),
    ((12, 5), {"window_size": (1, 5), "strides": (1, 5)}),
    ((12, 5), {"window_size": (4, 5), "strides": (4, 1)}),
    ((7, 7), {"window_size": 7}),
    ((9, 8, 13), {"window_size": (3, 2, 5), "strides": (3, 2, 6)}),
    ((9, 4, 5), {"window_size": (3, 4, 5), "strides": (3, 1, 1)}),
    ((3, 4, 5), {"window_size": (3, 4, 5)}),
]
VECTORS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((11, 13), {"window_size": 2, "strides": 2}),
    ((11, 13), {"window_size": 3, "strides": (2, 1), "start_padding": 1, "end_padding": 1}),
    (
        (11, 12),
        {
            "window_size": (2, 5),
            "strides": (2, 5),
            "start_padding": (1, 2),
            "end_padding": (1, 2),
            "ceil_mode": True,
        },
    ),
    ((7, 7), {"window_size": 7}),
]


@pytest.mark.parametrize("elements", [real_sums.ELEMENTS_AT_ONCE, 1000, 1], ids=["at once", "blocks", "single planes"])
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
def test_equal_to_sums_of_integers(layout: str, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both types, parameters for all and per channel, many results and few."""
    monkeypatch.setattr(real_sums, "ELEMENTS_AT_ONCE", elements)
    for number, (sizes, arguments) in enumerate(ROWS if layout == "contiguous" else VECTORS):
        types = quantities.TYPES[number % 2 :] + quantities.TYPES[: number % 2]
        window = Window.directml(len(sizes), **{"strides": 1, **arguments})
        input = samples.LAYOUTS[layout](quantities.integers(3, 5, *sizes, dtype=types[0]))
        assert real_sums.serves(input, window)
        for form in ("number", "per channel"):
            parameters = quantities.drawn(number, 5, tuple(types), ties=number % 3 == 0).given([form] * 4, types, 0)
            parameters = [each.flatten() if isinstance(each, torch.Tensor) else each for each in parameters]
            for include_padding in (False, True):
                rest = (*parameters, window, include_padding, types[1])
                found = torch_backend.quantized_linear_average_pooling(input, *rest)
                with monkeypatch.context() as patch:
                    patch.setattr(real_sums, "serves", lambda *_: False)
                    expected = torch_backend.quantized_linear_average_pooling(input, *rest)
                samples.assert_same(found, expected)
                assert found.stride() == expected.stride()


def test_requantized_by_float32() -> None:
    """So many results that a multiplier is looked for."""
    for layout in ("contiguous", "channels last"):
        input = samples.LAYOUTS[layout](quantities.integers(2, 300, 28, 28, dtype=torch.uint8))
        found = dmlpool.quantized_linear_average_pooling(input, 0.1, 7, 0.2, 3, 3, 3)
        sums = input.int().unfold(2, 3, 3).unfold(3, 3, 3).sum((-2, -1)) - 9 * 7
        scales = quantities.float32(0.1), quantities.float32(0.2)
        table = {
            each: oracle.requantized(each, 9, *scales, 3, quantities.numpy_type(torch.uint8))
            for each in range(-63, 2233)
        }
        assert found.flatten().tolist() == [table[each] for each in sums.flatten().tolist()]


@pytest.mark.parametrize("dtype", quantities.TYPES, ids=str)
def test_the_largest_sums(dtype: torch.dtype) -> None:
    """Q6: the last number of taps whose sums and differences float32 holds; one more is left to integers."""
    ends, taps = torch.iinfo(dtype), real_sums.MOST_TAPS
    input = torch.full((1, 2, taps + 1), ends.max, dtype=dtype)
    input[0, 1] = ends.min
    input[..., 0] = ends.min + 1
    assert real_sums.serves(input, Window.directml(1, taps, taps))
    assert not real_sums.serves(input, Window.directml(1, taps + 1, taps + 1))
    for window in (taps, taps + 1):
        for zero in (ends.min, ends.max):
            found = dmlpool.quantized_linear_average_pooling(
                input, 1.0, zero, 2.0, 0, window, window, output_dtype=torch.int8
            )
            for channel in range(2):
                total = sum(input[0, channel, :window].tolist()) - window * zero
                assert found[0, channel, 0] == oracle.requantized(
                    total, window, 1.0, 2.0, 0, quantities.numpy_type(torch.int8)
                )


@pytest.mark.parametrize(
    "arguments",
    [
        {"window_size": 3, "strides": 2},
        {"window_size": 3, "strides": 3, "dilations": 2},
        {"window_size": 4, "strides": 4, "start_padding": 1},
        {"window_size": 5, "strides": 5, "ceil_mode": True},
        {"window_size": 2, "strides": 2},
    ],
    ids=["overlap", "dilation", "padding", "overhang", "pairs"],
)
def test_what_is_left_to_integers(arguments: dict[str, Any]) -> None:
    input = quantities.integers(1, 2, 12, 12, dtype=torch.uint8)
    assert not real_sums.serves(input, Window.directml(2, **arguments))
    assert not real_sums.serves(input[..., ::2], Window.directml(2, 3, 3))
