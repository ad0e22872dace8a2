"""The pooling calls of real models beside ATen's: ``python -m benchmarks calls``.

rows.txt has every second of the different pooling calls that a forward pass of 104 public models
makes. Each is measured forward and in training, contiguous and channels_last, with the model's own
batch and with eight times as many samples. PyTorch's function and this package's of the same name
take turns with a copy of as many bytes and with our pool of the other family (maxima of the same
windows beside averages). Pools of sets (sets.py) take turns with what people write. A call that
comes out behind is measured a second time, for longer, and the second time counts.

With ``--wheel FOLDER`` an unpacked wheel measures each call after the checkout, in a process of its
own. With ``--ablate`` each implementation of the compiled kernels is switched off in turn, then
all: what it brings on this processor.
"""

import ctypes
import itertools
import multiprocessing
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks import common, sets
from benchmarks.common import (
    ATEN,
    COPY,
    OURS,
    SMALL_SECONDS,
    Calls,
    Named,
    Workload,
    compiler,
    conditions,
    in_turn,
    mean,
    run,
    select,
    sentence,
)
from benchmarks.rows import contestants, problem
from torch_dmlpool.backends import library

BATCHES = (1, 8)
SIBLING, WHEEL = "sibling", "the wheel's library"
BEHIND, OVER = 0.95, 5e-6
"""Measured again: rows below this ratio, and short ones that take more seconds than this over
ATen."""
LONGER = 5
"""How many times as long the second measurement of a row is."""
LARGE = {"forward": 20e-6, "training": 60e-6}
"""Seconds of our calls from which on their bytes matter: shorter ones are not compared with a
copy."""
MUCH = 1.2
"""Ratios of what is beside ours above this are counted."""
IMPLEMENTATIONS = {1: "planes", 2: "rows", 3: "boxes", 5: "turned", 6: "compared", 7: "gathered"}
"""By their number in kernels/cpu/choose.h. The others serve what none of these does."""
LEAST = 10
"""How many rows the table of those that are farthest from a copy has."""


class Row(NamedTuple):
    """A call, and how it is made: ``name`` ends with mode, layout, batch and threads."""

    name: str
    threads: int
    calls: Callable[[], Calls]
    device: str = "cpu"


def rows(words: str, sample: int, threads: Sequence[int], device: str = "cpu") -> list[Row]:
    """In all ways those calls whose names have all the words, and of them one in ``sample``."""
    found = []
    for count, batch, mode, last in itertools.product(threads, BATCHES, LARGE, (False, True)):
        for call in select("models"):
            sizes = (call.sizes[0] * batch, *call.sizes[1:])
            workload = replace(call, sizes=sizes, mode=mode, channels_last=last)
            name = f"{workload.pool} {mode} {workload.layout} batch={batch} threads={count}"
            found.append(Row(name, count, partial(of_models, workload, device), device))
    for count, mode, pool in itertools.product(threads, LARGE, sets.SIZES):
        name = f"{pool} {mode} sets batch=1 threads={count}"
        found.append(Row(name, count, partial(sets.calls, pool, mode, device), device))
    named = [row for row in found if all(word in row.name for word in words.split())]
    columns = itertools.groupby(named, lambda row: way(row.name))
    return [row for _, column in columns for row in list(column)[::sample]]


def way(name: str) -> list[str]:
    """Mode, layout, batch and threads of a row."""
    return name.split()[-4:]


def of_models(workload: Workload, device: str) -> Calls:
    """PyTorch's call and ours, whose results were compared, and what they are measured by."""
    calls = contestants(problem(workload, device), (ATEN, OURS, COPY))[0]
    if max(workload.dilation) == 1:
        names = ("max", "average") if "max" in workload.family else ("average", "max")
        sibling = replace(workload, family=workload.family.replace(*names))
        calls[SIBLING] = contestants(problem(sibling, device), [OURS])[0][OURS]
    return calls


def without(row: Row) -> Calls:
    """Our call as it is, without an implementation, and without all."""
    off, bits = implementations()
    one = row.calls()[OURS]
    masks = {OURS: 0, "without nothing": 0}
    masks |= {f"without {name}": bit for name, bit in bits.items()}
    masks["without all"] = sum(bits.values())
    return {name: lambda mask=mask: (off(mask), one(), off(0)) for name, mask in masks.items()}


def measure(row: Row, seconds: float, wheel=None) -> Named:
    """The medians of a row's calls."""
    torch.set_num_threads(row.threads)
    calls = row.calls()
    for taken in (seconds, LONGER * seconds):
        times = in_turn(calls, taken, row.device)
        found = {who: float(f"{each.median:.4g}") for who, each in times.items()}
        if not is_behind(found):
            break
    if wheel is not None:
        found[WHEEL] = wheel.submit(measure, row, seconds).result()["seconds"][OURS]
    return {"seconds": found}


def is_behind(seconds: dict[str, float]) -> bool:
    ours = seconds[OURS]
    aten = seconds.get(ATEN, ours)
    return aten / ours < BEHIND if aten >= SMALL_SECONDS else ours - aten > OVER


def markdown(results: Named) -> str:
    """A table with a line for each way to make the calls."""
    lines = []
    for how, column in itertools.groupby(results["rows"], lambda row: way(row["name"])):
        rows = list(column)
        both = [(row["seconds"][ATEN], row["seconds"][OURS]) for row in rows]
        large = [aten / ours for aten, ours in both if aten >= SMALL_SECONDS]
        small = [1e6 * (ours - aten) for aten, ours in both if aten < SMALL_SECONDS]
        copies = [ratio for ratio in map(of_copy, rows) if ratio]
        siblings = [
            (row["seconds"][SIBLING] / row["seconds"][OURS])
            ** (1 if "average" in row["name"] else -1)
            for row in rows
            if SIBLING in row["seconds"] and of_copy(row)
        ]
        cells = len(large), common.times(mean(large)) if large else ""
        counts = sum(ratio < BEHIND for ratio in large), len(small)
        over = f"{statistics.fmean(small):.1f} / {max(small):.1f} µs" if small else ""
        bounds = extremes(copies, min), extremes(siblings, max)
        lines.append((*(each.rpartition("=")[2] for each in how), *cells, *counts, over, *bounds))
    head = ["mode", "layout", "batch", "threads", "rows", "mean", f"below {BEHIND}"]
    head += ["rows below 50 µs", "over ATen: mean / most", "of copy: mean / least"]
    head.append("maxima over averages: mean / most")
    known = results["conditions"]
    where = sentence(known)
    if known["sample"] > 1:
        where += f"; one call of the table in {known['sample']}"
    return f"{common.table(head, lines, 2)}\n\n*{where}.*"


def of_copy(row: Named) -> float:
    """A copy's time over ours; 0 where the call is short or no copy was measured."""
    ours, large = row["seconds"][OURS], LARGE[way(row["name"])[0]]
    return row["seconds"].get(COPY, 0.0) / ours if ours >= large else 0.0


def extremes(ratios: Sequence[float], of: Callable[[Iterable[float]], float]) -> str:
    return f"{mean(ratios):.2f} / {of(ratios):.2f}" if ratios else ""


def behind(results: Named) -> str:
    """The rows that are behind."""
    rows = [row for row in results["rows"] if row["seconds"][ATEN] >= SMALL_SECONDS]
    return listed(f"below {BEHIND}", (row for row in rows if is_behind(row["seconds"])))


def least(results: Named) -> str:
    """The rows that are farthest from a copy."""
    rows = [row for row in results["rows"] if of_copy(row)]
    return listed("least of copy", sorted(rows, key=of_copy)[:LEAST])


def listed(title: str, rows: Iterable[Named]) -> str:
    """A table of rows, with the times of others over ours."""
    lines = []
    for row in rows:
        seconds, copy = row["seconds"], of_copy(row)
        ratios = (seconds[who] / seconds[OURS] for who in (ATEN, SIBLING) if who in seconds)
        cells = f"{seconds[OURS] * 1e6:.0f} µs", *(f"{ratio:.2f}x" for ratio in ratios)
        lines.append((row["name"], *cells, f"{copy:.3f}" if copy else ""))
    return common.table([title, "ours", "ATen", SIBLING, "of copy"], lines)


def beside(results: Named) -> str:
    """A table of what others take over what our call takes. "Nothing" is the same call once more:
    what noise makes of a ratio."""
    rows, lines = results["rows"], []
    for name in rows[0]["seconds"].keys() - {ATEN, OURS, COPY, SIBLING, sets.PRODUCT}:
        ratios = [(row["seconds"][name] / row["seconds"][OURS], row) for row in rows]
        large = [ratio for ratio, row in ratios if row["seconds"][OURS] >= SMALL_SECONDS]
        every = [ratio for ratio, _ in ratios]
        means = [f"{mean(each):.3f}" if each else "" for each in (every, large)]
        worst, row = max(ratios, key=lambda each: each[0])
        which = f"{row['seconds'][OURS] * 1e6:.0f} µs, {row['name']}"
        lines.append((name, *means, sum(each > MUCH for each in every), f"{worst:.2f}", which))
    head = ["time over ours", "mean", "of 50 µs and more", f"calls above {MUCH}", "worst", "which"]
    return common.table(head, sorted(lines))


def implementations() -> tuple[Callable[[int], None], dict[str, int]]:
    """The compiled library's function that switches implementations off, and a bit for each."""
    if library.library is None:
        raise SystemExit("--ablate needs the compiled kernels")
    force = library.library.dmlpool_force
    force.argtypes, force.restype = [ctypes.c_int64] * 2, None
    return partial(force, 0), {name: 1 << number for number, name in IMPLEMENTATIONS.items()}


def main(arguments: Sequence[str]) -> int:
    parser = common.parser("calls", __doc__, 0.05, 'such as "training batch=8"')
    parser.add_argument("--sample", type=int, default=1, help="every N-th call: 6 is three minutes")
    parser.add_argument("--threads", type=int, action="append", help="default: 1, then 2")
    parser.add_argument("--ablate", action="store_true", help="switch implementations off")
    parser.add_argument("--wheel", type=Path, help="the folder of an unpacked wheel")
    options = parser.parse_args(arguments)
    threads = options.threads or ([1] if options.ablate else [1, 2])
    asked = rows(options.words, options.sample, threads, options.device)
    known = conditions(options.device, sample=options.sample) | {"threads": None}
    wheel = None
    if options.wheel:
        sys.path.insert(0, str(options.wheel))  # where the new process looks first
        wheel = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        known["compiler"] += f", the wheel's {wheel.submit(compiler).result()}"
    if options.ablate:
        asked = [row._replace(calls=partial(without, row)) for row in asked]
    tasks = [(row.name, partial(measure, row, options.row_seconds, wheel)) for row in asked]
    listed, status = run(options, tasks, known)
    results = {"conditions": known, "rows": listed}
    tables = [markdown, least, behind] * (not options.ablate)
    tables += [beside] * bool(options.wheel or options.ablate)
    for table in tables if listed else ():
        print(f"\n{table(results)}")
    return status
