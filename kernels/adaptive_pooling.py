"""The gradient of adaptive max pooling on the GPU: every element asks the bins that may have chosen it.

Bin ``i`` of ``outputs`` over ``size`` elements begins at ``floor(i * size / outputs)`` and ends before
``ceil((i + 1) * size / outputs)``. The bins that hold element ``x`` are bin ``x`` of ``size`` over ``outputs``.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import triton
import triton.language as tl

from .addressing import lane_numbers, rounded, tile_of, widened
from .average_pooling import bin_start, bin_stop
from .launch import LANES, WIDE_FROM, Launch, five_strides, in_plane_span, three_sizes, widest_bin

_GRAD_RUNTIME = [
    *("lanes", "C", "D", "H", "W", "OD", "OH", "OW", "bound_d", "bound_h", "bound_w"),
    *("gn", "gc", "gd", "gh", "gw", "pn", "pc", "pd", "ph", "pw"),
]


@triton.jit(do_not_specialize=_GRAD_RUNTIME)
def grad_bins(
    gradient, positions, target, lanes, C, D, H, W, OD, OH, OW, bound_d, bound_h, bound_w,
    gn, gc, gd, gh, gw, pn, pc, pd, ph, pw,
    CHANNELS_LAST: tl.constexpr, WIDE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Every element's gradient: those of the bins that hold it and have its position, added up in row-major order.

    target: ``(N, C, D, H, W)``, dense, channels innermost where CHANNELS_LAST; gradient and positions:
    ``(N, C, OD, OH, OW)`` of any strides; ``bound_*``: the most bins that hold an element, along each axis.
    """
    ACC: tl.constexpr = tl.float64 if gradient.dtype.element_ty == tl.float64 else tl.float32
    lane = lane_numbers(B, WIDE)
    live = lane < lanes
    if CHANNELS_LAST:
        c = lane % C
        w, h, d, n = tile_of(lane // C, W, H, D, 3)
    else:
        w, h, d, plane = tile_of(lane, W, H, D, 3)
        c = plane % C
        n = plane // C
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
                at = tl.load(positions + od * pd + oh * ph + ow * pw, mask=inside, other=0)
                term = tl.load(gradient + od * gd + oh * gh + ow * gw, mask=inside & (at == own), other=0.0)
                total += widened(term, ACC)
    tl.store(target + lane, rounded(total, target.dtype.element_ty), mask=live)


@lru_cache(maxsize=4096)
def gradient_launch(
    shape: tuple[int, ...], strides: tuple[int, ...], position_strides: tuple[int, ...], target_sizes: tuple[int, ...],
    channels_last: bool,
) -> Launch:  # fmt: skip
    """One lane per element of the gradient, which is dense."""
    outputs, sizes = three_sizes(shape[2:]), three_sizes(target_sizes)
    gradient, positions = five_strides(shape, strides), five_strides(shape, position_strides)
    lanes = prod(shape[:2]) * prod(sizes)
    bounds = tuple(widest_bin(output, size) for output, size in zip(outputs, sizes, strict=True))
    largest = max(
        lanes + LANES,
        *((size + 1) * (output + 1) for size, output in zip(sizes, outputs, strict=True)),
        *(in_plane_span(outputs, spatial[2:]) for spatial in (gradient, positions)),
    )
    numbers = (lanes, shape[1], *sizes, *outputs, *bounds, *gradient, *positions)
    constants = {"CHANNELS_LAST": channels_last, "WIDE": largest >= WIDE_FROM}
    return Launch.of_lanes("adaptive_pooling.grad_bins", lanes, numbers, constants)
