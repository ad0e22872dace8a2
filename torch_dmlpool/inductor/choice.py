"""Whether maxima are faster as an expression or by a call of the operator, with what was
measured.
"""

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


_LARGEST_NARROW = {
    (1, False): 2**14,
    (1, True): 2**20,
    (2, False): 2**16,
    (2, True): 2**16,
}
"""By the bytes of an integer, and whether the layout is channels_last: the most taps, of all
windows together, that an expression of maxima on a CPU reads in less time than a call of the
operator takes. Integers of one byte matter at stride 1 alone. Inductor makes poor vectors of these
types: 3/1 on 8x192x28x28 takes 22.6 ms as an expression and 1.4 ms with a call (uint8, contiguous),
0.33 and 0.14 ms (channels_last), for int16 2.7 and 0.83 ms, 2.6 and 0.27 ms; 2/2 of int16 in
channels_last takes 0.30 and 0.12 ms (Zen 4, one thread)."""


def _is_narrow_and_many(x: TensorBox, window: Window, outputs: Sequence[Any]) -> bool:
    """Whether the operator is faster because Inductor has no good vectors of the data type."""
    dtype = x.get_dtype()
    if dtype.is_floating_point or dtype.itemsize > 2:
        return False
    is_dense = all(axis.stride == 1 for axis in window.axes)
    if dtype.itemsize == 1 and not is_dense:
        return False
    limit = _LARGEST_NARROW[dtype.itemsize, has_channels_innermost(x)]
    return not is_sure(math.prod(outputs) * window.taps <= limit)


def window_of_maxima(
    x: TensorBox,
    sizes: Sequence[Any],
    arguments: Sequence[Any],
    outputs: Sequence[Any],
    with_taps: bool = True,
) -> Window | None:
    """The window if it is small, else None; on a CPU also None where the operator is faster.

    ``outputs`` are all sizes of the output. Inductor makes no vectors of a loop that reads every
    other element of a row: a product and 3/2 in 64x112x112 take 3.7 ms forward, the operator 0.8,
    ATen's in Inductor 1.6. Averages and maxima of one dimension are no slower.
    """
    window = small_window(x, sizes, arguments)
    if window is None or x.get_device_or_error().type != "cpu":
        return window
    if _is_narrow_and_many(x, window, outputs):
        return None
    is_short = window.taps <= MOST_TAPS * math.prod(axis.stride for axis in window.axes)
    is_vector = not with_taps and (window.rank == 1 or (is_short and has_channels_innermost(x)))
    if is_vector or is_sure(math.prod(outputs) * window.taps <= CHEAPEST_CALL):
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
