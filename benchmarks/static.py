"""What the compiler makes of each kernel, without a GPU: ``python -m benchmarks.static > docs/static.md``.

Every family adds a function to ``FAMILIES`` that yields :class:`Row` objects; see ``benchmarks.sass`` for the model.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import triton
from torch_dmlpool.kernels import (
    average_pooling,
    average_pooling_launch,
    average_pooling_walk,
    launch,
    max_pooling,
    max_pooling_axes,
    max_pooling_grad,
    max_pooling_grad_launch,
    max_pooling_grad_words,
    max_pooling_launch,
    max_pooling_stream,
    max_pooling_strips,
    max_pooling_walk,
    max_pooling_walk_launch,
)

from benchmarks import sass
from torch_dmlpool.operands import tap_dtype
from torch_dmlpool.window import Window

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
        if len(code.loops) < 3 or not _within(code.loops[2], code.loops[1]):
            raise RuntimeError(f"{len(code.loops)} loops, not tasks, turns and lines")
        # Within the lines the core of a maximum: one unrolled loop makes its loads, if it is not unrolled as a whole.
        cores = range(3, len(code.loops))
        busiest = max(cores, key=lambda i: code.loops[i].loads, default=None)
        for i in cores:
            result[i] = core / max(1, code.loops[i].loads) if i == busiest else 0.0
        return result

    return programs * how.constants["B"], trips


def average_row(
    dtype: str,
    window: int,
    stride: int,
    *,
    adjoint: bool = False,
    channels_last: bool = False,
    include_padding: bool = True,
    sizes: tuple[int, ...] = (112, 112),
    batch: tuple[int, int] = (32, 64),
    padding: int | None = None,
    dilation: int = 1,
) -> Row:
    """Average pooling or its gradient, launched as ``kernels/average_pooling_launch.py`` says."""
    padding = window // 2 * dilation if padding is None and window > 2 else padding or 0
    geometry = Window.directml(len(sizes), window, stride, padding, padding, dilation)
    outputs = geometry.output_sizes(sizes)
    source, target = (outputs, sizes) if adjoint else (sizes, outputs)
    shape = (*batch, *source)
    problem = average_pooling_launch.AverageProblem(
        geometry, shape, dense(shape, channels_last), target, BYTES[dtype], True, channels_last,
        adjoint, include_padding, None,
    )  # fmt: skip
    kernels, read, read_type = [], prod(shape), dtype
    accumulated = "float64" if dtype == "float64" else "float32"
    for step in average_pooling_launch.average_steps(problem):
        written, written_type = (step.scratch, accumulated) if step.scratch else (prod(batch) * prod(target), dtype)
        lanes, loop_loads, trips = step.launch.sizes[0], (), None
        if step.kernel == "sum_axis":
            loop_loads = (launch.divided(step.launch.sizes[-1], 8) * 8,)
        if step.kernel == "sum_walk":
            rows, above = step.launch.constants["WINDOW"][0], step.launch.constants["START"][0]
            above = rows - 1 - above if adjoint else above
            lanes, trips = walk_trips(step.launch, rows, above, step.launch.sizes[8])
        kernels.append(
            Kernel(
                getattr(average_pooling_walk if step.kernel == "sum_walk" else average_pooling, step.kernel),
                (read_type, written_type, *([accumulated] if step.beside else [])),
                step.launch,
                lanes,
                read * BYTES[read_type] + written * BYTES[written_type],
                loop_loads,
                trips,
            )
        )
        read, read_type = written, written_type
    total = prod(batch) * prod(target)
    name = "average" + (" gradient" if adjoint else "") + ("" if include_padding else ", padding excluded")
    layout = "channels last" if channels_last else "contiguous"
    shown = " x ".join([str(window)] * len(sizes)) + f" / {stride}" + (f", dilation {dilation}" if dilation > 1 else "")
    if sizes != (112, 112):
        layout += " " + " x ".join(map(str, sizes))
    return Row(name, layout, dtype, shown, tuple(kernels), total, BYTES[dtype] * (prod(shape) + total))


def average_rows() -> Iterator[Row]:
    for adjoint in (False, True):
        for channels_last in (False, True):
            for dtype in ("float32", "float16"):
                for window, stride in ((2, 2), (3, 1), (3, 2), (5, 1), (7, 1)):
                    yield average_row(dtype, window, stride, adjoint=adjoint, channels_last=channels_last)
                yield average_row(dtype, 3, 1, adjoint=adjoint, channels_last=channels_last, include_padding=False)
    for dtype in ("float32", "float16"):
        for adjoint in (False, True):
            for window in (13, 31):
                yield average_row(dtype, window, 1, adjoint=adjoint)
            yield average_row(dtype, 3, 1, adjoint=adjoint, sizes=(113, 113))
            yield average_row(dtype, 3, 1, adjoint=adjoint, sizes=(32, 32, 32))
            yield average_row(dtype, 3, 1, adjoint=adjoint, sizes=(4096,))
            yield average_row(dtype, 3, 1, adjoint=adjoint, dilation=2)
        for adjoint in (False, True):
            yield average_row(dtype, 31, 1, channels_last=True, adjoint=adjoint)
        yield average_row(dtype, 7, 1, sizes=(7, 7), batch=(256, 512), padding=0)
        yield average_row(dtype, 112, 1, padding=0)


MAX_KERNELS = {"max_axis": max_pooling_axes, "max_windows": max_pooling, "max_stream": max_pooling_stream}


def max_row(
    dtype: str,
    window: int,
    stride: int,
    *,
    taps: bool = False,
    channels_last: bool = False,
    sizes: tuple[int, ...] = (112, 112),
    batch: tuple[int, int] = (32, 64),
    padding: int | None = None,
    dilation: int = 1,
    target: str = "sm_90",
) -> Row:
    """Max pooling, launched as ``kernels/max_pooling_launch.py`` says."""
    geometry, outputs, tap_type = _max_geometry(window, stride, sizes, padding, dilation)
    shape, target_shape = (*batch, *sizes), (*batch, *outputs)
    problem = max_pooling_launch.MaxProblem(
        launch.three_axes(geometry), len(sizes), batch, launch.three_sizes(sizes), launch.three_sizes(outputs),
        launch.five_strides(shape, dense(shape, channels_last)),
        launch.five_strides(target_shape, dense(target_shape, channels_last)),
        BYTES[dtype], "int" not in dtype, dtype == "bfloat16", True, target,
    )  # fmt: skip
    encode = max_pooling_launch.TAPS if taps else max_pooling_launch.NO_TAPS
    kernels, read, so_far = [], prod(shape), dtype
    passes = max_pooling_launch.max_passes(problem, encode)
    for step in passes:
        last = step is passes[-1]
        code = (tap_type if last else "int16") if taps else dtype
        moved = read * BYTES[dtype] + step.elements * BYTES[dtype]
        if taps:
            moved += step.elements * BYTES[code] + (read * BYTES[so_far] if step is not passes[0] else 0)
        pointers = {
            "max_windows": (dtype, dtype, code),
            "max_stream": (dtype, dtype, code),
            "max_axis": (dtype, so_far, dtype, code),
            "max_strips": (),
            "max_walk": (),
        }[step.kernel]
        if step.kernel == "max_walk":
            between = max_pooling_walk_launch.scratch_type(step.launch, dtype)
            columns = "uint8" if step.launch.constants["MODE"] == max_pooling_walk_launch.PAIRS else between
            constants = step.launch.constants
            lanes, trips = walk_trips(
                step.launch, constants["KH"], constants["PH"], step.launch.sizes[8], window - constants["R"]
            )
            pointers = (dtype, dtype, tap_type if taps else dtype, between, columns)
            kernels.append(Kernel(max_pooling_walk.max_walk, pointers, step.launch, lanes, moved, trips=trips))
            continue
        if step.kernel == "max_strips":
            lanes, trips = step.launch.programs * launch.LANES, _strip_trips(step.launch)
            kernels.append(Kernel(max_pooling_strips.max_strips, (dtype,) * 3, step.launch, lanes, moved, trips=trips))
            continue
        kernels.append(
            Kernel(
                getattr(MAX_KERNELS[step.kernel], step.kernel),
                pointers,
                step.launch,
                step.launch.sizes[0],
                moved,
                trips=_busiest(step.loads),
            )
        )
        read, so_far = step.elements, code
    total = prod(target_shape)
    copied = BYTES[dtype] * (prod(shape) + total) + (BYTES[tap_type] * total if taps else 0)
    name = "max with taps" if taps else "max"
    return Row(name, *_shown(channels_last, sizes, dtype, window, stride, dilation), tuple(kernels), total, copied)


def max_gradient_row(
    dtype: str,
    window: int,
    stride: int,
    *,
    channels_last: bool = False,
    sizes: tuple[int, ...] = (112, 112),
    batch: tuple[int, int] = (32, 64),
    padding: int | None = None,
    dilation: int = 1,
    target: str = "sm_90",
) -> Row:
    """The gradient of max pooling from taps."""
    geometry, outputs, tap_type = _max_geometry(window, stride, sizes, padding, dilation)
    shape, source = (*batch, *sizes), (*batch, *outputs)
    strides, incoming = (launch.five_strides(s, dense(s, channels_last)) for s in (shape, source))
    problem = max_pooling_grad_launch.GradProblem(
        launch.three_axes(geometry), len(sizes), batch, launch.three_sizes(sizes), launch.three_sizes(outputs),
        incoming, incoming, strides, BYTES[dtype], True, target,
    )  # fmt: skip
    kernels, read, read_types = [], prod(source), (dtype, tap_type)
    passes = max_pooling_grad_launch.grad_passes(problem)
    for step in passes:
        last = step is passes[-1]
        written = (dtype,) if last else ("float32", "int16")
        pointers = (*read_types, written[0], *(["int16"] if step.kernel == "grad_axis" else []))
        moved = read * sum(BYTES[t] for t in read_types) + step.elements * sum(BYTES[t] for t in written)
        kernels.append(
            Kernel(
                getattr(max_pooling_grad_words if "words" in step.kernel else max_pooling_grad, step.kernel),
                pointers,
                step.launch,
                step.launch.sizes[0],
                moved,
                trips=_busiest(step.loads),
            )
        )
        read, read_types = step.elements, written
    total = prod(shape)
    copied = BYTES[dtype] * (prod(source) + total) + BYTES[tap_type] * prod(source)
    return Row(
        "max gradient", *_shown(channels_last, sizes, dtype, window, stride, dilation), tuple(kernels), total, copied
    )


def _busiest(loads: float) -> Callable[[sass.Code], dict[int, float]] | None:
    """A kernel with one loop: its unrolled body makes all the loads, the remainder loop beside it none."""
    if not loads:
        return None

    def trips(code: sass.Code) -> dict[int, float]:
        busiest = max(range(len(code.loops)), key=lambda i: code.loops[i].loads, default=None)  # None: all unrolled
        return {i: loads / code.loops[i].loads if i == busiest else 0.0 for i in range(len(code.loops))}

    return trips


def _strip_trips(how: launch.Launch) -> Callable[[sass.Code], dict[int, float]]:
    """How often the loops of a strip run: over strips, then along the rows and down the columns, each over its core."""
    strips, programs, _, _, _, _, width, _, rows = how.sizes[:9]
    height, across, vector, lanes = (how.constants[name] for name in ("KH", "KW", "V", "B"))
    block = how.constants["R"]
    passes = ((rows + height - 1) * width / lanes, -(-rows // block) * width / lanes)
    cores = (across / vector - 2, height - block)

    def trips(code: sass.Code) -> dict[int, float]:
        result = {0: strips / programs}
        inside = [i for i, loop in enumerate(code.loops) if i and loop.last <= code.loops[0].last]
        outer = [i for i in inside if not any(_within(code.loops[i], code.loops[j]) for j in inside if j != i)]
        for phase, count, core in zip(outer, passes, cores, strict=True):
            result[phase] = count
            inner = [i for i in inside if i != phase and _within(code.loops[i], code.loops[phase])]
            busiest = max(inner, key=lambda i: code.loops[i].loads, default=None)
            for i in inner:
                result[i] = core / max(1, code.loops[i].loads) if i == busiest else 0.0
        return result

    return trips


def _within(inner: sass.Loop, outer: sass.Loop) -> bool:
    return outer.first <= inner.first and inner.last <= outer.last


def _max_geometry(
    window: int, stride: int, sizes: tuple[int, ...], padding: int | None, dilation: int
) -> tuple[Window, tuple[int, ...], str]:
    padding = window // 2 * dilation if padding is None and window > 2 else padding or 0
    geometry = Window.directml(len(sizes), window, stride, padding, padding, dilation)
    return geometry, geometry.output_sizes(sizes), str(tap_dtype(geometry.taps)).removeprefix("torch.")


def _shown(
    channels_last: bool, sizes: tuple[int, ...], dtype: str, window: int, stride: int, dilation: int
) -> tuple[str, str, str]:
    """Layout, type and window as the table names them."""
    layout = "channels last" if channels_last else "contiguous"
    if sizes != (112, 112):
        layout += " " + " x ".join(map(str, sizes))
    shown = " x ".join([str(window)] * len(sizes)) + f" / {stride}" + (f", dilation {dilation}" if dilation > 1 else "")
    return layout, dtype, shown


def max_rows() -> Iterator[Row]:
    for channels_last in (False, True):
        for dtype in ("float32", "float16"):
            for window, stride in ((2, 2), (3, 1), (3, 2), (5, 1), (7, 1)):
                for taps in (False, True):
                    yield max_row(dtype, window, stride, taps=taps, channels_last=channels_last)
            for window, stride in ((2, 2), (3, 1), (3, 2), (5, 1), (7, 1)):
                yield max_gradient_row(dtype, window, stride, channels_last=channels_last)
    for dtype in ("float32", "float16", "int8"):
        yield max_row(dtype, 3, 1, sizes=(113, 113))
        yield max_row(dtype, 3, 1, sizes=(32, 32, 32))
        yield max_row(dtype, 3, 1, sizes=(4096,))
        yield max_row(dtype, 3, 1, dilation=2)
        for window in (9, 13, 31):
            yield max_row(dtype, window, 1)
    for dtype in ("float32", "float16"):
        yield max_row(dtype, 31, 1, taps=True)
        yield max_row(dtype, 31, 1, channels_last=True)
        yield max_row(dtype, 31, 1, taps=True, channels_last=True)
        yield max_gradient_row(dtype, 31, 1)
        yield max_gradient_row(dtype, 3, 1, sizes=(113, 113))
        yield max_gradient_row(dtype, 3, 1, sizes=(32, 32, 32))


FAMILIES = {"average": average_rows, "max": max_rows}


def table(rows: Iterable[Row]) -> Iterator[str]:
    """The rows as lines of markdown."""
    yield "| operator | layout | type | window / stride | instructions | loads | registers | local | fraction | bound |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        result = measured(row)
        yield (
            f"| {row.operator} | {row.layout} | {row.dtype} | {row.window} | {result.instructions:.1f} | "
            f"{result.loads:.2f} | {result.registers} | {result.local or ''} | {result.fraction:.2f} | {result.bound} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", help=f"which of {', '.join(FAMILIES)}; all where none is named")
    families = parser.parse_args().families or list(FAMILIES)
    print("# What the compiler makes of the kernels\n")
    print(
        f"Triton {triton.__version__} for sm_90; `python -m benchmarks.static` prints this. Instructions and loads per "
        "output element; registers and accesses to\nlocal memory (spills) per thread; the predicted fraction of copy "
        "bandwidth on an H200, an upper bound, and what bounds it. Model and\nlimits: `benchmarks/sass.py`. Sizes "
        "32 x 64 x 112 x 112 where nothing else is said. A window in several launches counts all their traffic.\n"
    )
    for family in families:
        print(f"## {family.capitalize()} pooling\n")
        for line in table(FAMILIES[family]()):
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
