"""G7: elements further apart than 32 bits reach, in memory of which only the pages that hold them are touched."""

from __future__ import annotations

import pytest
import samples
import torch
from torch import Tensor

from torch_dmlpool.backends import reference
from torch_dmlpool.window import Window

backend = pytest.importorskip("torch_dmlpool.backends.triton")
FAR = 2**29 + 2**12 + 3
"""Elements from one sample, channel or row to the next: a stride that int32 holds, but not five times."""
WINDOWS = {"overlapping": Window.directml(2, 2, 1, 1, 1), "apart": Window.directml(2, (2, 3), (2, 3))}


def spread(tensor: Tensor, dimension: int) -> Tensor:
    """``tensor`` with its parts along a dimension ``FAR`` elements apart."""
    strides = [stride if size > 1 else 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    strides[dimension] = FAR
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True)) + 1
    # Never written but here, so that the system need not find memory for it.
    return torch.empty(reach, dtype=tensor.dtype).as_strided(tensor.shape, strides).copy_(tensor)


@pytest.fixture(params=[0, 1, 2], ids=["samples", "channels", "rows"])
def dimension(request: pytest.FixtureRequest) -> int:
    """What lies far apart."""
    return request.param


@pytest.fixture
def sizes(dimension: int) -> tuple[int, ...]:
    """Six parts that lie far apart, and few others."""
    return tuple(6 if number == dimension else size for number, size in enumerate((2, 2, 2, 9)))


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_maxima(window: Window, dimension: int, sizes: tuple[int, ...]) -> None:
    """Values, taps, and the gradients that come from far and near."""
    image = samples.ties(*sizes, dtype=torch.int8)
    far = spread(image, dimension)
    for result, expected in zip(
        backend.max_pooling_with_indices(far, window, torch.int64, False),
        reference.max_pooling_with_indices(image, window, torch.int64, False),
        strict=True,
    ):
        samples.assert_same(result, expected)
    floats = samples.normal(*sizes, dtype=torch.float16)
    gradient = samples.normal(*sizes[:2], *window.output_sizes(sizes[2:]), dtype=torch.float16)
    found = backend.max_pooling_grad(spread(floats, dimension), spread(gradient, dimension), window)
    samples.assert_same(found, reference.max_pooling_grad(floats, gradient, window))


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_averages(window: Window, dimension: int, sizes: tuple[int, ...]) -> None:
    """And their gradients, of sums of few terms that every order of addition gives alike."""
    image = samples.ties(*sizes, dtype=torch.float16)
    found = backend.average_pooling(spread(image, dimension), window, True, None)
    samples.assert_same(found, reference.average_pooling(image, window, True, None))
    gradient = samples.ties(*sizes[:2], *window.output_sizes(sizes[2:]), dtype=torch.float16)
    found = backend.average_pooling_grad(spread(gradient, dimension), sizes[2:], window, False, 4)
    samples.assert_same(found, reference.average_pooling_grad(gradient, sizes[2:], window, False, 4))


def test_quantized_averages(dimension: int, sizes: tuple[int, ...]) -> None:
    image = samples.ties(*sizes, dtype=torch.uint8)
    rest = (0.5, 3, 0.25, 7, WINDOWS["overlapping"], True, torch.uint8)
    found = backend.quantized_linear_average_pooling(spread(image, dimension), *rest)
    samples.assert_same(found, reference.quantized_linear_average_pooling(image, *rest))


def test_positions(dimension: int, sizes: tuple[int, ...]) -> None:
    """Adaptive pooling and unpooling."""
    image = samples.ties(*sizes, dtype=torch.int8)
    far = spread(image, dimension)
    values, positions = reference.adaptive_max_pooling(image, (1, 4))
    for result, expected in zip(backend.adaptive_max_pooling(far, (1, 4)), (values, positions), strict=True):
        samples.assert_same(result, expected)
    samples.assert_same(backend.gather_positions(far, positions), reference.gather_positions(image, positions))
    unique = reference.unique_positions(positions, sizes[2:])
    found = backend.scatter_positions(spread(values, dimension), unique, sizes[2:], False, False)
    samples.assert_same(found, reference.scatter_positions(values, unique, sizes[2:], False, False))
