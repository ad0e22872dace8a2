"""Gradients of maxima whose windows overlap and are too large to unroll, from their taps, one axis
after the other.

A lane owns neighbouring inputs, and reads each window that reaches any of them once:

    windows     [. . . . . . .]   [. . . . . . .]
                       [. . . . . . .]   [. . . . . . .]
    inputs                  a b c d e f g h
"""

import triton
import triton.language as tl

from . import addressing

FAR = tl.constexpr(2**31 - 1)
"""A number that no tap has."""


@triton.jit
def with_winners(totals, further_in, number, value, code, LAST, G):
    """Adds a window whose winner is the lane's input ``number`` (or another input, if it is not one
    of 0 to G - 1): ``value`` to the totals of the lane's G inputs, and ``code`` to the taps
    ``further_in`` of the windows that they won.
    """
    new = ()
    new_codes = ()
    for i in tl.static_range(G):
        wins = number == i
        new = new + (tl.where(wins, totals[i] + value, totals[i]),)
        if not LAST:
            new_codes = new_codes + (tl.where(wins, code, further_in[i]),)
    return new, new_codes


@addressing.launched
def gather(g, t, dx, rest, sizes, G, ROWS, LAST, WIDE, B):
    """One axis of a gradient: the gradients of windows become those of ``size`` inputs along it.

    A lane owns G neighbouring inputs, and reads ``bound`` windows at most. All tensors are dense,
    and neighbours along the axis lie ``inner`` elements apart. ``inner``, ``groups``, ``below`` and
    ``stride`` are dividers (``launch.divider``).

    A tap is ``k * below`` plus the tap along the axes further in, where k is the tap along this
    axis. The windows that an input has won have the same tap further in, which goes to ``rest``
    unless this axis is the LAST.
    """
    lanes, windows, size, bound, inner, groups, below, length, stride, start = sizes
    AT_ONCE: tl.constexpr = 4
    SUM: tl.constexpr = tl.float64 if g.dtype.element_ty == tl.float64 else tl.float32
    lane = addressing.lane_numbers(B, WIDE)
    live = lane < lanes
    q = lane if ROWS else addressing.over(lane, inner)
    within = lane - q * inner[0]
    outer = addressing.over(q, groups)
    first = (q - outer * groups[0]) * G
    # The windows that reach any of the inputs, from the last one on.
    position = first + start
    o = tl.minimum(addressing.over(position + (G - 1), stride), windows - 1)
    lowest = addressing.over(tl.maximum(position - length, -1) + stride[0], stride)
    left = tl.where(live, o - lowest + 1, 0)
    tap = position - o * stride[0]  # on the first input
    source = outer.to(tl.int64) * windows * inner[0] + within
    at = source + o.to(tl.int64) * inner[0]
    totals = (tl.zeros([B], SUM),) * G
    further_in = (tl.zeros([B], tl.int32),) * (0 if LAST else G)
    for first_of_turn in range(0, bound, AT_ONCE):
        codes = ()
        values = ()
        for i in tl.static_range(AT_ONCE):
            ok = first_of_turn + i < left
            value = tl.load(g + at, mask=ok, other=0.0)
            values = values + (addressing.widened(value, SUM),)
            codes = codes + (tl.load(t + at, mask=ok, other=0).to(tl.int32),)
            at -= inner[0]
        for i in tl.static_range(AT_ONCE):
            code = codes[i]
            own_tap = tl.where(first_of_turn + i < left, tap, FAR).to(tl.int32)
            k = code if LAST else addressing.over(code, below)
            if not LAST:
                code -= k * below[0]
            totals, further_in = with_winners(
                totals, further_in, k - own_tap, values[i], code, LAST, G
            )
            tap += stride[0]
    own = outer.to(tl.int64) * size * inner[0] + within
    if ROWS:  # neighbours leave through shared memory
        position = first[:, None] + tl.arange(0, G)[None, :]
        own = own[:, None] + position
        ok = live[:, None] & (position < size)
        total = addressing.join_columns(totals, 0, 1, B, G)
        tl.store(dx + own, addressing.rounded(total, dx.dtype.element_ty), mask=ok)
        if not LAST:
            code = addressing.join_columns(further_in, 0, 1, B, G)
            tl.store(rest + own, code.to(rest.dtype.element_ty), mask=ok)
    else:
        position = first
        for i in tl.static_range(G):
            ok = live & (position < size)
            each = own + position.to(tl.int64) * inner[0]
            tl.store(dx + each, addressing.rounded(totals[i], dx.dtype.element_ty), mask=ok)
            if not LAST:
                tl.store(rest + each, further_in[i].to(rest.dtype.element_ty), mask=ok)
            position += 1
