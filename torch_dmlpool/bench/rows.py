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


class Row(NamedTuple):
    """A call: the network that has it, the function, its arguments and the input's sizes."""

    network: str
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
    Row("ResNet, the stem", "max_pool2d", (3, 2, 1), (64, 112, 112), False, False, False),
    Row("ResNet, the stem", "max_pool2d", (3, 2, 1), (64, 112, 112), True, True, True),
    Row("VGG", "max_pool2d", (2, 2), (128, 112, 112), False, False, True),
    Row("YOLO, SPPF", "max_pool2d", (5, 1, 2), (256, 20, 20), True, True, False),
    Row("DenseNet, transition", "avg_pool2d", (2, 2), (128, 56, 56), False, False, True),
    Row("Inception", "avg_pool2d", (3, 1, 1), (288, 35, 35), False, True, False),
    Row("EfficientNet, the head", "adaptive_avg_pool2d", (1,), (1280, 7, 7), True, True, False),
    Row("VGG, the head", "adaptive_avg_pool2d", (7,), (512, 14, 14), False, False, True),
]


class Measured:
    """A row with the times of its contestants, in pairs that ran in turn: ours and PyTorch's, ours
    and torch.compile's.
    """

    def __init__(self, row: Row, device: torch.device) -> None:
        self.row, self.name, self.device = row, row.name(device), device
        self.shape: tuple[int, ...] = ()
        self.pairs: dict[str, tuple[Times, Times]] = {}
        self.missing: dict[str, str] = {}

    def verdict(self, rival: str, load: str | None = None) -> str:
        """``faster``, ``slower`` or ``cannot tell`` for ours beside a rival, or ``not
        measured``.
        """
        return timing.verdict(*self.pairs[rival], load) if rival in self.pairs else "not measured"

    def speed_up(self, rival: str) -> float:
        """How many times as long a rival takes."""
        mine, theirs = self.pairs[rival]
        return theirs.median / mine.median

    def run(self, rival: str, seconds: float) -> None:
        """Measure ours beside a rival."""
        input, gradient = operands(self.row, self.device)
        self.shape = tuple(input.shape)
        mine = call(getattr(ours, self.row.function), self.row, input, gradient)
        function: Callable[..., Tensor] = getattr(torch.nn.functional, self.row.function)
        if rival == COMPILED:  # PyTorch's function as in a model without this package
            torch.compiler.reset()
            function = torch.compile(function, fullgraph=True)
        theirs = call(function, self.row, input, gradient)
        times = timing.in_turn({"ours": mine, rival: theirs}, self.device, seconds, least=3)
        self.pairs[rival] = times["ours"], times[rival]


def measure(device: torch.device, end: float, compiles: bool = True) -> Iterator[Measured]:
    """Every row beside PyTorch's own functions, then beside torch.compile's while time is left.

    A row is yielded after the first comparison. The second one is added to it later.
    """
    rows = [Measured(row, device) for row in ROWS]
    room = (end - time.monotonic()) * (0.4 if compiles else 1.0)
    for row in rows:
        row.run(ATEN, min(room / len(rows), 2.0))
        row.missing[COMPILED] = "no time was left to compile" if compiles else "not asked for"
        yield row
    longest = 0.0
    for row in rows if compiles else []:
        begun = time.monotonic()
        if begun + longest > end:
            break
        try:
            row.run(COMPILED, min(room / len(rows), 2.0))
        except Exception as error:  # such as a missing C++ compiler, which no row can do without
            why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            for each in rows:
                each.missing[COMPILED] = why
            break
        del row.missing[COMPILED]
        longest = max(longest, time.monotonic() - begun)


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
