"""Quantized average pooling at stride 1 as a walk down the rows, with running sums: integers add up exactly.

A lane owns a strip of columns. Of each input row it takes the sums along the window's columns, each from the one before
by one element more and one less, and adds them to those of the rows above, of which the last ones are remembered: a
window of any size costs two additions along each axis. Sums travel as in the unrolled kernel, two of 16 bits to a word.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import each_lanes, join_columns, lane_numbers, plane_offset, split_columns, tile_of
from .max_pooling_packed import pair_of
from .quantized_average_pooling import COLUMNS, FIELDS
from .requantization import LARGEST_FACTOR, offset_of, packed, parameter, requantized, unpacked, zero_byte

SIGNS = tl.constexpr(-2139062144)
"""The bits 0x80808080, which make four int8 four uint8 in the same order."""

_RUNTIME = [
    *("input_scale", "input_zero", "output_scale", "output_zero"),
    *("lanes", "C", "H", "W", "TH", "TW", "rows", "sn", "sc", "sh", "sw"),
]


@triton.jit
def columns_of_row(
    base, at, step, inside, first, W, fill, LOW: tl.constexpr, HIGH: tl.constexpr, ORIGIN: tl.constexpr,
    SPAN: tl.constexpr, APART: tl.constexpr, SIGNED: tl.constexpr, V: tl.constexpr, B: tl.constexpr,
    LAYOUT: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """SPAN columns of a row as words of two 16-bit fields: columns that lie APART, or even and then odd channels."""
    WORDS: tl.constexpr = V // 4
    words = ()
    for c in tl.static_range(LOW, HIGH + 1):
        ok = (inside & (first + c >= 0) & (first + c < W))[:, None]
        word = tl.load(base[:, None] + (at + c * step)[:, None] + tl.arange(0, WORDS)[None, :], mask=ok, other=fill)
        if SIGNED:
            word = word ^ SIGNS
        evens = word & FIELDS
        odds = (word >> 8) & FIELDS
        if LAYOUT == COLUMNS:
            evens = split_columns(evens, B, WORDS)
            odds = split_columns(odds, B, WORDS)
            for w in tl.static_range(WORDS):
                words = words + (evens[w], odds[w])
        else:
            words = words + (evens, odds)
    if LAYOUT == COLUMNS:
        pairs = ()
        for i in tl.static_range(ORIGIN, ORIGIN + SPAN):
            pairs = pairs + (
                pair_of(
                    words[i // 4 * 2 + i % 2], words[(i + APART) // 4 * 2 + (i + APART) % 2], 2, i % 4 // 2,
                    (i + APART) % 4 // 2, False, ASM,
                ),
            )  # fmt: skip
        return pairs
    else:
        return words


@triton.jit
def running_sums(values, K: tl.constexpr, N: tl.constexpr, PER: tl.constexpr):
    """Sums of K neighbours from each of N positions on, PER values to a position."""
    sums = ()
    for e in tl.static_range(PER):
        total = values[e]
        for k in tl.static_range(1, K):
            total = total + values[k * PER + e]
        sums = sums + (total,)
    for i in tl.static_range((N - 1) * PER):
        sums = sums + (sums[i] + values[K * PER + i] - values[i],)
    return sums


@triton.jit(do_not_specialize=_RUNTIME)
def quantized_stream(
    source, target, input_scale, input_zero, output_scale, output_zero,
    lanes, C, H, W, TH, TW, rows, sn, sc, sh, sw,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, KINDS: tl.constexpr, Q: tl.constexpr,
    V: tl.constexpr, LAYOUT: tl.constexpr, B: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Every window has KH x KW taps, at most 128; a lane owns ``rows`` rows by Q columns of V targets.

    source: int8 or uint8, (N, C, H, W) with strides sn..sw; target: int8 or uint8, (N, C, TH, TW), dense, channels
    innermost for CHANNELS. In vectors of V elements are counted all strides, for COLUMNS W and TW (and Q is 1), for
    CHANNELS C. ``rows + KH - 1`` is a multiple of KH. ``KINDS`` as for the unrolled kernel.
    """
    SIGNED: tl.constexpr = source.dtype.element_ty == tl.int8
    INTO_SIGNED: tl.constexpr = target.dtype.element_ty == tl.int8
    WORDS: tl.constexpr = V // 4
    HALF: tl.constexpr = V // 2
    PER: tl.constexpr = 1 if LAYOUT == COLUMNS else 2  # words at a column
    ACROSS: tl.constexpr = HALF if LAYOUT == COLUMNS else Q
    HELD: tl.constexpr = PER * ACROSS
    LOW: tl.constexpr = (-PW) // V if LAYOUT == COLUMNS else 0
    HIGH: tl.constexpr = (V + KW - 2 - PW) // V if LAYOUT == COLUMNS else Q + KW - 2
    ORIGIN: tl.constexpr = -PW - LOW * V if LAYOUT == COLUMNS else 0

    lane = lane_numbers(B, False)
    live = lane < lanes
    within = tl.arange(0, WORDS)[None, :]
    row_tiles = (TH + rows - 1) // rows
    if LAYOUT == COLUMNS:
        first_target, row_tile, _, plane = tile_of(lane, TW, row_tiles, 1, 2)
        first_column = first_target
        channel = plane % C
        offset = plane_offset(plane, C, sn, sc)
        target_plane = plane.to(tl.int64) * TH * TW
        zero_input = zero_byte(parameter(input_zero, channel, KINDS[1], tl.int32) + tl.zeros([B], tl.int32), SIGNED)
        fill = (zero_input * 0x01010101)[:, None]
        scale = parameter(input_scale, channel, KINDS[0], tl.float32).to(tl.float64)
        factors = scale / (parameter(output_scale, channel, KINDS[2], tl.float32).to(tl.float64) * (KH * KW))
        factors = tl.minimum(factors, LARGEST_FACTOR) + tl.zeros([B], tl.float64)
        zeros = parameter(output_zero, channel, KINDS[3], tl.int32) + tl.zeros([B], tl.int32)
        offsets = offset_of(zero_input * (KH * KW))
        start = first_column
        step = WORDS
    else:
        channel = lane % C
        strip, row_tile, _, plane = tile_of(lane // C, (TW + Q - 1) // Q, row_tiles, 1, 2)
        # The last strip overlaps the one before it: both write the same, and none has to ask where it ends.
        first_target = tl.minimum(strip * Q, TW - Q)
        first_column = first_target - PW
        offset = plane.to(tl.int64) * sn + channel
        target_plane = plane.to(tl.int64) * TH * TW * C + channel
        fill = tl.zeros([B, WORDS], tl.int32)
        factors = ()  # one entry for each byte of a word
        zeros = ()
        offsets = ()
        for k in tl.static_range(4):
            own = (channel * V)[:, None] + (4 * within + k)
            scale = parameter(input_scale, own, KINDS[0], tl.float32).to(tl.float64)
            factor = scale / (parameter(output_scale, own, KINDS[2], tl.float32).to(tl.float64) * (KH * KW))
            factors = factors + (tl.minimum(factor, LARGEST_FACTOR),)
            zeros = zeros + (parameter(output_zero, own, KINDS[3], tl.int32),)
            zero_input = zero_byte(parameter(input_zero, own, KINDS[1], tl.int32), SIGNED)
            offsets = offsets + (offset_of(zero_input * (KH * KW)),)
            fill = fill | (zero_input << (8 * k))
        start = first_column * sw
        step = sw * WORDS
    if SIGNED:
        fill = fill ^ SIGNS
    base = source.to(tl.pointer_type(tl.int32), bitcast=True) + offset * WORDS
    base_target = target.to(tl.pointer_type(tl.int32), bitcast=True) + target_plane * WORDS
    first_row = row_tile * rows - PH

    nothing = tl.zeros([B] if LAYOUT == COLUMNS else [B, WORDS], tl.int32)
    remembered = ()  # the rows of the window, KH of them, in turn
    for _ in tl.static_range(KH * HELD):
        remembered = remembered + (nothing,)
    totals = ()
    for _ in tl.static_range(HELD):
        totals = totals + (nothing,)
    for turn in range(0, rows + (KH - 1), KH):
        kept = ()
        for k in tl.static_range(KH):
            row = first_row + turn + k
            values = columns_of_row(
                base, (row * sh + start) * WORDS, step, live & (row >= 0) & (row < H), first_column, W, fill, LOW, HIGH,
                ORIGIN, ACROSS + KW - 1, HALF, SIGNED, V, B, LAYOUT, ASM,
            )  # fmt: skip
            sums = running_sums(values, KW, ACROSS, PER)
            changed = ()
            for e in tl.static_range(HELD):
                changed = changed + (totals[e] + sums[e] - remembered[k * HELD + e],)
            totals = changed
            kept = kept + sums
            number = turn + k - (KH - 1)
            line = row_tile * rows + number
            ok = live & (each_lanes(number, B) >= 0) & (line < TH)
            if LAYOUT == COLUMNS:
                near = ()
                far = ()
                for v in tl.static_range(HALF):
                    near = near + (requantized(totals[v] & 0xFFFF, offsets, factors, zeros),)
                    far = far + (requantized(totals[v] >> 16, offsets, factors, zeros),)
                integers = near + far
                words = ()
                for w in tl.static_range(WORDS):
                    words = words + (
                        packed(
                            integers[4 * w], integers[4 * w + 1], integers[4 * w + 2], integers[4 * w + 3],
                            INTO_SIGNED, ASM,
                        ),
                    )  # fmt: skip
                at = ((line * TW + first_target) * WORDS)[:, None] + within
                tl.store(base_target[:, None] + at, join_columns(words, 0, 1, B, WORDS), mask=ok[:, None])
            else:
                for q in tl.static_range(Q):
                    four = unpacked(totals[2 * q], totals[2 * q + 1])
                    integers = ()
                    for b in tl.static_range(4):
                        integers = integers + (requantized(four[b], offsets[b], factors[b], zeros[b]),)
                    word = packed(integers[0], integers[1], integers[2], integers[3], INTO_SIGNED, ASM)
                    at = ((line * TW + first_target + q) * C * WORDS)[:, None] + within
                    tl.store(base_target[:, None] + at, word, mask=ok[:, None])
        remembered = kept
