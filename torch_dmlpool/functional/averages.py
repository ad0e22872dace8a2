"""Averages and p-norms with DirectML's names."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.keywords import operator
from torch_dmlpool.ops import adaptive_pooling as _adaptive
from torch_dmlpool.ops import average_pooling as _average
from torch_dmlpool.ops import complex_pooling as _complex
from torch_dmlpool.ops import lp_pooling as _norm
from torch_dmlpool.ops import masked_pooling as _masked
from torch_dmlpool.ops.calls import Call, prepared
from torch_dmlpool.window import Integers, OutputSize, Window


@operator
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

    The input always has a batch: three dimensions are ``(N, C, W)``, never an image.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; float32, float16, bfloat16,
            float64, complex64 or complex128.
        window_size: Size of the window, at least 1. This and the next four arguments are one int
            for all spatial dimensions or one each, in ``D, H, W`` order.
        strides: Step from one window to the next, at least 1.
        start_padding: Padding before the first element, at least 0. Any amount is allowed.
        end_padding: Padding after the last element.
        dilations: Step from one element of a window to the next, at least 1.
        include_padding: Whether padding counts in the divisor. It never adds to the sum.
        ceil_mode: Whether a last window may reach past the padded input, if it starts inside the
            input or the padding before it. What lies there never counts.
        divisor_override: Divide every sum by this instead of the count; not 0.
        mask: A bool tensor of the input's dimensions, where sizes of 1 broadcast, or of the spatial
            ones alone. An element where it is False is left out, NaN too: it never wins, adds
            nothing, is not counted and has no gradient.

    Returns:
        ``(N, C, *output)`` of the input's data type, where
        ``output = (size + start_padding + end_padding - extent) // strides + 1`` and
        ``extent = (window_size - 1) * dilations + 1``.
        A window that counts no element gives 0. float16 and bfloat16 are summed in float32 and
        rounded once.

    It can be differentiated to any order, in reverse and forward mode. The gradient is
    :func:`average_pooling_grad`.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or device, or no window fits. It is a RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> dmlpool.average_pooling(torch.tensor([[[1., 3., 5., 9.]]]), window_size=2)
        tensor([[[2., 4., 7.]]])

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_average_pooling_operator_desc
    """
    window = window_size, strides, start_padding, end_padding, dilations, ceil_mode
    asked = include_padding, divisor_override, *window
    call = prepared(_prepared_averages, input, *asked) if mask is None else None
    if call is not None:
        return call(input)
    request = _counted_windows(input, *asked)
    if mask is None and not input.is_complex():
        return _average.average_pooling(input, *request)
    mask = operands.checked_mask(mask, input)
    return _complex.by_parts(lambda each: _masked.averages(each, mask, *request), input)


def _counted_windows(
    input: Tensor, include_padding: bool, divisor_override: int | None, *window: Any
) -> tuple[Window, bool, int | None]:
    """The operator's arguments, checked."""
    operands.check_pooled("input", input, operands.AVERAGED_TYPES)
    operands.check_flag("include_padding", include_padding)
    divisor_override = operands.checked_divisor(divisor_override)
    return Window.directml(input.dim() - 2, *window), include_padding, divisor_override


def _prepared_averages(like: Tensor, device: str, *asked: Any) -> Call | None:
    return _average.prepared(like, device, *_counted_windows(like, *asked))


@operator
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
        input_gradient: The gradient of the forward output, of the same sizes; float32, float16,
            bfloat16, float64, complex64 or complex128.
        input_size: Sizes of the forward input, all of them: ``(N, C, *spatial)``.
        window_size: Size of the window, at least 1. This and the next four arguments are one int
            for all spatial dimensions or one each, in ``D, H, W`` order.
        strides: Step from one window to the next, at least 1.
        start_padding: Padding before the first element, at least 0. Any amount is allowed.
        end_padding: Padding after the last element.
        dilations: Step from one element of a window to the next, at least 1.
        include_padding: Whether padding counts in the divisor. It never adds to the sum.
        ceil_mode: Whether a last window may reach past the padded input, if it starts inside the
            input or the padding before it. What lies there never counts.
        divisor_override: The forward pass divided by this instead of the count; not 0.

    Returns:
        A tensor of ``input_size``: the exact adjoint of the average, whose own gradient is the
        average. float16 and bfloat16 are added up in float32.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or device, or no window fits. It is a RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> dmlpool.average_pooling_grad(torch.tensor([[[2., 4., 8.]]]), (1, 1, 4), window_size=2)
        tensor([[[1., 3., 6., 4.]]])

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_average_pooling_grad_operator_desc
    """
    operands.check_pooled("input_gradient", input_gradient, operands.AVERAGED_TYPES)
    operands.check_flag("include_padding", include_padding)
    divisor_override = operands.checked_divisor(divisor_override)
    numbers = (window_size, strides, start_padding, end_padding, dilations, ceil_mode)
    window = Window.directml(input_gradient.dim() - 2, *numbers)
    sizes = operands.checked_full_size("input_size", input_size, input_gradient)
    operands.check_sizes(
        "input_gradient", input_gradient, [*sizes[:2], *window.output_sizes(sizes[2:])]
    )
    request = sizes[2:], window, include_padding, divisor_override
    return _complex.by_parts(
        lambda each: _average.average_pooling_grad(each, *request), input_gradient
    )


@operator
def adaptive_average_pooling(
    input: Tensor, output_size: OutputSize, *, mask: Tensor | None = None
) -> Tensor:
    """Average over ``output_size`` windows that cover the input evenly; 1 averages whole planes.

    The input always has a batch: three dimensions are ``(N, C, W)``, never an image.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; the data types of
            :func:`average_pooling`.
        output_size: Number of windows: one int for all dimensions or one each. None keeps the
            input's size, 0 gives an empty output.
        mask: A bool tensor of the input's dimensions, where sizes of 1 broadcast, or of the spatial
            ones alone. An element where it is False is left out, NaN too: it never wins, adds
            nothing, is not counted and has no gradient.

    Returns:
        ``(N, C, *output_size)`` of the input's data type. Window ``i`` along an axis reads the
        elements from ``i * size // output_size`` up to, not including, ``ceil((i + 1) * size /
        output_size)``, as in PyTorch. float16 and bfloat16 are summed in float32 and rounded once.

    Where ``output_size`` divides every size, it is :func:`average_pooling`. It can be
    differentiated to any order.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or device, or no window fits. It is a RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> dmlpool.adaptive_average_pooling(torch.arange(5.).view(1, 1, 5), 3)
        tensor([[[0.5000, 2.0000, 3.5000]]])
    """
    call = prepared(_prepared_bins, input, output_size) if mask is None else None
    if call is not None:
        return call(input)
    operands.check_pooled("input", input, operands.AVERAGED_TYPES)
    asked = operands.checked_mask(mask, input), output_size, input.dim() - 2
    return _complex.by_parts(lambda each: _masked.adaptive_averages(each, *asked), input)


def _prepared_bins(like: Tensor, device: str, output_size: OutputSize) -> Call | None:
    operands.check_pooled("input", like, operands.AVERAGED_TYPES)
    return _adaptive.prepared_averages(like, device, output_size, like.dim() - 2)


@operator
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

    The input always has a batch: three dimensions are ``(N, C, W)``, never an image.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; float32, float16, bfloat16 or
            float64.
        window_size: Size of the window, at least 1. This and the next four arguments are one int
            for all spatial dimensions or one each, in ``D, H, W`` order.
        strides: Step from one window to the next, at least 1.
        start_padding: Padding before the first element, at least 0. Any amount is allowed.
        end_padding: Padding after the last element.
        dilations: Step from one element of a window to the next, at least 1.
        p: The norm's exponent, a number of at least 1, or ``math.inf`` for the greatest absolute
            value.
        ceil_mode: Whether a last window may reach past the padded input, if it starts inside the
            input or the padding before it. What lies there never counts.
        mask: A bool tensor of the input's dimensions, where sizes of 1 broadcast, or of the spatial
            ones alone. An element where it is False is left out, NaN too: it never wins, adds
            nothing, is not counted and has no gradient.

    Returns:
        ``(N, C, *output)`` of the input's data type: ``(Σ |x|^p) ^ (1/p)`` over the elements of
        each window, as DirectML and ONNX define it; a window that reads no element gives 0. float16
        and bfloat16 are powered and summed in float32 and rounded once. Powers are not scaled:
        ``|x|^p`` beyond the type's range gives infinity.

    It can be differentiated to any order. The gradient is ``sign(x) · (|x| / norm) ^ (p - 1)``, and
    0 where the norm is 0.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or device, or no window fits. It is a RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> dmlpool.lp_pooling(torch.tensor([[[[3., -4.], [0., 0.]]]]), window_size=2, p=2)
        tensor([[[[5.]]]])

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_lp_pooling_operator_desc
    """
    asked = p, window_size, strides, start_padding, end_padding, dilations, ceil_mode
    call = prepared(_prepared_norms, input, *asked) if mask is None else None
    if call is not None:
        return call(input)
    request = _normed_windows(input, *asked)
    return _masked.norms(input, operands.checked_mask(mask, input), *request)


def _normed_windows(input: Tensor, p: float, *window: Any) -> tuple[Window, float]:
    """The operator's arguments, checked."""
    operands.check_pooled("input", input, operands.FLOAT_TYPES)
    made = Window.directml(input.dim() - 2, *window)
    return made, float(operands.checked_norm("p", p))


def _prepared_norms(like: Tensor, device: str, *asked: Any) -> Callable[[Tensor], Tensor] | None:
    return _norm.prepared(like, device, *_normed_windows(like, *asked))
