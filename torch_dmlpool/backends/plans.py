"""What a call of the CPU kernels is given: its plan with the struct of its problem, and the struct
of scales and zero points. Plans are made once for each request.
"""

import ctypes
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends.library import POSITIONS, TAPS, Axis, Counting, Problem, Quantization
from torch_dmlpool.window import Window

Windows = Window | tuple[int, ...]
"""A sliding window, or the output sizes of bins."""
DATA_TYPES = {
    dtype: number
    for number, dtype in enumerate(
        (
            torch.float32,
            torch.float64,
            torch.float16,
            torch.bfloat16,
            torch.int8,
            torch.int16,
            torch.int32,
            torch.int64,
            torch.uint8,
            torch.uint16,
            torch.uint32,
            torch.uint64,
            torch.bool,
        )
    )
}
"""The numbers of the data types in kernels/cpu/vectors.h."""
QUANTIZED_TENSORS = (torch.quint8, torch.qint8) if hasattr(torch, "quint8") else ()
"""Types of quantized tensors. The kernels read and write them as they are: ``int_repr`` and making
a quantized tensor of integers would take a third of a small call."""
DATA_TYPES.update(
    zip(QUANTIZED_TENSORS, (DATA_TYPES[torch.uint8], DATA_TYPES[torch.int8]), strict=False)
)

KEPT_OUTPUTS = 1 << 16
"""``Columns::KEPT_NUMBERS`` in kernels/cpu/numbers.h. For rows of more outputs the kernels compute
the numbers of winners anew for each row, so :func:`_join_tiled_rows` makes no longer rows."""
SMALL_PLANE = 8
"""Whole planes of at most this many elements are merged into one row where only maxima are asked
for. That makes maxima of 8x512 planes of 8 elements 2.9 times faster, and would make those of 16
elements 1.1 times slower (float32, Zen 4). With winners, planes of all sizes are merged."""
ROW_MOST = 1024
"""Longer planes of one row stay planes, unless they are asked for maxima of windows that tile them:
training of 4x128x2048 by averages 2/2 would be 0.85 times as fast, by maxima 5/5 0.8 (Zen 4)."""
SHORT_WINDOW, SHORT_STRIDE = 15, 4
"""The longest window and stride of averages that may be joined: ``LONG_CONVERTED`` and
``STRIDE_WITHOUT_VECTORS`` in kernels/cpu/choose.cpp, each less 1. From there on the bits of a sum
depend on how many windows a row has."""
TURNED_ROW = 16
"""``TURNED_WIDTH`` in kernels/cpu/choose.cpp: averages of rows up to this long are turned."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A call to the library: the address of its struct, and how the tensors lie.

    A call reads some ten of these attributes, each in a quarter of a named tuple's time.
    """

    problem: int
    memory_format: torch.memory_format
    is_laid_out: bool  # whether the tensor that the plan was made for is in this format
    is_empty: bool
    number_dtype: torch.dtype  # of taps, positions or indices
    # the type to which the input must be converted first, None if it need not be (``_wider``)
    wider: torch.dtype | None
    sizes: tuple[int, ...]  # of the tensor that windows read, and its strides in the memory format
    strides: tuple[int, ...]
    output_sizes: tuple[int, ...]  # the same of a tensor with an element for each window
    output_strides: tuple[int, ...]
    struct: Any  # keeps the memory at the address ``problem``


@functools.lru_cache(maxsize=4096)
def planned(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
    window: Windows,
    counted: tuple[bool, int | None] | None = None,
    spatial_sizes: tuple[int, ...] | None = None,
    numbered: tuple[torch.dtype | None, int] | None = None,
    memory_format: torch.memory_format | None = None,
) -> Plan:
    """The plan of a call for a tensor of ``shape`` and ``strides``, with elements of ``dtype``.

    Forward operators give a tensor that windows read. Gradients and functions of taps or positions
    give a tensor with an element for each window, and the ``spatial_sizes`` of what windows read.

    - ``window``: the window, or the output sizes of bins. Functions of positions give the spatial
      sizes of the positions.
    - ``counted``: for averages whether padding counts, and the divisor or None.
    - ``numbered``: the data type of taps, positions or indices (None for the one that holds the
      window's taps), and which of these three they are.
    - ``memory_format``: that of the results; None for the one that PyTorch suggests.
    """
    given = torch.empty_strided(shape, strides, dtype=torch.uint8, device="meta")
    memory_format = memory_format or operands.suggested_memory_format(given)
    is_contiguous = memory_format is torch.contiguous_format
    input_sizes = shape[2:] if spatial_sizes is None else spatial_sizes
    outputs, axes, ends = _axes_of(window, input_sizes, are_averaged=counted is not None)
    if spatial_sizes is not None and isinstance(window, Window):
        _check_arriving(shape, dtype, window, outputs, None if counted else numbered)
    if counted or is_contiguous:
        _join_rows(axes, ends)
    samples, channels = shape[:2]
    planes, inner_channels = (samples * channels, 1) if is_contiguous else (samples, channels)
    _join_tiled_rows(axes, ends, None if counted else KEPT_OUTPUTS // max(1, inner_channels))
    number_dtype, numbering = numbered or (torch.uint8, TAPS)
    if number_dtype is None:
        number_dtype = operands.tap_dtype(window.taps)  # type: ignore[union-attr]
    wider = _wider(axes, numbering, dtype)
    is_gradient = spatial_sizes is not None
    # Averages with scales or under a mask tell planes apart, and channels fill vectors as they are.
    are_alike = dtype.is_floating_point and numbered is None and is_contiguous
    if _joins_averages(axes, are_alike, is_gradient) if counted else not is_gradient:
        planes, numbering = _join_planes(axes, ends, planes, numbering, numbered is not None)
    unit = (1, 1, axes[0][2] and 1, 1, 0, 1)
    missing = 3 - len(axes)
    include_padding, divisor = counted or (False, None)
    problem = Problem(
        planes,
        inner_channels,
        (Axis * 3)(*(Axis(*axis) for axis in [unit] * missing + axes)),
        Counting(include_padding, divisor or 0, (ctypes.c_int64 * 3)(*[0] * missing, *ends)),
        DATA_TYPES[dtype],
        number_dtype.itemsize,
        numbering,
    )
    sizes, output_sizes = (samples, channels, *input_sizes), (samples, channels, *outputs)
    return Plan(
        ctypes.addressof(problem),
        memory_format,
        given.is_contiguous(memory_format=memory_format),
        0 in sizes + output_sizes,
        number_dtype,
        wider,
        sizes,
        strides_of(sizes, memory_format),
        output_sizes,
        strides_of(output_sizes, memory_format),
        problem,
    )


def _check_arriving(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    window: Window,
    outputs: Sequence[int],
    numbered: tuple[torch.dtype | None, int] | None,
) -> None:
    """Reject what arrives at windows, or their taps, where it has other sizes or another type than
    the windows' results. Backward operators get here what a hook of saved tensors may have changed.
    """
    if shape[2:] != tuple(outputs):
        raise RuntimeError(
            f"the windows have results of sizes {tuple(outputs)}, but their gradient or their taps "
            f"have shape {shape}"
        )
    if numbered is not None:
        given = numbered[0] if numbered[1] == TAPS else dtype
        if given is not operands.tap_dtype(window.taps):
            wanted = operands.name_of(operands.tap_dtype(window.taps))
            raise RuntimeError(f"taps must have data type {wanted}, got {operands.name_of(given)}")


_Axis = tuple[int, int, int, int, int, int]
"""Size, outputs, window, stride, start padding and dilation; a window of 0 stands for bins."""

_ONE_ROW: _Axis = 1, 1, 1, 1, 0, 1


def _axes_of(
    window: Windows, sizes: Sequence[int], are_averaged: bool
) -> tuple[Sequence[int], list[_Axis], list[int]]:
    """The output sizes of a window or of bins, its axes, and the end padding of each."""
    if not isinstance(window, Window):
        axes = [_bins(size, count, are_averaged) for size, count in zip(sizes, window, strict=True)]
        return window, axes, [0] * len(axes)
    outputs = window.output_sizes(sizes)
    axes = [
        (size, count, axis.window, axis.stride, axis.start_padding, axis.dilation)
        for size, count, axis in zip(sizes, outputs, window.axes, strict=True)
    ]
    ends = [axis.end_padding for axis in window.axes]
    while len(axes) > 1 and axes[0][:3] == _ONE_ROW[:3] and axes[0][4] == ends[0] == 0:
        del axes[0], ends[0]
    return outputs, axes, ends


def _bins(size: int, count: int, are_averaged: bool) -> _Axis:
    """An axis of bins, whose window is 0. For averages, bins of one size are made a window.

    Bins have no stride: the kernels compute where each begins from the two sizes. The step between
    bins of maxima, rounded down, only tells ``choose.cpp`` how far apart they lie; averages say 1.
    """
    step, rest = divmod(size, max(1, count))
    if not are_averaged:
        return size, count, 0, max(1, step), 0, 1
    return (size, count, 0, 1, 0, 1) if rest else (size, count, step, step, 0, 1)


def _join_rows(axes: list[_Axis], ends: list[int]) -> None:
    """Merge the last two axes into one while each window reads whole rows.

    A row of n elements then counts as n positions of the merged axis. Taps keep their numbers.
    """
    while len(axes) > 1:
        rows, outputs, row_taps, stride, row_padding, row_dilation = axes[-2]
        size, count, taps, _, padding, dilation = axes[-1]
        is_whole = (count, taps, padding, dilation) == (1, size, 0, 1)
        if not is_whole or (size > 1 and (row_taps == 0 or row_dilation > 1)):
            return
        axes[-2:] = [
            (rows * size, outputs, row_taps * size, stride * size, row_padding * size, row_dilation)
        ]
        ends[-2:] = [ends[-2] * size]


def _is_tiled(axis: _Axis) -> bool:
    """Whether windows lie one after the other, each inside the input, up to its end."""
    size, count, taps, stride, padding, dilation = axis
    return 0 < taps <= stride and count * stride == size and (padding, dilation) == (0, 1)


def _join_tiled_rows(axes: list[_Axis], ends: list[int], most: int | None) -> None:
    """Merge the last two axes into one where windows of one row each tile that row.

    The new axis has at most ``most`` outputs. Maxima of 2048x2x2x4 by 1x1x2 are 10 times faster,
    and their gradient 2 times.
    """
    while len(axes) > 1:
        rows, row_outputs, row_taps, row_stride, row_padding, _ = axes[-2]
        size, count, *rest = axes[-1]
        is_one_row = (row_outputs, row_taps, row_stride, row_padding) == (rows, 1, 1, 0)
        if not is_one_row or not _is_tiled(axes[-1]) or (most is not None and rows * count > most):
            return
        axes[-2:] = [(rows * size, rows * count, *rest)]  # type: ignore[list-item]
        ends[-2:] = ends[-1:]


def _wider(axes: list[_Axis], numbering: int, dtype: torch.dtype) -> torch.dtype | None:
    """The float type to convert the input to if the kernel cannot hold the numbers of its winners.

    ``Winner`` in kernels/cpu/maxima.h makes one integer of an element and a number. It has room for
    2**15 numbers beside an element of two bytes, and for 2**31 beside one of four.
    """
    reach = 0
    for size, _, taps, _, _, dilation in axes:
        reach = reach * size + ((taps - 1) * dilation if taps else size - 1)
    highest = math.prod([axis[2] for axis in axes]) if numbering == TAPS else reach + 1
    wider = torch.float32 if highest <= 2**31 else torch.float64
    return wider if highest > 2**15 and dtype.itemsize < wider.itemsize else None


def _joins_averages(axes: list[_Axis], are_alike: bool, is_gradient: bool) -> bool:
    """Whether rows may be averaged as one plane (``_join_planes``), and are faster then.

    Short rows are turned instead, unless windows tile them. Gradients of windows that share no
    element are copies, which many rows make no faster. Averages of 512x64x17 by 2/2 are 9 times
    faster, by 3/1 4 times, and training by 3/1 4 times.
    """
    size, count, taps, stride, *_ = axes[0]
    if not are_alike or len(axes) > 1 or count == 1 or size > ROW_MOST:
        return False
    is_short = 0 < taps <= SHORT_WINDOW and stride <= SHORT_STRIDE
    has_rows = size > TURNED_ROW and (taps > stride or not is_gradient)
    return is_short and (has_rows or _is_tiled(axes[0]))


def _join_planes(
    axes: list[_Axis], ends: list[int], planes: int, numbering: int, has_winners: bool
) -> tuple[int, int]:
    """Merge all planes into one along the first axis, where windows tile that axis.

    Planes of one row become the rows of one plane, unless their windows tile them: maxima of
    64x128x64 by 3/1 are 4 times faster.

    Returns the number of planes and the winners' numbering. A single window begins where its plane
    does, so its winner's position is its tap: POSITIONS become TAPS. Maxima of many small planes
    are 10 times faster.
    """
    size, count, taps, *_ = axes[0]
    if len(axes) == 1 < count and taps > 0 and size <= ROW_MOST and not _is_tiled(axes[0]):
        axes.insert(0, _ONE_ROW)
        ends.insert(0, 0)
    size, count, taps, stride, padding, dilation = axes[0]
    is_single = len(axes) == count == 1
    if is_single:
        stride = size  # A single window has no next one, so its stride does not matter.
    if not _is_tiled((size, count, taps, stride, padding, dilation)):
        return planes, numbering
    if is_single and numbering == POSITIONS:
        numbering = TAPS
    is_whole = is_single and taps == size
    if numbering != TAPS or (is_whole and not has_winners and size > SMALL_PLANE):
        return planes, numbering
    axes[0] = planes * size, planes * count, taps, stride, 0, 1
    return 1, numbering


def strides_of(sizes: tuple[int, ...], memory_format: torch.memory_format) -> tuple[int, ...]:
    """The strides of a new tensor. Plans keep them, because to allocate by strides is 2 times
    faster than by a memory format.
    """
    return torch.empty(
        sizes, dtype=torch.uint8, device="meta", memory_format=memory_format
    ).stride()


def quantization(
    channels: int, output_dtype: torch.dtype, *parameters: float | Tensor | None
) -> tuple[Any, Any]:
    """The struct of scales and zero points, and the objects whose memory it points to.

    ``parameters``: the input's scale and zero point, and then the output's.
    """
    build = _remembered if operands.are_numbers(parameters) else _quantization
    return build(channels, output_dtype, *parameters)


def _quantization(
    channels: int, output_dtype: torch.dtype, *parameters: float | Tensor | None
) -> tuple[Any, Any]:
    kinds = ((torch.float32, ctypes.c_float), (torch.int32, ctypes.c_int32))
    vectors = [_vector(parameters[at], *kinds[at % 2]) for at in (0, 2, 1, 3)]
    pointers, counts, kept = zip(*vectors, strict=True)
    limits = torch.iinfo(output_dtype)
    return Quantization(*pointers, *counts, channels, limits.min, limits.max), kept


_remembered = functools.lru_cache(maxsize=256)(_quantization)
"""Keeps the structs of scales and zero points that are numbers, because to make one takes a third
of a small call."""


def _vector(
    parameter: float | Tensor | None, dtype: torch.dtype, number: type[Any]
) -> tuple[int, int, Any]:
    """The address of a scale or zero point, how many entries it has (1 or one for each channel),
    and the object whose memory they are in.
    """
    if isinstance(parameter, Tensor):
        entries = parameter.to(dtype).contiguous()
        return entries.data_ptr(), entries.numel(), entries
    entry = number(parameter or 0)
    return ctypes.addressof(entry), 1, entry
