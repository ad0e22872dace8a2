"""How the gradient kernels of max pooling are launched: pure functions of the problem, as in ``launch``."""

from __future__ import annotations

from functools import lru_cache
from math import gcd, prod

from torch_dmlpool.kernels.launch import (
    CUDA,
    LANES,
    Axes,
    EarlierLaunch,
    covering,
    divided,
    in_plane_span,
    is_wide,
    rows_of_lane,
    vector_width,
)
from torch_dmlpool.kernels.max_pooling_problem import (
    AXIS_CONSTANTS,
    CHANNELS,
    COLUMNS,
    SCALAR,
    GradProblem,
    Pass,
    dense,
    memory_order,
    pooled_axes,
)

CHANNEL_STEP = 5  # what a conditional addition of vectors costs the compiler, compared with one of columns
UNROLLED_EXTENT = 64  # positions one window may span unrolled: further apart, rows are walked over for nothing
GATHERED_TERMS = 12  # windows per input above which two passes, up the rows and then along them, read less
GATHERED_STEPS = 512  # conditional additions in a lane's straight-line code; more take longer than 3 s to compile


@lru_cache(maxsize=4096)
def grad_passes(problem: GradProblem) -> tuple[Pass, ...]:
    """The launches that serve a gradient of max pooling: one unrolled, or one per axis."""
    words = grad_words(problem)
    if words is not None:
        return (words,)
    launch = _grad_windows(problem)
    if launch is not None:
        return (Pass("grad_windows", launch, prod((*problem.planes, *problem.sizes)), prod(problem.axes.window)),)
    return _grad_axes(problem)


def _grad_windows(problem: GradProblem) -> EarlierLaunch | None:
    axes, sizes, outputs = problem.axes, problem.sizes, problem.outputs
    extents = [(window - 1) * dilation + 1 for window, dilation in zip(axes.window, axes.dilation, strict=True)]
    if max(extents) > UNROLLED_EXTENT or max(axes.stride) > 4:
        return None
    gs, ts, xs = problem.gradient_strides, problem.tap_strides, problem.strides
    channels, width, out_width = problem.planes[1], sizes[2], outputs[2]
    vector = store = 1
    layout = SCALAR
    if xs[1] == 1:
        layout = CHANNELS
        if gs[1] == 1 and ts[1] == 1:
            used = [s[i] for s in (gs, ts, xs) for i in (0, 2, 3, 4)]
            vector = vector_width(problem.element_size, problem.aligned, channels, *used)
    elif gs[4] == 1 and ts[4] == 1 and xs[4] == 1:
        used = [s[i] for s in (gs, ts) for i in (0, 1, 2, 3)]
        vector = vector_width(problem.element_size, problem.aligned, out_width, *used)
        store = min(vector, vector_width(problem.element_size, True, width, *(xs[i] for i in (0, 1, 2, 3))))
        if vector > 1:
            layout = COLUMNS
    separable = _terms(axes) > GATHERED_TERMS
    if layout == CHANNELS and separable:
        vector = gcd(vector, 4)  # a sum and a picked column for each window of the block, times the vector
    block = _grad_block(layout, vector, axes, sizes, separable)
    if block is not None and separable and problem.element_size == 8:
        block = axes.stride[1], block[1]  # float64 sums take two registers each
    if block is None:
        return None
    rows, columns = block
    if layout == CHANNELS:
        channels //= vector
        runtime = tuple(v for s in (gs, ts, xs) for v in (s[0] // vector, s[1], *(i // vector for i in s[2:])))
        groups = problem.planes[0] * channels
        spans = [in_plane_span((*lengths, channels * vector), (*s[2:], s[1]))
                 for lengths, s in ((outputs, gs), (outputs, ts), (sizes, xs))]  # fmt: skip
    else:
        units = (vector, vector, store) if layout == COLUMNS else (1, 1, 1)
        runtime = tuple(
            v for s, unit in zip((gs, ts, xs), units, strict=True) for v in (*(i // unit for i in s[:4]), s[4])
        )
        groups = problem.planes[0] * channels
        spans = [in_plane_span(lengths, s[2:]) for lengths, s in ((outputs, gs), (outputs, ts), (sizes, xs))]
    lanes = groups * divided(sizes[0], axes.stride[0]) * divided(sizes[1], rows) * divided(sizes[2], columns)
    if layout == COLUMNS:
        width, out_width = width // store, out_width // vector
    return EarlierLaunch(
        programs=divided(lanes, LANES),
        sizes=(lanes, channels, *sizes[:2], width, *outputs[:2], out_width, *runtime),
        constants=dict(
            zip(AXIS_CONSTANTS, (*axes.window, *axes.stride, *axes.start, *axes.dilation), strict=True),
            RANK=problem.rank,
            R=rows,
            Q=columns,
            V=vector,
            STORE=store,
            B=LANES,
            LAYOUT=layout,
            WIDE=is_wide(axes, sizes, outputs, lanes, *spans),
            SEPARABLE=separable,
            DOUBLE=problem.element_size == 8,
            ASM=problem.target in CUDA and problem.element_size < 8,
        ),
    )


WORD_WINDOWS = (4, 15)  # rows and columns of windows that are gathered two to a word
WORD_REGISTERS = 176  # sums and columns that a lane carries on
WORD_ROWS = 4  # input rows of a lane that walks along them
WORD_EXTENT = 128  # inputs that a lane walks over, where there are lanes enough


def grad_words(problem: GradProblem) -> Pass | None:
    """The gather of two windows to a word, for windows of 4 to 15 at stride 1 and taps of one byte; else None."""
    axes, sizes, outputs = problem.axes, problem.sizes, problem.outputs
    height, width = axes.window[1:]
    gs, ts, xs = problem.gradient_strides, problem.tap_strides, problem.strides
    if (
        problem.rank != 2
        or axes.stride != (1, 1, 1)
        or axes.dilation != (1, 1, 1)
        or problem.target not in ("sm_90", "interpreter")
        or problem.element_size > 4
        or not WORD_WINDOWS[0] <= min(height, width) <= max(height, width) <= WORD_WINDOWS[1]
        or height * width > 225
    ):
        return None
    batch, channels = problem.planes
    constants = {
        "KH": height, "KW": width, "PH": axes.start[1], "PW": axes.start[2], "B": LANES,
        "ASM": problem.target == "sm_90",
    }  # fmt: skip
    spans = [in_plane_span(lengths, s[2:]) for lengths, s in ((outputs, gs), (outputs, ts), (sizes, xs))]
    if gs[1] == ts[1] == xs[1] == 1:
        used = [s[i] for s in (gs, ts, xs) for i in (0, 3, 4)]
        if gcd(2, channels, *used) != 2 or not problem.aligned:
            return None
        channels //= 2
        turn = 3
        lanes_of_one = batch * channels * divided(sizes[1], WORD_ROWS)
        extent = rows_of_lane(sizes[2], width, turn, lanes_of_one, WORD_EXTENT)
        lanes = lanes_of_one * divided(sizes[2], extent)
        kernel, walked, reads = "grad_words_of_channels", width, 2 * (WORD_ROWS + height - 1)
        constants |= {"R": WORD_ROWS, "M": turn}
        lengths = (*sizes[1:], *outputs[1:])
        strides = [v for s in (gs, ts, xs) for v in (s[0] // 2, 0, s[3] // 2, s[4] // 2)]
        spans = [span + 2 * channels for span in spans]
    elif gs[4] == ts[4] == xs[4] == 1:
        vector = vector_width(
            problem.element_size, problem.aligned, outputs[2], *(s[i] for s in (gs, ts) for i in (0, 1, 3))
        )
        store = gcd(8, vector_width(problem.element_size, True, sizes[2], *(xs[i] for i in (0, 1, 3))))
        across = 8
        first, last = axes.start[2] - width + 1, across - 1 + axes.start[2]
        words = last // 2 - first // 2 + 1
        if vector < 4 or words * 3 * height > WORD_REGISTERS:
            return None
        turn = 3 if height > 5 else 2
        lanes_of_one = batch * channels * divided(sizes[2], across)
        extent = rows_of_lane(sizes[1], height, turn, lanes_of_one, WORD_EXTENT)
        lanes = lanes_of_one * divided(sizes[1], extent)
        kernel, walked, reads = "grad_words_of_columns", height, 2 * (last // vector - first // vector + 1)
        constants |= {"Q": across, "M": turn, "V": vector, "STORE": store}
        lengths = (sizes[1], sizes[2] // store, outputs[1], outputs[2] // vector)
        strides = [
            v for s, unit in ((gs, vector), (ts, vector), (xs, store)) for v in (*(s[i] // unit for i in (0, 1, 3)), 1)
        ]
    else:
        return None
    if is_wide(axes, sizes, outputs, lanes, *spans):
        return None
    launch = EarlierLaunch(
        programs=divided(lanes, LANES), sizes=(lanes, channels, *lengths, extent, *strides), constants=constants
    )
    elements = prod((*problem.planes, *sizes))
    return Pass(kernel, launch, elements, height * width, loads=(extent + walked - 1) * reads)


def _terms(axes: Axes) -> int:
    """Windows that reach one input element within a slice, at most."""
    height, width = (
        covering(w, s, j).count for w, s, j in list(zip(axes.window, axes.stride, axes.dilation, strict=True))[1:]
    )
    return height * width


def _grad_block(
    layout: int, vector: int, axes: Axes, sizes: tuple[int, int, int], separable: bool
) -> tuple[int, int] | None:
    """``(R, Q)``: rows and columns of inputs of one lane, multiples of the strides; None where none is short enough."""
    stride_rows, stride_columns = axes.stride[1:]
    rows = stride_rows * {1: 4, 2: 2}.get(stride_rows, 1)
    if layout == COLUMNS:
        columns = vector * stride_columns
        if separable:
            # Wide blocks share the picked columns of more windows; two rows of them are what compiles in 3 s.
            rows, columns = 2 * stride_rows, max(columns, 8 * stride_columns)
    elif layout == CHANNELS:
        columns = stride_columns * (2 if stride_columns == 1 else 1)
        if separable:
            rows, columns = stride_rows, 4 * stride_columns
    else:
        rows, columns = stride_rows * {1: 8, 2: 2}.get(stride_rows, 1), stride_columns
    depth = axes.stride[0] * covering(axes.window[0], axes.stride[0], axes.dilation[0]).count

    def steps(rows: int) -> int:
        height, width = (
            covering(w, s, j).count for w, s, j in list(zip(axes.window, axes.stride, axes.dilation, strict=True))[1:]
        )
        if not separable:
            return depth * rows * columns * height * width
        reached = (columns - 1 + (axes.window[2] - 1) * axes.dilation[2]) // stride_columns + 1
        return depth * (2 * rows * reached * height + rows * columns * width)

    allowed = GATHERED_STEPS / CHANNEL_STEP if layout == CHANNELS else GATHERED_STEPS
    while rows % (2 * stride_rows) == 0 and (steps(rows) > allowed or rows >= 2 * sizes[1]):
        rows //= 2
    return (rows, columns) if steps(rows) <= allowed else None


def _grad_axes(problem: GradProblem) -> tuple[Pass, ...]:
    """One pass per axis, outermost first: the taps that won in one row then agree on their column."""
    order = memory_order(problem.strides)
    shape = (*problem.planes, *problem.outputs)
    gradient_strides, tap_strides = problem.gradient_strides, problem.tap_strides
    pooled = pooled_axes(problem.axes, problem.sizes, problem.outputs)
    below = prod(problem.axes.window)
    passes = []
    for axis in pooled:
        last = axis == pooled[-1]
        window, stride, start, _, dilation = (field[axis] for field in problem.axes)
        below //= window
        size, outputs = problem.sizes[axis], problem.outputs[axis]
        result = (*shape[: 2 + axis], size, *shape[3 + axis :])
        result_strides = problem.strides if last else dense(result, order)
        others = [i for i in order if i != 2 + axis]
        reach = covering(window, stride, dilation)
        lanes = prod(result)
        one = Axes(*((value,) for value in (window, stride, start, 0, dilation)))  # type: ignore[arg-type]
        in_axis_order = [*others, 2 + axis]
        launch = EarlierLaunch(
            programs=divided(lanes, LANES),
            sizes=(
                lanes, *(result[i] for i in others[1:]), size, outputs,
                min(reach.count, divided(outputs, reach.output_step)),
                *(s[i] for s in (gradient_strides, tap_strides, result_strides) for i in in_axis_order),
            ),
            constants={
                "K": window, "S": stride, "P": start, "J": dilation, "COMMON": reach.gcd, "INVERSE": reach.inverse,
                "BELOW": below, "LAST": last, "AXIS_INNERMOST": order[-1] == 2 + axis, "B": LANES,
                "WIDE": is_wide(
                    one, (size,), (outputs,), lanes, outputs * gradient_strides[2 + axis],
                    outputs * tap_strides[2 + axis], reach.tap_step**2,
                ),
                "DOUBLE": problem.element_size == 8,
            },
        )  # fmt: skip
        passes.append(Pass("grad_axis", launch, prod(result), below, loads=2 * reach.count))
        shape, gradient_strides, tap_strides = result, result_strides, result_strides
    return tuple(passes)
