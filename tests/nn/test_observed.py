"""Calls that somebody else sees: a pool that PyTorch has is PyTorch's (W1, W2, W3)."""

import copy
import importlib
import itertools
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import samples
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import torch_dmlpool as dmlpool
from torch_dmlpool import nn
from torch_dmlpool.nn import functional as pooling

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.quantize_per_tensor, torch.quantize_per_channel:UserWarning",
    "ignore:.*torch.jit:DeprecationWarning",
)
SIZES = {1: (2, 4, 12), 2: (2, 4, 12, 11), 3: (2, 3, 6, 7, 8)}
PYTORCHS: dict[str, tuple[Any, ...]] = {
    "MaxPool": ((3, 2, 1), (3, 1, 1, 2), (2, 2, 0, 1, True, True)),
    "AvgPool": ((2,), (3, 2, 1, True, False)),
    "LPPool": ((2, 3),),
    "AdaptiveAvgPool": ((3,),),
    "AdaptiveMaxPool": ((4,), (2, True)),
}
OURS: dict[str, tuple[Any, ...]] = {
    "MaxPool": ((2, 1, 2), (3, 2, "same")),
    "AvgPool": ((3, 1, 2),),
    "LPPool": ((3, 3), (2, 3, 2, True)),
    "MaxUnpool": ((2,), (3, 2)),
    "MinPool": ((2,),),
    "AdaptiveMinPool": ((2,),),
}
"""Arguments of layers, those of which PyTorch has a pool with the same meaning and the others."""


def cases_of(table):
    names = itertools.product(table, (1, 2, 3))
    return [(f"{name}{rank}d", each) for name, rank in names for each in table[name]]


def request_of(name, arguments):
    """A layer and what it gets: an input, and indices for unpooling."""
    rank = int(name[-2])
    if "Unpool" not in name:
        return getattr(nn, name)(*arguments), (samples.normal(*SIZES[rank]),)
    input = samples.normal(2, 3, *(9 - len(arguments),) * rank)  # which the windows fill
    pooled = getattr(functional, f"max_pool{rank}d")(input, *arguments, return_indices=True)
    return getattr(nn, name)(*arguments), pooled


class Watch(TorchFunctionMode):
    """It notes the functions that it sees."""

    def __init__(self):
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls.append(f"{getattr(func, '__module__', 'torch')}.{getattr(func, '__name__', '')}")
        return func(*args, **(kwargs or {}))


def same(actual, expected):
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize(("name", "arguments"), cases_of(PYTORCHS))
def test_a_mode_sees_pytorchs_function(name, arguments, gradient):
    """Once, with the same result; batched or not, of a layer and of a function."""
    layer, inputs = request_of(name, arguments)
    expected = layer(*inputs)
    for cut in (lambda tensor: tensor, lambda tensor: tensor[0]):
        values = [cut(tensor) for tensor in inputs]
        values[0].requires_grad_(gradient)
        with Watch() as watch:
            output = layer(*values)
        with Watch() as theirs:
            getattr(torch.nn, name).forward(layer, *values)
        assert watch.calls == theirs.calls
        assert len(watch.calls) == 1
        same(samples.listed(output), [cut(each) for each in samples.listed(expected)])


@pytest.mark.parametrize(("name", "arguments"), cases_of(OURS))
def test_a_mode_sees_our_function_where_pytorch_has_none(name, arguments):
    """Once, and none of what the operator asks of the tensor."""
    layer, inputs = request_of(name, arguments)
    with Watch() as watch:
        output = layer(*inputs)
    (ours,) = (each for each in pooling.__all__ if each.replace("_", "") == name.lower())
    assert watch.calls == [f"torch_dmlpool.nn.functional.{ours}"]
    same(output, layer(*inputs))


def test_operators_are_one_call_and_other_modes_see_them_too():
    image = samples.normal(1, 2, 6, 6)
    for call in (
        lambda x: dmlpool.max_pooling(x, 2, mask=x > 0),
        lambda x: dmlpool.average_pooling(input=x, window_size=3),
        lambda x: dmlpool.adaptive_min_pooling(x, 2),
    ):
        with Watch() as outer, Watch() as inner:
            call(image)
        pools = [name for name in inner.calls if name != "torch.gt"]
        assert pools == [name for name in outer.calls if name != "torch.gt"]
        assert len(pools) == 1
        assert pools[0].startswith("torch_dmlpool.")


@pytest.mark.parametrize(
    "enter",
    [lambda: torch.device("cpu"), lambda: torch.device("meta"), nn.rerouted],
    ids=["device", "another device", "rerouted"],
)
def test_device_contexts_and_rerouted_stay_on_our_kernels(enter):
    image = samples.normal(1, 2, 6, 6).requires_grad_()
    with enter():
        maxima, averages = nn.MaxPool2d(2)(image), pooling.avg_pool2d(image, 2)
    # A node may be asked only while its output lives.
    assert maxima.grad_fn.name() == "MaxPoolingBackward"
    assert averages.grad_fn.name() == "AveragePoolingBackward"
    with enter(), Watch() as watch:
        output = nn.MaxPool2d(2)(image)
    assert watch.calls == ["torch.nn.functional._max_pool2d"] or len(watch.calls) == 1
    same(output, nn.MaxPool2d(2)(image))


REPLACED = [name for name in pooling.__all__ if hasattr(functional, name) and "un" not in name]


@pytest.mark.parametrize("name", REPLACED)
def test_a_replaced_function_is_called(name, monkeypatch):
    """As profilers replace them; ours is called again when PyTorch's is put back."""
    rank, calls = int(name.partition("d_w")[0].rstrip("d")[-1]), []
    theirs = getattr(functional, name)
    image, arguments = samples.normal(*SIZES[rank]), (2,)
    if name.startswith("lp"):
        arguments = 2.0, 2  # type: ignore[assignment]

    def replaced(*args, **kwargs):
        calls.append(args)
        return theirs(*args, **kwargs)

    expected = theirs(image, *arguments)
    with monkeypatch.context() as patch:
        patch.setattr(functional, name, replaced)
        same(getattr(pooling, name)(image, *arguments), expected)
        assert len(calls) == 1
        with nn.rerouted():  # as often as PyTorch's own
            same(getattr(functional, name)(image, *arguments), expected)
            count = len(calls) - 1
            same(getattr(pooling, name)(image, *arguments), expected)
        assert len(calls) == 1 + 2 * count
    calls.clear()
    same(getattr(pooling, name)(image, *arguments), expected)
    assert not calls


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("indices", [[-1, 2], [1, 1]], ids=["no element", "one element twice"])
def test_unpooling_is_never_pytorchs(indices, rank, monkeypatch):
    """Whether it means the same lies in the indices: of -1 PyTorch makes an error, and it sends the
    gradient to all elements of one index. Nor is a function called that replaces PyTorch's."""
    unpool = getattr(pooling, f"max_unpool{rank}d")
    sizes = (1, 1, *[1] * (rank - 1), 2)
    places = torch.tensor(indices).view(sizes)

    def results():
        values = torch.tensor([3.0, 4.0]).view(sizes).requires_grad_()
        output = unpool(values, places, 2)
        return [output, *torch.autograd.grad(output.square().sum(), values)]

    expected = results()
    with Watch() as watch:
        found = results()
    same(found, expected)
    assert f"torch_dmlpool.nn.functional.max_unpool{rank}d" in watch.calls
    assert f"torch.nn.functional.max_unpool{rank}d" not in watch.calls
    monkeypatch.setattr(functional, f"max_unpool{rank}d", None)
    same(results(), expected)


@pytest.mark.parametrize("name", [f"{name}{rank}d" for name in PYTORCHS for rank in (1, 2, 3)])
def test_a_pool_of_no_channels_stays_ours(name):
    """N = 0 and C = 0 are legal here, and PyTorch refuses some of them."""
    rank = int(name[-2])
    layer = getattr(nn, name)(*PYTORCHS[name[:-2]][0])
    for sizes in ((2, 0), (0, 0)):
        image = torch.zeros(*sizes, *SIZES[rank][2:])
        expected = layer(image)
        with Watch() as watch:
            found = layer(image)
        same(found, expected)
        assert watch.calls[0].startswith("torch_dmlpool.nn.functional.")


@pytest.mark.parametrize("sizes", [(4, 5, 1), (6, 6, 6)])
def test_volumes_smaller_than_their_window_stay_ours(sizes):
    """PyTorch's averages refuse them, padded or not; and nothing that is asked for is changed."""
    layer, image = nn.AvgPool3d((2, 6, 2), 1, (1, 3, 1)), samples.normal(1, 2, *sizes)
    expected, before = layer(image), dict(vars(layer))
    with Watch() as watch:
        found = layer(image)
    same(found, expected)
    (name,) = watch.calls
    assert name.startswith("torch_dmlpool.") is (min(sizes) < 2)
    assert vars(layer) == before


class Duck:
    """No tensor, but an object that PyTorch's functions ask."""

    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        bare = [value.tensor if isinstance(value, cls) else value for value in args]
        output = func(*bare, **(kwargs or {}))
        return cls(output) if isinstance(output, Tensor) else tuple(map(cls, output))


class Handling(Tensor):
    """A subclass with a table of functions."""

    seen: list[Any] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize(("name", "arguments"), cases_of(PYTORCHS) + cases_of(OURS))
def test_objects_and_subclasses_are_asked(name, arguments):
    """Once, and the result is theirs."""
    layer, (input, *others) = request_of(name, arguments)
    expected = samples.listed(layer(input, *others))
    pooled = layer(Duck(input), *others)
    same([each.tensor for each in (pooled if type(pooled) is tuple else [pooled])], expected)
    Handling.seen.clear()
    pooled = samples.listed(layer(input.as_subclass(Handling), *others))
    assert type(pooled[0]) is Handling
    assert len([func for func in Handling.seen if "pool" in getattr(func, "__name__", "")]) == 1
    same([each.as_subclass(Tensor) for each in pooled], expected)


@pytest.mark.parametrize(("name", "arguments"), cases_of(PYTORCHS))
def test_a_trace_runs_without_this_package(name, arguments):
    """It is made of PyTorch's operators alone."""
    layer, inputs = request_of(name, arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(layer, inputs, check_trace=False)
    kinds = {node.kind() for node in traced.inlined_graph.nodes()}
    assert all(kind.startswith(("aten::", "prim::")) for kind in kinds), kinds
    assert "prim::PythonOp" not in kinds
    same(traced(*inputs), layer(*inputs))


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "mkldnn": lambda x: x.to_mkldnn(),
    "qint32": lambda x: torch.quantize_per_tensor(x, 0.05, 3, torch.qint32),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "arguments"), cases_of(PYTORCHS) + cases_of(OURS))
def test_what_pytorch_alone_pools_is_pooled_or_refused(name, arguments, kind):
    """By PyTorch, or the error says what to do."""
    layer, (input, *others) = request_of(name, arguments)
    tensor = KINDS[kind](input)
    try:
        expected = samples.listed(getattr(torch.nn, name).forward(layer, tensor, *others))
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):
        expected = []
    if not expected or (name[:-2], arguments) in [(n, a) for n, each in OURS.items() for a in each]:
        with pytest.raises(TypeError, match=r"PyTorch alone pools .*: pool input\.(to_dense|dequ)"):
            layer(tensor, *others)
        return
    dense = [each.to_dense() if each.is_mkldnn else each.dequantize() for each in expected]
    found = samples.listed(layer(tensor, *others))
    same([each.to_dense() if each.is_mkldnn else each.dequantize() for each in found], dense)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.pool, self.unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)
        self.least, self.norm = nn.MinPool2d(3, 1, 1), nn.LPPool2d(2, 2)

    def forward(self, x):
        pooled, indices = self.pool(x)
        x = self.unpool(pooled, indices, output_size=x.shape)
        x = self.norm(self.least(x, mask=x > 0))
        return pooling.avg_pool2d(dmlpool.min_pooling(x, 2), 2, dilation=2)


def test_symbolic_tracing_keeps_layers_and_functions_whole(tmp_path):
    """Layers with their names and masks; the graph's code is written into a folder and imported."""
    model = Net()
    traced = torch.fx.symbolic_trace(model)
    modules = [node for node in traced.graph.nodes if node.op == "call_module"]
    assert [node.target for node in modules] == ["pool", "unpool", "least", "norm"]
    assert [list(node.kwargs) for node in modules] == [[], ["output_size"], ["mask"], []]
    called = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert [each for each in called if each.__module__.startswith("torch_dmlpool")] == [
        dmlpool.min_pooling,
        pooling.avg_pool2d,
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced.to_folder(tmp_path / "written_graph", "Kept")
    sys.path.insert(0, str(tmp_path))
    try:
        kept = importlib.import_module("written_graph").Kept()
    finally:
        sys.path.pop(0)
    image = samples.normal(1, 2, 16, 16)
    for graph in (traced, kept, copy.deepcopy(traced)):
        same(graph(image), model(image))


class Proxy:
    """Another tracer's, as some tools have one."""

    def __init__(self, tracer, call):
        self.tracer, self.call = tracer, call

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return args[0].tracer.create_proxy("call_function", func, args, kwargs or {})


class Tracer:
    def __init__(self, root):
        self.paths = {module: name for name, module in root.named_modules()}

    def create_proxy(self, *call):
        return Proxy(self, call)

    def path_of_module(self, module):
        return self.paths[module]


def test_other_tracers_get_the_same_calls():
    model = torch.nn.Sequential(nn.AvgPool2d(2))
    input = Proxy(Tracer(model), ())
    recorded: Any = model[0](input)
    assert recorded.call == ("call_module", "0", (input,), {})
    recorded = pooling.lp_pool2d(input, 2, 2)
    assert recorded.call[:2] == ("call_function", pooling.lp_pool2d)


WINDOWS: list[Callable[..., Any]] = [
    lambda x, k, s, p, d, c: pooling.max_pool2d(x, k, s, p, d, c, True),
    lambda x, k, s, p, d, c: pooling.avg_pool2d(x, k, s, p, c, False, dilation=d),
    lambda x, k, s, p, _, c: pooling.avg_pool2d(x, k, s, p, c),
    lambda x, k, s, p, _, c: pooling.lp_pool2d(x, 2, k, s, c, padding=p),
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("pool", WINDOWS)
def test_the_same_meaning_is_the_same_result(pool, size):
    """Whatever small window is asked for, a mode gets what is computed without it, indices and
    errors included. No window of PyTorch's lies in the padding alone."""
    image = samples.normal(1, 2, size, size + 1)
    for window in itertools.product((1, 2, 3, 4), (1, 3), (0, 1, 2), (1, 2, 4), (False, True)):
        try:
            expected = pool(image, *window)
        except ValueError as error:
            with Watch(), pytest.raises(ValueError, match=f"^{re.escape(str(error))}$"):
                pool(image, *window)
            continue
        with Watch() as watch:
            found = pool(image, *window)
        same(found, expected)
        assert len(watch.calls) == 1
        is_theirs = not watch.calls[0].startswith("torch_dmlpool")
        assert not (is_theirs and samples.listed(found)[0].isinf().any())
