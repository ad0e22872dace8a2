"""When and how the walk of large averages is launched: pure functions of the problem, as in ``launch``."""

from __future__ import annotations

from .average_pooling_problem import AverageProblem, Step, divisor
from .launch import LANES, Axes, Launch, five_strides, in_plane_span, is_wide, three_sizes, vector_width
from .sums import additions
from .walks import SECTOR_BYTES, walk_of_channels

WALK_FROM = {2: 7, 4: 8, 8: 8}  # by bytes; below, registers hold the sums of enough rows and columns for one pass
WALK_WINDOW = 64  # rows and columns: a lane keeps that many sums of rows, and reads as many columns and 16 more
STATE_WORDS = {2: 128, 4: 112, 8: 112}  # by bytes; registers for the sums that a lane keeps without spilling
STATE_WORDS_WEIGHED = 64  # and where every element that is read has a divisor of its own


def shared_columns(rows: int, columns: int) -> int:
    """Neighbouring windows of a row that a lane adds up: the more, the fewer loads, but the deeper their trees."""
    # A sum of all taps may round as often as a balanced tree has levels, and once more beside the division.
    allowed = (rows * columns - 1).bit_length() + 1 - (rows - 1).bit_length()
    return max(r for r in (1, 2, 4, 8) if r <= columns and additions.fn(columns, r) <= allowed)


def average_walk(problem: AverageProblem, axes: Axes) -> Step | None:
    """The walk for channels innermost and windows at stride 1; None for anything else."""
    height, width = axes.window[1:]
    if (
        not problem.channels_last
        or len(problem.window.axes) != 2
        or axes.stride != (1, 1, 1)
        or axes.dilation != (1, 1, 1)
        or not min(height, width) >= WALK_FROM[problem.element_size]
        or not max(height, width) <= WALK_WINDOW
    ):
        return None
    batch, channels = problem.shape[:2]
    sizes, targets = three_sizes(problem.shape[2:]), three_sizes(problem.target_sizes)
    sn, sc, _, sh, sw = five_strides(problem.shape, problem.strides)
    span = in_plane_span((*sizes[1:], channels), (sh, sw, sc)), targets[1] * targets[2] * channels
    if is_wide(axes, *((targets, sizes) if problem.adjoint else (sizes, targets)), *span):
        return None
    vector = vector_width(problem.element_size, problem.aligned and sc == 1, channels, sn, sh, sw)
    count, divisor_ = divisor(problem)
    most = STATE_WORDS_WEIGHED if problem.adjoint and count > 0 else STATE_WORDS[problem.element_size]
    while vector > 1 and (height - 1) * vector * max(problem.element_size, 4) // 4 > most:
        vector //= 2
    shared = shared_columns(height, width)
    # Two bytes to an element are bound by instructions: lanes without a column cost more than columns read again.
    wanted = 2 * SECTOR_BYTES if problem.element_size == 2 else SECTOR_BYTES
    group = max(1, wanted // (vector * problem.element_size))
    walk = walk_of_channels(batch, channels // vector, group, targets[1], targets[2], height, shared, 2 * shared)
    constants = {
        "WINDOW": axes.window[1:], "START": axes.start[1:], "END": axes.end[1:], "ADJOINT": problem.adjoint,
        "COUNT": count, "DIVISOR": divisor_, "R": shared, "M": 2 * shared, "V": vector, "B": LANES,
    }  # fmt: skip
    runtime = (
        *walk, channels // vector, *sizes[1:], *targets[1:],
        sn // vector, sc if vector == 1 else 1, sh // vector, sw // vector,
    )  # fmt: skip
    table = walk.programs * (LANES + width - 1)
    return Step("sum_walk", Launch(walk.programs, runtime, constants), beside=walk.scratch(2 * shared, vector) + table)
