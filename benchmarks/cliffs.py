"""Where the GPU path is far from memory's speed, without a GPU: ``python -m benchmarks.cliffs``.

The Triton backend is asked for its launches of a request, over tensors without memory, and three
programs of each are traced (``benchmarks.traces``). A launch takes 4 us and the longest of

- memory: sectors of 32 bytes that miss L1, at 5.5 TB/s; of these at most the tensors, at 3.0 TB/s;
- L1: a line of 128 bytes of a warp's access each clock of a multiprocessor;
- issue: four instructions of a warp each clock;
- latency: 600 ns for each load that waits for another (250 from L2, 35 from L1), times the rounds
  of as many programs as registers leave room for. A load waits that depends on what was loaded,
  that is in a later turn of a loop, or that finds 256 bytes of its lane in flight.

PyTorch's own operators take their bytes at 3.0 TB/s and 4 us. A request takes the longest of the
sums; the ideal is the bytes of its operands at 3.0 TB/s and 4 us. Three times the ideal is a cliff.
"""

from __future__ import annotations

import argparse
import functools
import math
import multiprocessing
import os
import statistics
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import (
    gpu_requests,
    traces,  # before triton is imported
)
from benchmarks.traces import PROCESSORS
from torch_dmlpool.backends import triton as backend

DRAM, L2, CLOCK = 3.0e12, 5.5e12, 1.755e9
LAUNCH, FROM_DRAM, FROM_L2, FROM_L1 = 4e-6, 600e-9, 250e-9, 35e-9
REGISTERS, OWN_REGISTERS, MOST_PROGRAMS = 65536, 24, 16
CLIFF, OF_KERNELBENCH = 3.0, 1.5
BOUNDS = ("memory", "L1", "issue", "latency", "launch")


def seconds_of(how: Any, operands: tuple[Any, ...]) -> dict[str, float]:
    """A launch's time by what could bound it, from three of its programs."""
    kernel = backend.kernel_named(*how.kernel.split("."))
    chosen = sorted({how.programs // 5, how.programs // 2, how.programs * 7 // 8})
    warps = getattr(how, "warps", 4)
    done = traces.programs_of(kernel, how, operands, warps, chosen)
    return _seconds(how.programs, warps, done, _bytes(operands))


def _seconds(
    programs: int, warps: int, done: list[traces.Program], operand_bytes: int
) -> dict[str, float]:
    def in_all(name: str) -> float:
        return sum(getattr(each, name) for each in done) / len(done) * programs

    longest = max(done, key=lambda each: each.far_waits)
    held = max(each.held_bytes for each in done) / 4 * 1.25  # registers, and some for addresses
    resident = REGISTERS // (OWN_REGISTERS + int(held)) // 128 * 4 / warps
    resident = min(MOST_PROGRAMS * 4 / warps, max(2.0, resident))
    moved = 32 * in_all("missed")
    beyond_l2 = min(1.0, operand_bytes / max(moved, 1.0))
    far = FROM_L2 + (FROM_DRAM - FROM_L2) * beyond_l2
    waits = longest.far_waits * far + longest.near_waits * FROM_L1
    return {
        "memory": max(min(moved, operand_bytes) / DRAM, moved / L2),
        "L1": in_all("lines") / PROCESSORS / CLOCK,
        "issue": in_all("instructions") / PROCESSORS / CLOCK / 4,
        "latency": waits * max(1.0, programs / PROCESSORS / resident),
        "launch": LAUNCH,
    }


def _bytes(values: Any) -> int:
    """The bytes of all tensors in ``values``, each tensor once."""
    tensors = {id(each): each for each in tree_leaves(values) if isinstance(each, Tensor)}
    return sum(each.numel() * each.itemsize for each in tensors.values())


class OwnOperators(TorchDispatchMode):
    """Notes the bytes of PyTorch's own operators; views and new tensors are free."""

    def __init__(self, record: list[Any]) -> None:
        super().__init__()
        self.record = record

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        moved = _bytes((args, kwargs, result))
        if moved and not function.is_view and "empty" not in function.name():
            self.record.append((str(function), moved))
        return result


@contextmanager
def recorded() -> Iterator[list[Any]]:
    """Inside, launches are noted with their operands, and PyTorch's operators with their bytes."""
    record: list[Any] = []
    with (
        mock.patch.object(backend, "launch", lambda how, *given: record.append((how, given))),
        mock.patch.object(backend, "runs_ptx", return_value=False),
        OwnOperators(record),
    ):
        yield record


class Prediction(NamedTuple):
    """Seconds, what bounds them, the seconds of an ideal, and what is launched."""

    seconds: float
    bound: str
    ideal: float
    launched: str

    @property
    def times(self) -> float:
        return self.seconds / self.ideal

    def __str__(self) -> str:
        seconds = f"{self.seconds * 1e6:10.1f} {self.ideal * 1e6:8.1f} {self.times:7.1f}"
        return f"{seconds}  {self.bound:8} {self.launched}"


def predicted(request: gpu_requests.Request) -> Prediction:
    with recorded() as record:
        operands, call = request.prepared()
        record.clear()
        results = call()
        steps = list(record)
    sums, launched = dict.fromkeys(BOUNDS, 0.0), []
    for what, given in steps:
        if isinstance(what, str):
            seconds = {"memory": given / DRAM, "launch": LAUNCH}
        else:
            seconds = seconds_of(what, given)
            launched.append(f"{what.kernel.split('.')[-1]} of {what.programs}")
        for bound, each in seconds.items():
            sums[bound] += each
    own = sum(isinstance(what, str) for what, _ in steps)
    launched += [f"{own} of PyTorch's operators"] * (own > 0)
    bound = max(sums, key=lambda name: sums[name])
    ideal = _bytes((operands, results)) / DRAM + LAUNCH
    return Prediction(sums[bound], bound, ideal, ", ".join(launched))


def attempted(request: gpu_requests.Request) -> Prediction | str:
    """A prediction, or what went wrong."""
    try:
        return predicted(request)
    except Exception as error:  # one request that no kernel computes does not hide the others
        return f"{type(error).__name__}: {error}"


def print_group(
    name: str, rows: list[gpu_requests.Request], found: Iterable[Prediction | str]
) -> int:
    """How many rows failed or take more than the group may."""
    print(f"\n{name + ':':61} {'us':>10} {'ideal':>8} {'times':>7}  bound    launches")
    limit = OF_KERNELBENCH if name == "kernelbench" else CLIFF
    above, logarithms = 0, []
    for row, each in zip(rows, found, strict=True):
        if isinstance(each, str):
            above += 1
            print(f"FAILED {row.name}: {each}", flush=True)
            continue
        above += each.times > limit
        logarithms.append(math.log(each.times))
        mark = "CLIFF" if each.times > CLIFF else "above" if each.times > limit else ""
        print(f"{mark:6} {row.name:54} {each}", flush=True)
    mean = math.exp(statistics.fmean(logarithms or [0.0]))
    print(f"{name}: {above} of {len(rows)} above {limit} times; geometric mean {mean:.2f}")
    return above


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="table,kernelbench,models", help="which, with commas")
    parser.add_argument("--training", action="store_true", help="models' gradients as well")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("words", nargs="*", help="rows that have all these in their name")
    given = parser.parse_args()
    groups = {
        "table": gpu_requests.table,
        "kernelbench": gpu_requests.kernelbench,
        "models": functools.partial(gpu_requests.models, given.training),
    }
    above = 0
    with ExitStack() as stack:
        each_of = map
        if given.processes > 1:
            context = multiprocessing.get_context("spawn")  # PyTorch has threads
            pool = stack.enter_context(ProcessPoolExecutor(given.processes, context))
            each_of = functools.partial(pool.map, chunksize=4)
        for name in given.rows.split(","):
            rows = [each for each in groups[name]() if all(w in each.name for w in given.words)]
            above += print_group(name, rows, each_of(attempted, rows))
    return int(above > 0)


if __name__ == "__main__":
    sys.exit(main())
