"""Averages of quantized integers with DirectML's names."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.keywords import operator
from torch_dmlpool.ops import quantized_average_pooling as _quantized
from torch_dmlpool.ops.calls import prepared
from torch_dmlpool.window import Integers, Window


@operator
def quantized_linear_average_pooling(
    input: Tensor,
    input_scale: float | Tensor,
    input_zero_point: int | Tensor | None,
    output_scale: float | Tensor,
    output_zero_point: int | Tensor | None,
    window_size: Integers,
    strides: Integers = 1,
    start_padding: Integers = 0,
    end_padding: Integers = 0,
    dilations: Integers = 1,
    include_padding: bool = False,
    *,
    ceil_mode: bool = False,
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    """Average of quantized integers, which represent ``scale * (integer - zero_point)``
    (``DML_QUANTIZED_LINEAR_AVERAGE_POOLING``).

    A scale or a zero point is one for all channels (a number, or a tensor of one element) or one
    for each (a tensor of shape ``(C,)``, ``(1, C, 1, 1)`` or ``(1, C, 1, 1, 1)``). Scales in
    tensors are checked on a CPU in eager mode.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; int8 or uint8.
        input_scale: Real numbers per step of the input, finite and above 0, rounded to float32.
        input_zero_point: The integer that stands for 0, of the input's data type if a tensor; None
            for 0.
        output_scale: Real numbers per step of the output, as above.
        output_zero_point: The output's integer for 0, likewise of the output's data type.
        window_size: Size of the window, at least 1. This and the next four arguments are one int
            for all spatial dimensions or one each, in ``D, H, W`` order.
        strides: Step from one window to the next, at least 1.
        start_padding: Padding before the first element, at least 0. Any amount is allowed.
        end_padding: Padding after the last element.
        dilations: Step from one element of a window to the next, at least 1.
        include_padding: Whether padding counts in the divisor. It never adds to the sum.
        ceil_mode: Whether a last window may reach past the padded input, if it starts inside the
            input or the padding before it. What lies there never counts.
        output_dtype: int8 or uint8; that of ``output_zero_point`` if it is a tensor, else the
            input's, unless given.

    Returns:
        ``(N, C, *output)`` of ``output_dtype``, where
        ``output = (size + start_padding + end_padding - extent) // strides + 1`` and
        ``extent = (window_size - 1) * dilations + 1``:
        ``round(average / output_scale) + output_zero_point``, saturated to the type's limits, as
        in exact arithmetic. Ties are rounded to even before the zero point is added. Padding is
        the real number 0.

    It has no gradient: a scale that requires one raises RuntimeError.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or device, or no window fits. It is a RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> # 0, 1, 2 and 4 in steps of 0.5 from 10; 1.75 / 0.25 + 3
        >>> image = torch.tensor([[[[10, 12], [14, 18]]]], dtype=torch.uint8)
        >>> dmlpool.quantized_linear_average_pooling(image, 0.5, 10, 0.25, 3, window_size=2)
        tensor([[[[10]]]], dtype=torch.uint8)

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_quantized_linear_average_pooling_operator_desc
    """
    parameters = input_scale, input_zero_point, output_scale, output_zero_point
    window = window_size, strides, start_padding, end_padding, dilations, ceil_mode
    asked = parameters, include_padding, *window
    call = prepared(_prepared_averages, input, *asked, dtypes=(output_dtype,))
    if call is not None:
        return call(input)
    return _quantized.quantized_linear_average_pooling(
        input, *_quantized_windows(input, *asked, output_dtype)
    )


def _quantized_windows(
    input: Tensor, parameters: tuple[Any, ...], include_padding: bool, *asked: Any
) -> tuple[Any, ...]:
    """The operator's arguments, checked."""
    *window, output_dtype = asked
    operands.check_pooled("input", input, operands.QUANTIZED_TYPES)
    operands.check_flag("include_padding", include_padding)
    made = Window.directml(input.dim() - 2, *window)
    parameters, dtype = operands.checked_quantization(input, parameters, output_dtype)
    return parameters, made, include_padding, dtype


def _prepared_averages(like: Tensor, device: str, *asked: Any) -> Callable[[Tensor], Tensor]:
    return _quantized.prepared(device, *_quantized_windows(like, *asked))
