"""How the kernels of quantized average pooling are launched: pure functions of the problem, as in :mod:`.launch`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod
from typing import Any, NamedTuple

from .launch import (
    LANES,
    Axes,
    EarlierLaunch,
    divided,
    five_strides,
    in_plane_span,
    is_wide,
    rows_of_lane,
    source_vector_width,
    three_axes,
    three_sizes,
    vector_width,
)

SNAPPED_TAPS = 128  # sums below 2**15: what a lane requantizes by two additions
STREAM_REGISTERS = (160, 100)  # words of the rows remembered, of sums and of one row; with channels innermost
UNROLLED_LOADS = 64  # loads that one lane may unroll: a few seconds of compile time
TILE_REGISTERS = 220  # words that a lane may hold at once, as estimated: the compiler keeps fewer of the sums


class QuantizedProblem(NamedTuple):
    """One call: from an input of any strides to a dense output."""

    window: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    output_sizes: tuple[int, ...]
    aligned: bool  # both tensors start at a multiple of 16 bytes
    channels_last: bool  # of the output
    include_padding: bool
    target: str  # as in ``MaxProblem``
    kinds: tuple[int, int, int, int]  # how scales and zero points are given: a number, one entry, one for each channel


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel of a sequence; each reads what the one before has written."""

    kernel: str
    launch: EarlierLaunch
    scratch: int = 0  # elements of scratch that it writes instead of the output
    wide_sums: bool = False  # whether those are 64-bit


@lru_cache(maxsize=4096)
def quantized_steps(problem: QuantizedProblem) -> tuple[Step, ...]:
    """The kernels that serve a problem: all unrolled, or a loop for each axis and the requantization after them."""
    axes = three_axes(problem.window)
    one = None
    if prod(axes.window) <= SNAPPED_TAPS:
        one = _stream(problem, axes) or _tile(problem, axes)
    return _loops(problem, axes) if one is None else (one,)


def counting(problem: QuantizedProblem) -> int:
    """0 where every window has the same divisor, 1 for taps inside the input, 2 for those inside the padded input."""
    axes = problem.window.axes
    if axes[0].ceil_mode:
        return 2 if problem.include_padding else 1
    padded = any(axis.start_padding or axis.end_padding for axis in axes)
    return 1 if padded and not problem.include_padding else 0


def _tile(problem: QuantizedProblem, axes: Axes) -> Step | None:
    rank = len(problem.window.axes)
    sizes, outputs = three_sizes(problem.shape[2:]), three_sizes(problem.output_sizes)
    batch, channels = problem.shape[:2]
    sn, sc, sd, sh, sw = strides_ = five_strides(problem.shape, problem.strides)
    columns = not problem.channels_last
    width = source_vector_width(1, problem.aligned, problem.channels_last, channels, sizes[2], strides_)
    chosen = _fitting_tile(axes, rank, columns, width if width >= 4 else 1)
    if chosen is None:
        return None
    tile, width = chosen
    tiles = [divided(output, part) for output, part in zip(outputs, tile, strict=True)]
    store = 1
    if columns:
        lanes = batch * channels * prod(tiles)
        store = gcd(vector_width(1, problem.aligned, outputs[2]), tile[2])
        span = in_plane_span(sizes, (sd, sh, sw)), prod(outputs)
        lengths = (channels, sizes[0], sizes[1], sizes[2] // width)
        strides = (sn // width, sc // width, sd // width, sh // width, sw if width == 1 else 0)
        ends = (outputs[0], outputs[1], outputs[2] // store)
    else:
        lanes = batch * (channels // width) * prod(tiles)
        span = in_plane_span((*sizes, channels), (sd, sh, sw, sc)), prod(outputs) * channels
        lengths = (channels // width, *sizes)
        strides = (sn // width, sc if width == 1 else 0, sd // width, sh // width, sw // width)
        ends = outputs
    count = counting(problem)
    constants = {
        "WINDOW": axes.window, "STRIDE": axes.stride, "START": axes.start, "END": axes.end, "DILATION": axes.dilation,
        "RANK": rank, "LAYOUT": 0 if columns else 1, "COUNT": count, "DIVISOR": 1 if count else prod(axes.window),
        "KINDS": problem.kinds, "TILE": tile, "V": width, "STORE": store, "B": LANES,
        "WIDE": is_wide(axes, sizes, outputs, lanes, *span), "ASM": problem.target == "sm_90",
    }  # fmt: skip
    runtime = (lanes, *lengths, *strides, *ends, tiles[2], tiles[1], tiles[0])
    return Step("quantized_tile", EarlierLaunch(divided(lanes, LANES), runtime, constants))


def _stream(problem: QuantizedProblem, axes: Axes) -> Step | None:
    """The walk down the rows for windows at stride 1 that all have one divisor; None for anything else."""
    dense = axes.stride == (1, 1, 1) == axes.dilation
    height, width = axes.window[1:]
    if len(problem.window.axes) != 2 or not dense or counting(problem) or height < 3 or width < 2:
        return None
    sizes, outputs = three_sizes(problem.shape[2:]), three_sizes(problem.output_sizes)
    batch, channels = problem.shape[:2]
    sn, sc, sd, sh, sw = strides = five_strides(problem.shape, problem.strides)
    columns = not problem.channels_last
    vector = source_vector_width(1, problem.aligned, problem.channels_last, channels, sizes[2], strides)
    if columns:
        vector = gcd(vector, outputs[2])
    chosen = _lane_of_stream(problem, vector)
    if chosen is None:
        return None
    vector, across = chosen
    if columns:
        lanes_of_one = batch * channels * (outputs[2] // vector)
        lengths = (channels, sizes[1], sizes[2] // vector, outputs[1], outputs[2] // vector)
        counted = (sn // vector, sc // vector, sh // vector, 1)
    else:
        lanes_of_one = batch * (channels // vector) * divided(outputs[2], across)
        lengths = (channels // vector, *sizes[1:], *outputs[1:])
        counted = (sn // vector, 0, sh // vector, sw // vector)
    rows = rows_of_lane(outputs[1], height, height, lanes_of_one)
    lanes = lanes_of_one * divided(outputs[1], rows)
    spans = in_plane_span((*sizes, channels), (sd, sh, sw, sc)), prod(outputs) * channels
    if is_wide(axes, sizes, outputs, lanes, *spans):
        return None
    constants = {
        "KH": height, "KW": width, "PH": axes.start[1], "PW": axes.start[2], "KINDS": problem.kinds, "Q": across,
        "V": vector, "LAYOUT": 0 if columns else 1, "B": LANES, "ASM": problem.target == "sm_90",
    }  # fmt: skip
    return Step("quantized_stream", EarlierLaunch(divided(lanes, LANES), (lanes, *lengths, rows, *counted), constants))


def _lane_of_stream(problem: QuantizedProblem, vector: int) -> tuple[int, int] | None:
    """``(V, Q)``: elements per vector and columns of such vectors; None where a window's rows do not fit."""
    height, width = (axis.window for axis in problem.window.axes)
    # Neighbouring columns share more than neighbouring channels: many columns first, then long vectors.
    for across in (8, 4, 2) if problem.channels_last else (1,):
        for length in (part for part in (16, 8, 4) if vector % part == 0):
            words = length // 2 * ((height + 1) * across + across + width - 1)
            if problem.channels_last:
                words += 5 * length if max(problem.kinds) == 2 else 0  # each channel's scale, zero point and offset
            if across <= problem.output_sizes[1] and words <= STREAM_REGISTERS[problem.channels_last]:
                return length, across
    return None


def _fitting_tile(axes: Axes, rank: int, columns: bool, width: int) -> tuple[tuple[int, int, int], int] | None:
    """``(TILE, V)``: the largest tile whose loads and sums stay within bounds, or None."""
    rows = 4 if axes.stride[1] == 1 else 2
    if columns and width == 1:
        rows *= 2  # neighbouring columns share nothing there
    if rank == 1:
        rows = 1
    depths = 2 if rank == 3 and axes.stride[0] == 1 else 1
    across = 1 if columns else 2 if axes.stride[2] <= 2 else 1
    while True:
        tile = (depths, rows, width if columns else across)
        if _fits(axes, tile, columns, width):
            return tile, width
        if depths > 1:
            depths = 1
        elif rows > 2:
            rows //= 2
        elif width > 4:
            width //= 2
        elif rows > 1:
            rows = 1
        elif across > 1:
            across = 1
        elif width > 1:
            width = 1
        else:
            return None


def _fits(axes: Axes, tile: tuple[int, int, int], columns: bool, width: int) -> bool:
    spans = [
        (part - 1) * stride + (window - 1) * dilation + 1
        for part, window, stride, dilation in zip(tile, *axes[:2], axes.dilation, strict=True)
    ]
    used = [min(span, part * window) for span, part, window in zip(spans, tile, axes.window, strict=True)]
    chunks = used[2] if not columns or width == 1 else divided(spans[2], width) + 1
    if used[0] * used[1] * chunks > UNROLLED_LOADS or max(spans) > 64:
        return False
    words = max(width // 2, 1)  # of a vector as it is added up
    held = (chunks if columns else tile[2]) * words
    kept = [min(span, (window - 1) * dilation + 1) if window > 1 else 0
            for span, window, dilation in zip(spans, axes.window, axes.dilation, strict=True)]  # fmt: skip
    registers = kept[0] * tile[1] * held + kept[1] * held + (spans[2] if columns else chunks * words)
    if not columns:
        registers += 4 * width  # the scale, zero point and offset of each channel
    return registers <= TILE_REGISTERS


def _loops(problem: QuantizedProblem, axes: Axes) -> tuple[Step, ...]:
    """One launch per axis that has a window, through scratch in the output's memory order, then the requantization."""
    sizes, outputs = three_sizes(problem.shape[2:]), three_sizes(problem.output_sizes)
    order = (0, 2, 3, 4, 1) if problem.channels_last else (0, 1, 2, 3, 4)
    shape = [*problem.shape[:2], *sizes]
    strides = list(five_strides(problem.shape, problem.strides))
    taps = prod(min(window, divided(size, dilation))
                for window, size, dilation in zip(axes.window, sizes, axes.dilation, strict=True))  # fmt: skip
    wide_sums = taps * 255 >= 2**31
    changed = [
        axis
        for axis in range(3)
        if (axes.window[axis], axes.stride[axis], axes.start[axis], axes.end[axis]) != (1, 1, 0, 0)
    ]
    steps = []
    for axis in changed:
        window, stride, start, end, dilation = (field[axis] for field in axes)
        result = list(shape)
        result[2 + axis] = outputs[axis]
        lanes = prod(result)
        one = Axes(*((value,) for value in (window, stride, start, end, dilation)))  # type: ignore[arg-type]
        wide = is_wide(one, (sizes[axis],), (outputs[axis],), lanes, (sizes[axis] + 1) * abs(strides[2 + axis]))
        runtime = (
            lanes, *[result[i] for i in order][1:], *(strides[i] for i in order), sizes[axis],
            window, stride, start, dilation, min(window, divided(sizes[axis], dilation)),
        )  # fmt: skip
        constants = {"AXIS": order.index(2 + axis), "B": LANES, "WIDE": wide}
        steps.append(Step("quantized_axis", EarlierLaunch(divided(lanes, LANES), runtime, constants), lanes, wide_sums))
        shape, dense = result, 1
        for i in reversed(order):
            strides[i] = dense
            dense *= shape[i]
    lanes = prod(shape)
    runtime = (
        lanes, *[shape[i] for i in order][1:], *sizes,
        *axes.window, *axes.stride, *axes.start, *axes.end, *axes.dilation,
    )  # fmt: skip
    constants = {
        "LAYOUT": 1 if problem.channels_last else 0, "COUNT": 2 if problem.include_padding else 1,
        "KINDS": problem.kinds, "B": LANES, "WIDE": is_wide(axes, sizes, outputs, lanes),
    }  # fmt: skip
    steps.append(Step("quantized_rescale", EarlierLaunch(divided(lanes, LANES), runtime, constants)))
    return tuple(steps)
