"""A compiled kernel beside what it moves: rows of the static table, and their figures by the model of ``sass``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch_dmlpool.kernels import launch

from benchmarks import sass

BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float64": 8,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
}


@dataclass(frozen=True)
class Kernel:
    """One launch: the data types of its pointers, the elements it writes and the DRAM bytes it moves."""

    function: Any
    pointers: tuple[str, ...]
    launch: launch.Launch
    lanes: int
    bytes: int
    loop_loads: tuple[float, ...] = ()  # loads that a thread makes in all, in each innermost loop that has any
    trips: Callable[[sass.Code], dict[int, float]] | None = None  # for nested loops: how often each runs


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    operator: str
    layout: str
    dtype: str
    window: str
    kernels: tuple[Kernel, ...]
    outputs: int
    bytes: int  # what a copy would move: each input element read once, each output element written once


@dataclass(frozen=True)
class Measured:
    """A row's figures, per output element."""

    instructions: float
    loads: float
    registers: int
    local: int
    fraction: float
    bound: str


def measured(row: Row) -> Measured:
    """Compile the kernels of a row for sm_90 and add up what they cost."""
    instructions = loads = clocks = 0.0
    registers = local = 0
    bounds = []
    for kernel in row.kernels:
        how = kernel.launch
        binary = sass.compiled(kernel.function, kernel.pointers, how.sizes, how.constants, how.num_warps)
        code = sass.machine_code(binary)
        reading = [i for i, loop in enumerate(code.loops) if loop.loads]
        innermost = [
            i for i in reading
            if not any(code.loops[i].first <= code.loops[j].first and code.loops[j].last < code.loops[i].last
                       for j in reading if j != i)
        ]  # fmt: skip
        if kernel.loop_loads and len(innermost) != len(kernel.loop_loads):
            raise RuntimeError(f"{row}: {len(innermost)} loops with loads, {len(kernel.loop_loads)} were expected")
        trips = {i: total / code.loops[i].loads for i, total in zip(innermost, kernel.loop_loads, strict=False)}
        if kernel.trips is not None:
            trips = kernel.trips(code)
        cost = sass.cost(code, row.outputs / kernel.lanes, trips)
        cost["DRAM"] = kernel.bytes / row.outputs / sass.BYTES_PER_CLOCK
        worst = max(("DRAM", "issue", "alu", "L1"), key=lambda name: cost[name])
        bounds.append(worst)
        clocks += cost[worst]
        instructions += cost["instructions"]
        loads += cost["loads"]
        registers = max(registers, code.registers)
        local += code.local
    fraction = row.bytes / row.outputs / sass.BYTES_PER_CLOCK / clocks
    return Measured(instructions, loads, registers, local, min(1.0, fraction), ", ".join(dict.fromkeys(bounds)))


def dense(shape: tuple[int, ...], channels_last: bool) -> tuple[int, ...]:
    """Strides of a dense tensor."""
    order = [0, *range(2, len(shape)), 1] if channels_last else list(range(len(shape)))
    strides, step = [0] * len(shape), 1
    for dimension in reversed(order):
        strides[dimension] = step
        step *= shape[dimension]
    return tuple(strides)


def walk_trips(
    how: launch.Launch, window: int, above: int, lines: int, core: int = 0
) -> tuple[int, Callable[[sass.Code], dict[int, float]]]:
    """Threads of a walk with scratch, and how often its loops run: over tasks, turns, and a turn's lines inside."""
    tasks, programs, _, _, _, _, strips, rows = how.sizes[:8]
    height, turn = how.sizes[-8 if "WINDOW" in how.constants else -12], how.constants["M"]
    total = how.sizes[-6 if "WINDOW" in how.constants else -10]
    tops = []
    for top in range(0, strips * rows, rows):
        # A walk begins at the source's first row, and ends at the target's last.
        opening, closing = min(max(above - top, 0), window - 1), min(rows, total - top)
        tops += [top - above + row for row in range(opening, closing + window - 1, turn)]
    parts = sum(max(0, -(-min(height - top, turn) // lines) - max(-top, 0) // lines) for top in tops)

    def trips(code: sass.Code) -> dict[int, float]:
        result = {0: tasks / programs, 1: len(tops) / strips, 2: parts / len(tops)}
        if len(code.loops) < 3 or not within(code.loops[2], code.loops[1]):
            raise RuntimeError(f"{len(code.loops)} loops, not tasks, turns and lines")
        # Within the lines the core of a maximum: one unrolled loop makes its loads, if it is not unrolled as a whole.
        cores = range(3, len(code.loops))
        busiest = max(cores, key=lambda i: code.loops[i].loads, default=None)
        for i in cores:
            result[i] = core / max(1, code.loops[i].loads) if i == busiest else 0.0
        return result

    return programs * how.constants["B"], trips


def within(inner: sass.Loop, outer: sass.Loop) -> bool:
    return outer.first <= inner.first and inner.last <= outer.last


def shown(
    channels_last: bool, sizes: tuple[int, ...], dtype: str, window: int, stride: int, dilation: int
) -> tuple[str, str, str]:
    """Layout, type and window as the table names them."""
    layout = "channels last" if channels_last else "contiguous"
    if sizes != (112, 112):
        layout += " " + " x ".join(map(str, sizes))
    extent = (
        " x ".join([str(window)] * len(sizes)) + f" / {stride}" + (f", dilation {dilation}" if dilation > 1 else "")
    )
    return layout, dtype, extent
