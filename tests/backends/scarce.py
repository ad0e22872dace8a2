"""Calls of every function of the compiled library without enough memory, in a process of its own.

``python scarce.py THREADS`` lets the first allocation of a call fail, then the second, and so on
(tests/backends/allocations.c is preloaded). It prints a line of JSON for each function.
"""

import ctypes
import json
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from torch_dmlpool.backends import cpu
from torch_dmlpool.backends import segments as of_rows
from torch_dmlpool.backends.interface import kind_of
from torch_dmlpool.window import Window

Call = Callable[[], Tensor | tuple[Tensor, ...]]


def windowed(rank, window_size, strides, start_padding=0):
    return Window.directml(
        rank, window_size=window_size, strides=strides, start_padding=start_padding
    )


def least_of(input, window):
    """The plan of minima."""
    return cpu.Maxima(kind_of(input), window, are_minima=True)


def calls():
    """A call of each function."""
    torch.manual_seed(0)
    many = torch.randn(1, 32, 48, 48).to(memory_format=torch.channels_last)
    small = torch.randn(2, 2, 128, 64).to(torch.bfloat16)
    quantized = torch.randint(0, 255, many.shape, dtype=torch.uint8)
    quantized = quantized.to(memory_format=torch.channels_last)
    large, three = windowed(2, 31, 1, 2), windowed(2, 3, 2, 1)
    _, taps = cpu.max_pooling_with_taps(small, three)
    sizes = small.shape[2:]
    positions = cpu.max_pooling_indices(taps, sizes, three, torch.int64, True)
    unique = cpu.unique_positions(positions, sizes)
    shares = torch.randn(taps.shape).to(torch.bfloat16)
    row = torch.randn(2, 2, 4096)
    row_window = windowed(1, 3, 2, 1)
    _, row_taps = cpu.max_pooling_with_taps(row, row_window)
    row_shares = torch.randn(2, 2, row_taps.shape[-1])
    offsets, rows_kept = torch.tensor([0, 3, 2000, 4096]), torch.rand(4096) < 0.9
    rows = torch.randn(4096, 64)
    frames, lines = torch.randn(2, 64, 500), torch.randn(3, 2, 64, 1)
    mask = small > 0
    return {
        "segment_sums": lambda: of_rows.segment_sums(rows, offsets, rows_kept, True),
        "segment_maxima": lambda: of_rows.segment_maxima(rows, offsets, rows_kept, False),
        "segment_shares": lambda: of_rows.segment_shares(rows[:3], offsets, rows_kept, 4096, True),
        "statistics": lambda: of_rows.statistics(frames, None, 1),
        "statistics_grad": lambda: of_rows.statistics_grad(frames, None, *lines),
        "max_pooling": lambda: cpu.max_pooling(many, large),
        "max_pooling, winners": lambda: cpu.max_pooling_with_taps(many, large),
        "max_pooling_indices": lambda: cpu.max_pooling_indices(
            row_taps, row.shape[2:], row_window, torch.int64, False
        ),
        "max_pooling_grad_from_taps": lambda: cpu.max_pooling_grad_from_taps(
            shares, taps, sizes, three, False
        ),
        "max_pooling, minima": lambda: least_of(many, large).run(many),
        "max_pooling, minima under a mask": lambda: least_of(small, three).run(small, mask),
        "max_unpooling": lambda: cpu.max_unpooling(shares, positions, sizes, True, True)[:2],
        "unique_positions": lambda: cpu.unique_positions(positions, sizes),
        "gather_positions": lambda: cpu.gather_positions(small, unique),
        "masked": lambda: cpu.masked(small, mask, True),
        "average_pooling, mask": lambda: cpu.average_pooling(small, three, True, None, mask),
        "average_pooling_grad, mask": lambda: cpu.average_pooling_grad(
            shares, sizes, three, True, None, mask
        ),
        "max_pooling, mask": lambda: cpu.max_pooling_with_taps(small, three, mask),
        "scatter_positions": lambda: cpu.scatter_positions(shares, unique, sizes, False, False),
        "average_pooling": lambda: cpu.average_pooling(many, large, False, None),
        "average_pooling_grad": lambda: cpu.average_pooling_grad(
            row_shares, row.shape[2:], row_window, False, None
        ),
        "quantized_averages": lambda: cpu.quantized_averages(
            quantized, (0.5, 3, 0.25, 1), large, False, torch.uint8
        ),
    }


def all_of(results):
    return [results] if isinstance(results, Tensor) else results


def bits(results):
    return [each.clone() for each in all_of(results)]


def allocate_by(new):
    cpu._new = new  # type: ignore[attr-defined]


def prepared(call):
    """The call with results that are there already, and what they are."""
    made: list[Tensor] = []
    new = cpu._new

    def noted(*arguments):
        made.append(new(*arguments))
        return made[-1]

    def again():
        remaining = iter(made)
        allocate_by(lambda *_: next(remaining))
        try:
            return call()
        finally:
            allocate_by(new)

    allocate_by(noted)
    expected = bits(call())
    allocate_by(new)
    return again, expected


def with_failing_allocations(name, call):
    """Fail each allocation in turn: what the call raises, and how many blocks it leaves behind."""
    allocations, function = ctypes.CDLL(None), f"dmlpool_{name.split(',')[0]}"
    operator = getattr(cpu.library, function)
    again, expected = prepared(call)
    again()
    number, leaves, errors, left = 0, [], [], []

    def fails(*pointers):
        given = [ctypes.cast(each, ctypes.c_void_p) for each in [*pointers, None, None, None][:6]]
        code: int = allocations.call_with_failing(operator, *given, ctypes.c_long(number))
        leaves.append(allocations.blocks_left())
        return code

    fails.__name__ = function
    setattr(cpu.library, function, fails)
    cpu._maxima_plan.cache_clear()  # plans keep the function
    while number < 1000 and (number == 0 or allocations.has_failed()):
        leaves.clear()
        # A thread's first exception allocates what it keeps, which is no leak.
        for _ in range(3):
            error = ""
            try:
                again()
            except MemoryError as raised:
                error = str(raised)
        errors.append(error)
        left.append(min(leaves))
        number += 1
    setattr(cpu.library, function, operator)
    cpu._maxima_plan.cache_clear()
    is_right = all(torch.equal(*pair) for pair in zip(all_of(again()), expected, strict=True))
    return {"name": name, "errors": errors, "left": left, "right": is_right}


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    for name, call in calls().items():
        print(json.dumps(with_failing_allocations(name, call)), flush=True)
