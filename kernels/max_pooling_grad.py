"""The gradient of max pooling on the GPU, windows unrolled, and the indices of taps.

The gradient is a gather: every input element compares the winning taps of the windows that cover it
with the taps that lie on it, and adds up the gradients of those that are equal (M5). Nothing is
written twice, so results are the same in every run. An empty window's tap lies outside the input.
"""

import triton
import triton.language as tl

from . import addressing, folding
from .addressing import LANES


@triton.constexpr_function
def first_window(axis):
    """The lowest window, relative to a lane's own first, that reaches one of its inputs."""
    K, S, P, _, J = axis
    return -(((K - 1) * J - P) // S)


@triton.constexpr_function
def last_window(axis, inputs):
    """The highest window, relative to a lane's own first, that reaches one of its ``inputs``."""
    return (inputs - 1 + axis[2]) // axis[1]


@triton.constexpr_function
def tap_on(depth, row, column, *places):
    """The number of the tap that lies on an input: -1 where none does.

    ``places`` are the input's and then the window's along the first axes, relative to a lane's own
    first.
    """
    number, rank = 0, len(places) // 2
    for axis, input, window in zip(
        (depth, row, column), places[:rank], places[rank:], strict=False
    ):
        K, S, P, _, J = axis  # Triton 3.6 reads no tuple within a loop's
        offset = input + P - window * S
        if not 0 <= offset <= (K - 1) * J or offset % J:
            return -1
        number = number * K + offset // J
    return number


@triton.jit
def with_winners(sums, gradients, taps, E, Z, A, FIRST, ORIGIN, N, DEPTH, ROW, COLUMN, R, Q):
    """The sums of a lane's R x Q inputs of one depth with the gradients of a row of N windows,
    where their taps lie on them. E: the inputs' depth; Z, A: the windows' depth and row.
    """
    new = ()
    for j in tl.static_range(R):
        for v in tl.static_range(Q):
            s = sums[j * Q + v]
            for b in tl.static_range(N):
                if tap_on(DEPTH, ROW, COLUMN, E, j, v, Z, A, FIRST + b) >= 0:
                    wins = taps[ORIGIN + b] == tap_on(DEPTH, ROW, COLUMN, E, j, v, Z, A, FIRST + b)
                    # In this form, not as the addition of a selected 0, one predicated instruction.
                    s = tl.where(wins, s + gradients[ORIGIN + b], s)
            new = new + (s,)
    return new


@addressing.launched
def grad_tile(g, t, dx, sizes, DEPTH, ROW, COLUMN, FORM):
    """Windows unrolled at compile time; a lane owns a block of inputs, whose sizes are the tile's
    times the strides.

    g, t: incoming gradient and taps of sizes (N, C, OD, OH, OW) and the same strides; dx: the
    result of sizes (N, C, D, H, W), dense. What is counted in vectors: see ``launch.tile_launch``.
    """
    DEPTHS: tl.constexpr = DEPTH.stride
    R: tl.constexpr = FORM.tile[1] * ROW.stride
    Q: tl.constexpr = FORM.tile[2] * COLUMN.stride
    CHUNK: tl.constexpr = 1 if FORM.channels else FORM.vector
    SUM: tl.constexpr = folding.accumulated(dx.dtype.element_ty)
    # Read where there is no window: one byte holds taps 0 to 224.
    NO_TAP: tl.constexpr = 255 if t.dtype.element_ty == tl.uint8 else -1
    lengths, strides, targets, _, _ = sizes
    _, C, OD, OH, OW = lengths
    D, H, W = targets
    place, live, plane, target = addressing.tile_of_lane(sizes, FORM)
    plane = plane * FORM.vector
    target = dx + target * FORM.store

    # The windows that the lane asks: N from entry ORIGIN on of COUNT vectors.
    FIRST: tl.constexpr = first_window(COLUMN)
    N: tl.constexpr = last_window(COLUMN, Q) + 1 - FIRST
    ORIGIN: tl.constexpr = FIRST - FIRST // CHUNK * CHUNK
    COUNT: tl.constexpr = (ORIGIN + N - 1) // CHUNK + 1
    first = place[0] * (FORM.tile[2] // CHUNK) + FIRST // CHUNK
    opening, step = addressing.first_vector(first, place[3], strides, FORM)
    zero = addressing.as_block(tl.zeros([LANES], SUM), FORM)
    for e in tl.static_range(DEPTHS):
        sums = (zero,) * (R * Q)
        for z in tl.static_range(first_window(DEPTH), last_window(DEPTH, DEPTHS) + 1):
            if tap_on(DEPTH, ROW, COLUMN, e, z) >= 0:
                od = place[2] + z
                in_slice = addressing.inside(live, od, OD, FORM.rank > 2)
                for a in tl.static_range(first_window(ROW), last_window(ROW, R) + 1):
                    oh = place[1] * FORM.tile[1] + a
                    mask = addressing.inside(in_slice, oh, OH, FORM.rank > 1)
                    row = (od * strides[2] + oh * strides[3] + opening, step, first)
                    gradients = addressing.load_row(g + plane, row, mask, OW, COUNT, 0.0, SUM, FORM)
                    taps = addressing.load_row(
                        t + plane, row, mask, OW, COUNT, NO_TAP, tl.int32, FORM
                    )
                    sums = with_winners(
                        sums, gradients, taps, e, z, a, FIRST, ORIGIN, N, DEPTH, ROW, COLUMN, R, Q
                    )
        depth = place[2] * DEPTHS + e
        in_slice = addressing.inside(live, depth, D, FORM.rank > 2)
        rows = (depth * H + place[1] * R, tl.where(in_slice, H - place[1] * R, 0))
        for j in tl.static_range(R):
            addressing.store_row(target, sums, place, rows, j, C, W, j * Q, 1, Q, FORM)


@addressing.launched
def indices(t, y, sizes, RANK, CHANNELS, WIDE):
    """Writes the indices of what taps point at to y, -1 for an empty window. Its tap is 0 and lies
    outside along some axis, or under a mask it is none of the window's.

    Taps and y are dense in the same order, with CHANNELS innermost or not. Planes of the input lie
    as far apart as ``apart`` says for samples and channels. ``axes`` holds the innermost axis
    first: the outputs and the window, both dividers; stride, padding and dilation; the size and how
    far elements lie apart.
    """
    results, channels, apart, axes = sizes
    r = addressing.lane_numbers(LANES, WIDE)
    live = r < results
    rest = r
    channel = tl.zeros_like(r)
    if CHANNELS:
        rest, channel = addressing.parted(r, channels)
    tap = tl.load(t + r, mask=live, other=0).to(r.dtype)
    exists = live & (tap >= 0)
    at = r.to(tl.int64) * 0
    for i in tl.static_range(RANK):
        outputs, window, stride, start, dilation, size, step = axes[i]
        rest, output = addressing.parted(rest, outputs)
        tap, own = addressing.parted(tap, window)
        position = output * stride - start + own * dilation
        at += position.to(tl.int64) * step
        exists = addressing.inside(exists, position, size, True)
    sample = rest
    if not CHANNELS:
        sample, channel = addressing.parted(sample, channels)
    at += sample.to(tl.int64) * apart[0] + channel.to(tl.int64) * apart[1]
    tl.store(y + r, tl.where(exists & (tap == 0), at, -1).to(y.dtype.element_ty), mask=live)
