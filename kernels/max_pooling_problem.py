"""What the max pooling kernels are asked for: problems, passes, and the geometry that their launches share."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from torch_dmlpool.kernels.launch import CUDA, Axes, EarlierLaunch, vector_width

SCALAR, COLUMNS, CHANNELS = 0, 1, 2  # how a lane's block is loaded; the same numbers as in kernels/max_pooling_rows.py
NO_TAPS, TAPS, PLANE_INDICES, INDICES = 0, 1, 2, 3  # what is stored beside the values; the kernel's numbers too
NOT_PACKED, INTEGERS, KEYED_BYTES, FLOAT16, BFLOAT16 = range(5)  # two of what in a word; the kernel's numbers too
AXIS_CONSTANTS = ("KD", "KH", "KW", "SD", "SH", "SW", "PD", "PH", "PW", "JD", "JH", "JW")
"""Compile-time arguments: taps, stride, start padding and dilation along each axis."""


class MaxProblem(NamedTuple):
    """What decides how a max pooling is launched: geometry, layout and data type, no values."""

    axes: Axes
    rank: int
    planes: tuple[int, int]  # N, C
    sizes: tuple[int, int, int]
    outputs: tuple[int, int, int]
    strides: tuple[int, int, int, int, int]  # of the tensor that is read
    output_strides: tuple[int, int, int, int, int]
    element_size: int
    floating: bool
    bfloat16: bool
    aligned: bool  # the tensor that is read begins at a multiple of 16 bytes
    target: str  # "sm_90" (and later), "cuda" (sm_80 to sm_89), "sm_70" (before), "hip" or "interpreter"


class GradProblem(NamedTuple):
    """What decides how a gradient of max pooling is launched."""

    axes: Axes
    rank: int
    planes: tuple[int, int]
    sizes: tuple[int, int, int]
    outputs: tuple[int, int, int]
    gradient_strides: tuple[int, int, int, int, int]
    tap_strides: tuple[int, int, int, int, int]
    strides: tuple[int, int, int, int, int]  # of the result
    element_size: int
    aligned: bool  # the incoming gradient and the taps begin at multiples of 16 bytes
    target: str


class Pass(NamedTuple):
    """One launch of a sequence; each reads what the one before has written."""

    kernel: str
    launch: EarlierLaunch
    elements: int  # of the result
    taps: int  # taps of the part of the window that has been (or is still to be) pooled
    scratch: int = 0  # elements that the launch wants beside its result
    loads: int = 0  # elements or vectors that a lane's loop reads, 0 where nothing loops


def has_empty_window(axes: Axes, sizes: tuple[int, ...], outputs: tuple[int, ...]) -> bool:
    """Whether some window reads no element: before the input, past it, or stepping over all of it."""
    return any(
        (window - 1) * dilation < start or (output - 1) * stride - start >= size or (window > 1 and dilation > size)
        for size, output, window, stride, start, _, dilation in zip(sizes, outputs, *axes, strict=True)
    )


def shared_by(outputs: int, window: int, stride: int, dilation: int) -> int:
    """How many neighbouring windows best share one core: the most, as powers of 2 go, that still have one in common."""
    group = 1
    if dilation == 1:
        while outputs % (2 * group) == 0 and (2 * group - 1) * stride < window:
            group *= 2
    return group


def compared_as_float32(problem: MaxProblem) -> bool:
    """Triton's maximum of two bfloat16 is a float32, and its interpreter compares their bits."""
    return problem.bfloat16


def packed(problem: MaxProblem, encode: int, layout: int, vector: int) -> tuple[int, int]:
    """``(packing, V)``: which two numbers travel in one word, and the elements of the vectors that are read.

    Two halves are compared at once from sm_80 on, two int16 from sm_90 on.
    """
    halves = problem.floating and problem.element_size == 2 and problem.target in (*CUDA, "interpreter")
    integers = not problem.floating and problem.element_size <= 2 and problem.target in ("sm_90", "interpreter")
    if layout == COLUMNS:
        vector = gcd(vector, problem.outputs[2])
    if not (halves or integers) or layout == SCALAR or vector * problem.element_size < 4:
        return NOT_PACKED, vector
    if encode == NO_TAPS:
        return (INTEGERS if integers else BFLOAT16 if problem.bfloat16 else FLOAT16), vector
    keyed = problem.element_size == 1 and problem.rank <= 2 and problem.axes.dilation == (1, 1, 1)
    if keyed and not has_empty_window(problem.axes, problem.sizes, problem.outputs):
        return KEYED_BYTES, vector
    return NOT_PACKED, vector


def max_vectors(problem: MaxProblem) -> tuple[int, int]:
    """``(layout, V)``: how lanes read the input, and how many elements at a time."""
    n, c, d, h, w = problem.strides
    channels, width = problem.planes[1], problem.sizes[2]
    if problem.output_strides[1] == 1 and c == 1:
        # A stride of 0 means an axis of one element, which any vector length divides.
        return CHANNELS, vector_width(problem.element_size, problem.aligned, channels, n, d, h, w)
    if w == 1 and problem.output_strides[4] <= 1:
        vector = vector_width(problem.element_size, problem.aligned, width, n, c, d, h)
        if vector > 1:
            return COLUMNS, vector
    return SCALAR, 1


def memory_order(strides: tuple[int, ...]) -> tuple[int, ...]:
    """Axes of a dense (N, C, D, H, W) result, slowest first: channels innermost or contiguous."""
    return (0, 2, 3, 4, 1) if strides[1] == 1 else (0, 1, 2, 3, 4)


def dense(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense tensor of ``shape`` whose axes lie in memory in ``order``."""
    strides, step = [0] * 5, 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def pooled_axes(axes: Axes, sizes: tuple[int, ...], outputs: tuple[int, ...]) -> list[int]:
    """The axes along which a window does anything at all; at least one."""
    rows = zip(sizes, outputs, *axes[:4], strict=True)
    does = [i for i, row in enumerate(rows) if row[2:] != (1, 1, 0, 0) or row[0] != row[1]]
    return does or [2]
