"""torch.compile, torch.export, fake and meta tensors (E1, E2): nothing breaks the graph, nothing recompiles in vain."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import samples
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import torch_dmlpool as dmlpool

pytestmark = pytest.mark.usefixtures("fresh_compiler")

POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda x: dmlpool.max_pooling(x, 3, 2, 1, 1),
    "max with indices": lambda x: dmlpool.max_pooling(x, (3,) * (x.dim() - 2), 2, 1, 1, return_indices=True)[0],
    "average": lambda x: dmlpool.average_pooling(x, 3, 2, (1,) * (x.dim() - 2), 2, ceil_mode=True),
    "average, divided by 5": lambda x: dmlpool.average_pooling(x, 2, divisor_override=5),
}
pools = pytest.mark.parametrize("pool", POOLS)


def compiled(function: Callable[..., object], backend: str = "aot_eager", **rest: object) -> Callable[..., object]:
    return torch.compile(function, backend=backend, fullgraph=True, **rest)


def counted(function: Callable[..., object], **rest: object) -> tuple[Callable[..., object], CompileCounterWithBackend]:
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, backend=counter, fullgraph=True, **rest), counter


def check_forward_and_backward(
    ours: Callable[[Tensor], Tensor], eager: Callable[[Tensor], Tensor], input: Tensor
) -> None:
    results = []
    for function in (ours, eager):
        leaf = input.detach().requires_grad_()
        output = function(leaf)
        results.append((output, *torch.autograd.grad(output.pow(2).sum(), leaf)))
    for result, expected in zip(*results, strict=True):
        torch.testing.assert_close(result, expected)
        assert result.stride() == expected.stride()


FORMS = [((2, 3, 9), True), ((2, 3, 9, 8), True), ((2, 3, 9, 8), False), ((2, 3, 5, 6, 7), True)]
"""Sizes of an image, and whether the graph is to serve others too."""
DAILY = [("max", FORMS[1]), ("average", FORMS[2])]


@pytest.mark.parametrize(
    ("pool", "form"),
    [
        pytest.param(pool, form, id=f"{pool}-{form}", marks=[] if (pool, form) in DAILY else [pytest.mark.slow])
        for pool, form in itertools.product(POOLS, FORMS)
    ],
)
def test_forward_and_backward(pool: str, form: tuple[tuple[int, ...], bool], device: torch.device) -> None:
    """E2: one whole graph, with eager's numbers and strides."""
    sizes, dynamic = form
    function = compiled(lambda x: POOLS[pool](x.cos()) * 2, dynamic=dynamic)
    for layout in (samples.LAYOUTS["contiguous"], samples.channels_last):
        input = layout(samples.distinct(*sizes).to(device))
        check_forward_and_backward(function, lambda x: POOLS[pool](x.cos()) * 2, input)


@pytest.mark.parametrize("pool", ["max", "average"])
def test_no_recompilation_for_new_sizes(pool: str, device: torch.device) -> None:
    """E2: a new batch size or image size is served by the same graph, forward and backward."""
    function, counter = counted(POOLS[pool], dynamic=True)
    for sizes in [(2, 3, 9, 8), (5, 3, 9, 8), (3, 3, 17, 12), (7, 4, 10, 31), (64, 3, 33, 10)]:
        check_forward_and_backward(function, POOLS[pool], samples.distinct(*sizes).to(device))
    assert counter.frame_count == 1


@pytest.mark.slow
@pools
def test_automatic_dynamic_shapes_settle(pool: str, device: torch.device) -> None:
    """E2: without dynamic=True, one more graph for the first size that differs, and none after it."""
    function, counter = counted(POOLS[pool])
    for batch in (2, 4, 5, 9):
        torch.testing.assert_close(function(x := samples.distinct(batch, 3, 9, 8).to(device)), POOLS[pool](x))
    assert counter.frame_count == 2


GLOBALS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda x: dmlpool.max_pooling(x, x.shape[2:]),
    "average": lambda x: dmlpool.average_pooling(x, x.shape[2:], include_padding=True),
    "average of the last dimension": lambda x: dmlpool.average_pooling(x, (1, x.shape[3]), (1, x.shape[3])),
    "half a window of padding": lambda x: dmlpool.average_pooling(x, 3, 1, x.shape[2] // 4, x.shape[3] // 4),
}


@pytest.mark.parametrize(
    "pool", [pytest.param(pool, marks=[pytest.mark.slow] if pool != "average" else []) for pool in GLOBALS]
)
def test_a_symbolic_window(pool: str, device: torch.device) -> None:
    """E2: the window follows the image, and still nothing is compiled twice."""
    function, counter = counted(GLOBALS[pool], dynamic=True)
    for sizes in [(2, 3, 9, 8), (3, 3, 12, 11), (4, 3, 14, 13)]:
        check_forward_and_backward(function, GLOBALS[pool], samples.distinct(*sizes).to(device))
    assert counter.frame_count == 1


def test_operators_of_the_gradients(device: torch.device) -> None:
    """E2: max_pooling_grad and average_pooling_grad called by name, with a symbolic input_size."""

    def both(input: Tensor, gradient: Tensor) -> Tensor:
        spread = dmlpool.average_pooling_grad(gradient, input.shape, 3, 2, 1, 1)
        return spread + dmlpool.max_pooling_grad(input, gradient, 3, 2, 1, 1)

    function, counter = counted(both, dynamic=True)
    for height, width in [(9, 8), (12, 7), (20, 21)]:
        input = samples.distinct(2, 3, height, width).to(device)
        gradient = samples.normal(2, 3, (height + 1) // 2, (width + 1) // 2, dtype=torch.float64).to(device)
        torch.testing.assert_close(function(input, gradient), both(input, gradient))
    assert counter.frame_count == 1


def loss(pool: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: pool(x.sin()).pow(3).sum()


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], object]]] = {
    "grad": lambda pool: grad(loss(pool)),
    "jvp": lambda pool: lambda x: jvp(pool, (x,), (x.cos(),)),
    "vmap": lambda pool: vmap(lambda x: pool(x[None]), in_dims=1),
    "vmap of grad": lambda pool: vmap(grad(lambda x: loss(pool)(x[None]))),
    "grad of grad": lambda pool: grad(lambda x: grad(loss(pool))(x).pow(2).sum()),
    "hessian": lambda pool: lambda x: hessian(loss(pool))(x[:1, :1]),
    "jacrev": lambda pool: lambda x: jacrev(pool)(x[:1, :1]),
    "jacfwd": lambda pool: lambda x: jacfwd(pool)(x[:1, :1]),
}
DAILY_TRANSFORMS = [("vmap of grad", "max"), ("jvp", "average")]


@pytest.mark.parametrize(
    ("transform", "pool"),
    [
        pytest.param(transform, pool, marks=[] if (transform, pool) in DAILY_TRANSFORMS else [pytest.mark.slow])
        for transform, pool in itertools.product(TRANSFORMS, ["max", "average"])
    ],
)
def test_compiled_transforms(transform: str, pool: str, device: torch.device) -> None:
    """E1: torch.func inside the compiled region, in one graph."""
    function = TRANSFORMS[transform](POOLS[pool])
    input = samples.distinct(2, 2, 5, 4).to(device)
    torch.testing.assert_close(compiled(function)(input), function(input))


class Network(torch.nn.Module):
    def forward(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, indices = dmlpool.max_pooling(input, 3, 2, 1, 1, return_indices=True)
        return values, indices, dmlpool.average_pooling(input, input.shape[2:], include_padding=True)


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_export_with_dynamic_dimensions(strict: bool, device: torch.device) -> None:
    """E2: an exported program keeps the operators whole and serves other sizes."""
    dimensions = {0: torch.export.Dim("batch", min=2), 2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO}
    program = torch.export.export(
        Network(), (samples.normal(2, 3, 9, 8).to(device),), dynamic_shapes=(dimensions,), strict=strict
    )
    called = [str(node.target) for node in program.graph.nodes if "dmlpool" in str(node.target)]
    assert called == ["dmlpool.max_pooling_with_indices.default", "dmlpool.average_pooling.default"]
    for sizes in [(2, 3, 9, 8), (5, 3, 14, 21)]:
        input = samples.normal(*sizes).to(device)
        for result, expected in zip(program.module()(input), Network()(input), strict=True):
            torch.testing.assert_close(result, expected)


def test_decomposed_export_keeps_the_operators(device: torch.device) -> None:
    """E2: run_decompositions finds nothing to take apart."""
    program = torch.export.export(Network(), (samples.normal(2, 3, 9, 8).to(device),), strict=False)
    code = program.run_decompositions().graph_module.code
    assert "dmlpool.max_pooling_with_indices" in code
    assert "dmlpool.average_pooling" in code


def test_fake_tensors_of_symbolic_sizes(device: torch.device) -> None:
    """E2: unbacked or backed, the output sizes are expressions of the input's."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    real = torch.ones(2, 3, 12, 15, device=device)
    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * 4)
    fake = mode.from_tensor(real, symbolic_context=context)
    with mode:
        for output in (dmlpool.max_pooling(fake, 3, 2), dmlpool.average_pooling(fake, 3, 2, ceil_mode=True)):
            assert all(isinstance(size, torch.SymInt) for size in output.shape)
            assert [int(size) for size in output.shape[:2]] == [2, 3]
    assert output.device == device


def test_a_refusal_while_compiling(device: torch.device) -> None:
    """G5: a wrong window is refused in a compiled function too, by the same text."""
    function = torch.compile(lambda x: dmlpool.max_pooling(x, 9), backend="aot_eager")
    with pytest.raises(Exception, match="the window leaves no output in spatial dimension H") as refusal:
        function(torch.ones(2, 3, 5, 6, device=device))
    assert not isinstance(refusal.value, AssertionError)


def test_gradients_flow_through_a_compiled_call_of_meta_tensors() -> None:
    """E2: shapes alone, forward and backward, without memory."""
    leaf = torch.empty(2, 2**10, 2**12, 2**12, device="meta", requires_grad=True)
    for pool in (POOLS["max"], POOLS["average"]):
        output = pool(leaf)
        assert output.shape[:2] == leaf.shape[:2]
        (gradient,) = torch.autograd.grad(output, leaf, torch.empty_like(output))
        assert gradient.shape == leaf.shape
