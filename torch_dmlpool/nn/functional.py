"""torch.nn.functional's pooling functions, argument for argument, on this package's operators.

They take what torch's take and more: ``padding`` also as ``((start, end), ...)`` or as ``"same"`` or ``"valid"``, any
amount of it, and ``dilation`` on averages too. Indices are PyTorch's: int64, counted inside each channel's plane.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import functional as operators
from torch_dmlpool import operands
from torch_dmlpool.nn.adaptive import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool1d_with_indices,
    adaptive_max_pool2d,
    adaptive_max_pool2d_with_indices,
    adaptive_max_pool3d,
    adaptive_max_pool3d_with_indices,
)
from torch_dmlpool.nn.arguments import Padding, Sizes, window_of, with_batch
from torch_dmlpool.nn.lp import lp_pool1d, lp_pool2d, lp_pool3d
from torch_dmlpool.nn.unpooling import max_unpool1d, max_unpool2d, max_unpool3d

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool1d_with_indices",
    "adaptive_max_pool2d",
    "adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d",
    "adaptive_max_pool3d_with_indices",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "max_pool1d",
    "max_pool1d_with_indices",
    "max_pool2d",
    "max_pool2d_with_indices",
    "max_pool3d",
    "max_pool3d_with_indices",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
]

# torch.fx.symbolic_trace keeps a call of these whole, as it keeps torch.nn's layers whole: it cannot look inside.
torch.fx.wrap("average_pool")
torch.fx.wrap("max_pool")


def avg_pool1d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    *,
    dilation: Sizes = 1,
) -> Tensor:
    """Averages over windows of ``(N, C, W)`` or ``(C, W)``; ``stride`` defaults to ``kernel_size``.

    >>> avg_pool1d(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]]), 3, stride=2)
    tensor([[2., 4.]])
    >>> avg_pool1d(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]]), 2, stride=1, dilation=3)
    tensor([[2.5000, 3.5000]])
    """
    return average_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, count_include_pad, None)


def avg_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    dilation: Sizes = 1,
) -> Tensor:
    """Averages over windows of ``(N, C, H, W)`` or ``(C, H, W)``; ``stride`` defaults to ``kernel_size``.

    >>> image = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    >>> avg_pool2d(image, 2)
    tensor([[[2.5000]]])
    >>> avg_pool2d(image, 2, stride=1, padding="same", count_include_pad=False)
    tensor([[[2.5000, 3.0000],
             [3.5000, 4.0000]]])
    """
    return average_pool(
        2, input, kernel_size, stride, padding, dilation, ceil_mode, count_include_pad, divisor_override
    )


def avg_pool3d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    dilation: Sizes = 1,
) -> Tensor:
    """Averages over windows of ``(N, C, D, H, W)`` or ``(C, D, H, W)``; ``stride`` defaults to ``kernel_size``.

    >>> avg_pool3d(torch.ones(1, 2, 2, 4), (2, 2, 3), stride=1, divisor_override=6)
    tensor([[[[2., 2.]]]])
    """
    return average_pool(
        3, input, kernel_size, stride, padding, dilation, ceil_mode, count_include_pad, divisor_override
    )


def max_pool1d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Maxima over windows of ``(N, C, W)`` or ``(C, W)``, with ``return_indices`` as a pair with their positions.

    >>> max_pool1d(torch.tensor([[1.0, 3.0, 2.0, 5.0]]), 2)
    tensor([[3., 5.]])
    >>> max_pool1d(torch.tensor([[1.0, 3.0, 2.0, 5.0]]), 2, stride=1, padding=((1, 0),))
    tensor([[1., 3., 3., 5.]])
    """
    return max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Maxima over windows of ``(N, C, H, W)`` or ``(C, H, W)``, with ``return_indices`` as a pair with their positions.

    >>> image = torch.tensor([[[1.0, 2.0, 3.0], [2.0, 4.0, 2.0], [5.0, 6.0, 7.0]]])
    >>> values, indices = max_pool2d(image, 2, stride=1, return_indices=True)
    >>> values
    tensor([[[4., 4.],
             [6., 7.]]])
    >>> indices
    tensor([[[4, 4],
             [7, 8]]])
    """
    return max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool3d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Maxima over windows of ``(N, C, D, H, W)`` or ``(C, D, H, W)``, with ``return_indices`` with their positions.

    >>> volume = torch.arange(8.0).reshape(1, 2, 2, 2)
    >>> max_pool3d(volume, 2, return_indices=True)
    (tensor([[[[7.]]]]), tensor([[[[7]]]]))
    """
    return max_pool(3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


# torch.nn.functional's variants keep `return_indices` in their signatures and ignore it: they always return the pair.


def max_pool1d_with_indices(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    """:func:`max_pool1d` with ``return_indices=True``."""
    return max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, True)


def max_pool2d_with_indices(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    """:func:`max_pool2d` with ``return_indices=True``."""
    return max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, True)


def max_pool3d_with_indices(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    """:func:`max_pool3d` with ``return_indices=True``."""
    return max_pool(3, input, kernel_size, stride, padding, dilation, ceil_mode, True)


def average_pool(
    rank: int,
    input: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """Do what ``avg_pool1d``, ``2d``, ``3d`` and their layers do, for ``rank`` spatial dimensions."""
    batched, unbatched = with_batch(f"avg_pool{rank}d", rank, input)
    operands.check_flag("count_include_pad", count_include_pad)
    window = window_of(rank, kernel_size, stride, padding, dilation, ceil_mode, batched.shape[2:])
    output = operators.average_pooling_over(batched, window, count_include_pad, divisor_override)
    return output.squeeze(0) if unbatched else output


def max_pool(
    rank: int,
    input: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    return_indices: bool,
) -> Any:
    """Do what ``max_pool1d``, ``2d``, ``3d`` and their layers do, for ``rank`` spatial dimensions."""
    batched, unbatched = with_batch(f"max_pool{rank}d", rank, input)
    operands.check_flag("return_indices", return_indices)
    window = window_of(rank, kernel_size, stride, padding, dilation, ceil_mode, batched.shape[2:])
    if not return_indices:
        output = operators.max_pooling_over(batched, window)
        return output.squeeze(0) if unbatched else output
    values, indices = operators.max_pooling_with_indices_over(batched, window, torch.int64, True)
    return (values.squeeze(0), indices.squeeze(0)) if unbatched else (values, indices)
