"""torch.nn's pooling layers on this package's operators: subclasses that keep no state of their own.

A bad argument is refused when the layer is built. The window made for that is thrown away; ``forward`` builds it again
from the attributes, so a changed attribute is honoured, and repr, state_dict and pickle stay torch's.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.nn import functional
from torch_dmlpool.nn.adaptive import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
)
from torch_dmlpool.nn.functional import Padding, Sizes
from torch_dmlpool.nn.lp import LPPool1d, LPPool2d, LPPool3d
from torch_dmlpool.nn.unpooling import MaxUnpool1d, MaxUnpool2d, MaxUnpool3d

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
]


class _MaxPool(torch.nn.Module):
    """What the three max layers share; it stands before torch's class among a layer's bases."""

    _rank: ClassVar[int]
    kernel_size: Any
    stride: Any
    padding: Any
    dilation: Any
    ceil_mode: bool
    return_indices: bool

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Padding = 0,
        dilation: Sizes = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, padding, dilation, return_indices, ceil_mode)
        functional.window_of(self._rank, kernel_size, stride, padding, dilation, ceil_mode)
        operands.check_flag("return_indices", return_indices)

    def forward(self, input: Tensor) -> Any:
        return functional.max_pool(
            self._rank,
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
            self.return_indices,
        )


class MaxPool1d(_MaxPool, torch.nn.MaxPool1d):
    """:class:`torch.nn.MaxPool1d` on ``(N, C, W)`` or ``(C, W)``, with any padding.

    >>> MaxPool1d(3, stride=1, padding="same")(torch.tensor([[1.0, 4.0, 2.0, 3.0]]))
    tensor([[4., 4., 4., 3.]])
    """

    _rank = 1


class MaxPool2d(_MaxPool, torch.nn.MaxPool2d):
    """:class:`torch.nn.MaxPool2d` on ``(N, C, H, W)`` or ``(C, H, W)``, with any padding.

    >>> MaxPool2d(2, stride=2, padding=((0, 1), (0, 1)))
    MaxPool2d(kernel_size=2, stride=2, padding=((0, 1), (0, 1)), dilation=1, ceil_mode=False)
    """

    _rank = 2


class MaxPool3d(_MaxPool, torch.nn.MaxPool3d):
    """:class:`torch.nn.MaxPool3d` on ``(N, C, D, H, W)`` or ``(C, D, H, W)``, with any padding.

    >>> MaxPool3d(2, padding=((0, 0), (0, 1), (0, 1)))(torch.arange(9.0).reshape(1, 1, 3, 3).expand(1, 2, 3, 3))
    tensor([[[[4., 5.],
              [7., 8.]]]])
    """

    _rank = 3


class _AveragePool(torch.nn.Module):
    """What the three average layers share; it stands before torch's class among a layer's bases."""

    _rank: ClassVar[int]
    kernel_size: Any
    stride: Any
    padding: Any
    ceil_mode: bool
    count_include_pad: bool
    # On the class, because torch's own layers lack them: AvgPool1d the divisor, and all three the dilation.
    divisor_override: int | None = None
    dilation: Any = 1

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Padding = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        *,
        dilation: Sizes = 1,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)
        if isinstance(padding, str):  # torch's AvgPool1d has split the word into letters
            self.padding = padding
        self.dilation = dilation
        functional.window_of(self._rank, kernel_size, stride, padding, dilation, ceil_mode)
        operands.check_flag("count_include_pad", count_include_pad)

    def extra_repr(self) -> str:
        ones = self.dilation if isinstance(self.dilation, (tuple, list)) else (self.dilation,)
        return super().extra_repr() + (f", dilation={self.dilation}" if any(one != 1 for one in ones) else "")

    def forward(self, input: Tensor) -> Tensor:
        return functional.average_pool(
            self._rank,
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )


class AvgPool1d(_AveragePool, torch.nn.AvgPool1d):
    """:class:`torch.nn.AvgPool1d` on ``(N, C, W)`` or ``(C, W)``, with any padding and with ``dilation``.

    >>> AvgPool1d(2, stride=1, dilation=2)(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    tensor([[2., 3.]])
    """

    _rank = 1


class _AveragePoolWithDivisor(_AveragePool):
    """The constructor of the two layers whose divisor torch.nn lets one override."""

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Padding = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
        *,
        dilation: Sizes = 1,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad, dilation=dilation)
        operands.check_divisor(divisor_override)
        self.divisor_override = divisor_override


class AvgPool2d(_AveragePoolWithDivisor, torch.nn.AvgPool2d):
    """:class:`torch.nn.AvgPool2d` on ``(N, C, H, W)`` or ``(C, H, W)``, with any padding and with ``dilation``.

    >>> AvgPool2d(3, stride=2, padding="same", dilation=2)
    AvgPool2d(kernel_size=3, stride=2, padding=same, dilation=2)
    """

    _rank = 2


class AvgPool3d(_AveragePoolWithDivisor, torch.nn.AvgPool3d):
    """:class:`torch.nn.AvgPool3d` on ``(N, C, D, H, W)`` or ``(C, D, H, W)``, with any padding and with ``dilation``.

    >>> AvgPool3d((1, 2, 2), padding=((0, 0), (1, 0), (0, 0)), count_include_pad=False)(torch.ones(1, 1, 3, 2))
    tensor([[[[1.],
              [1.]]]])
    """

    _rank = 3
