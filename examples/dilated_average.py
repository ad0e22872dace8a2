"""Take noise off a picture with averages alone: four scales of detail, each from one dilated average.

    python examples/dilated_average.py         # seconds on a CPU; writes dilated_average.png

The à trous transform smooths with a window of 3 whose taps move apart by 2 from scale to scale, and keeps what each
smoothing took away. Picture = coarsest + details, so nothing is lost. Noise is in the small details: those that do not
stand out of it are set to zero. A window of 3 with dilation 8 reaches as far as one of 17 and reads 9 elements instead
of 289; at the borders the average leaves padding out of its divisor, which a convolution cannot.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from digits import pyplot
from torch import Tensor

import torch_dmlpool as dmlpool

SCALES = 4
NOISE = 0.1
LEAST_GAIN = 5.0
"""Decibels that the cleaned picture must be nearer to the clean one."""


def smoothed(picture: Tensor, dilation: int) -> Tensor:
    """The average of nine elements, ``dilation`` apart, of those that lie in the picture."""
    return dmlpool.average_pooling(
        picture, window_size=3, start_padding=dilation, end_padding=dilation, dilations=dilation
    )


def decomposed(picture: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The coarsest scale, and the details from fine to coarse; all of the picture's size."""
    details = []
    for scale in range(SCALES):
        coarser = smoothed(picture, 2**scale)
        details.append(picture - coarser)
        picture = coarser
    return picture, details


def cleaned(picture: Tensor, thresholds: Tensor) -> Tensor:
    """The picture from details above their scale's threshold; differentiable in the thresholds."""
    coarsest, details = decomposed(picture)
    for detail, threshold in zip(details, thresholds, strict=True):
        coarsest = coarsest + torch.nn.functional.relu(detail.abs() - threshold) * detail.sign()
    return coarsest


def scene(size: int) -> Tensor:
    """A disc, a frame and a slope: edges and smooth places."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    disc = ((x - 0.2) ** 2 + (y + 0.1) ** 2 < 0.2).float()
    frame = ((x.abs() < 0.8) & (y.abs() < 0.8) & ((x.abs() > 0.7) | (y.abs() > 0.7))).float()
    return (0.2 + 0.2 * (x + y) / 2 + 0.5 * disc + 0.3 * frame).view(1, 1, size, size)


def decibels(picture: Tensor, clean: Tensor) -> float:
    return -10 * (picture - clean).square().mean().log10().item()


def direct(picture: Tensor, dilation: int) -> Tensor:
    """The same average as two convolutions: the sum of what is there over how much is there."""
    ones = torch.ones(1, 1, 3, 3)
    sums, counts = (
        torch.nn.functional.conv2d(image, ones, padding=dilation, dilation=dilation)
        for image in (picture, torch.ones_like(picture))
    )
    return sums / counts


def learned_thresholds(noisy: Tensor, clean: Tensor, steps: int) -> Tensor:
    """Gradient descent through all four averages, on one picture with its clean original."""
    thresholds = torch.full((SCALES,), NOISE).requires_grad_()
    optimizer = torch.optim.Adam([thresholds], lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        (cleaned(noisy, thresholds) - clean).square().mean().backward()
        optimizer.step()
        thresholds.data.clamp_(min=0)
    return thresholds.detach()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=384, help="rows and columns of the picture (default: 384)")
    parser.add_argument("--steps", type=int, default=60, help="steps that learn the thresholds (default: 60)")
    parser.add_argument("--picture", type=Path, default=Path("dilated_average.png"), help="where to write the picture")
    options = parser.parse_args(arguments)
    least = 2**SCALES
    if options.size < least:
        parser.error(f"--size must be at least {least}, got {options.size}")

    torch.manual_seed(0)
    clean = scene(options.size)
    noisy, unseen = (clean + NOISE * torch.randn(clean.shape) for _ in range(2))

    coarsest, details = decomposed(noisy)
    lost = (coarsest + sum(details) - noisy).abs().max().item()
    off = max(
        (smoothed(noisy, 2**scale) - direct(noisy, 2**scale)).abs().max().item() for scale in range(SCALES)
    )  # the two add in another order
    thresholds = learned_thresholds(noisy, clean, options.steps)
    result = cleaned(unseen, thresholds)
    before, after = decibels(unseen, clean), decibels(result, clean)
    print(f"coarsest + details: {lost:.1e} from the picture; averages: {off:.1e} from convolutions, at most")
    print(f"learned thresholds, fine to coarse: {', '.join(f'{threshold:.3f}' for threshold in thresholds.tolist())}")
    print(f"on a picture that was not learned from: {before:.1f} dB, cleaned {after:.1f} dB (at least +{LEAST_GAIN:g})")

    figure, axes = pyplot.subplots(1, 3, figsize=(12, 4.4), layout="constrained")
    for axis, title, image in zip(axes, ("noisy", "cleaned", "clean"), (unseen, result, clean), strict=True):
        axis.imshow(image[0, 0], cmap="gray", vmin=0, vmax=1.2)
        axis.set_title(title)
        axis.axis("off")
    figure.savefig(options.picture, dpi=100)
    pyplot.close(figure)
    print(f"picture: {options.picture}")
    return 0 if lost < 1e-6 and off < 1e-6 and after - before >= LEAST_GAIN else 1


if __name__ == "__main__":
    sys.exit(main())
