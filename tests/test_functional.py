"""The public functions: the seeds' examples by number, arguments and defaults, what they work under (E3, E5, E6)."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Callable

import pytest
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool
import torch_dmlpool.functional

FUNCTIONS = [dmlpool.average_pooling, dmlpool.average_pooling_grad, dmlpool.max_pooling, dmlpool.max_pooling_grad]
WINDOW = ["window_size", "strides", "start_padding", "end_padding", "dilations"]
SIGNATURES = {
    "average_pooling": [["input", *WINDOW, "include_padding"], ["ceil_mode", "divisor_override"]],
    "average_pooling_grad": [
        ["input_gradient", "input_size", *WINDOW, "include_padding"],
        ["ceil_mode", "divisor_override"],
    ],
    "max_pooling": [["input", *WINDOW], ["ceil_mode", "return_indices", "index_dtype"]],
    "max_pooling_grad": [["input", "input_gradient", *WINDOW], ["ceil_mode"]],
}
DEFAULTS = {
    "strides": 1,
    "start_padding": 0,
    "end_padding": 0,
    "dilations": 1,
    "include_padding": False,
    "ceil_mode": False,
    "divisor_override": None,
    "return_indices": False,
    "index_dtype": torch.int64,
}


def image(rows: list[list[float]], device: torch.device) -> Tensor:
    return torch.tensor([[rows]], dtype=torch.float32, device=device)


def test_seed_of_average_pooling(device: torch.device) -> None:
    """DirectML's example of DML_AVERAGE_POOLING: window 2, stride 1, no padding."""
    input = image([[1, 2, 3], [4, 5, 6], [7, 8, 9]], device)
    assert dmlpool.average_pooling(input, 2).tolist() == [[[[3, 4], [6, 7]]]]


def test_seed_of_average_pooling_grad(device: torch.device) -> None:
    """DirectML's example of DML_AVERAGE_POOLING_GRAD (A6), by the operator and by autograd."""
    gradient = image([[1, 2], [3, 4]], device)
    expected = [[[[0.25, 0.75, 0.5], [1, 2.5, 1.5], [0.75, 1.75, 1]]]]
    assert dmlpool.average_pooling_grad(gradient, (1, 1, 3, 3), 2).tolist() == expected
    leaf = torch.zeros(1, 1, 3, 3, device=device, requires_grad=True)
    assert torch.autograd.grad(dmlpool.average_pooling(leaf, 2), leaf, gradient)[0].tolist() == expected


@pytest.mark.parametrize("index_dtype", samples.INDEX_TYPES, ids=samples.name_of)
def test_seed_of_max_pooling(index_dtype: torch.dtype, device: torch.device) -> None:
    """DirectML's example of DML_MAX_POOLING2 (M5), with indices of every type."""
    input = image([[1, 2, 3], [2, 4, 2], [5, 6, 7]], device)
    values, indices = dmlpool.max_pooling(input, 2, return_indices=True, index_dtype=index_dtype)
    assert values.tolist() == [[[[4, 4], [6, 7]]]]
    assert indices.tolist() == [[[[4, 4], [7, 8]]]]
    assert indices.dtype == index_dtype
    assert torch.equal(dmlpool.max_pooling(input, 2), values)


def test_seed_of_max_pooling_grad(device: torch.device) -> None:
    """DirectML's example of DML_MAX_POOLING_GRAD (M5), by the operator and by autograd."""
    input, gradient = image([[1, 2, 3], [2, 4, 2], [5, 6, 7]], device), image([[1, 2], [4, 5]], device)
    expected = [[[[0, 0, 0], [0, 3, 0], [0, 4, 5]]]]
    assert dmlpool.max_pooling_grad(input, gradient, 2).tolist() == expected
    leaf = input.requires_grad_()
    assert torch.autograd.grad(dmlpool.max_pooling(leaf, 2), leaf, gradient)[0].tolist() == expected


def test_indices_count_over_the_whole_tensor(device: torch.device) -> None:
    """M4: sample after sample, channel after channel, in channels_last too."""
    input = torch.zeros(2, 3, 2, 2, device=device)
    input.flatten()[[0, 5, 10, 15, 16, 21]] = 1
    for layout in (input, samples.channels_last(input)):
        _, indices = dmlpool.max_pooling(layout, 2, return_indices=True)
        assert indices.flatten().tolist() == [0, 5, 10, 15, 16, 21]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_signatures(function: Callable[..., Tensor]) -> None:
    """The contract's names, order, defaults and keyword-only arguments."""
    parameters = inspect.signature(function).parameters.values()
    positional, keyword_only = SIGNATURES[function.__name__]
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == positional
    assert [p.name for p in parameters if p.kind is p.KEYWORD_ONLY] == keyword_only
    for parameter in parameters:
        assert parameter.default == DEFAULTS.get(parameter.name, parameter.empty), parameter.name


def test_docstring_examples() -> None:
    results = [doctest.testmod(module) for module in (torch_dmlpool, torch_dmlpool.functional)]
    assert all(result.attempted > 0 and result.failed == 0 for result in results)


def test_window_arguments_take_any_sequence(device: torch.device) -> None:
    input = samples.normal(1, 2, 6, 7).to(device)
    expected = dmlpool.average_pooling(input, (2, 3), (1, 2), (0, 1), (1, 0), (2, 1))
    for kind in (list, torch.Size, lambda entries: iter(tuple(entries))):
        arguments = [kind(entries) for entries in ((2, 3), (1, 2), (0, 1), (1, 0), (2, 1))]
        assert torch.equal(dmlpool.average_pooling(input, *arguments), expected)
    assert torch.equal(dmlpool.max_pooling(input, 2, 3), dmlpool.max_pooling(input, (2, 2), (3, 3)))


def test_unusual_tensors_are_read_right(device: torch.device) -> None:
    """G7: lazily negated views, Parameters, subclasses and inference tensors hold the values they show."""
    negated = torch.view_as_complex(samples.normal(1, 2, 5, 6, 2).to(device)).conj().imag
    assert negated.is_neg()
    plain = negated.clone().resolve_neg()

    class Subclass(torch.Tensor):
        pass

    with torch.inference_mode():
        inference = plain.clone()
    for operator in (
        lambda x: dmlpool.average_pooling(x, 2),
        lambda x: dmlpool.max_pooling(x, 2),
        lambda x: dmlpool.max_pooling(x, 2, return_indices=True)[1],
        lambda x: dmlpool.max_pooling_grad(x, x[..., :-1, :-1], 2),
        lambda x: dmlpool.average_pooling_grad(x, (1, 2, 6, 7), 2),
    ):
        expected = operator(plain)
        for tensor in (negated, torch.nn.Parameter(plain), plain.as_subclass(Subclass), inference):
            assert torch.equal(operator(tensor).detach(), expected)
        with torch.inference_mode():
            assert torch.equal(operator(inference), expected)
        assert isinstance(operator(plain.as_subclass(Subclass)), Subclass)


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16], ids=samples.name_of)
@pytest.mark.parametrize("dtype", samples.FLOATS, ids=samples.name_of)
@pytest.mark.parametrize("sizes", [(2, 3, 8), (2, 3, 8, 8), (2, 3, 4, 8, 8)], ids=str)
def test_autocast_never_changes_the_type(
    sizes: tuple[int, ...], dtype: torch.dtype, autocast: torch.dtype, device: torch.device
) -> None:
    """E5, forward and backward."""
    input = samples.normal(*sizes, dtype=dtype).to(device).requires_grad_()
    for pool in (dmlpool.average_pooling, dmlpool.max_pooling):
        expected = pool(input, 2)
        with torch.autocast(device.type, dtype=autocast):
            output = pool(input, 2)
        assert output.dtype == dtype
        assert torch.equal(output, expected)
        assert torch.autograd.grad(output.sum(), input)[0].dtype == dtype


OPERATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "average_pooling": lambda x, _: dmlpool.average_pooling(x, 3, 2, 1, 1),
    "average_pooling, wide": lambda x, _: dmlpool.average_pooling(x, 9, 1, 4, 4, include_padding=True),
    "average_pooling_grad": lambda x, g: dmlpool.average_pooling_grad(g, x.shape, 3, 2, 1, 1),
    "max_pooling": lambda x, _: dmlpool.max_pooling(x, 3, 2, 1, 1),
    "max_pooling, indices": lambda x, _: dmlpool.max_pooling(x, 3, 2, 1, 1, return_indices=True)[1],
    "max_pooling_grad": lambda x, g: dmlpool.max_pooling_grad(x, g, 3, 2, 1, 1),
    "max_pooling, backward": lambda x, g: torch.autograd.grad(
        dmlpool.max_pooling(leaf := x.detach().requires_grad_(), 3, 2, 1, 1), leaf, g
    )[0],
    "average_pooling, backward": lambda x, g: torch.autograd.grad(
        dmlpool.average_pooling(leaf := x.detach().requires_grad_(), 3, 2, 1, 1), leaf, g
    )[0],
}


def operands(dtype: torch.dtype, layout: str, sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    input = samples.normal(*sizes, dtype=dtype).to(device)
    gradient = samples.normal(*sizes[:2], *(-(-size // 2) for size in sizes[2:]), dtype=dtype, seed=1).to(device)
    return samples.LAYOUTS[layout](input), samples.LAYOUTS[layout](gradient)


@pytest.mark.parametrize("layout", ["contiguous", "channels last", "sliced"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_same_bits_run_after_run(operator: str, layout: str, device: torch.device) -> None:
    """E3: also with PyTorch's deterministic algorithms demanded, which refuses nothing and changes nothing."""
    input, gradient = operands(torch.float32, layout, (4, 16, 40, 42), device)
    first = OPERATORS[operator](input, gradient)
    torch.use_deterministic_algorithms(True)
    try:
        results = [OPERATORS[operator](input, gradient) for _ in range(5)]
    finally:
        torch.use_deterministic_algorithms(False)
    for result in results:
        assert (samples.bits(result) == samples.bits(first)).all()


@pytest.mark.parametrize("dtype", samples.FLOATS, ids=samples.name_of)
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize(
    "sizes", [(64, 1, 4, 4), (40, 3, 9, 8), (9, 64, 30, 28), (5, 8, 150, 152), (7, 5, 6, 9, 8), (30, 4, 50)], ids=str
)
@pytest.mark.parametrize("operator", [name for name in OPERATORS if "indices" not in name])
def test_a_sample_does_not_depend_on_its_batch(
    operator: str, sizes: tuple[int, ...], layout: str, dtype: torch.dtype, device: torch.device
) -> None:
    """E6, bit for bit: alone, in a small batch and in a large one, whatever path each size takes."""
    input, gradient = operands(dtype, layout, sizes, device)
    whole = OPERATORS[operator](input, gradient)
    for part in (slice(0, 1), slice(2, 3), slice(1, 4)):
        alone = OPERATORS[operator](input[part], gradient[part])
        assert (samples.bits(alone) == samples.bits(whole[part])).all()


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((1, 3, 2**30), id="large tensor", marks=pytest.mark.slow),
        pytest.param((1, 1, 2**31 + 2**21), id="large plane"),
    ],
)
def test_more_elements_than_32_bits_number(sizes: tuple[int, ...]) -> None:
    """G7 and M4: positions past 2³¹, on memory that is never touched but at a few places."""
    input = torch.zeros(sizes, dtype=torch.uint8)
    window = {"window_size": 2, "strides": 2**20}
    last = (sizes[-1] // 2**20 - 1) * 2**20 + 1
    input[0, -1, last] = 7
    values, indices = dmlpool.max_pooling(input, **window, return_indices=True)
    assert values[0, -1, -1] == 7
    assert int(indices[0, -1, -1]) == (sizes[1] - 1) * sizes[2] + last
    assert int(indices[0, -1, -2]) == (sizes[1] - 1) * sizes[2] + last - 1 - 2**20
    _, small = dmlpool.max_pooling(input, **window, return_indices=True, index_dtype=torch.uint32)
    samples.assert_same(small, samples.to_numpy(indices).astype("uint32"))
