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


def test_timings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A line with a ratio for each, and the conditions that they hold under."""
    monkeypatch.setattr(program, "SHAPE", (1, 2, 14, 14))
    program.print_timings(torch.device("cpu"), 0.0)
    first, second, header, *rows = capsys.readouterr().out.strip().splitlines()
    assert f"{torch.get_num_threads()} threads: float32 of shape (1, 2, 14, 14)" in first
    assert "ATen" in second + header
    assert len(rows) == len(program.CONTESTS)
    for row, contest in zip(rows, program.CONTESTS, strict=True):
        *_, ours, aten, ratio = row.split()
        assert row.strip().startswith(contest.name)
        assert float(ours) > 0 < float(aten)
        assert float(ratio) > 0
