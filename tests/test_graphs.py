"""Pooling first, pointwise functions afterwards: what moves, what does not, and that results and gradients stay."""

from __future__ import annotations

import doctest
import itertools
from collections.abc import Callable

import pytest
import samples
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import torch_dmlpool as dmlpool
from torch_dmlpool import graphs
from torch_dmlpool.graphs import PoolFirst
from torch_dmlpool.window import Axis

pytestmark = pytest.mark.usefixtures("fresh_compiler")

Function = Callable[[Tensor], Tensor]

WITH_GRADIENTS: dict[str, Function] = {
    "relu": functional.relu,
    "torch.relu": torch.relu,
    "method relu": lambda x: x.relu(),
    "relu in place": lambda x: functional.relu(x + 0, inplace=True),
    "method relu_": lambda x: (x + 0).relu_(),
    "relu6": functional.relu6,
    "hardtanh": functional.hardtanh,
    "hardtanh, other bounds": lambda x: functional.hardtanh(x, -2.0, 0.0),
    "threshold": lambda x: functional.threshold(x, 1.0, -1.0),
    "a chain": lambda x: functional.relu(functional.hardtanh(x, min_val=-1.0, max_val=2.0)),
}
VALUES_ALONE: dict[str, Function] = {
    "leaky_relu": functional.leaky_relu,
    "leaky_relu, steep": lambda x: functional.leaky_relu(x, 3.0),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp_min": lambda x: torch.clamp_min(x, 0.0),
    "clamp_max": lambda x: torch.clamp_max(x, 1.0),
    "clamp, one bound": lambda x: torch.clamp(x, max=1.0),
    "sigmoid": torch.sigmoid,
    "tanh": lambda x: x.tanh(),
    "scaled": lambda x: x * 0.3,
    "scaled from the left": lambda x: 3 * x,
    "divided": lambda x: x / 7.0,
    "to float64": lambda x: x.double(),
    "to float16": lambda x: x.to(torch.float16),
    "to bfloat16": lambda x: x.to(dtype=torch.bfloat16),
}


def pool(input: Tensor) -> Tensor:
    """Windows that overlap, reach into padding and are fewer than the elements."""
    return dmlpool.max_pooling(input, 3, 2, 1, 1)


def hard(device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Ties, both zeros, all bounds of the functions above and their neighbours, subnormal numbers, NaN, infinities."""
    input = samples.ties(4, 3, 13, 12, dtype=dtype)
    near = torch.nextafter(input, torch.randn(input.shape, generator=samples.seeded(1)).to(dtype))
    pick = torch.rand(input.shape, generator=samples.seeded(2))
    input = torch.where(pick < 0.3, near, input)
    input[2] = samples.normal(3, 13, 12, dtype=dtype)
    for place, number in enumerate((float("nan"), float("inf"), -float("inf"), 5e-324, -1e-40, 6.0)):
        input[torch.rand(input.shape, generator=samples.seeded(3, seed=place)) < 0.01] = number
    return input.to(device)


def exported(function: Function, input: Tensor) -> torch.fx.GraphModule:
    return make_fx(lambda x: pool(function(x)), tracing_mode="fake")(input)


def order(graph: torch.fx.Graph) -> list[str]:
    """The names of what is called, in order."""
    called = [node for node in graph.nodes if node.op.startswith("call")]
    return [str(getattr(node.target, "__name__", node.target)).split(".")[0].rstrip("_") for node in called]


@pytest.mark.parametrize("name", [*WITH_GRADIENTS, *VALUES_ALONE])
def test_values_stay(name: str, device: torch.device) -> None:
    """Without gradients everything moves, to the end; results are equal as values, NaN and all."""
    function = (WITH_GRADIENTS | VALUES_ALONE)[name]
    input = hard(device)
    module = exported(function, input)
    expected = module(input)
    moved = PoolFirst(gradients=False)(module)
    before, _, after = " ".join(order(module.graph)).partition("max_pooling")
    assert before in ("", "add ")
    assert moved == len(after.split()) > 0
    actual = module(input)
    if name == "sigmoid":
        # ATen's own results for equal numbers differ in the last place, by where they stand in memory.
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=0, equal_nan=True)
    else:
        samples.assert_same(actual, expected)
    assert actual.stride() == expected.stride()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=samples.name_of)
@pytest.mark.parametrize("name", ["leaky_relu", "sigmoid", "tanh", "scaled", "scaled from the left", "divided"])
def test_what_moves_never_decreases(name: str, dtype: torch.dtype) -> None:
    """All numbers of the two short types in ascending order."""
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    numbers = bits[~bits.isnan()].double().sort().values.to(dtype)
    results = VALUES_ALONE[name](numbers)
    assert not results.isnan().any()
    assert (results[1:] >= results[:-1]).all()


def through_the_pass(
    function: Callable[..., object], the_pass: PoolFirst, **rest: object
) -> tuple[Callable[..., object], list[int]]:
    """Compiled without code generation, so that bits can be compared, with the pass where Inductor runs it."""
    moves: list[int] = []

    def backend(module: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        moves.append(the_pass(module))
        return torch._dynamo.lookup_backend("aot_eager")(module, inputs)

    return torch.compile(function, backend=backend, fullgraph=True, **rest), moves


def with_gradient(function: Callable[..., object], input: Tensor, incoming: Tensor) -> tuple[Tensor, Tensor]:
    leaf = input.clone().requires_grad_()
    output = function(leaf)
    return output.detach(), torch.autograd.grad(output, leaf, incoming.to(output.dtype))[0]


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_gradients_stay(name: str, device: torch.device) -> None:
    """What moves where gradients flow: equal at every element, ties and NaN included; NaN may arrive too."""
    function = lambda x: pool(WITH_GRADIENTS[name](x))  # noqa: E731 - compiled and called as it is
    input = hard(device)
    if "relu" not in name or "6" in name:
        # ATen's hardtanh passes the gradient of a NaN on or drops it, by where it stands in memory.
        input.nan_to_num_()
    compiled, moves = through_the_pass(function, PoolFirst())
    incoming = samples.normal(*pool(input).shape).to(device)
    incoming[0, 0, 0, :3] = torch.tensor([float("nan"), float("inf"), 0.0])
    results = [with_gradient(run, input, incoming) for run in (compiled, function)]
    for actual, expected in zip(*results, strict=True):
        samples.assert_same(actual, expected)
    assert moves == [2 if name == "a chain" else 1]


@pytest.mark.parametrize("name", VALUES_ALONE)
def test_what_would_change_gradients_stays_put(name: str, device: torch.device) -> None:
    """The same functions where gradients flow, and where they do not."""
    function = lambda x: pool(VALUES_ALONE[name](x))  # noqa: E731
    compiled, moves = through_the_pass(function, PoolFirst())
    input = hard(device)
    compiled(input.clone().requires_grad_())
    with torch.no_grad():
        compiled(input.clone().requires_grad_())
    assert moves == [0, 1]


@pytest.mark.parametrize("name", ["clamp", "clamp_min", "leaky_relu", "sigmoid", "scaled", "to float16"])
def test_why_they_stay_put(name: str, device: torch.device) -> None:
    """Moved against the rule, each of them sends a gradient elsewhere for some input."""
    pairs = {
        "clamp": (-2.0, -1.0),
        "clamp_min": (-2.0, 0.0),
        "leaky_relu": (-1e-44, -0.0),
        "sigmoid": (80.0, 90.0),
        "scaled": (-1e-45, 0.0),
        "to float16": (1.0, 1.0001),
    }
    input = torch.tensor(pairs[name], device=device).view(1, 1, 1, 2)
    function = lambda x: dmlpool.max_pooling(VALUES_ALONE[name](x), (1, 2), (1, 2))  # noqa: E731
    against, moves = through_the_pass(function, PoolFirst(gradients=False))
    expected = with_gradient(function, input, torch.ones(1, 1, 1, 1, device=device))
    actual = with_gradient(against, input, torch.ones(1, 1, 1, 1, device=device))
    assert moves == [1]
    assert torch.equal(actual[0], expected[0])
    assert not torch.equal(actual[1], expected[1]) or name == "sigmoid"
    if name == "sigmoid":  # saturated: 1 - y is 0 for both, and the derivative happens to be the same
        assert expected[1].tolist() == [[[[0.0, 0.0]]]]


def shared(input: Tensor) -> Tensor:
    rectified = input.relu()
    return pool(rectified).sum() + rectified.sum()


def written_to_another(input: Tensor) -> Tensor:
    whole = input * 1.0
    return pool(whole[:, :2].relu_()).sum() + whole.sum()


def written_to_the_caller(input: Tensor) -> Tensor:
    return pool(input.relu_())


def cut_off(input: Tensor) -> Tensor:
    rectified = input.relu()
    with torch.no_grad():
        return pool(rectified) + input.sum()


STAYING: dict[str, Callable[[Tensor], Tensor]] = {
    "another user": shared,
    "written in place through a view": written_to_another,
    "written in place to the caller's tensor": written_to_the_caller,
    "a pooling without gradient": cut_off,
    "indices": lambda x: torch.stack(dmlpool.max_pooling(x.relu(), 2, 2, return_indices=True)),
    "stride 1": lambda x: dmlpool.max_pooling(x.relu(), 3),
    "windows in padding alone": lambda x: dmlpool.max_pooling(x.relu(), 2, 2, 2),
    "windows in end padding alone": lambda x: dmlpool.max_pooling(x.relu(), (1, 2), 2, 0, (1, 0)),
    "windows that may step over the input": lambda x: dmlpool.max_pooling(x[..., :3].relu(), 2, 2, 3, 3, 5),
    "a function that decreases": lambda x: pool(x * -2.0),
    "scaled by zero": lambda x: pool(x * 0),
    "scaled by what overflows": lambda x: pool(x * 1e308),
    "slope zero": lambda x: pool(functional.leaky_relu(x, 0.0)),
    "slope below zero": lambda x: pool(functional.leaky_relu(x, -0.1)),
    "a threshold that jumps down": lambda x: pool(functional.threshold(x, 1.0, 2.0)),
    "bounds that are tensors": lambda x: pool(x.clamp(min=x.mean())),
    "scaled by a tensor": lambda x: pool(x * x.abs().sum()),
    "squared": lambda x: pool(x * x),
    "a function that is not monotone": lambda x: pool(functional.silu(x)),
    "a cast of truth values": lambda x: pool((x > 0).float()),
    "a cast that cuts off": lambda x: pool(x.nan_to_num().clamp(-9, 9).to(torch.int32)),
    "a cast that wraps": lambda x: pool(x.nan_to_num().clamp(-9, 9).to(torch.int32).to(torch.int8)),
    "average": lambda x: dmlpool.average_pooling(x.relu(), 2, 2),
    "another order": lambda x: pool(x.mT.contiguous().mT.relu()[:, :, ::2]),
}


@pytest.mark.parametrize("name", STAYING)
def test_what_stays_put(name: str, device: torch.device) -> None:
    """Though no gradient had to stay."""
    compiled, moves = through_the_pass(STAYING[name], PoolFirst(gradients=False))
    input = hard(device)
    requires_grad = "in place to" not in name
    expected = STAYING[name](input.clone().requires_grad_(requires_grad))
    actual = compiled(input.clone().requires_grad_(requires_grad))
    assert moves == [0]
    assert actual.requires_grad == expected.requires_grad
    samples.assert_same(actual, expected)


def test_integers(device: torch.device) -> None:
    """Exact on whole numbers too; what may wrap around stays."""
    input = samples.ties(2, 3, 9, 8, dtype=torch.int16).to(device)
    for function, count in (
        (torch.relu, 1),
        (lambda x: x.clamp(-1, 100), 1),
        (lambda x: x.to(torch.int64), 1),
        (lambda x: x.float(), 1),
        (lambda x: x.to(torch.uint8), 0),
        (lambda x: x * 2, 0),
        (lambda x: x.clamp(min=0.5), 0),
    ):
        compiled, moves = through_the_pass(lambda x, f=function: pool(f(x)), PoolFirst())
        samples.assert_same(compiled(input), pool(function(input)))
        assert moves == [count]


AXES = [
    Axis(*numbers)
    for numbers in itertools.product((1, 2, 3), (1, 2, 5), (0, 1, 2, 4), (0, 1, 3), (1, 2, 4), (False, True))
]


def test_no_window_is_empty_where_that_is_said() -> None:
    """M1: for every size, and the answer is yes for all that torch.nn can express."""
    said = 0
    for axis, size in itertools.product(AXES, range(1, 8)):
        if axis.output_size(size) >= 1 and graphs._reads_everywhere(axis, size):
            said += 1
            assert axis.empty_windows(size) == []
    assert said > 1000
    for window, padding, size in ((2, 1, 1), (3, 1, 1), (5, 2, 1), (7, 3, 2)):
        assert graphs._reads_everywhere(Axis(window, 2, padding, padding, 1, True), size)


@pytest.mark.parametrize("dynamic", [False, True])
def test_symbolic_sizes_and_layouts(dynamic: bool, device: torch.device) -> None:
    """One graph for every size where shapes are dynamic, with eager's strides."""
    function = lambda x: pool(x.sin().relu()).cos()  # noqa: E731
    compiled, moves = through_the_pass(function, PoolFirst(), dynamic=dynamic)
    for sizes in ((2, 3, 9, 8), (4, 3, 12, 11)) if dynamic else ((2, 3, 9, 8),):
        for layout in (samples.channels_last, torch.clone):
            leaf = layout(samples.normal(*sizes).to(device))
            results = [with_gradient(run, leaf, torch.ones_like(function(leaf))) for run in (compiled, function)]
            for actual, expected in zip(*results, strict=True):
                torch.testing.assert_close(actual, expected, rtol=0, atol=0)
                assert actual.stride() == expected.stride()
    assert set(moves) == {1}


def test_transforms_inside_the_graph(device: torch.device) -> None:
    """torch.func: derivatives are asked for inside, whatever requires_grad says."""
    input = torch.tensor([[[[-2.0, -1.0, 3.0, 0.5]]]], device=device)

    def derivative(function: Function) -> Function:
        loss = lambda x: dmlpool.max_pooling(function(x), (1, 2), (1, 2)).sum()  # noqa: E731
        return lambda x: torch.func.jvp(loss, (x,), (torch.ones_like(x) * x,))[1] + torch.func.grad(loss)(x)

    for function, count in ((torch.relu, 2), (lambda x: x.clamp(-1, 1), 0)):
        compiled, moves = through_the_pass(derivative(function), PoolFirst())
        assert torch.equal(compiled(input), derivative(function)(input))
        assert moves == [count]


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.rectified = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(inplace=True)
        self.pool, self.last = dmlpool.nn.MaxPool2d(3, 2, 1), dmlpool.nn.MaxPool2d(2)

    def forward(self, input: Tensor) -> Tensor:
        return self.last(torch.tanh(self.pool(self.rectified(self.convolution(input)))))


def test_an_exported_program(device: torch.device, tmp_path: object) -> None:
    """Its signature follows, also where the pooling was the output; it can be saved, loaded and decomposed."""
    network, input = Network().to(device).eval(), samples.normal(2, 3, 12, 13).to(device)
    with torch.no_grad():
        expected = network(input)
    program = torch.export.export(network, (input,))
    assert PoolFirst(gradients=False)(program) == 3  # the rectifier behind one pooling, then behind the other
    assert order(program.graph)[-4:] == ["max_pooling", "max_pooling", "relu", "tanh"]
    torch.export.save(program, f"{tmp_path}/network.pt2")
    for same in (program, torch.export.load(f"{tmp_path}/network.pt2"), program.run_decompositions()):
        torch.testing.assert_close(same.module()(input), expected, rtol=0, atol=0)


def test_an_exported_program_may_be_trained(device: torch.device) -> None:
    """Where nothing says that no gradient flows, one does."""
    program = torch.export.export(Network().to(device), (samples.normal(2, 3, 12, 13).to(device),))
    assert PoolFirst()(program) == 1
    assert order(program.graph)[-4:] == ["max_pooling", "relu", "tanh", "max_pooling"]


class Counting(PoolFirst):
    """The pass, counted."""

    def __init__(self) -> None:
        super().__init__()
        self.moves: list[int] = []

    def __call__(self, *arguments: object, **keywords: object) -> int:
        self.moves.append(super().__call__(*arguments, **keywords))
        return self.moves[-1]


def test_inductors_hook_before_differentiation(device: torch.device) -> None:
    """torch.compile(options=...), training: the rectifier moves, tanh does not; gradients are right.

    E2, too: the default backend generates and runs code for dynamic shapes, forward and backward.
    """
    function = lambda x: pool(torch.tanh(pool((x + 1).relu_())))  # noqa: E731
    the_pass, input = Counting(), samples.normal(2, 3, 12, 13).to(device)
    compiled = torch.compile(function, fullgraph=True, dynamic=True, options={"pre_grad_custom_pass": the_pass})
    results = [with_gradient(run, input, torch.ones_like(function(input))) for run in (compiled, function)]
    torch.testing.assert_close(*results)
    assert the_pass.moves == [1]


@pytest.mark.slow
def test_inductors_hook_after_differentiation(device: torch.device) -> None:
    """Inference: both move, however the operators were decomposed by then."""
    network, input = Network().to(device), samples.normal(2, 3, 12, 13).to(device)
    the_pass = Counting()
    with torch.no_grad():
        compiled = torch.compile(network, fullgraph=True, options={"post_grad_custom_pre_pass": the_pass})
        torch.testing.assert_close(compiled(input), network(input))
    assert the_pass.moves == [3]


def test_what_inductors_caches_know() -> None:
    """The pass has an identity of its own for every setting, or compiled code could be reused across them."""
    names = [PoolFirst(gradients=gradients).uuid() for gradients in (None, False, True)]
    assert len(set(names)) == 3
    assert PoolFirst().uuid() == names[0]


def test_a_graph_that_says_nothing_of_its_tensors() -> None:
    graph = torch.fx.Graph()
    rectified = graph.call_function(torch.relu, (graph.placeholder("input"),))
    lists = [2, 2], [2, 2], [0, 0], [0, 0], [1, 1]
    graph.output(graph.call_function(torch.ops.dmlpool.max_pooling.default, (rectified, *lists, False)))
    assert PoolFirst(gradients=False)(graph) == 0


def test_a_function_that_only_has_the_name() -> None:
    """relu is known by what it is, not by what it is called."""

    def relu(input: Tensor) -> Tensor:
        return -input

    module = exported(torch.relu, torch.ones(1, 1, 4, 4))
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.relu.default:
            node.target = relu
    assert PoolFirst(gradients=False)(module) == 0


def test_refusals() -> None:
    with pytest.raises(TypeError, match=r"^gradients must be a bool or None, got 0 of type int$"):
        PoolFirst(gradients=0)
    with pytest.raises(TypeError, match=r"^graph must be a Graph, a GraphModule or an ExportedProgram, got Linear$"):
        PoolFirst()(torch.nn.Linear(1, 1))


def test_the_example_runs() -> None:
    found = doctest.testmod(graphs)
    assert found.attempted >= 6
    assert found.failed == 0
