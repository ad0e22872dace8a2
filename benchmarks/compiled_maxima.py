"""Max pooling and its gradient as they are launched, for the static table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from torch_dmlpool.kernels import (
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
from benchmarks.compiled import BYTES, Kernel, Row, dense, shown, walk_trips, within
from torch_dmlpool.operands import tap_dtype
from torch_dmlpool.window import Window

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
    return Row(name, *shown(channels_last, sizes, dtype, window, stride, dilation), tuple(kernels), total, copied)


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
        "max gradient", *shown(channels_last, sizes, dtype, window, stride, dilation), tuple(kernels), total, copied
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
        outer = [i for i in inside if not any(within(code.loops[i], code.loops[j]) for j in inside if j != i)]
        for phase, count, core in zip(outer, passes, cores, strict=True):
            result[phase] = count
            inner = [i for i in inside if i != phase and within(code.loops[i], code.loops[phase])]
            busiest = max(inner, key=lambda i: code.loops[i].loads, default=None)
            for i in inner:
                result[i] = core / max(1, code.loops[i].loads) if i == busiest else 0.0
        return result

    return trips


def _max_geometry(
    window: int, stride: int, sizes: tuple[int, ...], padding: int | None, dilation: int
) -> tuple[Window, tuple[int, ...], str]:
    padding = window // 2 * dilation if padding is None and window > 2 else padding or 0
    geometry = Window.directml(len(sizes), window, stride, padding, padding, dilation)
    return geometry, geometry.output_sizes(sizes), str(tap_dtype(geometry.taps)).removeprefix("torch.")


def max_rows() -> Iterator[Row]:
    for channels_last in (False, True):
        for dtype in ("float32", "float16"):
            for window, stride in ((2, 2), (3, 1), (3, 2), (5, 1), (7, 1)):
                for taps in (False, True):
                    yield max_row(dtype, window, stride, taps=taps, channels_last=channels_last)
            for window, stride in ((2, 2), (3, 1), (3, 2), (5, 1), (7, 1)):
                yield max_gradient_row(dtype, window, stride, channels_last=channels_last)
        for dtype in ("bfloat16", "int8"):
            for window, stride in ((2, 2), (3, 1), (3, 2), (5, 1), (7, 1)):
                yield max_row(dtype, window, stride, channels_last=channels_last)
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
