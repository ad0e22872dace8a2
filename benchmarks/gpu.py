"""`make gpu`: everything that needs a GPU, in one command of under nine minutes and without a
network.

Steps are processes with limits; at its limit a step's whole process group is ended. Their whole
logs go to the folder that the variable OUT names, gpu.json beside them; failures are printed as
they happen. Nothing need be installed but PyTorch, Triton, numpy and pytest: the steps import a
copy of this checkout's package.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_prepare import CACHE, relocate

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("tests/ops", "tests/nn/test_functional.py")
SAMPLE = 12  # every 12th case of tests with parameters: each compiles kernels of its own
PROCESSES = 14
PRINTED = ("smoke", "rows", "models")  # whole; of other steps the lines that tell
TELLING = ("FAILED", "ERROR", "WRONG", "Error:", "ERROR SUMMARY")


def steps(folder: Path, sanitizer: str | None, prepares: bool) -> list[tuple[str, list[str], int]]:
    """Name, command and limit in seconds of each, the most telling first."""
    python = sys.executable
    pytest = f"{python} -m pytest -v --tb=short -p no:cacheprovider -p no:benchmark --device cuda"
    tests = f"{pytest} -m 'not slow' {' '.join(TESTS)} --sample {SAMPLE}"
    if importlib.util.find_spec("xdist") is not None:
        tests += f" -n {max(1, min(PROCESSES, (os.cpu_count() or 2) - 1))} --dist worksteal"
    beside = "benchmarks rows published,overhead --device cuda --compile --row-seconds 0.3"
    memcheck = f"{sanitizer} --tool memcheck --error-exitcode 9 {python}"
    found = [
        ("smoke", f"{python} -m benchmarks.gpu_smoke --deadline 30", 35),
        ("cuda", f"{pytest} tests/test_cuda.py", 60),
        ("rows", f"{python} -m benchmarks.gpu_rows --deadline 95", 105),
        ("tests", tests, 75),
        ("models", f"{python} -m benchmarks.gpu_models --deadline 35", 50),
        ("memcheck", f"{memcheck} -m benchmarks.gpu_smoke --deadline 25 --every 5", 35),
        ("beside", f"{python} -m {beside} --out {folder.resolve() / 'beside.json'}", 40),
    ]
    if prepares:
        # On all processors at once: a step by itself would compile one kernel after the other. What
        # the folder has is found in seconds.
        found.insert(0, ("prepare", f"{python} -m benchmarks.gpu_prepare --no-predictions", 140))
    return [
        (name, shlex.split(command), limit)
        for name, command, limit in found
        if sanitizer or name != "memcheck"
    ]


def main() -> int:
    import torch

    if not torch.cuda.is_available():
        print("make gpu: PyTorch sees no CUDA or ROCm GPU on this machine")
        return 2
    folder = Path(os.environ.get("OUT") or ROOT / "benchmarks" / "results")
    folder.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"machine": machine(), "steps": []}
    sanitizer = shutil.which("compute-sanitizer")
    if not sanitizer:
        print("compute-sanitizer is not on the path: memory is not checked")
    with tempfile.TemporaryDirectory() as copy:
        environment = environment_of(Path(copy)) | {"OUT": str(folder.resolve())}
        # What is prepared is code for one kind of GPU.
        is_sm_90 = not torch.version.hip and torch.cuda.get_device_capability() == (9, 0)
        every = steps(folder, sanitizer, is_sm_90)
        report["not begun"] = [name for name, _, _ in every]
        for name, command, seconds in every:
            report["not begun"].remove(name)
            # PyTorch's own allocator would hide what is beside a tensor.
            extra = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if name == "memcheck" else {}
            report["steps"].append(run_step(name, command, seconds, environment | extra, folder))
            (folder / "gpu.json").write_text(json.dumps(report, indent=1))
    return max(abs(step["exit_status"]) for step in report["steps"])


def environment_of(copy: Path) -> dict[str, str]:
    """Variables under which Python imports the package as a wheel would have it, with its kernels,
    out of ``copy``."""
    shutil.copytree(ROOT / "torch_dmlpool", copy / "torch_dmlpool")
    shutil.copytree(ROOT / "kernels", copy / "torch_dmlpool" / "kernels", dirs_exist_ok=True)
    paths = [str(copy), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    if CACHE.is_dir():
        relocate(CACHE)
    found["TRITON_CACHE_DIR"] = str(CACHE)
    # Else the folder that Python is started in would come first, whose package lies apart from its
    # kernels.
    return found | {"PYTHONSAFEPATH": "1"}


def run_step(
    name: str, command: list[str], seconds: float, environment: dict[str, str], folder: Path
) -> dict[str, Any]:
    """Run a process and whatever it starts for no longer than that; print the lines that tell, keep
    all."""
    print(f"== {name}: at most {seconds} s", flush=True)
    started, path = time.monotonic(), folder / f"{name}.log"
    with path.open("w") as log, path.open() as written:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        ended = False
        while not ended:
            ended = process.poll() is not None or time.monotonic() - started > seconds
            time.sleep(0 if ended else 0.1)
            for line in written:
                if name in PRINTED or any(word in line for word in TELLING):
                    print(line, end="", flush=True)
    status = process.poll()
    with_limit = status is None
    # whatever it has left behind, too
    for one in (signal.SIGINT, signal.SIGKILL) if with_limit else (signal.SIGKILL,):
        try:
            os.killpg(process.pid, one)
        except ProcessLookupError:
            break
        time.sleep(2 if one is signal.SIGINT else 0)
    process.wait()
    lines = path.read_text(errors="replace").splitlines()
    if name not in PRINTED:
        print("\n".join(lines[-12:]), flush=True)
    if with_limit:
        print(f"== {name}: ended at its limit", flush=True)
    taken = round(time.monotonic() - started, 1)
    return {
        "name": name,
        "exit_status": 124 if with_limit else status,
        "seconds": taken,
        "last": lines[-1:],
    }


def machine() -> dict[str, Any]:
    import torch
    import triton

    properties = torch.cuda.get_device_properties(0)
    versions = {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": sys.version.split()[0],
    }
    memory = round(properties.total_memory / 2**30, 1)
    return {
        "device": properties.name,
        "memory_gib": memory,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        **versions,
    }


if __name__ == "__main__":
    sys.exit(main())
