"""Operators taken apart: the same results from ATen's operators alone (E2)."""

import itertools
from typing import Any

import cases
import pytest
import samples
import torch
from torch import nn

import torch_dmlpool as dmlpool
from torch_dmlpool.decompositions import decompositions

operators = torch.ops.dmlpool
TABLE, SLICES = decompositions(), decompositions(pools="slices")


class Program(torch.nn.Module):
    """A function that torch.export takes."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def taken_apart(function, *inputs, dynamic=(), table=TABLE):
    """The function exported without an operator of this package; of the first input these
    dimensions stay open."""
    shapes = (dict.fromkeys(dynamic, torch.export.Dim.AUTO), *[None] * (len(inputs) - 1))
    program = torch.export.export(
        Program(function), inputs, dynamic_shapes=(shapes,) if dynamic else None
    )
    apart = program.run_decompositions(table)
    assert "dmlpool" in program.graph_module.code
    assert "dmlpool" not in apart.graph_module.code
    return apart.module()


ATENS: dict[int, list[nn.Module]] = {
    1: [nn.MaxPool1d(3, 2, 1), nn.AvgPool1d(3, 2, 1), nn.AdaptiveAvgPool1d(5)],
    2: [
        nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        nn.MaxPool2d((3, 1), 1, (1, 0), 2),
        nn.MaxPool2d(2, return_indices=True),
        nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
        nn.AvgPool2d(2, divisor_override=-3),
        nn.LPPool2d(2, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.AdaptiveAvgPool2d((5, 3)),
        nn.AdaptiveMaxPool2d(5),
    ],
    3: [nn.MaxPool3d(2), nn.AvgPool3d(2, 1, 1), nn.AdaptiveAvgPool3d(4), nn.AdaptiveMaxPool3d(4)],
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_pools_that_aten_has_are_atens(dynamic):
    """The pools of torch.nn's own layers in the same order; with slices there are none."""
    sizes: dict[int, tuple[int, ...]] = {1: (13,), 2: (14, 13), 3: (7, 6, 9)}
    inputs = tuple(samples.normal(2, 3, *sizes[rank]) for rank in ATENS)
    places = [0, 2, 3, 4]
    shapes = tuple(dict.fromkeys(places[: 1 + rank], torch.export.Dim.AUTO) for rank in ATENS)
    theirs = nn.ModuleList(layer for layers in ATENS.values() for layer in layers)
    ours = dmlpool.nn.convert(theirs, inplace=False).model

    def apart(layers, table):
        def function(*inputs):
            ranks = [rank for rank, group in ATENS.items() for _ in group]
            return [layer(inputs[rank - 1]) for layer, rank in zip(layers, ranks, strict=True)]

        program = torch.export.export(
            Program(function), inputs, dynamic_shapes=(shapes,) if dynamic else None
        ).run_decompositions({**torch.export.default_decompositions(), **table})
        pools = [
            (str(node.target), node.args[1])
            for node in program.graph.nodes
            if "pool" in str(node.target) or "mean" in str(node.target)
        ]
        return pools, program.module()(*inputs)

    expected = apart(theirs, {})
    assert len(expected[0]) == len(theirs)
    pools, results = apart(ours, TABLE)
    assert pools == expected[0]
    torch.testing.assert_close(results, expected[1])
    if not dynamic:
        pools, results = apart(ours, SLICES)
        assert not pools
        torch.testing.assert_close(results, expected[1])


def test_another_word_for_pools_is_refused():
    with pytest.raises(ValueError, match=r"""pools must be "aten" or "slices", got 'ATen'"""):
        decompositions(pools="ATen")  # type: ignore[arg-type]


def everywhere(input):
    """What needs no static image sizes."""
    values, indices = dmlpool.max_pooling(
        input, (2, 3), 2, 1, 2, ceil_mode=True, return_indices=True
    )
    whole = (
        dmlpool.max_pooling(input, input.shape[2:]),
        dmlpool.average_pooling(input, (1, input.shape[3])),
    )
    same = dmlpool.nn.functional.avg_pool2d(input, 2, 2, "same")
    return (
        values,
        indices,
        *whole,
        same,
        # Uneven padding and dilation ATen has not, and to empty windows it gives no index.
        *dmlpool.max_pooling(input, 2, 1, 3, 3, 3, return_indices=True),
        dmlpool.average_pooling(input, 3, 2, (1, 0), (2, 1)),
        dmlpool.average_pooling(input, 2, dilations=(1, 2)),
        dmlpool.lp_pooling(input, 2, 2, 1),
        dmlpool.max_pooling(input, 2),
    )


def of_known_sizes(input):
    """What needs static image sizes: uneven bins, maxima put back, and gradients as operators."""
    values, indices = dmlpool.max_pooling(input, 2, 2, return_indices=True)
    maxima = dmlpool.adaptive_max_pooling(input, 2, return_indices=True)
    gradients = (
        dmlpool.max_pooling_grad(input, values, 2, 2),
        dmlpool.average_pooling_grad(values, input.shape, 2, 2, include_padding=True),
    )
    averages = dmlpool.adaptive_average_pooling(input, (2, 3))
    return averages, *maxima, dmlpool.max_unpooling(values, indices, input.shape), *gradients


def volumes(input):
    """Programs may keep none of these pools, as they fail where a program runs. M7: numbers below 0
    become the largest of unsigned types, which ATen does not compare."""
    numbers, halves = (input * 9).to(torch.int64), input.half()
    kinds = [input, halves, *(numbers.to(each) for each in (torch.int32, *samples.UNSIGNED))]
    found = [dmlpool.max_pooling(each, 2, return_indices=True) for each in kinds]
    return *itertools.chain(*found), *(dmlpool.average_pooling(each, 2) for each in (input, halves))


def spanning(input):
    """G2: a dilated window over a whole dimension skips what lies between its taps."""
    average = dmlpool.average_pooling(input, 2, dilations=2)
    integers = (input * 40).to(torch.int8), 1.0, 0, 1.0, 0
    quantized = dmlpool.quantized_linear_average_pooling(*integers, 2, dilations=2)
    return *dmlpool.max_pooling(input, 2, dilations=2, return_indices=True), average, quantized


PROGRAMS: list[tuple[Any, ...]] = [
    (everywhere, (2, 3, 9, 8), (0, 2, 3)),
    (of_known_sizes, (2, 3, 9, 8), (0,)),
    (volumes, (1, 2, 4, 4, 4), ()),
    (spanning, (2, 1, 3), (0,)),
    (spanning, (2, 1, 3), ()),
    (everywhere, (2, 3, 9, 8), ()),
]


EACH = list(itertools.product(range(len(PROGRAMS)), (False, True)))


@cases.each(("number", "has_slices"), EACH, [EACH[at] for at in (0, 3, 4, 7)])
def test_a_program_taken_apart(number, has_slices):
    """No operator of this package is left, and sizes may stay dynamic."""
    function, sizes, dynamic = PROGRAMS[number]
    table = SLICES if has_slices else TABLE
    input = samples.normal(*sizes)
    apart = taken_apart(function, input, dynamic=dynamic, table=table)
    larger = [size + 4 * (dimension in dynamic) for dimension, size in enumerate(input.shape)]
    for image in (input, samples.normal(*larger)):
        for result, expected in zip(apart(image), function(image), strict=True):
            torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("dynamic", [(), (2, 3, 4)], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("window", "sizes"),
    [(((2, 6, 2), 1, (1, 3, 1)), (4, 5, 3)), ((3, 1, 1), (5, 2, 4))],
)
def test_averages_of_volumes_smaller_than_their_window(window, sizes, dynamic):
    """ATen's avg_pool3d refuses them, padded or not: a program may meet one where sizes are
    dynamic."""
    layer = dmlpool.nn.AvgPool3d(*window)
    apart = taken_apart(layer, samples.normal(2, 3, *sizes), dynamic=dynamic)
    inputs = [sizes, (2, 2, 2), (7, 8, 9)] if dynamic else [sizes]
    for each in inputs:
        image = samples.normal(2, 3, *each)
        torch.testing.assert_close(apart(image), layer(image))


def test_a_window_of_dynamic_size_is_refused():
    half = Program(lambda input: dmlpool.max_pooling(input, (input.shape[2] // 2, 2)))
    shapes = (({2: torch.export.Dim.AUTO},),)
    program = torch.export.export(half, (samples.normal(2, 3, 9, 8),), dynamic_shapes=shapes)
    with pytest.raises(
        Exception, match="window_size depends on dynamic sizes in spatial dimension H"
    ):
        program.run_decompositions(decompositions())


def test_quantized_averages_of_millions_of_elements_are_exact():
    """Q6: the sum of 3000x3000 elements of 255 needs more than 31 bits."""
    input = torch.full((1, 1, 3000, 3000), 255, dtype=torch.uint8)
    average = lambda x: dmlpool.quantized_linear_average_pooling(x, 1.0, 0, 1.0, 0, x.shape[2:])  # noqa: E731
    assert taken_apart(average, input, dynamic=(2, 3))(input).item() == 255


def test_a_program_whose_results_are_laid_out_anew_changes_nothing_in_place():
    """G7: torch.export refuses a decomposition that writes into what it has made."""

    model = Program(lambda input: dmlpool.adaptive_average_pooling(input, (1, 3)))
    input = samples.channels_last(samples.normal(3, 2, 3, 8))
    program = torch.export.export(model, (input,)).run_decompositions(decompositions()).module()
    result, expected = program(input), model(input)
    torch.testing.assert_close(result, expected)
    assert result.stride() == expected.stride()


@cases.in_pairs(
    dtype=[torch.float16, torch.bfloat16],
    layout=["contiguous", "channels last"],
    sizes=[(1, 2, 90), (1, 2, 9, 10), (1, 2, 5, 6, 7)],
)
def test_averages_of_half_precision_are_rounded_once(dtype, layout, sizes):
    """A4: sums of large numbers that float16 does not hold."""
    input = samples.LAYOUTS[layout](samples.normal(*sizes).abs().add(1).mul(9000).to(dtype))
    for pool in (
        lambda x: dmlpool.adaptive_average_pooling(x, 2),
        lambda x: dmlpool.adaptive_average_pooling(x, 1),
        lambda x: dmlpool.average_pooling(x, 3, 2, 1, 1),
    ):
        exact = pool(input.double())
        error = (taken_apart(pool, input)(input).double() - exact).abs()
        assert (error <= 0.501 * torch.finfo(dtype).eps * exact).all()
