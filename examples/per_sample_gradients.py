"""Find wrong labels by the gradient of every single image, which torch.func computes in one go.

    python examples/per_sample_gradients.py    # under a minute on a CPU

A twentieth of the labels of handwritten digits is changed. A small network with this package's pools is trained for a
few epochs, and then `vmap(grad(loss))` gives the gradient of each image by itself: images whose labels are wrong pull
hardest. The gradients are compared with those of one backward pass per image.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import torch
from digits import Digits
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import torch_dmlpool as dmlpool

WRONG = 0.05
COMPARED = 256
TOLERANCE = 1e-5
LEAST_PRECISION = 0.5
"""Of as many images as have wrong labels, those with the largest gradients; chance would find one in twenty."""


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        dmlpool.nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        dmlpool.nn.AvgPool2d(3, stride=1, padding="same", count_include_pad=False),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()


def per_sample_gradients(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The gradient of every parameter for every image: one dimension more than the parameter has, in front."""
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        scores = functional_call(model, parameters, (image.unsqueeze(0),))
        return nn.functional.cross_entropy(scores, label.unsqueeze(0))

    return vmap(grad(loss), in_dims=(None, 0, 0))(parameters, images, labels)


def one_by_one(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The same, with a backward pass for each image."""
    rows = []
    for image, label in zip(images, labels, strict=True):
        model.zero_grad()
        nn.functional.cross_entropy(model(image.unsqueeze(0)), label.unsqueeze(0)).backward()
        rows.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=6, help="epochs of training (default: 6)")
    options = parser.parse_args(arguments)
    if options.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {options.epochs}")

    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits = Digits.load(torch.device("cpu"))
    labels = digits.labels.clone()
    changed = torch.randperm(len(labels))[: round(WRONG * len(labels))]
    labels[changed] = (labels[changed] + torch.randint(1, 10, changed.shape)) % 10
    model = network()
    train(model, digits.images, labels, options.epochs)

    per_sample_gradients(model, digits.images[:COMPARED], labels[:COMPARED])  # the first call prepares
    start = time.perf_counter()
    together = per_sample_gradients(model, digits.images[:COMPARED], labels[:COMPARED])
    middle = time.perf_counter()
    alone = one_by_one(model, digits.images[:COMPARED], labels[:COMPARED])
    seconds = middle - start, time.perf_counter() - middle
    difference = max((together[name] - alone[name]).abs().max().item() for name in alone)
    print(f"{COMPARED} gradients together {1000 * seconds[0]:.0f} ms, one by one {1000 * seconds[1]:.0f} ms; ", end="")
    print(f"they differ by {difference:.1e} at most (at most {TOLERANCE:.0e})")

    norms = []
    for batch in torch.arange(len(labels)).split(256):  # a gradient takes as much memory as the network
        gradients = per_sample_gradients(model, digits.images[batch], labels[batch])
        norms.append(torch.cat([gradient.flatten(1) for gradient in gradients.values()], 1).norm(dim=1))
    suspects = torch.cat(norms).topk(len(changed)).indices
    found = torch.isin(suspects, changed).sum().item()
    precision = found / len(changed)
    print(
        f"{len(changed)} of {len(labels)} labels are wrong; of the {len(changed)} largest gradients {found} are theirs"
    )
    print(f"precision {precision:.0%} (at least {LEAST_PRECISION:.0%}; chance would give {WRONG:.0%})")
    return 0 if difference <= TOLERANCE and precision >= LEAST_PRECISION else 1


if __name__ == "__main__":
    sys.exit(main())
