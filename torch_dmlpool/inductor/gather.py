"""The elements at winning taps as an expression, which maxima under a mask are trained with."""

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor.ir import TensorBox
from torch._inductor.virtualized import ops

from torch_dmlpool.inductor.choice import window_of_maxima
from torch_dmlpool.inductor.expressions import (
    pointwise,
    register_as,
    results,
)
from torch_dmlpool.inductor.geometry import (
    Geometry,
    number_of,
)


def _max_pooling_gather(x: TensorBox, taps: TensorBox, *arguments: Any) -> TensorBox | None:
    """The element at each window's winning tap; None where the operator must be called."""
    ((outputs, dtype),) = results()
    sizes = x.get_size()[2:]
    window = window_of_maxima(x, sizes, arguments, outputs)
    if window is None:
        return None
    geometry = Geometry(window, sizes, outputs[2:])
    tap_of = geometry.loader(x, 0.0)
    taps.realize_hint()
    load = taps.make_loader()

    def chosen(index: Sequence[Any]) -> Any:
        number = ops.to_dtype(load(index), torch.int32)
        first, *others = geometry.taps
        value = tap_of(index, first)
        for tap in others:
            its_number = ops.index_expr(number_of(tap, arguments[0]), torch.int32)
            value = ops.where(ops.eq(number, its_number), tap_of(index, tap), value)
        return value

    return pointwise(x, outputs, dtype, chosen)


register_as(torch.ops.dmlpool.max_pooling_gather.default, _max_pooling_gather)
