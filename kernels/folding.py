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
    K, stride, padding, end, dilation = axis
    first = o * stride[0] - padding
    if COUNT == 2:
        return taps_before(first, size + end, K, dilation)
    else:
        return taps_before(first, size, K, dilation) - taps_before(first, 0, K, dilation)


@triton.jit
def of_vectors(values, G, N, V):
    """The sums of vectors, as trees: [G, N] of [G, N, V]."""
    if V == 1:
        return tl.reshape(values, [G, N])
    else:
        HALF: tl.constexpr = V // 2
        left, right = tl.split(tl.reshape(values, [G, N, HALF, 2]))
        return of_vectors(left + right, G, N, HALF)


@triton.jit
def summed(source, kept, limit, apart, steps, gradients, COUNT, TYPE, BLOCK, MASK):
    """The sums of a tile's windows, and with a MASK how many elements each has.

    ``source`` points to each window's first element, the next lies ``apart`` elements further on,
    and ``limit`` says how many there are; ``kept`` is the same of the mask. A thread reads
    ``BLOCK.loads`` of them in each of ``steps`` steps. Gradients of averages are divided by what
    their bin, or with a COUNT their window, counts: ``gradients`` is ``(number of the first, bins,
    the input's size, axis)``, or ().
    """
    T: tl.constexpr = BLOCK.positions
    V: tl.constexpr = BLOCK.vector
    G: tl.constexpr = BLOCK.results
    N: tl.constexpr = T // V
    LOADS: tl.constexpr = BLOCK.loads  # Triton 3.6 reads no tuple inside a loop
    COMPENSATED: tl.constexpr = BLOCK.compensated and TYPE.is_floating()
    ROWS: tl.constexpr = BLOCK.rows
    VECTORS: tl.constexpr = ROWS and V > 1
    # A third dimension holds the positions of a vector: the hints say which way a block lies.
    AXIS: tl.constexpr = 1 if ROWS else 0
    if VECTORS:
        k = (tl.arange(0, N) * V)[None, :, None].to(limit.dtype)
        lane = tl.arange(0, V)[None, None, :]
        source, limit = tl.expand_dims(source, 2), tl.expand_dims(limit, 2)
        first = tl.expand_dims(kept[0], 2)
        total = tl.zeros([G, N, V], TYPE)
    else:
        k = tl.expand_dims(tl.arange(0, T), 1 - AXIS).to(limit.dtype)
        lane = 0
        first = kept[0]
        total = tl.zeros((k < limit).shape, TYPE)
    error = total
    count = tl.zeros(total.shape, tl.int32)
    for _ in range(steps):
        terms = ()
        for _ in tl.static_range(LOADS):
            exists = k < limit
            if VECTORS:
                at = tl.max_contiguous(tl.multiple_of(k + lane, [1, V, V]), [1, 2, V])
                beside = at
                exists = tl.broadcast_to(exists, total.shape)
            else:
                at = tl.max_contiguous(k * apart, [1, T if ROWS else 1])
                beside = tl.max_contiguous(k * kept[1], [1, T if ROWS else 1])
            term = addressing.load_filled(source + at, exists, 0, TYPE)
            if MASK > 0:
                there = tl.load(first + beside, mask=exists, other=0).to(tl.int32)
                if MASK != LEFT:
                    there = (there != 0).to(tl.int32)
                    term = tl.where(there != 0, term, 0)
                count += there
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
    if VECTORS:
        total = of_vectors(total, G, N, V)
        count = of_vectors(count, G, N, V)
    if T == 1:
        return tl.reshape(total, [G]), tl.reshape(count, [G])
    else:
        return tl.sum(total, AXIS), tl.sum(count, AXIS)


@triton.jit
def greatest(source, kept, limit, apart, steps, OP, TYPE, BLOCK, MASK):
    """The maxima of a tile's windows, and the number of each in its window, counted from 0: of
    equal elements the first one's. The arguments are those of ``summed``. Where a MASK leaves no
    element, the number is NOWHERE.
    """
    AXIS: tl.constexpr = 1 if BLOCK.rows else 0
    FILL: tl.constexpr = addressing.lowest(source.dtype.element_ty)
    T: tl.constexpr = BLOCK.positions
    NEAR: tl.constexpr = T if BLOCK.rows else 1
    LOADS: tl.constexpr = BLOCK.loads
    k = tl.expand_dims(tl.arange(0, T), 1 - AXIS).to(limit.dtype)
    # The winner of a window of nothing but the lowest value is its first element.
    best = tl.where((k < limit) & (MASK == 0), k, NOWHERE)
    value = tl.full(best.shape, FILL, TYPE)
    for _ in range(steps):
        for _ in tl.static_range(LOADS):
            at = source + tl.max_contiguous(k * apart, [1, NEAR])
            v = addressing.load_filled(at, k < limit, FILL, TYPE)
            own = k
            if MASK > 0:
                beside = kept[0] + tl.max_contiguous(k * kept[1], [1, NEAR])
                n = tl.load(beside, mask=k < limit, other=0).to(tl.int32)
                there = (n >= 0) & (k < limit) if MASK == LEFT else n != 0
                v = tl.where(there, v, FILL)
                own = tl.where(there, k, NOWHERE)
                best = tl.where(best == NOWHERE, own, best)
            if OP == GREATEST:
                value = greater(value, v)
            else:
                v = v + 0.0 if TYPE.is_floating() else v
                value, best = next_greater(value, best, v, own)
            k += T
    if T == 1:
        return tl.reshape(value, [BLOCK.results]), tl.reshape(best, [BLOCK.results])
    elif OP == GREATEST:
        return tl.reduce(value, AXIS, greater), 0
    else:
        return tl.reduce((value, best), AXIS, first_greater)


@triton.jit
def store_taps(codes, numbers, r, live, found, tap, winner, below, least, NUMBERED):
    """Stores ``tap * below``, plus the number that ``numbers`` has at ``winner`` if NUMBERED.

    Where no element was ``found``, it stores the greater of -1 and ``least``.
    """
    CODE: tl.constexpr = tl.int64 if codes.dtype.element_ty == tl.int64 else tl.int32
    code = (tap * below).to(CODE)
    if NUMBERED:
        further_in = tl.load(numbers + winner, mask=found, other=-1)
        code += further_in.to(CODE)
        found = found & (further_in >= 0)
    code = tl.maximum(tl.where(found, code, -1), least)
    tl.store(codes + r, code.to(codes.dtype.element_ty), mask=live)


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
    AXIS: tl.constexpr = 1 if BLOCK.rows else 0
    OP: tl.constexpr = MODE.operation
    TYPE: tl.constexpr = accumulated(x.dtype.element_ty)
    r = addressing.lane_numbers(BLOCK.results, WIDE)
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
    apart = dilation * inner[0]
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
    NEAR: tl.constexpr = 1 if BLOCK.rows else BLOCK.results
    limit = tl.where(live, count, 0)
    V: tl.constexpr = BLOCK.vector
    if V > 1:
        base = tl.multiple_of(base, V)
        if not BLOCK.rows:
            apart = tl.multiple_of(apart, V)
            limit = tl.max_constancy(limit, V)
        at = tl.multiple_of(at, V) if MODE.mask != OF_ROWS else at
    source = tl.expand_dims(x + tl.max_contiguous(base, NEAR), AXIS)
    at = tl.max_contiguous(at, 1 if MODE.mask == OF_ROWS else NEAR)
    limit = tl.expand_dims(limit, AXIS)
    kept = (tl.expand_dims(numbers + at, AXIS), beside)
    if OP != SUM:
        result, winner = greatest(source, kept, limit, apart, steps, OP, TYPE, BLOCK, MODE.mask)
        if OP == FIRST_GREATEST:
            tap = tap + o * shift + winner
            found = live & (count > 0) & (winner != NOWHERE)
            at = base + winner * apart
            store_taps(codes, numbers, r, live, found, tap, at, below, least, MODE.numbered)
    elif ADJOINT and (KIND == BINS or MODE.count > 0):
        gradients = (tl.expand_dims(start, AXIS), length, outputs[0], axis)
        result, _ = summed(source, kept, limit, apart, steps, gradients, MODE.count, TYPE, BLOCK, 0)
    else:
        result, there = summed(source, kept, limit, apart, steps, (), 0, TYPE, BLOCK, MODE.mask)
        counted = counted_by(o, length[0], axis, 2) if MODE.count == 2 else count
        if MODE.mask > 0:
            counted = there
        if MODE.count == 3:
            tl.store(codes + r, there, mask=live)
        channel = addressing.channel_of(r, planes)
        qparams = (x_scale, x_zero, y_scale, y_zero)
        result = finished_sum((x, y, qparams), r, result, count, counted, divisor, channel, MODE)
    tl.store(y + r, addressing.rounded(result, y.dtype.element_ty), mask=live)
