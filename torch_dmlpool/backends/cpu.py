"""The CPU backend: a call of the compiled kernels for each operator.

What each operator computes is said in ``reference``, and how the library is loaded in ``library``.
"""

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool._private import empty_strided_cpu as _new
from torch_dmlpool.backends import reference
from torch_dmlpool.backends.interface import Backend
from torch_dmlpool.backends.library import (
    INDICES,
    POSITIONS,
    TAPS,
    Axis,
    Counting,
    Masking,
    Problem,
    Quantization,
    error_of,
    library,
)
from torch_dmlpool.backends.library import missing as missing
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
        )
    )
}
"""The numbers of the data types in kernels/cpu/vectors.h."""
QUANTIZED_TENSORS = (torch.quint8, torch.qint8) if hasattr(torch, "quint8") else ()
"""Of quantized tensors, which are taken as they are: to take one apart and make one takes a third
of a small call."""
DATA_TYPES.update(
    zip(QUANTIZED_TENSORS, (DATA_TYPES[torch.uint8], DATA_TYPES[torch.int8]), strict=False)
)


class Plan(NamedTuple):
    """A call to the library: the address of its struct, and how the tensors lie."""

    problem: int
    memory_format: torch.memory_format
    is_laid_out: bool  # whether the tensor that the plan was made for is in this format
    is_empty: bool
    number_dtype: torch.dtype  # of winners
    # in which elements are compared where their type has no room for the winners' numbers
    wider: torch.dtype | None
    sizes: tuple[int, ...]  # of what the plan's windows read, and its strides in this format
    strides: tuple[int, ...]
    output_sizes: tuple[int, ...]  # of what they give, likewise
    output_strides: tuple[int, ...]
    struct: Any  # kept as long as its address


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

    The windows read that tensor, or they gave it where the ``spatial_sizes`` of what they read are
    given. Output sizes in place of a window stand for bins, or for positions in planes. An average
    counts padding and has a divisor. Winners, taps or positions are numbers of a data type, a
    window's tap numbers without one, and count as told. Without a memory format it is the one that
    PyTorch suggests for results computed from the tensor.
    """
    given = torch.empty_strided(shape, strides, dtype=torch.uint8, device="meta")
    memory_format = (
        operands.suggested_memory_format(given) if memory_format is None else memory_format
    )
    is_pooled = spatial_sizes is None
    spatial_sizes = shape[2:] if spatial_sizes is None else spatial_sizes
    axes: list[tuple[int, ...]]
    if isinstance(window, Window):
        outputs = window.output_sizes(spatial_sizes)
        axes = [
            (size, count, axis.window, axis.stride, axis.start_padding, axis.dilation)
            for size, count, axis in zip(spatial_sizes, outputs, window.axes, strict=True)
        ]
    else:
        outputs = window
        axes = [
            _bins(*pair, counted is not None) for pair in zip(spatial_sizes, outputs, strict=True)
        ]
    channels_last = memory_format is not torch.contiguous_format
    ends = (
        [axis.end_padding for axis in window.axes]
        if isinstance(window, Window)
        else [0] * len(axes)
    )
    # A window over whole rows is one along the axis before, whose elements are rows: taps keep
    # their numbers.
    while len(axes) > 1 and (counted or not channels_last):
        size, count, taps, _, padding, dilation = axes[-1]
        if (count, taps, padding, dilation) != (1, size, 0, 1) or (
            size > 1 and (axes[-2][2] == 0 or axes[-2][5] > 1)
        ):
            break
        rows, count, taps, stride, padding, dilation = axes[-2]
        axes[-2:] = [(rows * size, count, taps * size, stride * size, padding * size, dilation)]
        ends[-2:] = [ends[-2] * size]
    samples, channels = shape[:2]
    planes, lanes = (samples, channels) if channels_last else (samples * channels, 1)
    number_dtype, numbering = numbered or (torch.uint8, TAPS)
    if number_dtype is None:
        number_dtype = operands.tap_dtype(window.taps)  # type: ignore[union-attr]
    # The kernel numbers winners in the lower half of integers of twice an element's size, of four
    # bytes at least.
    reach = 0
    for size, _, taps, _, _, dilation in axes:
        reach = reach * size + ((taps - 1) * dilation if taps else size - 1)
    highest = math.prod([axis[2] for axis in axes]) if numbering == TAPS else reach + 1
    wider = torch.float32 if highest <= 2**31 else torch.float64
    # Planes that windows tile are one plane: where there are many small ones maxima take a tenth of
    # the time.
    size, count, taps, stride, padding, dilation = axes[0]
    is_tiled = 0 < taps <= stride and count * stride == size and (padding, dilation) == (0, 1)
    if is_pooled and counted is None and is_tiled:
        is_whole = len(axes) == count == 1
        if numbering == POSITIONS and is_whole:
            numbering = TAPS
        if numbering == TAPS and not is_whole:
            axes[0], planes = (planes * size, planes * count, taps, stride, 0, 1), 1
    unit = (1, 1, axes[0][2] and 1, 1, 0, 1)
    all_axes = (Axis * 3)(*(Axis(*axis) for axis in [unit] * (3 - len(axes)) + axes))
    include_padding, divisor = counted or (False, None)
    counting = Counting(
        include_padding, divisor or 0, (ctypes.c_int64 * 3)(*[0] * (3 - len(ends)), *ends)
    )
    problem = Problem(
        planes, lanes, all_axes, counting, DATA_TYPES[dtype], number_dtype.itemsize, numbering
    )
    sizes, output_sizes = (samples, channels, *spatial_sizes), (samples, channels, *outputs)
    return Plan(
        ctypes.addressof(problem),
        memory_format,
        given.is_contiguous(memory_format=memory_format),
        0 in sizes + output_sizes,
        number_dtype,
        wider if highest > 2**15 and dtype.itemsize < wider.itemsize else None,
        sizes,
        _strides_of(sizes, memory_format),
        output_sizes,
        _strides_of(output_sizes, memory_format),
        problem,
    )


def _strides_of(sizes: tuple[int, ...], memory_format: torch.memory_format) -> tuple[int, ...]:
    """The strides of a new tensor: one that is made from strides takes half the time."""
    return torch.empty(
        sizes, dtype=torch.uint8, device="meta", memory_format=memory_format
    ).stride()


def _bins(size: int, count: int, are_averaged: bool) -> tuple[int, ...]:
    """An axis of bins, for which a window of 0 stands; averages of bins of one size are those of a
    window.
    """
    step, rest = divmod(size, max(1, count))
    if not are_averaged:
        return size, count, 0, max(1, step), 0, 1
    return (size, count, 0, 1, 0, 1) if rest else (size, count, step, step, 0, 1)


def _filled(
    output: Tensor,
    function: Any,
    plan: Plan,
    source: Tensor,
    numbers: Tensor | None = None,
    *more: int | None,
) -> Tensor:
    """``output`` with what a function of the library computes from ``source``, the ``numbers`` of
    winners and more.
    """
    if plan.is_empty:
        return output.zero_()
    if numbers is None:
        source = source if plan.is_laid_out else source.contiguous(memory_format=plan.memory_format)
        code = function(plan.problem, source.data_ptr(), output.data_ptr(), *more)
    else:
        source = source.contiguous(memory_format=plan.memory_format)
        numbers = (
            numbers if plan.is_laid_out else numbers.contiguous(memory_format=plan.memory_format)
        )
        code = function(plan.problem, source.data_ptr(), numbers.data_ptr(), output.data_ptr())
    if code:
        raise error_of(function, code)
    return output


def max_pooling(input: Tensor, window: Window) -> Tensor:
    plan = planned(input.shape, input.stride(), input.dtype, window)
    values = _new(plan.output_sizes, plan.output_strides, input.dtype)
    return _filled(values, library.dmlpool_max_pooling, plan, input, None, None)


def max_pooling_with_taps(input: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    return _with_winners(input, window, None, TAPS)


def max_pooling_with_indices(
    input: Tensor, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> tuple[Tensor, Tensor]:
    return _with_winners(input, window, index_dtype, POSITIONS if per_plane else INDICES)


def adaptive_max_pooling(input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    dtype = operands.position_dtype(math.prod(input.shape[2:]))
    return _with_winners(input, tuple(output_sizes), dtype, POSITIONS)


def _with_winners(
    input: Tensor,
    window: Windows,
    winner_dtype: torch.dtype | None,
    numbering: int,
    only_winners: bool = False,
) -> tuple[Tensor, Tensor]:
    """Maxima, or the input itself where they are not wanted, and which element of each window they
    are.
    """
    plan = planned(
        input.shape, input.stride(), input.dtype, window, None, None, (winner_dtype, numbering)
    )
    if plan.wider is not None:
        values, winners = _with_winners(
            input.to(plan.wider), window, winner_dtype, numbering, only_winners
        )
        # the least of this type, not of the wider one, where a window is empty
        if not input.is_floating_point():
            values = values.clamp(min=torch.iinfo(input.dtype).min)
        return values.to(input.dtype), winners
    values = input if only_winners else _new(plan.output_sizes, plan.output_strides, input.dtype)
    winners = _new(plan.output_sizes, plan.output_strides, plan.number_dtype)
    if not plan.is_empty:
        source = input if plan.is_laid_out else input.contiguous(memory_format=plan.memory_format)
        output = None if only_winners else values.data_ptr()
        pool = library.dmlpool_max_pooling
        code = pool(plan.problem, source.data_ptr(), output, winners.data_ptr())
        if code:
            raise error_of(pool, code)
    return values, winners


def max_pooling_indices(
    taps: Tensor,
    spatial_sizes: Sequence[int],
    window: Window,
    index_dtype: torch.dtype,
    per_plane: bool,
) -> Tensor:
    numbered = index_dtype, POSITIONS if per_plane else INDICES
    plan = planned(
        taps.shape, taps.stride(), taps.dtype, window, None, tuple(spatial_sizes), numbered
    )
    indices = _new(plan.output_sizes, plan.output_strides, index_dtype)
    return _filled(indices, library.dmlpool_max_pooling_indices, plan, taps)


def max_pooling_grad(input: Tensor, input_gradient: Tensor, window: Window) -> Tensor:
    """The gradient to the winners, which are found again from the input."""
    _, taps = _with_winners(input, window, None, TAPS, only_winners=True)
    return max_pooling_grad_from_taps(
        input_gradient, taps, input.shape[2:], window, operands.is_channels_last(input)
    )


def max_pooling_grad_from_taps(
    input_gradient: Tensor,
    taps: Tensor,
    spatial_sizes: Sequence[int],
    window: Window,
    channels_last: bool,
) -> Tensor:
    """Each window's gradient, added to its winner's."""
    memory_format = operands.named_memory_format(channels_last, window.rank)
    dtype, rest = (
        input_gradient.dtype,
        (None, tuple(spatial_sizes), (taps.dtype, TAPS), memory_format),
    )
    plan = planned(taps.shape, taps.stride(), dtype, window, *rest)
    gradient = _new(plan.sizes, plan.strides, dtype)
    return _filled(gradient, library.dmlpool_max_pooling_grad, plan, input_gradient, taps)


def max_pooling_gather(input: Tensor, taps: Tensor, window: Window) -> Tensor:
    sizes = input.shape[2:]
    positions = max_pooling_indices(
        taps, sizes, window, operands.position_dtype(math.prod(sizes)), True
    )
    return gather_positions(input, positions)


def unique_positions(positions: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    sizes, shape = tuple(spatial_sizes), positions.shape
    numbered = operands.position_dtype(math.prod(sizes)), POSITIONS
    plan = planned(shape, positions.stride(), positions.dtype, shape[2:], None, sizes, numbered)
    unique = _new(plan.output_sizes, plan.output_strides, plan.number_dtype)
    return _filled(unique, library.dmlpool_unique_positions, plan, positions)


def gather_positions(input: Tensor, positions: Tensor, _: bool = False) -> Tensor:
    """The element at each position, 0 outside the plane; whether bins chose them is for its adjoint
    alone.
    """
    shape, strides, numbered = positions.shape, positions.stride(), (positions.dtype, POSITIONS)
    plan = planned(shape, strides, input.dtype, shape[2:], None, input.shape[2:], numbered)
    gathered = _new(plan.output_sizes, plan.output_strides, input.dtype)
    return _filled(gathered, library.dmlpool_gather_positions, plan, input, positions)


def scatter_positions(
    input: Tensor, positions: Tensor, spatial_sizes: Sequence[int], _: bool, channels_last: bool
) -> Tensor:
    """Zeros with each element added at its position, which is right for unique positions too."""
    memory_format = operands.named_memory_format(channels_last, len(spatial_sizes))
    shape, strides, dtype, numbered = (
        positions.shape,
        positions.stride(),
        input.dtype,
        (positions.dtype, POSITIONS),
    )
    plan = planned(
        shape, strides, dtype, shape[2:], None, tuple(spatial_sizes), numbered, memory_format
    )
    scattered = _new(plan.sizes, plan.strides, dtype)
    return _filled(scattered, library.dmlpool_scatter_positions, plan, input, positions)


def average_pooling(input: Tensor, window: Windows, *counted: Any) -> Tensor:
    """Averages of windows; what is ``counted``: whether padding is, and the divisor where that is
    given.
    """
    plan = planned(input.shape, input.stride(), input.dtype, window, counted)
    output = _new(plan.output_sizes, plan.output_strides, input.dtype)
    return _filled(output, library.dmlpool_average_pooling, plan, input)


def adaptive_average_pooling(input: Tensor, output_sizes: Sequence[int]) -> Tensor:
    return average_pooling(input, tuple(output_sizes), False, None)


def average_pooling_grad(
    input_gradient: Tensor, spatial_sizes: Sequence[int], window: Windows, *counted: Any
) -> Tensor:
    """The adjoint of the average for an input of ``spatial_sizes``, in the layout of
    ``input_gradient``.
    """
    dtype = input_gradient.dtype
    plan = planned(
        input_gradient.shape, input_gradient.stride(), dtype, window, counted, tuple(spatial_sizes)
    )
    gradient = _new(plan.sizes, plan.strides, dtype)
    return _filled(gradient, library.dmlpool_average_pooling_grad, plan, input_gradient)


def adaptive_average_pooling_grad(input_gradient: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    return average_pooling_grad(
        input_gradient, spatial_sizes, input_gradient.shape[2:], False, None
    )


def quantized_linear_average_pooling(
    input: Tensor, *arguments: Any, empty: Callable[..., Tensor] | None = None
) -> Tensor:
    """Of integers, or of a quantized tensor into one that ``empty`` makes of sizes and a memory
    format.
    """
    *parameters, window, include_padding, output_dtype = arguments
    # refuses bad windows
    plan = planned(input.shape, input.stride(), input.dtype, window, (include_padding, None))
    if window.taps >= 1 << 23:  # sums of so many do not fit 32 bits
        return reference.quantized_linear_average_pooling(input, *arguments)
    if empty is None:
        output = _new(plan.output_sizes, plan.output_strides, output_dtype)
    else:
        output = empty(plan.output_sizes, plan.memory_format)
    quantization = _remembered if operands.are_numbers(parameters) else _quantization
    given, _kept = quantization(input.shape[1], output_dtype, *parameters)
    return _filled(
        output,
        library.dmlpool_quantized_average_pooling,
        plan,
        input,
        None,
        ctypes.addressof(given),
    )


def _quantization(
    channels: int, output_dtype: torch.dtype, *parameters: float | Tensor | None
) -> tuple[Any, Any]:
    """The struct of scales and zero points, the input's and then the output's, and what holds their
    entries.
    """
    kinds = ((torch.float32, ctypes.c_float), (torch.int32, ctypes.c_int32))
    vectors = [_vector(parameters[at], *kinds[at % 2]) for at in (0, 2, 1, 3)]
    pointers, counts, kept = zip(*vectors, strict=True)
    limits = torch.iinfo(output_dtype)
    return Quantization(*pointers, *counts, channels, limits.min, limits.max), kept


_remembered = functools.lru_cache(maxsize=256)(_quantization)
"""Of numbers alone: to write them down takes a third of a small call."""


def _vector(
    parameter: float | Tensor | None, dtype: torch.dtype, number: type[Any]
) -> tuple[int, int, Any]:
    """A scale or zero point, one for all channels or one each: where its entries are, how many, and
    what holds them.
    """
    if isinstance(parameter, Tensor):
        entries = parameter.to(dtype).contiguous()
        return entries.data_ptr(), entries.numel(), entries
    entry = number(parameter or 0)
    return ctypes.addressof(entry), 1, entry


def masked(input: Tensor, mask: Tensor, fills_lowest: bool) -> Tensor:
    memory_format = operands.suggested_memory_format(input)
    request = tuple(input.shape), tuple(mask.shape[:2]), input.dtype, memory_format, fills_lowest
    masking, strides = _masking(*request)
    output = _new(request[0], strides, input.dtype)
    if output.numel() == 0:
        return output
    source = input.contiguous(memory_format=memory_format)
    mask = mask.expand(*mask.shape[:2], *input.shape[2:]).contiguous(memory_format=memory_format)
    code = library.dmlpool_masked(
        ctypes.addressof(masking), source.data_ptr(), mask.data_ptr(), output.data_ptr()
    )
    if code:
        raise error_of(library.dmlpool_masked, code)
    return output


@functools.lru_cache(maxsize=1024)
def _masking(
    shape: tuple[int, ...],
    batch: tuple[int, ...],
    dtype: torch.dtype,
    memory_format: torch.memory_format,
    fills_lowest: bool,
) -> tuple[Any, tuple[int, ...]]:
    """The struct for an input of ``shape`` and a mask with the samples and channels of ``batch``,
    and the strides of the result.
    """
    samples, channels, plane = *shape[:2], math.prod(shape[2:])
    of_sample, of_channel = (batch[0] > 1) * batch[1] * plane, int(batch[1] > 1)
    sizes, steps = (samples, channels, plane), (of_sample, of_channel * plane, 1)
    if batch == shape[:2]:
        sizes, steps = (1, 1, math.prod(shape)), (0, 0, 1)
    elif memory_format is not torch.contiguous_format:
        sizes, steps = (samples, plane, channels), (of_sample, batch[1], of_channel)
    fill = reference.lowest(dtype) if fills_lowest else 0
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = torch.full((1,), fill, dtype=dtype, device="cpu").view(integers[dtype.itemsize]).item()
    three = ctypes.c_int64 * 3
    struct = Masking(three(*sizes), three(*steps), dtype.itemsize, bits)
    return struct, _strides_of(shape, memory_format)


BACKEND = Backend(
    "cpu",
    max_pooling=max_pooling,
    max_pooling_with_taps=max_pooling_with_taps,
    max_pooling_with_indices=max_pooling_with_indices,
    max_pooling_indices=max_pooling_indices,
    max_pooling_grad=max_pooling_grad,
    max_pooling_grad_from_taps=max_pooling_grad_from_taps,
    max_pooling_gather=max_pooling_gather,
    adaptive_max_pooling=adaptive_max_pooling,
    unique_positions=unique_positions,
    gather_positions=gather_positions,
    scatter_positions=scatter_positions,
    average_pooling=average_pooling,
    average_pooling_grad=average_pooling_grad,
    adaptive_average_pooling=adaptive_average_pooling,
    adaptive_average_pooling_grad=adaptive_average_pooling_grad,
    quantized_linear_average_pooling=quantized_linear_average_pooling,
    masked=masked,
    quantized_tensors=QUANTIZED_TENSORS,
)
