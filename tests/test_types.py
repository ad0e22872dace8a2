"""What a type checker and an editor know of the package, in a program of user code."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import user_code

import torch_dmlpool as dmlpool

SOURCE = Path(user_code.__file__)
PUBLIC = {
    "dmlpool": dmlpool.__all__,
    "dmlpool.nn": [name for name in dmlpool.nn.__all__ if name != "functional"],
    "F": dmlpool.nn.functional.__all__,
}
WRONG = """
import torch
import torch_dmlpool as dmlpool
from torch_dmlpool.nn import functional as F

def pooled(x: torch.Tensor, layer: dmlpool.nn.MaxPool2d) -> None:
    wrong_result: str = dmlpool.nn.AvgPool2d(2)(x)
    wrong_pair: torch.Tensor = dmlpool.nn.MaxPool2d(2, return_indices=True)(x)
    F.max_pool2d(x, "2")
    F.avg_pool2d(x, 2, dilatation=2)
    dmlpool.average_pooling(x, 2, stride=2)
    dmlpool.nn.AvgPool2d(2, padding=1.5)
    dmlpool.MaxPool2d(2)
"""
FIRST_WRONG, LAST_WRONG = 7, 13


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel and")
def test_the_program_runs(fresh_compiler):
    """assert_type says nothing at run time; that the calls are right does."""
    pytest.importorskip("onnxscript", reason="the program asks for ONNX translations")
    user_code.main()


@pytest.mark.parametrize("module", PUBLIC)
def test_the_program_touches_every_public_name(module):
    source = SOURCE.read_text(encoding="utf-8")
    for name in PUBLIC[module]:
        name = re.sub(r"[13]d\b|[13]d(?=_with)", "2d", name)  # which the tool writes from 2d
        assert re.search(rf"\b{module}\.{name}\b", source), name


@pytest.mark.slow
def test_mypy_finds_mistakes(tmp_path, python):
    """Those lines are wrong, and they alone; make lint reads the right program."""
    source = tmp_path / "user.py"
    source.write_text(WRONG, encoding="utf-8")
    arguments = "--strict", "--no-error-summary", "--follow-imports=silent"
    found = python("-m", "mypy", *arguments, source, cwd=tmp_path, fails=True).stdout
    wrong = [int(line.split(":")[1]) for line in found.splitlines() if ": error:" in line]
    assert wrong == list(range(FIRST_WRONG, LAST_WRONG + 1)), found


@pytest.mark.slow
def test_pyright_finds_the_types_of_results(tmp_path, python):
    pytest.importorskip("pyright")
    shutil.copy(SOURCE, tmp_path)
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG, encoding="utf-8")
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    arguments = ["--outputjson", "--pythonpath", sys.executable]
    completed = python("-m", "pyright", *arguments, cwd=tmp_path, fails=True)
    found = json.loads(completed.stdout)["generalDiagnostics"]
    lines = {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in found}
    assert {line for name, line in lines if name == SOURCE.name} == set(), found
    assert {line for name, line in lines if name == wrong.name} >= set(
        range(FIRST_WRONG, LAST_WRONG + 1)
    )
