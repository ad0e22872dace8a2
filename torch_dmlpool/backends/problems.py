"""What a call of the CPU kernels is given: the struct of its problem and how tensors lie, and the
structs of masks and of scales and zero points. Each is made once for each request.
"""

import ctypes
import itertools
import math
import operator
import sys
from array import array
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import tensors
from torch_dmlpool.backends.interface import AnyWindow, Kind, Parameters
from torch_dmlpool.backends.library import TAPS, Quantization
from torch_dmlpool.window import Divisor, Ints, Sizes, Window

_FLOATS = torch.float32, torch.float64, torch.float16, torch.bfloat16
DATA_TYPES = {
    dtype: number for number, dtype in enumerate((*_FLOATS, *tensors.INTEGER_TYPES, torch.bool))
}
"""The numbers of the data types in kernels/cpu/vectors.h."""


@dataclass(slots=True)
class CpuProblem:
    """What a call tells the library: the address of its struct, and how the tensors lie.

    A call reads many of these attributes, which a named tuple would return more slowly.
    """

    address: ctypes.c_void_p  # ctypes passes it on in less time than an int
    channels_last: bool
    is_empty: bool
    is_ready: bool  # the kernel can be called with the tensor that this was made for
    dtype: torch.dtype  # of that tensor
    number_dtype: torch.dtype  # of taps, positions or indices
    # the type to which the input must be converted first, None if it need not be (``_wider``)
    wider: torch.dtype | None
    sizes: Ints  # of the tensor that windows read, and its strides in the memory format
    strides: Ints
    output_sizes: Ints  # the same of a tensor with an element for each window
    output_strides: Ints
    struct: Any  # keeps the memory at ``address``

    def under(self, mask: Tensor, dtype: torch.dtype, fill: float) -> Any:
        """The struct with a mask that lies as the input of ``dtype`` does. ``fill`` stands for the
        elements that are left out.
        """
        how = (
            *_masking(self.sizes, mask.shape[:2], self.channels_last, dtype, fill),
            mask.data_ptr(),
        )
        return self.struct[: -len(how)] + array("q", how)


_NO_MASK = 0, 0, 0, 0, 1, 0, 0
"""The fields of ``Masking`` in kernels/cpu/geometry.h where there is no mask."""


def problem_of(
    kind: Kind,
    window: AnyWindow,
    numbered: tuple[torch.dtype | None, int] | None = None,
    spatial_sizes: Ints | None = None,
    counted: tuple[bool, Divisor] = (False, None),
    are_minima: bool = False,
) -> CpuProblem:
    """The problem of a call for a tensor.

    Forward operators give a tensor that windows read. Gradients and functions of taps or positions
    give a tensor with an element for each window, and the ``spatial_sizes`` of what windows read.

    - ``window``: the window, or the output sizes of bins. Functions of positions give the spatial
      sizes of the positions.
    - ``numbered``: the data type of taps, positions or indices (None for the one that holds the
      window's taps), and which of these three they are: TAPS, POSITIONS or INDICES.
    - ``counted``: for averages whether padding counts, and the divisor or None.
    """
    shape, strides, dtype, channels_last = kind
    if channels_last is None:
        channels_last = tensors.suggests_channels_last(shape, strides)  # type: ignore[arg-type]
    samples, channels, *spatial = shape
    input_sizes = spatial if spatial_sizes is None else spatial_sizes
    outputs, axes, ends = _axes_of(window, input_sizes)
    planes, inner_channels = (samples, channels) if channels_last else (samples * channels, 1)
    number_dtype, numbering = numbered or (torch.uint8, TAPS)
    if number_dtype is None:
        number_dtype = tensors.tap_dtype(window.taps)  # type: ignore[union-attr]
    are_found = numbered is not None and spatial_sizes is None
    wider = _wider(axes, numbering, dtype) if are_found else None
    added = 3 - len(axes)
    unit = (1, 1, axes[0][2] and 1, 1, 0, 1)  # an axis of size 1; beside bins a bin
    include_padding, divisor = counted
    numbers = [planes, inner_channels, *itertools.chain(unit * added, *axes)]
    numbers += include_padding, divisor or 0, *[0] * added, *ends
    numbers += DATA_TYPES[wider or dtype], number_dtype.itemsize, numbering, are_minima, *_NO_MASK
    # In the order of ``Problem`` in library.py. An array is filled in a quarter of the time of that
    # struct, and every size that a call has not had before needs one.
    struct = array("q", numbers)
    sizes, output_sizes = (samples, channels, *input_sizes), (samples, channels, *outputs)
    own, results = strides_of(sizes, channels_last), strides_of(output_sizes, channels_last)
    is_empty = 0 in sizes or 0 in output_sizes
    wanted = own if spatial_sizes is None else results
    # Strides along sizes of 1 are never used.
    is_laid_out = strides == wanted or (
        strides is not None
        and all(
            size == 1 or one == other
            for size, one, other in zip(shape, strides, wanted, strict=True)
        )
    )
    return CpuProblem(
        ctypes.c_void_p(struct.buffer_info()[0]),
        channels_last,
        is_empty,
        is_laid_out and not is_empty,
        dtype,
        number_dtype,
        wider,
        sizes,
        own,
        output_sizes,
        results,
        struct,
    )


remembered_problem = lru_cache(4096)(problem_of)
"""The problem of an operator's call, which no prepared call keeps."""


_Axis = tuple[int, int, int, int, int, int]
"""Size, outputs, window, stride, start padding and dilation; a window of 0 stands for bins."""


def _axes_of(window: AnyWindow, sizes: Sizes) -> tuple[Sizes, list[_Axis], list[int]]:
    """The output sizes of a window or of bins, its axes, and the end padding of each.

    Bins have no stride: the kernels compute where each begins from the two sizes. The step between
    them, rounded down, only tells ``choose.cpp`` how far apart they lie.
    """
    if not isinstance(window, Window):
        pairs = zip(sizes, window, strict=True)
        axes = [(size, count, 0, max(1, size // max(1, count)), 0, 1) for size, count in pairs]
        return window, axes, [0] * len(axes)
    outputs, axes, ends = [], [], []
    for axis, size in window.along(sizes):
        count = axis.output_size(size)
        taps, stride, start, end, dilation, _ = axis
        outputs.append(count)
        axes.append((size, count, taps, stride, start, dilation))
        ends.append(end)
    if min(outputs) < 1 or min(sizes) < 1 or math.prod(sizes) >= 2**63:
        window.output_sizes(sizes)  # which says what is wrong
    return outputs, axes, ends


def _wider(axes: list[_Axis], numbering: int, dtype: torch.dtype) -> torch.dtype | None:
    """The float type to convert the input to if the kernel cannot hold the numbers of its winners.

    ``Winner`` in kernels/cpu/maxima.h makes one integer of an element and a number. It has room for
    2**15 numbers beside an element of two bytes, and for 2**31 beside one of four.
    """
    if numbering == TAPS:
        highest = math.prod([axis[2] for axis in axes])
    else:
        highest = 0
        for size, _, taps, _, _, dilation in axes:
            highest = highest * size + ((taps - 1) * dilation if taps else size - 1)
        highest += 1
    wider = torch.float32 if highest <= 2**31 else torch.float64
    return wider if highest > 2**15 and dtype.itemsize < wider.itemsize else None


def strides_of(sizes: Ints, channels_last: bool) -> Ints:
    """The strides of a new tensor. Plans keep them, because to allocate by strides is
    faster than by a memory format.
    """
    if 0 in sizes:
        like = torch.empty((), dtype=torch.uint8, device="meta")
        return tensors.empty(sizes, like, channels_last).stride()
    inner = (sizes[1], *sizes[:1:-1]) if channels_last else sizes[:0:-1]
    strides = tuple(itertools.accumulate(inner, operator.mul, initial=1))
    return (strides[-1], 1, *strides[-2:0:-1]) if channels_last else strides[::-1]


@lru_cache(1024)
def _masking(shape: Ints, batch: Ints, is_last: bool, dtype: torch.dtype, fill: float) -> Ints:
    """The fields of ``Masking`` in kernels/cpu/geometry.h, but for the mask's address, for an input
    of ``shape`` and a mask with the first two sizes ``batch``.
    """
    if any(size not in (1, wanted) for size, wanted in zip(batch, shape, strict=False)):
        raise RuntimeError(f"a mask of {batch} samples and channels does not fit shape {shape}")
    samples, channels = shape[:2]
    is_of_sample, is_of_channel = batch[0] == samples, batch[1] == channels
    if is_last or is_of_sample == is_of_channel:
        groups, is_own, step = 1, int(is_of_sample), 0
    else:
        groups, is_own, step = samples, int(is_of_channel), int(is_of_sample)
    planes = (samples if is_last else samples * channels) // groups
    filled = torch.full((1,), fill, dtype=dtype, device="cpu").view(torch.uint8).tolist()
    bits = int.from_bytes(filled, sys.byteorder, signed=True)
    return groups, planes, is_own, step, batch[1] if is_last else 1, bits


@lru_cache(256)
def quantization(channels: int, output_dtype: torch.dtype, parameters: Parameters) -> Any:
    """The struct of scales and zero points, and the tensors whose memory it points to. Those of
    numbers are kept, because a small call would spend much of its time on them.

    ``parameters``: the input's scale and zero point, and then the output's.
    """
    scale, zero, output_scale, output_zero = (0 if each is None else each for each in parameters)
    floats, ints = (scale, output_scale), (zero, output_zero)
    vectors = [torch.as_tensor(each, dtype=torch.float32, device="cpu") for each in floats]
    vectors += [torch.as_tensor(each, dtype=torch.int32, device="cpu") for each in ints]
    vectors = [each.contiguous() for each in vectors]
    pointers, counts = [each.data_ptr() for each in vectors], [each.numel() for each in vectors]
    limits = torch.iinfo(output_dtype)
    return Quantization(*pointers, *counts, channels, limits.min, limits.max), vectors
