"""Whether maxima are faster as an expression or by a call of the operator."""

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


def window_of_maxima(
    x: TensorBox,
    sizes: Sequence[Any],
    arguments: Sequence[Any],
    outputs: Sequence[Any],
    with_taps: bool = True,
) -> Window | None:
    """The window if it is small, else None; on a CPU also None where the operator is faster.

    ``outputs`` are all sizes of the output. Inductor makes no vectors of a loop that reads every
    other element of a row, and poor ones of integers of one or two bytes. Averages and maxima of
    one dimension are no slower.
    """
    window, dtype = small_window(x, sizes, arguments), x.get_dtype()
    if window is None or x.get_device_or_error().type != "cpu":
        return window
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
