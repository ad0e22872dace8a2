"""Every operator on an image, forward and backward: for what must hold of all of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool import nn

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
