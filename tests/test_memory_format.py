"""What results look like in memory (G7): the format PyTorch suggests, in fake tensors exactly as in
real ones."""

from collections.abc import Callable, Sequence
from typing import Any

import cases
import pytest
import samples
import torch
from operators import MASKED
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch._subclasses import FakeTensorMode

import torch_dmlpool as dmlpool

operators = torch.ops.dmlpool
ARGUMENTS = {"window_size": 2, "start_padding": 1, "end_padding": 1}
"""Window 2 in padding 1: the output is one larger than the input, so that size-1 dimensions stay
small but legal."""


def window(x: Tensor) -> tuple[object, ...]:
    rank = x.dim() - 2
    return ([2] * rank, [1] * rank, [1] * rank, [1] * rank, [1] * rank, False)


def gradient_for(x: Tensor) -> Tensor:
    sizes = [*x.shape[:2], *(size + 1 for size in x.shape[2:])]
    return torch.ones(sizes, dtype=x.dtype, device=x.device)


def last_gradient_for(x: Tensor) -> Tensor:
    return samples.channels_last(gradient_for(x))


def average_grad(x: Tensor) -> Tensor:
    sizes = [2 if size > 1 else 1 for size in x.shape[2:]]
    padding = [size - 1 for size in sizes]
    results = [size - 1 if size > 1 else 1 for size in x.shape[2:]]
    outer = *x.shape[:2], *results
    return dmlpool.average_pooling_grad(x, outer, sizes, 1, padding, padding)


def backward_of(pool: Callable[..., Tensor], *arguments: Any, **more: Any) -> Callable[..., Tensor]:
    def backward(x: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_()
        output = pool(leaf, *arguments, **more)
        return torch.autograd.grad(output, leaf, torch.ones_like(output))[0]

    return backward


def taps_of(x: Tensor) -> Tensor:
    return operators.max_pooling_with_taps(x, *window(x))[1]


def spread(x: Tensor) -> Tensor:
    taps, is_last = taps_of(x.contiguous()), suggested(x) is not torch.contiguous_format
    rest = taps, x.shape[2:], *window(x), is_last
    return operators.max_pooling_grad_from_taps(last_gradient_for(x), *rest)


def unpooled(x: Tensor) -> Tensor:
    indices = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    return operators.max_unpooling(x, indices, [3] * (x.dim() - 2), True)


def suggested(x: Tensor) -> torch.memory_format:
    return torch.contiguous_format if x.dim() == 3 else suggest_memory_format(x)


def max_grad(make: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: dmlpool.max_pooling_grad(x, make(x), **ARGUMENTS)


FOLLOWS_INPUT: dict[str, Callable[[Tensor], Tensor | Sequence[Tensor]]] = {
    "average_pooling": lambda x: dmlpool.average_pooling(x, **ARGUMENTS),
    "max_pooling": lambda x: dmlpool.max_pooling(x, **ARGUMENTS),
    "max_pooling with indices": lambda x: dmlpool.max_pooling(x, **ARGUMENTS, return_indices=True),
    "max_pooling per plane": lambda x: operators.max_pooling_with_indices(
        x, *window(x), torch.int32, True
    ),
    "max_pooling_with_taps": lambda x: operators.max_pooling_with_taps(x, *window(x)),
    "max_pooling_grad": max_grad(gradient_for),
    "max_pooling_grad, other gradient": max_grad(last_gradient_for),
    "backward of max_pooling": backward_of(dmlpool.max_pooling, **ARGUMENTS),
    "backward of average_pooling": backward_of(dmlpool.average_pooling, **ARGUMENTS),
    "average_pooling_grad": average_grad,
    "average_pooling over a window of one": lambda x: dmlpool.average_pooling(x, 1),
    "max_pooling over a window of one": lambda x: dmlpool.max_pooling(x, 1),
    "adaptive_average_pooling": lambda x: dmlpool.adaptive_average_pooling(x, 3),
    "adaptive_max_pooling": lambda x: operators.adaptive_max_pooling(x, [3] * (x.dim() - 2)),
    "backward of adaptive_max_pooling": backward_of(dmlpool.adaptive_max_pooling, 3),
    "quantized_linear_average_pooling": lambda x: dmlpool.quantized_linear_average_pooling(
        x.to(torch.int8), 0.5, 3, 0.3, 5, **ARGUMENTS
    ),
    # These two follow the taps, and the gradient is told a format.
    "max_pooling_gather": lambda x: operators.max_pooling_gather(
        x.contiguous(), taps_of(x), *window(x)
    ),
    "max_pooling_indices": lambda x: operators.max_pooling_indices(
        taps_of(x), x.shape[2:], *window(x), torch.int64, False
    ),
    "max_pooling_grad_from_taps": spread,
    "max_unpooling": unpooled,
}
"""Operators whose results take the format suggested for the tensor they are given."""

SIZES = [
    (2, 3, 5),
    (2, 1, 5),
    (2, 3, 4, 5),
    (2, 1, 4, 5),
    (1, 3, 4, 5),
    (2, 3, 1, 5),
    (2, 3, 1, 1),
    (1, 1, 1, 1),
    (0, 3, 4, 5),
    (2, 3, 4, 5, 3),
    (1, 3, 4, 1, 5),
]
LAYOUTS = ["contiguous", "channels last", "channels last, sliced", "transposed"]
LAYOUTS += ["one element everywhere"]


def laid_out(sizes: tuple[int, ...], layout: str, device: torch.device) -> Tensor:
    if 0 in sizes and layout == "one element everywhere":
        pytest.skip("a tensor without elements has none to expand")
    return samples.LAYOUTS[layout](samples.ties(*sizes).to(device))


@cases.in_pairs(operator=list(FOLLOWS_INPUT), sizes=SIZES, layout=LAYOUTS)
def test_real_and_fake_strides(
    operator: str, sizes: tuple[int, ...], layout: str, device: torch.device
) -> None:
    """G7, dimensions of size 1 included, where strides are a matter of convention and opcheck does
    not look."""
    input = laid_out(sizes, layout, device)
    memory_format = suggested(input)
    mode, called = FakeTensorMode(), FOLLOWS_INPUT[operator]
    with mode:
        fakes = samples.listed(called(mode.from_tensor(input)))
    meta = torch.empty_strided(input.shape, input.stride(), device="meta")
    results, metas = samples.listed(called(input)), samples.listed(called(meta))
    for result, *others in zip(results, fakes, metas, strict=True):
        expected = torch.empty(result.shape, memory_format=memory_format, device="meta")
        assert result.stride() == expected.stride()
        facts = result.shape, result.dtype, result.stride()
        assert all((other.shape, other.dtype, other.stride()) == facts for other in others)
        assert [other.device for other in others] == [result.device, meta.device]


@pytest.mark.parametrize("operator", FOLLOWS_INPUT)
def test_results_are_fresh(operator: str, device: torch.device) -> None:
    """G7: a result shares no memory with its input, the window of one element included, and leaves
    it unchanged."""
    for layout in ("contiguous", "channels last", "sliced"):
        input = samples.LAYOUTS[layout](samples.normal(2, 3, 4, 5).to(device))
        before = input.clone()
        for result in samples.listed(FOLLOWS_INPUT[operator](input)):
            assert result.untyped_storage().data_ptr() != input.untyped_storage().data_ptr()
            result.zero_()
        assert torch.equal(input, before)


FLOATS = torch.float32, torch.bfloat16
ORDERED = *FLOATS, torch.int16, torch.uint8, torch.uint16, torch.bool


@cases.in_pairs(name=list(MASKED), sizes=SIZES, layout=LAYOUTS)
@pytest.mark.usefixtures("either_backend")
def test_strides_of_composites(
    name: str, sizes: tuple[int, ...], layout: str, device: torch.device
) -> None:
    """G7: those of results without a mask, whatever layout the mask has; of minima, bools and
    complex numbers too, where a gradient is recorded or not."""
    full = torch.rand(sizes, generator=samples.seeded(*sizes), device=device) < 0.7
    masks = [full, samples.channels_last(full), full[:1, :1], full[:, :1], full[..., :1]]
    averaged = (*FLOATS, torch.complex64) if "average" in name else FLOATS
    for number, dtype in enumerate(ORDERED if "max" in name or "min" in name else averaged):
        input = laid_out(sizes, layout, device).to(dtype)
        expected = suggested(input)
        for mask in masks if number == 0 else [masks[number % 5], None]:
            for records in {False, dtype.is_floating_point}:
                given = input.detach().requires_grad_(records)
                for result in samples.listed(MASKED[name](given, mask)):
                    strides = torch.empty(
                        result.shape, memory_format=expected, device="meta"
                    ).stride()
                    assert result.stride() == strides, (dtype, mask is not None, records)
