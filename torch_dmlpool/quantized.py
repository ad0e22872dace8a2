"""Quantized tensors (``torch.quint8``, ``torch.qint8``): their integers pooled by the integer operator, packed again.

PyTorch has announced their end. This module alone touches them, and it names nothing of them before it is called: on a
PyTorch without quantized data types the package works, and only this function refuses.
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import functional, operands
from torch_dmlpool.functional import Integers
from torch_dmlpool.ops import registration
from torch_dmlpool.window import Window

CHANNEL_AXIS = 1
ATEN_TAPS = 16
"""Taps of windows that share no element from which ATen's loop over them beats the passes along each axis."""
ATEN_WORK = 2**18
"""Elements times taps below which ATen's loop is over before the passes have begun."""
MOST_ATEN_TAPS = 2**10
"""Taps up to which float32 tells a quotient from its neighbouring halves."""


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
    """Average pooling of a quantized tensor: :func:`quantized_linear_average_pooling` with the tensor's own numbers.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; quint8 or qint8, quantized per tensor or per channel
            (along axis 1).
        window_size: As in :func:`average_pooling`, and so are all arguments down to ``ceil_mode``.
        strides: See there.
        start_padding: See there. Padding is the real number 0 whatever the zero point is.
        end_padding: See there.
        dilations: See there.
        include_padding: See there.
        ceil_mode: See there.
        output_scale: The output's scale, finite and above 0: a number or a tensor of one element for all channels, or
            ``(C,)`` for one each; the input's unless given.
        output_zero_point: The output's zero point, in the same forms, of any integer type; the input's unless given.
        output_dtype: quint8 or qint8 (or uint8 or int8, which they hold); the input's unless given.

    Returns:
        ``(N, C, *output)``, quantized per channel where its scale or its zero point is per channel and per tensor
        otherwise, in the input's memory format. Equal bit for bit to exact arithmetic on the scales rounded to float32,
        rounded half to even before the zero point is added.

    Raises:
        TypeError: Not a quantized tensor, or data types that are not supported.
        ValueError: Another scheme or axis, a scale or zero point out of range, or a window argument out of range.
        NotImplementedError: This PyTorch has no quantized tensors.

    Quantized tensors have no gradient, and torch.compile does not take them: there, and for every new program, use
    :func:`quantized_linear_average_pooling` on the integers. PyTorch (since 2.13) warns when the first quantized tensor
    of a process is created; of the tensors created in here it does not.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> image = torch.quantize_per_tensor(torch.tensor([[[[0., 1.], [2., 4.]]]]), 0.5, 10, torch.quint8)
        >>> dmlpool.quantized_average_pooling(image, window_size=2).int_repr()  # 10 + 1.75 / 0.5, half to even
        tensor([[[[14]]]], dtype=torch.uint8)

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_quantized_linear_average_pooling_operator_desc

    """
    plain_types = check_quantized(input)
    window = Window.directml(input.dim() - 2, window_size, strides, start_padding, end_padding, dilations, ceil_mode)
    return _average(input, plain_types, window, include_padding, output_scale, output_zero_point, output_dtype)


def quantized_average_pooling_over(input: Tensor, window: Window, include_padding: bool, *output: Any) -> Tensor:
    """:func:`quantized_average_pooling` over a window that is built already; ``output`` as there."""
    return _average(input, check_quantized(input), window, include_padding, *output)


def _average(
    input: Tensor,
    plain_types: dict[torch.dtype, torch.dtype],
    window: Window,
    include_padding: bool,
    output_scale: float | Tensor | None = None,
    output_zero_point: int | Tensor | None = None,
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    operands.check_flag("include_padding", include_padding)
    output_type = input.dtype if output_dtype is None else _quantized_type(output_dtype, plain_types)
    inherits_all = output_scale is None and output_zero_point is None and output_type is input.dtype
    if inherits_all and input.is_cpu and input.qscheme() is torch.per_tensor_affine:
        layout = (input.dtype, input.shape, input.stride(), input.q_zero_point())
        atens = _atens(window, include_padding, *layout)
        if atens is not None:
            pool, arguments = atens
            return pool(input, *arguments)
    window.output_sizes(input.shape[2:])
    input_scale, input_zero_point = _parameters(input)
    # A single channel has vectors of one element, which alone would not tell that it is quantized per channel.
    inherits = output_scale is None or output_zero_point is None
    per_channel = inherits and input.qscheme() is torch.per_channel_affine
    output_scale = input_scale if output_scale is None else output_scale
    output_zero_point = input_zero_point if output_zero_point is None else output_zero_point
    per_channel = per_channel or any(
        isinstance(parameter, Tensor) and parameter.numel() != 1 for parameter in (output_scale, output_zero_point)
    )
    pooled = functional.quantized_linear_average_pooling_over(
        _integers(input, plain_types[input.dtype]),
        input_scale,
        narrowed("input_zero_point", input_zero_point, plain_types[input.dtype]),
        output_scale,
        narrowed("output_zero_point", output_zero_point, plain_types[output_type]),
        window,
        include_padding,
        plain_types[output_type],
    )
    return _packed(pooled, output_scale, output_zero_point, output_type, per_channel)


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
) -> Any:
    """Max pooling of a quantized tensor, whose scale and zero point the result keeps: :func:`max_pooling` of integers.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; quint8 or qint8, quantized per tensor or per channel
            (along axis 1).
        window_size: As in :func:`max_pooling`, and so are all arguments after it.
        strides: See there.
        start_padding: See there.
        end_padding: See there.
        dilations: See there.
        ceil_mode: See there.
        return_indices: See there.
        index_dtype: See there.

    Returns:
        ``(N, C, *output)``, quantized as the input is; with ``return_indices`` the pair of it and its indices. It is
        exact: scales are above 0, so that the greatest integer stands for the greatest number. A window that reads no
        element gives the lowest number that the input's quantization knows.

    Raises:
        TypeError: Not a quantized tensor, or an argument of the wrong type.
        ValueError: Another scheme or axis, or a window argument out of range.
        NotImplementedError: This PyTorch has no quantized tensors.

    Quantized tensors have no gradient, and torch.compile does not take them: there use :func:`max_pooling`, which takes
    the integers as they are.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> image = torch.quantize_per_tensor(torch.tensor([[[[0., 1.], [2., 4.]]]]), 0.5, 10, torch.quint8)
        >>> dmlpool.quantized_max_pooling(image, window_size=2).dequantize()
        tensor([[[[4.]]]])

    """
    integers = _integers(input, check_quantized(input)[input.dtype])
    operands.check_flag("return_indices", return_indices)
    window = Window.directml(input.dim() - 2, window_size, strides, start_padding, end_padding, dilations, ceil_mode)
    operands.check_index_type(index_dtype, input.shape)
    indices = None
    if return_indices:
        values, indices = functional.max_pooling_with_indices_over(integers, window, index_dtype, per_plane=False)
    else:
        values = functional.max_pooling_over(integers, window)
    scale, zero_point = _parameters(input)
    packed = _packed(values, scale, zero_point, input.dtype, input.qscheme() is torch.per_channel_affine)
    return packed if indices is None else (packed, indices)


@functools.lru_cache(maxsize=1024)
def _atens(
    window: Window,
    include_padding: bool,
    dtype: torch.dtype,
    shape: torch.Size,
    strides: tuple[int, ...],
    zero_point: int,
) -> tuple[Any, tuple[Any, ...]] | None:
    """PyTorch's own operator and its arguments for a CPU tensor, where it is faster and exact; else None."""
    divisors = _divisors(window, tuple(shape[2:]), include_padding)
    vectors = operands.suggested_memory_format(torch.empty_strided(shape, strides, device="meta"))
    if not _aten_is_faster(window, shape, vectors is not torch.contiguous_format):
        return None
    if not _aten_is_exact(divisors, zero_point, lowest=0 if dtype is torch.quint8 else -128):
        return None
    _pass_the_warning()
    pools: Any = torch._C._nn
    sizes, steps, padding, *_ = window.arguments
    return pools.avg_pool2d if window.rank == 2 else pools.avg_pool3d, (sizes, steps, padding, False, include_padding)


def _aten_is_faster(window: Window, shape: torch.Size, channels_last: bool) -> bool:
    """Where it reads whole vectors, and for few elements or windows that hardly share them."""
    if window.rank == 1 or 0 in shape:
        return False
    if not window.has_pytorchs_padding or any(axis.dilation > 1 or axis.ceil_mode for axis in window.axes):
        return False
    if channels_last:
        return True
    # Without padding, vectors of rows are faster.
    apart = all(axis.stride >= axis.window for axis in window.axes) and any(axis.start_padding for axis in window.axes)
    return (apart and window.taps >= ATEN_TAPS) or math.prod(shape) * window.taps <= ATEN_WORK


def _aten_is_exact(divisors: frozenset[int], zero_point: int, lowest: int) -> bool:
    """Whether ATen, which multiplies by a reciprocal and may add the zero point before it rounds, gets every sum right.

    A quotient by an odd number is never half way between two integers, and never near enough for float32 to err. By a
    power of two it is exact, and an even zero point does not change which neighbour of a half is even (rule Q1).
    """
    # A zero point outside its type is refused elsewhere.
    if max(divisors) > MOST_ATEN_TAPS or not lowest <= zero_point <= lowest + 255:
        return False
    return all(divisor % 2 == 1 or (divisor & (divisor - 1) == 0 and zero_point % 2 == 0) for divisor in divisors)


@functools.lru_cache(maxsize=256)
def _divisors(window: Window, sizes: tuple[int, ...], include_padding: bool) -> frozenset[int]:
    """The numbers of taps that windows count."""
    window.output_sizes(sizes)
    counts = [
        {axis.counted_taps(output, size, include_padding) for output in range(axis.output_size(size))}
        for axis, size in zip(window.axes, sizes, strict=True)
    ]
    return frozenset(math.prod(per_axis) for per_axis in itertools.product(*counts))


def check_quantized(input: Tensor) -> dict[torch.dtype, torch.dtype]:
    """Refuse what cannot be pooled here (rule Q5); return the integer type that each quantized type holds."""
    quantized_types = {
        getattr(torch, name): integers
        for name, integers in (("quint8", torch.uint8), ("qint8", torch.int8))
        if hasattr(torch, name)
    }
    if not quantized_types:
        raise NotImplementedError(
            f"PyTorch {torch.__version__} has no quantized tensors (torch.quint8, torch.qint8); "
            "quantized_linear_average_pooling pools int8 and uint8 tensors with scales and zero points of their own"
        )
    operands.check_pooled("input", input, tuple(quantized_types))
    scheme = input.qscheme()
    if scheme is torch.per_tensor_affine:
        return quantized_types
    if scheme is not torch.per_channel_affine:
        raise ValueError(f"input must be quantized per_tensor_affine or per_channel_affine, got {_name(scheme)}")
    if input.q_per_channel_axis() != CHANNEL_AXIS:
        raise ValueError(
            f"input must be quantized along axis {CHANNEL_AXIS}, its channels, got axis {input.q_per_channel_axis()}"
        )
    return quantized_types


def is_quantized(input: Tensor) -> bool:
    """Whether ``input`` is a quantized tensor, on a PyTorch without them too."""
    return getattr(input, "is_quantized", False)


def is_readable(parameter: Tensor) -> bool:
    """Whether the numbers of a scale or zero point can be looked at: not in a trace, nor where that would wait."""
    return parameter.is_cpu and registration.is_bare(parameter)


def narrowed(name: str, zero_point: int | Tensor | None, dtype: torch.dtype) -> int | Tensor | None:
    """``zero_point`` as the integer operator takes it: a tensor of integers becomes one of ``dtype`` (rule Q4)."""
    if not isinstance(zero_point, Tensor) or zero_point.dtype not in operands.INTEGER_TYPES:
        return zero_point
    if zero_point.dtype is dtype:
        return zero_point
    bounds = torch.iinfo(dtype)
    if is_readable(zero_point):
        outside = [value for value in zero_point.flatten().tolist() if not bounds.min <= value <= bounds.max]
        if outside:
            raise ValueError(
                f"{name} must be {bounds.min} to {bounds.max}, the range of {_name(dtype)}, got {outside[0]}"
            )
    return zero_point.to(dtype)


def _quantized_type(dtype: torch.dtype, plain_types: dict[torch.dtype, torch.dtype]) -> torch.dtype:
    """The quantized type that ``dtype`` names, itself or by the integers that it holds."""
    for quantized_type, plain_type in plain_types.items():
        if dtype is quantized_type or dtype is plain_type:
            return quantized_type
    given = _name(dtype) if isinstance(dtype, torch.dtype) else repr(dtype)
    raise TypeError(f"output_dtype must be one of {', '.join(map(_name, plain_types))}, got {given}")


def _parameters(input: Tensor) -> tuple[float | Tensor, int | Tensor]:
    """Scale and zero point: two numbers, or one vector each."""
    if input.qscheme() is torch.per_channel_affine:
        return input.q_per_channel_scales(), input.q_per_channel_zero_points()
    return input.q_scale(), input.q_zero_point()


def _integers(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The integers of a quantized tensor, without a copy (``int_repr`` makes one) and with its strides."""
    plain = torch.empty(0, dtype=dtype, device=tensor.device)
    return plain.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _packed(
    integers: Tensor,
    scale: float | Tensor,
    zero_point: int | Tensor,
    dtype: torch.dtype,
    per_channel: bool,
) -> Tensor:
    """``integers`` as a quantized tensor, which takes their memory over."""
    _pass_the_warning()
    if per_channel:
        channels = integers.shape[1]
        packed = torch._empty_per_channel_affine_quantized(
            [0, channels],
            scales=_spread(scale, channels, torch.float64, integers.device),
            zero_points=_spread(zero_point, channels, torch.int64, integers.device),
            axis=CHANNEL_AXIS,
            dtype=dtype,
            device=integers.device,
        )
    else:
        packed = torch._empty_affine_quantized(
            [0], scale=float(scale), zero_point=int(zero_point), dtype=dtype, device=integers.device
        )
    return packed.set_(integers.untyped_storage(), integers.storage_offset(), integers.shape, integers.stride())


@functools.cache
def _pass_the_warning() -> None:
    """Have PyTorch give its warning, once per process, where nobody hears it: who pools such a tensor has met it."""
    # Not around every call: the filters of warnings belong to the whole process, other threads included.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.quantize_per_tensor, torch.quantize_per_channel and other")
        torch._empty_affine_quantized([0], scale=1.0, zero_point=0, dtype=torch.quint8)


def _spread(parameter: float | Tensor, channels: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """One number per channel."""
    return torch.as_tensor(parameter, dtype=dtype, device=device).reshape(-1).expand(channels).contiguous()


def _name(value: object) -> str:
    return str(value).removeprefix("torch.")
