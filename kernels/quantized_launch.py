"""How quantized average pooling is launched: pure functions of sizes, strides and windows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod

from .average_pooling_launch import Request, Tile, counting, source_vector, tile_launch, window_launches
from .launch import Axes, Launch, divided, is_wide, three_axes, three_sizes

SNAPPED_TAPS = 128  # sums below 2**15: what a lane requantizes by two additions
UNROLLED_LOADS = 64  # loads that one lane may unroll: a few seconds of compile time
TILE_REGISTERS = 220  # words that a lane may hold at once, as estimated: the compiler keeps fewer of the sums


@lru_cache(maxsize=4096)
def quantized_launches(request: Request, kinds: tuple[int, int, int, int]) -> tuple[Launch, ...]:
    """The launches of one call; each but the last writes a workspace of ``sizes[0]`` sums, which the next reads.

    | window                                             | kernels                                  |
    |----------------------------------------------------|------------------------------------------|
    | at most 128 taps, and a lane's loads and sums fit  | quantized_tile                           |
    | larger                                             | sum_axis for each axis, then requantize  |

    ``kinds``: how scales and zero points are given: as a number, as a tensor of one entry, or of one per channel.
    """
    axes = three_axes(request.window)
    count, divisor = counting(request)
    if prod(axes.window) <= SNAPPED_TAPS:
        constants = {"COUNT": count, "DIVISOR": divisor, "KINDS": kinds}
        for tile in quantized_tiles(request, axes):
            if fits(request, axes, tile):
                return (tile_launch("quantized_average_pooling.quantized_tile", request, axes, tile, constants),)
    sums = window_launches(request, axes, {"ADJOINT": False, "COUNT": 0, "DIVISOR": 1})
    outputs, sizes = three_sizes(request.target_sizes), three_sizes(request.shape[2:])
    batch, channels = request.shape[:2]
    inner = (*outputs, channels) if request.channels_last else (channels, *outputs)
    lanes = batch * channels * prod(outputs)
    every = {
        "CHANNELS_LAST": request.channels_last, "COUNT": 2 if request.include_padding else 1, "KINDS": kinds,
        "WIDE": is_wide(axes, sizes, outputs, lanes),
    }  # fmt: skip
    numbers = (*axes.window, *axes.stride, *axes.start, *axes.end, *axes.dilation)
    return (*sums, Launch.of_lanes("requantization.requantize", lanes, (lanes, *inner, *sizes, *numbers), every))


def quantized_tiles(request: Request, axes: Axes) -> Iterator[Tile]:
    """Tiles in order of preference.

    | layout   | stride 1                                                           | above                    |
    |----------|--------------------------------------------------------------------|--------------------------|
    | columns  | 4 rows of 16 bytes; 2 from window 5 up; 8 rows without words       | 2 rows; 4 without words  |
    | channels | 4 rows of 2 columns of 8 bytes: more warps than with 16            | 2 rows of 2 of 16 bytes  |
    """
    rank, columns, (_, tall, wide) = len(request.window.axes), not request.channels_last, axes.stride
    widest = source_vector(request)
    vectors = [v for v in ((16, 8, 4) if columns or wide > 1 else (8, 4)) if widest % v == 0]
    rows = 4 if tall == 1 and (axes.window[1] < 5 or not columns) else 2
    if columns and not vectors:
        rows = 8 if tall == 1 else 4
    heights = [rows >> i for i in range(rows.bit_length())] if rank > 1 else [1]
    depths = (2, 1) if rank == 3 and axes.stride[0] == 1 else (1,)
    across = 2 if wide <= 2 else 1
    for v in (*vectors, 1):
        for height in heights:
            yield from (Tile((depth, height, v if columns else across), v) for depth in depths)
    yield Tile((1, 1, 1), 1)


def fits(request: Request, axes: Axes, tile: Tile) -> bool:
    """Whether one lane has the registers for a tile's sums, two in a word, and its code stays short."""
    columns, v = not request.channels_last, tile.vector
    spans = [
        (part - 1) * stride + (window - 1) * dilation + 1
        for part, window, stride, dilation in zip(tile.sizes, *axes[:2], axes.dilation, strict=True)
    ]
    used = [min(span, part * window) for span, part, window in zip(spans, tile.sizes, axes.window, strict=True)]
    chunks = used[2] if not columns or v == 1 else divided(spans[2], v) + 1
    words = max(v // 2, 1)
    held = (chunks if columns else tile.sizes[2]) * words
    kept = [
        min(span, (window - 1) * dilation + 1) if window > 1 else 0
        for span, window, dilation in zip(spans, axes.window, axes.dilation, strict=True)
    ]
    # Along channels each has its scale, zero point and offset.
    registers = (kept[0] * tile.sizes[1] + kept[1]) * held + (spans[2] if columns else chunks * words + 4 * v)
    return used[0] * used[1] * chunks <= UNROLLED_LOADS and max(spans) <= 64 and registers <= TILE_REGISTERS
