"""The static model's rows measured on a GPU, each beside its prediction and a copy of the same
bytes."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import static
from benchmarks.gpu_prepare import CACHE
from benchmarks.gpu_smoke import options

# read between calls: several times the L2 cache, for longer than the host needs to launch a call
FLUSHED_BYTES = 2**29
CALLS = 10


def measure_rows(end: float, every: int) -> int:
    """Each row's fraction of a copy's speed beside its prediction: a line at once, and in
    rows.jsonl."""
    flush = torch.ones(FLUSHED_BYTES // 4, device="cuda")
    path, predictions = Path(os.environ.get("OUT", ".")) / "rows.jsonl", CACHE / "predictions.json"
    known = json.loads(predictions.read_text()) if predictions.is_file() else {}
    copies: dict[int, float] = {}

    def seconds(call: Callable[[], Any]) -> float:
        call()
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(CALLS)]
        for start, stop in events:
            flush.sum()  # reading leaves no lines to be written back while the call runs
            start.record()
            call()
            stop.record()
        torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(stop) for start, stop in events) / 1e3

    with path.open("a") as log:
        for row in static.rows()[::every]:
            if time.monotonic() > end:
                print(f"not begun: {row.name}", flush=True)
                continue
            try:
                operands, call = row.call_on("cuda")
                moved = sum(static.size_of(each) for each in (*operands, *call()))
                if moved not in copies:
                    source = torch.ones(moved // 2, dtype=torch.uint8, device="cuda")
                    target = torch.empty_like(source)
                    copies[moved] = seconds(lambda: target.copy_(source))  # noqa: B023
                taken = seconds(call)
            except Exception as error:
                print(f"WRONG {row.name}: {type(error).__name__}: {error}", flush=True)
                continue
            found = {
                "row": row.name,
                "seconds": taken,
                "copy": copies[moved],
                "fraction": copies[moved] / taken,
            }
            found["predicted"] = known.get(row.name)
            log.write(json.dumps(found) + "\n")
            log.flush()
            beside = (
                f"predicted {found['predicted']:.2f}" if found["predicted"] else "not predicted"
            )
            print(
                f"{row.name:58} {taken * 1e6:7.1f} us  {found['fraction']:.2f} of the copy, "
                f"{beside}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    given = options(__doc__)
    sys.exit(measure_rows(time.monotonic() + given.deadline, given.every))
