"""What holds whatever the geometry: properties that need no expected result (A6, M1, M4, M5, E3, E6)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import checks
import numpy as np
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


@hypothesis.given(problem=problems(), include_padding=strategies.booleans(), seed=seeds())
def test_the_gradient_of_averages_is_the_adjoint(
    problem: tuple[dict[str, object], oracle.Pooling, tuple[int, ...]],
    include_padding: bool,
    seed: int,
    device: torch.device,
) -> None:
    """A6: ⟨average(x), g⟩ = ⟨x, gradient(g)⟩."""
    arguments, _, sizes = problem
    arguments = {**arguments, "include_padding": include_padding}
    input = samples.normal(*sizes, dtype=torch.float64, seed=seed).to(device)
    average = dmlpool.average_pooling(input, **arguments)
    gradient = samples.normal(*average.shape, dtype=torch.float64, seed=seed + 1).to(device)
    spread = dmlpool.average_pooling_grad(gradient, sizes, **arguments)
    magnitude = (average * gradient).abs().sum() + (input * spread).abs().sum()
    assert ((average * gradient).sum() - (input * spread).sum()).abs() <= 1e-13 * magnitude + 1e-300


@hypothesis.given(problem=problems(), dtype=strategies.sampled_from(DTYPES), seed=seeds())
def test_a_maximum_is_an_element_of_its_window(
    problem: tuple[dict[str, object], oracle.Pooling, tuple[int, ...]],
    dtype: torch.dtype,
    seed: int,
    device: torch.device,
) -> None:
    """M1, M4: the index lies in the window, the value at the index is the result, and no element is greater."""
    arguments, pooling, sizes = problem
    input = samples.ties(*sizes, dtype=dtype, seed=seed)
    values, indices = dmlpool.max_pooling(input.to(device), **arguments, return_indices=True)
    flat, plane = samples.to_numpy(input).reshape(-1), max(1, input[0, 0].numel())
    values, indices = samples.to_numpy(values), indices.cpu().numpy()
    coordinates = torch.arange(plane).view(sizes[2:]).numpy()
    for reading in oracle.readings(pooling, sizes[2:]):
        inside = [int(coordinates[position]) for position in reading.positions]
        for sample in range(sizes[0]):
            for channel in range(sizes[1]):
                where = (sample, channel, *reading.output)
                base = (sample * sizes[1] + channel) * plane
                if not inside:
                    assert indices[where] == -1
                    continue
                assert indices[where] - base in inside
                assert flat[indices[where]] == values[where]
                assert max(flat[base + position] for position in inside) == values[where]


@hypothesis.given(problem=problems(), include_padding=strategies.booleans(), seed=seeds())
def test_gradients_are_neither_lost_nor_made(
    problem: tuple[dict[str, object], oracle.Pooling, tuple[int, ...]],
    include_padding: bool,
    seed: int,
    device: torch.device,
) -> None:
    """M5 and A6: what arrives at windows that read anything is what leaves, plane by plane."""
    arguments, pooling, sizes = problem
    output_sizes = oracle.output_sizes(pooling, sizes[2:])
    gradient = samples.ties(*sizes[:2], *output_sizes, dtype=torch.float64, seed=seed)
    reads, shares = torch.zeros(output_sizes, dtype=torch.float64), torch.zeros(output_sizes, dtype=torch.float64)
    for reading in oracle.readings(pooling, sizes[2:]):
        reads[reading.output] = float(bool(reading.taps))
        counted = reading.taps_in_box if include_padding else len(reading.taps)
        shares[reading.output] = len(reading.taps) / counted if counted else 0
    planes = list(range(2, gradient.dim()))
    input = samples.ties(*sizes, dtype=torch.float64, seed=seed).to(device)
    spread = dmlpool.max_pooling_grad(input, gradient.to(device), **arguments).cpu()
    assert torch.equal(spread.sum(planes), (gradient * reads).sum(planes))
    shared = dmlpool.average_pooling_grad(gradient.to(device), sizes, **arguments, include_padding=include_padding)
    torch.testing.assert_close(shared.cpu().sum(planes), (gradient * shares).sum(planes), rtol=0, atol=1e-11)


def bits_of(tensor: Tensor) -> np.ndarray:
    """Bits, with every zero positive."""
    return samples.bits(tensor + 0.0 if tensor.dtype.is_floating_point else tensor)


@hypothesis.given(
    problem=problems(), dtype=strategies.sampled_from(DTYPES), include_padding=strategies.booleans(), seed=seeds()
)
def test_a_batch_equals_its_parts_and_channels_keep_apart(
    problem: tuple[dict[str, object], oracle.Pooling, tuple[int, ...]],
    dtype: torch.dtype,
    include_padding: bool,
    seed: int,
    device: torch.device,
) -> None:
    """E6: bit for bit, of every operator; but of zeros that tie in a maximum the sign is unspecified (M3)."""
    arguments, _, sizes = problem
    input = samples.ties(*sizes, dtype=dtype, seed=seed).to(device)
    if dtype.is_floating_point:
        input = input / 3
    order = torch.randperm(sizes[1], generator=torch.Generator().manual_seed(seed)).to(device)
    samples_order = torch.arange(sizes[0], device=device).flip(0)
    whole = dict(results(input, arguments, include_padding))
    permuted = dict(results(taken(input, 1, order), arguments, include_padding))
    reversed_batch = dict(results(taken(input, 0, samples_order), arguments, include_padding))
    for name, result in whole.items():
        if "gradient" in name:
            # Gradients are drawn in the order of the output, so they do not move with the input.
            continue
        assert (bits_of(taken(result, 1, order)) == bits_of(permuted[name])).all(), name
        assert (bits_of(taken(result, 0, samples_order)) == bits_of(reversed_batch[name])).all(), name
    for name, first in results(input[:1], arguments, include_padding):
        if "gradient" not in name:
            assert (bits_of(first) == bits_of(whole[name][:1])).all(), name


def taken(tensor: Tensor, dimension: int, order: Tensor) -> Tensor:
    """Entries of a dimension in another order; PyTorch indexes no wide unsigned type, but it does move whole slices."""
    return torch.cat([tensor.narrow(dimension, int(number), 1) for number in order], dimension)


@hypothesis.given(
    problem=problems(), dtype=strategies.sampled_from(DTYPES), include_padding=strategies.booleans(), seed=seeds()
)
def test_channels_last_equals_contiguous(
    problem: tuple[dict[str, object], oracle.Pooling, tuple[int, ...]],
    dtype: torch.dtype,
    include_padding: bool,
    seed: int,
    device: torch.device,
) -> None:
    """E6: maxima, positions, quantized averages and whole-numbered gradients exactly, averages within roundings."""
    arguments, _, sizes = problem
    input = samples.ties(*sizes, dtype=dtype, seed=seed).to(device)
    last = dict(results(samples.channels_last(input), arguments, include_padding))
    for name, expected in results(input, arguments, include_padding):
        if "averages" in name:
            unit = 64 * torch.finfo(dtype).eps
            torch.testing.assert_close(last[name], expected, rtol=0, atol=unit)
        else:
            samples.assert_same(last[name], expected)


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


@hypothesis.given(problem=problems(), include_padding=strategies.booleans(), seed=seeds())
@hypothesis.settings(max_examples=4)
def test_compiled_equals_eager(
    problem: tuple[dict[str, object], oracle.Pooling, tuple[int, ...]],
    include_padding: bool,
    seed: int,
    device: torch.device,
    fresh_compiler: None,
) -> None:
    """E2: the same numbers, forward and backward, in one graph."""
    arguments, _, sizes = problem

    def model(input: Tensor) -> Tensor:
        averages = dmlpool.average_pooling(input, **arguments, include_padding=include_padding)
        return dmlpool.max_pooling(input, **arguments).nan_to_num() * 2 + averages

    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    leaf = samples.ties(*sizes, seed=seed).to(device).requires_grad_()
    expected, found = model(leaf), compiled(leaf)
    assert torch.equal(expected, found)
    gradient = samples.ties(*expected.shape, seed=seed + 1).to(device)
    assert torch.equal(*(torch.autograd.grad(output, leaf, gradient)[0] for output in (expected, found)))


@hypothesis.given(data=strategies.data())
def test_averages_of_any_geometry(data: strategies.DataObject, device: torch.device) -> None:
    """A1-A6 and E6 for whatever geometry, divisor, data type and layout."""
    pooling, sizes = data.draw(requests())
    divisor = data.draw(strategies.sampled_from(DIVISORS))
    dtype = data.draw(strategies.sampled_from(samples.FLOATS))
    layout = samples.LAYOUTS[data.draw(strategies.sampled_from(list(samples.LAYOUTS)))]
    leading = data.draw(strategies.sampled_from([(1, 1), (2, 1), (1, 3), (2, 4), (3, 9)]))
    checks.check_average(layout(samples.normal(*leading, *sizes, dtype=dtype).to(device)), pooling, *divisor)
    output_sizes = oracle.output_sizes(pooling, sizes)
    gradient = layout(samples.normal(*leading, *output_sizes, dtype=dtype).to(device))
    checks.check_average_gradient(gradient, sizes, pooling, *divisor)


@hypothesis.given(data=strategies.data())
def test_maxima_of_any_geometry(data: strategies.DataObject, device: torch.device) -> None:
    """M1-M6 and G4 for whatever geometry, data type and layout."""
    pooling, sizes = data.draw(requests())
    dtype = data.draw(strategies.sampled_from(samples.FLOATS + samples.INTEGERS))
    layout = data.draw(strategies.sampled_from(list(samples.LAYOUTS)))
    leading = data.draw(strategies.sampled_from([(1, 1), (2, 1), (1, 3), (2, 4), (3, 9)]))
    input = samples.LAYOUTS[layout](samples.ties(*leading, *sizes, dtype=dtype).to(device))
    checks.check_maximum(input, pooling)
    if dtype.is_floating_point:
        checks.check_maximum_gradient(input, checks.whole_gradient(input, pooling), pooling)
