"""Launches as they are recorded in graphs compute what they do otherwise; here they run at once, in the interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import quantities
import samples
import torch
from torch import Tensor

from torch_dmlpool.backends import triton_backend, triton_launches
from torch_dmlpool.window import Window

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")

WINDOW = Window.directml(2, 3, 2, 1, 1)
LARGE = Window.directml(2, (9, 11), 1, 4, 5)


def quantized(input: Tensor, window: Window) -> Tensor:
    integers = quantities.integers(*input.shape, dtype=torch.uint8)
    parameters = (0.5, 3, 0.25, 2)
    return triton_backend.quantized_linear_average_pooling(integers, *parameters, window, False, torch.uint8)


CALLS: dict[str, Callable[..., Any]] = {
    "average": lambda input, window: triton_backend.average_pooling(input, window, False, None),
    "max": triton_backend.max_pooling,
    "max with taps": triton_backend.max_pooling_with_taps,
    "max with indices": lambda input, window: triton_backend.max_pooling_with_indices(
        input, window, torch.int64, False
    ),
    "quantized": quantized,
    "adaptive": lambda input, _: triton_backend.adaptive_average_pooling(input, (3, 5)),
}


@pytest.mark.parametrize(
    "window",
    [pytest.param(WINDOW, id="small window"), pytest.param(LARGE, id="large window", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("name", CALLS)
def test_recorded(name: str, window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is named twice among what a launch gets, and results are the same."""
    input = samples.normal(1, 2, 14, 16)
    expected = CALLS[name](input, window)
    launched = []

    def wrapped(kernel: Any) -> Any:
        class Launch:
            def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
                def run(*arguments: Any, **constants: Any) -> None:
                    launched.append([each.data_ptr() for each in arguments if isinstance(each, Tensor)])
                    kernel[grid](*arguments, **constants)

                return run

        return Launch()

    monkeypatch.setattr(torch.library, "wrap_triton", wrapped)
    with triton_launches.recorded():
        found = CALLS[name](input, window)
    assert launched
    # What is only read may be named twice; the last operands are written.
    assert all(pointers[-1] not in pointers[:-1] for pointers in launched if name != "quantized")
    for result, wanted in zip(
        *(each if isinstance(each, tuple) else (each,) for each in (found, expected)), strict=True
    ):
        samples.assert_same(result, wanted)
