"""E3 and E6: the same bits run after run and in every batch, by every operator, forward and backward."""

from __future__ import annotations

import os
from collections.abc import Iterator

import cases
import models
import pytest
import samples
import torch

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel:UserWarning"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="takes a thousand times as long there"),
]
LAYOUTS = {"contiguous": lambda image: image, "channels last": samples.channels_last}

POWERS = {"lp_pooling, p 3"}
"""PyTorch computes roots by vectors and what is left over by single numbers: they differ in the last bit."""


@pytest.fixture
def deterministic() -> Iterator[None]:
    """PyTorch refuses what is not, and fills memory that nobody has written with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def bits_of(name: str, image: torch.Tensor) -> list[bytes]:
    return [samples.bits(tensor).tobytes() for tensor in models.EVERYTHING[name](image)]


@cases.in_pairs(name=list(models.EVERYTHING), layout=list(LAYOUTS))
def test_a_hundred_runs_give_the_same_bits(name: str, layout: str) -> None:
    image = LAYOUTS[layout](samples.normal(3, 3, 21, 18))
    first = bits_of(name, image)
    assert all(bits_of(name, image) == first for _ in range(99))


@cases.in_pairs(name=list(models.EVERYTHING), layout=list(LAYOUTS))
def test_deterministic_algorithms_refuse_nothing_and_change_nothing(
    name: str, layout: str, deterministic: None
) -> None:
    image = LAYOUTS[layout](samples.normal(3, 3, 21, 18))
    demanded = bits_of(name, image)
    torch.use_deterministic_algorithms(False)
    assert bits_of(name, image) == demanded


# Indices count over the whole tensor (M4), so that those of a sample depend on where it stands.
@cases.in_pairs(name=[name for name in models.EVERYTHING if not name.endswith(", indices")], layout=list(LAYOUTS))
def test_a_batch_gives_the_bits_of_its_parts(name: str, layout: str) -> None:
    image = LAYOUTS[layout](samples.normal(7, 3, 30, 26))
    whole = models.EVERYTHING[name](image)
    for sizes in ([1, 6], [3, 4], [2, 2, 2, 1]):
        parts = zip(*(models.EVERYTHING[name](part) for part in image.split(sizes)), strict=True)
        for result, pieces in zip(whole, parts, strict=True):
            joined = torch.cat([piece.contiguous() for piece in pieces])
            if name in POWERS:
                torch.testing.assert_close(joined, result, rtol=2**-21, atol=0)
            else:
                assert (samples.bits(joined) == samples.bits(result)).all(), sizes
