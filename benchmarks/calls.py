"""The pooling calls of real models beside ATen's: ``python -m benchmarks --calls``.

calls.json has every second of the different pooling calls that a forward pass of 104 public models
makes. Each is measured forward and in training, contiguous and channels_last, with the model's own
batch and with eight times as many samples. PyTorch's function and this package's of the same name
are called in turn. A call that comes out behind is measured a second time, for longer, and listed
if it is behind then too. The file that is written has what ``python -m benchmarks.report`` shows.
"""

from __future__ import annotations

import datetime
import gc
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from benchmarks import machine
from benchmarks.harness import (
    LEAST_ROUNDS,
    MOST_CALLS,
    ROUND_SECONDS,
    Disagreement,
    cpu_clock,
)
from benchmarks.results import SMALL_SECONDS, geometric_mean

TABLE = Path(__file__).with_name("calls.json")
BATCHES = (1, 8)
LAYOUTS = ("contiguous", "channels_last")
MODES = ("forward", "training")
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
BEHIND = 0.95
"""Rows in which ours reaches less of ATen's speed are listed."""
OVER = 5e-6
"""Shorter rows in which ours takes more seconds than this over ATen are measured again too."""
INPUTS = 2
ROUNDS = 15
LONGER = 5
"""How many times as long the second measurement of a row is."""
PYTORCH_S, OURS = torch.nn.functional, dmlpool.nn.functional
NO_ARGUMENTS = ("operator", "shape", "dtype", "calls", "models")


@dataclass(frozen=True)
class Row:
    """A call of the table, and how it is made."""

    call: dict[str, Any]
    mode: str
    layout: str
    batch: int
    threads: int

    @property
    def shape(self) -> tuple[int, ...]:
        samples, *rest = self.call["shape"]
        return (samples * self.batch, *rest)

    @property
    def arguments(self) -> dict[str, Any]:
        return {name: value for name, value in self.call.items() if name not in NO_ARGUMENTS}

    @property
    def column(self) -> str:
        return f"{self.mode} {self.layout} batch={self.batch} threads={self.threads}"

    @property
    def name(self) -> str:
        """What ``--calls`` looks for words in."""
        call = self.call
        if "output_size" in call:
            how = "to " + "x".join(map(str, call["output_size"]))
        else:
            size, stride = ("x".join(map(str, call[key])) for key in ("kernel_size", "stride"))
            how = f"window {size} stride {stride}"
            how += f" padding {call['padding'][0]}" * any(call["padding"])
            how += " ceil_mode" * call["ceil_mode"]
        return f"{call['operator']} {'x'.join(map(str, self.shape))} {how} {self.column}"

    def contestant(self, functions: Any) -> Callable[[Tensor, Tensor], Any]:
        """The call, which takes an input and the gradient that arrives, and its result or, in
        training, result and gradient."""
        pool, arguments = getattr(functions, self.call["operator"]), self.arguments

        def forward(input: Tensor, _: Tensor) -> Tensor:
            with torch.no_grad():
                return pool(input, **arguments)

        def training(input: Tensor, arriving: Tensor) -> tuple[Tensor, Tensor]:
            output = pool(input, **arguments)
            (gradient,) = torch.autograd.grad(output, input, arriving)
            return output, gradient

        return forward if self.mode == "forward" else training

    def tensors(self) -> list[tuple[Tensor, Tensor]]:
        """Inputs in the row's layout, each with a gradient in the layout of the results."""
        generator = torch.Generator().manual_seed(0)
        made = []
        for _ in range(INPUTS):
            input = torch.randn(self.shape, generator=generator)
            if self.layout == "channels_last":
                input = input.contiguous(memory_format=FORMATS[input.dim()])
            output = getattr(PYTORCH_S, self.call["operator"])(input, **self.arguments)
            made.append((input.requires_grad_(), torch.randn_like(output)))
        return made


def rows(words: str, sample: int, threads: int | None) -> list[Row]:
    """In all ways those calls whose names have all the words, and of them one in ``sample``."""
    calls = json.loads(TABLE.read_text(encoding="utf-8"))["calls"]
    ways = itertools.product((1, 2) if threads is None else (threads,), BATCHES, MODES, LAYOUTS)
    columns = []
    for count, batch, mode, layout in ways:
        column = [Row(call, mode, layout, batch, count) for call in calls]
        found = [row for row in column if all(word in row.name for word in words.split())]
        columns.append(found[::sample])
    return list(itertools.chain(*columns))


def measure(row: Row, seconds: float, rounds: int = ROUNDS) -> tuple[float, float]:
    """The medians of ATen's calls and of ours, in seconds, once their results were compared."""
    torch.set_num_threads(row.threads)
    tensors = row.tensors()
    both = [row.contestant(functions) for functions in (PYTORCH_S, OURS)]
    for expected, got in zip(*(_results(call(*tensors[0])) for call in both), strict=True):
        if not torch.allclose(expected, got, rtol=1e-4, atol=1e-5):
            raise Disagreement(f"{row.name}: results differ")
    estimate = min(cpu_clock(lambda: both[0](*tensors[-1]), 1) for _ in range(2))
    together = max(1, min(MOST_CALLS, math.ceil(ROUND_SECONDS / estimate)))
    samples: list[list[float]] = [[], []]
    gc.collect()
    gc.disable()
    try:
        end = time.perf_counter() + seconds
        for number in range(rounds):
            given = tensors[number % INPUTS]
            # who is called first takes turns too
            for which in (0, 1) if number % 4 < 2 else (1, 0):
                samples[which].append(cpu_clock(lambda: both[which](*given), together))  # noqa: B023
            if number + 1 >= LEAST_ROUNDS and time.perf_counter() > end:
                break
    finally:
        gc.enable()
    aten, ours = map(statistics.median, samples)
    return aten, ours


def measure_again(
    measured: Sequence[tuple[Row, float, float]], seconds: float
) -> dict[str, tuple[float, float]]:
    """The second measurement of each row that is behind, by the row's text. A row may be behind
    because other programs disturbed it.
    """
    return {
        repr(row): measure(row, LONGER * seconds, LONGER * ROUNDS)
        for row, aten, ours in measured
        if (aten / ours < BEHIND if aten >= SMALL_SECONDS else ours - aten > OVER)
    }


def _results(returned: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return returned if isinstance(returned, tuple) else (returned,)


def summaries(
    measured: Sequence[tuple[Row, float, float]], again: Mapping[str, tuple[float, float]]
) -> list[dict[str, Any]]:
    """A summary of each column. It has the geometric mean, the sums and the rows behind ATen of the
    calls where ATen takes 50 us and more, and how many microseconds ours is over ATen elsewhere.

    Means and sums are of the first measurements. Each row behind, and what is most over ATen, is of
    the second where ``again`` has one.
    """
    found = []
    for column in dict.fromkeys(row.column for row, _, _ in measured):
        times = [(row, aten, ours) for row, aten, ours in measured if row.column == column]
        large = [each for each in times if each[1] >= SMALL_SECONDS]
        over = [(ours - aten) * 1e6 for _, aten, ours in times if aten < SMALL_SECONDS]
        last = [
            (first, row.name, *again.get(repr(row), (first, ours))) for row, first, ours in times
        ]
        behind = sorted(
            (aten / ours, name, aten, ours)
            for first, name, aten, ours in last
            if first >= SMALL_SECONDS
        )
        summary: dict[str, Any] = {"column": column, "rows": len(large), "small": len(over)}
        if large:
            summary["mean"] = geometric_mean(aten / ours for _, aten, ours in large)
            summary["aten"] = sum(aten for _, aten, _ in large)
            summary["ours"] = sum(ours for _, _, ours in large)
        summary["behind"] = [each for each in behind if each[0] < BEHIND]
        if over:
            short = [(ours - aten) * 1e6 for first, _, aten, ours in last if first < SMALL_SECONDS]
            summary["over"], summary["most_over"] = statistics.fmean(over), max(short)
        found.append(summary)
    return found


def lines(summary: dict[str, Any]) -> Iterator[str]:
    """What the command prints about a column."""
    yield f"{summary['column']}:"
    if summary["rows"]:
        aten, ours = summary["aten"] * 1e3, summary["ours"] * 1e3
        yield (
            f"  {summary['rows']} rows of 50 us and more: {summary['mean']:.2f}x in the geometric "
            f"mean, {aten / ours:.2f}x over all calls together ({aten:.1f} ms and {ours:.1f} ms), "
            f"{len(summary['behind'])} below {BEHIND}"
        )
    for ratio, name, aten, ours in summary["behind"]:
        yield f"    {ratio:.2f} {aten * 1e6:8.1f} us {ours * 1e6:8.1f} us {name}"
    if summary["small"]:
        yield (
            f"  {summary['small']} shorter rows: {summary['over']:.1f} us over ATen in the mean, "
            f"{summary['most_over']:.1f} us at most"
        )


def markdown(results: dict[str, Any]) -> str:
    """A table with a line for each way to make the calls, where and when, and the rows that are
    behind."""
    known, cells = results["conditions"], []
    for each in results["summaries"]:
        sums = f"{each['aten'] / each['ours']:.2f}x" if each["rows"] else "-"
        mean = f"{each['mean']:.2f}x" if each["rows"] else "-"
        over = f"{each['over']:.1f} / {each['most_over']:.1f} µs" if each["small"] else "-"
        mode, layout, batch, threads = each["column"].split()
        way = (mode, layout, batch.partition("=")[2], threads.partition("=")[2])
        cells.append((*way, each["rows"], mean, sums, len(each["behind"]), each["small"], over))
    titles = ["mode", "layout", "batch", "threads", "rows", "mean", "sums"]
    titles += [f"below {BEHIND}", "rows below 50 µs", "over ATen: mean / most"]
    table = [titles, ["---"] * 2 + ["---:"] * (len(titles) - 2), *cells]
    place = f"{known['machine']['processor']}, {known['machine']['cpu_capability']}"
    conditions = f"{place}; PyTorch {known['versions']['torch']}; {known['date'][:10]}"
    if known["sample"] > 1:
        conditions += f"; one call of the table in {known['sample']}"
    listed = [
        f"| {name} | {aten * 1e6:.0f} µs | {ours * 1e6:.0f} µs | {ratio:.2f}x |"
        for each in results["summaries"]
        for ratio, name, aten, ours in each["behind"]
    ]
    parts = [
        "\n".join(f"| {' | '.join(map(str, line))} |" for line in table),
        f"*{conditions}.*",
    ]
    if listed:
        head = [f"| rows below {BEHIND} | ATen | ours | |", "|---|---:|---:|---:|"]
        parts.append("\n".join([*head, *listed]))
    return "\n\n".join(parts) + "\n"


def run(words: str, sample: int, threads: int | None, seconds: float, path: Path | None) -> int:
    """Measure, print a summary of each column as soon as it is known, and write JSON where a path
    is given."""
    measured: list[tuple[Row, float, float]] = []
    again: dict[str, tuple[float, float]] = {}
    before = torch.get_num_threads()
    asked = rows(words, sample, threads)
    if not asked:
        print(f"No call's name has all of these words: {words}")
        return 2
    wrong = []
    for number, row in enumerate(asked):
        try:
            measured.append((row, *measure(row, seconds)))
        except Disagreement as reason:
            wrong.append(str(reason))
        if number + 1 == len(asked) or asked[number + 1].column != row.column:
            column = [each for each in measured if each[0].column == row.column]
            try:
                again |= measure_again(column, seconds)
            except Disagreement as reason:
                wrong.append(str(reason))
            for summary in summaries(column, again):
                print("\n".join(lines(summary)), flush=True)
    torch.set_num_threads(before)
    for reason in wrong:
        print(f"WRONG RESULT: {reason}")
    if path is not None:
        conditions = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": machine.describe(torch.device("cpu")),
            "versions": machine.versions(),
            "sample": sample,
            "seconds": seconds,
        }
        results = {"conditions": conditions, "summaries": summaries(measured, again)}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0
