"""Layers of minima, for one to three dimensions.

tools/write_dimensions.py writes those for one and three: edit those for two.
"""

from torch_dmlpool._private import _AdaptiveMaxPoolNd, _MaxPoolNd
from torch_dmlpool.nn.bases import AdaptiveMinPool, Flag, MinPool

__all__ = ["MinPool1d", "MinPool2d", "MinPool3d"]
__all__ += ["AdaptiveMinPool1d", "AdaptiveMinPool2d", "AdaptiveMinPool3d"]


class MinPool1d(MinPool[Flag], _MaxPoolNd, rank=1):
    """Minima over windows, with the arguments of :class:`MaxPool1d`; torch.nn has no such layer.

    Inputs are ``(N, C, W)`` or, unbatched, ``(C, W)``. ``layer(input, mask=mask)`` leaves out the
    elements where ``mask`` is False: a bool tensor with the input's dimensions, where sizes of 1
    broadcast, or with the spatial ones alone.

    Args:
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"`` or ``"causal"``. Padding is never a minimum.
        dilation: Step from one element of a window to the next.
        return_indices: Whether to return a pair: minima, and int64 positions in the channel's
            plane.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.

    >>> layer = MinPool1d(3, stride=1, padding="same")
    >>> layer(torch.tensor([1.0, 4.0, 2.0, 3.0]).view(1, 4)).flatten()
    tensor([1., 1., 2., 2.])
    """


class MinPool2d(MinPool[Flag], _MaxPoolNd, rank=2):
    """Minima over windows, with the arguments of :class:`MaxPool2d`; torch.nn has no such layer.

    Inputs are ``(N, C, H, W)`` or, unbatched, ``(C, H, W)``. ``layer(input, mask=mask)`` leaves out
    the elements where ``mask`` is False: a bool tensor with the input's dimensions, where sizes of
    1 broadcast, or with the spatial ones alone.

    Args:
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"``. Padding is never a minimum.
        dilation: Step from one element of a window to the next.
        return_indices: Whether to return a pair: minima, and int64 positions in the channel's
            plane.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.

    >>> layer = MinPool2d((1, 3), stride=1, padding="same")
    >>> layer(torch.tensor([1.0, 4.0, 2.0, 3.0]).view(1, 1, 4)).flatten()
    tensor([1., 1., 2., 2.])
    """


class MinPool3d(MinPool[Flag], _MaxPoolNd, rank=3):
    """Minima over windows, with the arguments of :class:`MaxPool3d`; torch.nn has no such layer.

    Inputs are ``(N, C, D, H, W)`` or, unbatched, ``(C, D, H, W)``. ``layer(input, mask=mask)``
    leaves out the elements where ``mask`` is False: a bool tensor with the input's dimensions,
    where sizes of 1 broadcast, or with the spatial ones alone.

    Args:
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"``. Padding is never a minimum.
        dilation: Step from one element of a window to the next.
        return_indices: Whether to return a pair: minima, and int64 positions in the channel's
            plane.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.

    >>> layer = MinPool3d((1, 1, 3), stride=1, padding="same")
    >>> layer(torch.tensor([1.0, 4.0, 2.0, 3.0]).view(1, 1, 1, 4)).flatten()
    tensor([1., 1., 2., 2.])
    """


class AdaptiveMinPool1d(AdaptiveMinPool[Flag], _AdaptiveMaxPoolNd, rank=1):
    """Minima over ``output_size`` windows that cover the input evenly; torch.nn has no such layer.

    Inputs are ``(N, C, W)`` or, unbatched, ``(C, W)``. ``layer(input, mask=mask)`` leaves out the
    elements where ``mask`` is False: a bool tensor with the input's dimensions, where sizes of 1
    broadcast, or with the spatial ones alone.

    Args:
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        return_indices: Whether to return a pair: minima, and int64 positions in the channel's
            plane.

    >>> row = torch.tensor([1.0, 2.0, 0.0]).view(1, 3)
    >>> AdaptiveMinPool1d(2)(row).flatten()
    tensor([1., 0.])
    """


class AdaptiveMinPool2d(AdaptiveMinPool[Flag], _AdaptiveMaxPoolNd, rank=2):
    """Minima over ``output_size`` windows that cover the input evenly; torch.nn has no such layer.

    Inputs are ``(N, C, H, W)`` or, unbatched, ``(C, H, W)``. ``layer(input, mask=mask)`` leaves out
    the elements where ``mask`` is False: a bool tensor with the input's dimensions, where sizes of
    1 broadcast, or with the spatial ones alone.

    Args:
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        return_indices: Whether to return a pair: minima, and int64 positions in the channel's
            plane.

    >>> row = torch.tensor([1.0, 2.0, 0.0]).view(1, 1, 3)
    >>> AdaptiveMinPool2d((1, 2))(row).flatten()
    tensor([1., 0.])
    """


class AdaptiveMinPool3d(AdaptiveMinPool[Flag], _AdaptiveMaxPoolNd, rank=3):
    """Minima over ``output_size`` windows that cover the input evenly; torch.nn has no such layer.

    Inputs are ``(N, C, D, H, W)`` or, unbatched, ``(C, D, H, W)``. ``layer(input, mask=mask)``
    leaves out the elements where ``mask`` is False: a bool tensor with the input's dimensions,
    where sizes of 1 broadcast, or with the spatial ones alone.

    Args:
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        return_indices: Whether to return a pair: minima, and int64 positions in the channel's
            plane.

    >>> row = torch.tensor([1.0, 2.0, 0.0]).view(1, 1, 1, 3)
    >>> AdaptiveMinPool3d((1, 1, 2))(row).flatten()
    tensor([1., 0.])
    """
