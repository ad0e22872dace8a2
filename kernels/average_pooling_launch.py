"""How averages, their gradients and quantized averages are launched: pure functions of sizes, strides and windows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod

from .launch import (
    Launch,
    Request,
    Tile,
    covering,
    divided,
    farthest,
    one_axis_at_a_time,
    tile_launch,
    wide,
    widest_bin,
)

UNROLLED_LOADS = 112  # loads that one lane may unroll: a few seconds of compile time
UNROLLED_POSITIONS = 64  # source positions per axis that a tile may span, used or not: each costs compile time
TILE_TARGETS = 64  # targets of a lane: more would be code without reuse
TILE_REGISTERS = 84  # registers that hold sums at once, roughly: fewer leave more warps to hide memory's latency
SNAPPED_TAPS = 128  # of quantized windows: sums below 2**15, which a lane requantizes by two additions
QUANTIZED_LOADS = 64
QUANTIZED_REGISTERS = 220  # as estimated: the compiler keeps fewer of the sums

Kinds = tuple[int, ...]
"""How two scales and zero points are given: as numbers (0), tensors of one entry (1), or of one per channel (2)."""


@lru_cache(maxsize=4096)
def average_launches(request: Request, kinds: Kinds = (0, 0, 0, 0)) -> tuple[Launch, ...]:
    """The launches of averages or their gradient; each but the last writes a workspace, which the next reads.

    Elements of 8 bits are quantized: sum_tile requantizes the sums of at most 128 of them, sum_axis gives sums alone.
    """
    count, divisor = (1, 1) if request.window is None else counting(request)
    for tile in tiles(request):
        if fits(request, tile):
            constants = {"ADJOINT": request.adjoint, "COUNT": count, "DIVISOR": divisor, "KINDS": kinds}
            return (tile_launch("average_pooling.sum_tile", request, tile, constants),)
    of_integers = request.element_size == 1
    return tuple(_sum_axes(request, 0 if of_integers else count, 1 if of_integers else divisor))


def counting(request: Request) -> tuple[int, int]:
    """``(COUNT, DIVISOR)``: how windows are divided; from the window alone, so no image size makes a new kernel."""
    axes = request.window.axes
    if request.divisor_override is not None:
        return 0, request.divisor_override
    padded = any(axis.start_padding or axis.end_padding for axis in axes)
    if axes[0].ceil_mode or (padded and not request.include_padding):
        return (2 if request.include_padding else 1), 1
    return 0, request.window.taps


def tiles(request: Request) -> Iterator[Tile]:
    """Tiles in order of preference: large ones share more of what they read."""
    axes, rank, widest, columns = request.axes, request.rank, request.vector, not request.channels_last
    if request.window is None:
        return
    tall, broad = axes[1].stride, axes[2].stride
    vectors = [widest >> i for i in range(widest.bit_length())]
    rows, across = 4 if tall == 1 and rank < 3 else 2, [2 if broad == 1 else 1, 1]
    if request.element_size == 1:
        # Of channels at stride 1 vectors of 8 bytes leave more warps than those of 16.
        vectors = [v for v in ((16, 8, 4) if columns or broad > 1 else (8, 4)) if widest % v == 0]
        rows = 4 if tall == 1 and (axes[1].window < 5 or not columns) else 2
        if columns and not vectors:
            rows = 8 if tall == 1 else 4
        vectors, across = [*vectors, 1], [2 if broad <= 2 else 1]
    elif columns and (5 < axes[1].window / tall < 9 or widest == 1):
        rows = 6 if tall == 1 and widest > 1 else 2 * rows
    elif not columns:
        vectors = [v for v in vectors if v * request.element_size >= 4] or vectors[:1]
        if broad == 1 and axes[2].window >= 5:
            across = [4, 1]
        elif broad == 2 and not request.adjoint:
            across = [2, 1]
    depths = (2, 1) if rank == 3 and axes[0].stride == 1 else (1,)
    heights = [rows >> i for i in range(rows.bit_length())] if rank > 1 else [1]
    shapes = [(height, v) for v in vectors for height in heights]
    if not columns and request.element_size > 1:
        shapes.sort(key=lambda shape: -shape[0])
    for width in [0] if columns else dict.fromkeys(across):
        yield from (Tile((depth, height, width or v), v) for height, v in shapes for depth in depths)
    yield Tile((1, 1, 1), 1)


def fits(request: Request, tile: Tile) -> bool:
    """Whether one lane has the registers for a tile's sums (of 8 bits two in a word), and its code stays short."""
    axes, quantized, columns, v = request.axes, request.element_size == 1, not request.channels_last, tile.vector
    spans, used, targets, kept = [], [], [], []
    for axis, part in zip(axes, tile.sizes, strict=True):
        if request.adjoint:
            targets.append(part * axis.stride)
            spans.append((targets[-1] + axis.extent - 2) // axis.stride + 1)
            taps = covering(axis).count
        else:
            targets.append(part)
            spans.append((part - 1) * axis.stride + axis.extent)
            taps = axis.window
        used.append(min(spans[-1], targets[-1] * taps))
        kept.append(min(spans[-1], (taps - 1) * axis.dilation + 1) if taps > 1 else 0)
    chunks = divided(spans[2], v) + (v > 1) if columns else used[2]
    if quantized:
        words = max(v // 2, 1)
        held = (chunks if columns else targets[2]) * words
        # Along channels each has its scale, zero point and offset.
        registers = (kept[0] * targets[1] + kept[1]) * held + (spans[2] if columns else chunks * words + 4 * v)
    else:
        held, read = (targets[2], spans[2]) if columns else (targets[2] * v, used[2] * v)
        registers = (kept[0] * targets[1] + kept[1]) * held + read
        registers *= 2 if request.element_size == 8 else 1
    return (
        used[0] * used[1] * chunks <= (QUANTIZED_LOADS if quantized else UNROLLED_LOADS)
        and max(spans) <= UNROLLED_POSITIONS
        and (prod(axis.window for axis in axes) <= SNAPPED_TAPS if quantized else prod(targets) <= TILE_TARGETS)
        and registers <= (QUANTIZED_REGISTERS if quantized else TILE_REGISTERS)
    )


def _sum_axes(request: Request, count: int, divisor: int) -> list[Launch]:
    """Outer axes first: there neighbouring lanes read neighbouring elements."""
    bins, launches = request.window is None, []
    for along in one_axis_at_a_time(request):
        reach = covering(along.axis)
        sizes = (along.targets, along.source) if request.adjoint else (along.source, along.targets)
        largest = farthest(*sizes, along.axis)
        if bins:
            bound, largest = widest_bin(along.source, along.targets), (along.source + 1) * (along.targets + 1)
        elif request.adjoint:
            bound = min(reach.count, divided(along.source, reach.output_step))
        else:
            bound = min(along.axis.window, divided(along.source, along.axis.dilation))
        lanes = along.results
        numbers = (lanes, along.inner, along.source, along.targets, *along.axis, reach.gcd, reach.inverse, bound)
        constants = {
            "ADJOINT": request.adjoint, "BINS": bins, "COUNT": count, "DIVISOR": divisor if along.last else 1,
            "WIDE": wide(largest, lanes, (along.source + bound + 8) * along.inner),
        }  # fmt: skip
        launches.append(Launch.of_lanes("average_pooling.sum_axis", lanes, numbers, constants))
    return launches
