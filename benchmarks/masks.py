"""Pooling under a mask beside the same call without one: ``python -m benchmarks --masks``.

Averages and maxima of 3/2 and 3/1, with a mask for each sample and with one for each element, half
of it True; forward alone, and forward and backward. Both calls take turns, in eager mode, on one
thread, once the masked results were compared with what PyTorch's own operations make.
"""

from __future__ import annotations

import datetime
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

import torch_dmlpool as dmlpool
from benchmarks import machine
from benchmarks.harness import LEAST_ROUNDS, MOST_CALLS, ROUND_SECONDS, Disagreement

SHAPES = ((8, 64, 112, 112), (1, 64, 56, 56))
MASKS = ("each sample", "each element")
MODES = ("forward", "training")
POOLS = {"average": dmlpool.average_pooling, "maximum": dmlpool.max_pooling}
STRIDES = (2, 1)
WINDOW = 3


class Row(NamedTuple):
    """A pool, what it pools and what its mask is for."""

    shape: tuple[int, ...]
    mask: str
    mode: str
    pool: str
    stride: int

    @property
    def name(self) -> str:
        size = "x".join(map(str, self.shape))
        return f"{self.pool} {WINDOW}/{self.stride} {size} {self.mask} {self.mode}"

    def tensors(self) -> tuple[Tensor, Tensor]:
        """The input and its mask."""
        samples, channels, *sizes = self.shape
        torch.manual_seed(0)
        input = torch.randn(self.shape).requires_grad_(self.mode == "training")
        of_channels = channels if self.mask == "each element" else 1
        return input, torch.rand(samples, of_channels, *sizes) < 0.5

    def called(self, input: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
        """The result, and the gradient in training."""
        output = POOLS[self.pool](input, WINDOW, self.stride, mask=mask)
        if self.mode == "forward":
            return (output,)
        return output, *torch.autograd.grad(output, input, torch.ones_like(output))

    def expected(self, input: Tensor, mask: Tensor) -> Tensor:
        """The result by PyTorch's own operations."""
        if self.pool == "maximum":
            filled = torch.where(mask, input, -math.inf)
            return functional.max_pool2d(filled, WINDOW, self.stride)
        filled, counted = torch.where(mask, input, 0), mask.to(input.dtype)
        sums, counts = (
            functional.avg_pool2d(each, WINDOW, self.stride, divisor_override=1)
            for each in (filled, counted)
        )
        return sums / counts.clamp(min=1)


def rows(named: str) -> Iterator[Row]:
    """Those whose name has the text ``named``."""
    for row in itertools.starmap(Row, itertools.product(SHAPES, MASKS, MODES, POOLS, STRIDES)):
        if named in row.name:
            yield row


def measure(row: Row, seconds: float) -> dict[str, Any]:
    """Milliseconds without the mask and under it, medians of calls in turn."""
    input, mask = row.tensors()
    if not torch.allclose(
        row.called(input, mask)[0], row.expected(input, mask), rtol=1e-5, atol=1e-5
    ):
        raise Disagreement(f"{row.name}: the masked result is not that of PyTorch's operations")
    both: dict[str, Callable[[], Any]] = {
        "plain": lambda: row.called(input, None),
        "masked": lambda: row.called(input, mask),
    }
    estimate = min(_seconds(both["plain"], 1) for _ in range(3))
    together = max(1, min(MOST_CALLS, math.ceil(ROUND_SECONDS / estimate)))
    times: dict[str, list[float]] = {key: [] for key in both}
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times["plain"]) < LEAST_ROUNDS:
        # Whoever is called second finds a warmer cache: they take turns at that too.
        for key in sorted(both, reverse=len(times["plain"]) % 2 == 1):
            times[key].append(_seconds(both[key], together))
    medians = {key: statistics.median(taken) * 1e3 for key, taken in times.items()}
    return {**row._asdict(), **medians, "ratio": medians["masked"] / medians["plain"]}


def _seconds(call: Callable[[], Any], count: int) -> float:
    """Processor time of this thread for a call, the mean of ``count`` calls."""
    start = time.thread_time()
    for _ in range(count):
        call()
    return (time.thread_time() - start) / count


def markdown(results: dict[str, Any]) -> str:
    """How many times as long masked calls take, a line for each input, mask and mode; where and
    when.
    """
    found = {tuple(row[key] for key in Row._fields[1:]): {} for row in results["rows"]}
    for row in results["rows"]:
        found[tuple(row[key] for key in Row._fields[1:])][tuple(row["shape"])] = row["ratio"]
    shapes = list(dict.fromkeys(tuple(row["shape"]) for row in results["rows"]))
    columns = list(dict.fromkeys((row["pool"], row["stride"]) for row in results["rows"]))
    titles = [f"{pool} {WINDOW}/{stride}" for pool, stride in columns]
    lines = [f"| input | mask | | {' | '.join(titles)} |", "|---|---|---|" + "---:|" * len(titles)]
    ways = dict.fromkeys((row["mask"], row["mode"]) for row in results["rows"])
    for shape, way in itertools.product(shapes, ways):
        ratios = [found.get((*way, *column), {}).get(shape) for column in columns]
        cells = ["-" if ratio is None else f"{ratio:.2f}x" for ratio in ratios]
        lines.append(f"| {'x'.join(map(str, shape))} | {' | '.join((*way, *cells))} |")
    known = results["conditions"]
    place = f"{known['machine']['processor']}, {known['machine']['cpu_capability']}"
    conditions = f"PyTorch {known['versions']['torch']}; {known['date'][:10]}"
    return "\n".join([*lines, "", f"float32, eager mode. {place}; one thread; {conditions}."])


def run(named: str, seconds: float, path: Path | None) -> int:
    """Measure the rows whose name has ``named``, print each as it comes and all as a table, and
    write JSON where a path is given.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    measured, wrong = [], []
    for row in rows(named):
        try:
            measured.append(measure(row, seconds))
        except Disagreement as reason:
            wrong.append(str(reason))
            continue
        plain, masked, ratio = (measured[-1][key] for key in ("plain", "masked", "ratio"))
        print(f"{row.name:58} {plain:8.3f} ms {masked:8.3f} ms {ratio:5.2f}x", flush=True)
    torch.set_num_threads(before)
    conditions = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(torch.device("cpu")),
        "threads": 1,
        "versions": machine.versions(),
        "seconds": seconds,
    }
    results = {"conditions": conditions, "rows": measured}
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if measured:
        print(markdown(results))
    for reason in wrong:
        print(f"WRONG RESULT: {reason}")
    return 1 if wrong else 0 if measured else 2
