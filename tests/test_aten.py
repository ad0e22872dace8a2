"""Equality with ATen wherever ATen can express the request: values, per-plane indices, gradients."""

from __future__ import annotations

import cases
import pytest
import samples
import torch
from torch import Tensor
from torch.nn import functional

import torch_dmlpool as dmlpool

operators = torch.ops.dmlpool
MAX_POOLS = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
AVERAGE_POOLS = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}

MAX_CASES = [case for case in cases.LINES + cases.PLANES + cases.VOLUMES if case.aten is not None]
AVERAGE_CASES = [
    case
    for case in MAX_CASES
    if set(case.pooling.dilations) == {1}
    # avg_pool3d refuses a window larger than the padded input even where ceil_mode leaves it an output.
    and (case.rank < 3 or all(edge.window <= edge.size + 2 * edge.start for edge in case.edges))
]
FEW_MAX = [case for case in cases.FEW if case in MAX_CASES] + [
    cases.case("padded", "dilated"),
    cases.case("ceil adds an overhang", "plain", "padded"),
    cases.case("window is the input", "adjacent windows", "padded"),
]
FEW_AVERAGE = [case for case in FEW_MAX if case in AVERAGE_CASES]


def average_arguments(case: cases.Case) -> dict[str, object]:
    return {name: value for name, value in case.aten.items() if name != "dilation"}


def check_max(case: cases.Case, input: Tensor) -> None:
    """Values, and indices inside each plane; ATen's index of an empty window is no index and is left out (M1)."""
    expected, positions = MAX_POOLS[case.rank](input, **case.aten, return_indices=True)
    values, indices = operators.max_pooling_with_indices(input, *samples.spelled_out(case.pooling), torch.int64, True)
    samples.assert_same(values, expected)
    samples.assert_same(dmlpool.max_pooling(input, **case.arguments), expected)
    samples.assert_same(torch.where(indices < 0, positions, indices), positions)
    assert bool((indices < 0).any()) == case.has_empty_windows


def gradients(output: Tensor, leaf: Tensor, gradient: Tensor) -> Tensor:
    return torch.autograd.grad(output, leaf, gradient)[0]


def check_max_gradient(case: cases.Case, input: Tensor, gradient: Tensor) -> None:
    leaf = input.detach().requires_grad_()
    expected = gradients(MAX_POOLS[case.rank](leaf, **case.aten), leaf, gradient)
    samples.assert_same(gradients(dmlpool.max_pooling(leaf, **case.arguments), leaf, gradient), expected)
    samples.assert_same(dmlpool.max_pooling_grad(input, gradient, **case.arguments), expected)


@cases.parametrized(MAX_CASES)
def test_max(case: cases.Case, device: torch.device) -> None:
    """M1, M2, M5, G3; whole numbers, so that every order of adding gives the same gradient."""
    input = samples.ties(2, 3, *case.sizes).to(device)
    check_max(case, input)
    if not case.has_empty_windows:  # there ATen's index is wrong
        check_max_gradient(case, input, samples.ties(2, 3, *case.output_sizes, seed=1).to(device))


@cases.parametrized(FEW_MAX)
def test_max_of_one_nan(case: cases.Case, device: torch.device) -> None:
    """M3 as far as ATen agrees: at most one NaN in a window."""
    input = samples.ties(2, 3, *case.sizes).to(device)
    input.flatten(2)[0, 1, 2] = float("nan")
    input.flatten(2)[1, 0, -1] = float("nan")
    check_max(case, input)
    check_max_gradient(case, input, torch.ones(2, 3, *case.output_sizes, device=device))


def check_average(case: cases.Case, input: Tensor, gradient: Tensor, include_padding: bool) -> None:
    """Forward and backward, each within twice the bound of E6: ATen makes an error of its own."""
    leaf = input.detach().requires_grad_()
    expected = AVERAGE_POOLS[case.rank](leaf, **average_arguments(case), count_include_pad=include_padding)
    found = dmlpool.average_pooling(leaf, **case.arguments, include_padding=include_padding)
    unit = samples.UNIT_ROUNDOFF[input.dtype]
    tolerance = {"rtol": 8 * unit, "atol": 16 * unit * float(input.detach().abs().max())}
    torch.testing.assert_close(found, expected, **tolerance)
    expected, found = (gradients(output, leaf, gradient) for output in (expected, found))
    tolerance["atol"] = 32 * unit * float(gradient.abs().max())
    torch.testing.assert_close(found, expected, **tolerance)


@cases.in_pairs(case=AVERAGE_CASES, include_padding=[False, True])
def test_average(case: cases.Case, include_padding: bool, device: torch.device) -> None:
    """A1, A2, A6, G3."""
    input = samples.normal(2, 3, *case.sizes, dtype=torch.float64).to(device)
    gradient = samples.normal(2, 3, *case.output_sizes, dtype=torch.float64).to(device)
    check_average(case, input, gradient, include_padding)


@pytest.mark.parametrize("override", [1, 7, -2])
@cases.parametrized([case for case in FEW_AVERAGE if case.rank > 1])
def test_divisor_override(case: cases.Case, override: int, device: torch.device) -> None:
    """A5: PyTorch's argument, negative numbers too."""
    input = samples.normal(2, 3, *case.sizes, dtype=torch.float64).to(device).requires_grad_()
    expected = AVERAGE_POOLS[case.rank](input, **average_arguments(case), divisor_override=override)
    found = dmlpool.average_pooling(input, **case.arguments, divisor_override=override)
    torch.testing.assert_close(found, expected)
    gradient = samples.normal(*found.shape, dtype=torch.float64).to(device)
    torch.testing.assert_close(gradients(found, input, gradient), gradients(expected, input, gradient))
