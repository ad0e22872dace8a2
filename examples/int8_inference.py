"""Pool a trained digit classifier's feature maps in 8-bit integers, exactly: a quarter of the
memory, the same answers.

Scales come from what the layers gave in training. Maxima of integers need none. Averages round
once, half to even; they and PyTorch's quantized averages are compared with exact fractions here.
"""

import warnings
from fractions import Fraction

import torch
from digits import TRAINING_IMAGES, train
from sklearn.datasets import load_digits
from torch import Tensor, nn

import torch_dmlpool as dmlpool


class Uint8Pool(nn.Module):
    """A pool on uint8 between layers of real numbers that are 0 and above: quantize, pool,
    dequantize.
    """

    def __init__(self, pool: nn.Module, features: Tensor) -> None:
        super().__init__()
        self.scale = features.max().item() / 255
        self.pool = pool

    def forward(self, features: Tensor) -> Tensor:
        self.before = (features / self.scale).round().clamp(0, 255).to(torch.uint8)
        self.after = self.pooled(self.before)
        return self.scale * self.after.float()

    def pooled(self, integers: Tensor) -> Tensor:
        if isinstance(self.pool, nn.MaxPool2d):
            return self.pool(integers)
        size, step = self.pool.kernel_size, self.pool.stride
        numbers = self.scale, 0, self.scale, 0  # of the input, and of the output
        return dmlpool.quantized_linear_average_pooling(integers, *numbers, size, step)


def in_integers(model: nn.Sequential, images: Tensor) -> nn.Sequential:
    """The same network with its pools on uint8, for the range that ``images`` show each of them."""
    layers = []
    for layer in model:
        layers.append(
            Uint8Pool(layer, images) if isinstance(layer, (nn.MaxPool2d, nn.AvgPool2d)) else layer
        )
        images = layer(images)
    return nn.Sequential(*layers)


def exact(integers: Tensor) -> list[int]:
    """Averages of 2x2 integers as fractions; round() takes halves to even."""
    sums = integers.unfold(2, 2, 2).unfold(3, 2, 2).sum((-1, -2), dtype=torch.int64)
    return [round(Fraction(total, 4)) for total in sums.flatten().tolist()]


def wrong_in_pytorch(integers: Tensor, zero_point: int) -> int:
    """How many of PyTorch's quantized averages of these integers differ from the exact ones."""
    tensor = torch._make_per_tensor_quantized_tensor(integers, 0.1, zero_point)
    found = nn.functional.avg_pool2d(tensor, 2).int_repr()
    shifted = exact(integers.int() - zero_point)
    return sum(a != b + zero_point for a, b in zip(found.flatten().tolist(), shifted, strict=True))


def main() -> None:
    warnings.simplefilter("ignore")  # PyTorch announces the end of its quantized tensors
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
    results = pool.after.flatten().tolist()
    wrong = sum(one != other for one, other in zip(results, exact(pool.before), strict=True))
    print(f"averages that differ from exact fractions, of {len(results)}:")
    for zero_point in (0, 7):
        print(f"  torch.nn, zero point {zero_point}: {wrong_in_pytorch(pool.before, zero_point)}")
    print(f"  torch_dmlpool: {wrong}")
    assert wrong == 0
    integers = pool.before
    for name, size in {"float32": 4, "uint8": 1}.items():
        kibibytes = size * (integers.numel() + pool.after.numel()) / 1024
        print(f"feature maps before and after the second pool, {name}: {kibibytes:.0f} KiB")


if __name__ == "__main__":
    main()
