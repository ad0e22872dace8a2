"""Long windows that overlap, along one axis: sums and maxima.

A lane owns G neighbouring windows, and reads what all of them have in common once:

    window 0    [. . . . . . . . . . . . . . . .]
    window 1        [. . . . . . . . . . . . . . . .]
    window 2            [. . . . . . . . . . . . . . . .]
                |before |         core          | after |

Nothing is subtracted: NaN and infinity stay in their windows, and additions are as deep as a tree's
(rule E6). Windows have no dilation.
"""

import triton
import triton.language as tl

from . import addressing, folding, sums


@triton.constexpr_function
def neutral(dtype, OP):
    """The identity: a part of this value changes no other part."""
    return 0 if OP == folding.SUM else addressing.lowest(dtype)


@triton.jit
def both(a, b, OP):
    """Two parts of a window combined."""
    if OP == folding.SUM:
        return a + b
    else:
        return folding.greater(a, b)


@triton.jit
def until(parts, FIRST, STEP, COUNT, OP):
    """The first one, two, ... of COUNT entries of a tuple combined: ``FIRST, FIRST + STEP, ...``.
    No sum is deeper than a tree.
    """
    if COUNT == 1:
        return (parts[FIRST],)
    else:
        HALF: tl.constexpr = sums.block_of(COUNT)
        near = until(parts, FIRST, STEP, HALF, OP)
        far = until(parts, FIRST + HALF * STEP, STEP, COUNT - HALF, OP)
        result = near
        for i in tl.static_range(COUNT - HALF):
            result = result + (both(near[HALF - 1], far[i], OP),)
        return result


@triton.jit
def read(source, first, end, stride, axis, live, EDGE, COUNT, OP, TYPE):
    """COUNT elements of each lane as parts of windows. Element j lies ``j // EDGE`` strides and
    then ``j % EDGE`` elements after ``first``. It is the identity from ``end`` on, outside the
    line, and where the next stride has begun before it. ``axis`` is the line's length and how far
    apart neighbours lie.
    """
    FILL: tl.constexpr = neutral(source.dtype.element_ty, OP)
    GAPS: tl.constexpr = EDGE > 1 and COUNT > EDGE
    parts = ()
    for j in tl.static_range(COUNT):
        position = first + j // EDGE * stride + j % EDGE
        ok = addressing.inside(live & (position < end), position, axis[0], True)
        if GAPS:
            ok = ok & (position < first + (j // EDGE + 1) * stride)
        parts = parts + (addressing.load_filled(source + position * axis[1], ok, FILL, TYPE),)
    return parts


@triton.jit
def core(source, first, turns, end, axis, live, OP, TYPE):
    """Positions ``first`` to ``end`` of a line combined, eight in each turn; sums compensated."""
    FILL: tl.constexpr = neutral(source.dtype.element_ty, OP)
    value = tl.full(live.shape, FILL, TYPE)
    error = value
    for _ in range(turns):
        parts = read(source, first, end, 8, axis, live, 8, 8, OP, TYPE)
        group = until(parts, 0, 1, 8, OP)[8 - 1]
        if OP == folding.SUM and TYPE.is_floating():
            value, error = sums.with_group(value, error, group)
        else:
            value = both(value, group, OP)
        first += 8
    if OP == folding.SUM and TYPE.is_floating():
        value = sums.compensated(value, error)
    return value


@triton.jit
def finished(tensors, result, place, axis, divisor, channel, MODE):
    """Stores the result of a window. ``place`` is ``(index of the result, first position of the
    window, whether the window exists)``.
    """
    x, y, qparams = tensors
    r, start, live = place
    length, window, end = axis
    if MODE.operation == folding.SUM:
        count = tl.maximum(tl.minimum(start + window, length) - tl.maximum(start, 0), 0)
        counted = count
        if MODE.count == 2:
            counted = tl.maximum(tl.minimum(start + window, length + end) - start, 0)
        result = folding.finished_sum(
            (x, y, qparams), r, result, count, counted, divisor, channel, MODE
        )
    tl.store(y + r, addressing.rounded(result, y.dtype.element_ty), mask=live)


@addressing.launched
def share(x, numbers, y, codes, x_scale, x_zero, y_scale, y_zero, sizes, MODE, SHARED, ROWS, WIDE):
    """Writes the results of windows of ``x`` along one axis to ``y``; both are dense. Neighbours
    along the axis lie ``inner`` elements apart.

    A lane makes ``SHARED[0]`` windows, whose stride is at most ``SHARED[1]``. It reads their common
    core in ``turns`` turns of eight positions. ``groups`` and ``inner`` are dividers
    (``launch.divider``). What is divided, counted and numbered: see ``folding.fold``.
    """
    lanes, turns, divisor, groups, inner, axis, planes = sizes
    length, outputs, window, stride, start, end = axis
    G: tl.constexpr = SHARED[0]
    EDGE: tl.constexpr = SHARED[1]
    OP: tl.constexpr = MODE.operation
    TYPE: tl.constexpr = folding.accumulated(x.dtype.element_ty)
    lane = addressing.lane_numbers(addressing.LANES, WIDE)
    live = lane < lanes
    q = lane if ROWS else addressing.over(lane, inner)
    within = lane - q * inner[0]
    outer = addressing.over(q, groups)
    o = (q - outer * groups[0]) * G
    base = outer.to(tl.int64) * length * inner[0] + within
    channel = addressing.channel_of(outer * inner[0] + within, planes)
    qparams = (x_scale, x_zero, y_scale, y_zero)
    tensors = (x, y, qparams)
    source = x + base
    first = o * stride - start
    last = first + window  # past the first window
    line = length, inner[0]
    EDGES: tl.constexpr = (G - 1) * EDGE
    opening = first + (G - 1) * stride  # of the core
    past = last + (G - 1) * stride
    starts = read(source, first, opening, stride, line, live, EDGE, EDGES, OP, TYPE)
    ends = read(source, last, past, stride, line, live, EDGE, EDGES, OP, TYPE)
    before = ()
    after = ()
    for g in tl.static_range(G - 1):
        before = before + (until(starts, g * EDGE, 1, EDGE, OP)[EDGE - 1],)
        after = after + (until(ends, g * EDGE, 1, EDGE, OP)[EDGE - 1],)
    before = until(before, G - 2, -1, G - 1, OP)
    after = until(after, 0, 1, G - 1, OP)
    middle = core(source, tl.maximum(opening, 0), turns, last, line, live, OP, TYPE)
    results = ()
    for g in tl.static_range(G):  # the short parts first: no deeper than a tree
        part = after[g - 1] if g == G - 1 else before[G - 2 - g]
        if g > 0 and g < G - 1:
            part = both(part, after[g - 1], OP)
        results = results + (both(part, middle, OP),)
    r = (outer * outputs + o) * inner[0] + within
    span = (length, window, end)
    if ROWS:  # neighbours leave through shared memory
        number = tl.arange(0, G)[None, :]
        part = addressing.join_columns(results, 0, 1, G)
        exists = live[:, None] & (o[:, None] + number < outputs)
        start = first[:, None] + number * stride
        place = (r[:, None] + number, start, exists)
        finished(tensors, part, place, span, divisor, channel[:, None], MODE)
    else:
        for g in tl.static_range(G):
            exists = live & (o + g < outputs)
            place = (r + g * inner[0], first + g * stride, exists)
            finished(tensors, results[g], place, span, divisor, channel, MODE)
