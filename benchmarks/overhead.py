"""What a small call costs: ``python -m benchmarks overhead``.

On the CPU: microseconds of a call beside ATen's and beside an empty torch.autograd.Function. With
``--triton``: the host's time of a call to the Triton backend up to the driver, without a GPU.
Kernels are compiled for sm_90 and everything runs as it would in front of a GPU, on CPU tensors,
but what would ask the driver to load or to launch a kernel does nothing.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from benchmarks import common, kernels
from torch_dmlpool import backends
from torch_dmlpool._private import empty_strided_cpu
from torch_dmlpool.timing import Call

SIZES = (1, 8, 4, 4)
CALLS: dict[str, dict[str, Any]] = {
    "avg_pool2d": {"kernel_size": 2, "stride": 2},
    "max_pool2d": {"kernel_size": 2, "stride": 2},
    "adaptive_avg_pool2d": {"output_size": 1},
}


class Empty(torch.autograd.Function):
    """Makes tensors of the sizes that the operators make, saves one, and computes nothing."""

    @staticmethod
    def forward(ctx: Any, input: Tensor) -> Tensor:
        ctx.save_for_backward(torch.empty(1, 8, 2, 2, dtype=torch.uint8))
        return input.new_empty(1, 8, 2, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        _ = ctx.saved_tensors
        return gradients[0].new_empty(SIZES)


class Driver(kernels.NoDriver):
    """What launching asks for, too."""

    utils = SimpleNamespace(
        load_binary=lambda *_: (1, 1, 32, 0, 1024),
        get_device_properties=lambda _: {"max_shared_mem": 232_448},
    )

    @staticmethod
    def launcher_cls(*_: object) -> object:
        return lambda *_: None

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def on_cpu(seconds: float) -> str:
    """The table of small calls on the CPU."""
    pools: dict[str, Callable[[Tensor], Tensor]] = {"empty Function": Empty.apply}
    for name, how in CALLS.items():
        for who, module in (("ATen", torch.nn.functional), ("ours", dmlpool.nn.functional)):
            pools[f"{name}, {who}"] = functools.partial(getattr(module, name), **how)
    input, leaf = torch.zeros(SIZES), torch.zeros(SIZES).requires_grad_()
    phases: dict[str, dict[str, Call]] = {
        "forward": {name: functools.partial(pool, input) for name, pool in pools.items()},
        "recorded": {name: functools.partial(pool, leaf) for name, pool in pools.items()},
        "with gradient": {name: with_gradient(pool, leaf) for name, pool in pools.items()},
    }
    columns = [common.in_turn(calls, seconds) for calls in phases.values()]
    lines = [(name, *(f"{times[name].median * 1e6:.1f}" for times in columns)) for name in pools]
    return common.table([f"µs of a call on {'x'.join(map(str, SIZES))}", *phases], lines)


def on_triton(seconds: float) -> str:
    """The table of the host's time of calls to the Triton backend."""
    import triton

    from benchmarks import gpu
    from torch_dmlpool.backends import gpu_plans
    from torch_dmlpool.backends import triton as backend

    triton.runtime.driver.set_active(Driver())
    made: Any = lambda _, plan, dtype: empty_strided_cpu(plan.sizes, plan.strides, dtype)  # noqa: E731
    backend.new = gpu_plans.new = made  # the twin of what allocates on a GPU
    backend.launch = lambda how, *arguments: backend._run(how, arguments, 0)
    backends.serving = lambda _: backend.BACKEND
    input, trained = torch.zeros(2, 8, 32, 32), torch.zeros(SIZES).requires_grad_()
    calls: dict[str, Call] = {
        "torch.empty": lambda: torch.empty(2, 8, 16, 16),
        "layer AvgPool2d, 3/2": functools.partial(dmlpool.nn.AvgPool2d(3, 2, 1), input),
        "layer AdaptiveAvgPool2d, 1": functools.partial(dmlpool.nn.AdaptiveAvgPool2d(1), input),
    }
    for who, module in (("", dmlpool.nn.functional), (", ATen on the CPU", torch.nn.functional)):
        calls[f"max with its gradient, 2/2{who}"] = with_gradient(
            functools.partial(module.max_pool2d, kernel_size=2), trained
        )
    for operator in ("avg", "max", "taps", "max grad", "avg grad"):
        for window in ("3/2 p1", "32", "31/1 p15") if operator in ("avg", "max") else ("3/2 p1",):
            asked = gpu.request(operator, f"2x8x32x32 {window}")
            calls[f"{operator}, {window}"] = asked.prepared("cpu")[1]
    taken = common.in_turn(calls, seconds)
    lines = [(name, f"{times.median * 1e6:.1f}") for name, times in taken.items()]
    return common.table([f"host, Triton {triton.__version__} without the driver", "µs"], lines)


def with_gradient(pool: Callable[[Tensor], Tensor], leaf: Tensor) -> Call:
    arriving = torch.zeros_like(pool(leaf))
    return lambda: torch.autograd.grad(pool(leaf), leaf, arriving)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks overhead", description=__doc__)
    parser.add_argument("--triton", action="store_true", help="calls to the Triton backend")
    parser.add_argument("--row-seconds", type=float, default=2.0, help="of a column")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    table = (on_triton if options.triton else on_cpu)(options.row_seconds)
    print(f"{table}\n\n*{common.sentence(common.conditions())}.*")
    return 0
