"""How a mask enters a pool: an element where it is False is not there (rules K1 to K6).

Masked elements become 0 in sums, which are divided by pooled masks, and the lowest value in maxima.
An element that has the lowest value itself, such as minus infinity, would tie with them: then the
winner is the first element of the window that the mask keeps. A backend may read the mask itself.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, is_grad_enabled

from torch_dmlpool import backends
from torch_dmlpool._private import applied_at_a_single_level
from torch_dmlpool.backends import reference
from torch_dmlpool.backends.fallbacks import NoKernelError
from torch_dmlpool.backends.interface import Backend, Kind, Plan, kind_of
from torch_dmlpool.backends.reductions import is_unpadded
from torch_dmlpool.operators.calls import Call
from torch_dmlpool.operators.derivatives import (
    Gradients,
    may_be_differentiated,
    records_gradient,
    save,
    saved,
)
from torch_dmlpool.operators.dispatching import is_unobserved, may_skip_dispatcher
from torch_dmlpool.tensors import (
    beside,
    check_dense,
    checked_mask,
    empty,
    full_sizes,
    is_channels_last,
    laid_out,
    lowest,
    signed,
    suggests_channels_last,
    where,
    widened,
)
from torch_dmlpool.window import (
    Arguments,
    Sizes,
    Window,
    is_sure,
)


def kept(input: Tensor, mask: Tensor, fills_lowest: bool = False) -> Tensor:
    """``input`` where the mask is True, and 0 or its type's lowest value elsewhere."""
    if not may_skip_dispatcher(input, mask):
        masked = reference.masked(input, mask, fills_lowest)
        if masked.requires_grad:
            # Where the mask has one channel, the gradient would keep the layout of what arrives.
            is_last = is_channels_last(input)
            masked.register_hook(lambda arriving: laid_out(arriving, is_last))
        return masked
    fill = backends.serving(input.device.type).masked
    if not records_gradient(input):
        return fill(input, mask, fills_lowest)
    return _apply_masked(input, mask, fill, fills_lowest)


class Masked(torch.autograd.Function):
    """The elements that a mask keeps, of plain tensors. Their gradient is what it keeps."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, mask: Tensor, fill: Any, fills_lowest: bool) -> Tensor:
        save(ctx, None, mask)
        return fill(input, mask, fills_lowest)

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> Gradients:
        return kept(arriving, saved(ctx)[0]), None, None, None


def with_masked_gradient(input: Tensor, mask: Tensor) -> Tensor:
    """A plain tensor as it is, whose gradient is what the mask keeps."""
    return _apply_masked(input, mask, lambda input, *_: input.view_as(input), False)


def over_planes(mask: Tensor, input: Tensor) -> Tensor:
    """The mask with the input's spatial sizes, and samples and channels of its own."""
    return mask.expand(full_sizes(mask, input.shape[2:]))


def by_kernel(kernel_of: Any, input: Tensor, *arguments: Any, mask: Tensor) -> Any:
    """What a function of the input's backend gives for plain tensors under a mask; None where it
    has no kernel, or where somebody has to see the operators that such a pool is made of.
    """
    if not may_skip_dispatcher(input, mask):
        return None
    backend = backends.serving(input.device.type)
    try:
        return kernel_of(backend)(input, *arguments, mask=mask) if backend.reads_masks else None
    except NoKernelError:
        return None


Sums: TypeAlias = Callable[[Tensor, Any, int], Tensor]
"""The sums of a tensor over windows, divided by a number; averages of bins."""


def averages_under(
    sums: Sums,
    input: Tensor,
    mask: Tensor,
    windows: Any,
    include_padding: bool,
    divisor: int | None,
) -> Tensor:
    """Averages of windows or bins, by ``sums`` of these."""
    if isinstance(windows, Window):
        windows.output_sizes(input.shape[2:])  # rejected before any work
    may_skip, request = may_skip_dispatcher(input, mask), (windows, include_padding, divisor)
    backend = backends.serving(input.device.type) if may_skip else None
    if backend is None or not backend.reads_masks:
        return _composed_averages(sums, input, mask, *request)
    plan = _remembered_plan(backend, kind_of(input), sums, *request)
    call = Call(_apply_masked_averages, plan, input, sums, *request)
    return call.apply(input, mask, call) if records_gradient(input) else call.run(input, mask)


@functools.lru_cache(1024)
def _remembered_plan(
    backend: Backend,
    kind: Kind,
    sums: Sums,
    windows: Any,
    include_padding: bool,
    divisor: int | None,
) -> Plan:
    """A plan of averages under masks."""
    if backend.averages is not None:
        return backend.averages(kind, windows, include_padding, divisor)
    sizes, strides = kind.shape[2:], kind.strides or ()
    is_last = suggests_channels_last(kind.shape, strides)

    def run(input: Tensor, mask: Tensor) -> Any:
        averages = by_kernel(
            lambda each: each.average_pooling, input, windows, include_padding, divisor, mask=mask
        )
        return (
            _composed_averages(sums, input, mask, windows, include_padding, divisor)
            if averages is None
            else averages
        )

    def gradient(arriving: Tensor, mask: Tensor) -> Any:
        # Before the mask removes any of it. Shares of bins are of their sizes, which cancel.
        shares, number = widened(arriving), divisor
        if divisor is None:
            shares = shares / _counts(sums, mask, sizes, shares, windows, include_padding)
            number = 1 if isinstance(windows, Window) else None
        shares = laid_out(shares, is_last)
        gradient = by_kernel(
            lambda each: each.average_pooling_grad,
            shares,
            sizes,
            windows,
            False,
            number,
            arriving.dtype,
            mask=mask,
        )
        if gradient is None:
            gradient = backend.average_pooling_grad(shares, sizes, windows, False, number)
            gradient = kept(gradient, mask)
        return laid_out(gradient.to(arriving.dtype), is_last)

    return Plan(run, run, gradient)


class MaskedAveragePooling(torch.autograd.Function):
    """Averages of plain tensors under a mask, by a backend that has them."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, mask: Tensor, call: Call) -> Any:
        save(ctx, call, mask)
        return call.run(input, mask)

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> Gradients:
        call, (mask,) = ctx.call, saved(ctx)
        if is_unobserved(arriving, mask):
            return call.plan.gradient(arriving, mask), None, None
        # Averages are linear: their gradient is the same wherever it is taken.
        is_last = call.channels_last
        with torch.enable_grad():
            leaf = empty(full_sizes(arriving, call.shape[2:]), arriving, is_last)
            leaf = leaf.zero_().requires_grad_()
            sums, windows, include_padding, divisor = call.arguments
            averages = _composed_averages(sums, leaf, mask, windows, include_padding, divisor)
        create = is_grad_enabled()
        (gradient,) = torch.autograd.grad(averages, leaf, arriving, create_graph=create)
        return laid_out(gradient, is_last), None, None


def _composed_averages(
    sums: Sums,
    input: Tensor,
    mask: Tensor,
    windows: Any,
    include_padding: bool,
    divisor: int | None,
) -> Tensor:
    if divisor is not None:
        return sums(kept(input, mask), windows, divisor)
    summed = widened(kept(input, mask))
    counts = _counts(sums, mask, input.shape[2:], summed, windows, include_padding)
    return (sums(summed, windows, 1) / counts).to(input.dtype)


def _counts(
    sums: Sums,
    mask: Tensor,
    sizes: Sizes,
    like: Tensor,
    windows: Any,
    include_padding: bool,
) -> Tensor:
    """What sums of spatial ``sizes``, with the data type of ``like``, are divided by under a mask:
    counts of windows, and the share of each bin that is kept, as the size of the bin cancels in the
    quotient.
    """
    taps = windows.taps if isinstance(windows, Window) else math.prod(sizes)
    present = mask.expand(full_sizes(mask, sizes))
    # Counts are exact (rule K3): float32 has no odd numbers above 2**24. Symbolic sizes of an
    # exported program count as small.
    is_exact = like.device.type == "mps" or not is_sure(taps > 2**24)
    # PyTorch converts bools faster by way of bytes.
    numbers = present.to(torch.uint8).to(like.dtype if is_exact else torch.float64)
    counts = sums(numbers, windows, 1)
    if not isinstance(windows, Window):
        return torch.where(counts == 0, 1, counts)
    if include_padding and not all(map(is_unpadded, windows.axes)):
        padding = reference.window_counts(windows, sizes, numbers)
        counts = counts + beside(padding, like)
    return counts.clamp(min=1)


class Winners(NamedTuple):
    """The maxima that a mask leaves."""

    values: Tensor
    places: Tensor
    """The winners' tap numbers or positions."""
    are_there: Tensor
    """Whether a window has an element; broadcasts to the values."""


def winners_of(input: Tensor, mask: Tensor, pool: Any) -> Winners:
    """The winners of the elements that the mask keeps. ``pool`` returns maxima and their tap
    numbers or positions.
    """
    # The input is detached only where the values are gathered again: a traced graph may be
    # differentiated later even if nobody asks for derivatives now.
    again = may_be_differentiated(input)
    values, places = pool(kept(input.detach() if again else input, mask, True))
    any_there, first_there = pool(as_pooled(over_planes(mask, input)))
    is_lowest = signed(values) == lowest(values.dtype)
    places = torch.where(is_lowest, first_there, places)
    return Winners(values, places, as_bools(any_there))


def gathered(input: Tensor, winners: Winners, gather: Any) -> Tensor:
    """The values of winners, gathered again from ``input`` where a derivative may be wanted."""
    if not may_be_differentiated(input):
        return winners.values
    return where(winners.are_there, gather(input, winners.places), lowest(input.dtype))


def with_checked_mask(input: Tensor, mask: Tensor, *others: Any) -> Arguments:
    """The arguments of an operator; a public function checks its mask so itself."""
    check_dense("mask", mask, (torch.bool,))  # which is None where nobody gave one
    return input, checked_mask(mask, input), *others


_apply_masked = applied_at_a_single_level(Masked)
_apply_masked_averages = applied_at_a_single_level(MaskedAveragePooling)


def as_pooled(bools: Tensor) -> Tensor:
    """``bools`` as maxima take them: as they are where the kernels read bools, else as uint8. A
    view would not do, as a True may have any byte but 0.
    """
    are_taken = may_skip_dispatcher(bools) and backends.serving(bools.device.type).takes_bools
    return bools if are_taken else bools.to(torch.uint8)


def as_bools(values: Tensor) -> Tensor:
    """The inverse of :func:`as_pooled`."""
    return values.view(torch.bool) if may_skip_dispatcher(values) else values.to(torch.bool)
