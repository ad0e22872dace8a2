"""Every operator in plain PyTorch, for any device. It is used where neither the CPU library nor
Triton can be.

The same functions decompose exported programs into ATen's operators, so batch and image sizes may
be symbolic. A position is an index into the flattened plane. Negative positions mean no element.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from torch_dmlpool import tensors
from torch_dmlpool.backends import aten, reductions, slices
from torch_dmlpool.backends.interface import AnyWindow, Backend
from torch_dmlpool.backends.reductions import are_ints, is_known, numbers
from torch_dmlpool.backends.reference_rows import (
    segment_maxima as segment_maxima,
)
from torch_dmlpool.backends.reference_rows import (
    segment_shares as segment_shares,
)
from torch_dmlpool.backends.reference_rows import (
    segment_sums as segment_sums,
)
from torch_dmlpool.backends.reference_rows import (
    statistics as statistics,
)
from torch_dmlpool.backends.reference_rows import (
    statistics_grad as statistics_grad,
)
from torch_dmlpool.tensors import SIGNED, lowest, numbered, signed, where, widened
from torch_dmlpool.window import Axis, Window


def _reject_sizes(input: Tensor, windows: AnyWindow) -> None:
    """Raise an error if windows leave no output (rule G5), which callers leave to the backend.

    Symbolic sizes were checked when the program was traced.
    """
    if isinstance(windows, Window) and are_ints(*input.shape[2:]):
        windows.output_sizes(input.shape[2:])


def average_pooling(input: Tensor, windows: AnyWindow, *counted: Any) -> Tensor:
    """Averages of windows or bins. ``counted``: whether padding counts, and the divisor or None."""
    _reject_sizes(input, windows)
    wide = widened(input)
    (sums,) = slices.pooled((wide,), windows, reductions.SUM)
    divisor = slices.divisor(windows, input.shape[2:], wide, *counted)
    averages = sums if isinstance(divisor, int) and divisor == 1 else sums / divisor
    return tensors.laid_out_like(averages.to(input.dtype), input)


def average_pooling_grad(
    input_gradient: Tensor, spatial_sizes: Sequence[int], windows: AnyWindow, *counted: Any
) -> Tensor:
    """The gradient of the input (rule A6): each element gets the sum of the divided gradients of
    the windows that read it.
    """
    wide = widened(input_gradient)
    shares = wide / slices.divisor(windows, spatial_sizes, wide, *counted)
    if slices.covers_all(windows, spatial_sizes):
        sums = shares.to(input_gradient.dtype).expand(*shares.shape[:2], *spatial_sizes)
        return tensors.laid_out_like(sums, input_gradient)
    is_plain = aten.is_plain_cpu(shares)
    # Passes are over memory in order, as in slices.pooled.
    moves = is_plain and tensors.is_channels_last(shares)
    if moves:
        shares = shares.movedim(1, -1)
    parts = reductions.parts(windows)
    for dim, (part, size) in enumerate(zip(parts, spatial_sizes, strict=True), 1 if moves else 2):
        added = slices.spread(shares, dim, part, size) if is_plain else None
        if added is None:
            readers = reductions.windows_over(part, shares.shape[dim], size, shares)
            (added,) = reductions.reduced((shares,), dim, readers, reductions.SUM)
        shares = added
    shares = shares.movedim(-1, 1) if moves else shares
    return tensors.laid_out_like(shares.to(input_gradient.dtype), input_gradient)


def quantized_linear_average_pooling(input: Tensor, *arguments: Any) -> Tensor:
    """Exact sums, requantized once (rules Q1, Q2 and Q6).

    ``arguments``: scale and zero point of the input and of the output, the window,
    ``include_padding``, the output's data type.
    """
    if input.device.type == "mps":  # has no float64
        on_cpu = (each.cpu() if isinstance(each, Tensor) else each for each in arguments)
        return quantized_linear_average_pooling(input.cpu(), *on_cpu).to(input.device)
    window, sizes = arguments[4], input.shape[2:]
    _reject_sizes(input, window)
    sum_type = torch.int32 if is_known(window.taps * 255 < 2**31) else torch.int64
    (sums,) = slices.pooled((input.to(sum_type),), window, reductions.SUM)
    return tensors.laid_out_like(requantized(sums, sizes, *arguments), input)


def requantized(sums: Tensor, sizes: Sequence[int], *arguments: Any) -> Tensor:
    """Quantized averages, as exact arithmetic has them, from the integer ``sums`` of windows over
    ``sizes``.
    """
    *parameters, window, include_padding, output_dtype = arguments

    def vector(parameter: Any, dtype: torch.dtype) -> Tensor:
        if not isinstance(parameter, Tensor):
            parameter = torch.full((1,), parameter or 0, dtype=dtype, device=sums.device)
        return parameter.to(dtype).view(1, -1, *(1 for _ in sizes))

    types = (torch.float64, sums.dtype, torch.float64, torch.float64)
    scale, zero, step, output_zero = (vector(*pair) for pair in zip(parameters, types, strict=True))
    # Integers, as a float64 would round divisors above 2^53.
    like = torch.empty((), dtype=torch.int64, device=sums.device)
    divisor = slices.divisor(window, sizes, like, include_padding)
    if not isinstance(divisor, Tensor):
        divisor = torch.full((1,), divisor, dtype=torch.int64, device=sums.device)
    sums = sums - slices.counts(window, sizes, sums, include_padding=False) * zero
    real = sums.to(torch.float64) * scale / (divisor.to(torch.float64) * step)
    # Up to 2^20 taps the quotient is rounded to no half that it is not.
    if not is_known(window.taps <= 2**20):
        real = _on_its_side_of_a_half(real, sums.to(torch.int64), divisor, scale, step)
    limits = torch.iinfo(output_dtype)
    return (real.round() + output_zero).clamp(limits.min, limits.max).to(output_dtype)


def _on_its_side_of_a_half(
    real: Tensor, sums: Tensor, divisor: Tensor, scale: Tensor, step: Tensor
) -> Tensor:
    """Correct float64 quotients that lie so near to a half that they could round to the wrong side.

    Integers decide exactly: twice the distance to the half times the denominator is an integer.
    """
    whole = real.floor()
    near = ((real - whole - 0.5).abs() < 2.0**-40 * (1 + whole.abs())) & (whole.abs() < 512)
    (first, exponent), (second, other) = map(torch.frexp, (scale, step))
    first, second = (mantissa.mul(2.0**24).to(torch.int64) for mantissa in (first, second))
    exponent = exponent.to(torch.int64) - other

    def shifted(integers: Tensor, bits: Tensor) -> Tensor:
        return (integers << bits.clamp(0, 32)) << (bits - 32).clamp(0, 32)

    # Both wrap around alike, and where the quotient is near a half their difference is small.
    product = shifted(sums * first, 1 + exponent.clamp(min=0))
    odd = 2 * whole.clamp(-512, 512).to(torch.int64) + 1
    half = shifted(odd * divisor * second, (-exponent).clamp(min=0))
    return torch.where(near, whole + 0.5 + 0.25 * (product - half).sign(), real)


FLOAT_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def _flipped(tensor: Tensor) -> Tensor:
    """The sign bit inverted: unsigned integers, viewed as signed, in their order, or back."""
    return tensor ^ torch.iinfo(tensor.dtype).min


def _ordered(source: Tensor) -> Tensor:
    """Signed integers in the order of the values. NaN is the greatest, and zeros are equal."""
    if source.dtype in SIGNED:
        return _flipped(signed(source))
    if not source.dtype.is_floating_point:
        return source
    wide = widened(source)
    bits = torch.where(wide.isnan(), math.nan, wide + 0.0).view(FLOAT_BITS[wide.dtype])
    return torch.where(bits < 0, bits ^ torch.iinfo(bits.dtype).max, bits)


def _winners(input: Tensor, windows: AnyWindow) -> Tensor:
    """The position of the first greatest element, or of the first NaN, of each window or bin; -1
    for a window of padding alone.
    """
    sizes, ordered = input.shape[2:], _ordered(input)
    positions = numbers(math.prod(sizes), input).view(sizes).expand(input.shape)
    _, found = slices.pooled((ordered, positions), windows, reductions.first_maximum(ordered.dtype))
    return cast(Tensor, found.where(found != reductions.NOWHERE, -1))


def _elements(input: Tensor, positions: Tensor, fill: float) -> Tensor:
    """The element at each position, ``fill`` where there is none."""
    flat = positions.flatten(2)
    found = signed(input).flatten(2).gather(-1, flat.clamp(min=0)).where(flat >= 0, fill)
    return found.view(input.dtype).view(positions.shape)


def _maxima_at(input: Tensor, positions: Tensor) -> Tensor:
    """The elements at positions; where there is none, the lowest value."""
    fill = 0 if input.dtype in SIGNED else lowest(input.dtype)
    return tensors.laid_out_like(_elements(input, positions, fill), input)


def _scattered(
    source: Tensor, positions: Tensor, sizes: Sequence[int], are_unique: bool = False
) -> Tensor:
    """Zeros of ``sizes`` with each element added at its position, in the elements' order. Half
    precision is added in float32.
    """
    wide, plane = widened(signed(source)), math.prod(sizes)
    found = None if are_unique else aten.scattered(wide, positions, sizes)
    if found is not None:
        return found.to(source.dtype)
    flat, wide = positions.flatten(2).to(torch.int64), wide.flatten(2)
    # Elements without a position are added to one more element, which is cut off.
    total = wide.new_zeros((*flat.shape[:2], plane + 1))
    add = (
        torch.Tensor.scatter
        if are_unique
        else torch.Tensor.scatter_add
        if source.is_cpu
        else _add_sorted
    )
    total = add(total, -1, flat.where(flat >= 0, plane), wide)[..., :plane].unflatten(
        -1, tuple(sizes)
    )
    return total.view(source.dtype) if source.dtype in SIGNED else total.to(source.dtype)


def _add_sorted(total: Tensor, dim: int, positions: Tensor, added: Tensor) -> Tensor:  # noqa: ARG001
    """``scatter_add`` in the elements' order, for devices other than the CPU.

    ``scatter_add`` has no fixed order on these devices, but ``index_put`` sorts before it adds.
    """
    rows = (
        numbers(math.prod(total.shape[:-1]), total)
        .view(*total.shape[:-1], 1)
        .expand(positions.shape)
    )
    return (
        total.view(-1, total.shape[-1])
        .index_put((rows, positions), added, accumulate=True)
        .view(total.shape)
    )


def _axes(window: Window, sizes: Sequence[int], like: Tensor) -> Iterator[tuple[Axis, int, Tensor]]:
    """Each axis, from the last to the first, its size, and where each window's first tap lies."""
    for inner, (axis, size) in enumerate(zip(reversed(window.axes), reversed(sizes), strict=True)):
        first = reductions.firsts(axis, size, like).to(like.dtype)
        yield axis, size, first.view(-1, *[1] * inner)


def _divided(left: Tensor, divisor: int) -> tuple[Tensor, Tensor]:
    """The quotients and the remainders of numbers that are not negative."""
    if divisor == 1:
        return left, torch.zeros_like(left)
    if aten.is_plain_cpu(left):  # floats are divided in vectors, and exactly enough below 2^53
        quotients = left.to(torch.float64).div(divisor).to(left.dtype)
    else:
        quotients = left.div(divisor, rounding_mode="trunc")
    return quotients, left.sub(quotients, alpha=divisor)


def _are_within(numbers: Tensor, count: int) -> bool | Tensor:
    """Which ``numbers`` are at least 0 and below ``count``; True if it can be seen that all are."""
    is_seen = aten.is_plain_cpu(numbers) and numbers.numel() > 0
    if is_seen and numbers.amin() >= 0 and numbers.amax() < count:
        return True
    return (numbers >= 0) & (numbers < count)


def _number_dtype(sizes: Sequence[int], window: Window) -> torch.dtype:
    """The data type that holds all taps and positions, and positions in the padding."""
    axes = zip(window.axes, sizes, strict=True)
    reach = [size + axis.start_padding + axis.end_padding + axis.extent for axis, size in axes]
    return tensors.position_dtype(max(*reach, math.prod(sizes), window.taps))


def taps_of(positions: Tensor, sizes: Sequence[int], window: Window) -> Tensor:
    """The number of each window's winning tap, 0 where the window is empty (rule M6)."""
    left, step = positions.to(_number_dtype(sizes, window)), 1
    inside: Any = _are_within(left, math.prod(sizes))
    taps: Any = None
    for axis, size, first in _axes(window, sizes, left):
        left, at = _divided(left, size) if axis is not window.axes[0] else (left, left)
        along = at - first
        if axis.dilation != 1:
            along = along.div(axis.dilation, rounding_mode="trunc")
        taps, step = along if taps is None else taps.add(along, alpha=step), step * axis.window
    taps = taps.to(tensors.tap_dtype(window.taps))
    return taps if inside is True else taps.where(inside, 0)


def _positions(taps: Tensor, sizes: Sequence[int], window: Window) -> Tensor:
    """The position of each window's winning tap; -1 where it lies outside, as in empty windows."""
    left, step = taps.to(_number_dtype(sizes, window)), 1
    inside: Any = _are_within(left, window.taps)
    positions: Any = None
    for axis, size, first in _axes(window, sizes, left):
        left, along = _divided(left, axis.window) if axis is not window.axes[0] else (left, left)
        at = along * axis.dilation + first
        inside = inside & _are_within(at, size)
        positions, step = at if positions is None else positions.add(at, alpha=step), step * size
    return positions if inside is True else positions.where(inside, -1)


def max_pooling(input: Tensor, window: Window) -> Tensor:
    """Maxima."""
    _reject_sizes(input, window)
    found = aten.maxima(input, window)
    if found is not None:
        return found
    source = _flipped(signed(input)) if input.dtype in SIGNED else input
    (values,) = slices.pooled((source,), window, reductions.maximum(source.dtype))
    return tensors.laid_out_like(
        _flipped(values).view(input.dtype) if input.dtype in SIGNED else values, input
    )


def _found(input: Tensor, windows: AnyWindow) -> tuple[Tensor, Tensor]:
    """Maxima and their positions."""
    _reject_sizes(input, windows)
    found = aten.winners(input, windows) if isinstance(windows, Window) else None
    if found is None:
        positions = _winners(input, windows)
        found = _maxima_at(input, positions), positions
    return found


def max_pooling_with_taps(input: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Maxima and the numbers of their taps."""
    values, positions = _found(input, window)
    taps = taps_of(positions, input.shape[2:], window)
    return values, tensors.laid_out_like(taps, input)


def max_pooling_with_indices(
    input: Tensor, windows: AnyWindow, *numbering: Any
) -> tuple[Tensor, Tensor]:
    """Maxima and their indices. ``numbering``: the indices' data type, and whether they count in
    each plane (else in the whole tensor).
    """
    values, positions = _found(input, windows)
    indices = numbered(positions, input.shape, *numbering)
    return values, tensors.laid_out_like(indices, input)


def adaptive_max_pooling(input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Maxima of bins and their positions."""
    return max_pooling_with_indices(
        input, output_sizes, tensors.position_dtype(math.prod(input.shape[2:])), True
    )


def max_pooling_indices(
    taps: Tensor, spatial_sizes: Sequence[int], window: Window, *numbering: Any
) -> Tensor:
    """The indices of taps. ``numbering``: as in :func:`max_pooling_with_indices`."""
    return tensors.laid_out_like(
        numbered(
            _positions(taps, spatial_sizes, window), (*taps.shape[:2], *spatial_sizes), *numbering
        ),
        taps,
    )


def max_pooling_grad_from_taps(
    input_gradient: Tensor,
    taps: Tensor,
    spatial_sizes: Sequence[int],
    window: Window,
    channels_last: bool,
) -> Tensor:
    """The gradient of the input: each window's gradient is added to its winner's, in the order of
    the windows.
    """
    positions = _positions(taps, spatial_sizes, window)
    gradient = _scattered(input_gradient, positions, spatial_sizes)
    return tensors.laid_out(gradient, tensors.named_memory_format(channels_last, window.rank))


def _inside(positions: Tensor, plane: int) -> Tensor:
    """Positions, with -1 for those outside a plane of ``plane`` elements."""
    positions = positions.to(torch.int64)
    return positions.where((positions >= 0) & (positions < plane), -1)


def unique_positions(positions: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """Positions with -1 for those outside the plane, and for all but the last of equal ones."""
    plane = math.prod(spatial_sizes)
    flat = _inside(positions, plane).flatten(2)
    order = numbers(flat.shape[-1], flat).expand(flat.shape)
    nothing = torch.full((*flat.shape[:2], plane), -1, dtype=torch.int64, device=flat.device)
    last = nothing.scatter_reduce(-1, flat.clamp(min=0), order.where(flat >= 0, -1), "amax")
    unique = flat.where(last.gather(-1, flat.clamp(min=0)) == order, -1).view(positions.shape)
    return tensors.laid_out_like(unique.to(tensors.position_dtype(plane)), positions)


def gather_positions(input: Tensor, positions: Tensor, bins: bool = False) -> Tensor:  # noqa: ARG001
    """The element at each position, 0 where there is none. ``bins`` is unused: its gradient reads
    it.
    """
    return tensors.laid_out_like(
        _elements(input, _inside(positions, math.prod(input.shape[2:])), 0), positions
    )


def scatter_positions(
    input: Tensor, positions: Tensor, spatial_sizes: Sequence[int], bins: bool, channels_last: bool
) -> Tensor:
    """Zeros with each element at its position. With ``bins`` positions may be equal, and their
    elements are added.
    """
    total = _scattered(
        input, _inside(positions, math.prod(spatial_sizes)), spatial_sizes, are_unique=not bins
    )
    return tensors.laid_out(total, tensors.named_memory_format(channels_last, len(spatial_sizes)))


def masked(input: Tensor, mask: Tensor, fills_lowest: bool) -> Tensor:
    """``input`` where the mask is True, and 0 or its type's lowest value elsewhere."""
    # PyTorch's operator would follow the layout of the mask.
    mask = tensors.laid_out(mask, tensors.suggested_memory_format(input))
    return tensors.laid_out_like(
        where(mask, input, lowest(input.dtype) if fills_lowest else 0), input
    )


def padding_counts(window: Window, sizes: Sequence[int], like: Tensor) -> Tensor:
    """The number of padding's taps that each window counts where padding counts (rules A1 and A2).
    Nothing is subtracted that was rounded.
    """
    padding = inside = torch.ones((), dtype=like.dtype, device=like.device)
    padding = padding - 1
    for axis, size in zip(window.axes, sizes, strict=True):
        first = reductions.firsts(axis, size, like)
        counted = reductions.taps_before(size + axis.end_padding, first, axis)
        read = reductions.read_by(axis, size, like).counts
        missing = (counted - read).to(like.dtype)
        padding = padding.unsqueeze(-1) * counted.to(like.dtype) + inside.unsqueeze(-1) * missing
        inside = inside.unsqueeze(-1) * read.to(like.dtype)
    return padding


BACKEND = Backend.of("reference", globals())
