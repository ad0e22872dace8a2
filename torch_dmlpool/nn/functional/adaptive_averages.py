"""adaptive_avg_pool1d, adaptive_avg_pool2d and adaptive_avg_pool3d.

tools/write_dimensions.py writes those for one and three dimensions: edit those for two.
"""

from torch import Tensor

from torch_dmlpool.keywords import pytorchs
from torch_dmlpool.nn import pools
from torch_dmlpool.window import OutputSize


@pytorchs
def adaptive_avg_pool1d(
    input: Tensor, output_size: OutputSize, *, mask: Tensor | None = None
) -> Tensor:
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
    return pools.adaptive_avg_pool(1, input, mask, output_size)


@pytorchs
def adaptive_avg_pool2d(
    input: Tensor, output_size: OutputSize, *, mask: Tensor | None = None
) -> Tensor:
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
    return pools.adaptive_avg_pool(2, input, mask, output_size)


@pytorchs
def adaptive_avg_pool3d(
    input: Tensor, output_size: OutputSize, *, mask: Tensor | None = None
) -> Tensor:
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
    return pools.adaptive_avg_pool(3, input, mask, output_size)
