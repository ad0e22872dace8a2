"""``python -m torch_dmlpool``: what is installed, which backend serves which device, and whether it computes rightly.

The examples are those of DirectML's own pages. The exit code is 1 if one of them comes out otherwise.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool import backends

GREEN, RED, PLAIN = "\033[32m", "\033[31m", "\033[0m"
SECONDS = 10.0
"""For all timings of a device together: past them no more work is begun, however slow the machine is."""
SHAPE = (4, 64, 56, 56)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_dmlpool", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--no-timing",
        "--quick",
        action="store_true",
        help="leave out the comparison with ATen, which takes ten seconds for each kind of device",
    )
    options = parser.parse_args(arguments)
    for name, version in versions():
        print(f"{name:<15}{version}")
    right = True
    for device in devices():
        print(f"\n{title(device)}: served by the {backend_name(device)} backend")
        for name, difference in checked(device):
            right = right and difference is None
            print(f"  {colored('FAILED', RED) if difference else colored('ok', GREEN)} {name}")
            if difference:
                print(f"    {difference}")
    if not options.no_timing:
        # Of several devices of one kind the first speaks for all.
        for device in {kind(device): device for device in reversed(devices())}.values():
            print_timings(device, SECONDS)
    return 0 if right else 1


def colored(text: str, color: str) -> str:
    """``text`` in colour, on a terminal whose user has not asked for none."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"{color}{text}{PLAIN}"


def versions() -> Iterator[tuple[str, str]]:
    yield "torch_dmlpool", dmlpool.__version__
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "torch", torch.__version__
    try:
        # Asked without an import, which would load a compiler.
        yield "triton", importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        yield "triton", "not installed: every device is served by the PyTorch backend"


def devices() -> list[torch.device]:
    """The CPU and every accelerator that PyTorch can use."""
    found = [torch.device("cpu")]
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        found += [torch.device(accelerator.type, index) for index in range(torch.accelerator.device_count())]
    return found


def kind(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def title(device: torch.device) -> str:
    return f"{device} ({kind(device)})" if device.type == "cuda" else str(device)


def backend_name(device: torch.device) -> str:
    serving = backends.serving(device.type).__name__
    return {"torch_backend": "PyTorch", "triton": "Triton", "cpu": "compiled"}[serving.rsplit(".", 1)[-1]]


# The self-check.


@dataclass(frozen=True)
class Example:
    """What an operator must give for a small input."""

    name: str
    compute: Callable[[torch.device], Tensor]
    expected: list[list[float]]

    def difference(self, device: torch.device) -> str | None:
        """What is wrong; None if nothing is."""
        try:
            found = self.compute(device).cpu()[0, 0].tolist()
        except Exception as error:  # whatever goes wrong is what the check is for
            return f"{type(error).__name__}: {error}"
        return None if found == self.expected else f"expected {self.expected}, got {found}"


def _plane(rows: Sequence[Sequence[float]], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor([[rows]], dtype=dtype, device=device)


COUNTING = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
HILL = [[1, 2, 3], [2, 4, 2], [5, 6, 7]]


def _average(device: torch.device) -> Tensor:
    return dmlpool.average_pooling(_plane(COUNTING, device), 2)


def _average_grad(device: torch.device) -> Tensor:
    return dmlpool.average_pooling_grad(_plane([[1, 2], [3, 4]], device), (1, 1, 3, 3), 2)


def _average_backward(device: torch.device) -> Tensor:
    leaf = _plane(COUNTING, device).requires_grad_()
    return torch.autograd.grad(dmlpool.average_pooling(leaf, 2), leaf, _plane([[1, 2], [3, 4]], device))[0]


def _maxima(device: torch.device) -> Tensor:
    return dmlpool.max_pooling(_plane(HILL, device), 2)


def _indices(device: torch.device) -> Tensor:
    _, indices = dmlpool.max_pooling(_plane(HILL, device), 2, return_indices=True)
    return indices


def _max_grad(device: torch.device) -> Tensor:
    return dmlpool.max_pooling_grad(_plane(HILL, device), _plane([[1, 2], [4, 5]], device), 2)


def _max_backward(device: torch.device) -> Tensor:
    leaf = _plane(HILL, device).requires_grad_()
    return torch.autograd.grad(dmlpool.max_pooling(leaf, 2), leaf, _plane([[1, 2], [4, 5]], device))[0]


def _quantized(device: torch.device) -> Tensor:
    # 0, 1, 2 and 4 in steps of 0.5 from 10: their average 1.75 is 7 steps of 0.25 from 3.
    integers = _plane([[10, 12], [14, 18]], device, torch.uint8)
    return dmlpool.quantized_linear_average_pooling(integers, 0.5, 10, 0.25, 3, 2)


EXAMPLES = [
    Example("DML_AVERAGE_POOLING", _average, [[3, 4], [6, 7]]),
    Example("DML_AVERAGE_POOLING_GRAD", _average_grad, [[0.25, 0.75, 0.5], [1, 2.5, 1.5], [0.75, 1.75, 1]]),
    Example("the same through autograd", _average_backward, [[0.25, 0.75, 0.5], [1, 2.5, 1.5], [0.75, 1.75, 1]]),
    Example("DML_MAX_POOLING2, values", _maxima, [[4, 4], [6, 7]]),
    Example("DML_MAX_POOLING2, indices", _indices, [[4, 4], [7, 8]]),
    Example("DML_MAX_POOLING_GRAD", _max_grad, [[0, 0, 0], [0, 3, 0], [0, 4, 5]]),
    Example("the same through autograd", _max_backward, [[0, 0, 0], [0, 3, 0], [0, 4, 5]]),
    Example("DML_QUANTIZED_LINEAR_AVERAGE_POOLING", _quantized, [[10]]),
]


def checked(device: torch.device) -> Iterator[tuple[str, str | None]]:
    for example in EXAMPLES:
        yield example.name, example.difference(device)


# The comparison with ATen.


@dataclass(frozen=True)
class Contest:
    """The same work for this package and for ATen."""

    name: str
    ours: Callable[[Tensor], Tensor]
    aten: Callable[[Tensor], Tensor]
    training: bool = False
    channels_last: bool = False


def _max_contest(name: str, window: int, stride: int, **rest: bool) -> Contest:
    return Contest(
        name,
        lambda x: dmlpool.nn.functional.max_pool2d(x, window, stride, window // 2),
        lambda x: torch.nn.functional.max_pool2d(x, window, stride, window // 2),
        **rest,
    )


def _average_contest(name: str, window: int, stride: int, **rest: bool) -> Contest:
    return Contest(
        name,
        lambda x: dmlpool.nn.functional.avg_pool2d(x, window, stride, window // 2),
        lambda x: torch.nn.functional.avg_pool2d(x, window, stride, window // 2),
        **rest,
    )


CONTESTS = [
    _max_contest("max, window 3, stride 2", 3, 2),
    _max_contest("max, window 3, stride 2, channels_last", 3, 2, channels_last=True),
    _max_contest("max, window 3, stride 2, forward and backward", 3, 2, training=True),
    _max_contest("max, window 13, stride 1", 13, 1),
    _average_contest("average, window 3, stride 1", 3, 1),
    _average_contest("average, window 3, stride 1, forward and backward", 3, 1, training=True),
]


def print_timings(device: torch.device, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    print(f"\nmilliseconds on {title(device)}{threads}: float32 of shape {SHAPE}, padding of half a window,")
    print("median of rounds in turn; a ratio above 1 says that this package takes less time than ATen")
    print(f"  {'':<52}{'ours':>9}{'ATen':>9}{'ratio':>7}")
    end = clock() + seconds
    for number, contest in enumerate(CONTESTS):
        now = clock()
        measured = compared(contest, device, now + (end - now) / (len(CONTESTS) - number), end, clock)
        if measured is None:
            print(f"  {contest.name:<52}{'no time left':>25}")
            continue
        ours, aten = measured
        print(f"  {contest.name:<52}{1000 * ours:>9.3f}{1000 * aten:>9.3f}{aten / ours:>7.2f}")


def compared(
    contest: Contest, device: torch.device, until: float, end: float, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, float] | None:
    """Median seconds of both sides, which take turns so that other load on the machine meets them alike.

    Rounds begin ``until`` a time of the clock, the first one until the ``end``; None if that was too late.
    """
    if clock() >= end:
        return None
    input = torch.randn(SHAPE, device=device)
    if contest.channels_last:
        input = input.contiguous(memory_format=torch.channels_last)
    sides = [_work(function, input, contest.training) for function in (contest.ours, contest.aten)]
    for side in sides:
        _timed(side, device, clock)
    times: list[list[float]] = [[], []]
    while clock() < (until if times[0] else end):
        for side, measured in zip(sides, times, strict=True):
            measured.append(_timed(side, device, clock))
    if not times[0]:
        return None
    ours, aten = (statistics.median(measured) for measured in times)
    return ours, aten


def _work(function: Callable[[Tensor], Tensor], input: Tensor, training: bool) -> Callable[[], object]:
    if not training:
        return lambda: function(input)
    leaf = input.requires_grad_()
    gradient = torch.ones_like(function(leaf))
    return lambda: torch.autograd.grad(function(leaf), leaf, gradient)


def _timed(work: Callable[[], object], device: torch.device, clock: Callable[[], float]) -> float:
    _wait(device)
    start = clock()
    work()
    _wait(device)
    return clock() - start


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


if __name__ == "__main__":
    sys.exit(main())
