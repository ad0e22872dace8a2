"""Inductor's lowerings (E2): what fuses, that it computes what the operators compute, and how it is
switched off."""

import math
import re
from collections.abc import Callable

import cases
import oracle
import pytest
import samples
import torch
from torch import Tensor
from torch._inductor import config, metrics
from torch._inductor.utils import run_and_get_code

import torch_dmlpool as dmlpool
from torch_dmlpool import inductor

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@pytest.fixture
def fuses(device):
    """On a GPU few windows are fused: for others the package's kernels are faster."""
    if device.type != "cpu":
        pytest.skip("a GPU computes these windows by the package's kernels")


operators = torch.ops.dmlpool

EDGES = [cases.case("padding above the window", "ceil overhang, dilated")]
"""Compiled every day: empty windows, an overhang, gaps between taps. Every tap takes its time."""
PADDED = cases.case("uneven padding", "first tap inside is not tap 0")


def compiled(function):
    return torch.compile(function, fullgraph=True)


def called(function, *arguments):
    """The package's operators that compiled code calls."""
    torch._dynamo.reset()
    _, code = run_and_get_code(compiled(function), *arguments)
    return [
        line.split("dmlpool.")[1].split(".")[0]
        for line in "".join(code).splitlines()
        if "= torch.ops.dmlpool" in line
    ]


def of_types(dtypes):
    """The edges every day; every type in both layouts where there is time."""
    return pytest.mark.parametrize(
        ("chosen", "layout", "dtype"),
        [
            pytest.param(EDGES, "channels last", torch.float32, id="edges"),
            *(
                pytest.param(
                    [*EDGES, PADDED], layout, dtype, id=f"{layout} {dtype}", marks=pytest.mark.slow
                )
                for layout in ("contiguous", "channels last")
                for dtype in dtypes
            ),
        ],
    )


@of_types([*samples.FLOATS, *samples.INTEGERS])
def test_maxima_equal_the_operators(chosen, layout, dtype, device):
    """M1 to M3 and M5 to M7: values, taps and whole gradients, of types that Inductor has no code
    for too."""
    requests = [samples.spelled_out(case.pooling) for case in chosen]
    inputs = [
        samples.LAYOUTS[layout](samples.special(2, 3, *case.sizes, dtype=dtype)).to(device)
        for case in chosen
    ]
    gradients = [
        samples.whole_gradient(input, case.pooling)
        for input, case in zip(inputs, chosen, strict=True)
    ]

    def maxima(inputs, gradients):
        results = []
        for input, gradient, arguments in zip(inputs, gradients, requests, strict=True):
            values, taps = operators.max_pooling_with_taps(input, *arguments)
            results += [operators.max_pooling(input, *arguments), values, taps]
            if input.is_floating_point():
                results.append(
                    operators.max_pooling_grad_from_taps(
                        gradient, taps, input.shape[2:], *arguments, False
                    )
                )
        return results

    for result, expected in zip(
        compiled(maxima)(inputs, gradients), maxima(inputs, gradients), strict=True
    ):
        assert result.dtype == expected.dtype
        samples.assert_same(result, expected)


DIVISORS = [(False, None), (True, None), (False, -3)]


@of_types(samples.FLOATS)
def test_averages_are_as_exact_as_the_operators(chosen, layout, dtype, device):
    """A1 to A6 and E6: halves are summed in float32; a negative divisor."""
    requests = [samples.spelled_out(case.pooling) for case in chosen]
    inputs = [
        samples.LAYOUTS[layout](samples.normal(2, 3, *case.sizes, dtype=dtype)).to(device)
        for case in chosen
    ]
    outputs = [samples.normal(2, 3, *case.output_sizes, dtype=dtype) for case in chosen]
    gradients = [samples.LAYOUTS[layout](output).to(device) for output in outputs]

    def averages(inputs, gradients):
        results = []
        for input, gradient, window in zip(inputs, gradients, requests, strict=True):
            for divisor in DIVISORS:
                results.append(operators.average_pooling(input, *window, *divisor))
                results.append(
                    operators.average_pooling_grad(gradient, input.shape[2:], *window, *divisor)
                )
        return results

    found = iter(compiled(averages)(inputs, gradients))
    for input, gradient, case in zip(inputs, gradients, chosen, strict=True):
        taps, values, spread = (
            math.prod(case.pooling.window_size),
            samples.to_numpy(input),
            samples.to_numpy(gradient),
        )
        for divisor in DIVISORS:
            samples.assert_average(
                next(found), *oracle.average(values, case.pooling, *divisor), taps
            )
            samples.assert_gradient(
                next(found), *oracle.average_grad(spread, case.sizes, case.pooling, *divisor), taps
            )


GLOBAL: dict[str, Callable[[Tensor], Tensor]] = {
    "average": lambda x: dmlpool.average_pooling(x, x.shape[2:]),
    "average of rows": lambda x: dmlpool.average_pooling(x, (1, x.shape[3]), (1, x.shape[3])),
    "max": lambda x: dmlpool.max_pooling(x, x.shape[2:]),
    "max of columns": lambda x: dmlpool.max_pooling(x, (x.shape[2], 1), 1),
}


def test_windows_over_a_whole_dimension_are_reductions(device):
    """NaN wins, and the first of several alike gets the gradient."""
    all_of = lambda x: [pool(x) for pool in GLOBAL.values()]  # noqa: E731
    input = samples.ties(2, 3, 7, 12, dtype=torch.float32)
    input[0, 0, 3, 4] = math.nan
    leaf = input.to(device).requires_grad_()
    found, expected = compiled(all_of)(leaf), all_of(leaf)
    for result, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(result, wanted, equal_nan=True)
    sums = [
        sum(value.sum() * number for number, value in enumerate(values, 1))
        for values in (found, expected)
    ]
    torch.testing.assert_close(
        *(torch.autograd.grad(value, leaf)[0] for value in sums), equal_nan=True
    )
    assert (
        called(lambda x: [GLOBAL["average"](x), GLOBAL["max"](x)], samples.normal(2, 3, 7, 12))
        == []
    )
    # E6
    assert called(GLOBAL["average"], samples.normal(2, 3, 7, 12, dtype=torch.float64)) == [
        "average_pooling"
    ]


@pytest.mark.slow
def test_sums_over_a_dimension_keep_small_terms(device):
    """E6: where one number is large, thousands of small ones are not lost beside it."""
    input = torch.full((1, 2, 96, 100), 2.0**-25, device=device)
    input[:, :, 0, 0] = 1.0
    exact = (1 + (96 * 100 - 1) * 2.0**-25) / (96 * 100)
    function = lambda x: dmlpool.average_pooling(x, x.shape[2:])  # noqa: E731 - compiled as it is
    for layout in (input, samples.channels_last(input)):
        result = compiled(function)(layout)
        torch.testing.assert_close(result, torch.full_like(result, exact), rtol=2.0**-23, atol=0)


POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "max 3/1": lambda x: dmlpool.max_pooling(x, 3, 1, 1, 1),
    "average 3/1": lambda x: dmlpool.average_pooling(x, 3, 1, 1, 1),
    "average 2/2": lambda x: dmlpool.average_pooling(x, 2, 2),
}


def kernels_of(function, input):
    torch._dynamo.reset()
    metrics.reset()
    with (
        config.patch(force_disable_caches=True),
        torch.compiler.config.patch(force_disable_caches=False),
    ):
        compiled(function)(input)
    return metrics.generated_kernel_count


@cases.each("pool", POOLS, ["max 3/1"])
@pytest.mark.usefixtures("fuses")
def test_a_small_window_and_its_neighbours_are_one_kernel(pool, device):
    """What stands before and after a pooling is computed in its loop, unless the option says
    otherwise."""
    function = lambda x: POOLS[pool](x * 2 + 1).relu() + 1  # noqa: E731 - compiled and called as it is
    input = samples.channels_last(samples.normal(2, 16, 9, 8)).to(device)
    assert kernels_of(function, input) == 1
    assert called(function, input) == []
    inductor.lower(False)
    assert len(called(function, input)) == 1
    inductor.lower()


@pytest.mark.slow
@pytest.mark.usefixtures("fuses")
def test_strided_maxima_fuse_in_channels_last(device):
    """On a CPU a row whose every other element is read is left to the operator."""
    function = lambda x: dmlpool.max_pooling(x * 2 + 1, 3, 2, 1, 1).relu() + 1  # noqa: E731
    input = samples.normal(2, 16, 40, 38).to(device)
    assert kernels_of(function, samples.channels_last(input)) == 1
    assert called(function, samples.channels_last(input)) == []
    if device.type == "cpu":
        assert called(function, input) == ["max_pooling"]
        # a call would take longer for these few windows
        assert called(function, input[:1, :8, :9]) == []


@pytest.mark.usefixtures("fuses")
def test_training_fuses_forward_and_backward(device):
    """No operator of the package is left in either graph where windows lie side by side."""
    window = (2, 2)

    def both(x):
        return dmlpool.max_pooling(x.sin(), *window) + dmlpool.average_pooling(x.cos(), *window)

    leaf = samples.channels_last(samples.normal(2, 4, 10, 8)).to(device).requires_grad_()
    torch._dynamo.reset()
    _, code = run_and_get_code(lambda: compiled(both)(leaf).sum().backward())
    assert len(code) == 2
    assert "torch.ops.dmlpool" not in "".join(code)
    torch.testing.assert_close(leaf.grad, torch.autograd.grad(both(leaf).sum(), leaf)[0])


MASKED = {
    "averages": lambda x, mask: dmlpool.average_pooling(x.sin(), 3, 2, 1, 1, mask=mask),
    "averages, padding counted": lambda x, mask: dmlpool.average_pooling(
        x.sin(), 3, 2, 1, 1, include_padding=True, mask=mask
    ),
    "maxima": lambda x, mask: dmlpool.max_pooling(x.sin(), 3, 1, 1, 1, mask=mask),
    "minima": lambda x, mask: dmlpool.min_pooling(x.sin(), 3, 1, mask=mask),
}


@cases.each("name", MASKED, ["averages, padding counted"])
@pytest.mark.usefixtures("fuses")
def test_masks_fuse_with_pooling(name, device):
    """K1 to K6: operators are left in training alone, and no NaN gets out. What comes before the
    mask is one kernel with it, pooling is another, and so are counts of averages."""
    mask = samples.normal(2, 1, 9, 8).to(device) > -0.5
    input = samples.normal(2, 4, 9, 8).to(device)
    input = torch.where(mask, input, math.nan)
    expected = samples.results(lambda x: MASKED[name](x, mask), input)
    torch._dynamo.reset()
    call = compiled(MASKED[name])
    leaf = input.clone().requires_grad_()
    values, code = run_and_get_code(lambda: call(leaf, mask))
    arriving = samples.normal(*values.shape, dtype=values.dtype, seed=7).to(device)
    (gradient,), more = run_and_get_code(lambda: torch.autograd.grad(values, leaf, arriving))
    left = set(re.findall(r"torch\.ops\.dmlpool\.(\w+)", "".join(code + more)))
    assert left <= {
        "max_pooling_with_taps",
        "max_pooling_gather",
        "average_pooling_grad",
        "max_pooling_grad_from_taps",
    }
    torch.testing.assert_close([values.detach(), gradient], expected, equal_nan=True)
    assert torch.isfinite(values).all()
    metrics.reset()
    with torch.no_grad():
        found, code = run_and_get_code(call, input, mask)
    assert "torch.ops.dmlpool" not in "".join(code)
    most = 2
    if "averages" in name:  # PyTorch 2.11 computes the counts in two, and those of padding alone
        most += 1 if torch.torch_version.TorchVersion(torch.__version__) >= "2.12" else 3
    assert 1 <= metrics.generated_kernel_count <= most
    torch.testing.assert_close(found, expected[0])


def test_large_windows_call_the_operator_in_the_layout_that_is_there(device):
    """channels_last goes in and comes out without a copy."""
    function = lambda x: dmlpool.max_pooling(x.relu(), 7, 1, 3, 3) + 1  # noqa: E731
    input = samples.channels_last(samples.normal(2, 4, 9, 8)).to(device)
    torch._dynamo.reset()
    result, (code,) = run_and_get_code(compiled(function), input)
    assert "dmlpool.max_pooling.default" in code
    assert "clone" not in code
    assert result.stride() == function(input).stride()
    samples.assert_same(result, function(input))


def test_the_option_is_part_of_the_caches_key():
    """Graphs compiled either way are kept apart on disk, whatever else stands in the tag."""
    settings = torch.compiler.config
    before = settings.cache_key_tag
    mine = f"{before} mine".strip()
    settings.cache_key_tag = mine
    inductor.lower(False)
    assert not inductor.is_lowering()
    off = settings.cache_key_tag
    inductor.lower(False)
    assert settings.cache_key_tag == off
    assert off.startswith(f"{mine} ")
    inductor.lower(True)
    assert inductor.is_lowering()
    assert settings.cache_key_tag == mine
    settings.cache_key_tag = before
    with pytest.raises(TypeError, match="enabled must be a bool, got 1"):
        inductor.lower(1)


@pytest.mark.slow
def test_another_inductor_calls_the_operators(python):
    """A name that is missing costs the fusion and nothing else; importing the package does not load
    Inductor."""
    program = """
import sys
import torch
import torch_dmlpool as dmlpool
assert "torch._inductor.lowering" not in sys.modules
from torch._inductor import ir
del ir.Reduction
x = torch.arange(32.0).view(1, 2, 4, 4)
function = lambda x: dmlpool.max_pooling(x, 2, 1)
assert torch.equal(torch.compile(function, backend="aot_eager")(x), function(x))
assert "torch_dmlpool.inductor.lowerings" not in sys.modules
"""
    python("-W", "ignore", "-c", program)
