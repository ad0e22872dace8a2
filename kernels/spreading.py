"""Gradients of windows that do not overlap on the GPU, whole planes among them: of maxima from
their taps, or of averages.

Each element reads the gradient of the one window that it may lie in. The threads of a program own
neighbours of the dense result, whatever its width:

    gradients   |     g0    |     g1    |  ...       for maxima only if the window's tap is the
    result      a b c d | a b c d | ...              element's, for averages always
"""

import triton
import triton.language as tl

from . import addressing, folding, sums


@triton.jit
def one_axis_out(so_far, axis):
    """Extends ``so_far`` by the next axis further out.

    ``so_far`` holds the number of the one window that may hold an element, the element's tap in
    it, and whether it does. ``axis`` is its size and the windows' stride,
    both dividers; the number of windows, their size, and the padding before.
    """
    rest, window, windows, tap, taps, exists = so_far
    size, stride, number, length, start = axis
    outer = addressing.over(rest, size)
    position = rest - outer * size[0] + start
    own = addressing.over(position, stride)
    own_tap = position - own * stride[0]
    exists = exists & (own_tap < length) & (own < number)
    window += own * windows
    tap += own_tap * taps
    return outer, window, windows * number, tap, taps * length, exists


@addressing.launched
def spread(g, taps, dx, sizes, TAPS, RANK, CHANNELS, WIDE, B):
    """The gradient ``dx`` from windows' gradients, and TAPS or division by ``divisor``.

    All are dense, with CHANNELS innermost or not. ``channels`` is a divider (``launch.divider``),
    and ``axes`` holds the innermost axis first. RANK 0 is a plane that one window takes whole.
    """
    elements, divisor, channels, axes = sizes
    FLOAT: tl.constexpr = folding.accumulated(g.dtype.element_ty)
    element = addressing.lane_numbers(B, WIDE)
    live = element < elements
    q = addressing.over(element, channels) if CHANNELS else element
    zero = tl.zeros_like(element)
    one = tl.zeros((), element.dtype) + 1
    if RANK == 0:
        at, tap = addressing.parted(q, axes[0][0])
        exists = live
    else:
        so_far = (q, zero, one, zero, one, live)
        for i in tl.static_range(RANK):
            so_far = one_axis_out(so_far, axes[i])
        outer, window, windows, tap, _, exists = so_far
        at = outer * windows + window
    if CHANNELS:
        at = at * channels[0] + (element - q * channels[0])
    value = tl.load(g + at, mask=exists, other=0)
    if TAPS:
        # Both loads at once: a gradient that waited for its tap would wait for memory twice.
        winner = tl.load(taps + at, mask=exists, other=0).to(tap.dtype)
        value = tl.where(exists & (winner == tap), value, 0)
    else:
        own = zero.to(FLOAT) + divisor
        value = sums.quotient(addressing.widened(value, FLOAT), own, 1.0 / own)
        value = addressing.rounded(value, dx.dtype.element_ty)
    tl.store(dx + element, value, mask=live)
