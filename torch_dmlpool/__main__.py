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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool import backends
from torch_dmlpool.backends import cpu

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
    parser.add_argument("--version", action="version", version=f"torch_dmlpool {dmlpool.__version__}")
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
        yield "triton", "not installed: GPUs are served by the PyTorch backend"
    yield "CPU kernels", cpu.missing or Path(cpu.library._name).stem.removeprefix("cpu_")


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
    return {"reference": "PyTorch", "triton": "Triton", "cpu": "compiled"}[serving.rsplit(".", 1)[-1]]


# The self-check.


def _plane(rows: Sequence[Sequence[float]], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor([[rows]], dtype=dtype, device=device)


def _gradient(pool: Callable[[Tensor], Tensor], leaf: Tensor, incoming: Tensor) -> Tensor:
    leaf = leaf.requires_grad_()
    return torch.autograd.grad(pool(leaf), leaf, incoming)[0]


def checked(device: torch.device) -> Iterator[tuple[str, str | None]]:
    """The examples of DirectML's pages by name, each with what is wrong; None if nothing is."""
    counting = _plane([[1, 2, 3], [4, 5, 6], [7, 8, 9]], device)
    hill = _plane([[1, 2, 3], [2, 4, 2], [5, 6, 7]], device)
    first, second = _plane([[1, 2], [3, 4]], device), _plane([[1, 2], [4, 5]], device)
    # 0, 1, 2 and 4 in steps of 0.5 from 10: their average 1.75 is 7 steps of 0.25 from 3.
    integers = _plane([[10, 12], [14, 18]], device, torch.uint8)
    quarters, winners = [[0.25, 0.75, 0.5], [1, 2.5, 1.5], [0.75, 1.75, 1]], [[0, 0, 0], [0, 3, 0], [0, 4, 5]]
    examples: list[tuple[str, Callable[[], Tensor], list[Any]]] = [
        ("DML_AVERAGE_POOLING", lambda: dmlpool.average_pooling(counting, 2), [[3, 4], [6, 7]]),
        ("DML_AVERAGE_POOLING_GRAD", lambda: dmlpool.average_pooling_grad(first, (1, 1, 3, 3), 2), quarters),
        (
            "the same through autograd",
            lambda: _gradient(lambda leaf: dmlpool.average_pooling(leaf, 2), counting.clone(), first),
            quarters,
        ),
        ("DML_MAX_POOLING2, values", lambda: dmlpool.max_pooling(hill, 2), [[4, 4], [6, 7]]),
        ("DML_MAX_POOLING2, indices", lambda: dmlpool.max_pooling(hill, 2, return_indices=True)[1], [[4, 4], [7, 8]]),
        ("DML_MAX_POOLING_GRAD", lambda: dmlpool.max_pooling_grad(hill, second, 2), winners),
        (
            "the same through autograd",
            lambda: _gradient(lambda leaf: dmlpool.max_pooling(leaf, 2), hill.clone(), second),
            winners,
        ),
        (
            "DML_QUANTIZED_LINEAR_AVERAGE_POOLING",
            lambda: dmlpool.quantized_linear_average_pooling(integers, 0.5, 10, 0.25, 3, 2),
            [[10]],
        ),
    ]
    for name, compute, expected in examples:
        try:
            found = compute().cpu()[0, 0].tolist()
        except Exception as error:  # whatever goes wrong is what the check is for
            yield name, f"{type(error).__name__}: {error}"
        else:
            yield name, None if found == expected else f"expected {expected}, got {found}"


# The comparison with ATen.

CONTESTS = {
    "max, window 3, stride 2": ("max_pool2d", 3, 2, ""),
    "max, window 3, stride 2, channels_last": ("max_pool2d", 3, 2, "channels_last"),
    "max, window 3, stride 2, forward and backward": ("max_pool2d", 3, 2, "training"),
    "max, window 13, stride 1": ("max_pool2d", 13, 1, ""),
    "average, window 3, stride 1": ("avg_pool2d", 3, 1, ""),
    "average, window 3, stride 1, forward and backward": ("avg_pool2d", 3, 1, "training"),
}
"""Function, window, stride and what is special."""


def print_timings(device: torch.device, seconds: float) -> None:
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    print(f"\nmilliseconds on {title(device)}{threads}: float32 of shape {SHAPE}, padding of half a window,")
    print("median of rounds in turn; a ratio above 1 says that this package takes less time than ATen")
    print(f"  {'':<52}{'ours':>9}{'ATen':>9}{'ratio':>7}")
    end = time.perf_counter() + seconds
    for number, name in enumerate(CONTESTS):
        now = time.perf_counter()
        measured = compared(name, device, now + (end - now) / (len(CONTESTS) - number), end)
        if measured is None:
            print(f"  {name:<52}{'no time left':>25}")
            continue
        ours, aten = measured
        print(f"  {name:<52}{1000 * ours:>9.3f}{1000 * aten:>9.3f}{aten / ours:>7.2f}")


def compared(name: str, device: torch.device, until: float, end: float) -> tuple[float, float] | None:
    """Median seconds of both sides, which take turns so that other load on the machine meets them alike.

    Rounds begin ``until`` a time of the clock, the first one until the ``end``; None if that was too late.
    """
    if time.perf_counter() >= end:
        return None
    sides = works(name, torch.randn(SHAPE, dtype=torch.float32, device=device))
    times: list[list[float]] = [[], []]
    for side in sides:
        _timed(side, device)
    while time.perf_counter() < (until if times[0] else end):
        for side, measured in zip(sides, times, strict=True):
            measured.append(_timed(side, device))
    return (statistics.median(times[0]), statistics.median(times[1])) if times[0] else None


def works(name: str, input: Tensor) -> list[Callable[[], Tensor]]:
    """The same work for this package and for ATen; what it gives shows that it is the same."""
    function, window, stride, special = CONTESTS[name]
    if special == "channels_last":
        input = input.contiguous(memory_format=torch.channels_last)

    def work(module: Any) -> Callable[[], Tensor]:
        def pool(input: Tensor) -> Tensor:
            return getattr(module, function)(input, window, stride, window // 2)

        if special != "training":
            return lambda: pool(input)
        leaf = input.requires_grad_()
        gradient = torch.ones_like(pool(leaf))
        return lambda: torch.autograd.grad(pool(leaf), leaf, gradient)[0]

    return [work(dmlpool.nn.functional), work(torch.nn.functional)]


def _timed(work: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


if __name__ == "__main__":
    sys.exit(main())
