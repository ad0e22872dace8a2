"""ATen's max pools, for the plain PyTorch backend: they compute plain CPU tensors wherever their
answer is the same by the rules.

ATen has no uneven padding and none above half a window, and takes the last of several NaN where
rule M3 takes the first.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool._private import _len_torch_dispatch_stack
from torch_dmlpool.window import Window


def is_plain_cpu(tensor: Tensor) -> bool:
    """Whether ``tensor`` is a plain CPU tensor and nothing is traced, so that values can be read.

    Transforms and modes above a backend are checked before, by
    ``dispatching.may_skip_dispatcher``.
    """
    return (
        type(tensor) is Tensor
        and tensor.is_cpu
        and not torch.compiler.is_compiling()
        and _len_torch_dispatch_stack() == 0
    )


def winners(input: Tensor, window: Window) -> tuple[Tensor, Tensor] | None:
    """ATen's maxima and their positions in planes, or None where its answer may be another.

    ATen takes the last of several NaN in a window (rule M3), and it has no uneven padding. In
    volumes in channels_last it gives a window of -inf alone the index of another (rule M2).
    """
    if not (is_plain_cpu(input) and _is_atens(window, input)):
        return None
    values, positions = _pool(input, window)
    least, most = values.aminmax()
    if math.isnan(most):  # as it is where one of them is
        return None
    if window.rank == 3 and least == -math.inf and operands.is_channels_last(input):
        return None
    return values, positions


def _pool(input: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """ATen's maxima and their positions in planes."""
    if window.rank == 3:
        return _POOL_3D(input, *_arguments(window))
    if window.rank == 2:
        return _POOL_2D(input, *_arguments(window))
    values, positions = _POOL_2D(input.unsqueeze(2), *_arguments(window))
    return values.squeeze(2), positions.squeeze(2)


_POOL_2D = torch.ops.aten.max_pool2d_with_indices.default
_POOL_3D = torch.ops.aten.max_pool3d_with_indices.default
_GRADIENT_2D = torch.ops.aten.max_pool2d_with_indices_backward.default
_GRADIENT_3D = torch.ops.aten.max_pool3d_with_indices_backward.default


def _is_atens(window: Window, tensor: Tensor) -> bool:
    """Whether ATen's max pooling takes this window and tensor, and no window is empty."""
    return tensor.is_floating_point() and 0 not in tensor.shape and _arguments(window) is not None


@functools.lru_cache(maxsize=256)
def _arguments(window: Window) -> Any:
    """The arguments of a window whose taps lie side by side. Nobody writes into the lists."""
    return None if any(axis.dilation != 1 for axis in window.axes) else arguments_of(window)


def arguments_of(window: Window) -> Any:
    """The window as the arguments of ATen's max pooling, or None where ATen has none like it. Rows
    are pooled as images of height 1.
    """
    arguments = window.as_pytorch()
    if arguments is None or window.rank > 1:
        return arguments
    sizes, strides, padding, dilations, *flags = arguments
    return [1, *sizes], [1, *strides], [0, *padding], [1, *dilations], *flags


def gradient(
    arriving: Tensor,
    positions: Tensor,
    sizes: Sequence[int],
    window: Window,
    channels_last: bool,
) -> Tensor | None:
    """ATen's gradient of maxima whose winners lie at ``positions``, or None where ATen has none, or
    a window has no winner: ATen knows no position -1.
    """
    if not (is_plain_cpu(arriving) and is_plain_cpu(positions) and _is_atens(window, arriving)):
        return None
    if positions.amin() < 0:
        return None
    memory_format = operands.named_memory_format(channels_last, window.rank)
    like = operands.empty((*arriving.shape[:2], *sizes), arriving, memory_format)
    if window.rank == 1:
        arriving, positions, like = (each.unsqueeze(2) for each in (arriving, positions, like))
    operator = _GRADIENT_3D if window.rank == 3 else _GRADIENT_2D
    result = operator(arriving, like, *_arguments(window), positions)
    return result.squeeze(2) if window.rank == 1 else result
