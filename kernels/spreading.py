"""Gradients of windows that do not overlap on the GPU, whole planes among them: of maxima from
their taps, or of averages.

Each element reads the gradient of the one window that it may lie in. The threads of a program own
neighbours of the dense result, whatever its width:

    gradients   |     g0    |     g1    |  ...       for maxima only if the window's tap is the
    result      a b c d | a b c d | ...              element's, for averages always
"""

import triton
import triton.language as tl

from . import addressing, sums


@triton.jit
def one_axis_out(so_far, size, stride, axis, COUNT):
    """Extends ``so_far`` by the next axis further out.

    ``so_far`` holds the number of the one window that may hold an element, the element's tap in
    it, whether it does, and what an average counts. ``axis`` is the number of windows, their size,
    and the padding before and after.
    """
    rest, window, windows, tap, taps, exists, count = so_far
    outer = addressing.over(rest, size)
    position = rest - outer * size[0] + axis[2]
    own = addressing.over(position, stride)
    own_tap = position - own * stride[0]
    if COUNT > 0:
        # from the window's first position to its end, inside the input or the padded input
        first = own * stride[0] - axis[2]
        end = size[0] + axis[3] if COUNT == 2 else size[0]
        count *= tl.minimum(first + axis[1], end) - (first if COUNT == 2 else tl.maximum(first, 0))
    exists = exists & (own_tap < axis[1]) & (own < axis[0])
    window += own * windows
    tap += own_tap * taps
    return outer, window, windows * axis[0], tap, taps * axis[1], exists, count


@addressing.launched(3)
def spread(
    g,
    taps,
    dx,
    sizes,
    channels,
    width,
    height,
    depth,
    column_stride,
    row_stride,
    depth_stride,
    columns,
    rows,
    depths,
    TAPS: tl.constexpr,
    COUNT: tl.constexpr,
    RANK: tl.constexpr,
    CHANNELS: tl.constexpr,
    WIDE: tl.constexpr,
    B: tl.constexpr,
):
    """The gradient ``dx`` from windows' gradients, and TAPS or division by ``sizes[1]`` (COUNT 0)
    or by the window's elements inside the input (1) or the padded input (2).

    All are dense, with CHANNELS innermost or not. Channels, sizes and strides are dividers
    (``launch.divider``). RANK 0 is a plane that one window takes whole.
    """
    elements, divisor = sizes
    element = addressing.lane_numbers(B, WIDE)
    live = element < elements
    q = addressing.over(element, channels) if CHANNELS else element
    zero = tl.zeros_like(element)
    one = tl.zeros((), element.dtype) + 1
    if RANK == 0:
        at = addressing.over(q, width)
        tap = q - at * width[0]
        exists = live
        count = columns[1]
    else:
        so_far = (q, zero, one, zero, one, live, zero + 1)
        so_far = one_axis_out(so_far, width, column_stride, columns, COUNT)
        if RANK >= 2:
            so_far = one_axis_out(so_far, height, row_stride, rows, COUNT)
        if RANK == 3:
            so_far = one_axis_out(so_far, depth, depth_stride, depths, COUNT)
        outer, window, windows, tap, _, exists, count = so_far
        at = outer * windows + window
    if CHANNELS:
        at = at * channels[0] + (element - q * channels[0])
    value = tl.load(g + at, mask=exists, other=0)
    if TAPS:
        # Both loads at once: a gradient that waited for its tap would wait for memory twice.
        winner = tl.load(taps + at, mask=exists, other=0).to(tap.dtype)
        value = tl.where(exists & (winner == tap), value, 0)
    else:
        FLOAT: tl.constexpr = tl.float64 if g.dtype.element_ty == tl.float64 else tl.float32
        own = (tl.maximum(zero + count, 1) if COUNT > 0 else zero + divisor).to(FLOAT)
        value = sums.quotient(addressing.widened(value, FLOAT), own, 1.0 / own)
        value = addressing.rounded(value, dx.dtype.element_ty)
    tl.store(dx + element, value, mask=live)
