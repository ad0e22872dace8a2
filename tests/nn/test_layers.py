"""torch_dmlpool.nn's layers: torch.nn's in everything but what runs inside, and what they take
beyond it."""

import copy
import inspect
import pickle
import warnings
from typing import Any

import pytest
import samples
import torch

from torch_dmlpool import nn
from torch_dmlpool.nn import functional as pooling
from torch_dmlpool.nn import layers

NAMES = layers.__all__
TORCHS = [name for name in NAMES if "Min" not in name]
"""Those that torch.nn has too."""
SHAPES = {1: (2, 3, 13), 2: (2, 3, 9, 11), 3: (2, 3, 6, 7, 8)}
EXTENDED: dict[str, tuple[dict[str, Any], str]] = {
    "AvgPool1d": (
        {"kernel_size": 3, "padding": "same", "dilation": 2},
        "(3,), stride=(3,), padding=same, dilation=2",
    ),
    "AvgPool2d": (
        {"kernel_size": 3, "padding": ((0, 1), (2, 0)), "dilation": (1, 2), "divisor_override": 4},
        "3, stride=3, padding=((0, 1), (2, 0)), dilation=(1, 2)",
    ),
    "AvgPool3d": (
        {"kernel_size": 2, "padding": 2, "dilation": (1, 1, 1)},
        "2, stride=2, padding=2",
    ),
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


def rank_of(name):
    return int(name[-2])


def batch_for(name, device):
    batch = samples.normal(*SHAPES[rank_of(name)], dtype=torch.float64).to(device)
    return batch.abs() if name.startswith("LP") else batch


def built(module, name):
    """A layer with few arguments."""
    arguments = (2, 3) if name.startswith("LP") else (3,) if "Adaptive" in name else (3, 2, 1)
    return getattr(module, name)(*arguments)


@pytest.mark.parametrize("name", TORCHS)
def test_the_constructor_is_torchs(name):
    """Names, order, kinds and defaults; what torch.nn lacks stands behind them."""
    ours, torchs = (
        inspect.signature(getattr(module, name)).parameters.values()
        for module in (layers, torch.nn)
    )
    known, more = (
        [(parameter.name, parameter.default, parameter.kind) for parameter in parameters]
        for parameters in (torchs, ours)
    )
    assert more[: len(known)] == known
    assert {name for name, *_ in more[len(known) :]} <= {"padding", "dilation", "divisor_override"}


@pytest.mark.parametrize("name", EXTENDED)
def test_what_torch_lacks_is_what_the_function_does(name, device):
    """E8, G4 and dilated averages: a layer is its function with the layer's attributes, and shows
    them."""
    keywords, shown = EXTENDED[name]
    function = getattr(pooling, name.lower().replace("pool", "_pool"))
    layer, batch = getattr(layers, name)(**keywords), batch_for(name, device)
    torch.testing.assert_close(layer(batch), function(batch, **keywords), rtol=0, atol=0)
    assert repr(layer).partition("kernel_size=")[2] == shown + ")"


CAUSAL = {
    "AvgPool1d": {"count_include_pad": False},
    "MaxPool1d": {"return_indices": True},
    "MinPool1d": {},
    "LPPool1d": {"norm_type": 2},
}


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_layers_do_not_look_ahead(name, device):
    """E8: what comes later changes no result, and each is what explicit padding gives."""
    arguments = {"kernel_size": 3, "stride": 1, "padding": "causal", "dilation": 2, **CAUSAL[name]}
    layer, batch = getattr(layers, name)(**arguments), batch_for(name, device)
    assert "padding=causal" in repr(layer)
    whole, explicit = layer(batch), copy.copy(layer)
    explicit.padding = ((4, 0),)
    later = batch.clone()
    later[..., 7:] = 1e6
    for found, same, other in zip(
        *map(samples.listed, (whole, explicit(batch), layer(later))), strict=True
    ):
        assert found.shape == batch.shape
        assert torch.equal(found, same)
        assert torch.equal(found[..., :7], other[..., :7])


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_is_public(name):
    """Pickles name torch_dmlpool.nn, copies are equal, help() speaks of this number of
    dimensions."""
    kind = getattr(nn, name)
    assert kind is getattr(layers, name)
    assert (kind.__module__, kind.__qualname__) == ("torch_dmlpool.nn", name)
    assert f"torch.nn.{name}" in kind.__doc__ or name not in TORCHS
    assert "{" not in kind.__doc__
    layer = built(layers, name)
    assert b"ctorch_dmlpool.nn\n" in pickle.dumps(layer, protocol=0)
    assert b"layers" not in pickle.dumps(layer)
    for twin in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), copy.copy(layer)):
        assert type(twin) is kind
        assert vars(twin) == vars(layer)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name[:3] in ("Avg", "Max", "Min") and "Un" not in name]
)
def test_a_changed_attribute_is_honoured(name, device):
    """No window is kept from the constructor."""
    layer, batch = getattr(layers, name)(2), batch_for(name, device)
    before = layer(batch)
    layer.kernel_size, layer.stride, layer.padding, layer.dilation = 3, 1, "same", 2
    changed = layer(batch)
    assert before.shape != changed.shape == batch.shape
    torch.testing.assert_close(changed, getattr(layers, name)(3, 1, "same", dilation=2)(batch))
    layer.stride = 0
    text = r"^stride must be at least 1, got 0 in spatial dimension [DHW] \(stride=0\)$"
    with pytest.raises(ValueError, match=text):
        layer(batch)


@pytest.mark.parametrize("name", NAMES)
def test_symbolic_tracing_records_the_function_of_a_layer(name, device):
    """The call keeps the mask, or the indices of unpooling."""
    layer, batch = built(layers, name), batch_for(name, device)
    other = torch.zeros_like(batch, dtype=torch.int64) if "Unpool" in name else batch > 0.5
    traced = torch.fx.symbolic_trace(layer)
    (call,) = (node for node in traced.graph.nodes if node.op not in ("placeholder", "output"))
    assert call.op == "call_function"
    assert call.target in {getattr(pooling, each) for each in pooling.__all__}
    assert call.target.__name__.replace("_", "") == name.lower()
    torch.testing.assert_close(traced(batch, other), layer(batch, other))


@pytest.mark.parametrize("name", ["MaxPool1d", "AdaptiveAvgPool2d", "LPPool3d", "MaxUnpool2d"])
def test_torchscript_is_told_what_to_do(name):
    """In one sentence, wherever in a model the layer stands."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.script")
        way_out = r"use `with torch_dmlpool.nn.reverted\(model\):` around it"
        text = rf"^torch.jit.script cannot compile torch_dmlpool.nn.{name}: {way_out}"
        with pytest.raises(NotImplementedError, match=text):
            torch.jit.script(torch.nn.Sequential(built(layers, name)))


def test_torchscript_compiles_a_model_that_is_reverted():
    """What its error names, and docs/tools.md."""
    model = torch.nn.Sequential(nn.MaxPool2d(3, 2), nn.AvgPool2d(2))
    image = samples.normal(1, 2, 9, 9)
    with warnings.catch_warnings(), nn.reverted(model):
        warnings.filterwarnings("ignore", message=".*torch.jit")
        scripted = torch.jit.script(model)
        torch.testing.assert_close(scripted(image), model(image))
