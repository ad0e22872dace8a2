"""When and how the walk of large maxima is launched: pure functions of the problem, as in ``launch``."""

from __future__ import annotations

from math import prod

from .launch import CUDA, LANES, EarlierLaunch, in_plane_span, is_wide, vector_width
from .max_pooling_problem import (
    CHANNELS,
    COLUMNS,
    NO_TAPS,
    MaxProblem,
    Pass,
    compared_as_float32,
    has_empty_window,
    max_vectors,
)
from .max_pooling_stream_launch import KEYS, PAIRS, VALUES
from .walks import SECTOR_BYTES, walk_of_channels, walk_of_planes

SHARED = 8  # neighbouring windows of a row that share a core
WALK_WINDOW = 64  # rows and columns: a lane keeps that many rows of maxima, and reads as many columns and 7 more
STATE_WORDS = 128  # registers for what a lane keeps on its way down
STATE_WORDS_OF_HALVES = 64  # packed: what is reduced along the rows needs as many again
STATE_WORDS_OF_COLUMNS = 110  # of pairs: split columns bear a number each
LINES_OF_KEYS = 1000  # rows that a walk can number above the 64 columns in half a word, and some to spare


def _mode(problem: MaxProblem, encode: int) -> int:
    """Keys where the tap fits beside a 16-bit number, and fills two bytes itself."""
    if encode == NO_TAPS:
        return VALUES
    keys = problem.floating and problem.element_size == 2 and problem.target in (*CUDA, "interpreter")
    fits = problem.axes.window[2] + SHARED - 1 <= 64 and 225 < prod(problem.axes.window) <= 2**15
    return KEYS if keys and fits else PAIRS


def max_walk(problem: MaxProblem, encode: int) -> Pass | None:
    """The walk for windows at stride 1, with channels innermost or in contiguous rows; None for anything else."""
    axes, outputs, size = problem.axes, problem.outputs, problem.element_size
    height, width = axes.window[1:]
    if (
        problem.rank != 2
        or axes.stride != (1, 1, 1)
        or axes.dilation != (1, 1, 1)
        or not SHARED <= width <= WALK_WINDOW
        or not 2 <= height <= WALK_WINDOW
        or (encode != NO_TAPS and has_empty_window(axes, problem.sizes, outputs))
    ):
        return None
    mode = _mode(problem, encode)
    layout, vector = max_vectors(problem)
    n, c, d, h, w = problem.strides
    yn, yc, yd, yh, yw = problem.output_strides
    if layout != CHANNELS:
        if w != 1 or yw > 1:
            return None
        layout = COLUMNS
        vector = min(SHARED, vector_width(size, problem.aligned, problem.sizes[2], n, c, h))
    registers = {VALUES: size / 4 if problem.floating else max(1, size // 4), PAIRS: max(1, size // 4) + 1, KEYS: 1}
    down = vector if layout == CHANNELS else vector_width(size, True, outputs[2])
    packed = mode == VALUES and problem.floating and size == 2
    most = STATE_WORDS_OF_HALVES if packed else STATE_WORDS
    if mode == PAIRS and layout == COLUMNS:
        most = STATE_WORDS_OF_COLUMNS
    while down > 1 and (height - 1) * down * registers[mode] > most:
        down //= 2
    if mode == KEYS and (down < 2 or vector < 2):
        mode = PAIRS
        while down > 1 and (height - 1) * down * registers[mode] > STATE_WORDS:
            down //= 2
    # Long turns move less about, but take long to compile: with taps more than three seconds.
    turn = 16 if height > 16 and mode == VALUES else 8
    batch, channels = problem.planes
    spans = in_plane_span(problem.sizes, (d, h, w)), in_plane_span(outputs, (yd, yh, yw))
    if layout == CHANNELS:
        vector = down
        group = max(1, SECTOR_BYTES // (vector * size))
        walk = walk_of_channels(
            batch, channels // vector, group, outputs[1], outputs[2], height, SHARED, turn, LINES_OF_KEYS
        )
        lines, planes, elements = LANES // (walk.width // SHARED * walk.group), batch, vector
        lengths = (channels // vector, *problem.sizes[1:], *outputs[1:])
        strides = (n // vector, 0, h // vector, w // vector, yn // vector, 0, yh // vector, yw // vector)
        spans = tuple(span + channels for span in spans)
    else:
        walk = walk_of_planes(prod(problem.planes), outputs[1], outputs[2], down, height, SHARED, turn, LINES_OF_KEYS)
        lines, planes, elements = LANES // (walk.width // SHARED * walk.group), batch * channels, 1
        lengths = (channels, problem.sizes[1], problem.sizes[2] // vector, outputs[1], outputs[2] // down)
        strides = (n // vector, c // vector, h // vector, 1, yn // down, yc // down, yh // down, 1)
    scratch = walk.scratch(turn, elements)
    if is_wide(axes, problem.sizes, outputs, walk.tasks, *spans):
        return None
    half = problem.floating and size == 2
    launch = EarlierLaunch(
        programs=walk.programs,
        sizes=(*walk, lines, planes, *lengths, *strides),
        constants={
            "KH": height, "KW": width, "PH": axes.start[1], "PW": axes.start[2], "R": SHARED, "M": turn, "V": vector,
            "DOWN": down, "B": LANES, "LAYOUT": layout, "MODE": mode,
            "WIDEN": (half and mode == PAIRS) or (mode == VALUES and compared_as_float32(problem)),
            "ASM": problem.target in CUDA and problem.floating and size <= 4 and mode != VALUES,
        },
    )  # fmt: skip
    return Pass("max_walk", launch, prod((*problem.planes, *outputs)), prod(axes.window), scratch=scratch)


def scratch_type(launch: EarlierLaunch, dtype: str) -> str:
    """The type of what a walk writes in between: keys, or values as they are compared."""
    if launch.constants["MODE"] == KEYS:
        return "int32"
    return "float32" if launch.constants["WIDEN"] else dtype
