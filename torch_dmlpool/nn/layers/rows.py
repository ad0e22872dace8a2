"""Layers of sets of rows: tokens, ragged sets, and statistics of frames."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torch_dmlpool.operators.segment_pooling import (
    Reduction,
    check_reduction,
    segment_pooling,
    token_pooling,
)
from torch_dmlpool.operators.statistics_pooling import statistics_pooling
from torch_dmlpool.tensors import Mask


class _Reducing(torch.nn.Module):
    """A layer that combines rows by a reduction."""

    def __init__(self, reduction: Reduction = "mean") -> None:
        super().__init__()
        check_reduction(reduction)
        self.reduction: Reduction = reduction

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


class TokenPool(_Reducing):
    """:func:`torch_dmlpool.token_pooling` as a layer: ``(B, T, C)`` tokens and their attention mask
    ``(B, T)`` become ``(B, C)``.

    Args:
        reduction: ``"mean"``, ``"sum"``, ``"max"`` or ``"min"``.

    >>> tokens = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]])
    >>> TokenPool()(tokens, torch.tensor([[1, 1, 0]]))
    tensor([[2., 3.]])
    """

    def forward(self, tokens: Tensor, mask: Mask = None) -> Tensor:
        return token_pooling(tokens, mask, self.reduction)

    if TYPE_CHECKING:
        __call__ = forward


class SegmentPool(_Reducing):
    """:func:`torch_dmlpool.segment_pooling` as a layer: ``(L, *features)`` rows and the offsets of
    their S sets become ``(S, *features)``.

    Args:
        reduction: ``"mean"``, ``"sum"``, ``"max"`` or ``"min"``.

    >>> rows = torch.tensor([[1.0, 8.0], [3.0, 2.0], [5.0, 5.0]])
    >>> SegmentPool("max")(rows, torch.tensor([0, 2, 3]))
    tensor([[3., 8.],
            [5., 5.]])
    """

    def forward(self, input: Tensor, offsets: Tensor, mask: Mask = None) -> Tensor:
        return segment_pooling(input, offsets, self.reduction, mask=mask)

    if TYPE_CHECKING:
        __call__ = forward


class StatisticsPool(torch.nn.Module):
    """:func:`torch_dmlpool.statistics_pooling` as a layer: mean and standard deviation of each
    plane of ``(N, C, *spatial)`` side by side, ``(N, 2C)``.

    Args:
        correction: What is subtracted from the number of elements before squares are divided by it:
            1 for samples, 0 for a whole population.

    >>> frames = torch.tensor([[[1.0, 3.0, 9.0], [5.0, 5.0, 0.0]]])
    >>> StatisticsPool()(frames, torch.tensor([True, True, False]))
    tensor([[2.0000, 5.0000, 1.4142, 0.0000]])
    """

    def __init__(self, correction: int = 1) -> None:
        super().__init__()
        self.correction = correction

    def forward(self, input: Tensor, mask: Mask = None) -> Tensor:
        return torch.cat(statistics_pooling(input, mask, correction=self.correction), 1)

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"correction={self.correction}"
