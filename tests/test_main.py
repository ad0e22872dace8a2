"""python -m torch_dmlpool: what it says, what it checks, and what its exit code means."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import torch_dmlpool as dmlpool
from torch_dmlpool import __main__ as program


def test_as_a_command() -> None:
    """The examples of DirectML's pages come out right, and nothing but text is written where there is no terminal."""
    completed = subprocess.run(
        [sys.executable, "-W", "error", "-m", "torch_dmlpool", "--no-timing"],
        env={**os.environ},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    lines = completed.stdout.splitlines()
    assert lines[0].split() == ["torch_dmlpool", dmlpool.__version__]
    assert f"torch          {torch.__version__}" in lines
    assert any(line.startswith("cpu: served by the ") for line in lines)
    assert [line.strip() for line in lines if " ok " in f" {line} "][:8] == [
        f"ok {example.name}" for example in program.EXAMPLES
    ]
    assert "FAILED" not in completed.stdout
    assert "\033" not in completed.stdout
    assert "ATen" not in completed.stdout


def test_a_wrong_result_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """And one that raises too."""
    monkeypatch.setattr(dmlpool, "average_pooling", lambda input, window: input[..., :2, :2] - window)

    def refuses(*arguments: object) -> None:
        raise ValueError("no such window")

    monkeypatch.setattr(dmlpool, "max_pooling_grad", refuses)
    assert program.main(["--quick"]) == 1
    output = capsys.readouterr().out
    assert "FAILED DML_AVERAGE_POOLING\n    expected [[3, 4], [6, 7]], got [[-1.0, 0.0], [2.0, 3.0]]" in output
    assert "FAILED DML_MAX_POOLING_GRAD\n    ValueError: no such window" in output
    assert "ok DML_MAX_POOLING2, indices" in output


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert program.colored("ok", program.GREEN) == "ok"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert program.colored("ok", program.GREEN) == "\033[32mok\033[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert program.colored("ok", program.GREEN) == "ok"


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """E7."""

    def missing(name: str) -> str:
        raise program.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(program.importlib.metadata, "version", missing)
    assert dict(program.versions())["triton"].startswith("not installed")


@pytest.mark.parametrize("contest", program.CONTESTS, ids=[contest.name for contest in program.CONTESTS])
def test_both_sides_do_the_same_work(contest: program.Contest) -> None:
    input = torch.randn(2, 3, 15, 14, generator=torch.Generator().manual_seed(0))
    if contest.channels_last:
        input = input.contiguous(memory_format=torch.channels_last)
    for result, expected in zip(
        *(program._work(function, input, contest.training)() for function in (contest.ours, contest.aten)), strict=True
    ):
        torch.testing.assert_close(result, expected)


class Clock:
    """Time passes when it is looked at, and nowhere else."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_timings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A line with a ratio for each, and the conditions that they hold under."""
    monkeypatch.setattr(program, "SHAPE", (1, 2, 14, 14))
    clock = Clock(0.01)
    program.print_timings(torch.device("cpu"), program.SECONDS, clock)
    # All of it was used, and one round more was begun at most.
    assert program.SECONDS <= clock.now <= program.SECONDS + 10 * clock.step
    first, second, header, *rows = capsys.readouterr().out.strip().splitlines()
    assert f"{torch.get_num_threads()} threads: float32 of shape (1, 2, 14, 14)" in first
    assert "ATen" in second + header
    assert len(rows) == len(program.CONTESTS)
    for row, contest in zip(rows, program.CONTESTS, strict=True):
        *_, ours, aten, ratio = row.split()
        assert row.strip().startswith(contest.name)
        assert float(ours) == float(aten) == 10.0
        assert float(ratio) == 1.0


@pytest.mark.parametrize("step", [0.05, 0.5, 3.0, 30.0])
def test_a_slow_machine_measures_less(
    step: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However long a pooling takes, none is begun after ten seconds but those of a round under way."""
    monkeypatch.setattr(program, "SHAPE", (1, 2, 14, 14))
    clock, begun = Clock(step), []

    def timed(work: object, device: torch.device, clock: Clock) -> float:
        begun.append(clock.now)
        return clock() - clock.now + clock.step

    monkeypatch.setattr(program, "_timed", timed)
    program.print_timings(torch.device("cpu"), program.SECONDS, clock)
    start = step
    # Two sides warm up before the first round, so that four may be begun on the last look at the clock.
    assert all(moment - start < program.SECONDS + 4 * step for moment in begun)
    rows = capsys.readouterr().out.strip().splitlines()[3:]
    assert len(rows) == len(program.CONTESTS)
    late = [row for row in rows if row.endswith("no time left")]
    assert rows[len(rows) - len(late) :] == late
    assert bool(late) == (step > 0.1)


def test_devices_of_a_kind_are_timed_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten seconds are ten seconds on a machine with eight equal accelerators too."""
    timed = []
    monkeypatch.setattr(program, "devices", lambda: [torch.device("cpu", 0), torch.device("cpu", 1)])
    monkeypatch.setattr(program, "checked", lambda _: iter(()))
    monkeypatch.setattr(program, "print_timings", lambda device, seconds: timed.append((device, seconds)))
    assert program.main([]) == 0
    assert timed == [(torch.device("cpu", 0), 10.0)]
    capsys.readouterr()
