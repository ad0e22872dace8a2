"""How max pooling is launched: pure functions of the problem."""

from __future__ import annotations

from functools import lru_cache
from math import gcd, prod
from typing import Any, Literal, NamedTuple

from .launch import (
    LANES_ENOUGH,
    NO_AXES,
    Axes,
    Launch,
    divided,
    five_strides,
    in_plane_span,
    is_wide,
    three_axes,
    three_sizes,
    vector_width,
    widest_bin,
)

With = Literal["values", "taps", "plane indices", "indices"]
Layout = Literal["columns", "channels", "any"]
Five = tuple[int, int, int, int, int]
Three = tuple[int, int, int]

# Comparisons in a lane's straight-line code: more take longer than 3 s to compile.
FORWARD_STEPS = {"values": 480, "taps": 360, "plane indices": 360, "indices": 360}
CHANNEL_STEP = 5  # what a step on vectors of 8 channels costs the compiler, compared with one on columns
SHORT_CHANNEL_STEP = 3  # the same for at most 4 channels
EXTENT = 64  # positions that one unrolled window may span


class Request(NamedTuple):
    """What a max pooling, its gradient or a look-up of taps is asked for; shapes and strides as PyTorch has them."""

    window: Any  # None for adaptive bins
    shape: tuple[int, ...]  # of the input, or of its gradient
    strides: tuple[int, ...]
    outputs: tuple[int, ...]  # shape of values and taps, or of their gradient
    output_strides: tuple[int, ...]
    tap_strides: tuple[int, ...]
    element_size: int
    aligned: bool
    asm: bool = False


class MaxProblem(NamedTuple):
    """The same over five dimensions."""

    axes: Axes
    rank: int
    planes: tuple[int, int]  # N, C
    sizes: Three
    outputs: Three
    strides: Five  # of the input, or of its gradient
    output_strides: Five  # of values and taps, or of their gradient
    tap_strides: Five
    element_size: int
    aligned: bool  # the tensors that are read begin at multiples of 16 bytes
    asm: bool  # a floating type of at most 4 bytes, on a device that runs PTX from sm_80 on


class Pass(NamedTuple):
    """One launch of a sequence; each reads what the one before has written, and the last writes the result."""

    launch: Launch
    elements: int  # of its result


def problem_of(request: Request) -> MaxProblem:
    shape, outputs = request.shape, request.outputs
    return MaxProblem(
        NO_AXES if request.window is None else three_axes(request.window),
        len(shape) - 2,
        shape[:2],
        three_sizes(shape[2:]),
        three_sizes(outputs[2:]),
        five_strides(shape, request.strides),
        five_strides(outputs, request.output_strides),
        five_strides(outputs, request.tap_strides),
        *request[-3:],
    )


@lru_cache(maxsize=4096)
def max_passes(request: Request, with_: With) -> tuple[Pass, ...]:
    """The kernels of a max pooling.

    | window | kernel |
    |---|---|
    | within FORWARD_STEPS comparisons when unrolled | max_tile: values, taps or indices at once |
    | any other, and adaptive bins | max_axis along one axis after the other, innermost first |

    Beside values max_axis writes taps, of bins positions; ``at_taps`` makes indices of taps.
    """
    problem = problem_of(request)
    if request.window is None:
        return axis_passes(problem, with_taps=True, bins=True)
    layout, vector = max_layout(problem)
    block = max_block(problem, layout, vector, with_)
    if block is None:
        return axis_passes(problem, with_taps=with_ != "values", bins=False)
    return (_max_tile(problem, layout, block, with_),)


def max_layout(problem: MaxProblem) -> tuple[Layout, int]:
    """How lanes read the input, and the elements of their vectors."""
    n, c, d, h, w = problem.strides
    if problem.output_strides[1] == 1 and c == 1:
        # A stride of 0 means an axis of one element, which any vector length divides.
        return "channels", vector_width(problem.element_size, problem.aligned, problem.planes[1], n, d, h, w)
    if w == 1 and problem.output_strides[4] <= 1:
        vector = vector_width(problem.element_size, problem.aligned, problem.sizes[2], n, c, d, h)
        if vector > 1:
            return "columns", vector
    return "any", 1


class Block(NamedTuple):
    """What one lane owns: rows and columns of outputs, and how many of them share a core."""

    rows: int
    columns: int
    groups: tuple[int, int]
    vector: int


def max_block(problem: MaxProblem, layout: Layout, vector: int, with_: With) -> Block | None:
    """The block of ``max_tile``; None where the window is too large for straight-line code.

    | layout | rows | columns |
    |---|---|---|
    | columns | 4 at stride 1, 2 at stride 2, 1 at others | a vector |
    | channels | as above where windows overlap; 8 of one byte | 2 where windows overlap; see ``channel_columns`` |
    | any | 8, 4, 1 | 1 |
    """
    axes, outputs = problem.axes, problem.outputs
    if max(*extents(axes), *axes.stride) > EXTENT:
        return None
    stride, steps = axes.stride[1], FORWARD_STEPS[with_]
    rows = ({1: 8, 2: 4} if layout == "any" else {1: 4, 2: 2}).get(stride, 1)
    columns = 1
    if axes.window[0] > 1:
        rows = min(rows, 2)
    if layout == "columns":
        columns = vector
    elif layout == "channels":
        columns, vector = channel_columns(axes, problem.element_size, vector, with_ != "values")
        steps //= SHORT_CHANNEL_STEP if vector <= 4 else CHANNEL_STEP
        rows = 8 if vector > 4 and problem.element_size == 1 and rows == 4 else rows
        rows = rows if stride < axes.window[1] else 1
    row_of_lane = columns if layout == "columns" else columns * vector
    while rows > 1 and (
        rows >= 2 * outputs[1]
        or _steps(axes, rows, columns) > steps
        or prod((*problem.planes, *outputs)) < LANES_ENOUGH * rows * row_of_lane
    ):
        rows //= 2
    while layout == "columns" and columns > 4 and _steps(axes, rows, columns) > steps:
        columns = vector = vector // 2
    if _steps(axes, rows, columns) > steps:
        return None
    return Block(rows, columns, (_sharing(rows, axes, 1), _sharing(columns, axes, 2)), vector)


def channel_columns(axes: Axes, element_size: int, vector: int, with_taps: bool) -> tuple[int, int]:
    """Columns of a lane and channels of its vectors: registers limit both.

    | window at stride 1 | values | with taps |
    |---|---|---|
    | 2 to 4 | 2 columns, at most 8 channels | 2 columns, 4 of less than four bytes; 4 channels |
    | 5, 6 | 2 columns, 4 of less than four bytes; 4 channels | 4 columns, 2 channels |
    | 7 | the same | 2 columns, 2 channels |
    | above, or another stride | 2 columns where windows overlap; 8 channels | the same; 4 channels |
    """
    window, stride = axes.window[2], axes.stride[2]
    columns = 2 if stride < window else 1
    large = stride == 1 and 5 <= window <= 7
    vector = gcd(vector, 2 if with_taps and large else 4 if with_taps or large else 8)
    if stride == 1 and (1 < window < 7 if with_taps else large) and (element_size < 4 or (with_taps and large)):
        columns = 4
    return columns, vector


def extents(axes: Axes) -> list[int]:
    return [(window - 1) * dilation + 1 for window, dilation in zip(axes.window, axes.dilation, strict=True)]


def _sharing(outputs: int, axes: Axes, axis: int) -> int:
    """How many neighbouring windows best share a core: the most, as powers of 2 go, that have one in common."""
    group = 1
    if axes.dilation[axis] == 1:
        while outputs % (2 * group) == 0 and (2 * group - 1) * axes.stride[axis] < axes.window[axis]:
            group *= 2
    return group


def _steps(axes: Axes, rows: int, columns: int) -> int:
    """Comparisons in the straight-line code of a lane that owns ``rows`` by ``columns`` outputs."""

    def along(outputs: int, axis: int) -> int:
        group = _sharing(outputs, axes, axis)
        return outputs // group * (axes.window[axis] - 1 + max(0, (group - 1) * (axes.stride[axis] + 1) - (group > 1)))

    taps, stride, dilation = axes.window[1], axes.stride[1], axes.dilation[1]
    rows_read = len({row * stride + tap * dilation for row in range(rows) for tap in range(taps)})
    return axes.window[0] * (rows_read * along(columns, 2) + columns * along(rows, 1))


def in_units(strides: Five, unit: int, *, but: int | None = None) -> Five:
    """Strides that count vectors of ``unit``, all but one."""
    return tuple(stride if i == but else stride // unit for i, stride in enumerate(strides))  # type: ignore[return-value]


def _max_tile(problem: MaxProblem, layout: Layout, block: Block, with_: With) -> Pass:
    axes, outputs, vector = problem.axes, problem.outputs, block.vector
    channels, width, out_width, store = problem.planes[1], problem.sizes[2], outputs[2], vector
    strides, output_strides = problem.strides, problem.output_strides
    in_plane = in_plane_span(problem.sizes, strides[2:]), in_plane_span(outputs, output_strides[2:])
    if layout == "channels":
        channels //= vector
        strides, output_strides = (in_units(s, vector, but=1) for s in (strides, output_strides))
        in_plane = tuple(span + channels * vector for span in in_plane)
    elif layout == "columns":
        store = gcd(vector, out_width)
        width, out_width = width // vector, out_width // store
        strides, output_strides = in_units(strides, vector), in_units(output_strides, store)
    lanes = prod((problem.planes[0], channels, outputs[0]))
    lanes *= divided(outputs[1], block.rows) * divided(outputs[2], block.columns)
    constants = {
        "WINDOW": axes.window, "STRIDE": axes.stride, "START": axes.start, "DILATION": axes.dilation,
        "RANK": problem.rank, "R": block.rows, "Q": block.columns, "GROUPS": block.groups, "LAYOUT": layout,
        "V": vector, "STORE": store, "WITH": with_,
        "EMPTY": with_ != "values" and has_empty_window(axes, problem.sizes, outputs),
        "ASM": with_ != "values" and problem.asm,
        "WIDE": is_wide(axes, problem.sizes, outputs, lanes, *in_plane),
    }  # fmt: skip
    sizes = (lanes, channels, *problem.sizes[:2], width, *outputs[:2], out_width, *strides, *output_strides)
    launch = Launch.of_lanes("max_pooling.max_tile", lanes, sizes, constants)
    return Pass(launch, prod((*problem.planes, *outputs)))


def has_empty_window(axes: Axes, sizes: Three, outputs: Three) -> bool:
    """Whether some window reads no element: before the input, past it, or stepping over all of it."""
    return any(
        (window - 1) * dilation < start or (output - 1) * stride - start >= size or (window > 1 and dilation > size)
        for size, output, window, stride, start, _, dilation in zip(sizes, outputs, *axes, strict=True)
    )


def memory_order(strides: Five) -> tuple[int, ...]:
    """Axes of a dense (N, C, D, H, W) result, slowest first: channels innermost or contiguous."""
    return (0, 2, 3, 4, 1) if strides[1] == 1 else (0, 1, 2, 3, 4)


def dense(shape: tuple[int, ...], order: tuple[int, ...]) -> Five:
    """Strides of a dense tensor of ``shape`` whose axes lie in memory in ``order``."""
    strides, step = [0] * 5, 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)  # type: ignore[return-value]


def pooled_axes(axes: Axes, sizes: Three, outputs: Three) -> list[int]:
    """The axes along which a window does anything at all; at least one."""
    rows = zip(sizes, outputs, *axes[:4], strict=True)
    return [i for i, row in enumerate(rows) if row[2:] != (1, 1, 0, 0) or row[0] != row[1]] or [2]


def axis_passes(problem: MaxProblem, *, with_taps: bool, bins: bool) -> tuple[Pass, ...]:
    """``max_axis`` along each axis, innermost first, so that of equal maxima the first row's first column wins.

    ``bins``: adaptive bins of any sizes instead of windows (``problem.axes`` is not read), and numbers are positions.
    """
    axes, outputs = problem.axes, problem.outputs
    order = memory_order(problem.output_strides)
    shape = (*problem.planes, *problem.sizes)
    strides, aligned = problem.strides, problem.aligned
    if bins:
        pooled = [axis for axis in (2, 1, 0) if problem.sizes[axis] > 1 or outputs[axis] > 1] or [2]
    else:
        pooled = pooled_axes(axes, problem.sizes, outputs)[::-1]
    passes = []
    below = 1
    for axis in pooled:
        first, last = axis == pooled[0], axis == pooled[-1]
        window, stride, start, _, dilation = (field[axis] for field in axes) if not bins else (1, 1, 0, 0, 1)
        size, count = problem.sizes[axis], outputs[axis]
        result = (*shape[: 2 + axis], count, *shape[3 + axis :])
        result_strides = problem.output_strides if last else dense(result, order)
        others = [i for i in order if i != 2 + axis]
        vector = 1
        if order[-1] != 2 + axis and strides[others[-1]] == 1 and result_strides[others[-1]] == 1:
            used = [s[i] for s in (strides, result_strides) for i in (*others[:-1], 2 + axis)]
            vector = vector_width(problem.element_size, aligned, shape[others[-1]], *used)
        lengths = [shape[i] for i in others]
        lengths[-1] //= vector
        rows = 1 if bins else shared_rows(window, stride, dilation, count)
        while rows > 1 and prod(lengths) * divided(count, rows) < LANES_ENOUGH:
            rows //= 2
        lanes = prod(lengths) * divided(count, rows)
        bound = widest_bin(size, count) if bins else min(window, divided(size, dilation))
        one = Axes(*((value,) for value in (window, stride, start, 0, dilation)))  # type: ignore[arg-type]
        spans = lanes, (size + window) * strides[2 + axis], count * result_strides[2 + axis]
        constants = {
            "K": window, "S": stride, "P": start, "J": dilation, "BINS": bins, "FIRST": first, "LAST": last,
            "AXIS_INNERMOST": order[-1] == 2 + axis, "R": rows, "V": vector, "WITH_TAPS": with_taps,
            "WIDE": is_wide(one, (size,), (count,), *spans, (size + 1) * (count + 1) if bins else 0),
        }  # fmt: skip
        runtime = (
            lanes, *lengths[1:], size, count, bound, below,
            *(s[i] if i == others[-1] else s[i] // vector
              for s in (strides, result_strides) for i in (*others, 2 + axis)),
        )  # fmt: skip
        below *= size if bins else window
        launch = Launch.of_lanes("max_pooling_axis.max_axis", lanes, runtime, constants)
        passes.append(Pass(launch, prod(result)))
        shape, strides, aligned = result, result_strides, True
    return tuple(passes)


def shared_rows(window: int, stride: int, dilation: int, outputs: int) -> int:
    """Outputs of one lane along a looped axis: as many as leave a common core, up to 8 (more need 128 registers)."""
    rows = 8
    while rows > 1 and (dilation > 1 or (rows - 1) * stride >= window or rows * stride > 16 or rows >= 2 * outputs):
        rows //= 2
    return rows
