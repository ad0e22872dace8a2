"""Adaptive pooling by its names in PyTorch: torch.nn.functional's functions and torch.nn's layers."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from torch_dmlpool import functional as operators
from torch_dmlpool import operands
from torch_dmlpool.functional import OutputSize
from torch_dmlpool.nn.arguments import with_batch

torch.fx.wrap("adaptive_average_pool")
torch.fx.wrap("adaptive_max_pool")


def adaptive_avg_pool1d(input: Tensor, output_size: OutputSize) -> Tensor:
    """Averages over ``output_size`` windows that cover ``(N, C, W)`` or ``(C, W)`` evenly.

    >>> adaptive_avg_pool1d(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]]), 2)
    tensor([[2., 4.]])
    """
    return adaptive_average_pool(1, input, output_size)


def adaptive_avg_pool2d(input: Tensor, output_size: OutputSize) -> Tensor:
    """Averages over ``output_size`` windows that cover ``(N, C, H, W)`` or ``(C, H, W)`` evenly; 1 is global pooling.

    >>> adaptive_avg_pool2d(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), (None, 1))
    tensor([[[1.5000],
             [3.5000]]])
    """
    return adaptive_average_pool(2, input, output_size)


def adaptive_avg_pool3d(input: Tensor, output_size: OutputSize) -> Tensor:
    """Averages over ``output_size`` windows that cover ``(N, C, D, H, W)`` or ``(C, D, H, W)`` evenly.

    >>> adaptive_avg_pool3d(torch.arange(8.0).reshape(1, 2, 2, 2), 1)
    tensor([[[[3.5000]]]])
    """
    return adaptive_average_pool(3, input, output_size)


def adaptive_max_pool1d(input: Tensor, output_size: OutputSize, return_indices: bool = False) -> Any:
    """Maxima over ``output_size`` windows that cover ``(N, C, W)`` or ``(C, W)`` evenly.

    >>> adaptive_max_pool1d(torch.tensor([[1.0, 4.0, 2.0, 3.0, 5.0]]), 2, return_indices=True)
    (tensor([[4., 5.]]), tensor([[1, 4]]))
    """
    return adaptive_max_pool(1, input, output_size, return_indices)


def adaptive_max_pool2d(input: Tensor, output_size: OutputSize, return_indices: bool = False) -> Any:
    """Maxima over ``output_size`` windows that cover ``(N, C, H, W)`` or ``(C, H, W)`` evenly.

    >>> adaptive_max_pool2d(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), 1)
    tensor([[[4.]]])
    """
    return adaptive_max_pool(2, input, output_size, return_indices)


def adaptive_max_pool3d(input: Tensor, output_size: OutputSize, return_indices: bool = False) -> Any:
    """Maxima over ``output_size`` windows that cover ``(N, C, D, H, W)`` or ``(C, D, H, W)`` evenly.

    >>> adaptive_max_pool3d(torch.arange(8.0).reshape(1, 2, 2, 2), (1, 2, 1))
    tensor([[[[5.],
              [7.]]]])
    """
    return adaptive_max_pool(3, input, output_size, return_indices)


# torch.nn.functional's variants keep `return_indices` in their signatures and ignore it: they always return the pair.


def adaptive_max_pool1d_with_indices(
    input: Tensor,
    output_size: OutputSize,
    return_indices: bool = False,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    """:func:`adaptive_max_pool1d` with ``return_indices=True``."""
    both: tuple[Tensor, Tensor] = adaptive_max_pool(1, input, output_size, True)
    return both


def adaptive_max_pool2d_with_indices(
    input: Tensor,
    output_size: OutputSize,
    return_indices: bool = False,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    """:func:`adaptive_max_pool2d` with ``return_indices=True``."""
    both: tuple[Tensor, Tensor] = adaptive_max_pool(2, input, output_size, True)
    return both


def adaptive_max_pool3d_with_indices(
    input: Tensor,
    output_size: OutputSize,
    return_indices: bool = False,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    """:func:`adaptive_max_pool3d` with ``return_indices=True``."""
    both: tuple[Tensor, Tensor] = adaptive_max_pool(3, input, output_size, True)
    return both


def adaptive_average_pool(rank: int, input: Tensor, output_size: OutputSize) -> Tensor:
    """Do what ``adaptive_avg_pool1d``, ``2d``, ``3d`` and their layers do, for ``rank`` spatial dimensions."""
    batched, unbatched = with_batch(f"adaptive_avg_pool{rank}d", rank, input)
    output = operators.adaptive_average_pooling(batched, _output_size(output_size))
    return output.squeeze(0) if unbatched else output


def adaptive_max_pool(rank: int, input: Tensor, output_size: OutputSize, return_indices: bool) -> Any:
    """Do what ``adaptive_max_pool1d``, ``2d``, ``3d`` and their layers do, for ``rank`` spatial dimensions."""
    batched, unbatched = with_batch(f"adaptive_max_pool{rank}d", rank, input)
    pooled = operators.adaptive_max_pooling_over(batched, _output_size(output_size), return_indices, torch.int64, True)
    if not unbatched:
        return pooled
    return tuple(tensor.squeeze(0) for tensor in pooled) if return_indices else pooled.squeeze(0)


def check_output_size(rank: int, output_size: OutputSize) -> None:
    """Refuse what cannot be the sizes of ``rank`` spatial dimensions."""
    operands.checked_output_size(_output_size(output_size), (1,) * rank)


def _output_size(output_size: OutputSize) -> OutputSize:
    """One entry in a list is read as an int, as PyTorch reads it."""
    return output_size[0] if isinstance(output_size, (tuple, list)) and len(output_size) == 1 else output_size


class _AdaptiveAveragePool(torch.nn.Module):
    """What the three adaptive averages share; it stands before torch's class among a layer's bases."""

    _rank: ClassVar[int]
    output_size: Any

    def __init__(self, output_size: OutputSize) -> None:
        super().__init__(output_size)
        check_output_size(self._rank, output_size)

    def forward(self, input: Tensor) -> Tensor:
        return adaptive_average_pool(self._rank, input, self.output_size)


class AdaptiveAvgPool1d(_AdaptiveAveragePool, torch.nn.AdaptiveAvgPool1d):
    """:class:`torch.nn.AdaptiveAvgPool1d` on ``(N, C, W)`` or ``(C, W)``.

    >>> AdaptiveAvgPool1d(2)(torch.tensor([[1.0, 2.0, 3.0]]))
    tensor([[1.5000, 2.5000]])
    """

    _rank = 1


class AdaptiveAvgPool2d(_AdaptiveAveragePool, torch.nn.AdaptiveAvgPool2d):
    """:class:`torch.nn.AdaptiveAvgPool2d` on ``(N, C, H, W)`` or ``(C, H, W)``.

    >>> AdaptiveAvgPool2d((7, None))
    AdaptiveAvgPool2d(output_size=(7, None))
    """

    _rank = 2


class AdaptiveAvgPool3d(_AdaptiveAveragePool, torch.nn.AdaptiveAvgPool3d):
    """:class:`torch.nn.AdaptiveAvgPool3d` on ``(N, C, D, H, W)`` or ``(C, D, H, W)``.

    >>> AdaptiveAvgPool3d(1)(torch.arange(8.0).reshape(1, 2, 2, 2))
    tensor([[[[3.5000]]]])
    """

    _rank = 3


class _AdaptiveMaxPool(torch.nn.Module):
    """What the three adaptive maxima share; it stands before torch's class among a layer's bases."""

    _rank: ClassVar[int]
    output_size: Any
    return_indices: bool

    def __init__(self, output_size: OutputSize, return_indices: bool = False) -> None:
        super().__init__(output_size, return_indices)
        check_output_size(self._rank, output_size)
        operands.check_flag("return_indices", return_indices)

    def forward(self, input: Tensor) -> Any:
        return adaptive_max_pool(self._rank, input, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMaxPool, torch.nn.AdaptiveMaxPool1d):
    """:class:`torch.nn.AdaptiveMaxPool1d` on ``(N, C, W)`` or ``(C, W)``.

    >>> AdaptiveMaxPool1d(2)(torch.tensor([[1.0, 2.0, 0.0]]))
    tensor([[2., 2.]])
    """

    _rank = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPool, torch.nn.AdaptiveMaxPool2d):
    """:class:`torch.nn.AdaptiveMaxPool2d` on ``(N, C, H, W)`` or ``(C, H, W)``.

    >>> AdaptiveMaxPool2d(1, return_indices=True)(torch.tensor([[[1.0, 2.0], [4.0, 3.0]]]))
    (tensor([[[4.]]]), tensor([[[2]]]))
    """

    _rank = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPool, torch.nn.AdaptiveMaxPool3d):
    """:class:`torch.nn.AdaptiveMaxPool3d` on ``(N, C, D, H, W)`` or ``(C, D, H, W)``.

    >>> AdaptiveMaxPool3d((1, 1, 2))(torch.arange(8.0).reshape(1, 2, 2, 2))
    tensor([[[[6., 7.]]]])
    """

    _rank = 3
