"""How much memory an operator takes beside its operands for one long row, and under a mask, in a
process of its own.

``python rows.py SIZE`` prints a line for each operator: the most bytes that were in memory during
the call beyond those before it and those of its results, and its name.
"""

import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool.backends import cpu
from torch_dmlpool.window import Window

Call = Callable[..., Tensor | tuple[Tensor, ...]]


def calls(size):
    """Each operator, with the lengths and data types of the rows that it gets."""
    # Padding, so that windows at both ends read and count fewer elements than the others.
    small = Window.directml(1, window_size=3, strides=1, start_padding=1, end_padding=1)
    large = Window.directml(1, window_size=100, strides=50, start_padding=10, end_padding=10)
    (windows,), bins = large.output_sizes((size,)), size // 4 - 1  # bins of several sizes
    sizes = (size,)
    row, half, taps = (size, torch.float32), (size, torch.float16), (size, torch.uint8)

    def average_grad(window):
        return lambda arriving: cpu.average_pooling_grad(arriving, sizes, window, False, None)

    def max_grad(arriving, taps):
        return cpu.max_pooling_grad_from_taps(arriving, taps, sizes, small, False)

    return {
        "average_pooling": ([row], lambda x: cpu.average_pooling(x, small, False, None)),
        "average_pooling, window 100": (
            [row],
            lambda x: cpu.average_pooling(x, large, False, None),
        ),
        "average_pooling_grad": ([row], average_grad(small)),
        "average_pooling_grad, window 100": ([(windows, torch.float32)], average_grad(large)),
        "average_pooling_grad, float16": ([half], average_grad(small)),
        "max_pooling": ([row], lambda x: cpu.max_pooling(x, small)),
        "max_pooling_with_taps": ([row], lambda x: cpu.max_pooling_with_taps(x, small)),
        "max_pooling_with_indices": (
            [row],
            lambda x: cpu.max_pooling_with_indices(x, small, torch.int64, False),
        ),
        "max_pooling_indices": (
            [taps],
            lambda x: cpu.max_pooling_indices(x, sizes, small, torch.int64, False),
        ),
        "max_pooling_grad_from_taps": ([row, taps], max_grad),
        "max_pooling_grad_from_taps, float16": ([half, taps], max_grad),
        "quantized_linear_average_pooling": (
            [(size, torch.int8)],
            lambda x: cpu.quantized_averages(x, (0.1, 0, 0.1, 0), small, False, torch.int8),
        ),
        "adaptive_average_pooling": (
            [row],
            lambda x: cpu.BACKEND.adaptive_average_pooling(x, [bins]),
        ),
        "adaptive_max_pooling": ([row], lambda x: cpu.BACKEND.adaptive_max_pooling(x, [bins])),
        "adaptive_average_pooling_grad": (
            [(bins, torch.float32)],
            lambda x: cpu.BACKEND.adaptive_average_pooling_grad(x, [size]),
        ),
    }


def memory(field):
    """Bytes, from Linux's account of this process: VmHWM is the most that was ever in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def measured(call, *arguments):
    """The most bytes in memory during the call beyond those before it and its results'."""
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    before, results = memory("VmRSS"), call(*arguments)
    results = [results] if isinstance(results, Tensor) else results
    return memory("VmHWM") - before - sum(each.nbytes for each in results), results


def zeros(rows):
    return [torch.zeros(1, 1, length, dtype=dtype) for length, dtype in rows]


MASKED: dict[str, Call] = {
    "averages": lambda x, mask: dmlpool.average_pooling(x, 2, 2, mask=mask),
    "averages, padding counted": lambda x, mask: dmlpool.average_pooling(
        x, 3, 1, 1, 1, 1, True, mask=mask
    ),
    "averages of bins": lambda x, mask: dmlpool.adaptive_average_pooling(x, 7, mask=mask),
    "averages of planes": lambda x, mask: dmlpool.adaptive_average_pooling(x, 1, mask=mask),
    "maxima": lambda x, mask: dmlpool.max_pooling(x, 2, 2, mask=mask),
    "maxima, indices": lambda x, mask: dmlpool.max_pooling(x, 2, 2, return_indices=True, mask=mask),
    "maxima of bins": lambda x, mask: dmlpool.adaptive_max_pooling(x, 7, mask=mask),
}


def under_a_mask(name, size, channels, dtype):
    """Forward or backward, whichever takes more. Taps and positions of maxima are results, too."""
    edge, kept = math.isqrt(size // 16), size * ("maxima" in name)
    x = torch.ones(1, 16, edge, edge, dtype=dtype).requires_grad_()
    mask = torch.ones(1, channels, edge, edge, dtype=torch.bool)
    forward, (values, *_) = measured(MASKED[name], x, mask)
    backward, _ = measured(torch.autograd.grad, values, x, torch.ones_like(values))
    return max(forward - kept, backward)


def main(size):
    short = calls(4096)
    for name, (rows, call) in calls(size).items():
        few, first = short[name]
        first(*zeros(few))  # what a first call loads and starts is no part of it
        print(f"{measured(call, *zeros(rows))[0]}\t{name}")
    types = torch.float32, torch.float16
    for name, channels, dtype in itertools.product(MASKED, (1, 16), types):
        _, taken = (under_a_mask(name, each, channels, dtype) for each in (4096, size))
        print(f"{taken}\t{name} of {dtype} under a mask of {channels} channels")


if __name__ == "__main__":
    main(int(sys.argv[1]))
