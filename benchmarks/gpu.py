"""`make gpu`: is everything right and fast on this GPU? ``python -m benchmarks gpu --run 1`` and
``--run 2`` take five to six minutes each, without a network.

Steps are processes with limits; at its limit a step's whole process group is ended, and what was
not begun is a failure. Whole logs go to the folder that the variable OUT names, gpu.json and each
row as soon as it is known beside them. Nothing need be installed but PyTorch, Triton, numpy and
pytest: the steps import a copy of this checkout's package. ``--prepare`` compiles all kernels
beforehand, ``--dry`` takes every step's way without a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.util
import json
import os
import pickle
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton

from benchmarks import common, gpu_rows, kernels
from torch_dmlpool import backends
from torch_dmlpool.backends import reference
from torch_dmlpool.backends import triton as backend
from torch_dmlpool.bench import calls

ROOT = kernels.ROOT
CACHE = ROOT / ".gpu-cache"
MISSING = 150  # seconds at most to compile what the folder lacks, taken from the steps after it
PYTEST = "-m pytest -v --tb=short -p no:cacheprovider -p no:benchmark --device cuda"
TESTS = "tests/ops tests/nn/test_functional.py --sample 12"
NETWORKS = {"unet": "U-Net", "resnet": "ResNet-50 "}
"""Steps of networks, and their names in ``benchmarks.models``."""
TELLING = ("FAILED", "ERROR", "WRONG", "Error:", "ERROR SUMMARY", "missing", "kernels compiled")
PRINTED = ("smoke", "rows", "peers")  # whole; of other steps the lines that tell


class Run(NamedTuple):
    """Steps with their limits in seconds, and the limit of all."""

    seconds: int
    steps: dict[str, tuple[int, str]]


def own(step: str, deadline: int, more: str = "") -> str:
    return f"-m benchmarks.gpu --step {step} --deadline {deadline} {more}"


def networks(how: str, seconds: int) -> dict[str, tuple[int, str]]:
    return {
        f"{key}-{how}": (
            seconds,
            f"-m benchmarks models '{name} {how}, training' --device cuda --row-seconds 0.5 "
            f"--out {{out}}/{key}-{how}.json",
        )
        for key, name in NETWORKS.items()
    }


RUNS = {
    1: Run(
        310,
        {
            "smoke": (45, own("smoke", 40)),
            "rows": (110, own("rows", 100)),
            "cuda": (60, f"{PYTEST} tests/test_cuda.py"),
            "peers": (65, own("peers", 55)),
        },
    ),
    2: Run(
        345,
        {
            "smoke": (45, own("smoke", 40)),
            "rows": (60, own("rows", 50)),
            **networks("eager", 14),
            **networks("compiled", 32),
            "tests": (75, f"{PYTEST} -m 'not slow' {TESTS}"),
            "memcheck": (35, own("smoke", 25, "--every 5")),
        },
    ),
}
BETWEEN, ENDING = 20, 2  # seconds of a run that no step takes, and that a step takes to be ended


def commands(number: int, folder: Path, dry: bool) -> Iterator[tuple[str, list[str], int]]:
    """Name, command and limit of each step."""
    sanitizer = shutil.which("compute-sanitizer")
    for name, (limit, text) in RUNS[number].steps.items():
        words = shlex.split(text.format(out=folder.resolve()))
        if "pytest" in words and importlib.util.find_spec("xdist") is not None and name == "tests":
            words += ["-n", str(max(1, min(14, (os.cpu_count() or 2) - 1))), "--dist", "worksteal"]
        if dry:
            words = [word.replace("cuda", "cpu") if word == "cuda" else word for word in words]
            words += ["--collect-only", "-q"] if "pytest" in words else []
            every = "5" if name == "peers" else "30"
            words += ["--dry", "--every", every] if "benchmarks.gpu" in words else []
            words += ["--help"] if "models" in words else []
        checks = [sanitizer, "--tool", "memcheck", "--error-exitcode", "9"] if sanitizer else []
        if name != "memcheck" or sanitizer or dry:
            yield name, [*(checks if name == "memcheck" else []), sys.executable, *words], limit


Task = tuple[str, Callable[[], dict[str, Any]]]


def each_of(tasks: Iterable[Task], end: float, file: str) -> int:
    """A line for each task at once, and in a file of OUT; 1 if one failed or was not begun."""
    wrong = left = 0
    with Path(os.environ.get("OUT", "."), file).open("a") as log:
        for name, task in tasks:
            found: dict[str, Any] = {"row": name}
            if time.monotonic() > end:
                left += 1
                found["failed"] = "not begun"
            else:
                try:
                    found |= task()
                except Exception as error:
                    wrong += 1
                    found["failed"] = f"{type(error).__name__}: {error}"
            log.write(json.dumps(found) + "\n")
            log.flush()
            print(gpu_rows.line(found), flush=True)
    print(f"{wrong} failed, {left} not begun", flush=True)
    return int(wrong + left > 0)  # what was not begun is not known to be right


def checked(call: calls.Call, device: str) -> dict[str, Any]:
    """Nothing, if the call's results are those of the reference on the CPU."""
    served, input = backend.BACKEND, call.input.to(device)
    if device == "meta":
        served, input = reference.BACKEND, call.input
    found = gpu_rows.by_kernels(lambda: call.compute(served, input, call.window))
    differs = calls.difference(call.compute(reference.BACKEND, call.input, call.window), found)
    if differs:
        raise AssertionError(differs)
    return {}


def compiled(how: Any, arguments: tuple[Any, ...]) -> Any:
    """What Triton runs for a launch, without a GPU."""
    triton.runtime.driver.set_active(kernels.NoDriver())
    return backend._compiled(*backend.what_is_compiled(how, arguments, 0))[0]


def expected(request: gpu_rows.Request) -> dict[str, Any]:
    """What the launches of a call are counted to do, and the seconds T that an H200 should take."""
    with launches() as found:
        request.prepared()[1]()
    counted = []
    for how, arguments in found:
        asm = compiled(how, arguments).asm
        tensors = {id(each): each for each in arguments if isinstance(each, torch.Tensor)}
        moved = sum(each.nbytes for each in tensors.values())
        counted.append(kernels.counted(how, asm, arguments[0].itemsize, moved))
    bounds = [each.seconds(kernels.CHIPS["H200"]) for each in counted]
    return {
        "seconds": kernels.predicted(counted, kernels.CHIPS["H200"]),
        "bound": [max(each, key=lambda name: each[name]) for each in bounds],
        "counts": counted,
    }


def step(name: str, end: float, every: int, dry: bool, words: Sequence[str] = ()) -> int:
    """One of the steps that are this module's own."""
    clock = gpu_rows.Clock(dry or name == "expected")
    measure: Callable[..., dict[str, Any]]
    if name == "smoke":
        measure, what = functools.partial(checked, device=clock.device), calls.calls(True)
    elif name == "peers":
        measure, what = functools.partial(gpu_rows.beside, clock=clock), gpu_rows.peer_requests()
    elif name == "rows":
        measure, what = functools.partial(gpu_rows.row_of, clock=clock), gpu_rows.rows()
    else:
        measure, what = expected, gpu_rows.rows()
    tasks = [
        (each.name, functools.partial(measure, each))
        for each in list(what)[::every]
        if all(word in each.name for word in words)
    ]
    with launches() if dry else nullcontext():
        return each_of(tasks, end, f"{name}.jsonl")


@contextmanager
def launches() -> Iterator[list[tuple[Any, tuple[Any, ...]]]]:
    """Inside, what the backend would launch on an H200 is listed, with its operands, not run."""
    found: list[tuple[Any, tuple[Any, ...]]] = []
    with (
        mock.patch.object(backend, "runs_ptx", return_value=True),
        mock.patch.object(backend, "launch", lambda how, *given: found.append((how, given))),
    ):
        yield found


@contextmanager
def recorded() -> Iterator[list[tuple[Any, ...]]]:
    """Inside, the same, but of each launch what is compiled, once it is left."""
    compiled: list[tuple[Any, ...]] = []
    with launches() as found:
        yield compiled
    compiled += [backend.what_is_compiled(how, arguments, 0) for how, arguments in found]


def wanted() -> list[tuple[Any, ...]]:
    """What rows, peers, smoke, the networks and the large tensors of tests/test_cuda.py launch."""
    half, brain = torch.float16, torch.bfloat16
    requests = [*gpu_rows.rows(), *gpu_rows.peer_requests()]
    for operator, counted in (("max", (True, None)), ("avg", (False, None))):
        large = gpu_rows.sliding(operator, (8200, 64, 64, 64), half, False, 3, 2, 1)
        requests.append(replace(large, counted=counted))
    trained = [each for each in requests if each.trains]
    for last in (False, True):
        trained.append(gpu_rows.adaptive("adaptive avg", (32, 2048, 7, 7), brain, last, 1, 1))
        trained.append(gpu_rows.sliding("max", (32, 64, 112, 112), brain, last, 3, 2, 1))
        trained.append(gpu_rows.sliding("max", (32, 32, 256, 256), brain, last, 2))
    for each in trained:
        requests += gpu_rows.training_of(each)
    with recorded() as found:
        for each in requests:
            each.prepared()[1]()
        for call in calls.calls(True):
            call.compute(backend.BACKEND, call.input.to("meta"), call.window)
    return found


def record_tests(path: Path) -> int:
    """List what the operators' tests would launch: the reference computes their results."""
    import pytest

    found: list[tuple[Any, ...]] = []

    def noted(name: str) -> Callable[..., Any]:
        ours, theirs = getattr(backend.BACKEND, name), getattr(reference.BACKEND, name)

        def both(*given: Any, **named: Any) -> Any:
            with recorded() as compiled:
                ours(*given, **named)
            found.extend(compiled)
            return theirs(*given, **named)

        return both if callable(ours) and callable(theirs) else theirs

    fields = {name: noted(name) for name in reference.BACKEND._fields if name != "name"}
    served = reference.BACKEND._replace(**fields)

    class Plugin:
        @staticmethod
        def pytest_sessionstart() -> None:
            backends.serving = lambda _: served  # type: ignore[assignment]

    words = f"-m 'not slow' -q -p no:cacheprovider -p no:benchmark {TESTS}"
    pytest.main(shlex.split(words), plugins=[Plugin()])
    path.write_bytes(pickle.dumps(plain(found)))
    print(f"{len(set(found))} kernels of the tests")
    return 0


def plain(found: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Each once, with names of data types: what compiles them has no PyTorch."""
    named = [
        (
            *each[:4],
            tuple((str(kind[0]), kind[1]) if isinstance(kind, tuple) else kind for kind in each[4]),
        )
        for each in found
    ]
    return list(dict.fromkeys(named))


def fill(python: str, processes: int | None, prunes: bool) -> list[str]:
    """Write the list of kernels into the folder; the command that compiles what is missing."""
    CACHE.mkdir(exist_ok=True)
    tests, path = CACHE / "tests.pickle", CACHE / kernels.LIST
    if prunes:
        command = [sys.executable, "-m", "benchmarks.gpu", "--record", str(tests)]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    of_tests = pickle.loads(tests.read_bytes()) if tests.exists() else []
    path.write_bytes(pickle.dumps(list(dict.fromkeys([*plain(wanted()), *of_tests]))))
    command = [python, "-m", "benchmarks.kernels", str(CACHE)]
    command += ["--processes", str(processes)] if processes else []
    return [*command, *["--prune"] * prunes]


def run(number: int, dry: bool) -> int:
    if not dry and not torch.cuda.is_available():
        print("make gpu: PyTorch sees no CUDA or ROCm GPU on this machine")
        return 2
    began, packed = time.monotonic(), CACHE.with_name(f"{CACHE.name}.tar.gz")
    if packed.exists() and not CACHE.exists():
        shutil.unpack_archive(packed, CACHE)
    folder = Path(os.environ.get("OUT") or ROOT / "benchmarks" / "results")
    folder.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"machine": {} if dry else machine(), "run": number, "steps": []}
    steps = list(commands(number, folder, dry))
    with tempfile.TemporaryDirectory() as copy:
        environment = environment_of(Path(copy)) | {"OUT": str(folder.resolve())}
        # What is prepared is code for one kind of GPU.
        if not dry and not torch.version.hip and torch.cuda.get_device_capability() == (9, 0):
            steps.insert(0, ("missing", fill(sys.executable, None, False), MISSING))
        for index, (name, command, limit) in enumerate(steps):
            left = RUNS[number].seconds - (time.monotonic() - began)
            report["not begun"] = [each for each, _, _ in steps[index + 1 :]]
            # PyTorch's own allocator would hide what is beside a tensor.
            extra = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if name == "memcheck" else {}
            seconds = min(limit, left)
            done = {"name": name, "exit_status": 1, "last": ["not begun"]}
            if seconds > 5:
                done = run_step(name, command, seconds, environment | extra, folder / "gpu.log")
            report["steps"].append(done)
            (folder / "gpu.json").write_text(json.dumps(report, indent=1))
    first = report["steps"][0]
    is_complete = first["name"] != "missing" or "".join(first["last"]).startswith("0 kernels")
    if number == 1 and not is_complete:
        shutil.make_archive(str(folder / "gpu-cache"), "gztar", CACHE)  # for the next run
    return max(abs(step["exit_status"]) for step in report["steps"])


def environment_of(copy: Path) -> dict[str, str]:
    """Variables under which Python imports the package as a wheel would have it, with its kernels,
    out of ``copy``."""
    shutil.copytree(ROOT / "torch_dmlpool", copy / "torch_dmlpool")
    shutil.copytree(ROOT / "kernels", copy / "torch_dmlpool" / "kernels", dirs_exist_ok=True)
    paths = [str(copy), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    if CACHE.is_dir():
        kernels.relocate(CACHE)
    found["TRITON_CACHE_DIR"] = str(CACHE)
    # Else the folder that Python is started in would come first, whose package lies apart from its
    # kernels.
    return found | {"PYTHONSAFEPATH": "1"}


def run_step(
    name: str, command: list[str], seconds: float, environment: dict[str, str], log: Path
) -> dict[str, Any]:
    """Run a process and whatever it starts for no longer than that; print the lines that tell, keep
    all."""
    print(f"== {name}: at most {seconds:.0f} s", flush=True)
    started = time.monotonic()
    lines: list[str] = []
    with log.open("a") as written, log.open(errors="replace") as read:
        written.write(f"== {name}: {shlex.join(command)}\n")
        written.flush()
        read.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        ended = False
        while not ended:
            ended = process.poll() is not None or time.monotonic() - started > seconds
            time.sleep(0 if ended else 0.1)
            for text in read:
                lines.append(text.rstrip())
                if name in PRINTED or any(word in text for word in TELLING):
                    print(text, end="", flush=True)
    status = process.poll()
    # whatever it has left behind, too
    for one in (signal.SIGINT, signal.SIGKILL) if status is None else (signal.SIGKILL,):
        try:
            os.killpg(process.pid, one)
        except ProcessLookupError:
            break
        time.sleep(2 if one is signal.SIGINT else 0)
    process.wait()
    if name not in PRINTED:
        print("\n".join(lines[-12:]), flush=True)
    if status is None:
        print(f"== {name}: ended at its limit", flush=True)
    taken = round(time.monotonic() - started, 1)
    status = 124 if status is None else status
    return {"name": name, "exit_status": status, "seconds": taken, "last": lines[-1:]}


def collect(folders: list[Path]) -> int:
    """What runs have written, the first one first, becomes a file of results: the page of
    benchmarks is made of it. A row that was measured again has the later times."""
    found: dict[str, Any] = {"machine": {}, "steps": [], "models": []}
    listed: dict[str, dict[str, Any]] = {"rows": {}, "peers": {}, "expected": {}}
    for folder in folders:
        report = common.load(folder / "gpu.json")
        found["machine"] = report["machine"]
        found["steps"] += report["steps"]
        for path in folder.glob("*-*.json"):
            found["models"] += common.load(path)["rows"]
        for name, rows_of in listed.items():
            path = folder / f"{name}.jsonl"
            for row in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
                if "failed" not in row or row["row"] not in rows_of:
                    rows_of[row["row"]] = row
    counts = {name: row["counts"] for name, row in listed.pop("expected").items()}
    if counts:
        common.save(common.RESULTS / "gpu_counts.json", counts)
    found |= {name: list(rows_of.values()) for name, rows_of in listed.items()}
    common.save(common.RESULTS / "gpu_rows.json", found)
    return 0


def machine() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "cuda": torch.version.cuda or torch.version.hip,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": sys.version.split()[0],
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--run", type=int, choices=RUNS)
    chosen.add_argument("--prepare", action="store_true", help="compile for both runs")
    chosen.add_argument("--step", choices=("smoke", "rows", "peers", "expected"))
    chosen.add_argument("--record", type=Path, help="list the kernels of the operators' tests")
    chosen.add_argument("--collect", type=Path, nargs="+", help="make results of OUT's folders")
    add = parser.add_argument
    add("--python", default=sys.executable, help="of --prepare: it needs Triton alone")
    add("--processes", type=int, help="of --prepare; as many as there are processors")
    add("--deadline", type=float, default=600.0, help="of --step: begin nothing after that")
    add("--every", type=int, default=1, help="of --step: only every Nth call or row")
    add("--dry", action="store_true", help="without a GPU, and without results")
    add("words", nargs="*", help="of --step: rows that have all these in their name")
    given = parser.parse_args(arguments)
    if given.run:
        return run(given.run, given.dry)
    if given.prepare:
        status = subprocess.run(fill(given.python, given.processes, True), cwd=ROOT).returncode
        packed = Path(shutil.make_archive(str(CACHE), "gztar", CACHE))
        print(f"{packed.name} has {packed.stat().st_size / 2**20:.1f} MiB")
        return status or int(packed.stat().st_size > kernels.MOST_BYTES)
    if given.record or given.collect:
        return record_tests(given.record) if given.record else collect(given.collect)
    end = time.monotonic() + given.deadline
    return step(given.step, end, given.every, given.dry, given.words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
