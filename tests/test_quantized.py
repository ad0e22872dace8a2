"""PyTorch's quantized tensors (Q5): the integer operator's averages and exact maxima, with scales
kept or given."""

import functools
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import cases
import oracle
import pytest
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool

pytestmark = [
    pytest.mark.skipif(
        not hasattr(torch, "quint8"), reason="this PyTorch has no quantized tensors"
    ),
    pytest.mark.filterwarnings(
        "ignore:torch.quantize_per_tensor, torch.quantize_per_channel and:UserWarning"
    ),
]
TYPES = {torch.quint8: torch.uint8, torch.qint8: torch.int8}
types = pytest.mark.parametrize("dtype", TYPES, ids=samples.name_of)
CHANNELS = 3


def integers(*sizes, dtype=torch.quint8):
    return samples.integers(*sizes, dtype=TYPES[dtype])


def per_tensor(values, scale=0.3, zero_point=3):
    """The dtype follows from the integers; channels_last stays what it is."""
    return torch._make_per_tensor_quantized_tensor(values, scale, zero_point)


def per_channel(values, scales=(0.5, 0.0625, 0.3)):
    """Zero points 3, 4, 5, …; in the memory format of ``values``, which PyTorch's function
    drops."""
    vectors = torch.tensor(scales, dtype=torch.float64), torch.arange(3, 3 + len(scales))
    packed = torch._make_per_channel_quantized_tensor(values, *vectors, 1)
    if values.dim() == 3 or values.is_contiguous():
        return packed
    formats = torch.channels_last, torch.channels_last_3d
    return packed.contiguous(memory_format=formats[values.dim() - 4])


QUANTIZED: dict[str, Callable[[Tensor], Tensor]] = {
    "per tensor": per_tensor,
    "per channel": per_channel,
}


def parameters(tensor):
    """Scale and zero point as the integer operator takes them."""
    if tensor.qscheme() is torch.per_tensor_affine:
        return tensor.q_scale(), tensor.q_zero_point()
    return tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points().to(TYPES[tensor.dtype])


def channels_last(tensor):
    return tensor.contiguous(memory_format=torch.channels_last)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda tensor: tensor,
    "sliced": lambda tensor: tensor[..., 1:, ::2],
    "a sample": lambda tensor: tensor[1:],
    "no sample": lambda tensor: tensor[:0],
    "channels_last": channels_last,
    "channels_last, sliced": lambda tensor: channels_last(tensor)[..., 1:, ::2],
    # PyTorch neither transposes nor expands a tensor quantized per channel.
    "transposed": lambda tensor: tensor.transpose(-1, -2),
    "expanded": lambda tensor: tensor[:1].expand(tensor.shape),
}


EACH_VIEW = [*itertools.product(QUANTIZED, list(VIEWS)[:6])]
EACH_VIEW += [("per tensor", view) for view in list(VIEWS)[6:]]


@pytest.mark.parametrize(("scheme", "view"), EACH_VIEW)
@types
def test_any_strides(dtype, scheme, view):
    """G7: every view gives what its integers give, laid out as PyTorch suggests for the input, and
    is left alone."""
    tensor = VIEWS[view](QUANTIZED[scheme](integers(2, CHANNELS, 7, 8, dtype=dtype)))
    before = tensor.int_repr().clone()
    window = (3, 2, 1, (0, 2))
    average = dmlpool.quantized_average_pooling(tensor, *window)
    maximum = dmlpool.quantized_max_pooling(tensor, *window)
    plain = before.contiguous()
    expected = dmlpool.quantized_linear_average_pooling(plain, *parameters(tensor) * 2, *window)
    samples.assert_same(average.int_repr(), expected)
    samples.assert_same(maximum.int_repr(), dmlpool.max_pooling(plain, *window))
    assert torch.equal(tensor.int_repr(), before)
    is_last = view.startswith("channels_last")
    memory_format = torch.channels_last if is_last else torch.contiguous_format
    assert all(result.is_contiguous(memory_format=memory_format) for result in (average, maximum))


@cases.in_pairs(case=cases.FEW, scheme=list(QUANTIZED), dtype=list(TYPES))
def test_maxima_and_indices(case, scheme, dtype):
    """M1, M2 and M7: of the integers; where no window is empty, of the numbers that they stand
    for."""
    input = QUANTIZED[scheme](integers(2, CHANNELS, *case.sizes, dtype=dtype))
    values, indices = dmlpool.quantized_max_pooling(input, **case.arguments, return_indices=True)
    expected = oracle.maximum(input.int_repr().numpy(), case.pooling)
    assert torch.equal(values, QUANTIZED[scheme](torch.from_numpy(expected.values)))
    samples.assert_same(indices, expected.indices)
    if not case.has_empty_windows:
        numbers = oracle.maximum(input.dequantize().numpy(), case.pooling)
        samples.assert_same(values.dequantize(), numbers.values)


SCALE_GIVEN: dict[str, Any] = {
    "inherited": None,
    "a number": 0.4,
    "one element": torch.tensor([[0.4]]),
    "a vector": torch.tensor([0.2, 0.4, 0.8]),
    "spread": torch.tensor([0.2, 0.4, 0.8], dtype=torch.float64).view(1, CHANNELS, 1, 1),
}
ZERO_POINT_GIVEN: dict[str, Any] = {
    "inherited": None,
    "a number": 11,
    "one element": torch.tensor(11),
    "a vector": torch.tensor([9, 11, 13], dtype=torch.int32),
    "spread": torch.tensor([9, 11, 13], dtype=torch.uint8).view(1, CHANNELS, 1, 1),
}


@cases.in_pairs(scheme=list(QUANTIZED), scale=list(SCALE_GIVEN), zero_point=list(ZERO_POINT_GIVEN))
def test_what_is_not_given_is_inherited(scheme, scale, zero_point):
    """Q5: per channel where the scale or the zero point of the output is, given or inherited."""
    tensor = QUANTIZED[scheme](integers(1, CHANNELS, 4, 3))
    given, inherited = (SCALE_GIVEN[scale], ZERO_POINT_GIVEN[zero_point]), parameters(tensor)
    scales, zero_points = (
        torch.as_tensor(old if new is None else new, dtype=torch.float64).flatten().expand(CHANNELS)
        for new, old in zip(given, inherited, strict=True)
    )
    vectors = {scale, zero_point} & {"a vector", "spread"}
    inherits = "inherited" in (scale, zero_point)
    is_per_channel = bool(vectors) or (inherits and scheme == "per channel")
    for dtype, plain_type in TYPES.items():
        rest = {"output_scale": given[0], "output_zero_point": given[1], "output_dtype": dtype}
        pooled = dmlpool.quantized_average_pooling(tensor, 2, **rest)
        assert pooled.dtype is dtype
        assert (pooled.qscheme() is torch.per_channel_affine) is is_per_channel
        for found, expected in zip(parameters(pooled), (scales, zero_points), strict=True):
            numbers = torch.as_tensor(found, dtype=torch.float64)
            assert torch.equal(numbers.expand(CHANNELS), expected)
        arguments = tensor.int_repr(), *inherited, scales, zero_points.to(plain_type), 2
        plain = dmlpool.quantized_linear_average_pooling(*arguments, output_dtype=plain_type)
        samples.assert_same(pooled.int_repr(), plain)


def test_the_output_type_may_be_named_by_its_integers():
    tensor = per_tensor(integers(1, 1, 4, 4))
    pooled = dmlpool.quantized_average_pooling(tensor, 2, output_dtype=torch.int8)
    assert pooled.dtype is torch.qint8
    assert dmlpool.quantized_average_pooling(tensor, 2).dtype is torch.quint8


def test_one_channel_stays_per_channel():
    """Q5: a vector of one element alone would not tell."""
    tensor = per_channel(integers(1, 1, 4, 4), (0.5,))
    assert dmlpool.quantized_average_pooling(tensor, 2).qscheme() is torch.per_channel_affine
    again = dmlpool.quantized_average_pooling(tensor, 2, output_scale=0.5, output_zero_point=3)
    assert again.qscheme() is torch.per_tensor_affine


def test_scales_are_rounded_to_float32_first():
    """Q5: 1 + 2⁻³⁰ is 1 in float32, where half a step is a tie and goes to 0; the tensor keeps the
    scale it has."""
    values, scale = torch.tensor([[[[0, 1]]]], dtype=torch.uint8), 1 + 2.0**-30
    pool = functools.partial(dmlpool.quantized_average_pooling, window_size=(1, 2))
    tensor = per_tensor(values, scale, 0)
    assert pool(tensor, output_scale=1.0).int_repr().item() == 0
    assert pool(tensor).q_scale() == scale
    pooled = pool(per_channel(values, (scale,)), output_scale=1.0, output_zero_point=3)
    assert pooled.int_repr().item() == 1  # −2.5 is a tie too, and goes to −2


def test_nothing_is_warned_of_and_no_filter_is_left():
    """Creating a quantized tensor warns once in a process (PyTorch 2.13); the function's own output
    does not."""
    tensor = per_channel(integers(1, CHANNELS, 4, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filters = list(warnings.filters)
        dmlpool.quantized_average_pooling(tensor, 2)
        assert warnings.filters == filters
