"""Quantized average pooling on the GPU: fill with the zero point, combine by addition, finish by one requantization.

Four 8-bit elements are loaded as one word and added up as two pairs of 16-bit fields, signed ones with their sign bit
flipped so that nothing borrows. Padding is loaded as the zero point: then every window sums up as many elements, and
the zero points leave as one constant.

The result is what exact arithmetic on the float32 scales gives. For windows of up to 128 taps two additions do that
(see ``requantization``). Larger windows are added up axis by axis in a loop, and what lies next to a half is compared
in integers.
"""

# Triton's compiler knows no unpacking of tuples, nor a choice between two pointer types in one expression.
# ruff: noqa: SIM108

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import counted_taps, join_columns, lane_numbers, split_columns
from .average_pooling import CHANNELS, COLUMNS, first_vector, places_of_lane
from .requantization import (
    LARGEST_FACTOR,
    clamped,
    float64_reciprocal,
    offset_of,
    packed,
    parameter,
    requantized,
    unpacked,
    zero_byte,
)
from .sums import (
    ADVANCE,
    LENGTH,
    LOW,
    TARGETS,
    USED,
    completed_at,
    no_levels,
    plan,
    sliding_sums,
    target_totals,
    with_entry,
    with_position,
)

FIELDS = tl.constexpr(0x00FF00FF)
SIGNS = tl.constexpr(0x80808080)


@triton.jit
def row_sums(values, zero, COLS: tl.constexpr, LAYOUT: tl.constexpr, FIELD_PAIRS: tl.constexpr, N: tl.constexpr):
    """For channels, one sum per target column over the ``N`` vectors of a row, of each of their words' halves."""
    if LAYOUT == COLUMNS:
        return values
    else:
        sums = ()
        for h in tl.static_range(FIELD_PAIRS):
            halves = ()
            for c in tl.static_range(N):
                halves = halves + (values[c * FIELD_PAIRS + h],)
            sums = sums + sliding_sums(halves, zero, COLS)
        return sums


@triton.jit
def store_columns(
    base, totals, factors, counted, offset, zero, column, line, live, TW,
    COLS: tl.constexpr, COUNTED: tl.constexpr, PACKED: tl.constexpr, N: tl.constexpr, T: tl.constexpr,
    V: tl.constexpr, STORE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Add up the columns of one target row of a tile, requantize and write them."""
    columns = ()
    for c in tl.static_range(N):
        if PACKED:
            evens = split_columns(totals[2 * c], B, V // 4)
            odds = split_columns(totals[2 * c + 1], B, V // 4)
            for w in tl.static_range(V // 4):
                columns = columns + unpacked(evens[w], odds[w])
        else:
            columns = columns + (tl.reshape(totals[c], [B]),)
    sums = sliding_sums(columns, tl.zeros_like(columns[0]), COLS)
    SIGNED: tl.constexpr = base.dtype.element_ty == tl.int8
    WORDS: tl.constexpr = STORE // 4 if STORE >= 4 else STORE
    piece = column * (T // STORE)
    target = base
    if STORE >= 4:
        target = base.to(tl.pointer_type(tl.int32), bitcast=True)
    pointers = (target + (line * TW + piece) * WORDS)[:, None] + tl.arange(0, WORDS)[None, :]
    for p in tl.static_range(T // STORE):
        factor = factors[:, None] * counted[p] if COUNTED else factors[:, None]
        values = requantized(join_columns(sums, p * STORE, 1, B, STORE), offset[:, None], factor, zero[:, None])
        if STORE >= 4:
            evens, odds = tl.split(tl.reshape(values, [B, WORDS, 2, 2]))
            first, third = tl.split(evens)
            second, fourth = tl.split(odds)
            values = packed(first, second, third, fourth, SIGNED)
        else:
            values = clamped(values, SIGNED).to(base.dtype.element_ty)
        tl.store(pointers + p * WORDS, values, mask=(live & (piece + p < TW))[:, None])


@triton.jit
def store_channels(
    base, totals, factors, row_factor, counted, offsets, zeros, column, line, channel, live, C, TW,
    COUNTED: tl.constexpr, PACKED: tl.constexpr, T: tl.constexpr, SIGNED: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """Requantize the vectors of channels of one target row of a tile and write them."""
    WORDS: tl.constexpr = V // 4 if PACKED else 1
    first = column * T
    start = ((line * TW + first) * C + channel) * WORDS
    for j in tl.static_range(T):
        sums = unpacked(totals[j], totals[T + j]) if PACKED else (totals[j],)
        bytes_ = ()
        for k in tl.static_range(4 if PACKED else 1):
            factor = factors[k] * (row_factor[:, None] * counted[j]) if COUNTED else factors[k]
            bytes_ = bytes_ + (requantized(sums[k], offsets[k], factor, zeros[k]),)
        pointers = (base + start + j * (C * WORDS))[:, None] + tl.arange(0, WORDS)[None, :]
        if PACKED:
            values = packed(bytes_[0], bytes_[1], bytes_[2], bytes_[3], SIGNED)
        else:
            values = clamped(bytes_[0], SIGNED)
        tl.store(pointers, values.to(base.dtype.element_ty), mask=(live & (first + j < TW))[:, None])


_TILE_RUNTIME = [
    *("input_scale", "input_zero", "output_scale", "output_zero"),
    *("lanes", "C", "D", "H", "W", "sn", "sc", "sd", "sh", "sw", "TD", "TH", "TW"),
    *("column_tiles", "row_tiles", "depth_tiles"),
]


@triton.jit(do_not_specialize=_TILE_RUNTIME)
def quantized_tile(
    source, target, input_scale, input_zero, output_scale, output_zero,
    lanes, C, D, H, W, sn, sc, sd, sh, sw, TD, TH, TW, column_tiles, row_tiles, depth_tiles,
    WINDOW: tl.constexpr, STRIDE: tl.constexpr, START: tl.constexpr, END: tl.constexpr, DILATION: tl.constexpr,
    RANK: tl.constexpr, LAYOUT: tl.constexpr, COUNT: tl.constexpr, DIVISOR: tl.constexpr, KINDS: tl.constexpr,
    TILE: tl.constexpr, V: tl.constexpr, STORE: tl.constexpr, WIDE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Every window unrolled, at most 128 taps: a lane adds up a tile of targets from the source rows they share.

    source: int8 or uint8, ``D, H, W`` spatial sizes and five strides. target: int8 or uint8, ``TD, TH, TW`` spatial
    sizes, dense, channels innermost for CHANNELS. In vectors of ``V`` elements are counted: all strides, and for
    COLUMNS ``W``, for CHANNELS ``C``; only ``V = 1`` reads the stride of the vectorised dimension. For COLUMNS ``TW``
    counts vectors of ``STORE`` elements. ``KINDS`` says how scales (float32) and zero points (of their side's type) are
    given.
    """
    SIGNED: tl.constexpr = source.dtype.element_ty == tl.int8
    PACKED: tl.constexpr = V >= 4
    WORDS: tl.constexpr = V // 4 if PACKED else 1
    PAIRS: tl.constexpr = 2 if PACKED else 1  # tensors that hold a vector's elements as they are added up
    CHUNK: tl.constexpr = V if LAYOUT == COLUMNS else 1  # source columns per load
    DEPTHS: tl.constexpr = plan(WINDOW[0], STRIDE[0], START[0], DILATION[0], False, TILE[0], 1)
    ROWS: tl.constexpr = plan(WINDOW[1], STRIDE[1], START[1], DILATION[1], False, TILE[1], 1)
    COLS: tl.constexpr = plan(WINDOW[2], STRIDE[2], START[2], DILATION[2], False, TILE[2], CHUNK)
    TAPS: tl.constexpr = WINDOW[0] * WINDOW[1] * WINDOW[2]
    N_DEPTHS: tl.constexpr = DEPTHS[LENGTH]
    N_ROWS: tl.constexpr = ROWS[LENGTH]
    N_CHUNKS: tl.constexpr = COLS[LENGTH] // CHUNK
    T_DEPTHS: tl.constexpr = DEPTHS[TARGETS]
    T_ROWS: tl.constexpr = ROWS[TARGETS]
    T_COLS: tl.constexpr = COLS[TARGETS]
    HELD: tl.constexpr = PAIRS * (N_CHUNKS if LAYOUT == COLUMNS else T_COLS)
    COUNTED: tl.constexpr = COUNT > 0

    lane = lane_numbers(B, WIDE)
    live = lane < lanes
    within = tl.arange(0, WORDS)[None, :]
    channel, column, row, depth, plane, target_plane = places_of_lane(
        lane, C, sn, sc, TD, TH, TW, column_tiles, row_tiles, depth_tiles, RANK, LAYOUT
    )
    base_target = target + target_plane * (STORE if LAYOUT == COLUMNS else V)
    if PACKED and LAYOUT == CHANNELS:
        base_target = base_target.to(tl.pointer_type(tl.int32), bitcast=True)
    if PACKED:
        base = source.to(tl.pointer_type(tl.uint32), bitcast=True) + plane * WORDS
    else:
        base = source + plane
    if LAYOUT == COLUMNS:
        zero_input = zero_byte(parameter(input_zero, channel, KINDS[1], tl.int32) + tl.zeros([B], tl.int32), SIGNED)
        scale = parameter(input_scale, channel, KINDS[0], tl.float32).to(tl.float64)
        factors = scale / (parameter(output_scale, channel, KINDS[2], tl.float32).to(tl.float64) * DIVISOR)
        factors = tl.minimum(factors, LARGEST_FACTOR) + tl.zeros([B], tl.float64)
        zeros = parameter(output_zero, channel, KINDS[3], tl.int32) + tl.zeros([B], tl.int32)
        offsets = offset_of(zero_input * TAPS)
        fill = zero_input[:, None]
    else:
        factors = ()  # one entry for each byte of a word
        zeros = ()
        offsets = ()
        fill = tl.zeros([B, WORDS], tl.int32)
        for k in tl.static_range(4 if PACKED else 1):
            own = (channel * V)[:, None] + (4 * within + k)
            scale = parameter(input_scale, own, KINDS[0], tl.float32).to(tl.float64)
            factor = scale / (parameter(output_scale, own, KINDS[2], tl.float32).to(tl.float64) * DIVISOR)
            factors = factors + (tl.minimum(factor, LARGEST_FACTOR),)
            zeros = zeros + (parameter(output_zero, own, KINDS[3], tl.int32),)
            zero_input = zero_byte(parameter(input_zero, own, KINDS[1], tl.int32), SIGNED)
            offsets = offsets + (offset_of(zero_input * TAPS),)
            fill = fill | (zero_input << (8 * k))
    if PACKED:
        if LAYOUT == COLUMNS:
            fill = fill * 0x01010101
        fill = fill.to(tl.uint32, bitcast=True)
        if SIGNED:
            fill = fill ^ SIGNS
    elif SIGNED:
        fill = fill - 128

    nothing = tl.zeros([B, WORDS], tl.uint32 if PACKED else tl.int32)
    first_chunk = column * (COLS[ADVANCE] // CHUNK) + COLS[LOW] // CHUNK
    first_row = row * ROWS[ADVANCE] + ROWS[LOW]
    first_depth = depth * DEPTHS[ADVANCE] + DEPTHS[LOW]
    opening, apart = first_vector(first_chunk, channel, sc, sw, LAYOUT, V)
    chunks_live = ()
    for c in tl.static_range(N_CHUNKS):
        chunks_live = chunks_live + (((first_chunk + c >= 0) & (first_chunk + c < W))[:, None],)
    counted = ()  # reciprocals of the taps counted along the target columns, a vector of them at a time
    if COUNTED:
        for i in tl.static_range(T_COLS // STORE):
            first = (column * T_COLS + i * STORE)[:, None] + tl.arange(0, STORE)[None, :]
            first = first * STRIDE[2] - START[2]
            taps = counted_taps(first, W * CHUNK, END[2], WINDOW[2], DILATION[2], COUNT == 2)
            counted = counted + (float64_reciprocal(tl.maximum(taps, 1)),)

    planes = ()  # blocks of depths, for each target row
    for _ in tl.static_range(T_ROWS):
        planes = planes + (no_levels(DEPTHS),)
    for d in tl.static_range(N_DEPTHS):
        depth_live = live
        if RANK == 3:
            depth_live = live & (first_depth + d >= 0) & (first_depth + d < D)
        rows = no_levels(ROWS)
        for r in tl.static_range(N_ROWS):
            row_live = depth_live
            if RANK >= 2:
                row_live = depth_live & (first_row + r >= 0) & (first_row + r < H)
            row_live = row_live[:, None]
            line = (first_depth + d) * sd + (first_row + r) * sh + opening
            pointers = (base + line * WORDS)[:, None] + within
            values = ()
            for c in tl.static_range(N_CHUNKS):
                if DEPTHS[USED][d] and ROWS[USED][r] and COLS[USED][c]:
                    if PACKED:
                        word = tl.load(pointers + c * (apart * WORDS), mask=row_live & chunks_live[c], other=fill)
                        if SIGNED:
                            word = word ^ SIGNS
                        values = values + (word & FIELDS, (word >> 8) & FIELDS)
                    else:
                        # Triton 3.6 to 3.8 fill masked loads of signed bytes wrongly.
                        inside = row_live & chunks_live[c]
                        byte = tl.load(pointers + c * (apart * WORDS), mask=inside, other=0).to(tl.int32)
                        byte = tl.where(inside, byte, fill)
                        values = values + (byte + 128 if SIGNED else byte,)
                else:
                    for _ in tl.static_range(PAIRS):
                        values = values + (nothing,)
            values = row_sums(values, nothing, COLS, LAYOUT, PAIRS, N_CHUNKS)
            rows = with_position(rows, values, ROWS, r, HELD)
            for j in tl.static_range(T_ROWS):
                if completed_at(ROWS, j) == r:
                    own_planes = with_position(planes[j], target_totals(rows, nothing, ROWS, j, HELD), DEPTHS, d, HELD)
                    planes = with_entry(planes, j, own_planes, T_ROWS)
                    for e in tl.static_range(T_DEPTHS):
                        if completed_at(DEPTHS, e) == d:
                            totals = target_totals(own_planes, nothing, DEPTHS, e, HELD)
                            target_row = row * T_ROWS + j
                            target_depth = depth * T_DEPTHS + e
                            target_live = live
                            if RANK >= 2:
                                target_live = target_live & (target_row < TH)
                            if RANK == 3:
                                target_live = target_live & (target_depth < TD)
                            row_factor = tl.full([B], 1.0, tl.float64)
                            if COUNTED:
                                taps = counted_taps(
                                    target_row * STRIDE[1] - START[1], H, END[1], WINDOW[1], DILATION[1], COUNT == 2
                                ) * counted_taps(
                                    target_depth * STRIDE[0] - START[0], D, END[0], WINDOW[0], DILATION[0], COUNT == 2
                                )
                                row_factor = float64_reciprocal(tl.maximum(taps, 1))
                            target_line = target_depth * TH + target_row
                            if LAYOUT == COLUMNS:
                                row_factors = factors * row_factor if COUNTED else factors
                                store_columns(
                                    base_target, totals, row_factors, counted, offsets, zeros,
                                    column, target_line, target_live, TW,
                                    COLS, COUNTED, PACKED, N_CHUNKS, T_COLS, V, STORE, B,
                                )  # fmt: skip
                            else:
                                store_channels(
                                    base_target, totals, factors, row_factor, counted, offsets, zeros,
                                    column, target_line, channel, target_live, C, TW,
                                    COUNTED, PACKED, T_COLS, target.dtype.element_ty == tl.int8, V,
                                )  # fmt: skip
