"""Long windows that overlap, along one axis: sums, maxima, maxima with the first position.

``share``: a lane owns G neighbouring windows, and reads what all of them have in common once:

    window 0    [. . . . . . . . . . . . . . . .]
    window 1        [. . . . . . . . . . . . . . . .]
    window 2            [. . . . . . . . . . . . . . . .]
                |before |         core          | after |

``slide``, for windows so large that this still reads much: a program owns a stretch of a row, cut
into segments of eight positions, each of one thread:

    segments    |. . . . . . . .|. . . . . . . .|. . . . . . . .|. . . . . . . .|
    window               [. . . . . . . . . . . . . . . . . . . . . .]
                         |after |        whole segments         |until|

For every position the reductions of its segment until it and after it are computed. Whole segments
are doubled, to 1, 2, 4, ... of them. So its cost hardly depends on the length of windows.

Both put windows together from parts that do not overlap. Nothing is subtracted: NaN and infinity
stay in their windows, and additions are as deep as a tree's (rule E6). Windows have no dilation.
"""

import triton
import triton.language as tl

from . import addressing, folding, sums

EIGHT = tl.constexpr(8)
"""Positions of a segment, and elements of a core that are read at once."""


@triton.constexpr_function
def neutral(dtype, OP):
    """The identity: a part of this value changes no other part."""
    return 0 if OP == folding.SUM else addressing.lowest(dtype)


@triton.jit
def both(a, b, OP):
    """Two parts of a window combined, each a pair ``(number, position)``. Equal maxima
    keep the position of ``a``. Floats that have positions must have positive zeros and one NaN.
    """
    if OP == folding.SUM:
        return a[0] + b[0], a[1]
    elif OP == folding.GREATEST:
        return folding.greater(a[0], b[0]), a[1]
    else:
        grown = folding.greater(a[0], b[0])
        if grown.dtype.is_floating():
            # The bits change where the later one is greater, or the first NaN.
            BITS: tl.constexpr = tl.int64 if grown.dtype == tl.float64 else tl.int32
            wins = grown.to(BITS, bitcast=True) != a[0].to(BITS, bitcast=True)
        else:
            wins = b[0] > a[0]
        return grown, tl.where(wins, b[1], a[1])


@triton.jit
def until(parts, FIRST, STEP, COUNT, OP):
    """The first one, two, ... of COUNT entries of a tuple combined: ``FIRST, FIRST + STEP, ...``.
    No sum is deeper than a tree. With STEP -1 each entry is combined before those until it.
    """
    if COUNT == 1:
        return (parts[FIRST],)
    else:
        HALF: tl.constexpr = sums.block_of(COUNT)
        near = until(parts, FIRST, STEP, HALF, OP)
        far = until(parts, FIRST + HALF * STEP, STEP, COUNT - HALF, OP)
        result = near
        for i in tl.static_range(COUNT - HALF):
            if STEP > 0:
                result = result + (both(near[HALF - 1], far[i], OP),)
            else:
                result = result + (both(far[i], near[HALF - 1], OP),)
        return result


@triton.jit
def read(base, position, length, apart, live, OP, TYPE):
    """The element at a ``position`` of a line as a part of a window, or outside the line the
    identity. The position is 0 before the line, so that a window of nothing but the lowest value
    gives its first element as the winner.
    """
    FILL: tl.constexpr = neutral(base.dtype.element_ty, OP)
    inside = live & (position >= 0) & (position < length)
    v = addressing.load_filled(base + position * apart, inside, FILL, TYPE)
    if OP == folding.FIRST_GREATEST and TYPE.is_floating():
        v = folding.greater(tl.full(v.shape, FILL, TYPE), v + 0.0)
    return v, tl.maximum(position, 0)


@triton.jit
def core(base, first, turns, end, length, apart, live, OP, TYPE):
    """Positions ``first`` to ``end`` combined, eight in each turn. Sums are compensated."""
    FILL: tl.constexpr = neutral(base.dtype.element_ty, OP)
    value = tl.full(live.shape, FILL, TYPE)
    error = value
    best = tl.maximum(first, 0)
    for _ in range(turns):
        parts = ()
        for i in tl.static_range(EIGHT):
            ok = live & (first + i < end)
            parts = parts + (read(base, first + i, length, apart, ok, OP, TYPE),)
        group = until(parts, 0, 1, EIGHT, OP)[EIGHT - 1]
        if OP == folding.SUM and TYPE.is_floating():
            value, error = sums.with_group(value, error, group[0])
        else:
            value, best = both((value, best), group, OP)
        first += EIGHT
    if OP == folding.SUM and TYPE.is_floating():
        value = sums.compensated(value, error)
    return value, best


@triton.jit
def finished(tensors, part, place, axis, numbering, divisor, channel, MODE):
    """Stores the result of a window, its ``part``.

    ``place`` is ``(index of the result, first element of the line, distance between neighbours,
    first position of the window, whether the window exists)``.
    """
    _, numbers, y, codes, _ = tensors
    r, base, apart, start, live = place
    length, window, end = axis
    result, winner = part
    begin = tl.maximum(start, 0)
    count = tl.maximum(tl.minimum(start + window, length) - begin, 0)
    if MODE.operation == folding.FIRST_GREATEST:
        tap = (winner - start).to(r.dtype)
        at = base + winner * apart
        below, least = numbering
        found = live & (count > 0)
        folding.store_taps(codes, numbers, r, live, found, tap, at, below, least, MODE.numbered)
    elif MODE.operation == folding.SUM:
        counted = count
        if MODE.count == 2:
            counted = tl.maximum(tl.minimum(start + window, length + end) - start, 0)
        first = base + begin * apart
        result = folding.finished_sum(
            tensors, r, live, result, first, count, counted, divisor, channel, MODE
        )
    tl.store(y + r, addressing.rounded(result, y.dtype.element_ty), mask=live)


@addressing.launched(8)
def share(
    x,
    numbers,
    y,
    codes,
    input_scale,
    input_zero,
    output_scale,
    output_zero,
    sizes,
    groups,
    inner,
    axis,
    numbering,
    planes,
    channels,
    MODE: tl.constexpr,
    SHARED: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    B: tl.constexpr,
):
    """Writes the results of windows of ``x`` along one axis to ``y``; both are dense. Neighbours
    along the axis lie ``inner`` elements apart.

    A lane makes ``SHARED[0]`` windows, whose stride is at most ``SHARED[1]``. It reads their common
    core in ``turns`` turns of eight positions. ``groups``, ``inner``, ``planes`` and
    ``channels`` are dividers (``launch.divider``). What is divided, counted and numbered: see
    ``folding.fold``.
    """
    lanes, turns, divisor = sizes
    length, outputs, window, stride, start, end = axis
    G: tl.constexpr = SHARED[0]
    EDGE: tl.constexpr = SHARED[1]
    OP: tl.constexpr = MODE.operation
    TYPE: tl.constexpr = folding.accumulated(x.dtype.element_ty, OP, MODE.exact)
    lane = addressing.lane_numbers(B, WIDE)
    live = lane < lanes
    q = lane if ROWS else addressing.over(lane, inner)
    within = lane - q * inner[0]
    outer = addressing.over(q, groups)
    o = (q - outer * groups[0]) * G
    base = outer.to(tl.int64) * length * inner[0] + within
    channel = addressing.over(outer * inner[0] + within, planes)
    channel -= addressing.over(channel, channels) * channels[0]
    given = (input_scale, input_zero, output_scale, output_zero)
    tensors = (x, numbers, y, codes, given)
    source = x + base
    first = o * stride - start
    last = first + window  # past the first window
    before = ()
    after = ()
    for g in tl.static_range(G - 1):
        edges = ()
        ends = ()
        edge = first + g * stride
        for i in tl.static_range(EDGE):
            ok = live & (edge + i < edge + stride)
            edges = edges + (read(source, edge + i, length, inner[0], ok, OP, TYPE),)
            position = last + g * stride + i
            ends = ends + (read(source, position, length, inner[0], ok, OP, TYPE),)
        before = before + (until(edges, 0, 1, EDGE, OP)[EDGE - 1],)
        after = after + (until(ends, 0, 1, EDGE, OP)[EDGE - 1],)
    before = until(before, G - 2, -1, G - 1, OP)
    after = until(after, 0, 1, G - 1, OP)
    opening = first + (G - 1) * stride
    middle = core(source, opening, turns, last, length, inner[0], live, OP, TYPE)
    results = ()
    winners = ()
    for g in tl.static_range(G):
        if OP == folding.SUM:  # the short parts first: no deeper than a tree
            part = after[g - 1] if g == G - 1 else before[G - 2 - g]
            if g > 0 and g < G - 1:
                part = both(before[G - 2 - g], after[g - 1], OP)
            part = both(part, middle, OP)
        else:
            part = middle if g == G - 1 else both(before[G - 2 - g], middle, OP)
            if g > 0:
                part = both(part, after[g - 1], OP)
        results = results + (part[0],)
        winners = winners + (part[1],)
    r = (outer * outputs + o) * inner[0] + within
    ends = (length, window, end)
    if ROWS:  # neighbours leave through shared memory
        number = tl.arange(0, G)[None, :]
        part = addressing.join_columns(results, 0, 1, B, G), 0
        if OP == folding.FIRST_GREATEST:
            part = part[0], addressing.join_columns(winners, 0, 1, B, G)
        exists = live[:, None] & (o[:, None] + number < outputs)
        start = first[:, None] + number * stride
        place = (r[:, None] + number, base[:, None], 1, start, exists)
        finished(tensors, part, place, ends, numbering, divisor, channel[:, None], MODE)
    else:
        for g in tl.static_range(G):
            exists = live & (o + g < outputs)
            place = (r + g * inner[0], base, inner[0], first + g * stride, exists)
            part = results[g], winners[g]
            finished(tensors, part, place, ends, numbering, divisor, channel, MODE)


@triton.jit
def windows(v, window, whole, steps, IDENTITY, OP, X, N):
    """The results of the windows of ``window`` positions that begin at each position of a stretch.

    Between the segment of a window's first position and that of its last lie ``whole`` segments or
    one more. ``steps`` is the number of bits of ``whole``. Results of windows that reach past the
    stretch mean nothing.
    """
    LANES: tl.constexpr = N // EIGHT
    columns = addressing.split_columns(tl.reshape(v, [X * LANES, EIGHT]), X * LANES, EIGHT)
    c = ()
    for each in tl.static_range(EIGHT):
        c = c + ((columns[each], 0),)
    ends = ()
    after = ()
    forwards = until(c, 0, 1, EIGHT, OP)
    backwards = until(c, EIGHT - 1, -1, EIGHT, OP)
    for each in tl.static_range(EIGHT):
        ends = ends + (forwards[each][0],)
        after = after + (backwards[EIGHT - 1 - each][0],)
    run = tl.reshape(after[0], [X, LANES])  # of X segments from each on
    after = tl.reshape(addressing.join_columns(after, 0, 1, X * LANES, EIGHT), [X, N])
    ends = tl.reshape(addressing.join_columns(ends, 0, 1, X * LANES, EIGHT), [X * N])

    lane = tl.broadcast_to(tl.arange(0, LANES)[None, :], [X, LANES])
    one_more = tl.gather(run, tl.minimum(lane + 1 + whole, LANES - 1), 1)
    between = tl.full([X, LANES], IDENTITY, run.dtype)
    at = lane + 1
    count = 1
    for _ in range(steps):
        if whole & count != 0:
            more = tl.gather(run, tl.minimum(at, LANES - 1), 1)
            between, _ = both((between, 0), (more, 0), OP)
            at += count
        if 2 * count <= whole:
            more = tl.gather(run, tl.minimum(lane + count, LANES - 1), 1)
            run, _ = both((run, 0), (more, 0), OP)
        count *= 2
    position = tl.broadcast_to(tl.arange(0, N)[None, :], [X, N])
    has_one_more = position % EIGHT + (window - 1) % EIGHT >= EIGHT
    one_more = tl.where(has_one_more, over_segments(one_more, X, LANES), IDENTITY)
    # Flat, this is read from shared memory; rows that one warp holds would be shuffled.
    last = tl.minimum(position + (window - 1), N - 1) + tl.arange(0, X)[:, None] * N
    last = tl.reshape(tl.gather(ends, tl.reshape(last, [X * N]), 0), [X, N])
    result = both(both((after, 0), (one_more, 0), OP), (last, 0), OP)
    return both(result, (over_segments(between, X, LANES), 0), OP)[0]


@triton.jit
def over_segments(each, X, LANES):
    """A number of each segment, repeated for each of its positions."""
    return tl.reshape(tl.broadcast_to(each[:, :, None], [X, LANES, EIGHT]), [X, LANES * EIGHT])


@addressing.launched(8)
def slide(
    x,
    numbers,
    y,
    codes,
    input_scale,
    input_zero,
    output_scale,
    output_zero,
    sizes,
    blocks,
    stride,
    axis,
    segments,
    numbering,
    planes,
    channels,
    MODE: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Results of windows along rows, from ``x`` into ``y``, which are dense.

    A program reads ``BLOCK.positions`` of ``BLOCK.results`` rows, and makes the windows that fit.
    ``blocks``, ``stride``, ``planes`` and ``channels`` are dividers (``launch.divider``). What is
    divided, counted and numbered: see ``folding.fold``. Maxima with positions are one integer
    (``folding.key_of``).
    """
    lines, fit, divisor = sizes
    length, outputs, window, start, end = axis
    X: tl.constexpr = BLOCK.results
    N: tl.constexpr = BLOCK.positions
    OP: tl.constexpr = MODE.operation
    HAS_KEYS: tl.constexpr = OP == folding.FIRST_GREATEST
    TYPE: tl.constexpr = folding.accumulated(x.dtype.element_ty, OP, MODE.exact)
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    part = addressing.over(program, blocks)
    first_output = (program - part * blocks[0]) * fit
    line = part * X + tl.arange(0, X)[:, None]
    live = line < lines
    base = line.to(tl.int64) * length
    channel = addressing.over(line, planes)
    channel -= addressing.over(channel, channels) * channels[0]
    place = tl.arange(0, N)[None, :]
    position = first_output * stride[0] - start + place
    given = (input_scale, input_zero, output_scale, output_zero)
    tensors = (x, numbers, y, codes, given)
    ALONE: tl.constexpr = folding.GREATEST if HAS_KEYS else OP
    v, _ = read(x + base, position, length, 1, live, ALONE, TYPE)
    if HAS_KEYS:
        NEVER: tl.constexpr = -(2**63)
        own = tl.where(live & (position >= 0) & (position < length), place, folding.NOWHERE)
        v = folding.key_of(v + 0.0 if TYPE.is_floating() else v, own)
        result = windows(v, window, segments[0], segments[1], NEVER, folding.GREATEST, X, N)
        result, winner = folding.from_key(result, TYPE)
        winner += position - place
    else:
        NEUTRAL: tl.constexpr = neutral(x.dtype.element_ty, OP)
        result = windows(v, window, segments[0], segments[1], NEUTRAL, OP, X, N)
        winner = 0
    number = addressing.over(place, stride)
    o = first_output + number
    live = live & (number * stride[0] == place) & (number < fit) & (o < outputs)
    place = (line * outputs + o, base, 1, position, live)
    ends = (length, window, end)
    finished(tensors, (result, winner), place, ends, numbering, divisor, channel, MODE)
