"""Elements by their positions in a plane on the GPU: made unique, scattered, gathered.

Positions outside the plane stand for no element: nothing is read or written there, whatever they are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import lane_numbers, tile_of

_UNIQUE_RUNTIME = ["lanes", "outputs", "plane"]


@triton.jit(do_not_specialize=_UNIQUE_RUNTIME)
def claim(positions, winners, lanes, outputs, plane, B: tl.constexpr, WIDE: tl.constexpr):
    """Into ``winners``, ``plane`` per plane and -1 at first, the number of the last element at each position.

    positions: ``outputs`` per plane, dense. The maximum of integers has no order: whichever comes first, the same wins.
    """
    lane = lane_numbers(B, WIDE)
    at = tl.load(positions + lane, mask=lane < lanes, other=-1).to(tl.int64)
    inside = (at >= 0) & (at < plane)
    place = (lane // outputs).to(tl.int64) * plane + at
    number = (lane % outputs).to(winners.dtype.element_ty)
    tl.atomic_max(winners + place, number, mask=(lane < lanes) & inside, sem="relaxed")


@triton.jit(do_not_specialize=_UNIQUE_RUNTIME)
def settle(positions, winners, unique, lanes, outputs, plane, B: tl.constexpr, WIDE: tl.constexpr):
    """Into ``unique`` the positions of the elements that won them, -1 for the others."""
    lane = lane_numbers(B, WIDE)
    live = lane < lanes
    at = tl.load(positions + lane, mask=live, other=-1).to(tl.int64)
    inside = live & (at >= 0) & (at < plane)
    place = (lane // outputs).to(tl.int64) * plane + at
    winner = tl.load(winners + place, mask=inside, other=-1)
    won = inside & (winner == (lane % outputs).to(winners.dtype.element_ty))
    tl.store(unique + lane, tl.where(won, at, -1).to(unique.dtype.element_ty), mask=live)


_PLACE_RUNTIME = [
    *("lanes", "C", "OD", "OH", "OW", "D", "H", "W"),
    *("sn", "sc", "sd", "sh", "sw", "pn", "pc", "pd", "ph", "pw", "tn", "tc", "td", "th", "tw"),
]


@triton.jit(do_not_specialize=_PLACE_RUNTIME)
def move_positions(
    source, positions, target, lanes, C, OD, OH, OW, D, H, W,
    sn, sc, sd, sh, sw, pn, pc, pd, ph, pw, tn, tc, td, th, tw,
    SCATTER: tl.constexpr, CHANNELS_INNERMOST: tl.constexpr, B: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """With SCATTER each source element to its position in the target's plane; else from there in the source's, or 0.

    positions: ``(N, C, OD, OH, OW)``, and so is the source of a scatter and the target of a gather; the other tensor is
    ``(N, C, D, H, W)``. All have any strides. One position per lane, channels innermost where CHANNELS_INNERMOST.
    """
    lane = lane_numbers(B, WIDE)
    live = lane < lanes
    rest = lane
    c = lane
    if CHANNELS_INNERMOST:
        c = lane % C
        rest = lane // C
    ow, oh, od, rest = tile_of(rest, OW, OH, OD, 3)
    if CHANNELS_INNERMOST:
        n = rest
    else:
        c = rest % C
        n = rest // C
    n = n.to(tl.int64)
    c = c.to(tl.int64)
    at = tl.load(positions + n * pn + c * pc + od * pd + oh * ph + ow * pw, mask=live, other=-1)
    row = at // W
    depth = row // H
    # Of what is negative or too large, the depth is.
    inside = live & (at >= 0) & (depth < D)
    w = at - row * W
    h = row - depth * H
    if WIDE:
        w = w.to(tl.int64)
        h = h.to(tl.int64)
        depth = depth.to(tl.int64)
    if SCATTER:
        value = tl.load(source + n * sn + c * sc + od * sd + oh * sh + ow * sw, mask=inside, other=0)
        tl.store(target + n * tn + c * tc + depth * td + h * th + w * tw, value, mask=inside)
    else:
        value = tl.load(source + n * sn + c * sc + depth * sd + h * sh + w * sw, mask=inside, other=0)
        tl.store(target + n * tn + c * tc + od * td + oh * th + ow * tw, value, mask=live)
