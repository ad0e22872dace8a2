"""Average pooling: (0, +, ÷ counted taps), and its gradient, its exact adjoint (rule A6)."""

import functools
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool.backends.interface import Backend
from torch_dmlpool.keywords import with_directml_names
from torch_dmlpool.operators.calls import Call, PublicPool, by_parts
from torch_dmlpool.operators.derivatives import Gradients
from torch_dmlpool.operators.dispatching import is_unobserved
from torch_dmlpool.operators.masks import averages_under, with_checked_mask
from torch_dmlpool.operators.registration import Below, Operator
from torch_dmlpool.tensors import (
    AVERAGED_TYPES,
    FLOAT_TYPES,
    Mask,
    check_pooled,
    check_sizes,
    checked_divisor,
    checked_full_size,
    full_sizes,
    pooled_sizes,
)
from torch_dmlpool.window import Divisor, Integers, Sizes, Window, check_flag


@with_directml_names
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
    divisor_override: Divisor = None,
    mask: Mask = None,
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
    return POOL(
        input,
        mask,
        include_padding,
        divisor_override,
        window_size,
        strides,
        start_padding,
        end_padding,
        dilations,
        ceil_mode,
    )


def _counted_windows(
    input: Tensor, include_padding: bool, divisor_override: Divisor, *window: Any
) -> tuple[Window, bool, Divisor]:
    """The operator's arguments, checked."""
    check_pooled(input, AVERAGED_TYPES)
    check_flag("include_padding", include_padding)
    divisor_override = checked_divisor(divisor_override)
    return Window.directml(input.dim() - 2, *window), include_padding, divisor_override


@with_directml_names
def average_pooling_grad(
    input_gradient: Tensor,
    input_size: Sizes,
    window_size: Integers,
    strides: Integers = 1,
    start_padding: Integers = 0,
    end_padding: Integers = 0,
    dilations: Integers = 1,
    include_padding: bool = False,
    *,
    ceil_mode: bool = False,
    divisor_override: Divisor = None,
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
    check_pooled(input_gradient, AVERAGED_TYPES, "input_gradient")
    numbers = window_size, strides, start_padding, end_padding, dilations, ceil_mode
    window, include_padding, divisor = _counted_windows(
        input_gradient, include_padding, divisor_override, *numbers
    )
    sizes = checked_full_size("input_size", input_size, input_gradient)
    check_sizes("input_gradient", input_gradient, [*sizes[:2], *window.output_sizes(sizes[2:])])
    return by_parts(
        lambda each: average_pooling_grad_op(each, sizes[2:], window, include_padding, divisor),
        input_gradient,
    )


def prepared_average_pooling(
    like: Tensor, backend: Backend, window: Window, include_padding: bool, divisor: Divisor
) -> Call | None:
    """The call of averages for plain tensors that lie as ``like``."""
    if like.dtype not in FLOAT_TYPES:
        return None
    plan = backend.planned_averages(like, window, include_padding, divisor)
    # Its ``apply`` is that of AveragePooling, without PyTorch's question for transforms.
    return Call(average_pooling_op.apply, plan, like, window, include_padding, divisor)


def averages(
    input: Tensor, mask: Mask, window: Window, include_padding: bool, divisor: Divisor
) -> Tensor:
    """Averages of windows, under a mask if there is one."""
    if mask is None:
        return average_pooling_op(input, window, include_padding, divisor)
    return masked_average_pooling_op(input, mask, window, include_padding, divisor)


POOL = PublicPool(check=_counted_windows, compute=averages, prepare=prepared_average_pooling)


def _sums(input: Tensor, window: Any, divisor: int) -> Tensor:
    return average_pooling_op(input, window, False, divisor)


class AveragePooling(torch.autograd.Function):
    """Averages of windows. Their gradient is ``average_pooling_grad``."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, call: Call | Below) -> Any:
        ctx.call = call
        return call.run(input)

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> Gradients:
        call = ctx.call
        if call.is_planned and is_unobserved(arriving):
            return call.plan.gradient(arriving), None
        return average_pooling_grad_op(
            call.sharded(arriving), call.shape[2:], *call.arguments
        ), None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, *_: None) -> Any:
        return average_pooling_op(direction, *ctx.call.arguments)


class AveragePoolingGrad(torch.autograd.Function):
    """The gradient of averages. It is linear: its own gradient is the average."""

    @staticmethod
    def forward(ctx: Any, arriving: Tensor, call: Below) -> Any:
        ctx.call = call
        return call.run(arriving)

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> Gradients:
        call = ctx.call
        return average_pooling_op(call.sharded(arriving), *call.arguments[1:]), None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, *_: None) -> Any:
        return average_pooling_grad_op(direction, *ctx.call.arguments)


def _output_sizes(
    input: Tensor, window: Window, include_padding: bool, divisor_override: Divisor
) -> Sizes:
    checked_divisor(divisor_override)
    return pooled_sizes(input, window)


def _input_sizes(
    arriving: Tensor, sizes: Sizes, window: Window, _: bool, divisor: Divisor
) -> Sizes:
    checked_divisor(divisor)
    check_sizes("input_gradient", arriving, full_sizes(arriving, window.output_sizes(sizes)))
    return full_sizes(arriving, sizes)


average_pooling_op: Operator = Operator(
    "average_pooling(Tensor input, WINDOW, bool include_padding, SymInt? divisor_override) -> "
    "Tensor",
    types=[FLOAT_TYPES],
    output_sizes=_output_sizes,
    kernel_of=lambda backend: backend.average_pooling,
    function=AveragePooling,
)


average_pooling_grad_op: Operator = Operator(
    "average_pooling_grad(Tensor input_gradient, SymInt[] spatial_sizes, WINDOW, bool "
    "include_padding, SymInt? divisor_override) -> Tensor",
    types=[FLOAT_TYPES],
    output_sizes=_input_sizes,
    kernel_of=lambda backend: backend.average_pooling_grad,
    function=AveragePoolingGrad,
)


masked_average_pooling_op = Operator(
    "masked_average_pooling(Tensor input, Tensor mask, WINDOW, bool include_padding, "
    "SymInt? divisor_override) -> Tensor",
    types=[FLOAT_TYPES],
    output_sizes=lambda *checked: checked_divisor(checked[-1]),
    complete=with_checked_mask,
    compose=functools.partial(averages_under, _sums),
)
