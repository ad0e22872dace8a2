"""torch_dmlpool.nn.functional: torch's results where torch can express the request, and what it
cannot, by hand."""

import inspect
import itertools
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool.nn import functional as pooling

RANKS = (1, 2, 3)
SHAPES = {1: (2, 3, 13), 2: (2, 3, 9, 11), 3: (2, 3, 6, 7, 8)}
WINDOWS: dict[str, dict[str, Any]] = {
    "stride defaults to the window": {"kernel_size": 2},
    "an empty stride is the window": {"kernel_size": 3, "stride": ()},
    "a one-entry list is an int": {"kernel_size": (3,), "stride": [2]},
    "gaps between windows": {"kernel_size": 1, "stride": 3},
    "per dimension": {"kernel_size": (2, 3, 4), "stride": (1, 2, 3)},
}
PADDED: dict[str, dict[str, Any]] = {
    "padded": {"kernel_size": 3, "stride": 2, "padding": 1},
    "ceil_mode": {"kernel_size": 4, "stride": 3, "padding": (1,), "ceil_mode": True},
    "ceil_mode overlapping": {"kernel_size": 4, "stride": 2, "padding": 1, "ceil_mode": True},
}
ADAPTED: dict[str, dict[str, Any]] = {
    "1": {"output_size": 1},
    "uneven": {"output_size": 4},
    "one kept": {"output_size": (5, None, 4)},
}
REQUESTS: dict[str, dict[str, dict[str, Any]]] = {
    "avg_pool": {
        **WINDOWS,
        **PADDED,
        "padding left out": {**PADDED["ceil_mode"], "count_include_pad": False},
        "divisor": {"kernel_size": 3, "stride": 1, "padding": 1, "divisor_override": -5},
    },
    "max_pool": {
        **WINDOWS,
        **PADDED,
        "dilated": {"kernel_size": 3, "stride": 1, "dilation": 2},
        "dilated, ceil_mode": {**PADDED["ceil_mode"], "kernel_size": 3, "dilation": 2},
    },
    "lp_pool": {
        "overlapping": {"norm_type": 3, "kernel_size": 3, "stride": 2},
        "apart": {"norm_type": 2.0, "kernel_size": 2},
    },
    "adaptive_avg_pool": ADAPTED,
    "adaptive_max_pool": {**ADAPTED, "more": {"output_size": 20}},
}
"""What functions and layers of PyTorch's take."""
EVERY_REQUEST = [
    pytest.param(family, rank, name, id=f"{family}{rank}d {name}")
    for family, requests in REQUESTS.items()
    for name in requests
    for rank in RANKS
    if (rank, name) != (1, "divisor")
]


def request_of(family, rank, name):
    """One entry per dimension where there are three."""
    found = REQUESTS[family][name]
    return {
        key: value[-rank:] if isinstance(value, tuple) and len(value) == 3 else value
        for key, value in found.items()
    }


def ours(family, rank):
    return getattr(pooling, f"{family}{rank}d")


def torchs(family, rank):
    return getattr(torch.nn.functional, f"{family}{rank}d")


Image = Callable[..., Tensor]
every_request = pytest.mark.parametrize(("family", "rank", "name"), EVERY_REQUEST)


@pytest.fixture
def image(device):
    """A random batch for a number of spatial dimensions, the same one every time."""
    return lambda rank: samples.normal(*SHAPES[rank], dtype=torch.float64).to(device)


@every_request
@pytest.mark.parametrize("batched", [True, False])
def test_results_and_gradients_are_torchs(family, rank, name, batched, image):
    """A1, A2, A5, A6, M1, M2, M4 (per plane), M5: maxima and indices bit for bit, on images full of
    ties."""
    tensor = image(rank) if batched else image(rank)[0]
    arguments = request_of(family, rank, name)
    if family == "lp_pool":
        tensor = tensor.abs()  # torch's norms of negative numbers are none
    if "max" in family:
        tensor, arguments = tensor.round(), {**arguments, "return_indices": True}
    found, expected = (
        samples.results(of(family, rank), tensor, **arguments) for of in (ours, torchs)
    )
    torch.testing.assert_close(found, expected)
    if "max" in family:
        assert all(torch.equal(*pair) for pair in zip(found[:-1], expected[:-1], strict=True))
        values = ours(family, rank)(tensor, **request_of(family, rank, name))
        assert torch.equal(values, expected[0])


LACKING = {"padding": 0, "dilation": 1, "divisor_override": None}
"""Arguments that some of torch.nn's layers lack."""


@every_request
def test_a_layer_is_torchs(family, rank, name, image):
    """Results and gradients, isinstance, repr, state_dict; attributes but for the arguments that
    torch.nn lacks. A layer of torch.nn that is converted is the same."""
    kind = f"{family.title().replace('_', '').replace('Lp', 'LP')}{rank}d"
    arguments = request_of(family, rank, name)
    arguments |= {"return_indices": True} if "max" in family else {}
    layer, theirs = (getattr(module, kind)(**arguments) for module in (dmlpool.nn, torch.nn))
    tensor, text = image(rank).abs(), repr(theirs)
    expected = samples.results(theirs, tensor)
    torch.testing.assert_close(samples.results(layer, tensor), expected)
    assert isinstance(layer, type(theirs))
    assert repr(layer) == text
    assert layer.state_dict() == theirs.state_dict() == {}
    more = {name: value for name, value in vars(layer).items() if name not in vars(theirs)}
    assert {**vars(theirs), **more} == vars(layer)
    assert LACKING | more == LACKING
    if arguments.get("norm_type") != 3:  # for numbers below 0 torch's norms are others
        report = dmlpool.nn.convert(theirs)
        assert report.model is theirs
        assert (type(theirs), repr(theirs)) == (type(layer), text)
        assert (
            str(report) == f"replaced 1, left 0\n  replaced  (root)  {kind}: {report.effects['']}"
        )
        torch.testing.assert_close(samples.results(theirs, tensor), expected)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, None, 0), (2, 3, 0), (3, 3, 1)])
def test_unpooling_is_torchs(rank, kernel, stride, padding, batched, device):
    """Without an output size, to the spatial sizes and to all sizes, where indices are unique;
    gradients too."""
    batch = samples.distinct(*SHAPES[rank]).to(device)
    batch = batch if batched else batch[0]
    values, indices = torchs("max_pool", rank)(batch, kernel, stride, padding, return_indices=True)
    default = torchs("max_unpool", rank)(values * 0, indices * 0, kernel, stride, padding)
    is_known = bool((indices < math.prod(default.shape[-rank:])).all())
    for size in [None] * is_known + [batch.shape[-rank:]] + [batch.shape] * batched:
        window = {"kernel_size": kernel, "stride": stride, "padding": padding}
        arguments = {"indices": indices, "output_size": size, **window}
        found, expected = (
            samples.results(of("max_unpool", rank), values, **arguments) for of in (ours, torchs)
        )
        assert found[0].shape == (default if size is None else batch).shape
        for pair in zip(found, expected, strict=True):
            samples.assert_same(*pair)


# Layouts (G7): PyTorch's output strides; where its own code differs by the path it takes, the
# input's layout is kept.


def layouts_of(rank, batch, channels):
    sizes = (6, 7, 8)[-rank:]
    whole = samples.normal(batch, channels, *sizes)
    found = {"channels last": samples.channels_last(whole), "contiguous": whole}
    if rank > 1:
        form = {"memory_format": (torch.channels_last, torch.channels_last_3d)[rank - 2]}
        wider = samples.normal(batch, channels + 3, *sizes).contiguous(**form)
        found["channels last by its format"] = torch.empty_like(whole, **form).copy_(whole)
        found |= {"some channels": wider[:, :channels], "some columns": wider[..., 1:-1]}
    return found


@pytest.mark.parametrize(
    "family", ["max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool"]
)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("rank", RANKS)
def test_output_strides_are_pytorchs(rank, batch, channels, family):
    """One channel, slices of channels_last, rows in (N, W, C) order, unbatched volumes."""
    arguments = {"return_indices": True} if "max" in family else {}
    for name, tensor in layouts_of(rank, batch, channels).items():
        for input in (tensor, tensor[0]):
            found, expected = (
                samples.listed(of(family, rank)(input, 2, **arguments)) for of in (ours, torchs)
            )
            torch.testing.assert_close(found, expected)
            if rank == 3 and family != "max_pool":
                continue  # PyTorch's are contiguous whatever comes in; ours keep channels_last_3d
            is_row = rank == 1 and family == "max_pool" and input.dim() == 3 and channels > 1
            if is_row and name != "contiguous":
                # PyTorch's values are contiguous without a gradient, and in (N, W, C) order with
                # one.
                expected = [samples.channels_last(result) for result in found]
            strides = [result.stride() for result in found]
            assert strides == [result.stride() for result in expected], (name, input.shape)


def test_unbatched_volumes_keep_channels_last(image):
    """As PyTorch's maxima do; the gradient goes through."""
    volume = samples.channels_last(image(3))[0]
    for pool in (pooling.max_pool3d, pooling.avg_pool3d):
        output, gradient = samples.results(pool, volume, kernel_size=2)
        assert output.unsqueeze(0).is_contiguous(memory_format=torch.channels_last_3d)
        expected = samples.results(pool, volume.contiguous(), kernel_size=2)
        torch.testing.assert_close([output, gradient], expected)


# What torch.nn.functional cannot express is what the operator does with DirectML's arguments.


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize(
    ("kernel_size", "stride", "dilation"), [(2, 1, 1), (4, 1, 2), (3, 2, 1), (2, 3, 2), (1, 3, 1)]
)
@pytest.mark.parametrize("padding", ["pairs", "same"])
def test_more_padding_and_dilation(rank, kernel_size, stride, dilation, padding, image):
    """G4, E8: pairs above half the window and above the whole; "same", whose windows are in
    test_window.py; dilation."""
    tensor, pairs = image(rank), ((1, 3), (3, 0), (0, 4))[:rank]
    window = kernel_size, stride, "same" if padding == "same" else pairs
    made = dmlpool.Window.pytorch(rank, *window, dilation, sizes=tensor.shape[2:])
    directml = made.arguments[:-1]
    for counted in (True, False):
        found = ours("avg_pool", rank)(
            tensor, *window, count_include_pad=counted, dilation=dilation
        )
        samples.assert_same(
            found, dmlpool.average_pooling(tensor, *directml, include_padding=counted)
        )
    values, indices = ours("max_pool", rank)(tensor, *window, dilation, return_indices=True)
    samples.assert_same(values, dmlpool.max_pooling(tensor, *directml))
    read = tensor.flatten(2).gather(2, indices.flatten(2).clamp(min=0)).view_as(values)
    assert torch.equal(torch.where(indices < 0, -math.inf, read), values)
    norms = ours("lp_pool", rank)(tensor, 2, *window[:2], padding=window[2], dilation=dilation)
    samples.assert_same(norms, dmlpool.lp_pooling(tensor, *directml))


# What a caller, a type checker and a tool see of the functions.


@pytest.mark.parametrize("name", pooling.__all__)
def test_a_function_is_torchs_to_look_at(name):
    """Its name, module, pickle and documentation; its arguments are torch's, and others by keyword
    alone."""
    function = getattr(pooling, name)
    assert pickle.loads(pickle.dumps(function)) is function
    assert (function.__name__, function.__module__) == (name, "torch_dmlpool.nn.functional")
    assert f"{name[-2:]}" in ("1d", "2d", "3d", "es")
    assert "{" not in function.__doc__
    parameters = [
        p for p in inspect.signature(function).parameters.values() if p.kind is not p.KEYWORD_ONLY
    ]
    if name.startswith(("avg", "adaptive_avg_pool1d")):  # builtins
        assert [p.name for p in parameters][:2] == [
            "input",
            "output_size" if "adaptive" in name else "kernel_size",
        ]
        return
    name = name.replace("min", "max")  # torch has no minima: the arguments are those of maxima
    theirs = getattr(
        torch.nn.functional, f"{name}_with_indices", getattr(torch.nn.functional, name)
    )
    expected = inspect.signature(theirs).parameters.values()
    assert [(p.name, p.default) for p in parameters] == [(p.name, p.default) for p in expected]


def test_the_variants_with_indices_always_return_them(image):
    for rank, keywords in itertools.product(RANKS, ({}, {"return_indices": False})):
        for family in ("max_pool", "adaptive_max_pool"):
            both = getattr(pooling, f"{family}{rank}d_with_indices")(image(rank), 2, **keywords)
            torch.testing.assert_close(
                both, torchs(family, rank)(image(rank), 2, return_indices=True)
            )


TRACED = {
    "adaptive averages": lambda x: pooling.adaptive_avg_pool2d(x, 1),
    "uneven averages": lambda x: pooling.adaptive_avg_pool2d(x, (None, 5)),
    "even maxima": lambda x: pooling.adaptive_max_pool2d(x, 4, return_indices=True)[1],
    "maxima": lambda x: pooling.max_pool2d(x, 3, 2, 1, return_indices=True)[1],
    "averages": lambda x: pooling.avg_pool2d(x, 3, 2, 1, True, False),
    "norms": lambda x: pooling.lp_pool2d(x, 2, 2),
    "same": lambda x: pooling.max_pool2d(x, 3, 1, "same"),
    "taps far apart": lambda x: pooling.max_pool2d(x, 2, 1, 1, 3),
}


def trace(function, example, *warn):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit")
        for message in warn:
            warnings.filterwarnings("ignore", message=message)
        return torch.jit.trace(function, example)


@pytest.mark.parametrize("name", TRACED)
def test_a_trace_serves_other_sizes(name, image):
    """torch.jit.trace: nothing of the traced image's size is in the program, and PyTorch warns of
    nothing."""
    traced, other = trace(TRACED[name], samples.normal(1, 2, 16, 16)), samples.normal(2, 3, 32, 30)
    torch.testing.assert_close(traced(other), TRACED[name](other))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: pooling.max_pool2d(x, 3, 2, "same"),
        lambda x: pooling.max_unpool2d(*pooling.max_pool2d(x, 2, return_indices=True), 2),
        lambda x: pooling.adaptive_min_pool2d(x, (None, 5)),
    ],
    ids=["same with a stride", "unpooling", "adaptive minima"],
)
def test_a_trace_that_holds_sizes_warns(function):
    """PyTorch's tracer warns of sizes that become constants; the traced size is right."""
    example = samples.normal(1, 2, 16, 16)
    with pytest.warns(torch.jit.TracerWarning, match="Converting a tensor to a Python"):
        traced = trace(function, example)
    torch.testing.assert_close(traced(example), function(example))


def test_indices_changed_in_place_never_give_a_wrong_gradient(image):
    """PyTorch refuses the backward pass; ours keeps taps, which nobody can change."""
    for pool in (pooling.max_pool2d, pooling.adaptive_max_pool2d):
        leaf = image(2).requires_grad_()
        values, indices = pool(leaf, 4, return_indices=True)
        (expected,) = torch.autograd.grad(values.sum(), leaf, retain_graph=True)
        indices.add_(1)
        assert torch.equal(torch.autograd.grad(values.sum(), leaf)[0], expected)
