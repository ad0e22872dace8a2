"""Gradients of maxima whose windows overlap and are too large to unroll, from their taps, one axis
after the other.

A lane owns one input, and reads the windows that reach it, whose taps tell which of them it has
won:

    windows     [. . . . . . .]   [. . . . . . .]
                       [. . . . . . .]   [. . . . . . .]
    input                   a
"""

import triton.language as tl

from . import addressing, folding


@addressing.launched
def gather(g, t, dx, rest, sizes, LAST, WIDE, B):
    """One axis of a gradient: the gradients of windows become those of ``size`` inputs along it.

    At most ``bound`` windows reach an input. All tensors are dense, and neighbours along the axis
    lie ``inner`` elements apart. ``size`` and ``inner`` are dividers
    (``launch.divider``), and ``axis`` is what ``folding.window_of`` takes.

    A tap is ``k * below`` plus the tap along the axes further in, where k is the tap along this
    axis. The windows that an input has won have the same tap further in, which goes to ``rest``
    unless this axis is the LAST.
    """
    lanes, windows, size, bound, inner, below, axis = sizes
    SUM: tl.constexpr = folding.accumulated(g.dtype.element_ty)
    lane = addressing.lane_numbers(B, WIDE)
    live = lane < lanes
    q, within = addressing.parted(lane, inner)
    outer, position = addressing.parted(q, size)
    # The windows that reach the input, from the first one on.
    o, reaching, _ = folding.window_of(position, windows, 0, axis, folding.WINDOWS, True)
    left = tl.where(live, reaching, 0)
    at = (outer.to(tl.int64) * windows + o) * inner[0] + within
    g += at
    t += at
    # The lowest tap of a window that lies on the input.
    tap = (position + axis[2] - o * axis[1][0]).to(tl.int32) * below
    total = tl.zeros([B], SUM)
    further_in = tl.zeros([B], tl.int32)
    for first_of_turn in range(0, bound, 4):
        for i in tl.static_range(4):
            ok = first_of_turn + i < left
            value = addressing.widened(tl.load(g, mask=ok, other=0.0), SUM)
            further = tl.load(t, mask=ok, other=0).to(tl.int32) - tap
            wins = addressing.inside(ok, further, below, True)
            total = tl.where(wins, total + value, total)
            further_in = tl.where(wins, further, further_in)
            g += inner[0]
            t += inner[0]
            tap -= axis[1][0] * below
    tl.store(dx + lane, addressing.rounded(total, dx.dtype.element_ty), mask=live)
    if not LAST:
        tl.store(rest + lane, further_in.to(rest.dtype.element_ty), mask=live)
