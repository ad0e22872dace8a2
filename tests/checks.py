"""Everything one request can be asked for, compared with the oracle: what the tests of operators and backends share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import oracle
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool

operators = torch.ops.dmlpool


def spelled_out(pooling: oracle.Pooling) -> tuple[object, ...]:
    """The six window arguments of the registered operators."""
    return tuple(list(entry) if isinstance(entry, tuple) else entry for entry in vars(pooling).values())


def check_maximum(input: Tensor, pooling: oracle.Pooling) -> None:
    """Values, both kinds of index, and taps."""
    expected = oracle.maximum(samples.to_numpy(input), pooling)
    arguments = spelled_out(pooling)
    samples.assert_same(dmlpool.max_pooling(input, **vars(pooling)), expected.values)
    values, indices = dmlpool.max_pooling(input, **vars(pooling), return_indices=True)
    samples.assert_same(values, expected.values)
    samples.assert_same(indices, expected.indices)
    assert values.dtype == input.dtype
    assert indices.dtype == torch.int64
    values, taps = operators.max_pooling_with_taps(input, *arguments)
    samples.assert_same(values, expected.values)
    samples.assert_same(taps, expected.taps)
    values, positions = operators.max_pooling_with_indices(input, *arguments, torch.int32, True)
    samples.assert_same(values, expected.values)
    samples.assert_same(positions, expected.plane_indices)
    for per_plane, numbers in ((False, expected.indices), (True, expected.plane_indices)):
        decoded = operators.max_pooling_indices(taps, input.shape[2:], *arguments, torch.int64, per_plane)
        samples.assert_same(decoded, numbers)


def whole_gradient(input: Tensor, pooling: oracle.Pooling, seed: int = 1) -> Tensor:
    """An incoming gradient of small whole numbers: sums are exact in every type, so results must be equal."""
    sizes = (*input.shape[:2], *oracle.output_sizes(pooling, input.shape[2:]))
    return samples.ties(*sizes, dtype=input.dtype, seed=seed).to(input.device)


def check_maximum_gradient(input: Tensor, gradient: Tensor, pooling: oracle.Pooling) -> None:
    """The gradient operator, autograd's backward pass, and the two operators in between."""
    values = samples.to_numpy(input)
    expected = oracle.maximum_grad(values, samples.to_numpy(gradient), pooling)
    arguments = spelled_out(pooling)
    samples.assert_same(dmlpool.max_pooling_grad(input, gradient, **vars(pooling)), expected)

    leaf = input.detach().requires_grad_()
    (through_autograd,) = torch.autograd.grad(dmlpool.max_pooling(leaf, **vars(pooling)), leaf, gradient)
    samples.assert_same(through_autograd, expected)

    _, taps = operators.max_pooling_with_taps(input, *arguments)
    for channels_last in (False, True)[: input.dim() - 2]:
        spread = operators.max_pooling_grad_from_taps(gradient, taps, input.shape[2:], *arguments, channels_last)
        samples.assert_same(spread, expected)
    maximum = oracle.maximum(values, pooling)
    gathered = np.where(maximum.plane_indices < 0, 0, maximum.values)
    samples.assert_same(operators.max_pooling_gather(input, taps, *arguments), gathered)


def check_average(
    input: Tensor, pooling: oracle.Pooling, include_padding: bool = False, divisor_override: int | None = None
) -> None:
    """The average within the bound of E6."""
    result = dmlpool.average_pooling(
        input, **vars(pooling), include_padding=include_padding, divisor_override=divisor_override
    )
    assert result.dtype == input.dtype
    expected = oracle.average(samples.to_numpy(input), pooling, include_padding, divisor_override)
    samples.assert_average(result, *expected, math.prod(pooling.window_size))


def check_average_gradient(
    gradient: Tensor,
    sizes: Sequence[int],
    pooling: oracle.Pooling,
    include_padding: bool = False,
    divisor_override: int | None = None,
) -> None:
    """The gradient operator, and autograd's backward pass."""
    divisor = {"include_padding": include_padding, "divisor_override": divisor_override}
    expected = oracle.average_grad(samples.to_numpy(gradient), sizes, pooling, **divisor)
    input_size = (*gradient.shape[:2], *sizes)
    result = dmlpool.average_pooling_grad(gradient, input_size, **vars(pooling), **divisor)
    assert result.dtype == gradient.dtype
    samples.assert_gradient(result, *expected, math.prod(pooling.window_size))
    leaf = torch.zeros(input_size, dtype=gradient.dtype, device=gradient.device, requires_grad=True)
    output = dmlpool.average_pooling(leaf, **vars(pooling), **divisor)
    (through_autograd,) = torch.autograd.grad(output, leaf, gradient)
    samples.assert_gradient(through_autograd, *expected, math.prod(pooling.window_size))
