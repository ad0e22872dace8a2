"""torch.nn.functional's pooling functions, argument for argument, on this package's operators.

They take what torch's take and more: ``padding`` also as ``((start, end), ...)`` or as ``"same"``
or ``"valid"``, any amount of it, and ``dilation`` on averages and norms. Indices are PyTorch's:
int64, counted inside each channel's plane. Each family is defined once, for any number of spatial
dimensions, and is made into its 1d, 2d and 3d functions below.
"""

import re
from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias, cast, overload

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.functional import Integers as Sizes
from torch_dmlpool.functional import OutputSize, Pooled
from torch_dmlpool.nn.dimensions import for_one_to_three, with_indices
from torch_dmlpool.ops import (
    masked_pooling,
    max_unpooling,
    min_pooling,
)
from torch_dmlpool.ops.complex_pooling import by_parts
from torch_dmlpool.window import (
    AXIS_NAMES,
    ArgumentError,
    Axis,
    Window,
    check_spatial_sizes,
    entries,
    is_sure,
    shared,
)

# of both sides, or pairs
Padding: TypeAlias = (
    int | Sequence[int] | Sequence[Sequence[int]] | Literal["same", "valid", "causal"]
)


def window_of(
    rank: int, batched: Tensor, size: Sizes, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> Window:
    """The window of torch.nn's arguments for what is pooled."""
    sizes = _numbers(batched.shape[-rank:]) if isinstance(padding, str) and stride != 1 else None
    window = Window.pytorch(rank, size, stride, padding, dilation, ceil, sizes)
    if rank > 1 or batched.dim() == 3:
        return window
    return Window((Axis(1, 1, 0, 0, 1, ceil), *window.axes))  # of rows with a height


def _numbers(sizes: Sequence[int]) -> list[int]:
    """Tensors, which sizes are in a trace of torch.jit, become constants of the trace, and PyTorch
    warns of it.
    """
    return [int(size) if isinstance(size, Tensor) else size for size in sizes]


@for_one_to_three(operands.AVERAGED_TYPES)
def avg_pool(
    rank: int,
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    dilation: Sizes = 1,
    mask: Tensor | None = None,
) -> Tensor:
    """Averages over windows of ``{batched}`` or ``{unbatched}``; ``stride`` defaults to
    ``kernel_size``.

    {mask}

    >>> row = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).view(1, {ones}5)
    >>> avg_pool{rank}d(row, ({ones}2), padding="same", stride=1, count_include_pad=False).flatten()
    tensor([1.5000, 2.5000, 3.5000, 4.5000, 5.0000])
    """
    operands.check_flag("count_include_pad", count_include_pad)
    operands.check_divisor(divisor_override)
    window = window_of(rank, input, kernel_size, stride, padding, dilation, ceil_mode)
    request = mask, window, count_include_pad, divisor_override
    return by_parts(lambda each: masked_pooling.averages(each, *request), input)


@for_one_to_three(operands.ORDERED_TYPES)
def max_pool(
    rank: int,
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    mask: Tensor | None = None,
) -> Pooled:
    """Maxima over windows of ``{batched}`` or ``{unbatched}``, with ``return_indices`` as a pair
    with their indices.

    {mask}

    >>> row = torch.tensor([1.0, 3.0, 2.0, 5.0]).view(1, {ones}4)
    >>> values, indices = max_pool{rank}d(row, ({ones}2), stride=1, return_indices=True)
    >>> values.flatten(), indices.flatten()
    (tensor([3., 3., 5.]), tensor([1, 1, 3]))
    """
    operands.check_flag("return_indices", return_indices)
    window = window_of(rank, input, kernel_size, stride, padding, dilation, ceil_mode)
    if return_indices:
        operands.check_taps(window.taps)
    numbering = (torch.int64, True) if return_indices else ()
    request = mask, window, *numbering
    return min_pooling.maxima(lambda each: masked_pooling.maxima(each, *request), input)


@for_one_to_three(operands.ORDERED_TYPES)
def min_pool(
    rank: int,
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    mask: Tensor | None = None,
) -> Pooled:
    """Minima over windows of ``{batched}`` or ``{unbatched}``, with the arguments of
    :func:`max_pool{rank}d`.

    >>> row = torch.tensor([3.0, 1.0, 2.0, 5.0]).view(1, {ones}4)
    >>> values, indices = min_pool{rank}d(row, ({ones}2), stride=1, return_indices=True)
    >>> values.flatten(), indices.flatten()
    (tensor([1., 1., 2.]), tensor([1, 1, 2]))
    """
    operands.check_flag("return_indices", return_indices)
    window = window_of(rank, input, kernel_size, stride, padding, dilation, ceil_mode)
    if return_indices:
        operands.check_taps(window.taps)
    window.output_sizes(_numbers(input.shape[2:]))  # refused before any work
    numbering = (torch.int64, True) if return_indices else ()
    request = mask, window, *numbering
    return min_pooling.minima(lambda each: masked_pooling.maxima(each, *request), input)


@for_one_to_three(operands.FLOAT_TYPES)
def lp_pool(
    rank: int,
    input: Tensor,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
    *,
    padding: Padding = 0,
    dilation: Sizes = 1,
    mask: Tensor | None = None,
) -> Tensor:
    """Norms of windows of ``{batched}`` or ``{unbatched}``; ``stride`` defaults to ``kernel_size``.

    The norms are those of DirectML and ONNX: the root of the sum of ``|x| ** p`` over what a window
    reads. PyTorch adds up ``x ** p``, so with an odd or fractional ``norm_type`` it differs for
    negative elements; with ``ceil_mode`` it scales the sum of a window that reaches past the padded
    input up to a whole window's.

    {mask}

    >>> lp_pool{rank}d(torch.tensor([3.0, -4.0, 0.0, 2.0]).view(1, {ones}4), 2, ({ones}2)).flatten()
    tensor([5., 2.])
    """
    window = window_of(rank, input, kernel_size, stride, padding, dilation, ceil_mode)
    operands.check_norm("norm_type", norm_type)
    return masked_pooling.norms(input, mask, window, float(norm_type))


@for_one_to_three(operands.AVERAGED_TYPES)
def adaptive_avg_pool(
    rank: int, input: Tensor, output_size: OutputSize, *, mask: Tensor | None = None
) -> Tensor:
    """Averages over ``output_size`` windows that cover ``{batched}`` or ``{unbatched}`` evenly; 1
    is global pooling.

    {mask}

    >>> row = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).view(1, {ones}5)
    >>> adaptive_avg_pool{rank}d(row, ({ones}2)).flatten()
    tensor([2., 4.])
    """
    asked = mask, shared(output_size), rank
    return by_parts(lambda each: masked_pooling.adaptive_averages(each, *asked), input)


@for_one_to_three(operands.ORDERED_TYPES)
def adaptive_max_pool(
    rank: int,
    input: Tensor,
    output_size: OutputSize,
    return_indices: bool = False,
    *,
    mask: Tensor | None = None,
) -> Pooled:
    """Maxima over ``output_size`` windows that cover ``{batched}`` or ``{unbatched}`` evenly, with
    indices if asked.

    {mask}

    >>> row = torch.tensor([1.0, 4.0, 2.0, 3.0, 5.0]).view(1, {ones}5)
    >>> adaptive_max_pool{rank}d(row, ({ones}2)).flatten()
    tensor([4., 5.])
    """
    operands.check_flag("return_indices", return_indices)
    asked = (shared(output_size), rank, *((torch.int64, True) if return_indices else ()))
    return min_pooling.maxima(
        lambda each: masked_pooling.adaptive_maxima(each, mask, *asked), input
    )


@for_one_to_three(operands.ORDERED_TYPES)
def adaptive_min_pool(
    rank: int,
    input: Tensor,
    output_size: OutputSize,
    return_indices: bool = False,
    *,
    mask: Tensor | None = None,
) -> Pooled:
    """Minima over ``output_size`` windows that cover ``{batched}`` or ``{unbatched}`` evenly, with
    indices if asked.

    >>> row = torch.tensor([1.0, 4.0, 2.0, 3.0, 5.0]).view(1, {ones}5)
    >>> adaptive_min_pool{rank}d(row, ({ones}2)).flatten()
    tensor([1., 2.])
    """
    operands.check_flag("return_indices", return_indices)
    output_size = shared(output_size)
    operands.checked_output_size(output_size, tuple(input.shape[-rank:]))
    asked = (output_size, rank, *((torch.int64, True) if return_indices else ()))
    return min_pooling.minima(
        lambda each: masked_pooling.adaptive_maxima(each, mask, *asked), input
    )


@for_one_to_three(operands.MAX_TYPES + operands.COMPLEX_TYPES)
def max_unpool(
    rank: int,
    input: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Every element of ``{batched}`` or ``{unbatched}`` back at its index, zeros elsewhere.

    ``output_size`` is the spatial sizes or all sizes, each less than a stride from what the window
    gives. Where several elements have the same index, the last of them in row-major order is
    written, and it alone gets a gradient (PyTorch writes any of them on a GPU, and gives the
    gradient to all). Index -1 is skipped.

    >>> indices = torch.tensor([1, 2]).view(1, {ones}2)
    >>> max_unpool{rank}d(torch.tensor([4.0, 5.0]).view(1, {ones}2), indices, ({ones}2)).flatten()
    tensor([0., 4., 5., 0.])
    """
    is_row = input.dim() > rank + 2
    if isinstance(indices, Tensor) and indices.dim() == input.dim() - 1:
        indices = indices.unsqueeze(2 if is_row else 0)
    max_unpooling.check(input, indices)
    window = Window.pytorch(rank, kernel_size, stride, padding)
    sizes = [
        (size - 1) * axis.stride + axis.window - axis.start_padding - axis.end_padding
        for size, axis in zip(_numbers(input.shape[-rank:]), window.axes, strict=True)
    ]
    if output_size is not None:
        is_full = isinstance(output_size, Sequence) and len(output_size) == rank + 2
        asked = entries("output_size", output_size[2:] if is_full else output_size, rank, 1)
        for size, usual, axis, name in zip(
            asked, sizes, window.axes, AXIS_NAMES[rank], strict=True
        ):
            if is_sure(size <= usual - axis.stride) or is_sure(size >= usual + axis.stride):
                least, most = max(usual - axis.stride + 1, 1), usual + axis.stride - 1
                where = f"in spatial dimension {name}, got {size} (output_size={output_size})"
                raise ArgumentError(
                    f"output_size must be {least} to {most} for this window {where}"
                )
        sizes = list(asked)
    sizes = [1] * is_row + sizes
    check_spatial_sizes("the output", sizes, len(sizes))
    return by_parts(lambda each: max_unpooling.max_unpooling(each, indices, sizes, True), input)


class _MaxPool(Protocol):
    """The type of :func:`max_pool2d` and its like: ``return_indices`` decides what comes back."""

    @overload
    def __call__(
        self,
        input: Tensor,
        kernel_size: Sizes,
        stride: Sizes | None = ...,
        padding: Padding = ...,
        dilation: Sizes = ...,
        ceil_mode: bool = ...,
        return_indices: Literal[False] = ...,
        *,
        mask: Tensor | None = ...,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        input: Tensor,
        kernel_size: Sizes,
        stride: Sizes | None = ...,
        padding: Padding = ...,
        dilation: Sizes = ...,
        ceil_mode: bool = ...,
        *,
        return_indices: Literal[True],
        mask: Tensor | None = ...,
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
        input: Tensor,
        kernel_size: Sizes,
        stride: Sizes | None = ...,
        padding: Padding = ...,
        dilation: Sizes = ...,
        ceil_mode: bool = ...,
        return_indices: bool = ...,
        *,
        mask: Tensor | None = ...,
    ) -> Pooled: ...


class _AdaptiveMaxPool(Protocol):
    """The type of :func:`adaptive_max_pool2d` and its like."""

    @overload
    def __call__(
        self,
        input: Tensor,
        output_size: OutputSize,
        return_indices: Literal[False] = ...,
        *,
        mask: Tensor | None = ...,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        input: Tensor,
        output_size: OutputSize,
        return_indices: Literal[True],
        *,
        mask: Tensor | None = ...,
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
        input: Tensor,
        output_size: OutputSize,
        return_indices: bool,
        *,
        mask: Tensor | None = ...,
    ) -> Pooled: ...


avg_pool1d, avg_pool2d, avg_pool3d = avg_pool
lp_pool1d, lp_pool2d, lp_pool3d = lp_pool
max_unpool1d, max_unpool2d, max_unpool3d = max_unpool
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = adaptive_avg_pool
max_pool1d, max_pool2d, max_pool3d = cast(tuple[_MaxPool, ...], max_pool)
min_pool1d, min_pool2d, min_pool3d = cast(tuple[_MaxPool, ...], min_pool)
max_pool1d_with_indices, max_pool2d_with_indices, max_pool3d_with_indices = map(
    with_indices, max_pool
)
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = cast(
    tuple[_AdaptiveMaxPool, ...], adaptive_max_pool
)
adaptive_min_pool1d, adaptive_min_pool2d, adaptive_min_pool3d = cast(
    tuple[_AdaptiveMaxPool, ...], adaptive_min_pool
)
(
    adaptive_max_pool1d_with_indices,
    adaptive_max_pool2d_with_indices,
    adaptive_max_pool3d_with_indices,
) = (with_indices(pool) for pool in adaptive_max_pool)
__all__ = [name for name in dict(globals()) if re.search(r"pool\dd", name)]
