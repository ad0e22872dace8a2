"""Layers and functions on quantized tensors, and models with quantized layers."""

import itertools
import warnings
from typing import Any

import oracle
import pytest
import samples
import torch

import torch_dmlpool as dmlpool
from torch_dmlpool import nn

pytestmark = [
    pytest.mark.skipif(not hasattr(torch, "quint8"), reason="PyTorch has no quantized tensors"),
    pytest.mark.filterwarnings("ignore:.*deprecated.*"),
    pytest.mark.filterwarnings("ignore:.*quantized tensor.*"),
]
SHAPES = {1: (2, 3, 14), 2: (2, 3, 9, 11), 3: (2, 3, 5, 6, 7)}
TYPES = {torch.quint8: torch.uint8, torch.qint8: torch.int8}


def quantized(rank, dtype=torch.quint8, per_channel=False):
    integers = samples.integers(*SHAPES[rank], dtype=TYPES[dtype])
    if per_channel:
        scales = torch.tensor([0.5, 0.03, 1.7], dtype=torch.float64)
        return torch._make_per_channel_quantized_tensor(
            integers, scales, torch.tensor([3, 0, 11]), 1
        )
    return torch._make_per_tensor_quantized_tensor(integers, 0.037, 5)


def assert_equal(found, expected):
    pairs = zip(samples.listed(found), samples.listed(expected), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


LAYERS: dict[str, tuple[int, Any]] = {
    "MaxPool1d": (1, lambda pools: pools.MaxPool1d(3, 2)),
    "MaxPool2d": (2, lambda pools: pools.MaxPool2d(3, 2, 1, ceil_mode=True)),
    "AvgPool2d": (2, lambda pools: pools.AvgPool2d(3, 2, 1, count_include_pad=False)),
    "AvgPool3d": (3, lambda pools: pools.AvgPool3d(2, 1)),
    "AdaptiveAvgPool2d to 1": (2, lambda pools: pools.AdaptiveAvgPool2d(1)),
    "AdaptiveAvgPool2d, uneven": (2, lambda pools: pools.AdaptiveAvgPool2d((4, 3))),
    "AdaptiveAvgPool3d, uneven": (3, lambda pools: pools.AdaptiveAvgPool3d((2, 4, None))),
}


@pytest.mark.parametrize("dtype", list(TYPES), ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_takes_what_torchs_takes(name, dtype):
    """The same bits for maxima; averages are within the step that PyTorch's rounding takes."""
    rank, layer = LAYERS[name]
    input = quantized(rank, dtype)
    result, expected = layer(nn)(input), layer(torch.nn)(input)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert (result.q_scale(), result.q_zero_point()) == (0.037, 5)
    difference = (result.int_repr().int() - expected.int_repr().int()).abs().max()
    assert difference <= (0 if name.startswith("Max") else 1)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("family", ["MaxPool", "MinPool", "AdaptiveMaxPool", "AdaptiveMinPool"])
def test_maxima_and_minima_are_those_of_the_integers(family, rank):
    """Per channel too, with indices, and without a batch."""
    arguments: tuple[Any, ...] = (2,) if family.startswith("Adaptive") else (3, 2, 1)
    layer = getattr(nn, f"{family}{rank}d")(*arguments, return_indices=True)
    input = quantized(rank, torch.qint8, per_channel=True)
    values, indices = layer(input)
    expected = layer(input.int_repr())
    samples.assert_same(values.int_repr(), expected[0])
    samples.assert_same(indices, expected[1])
    assert values.qscheme() is torch.per_channel_affine
    plain = quantized(rank)
    samples.assert_same(layer(plain[0])[0].int_repr(), layer(plain.int_repr()[0])[0])


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    "name", ["max", "min", "avg", "adaptive_max", "adaptive_min", "adaptive_avg"]
)
def test_functions_take_what_layers_take(name, rank):
    """For every type and scheme, without a batch too, with indices, or the same error."""
    function = getattr(nn.functional, f"{name}_pool{rank}d")
    layer = getattr(nn, f"{name.title().replace('_', '')}Pool{rank}d")
    pairs = [{}] if "avg" in name else [{"return_indices": True}, {}]
    for dtype, per_channel, more in itertools.product(TYPES, [False, True], pairs):
        batch = quantized(rank, dtype, per_channel)
        for input in (batch,) if per_channel else (batch, batch[0]):
            assert_equal(function(input, 3, **more), layer(3, **more)(input))
    with pytest.raises(TypeError, match="mask must be None for a quantized tensor"):
        function(batch, 3, mask=torch.ones(batch.shape[2:], dtype=torch.bool))


@pytest.mark.parametrize("per_channel", [False, True])
def test_averages_over_uneven_bins_are_exact(per_channel):
    """Q1: halves to even, then the zero point, in rational numbers."""
    input = quantized(2, per_channel=per_channel)
    result = nn.AdaptiveAvgPool2d((4, 3))(input).int_repr()
    numbers = [1.0] * 3, [3, 0, 11] if per_channel else [5] * 3
    bins, values = oracle.Bins((4, 3)), input.int_repr().numpy()
    expected = oracle.quantized_average(values, *numbers, *numbers, bins, False, values.dtype)
    samples.assert_same(result, expected)


@pytest.mark.parametrize(
    "layer", [nn.MaxPool1d(3, 2, return_indices=True), nn.MinPool1d(2), nn.AdaptiveAvgPool1d(5)]
)
def test_rows_with_channels_innermost(layer):
    """They are pooled as images of one row."""
    rows = quantized(1).permute(0, 2, 1).contiguous().permute(0, 2, 1)
    assert_equal(layer(rows), layer(quantized(1)))


def test_what_a_quantized_tensor_cannot_have():
    with pytest.raises(ValueError, match=r"divisor_override must be None .* got 3"):
        nn.AvgPool2d(2, divisor_override=3)(quantized(2))
    for layer in (nn.AvgPool2d(10), nn.MaxPool2d(10), nn.MinPool2d(10)):
        with pytest.raises(ValueError, match=r"dimension H: kernel_size 10 .* only 0 \+ 9 \+ 0"):
            layer(quantized(2))
        with pytest.raises(TypeError, match="mask must be None for a quantized tensor"):
            layer(quantized(2), mask=torch.ones(9, 11, dtype=torch.bool))


def test_a_converted_model_with_quantized_layers_runs():
    """convert replaces pools between quantized layers, and the model gives what it gave."""
    from torch.ao import quantization

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pools = torch.nn.MaxPool2d(2), torch.nn.AdaptiveAvgPool2d(1)
        model = torch.nn.Sequential(quantization.QuantStub(), torch.nn.Conv2d(3, 4, 3), *pools)
        model.eval()
        image = torch.rand(1, 3, 12, 12, generator=samples.seeded(3))
        model.qconfig = quantization.get_default_qconfig("x86")
        quantization.prepare(model, inplace=True)(image)
        quantization.convert(model, inplace=True)
        expected = model(image)
        report = dmlpool.nn.convert(model)
        assert set(report.replaced) == {"2", "3"}
        assert torch.equal(model(image).int_repr(), expected.int_repr())
