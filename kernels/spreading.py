"""Gradients of windows that do not overlap on the GPU, whole planes among them: of maxima from
their taps, or of averages.

Each element reads the gradient of the one window that it may lie in. The threads of a program own
neighbours of the dense result, whatever its width:

    gradients   |     g0    |     g1    |  ...       for maxima only if the window's tap is the
    result      a b c d | a b c d | ...              element's, for averages always
"""

import triton.language as tl

from . import addressing, folding, sums


@addressing.launched
def spread(g, taps, dx, sizes, TAPS, RANK, CHANNELS, MASK, WIDE, B):
    """The gradient ``dx`` from windows' gradients, and TAPS or division by ``divisor``. With a MASK
    ``taps`` are its bytes: see ``folding.LEFT``.

    All are dense, with CHANNELS innermost or not. ``planes``: see ``addressing.channel_of``.
    ``axes`` holds the innermost axis first: its size and the windows' stride, both dividers; the
    number of windows, their size, and the padding before. RANK 0 is a plane that one window takes
    whole.
    """
    elements, divisor, planes, axes = sizes
    channels = planes[1]
    FLOAT: tl.constexpr = folding.accumulated(g.dtype.element_ty)
    element = addressing.lane_numbers(B, WIDE)
    live = element < elements
    q = addressing.over(element, channels) if CHANNELS else element
    outer, tap = addressing.parted(q, axes[0][0])
    exists = live
    # The number of the one window that may hold an element, and the element's tap in it.
    at = outer
    if RANK > 0:
        outer = q
        at = tl.zeros_like(q)
        tap = at
        windows = tl.zeros((), q.dtype) + 1
        lengths = windows
        for i in tl.static_range(RANK):
            size, stride, number, length, start = axes[i]
            outer, position = addressing.parted(outer, size)
            own, own_tap = addressing.parted(position + start, stride)
            exists = exists & (own_tap < length) & (own < number)
            at += own * windows
            tap += own_tap * lengths
            windows *= number
            lengths *= length
        at += outer * windows
    if CHANNELS:
        at = at * channels[0] + (element - q * channels[0])
    value = tl.load(g + at, mask=exists, other=0)
    if TAPS:
        # Both loads at once: a gradient that waited for its tap would wait for memory twice.
        winner = tl.load(taps + at, mask=exists, other=0).to(tap.dtype)
        value = tl.where(exists & (winner == tap), value, 0)
    else:
        own = tl.zeros_like(q).to(FLOAT) + divisor
        value = sums.quotient(addressing.widened(value, FLOAT), own, 1.0 / own)
        value = addressing.rounded(value, dx.dtype.element_ty)
        value = folding.kept_results(value, taps, element, live, planes, MASK)
    tl.store(dx + element, value, mask=live)
