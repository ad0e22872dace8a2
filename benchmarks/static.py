"""What compiled kernels can reach on an H200, without a GPU: ``python -m benchmarks.static >
docs/static.md``.

``benchmarks.sass`` has the model. Launches are those of the Triton backend, recorded on tensors
without memory.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor

from benchmarks import compiler, sass
from torch_dmlpool.backends import triton as backend
from torch_dmlpool.window import Window

SHAPE = (32, 64, 112, 112)
WHOLE = ((256, 2048, 7, 7), (256, 512, 14, 14), (32, 64, 112, 112))
"""The sizes of planes that one window covers whole."""
INTRODUCTION = """# Predicted kernels

What a model of an H200 (`benchmarks/sass.py`) predicts for each Triton kernel. Nothing here was
measured; docs/benchmarks.md has rows of an H200. `python -m benchmarks.static` prints this page.

- `fraction` is the time of copying the operands once, divided by the predicted time. 1 is the
  best that a kernel can reach.
- `bound` says what limits the kernel: memory, the latency of memory, the units that compute (ALU)
  or the instructions issued per cycle.
- `KiB in flight` is how much memory a multiprocessor has asked for at once, which hides the
  latency of memory.
- "With taps" means that the kernel also stores which element of each window won, for the backward
  pass. Spills are registers that were moved to memory.

Kernels are compiled by Triton {triton} for sm_90. Inputs have {shape} elements. Windows over
whole planes are computed for {wholes}.
"""
WINDOWS = ((3, 1), (5, 1), (7, 1), (3, 2), (2, 2))
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


Prepared = tuple[tuple[Tensor, ...], Callable[[], tuple[Tensor, ...]]]


@dataclass(frozen=True)
class Launched:
    """A launch of the backend: what is compiled, how many programs run, and the bytes of its
    tensors."""

    request: compiler.Request
    programs: int
    bytes: int
    loads: int  # that a thread makes in a kernel's loop; 0 where there is none


def _of_fold(how: Any, threads: int) -> int:
    block = dict(how.constants)["BLOCK"]
    elements = block.loads * block.results * block.positions
    return how.sizes[1] * elements // threads


LOADS: dict[str, Callable[[Any, int], int]] = {
    "folding.fold": _of_fold,
    "sliding.share": lambda how, _: 8 * how.sizes[1],
    "gathering.gather": lambda how, _: 8 * -(-how.sizes[3] // 4),
}
"""What each thread of a kernel loads in its loop, of a launch and its threads."""


@contextmanager
def recorded() -> Iterator[list[Launched]]:
    """Inside, the backend's launches are recorded instead of run, on whatever device tensors
    are."""
    record: list[Launched] = []

    def launch(how: Any, *arguments: Any) -> None:
        tensors = {id(each): each for each in arguments if isinstance(each, Tensor)}
        types = [
            compiler.POINTERS[str(each.dtype).removeprefix("torch.")]
            if isinstance(each, Tensor)
            else "fp32"
            if isinstance(each, float)
            else "i32"
            for each in arguments
        ]
        aligned = tuple(
            i
            for i, each in enumerate(arguments)
            if isinstance(each, Tensor) and each.data_ptr() % 16 == 0
        )
        kernel = backend.kernel_named(*how.kernel.split("."))
        request = compiler.Request(kernel, (*types, how.size_types), aligned, tuple(how.constants))
        loads = LOADS.get(how.kernel, lambda *_: 0)(how, 32 * request.warps)
        moved = sum(size_of(each) for each in tensors.values())
        record.append(Launched(request, how.programs, moved, loads))

    with (
        mock.patch.object(backend, "runs_ptx", return_value=True),
        mock.patch.object(backend, "launch", launch),
    ):
        yield record


def size_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.itemsize


@dataclass(frozen=True)
class Row:
    """A call: ``prepare`` makes of an input and a window what is read, and the call, which returns
    what it writes."""

    operator: str
    dtype: torch.dtype
    channels_last: bool
    window: int
    stride: int
    prepare: Callable[[Tensor, Window], Prepared] = field(repr=False)
    shape: tuple[int, ...] = SHAPE

    def call_on(self, device: str) -> Prepared:
        """With random numbers, but on meta tensors."""
        input = torch.empty(self.shape, dtype=self.dtype, device=device)
        least = -90 if self.dtype.is_signed else 0
        input = input.normal_() if self.dtype.is_floating_point else input.random_(least, 90)
        if self.channels_last:
            input = input.contiguous(memory_format=torch.channels_last)
        padding = self.window // 2 if 2 < self.window < self.shape[-1] else 0
        return self.prepare(input, Window.directml(2, self.window, self.stride, padding, padding))

    def launches(self) -> tuple[list[Launched], int]:
        """And the bytes that a copy of the call's operands moves."""
        with recorded() as record:
            operands, call = self.call_on("meta")
            record.clear()
            results = call()
        return record, sum(size_of(each) for each in (*operands, *results))

    @property
    def aim(self) -> float:
        """The fraction of a copy's speed that is meant to be reached."""
        if self.dtype.itemsize == 1:
            return 0.6
        return {5: 0.7, 7: 0.5}.get(
            self.window, 0.9 if self.operator in ("max", "average") else 0.85
        )

    @property
    def name(self) -> str:
        layout = "channels last" if self.channels_last else "contiguous"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.operator} | {layout} | {dtype} | {self.window}/{self.stride}"


def _maxima(input: Tensor, window: Window) -> Prepared:
    return (input,), lambda: (backend.max_pooling(input, window),)


def _taps(input: Tensor, window: Window) -> Prepared:
    return (input,), lambda: backend.max_pooling_with_taps(input, window)


def _max_backward(input: Tensor, window: Window) -> Prepared:
    gradient, taps = backend.max_pooling_with_taps(input, window)
    sizes, last = input.shape[2:], not input.is_contiguous()
    return (gradient, taps), lambda: (
        backend.max_pooling_grad_from_taps(gradient, taps, sizes, window, last),
    )


def _averages(input: Tensor, window: Window) -> Prepared:
    return (input,), lambda: (backend.average_pooling(input, window, True, None),)


def _average_backward(input: Tensor, window: Window) -> Prepared:
    gradient = backend.average_pooling(input, window, True, None)
    return (gradient,), lambda: (
        backend.average_pooling_grad(gradient, input.shape[2:], window, True, None),
    )


def _quantized(input: Tensor, window: Window) -> Prepared:
    scale = torch.full((1,), 0.1, device=input.device)
    given = (scale, scale.to(input.dtype), scale, scale.to(input.dtype), window, True, input.dtype)
    return (input,), lambda: (backend.quantized_linear_average_pooling(input, *given),)


OPERATORS = {
    "max": _maxima,
    "max with taps": _taps,
    "max backward": _max_backward,
    "average": _averages,
    "average backward": _average_backward,
}


def rows(windows: Sequence[tuple[int, int]] = WINDOWS) -> list[Row]:
    """In the order of doubt."""
    layouts = (False, True)
    result = [Row("quantized average", torch.uint8, last, 3, 1, _quantized) for last in layouts]
    result += [Row("max", torch.int8, last, 3, 1, _maxima) for last in layouts]
    for (window, stride), (name, run), dtype, last in itertools.product(
        windows, OPERATORS.items(), FLOATS, layouts
    ):
        result.append(Row(name, dtype, last, window, stride, run))
    result += [
        Row("max backward", dtype, last, 9, 1, _max_backward)
        for dtype in FLOATS[:2]
        for last in layouts
    ]
    for (name, run), dtype, last in itertools.product(OPERATORS.items(), FLOATS[:2], layouts):
        result.append(Row(name, dtype, last, 31, 1, run))
    wholes = itertools.product(WHOLE, OPERATORS.items(), FLOATS[:2], layouts)
    for shape, (name, run), dtype, last in wholes:
        result.append(Row(name, dtype, last, shape[-1], shape[-1], run, shape))
    return result + [
        Row("quantized average", torch.uint8, last, 14, 14, _quantized, WHOLE[1])
        for last in layouts
    ]


class Prediction:
    """Times of a row's launches added up, and what bounds the longest; ``cubins`` where they are
    compiled already."""

    def __init__(self, row: Any, cubins: Sequence[bytes] = ()) -> None:
        launches, copied = row.launches()
        self.kernels = [each.request.kernel.fn.__name__ for each in launches]
        cubins = cubins or [compiler.binary(each.request).asm["cubin"] for each in launches]
        codes = [sass.machine_code(cubin) for cubin in cubins]
        times = [
            sass.launch_time(
                code,
                each.programs,
                each.request.warps,
                each.bytes,
                each.loads or getattr(row, "window", 1),
            )
            for code, each in zip(codes, launches, strict=True)
        ]
        longest = max(times, key=lambda time: time.total)
        self.bound, self.in_flight = longest.bound, longest.in_flight
        self.registers, self.spills = (
            max(code.registers for code in codes),
            sum(code.spills for code in codes),
        )
        self.copy_clocks = copied / sass.PROCESSORS / sass.BYTES_PER_CLOCK
        self.fraction = min(1.0, self.copy_clocks / sum(time.total for time in times))

    def __str__(self) -> str:
        spills = f", {self.spills} spills" if self.spills else ""
        kernels = ", ".join(dict.fromkeys(self.kernels))
        return (
            f"{kernels} | {self.registers}{spills} | {self.in_flight / 1024:.0f} | "
            f"{self.bound} | {self.fraction:.2f}"
        )


HEAD = (
    "| operator | layout | type | window/stride | kernels | registers | KiB in flight "
    "| bound | fraction |"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "words",
        nargs="*",
        help="rows that have all these in their name; all rows where there is none",
    )
    words = parser.parse_args().words
    wholes = ", ".join(" x ".join(map(str, shape)) for shape in WHOLE)
    introduction = INTRODUCTION.format(
        triton=triton.__version__, shape=" x ".join(map(str, SHAPE)), wholes=wholes
    )
    print(f"{introduction}\n{HEAD}\n{'|---' * 9}|")
    below = []
    for row in rows():
        if not all(word in row.name for word in words):
            continue
        prediction = Prediction(row)
        print(f"| {row.name} | {prediction} |", flush=True)
        if prediction.fraction < row.aim:
            below.append(
                (
                    prediction.fraction / row.aim,
                    f"- {row.name}: {prediction.fraction:.2f} of {row.aim:.2f}",
                )
            )
    print("\n## Below the aim: what to measure first on a GPU\n")
    print("\n".join(line.replace(" | ", ", ") for _, line in sorted(below)) or "None.")


if __name__ == "__main__":
    main()
