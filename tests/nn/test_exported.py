"""integer_pooling: dequantize → average pool → quantize in an exported program becomes the one
integer operator."""

import collections
import io
from collections.abc import Callable
from typing import Any

import cases
import pytest
import samples
import torch
import torch.ao.quantization.fx._decomposed
from torch import Tensor
from torch._dynamo.exc import UserError
from torch.export import Dim, export
from torch.nn import functional as F  # noqa: N812

import torch_dmlpool as dmlpool
from torch_dmlpool.nn import integer_pooling

quantized = torch.ops.quantized_decomposed
SHAPES = {1: (2, 3, 14), 2: (2, 3, 9, 8), 3: (2, 3, 6, 5, 7)}


class Quantization(torch.nn.Module):
    """Scale, zero point and limits of one tensor; per channel where they are vectors, which are
    buffers."""

    def __init__(self, scale, zero_point, dtype, limits=None, axis=1):
        super().__init__()
        self.dtype, self.axis = dtype, axis
        self.limits = limits or (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        for name, value in (("scale", scale), ("zero_point", zero_point)):
            hold = self.register_buffer if isinstance(value, Tensor) else self.__setattr__
            hold(name, value)

    def quantize(self, real):
        return self._called("quantize", real)

    def dequantize(self, integers):
        return self._called("dequantize", integers)

    def _called(self, name, tensor):
        per_channel = isinstance(self.scale, Tensor) and self.scale.dim() == 1
        along = (self.axis,) if per_channel else ()
        function = getattr(quantized, f"{name}_per_{'channel' if per_channel else 'tensor'}")
        return function(tensor, self.scale, self.zero_point, *along, *self.limits, self.dtype)

    def real(self, integers):
        """What the integers stand for, in float64."""
        return self._number("scale", integers) * (integers - self._number("zero_point", integers))

    def steps(self, real):
        """How many steps from zero that is."""
        return real / self._number("scale", real)

    def _number(self, name, like):
        value = torch.as_tensor(getattr(self, name), dtype=torch.float64)
        return value.reshape(-1, *[1] * (like.dim() - 2))


class Pattern(torch.nn.Module):
    """The pattern alone."""

    def __init__(self, pool, input, output):
        super().__init__()
        self.pool, self.input, self.output = pool, input, output

    def forward(self, integers):
        return self.output.quantize(self.pool(self.input.dequantize(integers)))


def operators_in(program):
    """How often a program calls each operator."""
    return collections.Counter(
        node.target._schema.name
        for node in program.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    )


INTEGER = (
    "dmlpool::quantized_linear_average_pooling",
    "dmlpool::quantized_linear_average_pooling_of_numbers",
)
MAXIMA = ("dmlpool::max_pooling", "dmlpool::adaptive_max_pooling")
FLOAT_PATTERN = ("dequantize", "_pool", "average_pooling", "mean", "amax", "quantize_per")


def integer_averages(program):
    return sum(operators_in(program)[name] for name in INTEGER)


def is_replaced(program):
    """Whether the program pools integers; if so, nothing of the pattern must be left."""
    names, integer = {*operators_in(program)}, {*INTEGER, *MAXIMA}
    left = [name for name in names - integer if any(part in name for part in FLOAT_PATTERN)]
    return bool(names & integer) and not left


Pool = Callable[[Tensor], Tensor]
POOLS: dict[str, tuple[int, Pool]] = {
    "avg_pool1d": (1, lambda x: F.avg_pool1d(x, 2)),
    "avg_pool2d": (2, lambda x: F.avg_pool2d(x, 2)),
    "padded": (2, lambda x: F.avg_pool2d(x, (3, 2), 2, (1, 0), count_include_pad=False)),
    "avg_pool2d, ceil": (2, lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)),
    "avg_pool3d": (3, lambda x: F.avg_pool3d(x, (1, 2, 3), (2, 1, 2))),
    "adaptive_avg_pool1d": (1, lambda x: F.adaptive_avg_pool1d(x, 7)),
    "adaptive_avg_pool2d": (2, lambda x: F.adaptive_avg_pool2d(x, 1)),
    "mean": (2, lambda x: x.mean((-1, -2), keepdim=True)),
    "adaptive_avg_pool3d": (3, lambda x: F.adaptive_avg_pool3d(x, (3, 5, 1))),
    "dmlpool, one dimension": (1, lambda x: dmlpool.average_pooling(x, 3, 2, 1, 2, 2)),
    "dmlpool, layer": (2, dmlpool.nn.AvgPool2d(3, 1, "same", dilation=2)),
    "dmlpool, three dimensions": (3, lambda x: dmlpool.average_pooling(x, 2, include_padding=True)),
}
QUANTIZATIONS: dict[str, Quantization] = {
    "uint8": Quantization(0.037, 119, torch.uint8),
    "int8": Quantization(0.021, -3, torch.int8),
}
UINT8, INT8 = QUANTIZATIONS["uint8"], QUANTIZATIONS["int8"]
AVERAGE = POOLS["avg_pool2d"][1]
PAIRS = [("uint8", "int8"), ("int8", "uint8"), ("int8", "int8")]
IMAGE = samples.integers(*SHAPES[2], dtype=torch.uint8)


def before_and_after(pattern, example=IMAGE, **options):
    """The exported program, and the one with integer pools, in which nothing of the pattern is
    left."""
    program = export(pattern, (example,), **options)
    pooled = integer_pooling(program)
    assert not is_replaced(program)
    assert is_replaced(pooled)
    return program, pooled


def assert_exact(pattern, integers, *programs):
    """Q1, Q3: the result is the operator's exact one, which is the float program's but where that
    one's rounding errors decide. There, within a thousandth of a tie, it is one step off at most.
    """
    expected, result = (program.module()(integers) for program in programs)
    assert result.dtype is expected.dtype is pattern.output.dtype
    assert result.stride() == expected.stride()
    difference = (result.int() - expected.int()).abs()
    assert difference.max() <= 1
    steps = pattern.output.steps(pattern.pool(pattern.input.real(integers)))
    assert not difference[(steps.frac().abs() - 0.5).abs() > 1e-3].any()


@cases.in_pairs(pool=list(POOLS), types=PAIRS)
def test_the_pattern_is_replaced(pool, types):
    rank, function = POOLS[pool]
    pattern = Pattern(function, *(QUANTIZATIONS[name] for name in types))
    example = samples.integers(*SHAPES[rank], dtype=pattern.input.dtype)
    assert_exact(pattern, example, *before_and_after(pattern, example))


OPEN: dict[str, Pool] = {
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 1),
    "mean": lambda x: x.mean((2, 3)),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 1),
    "max_pool2d": lambda x: F.max_pool2d(x, 3, 2, 1),
    "the whole image": lambda x: dmlpool.average_pooling(x, x.shape[2:]),
}


@pytest.mark.parametrize("name", OPEN)
def test_image_sizes_that_are_left_open(name):
    """E2: and a window that is as large as the image, whatever that is."""
    pattern = Pattern(OPEN[name], UINT8, UINT8 if "max" in name else INT8)
    sizes = {0: Dim("batch"), 2: Dim("height", min=4, max=64), 3: Dim("width", min=4, max=64)}
    try:
        programs = before_and_after(pattern, dynamic_shapes=(sizes,))
    except UserError as error:  # PyTorch 2.11 wants heights of a strided pool to be odd or even
        if torch.torch_version.TorchVersion(torch.__version__) >= "2.12":
            raise
        pytest.skip(str(error).partition("!")[0])
    for shape in ((2, 3, 9, 8), (3, 3, 4, 17)):
        assert_exact(pattern, samples.integers(*shape, dtype=torch.uint8), *programs)


@pytest.mark.parametrize("name", ["input", "filter", "max", "input_1"])
def test_an_input_may_have_any_name(name):
    """One of Python's own functions too, as the input of every torch.nn.Sequential has."""
    pattern = Pattern(AVERAGE, UINT8, INT8)
    scope: dict[str, Any] = {"torch": torch, "pattern": pattern}
    lines = (f"    def forward(self, {name}):", f"        return pattern({name})")
    exec("\n".join(("class Model(torch.nn.Module):", *lines)), scope)
    assert_exact(pattern, IMAGE, *before_and_after(torch.nn.Sequential(scope["Model"]())))


class Network(torch.nn.Module):
    """Weights, a pool in PyTorch's reference form, and a pool over planes of open sizes."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 3, 3, padding=1)
        self.pool = Pattern(lambda x: F.avg_pool2d(x, 3, 2, 1), UINT8, INT8)
        self.last = Pattern(
            lambda x: dmlpool.average_pooling(x, x.shape[2:]), self.pool.output, UINT8
        )

    def forward(self, image):
        pooled = self.pool(UINT8.quantize(self.convolution(UINT8.dequantize(image)).relu()))
        return pooled, self.last(pooled)


@torch.no_grad()
def test_the_program_stays_a_program(fresh_compiler):
    """E2: it saves and loads, decomposes and compiles; the one given is as it was."""
    images = samples.integers(4, 3, 16, 16, dtype=torch.uint8)
    program = export(Network(), (images,), dynamic_shapes=({0: Dim("batch")},))
    text, state = str(program.graph), set(program.state_dict)
    pooled = integer_pooling(program)
    assert integer_averages(pooled) == 2
    assert str(program.graph) == text
    assert set(pooled.state_dict) == state
    assert pooled.graph_signature == program.graph_signature
    expected = pooled.module()(images)
    stored = io.BytesIO()
    torch.export.save(pooled, stored)
    stored.seek(0)
    for again in (
        torch.export.load(stored).module(),
        pooled.run_decompositions().module(),
        integer_pooling(program.run_decompositions()).module(),
        integer_pooling(pooled).module(),
        torch.compile(pooled.module(), fullgraph=True, backend="aot_eager"),
    ):
        for actual, wanted in zip(again(images), expected, strict=True):
            samples.assert_same(actual, wanted)


WITH_INDICES = torch.ops.aten.max_pool2d_with_indices
MAX_POOLS: dict[str, tuple[int, Pool]] = {
    "max_pool1d": (1, lambda x: F.max_pool1d(x, 3, 2)),
    "max_pool2d": (2, lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True)),
    "max_pool2d, dilated": (2, lambda x: F.max_pool2d(x, 2, 1, 0, 2)),
    "max_pool2d with indices": (2, lambda x: WITH_INDICES(x, [3, 3], [1, 1], [1, 1])[0]),
    "max_pool3d": (3, lambda x: F.max_pool3d(x, 2, 2, 1)),
    "adaptive_max_pool1d": (1, lambda x: F.adaptive_max_pool1d(x, 5)),
    "adaptive_max_pool2d": (2, lambda x: F.adaptive_max_pool2d(x, (4, 3))),
    "adaptive_max_pool3d": (3, lambda x: F.adaptive_max_pool3d(x, 1)),
    "amax": (2, lambda x: x.amax((2, 3))),
    "amax, keepdim": (2, lambda x: x.amax((-1, -2), keepdim=True)),
    "two in a chain": (2, lambda x: F.max_pool2d(F.max_pool2d(x, 3, 1, 1), 3, 1, 1)),
    "dmlpool, layer": (2, dmlpool.nn.MaxPool2d(3, 2, "same")),
    "dmlpool, adaptive": (2, dmlpool.nn.AdaptiveMaxPool2d((2, 3))),
}


@cases.in_pairs(pool=list(MAX_POOLS), types=list(QUANTIZATIONS))
def test_maxima_of_one_quantization_are_those_of_the_integers(pool, types):
    """M7: bit for bit, and nothing of the pattern is left."""
    rank, function = MAX_POOLS[pool]
    pattern = Pattern(function, *[QUANTIZATIONS[types]] * 2)
    example = samples.integers(*SHAPES[rank], dtype=pattern.input.dtype)
    program, report = export(pattern, (example,)), {}
    pooled = integer_pooling(program, report)
    assert not is_replaced(program)
    assert is_replaced(pooled)
    assert set(report.values()) == {"replaced by max_pooling of integers"}
    samples.assert_same(pooled.module()(example), program.module()(example))
    assert pooled.graph_signature == program.graph_signature


@pytest.mark.parametrize("types", PAIRS, ids=str)
def test_maxima_between_two_quantizations_are_found_before_the_numbers_are_real(types):
    """The numbers are converted after they are pooled: fewer of them, with the same result."""
    pattern = Pattern(MAX_POOLS["max_pool2d"][1], *(QUANTIZATIONS[name] for name in types))
    example = IMAGE.to(pattern.input.dtype)
    program = export(pattern, (example,))
    pooled = integer_pooling(program)
    assert operators_in(pooled)["dmlpool::max_pooling"] == 1
    assert not operators_in(pooled)["aten::max_pool2d"]
    samples.assert_same(pooled.module()(example), program.module()(example))


class Block(torch.nn.Module):
    """One dequantized tensor for a chain of pools, a cat and a flatten, as in SPPF and heads."""

    def forward(self, integers):
        real = UINT8.dequantize(integers)
        once = F.max_pool2d(real, 3, 1, 1)
        twice = F.max_pool2d(once, 3, 1, 1)
        flat = INT8.quantize(F.max_pool2d(real, 2).flatten(1))
        means = UINT8.quantize(F.avg_pool2d(real, 2)), UINT8.quantize(real.mean((2, 3)))
        return UINT8.quantize(torch.cat((real, once, twice), 1)), flat, *means


def test_pools_that_share_one_dequantize():
    """With one another, with a cat and with a flatten."""
    program, report = export(Block(), (IMAGE,)), {}
    pooled = integer_pooling(program, report)
    assert operators_in(pooled)["dmlpool::max_pooling"] == 3
    assert integer_averages(pooled) == 2
    assert not [name for name in operators_in(pooled) if "_pool2d" in name or "mean" in name]
    assert not [reason for reason in report.values() if reason.startswith("left")]
    results = zip(pooled.module()(IMAGE), program.module()(IMAGE), strict=True)
    for at, (result, expected) in enumerate(results):
        assert result.dtype is expected.dtype
        assert (result.int() - expected.int()).abs().max() <= (0 if at < 2 else 1)


def test_the_report_says_why_a_pool_is_left_and_what_is_no_program():
    report: dict[str, str] = {}
    program = export(LEFT["an average that is needed elsewhere"], (IMAGE,))
    integer_pooling(program, report)
    assert report == {"avg_pool2d": "left: its result is not quantized per tensor"}
    with pytest.raises(TypeError, match=r"^report must be a dict or None, got list$"):
        integer_pooling(program, [])  # type: ignore[arg-type]
    text = r"^program must be a torch\.export\.ExportedProgram, got AvgPool2d$"
    with pytest.raises(TypeError, match=text):
        integer_pooling(torch.nn.AvgPool2d(2))


# What is needed elsewhere stays, and what cannot be replaced is left.


class Shared(Pattern):
    """The pattern, and another user of its average: nothing would be saved."""

    def forward(self, integers):
        average = self.pool(self.input.dequantize(integers))
        return self.output.quantize(average), average.relu()


class Observed(Pattern):
    """A buffer that is written to is no constant."""

    def forward(self, integers):
        pooled = super().forward(integers)
        self.output.scale.mul_(2)
        return pooled


@pytest.mark.parametrize("limits", [(-100, 90), (-128, 20), (0, 127)])
def test_limits_narrower_than_the_type(limits):
    """They become a clamp; those of the input say nothing about its values, to PyTorch's operators
    either."""
    example = samples.integers(*SHAPES[2], dtype=torch.int8)
    input = Quantization(0.125, -8, torch.int8, (-127, 127))
    pattern = Pattern(AVERAGE, input, Quantization(0.0625, -3, torch.int8, limits))
    program, pooled = before_and_after(pattern, example)
    result = pooled.module()(example)
    samples.assert_same(result, program.module()(example))
    assert (result.min(), result.max()) == limits


class ChangingScale(Quantization):
    """A scale that the program itself computes."""

    def quantize(self, real):
        scale = real.abs().amax() / 100
        return quantized.quantize_per_tensor(real, scale, torch.tensor(0), *self.limits, self.dtype)


def pooled_by(pool):
    return Pattern(pool, UINT8, INT8)


LEFT: dict[str, Pattern] = {
    "an average that is needed elsewhere": Shared(AVERAGE, UINT8, INT8),
    "a scale that the program changes": Observed(
        AVERAGE, UINT8, Quantization(torch.tensor(0.125), torch.tensor(3), torch.uint8)
    ),
    "numbers of each channel": Pattern(
        AVERAGE, UINT8, Quantization(torch.rand(3) + 0.1, torch.zeros(3).long(), torch.int8)
    ),
    "int16": Pattern(AVERAGE, UINT8, Quantization(0.01, 0, torch.int16)),
    "another axis": Pattern(
        AVERAGE, UINT8, Quantization(torch.rand(4) + 0.1, torch.zeros(4).long(), torch.int8, axis=3)
    ),
    "float64": pooled_by(lambda x: F.avg_pool2d(x.double(), 2).float()),
    "a divisor": pooled_by(lambda x: F.avg_pool2d(x, 2, divisor_override=3)),
    "a divisor, dmlpool": pooled_by(lambda x: dmlpool.average_pooling(x, 2, divisor_override=3)),
    "windows that differ": pooled_by(lambda x: F.adaptive_avg_pool2d(x, 4)),
    "a mean of all numbers": pooled_by(lambda x: x + x.mean(dtype=torch.float32)),
    "a mean of rows": pooled_by(lambda x: x.mean(3, keepdim=True)),
    "a mean that drops its dimensions": pooled_by(lambda x: x.mean((2, 3)).unflatten(1, (3, 1, 1))),
    "maxima whose indices are used": pooled_by(
        lambda x: sum(F.max_pool2d(x, 2, return_indices=True))
    ),
    "maxima of windows that may be empty": pooled_by(lambda x: dmlpool.max_pooling(x, 2, 1, 3, 0)),
    "maxima of rows": pooled_by(lambda x: x.amax(3, keepdim=True)),
    "maxima of dequantized numbers next to the largest": Pattern(
        lambda x: F.max_pool2d(x, 2), *[Quantization(2.0**110, 0, torch.uint8)] * 2
    ),
    "no batch": pooled_by(AVERAGE),
    "a computed scale": Pattern(AVERAGE, UINT8, ChangingScale(1.0, 0, torch.int8)),
    "a zero point outside the type": Pattern(AVERAGE, UINT8, Quantization(0.05, 300, torch.uint8)),
    "a scale of 0 in float32": Pattern(AVERAGE, Quantization(1e-60, 0, torch.uint8), INT8),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name):
    """The same operators, the same results."""
    input = IMAGE[0] if name == "no batch" else IMAGE
    program = export(LEFT[name], (input,))
    program = program.run_decompositions() if isinstance(LEFT[name], Observed) else program
    pooled = integer_pooling(program)
    assert operators_in(pooled) == operators_in(program)
    changes = isinstance(LEFT[name], Observed)
    assert bool(program.graph_signature.buffers_to_mutate) is changes
    if not changes:  # the one program's run would change what the other one starts from
        torch.testing.assert_close(pooled.module()(input), program.module()(input), rtol=0, atol=0)
