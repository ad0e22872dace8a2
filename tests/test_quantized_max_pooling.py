"""Max pooling of quantized tensors: exact, with the scale and zero point that they had (M1, M2, M7, Q5)."""

from __future__ import annotations

import cases
import oracle
import pytest
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool

pytestmark = [
    pytest.mark.skipif(not hasattr(torch, "quint8"), reason="this PyTorch has no quantized tensors"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel and other:UserWarning"),
]
TYPES = {name: getattr(torch, name, None) for name in ("quint8", "qint8")}
types = pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
LAYOUTS = ["contiguous", "channels last", "sliced", "storage offset"]


def quantized_tensor(sizes: tuple[int, ...], dtype: torch.dtype, per_channel: bool) -> Tensor:
    real = samples.normal(*sizes) * 3
    if not per_channel:
        return torch.quantize_per_tensor(real, 0.05, 7, dtype)
    scales, zero_points = torch.linspace(0.02, 0.3, sizes[1]).double(), torch.arange(sizes[1]) * 9
    return torch.quantize_per_channel(real, scales, zero_points, 1, dtype)


def assert_kept(result: Tensor, input: Tensor) -> None:
    assert (result.dtype, result.qscheme()) == (input.dtype, input.qscheme())
    if input.qscheme() is torch.per_channel_affine:
        assert torch.equal(result.q_per_channel_scales(), input.q_per_channel_scales())
        assert torch.equal(result.q_per_channel_zero_points(), input.q_per_channel_zero_points())
    else:
        assert (result.q_scale(), result.q_zero_point()) == (input.q_scale(), input.q_zero_point())


@cases.in_pairs(case=cases.FEW, per_channel=[False, True], dtype=list(TYPES.values()))
def test_values_and_indices(case: cases.Case, per_channel: bool, dtype: torch.dtype) -> None:
    """Those of the integers; and, where no window is empty, those of the numbers that they stand for."""
    input = quantized_tensor((2, 3, *case.sizes), dtype, per_channel)
    values, indices = dmlpool.quantized_max_pooling(input, **case.arguments, return_indices=True)
    expected = oracle.maximum(input.int_repr().numpy(), case.pooling)
    samples.assert_same(values.int_repr(), expected.values)
    samples.assert_same(indices, expected.indices)
    assert_kept(values, input)
    alone = dmlpool.quantized_max_pooling(input, **case.arguments)
    assert torch.equal(alone.int_repr(), values.int_repr())
    if not case.has_empty_windows:
        samples.assert_same(values.dequantize(), oracle.maximum(input.dequantize().numpy(), case.pooling).values)


@types
def test_equality_with_aten(dtype: torch.dtype) -> None:
    """Where ATen pools quantized tensors: 2-D, per tensor."""
    input = quantized_tensor((2, 3, 9, 8), dtype, False)
    expected = torch.nn.functional.max_pool2d(input, 3, 2, 1)
    found = dmlpool.quantized_max_pooling(input, 3, 2, 1, 1)
    assert torch.equal(found.int_repr(), expected.int_repr())
    assert_kept(found, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout: str) -> None:
    """G7: the result in the format that the input suggests."""
    input = quantized_tensor((2, 3, 5, 6), torch.quint8, False)
    larger = quantized_tensor((2, 3, 7, 13), torch.quint8, False)
    given = {
        "contiguous": lambda: input,
        "channels last": lambda: input.contiguous(memory_format=torch.channels_last),
        "sliced": lambda: larger[:, :, 1:6, 1:13:2],
        "storage offset": lambda: larger[1:],
    }[layout]()
    found = dmlpool.quantized_max_pooling(given, 2, 1, 1)
    expected = dmlpool.max_pooling(given.int_repr(), 2, 1, 1)
    samples.assert_same(found.int_repr(), expected)
    assert found.stride() == expected.stride()


def test_a_window_that_reads_nothing() -> None:
    """M1: the lowest number there is."""
    for dtype, lowest in ((torch.quint8, 0), (torch.qint8, -128)):
        input = quantized_tensor((1, 1, 2), dtype, False)
        values, indices = dmlpool.quantized_max_pooling(input, 1, 1, 1, return_indices=True)
        assert (values.int_repr()[0, 0, 0].item(), indices[0, 0, 0].item()) == (lowest, -1)
