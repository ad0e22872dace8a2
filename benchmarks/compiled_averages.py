"""Average pooling and its gradient as they are launched, for the static table."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from torch_dmlpool.kernels import average_pooling, average_pooling_launch, average_pooling_walk, launch

from benchmarks.compiled import BYTES, Kernel, Row, dense, shown, walk_trips
from torch_dmlpool.window import Window


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
    copied = BYTES[dtype] * (prod(shape) + total)
    return Row(name, *shown(channels_last, sizes, dtype, window, stride, dilation), tuple(kernels), total, copied)


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
