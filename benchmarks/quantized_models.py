"""Eight networks that torchao has quantized, compiled, before and after `integer_pooling`: ``python
-m benchmarks.quantized_models``.

The networks follow well-known ones in small, with random weights and images of 64x64. Both programs
are compiled with frozen weights and called in turn, on one thread; a row's figure is the median
time before over the median time after, so more than 1 is a gain.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

import torch_dmlpool as dmlpool

SHAPE = 8, 3, 64, 64


class Convolution(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, size: int = 3, stride: int = 1, **rest: int):
        layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False, **rest)
        super().__init__(layer, nn.BatchNorm2d(outputs), nn.ReLU())


class Side(nn.Module):
    """Branches side by side."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, input: Tensor) -> Tensor:
        return torch.cat([branch(input) for branch in self.branches], 1)


class Chain(nn.Module):
    """Each branch on what the one before it gave, all results side by side."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, input: Tensor) -> Tensor:
        results = [input]
        for branch in self.branches:
            results.append(branch(results[-1]))
        return torch.cat(results, 1)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = Convolution(channels, channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.activation = nn.ReLU()

    def forward(self, input: Tensor) -> Tensor:
        return self.activation(input + self.second(self.first(input)))


class Dense(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.layer = nn.Sequential(
            Convolution(inputs, 2 * growth, 1), Convolution(2 * growth, growth)
        )

    def forward(self, input: Tensor) -> Tensor:
        return torch.cat([input, self.layer(input)], 1)


def head(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]


def fire(inputs: int, squeezed: int, expanded: int) -> nn.Module:
    wide = Side(Convolution(squeezed, expanded, 1), Convolution(squeezed, expanded, 3))
    return nn.Sequential(Convolution(inputs, squeezed, 1), wide)


def inception(inputs: int, pool: nn.Module) -> nn.Module:
    return Side(
        Convolution(inputs, 32, 1),
        nn.Sequential(Convolution(inputs, 32, 1), Convolution(32, 64)),
        nn.Sequential(pool, Convolution(inputs, 32, 1)),
    )


MODELS: dict[str, Callable[[], list[nn.Module]]] = {
    "LeNet": lambda: [
        Convolution(3, 32, 5),
        nn.AvgPool2d(2),
        Convolution(32, 64, 5),
        nn.AvgPool2d(2),
        Convolution(64, 64),
        *head(64),
    ],
    "VGG": lambda: [
        *(Convolution(3, 32), nn.MaxPool2d(2), Convolution(32, 64), nn.MaxPool2d(2)),
        *(Convolution(64, 128), nn.MaxPool2d(2), Convolution(128, 128), nn.MaxPool2d(2)),
        *head(128),
    ],
    "ResNet": lambda: [
        *(Convolution(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), Residual(64), Residual(64)),
        *(Convolution(64, 128, 3, 2), Residual(128)),
        *head(128),
    ],
    "SqueezeNet": lambda: [
        *(Convolution(3, 64, 3, 2), nn.MaxPool2d(3, 2, ceil_mode=True)),
        *(fire(64, 16, 64), fire(128, 16, 64), nn.MaxPool2d(3, 2, ceil_mode=True)),
        *(fire(128, 32, 128), Convolution(256, 10, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    ],
    "DenseNet": lambda: [
        *(Convolution(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), Dense(64, 32), Dense(96, 32)),
        *(Convolution(128, 64, 1), nn.AvgPool2d(2), Dense(64, 32), Dense(96, 32)),
        *(Convolution(128, 64, 1), nn.AvgPool2d(2), *head(64)),
    ],
    "Inception": lambda: [
        *(Convolution(3, 64, 3, 2), nn.MaxPool2d(3, 2, 1)),
        *(inception(64, nn.MaxPool2d(3, 1, 1)), inception(128, nn.AvgPool2d(3, 1, 1))),
        *head(128),
    ],
    "MobileNet": lambda: [
        Convolution(3, 32, 3, 2),
        *(Convolution(32, 32, groups=32), Convolution(32, 64, 1), nn.MaxPool2d(2)),
        *(Convolution(64, 64, groups=64), Convolution(64, 128, 1), nn.AvgPool2d(2)),
        *head(128),
    ],
    "SPPF": lambda: [
        *(Convolution(3, 32, 3, 2), Convolution(32, 64, 3, 2)),
        *(Chain(*(nn.MaxPool2d(5, 1, 2) for _ in range(3))), Convolution(256, 64, 1)),
        *head(64),
    ],
}


def programs(name: str) -> tuple[ExportedProgram, ExportedProgram, dict[str, str], Tensor]:
    """The quantized network before and after, what was replaced, and its input."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    torch.manual_seed(0)
    model = nn.Sequential(*MODELS[name]()).eval().to(memory_format=torch.channels_last)
    input = torch.rand(SHAPE).to(memory_format=torch.channels_last)
    settings = x86.get_default_x86_inductor_quantization_config()
    quantizer = x86.X86InductorQuantizer().set_global(settings)
    prepared = prepare_pt2e(torch.export.export(model, (input,)).module(), quantizer)
    with torch.no_grad():
        prepared(input)
        program = torch.export.export(convert_pt2e(prepared), (input,))
    report: dict[str, str] = {}
    return program, dmlpool.nn.integer_pooling(program, report), report, input


def compiled(program: ExportedProgram, input: Tensor) -> Callable[[], Tensor]:
    """A call of the compiled program, whose weights are frozen."""
    torch._inductor.config.freezing = True
    module = torch.compile(program.module())

    def call() -> Tensor:
        with torch.no_grad():
            return module(input)

    call()
    return call


def medians(contestants: list[Callable[[], Tensor]], seconds: float) -> list[float]:
    """The median seconds of each contestant, whose calls take turns."""
    times: list[list[float]] = [[] for _ in contestants]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for each, call in zip(times, contestants, strict=True):
            start = time.perf_counter()
            call()
            each.append(time.perf_counter() - start)
    return [statistics.median(each) for each in times]


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ratios = []
    for name in names or MODELS:
        before, after, report, input = programs(name)
        replaced = [text.startswith("replaced") for text in report.values()]
        calls = [compiled(program, input) for program in (before, after)]
        difference = (calls[0]() - calls[1]()).abs().max() / calls[0]().abs().max()
        first, second = medians(calls, 10)
        ratios.append(first / second)
        print(
            f"{name:12}{sum(replaced)} of {len(replaced)} pools replaced  {1000 * first:8.3f} ms "
            f"{1000 * second:8.3f} ms  {ratios[-1]:.3f}  differs by {difference:.4f}",
            flush=True,
        )
    print(f"in the mean {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}")


if __name__ == "__main__":
    main(sys.argv[1:])
