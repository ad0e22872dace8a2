"""What a small call costs: ``python -m benchmarks overhead``.

On the CPU: microseconds of a call beside ATen's and beside an empty torch.autograd.Function, and
the functions of this package that it enters. With ``--triton``: the host's time of a call to
the Triton backend up to the driver, without a GPU. Kernels are compiled for sm_90 and everything
runs as it would in front of a GPU, on CPU tensors, but what would ask the driver to load or to
launch a kernel does nothing.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from benchmarks import common
from torch_dmlpool import backends
from torch_dmlpool.window import Window

SIZES = (1, 8, 4, 4)
CALLS: dict[str, dict[str, Any]] = {
    "avg_pool2d": {"kernel_size": 2, "stride": 2},
    "max_pool2d": {"kernel_size": 2, "stride": 2},
    "adaptive_avg_pool2d": {"output_size": 1},
}


class Empty(torch.autograd.Function):
    """Makes tensors of the sizes that the operators make, and computes nothing."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, is_saving: bool) -> Tensor:
        output = input.new_empty(1, 8, 2, 2)
        if is_saving:
            ctx.save_for_backward(torch.empty(1, 8, 2, 2, dtype=torch.uint8))
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        _ = ctx.saved_tensors
        return gradients[0].new_empty(SIZES), None


class Driver:
    """As much of Triton's driver as compiling and launching ask for."""

    utils = SimpleNamespace(
        load_binary=lambda *_: (1, 1, 32, 0, 1024),
        get_device_properties=lambda _: {"max_shared_mem": 232_448},
    )

    @staticmethod
    def launcher_cls(*_: object) -> object:
        return lambda *_: None

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, *_: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def microseconds(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Medians of calls that take turns."""
    return {name: each.median * 1e6 for name, each in common.in_turn(calls, seconds).items()}


def frames(call: Callable[[], Any]) -> int:
    """How many functions of this package a call enters."""
    folder, entered = str(Path(dmlpool.__file__).parent), 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal entered
        entered += event == "call" and frame.f_code.co_filename.startswith(folder)

    call()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


def phases(pool: Callable[[Tensor], Tensor]) -> dict[str, Callable[[], Any]]:
    """The call without a gradient, with the graph recorded, and with the gradient too."""
    input = torch.zeros(SIZES)
    leaf = input.clone().requires_grad_()
    arriving = torch.zeros_like(pool(input))
    return {
        "forward": lambda: pool(input),
        "recorded": lambda: pool(leaf),
        "with gradient": lambda: torch.autograd.grad(pool(leaf), leaf, arriving),
    }


def on_cpu(seconds: float) -> str:
    """The table of small calls on the CPU, on one thread."""
    torch.set_num_threads(1)
    pools: dict[str, Callable[[Tensor], Tensor]] = {
        "empty Function": lambda image: Empty.apply(image, False),
        "empty Function that saves a tensor": lambda image: Empty.apply(image, True),
    }
    for name, how in CALLS.items():
        for who, module in (("ATen", torch.nn.functional), ("ours", dmlpool.nn.functional)):
            pools[f"{name}, {who}"] = functools.partial(getattr(module, name), **how)
    called = {name: phases(pool) for name, pool in pools.items()}
    names = ["forward", "recorded", "with gradient"]
    taken = {
        phase: microseconds({name: calls[phase] for name, calls in called.items()}, seconds)
        for phase in names
    }
    lines = []
    for name, calls in called.items():
        entered = f"{frames(calls['forward'])} / {frames(calls['with gradient'])}"
        lines.append([name, *(f"{taken[phase][name]:.1f}" for phase in names), entered])
    head = [f"µs of a call on {'x'.join(map(str, SIZES))}", *names, "functions: forward / gradient"]
    return f"{common.table(head, lines)}\n\n*{common.sentence(common.conditions())}.*"


def on_triton(seconds: float) -> str:
    """The table of the host's time of calls to the Triton backend."""
    import triton

    from torch_dmlpool.backends import triton as backend

    torch.set_num_threads(1)
    triton.runtime.driver.set_active(Driver())
    backend.launch = lambda how, *arguments: backend._run(how, arguments, 0)
    input, window = torch.zeros(2, 8, 32, 32), Window.directml(2, 3, 2, 1, 1)
    output, taps = backend.max_pooling_with_taps(input, window)
    sizes, counted = (32, 32), (False, None)
    gradient = backend.max_pooling_grad_from_taps
    calls: dict[str, Callable[[], Any]] = {
        "average_pooling_grad": lambda: backend.average_pooling_grad(
            output, sizes, window, *counted
        ),
        "max_pooling_with_taps": lambda: backend.max_pooling_with_taps(input, window),
        "max_pooling_grad": lambda: gradient(output, taps, sizes, window, False),
        "adaptive_average_pooling": lambda: backend.adaptive_average_pooling(input, (1, 1)),
        "torch.empty": lambda: torch.empty(2, 8, 16, 16),
    }
    others = {"whole": Window.directml(2, 32), "31/1": Window.directml(2, 31, 1, 15, 15)}
    for name, each in {"3/2": window, **others}.items():
        calls[f"average_pooling, {name}"] = functools.partial(
            backend.average_pooling, input, each, *counted
        )
        calls[f"max_pooling, {name}"] = functools.partial(backend.max_pooling, input, each)
    backends.serving = lambda _: backend.BACKEND
    for layer in (dmlpool.nn.AvgPool2d(3, 2, 1), dmlpool.nn.MaxPool2d(3, 2, 1)):
        calls[f"nn.{type(layer).__name__}"] = functools.partial(layer, input)
    lines = [(name, f"{taken:.1f}") for name, taken in microseconds(calls, seconds).items()]
    where = common.sentence(common.conditions(packages=["triton"]))
    return f"{common.table(['host, without the driver', 'µs'], lines)}\n\n*{where}.*"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks overhead", description=__doc__)
    parser.add_argument("--triton", action="store_true", help="calls to the Triton backend")
    parser.add_argument("--row-seconds", type=float, default=2.0, help="of a column")
    options = parser.parse_args(arguments)
    print((on_triton if options.triton else on_cpu)(options.row_seconds))
    return 0
