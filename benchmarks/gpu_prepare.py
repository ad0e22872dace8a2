"""`make gpu-prepare`: compiles what `make gpu` launches into `.gpu-cache`, which is carried to the GPU's machine.

Triton finds it there if its version and Python's are the same as here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".gpu-cache"


class _NoDriver:
    """What Triton asks of a driver when it compiles for a device that is not there."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device

    def get_current_target(self) -> Any:
        from benchmarks.compiler import SM_90

        return SM_90


class _NotRun:
    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *_: None


@contextmanager
def compiling() -> Iterator[list[Any]]:
    """Inside, launches on tensors without memory are compiled as for an H200, and not run; what was compiled."""
    import triton

    from torch_dmlpool.backends import triton as backend

    found: list[Any] = []
    compiled = backend._compiled

    def without_running(*request: Any) -> tuple[Any, Any]:
        found.append(compiled(*request))
        return _NotRun(), found[-1][1]

    triton.runtime.driver.set_active(_NoDriver())
    with (
        mock.patch.object(backend, "target", return_value="sm_90"),
        mock.patch.object(backend, "_compiled", without_running),
        mock.patch.object(backend, "launch", lambda how, *arguments: backend._run(how, arguments, 0)),
    ):
        yield found


def prepare(folder: Path, every: int = 1) -> int:
    """Compile what smoke and rows launch into a folder, and predict the rows."""
    folder.mkdir(exist_ok=True)
    os.environ["TRITON_CACHE_DIR"] = str(folder)
    from benchmarks import static
    from benchmarks.gpu_smoke import smoke_calls
    from torch_dmlpool.backends import triton as backend

    rows, before = static.rows()[::every], len(list(folder.glob("*/*.cubin")))
    cubins: dict[str, list[bytes]] = {}
    with compiling() as found:
        for row in rows:
            call = row.call_on("meta")[1]
            first = len(found)
            call()
            cubins[row.name] = [compiled.asm["cubin"] for compiled, _ in found[first:]]
        for _, call, input in list(smoke_calls())[::every]:
            call(backend, input.to("meta"))
    predictions = {row.name: static.Prediction(row, cubins[row.name]).fraction for row in rows}
    (folder / "predictions.json").write_text(json.dumps(predictions, indent=1))
    new = len(list(folder.glob("*/*.cubin"))) - before
    for path in folder.glob("*/*"):
        if path.suffix in (".ttir", ".ttgir", ".llir", ".source", ".ptx"):
            path.unlink()
    size = sum(path.stat().st_size for path in folder.glob("*/*"))
    print(f"{len(found)} launches, {new} compiled; {folder} has {size / 2**20:.0f} MiB")
    return 0


def relocate(folder: Path) -> None:
    """Triton's cache names its files by their whole paths: let them be those of the folder as it lies here."""
    for path in folder.glob("*/__grp__*.json"):
        group = json.loads(path.read_text())
        group["child_paths"] = {name: str(path.parent / name) for name in group["child_paths"]}
        path.write_text(json.dumps(group))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="only each so-manieth call and row")
    parser.add_argument("--folder", type=Path, default=CACHE)
    given = parser.parse_args()
    sys.exit(prepare(given.folder, given.every))
