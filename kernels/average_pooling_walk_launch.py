"""When and how the walk of large averages is launched: pure functions of the problem, as in ``launch``."""

from __future__ import annotations

from .average_pooling_problem import AverageProblem, Step, divisor
from .launch import LANES, Axes, EarlierLaunch, five_strides, in_plane_span, is_wide, three_sizes, vector_width
from .sums import core_is_shallow
from .walks import SECTOR_BYTES, walk_of_channels, walk_of_planes

COLUMNS, CHANNELS = 0, 1  # as in the kernels
WALK_FROM = {2: 7, 4: 8, 8: 8}  # by bytes; below, registers hold the sums of enough rows and columns for one pass
WALK_WINDOW = 64  # rows and columns: a lane keeps that many sums of rows, and reads as many columns and 16 more
STATE_WORDS = {2: 120, 4: 112, 8: 112}  # by bytes; registers for the sums that a lane keeps without spilling
STATE_WORDS_OF_ROWS = 128  # and where two bytes to an element lie in contiguous rows, which are read with fewer
STATE_WORDS_WEIGHED = 64  # and where every element that is read has a divisor of its own
NEIGHBOURS = 8  # windows of a contiguous row that a lane adds up: more would set neighbouring lanes' loads far apart
TURN = 16  # contiguous rows to a turn: the more, the longer it takes to compile


def shared_columns(rows: int, columns: int) -> int:
    """Neighbouring windows of vectors that a lane adds up: the more, the fewer loads, but the deeper their trees."""
    return max(r for r in (1, 2, 4, 8) if core_is_shallow.fn(rows, columns, r))


def average_walk(problem: AverageProblem, axes: Axes) -> Step | None:
    """The walk for windows at stride 1, channels innermost or rows contiguous; None for anything else."""
    height, width = axes.window[1:]
    size = problem.element_size
    if (
        len(problem.window.axes) != 2
        or axes.stride != (1, 1, 1)
        or axes.dilation != (1, 1, 1)
        or not max(height, width) <= WALK_WINDOW
    ):
        return None
    sizes, targets = three_sizes(problem.shape[2:]), three_sizes(problem.target_sizes)
    count, divisor_ = divisor(problem)
    most = STATE_WORDS_OF_ROWS if size == 2 and not problem.channels_last else STATE_WORDS[size]
    if problem.adjoint and count > 0:
        most = STATE_WORDS_WEIGHED

    def fitting(vector: int) -> int:
        """As much of a vector as leaves registers for its sums of rows."""
        while vector > 1 and (height - 1) * vector * max(size, 4) // 4 > most:
            vector //= 2
        return vector

    batch, channels = problem.shape[:2]
    sn, sc, _, sh, sw = five_strides(problem.shape, problem.strides)
    if problem.channels_last:
        if not min(height, width) >= WALK_FROM[size]:
            return None
        span = in_plane_span((*sizes[1:], channels), (sh, sw, sc)), targets[1] * targets[2] * channels
        # Of four bytes at least: sums of longer vectors would go through shared memory.
        down = vector = fitting(vector_width(max(size, 4), problem.aligned and sc == 1, channels, sn, sh, sw))
        shared = shared_columns(height, width)
        turn = 2 * shared
        # Two bytes to an element are bound by instructions: lanes without a column cost more than columns read again.
        wanted = 2 * SECTOR_BYTES if size == 2 else SECTOR_BYTES
        group = max(1, wanted // (vector * size))
        walk = walk_of_channels(batch, channels // vector, group, targets[1], targets[2], height, shared, turn)
        lengths = (channels // vector, *sizes[1:], *targets[1:])
        strides = (sn // vector, sc if vector == 1 else 1, sh // vector, sw // vector)
        elements, table, lines = vector, width - 1 + shared, shared
    else:
        if not min(height, width) >= NEIGHBOURS or (sw != 1 and sizes[2] > 1):
            return None
        span = in_plane_span(sizes[1:], (sh, sw)), targets[1] * targets[2]
        shared = NEIGHBOURS
        vector = vector_width(size, problem.aligned, sizes[2], sn, sc, sh)
        turn = TURN
        down = fitting(vector_width(max(size, 4), problem.aligned, targets[2]))
        walk = walk_of_planes(batch * channels, targets[1], targets[2], down, height, shared, turn)
        lengths = (channels, sizes[1], sizes[2] // vector, targets[1], targets[2] // down)
        strides = (sn // vector, sc // vector, sh // vector, 1)
        elements, table, lines = 1, width - 1 + shared + 2 * vector, LANES // (walk.width // shared * walk.group)
    if is_wide(axes, *((targets, sizes) if problem.adjoint else (sizes, targets)), batch * channels, *span):
        return None
    constants = {
        "WINDOW": axes.window[1:], "START": axes.start[1:], "END": axes.end[1:], "ADJOINT": problem.adjoint,
        "COUNT": count, "DIVISOR": divisor_, "LAYOUT": CHANNELS if problem.channels_last else COLUMNS,
        "R": shared, "M": turn, "V": vector, "DOWN": down, "B": LANES,
    }  # fmt: skip
    runtime = (*walk, lines, batch * channels, *lengths, *strides)
    beside = walk.scratch(turn, elements) + walk.programs * (walk.width + table)
    return Step("sum_walk", EarlierLaunch(walk.programs, runtime, constants), beside=beside)
