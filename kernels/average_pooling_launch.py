"""How the kernels of average pooling and its gradient are launched: pure functions of the problem, as in ``launch``."""

from __future__ import annotations

from functools import lru_cache
from math import gcd, prod
from typing import NamedTuple

from .average_pooling_problem import AverageProblem, Step, divisor
from .average_pooling_walk_launch import average_walk
from .launch import (
    LANES,
    Axes,
    EarlierLaunch,
    covering,
    divided,
    five_strides,
    in_plane_span,
    is_wide,
    source_vector_width,
    three_axes,
    three_sizes,
    vector_width,
)

UNROLLED_LOADS = 112  # loads that one lane may unroll: about a second of compile time; past it, axis by axis in a loop
UNROLLED_POSITIONS = 64  # source positions per axis that a tile may span, used or not: each costs compile time
ROWS_WALKED_FROM = 9  # contiguous windows; below, registers hold the sums of enough rows and columns for one pass
TILE_REGISTERS = 200  # of the 255 that a lane can have
TILE_TARGETS = 64  # targets of a lane: more would be code without reuse


@lru_cache(maxsize=4096)
def average_steps(problem: AverageProblem) -> tuple[Step, ...]:
    """The kernels that serve a problem: all unrolled; for a large window a walk, or else one loop per axis."""
    axes = three_axes(problem.window)
    ways = [_average_tile, average_walk]
    if problem.channels_last or min(axes.window[1:]) >= ROWS_WALKED_FROM:
        ways.reverse()
    for way in ways:
        if (one := way(problem, axes)) is not None:
            return (one,)
    return _average_loops(problem, axes)


class TileCost(NamedTuple):
    """What one lane of the tile kernel would need."""

    loads: int
    longest: int  # source positions spanned along one axis
    targets: int
    registers: int  # 32-bit registers that hold sums at once, roughly: above 200 the compiler begins to spill


def tile_cost(
    axes: Axes, adjoint: bool, tile: tuple[int, int, int], columns: bool, width: int, element_size: int
) -> TileCost:
    """The cost of a lane that owns ``tile`` (see ``sum_tile``)."""
    spans, used, targets, kept = [], [], [], []
    for window, stride, dilation, part in zip(axes.window, axes.stride, axes.dilation, tile, strict=True):
        if adjoint:
            targets.append(part * stride)
            spans.append((targets[-1] - 1 + (window - 1) * dilation) // stride + 1)
            taps = divided(window, stride // gcd(stride, dilation))
        else:
            targets.append(part)
            spans.append((part - 1) * stride + (window - 1) * dilation + 1)
            taps = window
        used.append(min(spans[-1], targets[-1] * taps))
        kept.append(min(spans[-1], (taps - 1) * dilation + 1) if taps > 1 else 0)
    if columns:
        chunks = used[2] if width == 1 else divided(spans[2], width) + 1
        held = spans[2]
        reading = held
    else:
        chunks = used[2]
        held = targets[2] * width
        reading = chunks * width
    registers = (kept[0] * targets[1] * held + kept[1] * held + reading) * (2 if element_size == 8 else 1)
    return TileCost(used[0] * used[1] * chunks, max(spans), targets[0] * targets[1] * targets[2], registers)


def _average_tile(problem: AverageProblem, axes: Axes) -> Step | None:
    """The unrolled launch, or None where a window is too large for it."""
    rank = len(problem.window.axes)
    sizes, targets = three_sizes(problem.shape[2:]), three_sizes(problem.target_sizes)
    batch, channels = problem.shape[:2]
    sn, sc, sd, sh, sw = strides_ = five_strides(problem.shape, problem.strides)
    columns = not problem.channels_last
    width = source_vector_width(
        problem.element_size, problem.aligned, problem.channels_last, channels, sizes[2], strides_
    )
    chosen = _fitting_tile(axes, rank, problem.adjoint, columns, width, problem.element_size)
    if chosen is None:
        return None
    tile, width = chosen
    owned = [part * stride if problem.adjoint else part for part, stride in zip(tile, axes.stride, strict=True)]
    tiles = [divided(target, part) for target, part in zip(targets, owned, strict=True)]
    store = 1
    if columns:
        lanes = batch * channels * prod(tiles)
        store = gcd(vector_width(problem.element_size, problem.aligned, targets[2]), owned[2])
        span = in_plane_span(sizes, (sd, sh, sw)), prod(targets)
        lengths = (channels, sizes[0], sizes[1], sizes[2] // width)
        spatial = (sd // width, sh // width, sw // width if width == 1 else 0)
        strides = (sn // width, sc // width, *spatial)
        ends = (targets[0], targets[1], targets[2] // store)
    else:
        lanes = batch * (channels // width) * prod(tiles)
        span = in_plane_span((*sizes, channels), (sd, sh, sw, sc)), prod(targets) * channels
        lengths = (channels // width, *sizes)
        strides = (sn // width, sc if width == 1 else 0, sd // width, sh // width, sw // width)
        ends = targets
    count, divisor_ = divisor(problem)
    input_sizes, output_sizes = (targets, sizes) if problem.adjoint else (sizes, targets)
    constants = {
        "WINDOW": axes.window, "STRIDE": axes.stride, "START": axes.start, "END": axes.end, "DILATION": axes.dilation,
        "RANK": rank, "LAYOUT": 0 if columns else 1, "ADJOINT": problem.adjoint, "COUNT": count, "DIVISOR": divisor_,
        "TILE": tile, "V": width, "STORE": store, "B": LANES,
        "WIDE": is_wide(axes, input_sizes, output_sizes, lanes, *span),
    }  # fmt: skip
    runtime = (lanes, *lengths, *strides, *ends, tiles[2], tiles[1], tiles[0])
    return Step("sum_tile", EarlierLaunch(divided(lanes, LANES), runtime, constants), 0)


def _fitting_tile(
    axes: Axes, rank: int, adjoint: bool, columns: bool, width: int, element_size: int
) -> tuple[tuple[int, int, int], int] | None:
    """``(TILE, V)``: the largest tile whose loads, spans and sums stay within bounds, or None."""
    rows = 4 if axes.stride[1] == 1 else 2
    if 5 < axes.window[1] / axes.stride[1] < 9 or (columns and width == 1):
        rows *= 2  # more rows share what is read: where much is read, or where neighbouring columns share nothing
    if rank == 1:
        rows = 1
    depths = 2 if rank == 3 and axes.stride[0] == 1 and element_size > 2 else 1
    across = 1 if columns else (2 if axes.stride[2] <= 2 and not (adjoint and axes.stride[2] > 1) else 1)
    while True:
        tile = (depths, rows, width if columns else across)
        cost = tile_cost(axes, adjoint, tile, columns, width, element_size)
        if (
            cost.loads <= UNROLLED_LOADS
            and cost.longest <= UNROLLED_POSITIONS
            and cost.targets <= TILE_TARGETS
            and cost.registers <= TILE_REGISTERS
        ):
            return tile, width
        if depths > 1:
            depths = 1
        elif not columns and width > 4 // element_size and cost.registers > TILE_REGISTERS and width > 1:
            width //= 2  # shorter vectors of channels are still read side by side by neighbouring lanes
        elif rows > 1:
            rows //= 2
        elif across > 1:
            across = 1
        elif width > 1:
            width //= 2
        else:
            return None


def _average_loops(problem: AverageProblem, axes: Axes) -> tuple[Step, ...]:
    """One launch per axis that has a window, through scratch in the accumulation type, in the target's memory order.

    Outer axes first: there neighbouring lanes read neighbouring elements, and the innermost has less left.
    """
    sizes, targets = three_sizes(problem.shape[2:]), three_sizes(problem.target_sizes)
    count, divisor_ = divisor(problem)
    order = (0, 2, 3, 4, 1) if problem.channels_last else (0, 1, 2, 3, 4)
    shape = [*problem.shape[:2], *sizes]
    strides = list(five_strides(problem.shape, problem.strides))
    changed = [
        axis
        for axis in range(3)
        if (axes.window[axis], axes.stride[axis], axes.start[axis], axes.end[axis]) != (1, 1, 0, 0)
        or targets[axis] != sizes[axis]
    ]
    steps = []
    for axis in changed:
        last = axis == changed[-1]
        window, stride, start, end, dilation = (field[axis] for field in axes)
        reach = covering(window, stride, dilation)
        result = list(shape)
        result[2 + axis] = targets[axis]
        bound = (
            min(reach.count, divided(sizes[axis], reach.output_step))
            if problem.adjoint
            else min(window, divided(sizes[axis], dilation))
        )
        lanes = prod(result)
        input_size, output_size = (targets, sizes) if problem.adjoint else (sizes, targets)
        one = Axes(*((value,) for value in (window, stride, start, end, dilation)))  # type: ignore[arg-type]
        wide = is_wide(
            one, (input_size[axis],), (output_size[axis],), lanes, (sizes[axis] + 1) * strides[2 + axis],
            reach.tap_step**2,
        )  # fmt: skip
        memory = [result[i] for i in order]
        runtime = (
            lanes, *memory[1:], *(strides[i] for i in order), sizes[axis], targets[axis],
            window, stride, start, end, dilation, reach.gcd, reach.inverse, bound,
        )  # fmt: skip
        constants = {
            "AXIS": order.index(2 + axis), "ADJOINT": problem.adjoint,
            "COUNT": count, "DIVISOR": divisor_ if last else 1,
            "B": LANES, "WIDE": wide,
        }  # fmt: skip
        steps.append(Step("sum_axis", EarlierLaunch(divided(lanes, LANES), runtime, constants), 0 if last else lanes))
        shape = result
        dense = 1
        for i in reversed(order):
            strides[i] = dense
            dense *= shape[i]
    return tuple(steps)
