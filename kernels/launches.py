"""Which launches compute a request: pure functions of sizes, strides and windows.

Windows small enough for straight-line code get a kernel of their own, in which they are constants;
whole planes, bins and all other windows go by axis.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import lru_cache
from math import gcd, prod
from typing import Any, NamedTuple

from . import by_axis, launch
from .launch import Axis, Launch, Request, Tile

UNROLLED_LOADS = 112  # loads that one lane may unroll: a few seconds of compile time
# the same where a lane owns one window of columns which no other overlaps: neighbouring lanes share
# sectors in L1. 16-bit elements, and vectors of channels, would need too many registers.
LONE_LOADS = 121
SINGLE_COLUMNS = 4  # columns of a lane at stride 1 or 2 where rows are read by single elements
# source positions per axis that a tile may span, used or not: each costs compile time
UNROLLED_POSITIONS = 64
TILE_TARGETS = 64  # targets of a lane: more would be code without reuse
# registers that hold sums at once, roughly: fewer leave more warps to hide memory's latency
TILE_REGISTERS = 84
SNAPPED_TAPS = 128  # of quantized windows in a tile: sums stay below 2**15, as rounding needs
QUANTIZED_LOADS = 64
QUANTIZED_REGISTERS = 220  # as estimated: the compiler keeps fewer of the sums


class Sums(NamedTuple):
    """MODE of ``average_pooling.sum_tile``: what it computes, beside windows and tiles."""

    adjoint: bool
    count: int  # what divides: see ``launch.Mode``
    divisor: int
    kinds: tuple[int, ...]  # see ``launch.Mode``


class Maxima(NamedTuple):
    """MODE of ``max_pooling.max_tile``: what it computes, beside windows and tiles."""

    groups: tuple[int, ...]  # rows and columns of outputs that share a core
    with_taps: int  # 2 under a mask
    asm: bool


def average_launches(
    request: Request, kinds: tuple[int, ...] = (0, 0, 0, 0)
) -> tuple[Launch, ...] | None:
    """The launches of averages or their gradient. Each but the last writes a workspace that the
    next reads. Elements of 8 bits are quantized. None for what no kernel computes: gradients of
    long dilated windows, and quantized averages of long windows whose divisors differ along
    several axes.
    """
    counted = counting(request)
    tile = sum_tile(request)
    # No kernel counts what lies past the padding, and one alone the padding, beside a mask.
    if counted[0] > 4 + (tile is not None):
        return None
    if tile is not None:
        mode = Sums(request.adjoint, *counted, kinds)
        return (launch.tile_launch("average_pooling.sum_tile", request, tile, MODE=mode),)
    if not request.adjoint:
        folds = by_axis.folds(request, by_axis.SUM, counted, kinds)
        # Sums of bytes are divided once, at the end, where one axis' count is known.
        return folds if request.element_size > 1 or counted[0] == 0 or len(folds) == 1 else None
    spread = by_axis.spread(request, counted)
    return spread if spread or request.is_dilated else by_axis.folds(request, by_axis.SUM, counted)


def sum_tile(request: Request) -> Tile | None:
    """The first tile that fits; None where none fits, where a plane has one window, or where
    windows overlap much and the tile shares nothing along an axis.
    """
    if request.window is None or launch.is_one_window(request):
        return None
    tile = next((tile for tile in sum_tiles(request) if sum_tile_fits(request, tile)), None)
    alone = tile is not None and any(
        part == 1 < axis.window for part, axis in zip(tile.sizes, request.axes, strict=True)
    )
    return None if alone and by_axis.overlaps(request) else tile


def counting(request: Request) -> tuple[int, int]:
    """``(COUNT, DIVISOR)``: what sums are divided by. It follows from the window alone, so that no
    kernel is compiled for an image size.
    """
    if request.divisor_override is not None:
        return 0, request.divisor_override
    if request.window is None:
        return 4 * bool(request.mask and not request.adjoint), 1
    axes = request.window.axes
    padded = any(axis.start_padding or axis.end_padding for axis in axes)
    if request.mask:
        is_past_end = request.include_padding and axes[0].ceil_mode
        return 4 + (request.include_padding and padded) + 2 * is_past_end, 1
    if axes[0].ceil_mode or (padded and not request.include_padding):
        return (2 if request.include_padding else 1), 1
    return 0, request.window.taps


def _lie_close(request: Request) -> bool:
    """Whether lanes that own several columns of single elements read few lines of L1 at once."""
    return request.element_size < 4 and request.axes[0].window == 1 and request.axes[2].stride <= 2


def _row_of_gradients(request: Request) -> int:
    """Elements of a row's vectors for a gradient. What a lane owns of a row is then one store of 16
    bytes: of two such stores each would fill every second half of a sector of 32 bytes.
    """
    most = launch.VECTOR_BYTES // request.element_size
    return gcd(request.vector, most // gcd(most, request.axes[2].stride))


def sum_tiles(request: Request) -> Iterator[Tile]:
    """Tiles in order of preference: large ones share more of what they read."""
    if request.element_size == 1:
        vectors, rows, widths = _tiles_of_bytes(request)
    elif request.channels_last:
        vectors, rows, widths = _tiles_of_channels(request)
    else:
        vectors, rows, widths = _tiles_of_columns(request)
    if not request.channels_last:
        close = vectors == [1] and _lie_close(request)
        jumps = close and request.axes[2].stride == 2 and not request.adjoint
        widths = [SINGLE_COLUMNS >> jumps, 1] if close else [0]
        rows = min(8, 2 * rows) if vectors == [1] and (jumps or not close) else rows
    rank, heights = request.rank, _halves(rows)
    shapes = [(height, v) for v in vectors for height in (heights if rank > 1 else [1])]
    if request.channels_last and request.element_size > 1:
        shapes.sort(key=lambda shape: -shape[0])
    depths = (2, 1) if rank == 3 and request.axes[0].stride == 1 else (1,)
    for width, (height, v), depth in itertools.product(widths, shapes, depths):
        yield Tile((depth, height, width or v), v)
    yield Tile((1, 1, 1), 1)


Choices = tuple[list[int], int, list[int]]
"""Vectors to try, the most rows of a lane, and numbers of columns to try where vectors hold
channels."""


def _halves(widest: int) -> list[int]:
    """A power of two and all smaller ones."""
    return [widest >> i for i in range(widest.bit_length())]


def _tiles_of_columns(request: Request) -> Choices:
    widest = _row_of_gradients(request) if request.adjoint else request.vector
    row, vectors = request.axes[1], _halves(widest)
    rows = 4 if row.stride == 1 and request.rank < 3 else 2
    is_medium = 5 < row.window / row.stride < 9
    return vectors, 2 * rows if is_medium else rows, []


def _tiles_of_channels(request: Request) -> Choices:
    column, vectors = request.axes[2], _halves(request.vector)
    rows = 4 if request.axes[1].stride == 1 and request.rank < 3 else 2
    widths = {1: [4 if column.window >= 5 else 2, 1], 2: [1] if request.adjoint else [2, 1]}
    wide = [v for v in vectors if v * request.element_size >= 4]
    return wide or vectors[:1], rows, widths.get(column.stride, [1])


def _tiles_of_bytes(request: Request) -> Choices:
    """The choices for elements of 8 bits. Where channels are innermost and columns have stride 1,
    vectors of 8 bytes leave more warps than those of 16.
    """
    (_, row, column), last = request.axes, request.channels_last
    sizes = (8, 4) if last and column.stride == 1 else (16, 8, 4)
    vectors = [v for v in sizes if request.vector % v == 0]
    rows = 4 if row.stride == 1 and (row.window < 5 or last or not vectors) else 2
    return [*vectors, 1], rows, [2 if column.stride <= 2 else 1]


def sum_tile_fits(request: Request, tile: Tile) -> bool:
    """Whether a tile's sums fit the registers of a lane, and its code stays short. Two sums of
    elements of 8 bits take one register.
    """
    axes, v = request.axes, tile.vector
    quantized, columns = request.element_size == 1, not request.channels_last
    lone = (
        columns
        and request.element_size >= 4
        and not request.adjoint
        and tile.sizes == (1, 1, 1)
        and all(axis.stride >= axis.extent for axis in axes)
    )
    loads = QUANTIZED_LOADS if quantized else LONE_LOADS if lone else UNROLLED_LOADS
    spans, used, targets, kept = [], [], [], []
    for axis, part in zip(axes, tile.sizes, strict=True):
        if request.adjoint:
            targets.append(part * axis.stride)
            spans.append((targets[-1] + axis.extent - 2) // axis.stride + 1)
            taps = launch.windows_over(axis)
        else:
            targets.append(part)
            spans.append((part - 1) * axis.stride + axis.extent)
            taps = axis.window
        used.append(min(spans[-1], targets[-1] * taps))
        kept.append(min(spans[-1], (taps - 1) * axis.dilation + 1) if taps > 1 else 0)
    chunks = launch.divided(spans[2], v) + (v > 1) if columns else used[2]
    if quantized:
        words = max(v // 2, 1)
        held = (chunks if columns else targets[2]) * words
        # Along channels each has its scale, zero point and offset.
        registers = (kept[0] * targets[1] + kept[1]) * held + (
            spans[2] if columns else chunks * words + 4 * v
        )
        fits = registers <= QUANTIZED_REGISTERS and request.window.taps <= SNAPPED_TAPS
    else:
        held, read = (targets[2], spans[2]) if columns else (targets[2] * v, used[2] * v)
        registers = (kept[0] * targets[1] + kept[1]) * held + read
        registers *= 2 if request.element_size == 8 else 1
        fits = prod(targets) <= TILE_TARGETS and registers <= TILE_REGISTERS
    return fits and used[0] * used[1] * chunks <= loads and max(spans) <= UNROLLED_POSITIONS


# Comparisons in a lane's straight-line code, without taps and with them: more take longer than 3 s
# to compile.
FORWARD_STEPS = 480, 360
# what a step on vectors of 8 channels costs the compiler, compared with one on columns
CHANNEL_STEP = 5
SHORT_CHANNEL_STEP = 3  # the same for at most 4 channels
# the least results of maxima whose windows share by axis: with fewer a second launch costs more
SHARED_RESULTS = 2**20
EXTENT = 64  # positions that an unrolled window may span; for maxima also the largest stride
# a lane's conditional additions, of vectors and of single elements: more compile longer than 3 s
GRADIENT_STEPS, SINGLE_GRADIENT_STEPS = 512, 400


def max_launches(request: Request, with_taps: bool) -> tuple[Launch, ...]:
    """The launches of a max pooling. Each but the last writes values and numbers that the next
    reads.
    """
    tile = max_tile(request, with_taps)
    if tile is None:
        operation = by_axis.FIRST_GREATEST if with_taps else by_axis.GREATEST
        return by_axis.folds(request, operation)
    groups = tuple(_sharing(tile.sizes[i], request.axes[i]) for i in (1, 2))
    taps = with_taps + (with_taps and request.masking > 0)
    mode = Maxima(groups, taps, with_taps and request.asm)
    return (launch.tile_launch("max_pooling.max_tile", request, tile, MODE=mode),)


def max_tile(request: Request, with_taps: bool) -> Tile | None:
    """The rows and columns of outputs that a lane owns; None where the window is too large for
    straight-line code, where a plane has one window, for bins, and where windows without taps
    overlap so much that one axis after the other is faster: rows are read by single elements.
    """
    axes, vector = request.axes, request.vector
    results = prod(request.shape[:2]) * prod(request.targets)
    if not _may_be_tiled(request, with_taps, results):
        return None
    stride, steps = axes[1].stride, FORWARD_STEPS[with_taps]
    rows, columns = {1: 4, 2: 2}.get(stride, 1), vector
    if request.channels_last:
        columns, vector = channel_columns(axes[2], request.element_size, vector, with_taps)
        steps //= SHORT_CHANNEL_STEP if vector <= 4 else CHANNEL_STEP
        rows <<= vector > 4 and request.element_size == 1 and rows == 4
        rows = rows if stride < axes[1].window else 1
    elif vector == 1 and stride == 1 and _lie_close(request):
        columns = SINGLE_COLUMNS
    elif vector == 1:
        rows, columns = {1: 8, 2: 4}.get(stride, 1), 1
    else:
        columns = vector = _row_vector(request, with_taps)
    if axes[0].window > 1:
        rows = min(rows, 2 if vector > 1 else 4 if request.element_size < 4 else 8)
        if with_taps and request.masking:  # which take registers
            rows, vector = 1, (vector + 1) // 2
    of_lane = columns * vector if request.channels_last else columns
    fits = lambda rows: _steps(axes, rows, columns) <= steps  # noqa: E731
    rows = _rows_of_lane(rows, fits, request.targets[1], results, of_lane)
    least = columns if request.channels_last else min(vector, 4)
    while columns > least and not fits(rows):
        columns //= 2
        vector = min(vector, columns)
    return Tile((1, rows, columns), vector) if fits(rows) else None


def _rows_of_lane(
    rows: int, fits: Callable[[int], bool], height: int, results: int, of_lane: int
) -> int:
    """At most ``rows``: fewer where that many do not fit or are far more than the ``height``, or
    where lanes of ``of_lane`` results in each row would be too few.
    """
    while rows > 1 and (
        rows >= 2 * height or not fits(rows) or results < launch.LANES_ENOUGH * rows * of_lane
    ):
        rows //= 2
    return rows


def _row_vector(request: Request, with_taps: bool) -> int:
    """Elements of a row's vectors. Long windows take few: lanes with fewer registers leave more
    warps to hide memory's latency.
    """
    long = 7 if with_taps or request.axes[1].stride == 1 else 5
    most = 4 if with_taps or request.element_size > 1 else 8
    return gcd(request.vector, most) if request.axes[2].window >= long else request.vector


def _may_be_tiled(request: Request, with_taps: bool, results: int) -> bool:
    """Whether there is a window over part of a plane, of a size that ``max_tile`` can take, and one
    axis after the other is not faster. With taps no window may be empty, nor dilated but in rows
    alone.
    """
    if request.window is None or launch.is_one_window(request):
        return False
    is_dilated = request.is_dilated and request.rank > 1
    if with_taps and (is_dilated or _has_empty_window(request)):
        return False
    if max(max(axis.extent, axis.stride) for axis in request.axes) > EXTENT:
        return False
    shares = request.vector == 1 and not with_taps and results >= SHARED_RESULTS
    return not (shares and by_axis.overlaps(request, all))


def channel_columns(axis: Axis, element_size: int, vector: int, with_taps: bool) -> tuple[int, int]:
    """Columns of a lane and channels of its vectors: registers limit both
    (docs/contributing/kernels.md has a table).
    """
    window, stride = axis.window, axis.stride
    columns = 2 if stride < window else 1
    large = stride == 1 and 5 <= window <= 7
    largest = stride == 1 and window == 7 and element_size == 4
    vector = gcd(vector, 2 if (with_taps and large) or largest else 4 if with_taps or large else 8)
    widens = 1 < window < 7 if with_taps else large
    if stride == 1 and widens and (element_size < 4 or (with_taps and large)):
        columns = 4
    return columns, vector


def _sharing(outputs: int, axis: Axis) -> int:
    """How many neighbouring windows share a core: the largest power of 2 of them that have elements
    in common.
    """
    group = 1
    if axis.dilation == 1:
        while outputs % (2 * group) == 0 and (2 * group - 1) * axis.stride < axis.window:
            group *= 2
    return group


@lru_cache(maxsize=1024)
def _steps(axes: tuple[Axis, ...], rows: int, columns: int) -> int:
    """Comparisons in the straight-line code of a lane that owns ``rows`` by ``columns`` outputs."""

    def along(outputs: int, axis: Axis) -> int:
        group = _sharing(outputs, axis)
        return (
            outputs
            // group
            * (axis.window - 1 + max(0, (group - 1) * (axis.stride + 1) - (group > 1)))
        )

    depth, row, column = axes
    rows_read = len(
        {j * row.stride + tap * row.dilation for j in range(rows) for tap in range(row.window)}
    )
    return depth.window * (rows_read * along(columns, column) + columns * along(rows, row))


def _has_empty_window(request: Request) -> bool:
    """Whether some window may read no element: it lies before the input, past it, or its taps step
    over it. A dilation larger than the input counts as that, even if no window does so.
    """
    return any(
        axis.extent <= axis.start
        or (output - 1) * axis.stride - axis.start >= size
        or (axis.window > 1 and axis.dilation > size)
        for size, output, axis in zip(request.sizes, request.targets, request.axes, strict=True)
    )


def grad_launches(request: Request) -> tuple[Launch, ...] | None:
    """The launches of a max pooling's gradient from dense taps and gradients. None for long windows
    that are dilated or overlap, which no kernel computes.
    """
    tile = grad_tile(request)
    if tile is None:
        return by_axis.spread(request, with_taps=True)
    return (launch.tile_launch("max_pooling_grad.grad_tile", request, tile),)


def grad_tile(request: Request) -> Tile | None:
    """The rows and columns of windows whose inputs a lane owns; None where the window is too large
    for straight-line code, or overlaps too much, where a stride is above 4, or where a plane has
    one window.
    """
    axes, vector = request.axes, request.vector
    windows = prod(map(launch.windows_over, axes))
    if launch.is_one_window(request):
        return None
    if any(axis.extent > EXTENT or axis.stride > 4 for axis in axes):
        return None
    deep, high, broad = (axis.stride for axis in axes)
    vector = vector if request.channels_last else _row_of_gradients(request)
    rows, columns, steps = {1: 8, 2: 2}.get(high, 1), vector, GRADIENT_STEPS
    if request.channels_last:
        # Long windows need many registers at once. AMD's compiler reads them all first.
        most = 8 if windows < 25 else 4 if request.asm and windows < 50 else 2
        vector = gcd(vector, most)
        rows, columns = min(rows, 2 if vector > 4 else 4), 2 if broad == 1 and most > 2 else 1
        steps //= CHANNEL_STEP if vector > 2 else 2
    while vector > 1 and not request.channels_last and vector * broad * windows > steps:
        vector = columns = vector // 2
    of_row = deep * high * windows * columns * broad
    single = vector == 1 and not request.channels_last and _lie_close(request)
    if single and SINGLE_COLUMNS * of_row <= SINGLE_GRADIENT_STEPS:
        columns, steps, of_row = SINGLE_COLUMNS, SINGLE_GRADIENT_STEPS, SINGLE_COLUMNS * of_row
        rows = rows if windows > 4 else min(rows, 4)  # 2/1 by 8 rows would not fit the registers
    of_lane = high * columns * broad * (vector if request.channels_last else 1)
    elements = prod(request.shape[:2]) * prod(request.targets) // deep
    fits = lambda rows: rows * of_row <= steps  # noqa: E731
    rows = _rows_of_lane(rows, fits, launch.divided(request.targets[1], high), elements, of_lane)
    return Tile((1, rows, columns), vector) if rows * of_row <= steps else None


def indices(request: Request, per_plane: bool) -> tuple[Launch, ...]:
    """The launch that makes indices of dense taps, over a contiguous source or inside each plane
    of it.
    """
    sizes, outputs, axes = request.sizes, request.targets, request.axes
    batch, channels = request.shape[:2]
    results, plane = batch * channels * prod(outputs), prod(sizes)
    wide = max(results, plane, *map(launch.farthest, sizes, outputs, axes)) >= launch.WIDE_FROM
    numbers = tuple(
        (
            *map(launch.divider, (outputs[i], axes[i].window)),
            *(axes[i].stride, axes[i].start, axes[i].dilation, sizes[i], prod(sizes[i + 1 :])),
        )
        for i in (2, 1, 0)
    )
    apart = (0, 0) if per_plane else (channels * plane, plane)
    constants = {"RANK": request.rank, "CHANNELS": request.channels_last, "WIDE": wide}
    given = results, launch.divider(channels), apart, numbers
    return (
        Launch.of(
            "max_pooling_grad.indices",
            launch.divided(results, launch.LANES),
            results,
            given,
            **constants,
        ),
    )


def segments(
    sizes: tuple[int, int, int, int], element_size: int, aligned: bool, **constants: Any
) -> Launch:
    """The launch that combines sets of rows. ``sizes`` are the numbers of sets, rows and channels,
    and how far rows lie apart.
    """
    sets, rows, channels, apart = sizes
    constants["V"] = vector = launch.vector_width(element_size, aligned, channels, apart)
    # channels of a program: it reads at least four rows at once
    constants["G"] = lanes = 128 if element_size < 8 else 64
    blocks = launch.divided(channels, lanes)
    numbers = rows, channels // vector, apart // vector, blocks
    return Launch.of("segments.segments", sets * blocks, sets * channels, numbers, **constants)
