"""Operators taken apart: the same results from ATen's operators alone (E2)."""

from typing import Any

import cases
import oracle
import pytest
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool.decompositions import decompositions

operators = torch.ops.dmlpool
TABLE = decompositions()


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=samples.name_of)
def test_wide_unsigned_integers_are_taken_apart(dtype: torch.dtype) -> None:
    """M7: although ATen does not compare them."""
    case = cases.case("uneven padding", "padded")
    input = samples.ties(2, 3, *case.sizes, dtype=dtype)
    arguments = samples.spelled_out(case.pooling)
    expected = oracle.maximum(samples.to_numpy(input), case.pooling)
    samples.assert_same(TABLE[operators.max_pooling.default](input, *arguments), expected.values)
    values, indices = TABLE[operators.max_pooling_with_indices.default](input, *arguments, torch.int64, False)
    samples.assert_same(values, expected.values)
    samples.assert_same(indices, expected.indices)


class Network(torch.nn.Module):
    def forward(self, input: Tensor) -> tuple[Any, ...]:
        values, indices = dmlpool.max_pooling(input, 3, 2, 1, 2, ceil_mode=True, return_indices=True)
        whole = dmlpool.max_pooling(input, input.shape[2:]), dmlpool.average_pooling(input, (1, input.shape[3]))
        same = (
            dmlpool.nn.functional.avg_pool2d(input, 3, 2, "same"),
            dmlpool.nn.functional.max_pool2d(input, 2, 2, "same"),
        )
        return values, indices, *whole, *same, dmlpool.lp_pooling(input, 2, 2, 1), dmlpool.max_pooling(input, 3)


@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=pytest.mark.slow), True], ids=["static", "dynamic"])
def test_a_program_taken_apart(dynamic: bool) -> None:
    """No operator of this package is left, and sizes may stay dynamic."""
    input = samples.normal(2, 3, 9, 8)
    shapes = (dict.fromkeys((0, 2, 3), torch.export.Dim.AUTO),) if dynamic else None
    program = torch.export.export(Network(), (input,), dynamic_shapes=shapes)
    table = {**torch.export.default_decompositions(), **decompositions()}
    apart = program.run_decompositions(table)
    assert "dmlpool" in program.graph_module.code
    assert "dmlpool" not in apart.graph_module.code
    for image in [input, samples.normal(4, 3, 13, 16)] if dynamic else [input]:
        for result, expected in zip(apart.module()(image), Network()(image), strict=True):
            torch.testing.assert_close(result, expected)


def test_a_window_of_dynamic_size_is_refused() -> None:
    class Half(torch.nn.Module):
        def forward(self, input: Tensor) -> Tensor:
            return dmlpool.max_pooling(input, (input.shape[2] // 2, 2))

    program = torch.export.export(Half(), (samples.normal(2, 3, 9, 8),), dynamic_shapes=({2: torch.export.Dim.AUTO},))
    with pytest.raises(Exception, match="window_size depends on dynamic sizes in spatial dimension H"):
        program.run_decompositions(decompositions())


class Dilated(torch.nn.Module):
    def forward(self, input: Tensor, integers: Tensor) -> tuple[Tensor, ...]:
        values, indices = dmlpool.max_pooling(input, 2, dilations=2, return_indices=True)
        average = dmlpool.average_pooling(input, 2, dilations=2)
        quantized = dmlpool.quantized_linear_average_pooling(integers, 1.0, 0, 1.0, 0, 2, dilations=2)
        return values, indices, average, quantized


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_dilated_window_that_spans_a_dimension_skips_what_lies_between_its_taps(dynamic: bool) -> None:
    """G2: of 1, 9, 2 it reads 1 and 2."""
    input, integers = torch.tensor([[[1.0, 9.0, 2.0]]]).repeat(2, 1, 1), torch.tensor([[[1, 9, 5]]], dtype=torch.uint8)
    shapes = ({0: torch.export.Dim.AUTO}, None) if dynamic else None
    program = torch.export.export(Dilated(), (input, integers), dynamic_shapes=shapes)
    apart = program.run_decompositions({**torch.export.default_decompositions(), **decompositions()})
    assert "dmlpool" not in apart.graph_module.code
    values, indices, average, quantized = apart.module()(input, integers)
    assert (values[0].item(), indices[0].item(), average[0].item(), quantized.item()) == (2, 2, 1.5, 3)


class WholePlane(torch.nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        return dmlpool.quantized_linear_average_pooling(input, 1.0, 0, 1.0, 0, input.shape[2:])


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_quantized_averages_of_millions_of_elements_are_exact(dynamic: bool) -> None:
    """Q6: the sum of 3000x3000 elements of 255 needs more than 31 bits."""
    input = torch.full((1, 1, 3000, 3000), 255, dtype=torch.uint8)
    shapes = ({2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO},) if dynamic else None
    program = torch.export.export(WholePlane(), (input,), dynamic_shapes=shapes)
    apart = program.run_decompositions({**torch.export.default_decompositions(), **decompositions()})
    assert apart.module()(input).item() == 255


class Everything(torch.nn.Module):
    """What needs static image sizes: uneven bins, maxima put back, and gradients as operators."""

    def forward(self, input: Tensor) -> tuple[Any, ...]:
        values, indices = dmlpool.max_pooling(input, 2, 2, return_indices=True)
        bins = (
            dmlpool.adaptive_average_pooling(input, (4, 3)),
            *dmlpool.adaptive_max_pooling(input, 3, return_indices=True),
        )
        gradients = (
            dmlpool.max_pooling_grad(input, values, 2, 2),
            dmlpool.average_pooling_grad(values, input.shape, 2, 2, include_padding=True),
        )
        return *bins, dmlpool.max_unpooling(values, indices, input.shape), *gradients


def test_all_operators_are_taken_apart_where_image_sizes_are_static() -> None:
    input = samples.normal(2, 3, 9, 8)
    program = torch.export.export(Everything(), (input,), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},))
    apart = program.run_decompositions({**torch.export.default_decompositions(), **decompositions()})
    assert "dmlpool" not in apart.graph_module.code
    for image in (input, samples.normal(5, 3, 9, 8)):
        for result, expected in zip(apart.module()(image), Everything()(image), strict=True):
            torch.testing.assert_close(result, expected)


def test_a_program_whose_results_are_laid_out_anew_changes_nothing_in_place() -> None:
    """G7: torch.export refuses a decomposition that writes into what it has made."""

    class Model(torch.nn.Module):
        def forward(self, input: Tensor) -> Tensor:
            return dmlpool.adaptive_average_pooling(input, (1, 3))

    input = samples.channels_last(samples.normal(3, 2, 3, 8))
    program = torch.export.export(Model(), (input,)).run_decompositions(decompositions()).module()
    result, expected = program(input), Model()(input)
    torch.testing.assert_close(result, expected)
    assert result.stride() == expected.stride()
