"""Average pooling between quantized layers, of int8 and uint8 or quantized tensors.

tools/write_dimensions.py writes those for one and three dimensions: edit those for two.
"""

from torch_dmlpool.nn import quantized_families
from torch_dmlpool.nn.layers.maxima import MaxPool1d, MaxPool2d, MaxPool3d


class AvgPool1d(quantized_families.AvgPool, rank=1):
    """:class:`torch.nn.AvgPool1d` of quantized integers, which represent ``scale * (integer -
    zero_point)``.

    Inputs are ``(N, C, W)`` or, unbatched, ``(C, W)``.

    Args:
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"`` or ``"causal"``. A padded element is 0 in the sum.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.
        count_include_pad: Whether padding counts in the divisor. It adds nothing to the sum.
        dilation: Step from one element of a window to the next.
        input_scale: Real numbers per step of a plain input: a number, or a tensor ``(C,)``.
        input_zero_point: The integer that represents 0 in a plain input, in the same forms.
        output_scale: The output's scale; the input's unless given.
        output_zero_point: The output's zero point; the input's unless given.
        output_dtype: int8 or uint8; the input's unless given.

    int8 and uint8 tensors are averaged by :func:`~torch_dmlpool.quantized_linear_average_pooling`,
    quantized tensors (quint8, qint8), which have ``input_scale`` and ``input_zero_point`` of their
    own, by :func:`~torch_dmlpool.quantized_average_pooling`. Scales and zero points are buffers, so
    a ``state_dict`` holds them. Loading may change a buffer from one value to one per channel.

    >>> scales = dict(input_scale=0.5, input_zero_point=10, output_scale=0.25, output_zero_point=3)
    >>> layer = AvgPool1d(2, **scales)
    >>> layer(torch.tensor([10, 12, 14, 18], dtype=torch.uint8).view(1, 4)).flatten()
    tensor([ 5, 15], dtype=torch.uint8)
    """


class AvgPool2d(quantized_families.AvgPool, rank=2):
    """:class:`torch.nn.AvgPool2d` of quantized integers, which represent ``scale * (integer -
    zero_point)``.

    Inputs are ``(N, C, H, W)`` or, unbatched, ``(C, H, W)``.

    Args:
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"``. A padded element is 0 in the sum.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.
        count_include_pad: Whether padding counts in the divisor. It adds nothing to the sum.
        dilation: Step from one element of a window to the next.
        input_scale: Real numbers per step of a plain input: a number, or a tensor ``(C,)``.
        input_zero_point: The integer that represents 0 in a plain input, in the same forms.
        output_scale: The output's scale; the input's unless given.
        output_zero_point: The output's zero point; the input's unless given.
        output_dtype: int8 or uint8; the input's unless given.

    int8 and uint8 tensors are averaged by :func:`~torch_dmlpool.quantized_linear_average_pooling`,
    quantized tensors (quint8, qint8), which have ``input_scale`` and ``input_zero_point`` of their
    own, by :func:`~torch_dmlpool.quantized_average_pooling`. Scales and zero points are buffers, so
    a ``state_dict`` holds them. Loading may change a buffer from one value to one per channel.

    >>> scales = dict(input_scale=0.5, input_zero_point=10, output_scale=0.25, output_zero_point=3)
    >>> layer = AvgPool2d((1, 2), **scales)
    >>> layer(torch.tensor([10, 12, 14, 18], dtype=torch.uint8).view(1, 1, 4)).flatten()
    tensor([ 5, 15], dtype=torch.uint8)
    """


class AvgPool3d(quantized_families.AvgPool, rank=3):
    """:class:`torch.nn.AvgPool3d` of quantized integers, which represent ``scale * (integer -
    zero_point)``.

    Inputs are ``(N, C, D, H, W)`` or, unbatched, ``(C, D, H, W)``.

    Args:
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"``. A padded element is 0 in the sum.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.
        count_include_pad: Whether padding counts in the divisor. It adds nothing to the sum.
        dilation: Step from one element of a window to the next.
        input_scale: Real numbers per step of a plain input: a number, or a tensor ``(C,)``.
        input_zero_point: The integer that represents 0 in a plain input, in the same forms.
        output_scale: The output's scale; the input's unless given.
        output_zero_point: The output's zero point; the input's unless given.
        output_dtype: int8 or uint8; the input's unless given.

    int8 and uint8 tensors are averaged by :func:`~torch_dmlpool.quantized_linear_average_pooling`,
    quantized tensors (quint8, qint8), which have ``input_scale`` and ``input_zero_point`` of their
    own, by :func:`~torch_dmlpool.quantized_average_pooling`. Scales and zero points are buffers, so
    a ``state_dict`` holds them. Loading may change a buffer from one value to one per channel.

    >>> scales = dict(input_scale=0.5, input_zero_point=10, output_scale=0.25, output_zero_point=3)
    >>> layer = AvgPool3d((1, 1, 2), **scales)
    >>> layer(torch.tensor([10, 12, 14, 18], dtype=torch.uint8).view(1, 1, 1, 4)).flatten()
    tensor([ 5, 15], dtype=torch.uint8)
    """


class AdaptiveAvgPool1d(quantized_families.AdaptiveAvgPool, rank=1):
    """:class:`torch.nn.AdaptiveAvgPool1d` of quantized integers, which represent ``scale * (integer
    - zero_point)``, or of quantized tensors.

    Inputs are ``(N, C, W)`` or, unbatched, ``(C, W)``.

    Args:
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        input_scale: Real numbers per step of a plain input: a number, or a tensor ``(C,)``.
        input_zero_point: The integer that represents 0 in a plain input, in the same forms.
        output_scale: The output's scale; the input's unless given.
        output_zero_point: The output's zero point; the input's unless given.
        output_dtype: int8 or uint8; the input's unless given.

    All windows must have one size: the input's sizes are multiples of ``output_size``, as they
    always are of 1. :class:`torch_dmlpool.nn.AdaptiveAvgPool1d` takes quantized tensors of any
    size.

    >>> layer = AdaptiveAvgPool1d(1, input_scale=0.5, output_scale=0.25)
    >>> layer(torch.tensor([10, 12, 14, 18], dtype=torch.uint8).view(1, 4)).flatten()
    tensor([27], dtype=torch.uint8)
    """


class AdaptiveAvgPool2d(quantized_families.AdaptiveAvgPool, rank=2):
    """:class:`torch.nn.AdaptiveAvgPool2d` of quantized integers, which represent ``scale * (integer
    - zero_point)``, or of quantized tensors.

    Inputs are ``(N, C, H, W)`` or, unbatched, ``(C, H, W)``.

    Args:
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        input_scale: Real numbers per step of a plain input: a number, or a tensor ``(C,)``.
        input_zero_point: The integer that represents 0 in a plain input, in the same forms.
        output_scale: The output's scale; the input's unless given.
        output_zero_point: The output's zero point; the input's unless given.
        output_dtype: int8 or uint8; the input's unless given.

    All windows must have one size: the input's sizes are multiples of ``output_size``, as they
    always are of 1. :class:`torch_dmlpool.nn.AdaptiveAvgPool2d` takes quantized tensors of any
    size.

    >>> layer = AdaptiveAvgPool2d(1, input_scale=0.5, output_scale=0.25)
    >>> layer(torch.tensor([10, 12, 14, 18], dtype=torch.uint8).view(1, 1, 4)).flatten()
    tensor([27], dtype=torch.uint8)
    """


class AdaptiveAvgPool3d(quantized_families.AdaptiveAvgPool, rank=3):
    """:class:`torch.nn.AdaptiveAvgPool3d` of quantized integers, which represent ``scale * (integer
    - zero_point)``, or of quantized tensors.

    Inputs are ``(N, C, D, H, W)`` or, unbatched, ``(C, D, H, W)``.

    Args:
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        input_scale: Real numbers per step of a plain input: a number, or a tensor ``(C,)``.
        input_zero_point: The integer that represents 0 in a plain input, in the same forms.
        output_scale: The output's scale; the input's unless given.
        output_zero_point: The output's zero point; the input's unless given.
        output_dtype: int8 or uint8; the input's unless given.

    All windows must have one size: the input's sizes are multiples of ``output_size``, as they
    always are of 1. :class:`torch_dmlpool.nn.AdaptiveAvgPool3d` takes quantized tensors of any
    size.

    >>> layer = AdaptiveAvgPool3d(1, input_scale=0.5, output_scale=0.25)
    >>> layer(torch.tensor([10, 12, 14, 18], dtype=torch.uint8).view(1, 1, 1, 4)).flatten()
    tensor([27], dtype=torch.uint8)
    """


__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
]
