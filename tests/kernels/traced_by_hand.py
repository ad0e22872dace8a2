"""Traces kernels written for it and prints what their programs do, with TRITON_INTERPRET=1.

A process of its own, because ``benchmarks.traces`` changes the interpreter for good.
"""

import json
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import triton
import triton.language as tl

from benchmarks import cliffs, gpu_requests, traces


@triton.jit
def neighbours(x, y, sizes, B: tl.constexpr, STRIDE: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, tl.load(x + at * STRIDE))


@triton.jit
def looked_up(x, y, sizes, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, tl.load(x + 64 + tl.load(y + at)))


@triton.jit
def added_up(x, y, sizes, B: tl.constexpr):
    (steps,) = sizes
    at = tl.program_id(0) * B * steps + tl.arange(0, B)
    total = tl.zeros([B], tl.float32)
    for turn in range(steps):
        total += tl.load(x + at + turn * B)
    tl.store(y + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def halved(x, y, sizes, B: tl.constexpr):
    (n,) = sizes
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, tl.load(x + at // n))


@dataclass
class How:
    programs: int
    sizes: tuple[int, ...]
    constants: tuple[tuple[str, Any], ...]


def traced(kernel: Any, constants: dict[str, int], *sizes: int) -> dict[str, float]:
    """The last of five programs."""
    tensor = torch.empty(2**20, device="meta")
    numbers = torch.empty(2**20, dtype=torch.int32, device="meta")
    how = How(5, sizes, tuple(constants.items()))
    kernel.fn.__globals__["range"] = traces.turns
    (program,) = traces.programs_of(kernel, how, (tensor, numbers), 4, [4])
    return {name: value for name, value in vars(program).items() if isinstance(value, float)}


def exit_status(limit: float) -> int:
    """The exit status for a row that takes about as long as a copy, where that is the limit."""
    words = ["cliffs", "--rows", "table", "--processes", "1", "max", "2/2", "channels_last"]
    with mock.patch.object(cliffs, "CLIFF", limit), mock.patch.object(sys, "argv", words):
        return cliffs.main()


if __name__ == "__main__":
    found: dict[str, Any] = {
        "one element": traced(neighbours, {"B": 128, "STRIDE": 1}),
        "vectors": traced(neighbours, {"B": 1024, "STRIDE": 1}),
        "strided": traced(neighbours, {"B": 128, "STRIDE": 32}),
        "looked up": traced(looked_up, {"B": 128}),
        "divided": traced(halved, {"B": 128}, 2),
        "long loop": traced(added_up, {"B": 128}, 1000),
    }
    with mock.patch.object(traces, "TURNS", 10_000):
        found["every turn"] = traced(added_up, {"B": 128}, 1000)
    table = {request.name: request for request in gpu_requests.table()}
    pooled = cliffs.predicted(table["max 2/2 256x64x55x55 float16 channels_last"])
    found["times"], found["bound"] = pooled.times, pooled.bound
    found["status"] = [exit_status(3.0), exit_status(0.1)]
    print(json.dumps(found))
