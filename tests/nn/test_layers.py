"""torch_dmlpool.nn's layers: torch.nn's in everything but what runs inside, and what they take beyond it."""

from __future__ import annotations

import copy
import doctest
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import samples
import torch
from torch import Tensor

import torch_dmlpool
from torch_dmlpool.nn import functional as pooling
from torch_dmlpool.nn import layers

NAMES = [name for name in layers.__all__ if name.startswith(("AvgPool", "MaxPool"))]
AVERAGES = [name for name in NAMES if name.startswith("Avg")]
SHAPES = {1: (2, 3, 13), 2: (2, 3, 9, 11), 3: (2, 3, 6, 7, 8)}

# Constructor calls that torch.nn takes, positional ones too.
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((2,), {}),
    ((3, 2), {}),
    ((3, 2, 1), {}),
    (((3,), (2,), (1,)), {}),
    ((3, ()), {}),
    ((), {"kernel_size": 4, "stride": 3, "padding": 1, "ceil_mode": True}),
]
SPECIAL_CALLS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "MaxPool": [
        ((3, 1, 1, 2), {}),
        ((2, 2, 0, 1, True), {}),
        ((3, 2, 1, 2, True, True), {}),
        ((2,), {"dilation": [3]}),
    ],
    "AvgPool": [((3, 2, 1, True), {}), ((3, 2, 1, True, False), {}), ((3,), {"count_include_pad": False})],
    "AvgPool2d": [((3, 2, 1, False, True, 5), {}), (((2, 3), (1, 2), (1, 0)), {}), ((2,), {"divisor_override": -3})],
    "AvgPool3d": [((3, 2, 1, True, True, 7), {}), (((1, 2, 3), None, (0, 1, 1)), {})],
    "MaxPool2d": [(((2, 3), (1, 2), (1, 0), (2, 1)), {})],
    "MaxPool3d": [(((1, 2, 3), None, (0, 1, 1)), {})],
}
EVERY_CALL = [
    pytest.param(name, *call, id=f"{name} {call}")
    for name in NAMES
    for call in [*CALLS, *SPECIAL_CALLS[name[:7]], *SPECIAL_CALLS.get(name, [])]
]


def rank_of(name: str) -> int:
    return int(name[-2])


def batch_for(name: str, device: torch.device, dtype: torch.dtype = torch.float64) -> Tensor:
    return samples.normal(*SHAPES[rank_of(name)], dtype=dtype).to(device)


def results(layer: torch.nn.Module, batch: Tensor) -> list[Tensor]:
    """The output, the indices where the layer returns them, and the gradient."""
    leaf = batch.detach().requires_grad_()
    output = layer(leaf)
    outputs = list(output) if isinstance(output, tuple) else [output]
    incoming = samples.normal(*outputs[0].shape, dtype=batch.dtype, seed=7).to(batch.device)
    return [*outputs, *torch.autograd.grad(outputs[0], leaf, incoming)]


@pytest.mark.parametrize(("name", "arguments", "keywords"), EVERY_CALL)
@pytest.mark.parametrize("batched", [True, False])
def test_results_are_torchs(
    name: str, arguments: tuple[Any, ...], keywords: dict[str, Any], batched: bool, device: torch.device
) -> None:
    """A1, A2, A5, A6, M1, M2, M4 (per plane), M5; unbatched input too."""
    batch = batch_for(name, device) if batched else batch_for(name, device)[0]
    ours = results(getattr(layers, name)(*arguments, **keywords), batch)
    torchs = results(getattr(torch.nn, name)(*arguments, **keywords), batch)
    assert [(tensor.shape, tensor.dtype) for tensor in ours] == [(tensor.shape, tensor.dtype) for tensor in torchs]
    if name.startswith("Max"):
        for actual, expected in zip(ours[:-1], torchs[:-1], strict=True):
            assert torch.equal(actual, expected)
    torch.testing.assert_close(ours, torchs)


@pytest.mark.parametrize(("name", "arguments", "keywords"), EVERY_CALL)
def test_the_object_is_torchs(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """isinstance, repr, state_dict and attributes; a layer keeps nothing of its own but the average's dilation."""
    ours, torchs = getattr(layers, name)(*arguments, **keywords), getattr(torch.nn, name)(*arguments, **keywords)
    assert isinstance(ours, type(torchs))
    assert repr(ours) == repr(torchs)
    assert ours.state_dict() == torchs.state_dict() == {}
    expected = {**vars(torchs), "dilation": 1} if name in AVERAGES else vars(torchs)
    assert vars(ours) == expected


@pytest.mark.parametrize("name", NAMES)
def test_the_constructor_is_torchs(name: str) -> None:
    """Names, order, kinds and defaults; averages add ``dilation``, by keyword alone."""

    def parameters(layer: type) -> list[tuple[str, Any, Any]]:
        found = inspect.signature(layer).parameters.values()
        return [(parameter.name, parameter.default, parameter.kind) for parameter in found]

    ours, torchs = parameters(getattr(layers, name)), parameters(getattr(torch.nn, name))
    if name in AVERAGES:
        assert ours.pop() == ("dilation", 1, inspect.Parameter.KEYWORD_ONLY)
    assert ours == torchs


EXTENDED: dict[str, tuple[dict[str, Any], str]] = {
    "AvgPool1d": (
        {"kernel_size": 3, "padding": "same", "dilation": 2},
        "kernel_size=(3,), stride=(3,), padding=same, dilation=2",
    ),
    "AvgPool2d": (
        {"kernel_size": 3, "padding": ((0, 1), (2, 0)), "dilation": (1, 2), "divisor_override": 4},
        "kernel_size=3, stride=3, padding=((0, 1), (2, 0)), dilation=(1, 2)",
    ),
    "AvgPool3d": ({"kernel_size": 2, "padding": 2, "dilation": (1, 1, 1)}, "kernel_size=2, stride=2, padding=2"),
    "MaxPool1d": (
        {"kernel_size": 2, "stride": 1, "padding": ((1, 0),)},
        "kernel_size=2, stride=1, padding=((1, 0),), dilation=1, ceil_mode=False",
    ),
    "MaxPool2d": (
        {"kernel_size": 3, "stride": 2, "padding": "same", "return_indices": True},
        "kernel_size=3, stride=2, padding=same, dilation=1, ceil_mode=False",
    ),
    "MaxPool3d": (
        {"kernel_size": 2, "padding": "valid", "dilation": 2, "ceil_mode": True},
        "kernel_size=2, stride=2, padding=valid, dilation=2, ceil_mode=True",
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_what_torch_lacks_is_what_the_function_does(name: str, device: torch.device) -> None:
    """E8, G4 and dilated averages: a layer is its function with the layer's attributes."""
    keywords, _ = EXTENDED[name]
    function = getattr(pooling, name.lower().replace("pool", "_pool"))
    batch = batch_for(name, device)
    actual, expected = getattr(layers, name)(**keywords)(batch), function(batch, **keywords)
    if isinstance(actual, Tensor):
        actual, expected = (actual,), (expected,)
    for ours, wanted in zip(actual, expected, strict=True):
        assert torch.equal(ours, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_repr_shows_what_torch_lacks_where_it_is_used(name: str) -> None:
    keywords, shown = EXTENDED[name]
    assert repr(getattr(layers, name)(**keywords)) == f"{name}({shown})"


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda layer: pickle.loads(pickle.dumps(layer)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("name", NAMES)
def test_copies_are_equal(name: str, copied: Callable[[Any], Any], device: torch.device) -> None:
    layer = getattr(layers, name)(**EXTENDED[name][0])
    twin = copied(layer)
    assert type(twin) is type(layer)
    assert vars(twin) == vars(layer)
    assert repr(twin) == repr(layer)
    torch.testing.assert_close(twin(batch_for(name, device)), layer(batch_for(name, device)), rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_attribute_is_honoured(name: str, device: torch.device) -> None:
    """No window is kept from the constructor."""
    layer, batch = getattr(layers, name)(2), batch_for(name, device)
    before = layer(batch)
    layer.kernel_size, layer.stride, layer.padding, layer.dilation = 3, 1, "same", 2
    changed = layer(batch)
    assert before.shape != changed.shape == batch.shape
    torch.testing.assert_close(changed, getattr(layers, name)(3, 1, "same", dilation=2)(batch))
    layer.stride = 0
    with pytest.raises(ValueError, match=r"^stride must be at least 1, got 0 in spatial dimension [DHW] \(stride=0\)$"):
        layer(batch)


@pytest.mark.parametrize("name", NAMES)
def test_a_torch_layer_becomes_ours_by_its_class(name: str, device: torch.device) -> None:
    """A torch layer's attributes are enough for ours."""
    layer = getattr(torch.nn, name)(3, 2, 1)
    expected = layer(batch_for(name, device))
    layer.__class__ = getattr(layers, name)
    torch.testing.assert_close(layer(batch_for(name, device)), expected)
    assert repr(layer) == repr(getattr(layers, name)(3, 2, 1))


# A bad argument is refused when the layer is built (G5, G6), by the same sentences as the functions'.

REFUSALS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "window of 0": (
        lambda: layers.MaxPool2d((3, 0)),
        ValueError,
        "kernel_size must be at least 1, got 0 in spatial dimension W (kernel_size=(3, 0))",
    ),
    "stride of 0": (
        lambda: layers.AvgPool3d(2, (1, 0, 1)),
        ValueError,
        "stride must be at least 1, got 0 in spatial dimension H (stride=(1, 0, 1))",
    ),
    "negative padding": (
        lambda: layers.MaxPool3d(2, padding=(0, 0, -1)),
        ValueError,
        "padding must be at least 0, got -1 in spatial dimension W (padding=(0, 0, -1))",
    ),
    "dilation of 0": (
        lambda: layers.AvgPool2d(2, dilation=0),
        ValueError,
        "dilation must be at least 1, got 0 in spatial dimension H (dilation=0)",
    ),
    "wrong number of entries": (
        lambda: layers.MaxPool1d((2, 2)),
        ValueError,
        "kernel_size must be one int or 1 ints (W), got 2 entries: (2, 2)",
    ),
    "wrong number of pairs": (
        lambda: layers.AvgPool2d(2, padding=((0, 1), (0, 1), (0, 1))),
        ValueError,
        "padding must be 2 pairs (start, end), one each for H, W, got ((0, 1), (0, 1), (0, 1))",
    ),
    "a pair of three": (
        lambda: layers.MaxPool2d(2, padding=((0, 1, 5), (0, 1))),
        ValueError,
        "padding must be 2 pairs (start, end), one each for H, W, got ((0, 1, 5), (0, 1))",
    ),
    "a pair beside an int": (
        lambda: layers.AvgPool3d(2, padding=((0, 1), 2, 2)),
        ValueError,
        "padding must be 3 pairs (start, end), one each for D, H, W, got ((0, 1), 2, 2)",
    ),
    "unknown word": (
        lambda: layers.AvgPool1d(2, padding="full"),
        ValueError,
        'padding must be ints, (start, end) pairs, "same" or "valid", got \'full\'',
    ),
    "a float": (
        lambda: layers.MaxPool2d(2, 1.5),
        TypeError,
        "stride must be ints, got 1.5 of type float (stride=1.5)",
    ),
    "ceil_mode no bool": (
        lambda: layers.AvgPool2d(2, ceil_mode=1),
        TypeError,
        "ceil_mode must be a bool, got 1 of type int",
    ),
    "count_include_pad no bool": (
        lambda: layers.AvgPool1d(2, count_include_pad=0),
        TypeError,
        "count_include_pad must be a bool, got 0 of type int",
    ),
    "return_indices no bool": (
        lambda: layers.MaxPool2d(2, return_indices=None),
        TypeError,
        "return_indices must be a bool, got None of type NoneType",
    ),
    "a divisor of 0": (
        lambda: layers.AvgPool2d(2, divisor_override=0),
        ValueError,
        "divisor_override must not be 0",
    ),
    "a divisor that is a float": (
        lambda: layers.AvgPool3d(2, divisor_override=2.5),
        TypeError,
        "divisor_override must be an int or None, got 2.5 of type float",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_when_built(name: str) -> None:
    build, error, text = REFUSALS[name]
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        build()


def test_one_dimension_has_no_divisor_as_in_torch() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'divisor_override'$"):
        layers.AvgPool1d(2, divisor_override=3)


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_number_of_dimensions(name: str) -> None:
    """G1: one sentence that says what was expected."""
    rank = rank_of(name)
    spatial = ", ".join("DHW"[-rank:])
    for dimensions in (rank, rank + 3):
        shape = (4,) * dimensions
        text = (
            f"{name[:3].lower()}_pool{rank}d: input must be {rank + 2}-D (N, C, {spatial}) or, unbatched, "
            f"{rank + 1}-D (C, {spatial}), got {dimensions}-D of shape {shape}"
        )
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            getattr(layers, name)(2)(torch.ones(shape))


# Inside PyTorch's machinery.


def small_network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1),
        layers.MaxPool2d(3, 2, "same"),
        torch.nn.Conv2d(4, 4, 3, padding=1),
        layers.AvgPool2d(2, padding=((0, 1), (1, 0)), dilation=2, count_include_pad=False),
    )


def test_compiles_with_gradients_and_without_a_break(device: torch.device, fresh_compiler: None) -> None:
    """E2: one graph forward, one backward, and the eager numbers."""
    network = small_network().to(device)
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    for height, width in ((9, 11), (12, 8)):
        batch = samples.normal(2, 3, height, width).to(device)
        eager, graph = results(network, batch), results(compiled, batch)
        torch.testing.assert_close(graph, eager)


@pytest.mark.parametrize("name", NAMES)
def test_exports(name: str, device: torch.device) -> None:
    """E2: torch.export with a batch size left open."""
    layer, batch = getattr(layers, name)(3, 2, "same"), batch_for(name, device)
    program = torch.export.export(layer, (batch,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    larger = torch.cat([batch, -batch, batch])
    torch.testing.assert_close(program.module()(larger), layer(larger), rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_functional_transforms(name: str, device: torch.device) -> None:
    """E1: per-sample gradients through ``functional_call``, ``grad`` and ``vmap``; a layer may stand anywhere."""
    layer, batch = getattr(layers, name)(3, 2, "same"), batch_for(name, device)

    def loss(sample: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {}, (sample,)).square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss))(batch)
    leaf = batch.clone().requires_grad_()
    layer(leaf).square().sum().backward()
    torch.testing.assert_close(gradients, leaf.grad)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_never_changes_the_type(name: str, device: torch.device) -> None:
    """E5: torch.nn's 3-D layers turn to float32 under CPU autocast; these do not."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            assert getattr(layers, name)(2)(batch_for(name, device, dtype)).dtype is dtype


def test_the_package_offers_the_layers_by_torchs_names() -> None:
    assert set(NAMES) < set(torch_dmlpool.nn.__all__)
    for name in NAMES:
        assert getattr(torch_dmlpool.nn, name) is getattr(layers, name)
        assert issubclass(getattr(layers, name), getattr(torch.nn, name))


def test_the_examples_run() -> None:
    found = doctest.testmod(layers)
    assert found.attempted >= 6
    assert found.failed == 0
