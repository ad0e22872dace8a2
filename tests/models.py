"""Small networks that pool as well-known ones do, timm's "same" layers, and every operator on an image."""

import math
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

import torch_dmlpool as dmlpool
from torch_dmlpool import nn


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> torch.nn.Sequential:
    """Convolution, batch normalisation, relu in place: the building block of all of them."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False),
        torch.nn.BatchNorm2d(outputs),
        torch.nn.ReLU(inplace=True),
    )


class ResNet(torch.nn.Module):
    """The stem's 3/2 maximum with padding, and an average in the shortcut (ResNet-D)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Sequential(convolution(3, 8, 7, 2), torch.nn.MaxPool2d(3, stride=2, padding=1))
        self.block = convolution(8, 8, 3)
        self.shortcut = torch.nn.Sequential(
            torch.nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False), torch.nn.Conv2d(8, 4, 1)
        )

    def forward(self, input: Tensor) -> Tensor:
        input = self.stem(input)
        return self.shortcut(functional.relu(self.block(input) + input)).mean((2, 3))


class GoogLeNet(torch.nn.Module):
    """Maxima with ceil_mode, whose last windows overhang, and a branch that pools with stride 1."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.pool1 = convolution(3, 6, 7, 2), torch.nn.MaxPool2d(3, stride=2, ceil_mode=True)
        branch = torch.nn.MaxPool2d(kernel_size=3, stride=1, padding=1, ceil_mode=True), convolution(6, 2, 1)
        self.branches = torch.nn.ModuleList([convolution(6, 3, 1), torch.nn.Sequential(*branch)])
        self.pool2 = torch.nn.AvgPool2d(3, stride=1)

    def forward(self, input: Tensor) -> Tensor:
        input = self.pool1(self.stem(input))
        return self.pool2(torch.cat([branch(input) for branch in self.branches], 1)).flatten(1)


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


class Pools(torch.nn.Module):
    """Layers of this package beyond torch.nn's, and indices; for exported programs."""

    def __init__(self, padding: str | int = "same") -> None:
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3),
            nn.MaxPool2d(3, 2, padding),
            nn.AvgPool2d(2, 1, ((1, 0), (0, 1)), True, dilation=2),
        )
        self.last, self.pooled = nn.MaxPool2d(2, return_indices=True), nn.AdaptiveAvgPool2d(1)

    def forward(self, input: Tensor) -> tuple[Tensor, ...]:
        values, indices = self.last(self.features(input))
        return values, indices, self.pooled(values)


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


WINDOW = (3, 2, 1, 1)
"""Windows that overlap, on padding."""


def with_gradient(pool: Callable[[Tensor], Tensor]) -> Callable[[Tensor], list[Tensor]]:
    """What ``pool`` gives, and the gradient that it sends back."""

    def both(image: Tensor) -> list[Tensor]:
        leaf = image.detach().requires_grad_()
        output = pool(leaf)
        return [output.detach(), *torch.autograd.grad(output, leaf, output.detach() * 0.5 + 1)]

    return both


def without_gradient(pool: Callable[[Tensor], Tensor | tuple[Tensor, ...]]) -> Callable[[Tensor], list[Tensor]]:
    def forward(image: Tensor) -> list[Tensor]:
        outputs = pool(image)
        return [outputs] if isinstance(outputs, Tensor) else list(outputs)

    return forward


def integers(image: Tensor) -> Tensor:
    return (image * 40).clamp(-128, 127).to(torch.int8)


def quantized(image: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(image, 0.05, 3, torch.quint8)


SCALES = torch.tensor([0.5, 0.25, 0.125])


def _unpooled(image: Tensor) -> Tensor:
    values, indices = dmlpool.max_pooling(image, *WINDOW, return_indices=True)
    return dmlpool.max_unpooling(values, indices, image.shape)


def _average_grad(image: Tensor) -> Tensor:
    sizes = [2 * size - 1 for size in image.shape[2:]]
    return dmlpool.average_pooling_grad(image, (*image.shape[:2], *sizes), *WINDOW)


EVERYTHING: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "average_pooling": with_gradient(lambda image: dmlpool.average_pooling(image, *WINDOW)),
    "average_pooling, whole planes": with_gradient(lambda image: dmlpool.average_pooling(image, image.shape[2:])),
    "average_pooling, float16": with_gradient(lambda image: dmlpool.average_pooling(image.half(), *WINDOW)),
    "average_pooling_grad": with_gradient(_average_grad),
    "max_pooling": with_gradient(lambda image: dmlpool.max_pooling(image, *WINDOW)),
    "max_pooling, dilated": with_gradient(lambda image: dmlpool.max_pooling(image, 3, 1, 2, 2, 2)),
    "max_pooling, with indices": with_gradient(
        lambda image: dmlpool.max_pooling(image, *WINDOW, return_indices=True)[0]
    ),
    "max_pooling, indices": without_gradient(lambda image: dmlpool.max_pooling(image, *WINDOW, return_indices=True)),
    "max_pooling, integers": without_gradient(lambda image: dmlpool.max_pooling(integers(image), *WINDOW)),
    "max_pooling_grad": with_gradient(
        lambda image: dmlpool.max_pooling_grad(image, dmlpool.average_pooling(image, *WINDOW), *WINDOW)
    ),
    "lp_pooling": with_gradient(lambda image: dmlpool.lp_pooling(image, *WINDOW)),
    "lp_pooling, p 3": with_gradient(lambda image: dmlpool.lp_pooling(image, *WINDOW, p=3)),
    "adaptive_average_pooling": with_gradient(lambda image: dmlpool.adaptive_average_pooling(image, 4)),
    "adaptive_max_pooling": with_gradient(lambda image: dmlpool.adaptive_max_pooling(image, (3, 4))),
    "adaptive_max_pooling, indices": without_gradient(
        lambda image: dmlpool.adaptive_max_pooling(image, 3, return_indices=True)
    ),
    "max_unpooling": with_gradient(_unpooled),
    "quantized_linear_average_pooling": without_gradient(
        lambda image: dmlpool.quantized_linear_average_pooling(integers(image), 0.5, 1, 0.3, -2, *WINDOW)
    ),
    "quantized_linear_average_pooling, per channel": without_gradient(
        lambda image: dmlpool.quantized_linear_average_pooling(integers(image), SCALES, None, 0.3, -2, *WINDOW)
    ),
    "quantized_average_pooling": without_gradient(
        lambda image: dmlpool.quantized_average_pooling(quantized(image), *WINDOW, output_scale=0.1).int_repr()
    ),
    "quantized_max_pooling": without_gradient(
        lambda image: dmlpool.quantized_max_pooling(quantized(image), *WINDOW).int_repr()
    ),
    "nn.MaxPool2d": with_gradient(nn.MaxPool2d(3, 2, "same")),
    "nn.AvgPool2d": with_gradient(nn.AvgPool2d(3, 2, ((1, 0), (0, 1)))),
}
"""Functions of a float32 ``(N, 3, H, W)`` image; each gives its results and, where there is one, its gradient."""
