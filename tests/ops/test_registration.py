"""How the operators are registered (E1): opcheck, the names PyTorch keeps private, and what
training keeps (M6)."""

import re
from collections.abc import Callable

import cases
import pytest
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
    }


NAMES = list(calls_of(cases.SMALL[0]))


def test_the_operators_are_those_of_this_list() -> None:
    """Every registered operator is checked below."""
    registered = {
        schema.name.removeprefix("dmlpool::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("dmlpool::")
    }
    assert registered == set(NAMES)


# PyTorch's own check looks at tensors between the operators that lp_pooling is made of.
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning"
)
@cases.in_pairs(case=cases.SMALL, name=NAMES)
def test_opcheck(case: cases.Case, name: str) -> None:
    """E1: schema, autograd registration, fake tensors, and AOT dispatch with dynamic shapes."""
    torch.library.opcheck(getattr(operators, name).default, calls_of(case)[name])


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_promises_that_shapes_may_be_symbolic(name: str) -> None:
    """E2: with int[] instead of SymInt[], a symbolic window would be compiled anew for every
    size."""
    overload = getattr(operators, name).default
    lists = re.findall(r"(\w+)\[\]", str(overload._schema))
    assert len(lists) >= (
        5 if "window_size" in str(overload._schema) else name != "gather_positions"
    )
    assert set(lists) <= {"SymInt"}
    assert torch.Tag.pt2_compliant_tag in overload.tags


@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.inference_mode, torch.enable_grad], ids=lambda mode: mode.__name__
)
@pytest.mark.parametrize("name", NAMES)
def test_operators_called_by_name(name: str, mode: Callable[[], object]) -> None:
    """E1: as compiled graphs call them, with gradients wanted or not, recorded or not."""
    arguments = calls_of(cases.case("padded", "plain"))[name]
    detached = [
        argument.detach() if isinstance(argument, Tensor) else argument for argument in arguments
    ]
    expected = getattr(operators, name)(*detached)
    for given in (arguments, detached):
        with mode():
            outputs = getattr(operators, name)(*given)
        for output, reference in zip(
            samples.listed(outputs), samples.listed(expected), strict=True
        ):
            assert torch.equal(output, reference)
            wanted = mode is torch.enable_grad and given is arguments and output.is_floating_point()
            assert output.requires_grad == wanted
