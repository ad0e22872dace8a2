"""Min pooling in DirectML's words, which DirectML itself lacks: the arguments are max pooling's."""

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.docstrings import operator, typed_as
from torch_dmlpool.functional import (
    Integers,
    OutputSize,
    Pooled,
    adaptive_max_pooling,
    max_pooling,
)
from torch_dmlpool.ops import masked_pooling as _masked
from torch_dmlpool.ops import min_pooling as _min
from torch_dmlpool.window import Window

__all__ = ["adaptive_min_pooling", "min_pooling"]


@typed_as(max_pooling)
@operator()
def min_pooling(
    input: Tensor,
    window_size: Integers,
    strides: Integers = 1,
    start_padding: Integers = 0,
    end_padding: Integers = 0,
    dilations: Integers = 1,
    *,
    ceil_mode: bool = False,
    return_indices: bool = False,
    index_dtype: torch.dtype = torch.int64,
    mask: Tensor | None = None,
) -> Pooled:
    """Minimum of the elements in a sliding window, with its index where wanted.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; the data types of
            :func:`max_pooling`. The minimum of bools is whether all are True.
        WINDOW
        return_indices: Whether to return the indices of the minima too.
        index_dtype: int32, int64, uint32 or uint64.
        MASK

    Returns:
        ``(N, C, *output)`` of the input's data type, where SIZES;
        with ``return_indices`` the pair of it and its indices, which count as those of
        :func:`max_pooling`. Of equal minima the one with the lowest index wins (−0.0 equals 0.0),
        the first NaN wins over everything. Padding never wins: a window that reads no element gives
        inf, True or the type's highest value, and index −1 (all ones if unsigned). Integers are
        exact, the lowest of a signed type and the highest of an unsigned one too.

    The gradient goes to the winning elements. All derivatives exist, but of integers and bools.

    >>> dmlpool.min_pooling(torch.tensor([[[4., 1., 3., 2.]]]), window_size=2, return_indices=True)
    (tensor([[[1., 1., 2.]]]), tensor([[[1, 1, 3]]]))
    """
    operands.check_pooled("input", input, operands.ORDERED_TYPES)
    operands.check_flag("return_indices", return_indices)
    window = Window.directml(
        input.dim() - 2, window_size, strides, start_padding, end_padding, dilations, ceil_mode
    )
    operands.check_index_type(index_dtype, input.shape)
    if return_indices:
        operands.check_taps(window.taps)
    window.output_sizes(input.shape[2:])  # refused before any work
    numbering = (index_dtype, False) if return_indices else ()
    mask = operands.checked_mask(mask, input)
    return _min.minima(lambda each: _masked.maxima(each, mask, window, *numbering), input)


@typed_as(adaptive_max_pooling)
@operator()
def adaptive_min_pooling(
    input: Tensor,
    output_size: OutputSize,
    *,
    return_indices: bool = False,
    index_dtype: torch.dtype = torch.int64,
    mask: Tensor | None = None,
) -> Pooled:
    """Minimum of as many windows as are asked for, which cover the input evenly; 1 takes that of
    whole planes.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; the data types of
            :func:`max_pooling`.
        output_size: As in :func:`adaptive_average_pooling`, and so are the windows.
        return_indices: Whether to return the indices of the minima too.
        index_dtype: As in :func:`max_pooling`.
        MASK

    Returns:
        ``(N, C, *output_size)`` of the input's data type; with ``return_indices`` the pair of it
        and its indices. They count, and ties and NaN are decided, as in :func:`min_pooling`.

    The gradient goes to the winning elements. All derivatives exist, but of integers and bools.

    >>> dmlpool.adaptive_min_pooling(torch.tensor([[[3., 1., 4., 1., 5.]]]), 3, return_indices=True)
    (tensor([[[1., 1., 1.]]]), tensor([[[1, 1, 3]]]))
    """
    operands.check_pooled("input", input, operands.ORDERED_TYPES)
    operands.check_flag("return_indices", return_indices)
    operands.check_index_type(index_dtype, input.shape)
    rank = input.dim() - 2
    sizes = operands.checked_output_size(output_size, tuple(input.shape[2:]))
    asked = (sizes, rank, *((index_dtype, False) if return_indices else ()))
    mask = operands.checked_mask(mask, input)
    return _min.minima(lambda each: _masked.adaptive_maxima(each, mask, *asked), input)
