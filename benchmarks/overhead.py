"""What a call to the Triton backend costs on the host: ``python -m benchmarks overhead``.

It needs no GPU. Kernels are compiled for sm_90 and everything runs as it would in front of a GPU,
on CPU tensors, but what would ask the driver to load or to launch a kernel does nothing.
"""

import argparse
import functools
from collections.abc import Sequence
from types import SimpleNamespace

import torch
import triton

import torch_dmlpool as dmlpool
from benchmarks import common, kernels
from benchmarks.requests import request
from benchmarks.rows import train
from torch_dmlpool import backends
from torch_dmlpool._private import empty_strided_cpu
from torch_dmlpool.backends import gpu_plans
from torch_dmlpool.backends import triton as backend


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


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks overhead", description=__doc__)
    parser.add_argument("--row-seconds", type=float, default=2.0, help="of all calls")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    triton.runtime.driver.set_active(Driver())
    made = lambda _, plan, dtype: empty_strided_cpu(plan.sizes, plan.strides, dtype)  # noqa: E731
    backend.new = gpu_plans.new = made  # the twin of what allocates on a GPU
    backend.launch = lambda how, *arguments: backend._run(how, arguments, 0)
    backends.serving = lambda _: backend.BACKEND
    input, layers = torch.zeros(2, 8, 32, 32), dmlpool.nn
    calls = {
        "torch.empty": lambda: torch.empty(2, 8, 16, 16),
        "layer AvgPool2d, 3/2": functools.partial(layers.AvgPool2d(3, 2, 1), input),
        "layer AdaptiveAvgPool2d, 1": functools.partial(layers.AdaptiveAvgPool2d(1), input),
    }
    for who, module in (("", layers), (", ATen on the CPU", torch.nn)):
        tensors = torch.zeros(1, 8, 4, 4, requires_grad=True), torch.zeros(1, 8, 2, 2)
        step = functools.partial(train, module.MaxPool2d(2), *tensors)
        calls[f"max with its gradient, 2/2{who}"] = step
    for operator in ("avg", "max", "taps", "max grad", "avg grad"):
        for window in ("3/2 p1", "32", "31/1 p15") if operator in ("avg", "max") else ("3/2 p1",):
            asked = request(operator, f"2x8x32x32 {window}")
            calls[f"{operator}, {window}"] = asked.prepared("cpu")[1]
    taken = common.in_turn(calls, options.row_seconds)
    lines = [(name, f"{times.median * 1e6:.1f}") for name, times in taken.items()]
    print(common.table([f"host, Triton {triton.__version__} without the driver", "µs"], lines))
    print(f"\n*{common.sentence(common.conditions())}.*")
    return 0
