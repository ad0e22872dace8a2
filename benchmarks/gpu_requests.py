"""What a GPU is asked for: requests of networks and of the edges, calls of real models, and the
pooling problems of KernelBench."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends import triton as backend
from torch_dmlpool.window import Window

CALLS = Path(__file__).with_name("calls.json")
BATCHES = (32, 256)
F16, F32 = torch.float16, torch.float32
GRADIENTS = {"max": "max grad", "avg": "avg grad", "adaptive avg": "adaptive grad"}


@dataclass(frozen=True)
class Request:
    """An operator over an input of a shape, by a window, or of adaptive pooling by output sizes."""

    operator: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool
    by: Window | tuple[int, ...]
    label: str  # of the window
    counted: tuple[bool, int | None] = (True, None)  # whether padding is, and the divisor
    device: str = "meta"

    @property
    def name(self) -> str:
        shape, dtype = "x".join(map(str, self.shape)), str(self.dtype).removeprefix("torch.")
        layout = "channels_last" if self.channels_last else "contiguous"
        return f"{self.operator} {self.label} {shape} {dtype} {layout}"

    @property
    def output_sizes(self) -> tuple[int, ...]:
        spatial = self.shape[2:]
        return self.by.output_sizes(spatial) if isinstance(self.by, Window) else self.by

    def tensor(self, sizes: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """A tensor in the request's layout. It holds random numbers, or taps of the window if a
        data type is given. On the device "meta" it has no memory.
        """
        shape = (*self.shape[:2], *sizes)
        made = torch.empty(shape, dtype=dtype or self.dtype, device=self.device)
        if self.device == "meta":
            pass
        elif dtype is not None and isinstance(self.by, Window):
            made.random_(0, self.by.taps)
        elif made.is_floating_point():
            made.normal_()
        else:
            made.random_(-90 if made.dtype.is_signed else 0, 90)
        if not self.channels_last:
            return made
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        return made.contiguous(memory_format=formats[made.dim()])

    def prepared(self) -> tuple[tuple[Tensor, ...], Callable[[], Any]]:
        """What is read, and the call of the backend, which returns what is written."""
        return OPERATORS[self.operator](self)


Prepared = tuple[tuple[Tensor, ...], Callable[[], Any]]


def _of_input(call: Callable[[Tensor, Request], Any]) -> Callable[[Request], Prepared]:
    def prepared(request: Request) -> Prepared:
        input = request.tensor(request.shape[2:])
        return (input,), lambda: call(input, request)

    return prepared


def _of_gradient(call: Callable[[Tensor, Request], Any]) -> Callable[[Request], Prepared]:
    def prepared(request: Request) -> Prepared:
        gradient = request.tensor(request.output_sizes)
        return (gradient,), lambda: call(gradient, request)

    return prepared


def _max_gradient(request: Request) -> Prepared:
    sizes, window, last = request.output_sizes, request.by, request.channels_last
    gradient = request.tensor(sizes)
    taps = request.tensor(sizes, operands.tap_dtype(window.taps))
    grad = backend.max_pooling_grad_from_taps
    return (gradient, taps), lambda: grad(gradient, taps, request.shape[2:], window, last)


def _quantized(input: Tensor, request: Request) -> Tensor:
    numbers = (0.5, 3, 0.5, 3)
    return backend.quantized_linear_average_pooling(
        input, *numbers, request.by, request.counted[0], input.dtype
    )


OPERATORS: dict[str, Callable[[Request], Prepared]] = {
    "max": _of_input(lambda x, of: backend.max_pooling(x, of.by)),
    "taps": _of_input(lambda x, of: backend.max_pooling_with_taps(x, of.by)),
    "max grad": _max_gradient,
    "avg": _of_input(lambda x, of: backend.average_pooling(x, of.by, *of.counted)),
    "avg grad": _of_gradient(
        lambda x, of: backend.average_pooling_grad(x, of.shape[2:], of.by, *of.counted)
    ),
    "quantized avg": _of_input(_quantized),
    "adaptive avg": _of_input(lambda x, of: backend.adaptive_average_pooling(x, of.by)),
    "adaptive max": _of_input(lambda x, of: backend.adaptive_max_pooling(x, of.by)),
    "adaptive grad": _of_gradient(
        lambda x, of: backend.adaptive_average_pooling_grad(x, of.shape[2:])
    ),
}


def sliding(
    operator: str, shape: tuple[int, ...], dtype: torch.dtype, last: bool, *window: int
) -> Request:
    """A window of a size, stride, padding on both sides and dilation, the same along all axes."""
    size, stride, padding, dilation = (*window, *(None, window[0], 0, 1)[len(window) :])
    made = Window.directml(len(shape) - 2, size, stride, padding, padding, dilation)
    label = f"{size}/{stride}" + f" padding {padding}" * (padding > 0)
    return Request(
        operator, shape, dtype, last, made, label + f" dilation {dilation}" * (dilation > 1)
    )


def whole(operator: str, shape: tuple[int, ...], dtype: torch.dtype, last: bool = False) -> Request:
    """One window over each plane."""
    window = Window.directml(len(shape) - 2, shape[2:], 1)
    return Request(operator, shape, dtype, last, window, "whole")


def adaptive(
    operator: str, shape: tuple[int, ...], dtype: torch.dtype, last: bool, *sizes: int
) -> Request:
    return Request(operator, shape, dtype, last, sizes, f"to {'x'.join(map(str, sizes))}")


BOTH, ROWS = (False, True), (False,)
WHOLE = {
    F16: {
        (256, 2048, 7, 7): [("avg", BOTH), ("avg grad", BOTH), ("max", BOTH), ("max grad", BOTH)],
        (256, 512, 14, 14): [("avg", BOTH), ("max grad", ROWS)],
        (1, 64, 112, 112): [("avg", BOTH)],
        (1, 64, 1_000_000): [("max", ROWS)],
        (32, 768, 200): [("avg", ROWS)],
        (64, 512, 8, 8, 8): [("avg", BOTH)],
    },
    F32: {
        (1, 2048, 7, 7): [("avg", BOTH)],
        (256, 512, 7, 7): [("taps", ROWS)],
        (256, 1024, 8, 8): [("avg", BOTH), ("taps", ROWS)],
        (32, 64, 112, 112): [("avg", BOTH), ("taps", BOTH), ("max grad", ROWS), ("avg grad", ROWS)],
        (1, 64, 1_000_000): [(one, ROWS) for one in ("avg", "taps", "max grad", "avg grad")],
        (32, 768, 200): [("max", ROWS)],
        (32, 1024, 2048): [("taps", ROWS), ("max grad", ROWS)],
        (64, 512, 8, 8, 8): [("taps", ROWS)],
    },
    torch.int8: {
        (256, 2048, 7, 7): [("quantized avg", BOTH)],
        (64, 512, 14, 14): [("quantized avg", BOTH)],
    },
    torch.uint8: {(1, 1280, 7, 7): [("quantized avg", ROWS)]},
}
IMAGE = (32, 64, 112, 112)
ODD, ODDER, SMALL = (256, 64, 55, 55), (256, 64, 111, 111), (16, 512, 13, 13)
SLIDING: list[tuple[Any, ...]] = [
    ("taps", IMAGE, F16, BOTH, 2),
    ("max grad", IMAGE, F16, BOTH, 2),
    ("max", ODD, F16, BOTH, 2),
    ("taps", ODD, F32, ROWS, 2),
    ("max grad", ODD, F16, ROWS, 2),
    ("avg", ODD, F16, ROWS, 2),
    ("taps", (8, 64, 32, 32, 32), F16, BOTH, 2),
    ("taps", IMAGE, F16, BOTH, 3, 2, 1),
    ("max", ODDER, F16, BOTH, 3, 2, 1),
    ("max grad", ODD, F16, BOTH, 3, 2, 1),
    ("max", (256, 192, 13, 13), F32, ROWS, 3, 2),
    ("avg", IMAGE, F16, BOTH, 3, 1, 1),
    ("avg grad", (256, 256, 14, 14), F32, ROWS, 3, 1, 1),
    ("avg", (256, 256, 7, 7), F16, BOTH, 3, 1, 1),
    ("avg", (2, 64, 33, 33, 33), F32, ROWS, 3, 1, 1),
    ("max", (16, 256, 20, 20), F16, BOTH, 5, 1, 2),
    ("taps", (32, 64, 110, 110), F32, ROWS, 5),
    ("avg", IMAGE, F32, BOTH, 7),
    ("max", SMALL, F16, ROWS, 9, 1, 4),
    ("max grad", SMALL, F32, BOTH, 9, 1, 4),
    ("max grad", IMAGE, F32, BOTH, 9, 1, 4),
    ("avg grad", IMAGE, F32, BOTH, 9, 1, 4),
    ("max", SMALL, F32, BOTH, 13, 1, 6),
    ("max", (1, 512, 20, 20), F16, ROWS, 13, 1, 6),
    ("avg", (8, 64, 128, 128), F32, BOTH, 31, 1, 15),
    ("avg grad", (8, 64, 128, 128), F32, BOTH, 31, 1, 15),
    ("taps", (8, 64, 128, 128), F16, ROWS, 31, 2, 15),
    ("max", (8, 64, 512, 512), F32, BOTH, 64),
    ("avg", (8, 64, 512, 512), F16, BOTH, 64),
    ("avg grad", (8, 64, 512, 512), F16, ROWS, 64),
    ("max grad", (8, 64, 512, 512), F32, ROWS, 64),
    ("avg", (32, 64, 8192), F32, ROWS, 64, 1),
    ("avg grad", (32, 64, 8192), F32, ROWS, 64, 1),
    ("max", (32, 64, 65536), F16, ROWS, 64),
]
ADAPTIVE: list[tuple[Any, ...]] = [
    ("adaptive avg", (32, 512, 13, 13), F32, BOTH, 7, 7),
    ("adaptive avg", (64, 256, 224, 224), F16, ROWS, 6, 6),
    ("adaptive avg", (256, 2048, 7, 7), F32, BOTH, 1, 1),
    ("adaptive max", (256, 512, 7, 7), F32, ROWS, 1, 1),
    ("adaptive grad", (32, 512, 13, 13), F32, BOTH, 7, 7),
    ("adaptive grad", (256, 2048, 7, 7), F32, ROWS, 1, 1),
]


def table() -> Iterator[Request]:
    """What networks do most, and the edges of what each kernel computes."""
    for dtype, shapes in WHOLE.items():
        for shape, wanted in shapes.items():
            for operator, layouts in wanted:
                yield from (whole(operator, shape, dtype, last) for last in layouts)
    for operator, shape, dtype, layouts, *window in SLIDING:
        yield from (sliding(operator, shape, dtype, last, *window) for last in layouts)
    window = Window.directml(2, 3, 1, 1, 1)
    yield Request("avg", (1, 64, 56, 56), F32, False, window, "3/1 excluded", (False, None))
    for operator, shape, dtype, layouts, *sizes in ADAPTIVE:
        yield from (adaptive(operator, shape, dtype, last, *sizes) for last in layouts)


def models(training: bool = False) -> Iterator[Request]:
    """The calls of real models at both batches, with their gradients in training."""
    for call in json.loads(CALLS.read_text())["calls"]:
        operator = call["operator"].partition("_pool")[0].replace("_", " ")
        sizes, last = call["shape"][1:], call.get("channels_last", False)
        for shape in ((batch, *sizes) for batch in BATCHES):
            if "output_size" in call:
                requests = [adaptive(operator, shape, F32, last, *call["output_size"])]
            else:
                requests = [_of_model(operator, shape, last, call)]
            forward = requests[0]
            if training and operator == "max":
                requests = [_changed(forward, "taps")]
            requests += [_changed(forward, GRADIENTS[operator])] * training
            yield from requests


def _of_model(operator: str, shape: tuple[int, ...], last: bool, call: dict[str, Any]) -> Request:
    kernel, stride, padding = (call[name] for name in ("kernel_size", "stride", "padding"))
    window = Window.directml(
        len(kernel), kernel, stride, padding, padding, call.get("dilation", 1), call["ceil_mode"]
    )
    text = ["x".join(map(str, each)) for each in (kernel, stride, padding)]
    label = f"{text[0]}/{text[1]} padding {text[2]}"
    counted = call.get("count_include_pad", True), call.get("divisor_override")
    return Request(operator, shape, F32, last, window, label, counted)


def _changed(request: Request, operator: str) -> Request:
    return Request(
        operator, *(getattr(request, name) for name in list(Request.__annotations__)[1:])
    )


PUBLISHED = (10.7, 2.85), (10.8, 4.33), (3.93, 5.65), (5.47, 3.13), (6.40, 6.34), (8.69, 8.70)
"""Milliseconds of PyTorch and of torch.compile that KernelBench has published for its problems, on
an H100."""


def kernelbench() -> Iterator[Request]:
    """The pooling problems of KernelBench's first level."""
    yield sliding("max", (64, 192, 65536), F32, False, 8, 1, 4, 3)
    yield sliding("max", (32, 64, 512, 512), F32, False, 4, 1, 1)
    yield sliding("max", (16, 32, 128, 128, 128), F32, False, 3, 2, 1, 3)
    yield sliding("avg", (64, 128, 65536), F32, False, 8, 1, 4)
    yield sliding("avg", (16, 64, 2048, 2048), F32, False, 11)
    yield sliding("avg", (16, 32, 128, 128, 256), F32, False, 3, 2, 1)


class Family(NamedTuple):
    """Requests that differ in sizes alone, and how many kernels they may need."""

    name: str
    most: int
    requests: list[Request]


FLOATS = (torch.float64, F32, F16, torch.bfloat16)
INTEGERS = tuple(
    getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)
)
DTYPES = {
    "avg": FLOATS,
    "avg grad": FLOATS,
    "max": FLOATS + INTEGERS,
    "taps": FLOATS + INTEGERS,
    "max grad": FLOATS,
    "quantized avg": (torch.int8, torch.uint8),
    "adaptive avg": FLOATS,
    "adaptive grad": FLOATS,
    "adaptive max": FLOATS + INTEGERS,
}


def families(every: int = 1) -> Iterator[Family]:
    """Requests that need a kernel per size where a size is compiled in; every ``every``-th one."""
    draw = random.Random(7)
    images = [(draw.randint(32, 1024), draw.randint(32, 1024)) for _ in range(100)][::every]
    planes = [(h, w) for h in range(1, 35) for w in range(1, 35)][::every]
    for operator, dtype in ((name, one) for name, dtypes in DTYPES.items() for one in dtypes):
        title = f"{operator} {str(dtype).removeprefix('torch.')}"
        if operator.startswith("adaptive"):
            rows = [
                adaptive(operator, (8, 64, *image), dtype, False, n, n)
                for image in images
                for n in (7, 6, 1)
            ]
            yield Family(f"{title}, images to 7x7, 6x6, 1x1", 12, rows)
            continue
        rows = [whole(operator, (8, 64, n), dtype) for n in range(1, 513, every)]
        yield Family(f"{title}, whole rows of 1 to 512", 12, rows)
        rows = [whole(operator, (8, 64, *plane), dtype) for plane in planes]
        yield Family(f"{title}, whole planes up to 34x34", 12, rows)
        for window in ((3, 2, 1), (2,), (3, 1, 1)):
            rows = [
                sliding(operator, (1, 64, *image), dtype, last, *window)
                for image in images
                for last in (False, True)
            ]
            yield Family(f"{title}, {rows[0].label} over images in both layouts", 24, rows)
