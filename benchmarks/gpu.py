"""`make gpu`: is everything right and fast on this GPU? ``python -m benchmarks gpu --run 1`` and
``--run 2`` take five to six minutes each, without a network.

Steps are processes with limits; at its limit a step's whole process group is ended, and what was
not begun is a failure. Whole logs go to the folder that the variable OUT names, gpu.json and each
row as soon as it is known beside them. Nothing need be installed but PyTorch, Triton, numpy and
pytest. ``--prepare`` compiles all kernels beforehand, ``--dry`` takes every step's way without a
GPU.
"""

import argparse
import functools
import os
import pickle
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import torch
import triton
from torch import Tensor

from benchmarks import inductor, kernels, requests, rows
from benchmarks.common import (
    ATEN,
    COPY,
    HOST,
    HOST_OF_ATEN,
    OURS,
    RESULTS,
    T_OF_INDUCTOR,
    Named,
    conditions,
    load,
    measured,
    save,
    select,
    several,
)
from benchmarks.requests import Request, compare, kernels_of, launches
from torch_dmlpool.backends import fallbacks, reference
from torch_dmlpool.backends import triton as backend
from torch_dmlpool.timing import Call
from torch_dmlpool.window import Arguments

ROOT = kernels.ROOT
CACHE = ROOT / ".gpu-cache"
MISSING = 150  # seconds at most to compile what the folder lacks, taken from the steps after it
PYTEST = "-m pytest -v --tb=short -p no:cacheprovider -p no:benchmark"
TRAINED = {
    f"{network}-{how}": f"-m benchmarks models '{name} {how}, training' --row-seconds 0.5"
    for how in ("eager", "compiled")
    for network, name in (("unet", "U-Net"), ("resnet", "ResNet-50"))
}
COMMANDS = {
    "lowered": "-m benchmarks rows lowered --compile --row-seconds 0.2",
    "sets": "-m benchmarks calls sets --threads 1 --row-seconds 0.2",
    "cuda": f"{PYTEST} tests/test_cuda.py",
    "peers": "-m benchmarks rows peers --compile --row-seconds 0.3",
    **TRAINED,
}
"""Steps that are other programs of Python."""
PRINTED = ("smoke", "rows", "peers")  # whole; of other steps the last lines
# Read between calls: several times the L2 cache, for longer than the host needs to launch a call.
FLUSHED_BYTES = 2**29
CALLS, HOST_CALLS = 10, 100


NETWORK_STEPS = {name: 14 if "eager" in name else 32 for name in TRAINED}
RUNS = {
    1: {"smoke": 45, "rows": 110, "lowered": 60, "sets": 20, "peers": 65},
    2: {"smoke": 45, "rows": 60, "cuda": 60, **NETWORK_STEPS, "memcheck": 35},
}
"""The steps of a run, and the limit of each in seconds."""
BETWEEN, ENDING = 20, 2  # seconds of a run that no step takes, and that a step takes to be ended
LOADING = 10  # seconds until a step can begin its first row


def seconds_of(number: int) -> int:
    """The limit of a run."""
    return BETWEEN + sum(limit + ENDING for limit in RUNS[number].values())


def aten_call(request: Request, input: Tensor, mask: Tensor | None = None) -> Call | None:
    """The same by PyTorch's functions; None for what these have not on a GPU: gradients."""
    if request.operator not in ("max", "taps", "avg", "adaptive avg"):
        return None
    row = replace(request.row, mode="indices" if request.operator == "taps" else "forward")
    return functools.partial(rows.aten(rows.Problem(row, [input], [], mask)), input)


class Clock:
    """Seconds of calls on the GPU; a dry one only makes the calls, on tensors without memory."""

    def __init__(self, dry: bool):
        self.device = "meta" if dry else "cuda"
        self.flush = torch.ones(1 if dry else FLUSHED_BYTES // 4, device=self.device)

    def kernels(self, call: Call) -> float:
        """The median of single calls between events, behind a read that empties the cache: it
        leaves no lines to be written back while the call runs."""
        call()
        if self.device == "meta":
            return 2e-4
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(CALLS)]
        for start, stop in events:
            self.flush.sum()
            start.record()
            call()
            stop.record()
        torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(stop) for start, stop in events) / 1e3

    def host(self, call: Call, seconds: float) -> float:
        """The mean of calls one after the other, without waiting for the device. A call
        that takes many ``seconds`` is repeated less often."""
        count = max(1, min(HOST_CALLS, int(0.02 / seconds)))
        start = time.perf_counter()
        for _ in range(count):
            call()
        taken = time.perf_counter() - start
        if self.device == "cuda":
            torch.cuda.synchronize()
        return taken / count

    def copy(self, moved: int) -> float:
        """The seconds of a copy that reads and writes ``moved`` bytes in all."""
        source = torch.ones(moved // 2, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return self.kernels(lambda: target.copy_(source))


def by_kernels(call: Call):
    """A call's results, unless plain PyTorch computed them in place of a kernel that failed."""
    fallbacks._warned.clear()
    results = call()
    if fallbacks._warned:
        raise RuntimeError(fallbacks._warned[0])
    return results


def row_of(request: Request, clock: Clock) -> Named:
    """A call beside a copy of the same bytes and PyTorch's own operator, and both on the host."""
    read, call = request.prepared(clock.device)
    moved = sum(each.nbytes for each in (*read, *several(by_kernels(call))))
    found = {OURS: clock.kernels(call), COPY: clock.copy(moved)}
    found[HOST] = clock.host(call, found[OURS])
    theirs = aten_call(request, *read)
    if theirs is not None and read[0].is_floating_point():
        found[ATEN] = clock.kernels(theirs)
        found[HOST_OF_ATEN] = clock.host(theirs, found[ATEN])
    return {"seconds": found, "groups": request.row.groups}


def checked(request: Request, clock: Clock) -> Named:
    """Nothing, if the call's results are those of the reference on the CPU."""
    read, served, device = request.whole_numbers(), backend.BACKEND, clock.device
    if device == "meta":
        served, device = reference.BACKEND, "cpu"
    found = by_kernels(lambda: request.call(served, *(each.to(device) for each in read)))
    compare(request.call(reference.BACKEND, *read), found)
    return {}


def compiled(how, arguments: Arguments):
    """What Triton runs for a launch, without a GPU."""
    triton.runtime.driver.set_active(kernels.NoDriver())
    return backend._compiled(*backend.what_is_compiled(how, arguments, 0))[0]


def expected(request: Request, _: Clock | None = None) -> Named:
    """What the launches of a call are counted to do, and the seconds T that an H200 should take."""
    with launches() as found:
        request.prepared()[1]()
    counted = []
    for how, arguments in found:
        asm = compiled(how, arguments).asm
        tensors = {id(each): each for each in arguments if isinstance(each, torch.Tensor)}
        moved = sum(each.nbytes for each in tensors.values())
        counted.append(kernels.counted(how, asm, arguments[0].itemsize, moved))
    bounds, row = [each.seconds() for each in counted], request.row
    seconds, skipped = {OURS: kernels.predicted(counted)}, {}
    theirs = None if row.mask else inductor.call(request.operator, row)
    if theirs is not None and row.torch_dtype.is_floating_point:
        is_strided = not row.channels_last and request.operator in ("max", "taps", "avg")
        step = row.torch_dtype.itemsize * (row.stride[-1] if is_strided else 1)
        try:
            seconds[T_OF_INDUCTOR] = inductor.expected(*theirs, step)
        except Exception as reason:  # what it has no kernel for
            skipped[T_OF_INDUCTOR] = str(reason).partition("\n")[0]
    return {
        "seconds": seconds,
        "skipped": skipped,
        "groups": row.groups,
        "bound": [max(each, key=lambda name: each[name]) for each in bounds],
        "counts": counted,
    }


STEPS = {
    "smoke": (checked, requests.checked),
    "memcheck": (checked, lambda: requests.checked()[::5]),
    "rows": (row_of, requests.rows),
    "expected": (expected, requests.rows),
}
"""The steps that are this module's own: what finds a row, and for what."""


def step(name: str, end: float, every: int, dry: bool, words: Sequence[str] = ()) -> int:
    """Each row at once printed, and saved in a file of OUT; 1 if one failed or was not begun."""
    measure, asked = STEPS[name]
    clock = Clock(dry or name == "expected")
    tasks = [
        (each.name, functools.partial(measure, each, clock))
        for each in asked()[::every]
        if all(word in each.name for word in words)
    ]
    with launches() if dry else nullcontext():
        return measured(tasks, {}, Path(os.environ.get("OUT", "."), f"{name}.json"), end)[1]


def wanted() -> list[Arguments]:
    """What rows, peers, smoke, the networks and the large tensors of tests/test_cuda.py launch."""
    others = select("peers,prepared")
    asked = [*others, *(replace(row, mode="forward") for row in others)]
    return kernels_of([*requests.rows(), *requests.requests(asked), *requests.checked()])


def fill(python: str, prunes: bool) -> list[str]:
    """Write the list of kernels into the folder; the command that compiles what is missing."""
    CACHE.mkdir(exist_ok=True)
    (CACHE / kernels.LIST).write_bytes(pickle.dumps(wanted()))
    return [python, "-m", "benchmarks.kernels", str(CACHE), *["--prune"] * prunes]


def commands(number: int, folder: Path, dry: bool) -> Iterator[tuple[str, list[str], int]]:
    """Name, command and limit of each step."""
    sanitizer, device = shutil.which("compute-sanitizer"), "cpu" if dry else "cuda"
    for name, limit in RUNS[number].items():
        command, text = [sys.executable], COMMANDS.get(name, "")
        if PYTEST in text:
            text += f" --device {device}" + " --collect-only -q" * dry
        elif text:
            text += f" --device {device} --out '{folder / name}.json'" + " --list" * dry
        else:
            text = f"-m benchmarks.gpu --step {name} --deadline {limit - LOADING}"
            text += " --dry --every 30" * dry
        if name == "memcheck" and sanitizer is not None:
            command = [sanitizer, "--tool", "memcheck", "--error-exitcode", "9", sys.executable]
        elif name == "memcheck" and not dry:
            continue
        yield name, [*command, *shlex.split(text)], limit


def run(number: int, dry: bool) -> int:
    if not dry and not torch.cuda.is_available():
        print("make gpu: PyTorch sees no CUDA or ROCm GPU on this machine")
        return 2
    began, packed = time.monotonic(), CACHE.with_name(f"{CACHE.name}.tar.gz")
    if packed.exists() and not CACHE.exists():
        shutil.unpack_archive(packed, CACHE)
    folder = Path(os.environ.get("OUT") or RESULTS).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    toolkit = torch.version.cuda or torch.version.hip
    known = {} if dry else conditions("cuda", ["triton"], cuda=toolkit)
    report = {"conditions": known, "run": number, "steps": []}
    steps = list(commands(number, folder, dry))
    # What is prepared is code for one kind of GPU.
    if not dry and not torch.version.hip and torch.cuda.get_device_capability() == (9, 0):
        steps.insert(0, ("missing", fill(sys.executable, False), MISSING))
    if CACHE.is_dir():
        kernels.relocate(CACHE)
    environment = {**os.environ, "OUT": str(folder), "TRITON_CACHE_DIR": str(CACHE)}
    for index, (name, command, limit) in enumerate(steps):
        left = seconds_of(number) - (time.monotonic() - began)
        report["not begun"] = [each for each, _, _ in steps[index + 1 :]]
        if name == "memcheck":  # PyTorch's own allocator would hide what is beside a tensor
            environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        seconds = 600 if dry else min(limit, left)
        done = {"name": name, "exit_status": 1, "last": ["not begun"]}
        if seconds > 5:
            done = run_step(name, command, seconds, environment, folder / "gpu.log")
        report["steps"].append(done)
        save(folder / "gpu.json", report)
    return max(abs(step["exit_status"]) for step in report["steps"])


def run_step(
    name: str, command: list[str], seconds: float, environment: dict[str, str], log: Path
) -> Named:
    """Run a process and whatever it starts for no longer than that; log all, and print the end."""
    print(f"== {name}: at most {seconds:.0f} s", flush=True)
    started = time.monotonic()
    with log.open("a+b") as written:
        written.write(f"== {name}: {shlex.join(command)}\n".encode())
        written.flush()
        begin = written.tell()
        process = subprocess.Popen(
            ["timeout", "--signal=INT", f"--kill-after={ENDING}", str(seconds), *command],
            cwd=ROOT,
            env={**environment, "PYTHONUNBUFFERED": "1"},
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status = process.wait()
        with suppress(ProcessLookupError):  # whatever it has left behind, too
            os.killpg(process.pid, signal.SIGKILL)
        written.seek(begin)
        lines = written.read().decode(errors="replace").splitlines()
    print("\n".join(lines if name in PRINTED else lines[-12:]), flush=True)
    if status in (124, -signal.SIGKILL):
        print(f"== {name}: ended at its limit", flush=True)
    taken = round(time.monotonic() - started, 1)
    return {"name": name, "exit_status": status, "seconds": taken, "last": lines[-1:]}


def collect(folders: list[Path]) -> int:
    """What runs have written, the first one first, becomes a file of results: the page of
    benchmarks is made of it. A row that was measured again has the later times."""
    found = {"conditions": {}, "steps": [], "models": [], "rows": [], "failed": {}}
    known = {}
    for folder in folders:
        written = {path.stem: load(path) for path in folder.glob("*.json")}
        found["conditions"] = written["gpu"]["conditions"]
        found["steps"] += written["gpu"]["steps"]
        for name in sorted(written.keys() & COMMANDS.keys()):
            if name in TRAINED:
                found["models"] += written[name]["rows"]
            else:
                save(RESULTS / f"gpu_{name}.json", written[name])
        if "rows" in written:
            known |= {row["name"]: row for row in written["rows"]["rows"]}
            found["failed"] |= written["rows"]["failed"]
    found["rows"] = list(known.values())
    found["failed"] = {name: why for name, why in found["failed"].items() if name not in known}
    save(RESULTS / "gpu_rows.json", found)
    return 0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--run", type=int, choices=RUNS)
    chosen.add_argument("--prepare", action="store_true", help="compile for both runs")
    chosen.add_argument("--step", choices=STEPS)
    chosen.add_argument("--collect", type=Path, nargs="+", help="make results of OUT's folders")
    add = parser.add_argument
    add("--python", default=sys.executable, help="of --prepare: it needs Triton alone")
    add("--deadline", type=float, default=600.0, help="of --step: begin nothing after that")
    add("--dry", action="store_true", help="without a GPU, and without results")
    add("--every", type=int, default=1, help="of --step: measure every Nth row")
    add("words", nargs="*", help="of --step: rows that have all these in their name")
    options = parser.parse_args(arguments)
    if options.run:
        return run(options.run, options.dry)
    if options.collect:
        return collect(options.collect)
    if options.step:
        end = time.monotonic() + options.deadline
        return step(options.step, end, options.every, options.dry, options.words)
    status = subprocess.run(fill(options.python, True), cwd=ROOT).returncode
    packed = Path(shutil.make_archive(str(CACHE), "gztar", CACHE))
    print(f"{packed.name} has {packed.stat().st_size / 2**20:.1f} MiB")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
