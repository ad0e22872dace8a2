"""Small networks that pool as well-known ones do, and timm's two "same" layers, written out for the tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> torch.nn.Sequential:
    """Convolution, batch normalisation, relu in place: the building block of all of them."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False),
        torch.nn.BatchNorm2d(outputs),
        torch.nn.ReLU(inplace=True),
    )


class Residual(torch.nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = convolution(channels, channels, 3), convolution(channels, channels, 3)[:2]

    def forward(self, input: Tensor) -> Tensor:
        return functional.relu(self.second(self.first(input)) + input)


class ResNet(torch.nn.Module):
    """The stem's 3/2 maximum with padding, and an average in the shortcut (ResNet-D)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Sequential(convolution(3, 8, 7, 2), torch.nn.MaxPool2d(3, stride=2, padding=1))
        self.block = Residual(8)
        self.shortcut = torch.nn.Sequential(
            torch.nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False), torch.nn.Conv2d(8, 8, 1)
        )
        self.classifier = torch.nn.Linear(8, 4)

    def forward(self, input: Tensor) -> Tensor:
        return self.classifier(self.shortcut(self.block(self.stem(input))).mean((2, 3)))


class Inception(torch.nn.Module):
    """Branches side by side, one of which pools with stride 1."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branches = torch.nn.ModuleList(
            [
                convolution(channels, 3, 1),
                torch.nn.Sequential(convolution(channels, 2, 1), convolution(2, 3, 3)),
                torch.nn.Sequential(
                    torch.nn.MaxPool2d(kernel_size=3, stride=1, padding=1, ceil_mode=True), convolution(channels, 2, 1)
                ),
            ]
        )

    def forward(self, input: Tensor) -> Tensor:
        return torch.cat([branch(input) for branch in self.branches], 1)


class GoogLeNet(torch.nn.Module):
    """Maxima with ceil_mode, whose last windows overhang."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.pool1 = convolution(3, 6, 7, 2), torch.nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.inception, self.pool2 = Inception(6), torch.nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.inception2, self.pool3 = Inception(8), torch.nn.AvgPool2d(3, stride=1)

    def forward(self, input: Tensor) -> Tensor:
        return self.pool3(self.inception2(self.pool2(self.inception(self.pool1(self.stem(input)))))).flatten(1)


class SegNet(torch.nn.Module):
    """Maxima with indices, by which the decoder unpools."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = convolution(3, 4, 3), convolution(4, 3, 3)
        self.pool, self.unpool = torch.nn.MaxPool2d(2, return_indices=True), torch.nn.MaxUnpool2d(2)

    def forward(self, input: Tensor) -> Tensor:
        encoded = self.encoder(input)
        values, indices = self.pool(encoded)
        return self.decoder(self.unpool(values, indices, encoded.shape))


class Functional(torch.nn.Module):
    """Inception-v3's way: no layers for pooling, and every form of the functions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch = convolution(3, 4, 3), convolution(4, 4, 1)

    def forward(self, input: Tensor) -> Tensor:
        input = functional.max_pool2d(self.stem(input), kernel_size=3, stride=2)
        averaged = self.branch(functional.avg_pool2d(input, kernel_size=3, stride=1, padding=1))
        values, indices = functional.max_pool2d(input, 3, 1, 1, return_indices=True)
        lines = torch.max_pool1d(averaged.flatten(0, 1), 2) + functional.avg_pool1d(input.flatten(0, 1), 2)
        volumes = functional.avg_pool3d(values, 2, 1) + functional.max_pool3d(input, 2, stride=1)
        chosen = (indices % 7).to(input.dtype) * averaged
        return torch.cat([tensor.flatten(1) for tensor in (chosen, lines.unflatten(0, averaged.shape[:2]), volumes)], 1)


NETWORKS: dict[str, type[torch.nn.Module]] = {
    network.__name__: network for network in (ResNet, GoogLeNet, SegNet, Functional)
}


def pad_same(
    input: Tensor, size: Sequence[int], stride: Sequence[int], dilation: Sequence[int] = (1, 1), value: float = 0.0
) -> Tensor:
    """TensorFlow's "same": ``ceil(size / stride)`` windows, the odd element at the end."""
    padding: list[int] = []
    for length, taps, step, gap in zip(input.shape[-2:], size, stride, dilation, strict=True):
        total = max((math.ceil(length / step) - 1) * step + (taps - 1) * gap + 1 - length, 0)
        padding = [total // 2, total - total // 2, *padding]
    return functional.pad(input, padding, value=value)


class AvgPool2dSame(torch.nn.AvgPool2d):
    """timm's: the padding is part of the input when it is averaged, whatever ``count_include_pad`` says."""

    def __init__(
        self, kernel_size: Sequence[int], stride: Sequence[int], ceil_mode: bool = False, count_include_pad: bool = True
    ) -> None:
        super().__init__(kernel_size, stride, (0, 0), ceil_mode, count_include_pad)

    def forward(self, input: Tensor) -> Tensor:
        padded = pad_same(input, self.kernel_size, self.stride)
        return functional.avg_pool2d(
            padded, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )


class MaxPool2dSame(torch.nn.MaxPool2d):
    """timm's."""

    def __init__(
        self,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int] = (1, 1),
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, (0, 0), dilation, ceil_mode=ceil_mode)

    def forward(self, input: Tensor) -> Tensor:
        padded = pad_same(input, self.kernel_size, self.stride, self.dilation, -math.inf)
        return functional.max_pool2d(padded, self.kernel_size, self.stride, (0, 0), self.dilation, self.ceil_mode)


for layer in (AvgPool2dSame, MaxPool2dSame):
    layer.__module__ = "timm.layers.pool2d_same"  # what conversion knows them by
