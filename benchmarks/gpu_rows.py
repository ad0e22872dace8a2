"""What a GPU is asked for, in the order in which it is measured, and how: calls of public models,
KernelBench's pooling problems, windows of 2 to 31 and whole planes; peers."""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import torch_dmlpool as dmlpool
from benchmarks import common
from torch_dmlpool import operands
from torch_dmlpool.backends import fallbacks
from torch_dmlpool.backends import triton as backend
from torch_dmlpool.window import Window


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
    trains: bool = False  # whether a public function is called in training

    @property
    def name(self) -> str:
        shape, dtype = "x".join(map(str, self.shape)), str(self.dtype).removeprefix("torch.")
        layout = "channels_last" if self.channels_last else "contiguous"
        return f"{self.operator} {self.label} {shape} {dtype} {layout}{' training' * self.trains}"

    def tensor(self, device: str, sizes: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """In the request's layout, with random numbers, or of a ``dtype`` with taps."""
        made = torch.empty((*self.shape[:2], *sizes), dtype=dtype or self.dtype, device=device)
        if dtype is not None and isinstance(self.by, Window):
            made.random_(0, self.by.taps)
        elif made.is_floating_point():
            made.normal_()
        else:
            made.random_(-90 if made.dtype.is_signed else 0, 90)
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        return made.contiguous(memory_format=formats[made.dim()]) if self.channels_last else made

    def prepared(self, device: str = "meta") -> tuple[tuple[Tensor, ...], Callable[[], Any]]:
        """What is read, and the call of the backend, which returns what is written."""
        sizes = self.by.output_sizes(self.shape[2:]) if isinstance(self.by, Window) else self.by
        read = [self.tensor(device, sizes if "grad" in self.operator else self.shape[2:])]
        if self.operator == "max grad":
            assert isinstance(self.by, Window)
            read.append(self.tensor(device, sizes, operands.tap_dtype(self.by.taps)))
        return tuple(read), functools.partial(OPERATORS[self.operator], self, *read)


OPERATORS: dict[str, Callable[..., Any]] = {
    "max": lambda of, x: backend.max_pooling(x, of.by),
    "taps": lambda of, x: backend.max_pooling_with_taps(x, of.by),
    "max grad": lambda of, g, taps: backend.max_pooling_grad_from_taps(
        g, taps, of.shape[2:], of.by, of.channels_last
    ),
    "avg": lambda of, x: backend.average_pooling(x, of.by, *of.counted),
    "avg grad": lambda of, g: backend.average_pooling_grad(g, of.shape[2:], of.by, *of.counted),
    "quantized avg": lambda of, x: backend.quantized_linear_average_pooling(
        x, 0.5, 3, 0.5, 3, of.by, of.counted[0], x.dtype
    ),
    "adaptive avg": lambda of, x: backend.adaptive_average_pooling(x, of.by),
    "adaptive max": lambda of, x: backend.adaptive_max_pooling(x, of.by),
    "adaptive grad": lambda of, g: backend.adaptive_average_pooling_grad(g, of.shape[2:]),
}
F16, F32, BF16 = torch.float16, torch.float32, torch.bfloat16
IMAGE = (32, 64, 112, 112)
# Read between calls: several times the L2 cache, for longer than the host needs to launch a call.
FLUSHED_BYTES = 2**29
CALLS, HOST_CALLS = 10, 100
RIVALS = "aten", "compiled", "cudnn"
PUBLISHED = {
    "max 8/1 padding 4 dilation 3 64x192x65536": (10.7, 2.85),
    "max 4/1 padding 1 32x64x512x512": (10.8, 4.33),
    "max 3/2 padding 1 dilation 3 16x32x128x128x128": (3.93, 5.65),
    "avg 8/1 padding 4 64x128x65536": (5.47, 3.13),
    "avg 11/11 16x64x2048x2048": (6.40, 6.34),
    "avg 3/2 padding 1 16x32x128x128x256": (8.69, 8.70),
}
"""KernelBench's pooling problems, with the milliseconds of PyTorch and of torch.compile that it
publishes for an H100."""
BY_BANDWIDTH = 4.6 / 3.0
"""How many times as fast as an H100 an H200 copies."""


def sliding(
    operator: str, shape: tuple[int, ...], dtype: torch.dtype, last: bool, *window: int
) -> Request:
    """A window of a size, stride, padding on both sides and dilation, the same along all axes."""
    size, stride, padding, dilation = (*window, *(None, window[0], 0, 1)[len(window) :])
    by = Window.directml(len(shape) - 2, size, stride, padding, padding, dilation)
    label = f"{size}/{stride}" + f" padding {padding}" * (padding > 0)
    label += f" dilation {dilation}" * (dilation > 1)
    return Request(operator, shape, dtype, last, by, label)


def whole(operator: str, shape: tuple[int, ...], dtype: torch.dtype, last: bool = False) -> Request:
    """One window over each plane."""
    window = Window.directml(len(shape) - 2, shape[2:], 1)
    return Request(operator, shape, dtype, last, window, "whole")


def adaptive(
    operator: str, shape: tuple[int, ...], dtype: torch.dtype, last: bool, *sizes: int
) -> Request:
    return Request(operator, shape, dtype, last, sizes, f"to {'x'.join(map(str, sizes))}")


def of_models(batch: int = 32) -> Iterator[tuple[Request, list[Request]]]:
    """The calls of public models: forward, and what training adds."""
    for call in common.load(Path(__file__).with_name("calls.json"))["calls"]:
        operator = call["operator"].partition("_pool")[0].replace("_", " ")
        shape, last = (batch, *call["shape"][1:]), call.get("channels_last", False)
        if "output_size" in call:
            forward = adaptive(operator, shape, F32, last, *call["output_size"])
        else:
            given = [call[name] for name in ("kernel_size", "stride", "padding")]
            by = Window.directml(
                len(given[0]), *given, given[2], call.get("dilation", 1), call["ceil_mode"]
            )
            text = ["x".join(map(str, each)) for each in given]
            counted = call.get("count_include_pad", True), call.get("divisor_override")
            label = f"{text[0]}/{text[1]} padding {text[2]}"
            forward = Request(operator, shape, F32, last, by, label, counted)
        yield forward, training_of(forward)


def training_of(forward: Request) -> list[Request]:
    """What training asks for."""
    names = {"max": ("taps", "max grad"), "avg": ("avg grad",), "adaptive avg": ("adaptive grad",)}
    return [replace(forward, operator=name, trains=False) for name in names[forward.operator]]


def published() -> list[Request]:
    """KernelBench's pooling problems."""
    found = []
    for text in PUBLISHED:
        operator, window, *more, shape = text.split()
        numbers = [int(number) for number in (*window.split("/"), *more[1::2])]
        found.append(sliding(operator, tuple(map(int, shape.split("x"))), F32, False, *numbers))
    return found


def rows() -> list[Request]:
    """What is measured: first what no GPU has measured, then the rest."""
    both, every = (False, True), ("max", "taps", "max grad", "avg", "avg grad")
    calls_of_models = list(of_models())
    folds = [each for each, _ in calls_of_models if each.operator == "adaptive avg"]
    found = [replace(each, channels_last=last) for last in (True, False) for each in folds]
    found += [each for _, more in calls_of_models for each in more]
    found += [*published(), *(each for each, _ in calls_of_models)]
    found += [sliding("quantized avg", IMAGE, torch.uint8, last, 3, 1, 1) for last in both]
    found += [sliding("max", IMAGE, torch.int8, last, 3, 1, 1) for last in both]
    for size, stride, operator, dtype, last in itertools.product(
        (9, 31, 7, 5, 3, 2), (1, 2), every, (F32, F16, BF16), both
    ):
        is_long = size > 7
        if not is_long or (stride == 1 and dtype is not BF16 and (size > 9 or "grad" in operator)):
            padding = size // 2 if size > 2 else 0
            found.append(sliding(operator, IMAGE, dtype, last, size, stride, padding))
    for shape in ((256, 2048, 7, 7), (256, 512, 14, 14), IMAGE):
        wholes = itertools.product(every, (F32, F16), both)
        found += [whole(operator, shape, dtype, last) for operator, dtype, last in wholes]
    found += [whole("quantized avg", (256, 512, 14, 14), torch.uint8, last) for last in both]
    return list(dict.fromkeys(found))


def public_call(functions: Any, request: Request, input: Tensor) -> Callable[[], Any] | None:
    """A call of ``torch.nn.functional`` or of this package's functions of the same names; None for
    gradients."""
    rank, by = len(request.shape) - 2, request.by
    if not isinstance(by, Window):
        pool = getattr(functions, f"adaptive_avg_pool{rank}d")
        return functools.partial(pool, input, by) if request.operator == "adaptive avg" else None
    names = {"kernel_size": "window", "stride": "stride", "padding": "start_padding"}
    given: dict[str, Any] = {
        name: [getattr(axis, own) for axis in by.axes] for name, own in names.items()
    }
    given["ceil_mode"] = by.axes[0].ceil_mode
    if request.operator == "avg":
        given["count_include_pad"] = request.counted[0]
        if rank > 1:
            given["divisor_override"] = request.counted[1]
    elif request.operator in ("max", "taps"):
        given["dilation"] = [axis.dilation for axis in by.axes]
        given["return_indices"] = request.operator == "taps"
    else:
        return None
    kind = "avg" if request.operator == "avg" else "max"
    return functools.partial(getattr(functions, f"{kind}_pool{rank}d"), input, **given)


def peer_requests() -> list[Request]:
    """Calls of which torch.compile and cuDNN had not been measured on the same GPU."""
    volume = (8, 64, 16, 112, 112)
    forward = [
        *(adaptive("adaptive avg", (32, 2048, 7, 7), BF16, last, 1, 1) for last in (False, True)),
        adaptive("adaptive avg", (32, 512, 28, 28), F32, False, 1, 1),
        *(sliding("max", IMAGE, BF16, last, 3, 2, 1) for last in (False, True)),
        sliding("avg", IMAGE, BF16, True, 3, 1, 1),
        sliding("avg", IMAGE, F32, False, 7, 1, 3),
        sliding("max", volume, F32, False, 2),
        sliding("avg", (16, 32, 64, 64, 64), F16, True, 3, 2, 1),
    ]
    trained = [sliding("max", IMAGE, F32, False, 3, 2, 1), sliding("avg", IMAGE, BF16, True, 2)]
    trained.append(adaptive("adaptive avg", (32, 2048, 7, 7), F32, False, 1, 1))
    return [*forward, *(replace(each, trains=True) for each in trained), *published()]


class Clock:
    """Seconds of calls on the GPU; a dry one only makes the calls, on tensors without memory."""

    def __init__(self, dry: bool) -> None:
        self.device = "meta" if dry else "cuda"
        self.flush = torch.ones(1 if dry else FLUSHED_BYTES // 4, device=self.device)
        self.copies: dict[int, float] = {}

    def kernels(self, call: Callable[[], Any]) -> float:
        """The median of single calls between events, behind a read that empties the cache: it
        leaves no lines to be written back while the call runs."""
        call()
        if self.device == "meta":
            return 2e-4
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(CALLS)]
        for start, stop in events:
            self.flush.sum()
            start.record()
            call()
            stop.record()
        torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(stop) for start, stop in events) / 1e3

    def host(self, call: Callable[[], Any], seconds: float) -> float:
        """The mean of calls one after the other, without waiting for the device. Of long calls, of
        so many ``seconds``, there are few."""
        count = max(1, min(HOST_CALLS, int(0.02 / seconds)))
        start = time.perf_counter()
        for _ in range(count):
            call()
        taken = time.perf_counter() - start
        if self.device == "cuda":
            torch.cuda.synchronize()
        return taken / count

    def copy(self, moved: int) -> float:
        """The seconds of a copy that reads and writes ``moved`` bytes in all."""
        if moved not in self.copies:
            source = torch.ones(moved // 2, dtype=torch.uint8, device=self.device)
            target = torch.empty_like(source)
            self.copies[moved] = self.kernels(lambda: target.copy_(source))
        return self.copies[moved]


def by_kernels(call: Callable[[], Any]) -> tuple[Tensor, ...]:
    """A call's results, unless plain PyTorch computed them in place of a kernel that failed."""
    fallbacks._warned.clear()
    results = call()
    if fallbacks._warned:
        raise RuntimeError(fallbacks._warned[0])
    return results if isinstance(results, tuple) else (results,)


@functools.cache
def cudnn() -> CuDNN:
    return CuDNN()


def row_of(request: Request, clock: Clock) -> dict[str, Any]:
    """A call beside a copy of the same bytes and PyTorch's own operator, and both on the host."""
    operands, call = request.prepared(clock.device)
    moved = sum(each.nbytes for each in (*operands, *by_kernels(call)))
    found = {"seconds": clock.kernels(call), "copy": clock.copy(moved)}
    found["host"] = clock.host(call, found["seconds"])
    theirs = public_call(functional, request, operands[0])
    if theirs is not None and request.dtype.is_floating_point:  # it pools no integers on a GPU
        found["aten"] = clock.kernels(theirs)
        found["host_aten"] = clock.host(theirs, found["aten"])
    return found


def beside(request: Request, clock: Clock) -> dict[str, Any]:
    """The public functions, ATen's, torch.compile's and cuDNN's, by kernels and on the host."""
    input = request.tensor(clock.device, request.shape[2:]).requires_grad_(request.trains)
    aten = public_call(functional, request, input)
    assert aten is not None
    ours = public_call(dmlpool.nn.functional, request, input)
    pools = {"seconds": ours, "aten": aten}
    arriving = torch.ones_like(aten())
    how = {"backend": "eager"} if clock.device == "meta" else {}
    pools["compiled"] = torch.compile(aten, **how)
    found: dict[str, Any] = {"training": request.trains}
    if not request.trains and isinstance(request.by, Window) and clock.device == "cuda":
        try:
            pools["cudnn"] = cudnn().pool(request, input)
            torch.testing.assert_close(pools["cudnn"](), aten())
        except Exception as error:  # it has no dilation, and may not be there
            pools.pop("cudnn", None)
            found["cudnn_failed"] = str(error).strip().splitlines()[0]
    for name, pool in pools.items():
        call = (
            (lambda pool=pool: torch.autograd.grad(pool(), input, arriving))
            if request.trains
            else pool
        )
        found[name] = clock.kernels(call)
        found["host" if pool is ours else f"host_{name}"] = clock.host(call, found[name])
    torch.compiler.reset()
    return found


class CuDNN:
    """cuDNN 9's pooling, from the library that PyTorch for CUDA brings; PyTorch itself does not use
    it. It has no dilation and finds no indices."""

    class Error(RuntimeError):
        """What cuDNN says."""

    def __init__(self) -> None:
        nvidia = importlib.import_module("nvidia.cudnn")
        path = Path(next(iter(nvidia.__path__)), "lib", "libcudnn.so.9")
        self.library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        self.library.cudnnGetErrorString.restype = ctypes.c_char_p
        self.handle = self.new("cudnnCreate")

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            raise self.Error(f"{name}: {self.library.cudnnGetErrorString(code).decode()}")

    def new(self, name: str) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made))
        return made

    def described(self, tensor: Tensor) -> ctypes.c_void_p:
        types, count = {F32: 0, torch.float64: 1, F16: 2, BF16: 9}, tensor.dim()
        sizes, strides = ((ctypes.c_int * count)(*each) for each in (tensor.shape, tensor.stride()))
        made = self.new("cudnnCreateTensorDescriptor")
        self.call("cudnnSetTensorNdDescriptor", made, types[tensor.dtype], count, sizes, strides)
        return made

    def pool(self, request: Request, input: Tensor) -> Callable[[], Tensor]:
        """A call that pools into the same output each time. Modes: maxima 0, averages that count
        padding 1; NaN is passed on (1)."""
        axes = request.by.axes if isinstance(request.by, Window) else ()
        if any(axis.dilation > 1 for axis in axes):
            raise self.Error("has no dilation")
        # It pools two or three axes.
        input = input.unsqueeze(2) if len(axes) == 1 else input
        numbers = [(axis.window, axis.start_padding, axis.stride) for axis in axes]
        numbers = [(1, 0, 1)] * (2 - len(axes)) + numbers
        window, rank = self.new("cudnnCreatePoolingDescriptor"), len(numbers)
        given = [(ctypes.c_int * rank)(*each) for each in zip(*numbers, strict=True)]
        mode = 1 if request.operator == "avg" else 0
        self.call("cudnnSetPoolingNdDescriptor", window, mode, 1, rank, *given)
        sizes = (ctypes.c_int * input.dim())()
        source = self.described(input)
        name = "cudnnGetPoolingNdForwardOutputDim"
        self.call(name, window, source, input.dim(), sizes)
        output = torch.empty(tuple(sizes), dtype=input.dtype, device=input.device)
        if request.channels_last:
            formats = {4: torch.channels_last, 5: torch.channels_last_3d}
            output = output.contiguous(memory_format=formats[output.dim()])
        number = ctypes.c_double if input.dtype is torch.float64 else ctypes.c_float
        one, zero = number(1), number(0)
        self.call(
            "cudnnSetStream", self.handle, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        )
        arguments = (
            *(self.handle, window, ctypes.byref(one), source, ctypes.c_void_p(input.data_ptr())),
            *(ctypes.byref(zero), self.described(output), ctypes.c_void_p(output.data_ptr())),
        )

        def run() -> Tensor:
            self.call("cudnnPoolingForward", *arguments)
            return output.squeeze(2) if len(axes) == 1 else output

        return run


def line(found: dict[str, Any]) -> str:
    """What is printed of a task."""
    if "failed" in found:
        return f"WRONG {found['row']}: {found['failed']}"
    parts = [f"{found['row']:58}"]
    if "seconds" in found:
        parts = [f"{parts[0]} {found['seconds'] * 1e6:8.1f} us"]
    if "copy" in found:
        parts.append(f"{found['copy'] / found['seconds']:.2f} of the copy")
    for rival in RIVALS:
        if rival in found:
            parts.append(f"{found[rival] / found['seconds']:.2f}x {rival}")
    if "host_aten" in found:
        parts.append(f"host {found['host'] * 1e6:.1f} ({found['host_aten'] * 1e6:.1f}) us")
    return ", ".join(parts)


INTRODUCTION = """## GPU

`make gpu` on an {device} ({date}; PyTorch {torch}, Triton {triton}, CUDA {cuda}).
A call's time is the median of ten between two CUDA events; the second-level cache is flushed before
each. "Of copy" is the time of a copy that moves as many bytes as the call must read and write,
divided by the call's time: 1 is the speed of memory. A ratio is the other's time divided by ours.
A step fails where a result was wrong, and where its time ended before all was done.

Steps: {steps}. {measured} of {rows} rows were measured, {earlier} of them in a run before that one.

KernelBench publishes times of an H100. An H200 copies {faster:.2f} times as many bytes in a second:
in brackets are the ratios divided by that, which compare kernels and not chips.
"""


def markdown(results: dict[str, Any]) -> str:
    """The section of docs/benchmarks.md."""
    measured = {row["row"]: row for row in results["rows"] if "failed" not in row}
    steps = [
        f"`{s['name']}` {'failed' if s['exit_status'] else 'passed'}" for s in results["steps"]
    ]
    counts = {"measured": len(measured), "rows": len(results["rows"]), "steps": ", ".join(steps)}
    counts["earlier"] = sum("run" in row for row in measured.values())
    problems, kinds = [], defaultdict(list)
    windows: dict[str, dict[str, str]] = defaultdict(dict)
    for name, row in measured.items():
        of_copy, aten = row["copy"] / row["seconds"], row.get("aten", 0) / row["seconds"]
        problem = name.removesuffix(" float32 contiguous")
        dtype, layout = name.split()[-2:]
        if problem in PUBLISHED:
            published = [each / 1e3 / row["seconds"] for each in PUBLISHED[problem]]
            cells = [f"{each:.1f}x ({each / BY_BANDWIDTH:.2f}x)" for each in published]
            of_problem = f"{row['seconds'] * 1e3:.2f}", f"{of_copy:.2f}", f"{aten:.1f}x", *cells
            problems.append([problem, *of_problem])
        elif found := re.fullmatch(r"([a-z ]+) (\d/\d)( padding \d)? 32x64x112x112 .*", name):
            windows[f"{found[1]}, {dtype}, {layout}"][found[2]] = f"{of_copy:.2f}"
        elif found := re.match(r"([a-z ]+?)(?: to)? \d", name):
            kinds[found[1]].append((of_copy, aten, row["seconds"]))
    calls = []
    for kind, rows in sorted(kinds.items()):
        copies, atens = [each[0] for each in rows], [each[1] for each in rows if each[1]]
        long = [each[0] for each in rows if each[2] >= 50e-6]
        means = [statistics.geometric_mean(each) for each in (copies, atens or [1.0])]
        beside = (f"{means[1]:.2f}x", sum(each < 1 for each in atens)) if atens else ("", "")
        least = f"{min(long):.2f}" if long else ""
        calls.append((kind, len(rows), f"{means[0]:.2f}", *beside, least))
    beside = [
        (
            row["row"],
            f"{row['seconds'] * 1e6:.1f}",
            *(f"{row[name] / row['seconds']:.2f}x" if name in row else "" for name in RIVALS),
            f"{row['host'] * 1e6:.0f} / {row['host_aten'] * 1e6:.0f}",
        )
        for row in results.get("peers", ())
        if "failed" not in row
    ]
    sizes = sorted({size for found in windows.values() for size in found})
    lines = [(name, *(found.get(size, "") for size in sizes)) for name, found in windows.items()]
    networks = [
        (
            f"{row['model']} {'compiled' if row['compiled'] else 'eager'} "
            f"{'channels_last' if row['channels_last'] else 'contiguous'}",
            *(f"{row['sizes'][0] / row[key] * 1e3:.0f}" for key in ("original", "converted")),
            f"{row['ratio']:.3f}",
            *(f"{row['peak'][key] / 2**20:.0f}" for key in ("original", "converted")),
        )
        for row in results.get("models", ())
    ]
    tables = {
        "KernelBench's problem|ms|of copy|ATen|published ATen|torch.compile": problems,
        "calls of public models, batch 32|rows|of copy, mean|ATen, mean|slower than ATen|"
        "least of copy, from 50 µs on": calls,
        "training step, bfloat16 autocast|images/s|converted|ratio|peak MiB|converted": networks,
        f"of copy, 32x64x112x112|{'|'.join(sizes)}": sorted(lines),
    }
    if beside:
        tables["public functions|µs|ATen|torch.compile|cuDNN|host µs, ours / ATen"] = beside
    parts = [INTRODUCTION.format(**results["machine"], **counts, faster=BY_BANDWIDTH)]
    parts += [common.table(head.split("|"), rows) + "\n" for head, rows in tables.items()]
    return "\n".join(parts)
