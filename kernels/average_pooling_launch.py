"""How averages, their gradients and adaptive averages are launched: pure functions of sizes, strides and windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import gcd, prod
from typing import Any, NamedTuple

from .launch import (
    LANES,
    WIDE_FROM,
    Axes,
    Launch,
    covering,
    divided,
    five_strides,
    in_plane_span,
    is_wide,
    three_axes,
    three_sizes,
    vector_width,
    widest_bin,
)

UNROLLED_LOADS = 112  # loads that one lane may unroll: a few seconds of compile time
UNROLLED_POSITIONS = 64  # source positions per axis that a tile may span, used or not: each costs compile time
TILE_TARGETS = 64  # targets of a lane: more would be code without reuse
TILE_REGISTERS = 84  # registers that hold sums at once, roughly: fewer leave more warps to hide memory's latency


class Request(NamedTuple):
    """One call: from a source of any strides (input, or incoming gradient) to a dense target (output, or gradient)."""

    window: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    target_sizes: tuple[int, ...]
    element_size: int
    aligned: bool  # both tensors start at a multiple of 16 bytes
    channels_last: bool  # of the target
    adjoint: bool
    include_padding: bool
    divisor_override: int | None


class Tile(NamedTuple):
    """What one lane of a tile kernel computes: depths, rows and columns, in vectors of ``vector`` elements."""

    sizes: tuple[int, int, int]
    vector: int


@lru_cache(maxsize=4096)
def average_launches(request: Request) -> tuple[Launch, ...]:
    """The launches of one call; each but the last writes a workspace of ``sizes[0]`` elements, which the next reads.

    | window                                          | kernel                                |
    |-------------------------------------------------|---------------------------------------|
    | a lane's loads, sums and targets fit (up to 7²) | sum_tile, all unrolled                |
    | larger                                          | sum_axis, one launch for each axis    |
    """
    axes = three_axes(request.window)
    count, divisor = counting(request)
    constants = {"ADJOINT": request.adjoint, "COUNT": count, "DIVISOR": divisor}
    for tile in average_tiles(request, axes):
        if fits(request, axes, tile):
            return (tile_launch("average_pooling.sum_tile", request, axes, tile, constants),)
    return window_launches(request, axes, constants)


def counting(request: Request) -> tuple[int, int]:
    """``(COUNT, DIVISOR)``: how windows are divided; from the window alone, so no image size makes a new kernel."""
    axes = request.window.axes
    if request.divisor_override is not None:
        return 0, request.divisor_override
    padded = any(axis.start_padding or axis.end_padding for axis in axes)
    if axes[0].ceil_mode or (padded and not request.include_padding):
        return (2 if request.include_padding else 1), 1
    return 0, request.window.taps


def source_vector(request: Request) -> int:
    """Elements of the source's widest vectors: along its rows, or along its channels where these are innermost."""
    sn, sc, sd, sh, sw = five_strides(request.shape, request.strides)
    if request.channels_last:
        return vector_width(request.element_size, request.aligned and sc == 1, request.shape[1], sn, sd, sh, sw)
    return vector_width(request.element_size, request.aligned and sw == 1, request.shape[-1], sn, sc, sd, sh)


def average_tiles(request: Request, axes: Axes) -> Iterator[Tile]:
    """Tiles in order of preference: large ones share more of what they read. In volumes: 2 rows in 2 depths.

    | layout   | stride 1                                        | stride 2    | above  |
    |----------|-------------------------------------------------|-------------|--------|
    | columns  | 4 rows; 6 of windows 6 to 8; 8 without vectors  | 2 rows; 4   | 2; 4   |
    | channels | 4 rows of 2 columns; 4 columns from window 5 up | 2 rows of 2 | 2 of 1 |
    """
    rank, widest, (_, tall, wide) = len(request.window.axes), source_vector(request), axes.stride
    rows = 4 if tall == 1 and rank < 3 else 2
    if not request.channels_last and (5 < axes.window[1] / tall < 9 or widest == 1):
        rows = 6 if tall == 1 and widest > 1 else 2 * rows
    vectors = [widest >> i for i in range(widest.bit_length())]
    depths = (2, 1) if rank == 3 and axes.stride[0] == 1 else (1,)
    heights = [rows >> i for i in range(rows.bit_length())] if rank > 1 else [1]
    if not request.channels_last:
        yield from (Tile((d, r, v), v) for v in vectors for r in heights for d in depths)
        return
    across = 4 if axes.window[2] >= 5 and wide == 1 else 2 if wide == 1 or (wide == 2 and not request.adjoint) else 1
    coalesced = [v for v in vectors if v * request.element_size >= 4] or vectors[:1]
    for columns in dict.fromkeys((across, 1)):
        yield from (Tile((d, r, columns), v) for r in heights for v in coalesced for d in depths)
    yield Tile((1, 1, 1), 1)


def fits(request: Request, axes: Axes, tile: Tile) -> bool:
    """Whether one lane has the registers for a tile's sums, and its code stays short."""
    spans, used, targets, kept = [], [], [], []
    for window, stride, dilation, part in zip(axes.window, axes.stride, axes.dilation, tile.sizes, strict=True):
        if request.adjoint:
            targets.append(part * stride)
            spans.append((targets[-1] - 1 + (window - 1) * dilation) // stride + 1)
            taps = divided(window, stride // gcd(stride, dilation))
        else:
            targets.append(part)
            spans.append((part - 1) * stride + (window - 1) * dilation + 1)
            taps = window
        used.append(min(spans[-1], targets[-1] * taps))
        kept.append(min(spans[-1], (taps - 1) * dilation + 1) if taps > 1 else 0)
    chunks, held, read = used[2], targets[2] * tile.vector, used[2] * tile.vector
    if not request.channels_last:
        chunks, held, read = divided(spans[2], tile.vector) + (tile.vector > 1), targets[2], spans[2]
    registers = kept[0] * targets[1] * held + kept[1] * held + read
    registers *= 2 if request.element_size == 8 else 1
    return (
        used[0] * used[1] * chunks <= UNROLLED_LOADS
        and max(spans) <= UNROLLED_POSITIONS
        and prod(targets) <= TILE_TARGETS
        and registers <= TILE_REGISTERS
    )


def tile_launch(kernel: str, request: Request, axes: Axes, tile: Tile, constants: Mapping[str, Any]) -> Launch:
    """The launch of a tile kernel: of one lane for each tile, in vectors along rows or along channels."""
    sizes, targets = three_sizes(request.shape[2:]), three_sizes(request.target_sizes)
    batch, channels = request.shape[:2]
    sn, sc, sd, sh, sw = five_strides(request.shape, request.strides)
    width, store = tile.vector, 1
    owned = [part * stride if request.adjoint else part for part, stride in zip(tile.sizes, axes.stride, strict=True)]
    tiles = [divided(target, part) for target, part in zip(targets, owned, strict=True)]
    if not request.channels_last:
        lanes = batch * channels * prod(tiles)
        store = gcd(vector_width(request.element_size, request.aligned, targets[2]), owned[2])
        spans = in_plane_span(sizes, (sd, sh, sw)), prod(targets)
        lengths = (channels, sizes[0], sizes[1], sizes[2] // width)
        strides = (sn // width, sc // width, sd // width, sh // width, sw if width == 1 else 0)
        ends = (targets[0], targets[1], targets[2] // store)
    else:
        lanes = batch * (channels // width) * prod(tiles)
        spans = in_plane_span((*sizes, channels), (sd, sh, sw, sc)), prod(targets) * channels
        lengths = (channels // width, *sizes)
        strides = (sn // width, sc if width == 1 else 0, sd // width, sh // width, sw // width)
        ends = targets
    inputs, outputs = (targets, sizes) if request.adjoint else (sizes, targets)
    every = {
        "WINDOW": axes.window, "STRIDE": axes.stride, "START": axes.start, "END": axes.end, "DILATION": axes.dilation,
        "RANK": len(request.window.axes), "LAYOUT": int(request.channels_last), **constants, "TILE": tile.sizes,
        "V": width, "STORE": store, "WIDE": is_wide(axes, inputs, outputs, lanes, *spans),
    }  # fmt: skip
    return Launch.of_lanes(kernel, lanes, (lanes, *lengths, *strides, *ends, *reversed(tiles)), every)


def window_launches(request: Request, axes: Axes, constants: Mapping[str, Any]) -> tuple[Launch, ...]:
    """One launch of ``sum_axis`` for each axis that has a window."""
    sizes, targets = three_sizes(request.shape[2:]), three_sizes(request.target_sizes)
    of_axis = {}
    for axis, (window, stride, start, end, dilation) in enumerate(zip(*axes, strict=True)):
        if (window, stride, start, end) == (1, 1, 0, 0) and targets[axis] == sizes[axis]:
            continue
        reach = covering(window, stride, dilation)
        if request.adjoint:
            bound, outputs, inputs = min(reach.count, divided(sizes[axis], reach.output_step)), sizes, targets
        else:
            bound, outputs, inputs = min(window, divided(sizes[axis], dilation)), targets, sizes
        farthest = max(inputs[axis], outputs[axis] * stride) + start + end + (window - 1) * dilation + stride
        numbers = (window, stride, start, end, dilation, reach.gcd, reach.inverse, bound)
        of_axis[axis] = numbers, max(farthest, reach.tap_step**2)
    return axis_launches(request, of_axis, {"BINS": False, **constants})


def axis_launches(
    request: Request, of_axis: Mapping[int, tuple[tuple[int, ...], int]], constants: Mapping[str, Any]
) -> tuple[Launch, ...]:
    """One launch of ``sum_axis`` for each axis: its numbers from ``K`` on, and the largest integer they lead to.

    Outer axes come first: there neighbouring lanes read neighbouring elements. Workspaces are dense, in the target's
    memory order.
    """
    targets = three_sizes(request.target_sizes)
    order = (0, 2, 3, 4, 1) if request.channels_last else (0, 1, 2, 3, 4)
    shape = [*request.shape[:2], *three_sizes(request.shape[2:])]
    strides = list(five_strides(request.shape, request.strides))
    launches = []
    for axis, (numbers, largest) in of_axis.items():
        source_size, along = shape[2 + axis], strides[2 + axis]
        shape[2 + axis] = targets[axis]
        lanes = prod(shape)
        sizes = (
            lanes, *[shape[i] for i in order][1:], *(strides[i] for i in order), source_size, targets[axis], *numbers,
        )  # fmt: skip
        every = {"AXIS": order.index(2 + axis), **constants}
        if axis != max(of_axis):
            every["DIVISOR"] = 1
        every["WIDE"] = max(largest, lanes + LANES, (source_size + numbers[-1] + 8) * abs(along)) >= WIDE_FROM
        launches.append(Launch.of_lanes("average_pooling.sum_axis", lanes, sizes, every))
        dense = 1
        for i in reversed(order):
            strides[i] = dense
            dense *= shape[i]
    return tuple(launches)


@lru_cache(maxsize=4096)
def bin_launches(request: Request) -> tuple[Launch, ...]:
    """One launch of ``sum_axis`` for each axis whose size changes (the last where none does): adaptive averages."""
    sizes, targets = three_sizes(request.shape[2:]), three_sizes(request.target_sizes)
    of_axis = {
        axis: ((0,) * 7 + (widest_bin(sizes[axis], targets[axis]),), (sizes[axis] + 1) * (targets[axis] + 1))
        for axis in [axis for axis in range(3) if targets[axis] != sizes[axis]] or [2]
    }
    return axis_launches(request, of_axis, {"BINS": True, "ADJOINT": request.adjoint, "COUNT": 1, "DIVISOR": 1})
