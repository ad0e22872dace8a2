"""When and how the walk down the rows is launched: pure functions of the problem, as in ``launch``."""

from __future__ import annotations

from math import gcd, prod

from torch_dmlpool.kernels.launch import (
    CUDA,
    LANES,
    EarlierLaunch,
    divided,
    in_plane_span,
    is_wide,
    rows_of_lane,
    vector_width,
)
from torch_dmlpool.kernels.max_pooling_problem import (
    CHANNELS,
    COLUMNS,
    INTEGERS,
    NO_TAPS,
    NOT_PACKED,
    TAPS,
    MaxProblem,
    Pass,
    compared_as_float32,
    has_empty_window,
    max_vectors,
    packed,
    shared_by,
)

VALUES, PAIRS, KEYS = 0, 1, 2  # what travels; the same numbers as in kernels/max_pooling_stream.py
SMALLEST_WINDOW = {VALUES: 6, PAIRS: 4, KEYS: 3}  # rows; below, the unrolled kernel is as good
LARGEST_WINDOW = 16  # rows and columns: more rows would not stay in registers, more columns take long to compile
STATE_REGISTERS = {COLUMNS: 200, CHANNELS: 190}  # by the estimate below; the compiler needs up to a quarter more


def _mode(problem: MaxProblem, encode: int) -> int:
    """Keys for 16-bit numbers where their inline assembly (or the interpreter) is at hand."""
    if encode == NO_TAPS:
        return VALUES
    keys = problem.floating and problem.element_size == 2 and problem.target in (*CUDA, "interpreter")
    return KEYS if keys and prod(problem.axes.window) <= 225 else PAIRS


def _lane(problem: MaxProblem, mode: int, layout: int, vector: int, packing: int) -> tuple[int, int] | None:
    """``(V, Q)``: elements per vector and columns per lane; None where they do not fit."""
    height, width = problem.axes.window[1:]
    size, columns = problem.element_size, problem.outputs[2]
    if packing != NOT_PACKED:
        return _packed_lane(problem, layout, vector)
    if mode == VALUES and compared_as_float32(problem):
        size = 4
    if layout == COLUMNS:
        vector = gcd(vector, 8, columns)
        each = {VALUES: max(1, size // 4), PAIRS: max(1, size // 4) + 1, KEYS: 1}[mode]
        if mode == KEYS and vector < 4:
            return None
        if size > problem.element_size and height > 11:
            vector = gcd(vector, 4)  # eight columns of float32 each leave no room for a tall window's rows
        fits = ((height - 1) * vector + 3 * (vector + width - 1) // 2) * each + 30 <= STATE_REGISTERS[layout]
        return (vector, vector) if fits else None
    # Short vectors of channels and many columns: neighbouring windows share more than neighbouring channels.
    wanted = {VALUES: 8 // size, PAIRS: 2 if size <= 4 else 1, KEYS: 4 if height <= 5 else 2}[mode]
    vector = gcd(vector, wanted)
    if mode == KEYS and vector == 1:
        return None
    each = {VALUES: size / 4, PAIRS: max(1, size // 4) + 1, KEYS: 1}[mode] * vector
    for q in (8, 4, 2):
        registers = (height - 1) * q * each + 1.5 * (q + width - 1) * each + 30
        if q <= columns and q * vector <= 16 and registers <= STATE_REGISTERS[layout]:
            return vector, q
    return None


def _packed_lane(problem: MaxProblem, layout: int, vector: int) -> tuple[int, int] | None:
    """The same where two numbers travel in a word: Q words of a row, or Q columns of V / 2 words."""
    height, width = problem.axes.window[1:]
    least = 4 // problem.element_size  # a word
    while vector >= least:
        for q in (vector // 2,) if layout == COLUMNS else (8, 4, 2):
            words = q if layout == COLUMNS else q * vector // 2
            registers = (height - 1) * words + 1.5 * words * (q + width - 1) / q + 30
            enough = layout == COLUMNS or (q <= problem.outputs[2] and words <= 16)
            if enough and registers <= STATE_REGISTERS[layout]:
                return vector, q
        vector //= 2
    return None


def _turn(window: int, mode: int, layout: int, packing: int) -> int:
    """Rows per turn: as many as the longest memory of the growing blocks keeps, so that nothing is moved."""
    ways, size, longest = 3 if mode == KEYS or packing == INTEGERS else 2, 1, 1
    while size < window:
        grown = min(ways * size, window)
        longest, size = max(longest, grown - size), grown
    if mode == VALUES and layout == COLUMNS and packing == NOT_PACKED:
        return 4  # shorter turns of packed halves make the assembler spill
    # Twice the keys of each channel are as much code as compiles within three seconds.
    return min(longest, 2 if mode == KEYS and layout == CHANNELS else 4)


def max_stream(problem: MaxProblem, encode: int) -> Pass | None:
    """The walk down the rows for windows at stride 1; None for anything else."""
    axes, outputs = problem.axes, problem.outputs
    if problem.rank != 2 or axes.stride != (1, 1, 1) or axes.dilation != (1, 1, 1) or encode not in (NO_TAPS, TAPS):
        return None
    mode = _mode(problem, encode)
    height, width = axes.window[1:]
    if not height <= LARGEST_WINDOW or not 2 <= width <= LARGEST_WINDOW:
        return None
    if encode == TAPS and has_empty_window(axes, problem.sizes, outputs):
        return None
    layout, vector = max_vectors(problem)
    n, c, d, h, w = problem.strides
    yn, yc, yd, yh, yw = problem.output_strides
    if layout != CHANNELS:
        if w != 1 or yw > 1:
            return None
        layout = COLUMNS
        vector = vector_width(problem.element_size, problem.aligned, problem.sizes[2], n, c, h)
    packing = NOT_PACKED
    if mode == VALUES:
        packing, vector = packed(problem, encode, layout, vector)
    small_integers = not problem.floating and problem.element_size <= 2
    if height < (3 if packing != NOT_PACKED else SMALLEST_WINDOW[mode]) or (small_integers and packing == NOT_PACKED):
        return None
    chosen = _lane(problem, mode, layout, vector, packing)
    if chosen is None:
        return None
    vector, across = chosen
    channels, columns = problem.planes[1], problem.sizes[2]
    in_plane = in_plane_span(problem.sizes, (d, h, w)), in_plane_span(outputs, (yd, yh, yw))
    if layout == CHANNELS:
        channels //= vector
        strips = divided(outputs[2], across)
        spans = [span + channels * vector for span in in_plane]
        strides = (n // vector, 0, h // vector, w // vector, yn // vector, 0, yh // vector, yw // vector)
        out_columns = outputs[2]
    else:
        strips = out_columns = outputs[2] // vector
        columns //= vector
        spans = list(in_plane)
        strides = (n // vector, c // vector, h // vector, 1, yn // vector, yc // vector, yh // vector, 1)
    turn = _turn(height, mode, layout, packing)
    lanes_of_one = problem.planes[0] * channels * strips
    rows = rows_of_lane(outputs[1], height, turn, lanes_of_one)
    lanes = lanes_of_one * divided(outputs[1], rows)
    if is_wide(axes, problem.sizes, outputs, lanes, *spans):
        return None
    half = problem.floating and problem.element_size == 2
    group = shared_by(across, width, 1, 1)
    if layout == COLUMNS and vector >= 8 and mode == VALUES:
        group = min(group, {3: 1, 7: 2}.get(width, group))  # wider sharing unpacks the halves
    launch = EarlierLaunch(
        programs=divided(lanes, LANES),
        sizes=(lanes, channels, problem.sizes[1], columns, outputs[1], out_columns, rows, *strides),
        constants={
            "KH": height, "KW": width, "PH": axes.start[1], "PW": axes.start[2], "M": turn, "Q": across,
            "GROUP": group, "V": vector, "B": LANES, "LAYOUT": layout, "MODE": mode,
            "WIDEN": (half and mode == PAIRS)
            or (mode == VALUES and packing == NOT_PACKED and compared_as_float32(problem)),
            "ASM": problem.target in CUDA
            and (packing != NOT_PACKED or (problem.floating and problem.element_size <= 4 and mode != VALUES)),
            "PACKED": packing,
        },
    )  # fmt: skip
    reads = across + width - 1
    if layout == COLUMNS:
        reads = (vector + width - 2 - axes.start[2]) // vector - (-axes.start[2] // vector) + 1
    return Pass(
        "max_stream", launch, prod((*problem.planes, *outputs)), height * width, loads=(rows + height - 1) * reads
    )
