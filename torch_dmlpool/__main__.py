"""``python -m torch_dmlpool``: what is installed, which backend each device uses, and whether it
computes rightly.

The examples are those of DirectML's own pages. The exit code is 1 if one of them comes out
otherwise.
"""

import argparse
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool import bench, timing
from torch_dmlpool.backends import cpu
from torch_dmlpool.bench import conditions


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["bench"]:
        return bench.main(words[1:])
    parser = argparse.ArgumentParser(
        prog="python -m torch_dmlpool",
        description="What is installed, which kernels pool on which device, and whether results "
        "are right: a few seconds.",
        epilog="python -m torch_dmlpool bench measures more, and a model of yours: see its --help.",
    )
    parser.add_argument(
        "--no-timing", "--quick", action="store_true", help="leave out the comparison with PyTorch"
    )
    parser.add_argument(
        "--version", action="version", version=f"torch_dmlpool {dmlpool.__version__}"
    )
    options = parser.parse_args(words)
    for name, version in versions():
        print(f"{name:<15}{version}")
    devices, right = [torch.device("cpu")], True
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        devices += [
            torch.device(accelerator.type, index)
            for index in range(torch.accelerator.device_count())
        ]
    for device in devices:
        name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
        print(f"\n{device}{name}: uses {conditions.backend_of(device)}")
        for name, difference in checked(device):
            right = right and not difference
            print(f"  FAILED {name}\n    {difference}" if difference else f"  ok {name}")
        if not options.no_timing:
            busy = timing.load()
            if busy is not None:
                print(f"  The machine is busy: {busy}. The times say little.")
            print("  Milliseconds, median (quartiles), and how many times as long PyTorch takes")
            for line in bench.measured(device, busy):
                print(line)
    return 0 if right else 1


def versions() -> Iterator[tuple[str, str]]:
    """Names of what is installed, each with its version."""
    yield "torch_dmlpool", dmlpool.__version__
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "torch", torch.__version__
    triton = conditions.version_of("triton")
    is_missing = triton == "not installed"
    yield "triton", triton + ": GPUs run plain PyTorch operations" * is_missing
    yield "CPU kernels", cpu.missing or Path(cpu.library._name).stem.removeprefix("cpu_")


def checked(device: torch.device) -> Iterator[tuple[str, str | None]]:
    """The examples of DirectML's pages by name, each with what is wrong; None if nothing is."""

    def plane(*rows: Sequence[float], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor([[rows]], dtype=dtype, device=device)

    counting, hill = plane([1, 2, 3], [4, 5, 6], [7, 8, 9]), plane([1, 2, 3], [2, 4, 2], [5, 6, 7])
    first, second = plane([1, 2], [3, 4]), plane([1, 2], [4, 5])
    # 0, 1, 2 and 4 in steps of 0.5 from 10: their average 1.75 is 7 steps of 0.25 from 3.
    quantized = plane([10, 12], [14, 18], dtype=torch.uint8), 0.5, 10, 0.25, 3
    quarters = [[0.25, 0.75, 0.5], [1, 2.5, 1.5], [0.75, 1.75, 1]]
    winners = [[0, 0, 0], [0, 3, 0], [0, 4, 5]]
    average, maximum = dmlpool.average_pooling, dmlpool.max_pooling
    vjp = torch.autograd.functional.vjp
    requantized = dmlpool.quantized_linear_average_pooling
    examples: dict[str, tuple[Callable[[], Tensor], list[Any]]] = {
        "DML_AVERAGE_POOLING": (lambda: average(counting, 2), [[3, 4], [6, 7]]),
        "DML_AVERAGE_POOLING_GRAD": (
            lambda: dmlpool.average_pooling_grad(first, (1, 1, 3, 3), 2),
            quarters,
        ),
        "DML_AVERAGE_POOLING_GRAD, by autograd": (
            lambda: vjp(lambda x: average(x, 2), counting, first)[1],
            quarters,
        ),
        "DML_MAX_POOLING2, values": (lambda: maximum(hill, 2), [[4, 4], [6, 7]]),
        "DML_MAX_POOLING2, indices": (
            lambda: maximum(hill, 2, return_indices=True)[1],
            [[4, 4], [7, 8]],
        ),
        "DML_MAX_POOLING_GRAD": (lambda: dmlpool.max_pooling_grad(hill, second, 2), winners),
        "DML_MAX_POOLING_GRAD, by autograd": (
            lambda: vjp(lambda x: maximum(x, 2), hill, second)[1],
            winners,
        ),
        "DML_QUANTIZED_LINEAR_AVERAGE_POOLING": (
            lambda: requantized(*quantized, window_size=2),
            [[10]],
        ),
    }
    for name, (compute, expected) in examples.items():
        try:
            found = compute().cpu()[0, 0].tolist()
        except Exception as error:  # the check is there to report any failure
            yield name, f"{type(error).__name__}: {error}"
        else:
            yield name, None if found == expected else f"expected {expected}, got {found}"


if __name__ == "__main__":
    sys.exit(main())
