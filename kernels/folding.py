"""One result of each window along one axis, of any length, on the GPU: sums, maxima, maxima with
the first position.

Whole planes, adaptive bins and windows too large for straight-line code are folded, one axis at a
time; neighbouring axes that a window takes whole are one axis. A program owns a tile of windows by
positions, and its threads read neighbours in memory, whichever way these lie:

    rows, the axis is innermost           columns, elements further in lie side by side
    window 0   0 1 2 3 ... T-1  | next    window     0 1 2 3 ... G-1
    window 1   0 1 2 3 ... T-1  | T       position 0 . . . .
    ...                                   position 1 . . . .
    window G-1                            ...

Then the T positions of a window are combined by a tree. Long whole axes are folded twice: into
slices, then these. A sum's additions are as deep as a balanced tree's: a thread adds up few
elements, or compensates (E6).
"""

import triton
import triton.language as tl

from . import addressing, requantization, sums

SUM = tl.constexpr(0)
GREATEST = tl.constexpr(1)
FIRST_GREATEST = tl.constexpr(2)
"""``MODE.operation``: what a window gives. FIRST_GREATEST also gives the winner's number."""
WHOLE = tl.constexpr(0)
WINDOWS = tl.constexpr(1)
BINS = tl.constexpr(2)
"""KIND: an axis is one window, or has windows or adaptive bins."""
NOWHERE = tl.constexpr(2**31 - 1)
"""The position of what lies outside a window. It is greater than all others."""
OF_PLANES = tl.constexpr(2)
OF_ROWS = tl.constexpr(3)
LEFT = tl.constexpr(4)
"""``MODE.mask``: ``numbers`` are a mask of the source's shape (1), one of all channels of a plane
or of a position, or what the launch before has left: counts, or -1 where no element was."""


@triton.constexpr_function
def accumulated(source):
    """The type in which elements are compared, or added up."""
    if source.is_floating():
        return source if source == tl.float64 else tl.float32
    return tl.int32 if source.primitive_bitwidth < 32 else source


@triton.jit
def greater(a, b):
    """The maximum, or NaN where there is one."""
    if a.dtype.is_floating():
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    else:
        return tl.maximum(a, b)


@triton.jit
def first_greater(a, i, b, j):
    """The maximum or NaN of ``a`` at position ``i`` and ``b`` at ``j``; of equal ones the first."""
    wins = b > a
    equal = a == b
    if a.dtype.is_floating():
        wins = wins | ((b != b) & (a == a))
        equal = equal | ((a != a) & (b != b))
    wins = wins | (equal & (j < i))
    return tl.where(wins, b, a), tl.where(wins, j, i)


@triton.jit
def next_greater(value, best, v, k):
    """The maximum of an earlier value and a later one, and its position: of equal ones the first.
    The later one's zeros must be positive, its NaN the one that Triton gives.
    """
    grown = greater(value, v)
    if grown.dtype.is_floating():
        # The bits change where the later one is greater, or the first NaN.
        BITS: tl.constexpr = tl.int64 if grown.dtype == tl.float64 else tl.int32
        wins = grown.to(BITS, bitcast=True) != value.to(BITS, bitcast=True)
    else:
        wins = v > value
    return grown, tl.where(wins, k, best)


@triton.jit
def taps_before(first, bound, K, dilation):
    """How many of the taps ``first, first + D, ...`` (``K`` of them) lie below ``bound``."""
    return tl.minimum(
        addressing.over(tl.maximum(bound - first, 0) + (dilation[0] - 1), dilation), K
    )


@triton.jit
def bin_of(number, size, bins):
    """An adaptive bin's first element and how many it has; ``bins`` is a divider.

    With ``size`` and ``bins`` exchanged, ``number`` is an element: the result is then the first bin
    that holds it, and how many bins do.
    """
    least = size // bins[0]
    remainder = size - least * bins[0]
    start = number * least + addressing.over(number * remainder, bins)
    end = (number + 1) * least + addressing.over((number + 1) * remainder + (bins[0] - 1), bins)
    return start, end - start


@triton.jit
def window_of(o, size, outputs, axis, KIND, ADJOINT):
    """``(start, count, number)``: where window or bin ``o`` begins inside the input, how many
    elements it has there, and the tap (of a bin the position) that the first of them is.

    With ADJOINT ``o`` is an element: the first of ``size`` windows or bins that hold it, and how
    many do. Windows have no dilation then.
    """
    K, stride, padding, _, dilation = axis
    if KIND == BINS:
        start, count = bin_of(o, size, outputs)
        return start, count, start
    elif ADJOINT:
        past = tl.minimum(addressing.over(o + padding, stride) + 1, size)
        start = addressing.over(tl.maximum(o + padding - K, -1) + stride[0], stride)
        return start, past - start, start
    else:
        first = o * stride[0] - padding
        skipped = taps_before(first, 0, K, dilation)
        count = taps_before(first, size, K, dilation) - skipped
        return first + skipped * dilation[0], count, skipped


@triton.jit
def counted_by(o, size, axis, COUNT):
    """How many elements an average counts in window ``o``."""
    if COUNT == 2:
        K, stride, padding, end, dilation = axis
        return taps_before(o * stride[0] - padding, size + end, K, dilation)
    else:
        _, count, _ = window_of(o, size, (), axis, WINDOWS, False)
        return count


@triton.jit
def kept_results(results, mask, r, live, planes, MASK):
    """``results`` number ``r`` of a dense tensor, and 0 where their MASK leaves an element out."""
    at = r
    if MASK == OF_PLANES:
        plane, within = addressing.parted(r, planes[0])
        at = addressing.over(plane, planes[1]) * planes[0][0] + within
    elif MASK == OF_ROWS:
        at = addressing.over(r, planes[1])
    if MASK > 0:
        results = tl.where(tl.load(mask + at, mask=live, other=0) != 0, results, 0)
    return results


@triton.jit
def across(of_window, BLOCK):
    """A number of each of a tile's windows in a block of these and positions: ``[G, T]`` or, where
    windows are neighbours in memory, ``[T, G]``. A third dimension holds the neighbours of vectors.
    """
    block = tl.expand_dims(of_window, 1 if BLOCK.rows else 0)
    return tl.expand_dims(block, 2) if BLOCK.vector > 1 else block


@triton.jit
def first_positions(limit, BLOCK):
    """``(k, lane)``: the positions that a tile reads first, of vectors those of the first elements,
    and the numbers of a vector's elements. The next are ``BLOCK.positions`` further on.
    """
    STEP: tl.constexpr = BLOCK.vector if BLOCK.rows else 1
    k = tl.expand_dims(tl.arange(0, BLOCK.positions // STEP) * STEP, 0 if BLOCK.rows else 1)
    k = k.to(limit.dtype)
    if BLOCK.vector > 1:
        return tl.expand_dims(k, 2), tl.arange(0, BLOCK.vector)[None, None, :]
    else:
        return k, 0


@triton.jit
def hinted(at, BLOCK):
    """Offsets of a block, with hints that say which way it lies."""
    V: tl.constexpr = BLOCK.vector
    if V > 1:
        return tl.max_contiguous(tl.multiple_of(at, [1, V, V]), [1, 2, V])
    else:
        return tl.max_contiguous(at, [1, BLOCK.positions if BLOCK.rows else 1])


@triton.jit
def elements(source, kept, k, lane, limit, apart, FILL, TYPE, BLOCK, MASK):
    """Elements ``k`` of a tile's windows, and what a MASK has there: whether they are there, or
    what is LEFT.

    ``source`` points to each window's first element, the next lies ``apart`` elements further on,
    and ``limit`` says how many there are; ``kept`` is the same of the mask.
    """
    there = k < limit
    values = addressing.load_filled(source + hinted(k * apart + lane, BLOCK), there, FILL, TYPE)
    if MASK > 0:
        beside = k * kept[1]
        if MASK != OF_ROWS:
            beside = hinted(beside + lane, BLOCK)
        there = tl.load(kept[0] + beside, mask=there, other=0)
        if MASK != LEFT:
            there = there != 0
            values = tl.where(there, values, FILL)
    return values, there


@triton.jit
def of_windows(values, BLOCK):
    """A block of windows by positions, without vectors of these."""
    if BLOCK.rows and BLOCK.vector > 1:
        return tl.reshape(values, [BLOCK.results, BLOCK.positions])
    elif BLOCK.positions == 1:
        return tl.reshape(values, [BLOCK.results])
    else:
        return values


@triton.jit
def summed(source, kept, limit, apart, steps, gradients, COUNT, TYPE, BLOCK, MASK):
    """The sums of a tile's windows, and with a MASK how many elements each has.

    The first arguments are those of ``elements``. A thread reads ``BLOCK.loads`` of them in each of
    ``steps`` steps. Gradients of averages are divided by what their bin, or with a COUNT their
    window, counts: ``gradients`` is ``(number of the first, bins, the input's size, axis)``, or ().
    """
    LOADS: tl.constexpr = BLOCK.loads  # Triton 3.6 reads no tuple inside a loop
    T: tl.constexpr = BLOCK.positions
    COMPENSATED: tl.constexpr = BLOCK.compensated and TYPE.is_floating()
    k, lane = first_positions(limit, BLOCK)
    total = tl.zeros((k + lane < limit).shape, TYPE)
    error = total
    # To add 1 to a float where an element is there is one instruction. Each is of few elements.
    COUNTS: tl.constexpr = tl.int32 if MASK == LEFT else tl.float32
    count = tl.zeros((k < limit).shape if MASK == OF_ROWS else total.shape, COUNTS)
    for _ in range(steps):
        terms = ()
        for _ in tl.static_range(LOADS):
            term, there = elements(source, kept, k, lane, limit, apart, 0, TYPE, BLOCK, MASK)
            if MASK == LEFT:
                count += there
            elif MASK > 0:
                count = tl.where(there, count + 1, count)
            if len(gradients) > 0:
                if COUNT > 0:
                    shares = counted_by(gradients[0] + k, gradients[2], gradients[3], COUNT)
                else:
                    _, shares = bin_of(gradients[0] + k, gradients[2], gradients[1])
                shares = tl.maximum(shares, 1).to(TYPE)
                term = sums.quotient(term, shares, 1.0 / shares)
            terms = terms + (term,)
            k += T
        group = sums.tree(terms, 0, 1, LOADS)
        if COMPENSATED:
            total, error = sums.with_group(total, error, group)
        else:
            total += group
    if COMPENSATED:
        total = sums.compensated(total, error)
    total, count = of_windows(total, BLOCK), of_windows(count.to(tl.int32), BLOCK)
    if T > 1:
        AXIS: tl.constexpr = 1 if BLOCK.rows else 0
        total, count = tl.sum(total, AXIS), tl.sum(count, AXIS)
    return total, count


@triton.jit
def greatest(source, kept, limit, apart, steps, OP, TYPE, BLOCK, MASK):
    """The maxima of a tile's windows, and the number of each in its window, counted from 0: of
    equal elements the first one's. The arguments are those of ``summed``. Where a MASK leaves no
    element, the number is NOWHERE.
    """
    AXIS: tl.constexpr = 1 if BLOCK.rows else 0
    FILL: tl.constexpr = addressing.lowest(source.dtype.element_ty)
    T: tl.constexpr = BLOCK.positions
    LOADS: tl.constexpr = BLOCK.loads
    k, lane = first_positions(limit, BLOCK)
    own = k + (lane if BLOCK.rows else lane * 0)
    # The winner of a window of nothing but the lowest value is its first element.
    first = tl.where((own < limit) & (MASK == 0), own, NOWHERE)
    best = first
    value = tl.full(best.shape, FILL, TYPE)
    for _ in range(steps):
        for _ in tl.static_range(LOADS):
            v, there = elements(source, kept, k, lane, limit, apart, FILL, TYPE, BLOCK, MASK)
            if MASK == LEFT:
                there = (there >= 0) & (k < limit)
                v = tl.where(there, v, FILL)
            if OP == GREATEST:
                value = greater(value, v)
            else:
                if MASK > 0:
                    first = tl.minimum(first, tl.where(there, own, NOWHERE))
                v = v + 0.0 if TYPE.is_floating() else v
                value, best = next_greater(value, best, v, own)
            k += T
            own += T
    value, best = (
        of_windows(value, BLOCK),
        of_windows(tl.where(best == NOWHERE, first, best), BLOCK),
    )
    if T > 1:
        if OP == GREATEST:
            value = tl.reduce(value, AXIS, greater)
        else:
            value, best = tl.reduce((value, best), AXIS, first_greater)
    return value, best


@triton.jit
def finished_sum(tensors, r, result, count, counted, divisor, channel, MODE):
    """Sums of ``count`` elements divided, or requantized if ``y`` has 8 bits. The zero points of
    elements of 8 bits are subtracted first.
    """
    x, y, qparams = tensors
    KINDS: tl.constexpr = MODE.kinds  # Triton 3.6 hands no tuple on that is part of another
    if x.dtype.element_ty.primitive_bitwidth == 8:
        zero = requantization.parameter(qparams[1], channel, KINDS[1], tl.int32)
        result -= count.to(result.dtype) * zero
    own = tl.zeros_like(r) + (divisor if MODE.count % 3 == 0 else tl.maximum(counted, 1))
    if result.dtype.is_floating():
        own = own.to(result.dtype)
        result = sums.quotient(result, own, 1.0 / own)
    elif y.dtype.element_ty.primitive_bitwidth == 8:
        result = requantization.quotients(result, own, channel, qparams, KINDS, y.dtype.element_ty)
    return result


@addressing.launched
def fold(
    x, numbers, y, codes, x_scale, x_zero, y_scale, y_zero, sizes, MODE, KIND, ADJOINT, BLOCK, WIDE
):
    """Writes the results of windows or bins of ``x`` along one axis to ``y``; both are dense.
    Neighbours along the axis lie ``inner`` elements apart.

    ``length``, ``inner``, ``outputs``, stride and dilation are dividers (``launch.divider``).

    Sums of floats are divided by ``divisor`` or by what ``MODE.count`` says. With ADJOINT they are
    sums of the gradients of the windows or bins that hold an element, and what divides a bin's or a
    counted window's does so first. Sums of integers leave out the zero point, and are requantized
    if ``y`` has 8 bits.

    FIRST_GREATEST writes the winner's number to ``codes``: its tap (in a slice plus the slice's
    start, ``shift * window``) times ``below``, the taps of the axes further in. With
    ``MODE.numbered`` it adds the winner's number along these axes, from ``numbers``. A window
    without elements gets -1, or ``least`` if that is greater.
    """
    results, steps, divisor, length, inner, outputs, axis, numbering, planes = sizes
    below, shift, least = numbering
    OP: tl.constexpr = MODE.operation
    TYPE: tl.constexpr = accumulated(x.dtype.element_ty)
    V: tl.constexpr = BLOCK.vector
    # Windows that are neighbours in memory are taken in vectors, by the first one of each.
    COLUMNS: tl.constexpr = 1 if BLOCK.rows else V
    r = addressing.lane_numbers(BLOCK.results // COLUMNS, WIDE) * COLUMNS
    live = r < results
    q = r if BLOCK.rows else addressing.over(r, inner)
    outer = q
    o = tl.zeros_like(r)
    start = o
    tap = o
    count = o + length[0]
    if KIND != WHOLE:
        outer = addressing.over(q, outputs)
        o = q - outer * outputs[0]
        start, count, tap = window_of(o, length[0], outputs, axis, KIND, ADJOINT)
    base = outer.to(tl.int64) * length[0] * inner[0] + start * inner[0] + (r - q * inner[0])
    dilation = axis[4][0] + tl.zeros((), r.dtype)
    apart = tl.multiple_of(dilation * inner[0], COLUMNS)
    at = base
    beside = apart
    if MODE.mask == OF_PLANES:
        plane = addressing.over(r, planes[0])
        at = base - (plane - addressing.over(plane, planes[1])).to(tl.int64) * planes[2]
    elif MODE.mask == OF_ROWS:
        narrow = inner[0] // planes[1][0]
        at = outer.to(tl.int64) * length[0] + start
        at = at * narrow + addressing.over(r - q * inner[0], planes[1])
        beside = dilation * narrow
    beside += tl.zeros((), r.dtype)
    NEAR: tl.constexpr = 1 if BLOCK.rows or V > 1 else BLOCK.results
    limit = across(tl.where(live, count, 0), BLOCK)
    base = tl.max_contiguous(tl.multiple_of(base, V), NEAR)
    if MODE.mask != OF_ROWS:
        at = tl.max_contiguous(tl.multiple_of(at, V), NEAR)
    source, kept = across(x + base, BLOCK), (across(numbers + at, BLOCK), beside)
    gradients = ()
    if ADJOINT and (KIND == BINS or MODE.count > 0):
        gradients = (across(start, BLOCK), length, outputs[0], axis)
    if COLUMNS > 1:
        lane = tl.arange(0, V)[None, :]
        r, base = r[:, None] + lane, base[:, None] + lane
        live, count, o, tap = live[:, None], count[:, None], o[:, None], tap[:, None]
    if OP != SUM:
        result, winner = greatest(source, kept, limit, apart, steps, OP, TYPE, BLOCK, MODE.mask)
        if OP == FIRST_GREATEST:
            found = live & (count > 0) & (winner != NOWHERE)
            CODE: tl.constexpr = tl.int64 if codes.dtype.element_ty == tl.int64 else tl.int32
            code = ((tap + o * shift + winner) * below).to(CODE)
            if MODE.numbered:
                further_in = tl.load(numbers + base + winner * apart, mask=found, other=-1)
                code += further_in.to(CODE)
                found = found & (further_in >= 0)
            code = tl.maximum(tl.where(found, code, -1), least)
            tl.store(codes + r, code.to(codes.dtype.element_ty), mask=live)
    else:
        result, there = summed(
            source, kept, limit, apart, steps, gradients, MODE.count, TYPE, BLOCK, MODE.mask
        )
    if OP == SUM and len(gradients) == 0:
        counted = counted_by(o, length[0], axis, 2) if MODE.count == 2 else count
        if MODE.mask > 0:
            counted = there
        if MODE.count == 3:
            tl.store(codes + r, there, mask=live)
        channel = addressing.channel_of(r, planes)
        qparams = (x_scale, x_zero, y_scale, y_zero)
        result = finished_sum((x, y, qparams), r, result, count, counted, divisor, channel, MODE)
    result = kept_results(result, numbers, r, live, planes, MODE.kept)
    tl.store(y + r, addressing.rounded(result, y.dtype.element_ty), mask=live)
