"""How the operators are registered (E1): opcheck, the names PyTorch keeps private, and what
training keeps (M6)."""

import re
from collections.abc import Callable

import cases
import pytest
import samples
import torch
from operators import NAMES, calls_of, operators
from torch import Tensor


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
