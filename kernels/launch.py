"""How each kernel is launched: frozen descriptions made by pure functions of the problem, nothing measured at run time.

A ``window`` here is any object with ``axes``, each of which has ``window``, ``stride``, ``start_padding``,
``end_padding``, ``dilation`` and ``ceil_mode``. Nothing here touches a tensor, so everything is testable without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple

VECTOR_BYTES = 16  # the widest load and store there is
LANES = 128  # 4 warps of 32: fewer lanes than threads would send tl.split through shared memory
LANES_ENOUGH = 98_304  # 23 warps on each of 132 multiprocessors hide memory's latency: below that lanes own fewer rows
WIDE_FROM = 2**31 - 2**24  # 32-bit arithmetic below this; the margin holds the lanes and tiles past the end


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch on a one-dimensional grid (y and z end at 65,535, x does not): plain, hashable data.

    A kernel takes its tensors (and numbers), then ``sizes``, then ``constants`` by name. ``backends.triton.launch``
    runs one. With ``triton.compile`` it compiles for any target: the signature is the tensors' pointers and
    ``size_types``, the constants are ``dict(constants)``, and sizes are never specialised.
    """

    kernel: str  # module and function in torch_dmlpool.kernels: "max_pooling.max_tile"
    programs: int
    sizes: tuple[int, ...]
    constants: tuple[tuple[str, Any], ...]
    size_types: tuple[str, ...]  # "i32" or "i64"
    num_warps: int = 4

    @classmethod
    def of_lanes(cls, kernel: str, lanes: int, sizes: tuple[int, ...], constants: dict[str, Any]) -> Launch:
        """As many programs of ``LANES`` lanes as cover ``lanes``; constants get ``B``, the lanes of a program."""
        types = tuple("i32" if -(2**31) <= size < 2**31 else "i64" for size in sizes)
        return cls(kernel, divided(lanes, LANES), sizes, (*constants.items(), ("B", LANES)), types)


class Axes(NamedTuple):
    """A window over three axes, each field ``(D, H, W)``: what the kernels are compiled for."""

    window: tuple[int, int, int]
    stride: tuple[int, int, int]
    start: tuple[int, int, int]
    end: tuple[int, int, int]
    dilation: tuple[int, int, int]


NO_AXES = Axes((1, 1, 1), (1, 1, 1), (0, 0, 0), (0, 0, 0), (1, 1, 1))
"""A window that changes nothing."""


def three_axes(window: Any) -> Axes:
    """The window with missing leading axes filled in: window 1, stride 1, no padding."""
    missing = 3 - len(window.axes)
    rows = [(1, 1, 0, 0, 1)] * missing
    rows += [(axis.window, axis.stride, axis.start_padding, axis.end_padding, axis.dilation) for axis in window.axes]
    return Axes(*zip(*rows, strict=True))


def three_sizes(sizes: Sequence[int]) -> tuple[int, int, int]:
    """Spatial sizes with missing leading axes filled in by 1."""
    return (1,) * (3 - len(sizes)) + tuple(sizes)  # type: ignore[return-value]


def five_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int, int, int, int]:
    """Strides as ``N, C, D, H, W``; 0 along a dimension of size 1, whose stride means nothing."""
    meant = [0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True)]
    return (*meant[:2], *([0] * (5 - len(meant))), *meant[2:])  # type: ignore[return-value]


def is_wide(axes: Axes, sizes: tuple[int, ...], outputs: tuple[int, ...], *spans: int) -> bool:
    """Whether 32 bits do not hold a position along some axis, or an offset within one of ``spans``."""
    reach = max(
        max(size, output * stride) + start + end + (window - 1) * dilation + stride
        for size, output, window, stride, start, end, dilation in zip(sizes, outputs, *axes, strict=True)
    )
    return max(reach, *spans) >= WIDE_FROM


def in_plane_span(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first of a plane to its last, for spatial sizes and strides."""
    return sum((size - 1) * abs(stride) for size, stride in zip(sizes, strides, strict=True)) + 1


def vector_width(element_size: int, aligned: bool, *divisible: int) -> int:
    """Elements per vector: as many as 16 bytes hold and divide every length and stride; 1 for an unaligned tensor."""
    if not aligned:  # Triton knows a pointer as a multiple of 16 bytes or not at all
        return 1
    return gcd(VECTOR_BYTES // element_size, *divisible)


def divided(total: int, part: int) -> int:
    """``total / part``, rounded up."""
    return -(-total // part)


def widest_bin(size: int, outputs: int) -> int:
    """The most elements of an adaptive bin, exactly where ``outputs`` divides ``size`` or the reverse, else at most."""
    if size % outputs == 0:
        return size // outputs
    return 1 if outputs % size == 0 else size // outputs + 2


class Covering(NamedTuple):
    """Constants of ``addressing.first_covering`` along one axis, and how many windows can reach one position."""

    gcd: int
    inverse: int
    tap_step: int  # between the taps that reach one position
    output_step: int  # between their windows, downwards
    count: int


def covering(window: int, stride: int, dilation: int) -> Covering:
    """Which taps of which windows reach one input position: an arithmetic progression of both."""
    common = gcd(stride, dilation)
    tap_step, output_step = stride // common, dilation // common
    inverse = pow(output_step, -1, tap_step) if tap_step > 1 else 0
    return Covering(common, inverse, tap_step, output_step, divided(window, tap_step))
