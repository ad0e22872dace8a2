"""Take noise off a picture with four dilated averages, by thresholds that are learned; draws
dilated_average.png.

The a trous transform averages nine elements 1, 2, 4 and 8 apart and keeps what each average took
away. Noise is in the small details: those below a threshold go. At the border the average leaves
padding out of its divisor, which a convolution cannot.
"""

import torch
from matplotlib import pyplot
from torch import Tensor

import torch_dmlpool as dmlpool

DILATIONS, NOISE = (1, 2, 4, 8), 0.1


def cleaned(picture: Tensor, thresholds: Tensor) -> Tensor:
    """The coarsest average and the details above their threshold; differentiable in the
    thresholds.
    """
    details = []
    for dilation in DILATIONS:
        pads = {"start_padding": dilation, "end_padding": dilation}
        coarser = dmlpool.average_pooling(picture, window_size=3, dilations=dilation, **pads)
        details.append(picture - coarser)
        picture = coarser
    for detail, threshold in zip(details, thresholds, strict=True):
        picture = picture + torch.nn.functional.relu(detail.abs() - threshold) * detail.sign()
    return picture


def scene(size: int) -> Tensor:
    """A disc, a frame and a slope: edges and smooth parts."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    disc = ((x - 0.2) ** 2 + (y + 0.1) ** 2 < 0.2).float()
    frame = ((x.abs() < 0.8) & (y.abs() < 0.8) & ((x.abs() > 0.7) | (y.abs() > 0.7))).float()
    return (0.2 + 0.1 * (x + y) + 0.5 * disc + 0.3 * frame).view(1, 1, size, size)


def decibels(picture: Tensor, clean: Tensor) -> float:
    return -10 * (picture - clean).square().mean().log10().item()


def main() -> None:
    torch.manual_seed(0)
    clean = scene(384)
    noisy, unseen = (clean + NOISE * torch.randn(clean.shape) for _ in range(2))
    thresholds = torch.full((len(DILATIONS),), NOISE, requires_grad=True)
    optimizer = torch.optim.Adam([thresholds], lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        (cleaned(noisy, thresholds) - clean).square().mean().backward()
        optimizer.step()
    result = cleaned(unseen, thresholds).detach()

    pictures = {"noisy": unseen, "cleaned": result, "clean": clean}
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 4.4), layout="constrained")
    for axis, (title, picture) in zip(axes, pictures.items(), strict=True):
        axis.imshow(picture[0, 0], cmap="gray", vmin=0, vmax=1.2)
        axis.set(
            title=f"{title}, {decibels(picture, clean):.1f} dB" if picture is not clean else title
        )
        axis.axis("off")
    figure.savefig("dilated_average.png", dpi=100)
    print(
        "thresholds, fine to coarse: "
        f"{', '.join(f'{threshold:.3f}' for threshold in thresholds.tolist())}"
    )
    print(f"noise: {decibels(unseen, clean):.1f} dB before, {decibels(result, clean):.1f} dB after")


if __name__ == "__main__":
    main()
