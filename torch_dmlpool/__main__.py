"""``python -m torch_dmlpool``: what pools on each device and why, and whether it computes rightly.

``python -m torch_dmlpool bench`` measures too, on one device: half a minute. The exit code is 1 if
a result is wrong.
"""

import argparse
import sys
from collections.abc import Sequence

import torch

import torch_dmlpool as dmlpool
from torch_dmlpool import bench
from torch_dmlpool.bench import conditions


def main(arguments: Sequence[str] | None = None) -> int:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    parser = argparse.ArgumentParser(
        prog="python -m torch_dmlpool",
        description="Which kernels pool on each device, and are results right? A few seconds.",
    )
    parser.add_argument(
        "command",
        nargs="?",
        choices=["bench"],
        help="measure too, on the accelerator if there is one: half a minute",
    )
    parser.add_argument("--device", type=_device, help="one device, such as cpu or cuda:0")
    parser.add_argument(
        "--version", action="version", version=f"torch_dmlpool {dmlpool.__version__}"
    )
    options = parser.parse_args(arguments)
    devices = [torch.device("cpu"), *([] if accelerator is None else [accelerator])]
    if options.device or options.command:
        devices = [options.device or devices[-1]]
    is_right = True
    for device in devices:
        print(f"torch_dmlpool on {device}")
        for name, value in conditions.described(device).items():
            print(f"  {name:<24}{value}")
        results = dict(bench.checked(device))
        wrong = {name: why for name, why in results.items() if why}
        print(f"{len(results) - len(wrong)} of {len(results)} results are right")
        for name, why in wrong.items():
            print(f"  WRONG {name}: {why}")
        is_right = is_right and not wrong
    if options.command:
        print("\nMilliseconds, median (quartiles), and how many times as long the other takes")
        for line in bench.measured(devices[0]):
            print(line, flush=True)
        print("\nTo report this, paste all of it into an issue, between two lines of ```.")
    return 0 if is_right else 1


def _device(name: str) -> torch.device:
    """The device of that name, if the machine has it."""
    try:
        device = torch.device(name)
        torch.empty(1, dtype=torch.float32, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise argparse.ArgumentTypeError(f"{name}: {str(error).partition(chr(10))[0]}") from None
    return device


if __name__ == "__main__":
    sys.exit(main())
