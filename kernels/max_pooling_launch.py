"""How the max pooling kernels are launched: pure functions of the problem, as in ``launch``."""

from __future__ import annotations

from functools import lru_cache
from math import gcd, prod

from torch_dmlpool.kernels.launch import (
    CUDA,
    LANES,
    Axes,
    EarlierLaunch,
    divided,
    in_plane_span,
    is_wide,
    vector_width,
)
from torch_dmlpool.kernels.max_pooling_problem import (
    AXIS_CONSTANTS,
    CHANNELS,
    COLUMNS,
    INDICES,
    KEYED_BYTES,
    NO_TAPS,
    NOT_PACKED,
    PLANE_INDICES,
    SCALAR,
    TAPS,
    MaxProblem,
    Pass,
    compared_as_float32,
    dense,
    has_empty_window,
    max_vectors,
    memory_order,
    packed,
    pooled_axes,
    shared_by,
)
from torch_dmlpool.kernels.max_pooling_stream_launch import max_stream
from torch_dmlpool.kernels.max_pooling_walk_launch import max_walk

__all__ = ["INDICES", "NO_TAPS", "PLANE_INDICES", "TAPS", "MaxProblem", "max_passes", "tap_lookup"]

# Comparisons in one lane's straight-line code: more would take longer than 3 s to compile.
UNROLLED_STEPS = 480
UNROLLED_STEPS_WITH_TAPS = 360
CHANNEL_STEP = 5  # what a comparison of vectors costs the compiler, compared with one of columns
NUMBERS = 256  # positions that the lower half of a key tells apart
UNROLLED_EXTENT = 64  # positions one window may span unrolled: further apart, rows are walked over for nothing


def _positions_read(outputs: int, window: int, stride: int, dilation: int) -> int:
    """Different positions along one axis that ``outputs`` neighbouring windows read."""
    return len({output * stride + tap * dilation for output in range(outputs) for tap in range(window)})


def _unrolled_steps(axes: Axes, rows: int, columns: int) -> int:
    """Comparisons in the straight-line code of one lane that owns ``rows`` by ``columns`` outputs."""
    depth, height, width = axes.window
    rows_read = _positions_read(rows, height, axes.stride[1], axes.dilation[1])
    along = _comparisons(columns, width, axes.stride[2], axes.dilation[2])
    return depth * (rows_read * along + columns * _comparisons(rows, height, axes.stride[1], axes.dilation[1]))


def _comparisons(outputs: int, window: int, stride: int, dilation: int) -> int:
    """Comparisons for ``outputs`` neighbouring windows along one axis when groups of them share a core."""
    group = shared_by(outputs, window, stride, dilation)
    return outputs // group * (window - 1 + max(0, (group - 1) * (stride + 1) - (group > 1)))


def max_block(layout: int, vector: int, axes: Axes, outputs: tuple[int, int, int], steps: float) -> tuple[int, int]:
    """``(R, Q)``: rows and columns of outputs that one lane owns, within ``steps`` comparisons if possible."""
    # Rows below one another share what they read; four at stride 1 and two at stride 2 keep a lane below 128 registers.
    rows = {1: 4, 2: 2}.get(axes.stride[1], 1)
    if axes.window[0] > 1:
        rows = min(rows, 2)
    if layout == COLUMNS:
        columns = vector
    elif layout == CHANNELS:
        columns = 2 if axes.stride[2] < axes.window[2] else 1
        rows = rows if axes.stride[1] < axes.window[1] else 1
    else:
        # Single elements: only more rows per lane bring the loads per output down.
        rows, columns = {1: 8, 2: 4}.get(axes.stride[1], 1), 1
    while rows > 1 and (rows >= 2 * outputs[1] or _unrolled_steps(axes, rows, columns) > steps):
        rows //= 2
    return rows, columns


def max_windows(problem: MaxProblem, encode: int) -> EarlierLaunch | None:
    """The unrolled kernel's launch; None where the window is too large for straight-line code."""
    axes, outputs = problem.axes, problem.outputs
    extents = [(window - 1) * dilation + 1 for window, dilation in zip(axes.window, axes.dilation, strict=True)]
    if max(*extents, *axes.stride) > UNROLLED_EXTENT:
        return None
    allowed = UNROLLED_STEPS if encode == NO_TAPS else UNROLLED_STEPS_WITH_TAPS
    layout, vector = max_vectors(problem)
    if (launch := _packed_windows(problem, encode, layout, vector)) is not None:
        return launch
    if layout == COLUMNS:
        vector = gcd(vector, 8)  # sixteen columns of bytes would not stay in registers
    elif problem.element_size == 1:
        # Nor would sixteen channels, of several columns with taps or of many without.
        vector = gcd(vector, 4 if encode != NO_TAPS else 8 if max(axes.window[1:]) >= 7 else 16)
    half = problem.floating and problem.element_size == 2
    if layout == CHANNELS and half and encode != NO_TAPS and max(axes.window[1:]) >= 5:
        vector = gcd(vector, 4)  # eight float32 values and codes for each of the block's columns would not fit
    # Every step on [B, V] vectors becomes V instructions for the compiler to place.
    steps = allowed / CHANNEL_STEP if layout == CHANNELS else allowed
    rows, columns = max_block(layout, vector, axes, outputs, steps)
    while layout == COLUMNS and vector > 4 and _unrolled_steps(axes, rows, columns) > steps:
        vector //= 2
        rows, columns = max_block(layout, vector, axes, outputs, steps)
    if _unrolled_steps(axes, rows, columns) > steps:
        return None
    group = shared_by(columns, axes.window[2], axes.stride[2], axes.dilation[2])
    if layout == COLUMNS and vector >= 8 and encode == NO_TAPS:
        # Values of two bytes are packed; larger blocks and, for some windows, wider sharing make the assembler spill.
        rows = min(rows, 1 if axes.stride[1] > 1 else 2 if axes.dilation[2] > 1 else 4)
        group = min(group, {3: 1, 7: 2}.get(axes.window[2], group))
    # Codes past 2²³ would not fit beside a float32; windows that large are not unrolled.
    asm = problem.target in CUDA and problem.floating and problem.element_size <= 4 and encode != NO_TAPS
    # With taps float32 is the cheaper comparison.
    widened = half and (encode != NO_TAPS or compared_as_float32(problem))
    return _windows(problem, encode, layout, vector, rows, columns, group, NOT_PACKED, asm, widened)


def _packed_windows(problem: MaxProblem, encode: int, layout: int, vector: int) -> EarlierLaunch | None:
    """The same with two numbers to a word; None where they are not packed, or the window is too large."""
    axes, outputs = problem.axes, problem.outputs
    packing, vector = packed(problem, encode, layout, vector)
    if packing == NOT_PACKED:
        return None
    if layout == CHANNELS and encode in (PLANE_INDICES, INDICES):
        vector = gcd(vector, 8)  # so many indices of 64 bits as still fit
    half = vector // 2
    steps = UNROLLED_STEPS / CHANNEL_STEP if layout == CHANNELS else UNROLLED_STEPS
    rows, columns = max_block(layout, half, axes, outputs, steps)
    while layout == COLUMNS and half * problem.element_size > 4 and _unrolled_steps(axes, rows, columns) > steps:
        half //= 2
        rows, columns = max_block(layout, half, axes, outputs, steps)
    while packing == KEYED_BYTES and rows > 1 and _numbers(axes, rows, columns) > NUMBERS:
        rows //= 2
    too_many = packing == KEYED_BYTES and _numbers(axes, rows, columns) > NUMBERS
    if too_many or _unrolled_steps(axes, rows, columns) > steps:
        return None
    group = shared_by(columns, axes.window[2], axes.stride[2], axes.dilation[2])
    asm = problem.target in CUDA
    return _windows(problem, encode, layout, 2 * half, rows, columns, group, packing, asm, False)


def _numbers(axes: Axes, rows: int, columns: int) -> int:
    """How many positions of a lane's block are told apart: a row of them is the window's width further."""
    _, height, width = axes.window
    return ((rows - 1) * axes.stride[1] + height - 1) * width + (columns - 1) * axes.stride[2] + width


def _windows(
    problem: MaxProblem, encode: int, layout: int, vector: int, rows: int, columns: int, group: int, packing: int,
    asm: bool, widened: bool,
) -> EarlierLaunch:  # fmt: skip
    """The launch of lanes that own ``rows`` rows by ``columns`` columns, or pairs of columns."""
    axes, outputs = problem.axes, problem.outputs
    whole = layout != COLUMNS or outputs[2] % vector == 0
    n, c, d, h, w = problem.strides
    yn, yc, yd, yh, yw = problem.output_strides
    channels, width = problem.planes[1], problem.sizes[2]
    if layout == CHANNELS:
        channels //= vector
        strides = (n // vector, c, d // vector, h // vector, w // vector)
        out_strides = (yn // vector, yc, yd // vector, yh // vector, yw // vector)
        groups = problem.planes[0] * channels
        wide_spans = (
            in_plane_span(problem.sizes, (d, h, w)) + channels * vector,
            in_plane_span(outputs, (yd, yh, yw)) + channels * vector,
        )
    else:
        width //= vector
        strides = (n // vector, c // vector, d // vector, h // vector, w)
        unit = vector if whole else 1
        out_strides = (yn // unit, yc // unit, yd // unit, yh // unit, yw)
        groups = problem.planes[0] * channels
        wide_spans = in_plane_span(problem.sizes, (d, h, w)), in_plane_span(outputs, (yd, yh, yw))
    across = vector if layout == COLUMNS else columns
    lanes = groups * outputs[0] * divided(outputs[1], rows) * divided(outputs[2], across)
    return EarlierLaunch(
        programs=divided(lanes, LANES),
        sizes=(lanes, channels, *problem.sizes[:2], width, *outputs, *strides, *out_strides),
        constants=dict(
            zip(AXIS_CONSTANTS, (*axes.window, *axes.stride, *axes.start, *axes.dilation), strict=True),
            RANK=problem.rank,
            R=rows,
            Q=columns,
            GROUP=group,
            STREAM=rows > 1 and shared_by(rows, axes.window[1], axes.stride[1], axes.dilation[1]) == rows,
            V=vector,
            B=LANES,
            LAYOUT=layout,
            WIDE=is_wide(axes, problem.sizes, outputs, lanes, *wide_spans),
            WIDEN=widened,
            ASM=asm,
            WITH=encode,
            EMPTY=encode != NO_TAPS and has_empty_window(axes, problem.sizes, outputs),
            WHOLE_VECTORS=whole,
            PACKED=packing,
        ),
    )


def max_axes(problem: MaxProblem, with_taps: bool) -> tuple[Pass, ...]:
    """One pass per axis, innermost first, so that of equal maxima the first row's first column is kept."""
    order = memory_order(problem.output_strides)
    shape = (*problem.planes, *problem.sizes)
    strides, aligned = problem.strides, problem.aligned
    pooled = pooled_axes(problem.axes, problem.sizes, problem.outputs)[::-1]
    passes = []
    below = 1
    for axis in pooled:
        first, last = axis == pooled[0], axis == pooled[-1]
        window, stride, start, _, dilation = (field[axis] for field in problem.axes)
        size, outputs = problem.sizes[axis], problem.outputs[axis]
        result = (*shape[: 2 + axis], outputs, *shape[3 + axis :])
        result_strides = problem.output_strides if last else dense(result, order)
        others = [i for i in order if i != 2 + axis]
        innermost = order[-1] == 2 + axis
        vector = 1
        if not innermost and strides[others[-1]] == 1 and result_strides[others[-1]] == 1:
            used = [strides[i] for i in (*others[:-1], 2 + axis)] + [
                result_strides[i] for i in (*others[:-1], 2 + axis)
            ]
            vector = vector_width(problem.element_size, aligned, shape[others[-1]], *used)
        rows = shared_rows(window, stride, dilation, outputs)
        lengths = [shape[i] for i in others]
        lengths[-1] //= vector
        lanes = prod(lengths) * divided(outputs, rows)
        one = Axes(*((value,) for value in (window, stride, start, 0, dilation)))  # type: ignore[arg-type]
        launch = EarlierLaunch(
            programs=divided(lanes, LANES),
            sizes=(
                lanes, *lengths[1:], size, outputs, min(window, divided(size, dilation)),
                *_in_vectors(strides, others, 2 + axis, vector), *_in_vectors(result_strides, others, 2 + axis, vector),
            ),
            constants={
                "K": window, "S": stride, "P": start, "J": dilation, "BELOW": below, "FIRST": first, "LAST": last,
                "AXIS_INNERMOST": innermost, "R": rows, "V": vector, "B": LANES,
                "WIDE": is_wide(
                    one, (size,), (outputs,), lanes, size * strides[2 + axis], outputs * result_strides[2 + axis]
                ),
                "WIDEN": compared_as_float32(problem), "WITH_TAPS": with_taps,
            },
        )  # fmt: skip
        below *= window
        passes.append(
            Pass(
                "max_axis",
                launch,
                prod(result),
                below,
                loads=(1 + (with_taps and not first)) * (window - (rows - 1) * stride),
            )
        )
        shape, strides, aligned = result, result_strides, True
    return tuple(passes)


def _in_vectors(strides: tuple[int, ...], others: list[int], axis: int, vector: int) -> tuple[int, ...]:
    """Strides of the four other axes and of the pooled one, all but the last other's in vectors."""
    return *(strides[i] // vector for i in others[:-1]), strides[others[-1]], strides[axis] // vector


def shared_rows(window: int, stride: int, dilation: int, outputs: int) -> int:
    """Outputs of one lane along a looped axis: as many as leave a common core, up to 8 (more need 128 registers)."""
    rows = 8
    while rows > 1 and (dilation > 1 or (rows - 1) * stride >= window or rows * stride > 16 or rows >= 2 * outputs):
        rows //= 2
    return rows


LOOKED_UP = 16  # outputs that a lane decodes: where one lies is found once, by three divisions
STRIP_PROGRAMS = 396  # as many programs of up to 170 registers as run at a time: 3 on each of 132 SMs
STRIP_WINDOW = 11  # taps along each axis; smaller windows cost less unrolled
STRIP_ROWS = 128  # rows of a strip: a program's scratch stays in the second-level cache, the rows shared stay few


def max_strips(problem: MaxProblem) -> Pass | None:
    """One launch for a large two-dimensional window at stride 1 over contiguous rows; None for anything else."""
    axes, outputs = problem.axes, problem.outputs
    layout, vector = max_vectors(problem)
    height, width = axes.window[1:]
    rows = 16 if height > 16 else 8
    fits = layout == COLUMNS and problem.rank == 2
    while fits and vector > 1 and (outputs[2] % vector or width < 2 * vector):
        vector //= 2
    dense = axes.stride == (1, 1, 1) == axes.dilation
    if not fits or not dense or vector < 2 or min(height, width) < STRIP_WINDOW:
        return None
    per_plane = divided(outputs[1], STRIP_ROWS)
    strip = divided(outputs[1], per_plane)
    strips = prod(problem.planes) * per_plane
    programs = min(strips, STRIP_PROGRAMS)
    n, c, _, h, _ = problem.strides
    yn, yc, _, yh, _ = problem.output_strides
    own = (strip + height - 1) * outputs[2]
    spans = in_plane_span(problem.sizes, problem.strides[2:]), in_plane_span(outputs, problem.output_strides[2:])
    if is_wide(axes, problem.sizes, outputs, strips, own, *spans):
        return None
    launch = EarlierLaunch(
        programs=programs,
        sizes=(
            strips, programs, problem.planes[1], problem.sizes[1], problem.sizes[2] // vector, outputs[1],
            outputs[2] // vector, per_plane, strip,
            *(stride // vector for stride in (n, c, h, yn, yc, yh)),
        ),
        constants={
            "KH": height, "KW": width, "PH": axes.start[1], "PW": axes.start[2], "R": rows, "V": vector, "B": LANES,
            "WIDEN": compared_as_float32(problem),
        },
    )  # fmt: skip
    return Pass("max_strips", launch, prod((*problem.planes, *outputs)), prod(axes.window), scratch=programs * own)


# Rows of a window above which to walk for taps and to decode them costs less than to find indices unrolled.
_TALLEST_WITH_INDICES = {SCALAR: 9, COLUMNS: 9, CHANNELS: 5}


@lru_cache(maxsize=4096)
def max_passes(problem: MaxProblem, encode: int) -> tuple[Pass, ...]:
    """The launches of a max pooling: a walk in registers or with scratch, strips for values alone, or passes."""
    tall = problem.axes.window[1] > _TALLEST_WITH_INDICES[max_vectors(problem)[0]]
    one = max_stream(problem, TAPS if tall and encode in (PLANE_INDICES, INDICES) else encode)
    if one is None and encode == NO_TAPS:
        one = max_strips(problem)
    if one is not None:
        return (one,)
    launch = max_windows(problem, encode)
    if launch is None and (one := max_walk(problem, encode)) is not None:
        return (one,)
    if launch is None:
        return max_axes(problem, encode != NO_TAPS)
    elements, taps = prod((*problem.planes, *problem.outputs)), prod(problem.axes.window)
    return (Pass("max_windows", launch, elements, taps),)


@lru_cache(maxsize=4096)
def tap_lookup(
    axes: Axes,
    planes: tuple[int, int],
    sizes: tuple[int, int, int],
    outputs: tuple[int, int, int],
    strides: tuple[int, ...],
    tap_strides: tuple[int, ...],
    result_strides: tuple[int, ...],
    encode: int,
) -> EarlierLaunch:
    """What taps point at: elements (``NO_TAPS``) or indices."""
    channels_innermost = result_strides[1] == 1
    innermost = 1 if channels_innermost else 4
    others = [stride for steps in (tap_strides, result_strides) for i, stride in enumerate(steps) if i != innermost]
    vector = 1
    if tap_strides[innermost] == result_strides[innermost] == 1:
        vector = gcd(LOOKED_UP, planes[1] if channels_innermost else outputs[2], *others)
    lanes = prod((*planes, *outputs)) // vector
    spans = (in_plane_span(lengths, steps[2:]) for lengths, steps in (
        (sizes, strides), (outputs, tap_strides), (outputs, result_strides)))  # fmt: skip
    return EarlierLaunch(
        programs=divided(lanes, LANES),
        sizes=(
            lanes,
            planes[1],
            *sizes,
            *outputs,
            *strides,
            *(stride if i == innermost else stride // vector for i, stride in enumerate(tap_strides)),
            *(stride if i == innermost else stride // vector for i, stride in enumerate(result_strides)),
        ),
        constants=dict(
            zip(AXIS_CONSTANTS, (*axes.window, *axes.stride, *axes.start, *axes.dilation), strict=True),
            WITH=encode,
            EMPTY=has_empty_window(axes, sizes, outputs),
            CHANNELS_INNERMOST=channels_innermost,
            V=vector,
            B=LANES,
            WIDE=is_wide(axes, sizes, outputs, lanes, prod(sizes), *spans),
            RANK=3 if outputs[0] > 1 else 2,
        ),
    )
