"""Lp pooling: (0, + |x|^p, ^(1/p)), composed of sums, maxima and their derivatives."""

import math

import torch
from torch import Tensor

from torch_dmlpool import elements, operands
from torch_dmlpool.ops import average_pooling, max_pooling
from torch_dmlpool.ops.derivatives import records_gradient
from torch_dmlpool.ops.dispatching import may_skip_dispatcher
from torch_dmlpool.ops.registration import Composite
from torch_dmlpool.window import Window


def _norms(input: Tensor, window: Window, p: float) -> Tensor:
    window.output_sizes(input.shape[2:])  # rejected before any work
    if p == math.inf:
        # An empty window's norm is 0, as for every other p.
        return max_pooling.max_pooling(input.abs(), window).clamp(min=0)
    # Half precision is powered, summed and rooted in float32, and rounded once.
    wide = elements.widened(input)
    powers = wide.square() if p == 2 else wide.abs() if p == 1 else wide.abs().pow(p)
    sums = average_pooling.average_pooling(powers, window, False, 1)
    # The root has no slope at 0: a root of 1 takes its place, so that the gradient there is 0 and
    # not 0 · ∞.
    zero = (
        sums == 0
        if p != 1 and (records_gradient(input) or not may_skip_dispatcher(input))
        else None
    )
    sums = sums if zero is None else torch.where(zero, 1, sums)
    roots = sums if p == 1 else sums.sqrt() if p == 2 else sums.pow(1 / p)
    return (roots if zero is None else torch.where(zero, 0, roots)).to(input.dtype)


def _check(input: Tensor, window: Window, p: float) -> list[int]:
    operands.checked_norm("p", p)
    return [*input.shape[:2], *window.output_sizes(input.shape[2:])]


lp_pooling = Composite(
    "lp_pooling(Tensor input, WINDOW, float p) -> Tensor",
    [operands.FLOAT_TYPES],
    _check,
    compose=_norms,
)
