"""``python -m torch_dmlpool bench``: is this package right and fast here? Half a minute.

It says what pools on the device and why. It compares results on the device with those of PyTorch's
functions in float64 on the CPU. It measures eight calls that networks have beside PyTorch's, and
with ``--model`` a model of yours before and after ``convert``. The exit status is 1 where a result
is wrong.
"""

import argparse
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool import timing
from torch_dmlpool.bench import conditions, models
from torch_dmlpool.nn import functional as ours

__all__ = ["main"]

theirs, ATEN = torch.nn.functional, "torch.nn"
HALF, FLOAT, BFLOAT = torch.float16, torch.float32, torch.bfloat16
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
CHECKS: list[tuple[str, tuple[Any, ...], torch.dtype]] = [
    ("max_pool2d", (3, 2, 1), FLOAT),
    ("max_pool2d", (17, 1, 8), BFLOAT),
    ("max_pool2d", (3, 1, 1, 2), torch.float64),
    ("max_pool2d", ((3, 5), 1), torch.int8),
    ("max_pool2d_with_indices", (2,), HALF),
    ("max_pool3d", (2,), FLOAT),  # the images are an unbatched volume
    ("avg_pool2d", (3, 2, 1), HALF),
    ("avg_pool2d", (2,), FLOAT),
    ("avg_pool2d", (17, 1, 8), FLOAT),
    ("adaptive_avg_pool2d", ((7, 5),), FLOAT),
    ("adaptive_max_pool2d", ((7, 5),), FLOAT),
]
"""Functions, with their arguments and the input's data type; gradients are checked of float32."""
ROWS = [
    ("max_pool2d", (3, 2, 1), (8, 64, 112, 112), False, False, False),  # ResNet, the stem
    ("max_pool2d", (3, 2, 1), (32, 64, 112, 112), True, True, True),  # ResNet, the stem
    ("max_pool2d", (2, 2), (8, 128, 112, 112), False, False, True),  # VGG
    ("max_pool2d", (5, 1, 2), (128, 256, 20, 20), True, True, False),  # YOLO, SPPF
    ("avg_pool2d", (2, 2), (32, 128, 56, 56), False, False, True),  # DenseNet, transition
    ("avg_pool2d", (3, 1, 1), (32, 288, 35, 35), False, True, False),  # Inception
    ("adaptive_avg_pool2d", (1,), (256, 1280, 7, 7), True, True, False),  # EfficientNet, the head
    ("adaptive_avg_pool2d", (7,), (128, 512, 14, 14), False, False, True),  # VGG, the head
]
"""Functions, with their arguments and the input's sizes; whether it is of half precision and in
channels_last, and whether there is a backward pass."""


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    device, load = options.device, timing.load()
    example = models.loaded(options.model, device) if options.model else None
    print(f"torch_dmlpool on {device}")
    for name, value in conditions.described(device).items():
        print(f"  {name:<24}{value}")

    print("\nResults beside PyTorch's in float64 on the CPU")
    results = dict(checked(device))
    wrong = {name: why for name, why in results.items() if why}
    print(f"  {len(results) - len(wrong)} of {len(results)} are right")
    for name, why in wrong.items():
        print(f"  WRONG {name}: {why}")

    print("\nMilliseconds, median (quartiles), and how many times as long the other takes")
    lines = measured(device, load)
    if example:
        lines = itertools.chain(lines, models.measured(*example, device, load))
    for line in lines:
        print(line, flush=True)
    print("\nTo report this, paste all of it into an issue, between two lines of ```.")
    return 1 if wrong else 0


def checked(device: torch.device) -> Iterator[tuple[str, str | None]]:
    """Calls by name, each with what is wrong; None if nothing is."""
    generator = torch.Generator().manual_seed(0)
    sizes = (2, 16, 24, 32)
    numbers = torch.randint(0, 90, sizes, generator=generator, dtype=torch.int64, device="cpu")
    for function, arguments, dtype in CHECKS:
        for layout, memory_format in LAYOUTS.items():
            input = numbers.to(dtype).contiguous(memory_format=memory_format).to(device)
            doubles = numbers.double()
            ones = _ones(function, arguments, doubles) if dtype is FLOAT else None
            expected = _results(function, arguments, ones, theirs, doubles)
            ones = None if ones is None else ones.to(input)
            call = functools.partial(_results, function, arguments, ones, ours, input)
            why = _wrong(call, expected)
            yield f"{function}{arguments}, {str(dtype)[6:]}, {layout}", why
    integers = numbers.to(torch.uint8).to(device)
    pool = functools.partial(dmlpool.quantized_linear_average_pooling, integers)
    # Steps of 0.5 from 10 are averaged in steps of 0.25 from 3; halves are rounded to even.
    steps = 2 * (theirs.avg_pool2d(numbers.double(), 2) - 10)
    right = [(steps.round() + 3).clamp(0, 255)]
    why = _wrong(lambda: [pool(0.5, 10, 0.25, 3, 2, 2)], right)
    yield "quantized_linear_average_pooling, uint8", why


def _results(
    function: str, arguments: tuple[Any, ...], ones: Tensor | None, functions: Any, input: Tensor
) -> list[Tensor]:
    """The results of a function of ours or PyTorch's, and the gradient where there are ``ones``."""
    found = getattr(functions, function)(input.requires_grad_(ones is not None), *arguments)
    results = list(found) if isinstance(found, tuple) else [found]
    if ones is not None:
        results += torch.autograd.grad(results[0], input, ones)
    return results


def _ones(function: str, arguments: tuple[Any, ...], input: Tensor) -> Tensor:
    """The gradient of a function's results that reaches every window."""
    return torch.ones_like(getattr(theirs, function)(input, *arguments))


def _wrong(compute: Callable[[], list[Tensor]], expected: list[Tensor]) -> str | None:
    try:
        for found, right in zip(compute(), expected, strict=True):
            torch.testing.assert_close(found.cpu(), right.to(found.dtype))
    except Exception as error:  # the check is there to report any failure
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None


def measured(device: torch.device, load: str | None, seconds: float = 1.0) -> Iterator[str]:
    """A line for each row, which is measured for ``seconds`` beside PyTorch's function."""
    half = HALF if device.type == "cuda" else BFLOAT  # what networks on the device use
    for function, arguments, sizes, is_half, channels_last, is_training in ROWS:
        dtype, layout = half if is_half else FLOAT, [*LAYOUTS][channels_last]
        input = torch.randn(sizes, dtype=FLOAT, device=device).to(dtype)
        input = input.contiguous(memory_format=LAYOUTS[layout])
        ones = _ones(function, arguments, input) if is_training else None
        sides: dict[str, timing.Call] = {
            name: functools.partial(_results, function, arguments, ones, functions, input)
            for name, functions in (("ours", ours), (ATEN, theirs))
        }
        times = timing.in_turn(sides, device, seconds, least=3)
        how = f"{str(dtype)[6:]}, {layout}" + ", training" * is_training
        yield timing.line(f"{function}{arguments}, {how}", ATEN, times["ours"], times[ATEN], load)


def _device(name: str) -> torch.device:
    """The device of that name, if the machine has it."""
    try:
        device = torch.device(name)
        torch.empty(1, dtype=FLOAT, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise argparse.ArgumentTypeError(f"{name}: {str(error).partition(chr(10))[0]}") from None
    return device


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m torch_dmlpool bench",
        description="Is torch_dmlpool right and fast on this machine? Half a minute.",
    )
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    parser.add_argument(
        "--device",
        type=_device,
        default=accelerator or torch.device("cpu"),
        help="such as cpu or cuda:0; the accelerator if there is one",
    )
    parser.add_argument(
        "--model",
        metavar="PACKAGE:FACTORY",
        help="measure a model before and after conversion: a function that returns the model and a "
        "tuple of example inputs, or the model alone for eight images of 3x224x224",
    )
    return parser.parse_args(arguments)
