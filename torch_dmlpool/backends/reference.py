"""Every operator in plain PyTorch, for any device. It is used where neither the CPU library nor
Triton can be.

The same functions decompose exported programs into ATen's operators, so batch and image sizes may
be symbolic. A position is an index into the flattened plane. Negative positions mean no element.
"""

from collections.abc import Iterator
from math import nan, prod

import torch
from torch import Tensor

from torch_dmlpool.backends import aten, reductions, reference_segments
from torch_dmlpool.backends.interface import AnyWindow, Backend, Parameter, Parameters
from torch_dmlpool.backends.reductions import NOWHERE, are_ints, first_maximum
from torch_dmlpool.tensors import (
    SIGNED_FOR,
    Pair,
    ascending,
    full_sizes,
    is_channels_last,
    laid_out,
    laid_out_like,
    lowest,
    numbered,
    position_dtype,
    signed,
    tap_dtype,
    where,
    widened,
)
from torch_dmlpool.window import Axis, Divisor, Sizes, Window, is_known


def _reject_sizes(input: Tensor, windows: AnyWindow) -> None:
    """Raise an error if windows leave no output (rule G5), which callers leave to the backend.

    Symbolic sizes were checked when the program was traced.
    """
    if isinstance(windows, Window) and are_ints(*input.shape[2:]):
        windows.output_sizes(input.shape[2:])


def average_pooling(
    input: Tensor, windows: AnyWindow, include_padding: bool, divisor: Divisor
) -> Tensor:
    """Averages of windows or bins."""
    _reject_sizes(input, windows)
    wide = widened(input)
    (sums,) = reductions.pooled((wide,), windows, reductions.SUM)
    count = reductions.divisor(windows, input.shape[2:], wide, include_padding, divisor)
    averages = sums if isinstance(count, int) and count == 1 else sums / count
    return laid_out_like(averages.to(input.dtype), input)


def average_pooling_grad(
    arriving: Tensor,
    spatial_sizes: Sizes,
    windows: AnyWindow,
    include_padding: bool,
    divisor: Divisor,
) -> Tensor:
    """The gradient of the input (rule A6): each element gets the sum of the divided gradients of
    the windows that read it.
    """
    wide = widened(arriving)
    shares = wide / reductions.divisor(windows, spatial_sizes, wide, include_padding, divisor)
    sums = reductions.spread(shares, windows, spatial_sizes)
    return laid_out_like(sums.to(arriving.dtype), arriving)


def quantized_averages(
    input: Tensor,
    parameters: Parameters,
    window: Window,
    include_padding: bool,
    output_dtype: torch.dtype,
) -> Tensor:
    """Exact sums, requantized once (rules Q1, Q2 and Q6)."""
    if input.device.type == "mps":  # has no float64
        on_cpu = tuple(p.cpu() if isinstance(p, Tensor) else p for p in parameters)
        result = quantized_averages(input.cpu(), on_cpu, window, include_padding, output_dtype)
        return result.to(input.device)
    _reject_sizes(input, window)
    sum_type = torch.int32 if is_known(window.taps * 255 < 2**31) else torch.int64
    (sums,) = reductions.pooled((input.to(sum_type),), window, reductions.SUM)
    kind = parameters, window, include_padding, output_dtype
    return laid_out_like(requantized(sums, input.shape[2:], *kind), input)


def requantized(
    sums: Tensor,
    sizes: Sizes,
    parameters: Parameters,
    window: Window,
    include_padding: bool,
    output_dtype: torch.dtype,
) -> Tensor:
    """Quantized averages, as exact arithmetic has them, from the integer ``sums`` of windows over
    ``sizes``.
    """

    def tensor(parameter: Parameter, dtype: torch.dtype) -> Tensor:
        if isinstance(parameter, Tensor):
            return parameter.to(dtype)
        return torch.full((1,), parameter or 0, dtype=dtype, device=sums.device)

    types = torch.float64, sums.dtype, torch.float64, torch.float64
    vectors = map(tensor, parameters, types)
    scale, zero, step, output_zero = (each.view(1, -1, *(1 for _ in sizes)) for each in vectors)
    # Integers, as a float64 would round divisors above 2^53.
    like = torch.empty((), dtype=torch.int64, device=sums.device)
    divisor = tensor(reductions.divisor(window, sizes, like, include_padding), torch.int64)
    sums = sums - reductions.counts(window, sizes, sums, include_padding=False) * zero
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


def _ordered(source: Tensor) -> Tensor:
    """Signed integers in the order of the values. NaN is the greatest, and zeros are equal."""
    if not source.dtype.is_floating_point:
        return reference_segments.ordered(source)
    wide = widened(source)
    bits = torch.where(wide.isnan(), nan, wide + 0.0).view(FLOAT_BITS[wide.dtype])
    return torch.where(bits < 0, bits ^ torch.iinfo(bits.dtype).max, bits)


def _winners(input: Tensor, windows: AnyWindow) -> Tensor:
    """The position of the first greatest element, or of the first NaN, of each window or bin; -1
    for a window of padding alone.
    """
    sizes, ordered = input.shape[2:], _ordered(input)
    positions = ascending(prod(sizes), input).view(sizes).expand(input.shape)
    _, found = reductions.pooled((ordered, positions), windows, first_maximum(ordered.dtype))
    return found.where(found != NOWHERE, -1)


def _elements(input: Tensor, positions: Tensor, fill: float) -> Tensor:
    """The element at each position, ``fill`` where there is none."""
    flat = positions.flatten(2)
    found = signed(input).flatten(2).gather(-1, flat.clamp(min=0)).where(flat >= 0, fill)
    return found.view(input.dtype).view(positions.shape)


def _scattered(source: Tensor, positions: Tensor, sizes: Sizes) -> Tensor:
    """Zeros of ``sizes`` with each element added at its position, in the elements' order. Half
    precision is added in float32.
    """
    wide, batch = widened(signed(source)).flatten(), source.shape[:2]
    # Elements without a position are added to one more element of each plane, which is cut off.
    plane = prod(sizes) + 1
    within = positions.flatten(2).to(torch.int64)
    first = ascending(prod(batch), within).view(*batch, 1) * plane
    places = (first + within.where(within >= 0, plane - 1)).flatten()
    total = reductions.added(wide.new_zeros(prod(batch) * plane), places, wide)
    total = total.view(*batch, plane)[..., :-1].unflatten(-1, tuple(sizes))
    return total.view(source.dtype) if source.dtype in SIGNED_FOR else total.to(source.dtype)


def _axes(window: Window, sizes: Sizes, like: Tensor) -> Iterator[tuple[Axis, int, Tensor]]:
    """Each axis, from the last to the first, its size, and where each window's first tap lies."""
    for inner, (axis, size) in enumerate(zip(reversed(window.axes), reversed(sizes), strict=True)):
        yield axis, size, reductions.firsts(axis, size, like).view(-1, *[1] * inner)


def taps_of(positions: Tensor, sizes: Sizes, window: Window) -> Tensor:
    """The number of each window's winning tap, 0 where the window is empty (rule M6)."""
    taps, left, step = torch.zeros_like(positions), positions, 1
    for axis, size, first in _axes(window, sizes, left):
        left, at = _divided(left, size)
        taps = taps + _divided(at - first, axis.dilation)[0] * step
        step *= axis.window
    return taps.where(positions >= 0, 0).to(tap_dtype(window.taps))


def _positions(taps: Tensor, sizes: Sizes, window: Window) -> Tensor:
    """The position of each window's winning tap; -1 where it lies outside, as in empty windows."""
    left, step = taps.to(torch.int64), 1
    positions, inside = torch.zeros_like(left), (left >= 0) & (left < window.taps)
    for axis, size, first in _axes(window, sizes, left):
        left, along = _divided(left, axis.window)
        at = along * axis.dilation + first
        positions, inside = positions + at * step, inside & (at >= 0) & (at < size)
        step *= size
    return positions.where(inside, -1)


def _divided(left: Tensor, divisor: int) -> Pair:
    """The quotients and the remainders of numbers that are not negative."""
    if divisor == 1:
        return left, torch.zeros_like(left)
    quotients = left.div(divisor, rounding_mode="trunc")
    return quotients, left.sub(quotients, alpha=divisor)


def max_pooling(input: Tensor, window: Window) -> Tensor:
    """Maxima."""
    _reject_sizes(input, window)
    if input.dtype in SIGNED_FOR:
        return _found(input, window)[0]
    (values,) = reductions.pooled((input,), window, reductions.maximum(input.dtype))
    return laid_out_like(values, input)


def _found(input: Tensor, windows: AnyWindow) -> Pair:
    """Maxima and their positions."""
    _reject_sizes(input, windows)
    found = aten.winners(input, windows) if isinstance(windows, Window) else None
    if found is None:
        positions = _winners(input, windows)
        fill = (
            0 if input.dtype in SIGNED_FOR else lowest(input.dtype)
        )  # of windows without an element
        found = laid_out_like(_elements(input, positions, fill), input), positions
    return found


def max_pooling_with_taps(input: Tensor, window: Window) -> Pair:
    """Maxima and the numbers of their taps."""
    values, positions = _found(input, window)
    return values, laid_out_like(taps_of(positions, input.shape[2:], window), input)


def max_pooling_with_indices(
    input: Tensor, windows: AnyWindow, index_dtype: torch.dtype, per_plane: bool
) -> Pair:
    """Maxima and their indices, which count in each plane or else in the whole tensor."""
    values, positions = _found(input, windows)
    return values, laid_out_like(numbered(positions, input.shape, index_dtype, per_plane), input)


def max_pooling_indices(
    taps: Tensor, spatial_sizes: Sizes, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> Tensor:
    """The indices of taps."""
    positions = _positions(taps, spatial_sizes, window)
    indices = numbered(positions, full_sizes(taps, spatial_sizes), index_dtype, per_plane)
    return laid_out_like(indices, taps)


def max_pooling_grad_from_taps(
    arriving: Tensor, taps: Tensor, spatial_sizes: Sizes, window: Window, channels_last: bool
) -> Tensor:
    """The gradient of the input: each window's gradient is added to its winner's, in the order of
    the windows.
    """
    positions = _positions(taps, spatial_sizes, window)
    return laid_out(_scattered(arriving, positions, spatial_sizes), channels_last)


def _inside(positions: Tensor, plane: int) -> Tensor:
    """Positions, with -1 for those outside a plane of ``plane`` elements."""
    positions = positions.to(torch.int64)
    return positions.where((positions >= 0) & (positions < plane), -1)


def unique_positions(positions: Tensor, spatial_sizes: Sizes) -> Tensor:
    """Positions with -1 for those outside the plane, and for all but the last of equal ones."""
    plane = prod(spatial_sizes)
    flat = _inside(positions, plane).flatten(2)
    places, order = flat.where(flat >= 0, plane), ascending(flat.shape[-1], flat).expand(flat.shape)
    last = flat.new_full((*flat.shape[:2], plane + 1), -1).scatter_reduce(-1, places, order, "amax")
    unique = flat.where(last.gather(-1, places) == order, -1).view(positions.shape)
    return laid_out_like(unique.to(position_dtype(spatial_sizes)), positions)


def gather_positions(input: Tensor, positions: Tensor, bins: bool = False) -> Tensor:  # noqa: ARG001
    """The element at each position, 0 where there is none. ``bins`` is unused: its gradient reads
    it.
    """
    return laid_out_like(_elements(input, _inside(positions, prod(input.shape[2:])), 0), positions)


def scatter_positions(
    input: Tensor,
    positions: Tensor,
    spatial_sizes: Sizes,
    bins: bool,  # noqa: ARG001
    channels_last: bool,
) -> Tensor:
    """Zeros with each element at its position. With ``bins`` positions may be equal: their elements
    are added.
    """
    total = _scattered(input, _inside(positions, prod(spatial_sizes)), spatial_sizes)
    return laid_out(total, channels_last)


def masked(input: Tensor, mask: Tensor, fills_lowest: bool) -> Tensor:
    """``input`` where the mask is True, and 0 or its type's lowest value elsewhere."""
    # PyTorch's operator would follow the layout of the mask.
    mask = laid_out(mask, is_channels_last(input))
    return laid_out_like(where(mask, input, lowest(input.dtype) if fills_lowest else 0), input)


def window_counts(window: Window, sizes: Sizes, like: Tensor) -> Tensor:
    """The taps in the padding that each window counts where padding counts (rules A1 and A2)."""
    # float64 counts whatever lies inside exactly, so that no count is rounded and then subtracted.
    dtype = torch.int64 if like.device.type == "mps" else torch.float64
    exact = torch.empty((), dtype=dtype, device=like.device)
    every, inside = (reductions.counts(window, sizes, exact, padded) for padded in (True, False))
    return (every - inside).to(like.dtype)


BACKEND = Backend.of("reference", vars(reference_segments) | globals())
