"""A request and its neighbours agree: the same numbers in every layout, batch split, number of threads and default."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import models
import pytest
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool

hypothesis = pytest.importorskip("hypothesis")
strategies = hypothesis.strategies

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel:UserWarning")
# A power by PyTorch has last bits of its own for every alignment: see lp_pooling.
NAMES = [name for name in models.EVERYTHING if "p 3" not in name]


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


NEIGHBOURS: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "one thread": lambda: threads(1),
    "three threads": lambda: threads(3),
    "default float64": lambda: default_dtype(torch.float64),
    "default bfloat16": lambda: default_dtype(torch.bfloat16),
    "default device": lambda: torch.device("meta"),
}


def split(call: Callable[[Tensor], list[Tensor]], image: Tensor) -> list[Tensor]:
    return [torch.cat(parts) for parts in zip(*(call(sample) for sample in image.split(1)), strict=True)]


@hypothesis.given(
    name=strategies.sampled_from(NAMES),
    sizes=strategies.tuples(strategies.integers(1, 3), strategies.integers(6, 40), strategies.integers(6, 40)),
    layout=strategies.sampled_from(list(samples.LAYOUTS)[:7]),
    neighbour=strategies.sampled_from(list(NEIGHBOURS)),
    seed=strategies.integers(0, 2**16),
)
@hypothesis.settings(max_examples=40 if hypothesis.settings().derandomize else 20_000)
def test_layouts_splits_threads_and_defaults_change_no_bit(
    name: str, sizes: tuple[int, int, int], layout: str, neighbour: str, seed: int
) -> None:
    """E3 and E6."""
    call, (batch, *spatial) = models.EVERYTHING[name], sizes
    if "quantized_average" in name or "quantized_max" in name:
        hypothesis.assume(neighbour not in ("default device",))  # PyTorch's own quantize_per_tensor minds it
    image = samples.normal(batch, 3, *spatial, seed=seed)
    laid_out = samples.LAYOUTS[layout](image)
    expected, alone = call(image), call(laid_out)
    with NEIGHBOURS[neighbour]():
        found = call(laid_out)
    for result, same, right in zip(found, alone, expected, strict=True):
        samples.assert_same(result, same)
        if result.is_floating_point() and any(word in name for word in ("average", "lp_", "Avg", "max_pooling_grad")):
            torch.testing.assert_close(result, right)  # the order of a sum follows the layout, within E6
        else:
            samples.assert_same(result, right)
    if "indices" not in name:
        for result, right in zip(split(call, image), expected, strict=True):
            samples.assert_same(result, right)


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
