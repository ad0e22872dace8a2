"""A right call of every registered operator by its name."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import cases
import lazy
import samples
import torch
from torch import Tensor

operators = torch.ops.dmlpool


def calls_of(case: cases.Case) -> dict[str, tuple[object, ...]]:
    """Arguments of every registered operator."""
    window, sizes, last = samples.spelled_out(case.pooling), list(case.sizes), case.rank > 1
    input, gradient = (
        samples.distinct(2, 3, *case.sizes, dtype=torch.float32),
        samples.normal(2, 3, *case.output_sizes),
    )
    taps = operators.max_pooling_with_taps(input, *window)[1]
    indices = operators.max_pooling_with_indices(input, *window, torch.int32, True)[1]
    mask = samples.normal(2, 1, *case.sizes) > -0.5
    for leaf in (input, gradient):
        leaf.requires_grad_()
    return {
        "average_pooling": (input, *window, True, None),
        "average_pooling_grad": (gradient, sizes, *window, False, 3),
        "max_pooling": (input, *window),
        "max_pooling_with_taps": (input, *window),
        "max_pooling_with_indices": (input, *window, torch.int32, False),
        "max_pooling_indices": (taps, sizes, *window, torch.uint32, True),
        "max_pooling_grad": (input, gradient, *window),
        "max_pooling_grad_from_taps": (gradient, taps, sizes, *window, last),
        "max_pooling_gather": (input, taps, *window),
        "lp_pooling": (input, *window, 3.0),
        "masked_average_pooling": (input, mask, *window, True, None),
        "masked_max_pooling": (input, mask, *window),
        "masked_max_pooling_with_indices": (input, mask, *window, torch.int32, False),
        "adaptive_average_pooling": (input, list(case.output_sizes)),
        "adaptive_average_pooling_grad": (gradient, sizes),
        "adaptive_max_pooling": (input, list(case.output_sizes)),
        "max_unpooling": (gradient, indices, sizes, True),
        "unique_positions": (indices, sizes),
        "gather_positions": (input, indices, False),
        "scatter_positions": (gradient, indices, sizes, True, last),
        "quantized_linear_average_pooling": (
            *(samples.integers(2, 3, *case.sizes, dtype=torch.int8), torch.rand(3) + 0.5, None),
            *(
                torch.tensor([0.3]),
                torch.tensor([3], dtype=torch.uint8),
                *window,
                False,
                torch.uint8,
            ),
        ),
        "quantized_linear_average_pooling_of_numbers": (
            samples.integers(2, 3, *case.sizes, dtype=torch.int8),
            *(0.5, -3, 0.3, 3, *window, False, torch.uint8),
        ),
    }


NAMES = list(calls_of(cases.SMALL[0]))

CASE = cases.case("plain", "adjacent windows")
Call = tuple[Callable[..., Any], Sequence[object]]
"""An operator and its arguments."""


calls_of_the_case = functools.cache(functools.partial(calls_of, CASE))


@functools.cache
def by_name(name: str) -> Call:
    """A right call of an operator, with tensors that nothing is known of."""
    arguments = tuple(
        lazy.plain(argument) if isinstance(argument, Tensor) else argument
        for argument in calls_of_the_case()[name]
    )
    return getattr(operators, name).default, arguments


def with_lazy(kind: str, name: str) -> list[tuple[list[object], list[Tensor]]]:
    """Arguments of which one tensor after the other is of a kind, then all of them, each with the
    results for the same numbers in plain tensors."""
    operator, arguments = by_name(name)
    made = {
        number: tensor
        for number, argument in enumerate(arguments)
        # A scale of 0 is refused.
        if isinstance(argument, Tensor)
        and (argument.dim() > 1 or kind != "zeros without memory")
        and (tensor := lazy.made(kind, argument)) is not None
    }
    found = []
    for chosen in [*([number] for number in made), *([list(made)] if len(made) > 1 else [])]:
        given = list(arguments)
        for number in chosen:
            given[number] = made[number]
        plain = [
            lazy.plain(argument) if isinstance(argument, Tensor) else argument for argument in given
        ]
        found.append((given, samples.listed(operator(*plain))))
    return found
