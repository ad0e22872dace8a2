"""Whether a window is faster as an expression or by a call of the operator."""

import math
from collections.abc import Sequence
from typing import Any

import sympy
from torch._inductor.ir import ComputedBuffer, FlexibleLayout, Pointwise, Reduction, TensorBox

from torch_dmlpool.inductor.geometry import is_sure, small_window
from torch_dmlpool.window import Window

MOST_TAPS, CHEAPEST_CALL = 16, 2**14
"""On a CPU: the most taps of a window of maxima that is an expression, at stride 1, in rows or with
tap numbers (with 25 the operator takes half of the time); and the taps, of all windows together,
that an expression reads in less time than a call takes."""


MOST_TAPS_OF_GPU, MOST_FUSED_TAPS = 4, 9
"""On a GPU: the most taps of a window that is an expression, and of one at strides above 1 whose
input is computed in its loop and not stored.

By the model T of benchmarks/kernels.py for an H200 the operator's kernels take from 1.1 to 4.5
times less than expressions of longer windows, of taps and of gradients of windows that overlap, and
fusing saves at most a write and a read of the input."""


def window_on_gpu(x: TensorBox, window: Window | None, is_forward: bool) -> Window | None:
    """The window if a GPU computes an expression, with what fusing saves, in less time than the
    operator takes; else None. Anything on a CPU.
    """
    if window is None or x.get_device_or_error().type == "cpu":
        return window
    if window.taps <= MOST_TAPS_OF_GPU:
        overlaps = any(axis.window > axis.stride for axis in window.axes)
        return window if is_forward or not overlaps else None
    is_close = any(axis.window > axis.stride == 1 for axis in window.axes)
    if not is_forward or is_close or window.taps > MOST_FUSED_TAPS:
        return None
    x.realize_hint()  # stores what reads several tensors
    return window if isinstance(getattr(x.data, "data", None), Pointwise) else None


def window_of_maxima(
    x: TensorBox,
    sizes: Sequence[Any],
    arguments: Sequence[Any],
    outputs: Sequence[Any],
    with_taps: bool = True,
) -> Window | None:
    """The window if it is small and the operator is not faster, else None.

    ``outputs`` are all sizes of the output. Inductor makes no vectors of a loop that reads every
    other element of a row, and poor ones of integers of one or two bytes. Averages and maxima of
    one dimension are no slower.
    """
    window, dtype = small_window(x, sizes, arguments), x.get_dtype()
    if window is None or x.get_device_or_error().type != "cpu":
        return window_on_gpu(x, window, not with_taps)
    if is_sure(math.prod(outputs) * window.taps <= CHEAPEST_CALL):
        return window
    if dtype.itemsize <= 2 and not dtype.is_floating_point:
        return None
    is_short = window.taps <= MOST_TAPS * math.prod(axis.stride for axis in window.axes)
    if not with_taps and (window.rank == 1 or (is_short and has_channels_innermost(x))):
        return window
    is_strided = window.axes[-1].stride > 1 and not has_channels_innermost(x)
    return None if is_strided or window.taps > MOST_TAPS else window


def has_channels_innermost(x: TensorBox) -> bool:
    """Whether ``x`` is in channels_last, or will be once Inductor has decided on its layout: a
    convolution may choose it.
    """
    inner: Any = getattr(x.data, "data", None)
    loops = (
        inner.data
        if isinstance(inner, ComputedBuffer) and isinstance(inner.layout, FlexibleLayout)
        else inner
    )
    strides = x.maybe_get_stride()
    if isinstance(loops, (Pointwise, Reduction)):
        layout = FlexibleLayout(x.get_device_or_error(), x.get_dtype(), x.get_size())
        planned = ComputedBuffer(name=None, layout=layout, data=loops)
        planned.decide_layout()
        strides = planned.get_stride()
    return strides is not None and is_sure(sympy.Eq(strides[1], 1))
