"""Find the pixels of handwritten digits among clutter, with a small SegNet: pools remember where their maxima were.

    python examples/segmentation.py            # half a minute on a CPU; writes segmentation.png

The encoder keeps the indices of its maxima, and the decoder puts its features back at exactly those places, so that
outlines survive two reductions by 2. The same network with torch.nn's layers is trained beside it, from the same
weights on the same batches: windows do not overlap, so every loss must be equal bit for bit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from digits import Digits, pyplot
from torch import Tensor, nn
from tqdm import tqdm

import torch_dmlpool as dmlpool

CANVAS = 16
BATCH_SIZE = 64
LEAST_OVERLAP = {1: 0.2, 4: 0.6}
"""Intersection over union that so many epochs must reach; painting every pixel would give about 0.1."""


class SegNet(nn.Module):
    """Two levels down and up again, with the pooling layers of either library."""

    def __init__(self, pooling: ModuleType) -> None:
        super().__init__()
        self.down1, self.down2 = self.block(1, 16), self.block(16, 32)
        self.up2, self.up1 = self.block(32, 16), self.block(16, 16)
        self.pool = pooling.MaxPool2d(2, return_indices=True)
        self.unpool = pooling.MaxUnpool2d(2)
        self.last = nn.Conv2d(16, 1, 1)

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        features, first = self.pool(self.down1(images))
        features, second = self.pool(self.down2(features))
        features = self.up2(self.unpool(features, second))
        return self.last(self.up1(self.unpool(features, first)))


def scenes(digits: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Every 8×8 digit somewhere on a canvas of noise and short strokes, and the mask of its own pixels."""
    count = len(digits)
    canvas = torch.rand(count, 1, CANVAS, CANVAS, generator=generator) * 0.4
    masks = torch.zeros_like(canvas, dtype=torch.bool)
    places = torch.randint(0, CANVAS - 8, (count, 4), generator=generator)
    for number, (y, x, stroke, column) in enumerate(places.tolist()):
        canvas[number, 0, stroke : stroke + 6, column] = 0.9
        canvas[number, 0, CANVAS - 1 - stroke, column : column + 6] = 0.9
        pixels = digits[number, 0]
        target = canvas[number, 0, y : y + 8, x : x + 8]
        torch.maximum(target, pixels, out=target)
        masks[number, 0, y : y + 8, x : x + 8] = pixels > 0.3
    return canvas, masks


@torch.no_grad()
def overlap(network: nn.Module, images: Tensor, masks: Tensor) -> float:
    """Intersection over union of what the network marks and what was there."""
    network.eval()
    marked = network(images) > 0
    network.train()
    return ((marked & masks).sum() / (marked | masks).sum()).item()


def draw(network: nn.Module, images: Tensor, masks: Tensor, path: Path) -> None:
    """Eight test scenes: the input, the digit's own pixels, and what the network marks."""
    network.eval()
    with torch.no_grad():
        rows = [("scene", images), ("digit", masks), ("marked", network(images[:8]).sigmoid())]
    figure, axes = pyplot.subplots(len(rows), 8, figsize=(12, 5), layout="constrained")
    for (title, pictures), line in zip(rows, axes, strict=True):
        line[0].set_ylabel(title)
        for picture, axis in zip(pictures[:8, 0], line, strict=True):
            axis.imshow(picture, cmap="gray", vmin=0, vmax=1)
            axis.set_xticks([])
            axis.set_yticks([])
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    print(f"picture: {path}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=12, help="epochs for each of the two networks (default: 12)")
    parser.add_argument("--picture", type=Path, default=Path("segmentation.png"), help="where to write the picture")
    options = parser.parse_args(arguments)
    if options.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {options.epochs}")

    torch.set_num_threads(1)
    digits = Digits.load(torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    images, masks = scenes(digits.images, generator)
    test_images, test_masks = scenes(digits.test_images, generator)

    networks, losses = {}, {}
    for library, pooling in (("torch.nn", nn), ("torch_dmlpool.nn", dmlpool.nn)):
        torch.manual_seed(1)
        networks[library] = network = SegNet(pooling)
        optimizer = torch.optim.Adam(network.parameters(), lr=4e-3)
        shuffling = torch.Generator().manual_seed(2)
        losses[library] = []
        for _ in tqdm(range(options.epochs), desc=library, unit="epoch"):
            for batch in torch.randperm(len(images), generator=shuffling).split(BATCH_SIZE):
                optimizer.zero_grad()
                loss = nn.functional.binary_cross_entropy_with_logits(network(images[batch]), masks[batch].float())
                loss.backward()
                optimizer.step()
                losses[library].append(loss.item())

    ours = networks["torch_dmlpool.nn"]
    reached = overlap(ours, test_images, test_masks)
    wanted = max(least for epochs, least in LEAST_OVERLAP.items() if epochs <= options.epochs)
    equal = losses["torch.nn"] == losses["torch_dmlpool.nn"]
    print(f"intersection over union on {len(test_images)} test scenes: {reached:.2f} (at least {wanted})")
    print(f"the {len(losses['torch.nn'])} losses of both libraries are {'equal bit for bit' if equal else 'DIFFERENT'}")
    draw(ours, test_images, test_masks, options.picture)
    return 0 if equal and reached >= wanted else 1


if __name__ == "__main__":
    sys.exit(main())
