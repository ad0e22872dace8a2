"""What a small call on the CPU takes beside ATen's and an empty torch.autograd.Function, and its
steps by themselves: ``python -m benchmarks.overhead cpu``."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool import backends, operands
from torch_dmlpool._private import empty_strided_cpu, single_level_function
from torch_dmlpool.backends import cpu, library, plans
from torch_dmlpool.ops import registration
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


class Kernels:
    """Averages of windows 2/2: new memory and kernels alone, without checks and look-ups, in an
    autograd function like the operators'."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, known: Any) -> Tensor:
        ctx.known, plan = known, known.plan
        output = empty_strided_cpu(plan.output_sizes, plan.output_strides, input.dtype)
        kernel = library.library.dmlpool_average_pooling
        kernel(plan.problem, input.data_ptr(), output.data_ptr())
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None]:
        return ctx.known.gradient(gradients[0], None), None


def microseconds(call: Callable[[], Any], repetitions: int = 1000, rounds: int = 9) -> float:
    """Least over rounds of the mean time of a call: other processes only ever add to it."""
    for _ in range(200):
        call()
    times = []
    for _ in range(rounds):
        before = time.perf_counter()
        for _ in range(repetitions):
            call()
        times.append((time.perf_counter() - before) / repetitions)
    return min(times) * 1e6


def phases(pool: Callable[[Tensor], Tensor]) -> list[float]:
    """Microseconds without a gradient, with the graph recorded, and with the gradient too."""
    input = torch.zeros(SIZES)
    leaf = input.clone().requires_grad_()
    arriving = torch.zeros_like(pool(input))
    return [
        microseconds(lambda: pool(input)),
        microseconds(lambda: pool(leaf)),
        microseconds(lambda: torch.autograd.grad(pool(leaf), leaf, arriving)),
    ]


def steps() -> dict[str, Callable[[], Any]]:
    """What avg_pool2d does, one after the other: each is measured by itself."""
    input, window = torch.zeros(SIZES), Window.pytorch(2, 2, 2)
    counted = (True, None)
    plan = plans.planned(input.shape, input.stride(), input.dtype, window, counted)
    output = empty_strided_cpu(plan.output_sizes, plan.output_strides, input.dtype)
    kernel = library.library.dmlpool_average_pooling
    shape_of_plan = (plan.output_sizes, plan.output_strides, input.dtype)
    return {
        "checks of the input": lambda: operands.check_dense(
            "input", input, operands.AVERAGED_TYPES
        ),
        "the window, looked up": lambda: Window.pytorch(2, 2, 2, 0, 1, False, None),
        "whether modes or transforms are active": lambda: registration.may_skip_dispatcher(input),
        "the backend, looked up": lambda: backends.serving("cpu" if input.is_cpu else "cuda"),
        "the plan, looked up": lambda: plans.planned(
            input.shape, input.stride(), input.dtype, window, counted
        ),
        "memory for the result": lambda: empty_strided_cpu(*shape_of_plan),
        "ctypes and the kernel": lambda: kernel(plan.problem, input.data_ptr(), output.data_ptr()),
        "the backend's function, with the last three": lambda: cpu.average_pooling(
            input, window, *counted
        ),
    }


def main() -> None:
    torch.set_num_threads(1)
    functions = torch.nn.functional, dmlpool.nn.functional
    print(f"PyTorch {torch.__version__}, {SIZES}: microseconds of a call")
    print(f"{'':40} {'forward':>9} {'recorded':>9} {'with gradient':>14}")
    pool = cpu.recorded_average_pooling
    *_, known = pool(torch.zeros(SIZES), Window.pytorch(2, 2, 2), True, None)
    alone = single_level_function("Alone", Kernels)
    contestants: dict[str, Callable[[Tensor], Tensor]] = {
        "empty Function": lambda image: Empty.apply(image, False),
        "empty Function that saves a tensor": lambda image: Empty.apply(image, True),
        "Function of avg_pool2d's kernels alone": lambda image: alone.apply(image, known),
    }
    for name, arguments in CALLS.items():
        for who, module in zip(("ATen", "ours"), functions, strict=True):
            contestants[f"{name}, {who}"] = partial(getattr(module, name), **arguments)
    for name, pool in contestants.items():
        forward, recorded, both = phases(pool)
        print(f"{name:40} {forward:9.2f} {recorded:9.2f} {both:14.2f}")
    print("steps of avg_pool2d:")
    for name, step in steps().items():
        print(f"  {name:46} {microseconds(step):6.2f}")
