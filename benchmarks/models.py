"""Blocks of well-known models, as torch.nn has them and converted to this package: ``python -m
benchmarks --models``.

The blocks are written as in their papers' code, with random weights. Both contestants of a row are
called in turn in one process on one thread, whose processor time is measured; a row's figure is the
original's median over the converted's, the middle one of three builds. ``python -m
benchmarks.report`` puts the table into the README.
"""

from __future__ import annotations

import copy
import datetime
import json
import math
import statistics
import time
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torch_dmlpool as dmlpool
from benchmarks import machine


def convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, **rest: Any
) -> nn.Sequential:
    """A convolution, batch normalisation and ReLU."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False, **rest)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class Inception(nn.Module):
    """GoogLeNet's block 3a: four branches, one of them pooled 3/1."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [
                convolution(192, 64, 1),
                nn.Sequential(convolution(192, 96, 1), convolution(96, 128, 3)),
                nn.Sequential(convolution(192, 16, 1), convolution(16, 32, 3)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), convolution(192, 32, 1)),
            ]
        )

    def forward(self, input: Tensor) -> Tensor:
        return torch.cat([branch(input) for branch in self.branches], 1)


class PoolFormer(nn.Module):
    """One block of PoolFormer-S12's first stage: averages mix the tokens."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(1, channels), nn.GroupNorm(1, channels)
        self.pool = nn.AvgPool2d(3, 1, 1, count_include_pad=False)
        self.mlp = nn.Sequential(
            nn.Conv2d(channels, 4 * channels, 1), nn.GELU(), nn.Conv2d(4 * channels, channels, 1)
        )
        self.scale1, self.scale2 = (
            nn.Parameter(torch.full((channels, 1, 1), 1e-2)) for _ in range(2)
        )

    def forward(self, input: Tensor) -> Tensor:
        normalised = self.norm1(input)
        mixed = input + self.scale1 * (self.pool(normalised) - normalised)
        return mixed + self.scale2 * self.mlp(self.norm2(mixed))


class SqueezeExcitation(nn.Module):
    """EfficientNet-B0's inverted bottleneck with squeeze and excitation, at 28x28."""

    def __init__(self, channels: int = 40, wide: int = 240) -> None:
        super().__init__()
        self.expand = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU()
        )
        depthwise = nn.Conv2d(wide, wide, 5, padding=2, groups=wide, bias=False)
        self.depthwise = nn.Sequential(depthwise, nn.BatchNorm2d(wide), nn.SiLU())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.gate = nn.Sequential(
            nn.Conv2d(wide, 10, 1), nn.SiLU(), nn.Conv2d(10, wide, 1), nn.Sigmoid()
        )
        self.project = nn.Sequential(
            nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels)
        )

    def forward(self, input: Tensor) -> Tensor:
        wide = self.depthwise(self.expand(input))
        return input + self.project(wide * self.gate(self.pool(wide)))


class SPPF(nn.Module):
    """YOLO's fast spatial pyramid: 5/1 three times."""

    def __init__(self, channels: int = 256) -> None:
        super().__init__()
        self.reduce = nn.Sequential(
            nn.Conv2d(channels, channels // 2, 1), nn.BatchNorm2d(channels // 2), nn.SiLU()
        )
        self.merge = nn.Sequential(
            nn.Conv2d(2 * channels, channels, 1), nn.BatchNorm2d(channels), nn.SiLU()
        )
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, input: Tensor) -> Tensor:
        first = self.reduce(input)
        second = self.pool(first)
        third = self.pool(second)
        return self.merge(torch.cat([first, second, third, self.pool(third)], 1))


class TextCNN(nn.Module):
    """Kim's convolutions of 3, 4 and 5 words, each followed by its maximum over the text."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv1d(128, 100, width) for width in (3, 4, 5)])
        self.pool = nn.AdaptiveMaxPool1d(1)
        self.classify = nn.Linear(300, 2)

    def forward(self, input: Tensor) -> Tensor:
        maxima = [self.pool(layer(input).relu()).squeeze(2) for layer in self.convolutions]
        return self.classify(torch.cat(maxima, 1))


class PointNet(nn.Module):
    """Three shared layers and the maximum over all points."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 64), (64, 128), (128, 1024)):
            layers += [nn.Conv1d(inputs, outputs, 1), nn.BatchNorm1d(outputs), nn.ReLU()]
        self.layers, self.pool = nn.Sequential(*layers), nn.AdaptiveMaxPool1d(1)

    def forward(self, input: Tensor) -> Tensor:
        return self.pool(self.layers(input)).squeeze(2)


def unet_level() -> nn.Module:
    """One level down a 3-D U-Net."""
    layers: list[nn.Module] = [
        nn.Conv3d(16, 16, 3, padding=1),
        nn.BatchNorm3d(16),
        nn.ReLU(inplace=True),
    ]
    return nn.Sequential(*layers, nn.MaxPool3d(2), nn.Conv3d(16, 32, 3, padding=1))


BUILDS = 3
BLOCKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ResNet stem, max 3/2": (
        lambda: nn.Sequential(convolution(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)),
        (1, 3, 224, 224),
    ),
    "Inception 3a, max 3/1": (Inception, (1, 192, 28, 28)),
    "PoolFormer block, average 3/1": (PoolFormer, (1, 64, 56, 56)),
    "EfficientNet block, global average": (SqueezeExcitation, (1, 40, 28, 28)),
    "YOLO SPPF, max 5/1 three times": (SPPF, (1, 256, 20, 20)),
    "3-D U-Net level, max 2/2": (unet_level, (1, 16, 32, 32, 32)),
    "text CNN, global maxima": (TextCNN, (16, 128, 128)),
    "PointNet, global maximum": (PointNet, (4, 3, 1024)),
}


def cases(named: str) -> Iterator[tuple[str, bool, bool, bool]]:
    """Block, compiled or not, training or not, channels_last or not."""
    for name, (_, sizes) in BLOCKS.items():
        for channels_last in (False, True)[: len(sizes) - 2]:
            for is_compiled in (False, True):
                for is_training in (False, True):
                    if named.lower() in f"{name} {'compiled' if is_compiled else 'eager'}".lower():
                        yield name, is_compiled, is_training, channels_last


def contestant(
    model: nn.Module, key: str, is_compiled: bool, is_training: bool
) -> Callable[[Tensor], Any]:
    def forward(input: Tensor) -> Tensor:
        return model(input)

    if is_compiled:  # code of its own, so that neither is looked up behind the other
        code = forward.__code__.replace(co_name=f"forward_{key}")
        forward = torch.compile(
            types.FunctionType(code, globals(), code.co_name, None, forward.__closure__)
        )
    if not is_training:

        def inferred(input: Tensor) -> Tensor:
            with torch.no_grad():
                return forward(input)

        return inferred
    parameters = list(model.parameters())

    def trained(input: Tensor) -> Any:
        output = forward(input)
        return output, *torch.autograd.grad(output, [input, *parameters], torch.ones_like(output))

    return trained


def measure(*case: Any, seconds: float) -> dict[str, Any]:
    """The middle one of several builds, as where a build's objects lie in memory moves a row by 1
    %."""
    rows = sorted(
        (_measured(*case, seconds / BUILDS) for _ in range(BUILDS)), key=lambda row: row["ratio"]
    )
    return rows[BUILDS // 2]


def _measured(
    name: str, is_compiled: bool, is_training: bool, channels_last: bool, seconds: float
) -> dict[str, Any]:
    """Milliseconds of both contestants, medians of calls in turn, after their results have been
    compared."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    build, sizes = BLOCKS[name]
    model, input = build().train(is_training), torch.randn(sizes)
    if channels_last:
        layout = torch.channels_last if len(sizes) == 4 else torch.channels_last_3d
        model, input = model.to(memory_format=layout), input.contiguous(memory_format=layout)
    input.requires_grad_(is_training)
    # Both are copies: a copy of the EfficientNet block takes 1.008 of the block's own time.
    original, converted = copy.deepcopy(model), dmlpool.nn.convert(model, inplace=False).model
    # Where weights and statistics lie in memory moves a row by 2 %.
    for kept in (torch.nn.Module.parameters, torch.nn.Module.buffers):
        for ours, theirs in zip(kept(converted), kept(original), strict=True):
            ours.data = theirs.data
    both = {
        key: contestant(model, key, is_compiled, is_training)
        for key, model in (("original", original), ("converted", converted))
    }
    first, second = (call(input) for call in both.values())
    torch.testing.assert_close(second, first, rtol=1e-3, atol=1e-3)
    times: dict[str, list[float]] = {key: [] for key in both}
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times["original"]) < 7:
        # Whoever is called second finds a warmer cache: they take turns at that too.
        for key in sorted(both, reverse=len(times["original"]) % 2 == 1):
            start = time.thread_time()
            both[key](input)
            times[key].append(time.thread_time() - start)
    medians = {key: statistics.median(spent) * 1e3 for key, spent in times.items()}
    row = {
        "block": name,
        "compiled": is_compiled,
        "training": is_training,
        "channels_last": channels_last,
    }
    return {
        **row,
        **medians,
        "ratio": medians["original"] / medians["converted"],
        "calls": len(times["original"]),
    }


def markdown(results: dict[str, Any]) -> str:
    """A table of ratios, a line for each block, contiguous and channels_last beside each other;
    where and when."""
    found = {
        (row["block"], row["compiled"], row["training"], row["channels_last"]): row["ratio"]
        for row in results["rows"]
    }
    columns = [(compiled, training) for compiled in (False, True) for training in (False, True)]
    names = [
        f"{'compiled' if c else 'eager'}, {'training' if t else 'forward'}" for c, t in columns
    ]
    lines = [f"| | {' | '.join(names)} |", "|---|" + "---:|" * len(columns)]

    def cell(ratios: Iterable[float | None]) -> str:
        return " / ".join("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios)

    for block in dict.fromkeys(row["block"] for row in results["rows"]):
        cells = [
            cell(found.get((block, *column, last)) for last in (False, True)) for column in columns
        ]
        lines.append(f"| {block} | {' | '.join(cells)} |")
    means = [cell(_mean(found, (*column, last)) for last in (False, True)) for column in columns]
    lines.append(f"| **geometric mean** | {' | '.join(means)} |")
    known = results["conditions"]
    place = f"{known['machine']['processor']}, {known['machine']['cpu_capability']}"
    threads = "one thread" if known["threads"] == 1 else f"{known['threads']} threads"
    conditions = (
        f"Contiguous / channels_last. {place}; {threads}; "
        f"PyTorch {known['versions']['torch']}; {known['date'][:10]}."
    )
    return "\n".join([*lines, "", conditions])


def _mean(found: dict[Any, float], way: tuple[bool, bool, bool]) -> float | None:
    """The geometric mean of what was run that way."""
    ratios = [ratio for (_, *run), ratio in found.items() if tuple(run) == way]
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None


def run(named: str, seconds: float, path: Path) -> int:
    """Measure the blocks whose name contains ``named``, print each row as it comes, and write
    JSON."""
    torch.set_num_threads(1)
    rows = []
    for case in cases(named):
        row = measure(*case, seconds=seconds)
        rows.append(row)
        way = (
            f"{'compiled' if row['compiled'] else 'eager':8} "
            f"{'training' if row['training'] else 'forward':8}"
        )
        layout = "channels_last" if row["channels_last"] else ""
        print(
            f"{row['block']:36} {way} {layout:13} {row['original']:8.3f} ms "
            f"{row['converted']:8.3f} ms "
            f"{row['ratio']:5.2f}x",
            flush=True,
        )
    conditions = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(torch.device("cpu")),
        "threads": 1,
        "versions": machine.versions(),
        "seconds": seconds,
    }
    results = {"conditions": conditions, "rows": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(markdown(results))
    return 0
