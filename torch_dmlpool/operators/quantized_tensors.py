"""Quantized tensors (``torch.quint8``, ``torch.qint8``): their integers pooled by the integer
operator, packed again.

PyTorch has announced their end: this module alone knows them, and loads where PyTorch has none.
"""

import functools
import warnings
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import overloads, tensors
from torch_dmlpool._private import empty_affine_quantized, empty_per_channel_affine_quantized
from torch_dmlpool.keywords import with_directml_names
from torch_dmlpool.operators.dispatching import is_readable
from torch_dmlpool.operators.max_pooling import POOL, with_values
from torch_dmlpool.operators.quantized_linear_average_pooling import (
    check_output_type,
    check_range,
    checked_quantization,
    pooled_integers,
)
from torch_dmlpool.tensors import Mask, Pooled, TensorFunction
from torch_dmlpool.window import ArgumentError, Integers, Window, check_flag

CHANNEL_AXIS = 1


@with_directml_names
def quantized_average_pooling(
    input: Tensor,
    window_size: Integers,
    strides: Integers = 1,
    start_padding: Integers = 0,
    end_padding: Integers = 0,
    dilations: Integers = 1,
    include_padding: bool = False,
    *,
    ceil_mode: bool = False,
    output_scale: float | Tensor | None = None,
    output_zero_point: int | Tensor | None = None,
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    """Average pooling of a quantized tensor: :func:`quantized_linear_average_pooling` with the
    tensor's own numbers.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; quint8 or qint8, quantized per
            tensor or per channel (along axis 1).
        window_size: Size of the window, at least 1. This and the next four arguments are one int
            for all spatial dimensions or one each, in ``D, H, W`` order.
        strides: Step from one window to the next, at least 1.
        start_padding: Padding before the first element, at least 0. Any amount is allowed.
        end_padding: Padding after the last element.
        dilations: Step from one element of a window to the next, at least 1.
        include_padding: Whether padding counts in the divisor. It never adds to the sum.
        ceil_mode: Whether a last window may reach past the padded input, if it starts inside the
            input or the padding before it. What lies there never counts.
        output_scale: The output's scale, finite and above 0: a number or a tensor of one element
            for all channels, or ``(C,)`` for one each; the input's unless given.
        output_zero_point: The output's zero point, in the same forms, of any integer type; the
            input's unless given.
        output_dtype: quint8 or qint8 (or uint8 or int8, which they hold); the input's unless given.

    Returns:
        ``(N, C, *output)``, quantized per channel where its scale or its zero point is per channel
        and per tensor otherwise, in the input's memory format. Equal bit for bit to exact
        arithmetic on the scales rounded to float32, rounded half to even before the zero point is
        added. Padding is the real number 0 whatever the zero point is.

    Quantized tensors have no gradient, and torch.compile does not take them: there, and for every
    new program, use :func:`quantized_linear_average_pooling` on the integers. A PyTorch without
    them raises a NotImplementedError.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or device, or no window fits. It is a RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> image = torch.tensor([[[[0., 1.], [2., 4.]]]])
        >>> image = torch.quantize_per_tensor(image, 0.5, 10, torch.quint8)
        >>> # 10 + 1.75 / 0.5, half to even
        >>> dmlpool.quantized_average_pooling(image, window_size=2).int_repr()
        tensor([[[[14]]]], dtype=torch.uint8)

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_quantized_linear_average_pooling_operator_desc
    """
    types = check_quantized(input)
    window = Window.directml(
        input.dim() - 2, window_size, strides, start_padding, end_padding, dilations, ceil_mode
    )
    return average(
        input, types, window, include_padding, output_scale, output_zero_point, output_dtype
    )


def average(
    input: Tensor,
    integer_types: dict[torch.dtype, torch.dtype],
    window: Window,
    include_padding: bool,
    *output: Any,
) -> Tensor:
    """The quantized average pooling of ``input`` over a window.

    ``integer_types`` is what :func:`check_quantized` returned for ``input``. ``output`` is the
    output's scale, zero point and data type; None stands for the input's.
    """
    scale, zero_point, output_dtype = output
    check_flag("include_padding", include_padding)
    output_type = input.dtype
    if output_dtype is not None:
        output_type = output_dtype
        for quantized, integer in integer_types.items():
            output_type = quantized if output_dtype is integer else output_type
        check_output_type(output_type, tuple(integer_types))
    own = _parameters(input)
    wanted = own[0] if scale is None else scale, own[1] if zero_point is None else zero_point
    dtypes = integer_types[input.dtype], integer_types[output_type]
    # With a single channel the vectors have one element, so their length does not tell that the
    # input is quantized per channel.
    per_channel = (scale is None or zero_point is None) and isinstance(own[0], Tensor)
    per_channel |= any(
        isinstance(parameter, Tensor) and parameter.numel() != 1 for parameter in wanted
    )
    integers = _integers(input, dtypes[0])
    zero = narrowed("input_zero_point", own[1], dtypes[0])
    output_zero = narrowed("output_zero_point", wanted[1], dtypes[1])
    given = own[0], zero, wanted[0], output_zero
    parameters, _ = checked_quantization(integers, given, dtypes[1])
    pooled = pooled_integers(integers, parameters, window, include_padding, dtypes[1])
    return _packed(pooled, *wanted, output_type, per_channel)


@overloads.pooling
def quantized_max_pooling(
    input: Tensor,
    window_size: Integers,
    strides: Integers = 1,
    start_padding: Integers = 0,
    end_padding: Integers = 0,
    dilations: Integers = 1,
    *,
    ceil_mode: bool = False,
    return_indices: bool = False,
    index_dtype: torch.dtype = torch.int64,
    mask: Mask = None,
) -> Pooled:
    """Max pooling of a quantized tensor, whose scale and zero point the result keeps:
    :func:`max_pooling` of integers.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; quint8 or qint8, quantized per
            tensor or per channel (along axis 1).
        window_size: Size of the window, at least 1. This and the next four arguments are one int
            for all spatial dimensions or one each, in ``D, H, W`` order.
        strides: Step from one window to the next, at least 1.
        start_padding: Padding before the first element, at least 0. Any amount is allowed.
        end_padding: Padding after the last element.
        dilations: Step from one element of a window to the next, at least 1.
        ceil_mode: Whether a last window may reach past the padded input, if it starts inside the
            input or the padding before it. What lies there never counts.
        return_indices: Whether to return the indices of the maxima too, as :func:`max_pooling`
            counts them.
        index_dtype: int32, int64, uint32 or uint64.
        mask: A bool tensor of the input's dimensions, where sizes of 1 broadcast, or of the spatial
            ones alone. An element where it is False is left out, NaN too: it never wins, adds
            nothing, is not counted and has no gradient.

    Returns:
        ``(N, C, *output)``, quantized as the input is; with ``return_indices`` the pair of it and
        its indices. A window that reads no element gives the lowest number of the input's
        quantized type.

    Quantized tensors have no gradient, and torch.compile does not take them: there use
    :func:`max_pooling` of integers.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or device, or no window fits. It is a RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> image = torch.tensor([[[[0., 1.], [2., 4.]]]])
        >>> image = torch.quantize_per_tensor(image, 0.5, 10, torch.quint8)
        >>> dmlpool.quantized_max_pooling(image, window_size=2).dequantize()
        tensor([[[[4.]]]])
    """
    window = window_size, strides, start_padding, end_padding, dilations, ceil_mode
    dtypes = (index_dtype,)
    return of_integers(
        input, lambda plain: POOL(plain, mask, return_indices, *window, dtypes=dtypes)
    )


def of_integers(input: Tensor, pool: TensorFunction) -> Any:
    """Pool the integers of ``input`` by ``pool``; the result is quantized as ``input`` is.

    If ``pool`` returns values and indices, the indices are returned too, as they are.
    """
    pooled = pool(_integers(input, check_quantized(input)[input.dtype]))
    quantization = *_parameters(input), input.dtype, input.qscheme() is torch.per_channel_affine
    return with_values(lambda values: _packed(values, *quantization), pooled)


def zero_point_of(input: Tensor) -> int | Tensor:
    """The zero point: a number, or one for each channel in a shape that broadcasts to ``input``."""
    _, zero_point = _parameters(input)
    if not isinstance(zero_point, Tensor):
        return zero_point
    return zero_point.view(-1, *[1] * (input.dim() - 2))


def check_quantized(input: Tensor) -> dict[torch.dtype, torch.dtype]:
    """Reject what cannot be pooled here (rule Q5); return the integer type that each quantized type
    holds.
    """
    if not hasattr(torch, "quint8"):
        raise NotImplementedError(
            f"PyTorch {torch.__version__} has no quantized tensors: use "
            "quantized_linear_average_pooling or max_pooling"
        )
    quantized_types = {torch.quint8: torch.uint8, torch.qint8: torch.int8}
    tensors.check_pooled(input, tuple(quantized_types))
    scheme = input.qscheme()
    if scheme not in (torch.per_tensor_affine, torch.per_channel_affine):
        raise ArgumentError(
            "input must be quantized per_tensor_affine or per_channel_affine, got "
            f"{tensors.name_of(scheme)}"
        )
    axis = input.q_per_channel_axis() if scheme is torch.per_channel_affine else CHANNEL_AXIS
    if axis != CHANNEL_AXIS:
        raise ArgumentError(
            f"input must be quantized along axis {CHANNEL_AXIS}, its channels, got axis {axis}"
        )
    return quantized_types


def narrowed(name: str, zero_point: int | Tensor, dtype: torch.dtype) -> int | Tensor:
    """``zero_point`` as the integer operator takes it: a tensor of integers becomes one of
    ``dtype`` (rule Q4).
    """
    if not isinstance(zero_point, Tensor) or zero_point.dtype not in tensors.INTEGER_TYPES:
        return zero_point
    if zero_point.dtype is not dtype and is_readable(zero_point):
        for number in zero_point.flatten().tolist():
            check_range(name, number, dtype)
    return zero_point.to(dtype)


def _parameters(input: Tensor) -> tuple[float | Tensor, int | Tensor]:
    """Scale and zero point: two numbers, or one vector each."""
    if input.qscheme() is torch.per_channel_affine:
        return input.q_per_channel_scales(), input.q_per_channel_zero_points()
    return input.q_scale(), input.q_zero_point()


def _integers(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The integers of a quantized tensor, without a copy (``int_repr`` makes one) and with its
    strides.
    """
    return torch.empty(0, dtype=dtype, device=tensor.device).set_(
        tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )


def _packed(
    integers: Tensor, scale: Any, zero_point: Any, dtype: torch.dtype, per_channel: bool
) -> Tensor:
    """A quantized tensor that shares the memory of ``integers``; with ``per_channel`` scale and
    zero point are expanded to one for each channel.
    """
    _hide_the_warning()
    how = {"dtype": dtype, "device": integers.device}
    if per_channel:
        channels = integers.shape[1]
        how["scales"], how["zero_points"] = (
            torch.as_tensor(parameter, dtype=kind, device=integers.device)
            .reshape(-1)
            .expand(channels)
            .contiguous()
            for parameter, kind in ((scale, torch.float64), (zero_point, torch.int64))
        )
        packed = empty_per_channel_affine_quantized([0, channels], axis=CHANNEL_AXIS, **how)
    else:
        how["scale"], how["zero_point"] = float(scale), int(zero_point)
        packed = empty_affine_quantized([0], **how)
    return packed.set_(
        integers.untyped_storage(), integers.storage_offset(), integers.shape, integers.stride()
    )


@functools.cache
def _hide_the_warning() -> None:
    """Provoke PyTorch's warning about quantized tensors here, where it is hidden.

    PyTorch gives it once per process, and who made a quantized tensor has seen it already.
    """
    # The filters of warnings belong to the whole process, other threads included, so they are not
    # changed around every call.
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="torch.quantize_per_tensor, torch.quantize_per_channel and other"
        )
        empty_affine_quantized([0], scale=1.0, zero_point=0, dtype=torch.quint8, device="cpu")
