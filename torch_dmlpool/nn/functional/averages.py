"""avg_pool1d, avg_pool2d and avg_pool3d.

tools/write_dimensions.py writes those for one and three dimensions: edit those for two.
"""

from torch import Tensor

from torch_dmlpool.keywords import pytorchs
from torch_dmlpool.nn import pools
from torch_dmlpool.window import Integers, Padding


@pytorchs
def avg_pool1d(
    input: Tensor,
    kernel_size: Integers,
    stride: Integers | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    dilation: Integers = 1,
    mask: Tensor | None = None,
) -> Tensor:
    """Averages over windows.

    Args:
        input: ``(N, C, W)``, or unbatched ``(C, W)``.
        kernel_size: Size of the window, at least 1: an int, or one per dimension, as for stride and
            dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"`` or ``"causal"``. A padded element is 0 in the sum.
        ceil_mode: Whether a last window may reach past the padded input, if it starts inside the
            input or the padding before it.
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
    return pools.avg_pool(
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


@pytorchs
def avg_pool2d(
    input: Tensor,
    kernel_size: Integers,
    stride: Integers | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    dilation: Integers = 1,
    mask: Tensor | None = None,
) -> Tensor:
    """Averages over windows.

    Args:
        input: ``(N, C, H, W)``, or unbatched ``(C, H, W)``.
        kernel_size: Size of the window, at least 1: an int, or one per dimension, as for stride and
            dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"``. A padded element is 0 in the sum.
        ceil_mode: Whether a last window may reach past the padded input, if it starts inside the
            input or the padding before it.
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
    return pools.avg_pool(
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


@pytorchs
def avg_pool3d(
    input: Tensor,
    kernel_size: Integers,
    stride: Integers | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    dilation: Integers = 1,
    mask: Tensor | None = None,
) -> Tensor:
    """Averages over windows.

    Args:
        input: ``(N, C, D, H, W)``, or unbatched ``(C, D, H, W)``.
        kernel_size: Size of the window, at least 1: an int, or one per dimension, as for stride and
            dilation.
        stride: Step from one window to the next; ``kernel_size`` unless given.
        padding: Padding at both ends, of any size: an int or one per dimension, ``((start, end),
            ...)``, ``"same"`` or ``"valid"``. A padded element is 0 in the sum.
        ceil_mode: Whether a last window may reach past the padded input, if it starts inside the
            input or the padding before it.
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
    return pools.avg_pool(
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
