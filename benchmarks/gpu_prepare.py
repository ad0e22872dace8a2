"""`make gpu-prepare`: compiles what `make gpu` launches into `.gpu-cache`, by a process for each
processor.

Triton finds it there if its version and Python's are the same as here: on the GPU's machine, or
carried there.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
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


@contextmanager
def recorded() -> Iterator[list[tuple[Any, ...]]]:
    """Inside, launches on tensors without memory are not run; what the backend wants compiled for
    an H200."""
    from torch_dmlpool.backends import triton as backend

    found: list[tuple[Any, ...]] = []

    def launch(how: Any, *arguments: Any) -> None:
        found.append(backend.what_is_compiled(how, arguments, 0))

    with (
        mock.patch.object(backend, "runs_ptx", return_value=True),
        mock.patch.object(backend, "launch", launch),
    ):
        yield found


def _compile(wanted: tuple[Any, ...]) -> bytes | str:
    """The whole way that a launch takes on a GPU, up to the driver; why it failed."""
    import triton

    from torch_dmlpool.backends import triton as backend
    from torch_dmlpool.backends.fallbacks import KernelError

    triton.runtime.driver.set_active(_NoDriver())
    try:
        return backend._compiled(*wanted)[0].asm["cubin"]
    except KernelError as error:
        return str(error)


def _work(wanted: tuple[Any, ...]) -> int:
    """About how long a kernel takes to compile, in taps times elements of a tile."""
    constants = dict(wanted[1])
    taps = math.prod(
        constants[axis].window for axis in ("DEPTH", "ROW", "COLUMN") if axis in constants
    )
    form = constants.get("FORM")
    return taps * (math.prod(form.tile) * form.vector if form else 1)


def _predict(row: Any, cubins: list[bytes]) -> float:
    from benchmarks import static

    return static.Prediction(row, cubins).fraction


def prepare(
    folder: Path, every: int = 1, processes: int | None = None, predicts: bool = True
) -> int:
    """Compile what smoke and rows launch into a folder, each once, and predict the rows."""
    started = time.monotonic()
    folder.mkdir(exist_ok=True)
    os.environ["TRITON_CACHE_DIR"] = str(folder)  # of the processes, too
    from benchmarks.gpu_rows import measured
    from benchmarks.gpu_smoke import smoke_calls
    from torch_dmlpool.backends import triton as backend

    rows, before = list(measured())[::every], len(list(folder.glob("*/*.cubin")))
    of_rows = []
    with recorded() as found:
        for row in rows:
            call = row.call_on("meta")[1]
            first = len(found)
            call()
            of_rows.append(found[first:])
        for _, call, input in list(smoke_calls())[::every]:
            call(backend, input.to("meta"))
    # The slowest first, so that none is still being compiled when the other processors are done.
    launches = sorted(dict.fromkeys(found), key=_work, reverse=True)
    # Not forked: PyTorch has threads.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        codes = dict(zip(launches, pool.map(_compile, launches), strict=True))
        failed = list(dict.fromkeys(why for why in codes.values() if isinstance(why, str)))
        cubins = {wanted: code for wanted, code in codes.items() if isinstance(code, bytes)}
        predicted = [
            (row, [cubins[wanted] for wanted in of_row])
            for row, of_row in zip(rows, of_rows, strict=True)
            if predicts and cubins.keys() >= set(of_row)
        ]
        fractions = pool.map(_predict, *zip(*predicted, strict=True)) if predicted else []
        predictions = {
            row.name: fraction for (row, _), fraction in zip(predicted, fractions, strict=True)
        }
    (folder / "predictions.json").write_text(json.dumps(predictions, indent=1))
    new = len(list(folder.glob("*/*.cubin"))) - before
    for path in folder.glob("*/*"):
        if path.suffix in (".ttir", ".ttgir", ".llir", ".source", ".ptx"):
            path.unlink()
    size, seconds = (
        sum(path.stat().st_size for path in folder.glob("*/*")),
        time.monotonic() - started,
    )
    print(
        f"{len(launches)} launches, {new} compiled in {seconds:.0f} s; {folder} has "
        f"{size / 2**20:.0f} MiB"
    )
    for why in failed:
        print(f"Error: {why}")
    return 1 if failed else 0


def relocate(folder: Path) -> None:
    """Triton's cache names its files by their whole paths: let them be those of the folder as it
    lies here."""
    for path in folder.glob("*/__grp__*.json"):
        group = json.loads(path.read_text())
        group["child_paths"] = {name: str(path.parent / name) for name in group["child_paths"]}
        path.write_text(json.dumps(group))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="only every Nth call and row")
    parser.add_argument("--folder", type=Path, default=CACHE)
    parser.add_argument("--processes", type=int, help="as many as there are processors")
    parser.add_argument("--no-predictions", action="store_true", help="only compile")
    given = parser.parse_args()
    sys.exit(prepare(given.folder, given.every, given.processes, not given.no_predictions))
