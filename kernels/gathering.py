"""Gradients of windows that overlap and are too large to unroll, one axis after the other: of
maxima from their taps, or of averages.

A lane owns neighbouring inputs, and reads each window that reaches any of them once. For averages
it owns one input, because to add a window takes fewer instructions than to find out which of
several inputs it holds:

    windows     [. . . . . . .]   [. . . . . . .]
                       [. . . . . . .]   [. . . . . . .]
    inputs                  a b c d e f g h
"""

import triton
import triton.language as tl

from . import addressing, sums

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


@addressing.launched(4)
def gather(
    g,
    t,
    dx,
    rest,
    sizes,
    inner,
    classes,
    groups,
    below,
    axis,
    common,
    tap_step,
    step,
    TAPS: tl.constexpr,
    COUNT: tl.constexpr,
    G: tl.constexpr,
    ROWS: tl.constexpr,
    LAST: tl.constexpr,
    WIDE: tl.constexpr,
    B: tl.constexpr,
):
    """One axis of a gradient: the gradients of windows become those of ``size`` inputs along it.

    A lane owns G inputs that lie a dilation apart, and reads ``bound`` windows at most. ``classes``
    lanes begin at neighbouring inputs, and the next lane begins after all of theirs. All tensors
    are dense, and neighbours along the axis lie ``inner`` elements apart. ``inner``, ``classes``,
    ``groups``, ``below``, ``common``, ``tap_step`` and ``step`` are dividers (``launch.divider``).

    With TAPS the gradient is of maxima. A tap is ``k * below`` plus the tap along the axes further
    in, where k is the tap along this axis. The windows that an input has won have the same tap
    further in, which goes to ``rest`` unless this axis is the LAST.

    Without TAPS the gradient is of averages, and G is 1. Sums are divided by ``divisor`` (COUNT 0),
    or each gradient by what its window counts along this axis, inside the input (1) or the padded
    input (2).
    """
    lanes, windows, size, bound, inverse, divisor = sizes
    K, _, P, _, J = axis
    AT_ONCE: tl.constexpr = 4 if TAPS else 8
    SUM: tl.constexpr = tl.float64 if g.dtype.element_ty == tl.float64 else tl.float32
    lane = addressing.lane_numbers(B, WIDE)
    live = lane < lanes
    q = lane if ROWS else addressing.over(lane, inner)
    within = lane - q * inner[0]
    of_class = addressing.over(q, classes)
    outer = addressing.over(of_class, groups)
    first = (of_class - outer * groups[0]) * G * J + q - of_class * classes[0]
    source = outer.to(tl.int64) * windows * inner[0] + within
    tap, o, left = addressing.reaching(first + P, windows, K, common, tap_step, step, inverse, G)
    left = tl.where(live, left, 0)
    at = source + o.to(tl.int64) * inner[0]
    back = (tl.zeros((), tl.int64) + step[0]) * inner[0]
    further = tap_step[0]
    NUMBERED: tl.constexpr = TAPS and not LAST
    totals = (tl.zeros([B], SUM),) * G
    total = tl.zeros([B], SUM)
    error = total
    further_in = (tl.zeros([B], tl.int32),) * (G if NUMBERED else 0)
    for first_of_turn in range(0, bound, AT_ONCE):
        codes = ()
        values = ()
        for i in tl.static_range(AT_ONCE):
            ok = first_of_turn + i < left
            value = addressing.widened(tl.load(g + at, mask=ok, other=0.0), SUM)
            if TAPS:
                codes = codes + (tl.load(t + at, mask=ok, other=0).to(tl.int32),)
            elif COUNT > 0:
                window = o - (first_of_turn + i) * step[0]
                own = sums.divisor_along(window, size, axis, COUNT, SUM)
                value = sums.quotient(value, own, 1.0 / own)
            values = values + (value,)
            at -= back
        if TAPS:
            for i in tl.static_range(AT_ONCE):
                code = codes[i]
                own_tap = tl.where(first_of_turn + i < left, tap, FAR).to(tl.int32)
                k = code if LAST else addressing.over(code, below)
                if not LAST:
                    code -= k * below[0]
                totals, further_in = with_winners(
                    totals, further_in, k - own_tap, values[i], code, LAST, G
                )
                tap += further
        else:
            total, error = sums.with_group(total, error, sums.tree(values, 0, 1, AT_ONCE))
    if not TAPS:
        whole = tl.zeros([B], SUM) + divisor
        totals = (sums.quotient(sums.compensated(total, error), whole, 1.0 / whole),)
    own = outer.to(tl.int64) * size * inner[0] + within
    if ROWS:  # neighbours leave through shared memory
        position = first[:, None] + tl.arange(0, G)[None, :]
        own = own[:, None] + position
        ok = live[:, None] & (position < size)
        total = addressing.join_columns(totals, 0, 1, B, G)
        tl.store(dx + own, addressing.rounded(total, dx.dtype.element_ty), mask=ok)
        if NUMBERED:
            code = addressing.join_columns(further_in, 0, 1, B, G)
            tl.store(rest + own, code.to(rest.dtype.element_ty), mask=ok)
    else:
        position = first
        for i in tl.static_range(G):
            ok = live & (position < size)
            each = own + position.to(tl.int64) * inner[0]
            tl.store(dx + each, addressing.rounded(totals[i], dx.dtype.element_ty), mask=ok)
            if NUMBERED:
                tl.store(rest + each, further_in[i].to(rest.dtype.element_ty), mask=ok)
            position += J
