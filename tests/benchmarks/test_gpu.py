"""`make gpu` on a machine where nothing of this package is installed, as far as one without a GPU can tell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("rich")

from benchmarks import __main__ as benchmark
from benchmarks import gpu
from benchmarks.workloads import select


def test_the_kernels_of_the_checkout_are_imported(tmp_path: Path) -> None:
    """Package and kernels lie apart in a checkout: the steps find both, whatever folder they start in."""
    environment = gpu.environment_of(tmp_path)
    code = "import benchmarks, torch_dmlpool; print(torch_dmlpool.__file__); "
    code += "from torch_dmlpool.kernels import launch; print(launch.__file__)"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, cwd=gpu.ROOT, env=environment, capture_output=True, text=True, check=True)
    assert [Path(line).is_relative_to(tmp_path) for line in found.stdout.split()] == [True, True]


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], int]]:
    """The steps of a run on a machine that has everything, none of them run."""
    found = []

    def run(name: str, command: list[str], seconds: int, environment: dict[str, str]) -> dict[str, object]:
        found.append((name, command, seconds))
        return {"name": name, "exit_status": 0, "seconds": 0.0, "output": ""}

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "_machine", dict)
    monkeypatch.setattr(gpu, "_run", run)
    monkeypatch.setattr(gpu.shutil, "which", lambda tool: f"/usr/bin/{tool}")
    monkeypatch.setenv("OUT", str(tmp_path))
    assert gpu.main() == 0
    assert [step["name"] for step in json.loads((tmp_path / "gpu.json").read_text())["steps"]] == [
        name for name, *_ in found
    ]
    return found


def test_a_run_ends_within_nine_minutes(steps: list[tuple[str, list[str], int]]) -> None:
    assert sum(seconds for *_, seconds in steps) <= 540
    assert [name for name, *_ in steps] == ["tests", "compute-sanitizer", "large tensors", "beside compilers"]


def test_benchmarks_know_their_options(steps: list[tuple[str, list[str], int]]) -> None:
    """And end before they are ended: what they have measured by then is written."""
    for _, command, seconds in steps[2:]:
        assert command[1:3] == ["-m", "benchmarks"]
        options = benchmark.parser().parse_args(command[3:])
        assert select(options.rows)
        assert options.device == "cuda"
        assert options.deadline < seconds
        assert options.out.is_absolute()


def test_pytest_knows_its_options(steps: list[tuple[str, list[str], int]]) -> None:
    """A sample of tests is chosen, each of a test's cases so-manieth, and none of them slow."""
    for (_, command, _), least in zip(steps[:2], (900, 8), strict=True):
        command = command[command.index(sys.executable) :]
        if "-n" in command:  # a process does not say what others collect
            command = command[: command.index("-n")]
        collected = subprocess.run(
            [*command, "--collect-only"], cwd=gpu.ROOT, capture_output=True, text=True, check=True
        )
        chosen = [line for line in collected.stdout.splitlines() if "::" in line]
        assert least < len(chosen) < 2 * least


def test_no_row_is_begun_after_the_deadline() -> None:
    tasks = [("first", lambda: "measured"), ("second", lambda: "measured, too")]
    assert benchmark.measure_all(tasks, None)[0] == ["measured", "measured, too"]
    assert benchmark.measure_all(tasks, -1.0)[0] == [None, None]
