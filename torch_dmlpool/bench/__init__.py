"""``python -m torch_dmlpool bench``: is this package right and fast here? A minute on any device.

It says what pools on the device and why. It compares forty calls, which reach each kernel, data
type and layout, with the reference on the CPU. It measures eight calls that networks have, beside
PyTorch's functions and beside torch.compile's, and with ``--model`` a model of yours before and
after ``convert``. The exit status is 1 where a result is wrong or was not begun.
"""

import argparse
import time
from collections.abc import Sequence

import torch

from torch_dmlpool import timing
from torch_dmlpool.bench import calls, conditions, models, rows

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    device = options.device
    begun = time.monotonic()
    end, load = begun + options.seconds, timing.load()
    if options.model:
        models.loaded(options.model, device)  # a wrong name is said before any work
    known = conditions.described(device)
    print(f"torch_dmlpool on {device}")
    for name, value in known.items():
        print(f"  {name:<24}{value}")
    if load is not None:
        print(f"  The machine is busy: {load}. Times say little.")

    print("\nResults beside the reference on the CPU")
    checked = calls.check(device, begun + 0.5 * options.seconds)
    print(f"  {checked}")
    for name, why in checked.wrong.items():
        print(f"  WRONG {name}: {why}")
    for name in checked.left:
        print(f"  NOT BEGUN {name}")

    print("\nMilliseconds, median (quartiles), and how many times as long the others take")
    verdicts, until = [], end - (0.4 * options.seconds if options.model else 0.0)
    shares = {rows.ATEN: 1.0} if options.no_compile else {rows.ATEN: 0.4, rows.COMPILED: 1.0}
    for rival, share in shares.items():
        measured, why, now = [], "no time", time.monotonic()
        try:
            for row in rows.measure(device, rival, now + share * (until - now)):
                measured.append(row)
                print(row.line(load), flush=True)
        except Exception as error:  # such as a missing C++ compiler, which no row can do without
            why = models.summary(error)
        said = rows.verdict(measured, load) if measured else f"not measured ({why})."
        verdicts.append(f"Beside {rival}, {said}")

    if options.model:
        seconds, compiles = max(end - time.monotonic(), 10.0), not options.no_compile
        print()
        for line in models.measure(options.model, device, seconds, load, compiles):
            print(line, flush=True)

    print("", *verdicts, sep="\n")
    if "SLOW" in known["runs on"]:
        print("This device uses plain PyTorch operations: expect no gain.")
    print("\nTo report this, paste all of it into an issue, between two lines of ```.")
    return 0 if checked.is_right else 1


def _device(name: str) -> torch.device:
    """The device of that name, if the machine has it."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    there = ["cpu"] if accelerator is None else ["cpu", accelerator.type]
    try:
        device = torch.device(name)
        if device.type in there:
            # This raises an error if there is none of that number.
            torch.empty(1, dtype=torch.float32, device=device)
            return device
        why = f"PyTorch finds no such device here, only {' and '.join(there)}"
    except RuntimeError as error:
        why = str(error).strip().partition("\n")[0]
    raise argparse.ArgumentTypeError(f"{name}: {why}")


def _seconds(text: str) -> float:
    """The seconds of ``--seconds``; argparse reports the error."""
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"must be at least 0, got {text}")
    return seconds


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m torch_dmlpool bench",
        description="Is torch_dmlpool right and fast on this machine? A minute on any device.",
    )
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    parser.add_argument(
        "--device",
        type=_device,
        default=accelerator or torch.device("cpu"),
        help="such as cpu or cuda:0; the accelerator if there is one",
    )
    parser.add_argument(
        "--seconds", type=_seconds, default=60.0, help="about how long it may take (60)"
    )
    parser.add_argument(
        "--model",
        metavar="PACKAGE:FACTORY",
        help="measure a model before and after conversion: a function that returns the model and a "
        "tuple of example inputs, or the model alone for eight images of 3x224x224",
    )
    parser.add_argument(
        "--no-compile",
        action="store_true",
        help="leave out comparisons with torch.compile, which takes most of the time",
    )
    return parser.parse_args(arguments)
