"""Layers of averages and of norms, for one to three dimensions.

tools/write_dimensions.py writes those for one and three: edit those for two.
"""

import torch

from torch_dmlpool.nn.bases import AdaptiveAvgPool, AvgPool, LPPool

__all__ = ["AvgPool1d", "AvgPool2d", "AvgPool3d"]
__all__ += ["AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d"]
__all__ += ["LPPool1d", "LPPool2d", "LPPool3d"]


class AvgPool1d(AvgPool, torch.nn.AvgPool1d, rank=1):
    """:class:`torch.nn.AvgPool1d` with any padding and with ``dilation``.

    Inputs are ``(N, C, W)`` or, unbatched, ``(C, W)``. ``layer(input, mask=mask)`` leaves out the
    elements where ``mask`` is False: a bool tensor with the input's dimensions, where sizes of 1
    broadcast, or with the spatial ones alone.

    Args:
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"`` or ``"causal"``. A padded element is 0 in the sum.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.
        count_include_pad: Whether padding counts in the divisor. It adds nothing to the sum.
        divisor_override: Divide every sum by this instead of the number of elements; not 0.
        dilation: Step from one element of a window to the next.

    As in torch.nn, padding counts by default, also that of ``padding="same"``: at the border
    averages are smaller. ``count_include_pad=False`` averages the elements alone, as TensorFlow
    does.

    >>> row = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 4)
    >>> AvgPool1d(2, stride=1, dilation=2)(row).flatten()
    tensor([2., 3.])
    """


class AvgPool2d(AvgPool, torch.nn.AvgPool2d, rank=2):
    """:class:`torch.nn.AvgPool2d` with any padding and with ``dilation``.

    Inputs are ``(N, C, H, W)`` or, unbatched, ``(C, H, W)``. ``layer(input, mask=mask)`` leaves out
    the elements where ``mask`` is False: a bool tensor with the input's dimensions, where sizes of
    1 broadcast, or with the spatial ones alone.

    Args:
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"``. A padded element is 0 in the sum.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.
        count_include_pad: Whether padding counts in the divisor. It adds nothing to the sum.
        divisor_override: Divide every sum by this instead of the number of elements; not 0.
        dilation: Step from one element of a window to the next.

    As in torch.nn, padding counts by default, also that of ``padding="same"``: at the border
    averages are smaller. ``count_include_pad=False`` averages the elements alone, as TensorFlow
    does.

    >>> row = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 4)
    >>> AvgPool2d((1, 2), stride=1, dilation=2)(row).flatten()
    tensor([2., 3.])
    """


class AvgPool3d(AvgPool, torch.nn.AvgPool3d, rank=3):
    """:class:`torch.nn.AvgPool3d` with any padding and with ``dilation``.

    Inputs are ``(N, C, D, H, W)`` or, unbatched, ``(C, D, H, W)``. ``layer(input, mask=mask)``
    leaves out the elements where ``mask`` is False: a bool tensor with the input's dimensions,
    where sizes of 1 broadcast, or with the spatial ones alone.

    Args:
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"``. A padded element is 0 in the sum.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.
        count_include_pad: Whether padding counts in the divisor. It adds nothing to the sum.
        divisor_override: Divide every sum by this instead of the number of elements; not 0.
        dilation: Step from one element of a window to the next.

    As in torch.nn, padding counts by default, also that of ``padding="same"``: at the border
    averages are smaller. ``count_include_pad=False`` averages the elements alone, as TensorFlow
    does.

    >>> row = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4)
    >>> AvgPool3d((1, 1, 2), stride=1, dilation=2)(row).flatten()
    tensor([2., 3.])
    """


class AdaptiveAvgPool1d(AdaptiveAvgPool, torch.nn.AdaptiveAvgPool1d, rank=1):
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


class AdaptiveAvgPool2d(AdaptiveAvgPool, torch.nn.AdaptiveAvgPool2d, rank=2):
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


class AdaptiveAvgPool3d(AdaptiveAvgPool, torch.nn.AdaptiveAvgPool3d, rank=3):
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


class LPPool1d(LPPool, torch.nn.LPPool1d, rank=1):
    """:class:`torch.nn.LPPool1d` with the norms of DirectML and ONNX.

    Inputs are ``(N, C, W)`` or, unbatched, ``(C, W)``. ``layer(input, mask=mask)`` leaves out the
    elements where ``mask`` is False: a bool tensor with the input's dimensions, where sizes of 1
    broadcast, or with the spatial ones alone.

    Args:
        norm_type: Exponent of the norm, at least 1, or ``math.inf``.
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"`` or ``"causal"``. A padded element is 0 in the sum.
        dilation: Step from one element of a window to the next.

    PyTorch sums ``x ** norm_type``, so for negative elements it differs unless ``norm_type`` is
    even. With ``ceil_mode`` it scales the sum of a window that reaches past the padded input up to
    that of a whole window; here it is not scaled.

    >>> LPPool1d(2, 2)(torch.tensor([3.0, -4.0]).view(1, 2)).flatten()
    tensor([5.])
    """


class LPPool2d(LPPool, torch.nn.LPPool2d, rank=2):
    """:class:`torch.nn.LPPool2d` with the norms of DirectML and ONNX.

    Inputs are ``(N, C, H, W)`` or, unbatched, ``(C, H, W)``. ``layer(input, mask=mask)`` leaves out
    the elements where ``mask`` is False: a bool tensor with the input's dimensions, where sizes of
    1 broadcast, or with the spatial ones alone.

    Args:
        norm_type: Exponent of the norm, at least 1, or ``math.inf``.
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"``. A padded element is 0 in the sum.
        dilation: Step from one element of a window to the next.

    PyTorch sums ``x ** norm_type``, so for negative elements it differs unless ``norm_type`` is
    even. With ``ceil_mode`` it scales the sum of a window that reaches past the padded input up to
    that of a whole window; here it is not scaled.

    >>> LPPool2d(2, (1, 2))(torch.tensor([3.0, -4.0]).view(1, 1, 2)).flatten()
    tensor([5.])
    """


class LPPool3d(LPPool, torch.nn.LPPool3d, rank=3):
    """:class:`torch.nn.LPPool3d` with the norms of DirectML and ONNX.

    Inputs are ``(N, C, D, H, W)`` or, unbatched, ``(C, D, H, W)``. ``layer(input, mask=mask)``
    leaves out the elements where ``mask`` is False: a bool tensor with the input's dimensions,
    where sizes of 1 broadcast, or with the spatial ones alone.

    Args:
        norm_type: Exponent of the norm, at least 1, or ``math.inf``.
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"``. A padded element is 0 in the sum.
        dilation: Step from one element of a window to the next.

    PyTorch sums ``x ** norm_type``, so for negative elements it differs unless ``norm_type`` is
    even. With ``ceil_mode`` it scales the sum of a window that reaches past the padded input up to
    that of a whole window; here it is not scaled.

    >>> LPPool3d(2, (1, 1, 2))(torch.tensor([3.0, -4.0]).view(1, 1, 1, 2)).flatten()
    tensor([5.])
    """
