"""LPPool1d, LPPool2d and LPPool3d.

tools/write_dimensions.py writes those for one and three dimensions: edit those for two.
"""

import torch

from torch_dmlpool.nn import families


class LPPool1d(families.LPPool, torch.nn.LPPool1d, rank=1):
    """:class:`torch.nn.LPPool1d` with the norms of DirectML and ONNX.

    Inputs are ``(N, C, W)`` or, unbatched, ``(C, W)``. ``layer(input, mask=mask)`` leaves out the
    elements where ``mask`` is False: a bool tensor with the input's dimensions, where sizes of 1
    broadcast, or with the spatial ones alone.

    Args:
        norm_type: Exponent of the norm, at least 1, or ``math.inf``.
        kernel_size: Size of the window, at least 1: an int, or one per dimension, as for stride and
            dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        ceil_mode: Whether a last window may reach past the padded input, if it starts inside the
            input or the padding before it.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"`` or ``"causal"``. A padded element is 0 in the sum.
        dilation: Step from one element of a window to the next.

    PyTorch sums ``x ** norm_type``, so for negative elements it differs unless ``norm_type`` is
    even. With ``ceil_mode`` it scales the sum of a window that reaches past the padded input up to
    that of a whole window; here it is not scaled.

    >>> LPPool1d(2, 2)(torch.tensor([3.0, -4.0]).view(1, 2)).flatten()
    tensor([5.])
    """


class LPPool2d(families.LPPool, torch.nn.LPPool2d, rank=2):
    """:class:`torch.nn.LPPool2d` with the norms of DirectML and ONNX.

    Inputs are ``(N, C, H, W)`` or, unbatched, ``(C, H, W)``. ``layer(input, mask=mask)`` leaves out
    the elements where ``mask`` is False: a bool tensor with the input's dimensions, where sizes of
    1 broadcast, or with the spatial ones alone.

    Args:
        norm_type: Exponent of the norm, at least 1, or ``math.inf``.
        kernel_size: Size of the window, at least 1: an int, or one per dimension, as for stride and
            dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        ceil_mode: Whether a last window may reach past the padded input, if it starts inside the
            input or the padding before it.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"``. A padded element is 0 in the sum.
        dilation: Step from one element of a window to the next.

    PyTorch sums ``x ** norm_type``, so for negative elements it differs unless ``norm_type`` is
    even. With ``ceil_mode`` it scales the sum of a window that reaches past the padded input up to
    that of a whole window; here it is not scaled.

    >>> LPPool2d(2, (1, 2))(torch.tensor([3.0, -4.0]).view(1, 1, 2)).flatten()
    tensor([5.])
    """


class LPPool3d(families.LPPool, torch.nn.LPPool3d, rank=3):
    """:class:`torch.nn.LPPool3d` with the norms of DirectML and ONNX.

    Inputs are ``(N, C, D, H, W)`` or, unbatched, ``(C, D, H, W)``. ``layer(input, mask=mask)``
    leaves out the elements where ``mask`` is False: a bool tensor with the input's dimensions,
    where sizes of 1 broadcast, or with the spatial ones alone.

    Args:
        norm_type: Exponent of the norm, at least 1, or ``math.inf``.
        kernel_size: Size of the window, at least 1: an int, or one per dimension, as for stride and
            dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        ceil_mode: Whether a last window may reach past the padded input, if it starts inside the
            input or the padding before it.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"``. A padded element is 0 in the sum.
        dilation: Step from one element of a window to the next.

    PyTorch sums ``x ** norm_type``, so for negative elements it differs unless ``norm_type`` is
    even. With ``ceil_mode`` it scales the sum of a window that reaches past the padded input up to
    that of a whole window; here it is not scaled.

    >>> LPPool3d(2, (1, 1, 2))(torch.tensor([3.0, -4.0]).view(1, 1, 1, 2)).flatten()
    tensor([5.])
    """
