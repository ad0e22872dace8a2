"""Mean and standard deviation over all spatial dimensions (rule T6)."""

from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import backends
from torch_dmlpool.backends import reference_segments
from torch_dmlpool.operators.derivatives import save, saved
from torch_dmlpool.operators.dispatching import is_unobserved
from torch_dmlpool.operators.registration import Below, Operator, of_rows
from torch_dmlpool.tensors import (
    FLOAT_TYPES,
    Mask,
    Pair,
    check_dense,
    check_pooled,
    check_sizes,
    checked_mask,
)
from torch_dmlpool.window import ArgumentError, integer


class Statistics(torch.autograd.Function):
    """Means and deviations. Their gradient is that of a backend, or for derivatives of higher order
    one of PyTorch's operators.
    """

    @staticmethod
    def forward(ctx: Any, input: Tensor, call: Below, mask: Any) -> Pair:
        mean, deviation = call.run(input, mask)
        save(ctx, call, input, mask, mean, deviation)
        return mean, deviation

    @staticmethod
    def backward(ctx: Any, of_mean: Tensor, of_deviation: Tensor) -> Any:
        input, mask, mean, deviation = saved(ctx)
        is_unseen = is_unobserved(of_mean, of_deviation, input)
        rows = backends.serving(input.device.type) if is_unseen else reference_segments
        operands = of_mean, of_deviation, input, mask, mean, deviation, *ctx.call.arguments
        line = reference_segments.line(*operands)
        return rows.statistics_grad(input, mask, *line), None, None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, *_: Any) -> Any:
        return reference_segments.statistics_tangent(
            direction, *ctx.saved_tensors, *ctx.call.arguments
        )


def _sizes(input: Tensor, mask: Mask, correction: int) -> Any:
    check_dense("input", input, FLOAT_TYPES)
    if input.dim() != 3:
        raise ArgumentError(f"input must be (N, C, W), got shape {tuple(input.shape)}")
    if mask is not None:
        check_dense("mask", mask, (torch.bool,))
        sizes = input.shape[0], input.shape[2]
        check_sizes("mask", mask, sizes, input, "input's")
    if correction < 0:
        raise ArgumentError(f"correction must be 0 or more, got {correction}")
    return input.shape[:2]


statistics_op = Operator(
    "statistics(Tensor input, Tensor? mask, SymInt correction) -> (Tensor, Tensor)",
    output_sizes=_sizes,
    kernel_of=lambda backend: backend.statistics,
    function=Statistics,
    dtypes=lambda input, *_: (input.dtype, input.dtype),
)
"""The mean and the standard deviation of each plane of ``(N, C, W)``, under a mask ``(N, W)``."""


def statistics_pooling(input: Tensor, mask: Mask = None, *, correction: int = 1) -> Pair:
    """Pool each plane into its mean and its standard deviation, as x-vectors and ECAPA-TDNN do.

    Args:
        input: ``(N, C, *spatial)`` of float32, float16, bfloat16 or float64, with 1 to 3 spatial
            dimensions. Contiguous tensors, channels_last and rows in (N, W, C) order are read where
            they lie.
        mask: A bool tensor, where False stands for an element that is not there: with as many
            dimensions as the input, of which a size of 1 broadcasts, or of the spatial sizes alone.
        correction: What is subtracted from the number of elements before squares are divided by it,
            as in ``torch.std``: 1 for samples, 0 for a whole population.

    Returns:
        ``(mean, deviation)``, each ``(N, C)`` of the input's data type. With at most ``correction``
        elements the deviation is 0 and never NaN; without one the mean is 0, too. Distances from
        the mean are added in float64 on a CPU.

    Raises:
        ValueError: Shapes or devices do not belong together, or ``correction`` is negative.
        TypeError: A tensor has a data type that is not supported, or ``correction`` is no int.

    The gradient of a deviation of 0 is 0. Elements under the mask get 0.

    >>> import torch, torch_dmlpool as dmlpool
    >>> frames = torch.tensor([[[1.0, 3.0, 9.0], [5.0, 5.0, 0.0]]])
    >>> dmlpool.statistics_pooling(frames, torch.tensor([True, True, False]))
    (tensor([[2., 5.]]), tensor([[1.4142, 0.0000]]))

    DirectML has no such operator. The page of ``torch.std``:
    https://pytorch.org/docs/stable/generated/torch.std.html
    """
    check_pooled(input, FLOAT_TYPES)
    correction = integer("correction", correction, correction)
    mask = checked_mask(mask, input)
    n, c = input.shape[:2]
    planes, flat = input.flatten(2), None
    if mask is not None:
        flat = mask.expand(n, -1, *input.shape[2:]).flatten(2)
        if mask.shape[1] == 1:
            flat = flat[:, 0]
        else:  # a mask of its own for each channel: samples of one channel
            planes, flat = planes.flatten(0, 1).unsqueeze(1), flat.flatten(0, 1)
    mean, deviation = of_rows(statistics_op, planes, flat, correction)
    return mean.view(n, c), deviation.view(n, c)
