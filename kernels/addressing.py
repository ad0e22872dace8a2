"""Device helpers that the kernel families share: lanes, tiles, planes, vectors of columns.

Every kernel sees three spatial axes ``D, H, W``; a missing one has size 1, window 1, stride 1 and
no padding. A *plane* is one ``(n, c)`` pair; its base is a 64-bit offset, offsets inside it are
32-bit unless the launch says ``WIDE``.
"""

# Triton's compiler knows no unpacking, and wants both branches of a compile-time choice to return.
# ruff: noqa: SIM300

import inspect
from typing import Any

import triton
import triton.language as tl

from . import launch

LANES = tl.constexpr(launch.LANES)
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Whether the kernels run in Triton's interpreter, which truncates to bfloat16 and misreads its
subnormal numbers."""


def launched(kernel: Any) -> Any:
    """Makes a function a kernel of tensors, of ``sizes``, a tuple of numbers and tuples of numbers
    on which it is never specialised, and of constants, which have capital names.
    """
    names = [name for name in inspect.signature(kernel).parameters if name.isupper()]
    constants = dict.fromkeys(names, tl.constexpr)
    kernel.__annotations__ |= constants
    compiled = triton.jit(kernel, do_not_specialize=["sizes"])
    if INTERPRETED:  # the interpreter makes a function of its own from the source
        compiled.rewrite().__annotations__ |= constants
    return compiled


@triton.jit
def lane_numbers(B, WIDE):
    """The numbers of this program's ``B`` lanes. With ``WIDE`` they have 64 bits, and so has every
    number that is computed from them.
    """
    first = tl.program_id(0)
    if WIDE:
        first = first.to(tl.int64)
    return first * B + tl.arange(0, B)


@triton.jit
def over(n, by):
    """``n // by[0]`` for n >= 0 and a divisor that is known at run time only. For 32 bits it takes
    three instructions, a division twenty. ``by`` comes from ``launch.divider``.
    """
    if n.dtype.primitive_bitwidth == 64:
        return n // by[0]
    else:
        number = n.to(tl.uint32)
        high = tl.umulhi(number, (by[1] + tl.zeros_like(n)).to(tl.uint32))
        return ((high + number) >> by[2].to(tl.uint32)).to(tl.int32)


@triton.jit
def parted(n, by):
    """``(n // by[0], n % by[0])``; ``by`` is a divider."""
    quotient = over(n, by)
    return quotient, n - quotient * by[0]


@triton.jit
def channel_of(number, planes):
    """The channel of an element. ``planes`` holds two dividers: how many neighbours have the same
    channel, and the number of channels.
    """
    return parted(over(number, planes[0]), planes[1])[1]


@triton.jit
def start_of(outer, strides, tiles, FORM):
    """Where a lane's sample, or plane, begins in a tensor of any strides. It has 64 bits from the
    first factor on: a plane may have more than 2**31 elements.
    """
    if FORM.channels:
        return outer.to(tl.int64) * strides[0]
    else:
        sample, channel = parted(outer, tiles[3])
        return sample.to(tl.int64) * strides[0] + channel.to(tl.int64) * strides[1]


@triton.jit
def tile_of_lane(sizes, FORM):
    """``(place, live, source, target)`` of a lane's tile, and ``live`` says whether it exists.

    ``place`` is ``(column, row, depth, channel, outer)``. ``tiles`` holds dividers: the numbers of
    tiles along columns, rows and depths, and of channels (of their vectors, where lanes own these).
    An axis that the rank leaves out costs nothing. ``outer`` is the number of the sample where
    lanes own vectors of channels, else of the plane.

    ``source`` and ``target`` say where the tile's plane or sample begins in the source, of any
    strides, and in the dense target. Both count vectors, not elements.
    """
    lengths, strides, targets, tiles, _ = sizes
    lane = lane_numbers(LANES, FORM.wide)
    outer = lane
    row = tl.zeros_like(lane)
    depth = row
    channel = row
    if FORM.channels:
        outer, channel = parted(lane, tiles[3])
    outer, column = parted(outer, tiles[0])
    if FORM.rank >= 2:
        outer, row = parted(outer, tiles[1])
    if FORM.rank == 3:
        outer, depth = parted(outer, tiles[2])
    target = outer.to(tl.int64) * targets[0] * targets[1] * targets[2]
    if FORM.channels:
        target = target * lengths[1]
    else:
        _, channel = parted(outer, tiles[3])
    place = (column, row, depth, channel, outer)
    return place, lane < lengths[0], start_of(outer, strides, tiles, FORM), target


@triton.jit
def inside(mask, position, size, NEEDED):
    """``mask`` without the positions outside an axis; unchanged where no check is NEEDED."""
    if NEEDED:  # as unsigned numbers, what lies before the axis lies past its end: one comparison
        UNSIGNED: tl.constexpr = tl.uint64 if position.dtype.primitive_bitwidth == 64 else tl.uint32
        return mask & (position.to(UNSIGNED, bitcast=True) < size.to(UNSIGNED))
    else:
        return mask


@triton.jit
def first_vector(first, channel, strides, FORM):
    """``(offset, step)``: where vector number ``first`` of a row lies, and how far the next is.

    Both count vectors. Those of one element may lie any stride apart: then ``FORM.unit`` is False.
    """
    step = strides[4] + tl.zeros((), first.dtype)
    if FORM.channels:
        return first * step + (channel * strides[1] if FORM.vector == 1 else channel), step
    else:
        return (first, 1) if FORM.unit else (first * step, step)


@triton.constexpr_function
def form_of_mask(form):
    """The form in which a mask is read: one of all channels has no vectors of these."""
    form = launch.Form(*form)
    return form._replace(vector=1) if form.mask == 3 else form


@triton.jit
def mask_of_lane(mask, sizes, place, first, FORM):
    """What ``kept_row`` needs to read a lane's mask from vector number ``first`` of its rows on."""
    if FORM.mask > 0:
        KEPT: tl.constexpr = form_of_mask(FORM)
        strides = sizes[4]
        start = start_of(place[4], strides, sizes[3], KEPT) * KEPT.vector
        return mask + start, strides, first_vector(first, place[3], strides, KEPT), first
    else:
        return ()


@triton.jit
def kept_row(kept, depth, row, mask, width, COUNT, FILL, FORM):
    """The columns of a mask beside those of ``load_row``, if there is one: 0 where an element is
    not there, and FILL outside the row.
    """
    if len(kept) > 0:
        base, strides, opening, first = kept
        place = (depth * strides[2] + row * strides[3] + opening[0], opening[1], first)
        return load_row(base, place, mask, width, COUNT, FILL, tl.uint8, form_of_mask(FORM))
    else:
        return ()


@triton.jit
def as_block(per_lane, FORM):
    """A number of each lane in the shape of the lane's values: [B], or [B, V] where lanes have
    vectors of channels.
    """
    if FORM.channels:
        return tl.broadcast_to(per_lane[:, None], [LANES, FORM.vector])
    else:
        return per_lane


@triton.constexpr_function
def lowest(dtype):
    """What a maximum fills padding with: the lowest value of a type, -inf for floats. A window of
    padding alone gives it (M1).
    """
    if dtype.is_floating():
        return float("-inf")
    return -(2 ** (dtype.primitive_bitwidth - 1)) if dtype.is_int_signed() else 0


@triton.jit
def load_filled(pointers, inside, fill, TYPE):
    """Elements as ``TYPE``, and ``fill`` where the mask ``inside`` is off."""
    ELEMENT: tl.constexpr = pointers.dtype.element_ty
    if ELEMENT.is_int_signed() and ELEMENT.primitive_bitwidth < 32:
        # Triton 3.6 to 3.8 fill a masked load of these types with a sign-extended word: -1 in all
        # but one element.
        return tl.where(inside, widened(tl.load(pointers, mask=inside, other=0), TYPE), fill)
    else:
        return widened(tl.load(pointers, mask=inside, other=fill), TYPE)


@triton.jit
def load_vectors(base, row, mask, width, COUNT, FILL, TYPE, V):
    """COUNT vectors ``[B, V]`` of each lane's row; FILL stands outside the row.

    ``row`` is ``(offset, step, first)``: where the first vector lies, how far the next is, and the
    number of the first in a row of ``width``. All count vectors, so that the compiler knows every
    address to be aligned to one.
    """
    offset, step, first = row
    vectors = ()
    pointers = (base + offset * V)[:, None] + tl.arange(0, V)[None, :]
    for c in tl.static_range(COUNT):
        ok = inside(mask, first + c, width, True)[:, None]
        vectors = vectors + (load_filled(pointers + c * (step * V), ok, FILL, TYPE),)
    return vectors


@triton.jit
def load_row(base, row, mask, width, COUNT, FILL, TYPE, FORM):
    """Loads COUNT vectors of each lane's row as a tuple of columns; FILL stands outside the row. A
    vector of channels is one column ``[B, V]``; a vector of columns is V columns ``[B]``.
    """
    vectors = load_vectors(base, row, mask, width, COUNT, FILL, TYPE, FORM.vector)
    return columns_of(vectors, COUNT, FORM)


@triton.jit
def store_row(base, columns, place, rows, ROW, C, width, FIRST, STEP, COLUMNS, FORM):
    """Stores the columns ``FIRST, FIRST + STEP, ...`` of a tuple in a lane's row number ``ROW``.

    ``rows`` is ``(line, left)``: where the lane's row 0 lies in a dense plane or sample, and how
    many rows there are from there on. ``place`` is that of ``tile_of_lane``. ``width`` counts
    vectors of columns, or single columns where lanes own channels.
    """
    TYPE: tl.constexpr = base.dtype.element_ty
    V: tl.constexpr = FORM.store
    below = (width + tl.zeros((), rows[0].dtype)) * ROW
    if FORM.channels:
        first = place[0] * COLUMNS
        start = base + ((rows[0] * width + first) * C + place[3]) * V
        pointers = start[:, None] + tl.arange(0, V)[None, :]
        for i in tl.static_range(COLUMNS):
            value = rounded(columns[FIRST + i * STEP], TYPE)
            ok = ROW < tl.where(first + i < width, rows[1], 0)
            tl.store(pointers + (below + i) * (C * V), value, mask=ok[:, None])
    else:
        BYTES: tl.constexpr = TYPE.primitive_bitwidth // 8
        IS_ODD: tl.constexpr = V == 1 and COLUMNS & (COLUMNS - 1) == 0
        # Wider stores would go through shared memory; single elements do, to lie side by side.
        PIECE: tl.constexpr = COLUMNS if IS_ODD else V if V * BYTES <= 16 else 16 // BYTES
        first = place[0] * (COLUMNS // V)
        vector = tl.arange(0, PIECE)[None, :]
        pointers = (base + (rows[0] * width + first) * V)[:, None] + vector
        for p in tl.static_range(COLUMNS // PIECE):
            piece = join_columns(columns, FIRST + p * PIECE * STEP, STEP, PIECE)
            column = first[:, None] + (vector if IS_ODD else p * PIECE // V)
            ok = ROW < tl.where(column < width, rows[1][:, None], 0)
            tl.store(pointers + (below * V + p * PIECE), rounded(piece, TYPE), mask=ok)


@triton.jit
def split_columns(vectors, V):
    """A block of lanes by ``V`` as a tuple of ``V`` tensors of lanes, in registers; ``V`` is 1, 2,
    4, 8 or 16.
    """
    if V == 1:
        return (tl.reshape(vectors, [LANES]),)
    else:
        evens, odds = tl.split(tl.reshape(vectors, [LANES, V // 2, 2]))
        even_columns = split_columns(evens, V // 2)
        odd_columns = split_columns(odds, V // 2)
        columns = ()
        for i in tl.static_range(V // 2):
            columns = columns + (even_columns[i], odd_columns[i])
        return columns


@triton.jit
def columns_of(vectors, N, FORM):
    """The columns of N vectors: of channels each is one, of columns each has several."""
    columns = ()
    for c in tl.static_range(N):
        v = vectors[c]
        columns = columns + ((v,) if FORM.channels else split_columns(v, FORM.vector))
    return columns


@triton.jit
def join_columns(columns, FIRST, STEP, V):
    """A block of lanes by ``V`` from the columns ``FIRST``, ``FIRST + STEP``, ... of a tuple: the
    inverse of split_columns.
    """
    if V == 1:
        return tl.reshape(columns[FIRST], [LANES, 1])
    else:
        evens = join_columns(columns, FIRST, 2 * STEP, V // 2)
        odds = join_columns(columns, FIRST + STEP, 2 * STEP, V // 2)
        return tl.reshape(tl.join(evens, odds), [LANES, V])


@triton.jit
def widened(values, TYPE):
    """Loaded values as ``TYPE``, the accumulation type."""
    if INTERPRETED and values.dtype == tl.bfloat16:
        bits = values.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        return bits.to(tl.float32, bitcast=True).to(TYPE)
    else:
        return values.to(TYPE)


@triton.jit
def rounded(values, TYPE):
    """Accumulated values as the stored type, rounded once, to nearest even."""
    if INTERPRETED and TYPE == tl.bfloat16:
        bits = values.to(tl.float32).to(tl.uint32, bitcast=True)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        nearest = tl.where(values == values, nearest, 0x7FC0)
        return nearest.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return values.to(TYPE)
