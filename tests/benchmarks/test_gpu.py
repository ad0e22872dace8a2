"""`make gpu` and `make gpu-prepare`, as far as a machine without a GPU can tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("rich")
pytest.importorskip("triton._C.libtriton")

from benchmarks import __main__ as benchmark
from benchmarks import gpu


@pytest.fixture
def step(tmp_path: Path) -> Callable[..., dict[str, object]]:
    def run(code: str, limit: float) -> dict[str, object]:
        return gpu.run_step("checked", [sys.executable, "-uc", code], limit, dict(os.environ), tmp_path)

    return run


PARENT = """
import subprocess, sys, time
code = "import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", code])
print("child", child.pid, flush=True)
print("test_that FAILED", flush=True)
time.sleep(60)
"""


def test_a_limit_ends_all_processes_of_a_step(
    step: Callable[..., dict[str, object]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a tool has started outlived it once; the log is there, and failures were printed."""
    start = time.monotonic()
    report = step(PARENT, 1.5)
    assert report["exit_status"] == 124
    assert time.monotonic() - start < 15
    log = (tmp_path / "checked.log").read_text()
    status = Path(f"/proc/{int(log.split()[1])}/status")
    while time.monotonic() - start < 30 and status.exists() and "State:\tZ" not in status.read_text():
        time.sleep(0.05)  # killed, but not gone yet where the machine is busy
    assert not status.exists() or "State:\tZ" in status.read_text()
    printed = capsys.readouterr().out
    assert printed.index("FAILED") < printed.index("ended at its limit")


def test_a_step_that_fails_says_so(step: Callable[..., dict[str, object]]) -> None:
    assert step("raise SystemExit(3)", 20)["exit_status"] == 3
    assert step("print('fine')", 20)["exit_status"] == 0


@pytest.mark.slow
def test_what_is_prepared_is_found_in_another_folder(tmp_path: Path) -> None:
    """The whole way that a launch takes on a GPU, up to the driver: nothing is compiled a second time."""
    command = [sys.executable, "-m", "benchmarks.gpu_prepare", "--every", "70", "--folder"]

    def prepared(folder: Path) -> str:
        done = subprocess.run([*command, str(folder)], cwd=gpu.ROOT, capture_output=True, text=True, check=True)
        return done.stdout

    first = prepared(tmp_path / "here")
    assert ", 0 compiled" not in first
    assert set(json.loads((tmp_path / "here" / "predictions.json").read_text()).values())
    (tmp_path / "here").rename(tmp_path / "there")
    gpu.relocate(tmp_path / "there")
    assert ", 0 compiled" in prepared(tmp_path / "there")


def test_no_row_is_begun_after_the_deadline() -> None:
    tasks = [("first", lambda: "measured"), ("second", lambda: "measured, too")]
    assert benchmark.measure_all(tasks, None)[0] == ["measured", "measured, too"]
    assert benchmark.measure_all(tasks, -1.0)[0] == [None, None]
