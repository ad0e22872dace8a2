"""Train a digit classifier in float32 and run it on 8-bit integers from the first layer to the last.

    python examples/int8_inference.py          # seconds on a CPU

Between the layers there are uint8 tensors alone, a quarter of the memory. Maxima of integers are exact as they are; the
average pool rounds once, half to even, and its integers are compared with exact fractions. Convolutions are written
with float32, which holds such sums of integers exactly; a device has kernels of its own for them.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Sequence
from fractions import Fraction

import torch
from digits import Digits
from torch import Tensor, nn

import torch_dmlpool as dmlpool

TOLERANCE = 0.02
"""By how much the accuracies may differ."""
LEAST_ACCURACY = 0.85

Numbers = tuple[float, int]
"""Scale and zero point."""


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        dmlpool.nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        dmlpool.nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, 10),
    )


def train(model: nn.Module, digits: Digits, epochs: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(digits.labels)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(digits.images[batch]), digits.labels[batch]).backward()
            optimizer.step()


def observed(model: nn.Sequential, images: Tensor) -> list[Numbers]:
    """Scale and zero point of the input and of what each layer gives, of which 256 steps cover it, 0 among them."""
    numbers = []
    for layer in (nn.Identity(), *model):
        images = layer(images)
        least, most = min(images.min().item(), 0.0), max(images.max().item(), 0.0)
        scale = (most - least) / 255
        numbers.append((scale, round(-least / scale)))
    return numbers


def quantized(real: Tensor, numbers: Numbers) -> Tensor:
    scale, zero_point = numbers
    return (torch.round(real / scale) + zero_point).clamp(0, 255).to(torch.uint8)


class Integers(nn.Module):
    """A convolution or linear layer on uint8, with int8 weights that have a scale for each output channel."""

    def __init__(self, layer: nn.Conv2d | nn.Linear, input: Numbers, output: Numbers) -> None:
        super().__init__()
        (scale, self.zero_point), self.output = input, output
        self.layer = copy.deepcopy(layer).requires_grad_(False)
        weight, bias = self.layer.weight, self.layer.bias
        largest = weight.flatten(1).abs().amax(1).view(-1, *[1] * (weight.dim() - 1))
        steps = largest / 127
        self.real_per_sum = scale * steps[:, 0]  # of the output's dimensions, but for the batch
        weight.div_(steps).round_()
        bias.div_(scale * steps.flatten()).round_()

    def forward(self, integers: Tensor) -> Tensor:
        return quantized(self.layer(integers.float() - self.zero_point) * self.real_per_sum, self.output)


def in_integers(model: nn.Sequential, images: Tensor) -> tuple[nn.Sequential, list[Numbers]]:
    """The model on uint8; a ReLU is the lower end of the range that its output is quantized to."""
    numbers = observed(model, images)
    layers: list[nn.Module] = []
    for position, layer in enumerate(model):
        given, wanted = numbers[position], numbers[position + 1]
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            activated = isinstance(layer, nn.Conv2d)
            layers.append(Integers(layer, given, numbers[position + 2] if activated else wanted))
        elif isinstance(layer, nn.AvgPool2d):
            layers.append(
                dmlpool.nn.quantized.AvgPool2d.from_float(
                    layer,
                    input_scale=given[0],
                    input_zero_point=given[1],
                    output_scale=wanted[0],
                    output_zero_point=wanted[1],
                )
            )
        elif isinstance(layer, nn.MaxPool2d):
            layers.append(layer)  # takes uint8 as it is
            numbers[position + 1] = given  # so scale and zero point stay
        elif not isinstance(layer, nn.ReLU):
            layers.append(layer)
    return nn.Sequential(*layers), numbers


def differences(pool: nn.Module, integers: Tensor, output: Tensor) -> int:
    """How many averages of 2 by 2 integers are not what exact fractions of the pool's float32 scales give."""
    scale, output_scale = (Fraction(number.item()) for number in (pool.input_scale, pool.output_scale))
    zero_point, output_zero_point = pool.input_zero_point.item(), pool.output_zero_point.item()
    windows = integers.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4).sum(-1, dtype=torch.int64)
    wrong = 0
    for total, found in zip(windows.flatten().tolist(), output.flatten().tolist(), strict=True):
        exact = round(scale * (total - 4 * zero_point) / (4 * output_scale)) + output_zero_point
        wrong += found != max(0, min(255, exact))
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=8, help="epochs of training in float32 (default: 8)")
    options = parser.parse_args(arguments)
    if options.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {options.epochs}")

    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits = Digits.load(torch.device("cpu"))
    model = network()
    train(model, digits, options.epochs)

    with torch.no_grad():
        integer_model, numbers = in_integers(model, digits.images)
        between = digits.test_images
        integers = quantized(digits.test_images, numbers[0])
        bytes_real = bytes_integers = wrong = 0
        for layer in model:
            between = layer(between)
            # A ReLU's result may take the place of its input, and so does a flattened view.
            bytes_real += 0 if isinstance(layer, (nn.ReLU, nn.Flatten)) else between.nbytes
        for layer in integer_model:
            before, integers = integers, layer(integers)
            bytes_integers += 0 if isinstance(layer, nn.Flatten) else integers.nbytes
            if isinstance(layer, dmlpool.nn.quantized.AvgPool2d):
                wrong = differences(layer, before[:32], integers[:32])
    answers, integer_answers = between.argmax(1), integers.argmax(1)
    accuracy, integer_accuracy = (
        (found == digits.test_labels).float().mean().item() for found in (answers, integer_answers)
    )
    same = (answers == integer_answers).float().mean().item()
    print(f"test accuracy: float32 {accuracy:.1%}, 8-bit integers {integer_accuracy:.1%}; same answer for {same:.1%}")
    print(f"between the layers: float32 {bytes_real / 1e6:.2f} MB, 8-bit integers {bytes_integers / 1e6:.2f} MB")
    print(f"averages that differ from exact fractions: {wrong}")
    good = accuracy >= LEAST_ACCURACY and abs(accuracy - integer_accuracy) <= TOLERANCE
    return 0 if good and wrong == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
