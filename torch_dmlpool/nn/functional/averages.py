"""Averages and norms, for one to three dimensions.

tools/write_dimensions.py writes those for one and three: edit those for two.
"""

from torch import Tensor

from torch_dmlpool.keywords import with_pytorch_names
from torch_dmlpool.nn.pools import adaptive_avg_pool, avg_pool, lp_pool
from torch_dmlpool.tensors import Mask
from torch_dmlpool.window import Divisor, Integers, OutputSize, Padding, Stride


@with_pytorch_names
def avg_pool1d(
    input: Tensor,
    kernel_size: Integers,
    stride: Stride = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Divisor = None,
    *,
    dilation: Integers = 1,
    mask: Mask = None,
) -> Tensor:
    """Averages over windows.

    Args:
        input: ``(N, C, W)``, or unbatched ``(C, W)``.
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"`` or ``"causal"``. A padded element is 0 in the sum.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.
        count_include_pad: Whether padding counts in the divisor. It adds nothing to the sum.
        divisor_override: Divide every sum by this instead of the number of elements; not 0.
        dilation: Step from one element of a window to the next.
        mask: A bool tensor with the input's dimensions, where sizes of 1 broadcast, or with the
            spatial ones alone. Elements where it is False are left out, NaN too.

    As in torch.nn, padding counts by default, also that of ``padding="same"``: at the border
    averages are smaller. ``count_include_pad=False`` averages the elements alone, as TensorFlow
    does.

    >>> row = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).view(1, 5)
    >>> avg_pool1d(row, 2, stride=1, dilation=2).flatten()
    tensor([2., 3., 4.])
    """
    return avg_pool.call(
        1,
        input,
        mask,
        kernel_size,
        stride,
        padding,
        ceil_mode,
        count_include_pad,
        divisor_override,
        dilation,
    )


@with_pytorch_names
def avg_pool2d(
    input: Tensor,
    kernel_size: Integers,
    stride: Stride = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Divisor = None,
    *,
    dilation: Integers = 1,
    mask: Mask = None,
) -> Tensor:
    """Averages over windows.

    Args:
        input: ``(N, C, H, W)``, or unbatched ``(C, H, W)``.
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"``. A padded element is 0 in the sum.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.
        count_include_pad: Whether padding counts in the divisor. It adds nothing to the sum.
        divisor_override: Divide every sum by this instead of the number of elements; not 0.
        dilation: Step from one element of a window to the next.
        mask: A bool tensor with the input's dimensions, where sizes of 1 broadcast, or with the
            spatial ones alone. Elements where it is False are left out, NaN too.

    As in torch.nn, padding counts by default, also that of ``padding="same"``: at the border
    averages are smaller. ``count_include_pad=False`` averages the elements alone, as TensorFlow
    does.

    >>> row = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).view(1, 1, 5)
    >>> avg_pool2d(row, (1, 2), stride=1, dilation=2).flatten()
    tensor([2., 3., 4.])
    """
    return avg_pool.call(
        2,
        input,
        mask,
        kernel_size,
        stride,
        padding,
        ceil_mode,
        count_include_pad,
        divisor_override,
        dilation,
    )


@with_pytorch_names
def avg_pool3d(
    input: Tensor,
    kernel_size: Integers,
    stride: Stride = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Divisor = None,
    *,
    dilation: Integers = 1,
    mask: Mask = None,
) -> Tensor:
    """Averages over windows.

    Args:
        input: ``(N, C, D, H, W)``, or unbatched ``(C, D, H, W)``.
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"``. A padded element is 0 in the sum.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.
        count_include_pad: Whether padding counts in the divisor. It adds nothing to the sum.
        divisor_override: Divide every sum by this instead of the number of elements; not 0.
        dilation: Step from one element of a window to the next.
        mask: A bool tensor with the input's dimensions, where sizes of 1 broadcast, or with the
            spatial ones alone. Elements where it is False are left out, NaN too.

    As in torch.nn, padding counts by default, also that of ``padding="same"``: at the border
    averages are smaller. ``count_include_pad=False`` averages the elements alone, as TensorFlow
    does.

    >>> row = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).view(1, 1, 1, 5)
    >>> avg_pool3d(row, (1, 1, 2), stride=1, dilation=2).flatten()
    tensor([2., 3., 4.])
    """
    return avg_pool.call(
        3,
        input,
        mask,
        kernel_size,
        stride,
        padding,
        ceil_mode,
        count_include_pad,
        divisor_override,
        dilation,
    )


@with_pytorch_names
def adaptive_avg_pool1d(input: Tensor, output_size: OutputSize, *, mask: Mask = None) -> Tensor:
    """Averages over ``output_size`` windows that cover the input evenly; 1 is global pooling.

    Args:
        input: ``(N, C, W)``, or unbatched ``(C, W)``.
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        mask: A bool tensor with the input's dimensions, where sizes of 1 broadcast, or with the
            spatial ones alone. Elements where it is False are left out, NaN too.

    >>> row = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).view(1, 5)
    >>> adaptive_avg_pool1d(row, 2).flatten()
    tensor([2., 4.])
    """
    return adaptive_avg_pool.call(1, input, mask, output_size)


@with_pytorch_names
def adaptive_avg_pool2d(input: Tensor, output_size: OutputSize, *, mask: Mask = None) -> Tensor:
    """Averages over ``output_size`` windows that cover the input evenly; 1 is global pooling.

    Args:
        input: ``(N, C, H, W)``, or unbatched ``(C, H, W)``.
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        mask: A bool tensor with the input's dimensions, where sizes of 1 broadcast, or with the
            spatial ones alone. Elements where it is False are left out, NaN too.

    >>> row = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).view(1, 1, 5)
    >>> adaptive_avg_pool2d(row, (1, 2)).flatten()
    tensor([2., 4.])
    """
    return adaptive_avg_pool.call(2, input, mask, output_size)


@with_pytorch_names
def adaptive_avg_pool3d(input: Tensor, output_size: OutputSize, *, mask: Mask = None) -> Tensor:
    """Averages over ``output_size`` windows that cover the input evenly; 1 is global pooling.

    Args:
        input: ``(N, C, D, H, W)``, or unbatched ``(C, D, H, W)``.
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        mask: A bool tensor with the input's dimensions, where sizes of 1 broadcast, or with the
            spatial ones alone. Elements where it is False are left out, NaN too.

    >>> row = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).view(1, 1, 1, 5)
    >>> adaptive_avg_pool3d(row, (1, 1, 2)).flatten()
    tensor([2., 4.])
    """
    return adaptive_avg_pool.call(3, input, mask, output_size)


@with_pytorch_names
def lp_pool1d(
    input: Tensor,
    norm_type: float,
    kernel_size: Integers,
    stride: Stride = None,
    ceil_mode: bool = False,
    *,
    padding: Padding = 0,
    dilation: Integers = 1,
    mask: Mask = None,
) -> Tensor:
    """Norms of windows: the root of the sum of ``|x| ** norm_type``, as DirectML and ONNX define
    it.

    Args:
        input: ``(N, C, W)``, or unbatched ``(C, W)``.
        norm_type: Exponent of the norm, at least 1, or ``math.inf``.
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"`` or ``"causal"``. A padded element is 0 in the sum.
        dilation: Step from one element of a window to the next.
        mask: A bool tensor with the input's dimensions, where sizes of 1 broadcast, or with the
            spatial ones alone. Elements where it is False are left out, NaN too.

    PyTorch sums ``x ** norm_type``, so for negative elements it differs unless ``norm_type`` is
    even. With ``ceil_mode`` it scales the sum of a window that reaches past the padded input up to
    that of a whole window; here it is not scaled.

    >>> row = torch.tensor([3.0, -4.0, 0.0, 2.0]).view(1, 4)
    >>> lp_pool1d(row, 2, 2).flatten()
    tensor([5., 2.])
    """
    return lp_pool.call(
        1, input, mask, norm_type, kernel_size, stride, ceil_mode, padding, dilation
    )


@with_pytorch_names
def lp_pool2d(
    input: Tensor,
    norm_type: float,
    kernel_size: Integers,
    stride: Stride = None,
    ceil_mode: bool = False,
    *,
    padding: Padding = 0,
    dilation: Integers = 1,
    mask: Mask = None,
) -> Tensor:
    """Norms of windows: the root of the sum of ``|x| ** norm_type``, as DirectML and ONNX define
    it.

    Args:
        input: ``(N, C, H, W)``, or unbatched ``(C, H, W)``.
        norm_type: Exponent of the norm, at least 1, or ``math.inf``.
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"``. A padded element is 0 in the sum.
        dilation: Step from one element of a window to the next.
        mask: A bool tensor with the input's dimensions, where sizes of 1 broadcast, or with the
            spatial ones alone. Elements where it is False are left out, NaN too.

    PyTorch sums ``x ** norm_type``, so for negative elements it differs unless ``norm_type`` is
    even. With ``ceil_mode`` it scales the sum of a window that reaches past the padded input up to
    that of a whole window; here it is not scaled.

    >>> row = torch.tensor([3.0, -4.0, 0.0, 2.0]).view(1, 1, 4)
    >>> lp_pool2d(row, 2, (1, 2)).flatten()
    tensor([5., 2.])
    """
    return lp_pool.call(
        2, input, mask, norm_type, kernel_size, stride, ceil_mode, padding, dilation
    )


@with_pytorch_names
def lp_pool3d(
    input: Tensor,
    norm_type: float,
    kernel_size: Integers,
    stride: Stride = None,
    ceil_mode: bool = False,
    *,
    padding: Padding = 0,
    dilation: Integers = 1,
    mask: Mask = None,
) -> Tensor:
    """Norms of windows: the root of the sum of ``|x| ** norm_type``, as DirectML and ONNX define
    it.

    Args:
        input: ``(N, C, D, H, W)``, or unbatched ``(C, D, H, W)``.
        norm_type: Exponent of the norm, at least 1, or ``math.inf``.
        kernel_size: Size of the window: an int or one per dimension, as for stride and dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        ceil_mode: Whether a last window that starts before the end padding may reach past it.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"``. A padded element is 0 in the sum.
        dilation: Step from one element of a window to the next.
        mask: A bool tensor with the input's dimensions, where sizes of 1 broadcast, or with the
            spatial ones alone. Elements where it is False are left out, NaN too.

    PyTorch sums ``x ** norm_type``, so for negative elements it differs unless ``norm_type`` is
    even. With ``ceil_mode`` it scales the sum of a window that reaches past the padded input up to
    that of a whole window; here it is not scaled.

    >>> row = torch.tensor([3.0, -4.0, 0.0, 2.0]).view(1, 1, 1, 4)
    >>> lp_pool3d(row, 2, (1, 1, 2)).flatten()
    tensor([5., 2.])
    """
    return lp_pool.call(
        3, input, mask, norm_type, kernel_size, stride, ceil_mode, padding, dilation
    )
