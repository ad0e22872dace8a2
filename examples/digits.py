"""Train a small network on digits with torch.nn's pools and with this package's: the same losses
bit for bit, less memory; draws demo.png.
"""

import time
from types import ModuleType

import torch
from beyond_torch import saved_bytes
from matplotlib import pyplot
from sklearn.datasets import load_digits
from torch import Tensor, nn

import torch_dmlpool as dmlpool

EPOCHS, BATCH, TRAINING_IMAGES, DIGITS = 12, 64, 1437, 5


def network(pools: ModuleType) -> nn.Sequential:
    """Two convolutions, each pooled in windows of two."""
    torch.manual_seed(1)
    first = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), pools.MaxPool2d(2)
    second = nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), pools.MaxPool2d(2)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(128, 10))


def train(model: nn.Module, images: Tensor, labels: Tensor) -> list[float]:
    """The loss of every step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    shuffling, losses = torch.Generator().manual_seed(2), []
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images), generator=shuffling).split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def draw(model: nn.Sequential, images: Tensor, labels: Tensor) -> None:
    """One column per digit: a feature map, its maxima, the gradient of the digit's score with
    respect to the maxima, and the same gradient with respect to the map.
    """
    chosen = torch.stack([(labels == label).nonzero()[0, 0] for label in range(DIGITS)])
    features = model[:2](images[chosen]).detach().requires_grad_()
    pooled = model[2](features)
    pooled.retain_grad()
    scores = model[3:](pooled)
    scores[range(DIGITS), labels[chosen]].sum().backward()  # of each image's own digit
    # Each digit's map is the one whose gradient is greatest.
    maps = torch.arange(DIGITS), features.grad.abs().sum((2, 3)).argmax(1)
    gradients = pooled.grad[maps], features.grad[maps]
    # Every panel of a colour bar has the same limits. Those of gradients are symmetric, so that
    # zero is white.
    values = {"cmap": "Greys", "vmin": 0.0, "vmax": features.detach()[maps].max().item()}
    most = max(each.abs().amax().item() for each in gradients)
    signed = {"cmap": "RdBu", "vmin": -most, "vmax": most}
    rows = {
        "a feature map": (features.detach()[maps], values),
        "its maxima": (pooled.detach()[maps], values),
        "the gradient\nof the maxima": (gradients[0], signed),
        "the gradient\nof the map": (gradients[1], signed),
    }
    figure, axes = pyplot.subplots(len(rows), DIGITS, figsize=(9, 7.6), layout="constrained")
    for line, (title, (pictures, colours)) in zip(axes, rows.items(), strict=True):
        line[0].set_ylabel(title)
        for axis, picture in zip(line, pictures, strict=True):
            drawn = axis.imshow(picture, **colours)
            axis.set(xticks=[], yticks=[])
        figure.colorbar(drawn, ax=line, shrink=0.9)
    figure.suptitle(
        "MaxPool2d(2): each window keeps its greatest element.\n"
        "The gradient goes to that element alone; white is zero."
    )
    figure.savefig("demo.png", dpi=100)


def main() -> None:
    torch.set_num_threads(1)  # maps of 8 by 8 are too small to share between cores
    digits = load_digits()
    images, labels = (
        torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16,
        torch.tensor(digits.target),
    )
    models = {"torch.nn": network(nn), "torch_dmlpool.nn": network(dmlpool.nn)}
    losses, seconds = {}, {}
    train(network(nn), images[:BATCH], labels[:BATCH])  # what only the first call costs
    for name, model in models.items():
        start = time.process_time()
        losses[name] = train(model, images[:TRAINING_IMAGES], labels[:TRAINING_IMAGES])
        seconds[name] = time.process_time() - start
    for name, model in models.items():
        right = (
            (model(images[TRAINING_IMAGES:]).argmax(1) == labels[TRAINING_IMAGES:]).float().mean()
        )
        print(f"{name:18}last loss {losses[name][-1]:.6f}, test accuracy {right:.1%}")
    assert losses["torch.nn"] == losses["torch_dmlpool.nn"], "the losses differ"
    print(f"all {len(losses['torch.nn'])} losses are equal bit for bit")
    draw(models["torch_dmlpool.nn"], images[TRAINING_IMAGES:], labels[TRAINING_IMAGES:])
    for name, model in models.items():
        kibibytes = saved_bytes(model, images[:BATCH]) / 1024
        print(f"{name:18}{seconds[name]:.2f} s to train, {kibibytes:.0f} KiB kept of a batch")
    print("picture: demo.png")


if __name__ == "__main__":
    main()
