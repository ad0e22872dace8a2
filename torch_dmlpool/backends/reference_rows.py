"""Pools of sets of rows by PyTorch's own operators, on any device, for every data type, and where
programs are exported.

Sets are ``(L, C)`` rows with offsets, or each sample of ``(B, T, C)`` rows without. Offsets are
limited to the rows that there are.
"""

import torch
from torch import Tensor

from torch_dmlpool.backends.aten import is_plain_cpu
from torch_dmlpool.tensors import SIGNED, widened
from torch_dmlpool.window import ArgumentError


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


def _set_numbers(offsets: Tensor, mask: Tensor | None, rows: int) -> Tensor:
    """The number of each row's set; one more than there are sets for rows in none of them."""
    check_offsets(offsets, rows)
    sets = offsets.shape[0] - 1
    numbers = torch.arange(rows, dtype=torch.int64, device=offsets.device)
    found = torch.searchsorted(offsets, numbers, right=True) - 1
    is_in_none = (found < 0) | (found >= sets)
    if mask is not None:
        is_in_none = is_in_none | ~mask
    return torch.where(is_in_none, sets, found)


def _counts(numbers: Tensor, sets: int) -> Tensor:
    """How many rows each set has, with one more set for all that are in none."""
    return numbers.new_zeros(sets + 1).index_add(0, numbers, torch.ones_like(numbers))


def _wider(tensor: Tensor) -> torch.dtype:
    """float64, where the device has it."""
    return tensor.dtype if tensor.device.type == "mps" else torch.float64


def segment_sums(
    input: Tensor, offsets: Tensor | None, mask: Tensor | None, is_mean: bool
) -> Tensor:
    """The sum or the mean of each set."""
    wide = widened(input)
    if offsets is None:
        if mask is not None:
            wide = torch.where(mask.unsqueeze(-1), wide, 0)
        sums, count = wide.sum(-2), input.shape[-2]
        if not is_mean:
            return sums.to(input.dtype)
        if mask is None:
            return (sums / max(count, 1) if type(count) is int else sums / count).to(input.dtype)
        return (sums / mask.sum(-1, keepdim=True).clamp(min=1)).to(input.dtype)
    sets = offsets.shape[0] - 1
    numbers = _set_numbers(offsets, mask, input.shape[0])
    # In float64, as PyTorch adds one row after the other.
    exact = torch.zeros(sets + 1, input.shape[1], dtype=_wider(wide), device=input.device)
    wide = wide.to(exact.dtype)
    if input.is_cpu:
        sums = exact.index_add(0, numbers, wide)[:sets]
    else:  # ``index_add`` has no fixed order on other devices, ``index_put`` sorts before it adds
        sums = exact.index_put((numbers,), wide, accumulate=True)[:sets]
    if is_mean:
        sums = sums / _counts(numbers, sets)[:sets, None].clamp(min=1)
    return sums.to(input.dtype)


def segment_shares(
    arriving: Tensor,
    offsets: Tensor | None,
    mask: Tensor | None,
    rows: int,
    is_mean: bool,
    indices: Tensor | None = None,
) -> Tensor:
    """Each row's share of what arrives at its set, or with ``indices`` all at these rows."""
    if indices is not None:
        return scattered(arriving, indices, rows, offsets is None)
    wide = widened(arriving)
    if offsets is None:
        if is_mean:
            count = rows if mask is None else mask.sum(-1, keepdim=True).clamp(min=1)
            wide = wide / count if mask is not None or rows > 0 else wide
        shares = wide.unsqueeze(-2).expand(arriving.shape[0], rows, arriving.shape[1])
        if mask is not None:
            shares = torch.where(mask.unsqueeze(-1), shares, 0)
        return shares.to(arriving.dtype).contiguous()
    sets = offsets.shape[0] - 1
    numbers = _set_numbers(offsets, mask, rows)
    if is_mean:
        wide = wide / _counts(numbers, sets)[:sets, None].clamp(min=1)
    padded = torch.nn.functional.pad(wide.to(arriving.dtype), (0, 0, 0, 1))
    return padded.index_select(0, numbers)


def segment_maxima(
    input: Tensor, offsets: Tensor | None, mask: Tensor | None, are_minima: bool
) -> tuple[Tensor, Tensor]:
    """The greatest or least element of each channel of a set, and its row."""
    rows, channels = input.shape[-2:]
    ordered = _ordered(input, are_minima)
    lowest = _lowest(ordered.dtype)
    if offsets is None:
        return _token_maxima(input, ordered, mask, lowest, are_minima)
    sets = offsets.shape[0] - 1
    places = _set_numbers(offsets, mask, rows)[:, None].expand(ordered.shape)
    most = ordered.new_full((sets + 1, channels), lowest)
    most = most.scatter_reduce(0, places, ordered, "amax")
    winning = most.gather(0, places)
    is_winner = (ordered == winning) | ((ordered != ordered) & (winning != winning))
    every = torch.arange(rows, dtype=torch.int64, device=input.device)[:, None]
    first = torch.full((sets + 1, channels), rows, dtype=torch.int64, device=input.device)
    first = first.scatter_reduce(0, places, torch.where(is_winner, every, rows), "amin")[:sets]
    indices = torch.where(first == rows, -1, first)
    # A part of a larger tensor cannot have a tangent.
    return _unordered(most[:sets].clone(), input.dtype, are_minima), indices


def _token_maxima(
    input: Tensor, ordered: Tensor, mask: Tensor | None, lowest: float, are_minima: bool
) -> tuple[Tensor, Tensor]:
    """Maxima of each sample. PyTorch's are the first of equal elements, and the first NaN."""
    if input.shape[-2] == 0:
        values = ordered.new_full((input.shape[0], input.shape[2]), lowest)
        indices = torch.full_like(values, -1, dtype=torch.int64)
    elif mask is None:
        values, indices = ordered.max(-2)
    else:
        values, indices = torch.where(mask.unsqueeze(-1), ordered, lowest).max(-2)
        # A row that the mask leaves out may tie with the lowest value itself.
        first = mask.to(torch.uint8).argmax(-1, keepdim=True)
        indices = torch.where(values == lowest, first, indices)
        indices = torch.where(mask.any(-1, keepdim=True), indices, -1)
    return _unordered(values, input.dtype, are_minima), indices


def scattered(arriving: Tensor, indices: Tensor, rows: int, is_batch: bool) -> Tensor:
    """Zeros of ``rows`` rows, in each sample of a batch, with what arrives at ``indices``. It has
    every derivative. -1 stands for no row.
    """
    if is_batch:
        arriving, indices = arriving.unsqueeze(-2), indices.unsqueeze(-2)
    zeros = arriving.new_zeros((*arriving.shape[:-2], rows + 1, arriving.shape[-1]))
    places = torch.where(indices < 0, rows, indices)
    return zeros.scatter(-2, places, arriving).narrow(-2, 0, rows)


def _lowest(dtype: torch.dtype) -> float:
    return -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _ordered(input: Tensor, is_turned: bool) -> Tensor:
    """``input`` in a signed data type of the same order, or with ``is_turned`` of the reverse."""
    if input.dtype is torch.bool or input.dtype is torch.uint8:
        input = input.to(torch.int16)
    elif input.dtype in SIGNED:
        signed = input.view(SIGNED[input.dtype])
        input = signed ^ torch.iinfo(signed.dtype).min
    if not is_turned:
        return input
    return -input if input.dtype.is_floating_point else ~input


def _unordered(ordered: Tensor, dtype: torch.dtype, is_turned: bool) -> Tensor:
    """The elements of ``dtype`` that ``_ordered`` made these of."""
    if is_turned:
        ordered = -ordered if dtype.is_floating_point else ~ordered
    if dtype in SIGNED:
        return (ordered ^ torch.iinfo(ordered.dtype).min).view(dtype)
    if dtype is torch.bool or dtype is torch.uint8:
        return ordered.clamp(0, 1 if dtype is torch.bool else 255).to(dtype)
    return ordered


def _kept(input: Tensor, mask: Tensor | None) -> Tensor:
    return input if mask is None else torch.where(mask.unsqueeze(1), input, 0)


def _count(input: Tensor, mask: Tensor | None) -> Tensor:
    """How many elements of each plane are kept: ``(N, 1)``."""
    if mask is None:
        return input.new_full((1, 1), input.shape[-1], dtype=torch.int64)
    return mask.sum(-1, keepdim=True)


def _distances(input: Tensor, mask: Tensor | None, mean: Tensor) -> Tensor:
    return _kept(_kept(input, mask) - mean.unsqueeze(-1), mask)


def statistics(input: Tensor, mask: Tensor | None, correction: int) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation of each plane."""
    wide, count = widened(input), _count(input, mask)
    mean = _kept(wide, mask).sum(-1) / count.clamp(min=1)
    squares = _distances(wide, mask, mean).square().sum(-1)
    variance = squares / (count - correction).clamp(min=1)
    deviation = torch.where(count > correction, variance, 0).sqrt()
    return mean.to(input.dtype), deviation.to(input.dtype)


def statistics_grad(
    of_mean: Tensor,
    of_deviation: Tensor,
    input: Tensor,
    mask: Tensor | None,
    mean: Tensor,
    deviation: Tensor,
    correction: int,
) -> Tensor:
    """The gradient of means and deviations. It has every derivative with respect to all of its
    tensors.
    """
    wide, count = widened(input), _count(input, mask)
    share = widened(of_mean) / count.clamp(min=1)
    is_spread = (deviation != 0) & (count > correction)
    divisor = torch.where(is_spread, widened(deviation) * (count - correction), 1)
    slope = torch.where(is_spread, widened(of_deviation), 0) / divisor
    gradient = _distances(wide, mask, widened(mean)) * slope.unsqueeze(-1)
    return _kept(gradient + share.unsqueeze(-1), mask).to(input.dtype)


def statistics_tangent(
    direction: Tensor,
    input: Tensor,
    mask: Tensor | None,
    mean: Tensor,
    deviation: Tensor,
    correction: int,
) -> tuple[Tensor, Tensor]:
    """The tangents of means and deviations."""
    wide, count = widened(input), _count(input, mask)
    moved = _kept(widened(direction), mask)
    is_spread = (deviation != 0) & (count > correction)
    divisor = torch.where(is_spread, widened(deviation) * (count - correction), 1)
    across = (_distances(wide, mask, widened(mean)) * moved).sum(-1)
    of_deviation = torch.where(is_spread, across, 0) / divisor
    of_mean = moved.sum(-1) / count.clamp(min=1)
    return of_mean.to(input.dtype), of_deviation.to(input.dtype)
