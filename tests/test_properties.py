"""What holds whatever the geometry: properties that need no expected result (A6, M1, M4, M5, E3, E6)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import oracle
import pytest
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool.backends import reference
from torch_dmlpool.window import Window

hypothesis = pytest.importorskip("hypothesis")
strategies = hypothesis.strategies

DIVISORS = [(False, None), (True, None), (False, 5), (True, -3)]
LEADING = [(1, 1), (2, 1), (1, 3), (2, 4), (3, 2)]
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.uint16,
]


@strategies.composite
def requests(draw: strategies.DrawFn) -> tuple[oracle.Pooling, tuple[int, ...]]:
    """A request that leaves at least one window, and spatial sizes for it."""
    rank = draw(strategies.integers(1, 3))
    largest = {1: 20, 2: 8, 3: 4}[rank]

    def entries(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(strategies.integers(low, high)) for _ in range(rank))

    sizes, window, ceil_mode = entries(1, largest), entries(1, largest // 2 + 2), draw(strategies.booleans())
    pooling = oracle.Pooling(window, entries(1, 4), entries(0, 4), entries(0, 4), entries(1, 3), ceil_mode)
    hypothesis.assume(all(oracle.output_sizes(pooling, sizes)))
    return pooling, sizes


@strategies.composite
def problems(draw: strategies.DrawFn) -> tuple[dict[str, object], oracle.Pooling, tuple[int, ...]]:
    """Window arguments as keywords, the oracle's request, and the input's full size."""
    pooling, sizes = draw(requests())
    return dict(vars(pooling)), pooling, (*draw(strategies.sampled_from(LEADING)), *sizes)


def seeds() -> strategies.SearchStrategy[int]:
    return strategies.integers(0, 2**16)


def results(input: Tensor, arguments: dict[str, object], include_padding: bool) -> Iterator[tuple[str, Tensor]]:
    """Every forward operator and, of floats, every gradient."""
    values, indices = dmlpool.max_pooling(input, **arguments, return_indices=True)
    yield "maxima", values
    if input.dtype in (torch.int8, torch.uint8):
        quantized = {**arguments, "include_padding": include_padding}
        yield "quantized", dmlpool.quantized_linear_average_pooling(input, 0.5, 3, 0.25, 5, **quantized)
    if input.dtype.is_floating_point:
        gradient = samples.ties(*values.shape, dtype=input.dtype, seed=1).to(input.device)
        yield "gradient of maxima", dmlpool.max_pooling_grad(input, gradient, **arguments)
        average = {**arguments, "include_padding": include_padding}
        yield "averages", dmlpool.average_pooling(input, **average)
        yield "gradient of averages", dmlpool.average_pooling_grad(gradient, input.shape, **average)
    plane = max(1, input[0, 0].numel())
    yield "positions", torch.where(indices < 0, indices, indices % plane)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs the kernels on CPU tensors")
@hypothesis.given(
    problem=problems(), dtype=strategies.sampled_from(DTYPES), include_padding=strategies.booleans(), seed=seeds()
)
@hypothesis.settings(max_examples=25)
def test_both_backends_agree(
    problem: tuple[dict[str, object], oracle.Pooling, tuple[int, ...]],
    dtype: torch.dtype,
    include_padding: bool,
    seed: int,
) -> None:
    """E6: the Triton kernels, here under the interpreter, and plain PyTorch."""
    arguments, _, sizes = problem
    input = samples.ties(*sizes, dtype=dtype, seed=seed)
    window = Window.directml(len(sizes) - 2, *arguments.values())
    found = dict(results(input, arguments, include_padding))
    values, positions = reference.max_pooling_with_indices(input, window, torch.int64, True)
    samples.assert_same(found["maxima"], values)
    samples.assert_same(found["positions"], positions)
    if dtype.is_floating_point:
        gradient = samples.ties(*values.shape, dtype=dtype, seed=1)
        samples.assert_same(found["gradient of maxima"], reference.max_pooling_grad(input, gradient, window))
        unit = 64 * torch.finfo(dtype).eps
        for name, expected in (
            ("averages", reference.average_pooling(input, window, include_padding, None)),
            (
                "gradient of averages",
                reference.average_pooling_grad(gradient, sizes[2:], window, include_padding, None),
            ),
        ):
            torch.testing.assert_close(found[name], expected, rtol=0, atol=unit)


@hypothesis.given(data=strategies.data())
def test_averages_of_any_geometry(data: strategies.DataObject, device: torch.device) -> None:
    """A1-A6 and E6 for whatever geometry, divisor, data type and layout."""
    pooling, sizes = data.draw(requests())
    divisor = data.draw(strategies.sampled_from(DIVISORS))
    dtype = data.draw(strategies.sampled_from(samples.FLOATS))
    layout = samples.LAYOUTS[data.draw(strategies.sampled_from(list(samples.LAYOUTS)))]
    leading = data.draw(strategies.sampled_from([(1, 1), (2, 1), (1, 3), (2, 4), (3, 9)]))
    samples.check_average(layout(samples.normal(*leading, *sizes, dtype=dtype).to(device)), pooling, *divisor)
    output_sizes = oracle.output_sizes(pooling, sizes)
    gradient = layout(samples.normal(*leading, *output_sizes, dtype=dtype).to(device))
    samples.check_average_gradient(gradient, sizes, pooling, *divisor)


@hypothesis.given(data=strategies.data())
def test_maxima_of_any_geometry(data: strategies.DataObject, device: torch.device) -> None:
    """M1-M6 and G4 for whatever geometry, data type and layout."""
    pooling, sizes = data.draw(requests())
    dtype = data.draw(strategies.sampled_from(samples.FLOATS + samples.INTEGERS))
    layout = data.draw(strategies.sampled_from(list(samples.LAYOUTS)))
    leading = data.draw(strategies.sampled_from([(1, 1), (2, 1), (1, 3), (2, 4), (3, 9)]))
    input = samples.LAYOUTS[layout](samples.ties(*leading, *sizes, dtype=dtype).to(device))
    samples.check_maximum(input, pooling)
    if dtype.is_floating_point:
        samples.check_maximum_gradient(input, samples.whole_gradient(input, pooling), pooling)
