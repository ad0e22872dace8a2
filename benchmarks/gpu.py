"""`make gpu`: everything that needs a GPU, in one command of under nine minutes and without a network.

Tests on the device, compute-sanitizer on a small set where the tool is there, then the benchmark. The report goes to
the folder named by the variable OUT or to benchmarks/results/, as gpu.json beside the benchmark's own file.

Nothing need be installed but PyTorch, Triton and pytest: the steps import a copy of this checkout's package.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("tests/test_cuda.py", "tests/ops", "tests/test_aten.py", "tests/kernels/test_launch.py")
SANITIZED = ("tests/ops/test_max_pooling.py", "tests/ops/test_average_pooling.py")
# Every test with a window of its own compiles kernels for a second or two: of tests with parameters each so-manieth.
SAMPLE = 3
SANITIZED_SAMPLE = 40
PROCESSES = 14  # that compile at a time: each has some memory of the GPU for itself


def main() -> int:
    import torch

    if not torch.cuda.is_available():
        print("make gpu: PyTorch sees no CUDA or ROCm GPU on this machine")
        return 2
    folder = Path(os.environ.get("OUT") or "benchmarks/results")
    folder.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"machine": _machine(), "steps": []}
    steps = [("tests", [*_pytest(*TESTS, "--sample", str(SAMPLE)), *_several_processes()], 200)]
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer:
        tests = _pytest(*SANITIZED, "-k", "every_layout", "--sample", str(SANITIZED_SAMPLE))
        steps.append(("compute-sanitizer", [sanitizer, "--tool", "memcheck", "--error-exitcode", "9", *tests], 60))
    # Of these no row is compiled by others, which takes seconds: all rows in the time of a few.
    steps.append(("large tensors", _benchmark("large", folder / "large-gpu.json", 120, "--without-compilers"), 150))
    beside = _benchmark("published,overhead", folder / "published-gpu.json", 80, "--compile")
    steps.append(("beside compilers", beside, 120))
    with tempfile.TemporaryDirectory() as copy:
        environment = environment_of(Path(copy))
        for name, command, seconds in steps:
            report["steps"].append(_run(name, command, seconds, environment))
            (folder / "gpu.json").write_text(json.dumps(report, indent=1))
    if not sanitizer:
        print("compute-sanitizer is not on the path: memory was not checked")
    return max(abs(step["exit_status"]) for step in report["steps"])


def environment_of(copy: Path) -> dict[str, str]:
    """Variables under which Python imports the package as a wheel would have it, with its kernels, out of ``copy``."""
    shutil.copytree(ROOT / "torch_dmlpool", copy / "torch_dmlpool")
    shutil.copytree(ROOT / "kernels", copy / "torch_dmlpool" / "kernels")
    paths = [str(copy), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    # Else the folder that Python is started in would come first, whose package lies apart from its kernels.
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(paths)}


def _pytest(*arguments: str) -> list[str]:
    options = ["-q", "-p", "no:cacheprovider", "-m", "not slow", "--device", "cuda"]
    return [sys.executable, "-m", "pytest", *options, *arguments]


def _several_processes() -> list[str]:
    """Options for as many test processes as compile side by side, where pytest can."""
    if importlib.util.find_spec("xdist") is None:
        return []
    return ["-n", str(max(1, min(PROCESSES, (os.cpu_count() or 2) - 1))), "--dist", "worksteal"]


def _benchmark(rows: str, out: Path, seconds: int, *options: str) -> list[str]:
    command = [sys.executable, "-m", "benchmarks", "--device", "cuda", "--rows", rows, "--deadline", str(seconds)]
    return [*command, "--row-seconds", "0.3", *options, "--out", str(out.resolve())]


def _run(name: str, command: list[str], seconds: int, environment: dict[str, str]) -> dict[str, Any]:
    print(f"== {name}: at most {seconds} s", flush=True)
    started = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        status = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        status = 124
    tail = output[-6000:]
    print(tail, flush=True)
    return {"name": name, "exit_status": status, "seconds": round(time.monotonic() - started, 1), "output": tail}


def _machine() -> dict[str, Any]:
    import torch

    versions = {"torch": torch.__version__, "python": platform.python_version()}
    try:
        import triton

        versions["triton"] = triton.__version__
    except ImportError:
        versions["triton"] = "absent"
    properties = torch.cuda.get_device_properties(0)
    driver = ""
    if tool := shutil.which("nvidia-smi"):
        query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "device": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "driver": driver,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        **versions,
    }


if __name__ == "__main__":
    sys.exit(main())
