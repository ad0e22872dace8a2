"""ATen's max pools: the plain PyTorch backend finds winners of plain CPU tensors with them wherever
their answer is the same by the rules, and exported programs hold them.

ATen has no uneven padding and none above half a window, and takes the last of several NaN where
rule M3 takes the first.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import counterparts, tensors
from torch_dmlpool._private import OpOverload, _len_torch_dispatch_stack
from torch_dmlpool.window import Sizes, Window

_ATEN = torch.ops.aten


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


def winners(input: Tensor, window: Window) -> Any:
    """ATen's maxima and their positions in planes, or None where its answer may be another.

    ATen takes the last of several NaN in a window (rule M3). In volumes in channels_last it gives a
    window of -inf alone the index of another (rule M2).
    """
    is_taken = is_plain_cpu(input) and input.is_floating_point() and 0 not in input.shape
    is_taken = is_taken and all(axis.dilation == 1 for axis in window.axes)
    found = max_pooled(input, window) if is_taken else None
    if found is None:
        return None
    least = found[0].amin()
    if math.isnan(least):  # as it is where one of them is
        return None
    is_lost = least == -math.inf and window.rank == 3 and tensors.is_channels_last(input)
    return None if is_lost else found


def max_pooled(input: Tensor, window: Window) -> Any:
    """ATen's maxima and their positions, or None where it has no such window."""
    arguments = arguments_of("max_pool", window, input.shape[2:])
    if arguments is None:
        return None
    pools = _ATEN.max_pool2d_with_indices.default, _ATEN.max_pool3d_with_indices.default
    return called(pools, input, *arguments)


def arguments_of(family: str, window: Window, sizes: Sizes) -> Any:
    """The window as the arguments of ATen's pools of a ``family``, or None where it has none like
    it. Rows are pooled as images of height 1.
    """
    arguments = counterparts.arguments_of(family, window, sizes)
    if arguments is None or window.rank > 1:
        return arguments
    sizes, strides, padding, dilations, *flags = arguments
    return [1, *sizes], [1, *strides], [0, *padding], [1, *dilations], *flags


def called(pools: Sequence[OpOverload], input: Tensor, *arguments: Any) -> Any:
    """The results of ATen's pool for two or for three dimensions; rows are pooled as images of
    height 1, as torch.nn does.
    """
    rank = input.dim() - 2
    results = pools[rank == 3](input.unsqueeze(-2) if rank == 1 else input, *arguments)
    if rank == 1:
        results = tensors.changed(results, lambda each: each.squeeze(-2))
    return tensors.laid_out_like(results, input)
