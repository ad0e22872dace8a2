"""torch.compile (E1, E2): nothing breaks the graph, nothing recompiles in vain."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import cases
import operators
import pytest
import samples
import torch
from test_derivatives import TRANSFORMS
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import torch_dmlpool as dmlpool

pytestmark = pytest.mark.usefixtures("fresh_compiler")
nn, quantized = dmlpool.nn, dmlpool.quantized_linear_average_pooling


def _requantized(x):
    """Numbers, and tensors that the program computes."""
    x = (x * 9).to(torch.int8)
    scale = x[0, :, 0, 0].float().abs() * 0.01 + 0.1
    return quantized(x, scale, x[0, 0, 0, 0], 0.03, 5, 3, 2, 1, 1, ceil_mode=True)


WHOLE = (
    "max_pooling, indices",
    "max_pooling, dilated",
    "max_pooling_grad",
    "max_unpooling",
    "average_pooling_grad",
    "average_pooling, whole planes",
    "adaptive_average_pooling",
    "adaptive_max_pooling, indices",
    "nn.MaxPool2d",
    "nn.AvgPool2d",
)
POOLS: dict[str, Callable[[Tensor], Any]] = {
    "average": lambda x: dmlpool.average_pooling(x, 3, 2, (1,) * (x.dim() - 2), 2, ceil_mode=True),
    "max": lambda x: dmlpool.max_pooling(x, 3, 2, 1, 1),
    "quantized": _requantized,
    "norm over planes": lambda x: dmlpool.lp_pooling(x.sin(), x.shape[2:], p=3),
    "max, stride 1": lambda x: dmlpool.max_pooling(x.cos(), 3, 1, 1, 1) * 2,
    "average, divided by 5": lambda x: dmlpool.average_pooling(x, 2, divisor_override=5),
    "max over planes": lambda x: dmlpool.max_pooling(x, x.shape[2:]),
    "average of rows": lambda x: dmlpool.average_pooling(x, (1, x.shape[3]), (1, x.shape[3])),
    "half a window of padding": lambda x: dmlpool.average_pooling(
        x, 3, 1, x.shape[2] // 4, x.shape[3] // 4
    ),
    **{name: operators.EVERYTHING[name] for name in WHOLE},
}


def counted(function, backend="aot_eager", **rest):
    counter = CompileCounterWithBackend(backend)
    return torch.compile(function, backend=counter, fullgraph=True, **rest), counter


def check_forward_and_backward(ours, eager, input):
    """Eager's numbers, and eager's strides."""
    both = []
    for function in (ours, eager):
        leaf = input.detach().requires_grad_()
        outputs = samples.listed(function(leaf))
        if outputs[0].requires_grad:
            outputs += torch.autograd.grad(outputs[0].pow(2).sum(), leaf)
        both.append(outputs)
    for result, expected in zip(*both, strict=True):
        torch.testing.assert_close(result, expected)
        assert result.stride() == expected.stride()


LOWERED = ("max, stride 1", "average", "max_pooling_grad", "average_pooling_grad")
GRAPHS = [*((pool, "aot_eager") for pool in POOLS), *((pool, "inductor") for pool in LOWERED)]
DAILY = ["average", "average_pooling, whole planes"]


@cases.each(("pool", "backend"), GRAPHS, [(pool, "aot_eager") for pool in DAILY])
def test_one_graph_for_every_size(pool, backend, device):
    """E2: forward and backward, other batches and images, windows that follow the image; in either
    layout one more."""
    function, counter = counted(POOLS[pool], backend, dynamic=True)
    for sizes in [(2, 3, 9, 8), (5, 3, 9, 7), (3, 4, 17, 12)]:
        check_forward_and_backward(function, POOLS[pool], samples.distinct(*sizes).to(device))
    assert counter.frame_count == 1
    check_forward_and_backward(
        function, POOLS[pool], samples.channels_last(samples.distinct(2, 3, 9, 8).to(device))
    )


# Compiled autograd asks tensors for gradients that they do not have.
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning"
)
@pytest.mark.parametrize(
    "pools",
    [
        (nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1)),
        (nn.AvgPool2d(2), nn.AvgPool2d(3, 2, 1)),
        (nn.LPPool2d(2, 2), nn.LPPool2d(2, 3, 2, padding=1)),
    ],
)
def test_backward_passes_may_be_compiled(pools, device):
    """PyTorch's compiled autograd runs the gradients of layers that were called eagerly. Tensors of
    the same sizes do not make it take one window for another."""
    for samples_at_once, pool in itertools.product((2, 4), pools):
        image = samples.normal(samples_at_once, 2, 8, 8).to(device).requires_grad_()
        (expected,) = torch.autograd.grad(pool(image).square().sum(), image)
        loss = pool(image).square().sum()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
            loss.backward()
        assert torch.equal(image.grad, expected)


def test_windows_may_be_symbolic_where_sizes_are_not(device):
    """E2: a graph for every window over images of one size."""
    image = samples.normal(1, 2, 9, 9).to(device)
    torch._dynamo.mark_static(image)
    function, counter = counted(
        lambda x, size: dmlpool.average_pooling(x, size, 2) + dmlpool.max_pooling(x, size, 2),
        "aot_eager",
        dynamic=True,
    )
    for size in (3, 4, 5, 6):
        expected = dmlpool.average_pooling(image, size, 2) + dmlpool.max_pooling(image, size, 2)
        assert torch.equal(function(image, size), expected)
    assert counter.frame_count == 1


COMPILED = ["grad", "jvp", "vmap", "vmap of grad", "grad of grad", "hessian", "jacrev", "jacfwd"]
PAIRS = list(itertools.product(COMPILED, ["max", "average"]))


@cases.each(("transform", "pool"), PAIRS, [("vmap of grad", "max"), ("jvp", "average")])
def test_compiled_transforms(transform, pool, device):
    """E1: torch.func inside the compiled region, in one graph."""
    function, input = (
        functools.partial(TRANSFORMS[transform], POOLS[pool]),
        samples.distinct(2, 2, 5, 4).to(device),
    )
    torch.testing.assert_close(counted(function)[0](input), function(input))


def test_a_refusal_while_compiling(device):
    """G5: a wrong window is refused in a compiled function too, by the same text."""
    function = torch.compile(lambda x: dmlpool.max_pooling(x, 9), backend="aot_eager")
    with pytest.raises(
        Exception, match="the window leaves no output in spatial dimension H"
    ) as refusal:
        function(torch.ones(2, 3, 5, 6, device=device))
    assert not isinstance(refusal.value, AssertionError)
