"""Eight pooling calls that networks have, beside PyTorch's own and torch.compile's, in turn."""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_dmlpool import timing
from torch_dmlpool.nn import functional as ours
from torch_dmlpool.timing import Times

ATEN, COMPILED = "torch.nn", "torch.compile"
MEANINGS = {"faster": "faster", "slower": "slower", "cannot tell": "neither, as far as can be told"}


class Row(NamedTuple):
    """A call: the function, its arguments and the input's sizes."""

    function: str
    arguments: tuple[Any, ...]
    sizes: tuple[int, ...]  # but for the batch
    is_half: bool
    channels_last: bool
    is_training: bool

    def name(self, device: torch.device) -> str:
        named = zip(("", "stride ", "padding "), self.arguments, strict=False)
        words = [
            f"{self.function}({', '.join(f'{name}{value}' for name, value in named)})",
            str(self.dtype(device))[6:],
            "channels_last" if self.channels_last else "contiguous",
            "training" if self.is_training else "inference",
        ]
        return ", ".join(words)

    def dtype(self, device: torch.device) -> torch.dtype:
        """The data type of the row; half precision is the type that networks on the device use."""
        half = torch.float16 if device.type == "cuda" else torch.bfloat16
        return half if self.is_half else torch.float32


ROWS = [
    Row("max_pool2d", (3, 2, 1), (64, 112, 112), False, False, False),  # ResNet, the stem
    Row("max_pool2d", (3, 2, 1), (64, 112, 112), True, True, True),  # ResNet, the stem
    Row("max_pool2d", (2, 2), (128, 112, 112), False, False, True),  # VGG
    Row("max_pool2d", (5, 1, 2), (256, 20, 20), True, True, False),  # YOLO, SPPF
    Row("avg_pool2d", (2, 2), (128, 56, 56), False, False, True),  # DenseNet, transition
    Row("avg_pool2d", (3, 1, 1), (288, 35, 35), False, True, False),  # Inception
    Row("adaptive_avg_pool2d", (1,), (1280, 7, 7), True, True, False),  # EfficientNet, the head
    Row("adaptive_avg_pool2d", (7,), (512, 14, 14), False, False, True),  # VGG, the head
]


class Measured(NamedTuple):
    """Times of ours and of a rival, which ran in turn."""

    name: str
    rival: str
    ours: Times
    theirs: Times

    def verdict(self, load: str | None = None) -> str:
        """``faster``, ``slower`` or ``cannot tell`` for ours beside the rival."""
        return timing.verdict(self.ours, self.theirs, load)

    @property
    def speed_up(self) -> float:
        """How many times as long the rival takes."""
        return self.theirs.median / self.ours.median

    def line(self, load: str | None) -> str:
        """A row of the table."""
        ours, theirs = map(_milliseconds, (self.ours, self.theirs))
        figures = f"{ours:>24}  {self.rival} {theirs:>24}{self.speed_up:>7.2f}x"
        return f"  {self.name:<62}{figures}  {self.verdict(load)}"


def _milliseconds(times: Times) -> str:
    """The median with its quartiles."""
    return "{1:.3g} ({0:.3g} to {2:.3g})".format(*(1e3 * each for each in times))


def measure(device: torch.device, rival: str, end: float) -> Iterator[Measured]:
    """Every row beside a rival; none is begun that would not be done at ``end``."""
    room, longest = end - time.monotonic(), 0.0
    for row in ROWS:
        begun = time.monotonic()
        if begun + longest > end:
            return
        input, gradient = operands(row, device)
        function: Callable[..., Tensor] = getattr(torch.nn.functional, row.function)
        if rival == COMPILED:  # PyTorch's function as in a model without this package
            torch.compiler.reset()
            function = torch.compile(function, fullgraph=True)
        sides = {"ours": getattr(ours, row.function), rival: function}
        calls = {name: call(pool, row, input, gradient) for name, pool in sides.items()}
        times = timing.in_turn(calls, device, min(0.5 * room / len(ROWS), 2.0), least=3)
        yield Measured(row.name(device), rival, times["ours"], times[rival])
        longest = max(longest, time.monotonic() - begun)


def verdict(measured: list[Measured], load: str | None) -> str:
    """A sentence that says in which rows this package is faster than a rival, and in which
    slower.
    """
    if load is not None:
        return f"cannot tell on a busy machine ({load}), the ratios are a hint."
    found: dict[str, list[str]] = {}
    for row in measured:
        found.setdefault(row.verdict(), []).append(f"{row.name} ({row.speed_up:.2f}x)")
    sentences = [
        f"{MEANINGS[word]}: {'; '.join(found[word])}" for word in MEANINGS if word in found
    ]
    return "torch_dmlpool is " + ". It is ".join(sentences) + "."


def operands(row: Row, device: torch.device, batch: int = 0) -> tuple[Tensor, Tensor]:
    """An input and an output's gradient. Without a ``batch`` the input is larger than the cache of
    a processor or a GPU.
    """
    dtype, cache = row.dtype(device), 2**25
    if device.type == "cuda":
        cache = 2 * torch.cuda.get_device_properties(device).L2_cache_size
    sample = torch.Size(row.sizes).numel() * dtype.itemsize
    batch = batch or max(8, 2 ** math.ceil(math.log2(cache / sample)))
    input = torch.randn((batch, *row.sizes), dtype=torch.float32, device=device).to(dtype)
    layout = torch.channels_last if row.channels_last else torch.contiguous_format
    input = input.contiguous(memory_format=layout).requires_grad_(row.is_training)
    output = getattr(torch.nn.functional, row.function)(input, *row.arguments)
    return input, torch.ones_like(output)


def call(
    pool: Callable[..., Tensor], row: Row, input: Tensor, gradient: Tensor
) -> Callable[[], object]:
    """The call of a row by ``pool``."""

    def inference() -> Tensor:
        with torch.no_grad():
            return pool(input, *row.arguments)

    def training() -> Tensor:
        (found,) = torch.autograd.grad(pool(input, *row.arguments), input, gradient)
        return found

    return training if row.is_training else inference
