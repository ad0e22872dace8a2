"""torch_dmlpool.nn's layers: torch.nn's in everything but what runs inside, and what they take beyond it."""

from __future__ import annotations

import copy
import doctest
import inspect
import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import samples
import torch
from torch import Tensor

from torch_dmlpool import nn
from torch_dmlpool.nn import functional as pooling
from torch_dmlpool.nn import layers

NAMES = layers.__all__
SHAPES = {1: (2, 3, 13), 2: (2, 3, 9, 11), 3: (2, 3, 6, 7, 8)}
# Constructor calls that torch.nn takes, positional ones too.
WINDOWS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((2,), {}), (((3,), (2,), (1,)), {}), ((3, ()), {})]
CALLS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "MaxPool": [*WINDOWS, ((3, 2, 1, 2, True, True), {}), ((2,), {"dilation": [3]})],
    "AvgPool": [*WINDOWS, ((3, 2, 1, True, False), {}), ((3,), {"count_include_pad": False})],
    "LPPool": [((2, 3), {}), ((4.0, 2), {"stride": 1})],
    "AdaptiveAvgPool": [((1,), {}), ((4,), {}), ((), {"output_size": 5})],
    "AdaptiveMaxPool": [((3, True), {}), ((1,), {"return_indices": True})],
}
EVERY_CALL = [
    pytest.param(name, *call, id=f"{name} {call}") for name in NAMES if "Un" not in name for call in CALLS[name[:-2]]
] + [
    pytest.param("AvgPool2d", (3, 2, 1, False, True, 5), {}),
    pytest.param("AvgPool3d", ((1, 2, 3), None, (0, 1, 1)), {"divisor_override": -3}),
    pytest.param("MaxPool2d", ((2, 3), (1, 2), (1, 0), (2, 1)), {}),
    pytest.param("AdaptiveMaxPool2d", ((None, 3),), {}),
    pytest.param("AdaptiveAvgPool3d", ((2, None, 3),), {}),
]
EXTENDED: dict[str, tuple[dict[str, Any], str]] = {
    "AvgPool1d": ({"kernel_size": 3, "padding": "same", "dilation": 2}, "(3,), stride=(3,), padding=same, dilation=2"),
    "AvgPool2d": (
        {"kernel_size": 3, "padding": ((0, 1), (2, 0)), "dilation": (1, 2), "divisor_override": 4},
        "3, stride=3, padding=((0, 1), (2, 0)), dilation=(1, 2)",
    ),
    "AvgPool3d": ({"kernel_size": 2, "padding": 2, "dilation": (1, 1, 1)}, "2, stride=2, padding=2"),
    "LPPool2d": (
        {"norm_type": 2, "kernel_size": 3, "padding": "same", "dilation": 2},
        "3, stride=None, ceil_mode=False, padding=same, dilation=2",
    ),
    "MaxPool1d": (
        {"kernel_size": 2, "stride": 1, "padding": ((1, 0),)},
        "2, stride=1, padding=((1, 0),), dilation=1, ceil_mode=False",
    ),
    "MaxPool2d": (
        {"kernel_size": 3, "stride": 2, "padding": "same", "return_indices": True},
        "3, stride=2, padding=same, dilation=1, ceil_mode=False",
    ),
}
"""What torch.nn lacks, and how it is shown from the kernel size on."""


def rank_of(name: str) -> int:
    return int(name[-2])


def batch_for(name: str, device: torch.device) -> Tensor:
    batch = samples.normal(*SHAPES[rank_of(name)], dtype=torch.float64).to(device)
    return batch.abs() if name.startswith("LP") else batch


def built(module: Any, name: str) -> torch.nn.Module:
    """A layer with few arguments."""
    arguments = {"LPPool": (2, 3), "AdaptiveAvgPool": (3,), "AdaptiveMaxPool": (3,)}.get(name[:-2], (3, 2, 1))
    return getattr(module, name)(*arguments)


def results(layer: torch.nn.Module, batch: Tensor) -> list[Tensor]:
    """The output, the indices where the layer returns them, and the gradient."""
    leaf = batch.detach().requires_grad_()
    output = layer(leaf)
    outputs = list(output) if isinstance(output, tuple) else [output]
    incoming = samples.normal(*outputs[0].shape, dtype=batch.dtype, seed=7).to(batch.device)
    return [*outputs, *torch.autograd.grad(outputs[0], leaf, incoming)]


@pytest.mark.parametrize(("name", "arguments", "keywords"), EVERY_CALL)
def test_a_layer_is_torchs(name: str, arguments: Any, keywords: dict[str, Any], device: torch.device) -> None:
    """Results and gradients, isinstance, repr, state_dict; attributes but for the arguments that torch.nn lacks."""
    ours, torchs = (getattr(module, name)(*arguments, **keywords) for module in (layers, torch.nn))
    torch.testing.assert_close(*(results(layer, batch_for(name, device)) for layer in (ours, torchs)))
    assert isinstance(ours, type(torchs))
    assert repr(ours) == repr(torchs)
    assert ours.state_dict() == torchs.state_dict() == {}
    more = {name: value for name, value in vars(ours).items() if name not in vars(torchs)}
    assert {**vars(torchs), **more} == vars(ours)
    assert {"padding": 0, "dilation": 1, "divisor_override": None} | more == {
        "padding": 0,
        "dilation": 1,
        "divisor_override": None,
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_constructor_is_torchs(name: str) -> None:
    """Names, order, kinds and defaults; what torch.nn lacks stands behind them."""
    ours, torchs = (inspect.signature(getattr(module, name)).parameters.values() for module in (layers, torch.nn))
    known = [(parameter.name, parameter.default, parameter.kind) for parameter in torchs]
    assert [(parameter.name, parameter.default, parameter.kind) for parameter in ours][: len(known)] == known
    assert {parameter.name for parameter in ours} - {name for name, *_ in known} <= {
        "padding",
        "dilation",
        "divisor_override",
    }


@pytest.mark.parametrize("name", EXTENDED)
def test_what_torch_lacks_is_what_the_function_does(name: str, device: torch.device) -> None:
    """E8, G4 and dilated averages: a layer is its function with the layer's attributes, and shows them."""
    keywords, shown = EXTENDED[name]
    function = getattr(pooling, name.lower().replace("pool", "_pool"))
    layer, batch = getattr(layers, name)(**keywords), batch_for(name, device)
    torch.testing.assert_close(layer(batch), function(batch, **keywords), rtol=0, atol=0)
    assert repr(layer).partition("kernel_size=")[2] == shown + ")"


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_is_public(name: str) -> None:
    """Pickles name torch_dmlpool.nn, copies are equal, help() speaks of this number of dimensions."""
    kind = getattr(nn, name)
    assert kind is getattr(layers, name)
    assert (kind.__module__, kind.__qualname__) == ("torch_dmlpool.nn", name)
    assert f"torch.nn.{name}" in kind.__doc__
    assert "{" not in kind.__doc__
    layer = built(layers, name)
    assert b"ctorch_dmlpool.nn\n" in pickle.dumps(layer, protocol=0)
    assert b"layers" not in pickle.dumps(layer)
    for twin in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), copy.copy(layer)):
        assert type(twin) is kind
        assert vars(twin) == vars(layer)


@pytest.mark.parametrize("name", [name for name in NAMES if name[:3] in ("Avg", "Max") and "Un" not in name])
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


@pytest.mark.parametrize("name", [name for name in NAMES if "Un" not in name])
def test_a_torch_layer_becomes_ours_by_its_class(name: str, device: torch.device) -> None:
    """A torch layer's attributes are enough for ours."""
    layer = built(torch.nn, name)
    expected = layer(batch_for(name, device))
    layer.__class__ = getattr(layers, name)
    torch.testing.assert_close(layer(batch_for(name, device)), expected)
    assert repr(layer) == repr(built(layers, name))


MISTAKES: dict[str, Callable[[], Any]] = {
    "kernel_size must be at least 1, got 0 in spatial dimension W": lambda: layers.MaxPool2d((3, 0)),
    "kernel_size must be ints, got {2, 3} of type set": lambda: layers.MaxPool2d({2, 3}),
    "stride must be at least 1, got 0 in spatial dimension H": lambda: layers.MaxUnpool2d(2, stride=0),
    "padding must be 2 pairs (start, end), one each for H, W": lambda: layers.AvgPool2d(2, padding=((0, 1), 2)),
    "dilation must be at least 1": lambda: layers.LPPool2d(2, 2, dilation=0),
    "norm_type must be a number": lambda: layers.LPPool2d("2", 2),
    "output_size must be one int or 3 ints": lambda: layers.AdaptiveMaxPool3d((2, 2)),
    "output_size must be at least 0": lambda: layers.AdaptiveAvgPool2d((2, -1)),
    "divisor_override must not be 0": lambda: layers.AvgPool2d(2, divisor_override=0),
    "count_include_pad must be a bool": lambda: layers.AvgPool1d(2, count_include_pad=0),
    "return_indices must be a bool": lambda: layers.AdaptiveMaxPool2d(2, 1),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_refused_when_the_layer_is_built(message: str) -> None:
    """G5 and G6: by the names that torch has for its arguments."""
    with pytest.raises((TypeError, RuntimeError), match=f"^{re.escape(message)}"):
        MISTAKES[message]()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_nested_tensor_is_refused_in_words() -> None:
    nested = torch.nested.nested_tensor([torch.ones(3, 4, 5)] * 2)
    for layer in (layers.MaxPool2d(2), layers.AvgPool2d(2), layers.AdaptiveAvgPool2d(1)):
        with pytest.raises(TypeError, match=r"^input must be a dense tensor \(torch.strided\), got a nested tensor$"):
            layer(nested)


@pytest.mark.parametrize("name", ["MaxPool1d", "AdaptiveAvgPool2d", "LPPool3d", "MaxUnpool2d"])
def test_torchscript_is_told_what_to_do(name: str) -> None:
    """In one sentence, wherever in a model the layer stands."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.script", category=DeprecationWarning)
        with pytest.raises(
            NotImplementedError, match=rf"^torch.jit.script cannot compile torch_dmlpool.nn.{name}: use "
        ):
            torch.jit.script(torch.nn.Sequential(built(layers, name)))


def test_a_network_compiles_with_gradients_and_without_a_break(device: torch.device, fresh_compiler: None) -> None:
    """E2: one graph forward, one backward, and the eager numbers."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1),
        layers.MaxPool2d(3, 2, "same"),
        layers.AvgPool2d(2, 1, padding=((0, 1), (1, 0)), dilation=2, count_include_pad=False),
        layers.LPPool2d(2, 2, 1),
        layers.AdaptiveMaxPool2d((3, None)),
        layers.AdaptiveAvgPool2d(2),
    ).to(device)
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    for height, width in ((12, 13), (14, 12)):
        batch = samples.normal(2, 3, height, width).to(device)
        torch.testing.assert_close(results(compiled, batch), results(network, batch))


@pytest.mark.parametrize("name", [name for name in NAMES if name[:3] in ("Avg", "Max") and "Un" not in name])
def test_exports_and_transforms(name: str, device: torch.device) -> None:
    """E1 and E2: torch.export with a batch size left open; per-sample gradients through ``functional_call``."""
    layer, batch = getattr(layers, name)(3, 2, "same"), batch_for(name, device)
    program = torch.export.export(layer, (batch,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    larger = torch.cat([batch, -batch, batch])
    torch.testing.assert_close(program.module()(larger), layer(larger), rtol=0, atol=0)

    def loss(sample: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {}, (sample,)).square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss))(batch)
    leaf = batch.clone().requires_grad_()
    layer(leaf).square().sum().backward()
    torch.testing.assert_close(gradients, leaf.grad)


@pytest.mark.parametrize("name", ["AvgPool3d", "MaxPool3d"])
def test_autocast_never_changes_the_type(name: str, device: torch.device) -> None:
    """E5: torch.nn's 3-D layers turn to float32 under CPU autocast; these do not."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            assert getattr(layers, name)(2)(batch_for(name, device).to(dtype)).dtype is dtype


def test_the_examples_run() -> None:
    found = doctest.testmod(nn, extraglobs={"torch": torch})
    assert found.attempted >= 20
    assert found.failed == 0
