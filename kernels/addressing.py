"""Device helpers that the kernel families share: lanes, tiles, planes, vectors split into columns, taps in closed form.

Every kernel sees three spatial axes ``D, H, W``; a missing one has size 1, window 1, stride 1 and no padding. A *plane*
is one ``(n, c)`` pair; its base is a 64-bit offset, offsets inside it are 32-bit unless the launch says ``WIDE``.
"""

# Triton's compiler knows no unpacking, and wants both branches of a compile-time choice to return.
# ruff: noqa: SIM108, SIM300

import triton
import triton.language as tl


@triton.jit
def lane_numbers(B: tl.constexpr, WIDE: tl.constexpr):
    """The numbers of this program's ``B`` lanes; 64-bit where ``WIDE``, and then so is all that follows from them."""
    first = tl.program_id(0)
    if WIDE:
        first = first.to(tl.int64)
    return first * B + tl.arange(0, B)


@triton.jit
def tile_of(lane, column_tiles, row_tiles, depth_tiles, RANK: tl.constexpr):
    """``(column, row, depth, rest)`` of a lane, column fastest; axes that ``RANK`` says are missing cost nothing."""
    column = lane % column_tiles
    rest = lane // column_tiles
    row = tl.zeros_like(lane)
    depth = tl.zeros_like(lane)
    if RANK >= 2:
        row = rest % row_tiles
        rest = rest // row_tiles
    if RANK == 3:
        depth = rest % depth_tiles
        rest = rest // depth_tiles
    return column, row, depth, rest


@triton.jit
def plane_offset(plane, channels, sample_stride, channel_stride):
    """64-bit offset of plane ``n * channels + c`` in a tensor of any two strides."""
    return (plane // channels).to(tl.int64) * sample_stride + (plane % channels).to(tl.int64) * channel_stride


@triton.jit
def as_block(per_lane, VECTORS: tl.constexpr, B: tl.constexpr, V: tl.constexpr):
    """A number per lane in the shape of the lane's values: [B], or vectors of channels [B, V]."""
    if VECTORS:
        return tl.broadcast_to(per_lane[:, None], [B, V])
    else:
        return per_lane


@triton.constexpr_function
def lowest(dtype):
    """What padding holds for a maximum: it loses against everything, and a window of nothing else gives it (M1)."""
    if dtype.is_floating():
        return float("-inf")
    return -(2 ** (dtype.primitive_bitwidth - 1)) if dtype.is_int_signed() else 0


@triton.jit
def load_filled(pointers, inside, FILL: tl.constexpr, TYPE: tl.constexpr):
    """Elements as ``TYPE``, and ``FILL`` where the mask ``inside`` is off."""
    SIGNED: tl.constexpr = pointers.dtype.element_ty.is_int_signed()
    if SIGNED and pointers.dtype.element_ty.primitive_bitwidth < 32 and FILL != 0:
        # Triton 3.6 to 3.8 fill a masked load of these types with a sign-extended word: -1 in all but one element.
        return tl.where(inside, widened(tl.load(pointers, mask=inside, other=0), TYPE), FILL)
    else:
        return widened(tl.load(pointers, mask=inside, other=FILL), TYPE)


@triton.jit
def load_row(
    base, offset, inside, first, width, step, LOW: tl.constexpr, HIGH: tl.constexpr, FILL: tl.constexpr,
    TYPE: tl.constexpr, V: tl.constexpr, B: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Columns ``first + LOW .. first + HIGH`` of each lane's row at ``base + offset * V`` as a tuple; FILL outside.

    A column is a vector of V elements. With SPLIT these are V neighbouring columns of one element, and the tuple holds
    each as ``[B]``; else they are channels, and it holds ``[B, V]``. Offsets, widths and steps count vectors, so that
    the compiler knows every address to be aligned to one.
    """
    columns = ()
    for c in tl.static_range(LOW, HIGH + 1):
        column = first + c
        ok = (inside & (column >= 0) & (column < width))[:, None]
        at = ((offset + column * step) * V)[:, None] + tl.arange(0, V)[None, :]
        v = load_filled(base[:, None] + at, ok, FILL, TYPE)
        if SPLIT:
            columns = columns + split_columns(v, B, V)
        else:
            columns = columns + (v,)
    return columns


@triton.jit
def store_row(
    base, offset, columns, live, first, width, FIRST: tl.constexpr, STEP: tl.constexpr, COLUMNS: tl.constexpr,
    V: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The columns ``FIRST, FIRST + STEP, ...`` of a tuple of ``[B]`` at ``base + offset * V``, V to a vector.

    ``offset`` and ``width`` count vectors; the first one is number ``first`` of its row.
    """
    TYPE: tl.constexpr = base.dtype.element_ty
    BYTES: tl.constexpr = TYPE.primitive_bitwidth // 8
    PIECE: tl.constexpr = V if V * BYTES <= 16 else 16 // BYTES  # wider stores would go through shared memory
    for p in tl.static_range(COLUMNS // V):
        ok = (live & (first + p < width))[:, None]
        for q in tl.static_range(V // PIECE):
            piece = join_columns(columns, FIRST + (p * V + q * PIECE) * STEP, STEP, B, PIECE)
            at = ((offset + p) * V + q * PIECE)[:, None] + tl.arange(0, PIECE)[None, :]
            tl.store(base[:, None] + at, rounded(piece, TYPE), mask=ok)


@triton.jit
def split_columns(vectors, B: tl.constexpr, V: tl.constexpr):
    """``[B, V]`` as a tuple of ``V`` tensors ``[B]``, in registers; ``V`` is 1, 2, 4, 8 or 16."""
    if V == 1:
        return (tl.reshape(vectors, [B]),)
    elif V == 2:
        first, second = tl.split(vectors)
        return (first, second)
    else:
        evens, odds = tl.split(tl.reshape(vectors, [B, V // 2, 2]))
        even_columns = split_columns(evens, B, V // 2)
        odd_columns = split_columns(odds, B, V // 2)
        columns = ()
        for i in tl.static_range(V // 2):
            columns = columns + (even_columns[i], odd_columns[i])
        return columns


@triton.jit
def join_columns(columns, FIRST: tl.constexpr, STEP: tl.constexpr, B: tl.constexpr, V: tl.constexpr):
    """``[B, V]`` from the ``V`` columns ``FIRST``, ``FIRST + STEP``, ... of a tuple: the inverse of split_columns."""
    if V == 1:
        return tl.reshape(columns[FIRST], [B, 1])
    elif V == 2:
        return tl.join(columns[FIRST], columns[FIRST + STEP])
    else:
        evens = join_columns(columns, FIRST, 2 * STEP, B, V // 2)
        odds = join_columns(columns, FIRST + STEP, 2 * STEP, B, V // 2)
        return tl.reshape(tl.join(evens, odds), [B, V])


@triton.jit
def taps_before(first, bound, K, D):
    """How many of the taps ``first, first + D, ...`` (``K`` of them) lie below ``bound``."""
    return tl.minimum((tl.maximum(bound - first, 0) + (D - 1)) // D, K)


@triton.constexpr_function
def tap_at(offset, window, dilation):
    """The tap that lies ``offset`` positions past the window's first; -1 where none does."""
    inside = 0 <= offset <= (window - 1) * dilation and offset % dilation == 0
    return offset // dilation if inside else -1


@triton.jit
def first_tap_inside(first, K, D):
    """Number of the first tap at a position that is not negative; ``K`` where there is none."""
    return taps_before(first, 0, K, D)


@triton.jit
def counted_taps(first, size, END, K, D, INCLUDE: tl.constexpr):
    """Taps of the window at ``first`` that an average counts; those past ``size + END`` never do."""
    if INCLUDE:
        return taps_before(first, size + END, K, D)
    else:
        return taps_before(first, size, K, D) - taps_before(first, 0, K, D)


@triton.jit
def first_covering(shifted, S, D, G, INVERSE):
    """``(tap, output, exists)``: the least tap by which a window reaches the position ``shifted - start padding``.

    The others are ``tap + m * (S / G)`` of window ``output - m * (D / G)``; ``G`` is gcd(S, D) and ``INVERSE`` the
    inverse of ``D / G`` modulo ``S / G``. The output may lie outside the range of windows: the caller masks.
    """
    tap = (shifted // G) % (S // G) * INVERSE % (S // G)
    return tap, (shifted - tap * D) // S, shifted % G == 0


INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Whether the kernels run in Triton's interpreter, which truncates to bfloat16 and misreads its subnormal numbers."""


@triton.jit
def widened(values, TYPE: tl.constexpr):
    """Loaded values as ``TYPE``, the accumulation type."""
    if INTERPRETED and values.dtype == tl.bfloat16:
        bits = values.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        return bits.to(tl.float32, bitcast=True).to(TYPE)
    else:
        return values.to(TYPE)


@triton.jit
def rounded(values, TYPE: tl.constexpr):
    """Accumulated values as the stored type, rounded once, to nearest even."""
    if INTERPRETED and TYPE == tl.bfloat16:
        bits = values.to(tl.float32).to(tl.uint32, bitcast=True)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        nearest = tl.where(values == values, nearest, 0x7FC0)
        return nearest.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return values.to(TYPE)
