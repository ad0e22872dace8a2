"""A request and its neighbours agree: the same numbers in any layout, cut of the batch, number of
threads and so on."""

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import operators
import oracle
import pytest
import samples
import torch
from test_properties import DIVISORS, laid_out, layouts, requests
from torch import Tensor

import torch_dmlpool as dmlpool

hypothesis = pytest.importorskip("hypothesis")
strategies = hypothesis.strategies

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.quantize_per_tensor, torch.quantize_per_channel:UserWarning"
)
Call = Callable[[Tensor], list[Tensor]]
IS_FUZZ = not hypothesis.settings().derandomize


Roundings = tuple[int, int]
"""How often a result and a gradient are rounded: 0 asks for the same bits."""


class Request(NamedTuple):
    """A window, as keywords and as the oracle's, and a number that chooses among what is left."""

    pooling: oracle.Pooling
    choice: int

    @property
    def window(self):
        return dict(vars(self.pooling))

    @property
    def taps(self):
        return math.prod(self.pooling.window_size)


class Family(NamedTuple):
    """What operators give for an input, the types they take, and the roundings there are."""

    results: Callable[[Tensor, Request], list[Tensor]]
    dtypes: list[torch.dtype]
    roundings: Callable[[Request], Roundings] = lambda _: (0, 0)


def extrema(pool, input, **window):
    """Values alone and with indices in each plane, which do not depend on the rest of the batch."""
    values, indices = pool(input, **window, return_indices=True)
    planes = torch.where(indices < 0, indices, indices % math.prod(input.shape[2:]))
    return [pool(input, **window), values, planes]


def maxima(input, request):
    return extrema(dmlpool.max_pooling, input, **request.window)


def adaptive_maxima(input, request):
    return extrema(dmlpool.adaptive_max_pooling, input, output_size=request.pooling.window_size)


def averages(input, request):
    include_padding, divisor = DIVISORS[request.choice % 4]
    divided = {"include_padding": include_padding, "divisor_override": divisor}
    return [dmlpool.average_pooling(input, **request.window, **divided)]


def exponent(request):
    return [1, 2, math.inf][request.choice % 3]


def norms(input, request):
    return [dmlpool.lp_pooling(input, **request.window, p=exponent(request))]


def unpooling(input, request):
    pooled = dmlpool.max_pooling(input, **request.window, return_indices=True)
    return [dmlpool.max_unpooling(*pooled, input.shape)]


def gradients(input, request):
    """As functions of their own, on sums of whole numbers; what arrives laid out as drawn in the
    second."""
    window, pooling = request.window, request.pooling
    sums = dmlpool.average_pooling(input, **window, divisor_override=1)
    results = [dmlpool.max_pooling_grad(input, sums, **window)]
    sizes = []
    for axis, outputs in enumerate(input.shape[2:]):
        last = oracle.tap_positions(pooling, axis, outputs - 1)[-1]
        sizes.append(last + 1 - pooling.end_padding[axis])
    if min(sizes) > 0:
        plain = {**window, "ceil_mode": False, "divisor_override": 1}
        results.append(dmlpool.average_pooling_grad(input, [*input.shape[:2], *sizes], **plain))
    return results


def quantized(input, request):
    parameters = [(0.5, 3, 0.25, 5), (0.1, None, 0.3, 7)][request.choice // 2 % 2]
    options = {**request.window, "include_padding": bool(request.choice % 2)}
    averaged = dmlpool.quantized_linear_average_pooling(input, *parameters, **options)
    return [averaged, dmlpool.max_pooling(input, **request.window)]


def quantized_tensors(input, request):
    tensor = torch._make_per_tensor_quantized_tensor(input, 0.5, 3)
    averaged = dmlpool.quantized_average_pooling(tensor, **request.window, output_scale=0.3)
    return [averaged.int_repr(), dmlpool.quantized_max_pooling(tensor, **request.window).int_repr()]


NUMBERS, BYTES = samples.FLOATS + samples.INTEGERS, [torch.int8, torch.uint8]
FAMILIES: dict[str, Family] = {
    "maxima": Family(maxima, NUMBERS),
    "averages": Family(
        averages,
        samples.FLOATS,
        lambda asked: (2 + math.ceil(math.log2(asked.taps)), 2 + asked.taps),
    ),
    "norms": Family(
        norms,
        samples.FLOATS,
        lambda asked: (
            (0, 0) if exponent(asked) == math.inf else (8 + asked.taps, 16 + 4 * asked.taps)
        ),
    ),
    "adaptive maxima": Family(adaptive_maxima, NUMBERS),
    # No bin has more than 64 elements, and no element is in more bins than a window asked for has
    # taps.
    "adaptive averages": Family(
        lambda input, request: [
            dmlpool.adaptive_average_pooling(input, request.pooling.window_size)
        ],
        samples.FLOATS,
        lambda asked: (2 + 6, 2 + asked.taps),
    ),
    "unpooling": Family(unpooling, samples.FLOATS),
    "gradients": Family(gradients, samples.FLOATS),
    "quantized": Family(quantized, BYTES),
    "quantized tensors": Family(quantized_tensors, BYTES),
}


# Ways to run a call.


@contextlib.contextmanager
def setting(name, value):
    """One of PyTorch's, and what it was again."""
    choose, before = getattr(torch, f"set_{name}"), getattr(torch, f"get_{name}")()
    choose(value)
    try:
        yield
    finally:
        choose(None if name == "default_device" else before)


SAME_BITS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "one thread": lambda: setting("num_threads", 1),
    "three threads": lambda: setting("num_threads", 3),
    "default float64": lambda: setting("default_dtype", torch.float64),
    "default float16": lambda: setting("default_dtype", torch.float16),
    "default bfloat16": lambda: setting("default_dtype", torch.bfloat16),
    "in a device": lambda: torch.device("meta"),
    "default device": lambda: setting("default_device", "meta"),
}


def compiled(call, input):
    torch._dynamo.reset()
    return run(torch.compile(call, fullgraph=True), input)


def exported(call, input):
    """As a program that is taken apart, which is for inference."""

    class Model(torch.nn.Module):
        def forward(self, input):
            return call(input)

    program = torch.export.export(Model(), (input,)).run_decompositions(operators.TABLE)
    return program.module()(input)


# The property.


def run(call, input):
    """The results and, of floats, the gradient of the first of them for whole numbers, alike for
    every sample."""
    if not input.is_floating_point():
        return call(input)
    leaf = input.detach().requires_grad_()
    results = call(leaf)
    first = results[0]
    numbers = torch.arange(math.prod(first.shape[1:]), dtype=torch.int64, device="cpu") % 5
    gradient = numbers.to(first.dtype).view(1, *first.shape[1:]).expand(first.shape)
    results += torch.autograd.grad(first, leaf, gradient)
    return [result.detach() for result in results]


def check(rounded, found, expected, magnitudes):
    """Equal, but where the order of sums may be another: within twice the bound of rule E6."""
    for number, (result, right) in enumerate(zip(found, expected[: len(found)], strict=True)):
        is_gradient = right.is_floating_point() and number == len(expected) - 1
        if roundings := rounded[is_gradient]:
            samples.assert_near(result, right, magnitudes[number], roundings)
        else:
            samples.assert_same(result, right)


def is_sum(name):
    return name in ("averages", "norms", "adaptive averages")


@strategies.composite
def problems(draw, name):
    """Operators, the roundings of their results, and an input in some layout with numbers that are
    hard for them."""
    pooling, sizes = draw(requests())
    leading = draw(strategies.sampled_from([(1, 1), (2, 1), (1, 3), (3, 2), (2, 9), (2, 33)]))
    results, dtypes, roundings = FAMILIES[name]
    dtype, seed = draw(strategies.sampled_from(dtypes)), draw(strategies.integers(0, 2**16))
    input = (samples.normal if is_sum(name) else samples.ties)(
        *leading, *sizes, dtype=dtype, seed=seed
    )
    if "maxima" in name and dtype.is_floating_point and seed % 3 == 0:
        chosen = torch.rand(input.shape, generator=samples.seeded(seed=seed))
        input[chosen < 0.2], input[chosen > 0.7] = math.nan, -math.inf
    asked = Request(pooling, seed)
    view = laid_out(input, draw(layouts(input.dim())))
    return functools.partial(results, request=asked), roundings(asked), view


def names_one_nan(view):
    """ATen's pools name the last of several NaN in a window, and so do decompositions."""
    return int(view.isnan().sum()) <= 1


def expected_of(call, rounded, view):
    """What the same numbers give in a contiguous tensor, and the magnitudes of what is added up
    there."""
    numbers = view.contiguous()
    expected = run(call, numbers)
    return expected, run(call, numbers.abs().double()) if rounded[0] else expected


@pytest.mark.parametrize("name", FAMILIES)
def test_layouts_splits_threads_defaults_and_decompositions_agree(name):
    """E3, E6 and G7, for whatever geometry."""

    @hypothesis.given(problem=problems(name), way=strategies.sampled_from(list(SAME_BITS)))
    @hypothesis.settings(
        max_examples=hypothesis.settings().max_examples // len(FAMILIES) + 1 if IS_FUZZ else 8
    )
    def agrees(problem, way):
        call, rounded, view = problem
        expected, magnitudes = expected_of(call, rounded, view)
        alone = run(call, view)
        check(rounded, alone, expected, magnitudes)
        if names_one_nan(view):
            with operators.Decomposed():
                check(rounded, run(call, view), expected, magnitudes)
        with SAME_BITS[way]():
            again = run(call, view)
        # Averages of another layout are added in another order, within the bound that `alone` has
        # been held to: what has equal bits is a sample and its batch (E6).
        single = view if is_sum(name) else view.contiguous()
        one_by_one = [run(call, sample) for sample in single.split(1)]
        for result, same in zip(alone, again, strict=True):
            samples.assert_same(same, result)
        cuts = [torch.cat(cut) for cut in zip(*one_by_one, strict=True)]
        for cut, right in zip(cuts, alone, strict=True):
            samples.assert_same(cut, right)

    agrees()


@pytest.mark.parametrize("way", [exported, pytest.param(compiled, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "quantized tensors"])
def test_programs_agree(name, way):
    """A share of the same requests, exported and taken apart, and compiled."""

    @hypothesis.given(problem=problems(name))
    @hypothesis.settings(max_examples=(3 if way is compiled else 20) if IS_FUZZ else 1)
    def agrees(problem):
        call, rounded, view = problem
        hypothesis.assume(way is compiled or names_one_nan(view))
        check(rounded, way(call, view), *expected_of(call, rounded, view))

    agrees()
