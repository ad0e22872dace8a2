"""python -m torch_dmlpool: what it says, what it checks, and what its exit code means."""

import pytest
import torch

import torch_dmlpool as dmlpool
from torch_dmlpool import __main__ as program


def test_as_a_command(python):
    """Results come out right, and nothing but text is written where there is no terminal."""
    output = python("-W", "error", "-m", "torch_dmlpool", "--device", "cpu").stdout
    lines = output.splitlines()
    assert lines[0] == "torch_dmlpool on cpu"
    assert f"  torch_dmlpool           {dmlpool.__version__}" in lines
    assert f"  torch                   {torch.__version__}" in lines
    assert any(line.startswith("  runs on ") for line in lines)
    assert lines[-1] == "23 of 23 results are right"
    assert not any(text in output for text in ("WRONG", "\033", "ATen"))


def test_the_version_alone(capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        program.main(["--version"])
    assert capsys.readouterr().out == f"torch_dmlpool {dmlpool.__version__}\n"
