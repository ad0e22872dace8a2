"""Layers that unpool, for one to three dimensions.

tools/write_dimensions.py writes those for one and three: edit those for two.
"""

import torch

from torch_dmlpool.nn.bases import MaxUnpool

__all__ = ["MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d"]


class MaxUnpool1d(MaxUnpool, torch.nn.MaxUnpool1d, rank=1):
    """:class:`torch.nn.MaxUnpool1d`: every element at its index, zeros elsewhere.

    Inputs are ``(N, C, W)`` or, unbatched, ``(C, W)``.

    Args:
        kernel_size: Size of the window that pooled.
        stride: Its stride; ``kernel_size`` unless given.
        padding: Its padding, in any form that max pooling takes.

    Where several elements have the same index, the last of them in row-major order is written, and
    it alone gets a gradient. PyTorch writes any of them on a GPU and gives the gradient to all.
    Index -1 is skipped.

    >>> values, indices = torch.tensor([4.0, 3.0]), torch.tensor([1, 2])
    >>> MaxUnpool1d(2)(values.view(1, 2), indices.view(1, 2)).flatten()
    tensor([0., 4., 3., 0.])
    """


class MaxUnpool2d(MaxUnpool, torch.nn.MaxUnpool2d, rank=2):
    """:class:`torch.nn.MaxUnpool2d`: every element at its index, zeros elsewhere.

    Inputs are ``(N, C, H, W)`` or, unbatched, ``(C, H, W)``.

    Args:
        kernel_size: Size of the window that pooled.
        stride: Its stride; ``kernel_size`` unless given.
        padding: Its padding, in any form that max pooling takes.

    Where several elements have the same index, the last of them in row-major order is written, and
    it alone gets a gradient. PyTorch writes any of them on a GPU and gives the gradient to all.
    Index -1 is skipped.

    >>> values, indices = torch.tensor([4.0, 3.0]), torch.tensor([1, 2])
    >>> MaxUnpool2d((1, 2))(values.view(1, 1, 2), indices.view(1, 1, 2)).flatten()
    tensor([0., 4., 3., 0.])
    """


class MaxUnpool3d(MaxUnpool, torch.nn.MaxUnpool3d, rank=3):
    """:class:`torch.nn.MaxUnpool3d`: every element at its index, zeros elsewhere.

    Inputs are ``(N, C, D, H, W)`` or, unbatched, ``(C, D, H, W)``.

    Args:
        kernel_size: Size of the window that pooled.
        stride: Its stride; ``kernel_size`` unless given.
        padding: Its padding, in any form that max pooling takes.

    Where several elements have the same index, the last of them in row-major order is written, and
    it alone gets a gradient. PyTorch writes any of them on a GPU and gives the gradient to all.
    Index -1 is skipped.

    >>> values, indices = torch.tensor([4.0, 3.0]), torch.tensor([1, 2])
    >>> MaxUnpool3d((1, 1, 2))(values.view(1, 1, 1, 2), indices.view(1, 1, 1, 2)).flatten()
    tensor([0., 4., 3., 0.])
    """
