"""How the operators are registered (E1): opcheck, the names PyTorch keeps private, and what
training keeps (M6)."""

import re
import sys
from collections.abc import Callable

import cases
import pytest
import samples
import torch
from operators import NAMES, calls_of, operators
from torch import Tensor
from torch.autograd.function import BackwardCFunction

import torch_dmlpool as dmlpool
from torch_dmlpool import backends
from torch_dmlpool.operators.average_pooling import AveragePooling
from torch_dmlpool.operators.max_pooling import MaxPooling


def test_the_operators_are_those_of_this_list():
    """Every registered operator is checked below, those on rows in test_segment_pooling.py."""
    registered = {
        schema.name.removeprefix("dmlpool::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("dmlpool::")
    }
    of_rows = {"segment_sums", "segment_shares", "segment_maxima", "statistics"}
    assert registered == set(NAMES) | of_rows


# PyTorch's own check looks at tensors between the operators that lp_pooling is made of.
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning"
)
@cases.in_pairs(case=cases.SMALL, name=NAMES)
def test_opcheck(case, name):
    """E1: schema, autograd registration, fake tensors, and AOT dispatch with dynamic shapes."""
    torch.library.opcheck(getattr(operators, name).default, calls_of(case)[name])


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_promises_that_shapes_may_be_symbolic(name):
    """E2: with int[] instead of SymInt[], a symbolic window would be compiled anew for every
    size."""
    overload = getattr(operators, name).default
    lists = re.findall(r"(\w+)\[\]", str(overload._schema))
    assert len(lists) >= (
        5 if "window_size" in str(overload._schema) else name != "gather_positions"
    )
    assert set(lists) <= {"SymInt"}
    assert torch.Tag.pt2_compliant_tag in overload.tags


@pytest.mark.parametrize("is_last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize(
    "pool",
    [
        lambda input: dmlpool.max_pooling(input, 2, 2),
        lambda input: dmlpool.max_pooling(input, 3, 2, 1, 1),
        lambda input: dmlpool.average_pooling(input, 3, 2, 1, 1),
        lambda input: dmlpool.adaptive_average_pooling(input, 3),
    ],
    ids=["disjoint maxima", "maxima", "averages", "bins"],
)
def test_gradients_are_the_same_however_operands_lie_in_memory(pool, is_last):
    """A backend may compute a gradient without an operator: what arrives in another layout, taps
    that a hook has moved, profilers and second orders get the same bits."""
    input = samples.normal(2, 20, 8, 10)
    input = (samples.channels_last(input) if is_last else input).requires_grad_()
    output = pool(input)
    arriving = torch.randn_like(output)
    (expected,) = torch.autograd.grad(output, input, arriving, retain_graph=True)
    assert expected.stride() == input.stride()

    # Plain PyTorch adds in the order of what arrives.
    bound = 1e-6 if backends.serving(input.device.type).name == "reference" else 0

    def check(output, arriving, **how):
        (found,) = torch.autograd.grad(output, input, arriving, retain_graph=True, **how)
        torch.testing.assert_close(found, expected, rtol=0, atol=bound)

    check(output, arriving.mT.contiguous().mT)
    check(output, arriving, create_graph=True)
    with torch.profiler.profile(acc_events=True) as profile:  # 2.11 warns without it
        check(output, arriving)
    assert any(event.key.endswith(("_grad", "_from_taps")) for event in profile.key_averages())
    for moved in (
        lambda tensor: tensor.mT.contiguous().mT,
        lambda tensor: tensor.contiguous(),
        lambda tensor: tensor.contiguous(memory_format=torch.channels_last),
    ):
        with torch.autograd.graph.saved_tensors_hooks(moved, lambda tensor: tensor):
            check(pool(input), arriving)
    ones = torch.ones(()).expand(output.shape)
    (found,) = torch.autograd.grad(output, input, ones, retain_graph=True)
    (expected,) = torch.autograd.grad(output, input, torch.ones_like(output))
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("pool", "function"),
    [(dmlpool.max_pooling, MaxPooling), (dmlpool.average_pooling, AveragePooling)],
)
def test_autograd_calls_backward_at_once(pool, function):
    """Nodes of autograd functions have a method ``apply`` that looks for ``backward``. Ours is
    ``backward`` itself: if this fails, PyTorch's engine calls something else now."""
    assert callable(vars(BackwardCFunction).get("apply"))
    output = pool(samples.normal(2, 3, 8, 8).requires_grad_(), 2).sum()
    called, before = [], sys.getprofile()
    sys.setprofile(lambda frame, event, _: called.append((event, frame.f_code)))
    try:
        output.backward()
    finally:
        sys.setprofile(before)
    functions = [code for event, code in called if event == "call"]
    assert issubclass(function, torch.autograd.Function)
    assert function.backward.__code__ in functions
    assert BackwardCFunction.apply.__code__ not in functions


MASK = samples.any_bytes(torch.rand(2, 3, 9, 9, generator=samples.seeded(9)) < 0.7)
TRAINED = {
    "max": lambda leaf: dmlpool.max_pooling(leaf, 3, 2),
    "min": lambda leaf: dmlpool.min_pooling(leaf, 2),
    "max with indices": lambda leaf: dmlpool.max_pooling(leaf, 3, 2, return_indices=True)[0],
    "adaptive max": lambda leaf: dmlpool.adaptive_max_pooling(leaf, 4),
    "max under a mask": lambda leaf: dmlpool.max_pooling(leaf, 3, 2, mask=MASK),
    "average under a mask": lambda leaf: dmlpool.average_pooling(leaf, 3, 2, mask=MASK),
    "norm under a mask": lambda leaf: dmlpool.lp_pooling(leaf, 3, 2, mask=MASK),
    "max unpooling": lambda leaf: dmlpool.max_unpooling(
        *dmlpool.max_pooling(leaf, 3, 3, return_indices=True), leaf.shape
    ),
}
CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "repeated": lambda saved: saved.repeat(8, 1, 1, 1),
    "one sample": lambda saved: saved[:1],
    "one row": lambda saved: saved[:, :, :1],
    "of another type": lambda saved: saved.to(
        torch.float64 if saved.is_floating_point() else torch.int16
    ),
    "of another device": lambda saved: saved.to("meta"),
    "laid out otherwise": samples.channels_last,
    "transposed": lambda saved: saved.mT.contiguous().mT,
}


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", TRAINED)
def test_saved_tensors_that_a_hook_changes_are_rejected(name, change, is_last):
    """Kernels read no other shape, type or device than what was saved; strides may differ."""
    leaf = samples.ties(2, 3, 9, 9)
    leaf = (samples.channels_last(leaf) if is_last else leaf).requires_grad_()
    expected = torch.autograd.grad(TRAINED[name](leaf).sum(), leaf)[0]
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, CHANGES[change]):
        values = TRAINED[name](leaf)
    if change in ("laid out otherwise", "transposed"):
        assert torch.equal(torch.autograd.grad(values.sum(), leaf)[0], expected)
    else:
        with pytest.raises(RuntimeError):
            torch.autograd.grad(values.sum(), leaf)
