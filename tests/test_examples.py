"""Every example runs as a user runs it, says what it found, and draws what it promises."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cases
import pytest

pytest.importorskip("sklearn")
pyplot = pytest.importorskip("matplotlib.pyplot")

EXAMPLES = Path(__file__).parent.parent / "examples"
SAID = {
    "beyond_torch.py": r"8-bit averages that are not exact\n  torch.nn +25.*%\n  torch_dmlpool +0.0%",
    "digits.py": "all 276 losses are equal bit for bit",
    "dilated_average.py": r"noise: 20.0 dB before, 29..",
    "int8_inference.py": r"\n0 of \d+ averages differ from exact fractions",
    "large_volume.py": "2097152 windows: 0 differ, their gradients add up to 2097152",
}


@cases.each("script", SAID, ["dilated_average.py"])
def test_an_example_ends_in_its_number_or_picture(script: str, tmp_path: Path, python: Callable[..., Any]) -> None:
    # On the CPU as users have it: under Triton's interpreter training would take an hour.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    finished = python(EXAMPLES / script, cwd=tmp_path, environment=environment)
    assert re.search(SAID[script], finished.stdout), finished.stdout
    for picture in re.findall(r"\w+\.png", (EXAMPLES / script).read_text()):
        assert pyplot.imread(tmp_path / picture).std() > 0.1


def test_every_example_is_run_and_fits_on_a_page() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAID)
    assert all(len(path.read_text().splitlines()) < 80 for path in EXAMPLES.glob("*.py"))
