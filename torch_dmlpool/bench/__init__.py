"""What ``python -m torch_dmlpool`` and its ``bench`` check and measure.

Results on the device are compared with those of PyTorch's functions in float64 on the CPU.
``bench`` also measures eight calls that networks have beside PyTorch's.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool import timing
from torch_dmlpool.nn import functional as ours
from torch_dmlpool.window import Arguments, Function

theirs, ATEN = torch.nn.functional, "torch.nn"
HALF, FLOAT, BFLOAT = torch.float16, torch.float32, torch.bfloat16
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
CHECKS: list[tuple[str, Arguments, torch.dtype]] = [
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
    ("max_pool2d", (3, 2, 1), (8, 64, 112, 112), ""),  # ResNet, the stem
    ("max_pool2d", (3, 2, 1), (32, 64, 112, 112), "half channels_last training"),
    ("max_pool2d", (2, 2), (8, 128, 112, 112), "training"),  # VGG
    ("max_pool2d", (5, 1, 2), (128, 256, 20, 20), "half channels_last"),  # YOLO, SPPF
    ("avg_pool2d", (2, 2), (32, 128, 56, 56), "training"),  # DenseNet, transition
    ("avg_pool2d", (3, 1, 1), (32, 288, 35, 35), "channels_last"),  # Inception
    ("adaptive_avg_pool2d", (1,), (256, 1280, 7, 7), "half channels_last"),  # EfficientNet
    ("adaptive_avg_pool2d", (7,), (128, 512, 14, 14), "training"),  # VGG, the head
]
"""Functions, with their arguments, the input's sizes, and what is not usual: half precision,
channels_last, a backward pass."""


def checked(device: torch.device) -> Iterator[tuple[str, str | None]]:
    """Calls by name, each with what differs from PyTorch's in float64 on the CPU."""
    generator = torch.Generator().manual_seed(0)
    sizes = (2, 16, 24, 32)
    numbers = torch.randint(0, 90, sizes, generator=generator, dtype=torch.int64, device="cpu")
    for function, arguments, dtype in CHECKS:
        for layout, memory_format in LAYOUTS.items():
            input = numbers.to(dtype).contiguous(memory_format=memory_format).to(device)
            call = partial(_results, function, arguments, dtype is FLOAT)
            why = _wrong(partial(call, ours, input), call(theirs, numbers.double()))
            yield f"{function}{arguments}, {str(dtype)[6:]}, {layout}", why
    # Steps of 0.5 from 10 are averaged in steps of 0.25 from 3; halves are rounded to even.
    quantized = numbers.byte().to(device), 0.5, 10, 0.25, 3
    steps = 2 * (theirs.avg_pool2d(numbers.double(), 2) - 10)
    right = (steps.round() + 3).clamp(0, 255)
    why = _wrong(lambda: dmlpool.quantized_linear_average_pooling(*quantized, 2, 2), right)
    yield "quantized_linear_average_pooling, uint8", why


def _results(
    function: str, arguments: Arguments, is_training: bool, functions: Any, input: Tensor
) -> list[Tensor]:
    """The results of a function of ours or PyTorch's. In training they end with the gradient of
    half the sum of their squares.
    """
    found = getattr(functions, function)(input.requires_grad_(is_training), *arguments)
    results = list(found) if isinstance(found, tuple) else [found]
    if is_training:
        results += torch.autograd.grad(results[0], input, results[0].detach())
    return results


def _wrong(compute: Function, expected: Any) -> str | None:
    """What is wrong with computed tensors, whose data types and devices are not compared."""
    try:
        torch.testing.assert_close(compute(), expected, check_dtype=False, check_device=False)
    except Exception as error:  # the check is there to report any failure
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None


def measured(device: torch.device, seconds: float = 1.0) -> Iterator[str]:
    """A line for each row, which is measured for ``seconds`` beside PyTorch's function."""
    half = HALF if device.type == "cuda" else BFLOAT  # what networks on the device use
    load = timing.load()
    for function, arguments, sizes, words in ROWS:
        dtype = half if "half" in words else FLOAT
        layout = "channels_last" if "channels_last" in words else "contiguous"
        input = torch.randn(sizes, dtype=FLOAT, device=device).to(dtype)
        input = input.contiguous(memory_format=LAYOUTS[layout])
        call = partial(_results, function, arguments, "training" in words)
        sides = {"ours": partial(call, ours, input), ATEN: partial(call, theirs, input)}
        times = timing.in_turn(sides, device, seconds, least=3)
        how = f"{str(dtype)[6:]}, {layout}" + ", training" * ("training" in words)
        yield timing.line(f"{function}{arguments}, {how}", ATEN, times["ours"], times[ATEN], load)
