"""`make gpu`: is everything right and fast on this GPU? ``python -m benchmarks gpu --run 1`` and
``--run 2`` take five to six minutes each, without a network.

Steps are processes with limits; at its limit a step's whole process group is ended, and what was
not begun is a failure. Whole logs go to the folder that the variable OUT names, gpu.json and each
row as soon as it is known beside them. Nothing need be installed but PyTorch, Triton, numpy and
pytest. ``--prepare`` compiles all kernels beforehand, ``--dry`` takes every step's way without a
GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib
import importlib.util
import itertools
import json
import os
import pickle
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from torch import Tensor
from torch.nn import functional

import torch_dmlpool as dmlpool
from benchmarks import common, kernels
from torch_dmlpool import backends, operands
from torch_dmlpool.backends import fallbacks, reference
from torch_dmlpool.backends import triton as backend
from torch_dmlpool.bench import calls
from torch_dmlpool.timing import Call
from torch_dmlpool.window import Window

ROOT = kernels.ROOT
CACHE = ROOT / ".gpu-cache"
MISSING = 150  # seconds at most to compile what the folder lacks, taken from the steps after it
PYTEST = "-m pytest -v --tb=short -p no:cacheprovider -p no:benchmark --device"
TESTS = {
    "cuda": "tests/test_cuda.py",
    "tests": "-m 'not slow' tests/ops tests/nn/test_functional.py --sample 12",
}
NETWORKS = {"unet": "U-Net", "resnet": "ResNet-50"}
"""Steps of networks, and their names in ``benchmarks.models``."""
TELLING = ("FAILED", "ERROR", "WRONG", "Error:", "ERROR SUMMARY", "missing", "kernels compiled")
PRINTED = ("smoke", "rows", "peers")  # whole; of other steps the lines that tell
F16, F32, BF16 = torch.float16, torch.float32, torch.bfloat16
IMAGE = (32, 64, 112, 112)
# Read between calls: several times the L2 cache, for longer than the host needs to launch a call.
FLUSHED_BYTES = 2**29
CALLS, HOST_CALLS = 10, 100
RIVALS = "aten", "compiled", "cudnn"


class Run(NamedTuple):
    """The limits in seconds of a run and of its steps."""

    seconds: int
    steps: dict[str, int]


NETWORK_STEPS = {"unet-eager": 14, "resnet-eager": 14, "unet-compiled": 32, "resnet-compiled": 32}
RUNS = {
    1: Run(310, {"smoke": 45, "rows": 110, "cuda": 60, "peers": 65}),
    2: Run(345, {"smoke": 45, "rows": 60, **NETWORK_STEPS, "tests": 75, "memcheck": 35}),
}
BETWEEN, ENDING = 20, 2  # seconds of a run that no step takes, and that a step takes to be ended
LOADING = 10  # seconds until a step can begin its first row


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
        drawn = torch.empty((*self.shape[:2], *sizes), dtype=dtype or self.dtype, device=device)
        if dtype is not None and isinstance(self.by, Window):
            drawn.random_(0, self.by.taps)
        elif drawn.is_floating_point():
            drawn.normal_()
        else:
            drawn.random_(-90 if drawn.dtype.is_signed else 0, 90)
        return common.in_layout(drawn, self.channels_last)

    def prepared(self, device: str = "meta") -> tuple[tuple[Tensor, ...], Call]:
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
TRAINING = {"max": ("taps", "max grad"), "avg": ("avg grad",), "adaptive avg": ("adaptive grad",)}
"""What training asks for."""


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


def of_models(batch: int = 32) -> Iterator[Request]:
    """The calls of public models."""
    for call in common.calls_of_models():
        operator, shape = call.family.replace("average", "avg"), (batch, *call.sizes[1:])
        if call.outputs:
            yield adaptive(operator, shape, F32, False, *call.outputs)
            continue
        numbers = ("x".join(map(str, each)) for each in (call.window, call.stride, call.padding))
        label, counted = "{}/{} padding {}".format(*numbers), (call.include_padding, None)
        yield Request(operator, shape, F32, False, call.geometry, label, counted)


def training_of(forward: Request) -> list[Request]:
    operators = TRAINING[forward.operator]
    return [replace(forward, operator=name, trains=False) for name in operators]


def published() -> list[Request]:
    """KernelBench's pooling problems."""
    found = []
    for text in common.PUBLISHED:
        operator, window, *more, shape = text.split()
        numbers = [int(number) for number in (*window.split("/"), *more[1::2])]
        found.append(sliding(operator, tuple(map(int, shape.split("x"))), F32, False, *numbers))
    return found


def rows() -> list[Request]:
    """What is measured: first what no GPU has measured, then the others."""
    both, every = (False, True), ("max", "taps", "max grad", "avg", "avg grad")
    models = list(of_models())
    folds = [each for each in models if each.operator == "adaptive avg"]
    found = [replace(each, channels_last=last) for last in (True, False) for each in folds]
    found += itertools.chain.from_iterable(map(training_of, models))
    found += [*published(), *models]
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


def peer_requests() -> list[Request]:
    """Calls of which torch.compile and cuDNN had not been measured on the same GPU."""
    forward = [
        *(adaptive("adaptive avg", (32, 2048, 7, 7), BF16, last, 1, 1) for last in (False, True)),
        adaptive("adaptive avg", (32, 512, 28, 28), F32, False, 1, 1),
        *(sliding("max", IMAGE, BF16, last, 3, 2, 1) for last in (False, True)),
        sliding("avg", IMAGE, BF16, True, 3, 1, 1),
        sliding("avg", IMAGE, F32, False, 7, 1, 3),
        sliding("max", (8, 64, 16, 112, 112), F32, False, 2),
        sliding("avg", (16, 32, 64, 64, 64), F16, True, 3, 2, 1),
    ]
    trained = [sliding("max", IMAGE, F32, False, 3, 2, 1), sliding("avg", IMAGE, BF16, True, 2)]
    trained.append(adaptive("adaptive avg", (32, 2048, 7, 7), F32, False, 1, 1))
    return [*forward, *(replace(each, trains=True) for each in trained), *published()]


def public_call(functions: Any, request: Request, input: Tensor) -> Call | None:
    """A call of ``torch.nn.functional`` or of this package's functions of the same names; None for
    gradients."""
    kind, rank, by = request.operator, len(request.shape) - 2, request.by
    if kind == "adaptive avg":
        return functools.partial(getattr(functions, f"adaptive_avg_pool{rank}d"), input, by)
    if kind not in ("max", "taps", "avg") or not isinstance(by, Window):
        return None
    names = {"kernel_size": "window", "stride": "stride", "padding": "start_padding"}
    how: dict[str, Any] = {
        name: [getattr(axis, own) for axis in by.axes] for name, own in names.items()
    }
    how["ceil_mode"] = by.axes[0].ceil_mode
    if kind == "avg":
        how["count_include_pad"] = request.counted[0]
        return functools.partial(getattr(functions, f"avg_pool{rank}d"), input, **how)
    how |= {"dilation": [axis.dilation for axis in by.axes], "return_indices": kind == "taps"}
    return functools.partial(getattr(functions, f"max_pool{rank}d"), input, **how)


class Clock:
    """Seconds of calls on the GPU; a dry one only makes the calls, on tensors without memory."""

    def __init__(self, dry: bool) -> None:
        self.device = "meta" if dry else "cuda"
        self.flush = torch.ones(1 if dry else FLUSHED_BYTES // 4, device=self.device)
        self.copies: dict[int, float] = {}

    def kernels(self, call: Call) -> float:
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

    def host(self, call: Call, seconds: float) -> float:
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

    def each(self, pools: dict[str, Call]) -> dict[str, float]:
        """Seconds of ours, which has no name, and of others, on the GPU and on the host."""
        found = {}
        for name, call in pools.items():
            seconds = self.kernels(call)
            found[name or "seconds"] = seconds
            found[f"host_{name}" if name else "host"] = self.host(call, seconds)
        return found

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


def row_of(request: Request, clock: Clock) -> dict[str, Any]:
    """A call beside a copy of the same bytes and PyTorch's own operator, and both on the host."""
    read, call = request.prepared(clock.device)
    moved = sum(each.nbytes for each in (*read, *by_kernels(call)))
    pools = {"": call}
    theirs = public_call(functional, request, read[0])
    if theirs is not None and request.dtype.is_floating_point:  # it pools no integers on a GPU
        pools["aten"] = theirs
    return {"copy": clock.copy(moved), **clock.each(pools)}


def beside(request: Request, clock: Clock) -> dict[str, Any]:
    """The public functions, ATen's, torch.compile's and cuDNN's."""
    input = request.tensor(clock.device, request.shape[2:]).requires_grad_(request.trains)
    pools: dict[str, Any] = {"": public_call(dmlpool.nn.functional, request, input)}
    pools["aten"] = public_call(functional, request, input)
    output = pools["aten"]()
    how = {"backend": "eager"} if clock.device == "meta" else {}
    pools["compiled"] = torch.compile(pools["aten"], **how)
    found: dict[str, Any] = {"training": request.trains}
    if not request.trains and isinstance(request.by, Window) and clock.device == "cuda":
        try:
            pools["cudnn"] = cudnn().pool(request, input, torch.empty_like(output))
            torch.testing.assert_close(pools["cudnn"](), output)
        except Exception as error:  # it has no dilation, and may not be there
            pools.pop("cudnn", None)
            found["cudnn_failed"] = str(error).strip().splitlines()[0]
    if request.trains:
        arriving = torch.ones_like(output)
        pools = {
            name: lambda pool=pool: torch.autograd.grad(pool(), input, arriving)
            for name, pool in pools.items()
        }
    found |= clock.each(pools)
    torch.compiler.reset()
    return found


class CuDNN:
    """cuDNN 9's pooling, from the library that PyTorch for CUDA brings; PyTorch itself does not use
    it. It has no dilation and finds no indices."""

    def __init__(self) -> None:
        folder = next(iter(importlib.import_module("nvidia.cudnn").__path__))
        self.library = ctypes.CDLL(str(Path(folder, "lib", "libcudnn.so.9")), ctypes.RTLD_GLOBAL)
        self.library.cudnnGetErrorString.restype = ctypes.c_char_p
        self.handle = self.new("cudnnCreate")

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: {self.library.cudnnGetErrorString(code).decode()}")

    def new(self, name: str) -> ctypes.c_void_p:
        pointer = ctypes.c_void_p()
        self.call(name, ctypes.byref(pointer))
        return pointer

    def described(self, tensor: Tensor) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        """A tensor as cuDNN is told of it: sizes and strides, and where it lies."""
        count = tensor.dim()
        sizes, strides = ((ctypes.c_int * count)(*each) for each in (tensor.shape, tensor.stride()))
        about, types = self.new("cudnnCreateTensorDescriptor"), {F32: 0, F16: 2, BF16: 9}
        self.call("cudnnSetTensorNdDescriptor", about, types[tensor.dtype], count, sizes, strides)
        return about, ctypes.c_void_p(tensor.data_ptr())

    def pool(self, request: Request, input: Tensor, output: Tensor) -> Call:
        """A call that pools into ``output`` each time. Modes: maxima 0, averages that count padding
        1; NaN is passed on (1)."""
        axes = request.by.axes if isinstance(request.by, Window) else ()
        if any(axis.dilation > 1 for axis in axes):
            raise RuntimeError("cuDNN has no dilation")
        numbers = [(axis.window, axis.start_padding, axis.stride) for axis in axes]
        pair = input, output
        if len(axes) == 1:  # it pools two or three axes
            numbers, pair = [(1, 0, 1), *numbers], (input.unsqueeze(2), output.unsqueeze(2))
        window, rank = self.new("cudnnCreatePoolingDescriptor"), len(numbers)
        arrays = [(ctypes.c_int * rank)(*each) for each in zip(*numbers, strict=True)]
        mode = 1 if request.operator == "avg" else 0
        self.call("cudnnSetPoolingNdDescriptor", window, mode, 1, rank, *arrays)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.call("cudnnSetStream", self.handle, stream)
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        source, target = map(self.described, pair)
        scaled = ctypes.byref(one), *source, ctypes.byref(zero), *target

        def run() -> Tensor:
            self.call("cudnnPoolingForward", self.handle, window, *scaled)
            return output

        return run


@functools.cache
def cudnn() -> CuDNN:
    return CuDNN()


def line(found: dict[str, Any]) -> str:
    """What is printed of a row."""
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


def checked(call: calls.Call, clock: Clock) -> dict[str, Any]:
    """Nothing, if the call's results are those of the reference on the CPU."""
    served, input = backend.BACKEND, call.input.to(clock.device)
    if clock.device == "meta":
        served, input = reference.BACKEND, call.input
    found = by_kernels(lambda: call.compute(served, input, call.window))
    differs = calls.difference(call.compute(reference.BACKEND, call.input, call.window), found)
    if differs:
        raise AssertionError(differs)
    return {}


def compiled(how: Any, arguments: tuple[Any, ...]) -> Any:
    """What Triton runs for a launch, without a GPU."""
    triton.runtime.driver.set_active(kernels.NoDriver())
    return backend._compiled(*backend.what_is_compiled(how, arguments, 0))[0]


def expected(request: Request, _: Clock | None = None) -> dict[str, Any]:
    """What the launches of a call are counted to do, and the seconds T that an H200 should take."""
    with launches() as found:
        request.prepared()[1]()
    counted = []
    for how, arguments in found:
        asm = compiled(how, arguments).asm
        tensors = {id(each): each for each in arguments if isinstance(each, torch.Tensor)}
        moved = sum(each.nbytes for each in tensors.values())
        counted.append(kernels.counted(how, asm, arguments[0].itemsize, moved))
    bounds = [each.seconds(kernels.CHIPS["H200"]) for each in counted]
    return {
        "seconds": kernels.predicted(counted, kernels.CHIPS["H200"]),
        "bound": [max(each, key=lambda name: each[name]) for each in bounds],
        "counts": counted,
    }


STEPS: dict[str, tuple[Callable[..., dict[str, Any]], Callable[[], Iterable[Any]]]] = {
    "smoke": (checked, lambda: calls.calls(True)),
    "rows": (row_of, rows),
    "peers": (beside, peer_requests),
    "expected": (expected, rows),
}
"""The steps that are this module's own: what finds a row, and for what."""


def step(name: str, end: float, every: int, dry: bool, words: Sequence[str] = ()) -> int:
    """A line for each row at once, and in a file of OUT; 1 if one failed or was not begun."""
    measure, asked = STEPS[name]
    clock, wrong, left = Clock(dry or name == "expected"), 0, 0
    folder = Path(os.environ.get("OUT", "."))
    with (folder / f"{name}.jsonl").open("a") as log, launches() if dry else nullcontext():
        for each in list(asked())[::every]:
            if not all(word in each.name for word in words):
                continue
            found: dict[str, Any] = {"row": each.name}
            if time.monotonic() > end:
                left += 1
                found["failed"] = "not begun"
            else:
                try:
                    found |= measure(each, clock)
                except Exception as error:
                    wrong += 1
                    found["failed"] = f"{type(error).__name__}: {error}"
            log.write(json.dumps(found) + "\n")
            log.flush()
            print(line(found), flush=True)
    print(f"{wrong} failed, {left} not begun", flush=True)
    return int(wrong + left > 0)  # what was not begun is not known to be right


@contextmanager
def launches() -> Iterator[list[tuple[Any, tuple[Any, ...]]]]:
    """Inside, what the backend would launch on an H200 is listed, with its operands, not run."""
    found: list[tuple[Any, tuple[Any, ...]]] = []
    with (
        mock.patch.object(backend, "runs_ptx", return_value=True),
        mock.patch.object(backend, "launch", lambda how, *operands: found.append((how, operands))),
    ):
        yield found


@contextmanager
def recorded() -> Iterator[list[tuple[Any, ...]]]:
    """Inside, the same, but of each launch what is compiled, once it is left."""
    compiled: list[tuple[Any, ...]] = []
    with launches() as found:
        yield compiled
    compiled += [backend.what_is_compiled(how, arguments, 0) for how, arguments in found]


def wanted() -> list[tuple[Any, ...]]:
    """What rows, peers, smoke, the networks and the large tensors of tests/test_cuda.py launch."""
    requests = [*rows(), *peer_requests()]
    for operator, counted in (("max", (True, None)), ("avg", (False, None))):
        large = sliding(operator, (8200, 64, 64, 64), F16, False, 3, 2, 1)
        requests.append(replace(large, counted=counted))
    trained = [each for each in requests if each.trains]
    for last in (False, True):
        trained.append(adaptive("adaptive avg", (32, 2048, 7, 7), BF16, last, 1, 1))
        trained.append(sliding("max", (32, 64, 112, 112), BF16, last, 3, 2, 1))
        trained.append(sliding("max", (32, 32, 256, 256), BF16, last, 2))
    for each in trained:
        requests += training_of(each)
    with recorded() as found:
        for each in requests:
            each.prepared()[1]()
        for call in calls.calls(True):
            call.compute(backend.BACKEND, call.input.to("meta"), call.window)
    return found


def record_tests(path: Path) -> int:
    """List what the operators' tests would launch: the reference computes their results."""
    import pytest

    found: list[tuple[Any, ...]] = []

    def noted(name: str) -> Callable[..., Any]:
        ours, theirs = getattr(backend.BACKEND, name), getattr(reference.BACKEND, name)

        def both(*arguments: Any, **named: Any) -> Any:
            with recorded() as compiled:
                ours(*arguments, **named)
            found.extend(compiled)
            return theirs(*arguments, **named)

        return both if callable(ours) and callable(theirs) else theirs

    fields = {name: noted(name) for name in reference.BACKEND._fields if name != "name"}
    served = reference.BACKEND._replace(**fields)

    class Plugin:
        @staticmethod
        def pytest_sessionstart() -> None:
            backends.serving = lambda _: served  # type: ignore[assignment]

    words = f"-q -p no:cacheprovider -p no:benchmark {TESTS['tests']}"
    pytest.main(shlex.split(words), plugins=[Plugin()])
    path.write_bytes(pickle.dumps(plain(found)))
    print(f"{len(set(found))} kernels of the tests")
    return 0


def plain(found: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Each once, with names of data types: what compiles them has no PyTorch."""
    named = [
        (
            *each[:4],
            tuple((str(kind[0]), kind[1]) if isinstance(kind, tuple) else kind for kind in each[4]),
        )
        for each in found
    ]
    return list(dict.fromkeys(named))


def fill(python: str, processes: int | None, prunes: bool) -> list[str]:
    """Write the list of kernels into the folder; the command that compiles what is missing."""
    CACHE.mkdir(exist_ok=True)
    tests, path = CACHE / "tests.pickle", CACHE / kernels.LIST
    if prunes:
        command = [sys.executable, "-m", "benchmarks.gpu", "--record", str(tests)]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    of_tests = pickle.loads(tests.read_bytes()) if tests.exists() else []
    path.write_bytes(pickle.dumps(list(dict.fromkeys([*plain(wanted()), *of_tests]))))
    command = [python, "-m", "benchmarks.kernels", str(CACHE)]
    command += ["--processes", str(processes)] if processes else []
    return [*command, *["--prune"] * prunes]


def commands(number: int, folder: Path, dry: bool) -> Iterator[tuple[str, list[str], int]]:
    """Name, command and limit of each step."""
    sanitizer, device = shutil.which("compute-sanitizer"), "cpu" if dry else "cuda"
    for name, limit in RUNS[number].steps.items():
        network, _, how = name.partition("-")
        command = [sys.executable]
        if network in NETWORKS:
            named = f"'{NETWORKS[network]} {how}, training' --device {device} --row-seconds 0.5"
            text = f"-m benchmarks models {named} --out '{folder / name}.json'"
            text += " --list" * dry
        elif name in TESTS:
            text = f"{PYTEST} {device} {TESTS[name]}" + " --collect-only -q" * dry
            if importlib.util.find_spec("xdist") is not None and name == "tests":
                processes = max(1, min(14, (os.cpu_count() or 2) - 1))
                text += f" -n {processes} --dist worksteal"
        else:
            own = "smoke" if name == "memcheck" else name
            every = 30 if dry and name != "peers" else 5 if dry or name == "memcheck" else 1
            text = f"-m benchmarks.gpu --step {own} --deadline {limit - LOADING} --every {every}"
            text += " --dry" * dry
        if name == "memcheck" and sanitizer is not None:
            command = [sanitizer, "--tool", "memcheck", "--error-exitcode", "9", sys.executable]
        elif name == "memcheck" and not dry:
            continue
        yield name, [*command, *shlex.split(text)], limit


def run(number: int, dry: bool) -> int:
    if not dry and not torch.cuda.is_available():
        print("make gpu: PyTorch sees no CUDA or ROCm GPU on this machine")
        return 2
    began, packed = time.monotonic(), CACHE.with_name(f"{CACHE.name}.tar.gz")
    if packed.exists() and not CACHE.exists():
        shutil.unpack_archive(packed, CACHE)
    folder = Path(os.environ.get("OUT") or common.RESULTS).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    toolkit = torch.version.cuda or torch.version.hip
    known = {} if dry else common.conditions("cuda", ["triton"], cuda=toolkit)
    report: dict[str, Any] = {"conditions": known, "run": number, "steps": []}
    steps = list(commands(number, folder, dry))
    # What is prepared is code for one kind of GPU.
    if not dry and not torch.version.hip and torch.cuda.get_device_capability() == (9, 0):
        steps.insert(0, ("missing", fill(sys.executable, None, False), MISSING))
    if CACHE.is_dir():
        kernels.relocate(CACHE)
    environment = {**os.environ, "OUT": str(folder), "TRITON_CACHE_DIR": str(CACHE)}
    for index, (name, command, limit) in enumerate(steps):
        left = RUNS[number].seconds - (time.monotonic() - began)
        report["not begun"] = [each for each, _, _ in steps[index + 1 :]]
        # PyTorch's own allocator would hide what is beside a tensor.
        extra = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if name == "memcheck" else {}
        seconds = 600 if dry else min(limit, left)
        done = {"name": name, "exit_status": 1, "last": ["not begun"]}
        if seconds > 5:
            done = run_step(name, command, seconds, environment | extra, folder / "gpu.log")
        report["steps"].append(done)
        (folder / "gpu.json").write_text(json.dumps(report, indent=1))
    first = report["steps"][0]
    is_complete = first["name"] != "missing" or "".join(first["last"]).startswith("0 kernels")
    if number == 1 and not is_complete:
        shutil.make_archive(str(folder / "gpu-cache"), "gztar", CACHE)  # for the next run
    return max(abs(step["exit_status"]) for step in report["steps"])


def run_step(
    name: str, command: list[str], seconds: float, environment: dict[str, str], log: Path
) -> dict[str, Any]:
    """Run a process and whatever it starts for no longer than that; print the lines that tell, keep
    all."""
    print(f"== {name}: at most {seconds:.0f} s", flush=True)
    started = time.monotonic()
    lines: list[str] = []
    with log.open("a") as written, log.open(errors="replace") as read:
        written.write(f"== {name}: {shlex.join(command)}\n")
        written.flush()
        read.seek(0, os.SEEK_END)
        how: dict[str, Any] = {"cwd": ROOT, "env": {**environment, "PYTHONUNBUFFERED": "1"}}
        how |= {"stdout": written, "stderr": subprocess.STDOUT, "start_new_session": True}
        process = subprocess.Popen(command, **how)
        ended = False
        while not ended:
            ended = process.poll() is not None or time.monotonic() - started > seconds
            time.sleep(0 if ended else 0.1)
            for text in read:
                lines.append(text.rstrip())
                if name in PRINTED or any(word in text for word in TELLING):
                    print(text, end="", flush=True)
    status = process.poll()
    # whatever it has left behind, too
    for one in (signal.SIGINT, signal.SIGKILL) if status is None else (signal.SIGKILL,):
        try:
            os.killpg(process.pid, one)
        except ProcessLookupError:
            break
        time.sleep(2 if one is signal.SIGINT else 0)
    process.wait()
    if name not in PRINTED:
        print("\n".join(lines[-12:]), flush=True)
    if status is None:
        print(f"== {name}: ended at its limit", flush=True)
    taken = round(time.monotonic() - started, 1)
    status = 124 if status is None else status
    return {"name": name, "exit_status": status, "seconds": taken, "last": lines[-1:]}


def collect(folders: list[Path]) -> int:
    """What runs have written, the first one first, becomes a file of results: the page of
    benchmarks is made of it. A row that was measured again has the later times."""
    found: dict[str, Any] = {"conditions": {}, "steps": [], "models": []}
    listed: dict[str, dict[str, Any]] = {"rows": {}, "peers": {}, "expected": {}}
    for folder in folders:
        report = common.load(folder / "gpu.json")
        found["conditions"] = report["conditions"]
        found["steps"] += report["steps"]
        for path in folder.glob("*-*.json"):
            found["models"] += common.load(path)["rows"]
        for name, rows_of in listed.items():
            path = folder / f"{name}.jsonl"
            for row in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
                if "failed" not in row or row["row"] not in rows_of:
                    rows_of[row["row"]] = row
    counts = {name: row["counts"] for name, row in listed.pop("expected").items()}
    if counts:
        common.save(common.RESULTS / "gpu_counts.json", counts)
    found |= {name: list(rows_of.values()) for name, rows_of in listed.items()}
    common.save(common.RESULTS / "gpu_rows.json", found)
    return 0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--run", type=int, choices=RUNS)
    chosen.add_argument("--prepare", action="store_true", help="compile for both runs")
    chosen.add_argument("--step", choices=STEPS)
    chosen.add_argument("--record", type=Path, help="list the kernels of the operators' tests")
    chosen.add_argument("--collect", type=Path, nargs="+", help="make results of OUT's folders")
    add = parser.add_argument
    add("--python", default=sys.executable, help="of --prepare: it needs Triton alone")
    add("--processes", type=int, help="of --prepare; as many as there are processors")
    add("--deadline", type=float, default=600.0, help="of --step: begin nothing after that")
    add("--every", type=int, default=1, help="of --step: only every Nth call or row")
    add("--dry", action="store_true", help="without a GPU, and without results")
    add("words", nargs="*", help="of --step: rows that have all these in their name")
    options = parser.parse_args(arguments)
    if options.run:
        return run(options.run, options.dry)
    if options.record or options.collect:
        return record_tests(options.record) if options.record else collect(options.collect)
    if options.step:
        end = time.monotonic() + options.deadline
        return step(options.step, end, options.every, options.dry, options.words)
    status = subprocess.run(fill(options.python, options.processes, True), cwd=ROOT).returncode
    packed = Path(shutil.make_archive(str(CACHE), "gztar", CACHE))
    print(f"{packed.name} has {packed.stat().st_size / 2**20:.1f} MiB")
    return status or int(packed.stat().st_size > kernels.MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
