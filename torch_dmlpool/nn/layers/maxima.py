"""Layers of maxima for one to three dimensions.

tools/write_dimensions.py writes those for one and three: edit those for two.
"""

import torch

from torch_dmlpool.nn.bases import AdaptiveMaxPool, Flag, MaxPool

__all__ = ["MaxPool1d", "MaxPool2d", "MaxPool3d"]
__all__ += ["AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d"]


class MaxPool1d(MaxPool[Flag], torch.nn.MaxPool1d, rank=1):
    """:class:`torch.nn.MaxPool1d` with any padding.

    Inputs are ``(N, C, W)`` or, unbatched, ``(C, W)``. ``layer(input, mask=mask)`` leaves out the
    elements where ``mask`` is False: a bool tensor with the input's dimensions, where sizes of 1
    broadcast, or with the spatial ones alone.

    Args:
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"`` or ``"causal"``. Padding is never a maximum.
        dilation: Step from one element of a window to the next.
        return_indices: Whether to return a pair: maxima, and int64 positions in the channel's
            plane.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.

    >>> layer = MaxPool1d(3, stride=1, padding="same")
    >>> layer(torch.tensor([1.0, 4.0, 2.0, 3.0]).view(1, 4)).flatten()
    tensor([4., 4., 4., 3.])
    """


class MaxPool2d(MaxPool[Flag], torch.nn.MaxPool2d, rank=2):
    """:class:`torch.nn.MaxPool2d` with any padding.

    Inputs are ``(N, C, H, W)`` or, unbatched, ``(C, H, W)``. ``layer(input, mask=mask)`` leaves out
    the elements where ``mask`` is False: a bool tensor with the input's dimensions, where sizes of
    1 broadcast, or with the spatial ones alone.

    Args:
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"``. Padding is never a maximum.
        dilation: Step from one element of a window to the next.
        return_indices: Whether to return a pair: maxima, and int64 positions in the channel's
            plane.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.

    >>> layer = MaxPool2d((1, 3), stride=1, padding="same")
    >>> layer(torch.tensor([1.0, 4.0, 2.0, 3.0]).view(1, 1, 4)).flatten()
    tensor([4., 4., 4., 3.])
    """


class MaxPool3d(MaxPool[Flag], torch.nn.MaxPool3d, rank=3):
    """:class:`torch.nn.MaxPool3d` with any padding.

    Inputs are ``(N, C, D, H, W)`` or, unbatched, ``(C, D, H, W)``. ``layer(input, mask=mask)``
    leaves out the elements where ``mask`` is False: a bool tensor with the input's dimensions,
    where sizes of 1 broadcast, or with the spatial ones alone.

    Args:
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"``. Padding is never a maximum.
        dilation: Step from one element of a window to the next.
        return_indices: Whether to return a pair: maxima, and int64 positions in the channel's
            plane.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.

    >>> layer = MaxPool3d((1, 1, 3), stride=1, padding="same")
    >>> layer(torch.tensor([1.0, 4.0, 2.0, 3.0]).view(1, 1, 1, 4)).flatten()
    tensor([4., 4., 4., 3.])
    """


class AdaptiveMaxPool1d(AdaptiveMaxPool[Flag], torch.nn.AdaptiveMaxPool1d, rank=1):
    """:class:`torch.nn.AdaptiveMaxPool1d`: maxima over ``output_size`` windows that cover the input
    evenly.

    Inputs are ``(N, C, W)`` or, unbatched, ``(C, W)``. ``layer(input, mask=mask)`` leaves out the
    elements where ``mask`` is False: a bool tensor with the input's dimensions, where sizes of 1
    broadcast, or with the spatial ones alone.

    Args:
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        return_indices: Whether to return a pair: maxima, and int64 positions in the channel's
            plane.

    >>> row = torch.tensor([1.0, 2.0, 0.0]).view(1, 3)
    >>> AdaptiveMaxPool1d(2)(row).flatten()
    tensor([2., 2.])
    """


class AdaptiveMaxPool2d(AdaptiveMaxPool[Flag], torch.nn.AdaptiveMaxPool2d, rank=2):
    """:class:`torch.nn.AdaptiveMaxPool2d`: maxima over ``output_size`` windows that cover the input
    evenly.

    Inputs are ``(N, C, H, W)`` or, unbatched, ``(C, H, W)``. ``layer(input, mask=mask)`` leaves out
    the elements where ``mask`` is False: a bool tensor with the input's dimensions, where sizes of
    1 broadcast, or with the spatial ones alone.

    Args:
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        return_indices: Whether to return a pair: maxima, and int64 positions in the channel's
            plane.

    >>> row = torch.tensor([1.0, 2.0, 0.0]).view(1, 1, 3)
    >>> AdaptiveMaxPool2d((1, 2))(row).flatten()
    tensor([2., 2.])
    """


class AdaptiveMaxPool3d(AdaptiveMaxPool[Flag], torch.nn.AdaptiveMaxPool3d, rank=3):
    """:class:`torch.nn.AdaptiveMaxPool3d`: maxima over ``output_size`` windows that cover the input
    evenly.

    Inputs are ``(N, C, D, H, W)`` or, unbatched, ``(C, D, H, W)``. ``layer(input, mask=mask)``
    leaves out the elements where ``mask`` is False: a bool tensor with the input's dimensions,
    where sizes of 1 broadcast, or with the spatial ones alone.

    Args:
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        return_indices: Whether to return a pair: maxima, and int64 positions in the channel's
            plane.

    >>> row = torch.tensor([1.0, 2.0, 0.0]).view(1, 1, 1, 3)
    >>> AdaptiveMaxPool3d((1, 1, 2))(row).flatten()
    tensor([2., 2.])
    """
