"""Calls measured on a GPU, each beside a copy of the same bytes, its prediction and PyTorch's own
operator: the static model's rows, calls of real models, and KernelBench's pooling problems.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks import gpu_requests, static
from benchmarks.gpu_prepare import CACHE
from benchmarks.gpu_smoke import by_kernels, options
from torch_dmlpool.window import Window

# read between calls: several times the L2 cache, for longer than the host needs to launch a call
FLUSHED_BYTES = 2**29
CALLS = 10
WINDOWS = tuple(itertools.product((2, 3, 5, 7), (1, 2)))
BATCH = 32  # of the models' calls


class Measured(NamedTuple):
    """A call to measure, and what it is compared with."""

    name: str
    call_on: Callable[[str], static.Prepared]  # on a device: what is read, and the call
    request: gpu_requests.Request | None = None
    published: tuple[float, float] | None = None  # milliseconds of PyTorch and torch.compile

    def launches(self) -> tuple[list[static.Launched], int]:
        """The launches of the call, and the bytes that a copy of its operands and results moves."""
        with static.recorded() as record:
            operands, call = self.call_on("meta")
            record.clear()
            results = call()
        return record, sum(static.size_of(each) for each in (*operands, *results))


def measured() -> Iterator[Measured]:
    """KernelBench's problems first, then the models' calls, windows, and the models' gradients."""
    problems = zip(gpu_requests.kernelbench(), gpu_requests.PUBLISHED, strict=True)
    for request, published in problems:
        yield _of_request(request, published)
    forward, training = (
        dict.fromkeys(each for each in gpu_requests.models(training=way) if each.shape[0] == BATCH)
        for way in (False, True)
    )
    yield from map(_of_request, forward)
    for row in static.rows(WINDOWS):
        yield Measured(row.name, row.call_on)
    yield from (_of_request(each) for each in training if each not in forward)


def _of_request(
    request: gpu_requests.Request, published: tuple[float, float] | None = None
) -> Measured:
    return Measured(request.name, functools.partial(_on, request), request, published)


def _on(request: gpu_requests.Request, device: str) -> static.Prepared:
    operands, call = dataclasses.replace(request, device=device).prepared()

    def results() -> tuple[Tensor, ...]:
        found = call()
        return found if isinstance(found, tuple) else (found,)

    return operands, results


def aten(request: gpu_requests.Request, input: Tensor) -> Callable[[], Any] | None:
    """PyTorch's own operator, forward; None for gradients."""
    rank, by = len(request.shape) - 2, request.by
    if not isinstance(by, Window):
        pool = getattr(functional, f"adaptive_avg_pool{rank}d")
        return (lambda: pool(input, by)) if request.operator == "adaptive avg" else None
    given: dict[str, Any] = {
        "kernel_size": [axis.window for axis in by.axes],
        "stride": [axis.stride for axis in by.axes],
        "padding": [axis.start_padding for axis in by.axes],
        "ceil_mode": by.axes[0].ceil_mode,
    }
    if request.operator == "avg":
        given["count_include_pad"] = request.counted[0]
        if rank > 1:
            given["divisor_override"] = request.counted[1]
        pool = getattr(functional, f"avg_pool{rank}d")
    elif request.operator in ("max", "taps"):
        given["dilation"] = [axis.dilation for axis in by.axes]
        given["return_indices"] = request.operator == "taps"
        pool = getattr(functional, f"max_pool{rank}d")
    else:
        return None
    return lambda: pool(input, **given)


def on_gpu(call: Callable[[], Any], flush: Tensor) -> float:
    """The median of single calls between events, in seconds."""
    call()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(CALLS)]
    for start, stop in events:
        flush.sum()  # reading leaves no lines to be written back while the call runs
        start.record()
        call()
        stop.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(stop) for start, stop in events) / 1e3


def measure_rows(
    end: float,
    every: int,
    device: str = "cuda",
    seconds: Callable[[Callable[[], Any], Tensor], float] = on_gpu,
) -> int:
    """A line for each call at once, and in rows.jsonl; 1 if one failed or was not begun."""
    flush = torch.ones(FLUSHED_BYTES // 4 if device == "cuda" else 1, device=device)
    path, predictions = Path(os.environ.get("OUT", ".")) / "rows.jsonl", CACHE / "predictions.json"
    known = json.loads(predictions.read_text()) if predictions.is_file() else {}
    copies: dict[int, float] = {}
    wrong = left = 0
    with path.open("a") as log:
        for row in list(measured())[::every]:
            found: dict[str, Any] = {"row": row.name}
            if time.monotonic() > end:
                left += 1
                found["failed"] = "not begun"
            else:
                try:
                    found |= _times(row, device, copies, lambda call: seconds(call, flush))
                    found["predicted"] = known.get(row.name)
                except Exception as error:
                    wrong += 1
                    found["failed"] = f"{type(error).__name__}: {error}"
            log.write(json.dumps(found) + "\n")
            log.flush()
            print(line(found), flush=True)
    print(f"{wrong} failed, {left} not begun", flush=True)
    return 1 if wrong or left else 0


def _times(
    row: Measured,
    device: str,
    copies: dict[int, float],
    seconds: Callable[[Callable[[], Any]], float],
) -> dict[str, Any]:
    operands, call = row.call_on(device)
    moved = sum(static.size_of(each) for each in (*operands, *by_kernels(call)))
    if moved not in copies:
        source = torch.ones(moved // 2, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        copies[moved] = seconds(lambda: target.copy_(source))
    taken = seconds(call)
    found = {"seconds": taken, "copy": copies[moved], "fraction": copies[moved] / taken}
    pool = None if row.request is None else aten(row.request, operands[0])
    if pool is not None:
        found["aten"] = seconds(pool)
    if row.published is not None:
        found["published"] = [each / 1e3 for each in row.published]
    return found


def line(found: dict[str, Any]) -> str:
    """What is printed of a call."""
    if "failed" in found:
        return f"WRONG {found['row']}: {found['failed']}"
    parts = [f"{found['row']:58} {found['seconds'] * 1e6:8.1f} us"]
    parts.append(f"{found['fraction']:.2f} of the copy")
    if found["predicted"]:
        parts.append(f"predicted {found['predicted']:.2f}")
    if "aten" in found:
        parts.append(f"{found['aten'] / found['seconds']:.2f}x ATen")
    if "published" in found:
        times = " and ".join(f"{each / found['seconds']:.2f}x" for each in found["published"])
        parts.append(f"{times} the published PyTorch and torch.compile")
    return ", ".join(parts)


if __name__ == "__main__":
    given = options(__doc__)
    sys.exit(measure_rows(time.monotonic() + given.deadline, given.every))
