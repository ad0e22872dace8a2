"""The pooling calls of real models beside ATen's: ``python -m benchmarks calls``.

rows.txt has every second of the different pooling calls that a forward pass of 104 public models
makes. Each is measured forward and in training, contiguous and channels_last, with the model's own
batch and with eight times as many samples. PyTorch's function and this package's of the same name
take turns. Pools of sets (sets.py) take turns with what people write. A call that comes out behind
is measured a second time, for longer, and listed if it is behind then too.

With ``--ablate`` the same calls are measured with each mechanism of the compiled kernels switched
off, and with all, beside the kernels as they are: what a mechanism brings on this processor.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import common, sets
from benchmarks.common import SMALL_SECONDS, Disagreement
from benchmarks.rows import ATEN, OURS, contestants, problem
from torch_dmlpool.backends import library
from torch_dmlpool.timing import Call

BATCHES = (1, 8)
MODES = ("forward", "training")
BEHIND, OVER = 0.95, 5e-6
"""Measured again: rows below this ratio, and short ones that take more seconds than this over
ATen."""
LONGER = 5
"""How many times as long the second measurement of a row is."""
MUCH = 1.2
"""Ratios above this are counted by ``--ablate``."""
Measured = tuple["AnyRow", float, float]


class Row(NamedTuple):
    """A call of the table, and how it is made."""

    workload: common.Workload
    batch: int
    threads: int

    @property
    def column(self) -> str:
        way = f"{self.workload.mode} {self.workload.layout}"
        return f"{way} batch={self.batch} threads={self.threads}"

    @property
    def name(self) -> str:
        return f"{self.workload.pool} {self.column}"

    def calls(self, names: Sequence[str]) -> dict[str, Call]:
        return contestants(problem(self.workload, "cpu"), names)[0]


AnyRow = Row | sets.SetRow


def rows(words: str, sample: int, threads: Sequence[int]) -> list[AnyRow]:
    """In all ways those calls whose names have all the words, and of them one in ``sample``."""
    found: list[AnyRow] = []
    calls = common.select("models")
    for count, batch, mode, last in itertools.product(threads, BATCHES, MODES, (False, True)):
        column = []
        for call in calls:
            sizes = (call.sizes[0] * batch, *call.sizes[1:])
            workload = replace(call, sizes=sizes, mode=mode, channels_last=last)
            column.append(Row(workload, batch, count))
        named = [row for row in column if all(word in row.name for word in words.split())]
        found += named[::sample]
    of_sets = [row for row in sets.rows(threads) if all(word in row.name for word in words.split())]
    return [*found, *of_sets[::sample]]


def measure(row: AnyRow, seconds: float) -> Measured:
    """The medians of ATen's calls and of ours, once their results were compared."""
    torch.set_num_threads(row.threads)
    both = row.calls((ATEN, OURS))
    times = common.in_turn(both, seconds)
    return row, times[ATEN].median, times[OURS].median


def is_behind(aten: float, ours: float) -> bool:
    return aten / ours < BEHIND if aten >= SMALL_SECONDS else ours - aten > OVER


def summary(measured: Sequence[Measured], again: Sequence[Measured]) -> dict[str, Any]:
    """A column's geometric mean, and the sums and the rows behind ATen of the calls where ATen
    takes 50 us and more, and how many microseconds ours is over ATen elsewhere.

    Means and sums are of the first measurements; what is behind, or most over ATen, is of the
    second where ``again`` has one.
    """
    last = {id(row): (aten, ours) for row, aten, ours in (*measured, *again)}
    large = [each for each in measured if each[1] >= SMALL_SECONDS]
    small = [each for each in measured if each[1] < SMALL_SECONDS]
    found: dict[str, Any] = {"column": measured[0][0].column, "rows": len(large)}
    found["small"] = len(small)
    if large:
        found["mean"] = common.mean(aten / ours for _, aten, ours in large)
        found["aten"], found["ours"] = (sum(each[place] for each in large) for place in (1, 2))
    pairs = [(last[id(row)], row.name) for row, _, _ in large]
    behind = sorted((aten / ours, name, aten, ours) for (aten, ours), name in pairs)
    found["behind"] = [each for each in behind if each[0] < BEHIND]
    if small:
        found["over"] = statistics.fmean((ours - aten) * 1e6 for _, aten, ours in small)
        over = [(ours - aten) * 1e6 for aten, ours in (last[id(row)] for row, _, _ in small)]
        found["most_over"] = max(over)
    return found


def markdown(results: dict[str, Any]) -> str:
    """A table with a line for each way to make the calls."""
    lines = []
    for each in results["summaries"]:
        mode, layout, batch, threads = each["column"].replace("batch=", "").split()
        way = (mode, layout, batch, threads.partition("=")[2], each["rows"])
        mean, sums, over = "", "", ""
        if each["rows"]:
            mean, sums = common.times(each["mean"]), common.times(each["aten"] / each["ours"])
        if each["small"]:
            over = f"{each['over']:.1f} / {each['most_over']:.1f} µs"
        lines.append((*way, mean, sums, len(each["behind"]), each["small"], over))
    head = ["mode", "layout", "batch", "threads", "rows", "mean", "sums", f"below {BEHIND}"]
    head += ["rows below 50 µs", "over ATen: mean / most"]
    known = results["conditions"]
    where = common.sentence(known)
    if known["sample"] > 1:
        where += f"; one call of the table in {known['sample']}"
    return f"{common.table(head, lines, 2)}\n\n*{where}.*"


def behind(results: dict[str, Any]) -> str:
    """A table of the rows that are behind."""
    lines = [
        (name, f"{aten * 1e6:.0f} µs", f"{ours * 1e6:.0f} µs", f"{ratio:.2f}x")
        for each in results["summaries"]
        for ratio, name, aten, ours in each["behind"]
    ]
    return common.table([f"rows below {BEHIND}", "ATen", "ours", ""], lines)


def mechanisms() -> tuple[Callable[[int], None], dict[str, int]]:
    """The compiled library's function that switches mechanisms off, a bit for each, and the bits by
    name."""
    if library.library is None:
        raise SystemExit("--ablate needs the compiled kernels")
    name = library.library.dmlpool_mechanism
    name.restype = ctypes.c_char_p
    names = itertools.takewhile(bool, map(name, itertools.count()))
    switch = library.library.dmlpool_without
    switch.argtypes, switch.restype = (ctypes.c_uint64,), None
    return switch, {each.decode(): 1 << bit for bit, each in enumerate(names)}


def ablate(asked: Sequence[AnyRow], seconds: float) -> str:
    """A table of what calls take without a mechanism over what they take as they are. "Nothing" is
    the same call once more: what noise makes of a ratio."""
    off, bits = mechanisms()
    masks = {"nothing": 0, **bits, "all": sum(bits.values())}
    ratios: dict[str, list[tuple[float, float, AnyRow]]] = {name: [] for name in masks}
    for row in asked:
        torch.set_num_threads(row.threads)
        one = row.calls([OURS])[OURS]
        calls: dict[str, Call] = {
            name: lambda mask=mask: (off(mask), one())  # noqa: B023 - called before the next row
            for name, mask in (("as it is", 0), *masks.items())
        }
        try:
            times = common.in_turn(calls, seconds)
        finally:
            off(0)
        base = times["as it is"].lower  # other programs only ever add to it
        for name, listed in ratios.items():
            listed.append((times[name].lower / base, base, row))
    lines = []
    for name, listed in ratios.items():
        every = [ratio for ratio, _, _ in listed]
        large = [ratio for ratio, base, _ in listed if base >= SMALL_SECONDS]
        means = [f"{common.mean(each):.3f}" if each else "" for each in (every, large)]
        worst, base, row = max(listed, key=lambda each: each[0])
        much = sum(ratio > MUCH for ratio in every)
        lines.append((name, *means, much, f"{worst:.2f}", f"{base * 1e6:.0f} µs, {row.name}"))
    head = ["without", "mean", "of 50 µs and more", f"calls above {MUCH}", "worst", "which"]
    where = common.sentence(common.conditions(threads=asked[0].threads))
    return f"{common.table(head, lines)}\n\n*{len(asked)} calls; {where}.*\n"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks calls", description=__doc__)
    parser.add_argument("words", nargs="?", default="", help='such as "training batch=8"')
    parser.add_argument("--sample", type=int, default=1, help="every N-th call: 6 is three minutes")
    parser.add_argument("--threads", type=int, action="append", help="default: 1, then 2")
    parser.add_argument("--row-seconds", type=float, default=0.05)
    parser.add_argument("--ablate", action="store_true", help="switch mechanisms off")
    parser.add_argument("--out", type=Path, help="written when all are measured")
    options = parser.parse_args(arguments)
    threads = options.threads or ([1] if options.ablate else [1, 2])
    asked = rows(options.words, options.sample, threads)
    if not asked:
        parser.error(f"no call's name has all of these words: {options.words}")
    if options.ablate:
        print(ablate(asked, options.row_seconds))
        return 0
    wrong, summaries, seconds = 0, [], options.row_seconds
    for name, column in itertools.groupby(asked, lambda row: row.column):
        measured: list[Measured] = []
        for row in column:
            try:
                measured.append(measure(row, seconds))
            except Disagreement as reason:
                wrong = 1
                print(f"WRONG RESULT: {reason}", flush=True)
        again = [measure(row, LONGER * seconds) for row, *both in measured if is_behind(*both)]
        summaries += [summary(measured, again)] if measured else []
        print(f"{name} is measured", flush=True)
    known = common.conditions(sample=options.sample, row_seconds=seconds)
    results = {"conditions": {**known, "threads": None}, "summaries": summaries}
    print(f"\n{markdown(results)}\n\n{behind(results)}")
    if options.out:
        common.save(options.out, results)
    return wrong
