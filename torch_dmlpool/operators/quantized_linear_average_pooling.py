"""Average pooling of quantized integers: their differences from the zero point are added up, and
each sum is rescaled and rounded once.
"""

import ctypes
import math
import numbers
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import backends
from torch_dmlpool.backends.interface import Backend
from torch_dmlpool.keywords import with_directml_names
from torch_dmlpool.operators.calls import prepared
from torch_dmlpool.operators.derivatives import carries_derivative
from torch_dmlpool.operators.dispatching import is_plain, is_readable
from torch_dmlpool.operators.registration import Operator, one_by_one
from torch_dmlpool.tensors import (
    FLOAT_TYPES,
    QUANTIZED_INTEGERS,
    TensorFunction,
    Types,
    as_float,
    check_dense,
    check_device,
    check_pooled,
    check_type,
    is_one_of,
    name_of,
    names_of,
    pooled_sizes,
)
from torch_dmlpool.window import (
    ArgumentError,
    Arguments,
    Integers,
    Sizes,
    Window,
    check_flag,
    integer,
    is_sure,
    shown,
    wrong_type,
)


@with_directml_names
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
    call = prepared(_make, input, None, (parameters, include_padding, *window), (output_dtype,))
    if call is not None:
        return call(input)
    parameters, checked, include_padding, dtype = _quantized_windows(
        input, output_dtype, parameters, include_padding, *window
    )
    return pooled_integers(input, parameters, checked, include_padding, dtype)


def _quantized_windows(
    input: Tensor,
    output_dtype: torch.dtype | None,
    parameters: Arguments,
    include_padding: bool,
    *window: Any,
) -> Arguments:
    """The operator's arguments, checked."""
    check_pooled(input, QUANTIZED_INTEGERS)
    check_flag("include_padding", include_padding)
    checked = Window.directml(input.dim() - 2, *window)
    parameters, dtype = checked_quantization(input, parameters, output_dtype)
    return parameters, checked, include_padding, dtype


def _make(
    like: Tensor, backend: Backend, dtypes: Any, mask_sizes: None, *given: Any
) -> TensorFunction:
    """The call for plain tensors, whose scales and zero points are numbers."""
    parameters, window, include_padding, output_dtype = _quantized_windows(like, *dtypes, *given)
    check_counted(window, include_padding)
    pool = backend.quantized_averages
    return lambda input: pool(input, parameters, window, include_padding, output_dtype)


def pooled_integers(
    input: Tensor,
    parameters: Arguments,
    window: Window,
    include_padding: bool,
    output_dtype: torch.dtype,
) -> Tensor:
    """The average of every window of ``input``, requantized; operands are checked already but for
    tensors' values.
    """
    check_counted(window, include_padding)
    on_device = [parameter for parameter in parameters if isinstance(parameter, Tensor)]
    rest = window, include_padding, output_dtype
    if is_plain(input, *on_device):
        _check_tensors(parameters)
        backend = backends.serving(input.device.type)
        return backend.quantized_averages(input, parameters, *rest)
    numbers = [0 if parameter is None else parameter for parameter in parameters]
    if {float, int}.issuperset(map(type, numbers)):
        return quantized_linear_average_pooling_of_numbers_op(input, *numbers, *rest)
    # This operator takes tensors only. ``full`` makes them on the device, without a copy that would
    # wait for it.
    vectors = list(parameters)
    for at, dtype in enumerate((torch.float32, input.dtype, torch.float32, output_dtype)):
        if vectors[at] is not None and not isinstance(vectors[at], Tensor):
            vectors[at] = torch.full((1,), vectors[at], dtype=dtype, device=input.device)
    return quantized_linear_average_pooling_op(input, *vectors, *rest)


def _output_sizes(input: Tensor, *given: Any) -> Sizes:
    *_parameters, window, include_padding, _output_dtype = given
    check_counted(window, include_padding)
    return pooled_sizes(input, window)


def _check_tensors(parameters: Arguments, gradients: bool = True, values: bool = True) -> None:
    """Reject scales and zero points that are differentiated, and bad scale values on the CPU.

    ``gradients`` and ``values`` turn the first and the second check on.
    """
    for name, parameter in zip(PARAMETERS, parameters, strict=True):
        if not isinstance(parameter, Tensor):
            continue
        if gradients and carries_derivative(parameter):
            raise RuntimeError(
                f"quantized_linear_average_pooling has no gradient, but {name} requires one: "
                "detach it"
            )
        # On other devices than the CPU the check would wait for the device.
        if values and parameter.is_floating_point() and parameter.is_cpu:
            wrong = torch.nonzero(~((parameter > 0) & (parameter < math.inf)))
            if len(wrong) > 0:
                channel = int(wrong[0])
                where = f" in channel {channel}" if parameter.numel() > 1 else ""
                raise ArgumentError(
                    f"{name} must be finite and above 0 in float32, got "
                    f"{parameter[channel].item()}{where}"
                )


def _complete(input: Tensor, *given: Any) -> Arguments:
    """Scales and zero points as vectors, or as numbers that rules Q3 and Q4 allow."""
    *parameters, window, include_padding, output_dtype = given
    checked, _ = checked_quantization(input, parameters, output_dtype)
    if is_readable(input):
        _check_tensors(checked, gradients=False)
    return input, *checked, window, include_padding, output_dtype


quantized_linear_average_pooling_op = Operator(
    "quantized_linear_average_pooling(Tensor input, Tensor input_scale, Tensor? input_zero_point, "
    "Tensor output_scale, Tensor? output_zero_point, WINDOW, bool include_padding, ScalarType "
    "output_dtype) -> Tensor",
    types=[QUANTIZED_INTEGERS],
    output_sizes=_output_sizes,
    kernel_of=lambda backend: backend.quantized_linear_average_pooling,
    complete=_complete,
    dtypes=lambda *checked: checked[-1:],
    vmap=one_by_one,
    reject=lambda *given: _check_tensors(given[1:5], values=False),
)


quantized_linear_average_pooling_of_numbers_op = Operator(
    "quantized_linear_average_pooling_of_numbers(Tensor input, float input_scale, "
    "int input_zero_point, float output_scale, int output_zero_point, WINDOW, "
    "bool include_padding, ScalarType output_dtype) -> Tensor",
    types=[QUANTIZED_INTEGERS],
    output_sizes=_output_sizes,
    kernel_of=lambda backend: backend.quantized_linear_average_pooling,
    complete=_complete,
    dtypes=lambda *checked: checked[-1:],
)


PARAMETERS = ("input_scale", "input_zero_point", "output_scale", "output_zero_point")


def check_counted(window: Window, include_padding: bool) -> None:
    """Reject quantized averages that count padding and have 2^63 taps or more."""
    if include_padding and is_sure(window.taps >= 2**63):
        raise ArgumentError(
            f"window_size must be less than {2**63} taps in all where quantized averages count "
            f"padding, got {window.taps}"
        )


def checked_parameter(name: str, parameter: Any, dtype: torch.dtype, input: Any) -> Any:
    """A checked scale (``dtype`` float32) or zero point (integer ``dtype``) (rules Q3 and Q4).

    The result is a number, or a tensor of one entry for all channels of ``input`` or one each. A
    zero point of 0 is returned as None.
    """
    is_scale = dtype is torch.float32
    if isinstance(parameter, Tensor):
        if not is_scale and parameter.dtype in QUANTIZED_INTEGERS:
            check_type(name, parameter, dtype, f"{name.removesuffix('_zero_point')}'s")
        check_dense(
            name, parameter, FLOAT_TYPES if is_scale else (dtype,), "a number or a dense tensor"
        )
        check_device(name, parameter, input)
        channels, shape = input.shape[1], tuple(parameter.shape)
        spread = (1, channels, *(1 for _ in input.shape[2:]))
        if parameter.numel() != 1 and shape not in ((channels,), spread):
            raise ArgumentError(
                f"{name} must have one element or shape ({channels},) or {spread}, got shape "
                f"{shape}"
            )
        return parameter.reshape(-1).to(torch.float32) if is_scale else parameter.reshape(-1)
    if not is_scale:
        number = 0 if parameter is None else integer(name, parameter, parameter)
        if type(number) is not int:
            return number
        check_range(name, number, dtype)
        return number or None
    if isinstance(parameter, (torch.SymFloat, torch.SymInt)):
        return parameter
    if isinstance(parameter, bool) or not isinstance(parameter, numbers.Real):
        raise wrong_type(name, "a number or a tensor", parameter)
    scale = as_float(parameter)
    # The bounds are the greatest number that float32 rounds to 0 and the least that it rounds to
    # infinity.
    if not 2.0**-150 < scale < (2 - 2.0**-24) * 2.0**127:
        raise ArgumentError(f"{name} must be finite and above 0 in float32, got {shown(parameter)}")
    # Dynamo's trace knows no ctypes. The operator that it records rounds the scale.
    return scale if torch.compiler.is_dynamo_compiling() else ctypes.c_float(scale).value


def check_range(name: str, number: int, dtype: torch.dtype) -> None:
    """Reject a zero point that its type cannot hold (rule Q4)."""
    bounds = torch.iinfo(dtype)
    if not bounds.min <= number <= bounds.max:
        raise ArgumentError(
            f"{name} must be {bounds.min} to {bounds.max}, the range of {name_of(dtype)}, got "
            f"{shown(number)}"
        )


def check_output_type(output_dtype: torch.dtype | None, types: Types = QUANTIZED_INTEGERS) -> None:
    """Reject a data type that a quantized average cannot have (rule Q3)."""
    if output_dtype is not None and not is_one_of(output_dtype, types):
        raise TypeError(
            f"output_dtype must be one of {names_of(types)}, got {name_of(output_dtype)}"
        )


def checked_quantization(
    input: Tensor, parameters: Any, output_dtype: torch.dtype | None
) -> tuple[Arguments, torch.dtype]:
    """Scale and zero point of ``input`` and of the output, and the output's data type, checked
    (rules Q3 and Q4). Without ``output_dtype`` the type is that of a tensor
    ``output_zero_point`` of int8 or uint8, else the input's.
    """
    check_output_type(output_dtype)
    if output_dtype is None:
        output_dtype = getattr(parameters[3], "dtype", None)
        output_dtype = output_dtype if output_dtype in QUANTIZED_INTEGERS else input.dtype
    dtypes = torch.float32, input.dtype, torch.float32, output_dtype
    return tuple(map(checked_parameter, PARAMETERS, parameters, dtypes, [input] * 4)), output_dtype
