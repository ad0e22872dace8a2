"""Maxima and their inverse with DirectML's names."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torch_dmlpool import operands, overloads
from torch_dmlpool.keywords import operator
from torch_dmlpool.ops import adaptive_pooling as _adaptive
from torch_dmlpool.ops import complex_pooling as _complex
from torch_dmlpool.ops import masked_pooling as _masked
from torch_dmlpool.ops import max_pooling as _max
from torch_dmlpool.ops import max_unpooling as _unpooling
from torch_dmlpool.ops import min_pooling as _min
from torch_dmlpool.ops.calls import Call, prepared
from torch_dmlpool.window import ArgumentError, Integers, OutputSize, Window, check_spatial_sizes

Pooled: TypeAlias = Tensor | tuple[Tensor, Tensor]


@overloads.pooling
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
    """Maximum of the elements in a sliding window, and its index if ``return_indices`` is True
    (``DML_MAX_POOLING2``).

    The input always has a batch: three dimensions are ``(N, C, W)``, never an image.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; float32, float16, bfloat16,
            float64, bool, or any signed or unsigned integer type of 8 to 64 bits. The maximum of
            bools is whether any is True.
        window_size: Size of the window, at least 1. This and the next four arguments are one int
            for all spatial dimensions or one each, in ``D, H, W`` order.
        strides: Step from one window to the next, at least 1.
        start_padding: Padding before the first element, at least 0. Any amount is allowed.
        end_padding: Padding after the last element.
        dilations: Step from one element of a window to the next, at least 1.
        ceil_mode: Whether a last window may reach past the padded input, if it starts inside the
            input or the padding before it. What lies there never counts.
        return_indices: Whether to return the indices of the maxima too.
        index_dtype: int32, int64, uint32 or uint64.
        mask: A bool tensor of the input's dimensions, where sizes of 1 broadcast, or of the spatial
            ones alone. An element where it is False is left out, NaN too: it never wins, adds
            nothing, is not counted and has no gradient.

    Returns:
        ``(N, C, *output)`` of the input's data type, where
        ``output = (size + start_padding + end_padding - extent) // strides + 1`` and
        ``extent = (window_size - 1) * dilations + 1``;
        with ``return_indices`` the pair of it and its indices, which count from 0 over the whole
        input read as a contiguous ``N, C, D, H, W`` array. Among equal maxima the one with the
        lowest index wins (−0.0 equals 0.0), the first NaN wins over everything. Padding never wins:
        a window that reads no element gives −inf, False or the type's lowest value, and index −1
        (all ones if unsigned).

    It can be differentiated to any order, except for integers and bools. The gradient goes to the
    winning elements (:func:`max_pooling_grad`).

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or device, or no window fits. It is a RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> row = torch.tensor([[[1., 4., 2., 3.]]])
        >>> dmlpool.max_pooling(row, window_size=2, return_indices=True)
        (tensor([[[4., 4., 3.]]]), tensor([[[1, 1, 3]]]))

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_max_pooling2_operator_desc
    """
    window = window_size, strides, start_padding, end_padding, dilations, ceil_mode
    asked = return_indices, *window
    call = (
        prepared(_prepared_maxima, input, *asked, dtypes=(index_dtype,)) if mask is None else None
    )
    if call is not None:
        return call(input)
    request = numbered_windows(input, *asked, index_dtype)
    mask = operands.checked_mask(mask, input)
    return _min.maxima(lambda each: _masked.maxima(each, mask, *request), input)


def numbered_windows(input: Tensor, return_indices: bool, *asked: Any) -> tuple[Any, ...]:
    """The window and, with ``return_indices``, the index type and that indices count in the whole
    tensor, checked.
    """
    *window, index_dtype = asked
    operands.check_pooled("input", input, operands.ORDERED_TYPES)
    operands.check_flag("return_indices", return_indices)
    made = Window.directml(input.dim() - 2, *window)
    operands.check_index_type(index_dtype, input.shape)
    if not return_indices:
        return (made,)
    operands.check_taps(made.taps)
    return made, index_dtype, False


def _prepared_maxima(like: Tensor, device: str, *asked: Any) -> Call | None:
    return _max.prepared(like, device, *numbered_windows(like, *asked))


@operator
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
        input_gradient: The gradient of the forward output, of its sizes; the input's data type and
            device.
        window_size: Size of the window, at least 1. This and the next four arguments are one int
            for all spatial dimensions or one each, in ``D, H, W`` order.
        strides: Step from one window to the next, at least 1.
        start_padding: Padding before the first element, at least 0. Any amount is allowed.
        end_padding: Padding after the last element.
        dilations: Step from one element of a window to the next, at least 1.
        ceil_mode: Whether a last window may reach past the padded input, if it starts inside the
            input or the padding before it. What lies there never counts.

    Returns:
        A tensor of the input's sizes: each window's gradient at its winning element, added up where
        windows share one (in float32 for float16 and bfloat16), 0 elsewhere. It is constant in
        ``input``.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or device, or no window fits. It is a RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> row = torch.tensor([[[1., 4., 2., 3.]]])
        >>> dmlpool.max_pooling_grad(row, torch.tensor([[[1., 2., 5.]]]), window_size=2)
        tensor([[[0., 3., 0., 5.]]])

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_max_pooling_grad_operator_desc
    """
    operands.check_pooled("input", input, operands.FLOAT_TYPES)
    operands.check_pooled("input_gradient", input_gradient, operands.FLOAT_TYPES)
    window = Window.directml(
        input.dim() - 2, window_size, strides, start_padding, end_padding, dilations, ceil_mode
    )
    _max.max_pooling_grad.output_sizes(input, input_gradient, window)
    return _max.max_pooling_grad(input, input_gradient, window)


@overloads.adaptive_pooling
def adaptive_max_pooling(
    input: Tensor,
    output_size: OutputSize,
    *,
    return_indices: bool = False,
    index_dtype: torch.dtype = torch.int64,
    mask: Tensor | None = None,
) -> Pooled:
    """Maximum over ``output_size`` windows that cover the input evenly; 1 is the maximum of whole
    planes.

    The input always has a batch: three dimensions are ``(N, C, W)``, never an image.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; the data types of
            :func:`max_pooling`.
        output_size: Number of windows, as in :func:`adaptive_average_pooling`.
        return_indices: Whether to return the indices of the maxima too.
        index_dtype: int32, int64, uint32 or uint64.
        mask: A bool tensor of the input's dimensions, where sizes of 1 broadcast, or of the spatial
            ones alone. An element where it is False is left out, NaN too: it never wins, adds
            nothing, is not counted and has no gradient.

    Returns:
        ``(N, C, *output_size)`` of the input's data type; with ``return_indices`` the pair of it
        and its indices. They count, and ties and NaN are decided, as in :func:`max_pooling`.

    It can be differentiated to any order, except for integers and bools. The gradient goes to the
    winning elements, added up in a fixed order.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or device, or no window fits. It is a RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> row = torch.tensor([[[3., 1., 4., 1., 5.]]])
        >>> dmlpool.adaptive_max_pooling(row, 3, return_indices=True)
        (tensor([[[3., 4., 5.]]]), tensor([[[0, 2, 4]]]))
    """
    asked = output_size, return_indices
    call = prepared(_prepared_bins, input, *asked, dtypes=(index_dtype,)) if mask is None else None
    if call is not None:
        return call(input)
    request = numbered_bins(input, *asked, index_dtype)
    mask = operands.checked_mask(mask, input)
    return _min.maxima(lambda each: _masked.adaptive_maxima(each, mask, *request), input)


def numbered_bins(
    input: Tensor, output_size: OutputSize, return_indices: bool, index_dtype: torch.dtype
) -> tuple[Any, ...]:
    """The output size, the number of spatial dimensions, and with ``return_indices`` as
    ``numbered_windows``, checked.
    """
    operands.check_pooled("input", input, operands.ORDERED_TYPES)
    operands.check_flag("return_indices", return_indices)
    operands.check_index_type(index_dtype, input.shape)
    return output_size, input.dim() - 2, *((index_dtype, False) if return_indices else ())


def _prepared_bins(like: Tensor, device: str, *asked: Any) -> Call | None:
    return _adaptive.prepared_maxima(like, device, *numbered_bins(like, *asked))


@operator
def max_unpooling(input: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    """Every element at the position of its maximum, zeros elsewhere (``DML_MAX_UNPOOLING``).

    The input always has a batch: three dimensions are ``(N, C, W)``, never an image.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; float32, float16, bfloat16,
            float64, complex64, complex128, or any integer type of 8 to 64 bits.
        indices: The same shape as ``input``; int32, int64, uint32 or uint64. Positions in the whole
            output, flattened in ``N, C, D, H, W`` order, as :func:`max_pooling` returns them. -1
            (all ones if unsigned) is skipped. A position outside the plane of its own sample and
            channel is an error on the CPU in eager mode, and is skipped elsewhere.
        output_size: All sizes of the output, ``(N, C, *spatial)``; N and C are the input's.

    Returns:
        A tensor of ``output_size`` and the input's data type. Where several elements have the same
        index, the last of them in row-major order is written, and it alone has a gradient. It can
        be differentiated to any order.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or device, or no window fits. It is a RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> row = torch.tensor([[[1., 4., 2., 3.]]])
        >>> dmlpool.max_unpooling(*dmlpool.max_pooling(row, 2, 2, return_indices=True), row.shape)
        tensor([[[0., 4., 0., 3.]]])

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_max_unpooling_operator_desc
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
