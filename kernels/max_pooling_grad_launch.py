"""How the gradient of max pooling, and what taps point at, are launched: pure functions of the problem."""

from __future__ import annotations

from functools import lru_cache
from math import gcd, prod

from .launch import LANES_ENOUGH, Axes, Launch, covering, divided, in_plane_span, is_wide, vector_width
from .max_pooling_launch import (
    CHANNEL_STEP,
    EXTENT,
    Layout,
    MaxProblem,
    Pass,
    Request,
    With,
    dense,
    extents,
    has_empty_window,
    in_units,
    memory_order,
    pooled_axes,
    problem_of,
)

GRADIENT_STEPS = 512  # conditional additions in a lane's straight-line code: more take longer than 3 s to compile
DECODED = 16  # outputs for which a lane that looks up taps finds its place once


@lru_cache(maxsize=4096)
def grad_passes(request: Request) -> tuple[Pass, ...]:
    """The kernels of a max pooling's gradient from taps.

    | window | kernel |
    |---|---|
    | a lane's inputs and the windows over them within GRADIENT_STEPS additions | grad_tile |
    | any other | grad_axis along one axis after the other, outermost first |
    """
    problem = problem_of(request)
    layout, vector, store = grad_layout(problem)
    block = grad_block(problem, layout, vector)
    if block is None:
        return _grad_axes(problem)
    return (_grad_tile(problem, layout, vector, store, block),)


def grad_layout(problem: MaxProblem) -> tuple[Layout, int, int]:
    """How lanes read gradients and taps, the windows or channels of their vectors, and the inputs of one store."""
    gs, ts, xs = problem.output_strides, problem.tap_strides, problem.strides
    if xs[1] == 1:
        vector = 1
        if gs[1] == 1 and ts[1] == 1:
            used = [s[i] for s in (gs, ts, xs) for i in (0, 2, 3, 4)]
            vector = vector_width(problem.element_size, problem.aligned, problem.planes[1], *used)
        return "channels", vector, vector
    if gs[4] == 1 and ts[4] == 1 and xs[4] == 1:
        used = [s[i] for s in (gs, ts) for i in (0, 1, 2, 3)]
        vector = vector_width(problem.element_size, problem.aligned, problem.outputs[2], *used)
        if vector > 1:
            whole = vector_width(problem.element_size, True, problem.sizes[2], *xs[:4])
            return "columns", vector, min(vector, whole)
    return "any", 1, 1


def grad_block(problem: MaxProblem, layout: Layout, vector: int) -> tuple[int, int] | None:
    """``(R, Q)``: rows and columns of inputs of one lane, multiples of the strides; None where none is small enough.

    | layout | rows, in strides | columns, in strides |
    |---|---|---|
    | columns | 4 at stride 1, 2 at stride 2, 1 at others | a vector |
    | channels | the same, at most 2 with vectors of 8 | 2 at stride 1, 1 at others |
    | any | 8 at stride 1, 2 at stride 2, 1 at others | 1 |
    """
    axes = problem.axes
    if max(extents(axes)) > EXTENT or max(axes.stride) > 4:
        return None
    high, wide = axes.stride[1:]
    rows = high * ({1: 8, 2: 2} if layout == "any" else {1: 4, 2: 2}).get(high, 1)
    if layout == "channels" and vector > 4:
        rows = min(rows, 2 * high)  # a sum of four bytes for every element fills the registers
    columns = wide * {"columns": vector, "channels": 2 if wide == 1 else 1, "any": 1}[layout]
    depth, height, width = (covering(*each).count for each in zip(axes.window, axes.stride, axes.dilation, strict=True))
    allowed = GRADIENT_STEPS // CHANNEL_STEP if layout == "channels" else GRADIENT_STEPS
    terms = axes.stride[0] * depth * height * width * columns
    elements = prod((*problem.planes, *problem.sizes)) // axes.stride[0]
    while rows % (2 * high) == 0 and (
        rows * terms > allowed
        or rows >= 2 * problem.sizes[1]
        or elements < LANES_ENOUGH * rows * columns * (vector if layout == "channels" else 1)
    ):
        rows //= 2
    return (rows, columns) if rows * terms <= allowed else None


def _grad_tile(problem: MaxProblem, layout: Layout, vector: int, store: int, block: tuple[int, int]) -> Pass:
    axes, sizes, outputs = problem.axes, problem.sizes, problem.outputs
    gs, ts, xs = all_strides = problem.output_strides, problem.tap_strides, problem.strides
    channels, width, out_width = problem.planes[1], sizes[2], outputs[2]
    spans = [in_plane_span(lengths, s[2:]) for lengths, s in zip((outputs, outputs, sizes), all_strides, strict=True)]
    if layout == "channels":
        channels //= vector
        spans = [span + (problem.planes[1] - 1) * s[1] for span, s in zip(spans, all_strides, strict=True)]
        gs, ts, xs = (in_units(s, vector, but=1) for s in all_strides)
    elif layout == "columns":
        width, out_width = width // store, out_width // vector
        gs, ts, xs = in_units(gs, vector), in_units(ts, vector), in_units(xs, store)
    rows, columns = block
    lanes = problem.planes[0] * channels * divided(sizes[0], axes.stride[0])
    lanes *= divided(sizes[1], rows) * divided(sizes[2], columns)
    constants = {
        "WINDOW": axes.window, "STRIDE": axes.stride, "START": axes.start, "DILATION": axes.dilation,
        "RANK": problem.rank, "R": rows, "Q": columns, "LAYOUT": layout, "V": vector, "STORE": store,
        "WIDE": is_wide(axes, sizes, outputs, lanes, *spans),
    }  # fmt: skip
    runtime = (lanes, channels, *sizes[:2], width, *outputs[:2], out_width, *gs, *ts, *xs)
    launch = Launch.of_lanes("max_pooling_grad.grad_tile", lanes, runtime, constants)
    return Pass(launch, prod((*problem.planes, *sizes)))


def _grad_axes(problem: MaxProblem) -> tuple[Pass, ...]:
    """One pass per axis, outermost first: the taps that won in one row then agree on their column."""
    order = memory_order(problem.strides)
    shape = (*problem.planes, *problem.outputs)
    gradient_strides, tap_strides = problem.output_strides, problem.tap_strides
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
        spans = lanes, outputs * gradient_strides[2 + axis], outputs * tap_strides[2 + axis], reach.tap_step**2
        constants = {
            "K": window, "S": stride, "P": start, "J": dilation, "COMMON": reach.gcd, "INVERSE": reach.inverse,
            "BELOW": below, "LAST": last, "AXIS_INNERMOST": order[-1] == 2 + axis,
            "WIDE": is_wide(one, (size,), (outputs,), *spans),
        }  # fmt: skip
        runtime = (
            lanes, *(result[i] for i in others[1:]), size, outputs,
            min(reach.count, divided(outputs, reach.output_step)),
            *(s[i] for s in (gradient_strides, tap_strides, result_strides) for i in (*others, 2 + axis)),
        )  # fmt: skip
        launch = Launch.of_lanes("max_pooling_axis.grad_axis", lanes, runtime, constants)
        passes.append(Pass(launch, prod(result)))
        shape, gradient_strides, tap_strides = result, result_strides, result_strides
    return tuple(passes)


@lru_cache(maxsize=4096)
def tap_lookup(request: Request, with_: With) -> Launch:
    """What taps point at: elements of the input (``"values"``) or their indices, written in ``output_strides``."""
    problem = problem_of(request)
    axes, sizes, outputs = problem.axes, problem.sizes, problem.outputs
    strides, tap_strides, result_strides = problem.strides, problem.tap_strides, problem.output_strides
    channels_innermost = result_strides[1] == 1
    innermost = 1 if channels_innermost else 4
    vector = 1
    if tap_strides[innermost] == result_strides[innermost] == 1:
        others = [s[i] for s in (tap_strides, result_strides) for i in range(5) if i != innermost]
        vector = gcd(DECODED, problem.planes[1] if channels_innermost else outputs[2], *others)
    lanes = prod((*problem.planes, *outputs)) // vector
    spans = (in_plane_span(lengths, steps[2:]) for lengths, steps in (
        (sizes, strides), (outputs, tap_strides), (outputs, result_strides)))  # fmt: skip
    runtime = (
        lanes, problem.planes[1], *sizes, *outputs, *strides,
        *in_units(tap_strides, vector, but=innermost), *in_units(result_strides, vector, but=innermost),
    )  # fmt: skip
    constants = {
        "WINDOW": axes.window, "STRIDE": axes.stride, "START": axes.start, "DILATION": axes.dilation,
        "RANK": 3 if outputs[0] > 1 else 2, "WITH": with_, "EMPTY": has_empty_window(axes, sizes, outputs),
        "CHANNELS_INNERMOST": channels_innermost, "V": vector,
        "WIDE": is_wide(axes, sizes, outputs, lanes, prod(sizes), *spans),
    }  # fmt: skip
    return Launch.of_lanes("max_pooling_grad.at_taps", lanes, runtime, constants)
