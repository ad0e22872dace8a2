"""E3 and E6: the same bits run after run, by every operator, in every batch and by every number of threads."""

import os
from collections.abc import Iterator

import cases
import models
import pytest
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel:UserWarning"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="takes a thousand times as long there"),
]
LAYOUTS = {"contiguous": lambda image: image, "channels last": samples.channels_last}


@pytest.fixture
def restored() -> Iterator[None]:
    """PyTorch's settings are put back."""
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def bits_of(name: str, image: Tensor) -> list[bytes]:
    return [samples.bits(tensor).tobytes() for tensor in models.EVERYTHING[name](image)]


@cases.in_pairs(name=list(models.EVERYTHING), layout=list(LAYOUTS))
def test_thirty_runs_give_the_same_bits(name: str, layout: str, restored: None) -> None:
    """Deterministic algorithms, which PyTorch then demands, refuse nothing and change nothing."""
    image = LAYOUTS[layout](samples.normal(3, 3, 21, 18))
    first = bits_of(name, image)
    assert all(bits_of(name, image) == first for _ in range(29))
    torch.use_deterministic_algorithms(True)
    assert bits_of(name, image) == first


def pooled(image: Tensor) -> list[Tensor]:
    """Windows that overlap, tile, and are long sums, with their gradients."""
    found = []
    for window, stride in ((3, 2), (5, 1), (31, 1), (32, 32), (100, 1)):
        for pool in (dmlpool.max_pooling, dmlpool.average_pooling):
            leaf = image.detach().requires_grad_()
            values = pool(leaf, window, stride)
            found += [values.detach(), torch.autograd.grad(values, leaf, torch.sin(values.detach()))[0]]
    return found


@cases.in_pairs(dtype=samples.FLOATS, layout=list(LAYOUTS))
def test_the_number_of_threads_changes_no_bit(dtype: torch.dtype, layout: str, restored: None) -> None:
    image = LAYOUTS[layout](samples.normal(2, 12, 105, 103, dtype=dtype))
    torch.set_num_threads(1)
    expected = pooled(image)
    for threads in (2, 5):
        torch.set_num_threads(threads)
        for one, other in zip(pooled(image), expected, strict=True):
            assert (samples.bits(one) == samples.bits(other)).all()
