"""Which launches serve a request: pure functions of sizes, strides and windows."""

from collections.abc import Iterator, Sequence
from math import gcd, prod
from typing import Literal

from . import launch
from .launch import Axis, Launch, Request, Tile

UNROLLED_LOADS = 112  # loads that one lane may unroll: a few seconds of compile time
# source positions per axis that a tile may span, used or not: each costs compile time
UNROLLED_POSITIONS = 64
TILE_TARGETS = 64  # targets of a lane: more would be code without reuse
# registers that hold sums at once, roughly: fewer leave more warps to hide memory's latency
TILE_REGISTERS = 84
# of quantized windows: sums below 2**15, which a lane requantizes by two additions
SNAPPED_TAPS = 128
QUANTIZED_LOADS = 64
QUANTIZED_REGISTERS = 220  # as estimated: the compiler keeps fewer of the sums
Kinds = tuple[int, ...]
"""How two scales and zero points are given: as numbers (0), tensors of one entry (1), or of one per
channel (2)."""


def average_launches(request: Request, kinds: Kinds = (0, 0, 0, 0)) -> tuple[Launch, ...]:
    """The launches of averages or their gradient; each but the last writes a workspace, which the
    next reads.

    Elements of 8 bits are quantized: sum_tile requantizes the sums of at most 128 of them, sum_axis
    gives sums alone.
    """
    count, divisor = (1, 1) if request.window is None else counting(request)
    for tile in sum_tiles(request):
        if sum_tile_fits(request, tile):
            constants = {
                "ADJOINT": request.adjoint,
                "COUNT": count,
                "DIVISOR": divisor,
                "KINDS": kinds,
            }
            return (launch.tile_launch("average_pooling.sum_tile", request, tile, constants),)
    of_integers = request.element_size == 1
    return tuple(_sum_axes(request, 0 if of_integers else count, 1 if of_integers else divisor))


def counting(request: Request) -> tuple[int, int]:
    """``(COUNT, DIVISOR)``: how windows are divided; from the window alone, so no image size makes
    a new kernel.
    """
    axes = request.window.axes
    if request.divisor_override is not None:
        return 0, request.divisor_override
    padded = any(axis.start_padding or axis.end_padding for axis in axes)
    if axes[0].ceil_mode or (padded and not request.include_padding):
        return (2 if request.include_padding else 1), 1
    return 0, request.window.taps


def sum_tiles(request: Request) -> Iterator[Tile]:
    """Tiles in order of preference: large ones share more of what they read."""
    axes, rank, widest, columns = (
        request.axes,
        request.rank,
        request.vector,
        not request.channels_last,
    )
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
        rows = 2 * rows
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
        yield from (
            Tile((depth, height, width or v), v) for height, v in shapes for depth in depths
        )
    yield Tile((1, 1, 1), 1)


def sum_tile_fits(request: Request, tile: Tile) -> bool:
    """Whether one lane has the registers for a tile's sums (of 8 bits two in a word), and its code
    stays short.
    """
    axes, quantized, columns, v = (
        request.axes,
        request.element_size == 1,
        not request.channels_last,
        tile.vector,
    )
    spans, used, targets, kept = [], [], [], []
    for axis, part in zip(axes, tile.sizes, strict=True):
        if request.adjoint:
            targets.append(part * axis.stride)
            spans.append((targets[-1] + axis.extent - 2) // axis.stride + 1)
            taps = launch.covering(axis).count
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
    else:
        held, read = (targets[2], spans[2]) if columns else (targets[2] * v, used[2] * v)
        registers = (kept[0] * targets[1] + kept[1]) * held + read
        registers *= 2 if request.element_size == 8 else 1
    return (
        used[0] * used[1] * chunks <= (QUANTIZED_LOADS if quantized else UNROLLED_LOADS)
        and max(spans) <= UNROLLED_POSITIONS
        and (
            prod(axis.window for axis in axes) <= SNAPPED_TAPS
            if quantized
            else prod(targets) <= TILE_TARGETS
        )
        and registers <= (QUANTIZED_REGISTERS if quantized else TILE_REGISTERS)
    )


def _sum_axes(request: Request, count: int, divisor: int) -> list[Launch]:
    """Outer axes first: there neighbouring lanes read neighbouring elements."""
    bins, launches = request.window is None, []
    for along in launch.one_axis_at_a_time(request):
        reach = launch.covering(along.axis)
        sizes = (along.targets, along.source) if request.adjoint else (along.source, along.targets)
        largest = launch.farthest(*sizes, along.axis)
        if bins:
            bound, largest = (
                launch.widest_bin(along.source, along.targets),
                (along.source + 1) * (along.targets + 1),
            )
        elif request.adjoint:
            bound = min(reach.count, launch.divided(along.source, reach.output_step))
        else:
            bound = min(along.axis.window, launch.divided(along.source, along.axis.dilation))
        lanes = along.results
        numbers = (
            (lanes, along.inner, along.source, along.targets, bound, divisor if along.last else 1),
            along.axis,
            (reach.gcd, reach.inverse),
        )
        constants = {
            "ADJOINT": request.adjoint,
            "BINS": bins,
            "COUNT": count,
            "WIDE": max(largest, lanes, (along.source + bound + 8) * along.inner)
            >= launch.WIDE_FROM,
        }
        launches.append(Launch.of_lanes("average_pooling.sum_axis", lanes, numbers, constants))
    return launches


# Comparisons in a lane's straight-line code, without taps and with them: more take longer than 3 s
# to compile.
FORWARD_STEPS = 480, 360
# what a step on vectors of 8 channels costs the compiler, compared with one on columns
CHANNEL_STEP = 5
SHORT_CHANNEL_STEP = 3  # the same for at most 4 channels
EXTENT = 64  # positions that one unrolled window may span
# conditional additions in a lane's straight-line code: more take longer than 3 s to compile
GRADIENT_STEPS = 512
DECODED = 16  # outputs for which a lane that looks up taps finds its place once


def max_launches(request: Request, with_taps: bool) -> tuple[Launch, ...]:
    """The launches of a max pooling; each but the last writes values and numbers that the next
    reads.
    """
    tile = None if request.window is None else max_tile(request, with_taps)
    if tile is None:
        return tuple(_max_axes(request, with_taps=with_taps))
    constants = {
        "GROUPS": tuple(_sharing(tile.sizes[i], request.axes[i]) for i in (1, 2)),
        "WITH_TAPS": with_taps,
        "EMPTY": with_taps and _has_empty_window(request),
        "ASM": with_taps and request.asm,
    }
    return (launch.tile_launch("max_pooling.max_tile", request, tile, constants),)


def max_tile(request: Request, with_taps: bool) -> Tile | None:
    """The rows and columns of one lane; None where the window is too large for straight-line
    code.
    """
    axes, vector = request.axes, request.vector
    if max(max(axis.extent, axis.stride) for axis in axes) > EXTENT:
        return None
    stride, steps = axes[1].stride, FORWARD_STEPS[with_taps]
    rows, columns = {1: 4, 2: 2}.get(stride, 1), vector
    if request.channels_last:
        columns, vector = channel_columns(axes[2], request.element_size, vector, with_taps)
        steps //= SHORT_CHANNEL_STEP if vector <= 4 else CHANNEL_STEP
        rows = 8 if vector > 4 and request.element_size == 1 and rows == 4 else rows
        rows = rows if stride < axes[1].window else 1
    elif vector == 1:
        rows = {1: 8, 2: 4}.get(stride, 1)
    elif axes[2].window >= 7 and with_taps:
        columns = vector = gcd(vector, 4)  # fewer registers: more warps to hide memory's latency
    if axes[0].window > 1:
        rows = min(rows, 2)
    of_lane = columns * vector if request.channels_last else columns
    while rows > 1 and (
        rows >= 2 * request.targets[1]
        or _steps(axes, rows, columns) > steps
        or prod(request.shape[:2]) * prod(request.targets) < launch.LANES_ENOUGH * rows * of_lane
    ):
        rows //= 2
    while not request.channels_last and columns > 4 and _steps(axes, rows, columns) > steps:
        columns = vector = vector // 2
    return Tile((1, rows, columns), vector) if _steps(axes, rows, columns) <= steps else None


def channel_columns(axis: Axis, element_size: int, vector: int, with_taps: bool) -> tuple[int, int]:
    """Columns of a lane and channels of its vectors: registers limit both (docs/kernels.md has them
    in a table).
    """
    window, stride = axis.window, axis.stride
    columns = 2 if stride < window else 1
    large = stride == 1 and 5 <= window <= 7
    vector = gcd(vector, 2 if with_taps and large else 4 if with_taps or large else 8)
    if (
        stride == 1
        and (1 < window < 7 if with_taps else large)
        and (element_size < 4 or (with_taps and large))
    ):
        columns = 4
    return columns, vector


def _sharing(outputs: int, axis: Axis) -> int:
    """How many neighbouring windows best share a core: the most, as powers of 2 go, that have one
    in common.
    """
    group = 1
    if axis.dilation == 1:
        while outputs % (2 * group) == 0 and (2 * group - 1) * axis.stride < axis.window:
            group *= 2
    return group


def _steps(axes: Sequence[Axis], rows: int, columns: int) -> int:
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
    """Whether some window reads no element: before the input, past it, or stepping over all of
    it.
    """
    return any(
        axis.extent <= axis.start
        or (output - 1) * axis.stride - axis.start >= size
        or (axis.window > 1 and axis.dilation > size)
        for size, output, axis in zip(request.sizes, request.targets, request.axes, strict=True)
    )


def _max_axes(request: Request, *, with_taps: bool) -> list[Launch]:
    """Innermost axis first, so that of equal maxima the first row's first column wins."""
    bins, below, launches = request.window is None, 1, []
    for along in launch.one_axis_at_a_time(request, innermost_first=True, numbered=bins):
        axis = along.axis
        vector = launch.vector_width(request.element_size, request.aligned, along.inner)
        lanes = along.outer * along.inner // vector
        # Outputs of one lane: as many as leave a common core, up to 8 (more need 128 registers).
        rows = 1 if bins or axis.dilation > 1 else 8
        while rows > 1 and (
            (rows - 1) * axis.stride >= axis.window
            or rows * axis.stride > 16
            or rows >= 2 * along.targets
            or lanes * launch.divided(along.targets, rows) < launch.LANES_ENOUGH
        ):
            rows //= 2
        lanes *= launch.divided(along.targets, rows)
        if bins:
            bound = launch.widest_bin(along.source, along.targets)
        elif rows > 1:
            bound = axis.window - (rows - 1) * axis.stride
        else:
            bound = min(axis.window, launch.divided(along.source, axis.dilation))
        largest = [lanes, max(along.source + axis.window, along.targets + rows) * along.inner]
        largest.append(launch.farthest(along.source, along.targets, axis))
        if bins:
            largest.append((along.source + 1) * (along.targets + 1))
        constants = {
            "AXIS": axis._replace(end=0),
            "BINS": bins,
            "FIRST": along.first,
            "LAST": along.last,
            "R": rows,
            "V": vector,
            "WITH_TAPS": with_taps,
            "WIDE": max(largest) >= launch.WIDE_FROM,
        }
        sizes = ((lanes, along.inner // vector, along.source, along.targets, bound, below),)
        below *= along.source if bins else axis.window
        launches.append(Launch.of_lanes("max_pooling.max_axis", along.results, sizes, constants))
    return launches


def grad_launches(request: Request) -> tuple[Launch, ...]:
    """The launches of a max pooling's gradient from dense taps and gradients."""
    tile = grad_tile(request)
    if tile is None:
        return tuple(_grad_axes(request))
    return (launch.tile_launch("max_pooling_grad.grad_tile", request, tile, {}),)


def grad_tile(request: Request) -> Tile | None:
    """Windows whose inputs a lane owns; None where none are few enough."""
    axes, vector = request.axes, request.vector
    if any(axis.extent > EXTENT or axis.stride > 4 for axis in axes):
        return None
    deep, high, broad = (axis.stride for axis in axes)
    rows, columns, steps = {1: 8, 2: 2}.get(high, 1), vector, GRADIENT_STEPS
    if request.channels_last:
        rows, columns, steps = (
            min(rows, 2 if vector > 4 else 4),
            2 if broad == 1 else 1,
            steps // CHANNEL_STEP,
        )
    of_row = deep * high * prod(launch.covering(axis).count for axis in axes) * columns * broad
    elements = prod(request.shape[:2]) * prod(request.targets) // deep
    of_lane = high * columns * broad * (vector if request.channels_last else 1)
    while rows > 1 and (
        rows * of_row > steps
        or rows * high >= 2 * request.targets[1]
        or elements < launch.LANES_ENOUGH * rows * of_lane
    ):
        rows //= 2
    return Tile((1, rows, columns), vector) if rows * of_row <= steps else None


def _grad_axes(request: Request) -> list[Launch]:
    """Outermost axis first: the taps that won in one row then agree on their column."""
    below, launches = prod(axis.window for axis in request.axes), []
    for along in launch.one_axis_at_a_time(request):
        below //= along.axis.window
        reach = launch.covering(along.axis)
        lanes = along.results
        largest = max(lanes, (max(along.source, along.targets) + 1) * along.inner)
        constants = {
            "LAST": along.last,
            "WIDE": max(largest, launch.farthest(along.targets, along.source, along.axis))
            >= launch.WIDE_FROM,
        }
        bound = min(reach.count, launch.divided(along.source, reach.output_step))
        sizes = (
            (lanes, along.inner, along.targets, along.source, bound, below),
            along.axis,
            (reach.gcd, reach.inverse),
        )
        launches.append(Launch.of_lanes("max_pooling_grad.grad_axis", lanes, sizes, constants))
    return launches


def tap_lookup(
    request: Request, with_: Literal["values", "indices", "plane indices"]
) -> tuple[Launch, ...]:
    """What dense taps point at: elements of the source (``"values"``), or their indices in a
    contiguous one.
    """
    sizes, outputs = request.sizes, request.targets
    batch, channels = request.shape[:2]
    strides = launch.five_strides(request.shape, request.strides)
    if with_ != "values":
        plane = prod(sizes) if with_ == "indices" else 0
        strides = (channels * plane, plane, sizes[1] * sizes[2], sizes[2], 1)
    vector = gcd(DECODED, channels if request.channels_last else outputs[2])
    ends = (
        (channels // vector, *outputs)
        if request.channels_last
        else (channels, *outputs[:2], outputs[2] // vector)
    )
    results = batch * channels * prod(outputs)
    spans = results // vector, prod(sizes), launch.in_plane_span(sizes, strides[2:])
    constants = {
        **request.named_axes(),
        "RANK": request.rank,
        "CHANNELS": request.channels_last,
        "V": vector,
        "ELEMENTS": with_ == "values",
        "WIDE": max(*spans, *map(launch.farthest, sizes, outputs, request.axes))
        >= launch.WIDE_FROM,
    }
    numbers = ((results // vector, ends[0], *sizes), strides, ends[:0:-1])
    return (Launch.of_lanes("max_pooling_grad.at_taps", results, numbers, constants),)
