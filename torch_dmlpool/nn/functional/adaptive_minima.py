"""adaptive_min_pool1d, adaptive_min_pool2d and adaptive_min_pool3d.

tools/write_dimensions.py writes those for one and three dimensions: edit those for two.
"""

from typing import Literal, overload

from torch import Tensor

from torch_dmlpool.keywords import pytorchs
from torch_dmlpool.nn import pools
from torch_dmlpool.window import OutputSize


@overload
def adaptive_min_pool1d(
    input: Tensor,
    output_size: OutputSize,
    return_indices: Literal[False] = False,
    *,
    mask: Tensor | None = None,
) -> Tensor: ...
@overload
def adaptive_min_pool1d(
    input: Tensor,
    output_size: OutputSize,
    *,
    return_indices: Literal[True],
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...


@pytorchs
def adaptive_min_pool1d(
    input: Tensor,
    output_size: OutputSize,
    return_indices: bool = False,
    *,
    mask: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Minima over ``output_size`` windows that cover the input evenly.

    Args:
        input: ``(N, C, W)``, or unbatched ``(C, W)``.
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        return_indices: Whether to return a pair: the minima, and their int64 positions in their
            channel's plane.
        mask: A bool tensor with the input's dimensions, where sizes of 1 broadcast, or with the
            spatial ones alone. Elements where it is False are left out, NaN too.

    >>> row = torch.tensor([1.0, 4.0, 2.0, 3.0, 5.0]).view(1, 5)
    >>> adaptive_min_pool1d(row, 2).flatten()
    tensor([1., 2.])
    """
    return pools.adaptive_min_pool(1, input, mask, output_size, return_indices)


@overload
def adaptive_min_pool2d(
    input: Tensor,
    output_size: OutputSize,
    return_indices: Literal[False] = False,
    *,
    mask: Tensor | None = None,
) -> Tensor: ...
@overload
def adaptive_min_pool2d(
    input: Tensor,
    output_size: OutputSize,
    *,
    return_indices: Literal[True],
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...


@pytorchs
def adaptive_min_pool2d(
    input: Tensor,
    output_size: OutputSize,
    return_indices: bool = False,
    *,
    mask: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Minima over ``output_size`` windows that cover the input evenly.

    Args:
        input: ``(N, C, H, W)``, or unbatched ``(C, H, W)``.
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        return_indices: Whether to return a pair: the minima, and their int64 positions in their
            channel's plane.
        mask: A bool tensor with the input's dimensions, where sizes of 1 broadcast, or with the
            spatial ones alone. Elements where it is False are left out, NaN too.

    >>> row = torch.tensor([1.0, 4.0, 2.0, 3.0, 5.0]).view(1, 1, 5)
    >>> adaptive_min_pool2d(row, (1, 2)).flatten()
    tensor([1., 2.])
    """
    return pools.adaptive_min_pool(2, input, mask, output_size, return_indices)


@overload
def adaptive_min_pool3d(
    input: Tensor,
    output_size: OutputSize,
    return_indices: Literal[False] = False,
    *,
    mask: Tensor | None = None,
) -> Tensor: ...
@overload
def adaptive_min_pool3d(
    input: Tensor,
    output_size: OutputSize,
    *,
    return_indices: Literal[True],
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...


@pytorchs
def adaptive_min_pool3d(
    input: Tensor,
    output_size: OutputSize,
    return_indices: bool = False,
    *,
    mask: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Minima over ``output_size`` windows that cover the input evenly.

    Args:
        input: ``(N, C, D, H, W)``, or unbatched ``(C, D, H, W)``.
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        return_indices: Whether to return a pair: the minima, and their int64 positions in their
            channel's plane.
        mask: A bool tensor with the input's dimensions, where sizes of 1 broadcast, or with the
            spatial ones alone. Elements where it is False are left out, NaN too.

    >>> row = torch.tensor([1.0, 4.0, 2.0, 3.0, 5.0]).view(1, 1, 1, 5)
    >>> adaptive_min_pool3d(row, (1, 1, 2)).flatten()
    tensor([1., 2.])
    """
    return pools.adaptive_min_pool(3, input, mask, output_size, return_indices)
