"""Train a small CNN on real digits with torch.nn's pooling layers and with this package's, and compare everything.

    python examples/digits.py                  # on the CPU, well under two minutes; writes demo.png
    python examples/digits.py --device cuda

Two networks are trained twice each, from the same weights on the same batches. The first pools in windows of 2 that do
not overlap: there both libraries must agree bit for bit. The second pools with overlapping windows and averages, where
gradients are added in another order: there the losses must agree within 1e-4 over the first steps. Then the trained
networks pool in int8 and must classify as well, one runs through torch.compile, and a picture shows what pooling kept
and where its gradient went.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import matplotlib as mpl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from tqdm import tqdm

import torch_dmlpool as dmlpool

mpl.use("Agg")  # a picture is written, no window opened
from matplotlib import pyplot

TRAINING_IMAGES = 1437
BATCH_SIZE = 64
COMPARED_STEPS = 20
TOLERANCE = 1e-4
INT8_TOLERANCE = 0.02


def windows_of_two(pooling: ModuleType) -> nn.Sequential:
    """Max pooling 2/2 alone: every element belongs to one window."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        pooling.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        pooling.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, 10),
    )


def overlapping_windows(pooling: ModuleType) -> nn.Sequential:
    """Overlapping maxima and overlapping averages, padded."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        pooling.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        pooling.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


NETWORKS: dict[str, Callable[[ModuleType], nn.Sequential]] = {
    "max 2/2": windows_of_two,
    "max 3/2, average 3/1": overlapping_windows,
}
LIBRARIES: dict[str, ModuleType] = {"torch.nn": nn, "torch_dmlpool.nn": dmlpool.nn}


@dataclass
class Digits:
    """scikit-learn's 1,797 handwritten digits, 8×8 pixels each, split into training and test images."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    @classmethod
    def load(cls, device: torch.device) -> Digits:
        digits = load_digits()
        images = (torch.tensor(digits.images, dtype=torch.float32) / 16).unsqueeze(1).to(device)
        labels = torch.tensor(digits.target).to(device)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).to(device)
        training, test = order[:TRAINING_IMAGES], order[TRAINING_IMAGES:]
        return cls(images[training], labels[training], images[test], labels[test])


@dataclass
class Run:
    """One network with one library's layers, as it is trained."""

    network: nn.Sequential
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=5e-3)

    def train(self, digits: Digits, batches: Sequence[Tensor], progress: tqdm) -> None:
        """One epoch; the losses leave the device only at its end."""
        losses = []
        start = time.perf_counter()
        for batch in batches:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.network(digits.images[batch]), digits.labels[batch])
            loss.backward()
            self.optimizer.step()
            losses.append(loss.detach())
            progress.update()
        self.losses += torch.stack(losses).tolist()
        self.seconds.append(time.perf_counter() - start)


@torch.no_grad()
def accuracy(network: nn.Module, digits: Digits) -> float:
    return (network(digits.test_images).argmax(1) == digits.test_labels).float().mean().item()


class Int8Pool(nn.Module):
    """A pooling layer on int8 integers, between layers of real numbers: quantize, pool, dequantize."""

    def __init__(self, layer: nn.Module, inputs: Tensor) -> None:
        super().__init__()
        # 256 steps from 0, which is exact, to the largest number seen; what comes here has been through a ReLU.
        self.scale, self.zero_point = inputs.max().item() / 255, -128
        if isinstance(layer, nn.AvgPool2d):
            layer = dmlpool.nn.quantized.AvgPool2d.from_float(
                layer, input_scale=self.scale, input_zero_point=self.zero_point
            )
        self.layer = layer.to(inputs.device)  # a maximum of integers needs no scale

    def forward(self, features: Tensor) -> Tensor:
        steps = torch.round(features / self.scale) + self.zero_point
        pooled = self.layer(steps.clamp(-128, 127).to(torch.int8))
        return self.scale * (pooled.float() - self.zero_point)


@torch.no_grad()
def pooling_in_int8(network: nn.Sequential, images: Tensor) -> nn.Sequential:
    """The same network with its pools in int8, for the range that ``images`` show each of them."""
    layers = []
    for layer in network:
        layers.append(Int8Pool(layer, images) if isinstance(layer, (nn.MaxPool2d, nn.AvgPool2d)) else layer)
        images = layer(images)
    return nn.Sequential(*layers)


def train_all(digits: Digits, epochs: int, device: torch.device) -> dict[tuple[str, str], Run]:
    """Train every network with either library, epoch by epoch in turn so that both meet the same machine."""
    runs = {}
    for network, build in NETWORKS.items():
        for library, pooling in LIBRARIES.items():
            torch.manual_seed(1)
            runs[network, library] = Run(build(pooling).to(device))
    shuffling = torch.Generator().manual_seed(2)
    steps = epochs * len(runs) * -(-TRAINING_IMAGES // BATCH_SIZE)
    with tqdm(total=steps, desc="training", unit="step") as progress:
        for _ in range(epochs):
            batches = torch.randperm(TRAINING_IMAGES, generator=shuffling).to(device).split(BATCH_SIZE)
            for run in runs.values():
                run.train(digits, batches, progress)
    return runs


def report(runs: dict[tuple[str, str], Run], digits: Digits) -> bool:
    """Print one table: accuracy, time and last loss of every run; return whether pooling in int8 is as accurate."""
    print(f"\n{'network':22}{'layers':24}{'test accuracy':>14}{'s per epoch':>13}{'last loss':>12}")
    as_accurate = True
    for (network, library), run in runs.items():
        # The first epoch warms caches and allocators up; with one epoch there is no other.
        seconds = statistics.median(run.seconds[1:] or run.seconds)
        trained = accuracy(run.network, digits)
        print(f"{network:22}{library:24}{trained:>13.1%}{seconds:>14.3f}{run.losses[-1]:>12.6f}")
        if library == "torch_dmlpool.nn":
            quantized = accuracy(pooling_in_int8(run.network, digits.images), digits)
            print(f"{network:22}{library + ', int8':24}{quantized:>13.1%}{'-':>14}{'-':>12}")
            as_accurate &= abs(quantized - trained) <= INT8_TOLERANCE
    print("One thread; 8 by 8 maps pool in microseconds, so this is mostly the time of calls. Larger ones: make bench")
    verdict = "within" if as_accurate else "NOT within"
    print(
        f"The trained networks with their pooling in int8: accuracy {verdict} {INT8_TOLERANCE:.0%} of the real numbers'"
    )
    return as_accurate


def check_losses(runs: dict[tuple[str, str], Run]) -> bool:
    """Print and return whether both libraries' losses agree as far as they must."""
    ours, torchs = (runs["max 2/2", library].losses for library in ("torch_dmlpool.nn", "torch.nn"))
    equal = ours == torchs
    verdict = "equal bit for bit" if equal else "DIFFERENT"
    print(f"\nmax 2/2: the {len(ours)} losses are {verdict}")
    other = next(name for name in NETWORKS if name != "max 2/2")
    pairs = list(zip(*(runs[other, library].losses[:COMPARED_STEPS] for library in LIBRARIES), strict=True))
    difference = max(abs(first - second) for first, second in pairs)
    close = difference <= TOLERANCE
    verdict = "within" if close else "NOT within"
    print(f"{other}: over {len(pairs)} steps the losses differ by {difference:.1e} at most, {verdict} {TOLERANCE:.0e}")
    return equal and close


def compiler_backend() -> str:
    """``inductor`` where it can build its kernels for the CPU, else the tracer without the code generator."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return "inductor" if compiler and headers.exists() else "aot_eager"


@torch.no_grad()
def check_compiled(network: nn.Module, digits: Digits) -> bool:
    """Print and return whether torch.compile gives the eager network's answers."""
    backend = compiler_backend() if digits.images.device.type == "cpu" else "inductor"
    if backend != "inductor":
        print("torch.compile: no C++ compiler with Python's headers here, so the graph runs without generated code")
    compiled = torch.compile(network, fullgraph=True, backend=backend)
    eager, graph = network(digits.test_images), compiled(digits.test_images)
    difference = (eager - graph).abs().max().item()
    close = torch.allclose(eager, graph, rtol=1e-4, atol=1e-4)
    answers = "the same answers" if torch.equal(eager.argmax(1), graph.argmax(1)) else "OTHER ANSWERS"
    print(f"torch.compile(fullgraph=True, {backend}): {answers}, outputs differ by {difference:.1e} at most")
    return close and answers == "the same answers"


def draw(network: nn.Sequential, digits: Digits, path: Path) -> None:
    """One column per digit: the input, a feature map, what max pooling kept of it, and where the gradient went."""
    chosen = torch.stack([(digits.test_labels == label).nonzero()[0, 0] for label in range(10)])
    convolution, activation, pool, *rest = network
    features = activation(convolution(digits.test_images[chosen])).detach().requires_grad_()
    pooled = pool(features)
    pooled.retain_grad()
    scores = nn.Sequential(*rest)(pooled)
    nn.functional.cross_entropy(scores, digits.test_labels[chosen], reduction="sum").backward()
    # For each digit the feature map with the largest gradient: there is most to see.
    maps = torch.arange(len(chosen), device=features.device), features.grad.abs().sum((2, 3)).argmax(1)
    rows = [
        ("input", digits.test_images[chosen, 0], "gray"),
        ("a feature map", features.detach()[maps], "viridis"),
        ("its maxima", pooled.detach()[maps], "viridis"),
        ("their gradient", pooled.grad[maps], "RdBu"),
        ("where it went", features.grad[maps], "RdBu"),
    ]
    figure, axes = pyplot.subplots(len(rows), len(chosen), figsize=(14, 7.6), layout="constrained")
    for (title, images, colours), line in zip(rows, axes, strict=True):
        line[0].set_ylabel(title, fontsize=11)
        for image, axis in zip(images.cpu(), line, strict=True):
            largest = image.abs().max().clamp(min=1e-12).item()
            axis.imshow(image, cmap=colours, vmin=-largest if colours == "RdBu" else 0, vmax=largest)
            axis.set_xticks([])
            axis.set_yticks([])
            if title in ("a feature map", "where it went"):
                for edge in range(2, len(image), 2):
                    axis.axhline(edge - 0.5, color="0.5", linewidth=0.6)
                    axis.axvline(edge - 0.5, color="0.5", linewidth=0.6)
    for label, (axis, answer) in enumerate(zip(axes[0], scores.argmax(1).tolist(), strict=True)):
        axis.set_title(f"{label} read as {answer}", fontsize=11)
    figure.suptitle(
        "MaxPool2d(2): each window keeps its greatest element, and the gradient goes to that element alone", fontsize=14
    )
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    print(f"picture: {path}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu", help="where to train (default: cpu)")
    parser.add_argument("--epochs", type=int, default=12, help="epochs for each of the four runs (default: 12)")
    parser.add_argument("--picture", type=Path, default=Path("demo.png"), help="where to write the picture")
    options = parser.parse_args(arguments)
    if options.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {options.epochs}")

    device = torch.device(options.device)
    torch.set_num_threads(1)  # maps of 8 by 8 are too small to share between cores
    digits = Digits.load(device)
    runs = train_all(digits, options.epochs, device)
    agree = report(runs, digits)
    agree &= check_losses(runs)
    trained = runs["max 2/2", "torch_dmlpool.nn"].network
    agree &= check_compiled(trained, digits)
    draw(trained, digits, options.picture)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
