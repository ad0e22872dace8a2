"""Max unpooling by its names in PyTorch: torch.nn.functional's functions and torch.nn's layers.

Where several elements have the same index, the last of them in row-major order is written, and it alone gets a gradient
(PyTorch writes any of them on a GPU, and gives the gradient to all). Index -1 is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from torch_dmlpool import functional as operators
from torch_dmlpool.nn.arguments import Padding, Sizes, window_of, with_batch
from torch_dmlpool.window import AXIS_NAMES, entries

torch.fx.wrap("max_unpool")


def max_unpool1d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Every element of ``(N, C, W)`` or ``(C, W)`` back at its index, zeros elsewhere.

    >>> max_unpool1d(torch.tensor([[4.0, 5.0]]), torch.tensor([[1, 2]]), 2)
    tensor([[0., 4., 5., 0.]])
    """
    return max_unpool(1, input, indices, kernel_size, stride, padding, output_size)


def max_unpool2d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Every element of ``(N, C, H, W)`` or ``(C, H, W)`` back at its index, zeros elsewhere.

    >>> max_unpool2d(torch.tensor([[[4.0]]]), torch.tensor([[[3]]]), 2)
    tensor([[[0., 0.],
             [0., 4.]]])
    """
    return max_unpool(2, input, indices, kernel_size, stride, padding, output_size)


def max_unpool3d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Every element of ``(N, C, D, H, W)`` or ``(C, D, H, W)`` back at its index, zeros elsewhere.

    >>> max_unpool3d(torch.ones(1, 1, 1, 1), torch.full((1, 1, 1, 1), 2), (1, 2, 2))
    tensor([[[[0., 0.],
              [1., 0.]]]])
    """
    return max_unpool(3, input, indices, kernel_size, stride, padding, output_size)


def max_unpool(
    rank: int,
    input: Tensor,
    indices: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    output_size: Sequence[int] | None,
) -> Tensor:
    """Do what ``max_unpool1d``, ``2d``, ``3d`` and their layers do, for ``rank`` spatial dimensions.

    ``output_size`` is the spatial sizes or all sizes; each must be less than a stride from what the window gives.
    """
    batched, unbatched = with_batch(f"max_unpool{rank}d", rank, input)
    if isinstance(indices, Tensor) and unbatched and indices.dim() == rank + 1:
        indices = indices.unsqueeze(0)
    window = window_of(rank, kernel_size, stride, padding, 1, False)
    default = [
        (size - 1) * axis.stride + axis.window - axis.start_padding - axis.end_padding
        for size, axis in zip(batched.shape[2:], window.axes, strict=True)
    ]
    sizes = default
    if output_size is not None:
        sizes = _spatial(rank, output_size)
        for size, usual, axis, name in zip(sizes, default, window.axes, AXIS_NAMES[rank], strict=True):
            if not usual - axis.stride < size < usual + axis.stride:
                raise ValueError(
                    f"output_size must be less than a stride ({axis.stride}) from {usual}, which the window gives, in "
                    f"spatial dimension {name}, got {size} (output_size={output_size})"
                )
    output = operators.max_unpooling_over(batched, indices, sizes, True)
    return output.squeeze(0) if unbatched else output


def _spatial(rank: int, output_size: Sequence[int]) -> list[int]:
    if isinstance(output_size, Sequence) and len(output_size) == rank + 2:
        output_size = output_size[2:]
    return list(entries("output_size", output_size, rank, 1))


class _MaxUnpool(torch.nn.Module):
    """What the three unpooling layers share; it stands before torch's class among a layer's bases."""

    _rank: ClassVar[int]
    kernel_size: Any
    stride: Any
    padding: Any

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Padding = 0) -> None:
        super().__init__(kernel_size, stride, padding)
        if isinstance(padding, str):  # torch's has split the word into letters
            self.padding = padding
        window_of(self._rank, kernel_size, stride, padding, 1, False)

    def forward(self, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return max_unpool(self._rank, input, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool1d(_MaxUnpool, torch.nn.MaxUnpool1d):
    """:class:`torch.nn.MaxUnpool1d` on ``(N, C, W)`` or ``(C, W)``; the last of several with one index is written.

    >>> MaxUnpool1d(2)(*MaxPool1d(2, return_indices=True)(torch.tensor([[1.0, 4.0, 3.0, 2.0]])))
    tensor([[0., 4., 3., 0.]])
    """

    _rank = 1


class MaxUnpool2d(_MaxUnpool, torch.nn.MaxUnpool2d):
    """:class:`torch.nn.MaxUnpool2d` on ``(N, C, H, W)`` or ``(C, H, W)``, likewise.

    >>> MaxUnpool2d(2, stride=2)(torch.tensor([[[4.0]]]), torch.tensor([[[1]]]), output_size=(2, 3))
    tensor([[[0., 4., 0.],
             [0., 0., 0.]]])
    """

    _rank = 2


class MaxUnpool3d(_MaxUnpool, torch.nn.MaxUnpool3d):
    """:class:`torch.nn.MaxUnpool3d` on ``(N, C, D, H, W)`` or ``(C, D, H, W)``, likewise.

    >>> MaxUnpool3d(2, stride=1, padding=((0, 0), (0, 0), (0, 1)))
    MaxUnpool3d(kernel_size=(2, 2, 2), stride=(1, 1, 1), padding=((0, 0), (0, 0), (0, 1)))
    """

    _rank = 3
