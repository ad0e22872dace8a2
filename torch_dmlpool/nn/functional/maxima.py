"""Maxima for one to three dimensions.

tools/write_dimensions.py writes those for one and three: edit those for two.
"""

from torch import Tensor

from torch_dmlpool import overloads
from torch_dmlpool.keywords import with_pytorch_names
from torch_dmlpool.nn.pools import (
    adaptive_max_pool,
    adaptive_max_pool_with_indices,
    max_pool,
    max_pool_with_indices,
)
from torch_dmlpool.tensors import Mask, Pair, Pooled
from torch_dmlpool.window import Integers, OutputSize, Padding, Stride


@overloads.pool
def max_pool1d(
    input: Tensor,
    kernel_size: Integers,
    stride: Stride = None,
    padding: Padding = 0,
    dilation: Integers = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    mask: Mask = None,
) -> Pooled:
    """Maxima over windows.

    Args:
        input: ``(N, C, W)``, or unbatched ``(C, W)``.
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"`` or ``"causal"``. Padding is never a maximum.
        dilation: Step from one element of a window to the next.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.
        return_indices: Whether to return a pair: maxima, and int64 positions in the channel's
            plane.
        mask: A bool tensor with the input's dimensions, where sizes of 1 broadcast, or with the
            spatial ones alone. Elements where it is False are left out, NaN too.

    >>> row = torch.tensor([1.0, 3.0, 2.0, 5.0]).view(1, 4)
    >>> values, indices = max_pool1d(row, 2, stride=1, return_indices=True)
    >>> values.flatten(), indices.flatten()
    (tensor([3., 3., 5.]), tensor([1, 1, 3]))
    """
    return max_pool.call(
        1, input, mask, kernel_size, stride, padding, dilation, ceil_mode, return_indices
    )


@overloads.pool
def max_pool2d(
    input: Tensor,
    kernel_size: Integers,
    stride: Stride = None,
    padding: Padding = 0,
    dilation: Integers = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    mask: Mask = None,
) -> Pooled:
    """Maxima over windows.

    Args:
        input: ``(N, C, H, W)``, or unbatched ``(C, H, W)``.
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"``. Padding is never a maximum.
        dilation: Step from one element of a window to the next.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.
        return_indices: Whether to return a pair: maxima, and int64 positions in the channel's
            plane.
        mask: A bool tensor with the input's dimensions, where sizes of 1 broadcast, or with the
            spatial ones alone. Elements where it is False are left out, NaN too.

    >>> row = torch.tensor([1.0, 3.0, 2.0, 5.0]).view(1, 1, 4)
    >>> values, indices = max_pool2d(row, (1, 2), stride=1, return_indices=True)
    >>> values.flatten(), indices.flatten()
    (tensor([3., 3., 5.]), tensor([1, 1, 3]))
    """
    return max_pool.call(
        2, input, mask, kernel_size, stride, padding, dilation, ceil_mode, return_indices
    )


@overloads.pool
def max_pool3d(
    input: Tensor,
    kernel_size: Integers,
    stride: Stride = None,
    padding: Padding = 0,
    dilation: Integers = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    mask: Mask = None,
) -> Pooled:
    """Maxima over windows.

    Args:
        input: ``(N, C, D, H, W)``, or unbatched ``(C, D, H, W)``.
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"``. Padding is never a maximum.
        dilation: Step from one element of a window to the next.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.
        return_indices: Whether to return a pair: maxima, and int64 positions in the channel's
            plane.
        mask: A bool tensor with the input's dimensions, where sizes of 1 broadcast, or with the
            spatial ones alone. Elements where it is False are left out, NaN too.

    >>> row = torch.tensor([1.0, 3.0, 2.0, 5.0]).view(1, 1, 1, 4)
    >>> values, indices = max_pool3d(row, (1, 1, 2), stride=1, return_indices=True)
    >>> values.flatten(), indices.flatten()
    (tensor([3., 3., 5.]), tensor([1, 1, 3]))
    """
    return max_pool.call(
        3, input, mask, kernel_size, stride, padding, dilation, ceil_mode, return_indices
    )


@with_pytorch_names
def max_pool1d_with_indices(
    input: Tensor,
    kernel_size: Integers,
    stride: Stride = None,
    padding: Padding = 0,
    dilation: Integers = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    mask: Mask = None,
) -> Pair:
    """:func:`max_pool1d` with ``return_indices=True``, whatever is given for it."""
    return max_pool_with_indices.call(
        1, input, mask, kernel_size, stride, padding, dilation, ceil_mode, True
    )


@with_pytorch_names
def max_pool2d_with_indices(
    input: Tensor,
    kernel_size: Integers,
    stride: Stride = None,
    padding: Padding = 0,
    dilation: Integers = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    mask: Mask = None,
) -> Pair:
    """:func:`max_pool2d` with ``return_indices=True``, whatever is given for it."""
    return max_pool_with_indices.call(
        2, input, mask, kernel_size, stride, padding, dilation, ceil_mode, True
    )


@with_pytorch_names
def max_pool3d_with_indices(
    input: Tensor,
    kernel_size: Integers,
    stride: Stride = None,
    padding: Padding = 0,
    dilation: Integers = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    mask: Mask = None,
) -> Pair:
    """:func:`max_pool3d` with ``return_indices=True``, whatever is given for it."""
    return max_pool_with_indices.call(
        3, input, mask, kernel_size, stride, padding, dilation, ceil_mode, True
    )


@overloads.adaptive_pool
def adaptive_max_pool1d(
    input: Tensor, output_size: OutputSize, return_indices: bool = False, *, mask: Mask = None
) -> Pooled:
    """Maxima over ``output_size`` windows that cover the input evenly.

    Args:
        input: ``(N, C, W)``, or unbatched ``(C, W)``.
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        return_indices: Whether to return a pair: maxima, and int64 positions in the channel's
            plane.
        mask: A bool tensor with the input's dimensions, where sizes of 1 broadcast, or with the
            spatial ones alone. Elements where it is False are left out, NaN too.

    >>> row = torch.tensor([1.0, 4.0, 2.0, 3.0, 5.0]).view(1, 5)
    >>> adaptive_max_pool1d(row, 2).flatten()
    tensor([4., 5.])
    """
    return adaptive_max_pool.call(1, input, mask, output_size, return_indices)


@overloads.adaptive_pool
def adaptive_max_pool2d(
    input: Tensor, output_size: OutputSize, return_indices: bool = False, *, mask: Mask = None
) -> Pooled:
    """Maxima over ``output_size`` windows that cover the input evenly.

    Args:
        input: ``(N, C, H, W)``, or unbatched ``(C, H, W)``.
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        return_indices: Whether to return a pair: maxima, and int64 positions in the channel's
            plane.
        mask: A bool tensor with the input's dimensions, where sizes of 1 broadcast, or with the
            spatial ones alone. Elements where it is False are left out, NaN too.

    >>> row = torch.tensor([1.0, 4.0, 2.0, 3.0, 5.0]).view(1, 1, 5)
    >>> adaptive_max_pool2d(row, (1, 2)).flatten()
    tensor([4., 5.])
    """
    return adaptive_max_pool.call(2, input, mask, output_size, return_indices)


@overloads.adaptive_pool
def adaptive_max_pool3d(
    input: Tensor, output_size: OutputSize, return_indices: bool = False, *, mask: Mask = None
) -> Pooled:
    """Maxima over ``output_size`` windows that cover the input evenly.

    Args:
        input: ``(N, C, D, H, W)``, or unbatched ``(C, D, H, W)``.
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        return_indices: Whether to return a pair: maxima, and int64 positions in the channel's
            plane.
        mask: A bool tensor with the input's dimensions, where sizes of 1 broadcast, or with the
            spatial ones alone. Elements where it is False are left out, NaN too.

    >>> row = torch.tensor([1.0, 4.0, 2.0, 3.0, 5.0]).view(1, 1, 1, 5)
    >>> adaptive_max_pool3d(row, (1, 1, 2)).flatten()
    tensor([4., 5.])
    """
    return adaptive_max_pool.call(3, input, mask, output_size, return_indices)


@with_pytorch_names
def adaptive_max_pool1d_with_indices(
    input: Tensor, output_size: OutputSize, return_indices: bool = False, *, mask: Mask = None
) -> Pair:
    """:func:`adaptive_max_pool1d` with ``return_indices=True``, whatever is given for it."""
    return adaptive_max_pool_with_indices.call(1, input, mask, output_size, True)


@with_pytorch_names
def adaptive_max_pool2d_with_indices(
    input: Tensor, output_size: OutputSize, return_indices: bool = False, *, mask: Mask = None
) -> Pair:
    """:func:`adaptive_max_pool2d` with ``return_indices=True``, whatever is given for it."""
    return adaptive_max_pool_with_indices.call(2, input, mask, output_size, True)


@with_pytorch_names
def adaptive_max_pool3d_with_indices(
    input: Tensor, output_size: OutputSize, return_indices: bool = False, *, mask: Mask = None
) -> Pair:
    """:func:`adaptive_max_pool3d` with ``return_indices=True``, whatever is given for it."""
    return adaptive_max_pool_with_indices.call(3, input, mask, output_size, True)
