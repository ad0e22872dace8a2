"""torch_dmlpool.nn.functional: torch's results where torch can express the request, and what it cannot, by hand."""

from __future__ import annotations

import doctest
import inspect
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import samples
import torch
from torch import Tensor

from torch_dmlpool.nn import functional as pooling

RANKS = (1, 2, 3)
SHAPES = {1: (2, 3, 13), 2: (2, 3, 9, 11), 3: (2, 3, 6, 7, 8)}

# What torch.nn.functional can express, for one, two and three dimensions alike.
COMMON = {
    "stride defaults to the window": {"kernel_size": 2},
    "an empty stride is the window": {"kernel_size": 3, "stride": ()},
    "a one-entry list is an int": {"kernel_size": (3,), "stride": [2], "padding": (1,)},
    "overlapping": {"kernel_size": 3, "stride": 1},
    "padded": {"kernel_size": 3, "stride": 2, "padding": 1},
    "gaps between windows": {"kernel_size": 1, "stride": 3},
    "ceil_mode": {"kernel_size": 4, "stride": 3, "padding": 1, "ceil_mode": True},
    "ceil_mode overlapping": {"kernel_size": 4, "stride": 2, "padding": 1, "ceil_mode": True},
}
PER_DIMENSION = {"kernel_size": (2, 3, 4), "stride": (1, 2, 3), "padding": (1, 0, 2)}
AVERAGE_ONLY = {
    "padding left out": {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
    "padding left out, ceil_mode": {
        "kernel_size": 4,
        "stride": 3,
        "padding": 1,
        "ceil_mode": True,
        "count_include_pad": False,
    },
    "divisor": {"kernel_size": 3, "stride": 1, "padding": 1, "divisor_override": 5},
    "negative divisor": {"kernel_size": 2, "divisor_override": -3},
}
MAX_ONLY = {
    "dilated": {"kernel_size": 3, "stride": 1, "dilation": 2},
    "dilated and padded": {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2},
    "dilated, ceil_mode": {"kernel_size": 3, "stride": 3, "padding": 1, "dilation": 2, "ceil_mode": True},
}


def requests(special: dict[str, dict[str, Any]]) -> list[Any]:
    rows = []
    for rank in RANKS:
        per_dimension = {name: entries[-rank:] for name, entries in PER_DIMENSION.items()}
        for name, arguments in {**COMMON, "per dimension": per_dimension, **special}.items():
            if rank > 1 or "divisor_override" not in arguments:
                rows.append(pytest.param(rank, arguments, id=f"{rank}d {name}"))
    return rows


def ours(family: str, rank: int) -> Callable[..., Any]:
    return getattr(pooling, f"{family}_pool{rank}d")


def torchs(family: str, rank: int) -> Callable[..., Any]:
    return getattr(torch.nn.functional, f"{family}_pool{rank}d")


Image = Callable[..., Tensor]


@pytest.fixture
def image(device: torch.device) -> Image:
    """Make a random batch for ``rank`` spatial dimensions, the same one every time."""

    def made(rank: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
        return samples.normal(*SHAPES[rank], dtype=dtype, seed=seed).to(device)

    return made


def gradient_of(
    function: Callable[..., Tensor], tensor: Tensor, *arguments: Any, **keywords: Any
) -> tuple[Tensor, Tensor]:
    """The output, and the gradient of ``tensor`` for an incoming gradient that depends on the output's shape alone."""
    tensor = tensor.detach().requires_grad_()
    output = function(tensor, *arguments, **keywords)
    incoming = samples.normal(*output.shape, dtype=output.dtype, seed=7).to(output.device)
    return output.detach(), torch.autograd.grad(output, tensor, incoming)[0]


@pytest.mark.parametrize(("rank", "arguments"), requests(AVERAGE_ONLY))
@pytest.mark.parametrize("batched", [True, False])
def test_averages_and_their_gradients_are_torchs(
    rank: int, arguments: dict[str, Any], batched: bool, image: Image
) -> None:
    """A1, A2, A5, A6."""
    tensor = image(rank) if batched else image(rank)[0]
    expected, expected_gradient = gradient_of(torchs("avg", rank), tensor, **arguments)
    actual, gradient = gradient_of(ours("avg", rank), tensor, **arguments)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize(("rank", "arguments"), requests(MAX_ONLY))
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("ties", [False, True])
def test_maxima_indices_and_gradients_are_torchs(
    rank: int, arguments: dict[str, Any], batched: bool, ties: bool, image: Image
) -> None:
    """M1, M2, M4 (per plane) and M5: bit for bit, but for the order in which overlapping gradients are added."""
    tensor = image(rank) if batched else image(rank)[0]
    if ties:
        tensor = tensor.round()
    expected, expected_indices = torchs("max", rank)(tensor, **arguments, return_indices=True)
    values, indices = ours("max", rank)(tensor, **arguments, return_indices=True)
    assert torch.equal(values, expected)
    assert torch.equal(indices, expected_indices)
    assert indices.dtype is torch.int64
    assert torch.equal(ours("max", rank)(tensor, **arguments), expected)
    _, expected_gradient = gradient_of(torchs("max", rank), tensor, **arguments)
    _, gradient = gradient_of(ours("max", rank), tensor, **arguments)
    torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("rank", RANKS)
def test_the_ceil_mode_rows_reach_the_overhang(rank: int, image: Image) -> None:
    """G3: the rows above that are named after ``ceil_mode`` have one window more than without it."""
    for arguments in (COMMON["ceil_mode"], COMMON["ceil_mode overlapping"], MAX_ONLY["dilated, ceil_mode"]):
        with_overhang = ours("max", rank)(image(rank), **arguments)
        without = ours("max", rank)(image(rank), **{**arguments, "ceil_mode": False})
        assert with_overhang.numel() > without.numel()


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=samples.name_of)
def test_float_types(rank: int, dtype: torch.dtype, image: Image) -> None:
    """A4: half-precision averages are the float32 average rounded once. Maxima are exact."""
    tensor = image(rank, dtype)
    average = ours("avg", rank)(tensor, 3, 2, 1)
    assert average.dtype is dtype
    torch.testing.assert_close(average, torchs("avg", rank)(tensor.double(), 3, 2, 1).to(dtype))
    expected = torchs("max", rank)(tensor, 3, 2, 1, return_indices=True)
    for actual, wanted in zip(ours("max", rank)(tensor, 3, 2, 1, return_indices=True), expected, strict=True):
        assert actual.dtype is wanted.dtype
        assert torch.equal(actual, wanted)


@pytest.mark.parametrize("dtype", samples.INTEGERS, ids=samples.name_of)
def test_integer_maxima(dtype: torch.dtype, image: Image) -> None:
    """M7: exact, in every integer type, those that ATen does not pool included."""
    numbers = (image(2) * 40).round().clamp(-100, 100) + (0 if dtype.is_signed else 100)
    values, indices = pooling.max_pool2d(numbers.to(torch.int64).to(dtype), 3, 2, 1, return_indices=True)
    expected, expected_indices = torch.nn.functional.max_pool2d(numbers, 3, 2, 1, return_indices=True)
    assert values.dtype is dtype
    assert torch.equal(values.to(torch.int64), expected.to(torch.int64))
    assert torch.equal(indices, expected_indices)


@pytest.mark.parametrize("layout", samples.LAYOUTS)
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("rank", RANKS)
def test_layouts(layout: str, batched: bool, rank: int, image: Image) -> None:
    """G7: any strides give the right numbers, and a batch that is channels_last comes back so."""
    batch = samples.LAYOUTS[layout](image(rank, torch.float32))
    tensor = batch if batched else batch[1]
    expected, expected_indices = torchs("max", rank)(tensor.contiguous(), 3, 2, 1, return_indices=True)
    values, indices = ours("max", rank)(tensor, 3, 2, 1, return_indices=True)
    average = ours("avg", rank)(tensor, 3, 2, 1)
    assert torch.equal(values, expected)
    assert torch.equal(indices, expected_indices)
    torch.testing.assert_close(average, torchs("avg", rank)(tensor.contiguous(), 3, 2, 1))
    if layout == "channels last" and batched and rank > 1:
        memory_format = (torch.channels_last, torch.channels_last_3d)[rank - 2]
        for output in (values, indices, average):
            assert output.is_contiguous(memory_format=memory_format)


@pytest.mark.parametrize("rank", RANKS)
def test_the_variants_with_indices_always_return_them(rank: int, image: Image) -> None:
    function = getattr(pooling, f"max_pool{rank}d_with_indices")
    expected = torchs("max", rank)(image(rank), 2, return_indices=True)
    for keywords in ({}, {"return_indices": False}, {"return_indices": True}):
        values, indices = function(image(rank), 2, **keywords)
        assert torch.equal(values, expected[0])
        assert torch.equal(indices, expected[1])


@pytest.mark.parametrize("rank", RANKS)
def test_unpooling_takes_the_indices(rank: int, image: Image) -> None:
    """The indices are what torch.nn.functional.max_unpool expects."""
    values, indices = ours("max", rank)(image(rank), 2, return_indices=True)
    unpooled = getattr(torch.nn.functional, f"max_unpool{rank}d")(values, indices, 2, output_size=SHAPES[rank])
    assert torch.equal(unpooled[unpooled != 0], image(rank)[unpooled != 0])
    assert int((unpooled != 0).sum()) == values.numel()


# What torch.nn.functional cannot express, against torch on an input padded by hand.

PAIRS = ((1, 3), (3, 0), (0, 4))


def padded(tensor: Tensor, pairs: Any, value: float) -> Tensor:
    """``tensor`` padded by ``(start, end)`` pairs in the order of its dimensions."""
    return torch.nn.functional.pad(tensor, [*itertools.chain.from_iterable(reversed(pairs))], value=value)


def dilated_average(tensor: Tensor, kernel_size: int, stride: int, dilation: int) -> Tensor:
    """A valid average by torch's convolution, which has dilation."""
    rank, channels = tensor.dim() - 2, tensor.shape[1]
    weight = (
        torch.ones(channels, 1, *[kernel_size] * rank, dtype=tensor.dtype, device=tensor.device) / kernel_size**rank
    )
    convolution = getattr(torch.nn.functional, f"conv{rank}d")
    return convolution(tensor, weight, stride=stride, dilation=dilation, groups=channels)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize(("kernel_size", "stride"), [(2, 1), (3, 2), (4, 3)])
def test_pairs_pad_each_end_on_its_own(rank: int, kernel_size: int, stride: int, image: Image) -> None:
    """G4 and E8: some of these exceed half the window, some the whole of it."""
    pairs = PAIRS[:rank]
    assert any(start != end for start, end in pairs)
    assert max(itertools.chain.from_iterable(pairs)) > kernel_size // 2

    expected, expected_gradient = gradient_of(
        lambda tensor: torchs("avg", rank)(padded(tensor, pairs, 0.0), kernel_size, stride), image(rank)
    )
    actual, gradient = gradient_of(ours("avg", rank), image(rank), kernel_size, stride, pairs)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradient, expected_gradient)

    lowest = torch.finfo(torch.float64).min
    expected, expected_gradient = gradient_of(
        lambda tensor: torchs("max", rank)(padded(tensor, pairs, lowest), kernel_size, stride), image(rank)
    )
    actual, gradient = gradient_of(ours("max", rank), image(rank), kernel_size, stride, list(pairs))
    assert torch.equal(actual, torch.where(expected == lowest, -math.inf, expected))
    torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("rank", RANKS)
def test_count_include_pad_decides_the_divisor_of_pairs(rank: int, image: Image) -> None:
    """A1: left out, the divisor is the number of taps inside the input."""
    pairs, ones = PAIRS[:rank], torch.ones_like(image(rank))
    sums = torchs("avg", rank)(padded(image(rank), pairs, 0.0), 3, 2) * 3**rank
    inside = torchs("avg", rank)(padded(ones, pairs, 0.0), 3, 2) * 3**rank
    expected = torch.where(inside > 0, sums / inside, 0.0)
    torch.testing.assert_close(ours("avg", rank)(image(rank), 3, 2, pairs, count_include_pad=False), expected)


def test_indices_with_pairs_count_inside_the_plane(image: Image) -> None:
    """M4 (per plane): torch's index in the plane padded by hand, moved back to the plane itself."""
    (top, _), (left, right) = pairs = ((2, 1), (1, 2))
    lowest = torch.finfo(torch.float64).min
    _, expected = torch.nn.functional.max_pool2d(padded(image(2), pairs, lowest), 3, 2, return_indices=True)
    height, width = SHAPES[2][2:]
    rows, columns = expected // (left + width + right) - top, expected % (left + width + right) - left
    assert int(rows.min()) >= 0
    assert int(rows.max()) < height
    _, indices = pooling.max_pool2d(image(2), 3, 2, pairs, return_indices=True)
    assert torch.equal(indices, rows * width + columns)


def test_a_window_of_padding_alone() -> None:
    """M1 and A3: −inf with index −1, an average of 0, and no gradient."""
    tensor = torch.tensor([[[5.0, 7.0]]])
    values, indices = pooling.max_pool1d(tensor, 2, padding=((2, 0),), return_indices=True)
    assert values.tolist() == [[[-math.inf, 7.0]]]
    assert indices.tolist() == [[[-1, 1]]]
    for count_include_pad in (True, False):
        average = pooling.avg_pool1d(tensor, 2, padding=((2, 0),), count_include_pad=count_include_pad)
        assert average.tolist() == [[[0.0, 6.0]]]
    leaf = tensor.clone().requires_grad_()
    pooling.max_pool1d(leaf, 2, padding=((2, 0),))[..., 0].sum().backward()
    assert leaf.grad.tolist() == [[[0.0, 0.0]]]


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize(
    ("kernel_size", "stride", "dilation"), [(2, 1, 1), (3, 1, 1), (4, 1, 2), (3, 2, 1), (2, 3, 2), (1, 3, 1), (5, 4, 1)]
)
def test_same_pads_as_tensorflow_does(rank: int, kernel_size: int, stride: int, dilation: int, image: Image) -> None:
    """E8: ``ceil(size / stride)`` windows, the odd element at the end."""
    extent = (kernel_size - 1) * dilation + 1
    pairs = []
    for size in SHAPES[rank][2:]:
        total = max(0, (-(-size // stride) - 1) * stride + extent - size)
        pairs.append((total // 2, total - total // 2))
    expected_sizes = tuple(-(-size // stride) for size in SHAPES[rank][2:])

    average = ours("avg", rank)(image(rank), kernel_size, stride, "same", dilation=dilation)
    assert average.shape[2:] == expected_sizes
    torch.testing.assert_close(average, dilated_average(padded(image(rank), pairs, 0.0), kernel_size, stride, dilation))
    maximum = ours("max", rank)(image(rank), kernel_size, stride, "same", dilation=dilation)
    expected = torchs("max", rank)(padded(image(rank), pairs, -1e9), kernel_size, stride, dilation=dilation)
    assert torch.equal(maximum, expected)


def test_same_puts_the_odd_element_at_the_end_and_the_divisor_follows_count_include_pad() -> None:
    """E8, by hand."""
    tensor = torch.tensor([[[2.0, 4.0, 8.0]]])
    assert pooling.avg_pool1d(tensor, 2, 1, "same").tolist() == [[[3.0, 6.0, 4.0]]]
    assert pooling.avg_pool1d(tensor, 2, 1, "same", count_include_pad=False).tolist() == [[[3.0, 6.0, 8.0]]]


@pytest.mark.parametrize("rank", RANKS)
def test_valid_pads_nothing(rank: int, image: Image) -> None:
    for family in ("avg", "max"):
        assert torch.equal(ours(family, rank)(image(rank), 3, 2, "valid"), ours(family, rank)(image(rank), 3, 2, 0))


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize(("kernel_size", "stride", "dilation"), [(2, 1, 3), (3, 2, 2)])
def test_dilated_averages(rank: int, kernel_size: int, stride: int, dilation: int, image: Image) -> None:
    """G2, A1 and A6, against a convolution."""
    expected, expected_gradient = gradient_of(dilated_average, image(rank), kernel_size, stride, dilation)
    actual, gradient = gradient_of(ours("avg", rank), image(rank), kernel_size, stride, dilation=dilation)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradient, expected_gradient)


# Refusals (G5, G6): the whole sentence.

IMAGE = torch.ones(1, 1, 6, 6)
REFUSALS = {
    "too many dimensions": (
        lambda: pooling.avg_pool2d(torch.ones(1, 2, 3, 4, 5), 2),
        ValueError,
        "avg_pool2d: input must be 4-D (N, C, H, W) or, unbatched, 3-D (C, H, W), got 5-D of shape (1, 2, 3, 4, 5)",
    ),
    "too few dimensions": (
        lambda: pooling.max_pool3d(torch.ones(3, 4, 5), 2),
        ValueError,
        "max_pool3d: input must be 5-D (N, C, D, H, W) or, unbatched, 4-D (C, D, H, W), got 3-D of shape (3, 4, 5)",
    ),
    "no tensor": (
        lambda: pooling.max_pool1d([[1.0, 2.0]], 2),
        TypeError,
        "max_pool1d: input must be a torch.Tensor, got list",
    ),
    "window of 0": (
        lambda: pooling.max_pool2d(IMAGE, (2, 0)),
        ValueError,
        "kernel_size must be at least 1, got 0 in spatial dimension W (kernel_size=(2, 0))",
    ),
    "stride of 0": (
        lambda: pooling.max_pool2d(IMAGE, 2, (0, 1)),
        ValueError,
        "stride must be at least 1, got 0 in spatial dimension H (stride=(0, 1))",
    ),
    "negative padding": (
        lambda: pooling.avg_pool2d(IMAGE, 2, padding=-1),
        ValueError,
        "padding must be at least 0, got -1 in spatial dimension H (padding=-1)",
    ),
    "dilation of 0": (
        lambda: pooling.avg_pool2d(IMAGE, 2, dilation=0),
        ValueError,
        "dilation must be at least 1, got 0 in spatial dimension H (dilation=0)",
    ),
    "wrong number of entries": (
        lambda: pooling.avg_pool2d(IMAGE, (2, 2, 2)),
        ValueError,
        "kernel_size must be one int or 2 ints (H, W), got 3 entries: (2, 2, 2)",
    ),
    "unknown word": (
        lambda: pooling.avg_pool2d(IMAGE, 2, padding="full"),
        ValueError,
        'padding must be ints, (start, end) pairs, "same" or "valid", got \'full\'',
    ),
    "a float": (
        lambda: pooling.max_pool2d(IMAGE, 2.0),
        TypeError,
        "kernel_size must be ints, got 2.0 of type float (kernel_size=2.0)",
    ),
    "a bool": (
        lambda: pooling.max_pool2d(IMAGE, 2, True),
        TypeError,
        "stride must be ints, got True of type bool (stride=True)",
    ),
    "ceil_mode no bool": (
        lambda: pooling.max_pool2d(IMAGE, 2, ceil_mode=1),
        TypeError,
        "ceil_mode must be a bool, got 1 of type int",
    ),
    "count_include_pad no bool": (
        lambda: pooling.avg_pool2d(IMAGE, 2, count_include_pad=None),
        TypeError,
        "count_include_pad must be a bool, got None of type NoneType",
    ),
    "return_indices no bool": (
        lambda: pooling.max_pool2d(IMAGE, 2, return_indices="yes"),
        TypeError,
        "return_indices must be a bool, got 'yes' of type str",
    ),
    "a divisor of 0": (
        lambda: pooling.avg_pool2d(IMAGE, 2, divisor_override=0),
        ValueError,
        "divisor_override must not be 0",
    ),
    "a window too large": (
        lambda: pooling.avg_pool2d(IMAGE, (2, 9), padding=(0, 1)),
        ValueError,
        "the window leaves no output in spatial dimension W: window_size 9 with dilation 1 spans 9 positions, "
        "but the padded input has only 8 (1 + 6 + 1)",
    ),
    "nothing to pool": (
        lambda: pooling.avg_pool2d(torch.ones(1, 1, 0, 6), 2),
        ValueError,
        "the input has size 0 in spatial dimension H; every spatial size must be at least 1",
    ),
    "an average of integers": (
        lambda: pooling.avg_pool2d(torch.ones(1, 1, 6, 6, dtype=torch.int64), 2),
        TypeError,
        "input has data type int64; supported are float32, float16, bfloat16, float64",
    ),
    "complex numbers": (
        lambda: pooling.max_pool2d(torch.ones(1, 1, 6, 6, dtype=torch.complex64), 2),
        TypeError,
        "input has data type complex64; supported are float32, float16, bfloat16, float64, int8, int16, int32, int64, "
        "uint8, uint16, uint32, uint64",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    call, error, text = REFUSALS[name]
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        call()


# Signatures, transforms and the examples.


@pytest.mark.parametrize("rank", RANKS)
def test_the_signatures_of_max_pooling_are_torchs(rank: int) -> None:
    for name in (f"max_pool{rank}d", f"max_pool{rank}d_with_indices"):
        signature = inspect.signature(getattr(pooling, name))
        expected = inspect.signature(getattr(torch.nn.functional, f"max_pool{rank}d_with_indices"))
        assert [(parameter.name, parameter.default, parameter.kind) for parameter in signature.parameters.values()] == [
            (parameter.name, parameter.default, parameter.kind) for parameter in expected.parameters.values()
        ]


@pytest.mark.parametrize("rank", RANKS)
def test_the_signatures_of_average_pooling_are_torchs_and_a_dilation_by_keyword(rank: int) -> None:
    """torch's own are builtins whose signature stands in the first line of their docstring."""
    documented = re.search(rf"avg_pool{rank}d\((.*)\) -> Tensor", torchs("avg", rank).__doc__).group(1).split(", ")
    parameters = inspect.signature(ours("avg", rank)).parameters.values()
    positional = [parameter for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
    written = [
        parameter.name if parameter.default is parameter.empty else f"{parameter.name}={parameter.default}"
        for parameter in positional
    ]
    assert written == documented
    assert [parameter.name for parameter in parameters if parameter not in positional] == ["dilation"]


def test_every_public_function_is_one_of_torchs() -> None:
    for name in pooling.__all__:
        assert hasattr(torch.nn.functional, name), name
        assert hasattr(pooling, name), name


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("padding", [1, "same"])
def test_transforms(rank: int, padding: Any, image: Image) -> None:
    """E1: grad, jvp and vmap, nested, through the batched and the unbatched form."""
    tensor, tangent = image(rank), image(rank, seed=1)
    for family in ("avg", "max"):

        def pooled(sample, family=family):
            return ours(family, rank)(sample, 3, 2, padding)

        def loss(sample, pooled=pooled):
            return pooled(sample).square().sum()

        torch.testing.assert_close(torch.func.vmap(pooled)(tensor), pooled(tensor))
        gradients = torch.func.vmap(torch.func.grad(loss))(tensor)
        torch.testing.assert_close(gradients, torch.func.grad(loss)(tensor))
        _, directional = torch.func.jvp(loss, (tensor,), (tangent,))
        torch.testing.assert_close(directional, (gradients * tangent).sum())


@pytest.mark.parametrize("family", ["avg", "max"])
@pytest.mark.parametrize("padding", [1, "same", ((0, 1), (2, 0))])
def test_compiles_without_a_break_and_without_recompiling_for_a_new_size(family: str, padding: Any) -> None:
    """E2."""
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    @torch.compile(fullgraph=True, dynamic=True, backend=backend)
    def pooled(tensor):
        return ours(family, 2)(tensor, 3, 2, padding)

    for sizes in ((2, 3, 9, 11), (5, 3, 9, 11), (2, 3, 16, 14)):
        tensor = torch.randn(sizes, generator=torch.Generator().manual_seed(0))
        assert torch.equal(pooled(tensor), ours(family, 2)(tensor, 3, 2, padding))
    assert len(graphs) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=samples.name_of)
@pytest.mark.parametrize("rank", RANKS)
def test_autocast_never_changes_the_type(rank: int, dtype: torch.dtype, image: Image) -> None:
    """E5."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for family in ("avg", "max"):
            assert ours(family, rank)(image(rank, dtype), 2).dtype is dtype


def test_no_samples_and_no_channels() -> None:
    """G5: both are legal and give an empty result."""
    for family in ("avg", "max"):
        for shape in ((0, 3, 6, 6), (2, 0, 6, 6), (0, 6, 6)):
            assert ours(family, 2)(torch.ones(shape), 2).shape == (*shape[:-2], 3, 3)


def test_the_examples_run() -> None:
    results = doctest.testmod(pooling)
    assert results.attempted >= 9
    assert results.failed == 0


def test_a_strided_incoming_gradient(image: Image) -> None:
    """G7: an expanded and a transposed incoming gradient."""
    tensor = image(2)
    for family, incoming in itertools.product(
        ("avg", "max"), (torch.ones(()).double().expand(2, 3, 5, 4), image(2)[:, :, :4, :5].transpose(2, 3))
    ):
        gradients = []
        for function in (ours(family, 2), torchs(family, 2)):
            leaf = tensor.clone().requires_grad_()
            output = function(leaf, (1, 3), (2, 3), (0, 1))
            gradients += torch.autograd.grad(output, leaf, incoming)
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("device_type", ["cpu", "meta"])
def test_tensors_without_data_are_refused_alike(device_type: str) -> None:
    """G5: the window is checked before anything is computed."""
    tensor = torch.ones(1, 1, 4, 4, device=device_type)
    with pytest.raises(ValueError, match=r"^stride must be at least 1, got 0 in spatial dimension H \(stride=0\)$"):
        pooling.max_pool2d(tensor, 2, 0)
    assert pooling.max_pool2d(tensor, 2).shape == (1, 1, 2, 2)
