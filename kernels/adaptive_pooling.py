"""The gradient of adaptive max pooling on the GPU: every element asks the bins that may have chosen it.

Bin ``i`` of ``outputs`` over ``size`` elements begins at ``floor(i * size / outputs)`` and ends before
``ceil((i + 1) * size / outputs)``. The bins that hold element ``x`` are bin ``x`` of ``size`` over ``outputs``.
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
