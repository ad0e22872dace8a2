"""Unpooling, for one to three dimensions.

tools/write_dimensions.py writes those for one and three: edit those for two.
"""

from torch import Tensor

from torch_dmlpool.keywords import with_pytorch_names
from torch_dmlpool.nn.pools import max_unpool
from torch_dmlpool.window import Integers, Padding, Sizes, Stride


@with_pytorch_names
def max_unpool1d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Integers,
    stride: Stride = None,
    padding: Padding = 0,
    output_size: Sizes | None = None,
) -> Tensor:
    """Every element at its index, zeros elsewhere.

    Args:
        input: ``(N, C, W)``, or unbatched ``(C, W)``.
        indices: Positions in the channel's plane, as max pooling returns them.
        kernel_size: Size of the window that pooled.
        stride: Its stride; ``kernel_size`` unless given.
        padding: Its padding, in any form that max pooling takes.
        output_size: The spatial sizes or all sizes of the output, each less than a stride from what
            the window gives.

    Where several elements have the same index, the last of them in row-major order is written, and
    it alone gets a gradient. PyTorch writes any of them on a GPU and gives the gradient to all.
    Index -1 is skipped.

    >>> values, indices = torch.tensor([4.0, 5.0]), torch.tensor([1, 2])
    >>> max_unpool1d(values.view(1, 2), indices.view(1, 2), 2).flatten()
    tensor([0., 4., 5., 0.])
    """
    return max_unpool.call(1, input, None, indices, kernel_size, stride, padding, output_size)


@with_pytorch_names
def max_unpool2d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Integers,
    stride: Stride = None,
    padding: Padding = 0,
    output_size: Sizes | None = None,
) -> Tensor:
    """Every element at its index, zeros elsewhere.

    Args:
        input: ``(N, C, H, W)``, or unbatched ``(C, H, W)``.
        indices: Positions in the channel's plane, as max pooling returns them.
        kernel_size: Size of the window that pooled.
        stride: Its stride; ``kernel_size`` unless given.
        padding: Its padding, in any form that max pooling takes.
        output_size: The spatial sizes or all sizes of the output, each less than a stride from what
            the window gives.

    Where several elements have the same index, the last of them in row-major order is written, and
    it alone gets a gradient. PyTorch writes any of them on a GPU and gives the gradient to all.
    Index -1 is skipped.

    >>> values, indices = torch.tensor([4.0, 5.0]), torch.tensor([1, 2])
    >>> max_unpool2d(values.view(1, 1, 2), indices.view(1, 1, 2), (1, 2)).flatten()
    tensor([0., 4., 5., 0.])
    """
    return max_unpool.call(2, input, None, indices, kernel_size, stride, padding, output_size)


@with_pytorch_names
def max_unpool3d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Integers,
    stride: Stride = None,
    padding: Padding = 0,
    output_size: Sizes | None = None,
) -> Tensor:
    """Every element at its index, zeros elsewhere.

    Args:
        input: ``(N, C, D, H, W)``, or unbatched ``(C, D, H, W)``.
        indices: Positions in the channel's plane, as max pooling returns them.
        kernel_size: Size of the window that pooled.
        stride: Its stride; ``kernel_size`` unless given.
        padding: Its padding, in any form that max pooling takes.
        output_size: The spatial sizes or all sizes of the output, each less than a stride from what
            the window gives.

    Where several elements have the same index, the last of them in row-major order is written, and
    it alone gets a gradient. PyTorch writes any of them on a GPU and gives the gradient to all.
    Index -1 is skipped.

    >>> values, indices = torch.tensor([4.0, 5.0]), torch.tensor([1, 2])
    >>> max_unpool3d(values.view(1, 1, 1, 2), indices.view(1, 1, 1, 2), (1, 1, 2)).flatten()
    tensor([0., 4., 5., 0.])
    """
    return max_unpool.call(3, input, None, indices, kernel_size, stride, padding, output_size)
