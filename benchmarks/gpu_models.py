"""Training steps of two whole networks on a GPU, as they are and converted to this package:
``python -m benchmarks.gpu_models``.

A step is forward pass, loss, backward pass and SGD, under bfloat16 autocast. Both contestants start
from the same weights and are called in turn. A row's ratio is the converted network's images per
second over the original's. Peak memory counts the weights of both networks, which stay allocated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import torch_dmlpool as dmlpool
from benchmarks import common, models

WARM_STEPS = 3
STEPS = 20
WIDTHS = 32, 64, 128, 256, 512
CLASSES = 10  # of a pixel


def convolutions(channels: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for given in (channels, width):
        layers += [nn.Conv2d(given, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Four levels: two convolutions and a max pool each on the way down, a transposed convolution
    and two convolutions each on the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(itertools.starmap(convolutions, itertools.pairwise((3, *WIDTHS))))
        back = list(itertools.pairwise(reversed(WIDTHS)))
        self.up = nn.ModuleList(nn.ConvTranspose2d(deep, width, 2, 2) for deep, width in back)
        self.joined = nn.ModuleList(convolutions(2 * width, width) for _, width in back)
        self.head = nn.Conv2d(WIDTHS[0], CLASSES, 1)

    def forward(self, input: Tensor) -> Tensor:
        kept = []
        for level, layers in enumerate(self.down):
            input = layers(self.pool(input) if level else input)
            kept.append(input)
        for up, joined, beside in zip(self.up, self.joined, kept[-2::-1], strict=True):
            input = joined(torch.cat([beside, up(input)], 1))
        return self.head(input)


class Network(NamedTuple):
    build: Callable[[], nn.Module]
    batch: int
    size: int  # of the square images
    small: int
    classes: int
    labels_pixels: bool


NETWORKS = {
    "U-Net": Network(UNet, 16, 256, 32, CLASSES, True),
    "ResNet-50": Network(models.vision("resnet50"), 64, 224, 64, 1000, False),
}


def rows() -> Iterator[tuple[str, bool, bool]]:
    """Network, compiled or not, channels_last or not: those that need no compiling first."""
    for is_compiled, channels_last in itertools.product((False, True), (False, True)):
        for name in NETWORKS:
            yield name, is_compiled, channels_last


class Contestant:
    """A network with its optimizer, and what its steps took."""

    def __init__(self, model: nn.Module, is_compiled: bool, device: torch.device) -> None:
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.forward = torch.compile(model) if is_compiled else model
        self.device = device
        self.seconds: list[Callable[[], float]] = []  # to be asked when the device is done
        self.peak = 0

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = nn.functional.cross_entropy(self.forward(images), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def timed_step(self, images: Tensor, labels: Tensor) -> None:
        if self.device.type != "cuda":
            begun = time.perf_counter()
            self.step(images, labels)
            taken = time.perf_counter() - begun
            self.seconds.append(lambda: taken)
            return
        torch.cuda.reset_peak_memory_stats()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self.step(images, labels)
        stop.record()
        self.seconds.append(lambda: start.elapsed_time(stop) / 1e3)
        self.peak = max(self.peak, torch.cuda.max_memory_allocated())


def measure(
    name: str, is_compiled: bool, channels_last: bool, device: torch.device, small: bool
) -> dict[str, Any]:
    """Images per second and peak bytes of both contestants, after their losses are compared."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    network = NETWORKS[name]
    batch, size = (2, network.small) if small else (network.batch, network.size)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    images = torch.randn(batch, 3, size, size, device=device).contiguous(memory_format=layout)
    pixels = (size, size) if network.labels_pixels else ()
    labels = torch.randint(network.classes, (batch, *pixels), device=device)
    model = network.build().to(device).to(memory_format=layout)
    conversion = dmlpool.nn.convert(model, inplace=False)
    both = {
        key: Contestant(each, is_compiled, device)
        for key, each in (("original", model), ("converted", conversion.model))
    }
    losses = {key: float(each.step(images, labels)) for key, each in both.items()}
    if not abs(losses["converted"] / losses["original"] - 1) <= 1e-2:
        raise AssertionError(f"the losses of the first step differ: {losses}")
    for _ in range(WARM_STEPS):
        for each in both.values():
            each.step(images, labels)
    for number in range(2 if small else STEPS):
        for key in sorted(both, reverse=number % 2 == 1):  # they take turns at being the second
            both[key].timed_step(images, labels)
    if device.type == "cuda":
        torch.cuda.synchronize()
    speeds = {k: batch / statistics.median(s() for s in each.seconds) for k, each in both.items()}
    return {
        "images_per_second": speeds,
        "ratio": speeds["converted"] / speeds["original"],
        "peak_bytes": {key: each.peak for key, each in both.items()},
        "losses": losses,
        "replaced": len(conversion.replaced),
        "sizes": list(images.shape),
        "steps": len(both["original"].seconds),
    }


def line(found: dict[str, Any]) -> str:
    """What is printed of a row."""
    if "failed" in found:
        return f"WRONG {found['row']}: {found['failed']}"
    speeds, peaks = found["images_per_second"], found["peak_bytes"]
    return (
        f"{found['row']:34} {speeds['original']:8.1f} -> {speeds['converted']:8.1f} images/s, "
        f"{found['ratio']:.3f}x, peak {peaks['original'] / 2**20:.0f} -> "
        f"{peaks['converted'] / 2**20:.0f} MiB"
    )


def run(end: float, device: torch.device, small: bool) -> int:
    """A line for each row at once, and in models.jsonl; 1 if one failed or was not begun."""
    wrong = left = 0
    with (Path(os.environ.get("OUT", ".")) / "models.jsonl").open("a") as log:

        def write(found: dict[str, Any]) -> None:
            log.write(json.dumps(found) + "\n")
            log.flush()

        write(common.conditions(device.type))
        for name, is_compiled, channels_last in rows():
            layout = "channels_last" if channels_last else "contiguous"
            found = {"row": f"{name} {'compiled' if is_compiled else 'eager'} {layout}"}
            if time.monotonic() > end:
                left += 1
                found["failed"] = "not begun"
            else:
                try:
                    found |= measure(name, is_compiled, channels_last, device, small)
                except Exception as error:
                    wrong += 1
                    found["failed"] = f"{type(error).__name__}: {error}"
            write(found)
            print(line(found), flush=True)
    print(f"{wrong} failed, {left} not begun", flush=True)
    return 1 if wrong or left else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--deadline", type=float, default=100.0, help="begin nothing after this many seconds"
    )
    parser.add_argument("--device", default="cuda", help="where the networks run")
    parser.add_argument("--small", action="store_true", help="two small images, few steps")
    given = parser.parse_args()
    sys.exit(run(time.monotonic() + given.deadline, torch.device(given.device), given.small))
