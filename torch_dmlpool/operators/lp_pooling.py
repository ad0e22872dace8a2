"""Lp pooling: (0, + |x|^p, ^(1/p)), composed of sums, maxima and their derivatives."""

from math import inf
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool.backends.interface import Backend
from torch_dmlpool.keywords import with_directml_names
from torch_dmlpool.operators.average_pooling import averages, prepared_average_pooling
from torch_dmlpool.operators.calls import PublicPool
from torch_dmlpool.operators.derivatives import records_gradient
from torch_dmlpool.operators.dispatching import is_plain, may_skip_dispatcher
from torch_dmlpool.operators.masks import kept, with_masked_gradient
from torch_dmlpool.operators.max_pooling import maxima_of, prepared_max_pooling
from torch_dmlpool.operators.registration import Operator
from torch_dmlpool.tensors import (
    FLOAT_TYPES,
    Mask,
    TensorFunction,
    check_pooled,
    checked_norm,
    is_dense,
    laid_out_like,
    pooled_sizes,
    sum_type,
    widened,
)
from torch_dmlpool.window import Integers, Sizes, Window


@with_directml_names
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
    mask: Mask = None,
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
            value. It is not second, as ``norm_type`` of torch.nn is.
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
    return POOL(
        input, mask, p, window_size, strides, start_padding, end_padding, dilations, ceil_mode
    )


def _normed_windows(input: Tensor, p: float, *window: Any) -> tuple[Window, float]:
    """The operator's arguments, checked."""
    check_pooled(input, FLOAT_TYPES)
    return Window.directml(input.dim() - 2, *window), float(checked_norm("p", p))


def prepared_lp_pooling(
    like: Tensor, backend: Backend, window: Window, p: float
) -> TensorFunction | None:
    """The call of norms for plain tensors that lie as ``like``."""
    if not is_dense(like):
        return None
    dtype = like.dtype if p == inf else sum_type(like.dtype)
    powers = torch.empty_strided(like.shape, like.stride(), dtype=dtype, device="meta")
    pool = (
        prepared_max_pooling(powers, backend, window)
        if p == inf
        else prepared_average_pooling(powers, backend, window, False, 1)
    )
    return pool and (lambda input: laid_out_like(_by(pool, input, p), input))


def norms(input: Tensor, mask: Mask, window: Window, p: float) -> Tensor:
    """Norms of windows, under a mask if there is one: zeros add nothing to them."""
    if mask is None:
        return lp_pooling_op(input, window, p)
    if not may_skip_dispatcher(input, mask):
        window.output_sizes(input.shape[2:])  # rejected before any work
        return lp_pooling_op(kept(input, mask), window, p)
    # Powers of masked elements may be infinite, and 0 times their slope would be NaN.
    given = with_masked_gradient(input, mask) if records_gradient(input) else input
    return laid_out_like(_norms(given, window, p, mask), input)


POOL = PublicPool(check=_normed_windows, compute=norms, prepare=prepared_lp_pooling)


def _norms(input: Tensor, window: Window, p: float, mask: Mask = None) -> Tensor:
    window.output_sizes(input.shape[2:])  # rejected before any work
    if p == inf:
        return _by(lambda powers: maxima_of(powers, mask, window), input, p)
    return _by(lambda powers: averages(powers, mask, window, False, 1), input, p)


def _by(pool: TensorFunction, input: Tensor, p: float) -> Tensor:
    """Norms by a ``pool`` of powers ``|x|^p``: sums, or for infinity the maxima of ``|x|``."""
    if p == inf:
        # An empty window's norm is 0, as for every other p.
        return pool(input.abs()).clamp(min=0)
    # Half precision is powered, summed and rooted in float32, and rounded once.
    wide = widened(input)
    pooled = pool(wide.square() if p == 2 else wide.abs() if p == 1 else wide.abs().pow(p))
    # The root has no slope at 0: a root of 1 takes its place, so that the gradient there is 0 and
    # not 0 · ∞.
    zero = pooled == 0 if p != 1 and (records_gradient(input) or not is_plain(input)) else None
    sums = pooled if zero is None else torch.where(zero, 1, pooled)
    roots = sums.sqrt() if p == 2 else sums.pow(1 / p)
    return (roots if zero is None else torch.where(zero, 0, roots)).to(input.dtype)


def _output_sizes(input: Tensor, window: Window, p: float) -> Sizes:
    checked_norm("p", p)
    return pooled_sizes(input, window)


lp_pooling_op = Operator(
    "lp_pooling(Tensor input, WINDOW, float p) -> Tensor",
    types=[FLOAT_TYPES],
    output_sizes=_output_sizes,
    compose=_norms,
)
