"""Take noise off a photograph with four dilated averages, by thresholds that are learned, beside
what torch.nn has instead; draws dilated_average.png.

The a trous transform averages nine elements 1, 2, 4 and 8 apart and keeps what each average took
away. Noise is in the small details: those below a threshold go. torch.nn's averages have no
dilation. Averages of 3, 5, 9 and 17 elements are as wide, and a dilated convolution reads the same
elements, but counts the zeros around the picture.
"""

import time
from collections.abc import Callable

import torch
from matplotlib import pyplot
from sklearn.datasets import load_sample_image
from torch import Tensor
from torch.nn import functional

import torch_dmlpool as dmlpool

DILATIONS, NOISE, STEPS = (1, 2, 4, 8), 0.1, 60
NINTHS = torch.full((1, 1, 3, 3), 1 / 9)

Average = Callable[[Tensor, int], Tensor]
AVERAGES: dict[str, Average] = {
    "torch_dmlpool, dilated average": lambda picture, dilation: dmlpool.average_pooling(
        picture, 3, dilations=dilation, start_padding=dilation, end_padding=dilation
    ),
    "torch.nn, wide average": lambda picture, dilation: functional.avg_pool2d(
        picture, 2 * dilation + 1, 1, dilation, count_include_pad=False
    ),
    "torch.nn, dilated convolution": lambda picture, dilation: functional.conv2d(
        picture, NINTHS, padding=dilation, dilation=dilation
    ),
}


def cleaned(picture: Tensor, thresholds: Tensor, average: Average) -> Tensor:
    """The coarsest average and the details above their threshold; differentiable in the
    thresholds.
    """
    details = []
    for dilation in DILATIONS:
        coarser = average(picture, dilation)
        details.append(picture - coarser)
        picture = coarser
    for detail, threshold in zip(details, thresholds, strict=True):
        picture = picture + functional.relu(detail.abs() - threshold) * detail.sign()
    return picture


def learned(noisy: Tensor, clean: Tensor, average: Average) -> tuple[Tensor, float]:
    """The thresholds that bring ``noisy`` closest to ``clean``, and seconds for a step."""
    thresholds = torch.full((len(DILATIONS),), NOISE, requires_grad=True)
    optimizer = torch.optim.Adam([thresholds], lr=0.01)
    start = time.process_time()
    for _ in range(STEPS):
        optimizer.zero_grad()
        (cleaned(noisy, thresholds, average) - clean).square().mean().backward()
        optimizer.step()
    return thresholds.detach(), (time.process_time() - start) / STEPS


def decibels(picture: Tensor, clean: Tensor) -> float:
    return -10 * (picture - clean).square().mean().log10().item()


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    photograph = torch.tensor(load_sample_image("china.jpg")).float().mean(-1) / 255
    clean = photograph[None, None, :384, :512].contiguous()
    noisy, unseen = (clean + NOISE * torch.randn(clean.shape) for _ in range(2))

    print(f"a photograph of 512x384 with noise: {decibels(unseen, clean):.1f} dB")
    results = {}
    for name, average in AVERAGES.items():
        thresholds, seconds = learned(noisy, clean, average)
        results[name] = cleaned(unseen, thresholds, average)
        after = decibels(results[name], clean)
        print(f"{name:32}{after:6.2f} dB after, {1000 * seconds:6.1f} ms for a training step")

    pictures = {"noisy": unseen, "cleaned": next(iter(results.values())), "clean": clean}
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for axis, (title, picture) in zip(axes, pictures.items(), strict=True):
        axis.imshow(picture[0, 0], cmap="gray", vmin=0, vmax=1)
        axis.set(
            title=f"{title}, {decibels(picture, clean):.1f} dB" if picture is not clean else title
        )
        axis.axis("off")
    figure.savefig("dilated_average.png", dpi=100)
    print("picture: dilated_average.png")


if __name__ == "__main__":
    main()
