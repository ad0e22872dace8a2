"""Measure the operators beside their peers: ``python -m benchmarks --help``."""

from __future__ import annotations

import argparse
import datetime
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

# JAX takes three quarters of a GPU's memory when it starts; read when it is imported.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# PyTorch's profiler, which counts allocations, says on stderr when it starts and stops; read when
# PyTorch is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks import calls, goals, machine, masks, models, scaling, tables
from benchmarks.harness import Disagreement, Settings, measure
from benchmarks.load import cores
from benchmarks.peers import present
from benchmarks.results import Results, RowResult
from benchmarks.workloads import GROUPS, Workload, select

RESULTS = Path(__file__).parent / "results"


def parser() -> argparse.ArgumentParser:
    groups = "; ".join(f"{name}: {meaning}" for name, meaning in GROUPS.items())
    parsed = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure the operators beside their peers.",
        epilog=f"Groups: {groups}.",
    )
    chosen = parsed.add_mutually_exclusive_group()
    chosen.add_argument(
        "--rows",
        help="comma-separated groups, or text in a row's name "
        "(default: all; --quick: core, overhead)",
    )
    chosen.add_argument(
        "--scaling",
        action="store_true",
        help="curves instead: cost against the window, the size, the threads",
    )
    chosen.add_argument(
        "--models",
        nargs="?",
        const="",
        metavar="TEXT",
        help="whole networks of torchvision and timm instead, torch.nn's layers against this "
        "package's: all, or those named TEXT",
    )
    chosen.add_argument(
        "--masks",
        nargs="?",
        const="",
        metavar="TEXT",
        help="pooling under a mask instead, beside the same call without one: all rows, or those "
        "named TEXT",
    )
    chosen.add_argument(
        "--calls",
        nargs="?",
        const="",
        metavar="WORDS",
        help="the pooling calls of real models instead, torch.nn.functional's functions against "
        'this package\'s: all, or those whose names have all WORDS ("training batch=8")',
    )
    parsed.add_argument(
        "--sample",
        type=int,
        default=1,
        help="every N-th call of --calls (default: 1, a quarter of an hour; 6: three minutes)",
    )
    parsed.add_argument(
        "--rounds", type=int, help="calls of every contestant per row (default: 30; --quick: 3)"
    )
    parsed.add_argument(
        "--row-seconds",
        type=float,
        help="no new round after this long (default: 1.5; --scaling: 0.5; --quick: 0.2; "
        "--calls: 0.05)",
    )
    parsed.add_argument(
        "--threads", type=int, help="threads of every contestant that lets itself be told"
    )
    parsed.add_argument(
        "--load", action="store_true", help="measure beside one busy process per core"
    )
    compilers = parsed.add_mutually_exclusive_group()
    compilers.add_argument(
        "--compile",
        action="store_true",
        help="torch.compile of ATen's operators too: seconds per row",
    )
    compilers.add_argument(
        "--without-compilers", action="store_true", help="leave out who compiles each row: JAX too"
    )
    parsed.add_argument(
        "--deadline",
        type=float,
        help="begin no row after this many seconds; the rows measured are written",
    )
    parsed.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parsed.add_argument(
        "--out", type=Path, help="JSON file to write (default: a dated one in benchmarks/results)"
    )
    parsed.add_argument(
        "--quick",
        action="store_true",
        help="a glance in less than a minute: batches of one, marked as such",
    )
    parsed.add_argument(
        "--list", action="store_true", help="print the rows that --rows chooses and stop"
    )
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = parser()
    options = parsed.parse_args(arguments)
    if options.models is not None:
        seconds = 1.0 if options.row_seconds is None else options.row_seconds
        return models.run(options.models, seconds, options.out or RESULTS / "models.json")
    if options.masks is not None:
        seconds = 1.0 if options.row_seconds is None else options.row_seconds
        return masks.run(options.masks, seconds, options.out)
    if options.calls is not None:
        if options.sample < 1 or (options.threads or 1) < 1:
            parsed.error("--sample and --threads must be at least 1")
        is_whole = not options.calls and options.sample == 1 and not options.threads
        path = options.out or (RESULTS / "calls.json" if is_whole else None)
        seconds = 0.05 if options.row_seconds is None else options.row_seconds
        return calls.run(options.calls, options.sample, options.threads, seconds, path)
    try:
        rows = select(options.rows or ("core,overhead" if options.quick else "all"))
    except ValueError as reason:
        parsed.error(str(reason))
    console = Console(width=None if sys.stdout.isatty() else 220)
    if options.list:
        for row in rows:
            console.print(
                f"{row.name}  [dim]{row.origin or ', '.join(row.groups)}[/dim]", highlight=False
            )
        return 0
    settings = Settings(
        device=torch.device(options.device),
        rounds=options.rounds if options.rounds is not None else 3 if options.quick else 30,
        row_seconds=options.row_seconds
        if options.row_seconds is not None
        else default_seconds(options),
        busy_processes=cores() if options.load else 0,
        seed=int.from_bytes(os.urandom(4)),
    )
    if settings.rounds < 1 or not 0 <= settings.row_seconds <= 60 or (options.threads or 1) < 1:
        parsed.error("--rounds and --threads must be at least 1, --row-seconds between 0 and 60")
    if options.device == "cuda" and not torch.cuda.is_available():
        parsed.error("PyTorch finds no CUDA device here")
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.quick:
        rows = list(dict.fromkeys(map(Workload.of_one, rows)))
    return run(rows, settings, options, console)


def default_seconds(options: argparse.Namespace) -> float:
    """Seconds for a row: enough for its medians, and some minutes for all rows together."""
    return 0.2 if options.quick else 0.5 if options.scaling else 1.5


def run(
    rows: list[Workload], settings: Settings, options: argparse.Namespace, console: Console
) -> int:
    """Measure the rows, or the curves if these are asked for, show and save; 1 if a result of ours
    was wrong."""
    peers, absent = present(
        settings.device.type, options.compile, options.quick, not options.without_compilers
    )
    conditions: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(settings.device),
        "device": settings.device.type,
        "threads": torch.get_num_threads(),
        "busy_processes": settings.busy_processes,
        "load_average": {"start": machine.load_average()},
        "rounds": settings.rounds,
        "row_seconds": settings.row_seconds,
        "seed": settings.seed,
        "scaling": options.scaling,
        "quick": options.quick,
        "versions": machine.versions(),
        "peers": {peer.name: version for peer, version in peers.items()},
        "absent": absent,
    }
    contestants = list(peers)
    if options.scaling:
        points = list(scaling.points(settings.device.type, options.quick))
        along, wrong = measure_all(
            [(point.name, partial(point.measure, contestants, settings)) for point in points],
            options.deadline,
        )
        measured = [
            (point, row) for point, row in zip(points, along, strict=True) if row is not None
        ]
        results = Results(conditions, (), scaling.curves(measured))
    else:
        across, wrong = measure_all(
            [(row.name, partial(measure, row, contestants, settings)) for row in rows],
            options.deadline,
        )
        results = Results(conditions, tuple(row for row in across if row is not None))
    conditions["load_average"]["end"] = machine.load_average()
    if results.rows or results.curves:
        show(results, console)
        path = options.out or RESULTS / file_name(conditions)
        results.save(path)
        console.print(f"Written: {path}", highlight=False)
    for line in wrong:
        console.print(f"WRONG RESULT: {line}", style="bold red", highlight=False)
    return 1 if wrong else 0


def measure_all(
    tasks: list[tuple[str, Callable[[], RowResult]]], deadline: float | None
) -> tuple[list[RowResult | None], list[str]]:
    """Every row behind a progress bar; a wrong result ends its row, which is None then, not the
    run.

    None is begun after ``deadline`` seconds: these rows are None, too.
    """
    measured: list[RowResult | None] = []
    wrong = []
    end = math.inf if deadline is None else time.monotonic() + deadline
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=len(tasks))
        for name, task in tasks:
            progress.update(bar, description=name)
            if time.monotonic() > end:
                measured.append(None)
                continue
            try:
                measured.append(task())
            except Disagreement as reason:
                measured.append(None)
                wrong.append(str(reason))
            progress.advance(bar)
    return measured, wrong


def show(results: Results, console: Console) -> None:
    """A table per group, who was left out and why, and the summary; of curves what they say."""
    for group, part in tables.by_group(results):
        console.print(row_table(group, part))
    if results.rows:
        console.print(
            "Ratios are a peer's time over ours: above 1x ours is faster. Tiny tensors: how much "
            "longer ours takes."
        )
    for curve in results.curves:
        for line in tables.growth(curve):
            console.print(line, highlight=False)
    for name, reason in results.conditions["absent"].items():
        console.print(f"{name} took no part: {reason}", highlight=False)
    for line in tables.failures(results):
        console.print(line, style="yellow", highlight=False)
    if results.rows:
        for line in tables.summary(results):
            console.print(line, highlight=False)
        for goal in goals.goals(results):
            sign = "[green]reached[/green]" if goal.met else "[red]missed[/red]"
            console.print(f"{sign}: {goal.what}: {goal.aim}; found {goal.found}", highlight=False)
    console.print(tables.conditions(results), style="dim", highlight=False)


def row_table(group: str, results: Results) -> Table:
    """One line per row; what is slower than a peer in red."""
    table = Table(
        title=f"{group}: {GROUPS[group]}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for number, title in enumerate(tables.header(results)):
        table.add_column(title, justify="left" if number == 0 else "right", no_wrap=number > 0)
    for row in results.rows:
        cells = tables.cells(results, row)
        for number, peer in enumerate(results.peers, tables.FIRST_PEER):
            if tables.is_behind(row, peer):
                cells[number] = f"[red]{cells[number]}[/red]"
        table.add_row(*cells)
    return table


def file_name(conditions: dict[str, Any]) -> str:
    """Sorts by date: ``2030-01-31T120000-cpu-2-threads-load.json``."""
    moment = conditions["date"][:19].replace(":", "")
    marks = [f"{conditions['threads']}-threads"] if conditions["device"] == "cpu" else []
    marks += ["load"] if conditions["busy_processes"] else []
    marks += ["scaling"] if conditions["scaling"] else []
    marks += ["quick"] if conditions["quick"] else []
    return "-".join([moment, conditions["device"], *marks]) + ".json"


if __name__ == "__main__":
    sys.exit(main())
