"""python -m torch_dmlpool: what it says, what it checks, and what its exit code means."""

import re
import subprocess
from collections.abc import Callable

import pytest
import torch

import torch_dmlpool as dmlpool
from torch_dmlpool import __main__ as program


def test_as_a_command(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """The examples of DirectML's pages come out right, and nothing but text is written where there
    is no terminal."""
    output = python("-W", "error", "-m", "torch_dmlpool", "--no-timing").stdout
    lines = output.splitlines()
    assert lines[0].split() == ["torch_dmlpool", dmlpool.__version__]
    assert f"torch          {torch.__version__}" in lines
    assert any(line.startswith("cpu: uses ") for line in lines)
    assert sum(line.startswith("  ok ") for line in lines) >= 8
    assert not any(text in output for text in ("FAILED", "\033", "ATen"))


def test_the_version_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        program.main(["--version"])
    assert capsys.readouterr().out == f"torch_dmlpool {dmlpool.__version__}\n"


def test_what_the_cpu_lacks_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program.cpu, "missing", "cpu_avx2.so was not built: install a C++ compiler")
    assert (
        dict(program.versions())["CPU kernels"]
        == "cpu_avx2.so was not built: install a C++ compiler"
    )


def test_a_wrong_result_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And one that raises too."""
    monkeypatch.setattr(
        dmlpool, "average_pooling", lambda input, window: input[..., :2, :2] - window
    )

    def refuses(*arguments: object) -> None:
        raise ValueError("no such window")

    monkeypatch.setattr(dmlpool, "max_pooling_grad", refuses)
    assert program.main(["--quick"]) == 1
    output = capsys.readouterr().out
    assert (
        "FAILED DML_AVERAGE_POOLING\n    expected [[3, 4], [6, 7]], got [[-1.0, 0.0], [2.0, 3.0]]"
        in output
    )
    assert "FAILED DML_MAX_POOLING_GRAD\n    ValueError: no such window" in output
    assert "ok DML_MAX_POOLING2, indices" in output


def test_the_comparison_with_aten_has_a_row_for_each_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of ``bench``; a busy machine is said to be busy."""
    monkeypatch.setattr(program.bench, "measured", lambda *_: ["  a pool  200", "  a pool  400"])
    monkeypatch.setattr(program.timing, "load", lambda: "9 processes wanted the 2 processors")
    assert program.main([]) == 0
    said = capsys.readouterr().out
    assert "The machine is busy: 9 processes wanted the 2 processors. The times say little." in said
    assert len(re.findall(r"(?m)^  a pool  [24]00$", said)) == 2
