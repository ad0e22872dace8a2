"""The examples, in reduced forms: each process succeeds only where its own checks hold."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("sklearn")
pyplot = pytest.importorskip("matplotlib.pyplot")

EXAMPLES = Path(__file__).parent.parent / "examples"
DEMO = EXAMPLES / "digits.py"
REDUCED = {
    "segmentation.py": (["--epochs", "1"], ["the 23 losses of both libraries are equal bit for bit"]),
    "dilated_average.py": (["--size", "96", "--steps", "30"], ["from the picture; averages:", "dB, cleaned"]),
    "int8_inference.py": (["--epochs", "4"], ["averages that differ from exact fractions: 0", "0.69 MB"]),
    "per_sample_gradients.py": (["--epochs", "6"], ["256 gradients together", "72 of 1437 labels are wrong"]),
}
"""Arguments, and what the output must say."""


def test_the_demo_trains_compares_compiles_and_draws(tmp_path: Path, device: torch.device) -> None:
    """One epoch of each run. The process must succeed, and it succeeds only where its own checks hold."""
    picture = tmp_path / "picture.png"
    command = [sys.executable, str(DEMO), "--epochs", "1", "--device", str(device), "--picture", str(picture)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "max 2/2: the 23 losses are equal bit for bit" in finished.stdout
    assert re.search(r"over 20 steps the losses differ by \S+ at most, within 1e-04", finished.stdout)
    assert "the same answers" in finished.stdout
    rows = re.findall(r"^max .*?(torch\S*nn) +([\d.]+)% +[\d.]+ +[\d.]+$", finished.stdout, flags=re.MULTILINE)
    assert [library for library, _ in rows] == ["torch.nn", "torch_dmlpool.nn"] * 2
    # One epoch is little; ten classes by chance would give 10 %.
    assert all(float(accuracy) > 30 for _, accuracy in rows)
    integers = re.findall(r"^max .*?torch_dmlpool\.nn, int8 +([\d.]+)% +- +-$", finished.stdout, flags=re.MULTILINE)
    assert len(integers) == 2
    for (_, accuracy), quantized in zip(rows[1::2], integers, strict=True):
        assert abs(float(accuracy) - float(quantized)) <= 2.1
    assert "pooling in int8: accuracy within 2%" in finished.stdout
    pixels = pyplot.imread(picture)
    assert min(pixels.shape[:2]) > 500
    assert pixels.std() > 0.1


def test_the_demo_refuses_no_epochs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    specification = importlib.util.spec_from_file_location("digits", DEMO)
    assert specification is not None
    assert specification.loader is not None
    demo = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "digits", demo)
    specification.loader.exec_module(demo)
    with pytest.raises(SystemExit) as ended:
        demo.main(["--epochs", "0"])
    assert ended.value.code == 2
    assert "--epochs must be at least 1, got 0" in capsys.readouterr().err


@pytest.mark.parametrize("script", REDUCED)
def test_an_example_runs_and_is_content(script: str, tmp_path: Path) -> None:
    arguments, said = REDUCED[script]
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    # On the CPU as users have it: under Triton's interpreter training would take an hour.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    for text in said:
        assert text in finished.stdout
    for picture in re.findall(r"^picture: (.+)$", finished.stdout, flags=re.MULTILINE):
        assert pyplot.imread(tmp_path / picture).std() > 0.1


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*REDUCED, DEMO.name, "large_volume.py"}


@pytest.mark.slow
def test_a_volume_too_large_for_one_process() -> None:
    """Reduced. The process must succeed, and it succeeds only where every plane and the gradient are right."""
    pytest.importorskip("torch.distributed.tensor")
    command = [sys.executable, str(EXAMPLES / "large_volume.py"), "--depth", "384", "--budget", "210"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "one process alone: cannot even allocate the volume" in finished.stdout
    assert "7077888 windows, 0 differ from the direct computation" in finished.stdout
