"""What results look like in memory (G7): the format PyTorch suggests, in fake tensors exactly as in
real ones."""

import contextlib
import itertools
from typing import Any

import cases
import pytest
import samples
import torch
from operators import MASKED, NAMES, calls_of
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DECIDES = {"max_pooling_gather": 1, "gather_positions": 1}
"""The tensor whose format the results have where that is not the first one."""


def call_of(name, sizes, layout, device):
    """An operator, its arguments, and the format of its results.

    Windows of 2 in padding of 1: the output is one larger than the input, so that dimensions of
    size 1 stay small but legal. Tensors that do not decide are contiguous.
    """
    case = cases.Case(tuple(cases.Edge("", size, 2, start=1, end=1) for size in sizes[2:]))
    arguments: list[Any] = list(calls_of(case, channels=sizes[1], batch=sizes[0])[name])
    for at, argument in enumerate(arguments):
        if isinstance(argument, Tensor):
            chosen = layout if at == DECIDES.get(name, 0) else "contiguous"
            arguments[at] = laid_out(argument.detach().to(device), chosen)
    expected = suggested(arguments[DECIDES.get(name, 0)])
    operator = getattr(torch.ops.dmlpool, name).default
    if operator._schema.arguments[len(arguments) - 1].name == "channels_last":
        arguments[-1] = expected is not torch.contiguous_format
    return operator, arguments, expected


def laid_out(tensor, layout):
    if not tensor.numel() and layout == "one element everywhere":
        pytest.skip("a tensor without elements has none to expand")
    return samples.LAYOUTS[layout](tensor)


def on_meta(x):
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def suggested(x):
    """Rows in (N, W, C) order have the format of images of one row."""
    if x.dim() > 3:
        return suggest_memory_format(x)
    return suggest_memory_format(x.unsqueeze(2)) if x.stride(1) == 1 else torch.contiguous_format


def strides_in(memory_format, sizes):
    if len(sizes) > 3:
        return torch.empty(sizes, memory_format=memory_format, device="meta").stride()
    images = torch.empty((*sizes[:2], 1, sizes[2]), memory_format=memory_format, device="meta")
    return images.squeeze(2).stride()


SIZES = [
    (2, 3, 5),
    (2, 1, 5),
    (2, 3, 4, 5),
    (2, 1, 4, 5),
    (1, 3, 4, 5),
    (2, 3, 1, 5),
    (2, 3, 1, 1),
    (1, 1, 1, 1),
    (0, 3, 4, 5),
    (2, 0, 4, 5),
    (2, 3, 4, 5, 3),
    (1, 3, 4, 1, 5),
]
LAYOUTS = ["contiguous", "channels last", "channels last, sliced", "transposed"]
LAYOUTS += ["one element everywhere"]


@cases.in_pairs(name=NAMES, sizes=SIZES, layout=LAYOUTS)
def test_real_and_fake_strides(name, sizes, layout, device):
    """G5 and G7: of nothing too, and dimensions of size 1 included, where strides are a matter of
    convention and opcheck does not look."""
    operator, arguments, memory_format = call_of(name, sizes, layout, device)
    mode = FakeTensorMode()

    def without_data(make):
        return [make(each) if isinstance(each, Tensor) else each for each in arguments]

    metas = operator(*without_data(on_meta))
    with mode:
        fakes = operator(*without_data(mode.from_tensor))
    results = map(samples.listed, (operator(*arguments), fakes, metas))
    for result, *others in zip(*results, strict=True):
        assert result.stride() == strides_in(memory_format, result.shape)
        facts = result.shape, result.dtype, result.stride()
        assert all((other.shape, other.dtype, other.stride()) == facts for other in others)
        assert [other.device for other in others] == [result.device, torch.device("meta")]


@pytest.mark.parametrize("name", NAMES)
def test_results_are_fresh(name, device):
    """G7: a result shares no memory with its input and leaves it unchanged."""
    for layout in ("contiguous", "channels last", "sliced"):
        operator, arguments, _ = call_of(name, (2, 3, 4, 5), layout, device)
        tensors = [each for each in arguments if isinstance(each, Tensor)]
        before = [each.clone() for each in tensors]
        for result in samples.listed(operator(*arguments)):
            where = result.untyped_storage().data_ptr()
            assert where not in [each.untyped_storage().data_ptr() for each in tensors]
            result.zero_()
        assert all(map(torch.equal, tensors, before))


OF_INPUTS = "average_pooling", "max_pooling", "adaptive_max_pooling"
"""Pools whose gradients are laid out like the input."""
FLOATS = torch.float32, torch.bfloat16
ORDERED = *FLOATS, torch.int16, torch.uint8, torch.uint16, torch.bool


@cases.in_pairs(name=list(MASKED), sizes=SIZES, layout=LAYOUTS)
@pytest.mark.usefixtures("either_backend")
def test_strides_of_composites(name, sizes, layout, device):
    """G7: those of results without a mask, whatever layout the mask has; of minima, bools and
    complex numbers too, where a gradient is recorded or not, and of gradients
    without a mask."""
    full = torch.rand(sizes, generator=samples.seeded(*sizes), device=device) < 0.7
    masks = [full, samples.channels_last(full), full[:1, :1], full[:, :1], full[..., :1]]
    averaged = (*FLOATS, torch.complex64) if "average" in name else FLOATS
    for number, dtype in enumerate(ORDERED if "max" in name or "min" in name else averaged):
        input = laid_out(samples.ties(*sizes).to(device), layout).to(dtype)
        expected = suggested(input)
        for mask in [None, *(masks if number == 0 else masks[number % 5 :][:1])]:
            for records in {False, dtype.is_floating_point}:
                given = input.detach().requires_grad_(records)
                found = samples.listed(MASKED[name](given, mask))
                if records and mask is None and name.startswith(OF_INPUTS):
                    found += torch.autograd.grad(found[0], given, torch.ones_like(found[0]))
                for result in found:
                    assert result.stride() == strides_in(expected, result.shape), (
                        dtype,
                        mask is not None,
                        records,
                    )


class FunctionsPass(TorchFunctionMode):
    def __torch_function__(self, function, _, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class OperatorsPass(TorchDispatchMode):
    def __torch_dispatch__(self, function, _, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


WATCHED = contextlib.nullcontext, FunctionsPass, OperatorsPass, forward_ad.dual_level


@cases.in_pairs(name=list(MASKED), layout=["contiguous", "channels last"], channels=[1, 3])
def test_whoever_watches_sees_the_same_strides(name, layout, channels, device):
    """G7: values, and gradients of masked averages and extrema, lie as the input does in every mode
    and under transforms, whatever lies otherwise."""
    input = samples.LAYOUTS[layout](samples.normal(2, 3, 6, 5)).to(device)
    other = torch.Tensor.contiguous if layout == "channels last" else samples.channels_last
    mask = other(samples.normal(2, channels, 6, 5, seed=1).to(device) > -0.5)

    def pool(x):
        return samples.listed(MASKED[name](x, mask))[0]

    def gradient(leaf, values, creates=False):
        arriving = other(torch.sin(values.detach() * 9))
        return torch.autograd.grad(values, leaf, arriving, create_graph=creates)[0]

    values, back = torch.func.vjp(pool, input)
    found = [(values, back(other(torch.sin(values * 9)))[0])]
    for forward, backward in itertools.product(WATCHED, WATCHED):
        with forward():
            leaf = input.detach().requires_grad_()
            values = pool(leaf)
        with backward():
            found.append((values, gradient(leaf, values)))
    found.append((values, gradient(leaf, pool(leaf), creates=True)))
    expected = suggested(input)
    for values, slope in found:
        torch.testing.assert_close([values, slope], [*found[1]])
        assert values.stride() == strides_in(expected, values.shape)
        if "lp" not in name:
            assert slope.stride() == input.stride()
