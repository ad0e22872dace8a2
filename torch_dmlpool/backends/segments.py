"""The CPU backend's pools of sets of rows, by kernels/cpu/segments.cpp.

What each function computes is said in ``reference_segments``, which serves data types that the
kernels do not take. ``library.dmlpool_X`` is X of kernels/cpu/operators.h.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool.backends import reference_segments
from torch_dmlpool.backends.library import OUTSIDE, Segments, error_of, library
from torch_dmlpool.backends.problems import DATA_TYPES
from torch_dmlpool.tensors import FLOAT_TYPES, Mask, Offsets, Pair, Tensors


def address(tensor: Tensor | None) -> int | None:
    """Where a tensor's elements are; None without a tensor."""
    return None if tensor is None else tensor.data_ptr()


def _in_rows(input: Tensor) -> Tensor:
    """``input`` whose rows are contiguous."""
    return input if input.stride(-1) == 1 or input.shape[-1] == 1 else input.contiguous()


def _call(
    function: Any,
    rows: Tensor,
    given: tuple[Tensor | None, ...],
    results: Tensors,
    offsets: Offsets = None,
    **fields: int,
) -> None:
    """Call a function of the library for sets of ``rows``, which reads the tensors ``given``.
    Offsets that it refuses are rejected. A ``divisor`` of 0 stands for the number of rows of a set.
    Gradients give the tensor of rows that is filled.
    """
    *_, length, channels = rows.shape
    strides = rows.stride()
    struct = Segments(
        segments=reference_segments.set_sizes(rows, offsets)[0],
        channels=channels,
        length=length,
        set_step=strides[0] if offsets is None else 0,
        row_step=strides[-2],
        mask_step=length if offsets is None else 0,
        type=DATA_TYPES[rows.dtype],
        **fields,
    )
    source, *others = given  # whose steps are in the struct, unlike those of the others
    dense = [None if each is None else each.contiguous() for each in others]
    code = function(ctypes.addressof(struct), *map(address, (source, *dense, *results)))
    if code == OUTSIDE and offsets is not None:
        reference_segments.check_offsets(offsets, length)
    if code:
        raise error_of(function, code)


def segment_sums(input: Tensor, offsets: Offsets, mask: Mask, is_mean: bool) -> Tensor:
    """The sum or the mean of each set."""
    rows = _in_rows(input)
    # Divided by 1, or with 0 by the rows that are kept.
    output, divisor = rows.new_empty(reference_segments.set_sizes(rows, offsets)), int(not is_mean)
    given = rows, offsets, mask
    _call(library.dmlpool_segment_sums, rows, given, (output,), offsets, divisor=divisor)
    return output


def segment_maxima(input: Tensor, offsets: Offsets, mask: Mask, are_minima: bool) -> Pair:
    """The greatest or least element of each channel of a set, and its row."""
    if input.dtype not in FLOAT_TYPES or input.shape[-2] >= 2**31:
        return reference_segments.segment_maxima(input, offsets, mask, are_minima)
    rows = _in_rows(input)
    values = rows.new_empty(reference_segments.set_sizes(rows, offsets))
    results = values, torch.empty(values.shape, dtype=torch.int64, device=input.device)
    given = rows, offsets, mask
    _call(library.dmlpool_segment_maxima, rows, given, results, offsets, are_minima=int(are_minima))
    return results


def segment_shares(
    arriving: Tensor,
    offsets: Offsets,
    mask: Mask,
    rows: int,
    is_mean: bool,
    indices: Tensor | None = None,
) -> Tensor:
    """Each row's share of what arrives at its set, or with ``indices`` all at these rows."""
    gradient = arriving.new_empty(reference_segments.row_sizes(arriving, offsets, rows))
    given = arriving.contiguous(), offsets, mask, indices
    function, divisor = library.dmlpool_segment_shares, int(not is_mean)
    _call(function, gradient, given, (gradient,), offsets, divisor=divisor)
    return gradient


def _as_kernels_read(input: Tensor) -> Pair:
    """``(N, C, W)`` as contiguous planes, or where it lies so in memory as rows of channels; and a
    view of it whose last two dimensions are positions and channels.
    """
    n, c, w = input.shape
    if input.transpose(1, 2).is_contiguous() and (c > 1 or w == 1):
        return input, input.transpose(1, 2)
    input = input.contiguous()
    return input, input.as_strided((n, w, c), (c * w, 1, w))


def statistics(input: Tensor, mask: Mask, correction: int) -> Pair:
    """The mean and the standard deviation of each plane."""
    input, rows = _as_kernels_read(input)
    results = input.new_empty(input.shape[:2]), input.new_empty(input.shape[:2])
    given = input, mask
    _call(library.dmlpool_statistics, rows, given, results, correction=correction)
    return results


def statistics_grad(input: Tensor, mask: Mask, *line: Tensor) -> Tensor:
    """The gradient of means and deviations."""
    input, rows = _as_kernels_read(input)
    gradient = torch.empty_like(input)
    given = input, mask, torch.stack(line)
    _call(library.dmlpool_statistics_grad, rows, given, (gradient,))
    return gradient
