"""The pooling operators in DirectML's words: each checks its operands and calls the operator."""

from collections.abc import Sequence
from typing import Literal, TypeAlias, overload

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.docstrings import operator
from torch_dmlpool.ops import average_pooling as _average
from torch_dmlpool.ops import complex_pooling as _complex
from torch_dmlpool.ops import masked_pooling as _masked
from torch_dmlpool.ops import max_pooling as _max
from torch_dmlpool.ops import max_unpooling as _unpooling
from torch_dmlpool.ops import min_pooling as _min
from torch_dmlpool.ops import quantized_average_pooling as _quantized
from torch_dmlpool.window import ArgumentError, Window, check_spatial_sizes

__all__ = [
    "adaptive_average_pooling",
    "adaptive_max_pooling",
    "average_pooling",
    "average_pooling_grad",
    "lp_pooling",
    "max_pooling",
    "max_pooling_grad",
    "max_unpooling",
    "quantized_linear_average_pooling",
]

# one for every spatial dimension, or one each in D, H, W order
Integers: TypeAlias = int | Sequence[int]
OutputSize: TypeAlias = int | Sequence[int | None] | None  # likewise; None keeps the input's size
Pooled: TypeAlias = Tensor | tuple[Tensor, Tensor]


@operator("average_pooling")
def average_pooling(
    input: Tensor,
    window_size: Integers,
    strides: Integers = 1,
    start_padding: Integers = 0,
    end_padding: Integers = 0,
    dilations: Integers = 1,
    include_padding: bool = False,
    *,
    ceil_mode: bool = False,
    divisor_override: int | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Average of the elements in a sliding window (``DML_AVERAGE_POOLING``, with the dilations of
    ``…POOLING1``).

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; float32, float16, bfloat16,
            float64, complex64 or complex128.
        PADDED
        divisor_override: Divide every sum by this instead of the count; not 0.
        MASK

    Returns:
        ``(N, C, *output)`` of the input's data type, where SIZES.
        A window that counts no tap gives 0. float16 and bfloat16 are summed in float32 and rounded
        once.

    The gradient is :func:`average_pooling_grad`. All derivatives exist, in reverse and forward
    mode.

    >>> dmlpool.average_pooling(torch.tensor([[[1., 3., 5., 9.]]]), window_size=2)
    tensor([[[2., 4., 7.]]])
    """
    operands.check_pooled("input", input, operands.AVERAGED_TYPES)
    operands.check_flag("include_padding", include_padding)
    operands.check_divisor(divisor_override)
    window = Window.directml(
        input.dim() - 2, window_size, strides, start_padding, end_padding, dilations, ceil_mode
    )
    request = window, include_padding, divisor_override
    if mask is None and not input.is_complex():
        return _average.average_pooling(input, *request)
    mask = operands.checked_mask(mask, input)
    return _complex.by_parts(lambda each: _masked.averages(each, mask, *request), input)


@operator("average_pooling_grad")
def average_pooling_grad(
    input_gradient: Tensor,
    input_size: Sequence[int],
    window_size: Integers,
    strides: Integers = 1,
    start_padding: Integers = 0,
    end_padding: Integers = 0,
    dilations: Integers = 1,
    include_padding: bool = False,
    *,
    ceil_mode: bool = False,
    divisor_override: int | None = None,
) -> Tensor:
    """Gradient of :func:`average_pooling` with respect to its input (``DML_AVERAGE_POOLING_GRAD``).

    Args:
        input_gradient: The gradient that arrives, of the forward output's sizes; float32, float16,
            bfloat16, float64, complex64 or complex128.
        input_size: Sizes of the forward input, all of them: ``(N, C, *spatial)``.
        PADDED
        divisor_override: The forward pass divided by this instead of the count; not 0.

    Returns:
        A tensor of ``input_size``: the exact adjoint of the average, which is its gradient in turn.
        float16 and bfloat16 are added up in float32.

    >>> dmlpool.average_pooling_grad(torch.tensor([[[2., 4., 8.]]]), (1, 1, 4), window_size=2)
    tensor([[[1., 3., 6., 4.]]])
    """
    operands.check_pooled("input_gradient", input_gradient, operands.AVERAGED_TYPES)
    operands.check_flag("include_padding", include_padding)
    operands.check_divisor(divisor_override)
    rest = (window_size, strides, start_padding, end_padding, dilations, ceil_mode)
    window = Window.directml(input_gradient.dim() - 2, *rest)
    sizes = operands.checked_full_size("input_size", input_size, input_gradient)
    operands.check_sizes(
        "input_gradient", input_gradient, [*sizes[:2], *window.output_sizes(sizes[2:])]
    )
    request = sizes[2:], window, include_padding, divisor_override
    return _complex.by_parts(
        lambda each: _average.average_pooling_grad(each, *request), input_gradient
    )


@overload
def max_pooling(
    input: Tensor,
    window_size: Integers,
    strides: Integers = ...,
    start_padding: Integers = ...,
    end_padding: Integers = ...,
    dilations: Integers = ...,
    *,
    ceil_mode: bool = ...,
    return_indices: Literal[False] = ...,
    index_dtype: torch.dtype = ...,
    mask: Tensor | None = ...,
) -> Tensor: ...
@overload
def max_pooling(
    input: Tensor,
    window_size: Integers,
    strides: Integers = ...,
    start_padding: Integers = ...,
    end_padding: Integers = ...,
    dilations: Integers = ...,
    *,
    ceil_mode: bool = ...,
    return_indices: Literal[True],
    index_dtype: torch.dtype = ...,
    mask: Tensor | None = ...,
) -> tuple[Tensor, Tensor]: ...
@overload
def max_pooling(
    input: Tensor,
    window_size: Integers,
    strides: Integers = ...,
    start_padding: Integers = ...,
    end_padding: Integers = ...,
    dilations: Integers = ...,
    *,
    ceil_mode: bool = ...,
    return_indices: bool,
    index_dtype: torch.dtype = ...,
    mask: Tensor | None = ...,
) -> Pooled: ...


@operator("max_pooling2")
def max_pooling(
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
    mask: Tensor | None = None,
) -> Pooled:
    """Maximum of the elements in a sliding window, with its index where wanted
    (``DML_MAX_POOLING2``).

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; float32, float16, bfloat16,
            float64, bool, or any signed or unsigned integer type of 8 to 64 bits. The maximum of
            bools is whether any is True.
        WINDOW
        return_indices: Whether to return the indices of the maxima too.
        index_dtype: int32, int64, uint32 or uint64.
        MASK

    Returns:
        ``(N, C, *output)`` of the input's data type, where SIZES;
        with ``return_indices`` the pair of it and its indices, which count from 0 over the whole
        input read as a contiguous ``N, C, D, H, W`` array. Of equal maxima the one with the lowest
        index wins (−0.0 equals 0.0), the first NaN wins over everything. Padding never wins: a
        window that reads no element gives −inf, False or the type's lowest value, and index −1 (all
        ones if unsigned).

    The gradient is :func:`max_pooling_grad`, to the winning elements. All derivatives exist, but of
    integers and bools.

    >>> dmlpool.max_pooling(torch.tensor([[[1., 4., 2., 3.]]]), window_size=2, return_indices=True)
    (tensor([[[4., 4., 3.]]]), tensor([[[1, 1, 3]]]))
    """
    operands.check_pooled("input", input, operands.ORDERED_TYPES)
    operands.check_flag("return_indices", return_indices)
    window = Window.directml(
        input.dim() - 2, window_size, strides, start_padding, end_padding, dilations, ceil_mode
    )
    if return_indices or index_dtype is not torch.int64:
        operands.check_index_type(index_dtype, input.shape)
    if return_indices:
        operands.check_taps(window.taps)
    numbering = (index_dtype, False) if return_indices else ()
    if mask is None and input.dtype is not torch.bool:
        return _max.maxima(input, window, *numbering)
    mask = operands.checked_mask(mask, input)
    return _min.maxima(lambda each: _masked.maxima(each, mask, window, *numbering), input)


@operator("max_pooling_grad")
def max_pooling_grad(
    input: Tensor,
    input_gradient: Tensor,
    window_size: Integers,
    strides: Integers = 1,
    start_padding: Integers = 0,
    end_padding: Integers = 0,
    dilations: Integers = 1,
    *,
    ceil_mode: bool = False,
) -> Tensor:
    """Gradient of :func:`max_pooling` with respect to its input (``DML_MAX_POOLING_GRAD``); needs
    no indices.

    Args:
        input: The forward input, ``(N, C, *spatial)``; float32, float16, bfloat16 or float64.
        input_gradient: The gradient that arrives: the forward output's sizes, the input's data type
            and device.
        WINDOW

    Returns:
        A tensor of the input's sizes: each window's gradient at its winning element, added up where
        windows share one (in float32 for float16 and bfloat16), 0 elsewhere. It is constant in
        ``input``.

    >>> row = torch.tensor([[[1., 4., 2., 3.]]])
    >>> dmlpool.max_pooling_grad(row, torch.tensor([[[1., 2., 5.]]]), window_size=2)
    tensor([[[0., 3., 0., 5.]]])
    """
    operands.check_pooled("input", input, operands.FLOAT_TYPES)
    operands.check_pooled("input_gradient", input_gradient, operands.FLOAT_TYPES)
    window = Window.directml(
        input.dim() - 2, window_size, strides, start_padding, end_padding, dilations, ceil_mode
    )
    _max.max_pooling_grad.check(input, input_gradient, window)
    return _max.max_pooling_grad(input, input_gradient, window)


@operator("quantized_linear_average_pooling")
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
    """Average of integers that stand for ``scale * (integer - zero_point)``
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
        PADDED
        output_dtype: int8 or uint8; that of ``output_zero_point`` if it is a tensor, else the
            input's, unless given.

    Returns:
        ``(N, C, *output)`` of ``output_dtype``, where SIZES:
        ``round(average / output_scale) + output_zero_point``, cut off at the ends of the type, as
        in exact arithmetic; halves are rounded to even before the zero point is added. Padding
        stands for the real number 0.

    There is no gradient; a scale that requires one is a RuntimeError.

    >>> # 0, 1, 2 and 4 in steps of 0.5 from 10; 1.75 / 0.25 + 3
    >>> image = torch.tensor([[[[10, 12], [14, 18]]]], dtype=torch.uint8)
    >>> dmlpool.quantized_linear_average_pooling(image, 0.5, 10, 0.25, 3, window_size=2)
    tensor([[[[10]]]], dtype=torch.uint8)
    """
    operands.check_pooled("input", input, operands.QUANTIZED_TYPES)
    operands.check_flag("include_padding", include_padding)
    window = Window.directml(
        input.dim() - 2, window_size, strides, start_padding, end_padding, dilations, ceil_mode
    )
    parameters = (input_scale, input_zero_point, output_scale, output_zero_point)
    parameters, dtype = operands.checked_quantization(input, parameters, output_dtype)
    return _quantized.quantized_linear_average_pooling(
        input, parameters, window, include_padding, dtype
    )


@operator("lp_pooling")
def lp_pooling(
    input: Tensor,
    window_size: Integers,
    strides: Integers = 1,
    start_padding: Integers = 0,
    end_padding: Integers = 0,
    dilations: Integers = 1,
    p: float = 2,
    *,
    ceil_mode: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """The p-norm of the elements in a sliding window (``DML_LP_POOLING``, with the dilations of
    ``…POOLING1``).

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; float32, float16, bfloat16 or
            float64.
        WINDOW
        p: The norm's exponent, a number of at least 1, or ``math.inf`` for the greatest absolute
            value.
        MASK

    Returns:
        ``(N, C, *output)`` of the input's data type: ``(Σ |x|^p) ^ (1/p)`` over the elements of
        each window, as DirectML and ONNX define it; a window that reads no element gives 0. float16
        and bfloat16 are powered and summed in float32 and rounded once. Powers are not scaled:
        ``|x|^p`` beyond the type's range gives infinity.

    The gradient is ``sign(x) · (|x| / norm) ^ (p - 1)``, 0 where the norm is 0. All derivatives
    exist.

    >>> dmlpool.lp_pooling(torch.tensor([[[[3., -4.], [0., 0.]]]]), window_size=2, p=2)
    tensor([[[[5.]]]])
    """
    operands.check_pooled("input", input, operands.FLOAT_TYPES)
    window = Window.directml(
        input.dim() - 2, window_size, strides, start_padding, end_padding, dilations, ceil_mode
    )
    operands.check_norm("p", p)
    mask = operands.checked_mask(mask, input)
    return _masked.norms(input, mask, window, float(p))


@operator()
def adaptive_average_pooling(
    input: Tensor, output_size: OutputSize, *, mask: Tensor | None = None
) -> Tensor:
    """Average of as many windows as are asked for, which cover the input evenly; 1 averages whole
    planes.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; the data types of
            :func:`average_pooling`.
        output_size: Windows, one int for all dimensions or one each; None keeps the input's size, 0
            gives none.
        MASK

    Returns:
        ``(N, C, *output_size)`` of the input's data type. Window ``i`` along an axis reads the
        elements from ``i * size // output_size`` up to, not including, ``ceil((i + 1) * size /
        output_size)``, as in PyTorch. float16 and bfloat16 are summed in float32 and rounded once.

    Where every size divides, it is :func:`average_pooling`. The gradient is the exact adjoint; all
    derivatives exist.

    >>> dmlpool.adaptive_average_pooling(torch.arange(5.).view(1, 1, 5), 3)
    tensor([[[0.5000, 2.0000, 3.5000]]])
    """
    operands.check_pooled("input", input, operands.AVERAGED_TYPES)
    asked = operands.checked_mask(mask, input), output_size, input.dim() - 2
    return _complex.by_parts(lambda each: _masked.adaptive_averages(each, *asked), input)


@overload
def adaptive_max_pooling(
    input: Tensor,
    output_size: OutputSize,
    *,
    return_indices: Literal[False] = ...,
    index_dtype: torch.dtype = ...,
    mask: Tensor | None = ...,
) -> Tensor: ...
@overload
def adaptive_max_pooling(
    input: Tensor,
    output_size: OutputSize,
    *,
    return_indices: Literal[True],
    index_dtype: torch.dtype = ...,
    mask: Tensor | None = ...,
) -> tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pooling(
    input: Tensor,
    output_size: OutputSize,
    *,
    return_indices: bool,
    index_dtype: torch.dtype = ...,
    mask: Tensor | None = ...,
) -> Pooled: ...


@operator()
def adaptive_max_pooling(
    input: Tensor,
    output_size: OutputSize,
    *,
    return_indices: bool = False,
    index_dtype: torch.dtype = torch.int64,
    mask: Tensor | None = None,
) -> Pooled:
    """Maximum of as many windows as are asked for, which cover the input evenly; 1 takes that of
    whole planes.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; the data types of
            :func:`max_pooling`.
        output_size: As in :func:`adaptive_average_pooling`, and so are the windows.
        return_indices: Whether to return the indices of the maxima too.
        index_dtype: As there.
        MASK

    Returns:
        ``(N, C, *output_size)`` of the input's data type; with ``return_indices`` the pair of it
        and its indices. They count, and ties and NaN are decided, as in :func:`max_pooling`.

    The gradient goes to the winning elements and is added up in a fixed order. All derivatives
    exist.

    >>> dmlpool.adaptive_max_pooling(torch.tensor([[[3., 1., 4., 1., 5.]]]), 3, return_indices=True)
    (tensor([[[3., 4., 5.]]]), tensor([[[0, 2, 4]]]))
    """
    operands.check_pooled("input", input, operands.ORDERED_TYPES)
    operands.check_flag("return_indices", return_indices)
    operands.check_index_type(index_dtype, input.shape)
    asked = (output_size, input.dim() - 2, *((index_dtype, False) if return_indices else ()))
    mask = operands.checked_mask(mask, input)
    return _min.maxima(lambda each: _masked.adaptive_maxima(each, mask, *asked), input)


@operator("max_unpooling")
def max_unpooling(input: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    """Every element at the place its maximum came from, zeros elsewhere (``DML_MAX_UNPOOLING``).

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; float32, float16, bfloat16,
            float64, complex64, complex128, or any integer type of 8 to 64 bits.
        indices: Of the input's shape; int32, int64, uint32 or uint64: what :func:`max_pooling`
            returns, numbers into the whole output read as a contiguous ``N, C, D, H, W`` array. -1
            (all ones if unsigned) is skipped. One outside the plane of its own sample and channel
            is refused on the CPU in eager mode, elsewhere skipped.
        output_size: All sizes of the output, ``(N, C, *spatial)``; N and C are the input's.

    Returns:
        A tensor of ``output_size`` and the input's data type. Where several elements have the same
        index, the last of them in row-major order is written, and it alone has a gradient. All
        derivatives exist.

    >>> row = torch.tensor([[[1., 4., 2., 3.]]])
    >>> dmlpool.max_unpooling(*dmlpool.max_pooling(row, 2, 2, return_indices=True), row.shape)
    tensor([[[0., 4., 0., 3.]]])
    """
    _unpooling.check(input, indices)
    sizes = operands.checked_full_size("output_size", output_size, input)
    if tuple(sizes[:2]) != tuple(input.shape[:2]):
        raise ArgumentError(
            f"output_size must begin with the input's N and C {tuple(input.shape[:2])}, got {sizes}"
        )
    check_spatial_sizes("the output", sizes[2:], input.dim() - 2)
    request = indices, sizes[2:], False
    return _complex.by_parts(lambda each: _unpooling.max_unpooling(each, *request), input)
