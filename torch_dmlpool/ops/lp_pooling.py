"""Lp pooling: (0, + |x|^p, ^(1/p)), composed of sums, maxima and their derivatives."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torch_dmlpool import elements, operands
from torch_dmlpool.ops import average_pooling, max_pooling
from torch_dmlpool.ops.calls import is_plain
from torch_dmlpool.ops.derivatives import records_gradient
from torch_dmlpool.ops.registration import Operator
from torch_dmlpool.window import Window


def _norms(input: Tensor, window: Window, p: float) -> Tensor:
    window.output_sizes(input.shape[2:])  # rejected before any work
    if p == math.inf:
        pooled = max_pooling.max_pooling(_powers(input, p), window)
    else:
        pooled = average_pooling.average_pooling(_powers(input, p), window, False, 1)
    return _roots(input, pooled, p)


def _powers(input: Tensor, p: float) -> Tensor:
    """What is pooled: ``|x|^p``, for infinity ``|x|``."""
    if p == math.inf:
        return input.abs()
    # Half precision is powered, summed and rooted in float32, and rounded once.
    wide = elements.widened(input)
    return wide.square() if p == 2 else wide.abs() if p == 1 else wide.abs().pow(p)


def _roots(input: Tensor, pooled: Tensor, p: float) -> Tensor:
    """The norms, from the sums of powers or, for infinity, from maxima."""
    if p == math.inf:
        # An empty window's norm is 0, as for every other p.
        return pooled.clamp(min=0)
    # The root has no slope at 0: a root of 1 takes its place, so that the gradient there is 0 and
    # not 0 · ∞.
    zero = pooled == 0 if p != 1 and (records_gradient(input) or not is_plain(input)) else None
    sums = pooled if zero is None else torch.where(zero, 1, pooled)
    roots = sums if p == 1 else sums.sqrt() if p == 2 else sums.pow(1 / p)
    return (roots if zero is None else torch.where(zero, 0, roots)).to(input.dtype)


def _output_sizes(input: Tensor, window: Window, p: float) -> list[int]:
    operands.checked_norm("p", p)
    return [*input.shape[:2], *window.output_sizes(input.shape[2:])]


lp_pooling = Operator(
    "lp_pooling(Tensor input, WINDOW, float p) -> Tensor",
    [operands.FLOAT_TYPES],
    _output_sizes,
    compose=_norms,
)


def prepared(
    like: Tensor, device: str, window: Window, p: float
) -> Callable[[Tensor], Tensor] | None:
    """The call of norms for plain tensors that lie as ``like``."""
    if like.dtype not in operands.FLOAT_TYPES or not operands.is_dense(like):
        return None
    dtype = like.dtype if p == math.inf or like.dtype.itemsize > 2 else torch.float32
    powers = torch.empty_strided(like.shape, like.stride(), dtype=dtype, device="meta")
    pool = (
        max_pooling.prepared(powers, device, window)
        if p == math.inf
        else average_pooling.prepared(powers, device, window, False, 1)
    )
    if pool is None:
        return None

    def norms(input: Tensor) -> Tensor:
        pooled = pool(_powers(input, p))
        result: Tensor = operands.laid_out_like(_roots(input, pooled, p), input)
        return result

    return norms
