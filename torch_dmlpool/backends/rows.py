"""The CPU backend's pools of sets of rows, by kernels/cpu/segments.cpp.

What each function computes is said in ``reference_rows``, which serves data types that the kernels
do not take.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool.backends import reference_rows
from torch_dmlpool.backends.library import OUTSIDE, Segments, error_of, library
from torch_dmlpool.backends.plans import DATA_TYPES
from torch_dmlpool.tensors import FLOAT_TYPES


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _in_rows(input: Tensor) -> Tensor:
    """``input`` whose rows are contiguous."""
    return input if input.stride(-1) == 1 or input.shape[-1] == 1 else input.contiguous()


def _call(
    function: Any, source: Tensor, offsets: Tensor | None, fields: dict[str, int], *tensors: Any
) -> None:
    """Call a function of the library for the rows of ``source``, whose mask comes before the other
    ``tensors``. Offsets that it refuses are rejected.
    """
    *_, rows, channels = source.shape
    sets = source.shape[0] if offsets is None else offsets.shape[0] - 1
    strides = source.stride()
    struct = Segments(
        sets,
        channels,
        rows,
        strides[0] if offsets is None else 0,
        strides[-2],
        rows if offsets is None else 0,
        DATA_TYPES[source.dtype],
        **fields,
    )
    code = function(ctypes.addressof(struct), *tensors)
    if code == OUTSIDE and offsets is not None:
        reference_rows.check_offsets(offsets, rows)
    if code:
        raise error_of(function, code)


def segment_sums(
    input: Tensor, offsets: Tensor | None, mask: Tensor | None, is_mean: bool
) -> Tensor:
    """The sum or the mean of each set."""
    input = _in_rows(input)
    sets = input.shape[0] if offsets is None else offsets.shape[0] - 1
    output = input.new_empty((sets, input.shape[-1]))
    offsets = None if offsets is None else offsets.contiguous()
    mask = None if mask is None else mask.contiguous()
    _call(
        library.dmlpool_segment_sums,
        input,
        offsets,
        {"divisor": 0 if is_mean else 1},
        *(input.data_ptr(), _address(offsets), _address(mask), output.data_ptr()),
    )
    return output


def segment_maxima(
    input: Tensor, offsets: Tensor | None, mask: Tensor | None, are_minima: bool
) -> tuple[Tensor, Tensor]:
    """The greatest or least element of each channel of a set, and its row."""
    if input.dtype not in FLOAT_TYPES or input.shape[-2] >= 2**31:
        return reference_rows.segment_maxima(input, offsets, mask, are_minima)
    input = _in_rows(input)
    sets = input.shape[0] if offsets is None else offsets.shape[0] - 1
    values = input.new_empty((sets, input.shape[-1]))
    indices = torch.empty(values.shape, dtype=torch.int64, device=input.device)
    offsets = None if offsets is None else offsets.contiguous()
    mask = None if mask is None else mask.contiguous()
    operands = input.data_ptr(), _address(offsets), _address(mask)
    results = values.data_ptr(), indices.data_ptr()
    fields = {"are_minima": int(are_minima)}
    _call(library.dmlpool_segment_maxima, input, offsets, fields, *operands, *results)
    return values, indices


def segment_shares(
    arriving: Tensor,
    offsets: Tensor | None,
    mask: Tensor | None,
    rows: int,
    is_mean: bool,
    indices: Tensor | None = None,
) -> Tensor:
    """Each row's share of what arrives at its set, or with ``indices`` all at these rows."""
    arriving = arriving.contiguous()
    samples = () if offsets is not None else (arriving.shape[0],)
    gradient = arriving.new_empty((*samples, rows, arriving.shape[-1]))
    offsets = None if offsets is None else offsets.contiguous()
    mask = None if mask is None else mask.contiguous()
    numbers = arriving.data_ptr(), _address(offsets), _address(mask), _address(indices)
    fields = {"divisor": 0 if is_mean else 1}
    _call(library.dmlpool_segment_shares, gradient, offsets, fields, *numbers, gradient.data_ptr())
    return gradient


def _as_kernels_read(input: Tensor) -> tuple[Tensor, Tensor]:
    """``(N, C, W)`` as contiguous planes, or where it lies so in memory as rows of channels; and a
    view of it whose last two dimensions are positions and channels.
    """
    n, c, w = input.shape
    if input.transpose(1, 2).is_contiguous() and (c > 1 or w == 1):
        return input, input.transpose(1, 2)
    input = input.contiguous()
    return input, input.as_strided((n, w, c), (c * w, 1, w))


def statistics(input: Tensor, mask: Tensor | None, correction: int) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation of each plane."""
    input, rows = _as_kernels_read(input)
    mean, deviation = (input.new_empty(input.shape[:2]) for _ in range(2))
    mask = None if mask is None else mask.contiguous()
    tensors = input.data_ptr(), _address(mask), mean.data_ptr(), deviation.data_ptr()
    _call(library.dmlpool_statistics, rows, None, {"correction": correction}, *tensors)
    return mean, deviation


def statistics_grad(
    of_mean: Tensor,
    of_deviation: Tensor,
    input: Tensor,
    mask: Tensor | None,
    mean: Tensor,
    deviation: Tensor,
    correction: int,
) -> Tensor:
    """The gradient of means and deviations."""
    input, rows = _as_kernels_read(input)
    gradient = torch.empty_like(input)
    mask = None if mask is None else mask.contiguous()
    moments = torch.stack((mean, deviation, of_mean, of_deviation))
    tensors = input.data_ptr(), _address(mask), moments.data_ptr(), gradient.data_ptr()
    _call(library.dmlpool_statistics_grad, rows, None, {"correction": correction}, *tensors)
    return gradient
