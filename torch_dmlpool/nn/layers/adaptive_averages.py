"""AdaptiveAvgPool1d, AdaptiveAvgPool2d and AdaptiveAvgPool3d.

tools/write_dimensions.py writes those for one and three dimensions: edit those for two.
"""

import torch

from torch_dmlpool.nn import families


class AdaptiveAvgPool1d(families.AdaptiveAvgPool, torch.nn.AdaptiveAvgPool1d, rank=1):
    """:class:`torch.nn.AdaptiveAvgPool1d`: averages over ``output_size`` windows that cover the
    input evenly; 1 is global pooling.

    Inputs are ``(N, C, W)`` or, unbatched, ``(C, W)``. ``layer(input, mask=mask)`` leaves out the
    elements where ``mask`` is False: a bool tensor with the input's dimensions, where sizes of 1
    broadcast, or with the spatial ones alone.

    Args:
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.

    >>> row = torch.tensor([1.0, 2.0, 3.0]).view(1, 3)
    >>> AdaptiveAvgPool1d(2)(row).flatten()
    tensor([1.5000, 2.5000])
    """


class AdaptiveAvgPool2d(families.AdaptiveAvgPool, torch.nn.AdaptiveAvgPool2d, rank=2):
    """:class:`torch.nn.AdaptiveAvgPool2d`: averages over ``output_size`` windows that cover the
    input evenly; 1 is global pooling.

    Inputs are ``(N, C, H, W)`` or, unbatched, ``(C, H, W)``. ``layer(input, mask=mask)`` leaves out
    the elements where ``mask`` is False: a bool tensor with the input's dimensions, where sizes of
    1 broadcast, or with the spatial ones alone.

    Args:
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.

    >>> row = torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 3)
    >>> AdaptiveAvgPool2d((1, 2))(row).flatten()
    tensor([1.5000, 2.5000])
    """


class AdaptiveAvgPool3d(families.AdaptiveAvgPool, torch.nn.AdaptiveAvgPool3d, rank=3):
    """:class:`torch.nn.AdaptiveAvgPool3d`: averages over ``output_size`` windows that cover the
    input evenly; 1 is global pooling.

    Inputs are ``(N, C, D, H, W)`` or, unbatched, ``(C, D, H, W)``. ``layer(input, mask=mask)``
    leaves out the elements where ``mask`` is False: a bool tensor with the input's dimensions,
    where sizes of 1 broadcast, or with the spatial ones alone.

    Args:
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.

    >>> row = torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 1, 3)
    >>> AdaptiveAvgPool3d((1, 1, 2))(row).flatten()
    tensor([1.5000, 2.5000])
    """
