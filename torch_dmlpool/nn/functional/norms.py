"""lp_pool1d, lp_pool2d and lp_pool3d.

tools/write_dimensions.py writes those for one and three dimensions: edit those for two.
"""

from torch import Tensor

from torch_dmlpool.keywords import pytorchs
from torch_dmlpool.nn import pools
from torch_dmlpool.window import Integers, Padding


@pytorchs
def lp_pool1d(
    input: Tensor,
    norm_type: float,
    kernel_size: Integers,
    stride: Integers | None = None,
    ceil_mode: bool = False,
    *,
    padding: Padding = 0,
    dilation: Integers = 1,
    mask: Tensor | None = None,
) -> Tensor:
    """Norms of windows: the root of the sum of ``|x| ** norm_type``, as DirectML and ONNX define
    it.

    Args:
        input: ``(N, C, W)``, or unbatched ``(C, W)``.
        norm_type: Exponent of the norm, at least 1, or ``math.inf``.
        kernel_size: Size of the window, at least 1: an int, or one per dimension, as for stride and
            dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        ceil_mode: Whether a last window may reach past the padded input, if it starts inside the
            input or the padding before it.
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
    return pools.lp_pool(
        1, input, mask, norm_type, kernel_size, stride, ceil_mode, padding, dilation
    )


@pytorchs
def lp_pool2d(
    input: Tensor,
    norm_type: float,
    kernel_size: Integers,
    stride: Integers | None = None,
    ceil_mode: bool = False,
    *,
    padding: Padding = 0,
    dilation: Integers = 1,
    mask: Tensor | None = None,
) -> Tensor:
    """Norms of windows: the root of the sum of ``|x| ** norm_type``, as DirectML and ONNX define
    it.

    Args:
        input: ``(N, C, H, W)``, or unbatched ``(C, H, W)``.
        norm_type: Exponent of the norm, at least 1, or ``math.inf``.
        kernel_size: Size of the window, at least 1: an int, or one per dimension, as for stride and
            dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        ceil_mode: Whether a last window may reach past the padded input, if it starts inside the
            input or the padding before it.
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
    return pools.lp_pool(
        2, input, mask, norm_type, kernel_size, stride, ceil_mode, padding, dilation
    )


@pytorchs
def lp_pool3d(
    input: Tensor,
    norm_type: float,
    kernel_size: Integers,
    stride: Integers | None = None,
    ceil_mode: bool = False,
    *,
    padding: Padding = 0,
    dilation: Integers = 1,
    mask: Tensor | None = None,
) -> Tensor:
    """Norms of windows: the root of the sum of ``|x| ** norm_type``, as DirectML and ONNX define
    it.

    Args:
        input: ``(N, C, D, H, W)``, or unbatched ``(C, D, H, W)``.
        norm_type: Exponent of the norm, at least 1, or ``math.inf``.
        kernel_size: Size of the window, at least 1: an int, or one per dimension, as for stride and
            dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        ceil_mode: Whether a last window may reach past the padded input, if it starts inside the
            input or the padding before it.
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
    return pools.lp_pool(
        3, input, mask, norm_type, kernel_size, stride, ceil_mode, padding, dilation
    )
