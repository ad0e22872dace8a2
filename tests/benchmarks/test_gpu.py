"""`make gpu` on a machine where nothing of this package is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks import gpu


def test_the_kernels_of_the_checkout_are_imported(tmp_path: Path) -> None:
    """Package and kernels lie apart in a checkout: the steps find both, whatever folder they start in."""
    environment = gpu.environment_of(tmp_path)
    code = "import benchmarks, torch_dmlpool; print(torch_dmlpool.__file__); "
    code += "from torch_dmlpool.kernels import launch; print(launch.__file__)"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, cwd=gpu.ROOT, env=environment, capture_output=True, text=True, check=True)
    assert [Path(line).is_relative_to(tmp_path) for line in found.stdout.split()] == [True, True]
