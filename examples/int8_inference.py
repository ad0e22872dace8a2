"""Pool a trained digit classifier's feature maps in 8-bit integers, exactly: a quarter of the
memory, the same answers.

Scales come from what the layers gave in training. Maxima of integers need none; averages round
once, half to even, and are compared with exact fractions here.
"""

from fractions import Fraction

import torch
from digits import TRAINING_IMAGES, train
from sklearn.datasets import load_digits
from torch import Tensor, nn

import torch_dmlpool as dmlpool
from torch_dmlpool.nn import quantized


class Uint8Pool(nn.Module):
    """A pool on uint8 between layers of real numbers that are 0 and above: quantize, pool,
    dequantize.
    """

    def __init__(self, pool: nn.Module, features: Tensor) -> None:
        super().__init__()
        self.scale = features.max().item() / 255
        if isinstance(pool, nn.AvgPool2d):
            pool = quantized.AvgPool2d.from_float(pool, input_scale=self.scale, input_zero_point=0)
        self.pool = pool

    def forward(self, features: Tensor) -> Tensor:
        self.before = (features / self.scale).round().clamp(0, 255).to(torch.uint8)
        self.after = self.pool(self.before)
        return self.scale * self.after.float()


def in_integers(model: nn.Sequential, images: Tensor) -> nn.Sequential:
    """The same network with its pools on uint8, for the range that ``images`` show each of them."""
    layers = []
    for layer in model:
        layers.append(
            Uint8Pool(layer, images) if isinstance(layer, (nn.MaxPool2d, nn.AvgPool2d)) else layer
        )
        images = layer(images)
    return nn.Sequential(*layers)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = (
        torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16,
        torch.tensor(digits.target),
    )
    first = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), dmlpool.nn.MaxPool2d(3, stride=2, padding=1)
    second = nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), dmlpool.nn.AvgPool2d(2)
    model = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(128, 10))
    train(model, images[:TRAINING_IMAGES], labels[:TRAINING_IMAGES])

    with torch.no_grad():
        integers = in_integers(model, images[:TRAINING_IMAGES])
        for name, network in {"float32 pools": model, "uint8 pools": integers}.items():
            right = (
                (network(images[TRAINING_IMAGES:]).argmax(1) == labels[TRAINING_IMAGES:])
                .float()
                .mean()
            )
            print(f"{name:15}test accuracy {right:.1%}")
    pool = integers[5]
    sums = pool.before.unfold(2, 2, 2).unfold(3, 2, 2).sum((-1, -2)).flatten().tolist()
    exact = [round(Fraction(total, 4)) for total in sums]  # round() takes halves to even
    wrong = sum(
        one != other for one, other in zip(exact, pool.after.flatten().tolist(), strict=True)
    )
    print(f"{wrong} of {len(exact)} averages differ from exact fractions")
    assert wrong == 0


if __name__ == "__main__":
    main()
