"""Worst errors of averages beside ATen's: ``python -m benchmarks.numerics`` rewrites the table of
docs/numerics.md.

For float32 and float64 an error is given in roundings of Σ|x| / |divisor|, of which our averages
make 2 + ⌈log₂ taps⌉ at most; for float16 and bfloat16 in roundings of the result, of which the
accumulation in float32 leaves hardly more than one. Half of the inputs are unkind: one large
element among many small ones, which additions one after the other lose.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import torch_dmlpool as dmlpool

WINDOWS = (2, 3, 5, 7, 13, 31, 63)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
TRIALS = 8
PAGE = Path(__file__).parent.parent / "docs" / "numerics.md"
START, END = "<!-- worst-errors -->", "<!-- /worst-errors -->"

Average = Callable[[Tensor, int], Tensor]


def unkind(window: int, dtype: torch.dtype, channels_last: bool, trial: int) -> Tensor:
    """Images whose first column in each window is large and whose other elements are just above
    half its last place."""
    generator = torch.Generator().manual_seed(1000 * window + trial)
    size = window + 12
    small = torch.rand((2, 2, size, size), generator=generator, dtype=torch.float64)
    if trial % 2:
        eps = torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps
        small = small * eps / 4 + eps / 2
        small[..., ::window, ::window] = 1
    image = small.to(dtype)
    return image.contiguous(memory_format=torch.channels_last) if channels_last else image


def ours(image: Tensor, window: int) -> Tensor:
    return dmlpool.average_pooling(image, window)


def atens(image: Tensor, window: int) -> Tensor:
    return torch.nn.functional.avg_pool2d(image, window, 1)


def exact(image: Tensor, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Averages and mean magnitudes, in extended precision."""
    elements = image.double().numpy()
    windows = np.lib.stride_tricks.sliding_window_view(elements, (window, window), (2, 3)).astype(
        np.longdouble
    )
    return windows.sum((-2, -1)) / window**2, np.abs(windows).sum((-2, -1)) / window**2


def worst(
    average: Average, window: int, dtype: torch.dtype, channels_last: bool, trials: int = TRIALS
) -> float:
    """The largest error, in roundings: of the accumulator beside the sum, or of a half-precision
    result beside it."""
    largest = 0.0
    for trial in range(trials):
        image = unkind(window, dtype, channels_last, trial)
        expected, magnitude = exact(image, window)
        error = np.abs(average(image, window).double().numpy() - expected)
        scale = np.abs(expected) if dtype.itemsize == 2 else magnitude
        largest = max(largest, float((error / (scale * (torch.finfo(dtype).eps / 2))).max()))
    return largest


def rows() -> Iterator[str]:
    yield (
        "| window | taps | bound | "
        + " | ".join(f"{_name(dtype)}: ours / ATen" for dtype in DTYPES)
        + " |"
    )
    yield "| --- | ---: | ---: |" + " ---: |" * len(DTYPES)
    for window in WINDOWS:
        cells = []
        for dtype in DTYPES:
            pair = [
                max(worst(average, window, dtype, last) for last in (False, True))
                for average in (ours, atens)
            ]
            cells.append(" / ".join(f"{error:,.1f}" for error in pair))
        bound = 2 + math.ceil(math.log2(window**2))
        yield f"| {window}x{window} | {window**2:,} | {bound} | " + " | ".join(cells) + " |"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    table = "\n".join(rows())
    print(table)
    page = PAGE.read_text()
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n{table}\n{END}{after}")


if __name__ == "__main__":
    main()
