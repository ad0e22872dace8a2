"""Lp pooling by its names in PyTorch: torch.nn.functional's functions and torch.nn's layers.

The norms are those of DirectML and ONNX: the root of the sum of ``|x| ** p`` over what a window reads. PyTorch adds up
``x ** p``, so with an odd or fractional ``norm_type`` it differs for negative elements (its root of a negative sum is
NaN); with ``ceil_mode`` it scales the sum of a window that reaches past the padded input up to a whole window's; and
where a norm is 0 its gradient is NaN, ours 0.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from torch_dmlpool import functional as operators
from torch_dmlpool import operands
from torch_dmlpool.nn.arguments import Padding, Sizes, window_of, with_batch

torch.fx.wrap("lp_pool")


def lp_pool1d(
    input: Tensor,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
    *,
    padding: Padding = 0,
    dilation: Sizes = 1,
) -> Tensor:
    """Norms of windows of ``(N, C, W)`` or ``(C, W)``; ``stride`` defaults to ``kernel_size``.

    >>> lp_pool1d(torch.tensor([[3.0, -4.0, 0.0, 2.0]]), 2, 2)
    tensor([[5., 2.]])
    """
    return lp_pool(1, input, norm_type, kernel_size, stride, padding, dilation, ceil_mode)


def lp_pool2d(
    input: Tensor,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
    *,
    padding: Padding = 0,
    dilation: Sizes = 1,
) -> Tensor:
    """Norms of windows of ``(N, C, H, W)`` or ``(C, H, W)``; ``stride`` defaults to ``kernel_size``.

    >>> lp_pool2d(torch.tensor([[[1.0, -2.0], [3.0, 4.0]]]), 1, 2)
    tensor([[[10.]]])
    """
    return lp_pool(2, input, norm_type, kernel_size, stride, padding, dilation, ceil_mode)


def lp_pool3d(
    input: Tensor,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
    *,
    padding: Padding = 0,
    dilation: Sizes = 1,
) -> Tensor:
    """Norms of windows of ``(N, C, D, H, W)`` or ``(C, D, H, W)``; ``stride`` defaults to ``kernel_size``.

    >>> lp_pool3d(-torch.ones(1, 2, 2, 4), float("inf"), (2, 2, 4))
    tensor([[[[1.]]]])
    """
    return lp_pool(3, input, norm_type, kernel_size, stride, padding, dilation, ceil_mode)


def lp_pool(
    rank: int,
    input: Tensor,
    norm_type: float,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
) -> Tensor:
    """Do what ``lp_pool1d``, ``2d``, ``3d`` and their layers do, for ``rank`` spatial dimensions."""
    batched, unbatched = with_batch(f"lp_pool{rank}d", rank, input)
    window = window_of(rank, kernel_size, stride, padding, dilation, ceil_mode, batched.shape[2:])
    output = operators.lp_pooling_over(batched, window, norm_type, "norm_type")
    return output.squeeze(0) if unbatched else output


class _LPPool(torch.nn.Module):
    """What the three norm layers share; it stands before torch's class among a layer's bases."""

    _rank: ClassVar[int]
    norm_type: float
    kernel_size: Any
    stride: Any
    ceil_mode: bool
    # On the class, because torch's own layers lack them.
    padding: Any = 0
    dilation: Any = 1

    def __init__(
        self,
        norm_type: float,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        ceil_mode: bool = False,
        *,
        padding: Padding = 0,
        dilation: Sizes = 1,
    ) -> None:
        super().__init__(norm_type, kernel_size, stride, ceil_mode)
        self.padding, self.dilation = padding, dilation
        operands.check_norm("norm_type", norm_type)
        window_of(self._rank, kernel_size, stride, padding, dilation, ceil_mode)

    def extra_repr(self) -> str:
        more = {"padding": (self.padding, 0), "dilation": (self.dilation, 1)}
        given = [f", {name}={value}" for name, (value, usual) in more.items() if value != usual]
        return super().extra_repr() + "".join(given)

    def forward(self, input: Tensor) -> Tensor:
        return lp_pool(
            self._rank,
            input,
            self.norm_type,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
        )


class LPPool1d(_LPPool, torch.nn.LPPool1d):
    """:class:`torch.nn.LPPool1d` on ``(N, C, W)`` or ``(C, W)``, with the norms said above.

    >>> LPPool1d(2, 2)(torch.tensor([[3.0, -4.0]]))
    tensor([[5.]])
    """

    _rank = 1


class LPPool2d(_LPPool, torch.nn.LPPool2d):
    """:class:`torch.nn.LPPool2d` on ``(N, C, H, W)`` or ``(C, H, W)``, with the norms said above.

    >>> LPPool2d(2, 3, stride=2, padding="same")
    LPPool2d(norm_type=2, kernel_size=3, stride=2, ceil_mode=False, padding=same)
    """

    _rank = 2


class LPPool3d(_LPPool, torch.nn.LPPool3d):
    """:class:`torch.nn.LPPool3d` on ``(N, C, D, H, W)`` or ``(C, D, H, W)``, likewise.

    >>> LPPool3d(1, 2)(-torch.ones(1, 2, 2, 2))
    tensor([[[[8.]]]])
    """

    _rank = 3
