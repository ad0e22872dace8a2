"""Quantized tensors: ATen's results where it has some, the integer operator's everywhere; a PyTorch without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cases
import pytest
import samples
import torch
from torch import Tensor
from torch.nn import functional

import torch_dmlpool as dmlpool

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel and:UserWarning")

TYPES = {torch.quint8: torch.uint8, torch.qint8: torch.int8}
types = pytest.mark.parametrize("dtype", TYPES, ids=samples.name_of)
CHANNELS = 3
SCALES = torch.tensor([0.5, 0.0625, 0.3])
ATEN_POOLS: dict[int, Callable[..., Tensor]] = {2: functional.avg_pool2d, 3: functional.avg_pool3d}


def integers(*sizes: int, dtype: torch.dtype = torch.quint8, seed: int = 0) -> Tensor:
    bounds = torch.iinfo(TYPES[dtype])
    generator = samples.seeded(*sizes, seed=seed)
    return torch.randint(bounds.min, bounds.max + 1, sizes, generator=generator).to(TYPES[dtype])


def per_tensor(values: Tensor, scale: float = 0.3, zero_point: int = 3) -> Tensor:
    """The dtype follows from the integers; channels_last stays what it is."""
    return torch._make_per_tensor_quantized_tensor(values, scale, zero_point)


def per_channel(values: Tensor, scales: Tensor = SCALES, axis: int = 1) -> Tensor:
    """Zero points 3, 4, 5, …; in the memory format of ``values``, which PyTorch's function drops."""
    zero_points = torch.arange(3, 3 + len(scales))
    packed = torch._make_per_channel_quantized_tensor(values, scales, zero_points, axis)
    if values.dim() > 3 and not values.is_contiguous():
        return packed.contiguous(memory_format=[torch.channels_last, torch.channels_last_3d][values.dim() - 4])
    return packed


# ATen's avg_pool2d and avg_pool3d, which take tensors quantized per tensor and keep their scale.

ATEN_CASES = [
    case
    for case in cases.PLANES + cases.VOLUMES
    if case.aten is not None
    and set(case.pooling.dilations) == {1}
    and (case.rank < 3 or all(edge.window <= edge.size + 2 * edge.start for edge in case.edges))
]


def ties_of(case: cases.Case, values: Tensor, zero_point: int, include_padding: bool) -> Tensor:
    """Where an average lies exactly halfway between two integers."""
    arguments = {name: value for name, value in case.aten.items() if name != "dilation"}
    differences = values.double() - zero_point
    doubled = 2 * ATEN_POOLS[case.rank](differences, **arguments, count_include_pad=include_padding)
    return (doubled == doubled.round()) & (doubled.remainder(2) == 1)


@cases.parametrized(ATEN_CASES)
def test_atens_results(case: cases.Case) -> None:
    check_against_aten(case, torch.quint8, channels_last=False)


def check_against_aten(case: cases.Case, dtype: torch.dtype, channels_last: bool) -> None:
    """Q1, Q5, A1 to A3: all of them but for ties, of which ATen has two kinds wrong.

    It may add the zero point before it rounds to even, which shows where that is odd; and it multiplies by the rounded
    reciprocal of a divisor like 14, which loses ties whatever the zero point.
    """
    values = integers(2, CHANNELS, *case.sizes, dtype=dtype)
    if channels_last:
        values = samples.channels_last(values)
    arguments = {name: value for name, value in case.aten.items() if name != "dilation"}
    for zero_point, include_padding in ((10, True), (7, False)):
        tensor = per_tensor(values, 0.3, zero_point)
        pooled = dmlpool.quantized_average_pooling(tensor, **case.arguments, include_padding=include_padding)
        aten = ATEN_POOLS[case.rank](tensor, **arguments, count_include_pad=include_padding)
        assert (pooled.dtype, pooled.q_scale(), pooled.q_zero_point()) == (dtype, 0.3, zero_point)
        assert pooled.shape == aten.shape
        differences = pooled.int_repr().int() - aten.int_repr().int()
        ties = ties_of(case, values, zero_point, include_padding)
        assert differences.abs().max() <= 1
        assert not differences[~ties].any()


@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels last"])
@types
def test_ties_with_an_even_zero_point(dtype: torch.dtype, channels_last: bool) -> None:
    """Q1: nothing is excepted where every divisor is a power of two."""
    case = cases.case("adjacent windows", "padded")
    values = integers(2, 16, *case.sizes, dtype=dtype)
    tensor = per_tensor(samples.channels_last(values) if channels_last else values, 0.3, 10)
    pooled = dmlpool.quantized_average_pooling(tensor, **case.arguments, include_padding=True)
    arguments = {name: value for name, value in case.aten.items() if name != "dilation"}
    samples.assert_same(pooled.int_repr(), functional.avg_pool2d(tensor, **arguments).int_repr())
    assert case.pooling.window_size == (2, 2)
    assert ties_of(case, values, 10, True).double().mean() > 0.1


def test_ties_with_an_odd_zero_point() -> None:
    """Q1: half to even before the zero point is added. ATen may add it first: 13.5 becomes 14, where 0.5 becomes 0."""
    tensor = per_tensor(torch.tensor([[[[13, 14], [13, 14]]]], dtype=torch.uint8), 0.3, 13)
    assert dmlpool.quantized_average_pooling(tensor, 2).int_repr().item() == 13
    # PyTorch 2.11 and 2.13 differ for a single channel, each by the number of channels and the layout.
    assert functional.avg_pool2d(tensor, 2).int_repr().item() in (13, 14)


# The integer operator on the same integers.

QUANTIZED: dict[str, Callable[[Tensor], Tensor]] = {"per tensor": per_tensor, "per channel": per_channel}
schemes = pytest.mark.parametrize("scheme", QUANTIZED)


def parameters(tensor: Tensor, dtype: torch.dtype | None = None) -> tuple[Any, Any]:
    """Scale and zero point as the integer operator takes them."""
    if tensor.qscheme() is torch.per_tensor_affine:
        return tensor.q_scale(), tensor.q_zero_point()
    return tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points().to(TYPES[dtype or tensor.dtype])


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda tensor: tensor,
    "sliced": lambda tensor: tensor[..., 1:, ::2],
    "a sample": lambda tensor: tensor[1:],
    "channels_last": lambda tensor: tensor.contiguous(memory_format=torch.channels_last),
    "channels_last, sliced": lambda tensor: tensor.contiguous(memory_format=torch.channels_last)[..., 1:, ::2],
    "transposed": lambda tensor: tensor.transpose(-1, -2),
    "expanded": lambda tensor: tensor[:1].expand(tensor.shape),
}
PER_CHANNEL_VIEWS = ["whole", "sliced", "a sample", "channels_last", "channels_last, sliced"]


@pytest.mark.parametrize(
    ("scheme", "view"),
    # PyTorch neither transposes nor expands a tensor quantized per channel.
    [(scheme, view) for scheme in QUANTIZED for view in VIEWS if scheme == "per tensor" or view in PER_CHANNEL_VIEWS],
)
@types
def test_any_strides(dtype: torch.dtype, scheme: str, view: str) -> None:
    """G7 and Q5: every view gives what its integers give, laid out as PyTorch suggests for the input."""
    tensor = VIEWS[view](QUANTIZED[scheme](integers(2, CHANNELS, 7, 8, dtype=dtype)))
    before = tensor.int_repr().clone()
    pooled = dmlpool.quantized_average_pooling(tensor, 3, 2, 1, (0, 2))
    plain = dmlpool.quantized_linear_average_pooling(
        before.contiguous(), *parameters(tensor), *parameters(tensor), 3, 2, 1, (0, 2)
    )
    samples.assert_same(pooled.int_repr(), plain)
    assert torch.equal(tensor.int_repr(), before)
    channels_last = view.startswith("channels_last")
    assert pooled.is_contiguous(memory_format=[torch.contiguous_format, torch.channels_last][channels_last])


@schemes
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_every_rank(rank: int, scheme: str) -> None:
    """G1, G7 and Q5."""
    values = integers(2, CHANNELS, *(5, 6, 7)[:rank])
    for tensor in [QUANTIZED[scheme](values), QUANTIZED[scheme](samples.channels_last(values))][: max(1, rank - 1) + 1]:
        pooled = dmlpool.quantized_average_pooling(tensor, 2, 1, 1, 1, 2, True, ceil_mode=True)
        plain = dmlpool.quantized_linear_average_pooling(
            values, *parameters(tensor), *parameters(tensor), 2, 1, 1, 1, 2, True, ceil_mode=True
        )
        samples.assert_same(pooled.int_repr(), plain)
        assert pooled.qscheme() is tensor.qscheme()
        if rank > 1:
            assert pooled.stride()[1] == (1 if tensor.stride()[1] == 1 else plain.stride()[1])


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


def chosen(given: Any, inherited: Any) -> Tensor:
    """One number per channel."""
    value = inherited if given is None else given
    return torch.as_tensor(value, dtype=torch.float64).flatten().expand(CHANNELS)


@cases.in_pairs(scheme=list(QUANTIZED), scale=list(SCALE_GIVEN), zero_point=list(ZERO_POINT_GIVEN))
def test_what_is_not_given_is_inherited(scheme: str, scale: str, zero_point: str) -> None:
    """Q5: per channel where the scale or the zero point of the output is, given or inherited."""
    tensor = QUANTIZED[scheme](integers(1, CHANNELS, 4, 3))
    given = {"output_scale": SCALE_GIVEN[scale], "output_zero_point": ZERO_POINT_GIVEN[zero_point]}
    inherited = parameters(tensor)
    scales, zero_points = (chosen(*pair) for pair in zip(given.values(), inherited, strict=True))
    vectors = {scale, zero_point} & {"a vector", "spread"}
    is_per_channel = bool(vectors) or ("inherited" in (scale, zero_point) and scheme == "per channel")
    for dtype, plain_type in TYPES.items():
        pooled = dmlpool.quantized_average_pooling(tensor, 2, **given, output_dtype=dtype)
        assert pooled.dtype is dtype
        if is_per_channel:
            assert pooled.qscheme() is torch.per_channel_affine
            assert pooled.q_per_channel_axis() == 1
            assert pooled.q_per_channel_scales().equal(scales)
            assert pooled.q_per_channel_zero_points().equal(zero_points.long())
        else:
            assert pooled.qscheme() is torch.per_tensor_affine
            assert (pooled.q_scale(), pooled.q_zero_point()) == (scales[0], zero_points[0])
        plain = dmlpool.quantized_linear_average_pooling(
            tensor.int_repr(), *inherited, scales, zero_points.to(plain_type), 2, output_dtype=plain_type
        )
        samples.assert_same(pooled.int_repr(), plain)


def test_the_output_type_may_be_named_by_its_integers() -> None:
    tensor = per_tensor(integers(1, 1, 4, 4))
    assert dmlpool.quantized_average_pooling(tensor, 2, output_dtype=torch.int8).dtype is torch.qint8
    assert dmlpool.quantized_average_pooling(tensor, 2).dtype is torch.quint8


def test_one_channel_stays_per_channel() -> None:
    """Q5: a vector of one element alone would not tell."""
    tensor = per_channel(integers(1, 1, 4, 4), torch.tensor([0.5]))
    assert dmlpool.quantized_average_pooling(tensor, 2).qscheme() is torch.per_channel_affine
    again = dmlpool.quantized_average_pooling(tensor, 2, output_scale=0.5, output_zero_point=3)
    assert again.qscheme() is torch.per_tensor_affine


def test_scales_are_rounded_to_float32_first() -> None:
    """Q5: 1 + 2⁻³⁰ is 1 in float32, where half a step is a tie and goes to 0; the tensor keeps the scale it has."""
    values = torch.tensor([[[[0, 1]]]], dtype=torch.uint8)
    scale = 1 + 2.0**-30
    tensor = per_tensor(values, scale, 0)
    pooled = dmlpool.quantized_average_pooling(tensor, (1, 2), output_scale=1.0)
    assert pooled.int_repr().item() == 0
    assert dmlpool.quantized_average_pooling(tensor, (1, 2)).q_scale() == scale
    vector = per_channel(values, torch.tensor([scale], dtype=torch.float64))
    pooled = dmlpool.quantized_average_pooling(vector, (1, 2), output_scale=1.0, output_zero_point=3)
    assert pooled.int_repr().item() == 1  # −2.5 is a tie too, and goes to −2
