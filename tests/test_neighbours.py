"""A request and its neighbours agree: the same numbers in any layout, cut of the batch, number of threads and so on."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import oracle
import pytest
import samples
import torch
from test_properties import laid_out, layouts, requests
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import torch_dmlpool as dmlpool
from torch_dmlpool.decompositions import decompositions

hypothesis = pytest.importorskip("hypothesis")
strategies = hypothesis.strategies

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel:UserWarning")
Call = Callable[[Tensor], list[Tensor]]
IS_FUZZ = not hypothesis.settings().derandomize


class Family(NamedTuple):
    """What operators give for one input, and how often its sums are rounded: 0 asks for the same bits."""

    call: Call
    roundings: int = 0
    gradient_roundings: int = 0


# Families: of a request's window, as keywords and as the oracle's, and a number that chooses among what is left.


def positions(indices: Tensor, input: Tensor) -> Tensor:
    """Indices in each plane, which do not depend on the rest of the batch."""
    return torch.where(indices < 0, indices, indices % math.prod(input.shape[2:]))


def maxima(window: dict[str, Any], pooling: oracle.Pooling, choice: int) -> Family:
    def call(input: Tensor) -> list[Tensor]:
        values, indices = dmlpool.max_pooling(input, **window, return_indices=True)
        return [dmlpool.max_pooling(input, **window), values, positions(indices, input)]

    return Family(call)


def averages(window: dict[str, Any], pooling: oracle.Pooling, choice: int) -> Family:
    include_padding, divisor = [(False, None), (True, None), (False, 5), (True, -3)][choice % 4]
    words, taps = {"include_padding": include_padding, "divisor_override": divisor}, math.prod(pooling.window_size)
    roundings = 2 + math.ceil(math.log2(taps))
    return Family(lambda input: [dmlpool.average_pooling(input, **window, **words)], roundings, 2 + taps)


def norms(window: dict[str, Any], pooling: oracle.Pooling, choice: int) -> Family:
    p, taps = [1, 2, math.inf][choice % 3], math.prod(pooling.window_size)
    rounded = (0, 0) if p == math.inf else (8 + taps, 16 + 4 * taps)
    return Family(lambda input: [dmlpool.lp_pooling(input, **window, p=p)], *rounded)


def adaptive_maxima(window: dict[str, Any], pooling: oracle.Pooling, choice: int) -> Family:
    def call(input: Tensor) -> list[Tensor]:
        values, indices = dmlpool.adaptive_max_pooling(input, pooling.window_size, return_indices=True)
        return [dmlpool.adaptive_max_pooling(input, pooling.window_size), values, positions(indices, input)]

    return Family(call)


def adaptive_averages(window: dict[str, Any], pooling: oracle.Pooling, choice: int) -> Family:
    # No bin has more than 64 elements, and no element is in more bins than a window asked for has taps.
    taps = math.prod(pooling.window_size)
    return Family(lambda input: [dmlpool.adaptive_average_pooling(input, pooling.window_size)], 2 + 6, 2 + taps)


def unpooling(window: dict[str, Any], pooling: oracle.Pooling, choice: int) -> Family:
    def call(input: Tensor) -> list[Tensor]:
        values, indices = dmlpool.max_pooling(input, **window, return_indices=True)
        return [dmlpool.max_unpooling(values, indices, input.shape)]

    return Family(call)


def gradients(window: dict[str, Any], pooling: oracle.Pooling, choice: int) -> Family:
    """As functions of their own, on sums of whole numbers; what arrives laid out as drawn in the second."""

    def call(input: Tensor) -> list[Tensor]:
        sums = dmlpool.average_pooling(input, **window, divisor_override=1)
        results = [dmlpool.max_pooling_grad(input, sums, **window)]
        extents = [(size - 1) * gap + 1 for size, gap in zip(pooling.window_size, pooling.dilations, strict=True)]
        sizes = [
            (outputs - 1) * stride + extent - start - end
            for outputs, stride, extent, start, end in zip(
                input.shape[2:], pooling.strides, extents, pooling.start_padding, pooling.end_padding, strict=True
            )
        ]
        if min(sizes) > 0:
            plain = {**window, "ceil_mode": False, "divisor_override": 1}
            results.append(dmlpool.average_pooling_grad(input, [*input.shape[:2], *sizes], **plain))
        return results

    return Family(call)


def quantized(window: dict[str, Any], pooling: oracle.Pooling, choice: int) -> Family:
    include_padding = bool(choice % 2)
    parameters = [(0.5, 3, 0.25, 5), (0.1, None, 0.3, 7)][choice // 2 % 2]

    def call(input: Tensor) -> list[Tensor]:
        return [
            dmlpool.quantized_linear_average_pooling(input, *parameters, **window, include_padding=include_padding),
            dmlpool.max_pooling(input, **window),
        ]

    return Family(call)


def quantized_tensors(window: dict[str, Any], pooling: oracle.Pooling, choice: int) -> Family:
    def call(input: Tensor) -> list[Tensor]:
        tensor = torch._make_per_tensor_quantized_tensor(input, 0.5, 3)
        averages = dmlpool.quantized_average_pooling(tensor, **window, output_scale=0.3)
        return [averages.int_repr(), dmlpool.quantized_max_pooling(tensor, **window).int_repr()]

    return Family(call)


BYTES = [torch.int8, torch.uint8]
FAMILIES: dict[str, tuple[Callable[[dict[str, Any], oracle.Pooling, int], Family], list[torch.dtype]]] = {
    "maxima": (maxima, samples.FLOATS + samples.INTEGERS),
    "averages": (averages, samples.FLOATS),
    "norms": (norms, samples.FLOATS),
    "adaptive maxima": (adaptive_maxima, samples.FLOATS + samples.INTEGERS),
    "adaptive averages": (adaptive_averages, samples.FLOATS),
    "unpooling": (unpooling, samples.FLOATS),
    "gradients": (gradients, samples.FLOATS),
    "quantized": (quantized, BYTES),
    "quantized tensors": (quantized_tensors, BYTES),
}


# Ways to run a call.


@contextlib.contextmanager
def setting(name: str, value: object) -> Iterator[None]:
    """One of PyTorch's, and what it was again."""
    choose, before = getattr(torch, f"set_{name}"), getattr(torch, f"get_{name}")()
    choose(value)
    try:
        yield
    finally:
        choose(None if name == "default_device" else before)


class Decomposed(TorchDispatchMode):
    """Every operator is taken apart where it is called."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return table().get(function, function)(*args, **(kwargs or {}))


@functools.cache
def table() -> dict[Any, Callable[..., Any]]:
    return decompositions()


SAME_BITS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "one thread": lambda: setting("num_threads", 1),
    "three threads": lambda: setting("num_threads", 3),
    "default float64": lambda: setting("default_dtype", torch.float64),
    "default float16": lambda: setting("default_dtype", torch.float16),
    "default bfloat16": lambda: setting("default_dtype", torch.bfloat16),
    "in a device": lambda: torch.device("meta"),
    "default device": lambda: setting("default_device", "meta"),
}


def compiled(call: Call, input: Tensor) -> list[Tensor]:
    torch._dynamo.reset()
    return run(torch.compile(call, fullgraph=True), input)


def exported(call: Call, input: Tensor) -> list[Tensor]:
    """As a program that is taken apart, which is for inference."""

    class Model(torch.nn.Module):
        def forward(self, input: Tensor) -> list[Tensor]:
            return call(input)

    program = torch.export.export(Model(), (input,)).run_decompositions(decompositions())
    return program.module()(input)


# The property.


def run(call: Call, input: Tensor) -> list[Tensor]:
    """The results and, of floats, the gradient of the first of them for whole numbers, alike for every sample."""
    if not input.is_floating_point():
        return call(input)
    leaf = input.detach().requires_grad_()
    results = call(leaf)
    first = results[0]
    numbers = torch.arange(math.prod(first.shape[1:]), dtype=torch.int64, device="cpu") % 5
    gradient = numbers.to(first.dtype).view(1, *first.shape[1:]).expand(first.shape)
    return [*(result.detach() for result in results), *torch.autograd.grad(first, leaf, gradient)]


def check(family: Family, found: list[Tensor], expected: list[Tensor], magnitudes: list[Tensor]) -> None:
    """Equal, but where the order of sums may be another: within twice the bound of rule E6."""
    for number, (result, right) in enumerate(zip(found, expected[: len(found)], strict=True)):
        is_gradient = right.is_floating_point() and number == len(expected) - 1
        roundings = family.gradient_roundings if is_gradient else family.roundings
        if not roundings:
            samples.assert_same(result, right)
            continue
        assert (result.dtype, result.shape) == (right.dtype, right.shape)
        magnitude, unit = magnitudes[number].abs(), samples.UNIT_ROUNDOFF
        bound = roundings * unit[torch.float64 if result.dtype is torch.float64 else torch.float32] * magnitude
        if result.dtype.itemsize == 2:
            bound += unit[result.dtype] * (magnitude + bound) + torch.finfo(result.dtype).smallest_normal
        assert ((result.double() - right.double()).abs() <= 2 * bound).all()


@strategies.composite
def problems(draw: strategies.DrawFn, name: str) -> tuple[Family, Tensor]:
    """Operators, and an input in some layout with the numbers that are hard for them."""
    pooling, sizes = draw(requests())
    leading = draw(strategies.sampled_from([(1, 1), (2, 1), (1, 3), (3, 2), (2, 9), (2, 33)]))
    make, dtypes = FAMILIES[name]
    dtype, seed = draw(strategies.sampled_from(dtypes)), draw(strategies.integers(0, 2**16))
    is_sum = name in ("averages", "norms", "adaptive averages")
    input = (samples.normal if is_sum else samples.ties)(*leading, *sizes, dtype=dtype, seed=seed)
    if "maxima" in name and dtype.is_floating_point and seed % 3 == 0:
        chosen = torch.rand(input.shape, generator=samples.seeded(seed=seed))
        input[chosen < 0.2], input[chosen > 0.7] = math.nan, -math.inf
    return make(dict(vars(pooling)), pooling, seed), laid_out(input, draw(layouts(input.dim())))


def expected_of(family: Family, view: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What the same numbers give in a contiguous tensor, and the magnitudes of what is added up there."""
    numbers = view.clone(memory_format=torch.contiguous_format)
    expected = run(family.call, numbers)
    return expected, run(family.call, numbers.abs().double()) if family.roundings else expected


@pytest.mark.parametrize("name", FAMILIES)
def test_layouts_splits_threads_defaults_and_decompositions_agree(name: str) -> None:
    """E3, E6 and G7, for whatever geometry."""

    @hypothesis.given(problem=problems(name), way=strategies.sampled_from(list(SAME_BITS)))
    @hypothesis.settings(max_examples=20_000 // len(FAMILIES) + 1 if IS_FUZZ else 8)
    def agrees(problem: tuple[Family, Tensor], way: str) -> None:
        family, view = problem
        expected, magnitudes = expected_of(family, view)
        alone = run(family.call, view)
        check(family, alone, expected, magnitudes)
        with Decomposed():
            check(family, run(family.call, view), expected, magnitudes)
        with SAME_BITS[way]():
            again = run(family.call, view)
        one_by_one = [run(family.call, sample) for sample in view.contiguous().split(1)]
        for result, same, cut, right in zip(alone, again, zip(*one_by_one, strict=True), expected, strict=True):
            samples.assert_same(same, result)
            samples.assert_same(torch.cat(cut), right)

    agrees()


@pytest.mark.parametrize("way", [exported, pytest.param(compiled, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "quantized tensors"])
def test_programs_agree(name: str, way: Callable[[Call, Tensor], list[Tensor]]) -> None:
    """A share of the same requests, exported and taken apart, and compiled."""

    @hypothesis.given(problem=problems(name))
    @hypothesis.settings(max_examples=(3 if way is compiled else 20) if IS_FUZZ else 1)
    def agrees(problem: tuple[Family, Tensor]) -> None:
        family, view = problem
        check(family, way(family.call, view), *expected_of(family, view))

    agrees()


def test_windows_of_more_taps_than_their_numbers_hold_are_refused() -> None:
    """M6: indices of 100,000 x 100,000 taps wrapped around; averages and maxima alone are right."""
    image = torch.tensor([[[[0.0, 1.0], [0.0, 0.0]]]])
    window = (100_000, 1, 99_998, 0)
    assert dmlpool.max_pooling(image, *window).item() == 1
    assert dmlpool.average_pooling(image, *window).item() == 0.25
    for refused in (
        lambda: dmlpool.max_pooling(image, *window, return_indices=True),
        lambda: dmlpool.max_pooling(image.clone().requires_grad_(), *window),
        lambda: dmlpool.max_pooling_grad(image, image[..., :1, :1], *window),
    ):
        with pytest.raises(ValueError, match=r"at most 2147483648 taps .* got 10000000000"):
            refused()
