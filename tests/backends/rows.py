"""How much memory an operator takes beside its operands for one long row, in a process of its own.

``python rows.py SIZE`` prints a line for each operator: the most bytes that were in memory during
the call beyond those before it and those of its results, and its name.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from torch_dmlpool.backends import cpu
from torch_dmlpool.window import Window

Call = Callable[[], Tensor | tuple[Tensor, ...]]


def calls(size: int) -> dict[str, Callable[[], Call]]:
    """Each operator, as a function that makes its operands and returns the call."""
    # Padding, so that windows at both ends read and count fewer elements than the others.
    small = Window.directml(1, window_size=3, strides=1, start_padding=1, end_padding=1)
    large = Window.directml(1, window_size=100, strides=50, start_padding=10, end_padding=10)
    bins = size // 4 - 1  # of several sizes

    def values(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(1, 1, count, dtype=dtype)

    def pooled(window: Window) -> Callable[[], Call]:
        def make() -> Call:
            row = values(size)
            return lambda: cpu.average_pooling(row, window, False, None)

        return make

    def gradient(window: Window, dtype: torch.dtype) -> Callable[[], Call]:
        def make() -> Call:
            arriving = values(*window.output_sizes((size,)), dtype)
            return lambda: cpu.average_pooling_grad(arriving, (size,), window, False, None)

        return make

    def maxima(call: Callable[[Tensor, Window], Tensor | tuple[Tensor, ...]]) -> Callable[[], Call]:
        def make() -> Call:
            row = values(size)
            return lambda: call(row, small)

        return make

    def max_gradient(dtype: torch.dtype) -> Callable[[], Call]:
        def make() -> Call:
            arriving, taps = values(size, dtype), values(size, torch.uint8)
            return lambda: cpu.max_pooling_grad_from_taps(arriving, taps, (size,), small, False)

        return make

    def tap_indices() -> Call:
        taps = values(size, torch.uint8)
        return lambda: cpu.max_pooling_indices(taps, (size,), small, torch.int64, False)

    def quantized() -> Call:
        row = values(size, torch.int8)
        return lambda: cpu.quantized_linear_average_pooling(
            row, 0.1, 0, 0.1, 0, small, False, torch.int8
        )

    def adaptive(
        call: Callable[[Tensor, list[int]], Tensor | tuple[Tensor, ...]],
    ) -> Callable[[], Call]:
        def make() -> Call:
            row = values(size)
            return lambda: call(row, [bins])

        return make

    def adaptive_gradient() -> Call:
        arriving = values(bins)
        return lambda: cpu.BACKEND.adaptive_average_pooling_grad(arriving, [size])

    return {
        "average_pooling": pooled(small),
        "average_pooling, window 100": pooled(large),
        "average_pooling_grad": gradient(small, torch.float32),
        "average_pooling_grad, window 100": gradient(large, torch.float32),
        "average_pooling_grad, float16": gradient(small, torch.float16),
        "max_pooling": maxima(cpu.max_pooling),
        "max_pooling_with_taps": maxima(cpu.max_pooling_with_taps),
        "max_pooling_with_indices": maxima(
            lambda row, window: cpu.max_pooling_with_indices(row, window, torch.int64, False)
        ),
        "max_pooling_indices": tap_indices,
        "max_pooling_grad_from_taps": max_gradient(torch.float32),
        "max_pooling_grad_from_taps, float16": max_gradient(torch.float16),
        "quantized_linear_average_pooling": quantized,
        "adaptive_average_pooling": adaptive(cpu.BACKEND.adaptive_average_pooling),
        "adaptive_max_pooling": adaptive(cpu.adaptive_max_pooling),
        "adaptive_average_pooling_grad": adaptive_gradient,
    }


def memory(field: str) -> int:
    """Bytes, from Linux's account of this process: VmHWM is the most that was ever in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def bytes_of(results: Tensor | tuple[Tensor, ...]) -> int:
    each = (results,) if isinstance(results, Tensor) else results
    return sum(result.numel() * result.element_size() for result in each)


def main(size: int) -> None:
    short = calls(4096)
    for name, operator in calls(size).items():
        short[name]()()  # what a first call loads and starts is no part of it
        call = operator()
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
        before = memory("VmRSS")
        results = call()
        print(f"{memory('VmHWM') - before - bytes_of(results)}\t{name}")
        del call, results


if __name__ == "__main__":
    main(int(sys.argv[1]))
