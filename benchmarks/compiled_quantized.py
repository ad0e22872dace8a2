"""Quantized average pooling as it is launched, for the static table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from torch_dmlpool.kernels import quantized_average_pooling, quantized_average_pooling_stream, quantized_launch

from benchmarks import sass
from benchmarks.compiled import BYTES, Kernel, Row, dense, shown
from torch_dmlpool.window import Window

MODULES = {"quantized_stream": quantized_average_pooling_stream}


def quantized_row(
    window: int,
    stride: int,
    types: tuple[str, str] = ("uint8", "uint8"),
    *,
    channels_last: bool = False,
    include_padding: bool = True,
    each_channel: bool = False,
    sizes: tuple[int, ...] = (112, 112),
    batch: tuple[int, int] = (32, 64),
    target: str = "sm_90",
) -> Row:
    """A quantized average, scales and zero points tensors of one entry or of one for each channel."""
    padding = window // 2 if window > 2 else 0
    geometry = Window.directml(len(sizes), window, stride, padding, padding)
    shape, outputs = (*batch, *sizes), geometry.output_sizes(sizes)
    problem = quantized_launch.QuantizedProblem(
        geometry, shape, dense(shape, channels_last), outputs, True, channels_last, include_padding, target,
        (2, 2, 2, 2) if each_channel else (1, 1, 1, 1),
    )  # fmt: skip
    total = prod((*batch, *outputs))
    kernels, read, read_type = [], prod(shape), types[0]
    for step in quantized_launch.quantized_steps(problem):
        written, written_type = (step.scratch, "int32") if step.scratch else (total, types[1])
        parameters = () if step.scratch else ("float32", types[0], "float32", types[1])
        moved = read * BYTES[read_type] + written * BYTES[written_type]
        function = getattr(MODULES.get(step.kernel, quantized_average_pooling), step.kernel)
        pointers = (read_type, written_type, *parameters)
        kernels.append(Kernel(function, pointers, step.launch, step.launch.sizes[0], moved, trips=_turns(step, window)))
        read, read_type = written, written_type
    name = "quantized average" + (", padding excluded" if not include_padding else "")
    name += ", each channel's scale" if each_channel else ""
    layout, dtype, extent = shown(channels_last, sizes, types[0], window, stride, 1)
    return Row(name, layout, dtype, extent, tuple(kernels), total, prod(shape) + total)


def _turns(step: quantized_launch.Step, window: int) -> Callable[[sass.Code], dict[int, float]] | None:
    """How often loops run: a walk's one loop over turns of a window's rows, an axis' loop over its taps."""
    if step.kernel == "quantized_stream":
        return lambda code: dict.fromkeys(range(len(code.loops)), (step.launch.sizes[6] + window - 1) / window)
    if step.kernel == "quantized_axis":
        return lambda code: dict.fromkeys(range(len(code.loops)), -(-window // 8))
    return None


def quantized_rows() -> Iterator[Row]:
    for channels_last in (False, True):
        for window, stride in ((2, 2), (3, 1), (3, 2), (5, 1), (7, 1)):
            yield quantized_row(window, stride, channels_last=channels_last)
        yield quantized_row(3, 1, channels_last=channels_last, each_channel=True)
        yield quantized_row(7, 1, channels_last=channels_last, each_channel=True)
        yield quantized_row(3, 1, channels_last=channels_last, include_padding=False)
    yield quantized_row(3, 1, ("int8", "int8"))
    yield quantized_row(11, 1)
    yield quantized_row(31, 1)
    yield quantized_row(3, 1, sizes=(113, 113))
    yield quantized_row(3, 1, sizes=(32, 32, 32))
