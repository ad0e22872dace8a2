"""Mean and standard deviation over all spatial dimensions (rule T6)."""

from typing import Any

import torch
from torch import Tensor, is_grad_enabled

from torch_dmlpool import backends, tensors
from torch_dmlpool.backends import reference_rows
from torch_dmlpool.operators.dispatching import may_skip_dispatcher
from torch_dmlpool.operators.rows import RowOperator
from torch_dmlpool.window import ArgumentError, integer


class Statistics(torch.autograd.Function):
    """Means and deviations. The gradient is a kernel's, and for derivatives of higher order one of
    PyTorch's operators.
    """

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, mask: Any, correction: int, run: Any
    ) -> tuple[Tensor, Tensor]:
        mean, deviation = run(input, mask, correction)
        ctx.save_for_backward(input, mask, mean, deviation)
        ctx.save_for_forward(input, mask, mean, deviation)
        ctx.correction = correction
        return mean, deviation

    @staticmethod
    def backward(ctx: Any, of_mean: Tensor, of_deviation: Tensor) -> Any:
        input, mask, mean, deviation = ctx.saved_tensors
        arguments = of_mean, of_deviation, input, mask, mean, deviation, ctx.correction
        if not is_grad_enabled() and may_skip_dispatcher(of_mean, of_deviation, input):
            return backends.serving(input.device.type).statistics_grad(*arguments), None, None, None
        return reference_rows.statistics_grad(*arguments), None, None, None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, *_: Any) -> Any:
        input, mask, mean, deviation = ctx.saved_tensors
        return reference_rows.statistics_tangent(
            direction, input, mask, mean, deviation, ctx.correction
        )


def _results(input: Tensor, mask: Tensor | None, correction: int) -> Any:
    tensors.check_dense("input", input, tensors.FLOAT_TYPES)
    if input.dim() != 3:
        raise ArgumentError(f"input must be (N, C, W), got shape {tuple(input.shape)}")
    if mask is not None:
        tensors.check_dense("mask", mask, (torch.bool,))
        sizes = input.shape[0], input.shape[2]
        tensors.check_sizes("mask", mask, sizes, input, "input's")
    if correction < 0:
        raise ArgumentError(f"correction must be 0 or more, got {correction}")
    return [(input.shape[:2], input.dtype)] * 2


def _mapped(operator: RowOperator, info: Any, dimensions: Any, *arguments: Any) -> Any:
    """The vmap rule merges the mapped dimension into the samples."""
    flat = [
        None
        if tensor is None
        else (
            tensor.expand(info.batch_size, *tensor.shape) if at is None else tensor.movedim(at, 0)
        ).flatten(0, 1)
        for tensor, at in zip(arguments[:2], dimensions, strict=False)
    ]
    results = operator(*flat, *arguments[2:])
    samples = results[0].shape[0] // info.batch_size
    return tuple(each.unflatten(0, (info.batch_size, samples)) for each in results), (0, 0)


statistics = RowOperator(
    "statistics(Tensor input, Tensor? mask, SymInt correction) -> (Tensor, Tensor)",
    lambda backend: backend.statistics,
    _results,
    _mapped,
    Statistics,
)
"""The mean and the standard deviation of each plane of ``(N, C, W)``, under a mask ``(N, W)``."""


def statistics_pooling(
    input: Tensor, mask: Tensor | None = None, *, correction: int = 1
) -> tuple[Tensor, Tensor]:
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
    tensors.check_pooled("input", input, tensors.FLOAT_TYPES)
    correction = integer("correction", correction, correction)
    mask = tensors.checked_mask(mask, input)
    n, c = input.shape[:2]
    planes = input.flatten(2)
    if mask is None:
        mean, deviation = statistics(planes, None, correction)
        return mean, deviation
    flat = mask.expand(*mask.shape[:2], *input.shape[2:]).flatten(2)
    if mask.shape[1] == 1:
        return statistics(planes, flat[:, 0].expand(n, -1), correction)
    # A mask of its own for each channel: samples of one channel.
    single = planes.reshape(n * c, 1, planes.shape[2])
    results = statistics(single, flat.expand(n, -1, -1).reshape(n * c, -1), correction)
    mean, deviation = (each.view(n, c) for each in results)
    return mean, deviation
