"""Every registered operator on tensors that are evaluated lazily, in every mode: the numbers that
the tensors show (G7, E1 and E2)."""

import itertools
from pathlib import Path

import cases
import pytest
import samples
import torch
from operators import NAMES, TABLE, Decomposed, by_name, operators, with_lazy
from torch import Tensor
from torch.autograd import forward_ad

from torch_dmlpool.registry import OPERATORS

BACKENDS = ["fastest", "reference"]


def taken_apart(operator, *arguments):
    return TABLE[operator](*arguments)


def in_a_mode(operator, *arguments):
    with Decomposed():
        return operator(*arguments)


def in_inference_mode(operator, *arguments):
    with torch.inference_mode():
        return operator(*arguments)


def of_tensors(operator, arguments):
    """A function of the tensors among the arguments alone, and they."""
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]

    def called(*values):
        following = iter(values)
        return operator(
            *(next(following) if isinstance(entry, Tensor) else entry for entry in arguments)
        )

    return called, tensors


def batched(operator, *arguments):
    """Over a batch of one, which lies behind the others; scales are those of all samples."""
    called, tensors = of_tensors(operator, arguments)
    dimensions = tuple(tensor.dim() if tensor.dim() > 2 else None for tensor in tensors)
    values = [tensor.unsqueeze(-1) if tensor.dim() > 2 else tensor for tensor in tensors]
    results = torch.vmap(called, in_dims=dimensions)(*values)
    return [result.squeeze(0) for result in samples.listed(results)]


def exported(operator, *arguments):
    called, tensors = of_tensors(operator, arguments)

    class Model(torch.nn.Module):
        def forward(self, *tensors):
            return called(*tensors)

    program = torch.export.export(Model(), tuple(tensors)).run_decompositions(TABLE)
    assert "dmlpool" not in str(program.graph)
    return program.module()(*tensors)


def compiled(operator, *arguments):
    called, tensors = of_tensors(operator, arguments)
    torch._dynamo.reset()
    # PyTorch's own operators take no subclass in the other one either.
    backend = "aot_eager" if all(type(tensor) is Tensor for tensor in tensors) else "eager"
    return torch.compile(called, backend=backend, fullgraph=True)(*tensors)


def check(kind, name, mode):
    operator = getattr(operators, name).default
    for values, expected in with_lazy(kind, name):
        for result, right in zip(samples.listed(mode(operator, *values)), expected, strict=True):
            assert not result.is_neg()
            torch.testing.assert_close(result.detach().as_subclass(Tensor), right)


@cases.in_pairs(either_backend=BACKENDS, kind=list(samples.KINDS), name=NAMES)
@pytest.mark.usefixtures("either_backend")
def test_operators_read_what_lazy_tensors_show(kind, name):
    """Called by name, in inference mode, over a batch, and taken apart."""
    for mode in (lambda operator, *values: operator(*values), in_inference_mode, batched):
        check(kind, name, mode)
    for mode in (taken_apart, in_a_mode):
        check(kind, name, mode)


EACH_IN_TURN = list(zip(NAMES, itertools.cycle(samples.KINDS), strict=False))


@cases.each(("name", "kind"), itertools.product(NAMES, samples.KINDS), EACH_IN_TURN[::3])
def test_programs_read_what_lazy_tensors_show(kind, name):
    """Exported and taken apart, and compiled."""
    check(kind, name, exported)
    check(kind, name, compiled)


DIFFERENTIABLE = [name for name in NAMES if OPERATORS[name].function or OPERATORS[name].compose]


def gradients_at(name):
    """An operator as a function of the tensor that it has a gradient with respect to, and that
    tensor."""
    operator, arguments = by_name(name)
    at = 1 if name == "max_pooling_grad" else 0

    def called(tensor):
        return samples.listed(operator(*arguments[:at], tensor, *arguments[at + 1 :]))[0]

    return called, arguments[at]


@cases.in_pairs(either_backend=BACKENDS, kind=list(samples.KINDS), name=DIFFERENTIABLE)
@pytest.mark.usefixtures("either_backend")
def test_gradients_and_tangents_may_be_lazy(kind, name):
    """E1: what arrives in the backward pass, in its own backward pass, and in forward mode."""
    called, tensor = gradients_at(name)
    leaf = tensor.clone().requires_grad_()
    arriving = samples.of_kind(kind, samples.normal(*called(tensor).shape))
    tangent = samples.of_kind(kind, samples.normal(*tensor.shape, seed=5))

    def found(arriving, tangent):
        (first,) = torch.autograd.grad(called(leaf), leaf, arriving)
        results = [first, torch.func.jvp(called, (tensor,), (tangent,))[1]]
        with forward_ad.dual_level():
            dual = called(forward_ad.make_dual(tensor, tangent))
            results.append(forward_ad.unpack_dual(dual).tangent)
        through = arriving.as_subclass(Tensor).clone().requires_grad_()
        (once,) = torch.autograd.grad(called(leaf), leaf, through, create_graph=True)
        return [*results, *torch.autograd.grad(once, through, tangent)]

    expected = found(samples.plain(arriving), samples.plain(tangent))
    for result, right in zip(found(arriving, tangent), expected, strict=True):
        torch.testing.assert_close(result.detach().as_subclass(Tensor), right.detach())


FREED = """
import itertools, torch, torch_dmlpool
from operators import NAMES, by_name, operators

def freed(like, offset, needs_gradient=False):
    wide = torch.ones(offset + like.numel(), dtype=like.dtype, requires_grad=needs_gradient)
    tensor = wide[offset:].view(like.shape)
    tensor.untyped_storage().resize_(0)
    return tensor

def check(what, call, *arguments):
    print(what, flush=True)
    try:
        call(*arguments)
    except RuntimeError as error:
        assert " has no memory: its storage was resized to 0" in str(error), (what, error)
    else:
        raise AssertionError(what)

image, grid = torch.ones(2, 3, 4, 4), torch.ones(2, 3, 2, 2)
for offset, mode in itertools.product((0, 5), (torch.no_grad, torch.inference_mode)):
    for name in NAMES:
        operator, arguments = by_name(name)
        for at, given in enumerate(arguments):
            if isinstance(given, torch.Tensor):
                with mode():
                    taken = arguments[:at], (freed(given, offset),), arguments[at + 1:]
                    check((name, at, offset, mode), operator, *itertools.chain(*taken))
for offset, layer in itertools.product((0, 5), ("MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d")):
    for needs_gradient in (False, True):
        pool = getattr(torch_dmlpool.nn, layer)(2)
        check((layer, offset, needs_gradient), pool, freed(image, offset, needs_gradient))
    leaf = image.clone().requires_grad_()
    arriving = freed(grid, offset)
    check((layer, offset, "gradient"), torch.autograd.grad, pool(leaf), leaf, arriving)
"""


def test_a_tensor_whose_memory_was_freed_is_refused(python):
    """As PyTorch's own pools refuse it: sharded parameters are freed like this. A view of a part
    has an address that is not null, and a kernel that read it would end the process."""
    found = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})"
    python("-c", f"{found}\n{FREED}")
