"""What the benchmarks share: conditions, results on disk, Markdown tables, calls in turn."""

from __future__ import annotations

import datetime
import importlib.metadata
import itertools
import json
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

import torch_dmlpool as dmlpool
from torch_dmlpool import timing
from torch_dmlpool.bench.conditions import processor
from torch_dmlpool.timing import Call, Times

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
SMALL_SECONDS = 50e-6
"""Where ATen takes less, a row is about the cost of a call: it has a difference, not a ratio."""


class Disagreement(Exception):  # noqa: N818 - a finding about a result
    """A contestant's result differs from the reference's."""


def conditions(device: str = "cpu", packages: Iterable[str] = (), **more: Any) -> dict[str, Any]:
    """What figures depend on. Nothing names the machine."""
    machine = {"processor": processor(), "cores": os.cpu_count()}
    machine["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
    if device != "cpu":
        machine["gpu"] = torch.cuda.get_device_name(device)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "device": device,
        "threads": torch.get_num_threads(),
        "versions": {"torch_dmlpool": dmlpool.__version__, "torch": str(torch.__version__)}
        | {name: _version(name) for name in packages},
        "load": timing.load(),
        **more,
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def sentence(known: dict[str, Any]) -> str:
    """Where, with which versions and when, for the line below a table."""
    machine = known["machine"]
    place = machine.get("gpu") or f"{machine['processor']}, {machine['cpu_capability']}"
    threads = known.get("threads")
    names = {"torch": "PyTorch", "onnxruntime": "ONNX Runtime"}
    versions = [f"{names.get(name, name)} {what}" for name, what in known["versions"].items()]
    parts = [place, *([count(threads, "thread")] if threads else []), ", ".join(versions)]
    days = [date.partition("T")[0] for date in known["date"].split(" and ")]
    return "; ".join([*parts, " and ".join(days)])


def in_turn(
    calls: dict[str, Call], seconds: float, device: str = "cpu", least: int = 5
) -> dict[str, Times]:
    """Times of calls that take turns: processor time where there is one thread, which other
    processes disturb less, else time by the clock.
    """
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    return timing.in_turn(calls, torch.device(device), seconds, least, clock)


def rotating(calls: Sequence[Call]) -> Call:
    """A call of each in turn, so that no input stays in the nearest cache."""
    if len(calls) == 1:
        return calls[0]
    following = itertools.cycle(calls).__next__
    return lambda: following()()


def save(path: Path, data: dict[str, Any]) -> None:
    """JSON with a line for each entry of a list."""
    parts = []
    for key, value in data.items():
        listed = isinstance(value, list)
        text = ",\n".join(map(json.dumps, value)) if listed else json.dumps(value)
        parts.append(f"{json.dumps(key)}: " + (f"[\n{text}\n]" if listed else text))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def table(head: Sequence[object], lines: Iterable[Sequence[object]], words: int = 1) -> str:
    """A Markdown table, whose columns after the first ``words`` are numbers."""
    ruler = ["---"] * words + ["---:"] * (len(head) - words)
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in (head, ruler, *lines))


def times(ratio: float) -> str:
    """A ratio in three digits, such as ``12.3x``."""
    return f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.3g}x" if ratio >= 10 else f"{ratio:.2f}x"


def count(number: int, one: str) -> str:
    """``1 thread``, ``2 threads``."""
    return f"{number} {one}{'s' * (number != 1)}"


def mean(ratios: Iterable[float]) -> float:
    return statistics.geometric_mean(ratios)
