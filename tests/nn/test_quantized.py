"""torch_dmlpool.nn.quantized: the integer operator as layers, on plain integers and on quantized
tensors."""

import copy
from typing import Any

import pytest
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool.nn import layers as float_layers
from torch_dmlpool.nn import quantized as layers
from torch_dmlpool.window import Window

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.quantize_per_tensor, torch.quantize_per_channel and:UserWarning"
)

NAMES = [name for name in layers.__all__ if name.startswith("AvgPool")]
CHANNELS = 3
SHAPES = {1: (2, CHANNELS, 9), 2: (2, CHANNELS, 6, 7), 3: (2, CHANNELS, 3, 4, 5)}

WINDOWS: dict[str, dict[str, Any]] = {
    "plain": {"kernel_size": 2},
    "stride, padding": {"kernel_size": 3, "stride": 2, "padding": 1},
    "uncounted padding": {"kernel_size": 3, "stride": 1, "padding": 1, "count_include_pad": False},
    "same, dilated": {"kernel_size": 2, "stride": 1, "padding": "same", "dilation": 3},
    "ceil": {"kernel_size": 3, "stride": 2, "ceil_mode": True},
}
PARAMETERS: dict[str, dict[str, Any]] = {
    "inherited": {"input_scale": 0.5, "input_zero_point": 7},
    "per tensor": {
        **{"input_scale": 0.5, "input_zero_point": 7},
        **{"output_scale": 0.2, "output_zero_point": 100},
    },
    "per channel": {
        "input_scale": torch.tensor([0.5, 0.1, 0.3]),
        "input_zero_point": torch.tensor([7, 0, 120]),
        "output_scale": torch.tensor([0.2, 0.4, 0.3], dtype=torch.float64),
        "output_zero_point": torch.tensor([100, 3, 0], dtype=torch.int32),
    },
    "output per channel": {"input_scale": 0.5, "output_scale": torch.tensor([0.2, 0.4, 0.3])},
    "zero points alone": {
        "input_zero_point": 7,
        "output_zero_point": torch.tensor([1, 2, 3], dtype=torch.uint8),
    },
}
OUTPUT = ("output_scale", "output_zero_point")
names = pytest.mark.parametrize("name", NAMES)
windows = pytest.mark.parametrize("window", WINDOWS)
parameters = pytest.mark.parametrize("form", PARAMETERS)


def rank_of(name: str) -> int:
    return int(name[-2])


def integers(name: str, dtype: torch.dtype = torch.uint8) -> Tensor:
    return samples.integers(*SHAPES[rank_of(name)], dtype=dtype)


def directml(window: str, input: Tensor) -> dict[str, Any]:
    """A window in DirectML's words."""
    described = dict(WINDOWS[window])
    counted = described.pop("count_include_pad", True)
    arguments = Window.pytorch(input.dim() - 2, **described, sizes=input.shape[2:]).arguments
    names = ["window_size", "strides", "start_padding", "end_padding", "dilations", "ceil_mode"]
    return {**dict(zip(names, arguments, strict=True)), "include_padding": counted}


def expected_of(input: Tensor, form: str, window: str) -> Tensor:
    """The function's result for a layer's arguments."""
    arguments = {"input_scale": 1.0, "input_zero_point": 0, **PARAMETERS[form]}
    for name in OUTPUT:
        arguments.setdefault(name, arguments[name.replace("output", "input")])
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            dtype = input.dtype if name.endswith("point") else value.dtype
            arguments[name] = value.to(input.device, dtype)
    return dmlpool.quantized_linear_average_pooling(input, **arguments, **directml(window, input))


@pytest.mark.parametrize(
    ("name", "window", "form"),
    [("AvgPool2d", window, form) for window in WINDOWS for form in PARAMETERS]
    + [(name, window, "per channel") for name in ("AvgPool1d", "AvgPool3d") for window in WINDOWS],
)
def test_plain_integers(name: str, window: str, form: str, device: torch.device) -> None:
    """Q3, A1, A2, E8: the layer is the function with the layer's window, for both types and
    unbatched too."""
    layer = getattr(layers, name)(**WINDOWS[window], **PARAMETERS[form]).to(device)
    for dtype in (torch.uint8, torch.int8):
        input = integers(name, dtype).to(device)
        expected = expected_of(input, form, window)
        pooled, alone = layer(input), layer(input[0])
        samples.assert_same(pooled, expected)
        samples.assert_same(alone, expected[0])
        assert pooled.dtype is alone.dtype is dtype


# Quantized tensors bring scale and zero point of their own.


def quantized_forms(values: Tensor) -> list[Tensor]:
    scales, zero_points = torch.tensor([0.5, 0.1, 0.3]), torch.tensor([7, 0, 120])
    return [
        torch._make_per_tensor_quantized_tensor(values, 0.4, 9),
        torch._make_per_channel_quantized_tensor(
            values, scales, zero_points, 0 if values.shape[0] == CHANNELS else 1
        ),
    ]


@parameters
@windows
def test_quantized_tensors(window: str, form: str) -> None:
    """Q5: the layer's input scale is not theirs; its output scale and zero point are the output's
    where it has them."""
    layer = layers.AvgPool2d(**WINDOWS[window], **PARAMETERS[form])
    output = {name: PARAMETERS[form].get(name) for name in OUTPUT}
    if isinstance(output["output_scale"], float):
        output["output_scale"] = float(layer.output_scale)  # rounded to float32 in the buffer
    elif output["output_scale"] is not None:
        output["output_scale"] = output["output_scale"].float()
    for tensor in quantized_forms(integers("AvgPool2d")):
        expected = dmlpool.quantized_average_pooling(tensor, **directml(window, tensor), **output)
        assert torch.equal(layer(tensor), expected)  # what the integers mean too


@names
def test_quantized_tensors_without_a_batch(name: str) -> None:
    """The axis of a tensor quantized per channel is the channels', before and after."""
    layer = getattr(layers, name)(2)
    batched, unbatched = quantized_forms(integers(name)), quantized_forms(integers(name)[0])
    for whole, one in zip(batched, unbatched, strict=True):
        samples.assert_same(layer(one).int_repr(), layer(whole).int_repr()[0])
        assert layer(one).qscheme() is layer(whole).qscheme()
        if one.qscheme() is torch.per_channel_affine:
            assert (one.q_per_channel_axis(), layer(one).q_per_channel_axis()) == (0, 0)


# What a module is beside its forward.


@parameters
@names
def test_state(name: str, form: str) -> None:
    """Scales and zero points are the state: loaded into any layer, as many as were saved and no
    more."""
    layer = getattr(layers, name)(2, **PARAMETERS[form])
    state = layer.state_dict()
    assert set(state) == {
        "input_scale",
        "input_zero_point",
        *(entry for entry in OUTPUT if entry in PARAMETERS[form]),
    }
    assert {entry: value.dtype for entry, value in state.items()} == {
        entry: torch.float32 if entry.endswith("scale") else torch.int64 for entry in state
    }
    network = torch.nn.Sequential(getattr(layers, name)(2))
    network.load_state_dict({f"0.{entry}": value for entry, value in state.items()})
    samples.assert_same(network(integers(name)), layer(integers(name)))
    assert network[0].input_scale is not state["input_scale"]
    assert repr(network[0]) == repr(layer)


def test_state_that_is_missing_or_wrong() -> None:
    layer = layers.AvgPool2d(2, output_scale=0.5)
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "output_scale"'):
        layer.load_state_dict(layers.AvgPool2d(2).state_dict())
    state = {**layer.state_dict(), "input_scale": torch.tensor([0.5, 0.0])}
    text = r"^input_scale must be finite and above 0 in float32, got 0.0 in channel 1$"
    with pytest.raises(ValueError, match=text):
        layer.load_state_dict(state)


def test_repr() -> None:
    """The window as torch.nn shows it, what is not as usual, and the scales."""
    layer = layers.AvgPool2d(
        3, 2, ((0, 1), (1, 1)), True, False, **PARAMETERS["per channel"], output_dtype=torch.int8
    )
    assert repr(layer) == (
        "AvgPool2d(kernel_size=3, stride=2, padding=((0, 1), (1, 1)), ceil_mode=True, "
        "count_include_pad=False, output_dtype=torch.int8, input_scale=<3 entries>, "
        "input_zero_point=<3 entries>, output_scale=<3 entries>, output_zero_point=<3 entries>)"
    )
    small = "AvgPool1d(kernel_size=2, stride=2, padding=0, input_scale={0}, input_zero_point={1})"
    layer = layers.AvgPool1d(2, input_scale=0.1, input_zero_point=-7)
    assert repr(layer) == small.format("0.1", "-7")
    assert repr(layers.AvgPool1d(2).to("meta")) == small.format("<1 entries>", "<1 entries>")


def test_scales_stay_exact_in_a_model_of_half_precision() -> None:
    """Casts of a model are meant for its weights."""
    layer = layers.AvgPool2d(2, **PARAMETERS["per channel"])
    before = copy.deepcopy(layer.state_dict())
    for cast in (layer.half, layer.double, layer.bfloat16, lambda: layer.to(torch.float16)):
        assert cast() is layer
        for name, value in layer.state_dict().items():
            samples.assert_same(value, before[name])
    assert {value.device.type for value in layer.to("meta").state_dict().values()} == {"meta"}


@names
def test_from_a_float_layer(name: str) -> None:
    """torch.nn's, and this package's with all that it takes beyond."""
    layer, input = getattr(layers, name), integers(name)
    theirs = getattr(torch.nn, name)(3, 2, 1, count_include_pad=0)
    ours = layer.from_float(theirs, input_scale=0.5)
    expected = layer(3, 2, 1, count_include_pad=False, input_scale=0.5)
    samples.assert_same(ours(input), expected(input))
    window, numbers = (3, 2, "same", True, False), PARAMETERS["per channel"]
    again = layer.from_float(getattr(float_layers, name)(*window, dilation=2), **numbers)
    samples.assert_same(again(input), layer(*window, dilation=2, **numbers)(input))
