"""Pools of sets of rows by PyTorch's own operators, on any device, for every data type, and where
programs are exported.

Sets are ``(L, C)`` rows with offsets, or each sample of ``(B, T, C)`` rows without. Offsets are
limited to the rows that there are.
"""

import torch
from torch import Tensor

from torch_dmlpool.backends.aten import is_plain_cpu
from torch_dmlpool.backends.reductions import added
from torch_dmlpool.tensors import (
    SIGNED_FOR,
    Mask,
    Offsets,
    Pair,
    Tensors,
    ascending,
    lowest,
    widened,
)
from torch_dmlpool.window import ArgumentError, Ints


def check_offsets(offsets: Tensor, rows: int) -> None:
    """Reject offsets that fall or lie outside (rule T3), where their numbers can be looked at."""
    if type(rows) is not int or not is_plain_cpu(offsets):
        return
    wrong = (offsets[1:] < offsets[:-1]).nonzero()
    if len(wrong):
        at = int(wrong[0])
        raise ArgumentError(
            f"offsets must not fall, got {int(offsets[at])} at {at} before {int(offsets[at + 1])}"
        )
    first, last = int(offsets[0]), int(offsets[-1])
    if first < 0 or last > rows:
        raise ArgumentError(
            f"offsets must lie between 0 and the number of rows, {rows}, got {first} to {last}"
        )


def set_sizes(input: Tensor, offsets: Offsets) -> tuple[int, int]:
    """The sizes of a result for each set and channel."""
    return input.shape[0] if offsets is None else offsets.shape[0] - 1, input.shape[-1]


def row_sizes(arriving: Tensor, offsets: Offsets, rows: int) -> Ints:
    """The sizes of the rows that sets are made of, for what arrives at the sets."""
    samples = () if offsets is not None else arriving.shape[:1]
    return *samples, rows, arriving.shape[-1]


def _set_numbers(offsets: Tensor, mask: Mask, rows: int) -> Tensor:
    """The number of each row's set; one more than there are sets for rows in none of them."""
    check_offsets(offsets, rows)
    sets = offsets.shape[0] - 1
    found = torch.searchsorted(offsets, ascending(rows, offsets), right=True) - 1
    is_in_none = (found < 0) | (found >= sets)
    if mask is not None:
        is_in_none = is_in_none | ~mask
    return torch.where(is_in_none, sets, found)


def _counts(places: Tensor, sets: int) -> Tensor:
    """How many rows each set has: ``(sets, 1)``. One more set has all that are in none."""
    return places.new_zeros(sets + 1).index_add(0, places, torch.ones_like(places))[:sets, None]


def _count(like: Tensor, length: int, mask: Mask) -> Tensor:
    """How many of the rows of each sample, or of the elements of each plane, are kept: ``(N, 1)``,
    or ``(1, 1)`` without a mask.
    """
    if mask is None:
        return like.new_full((1, 1), length, dtype=torch.int64)
    return mask.sum(-1, keepdim=True)


def _kept(tensor: Tensor, mask: Mask, dim: int, fill: float = 0) -> Tensor:
    """``tensor`` where the mask, which lacks the dimension ``dim``, is True, else ``fill``."""
    return tensor if mask is None else torch.where(mask.unsqueeze(dim), tensor, fill)


def segment_sums(input: Tensor, offsets: Offsets, mask: Mask, is_mean: bool) -> Tensor:
    """The sum or the mean of each set."""
    wide = widened(input)
    if offsets is None:
        sums, count = _kept(wide, mask, -1).sum(-2), _count(input, input.shape[-2], mask)
    else:
        sets = offsets.shape[0] - 1
        places = _set_numbers(offsets, mask, input.shape[0])
        # In float64 where there is one, as PyTorch adds one row after the other.
        exact = wide.dtype if input.device.type == "mps" else torch.float64
        total = torch.zeros(sets + 1, input.shape[1], dtype=exact, device=input.device)
        sums, count = added(total, places, wide.to(exact))[:sets], _counts(places, sets)
    return (sums / count.clamp(min=1) if is_mean else sums).to(input.dtype)


def segment_shares(
    arriving: Tensor,
    offsets: Offsets,
    mask: Mask,
    rows: int,
    is_mean: bool,
    indices: Tensor | None = None,
) -> Tensor:
    """Each row's share of what arrives at its set, or with ``indices`` all at these rows."""
    if indices is not None:
        return scattered(arriving, indices, rows, offsets is None)
    if offsets is None:
        count = _count(arriving, rows, mask)
    else:
        places = _set_numbers(offsets, mask, rows)
        count = _counts(places, offsets.shape[0] - 1)
    wide = widened(arriving)
    shares = (wide / count.clamp(min=1) if is_mean else wide).to(arriving.dtype)
    if offsets is not None:
        return torch.nn.functional.pad(shares, (0, 0, 0, 1)).index_select(0, places)
    spread = shares.unsqueeze(-2).expand(shares.shape[0], rows, shares.shape[1])
    return _kept(spread, mask, -1).contiguous()


def segment_maxima(input: Tensor, offsets: Offsets, mask: Mask, are_minima: bool) -> Pair:
    """The greatest or least element of each channel of a set, and its row."""
    source = _turned(ordered(input), are_minima)
    if offsets is None:
        values, indices = _token_maxima(source, mask)
    else:
        values, indices = _set_maxima(source, offsets, mask)
    return _unordered(values, input.dtype, are_minima), indices


def _set_maxima(ordered: Tensor, offsets: Tensor, mask: Mask) -> Pair:
    (rows, channels), sets = ordered.shape, offsets.shape[0] - 1
    places = _set_numbers(offsets, mask, rows)[:, None].expand(ordered.shape)
    most = ordered.new_full((sets + 1, channels), lowest(ordered.dtype))
    most = most.scatter_reduce(0, places, ordered, "amax")
    winning = most.gather(0, places)
    is_winner = (ordered == winning) | ((ordered != ordered) & (winning != winning))
    every = ascending(rows, ordered)[:, None]
    first = every.new_full(most.shape, rows)
    first = first.scatter_reduce(0, places, torch.where(is_winner, every, rows), "amin")
    # A part of a larger tensor cannot have a tangent.
    return most[:sets].clone(), torch.where(first == rows, -1, first)[:sets]


def _token_maxima(ordered: Tensor, mask: Mask) -> Pair:
    """Maxima of each sample. PyTorch's are the first of equal elements, and the first NaN."""
    least = lowest(ordered.dtype)
    if ordered.shape[-2] == 0:
        values = ordered.new_full((ordered.shape[0], ordered.shape[2]), least)
        return values, torch.full_like(values, -1, dtype=torch.int64)
    kept = _kept(ordered, mask, -1, least)
    # PyTorch 2.11 cannot differentiate max(-2) of DTensors.
    indices = kept.argmax(-2, keepdim=True)
    values, indices = kept.gather(-2, indices).squeeze(-2), indices.squeeze(-2)
    if mask is not None:
        # A row that the mask leaves out may tie with the lowest value itself.
        first = mask.to(torch.uint8).argmax(-1, keepdim=True)
        indices = torch.where(values == least, first, indices)
        indices = torch.where(mask.any(-1, keepdim=True), indices, -1)
    return values, indices


def scattered(arriving: Tensor, indices: Tensor, rows: int, is_batch: bool) -> Tensor:
    """Zeros of ``rows`` rows, in each sample of a batch, with what arrives at ``indices``. It has
    every derivative. -1 stands for no row.
    """
    if is_batch:
        arriving, indices = arriving.unsqueeze(-2), indices.unsqueeze(-2)
    zeros = arriving.new_zeros((*arriving.shape[:-2], rows + 1, arriving.shape[-1]))
    return zeros.scatter(-2, torch.where(indices < 0, rows, indices), arriving).narrow(-2, 0, rows)


_SIGNED = SIGNED_FOR | {torch.uint8: torch.int8}


def ordered(input: Tensor) -> Tensor:
    """``input`` in a signed data type of the same order."""
    if input.dtype is torch.bool:
        input = input.to(torch.uint8)
    if input.dtype not in _SIGNED:
        return input
    signed = input.view(_SIGNED[input.dtype])
    return signed ^ torch.iinfo(signed.dtype).min


def _turned(ordered: Tensor, is_turned: bool) -> Tensor:
    """In the reverse order if ``is_turned``."""
    if not is_turned:
        return ordered
    return -ordered if ordered.dtype.is_floating_point else ~ordered


def _unordered(ordered: Tensor, dtype: torch.dtype, is_turned: bool) -> Tensor:
    """The elements of ``dtype`` that ``ordered`` and ``_turned`` made these of."""
    ordered = _turned(ordered, is_turned)
    if dtype is torch.bool:
        return ordered != -128
    if dtype in _SIGNED:
        ordered = (ordered ^ torch.iinfo(ordered.dtype).min).view(dtype)
    return ordered


def _counted(input: Tensor, mask: Mask) -> Pair:
    """Planes in the type of their sums, and how many elements of each are kept."""
    return widened(input), _count(input, input.shape[-1], mask)


def _distances(input: Tensor, mask: Mask, mean: Tensor) -> Tensor:
    return _kept(_kept(input, mask, 1) - mean.unsqueeze(-1), mask, 1)


def _sloped(values: Tensor, deviation: Tensor, count: Tensor, correction: int) -> Tensor:
    """``values`` divided by what makes slopes of them, 0 where nothing deviates."""
    is_spread = (deviation != 0) & (count > correction)
    divisor = torch.where(is_spread, widened(deviation) * (count - correction), 1)
    return torch.where(is_spread, values, 0) / divisor


def statistics(input: Tensor, mask: Mask, correction: int) -> Pair:
    """The mean and the standard deviation of each plane."""
    wide, count = _counted(input, mask)
    mean = _kept(wide, mask, 1).sum(-1) / count.clamp(min=1)
    squares = _distances(wide, mask, mean).square().sum(-1)
    variance = squares / (count - correction).clamp(min=1)
    return mean.to(input.dtype), torch.where(count > correction, variance, 0).sqrt().to(input.dtype)


def line(
    of_mean: Tensor,
    of_deviation: Tensor,
    input: Tensor,
    mask: Mask,
    mean: Tensor,
    deviation: Tensor,
    correction: int,
) -> Tensors:
    """The mean of each plane, and what distances from it are multiplied by and then added to, so
    that they become the gradient: ``(N, C, 1)``.
    """
    count = _count(input, input.shape[-1], mask)
    slope = _sloped(widened(of_deviation), deviation, count, correction)
    share = widened(of_mean) / count.clamp(min=1)
    return tuple(each.unsqueeze(-1) for each in (widened(mean), slope, share))


def statistics_grad(
    input: Tensor, mask: Mask, mean: Tensor, slope: Tensor, share: Tensor
) -> Tensor:
    """The gradient of means and deviations, from their ``line``. It has every derivative with
    respect to all of its tensors.
    """
    gradient = (_kept(widened(input), mask, 1) - mean) * slope + share
    return _kept(gradient, mask, 1).to(input.dtype)


def statistics_tangent(
    direction: Tensor, input: Tensor, mask: Mask, mean: Tensor, deviation: Tensor, correction: int
) -> Pair:
    """The tangents of means and deviations."""
    wide, count = _counted(input, mask)
    moved = _kept(widened(direction), mask, 1)
    across = (_distances(wide, mask, widened(mean)) * moved).sum(-1)
    of_mean = moved.sum(-1) / count.clamp(min=1)
    return of_mean.to(input.dtype), _sloped(across, deviation, count, correction).to(input.dtype)
