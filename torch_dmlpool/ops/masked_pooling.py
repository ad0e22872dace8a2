"""Pooling under a mask: an element where it is False is not there (rules K1 to K6). Composed of
the other operators, with all their derivatives.

Masked elements become 0 in sums, which are divided by pooled masks, and the lowest value in maxima.
An element that has the lowest value itself, such as minus infinity, would tie with them: then the
winner is the first element of the window that the mask keeps.

Maxima that need not go through the dispatcher take a shorter way to the same bits: a gradient that
is masked once.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_dmlpool import backends, elements, operands
from torch_dmlpool._private import applied_at_a_single_level
from torch_dmlpool.backends import reference
from torch_dmlpool.backends.interface import Backend
from torch_dmlpool.backends.reductions import is_unpadded
from torch_dmlpool.ops import (
    adaptive_pooling,
    average_pooling,
    lp_pooling,
    max_pooling,
    max_unpooling,
)
from torch_dmlpool.ops.calls import is_unobserved
from torch_dmlpool.ops.derivatives import may_be_differentiated, records_gradient, save, saved
from torch_dmlpool.ops.dispatching import may_skip_dispatcher
from torch_dmlpool.ops.min_pooling import as_bools, as_pooled
from torch_dmlpool.ops.registration import Operator
from torch_dmlpool.window import Window, is_sure


def kept(input: Tensor, mask: Tensor, fills_lowest: bool = False) -> Tensor:
    """``input`` where the mask is True, and 0 or its type's lowest value elsewhere."""
    if not may_skip_dispatcher(input, mask):
        return reference.masked(input, mask, fills_lowest)
    fill = backends.serving(input.device.type).masked
    if not records_gradient(input):
        return fill(input, mask, fills_lowest)
    return _kept(input, mask, fill, fills_lowest)


class Masked(torch.autograd.Function):
    """The elements that a mask keeps, of plain tensors. Their gradient is what it keeps."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, mask: Tensor, fill: Any, fills_lowest: bool) -> Tensor:
        save(ctx, mask)
        ctx.set_materialize_grads(False)
        output: Tensor = fill(input, mask, fills_lowest)
        return output

    @staticmethod
    def backward(ctx: Any, arriving: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        (mask,) = saved(ctx)
        return None if arriving is None else kept(arriving, mask), None, None, None


def _over_planes(mask: Tensor, input: Tensor) -> Tensor:
    """The mask with the input's spatial sizes, and samples and channels of its own."""
    return mask.expand(*mask.shape[:2], *input.shape[2:])


def _as_numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """1 for True and 0 for False. PyTorch converts bools faster by way of bytes."""
    return mask.to(torch.uint8).to(dtype)


def _kernel(computes: Callable[[Backend], Any], input: Tensor, mask: Tensor) -> Any:
    """The function of the input's backend for plain tensors; None where it has none, or where
    somebody has to see the operators that a pool under a mask is made of.
    """
    if not may_skip_dispatcher(input, mask):
        return None
    return computes(backends.serving(input.device.type))


def _averages(input: Tensor, mask: Tensor, windows: Any, *counted: Any) -> Tensor:
    """Averages of windows or bins. ``counted``: whether padding counts, and the divisor or None."""
    if isinstance(windows, Window):
        windows.output_sizes(input.shape[2:])  # rejected before any work
    has_results = isinstance(windows, Window) or 0 not in windows
    pool = (
        _kernel(lambda backend: backend.masked_average_pooling, input, mask)
        if has_results
        else None
    )
    if pool is None:
        return _composed_averages(input, mask, windows, *counted)
    if records_gradient(input):
        return _averages_under(input, mask, windows, *counted)
    return pool(input, mask, windows, *counted)


class MaskedAveragePooling(torch.autograd.Function):
    """Averages of plain tensors under a mask, by a backend that has them."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, mask: Tensor, windows: Any, *counted: Any) -> Tensor:
        backend: Any = backends.serving(input.device.type)
        ctx.request = tuple(input.shape[2:]), windows, *counted
        ctx.channels_last, ctx.backend = operands.is_channels_last(input), backend
        save(ctx, mask)
        ctx.set_materialize_grads(False)
        output: Tensor = backend.masked_average_pooling(input, mask, windows, *counted)
        return output

    @staticmethod
    def backward(ctx: Any, arriving: Tensor | None) -> tuple[Tensor | None, ...]:
        (mask,), nothing = saved(ctx), (None,) * 4
        if arriving is None:
            return None, *nothing
        if not is_unobserved(arriving, mask):
            return _composed_shares(arriving, mask, *ctx.request), *nothing
        request = arriving, mask, *ctx.request, ctx.channels_last
        return ctx.backend.masked_average_pooling_grad(*request), *nothing


def _composed_averages(
    input: Tensor, mask: Tensor, windows: Any, include_padding: bool, divisor: int | None
) -> Tensor:
    if divisor is not None:
        return average_pooling.average_pooling(kept(input, mask), windows, False, divisor)
    summed = elements.widened(kept(input, mask))
    counts = _counts(mask, input.shape[2:], summed, windows, include_padding)
    return (_sums(summed, windows) / counts).to(input.dtype)


def _composed_shares(
    arriving: Tensor,
    mask: Tensor,
    sizes: Sequence[int],
    windows: Any,
    include_padding: bool,
    divisor: int | None,
) -> Tensor:
    """The gradient of :func:`_composed_averages`, of an input of spatial ``sizes``."""
    wide = elements.widened(arriving)
    if divisor is None:
        shares = (wide / _counts(mask, sizes, wide, windows, include_padding)).to(wide.dtype)
    else:
        shares = wide / divisor
    if isinstance(windows, Window):
        gradient = average_pooling.average_pooling_grad(shares, sizes, windows, False, 1)
    else:
        gradient = adaptive_pooling.bin_averages_grad(shares, sizes)
    return kept(gradient.to(arriving.dtype), mask)


def _sums(input: Tensor, windows: Any) -> Tensor:
    """Sums of windows, or averages of bins."""
    if isinstance(windows, Window):
        return average_pooling.average_pooling(input, windows, False, 1)
    return adaptive_pooling.bin_averages(input, windows)


def _counts(
    mask: Tensor, sizes: Sequence[int], sums: Tensor, windows: Any, include_padding: bool
) -> Tensor:
    """What :func:`_sums` of spatial ``sizes`` are divided by under a mask: counts of windows, and
    the share of each bin that is kept, as the size of the bin cancels in the quotient.
    """
    taps = windows.taps if isinstance(windows, Window) else math.prod(sizes)
    present = mask.expand(*mask.shape[:2], *sizes)
    numbers = _as_numbers(present, _count_dtype(taps, sums))
    counts = _sums(numbers, windows)
    if not isinstance(windows, Window):
        return torch.where(counts == 0, 1, counts)
    if include_padding and not all(map(is_unpadded, windows.axes)):
        padding = reference.padding_counts(windows, sizes, numbers)
        counts = counts + elements.beside(padding, sums)
    return counts.clamp(min=1)


def _count_dtype(taps: int, sums: Tensor) -> torch.dtype:
    """The data type that counts up to ``taps`` exactly (rule K3): that of ``sums``, or float64, as
    float32 has no odd numbers above 2**24. Symbolic sizes of an exported program count as small.
    """
    is_exact = sums.device.type == "mps" or not is_sure(taps > 2**24)
    return sums.dtype if is_exact else torch.float64


class _Winners(NamedTuple):
    values: Tensor
    places: Tensor
    """The winners' tap numbers or positions."""
    are_there: Tensor
    """Whether a window has an element; broadcasts to the values."""


def _winners(input: Tensor, mask: Tensor, pool: Any) -> _Winners:
    """The winners of the elements that the mask keeps. ``pool`` returns maxima and their tap
    numbers or positions.
    """
    # The input is detached only where the values are gathered again: a traced graph may be
    # differentiated later even if nobody asks for derivatives now.
    is_gathered_again = _is_gathered_again(input)
    values, places = pool(kept(input.detach() if is_gathered_again else input, mask, True))
    any_there, first_there = pool(as_pooled(_over_planes(mask, input)))
    places = torch.where(elements.is_lowest(values), first_there, places)
    return _Winners(values, places, as_bools(any_there))


def _is_gathered_again(input: Tensor) -> bool:
    """Whether values must be gathered again from ``input``, because a derivative may be wanted."""
    return input.is_floating_point() and may_be_differentiated(input)


def _gathered(input: Tensor, winners: _Winners, gather: Any) -> Tensor:
    """The values of winners, gathered again from ``input`` where a derivative may be wanted."""
    if not _is_gathered_again(input):
        return winners.values
    return elements.where(
        winners.are_there, gather(input, winners.places), elements.lowest(input.dtype)
    )


class MaskedMaxPooling(torch.autograd.Function):
    """Maxima of plain tensors under a mask, and the taps of their winners. The winner of a window
    without an element is masked, and so the mask removes its gradient.
    """

    @staticmethod
    def forward(ctx: Any, input: Tensor, mask: Tensor, window: Window) -> tuple[Tensor, Tensor]:
        pool = (
            _kernel(lambda backend: backend.masked_max_pooling_with_taps, input, mask)
            or _maxima_with_taps
        )
        values, taps = pool(input, mask, window)
        ctx.request = input.shape[2:], window, operands.is_channels_last(input)
        save(ctx, taps, mask)
        ctx.mark_non_differentiable(taps)
        ctx.set_materialize_grads(False)
        return values, taps

    @staticmethod
    def backward(ctx: Any, arriving: Tensor | None, _: None) -> tuple[Tensor | None, None, None]:
        taps, mask = saved(ctx)
        if arriving is None:
            return None, None, None
        spread = _kernel(lambda backend: backend.masked_max_pooling_grad_from_taps, arriving, mask)
        if spread is not None and is_unobserved(arriving, taps):
            return spread(arriving, taps, mask, *ctx.request), None, None
        gradient = max_pooling.max_pooling_grad_from_taps(arriving, taps, *ctx.request)
        return kept(gradient, mask), None, None


def _maxima_with_taps(input: Tensor, mask: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    pool = max_pooling.max_pooling_with_taps
    values, taps = pool(kept(input, mask, True), window)
    if _may_equal_fill(input, values):
        _, first_there = pool(as_pooled(_over_planes(mask, input)), window)
        taps = torch.where(elements.is_lowest(values), first_there, taps)
    return values, taps


def _may_equal_fill(input: Tensor, values: Tensor) -> bool:
    """Whether a winner may equal the lowest value, which fills the masked elements: it does where
    both ``input`` and ``values`` hold that value.

    On other devices than the CPU it is True, as reading values would synchronize.
    """
    lowest = elements.lowest(input.dtype)
    return not values.is_cpu or not (
        values.numel() == 0 or any(each.amin().item() > lowest for each in (values, input))
    )


def _maxima(input: Tensor, mask: Tensor, window: Window) -> Tensor:
    window.output_sizes(input.shape[2:])  # rejected before any work
    if not may_be_differentiated(input):
        pool = _kernel(lambda backend: backend.masked_max_pooling, input, mask)
        if pool is not None:
            return pool(input, mask, window)
        return max_pooling.max_pooling(kept(input, mask, True), window)
    return _window_maxima(input, mask, window)[0]


def _window_maxima(input: Tensor, mask: Tensor, window: Window) -> tuple[Tensor, Tensor, Any]:
    """Maxima, the taps of their winners, and a function. It returns a mask of windows, which is
    True for windows that have an element.
    """
    if may_skip_dispatcher(input, mask) and records_gradient(input):
        there = as_pooled(_over_planes(mask, input))
        values, taps = _maxima_under(input, mask, window)
        return values, taps, lambda: max_pooling.max_pooling(there, window) != 0
    winners = _winners(input, mask, lambda each: max_pooling.max_pooling_with_taps(each, window))
    values = _gathered(
        input, winners, lambda each, taps: max_pooling.max_pooling_gather(each, taps, window)
    )
    return values, winners.places, lambda: winners.are_there


def _maxima_with_indices(
    input: Tensor, mask: Tensor, window: Window, *numbering: Any
) -> tuple[Tensor, Tensor]:
    window.output_sizes(input.shape[2:])  # rejected before any work
    if _is_gathered_again(input):
        values, taps, are_there = _window_maxima(input, mask, window)
        indices = max_pooling.max_pooling_indices(taps, input.shape[2:], window, *numbering)
        return values, elements.where(are_there(), indices, -1)
    pool = _kernel(lambda backend: backend.masked_max_pooling_with_indices, input, mask)
    if pool is not None:
        return pool(input, mask, window, *numbering)
    # Positions can be exported where numbers of taps cannot.
    with_positions = max_pooling.max_pooling_with_indices
    winners = _winners(input, mask, lambda each: with_positions(each, window, torch.int64, True))
    positions = torch.where(winners.are_there, winners.places, -1)
    return winners.values, elements.numbered(positions, input.shape, *numbering)


def _with_checked_mask(input: Tensor, mask: Tensor, *request: Any) -> tuple[Any, ...]:
    return input, operands.checked_mask(mask, input), *request


_kept = applied_at_a_single_level(Masked)
_averages_under = applied_at_a_single_level(MaskedAveragePooling)
_maxima_under = applied_at_a_single_level(MaskedMaxPooling)


masked_average_pooling = Operator(
    "masked_average_pooling(Tensor input, Tensor mask, WINDOW, bool include_padding, "
    "SymInt? divisor_override) -> Tensor",
    [operands.FLOAT_TYPES, (torch.bool,)],
    lambda input, mask, window, include_padding, divisor: operands.checked_divisor(divisor),
    complete=_with_checked_mask,
    compose=_averages,
)
masked_max_pooling = Operator(
    "masked_max_pooling(Tensor input, Tensor mask, WINDOW) -> Tensor",
    [operands.MAX_TYPES, (torch.bool,)],
    lambda *_: None,
    complete=_with_checked_mask,
    compose=_maxima,
)
masked_max_pooling_with_indices = Operator(
    "masked_max_pooling_with_indices(Tensor input, Tensor mask, WINDOW, ScalarType index_dtype, "
    "bool per_plane) -> (Tensor, Tensor)",
    [operands.MAX_TYPES, (torch.bool,)],
    lambda input, mask, window, dtype, per_plane: operands.check_index_type(
        dtype, input.shape, per_plane
    ),
    complete=_with_checked_mask,
    compose=_maxima_with_indices,
)


def averages(input: Tensor, mask: Tensor | None, *request: Any) -> Tensor:
    """Averages of windows, under a mask if there is one."""
    if mask is None:
        return average_pooling.average_pooling(input, *request)
    return masked_average_pooling(input, mask, *request)


def maxima(input: Tensor, mask: Tensor | None, window: Window, *numbering: Any) -> Any:
    """Maxima, under a mask if there is one. With ``numbering``, an index type and whether indices
    count in each plane, their indices are returned too.
    """
    if mask is None:
        pool = max_pooling.max_pooling_with_indices if numbering else max_pooling.max_pooling
        return pool(input, window, *numbering)
    operator = masked_max_pooling_with_indices if numbering else masked_max_pooling
    return operator(input, mask, window, *numbering)


def norms(input: Tensor, mask: Tensor | None, window: Window, p: float) -> Tensor:
    """Norms of windows, under a mask if there is one: zeros add nothing to them."""
    if mask is not None:
        window.output_sizes(input.shape[2:])  # rejected before any work
        input = kept(input, mask)
    return lp_pooling.lp_pooling(input, window, p)


def adaptive_averages(input: Tensor, mask: Tensor | None, output_size: Any, rank: int) -> Tensor:
    """Average of every bin, under a mask if there is one."""
    sizes, window = adaptive_pooling.bins(output_size, tuple(input.shape)[2:], rank)
    if window is not None:
        return averages(input, mask, window, False, None)
    if mask is None:
        return adaptive_pooling.bin_averages(input, sizes)
    return operands.laid_out_like(_averages(input, mask, sizes, False, None), input)


def adaptive_maxima(
    input: Tensor, mask: Tensor | None, output_size: Any, rank: int, *numbering: Any
) -> Any:
    """The maximum of every bin, under a mask if there is one. With ``numbering``, an index type and
    whether indices count in each plane, their indices are returned too.
    """
    sizes, window = adaptive_pooling.bins(output_size, tuple(input.shape)[2:], rank)
    if window is not None:
        return maxima(input, mask, window, *numbering)
    if mask is None:
        values, positions = adaptive_pooling.bin_maxima(input, sizes)
        if not numbering:
            return values
    else:
        winners = _bin_winners(input, mask, sizes)
        positions = torch.where(winners.are_there, winners.places, -1)
        values = _gathered(
            input, winners, lambda each, places: max_unpooling.gather_positions(each, places, True)
        )
    if not numbering:
        return operands.laid_out_like(values, input)
    indices = elements.numbered(positions, input.shape, *numbering)
    return operands.laid_out_like((values, indices), input)


def _bin_winners(input: Tensor, mask: Tensor, sizes: Sequence[int]) -> _Winners:
    pool = (
        None
        if 0 in sizes
        else _kernel(lambda backend: backend.masked_adaptive_max_pooling, input, mask)
    )
    if pool is None:
        return _winners(input, mask, lambda each: adaptive_pooling.bin_maxima(each, sizes))
    values, positions = pool(input, mask, sizes)
    return _Winners(values, positions, positions >= 0)
