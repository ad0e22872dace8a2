"""Adaptive pooling on the GPU: bins that cover an axis evenly, summed or maximised axis by axis.

Bin ``i`` of ``outputs`` over ``size`` elements begins at ``floor(i * size / outputs)`` and ends before
``ceil((i + 1) * size / outputs)``. The bins that hold element ``x`` are bin ``x`` of ``size`` over ``outputs``: one
kernel sums in both directions, and the gradient of the maxima asks every element for the bins that may have chosen it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import lane_numbers, rounded, tile_of, widened


@triton.jit
def bin_start(number, size, outputs):
    return number * size // outputs


@triton.jit
def bin_stop(number, size, outputs):
    return ((number + 1) * size + outputs - 1) // outputs


_AXIS_RUNTIME = [
    *("lanes", "T1", "T2", "T3", "T4", "s0", "s1", "s2", "s3", "s4", "source_size", "target_size", "bound"),
]


@triton.jit
def entry_of(lane, T1, T2, T3, T4):
    """A dense five-dimensional tensor's five coordinates of an element."""
    i4 = lane % T4
    rest = lane // T4
    i3 = rest % T3
    rest = rest // T3
    i2 = rest % T2
    rest = rest // T2
    return rest // T1, rest % T1, i2, i3, i4


@triton.jit
def base_of(tensor, entry, strides, AXIS: tl.constexpr):
    """Where the line along dimension ``AXIS`` through an entry begins."""
    base = tensor
    for i in tl.static_range(5):
        if i != AXIS:
            base = base + entry[i].to(tl.int64) * strides[i]
    return base


@triton.jit(do_not_specialize=[*_AXIS_RUNTIME, "step"])
def max_bins(
    source, places, target, positions, lanes, T1, T2, T3, T4, s0, s1, s2, s3, s4, source_size, target_size, bound, step,
    AXIS: tl.constexpr, FIRST: tl.constexpr, B: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Maxima of the bins along one axis, and their positions in the plane, where elements along it lie ``step`` apart.

    Tensors as in ``sum_bins``; ``places``, of the source's strides, holds the positions that the axes before have found
    (unread where this is the FIRST). Of equal maxima, and of NaNs, the one at the least position wins.
    """
    COMPARED: tl.constexpr = tl.float32 if source.dtype.element_ty == tl.bfloat16 else source.dtype.element_ty
    lane = lane_numbers(B, WIDE)
    live = lane < lanes
    entry = entry_of(lane, T1, T2, T3, T4)
    number = entry[AXIS]
    strides = (s0, s1, s2, s3, s4)
    values = base_of(source, entry, strides, AXIS)
    found = base_of(places, entry, strides, AXIS)
    first = bin_start(number, source_size, target_size)
    stop = bin_stop(number, source_size, target_size)
    best = widened(tl.load(values + first * strides[AXIS], mask=live, other=0), COMPARED)
    where = first.to(positions.dtype.element_ty) * step
    if not FIRST:
        where += tl.load(found + first * strides[AXIS], mask=live, other=0)
    for m in range(1, bound):
        place = first + m
        inside = live & (place < stop)
        value = widened(tl.load(values + place * strides[AXIS], mask=inside, other=0), COMPARED)
        at = place.to(positions.dtype.element_ty) * step
        if not FIRST:
            at += tl.load(found + place * strides[AXIS], mask=inside, other=0)
        wins = (value > best) | ((value == best) & (at < where))
        if best.dtype.is_floating():
            wins = wins | ((value != value) & ((best == best) | (at < where)))
        wins = wins & inside
        best = tl.where(wins, value, best)
        where = tl.where(wins, at, where)
    tl.store(target + lane, rounded(best, target.dtype.element_ty), mask=live)
    tl.store(positions + lane, where.to(positions.dtype.element_ty), mask=live)


_GRAD_RUNTIME = [
    *("lanes", "C", "D", "H", "W", "OD", "OH", "OW", "bound_d", "bound_h", "bound_w"),
    *("gn", "gc", "gd", "gh", "gw", "pn", "pc", "pd", "ph", "pw"),
]


@triton.jit(do_not_specialize=_GRAD_RUNTIME)
def grad_bins(
    gradient, positions, target, lanes, C, D, H, W, OD, OH, OW, bound_d, bound_h, bound_w,
    gn, gc, gd, gh, gw, pn, pc, pd, ph, pw,
    CHANNELS_INNERMOST: tl.constexpr, B: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Every element's gradient: those of the bins that hold it and have its position, added up in row-major order.

    target: ``(N, C, D, H, W)``, dense, channels innermost where CHANNELS_INNERMOST; gradient and positions:
    ``(N, C, OD, OH, OW)`` of any strides; ``bound_*``: the most bins that hold an element, along each axis.
    """
    ACC: tl.constexpr = tl.float64 if gradient.dtype.element_ty == tl.float64 else tl.float32
    lane = lane_numbers(B, WIDE)
    live = lane < lanes
    rest = lane
    c = lane
    if CHANNELS_INNERMOST:
        c = lane % C
        rest = lane // C
    w, h, d, rest = tile_of(rest, W, H, D, 3)
    if CHANNELS_INNERMOST:
        n = rest
    else:
        c = rest % C
        n = rest // C
    gradient += n.to(tl.int64) * gn + c.to(tl.int64) * gc
    positions += n.to(tl.int64) * pn + c.to(tl.int64) * pc
    own = (d * H + h) * W + w
    first_d = bin_start(d, OD, D)
    first_h = bin_start(h, OH, H)
    first_w = bin_start(w, OW, W)
    stop_d = bin_stop(d, OD, D)
    stop_h = bin_stop(h, OH, H)
    stop_w = bin_stop(w, OW, W)
    total = tl.zeros([B], ACC)
    for i in range(0, bound_d):
        od = first_d + i
        for j in range(0, bound_h):
            oh = first_h + j
            for k in range(0, bound_w):
                ow = first_w + k
                inside = live & (od < stop_d) & (oh < stop_h) & (ow < stop_w)
                at = tl.load(positions + od * pd + oh * ph + ow * pw, mask=inside, other=-1)
                won = inside & (at == own)
                term = tl.load(gradient + od * gd + oh * gh + ow * gw, mask=won, other=0.0)
                total += widened(term, ACC)
    tl.store(target + lane, rounded(total, target.dtype.element_ty), mask=live)
