"""Sharded pooling of drawn geometries on three ranks equals the whole one."""

import random
from collections.abc import Iterator

import oracle
import pytest
import sharded
from sharded import Ranks


@pytest.fixture(scope="module")
def three_ranks() -> Iterator[Ranks]:
    three = Ranks(3)
    yield three
    three.close()


def drawn(seed: int) -> tuple[oracle.Pooling, tuple[int, ...], int]:
    """A request that leaves an output, and the dimension that is sharded; uneven and empty shards among them."""
    draw = random.Random(seed)
    while True:
        rank = draw.choice((1, 2, 2, 3))
        columns = [[draw.randint(1, most) for _ in range(rank)] for most in (5, 4, 4)]
        paddings = [[draw.randint(0, 5) for _ in range(rank)] for _ in range(2)]
        window, strides, dilations = (tuple(column) for column in columns)
        pooling = oracle.Pooling(window, strides, *map(tuple, paddings), dilations, draw.random() < 0.3)
        shape = (draw.randint(1, 4), draw.randint(1, 4), *(draw.randint(1, 11) for _ in range(rank)))
        if all(oracle.output_size(pooling, axis, shape[axis + 2]) >= 1 for axis in range(rank)):
            return pooling, shape, draw.randrange(rank + 2)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 100))])
def test_drawn_geometries_on_three_ranks(three_ranks: Ranks, seed: int) -> None:
    """Maxima, taps, indices, averages and all gradients; what arrives is the halo, to the byte."""
    pooling, shape, dimension = drawn(seed)
    three_ranks.run(sharded.compare, pooling, shape, (3,), (dimension,))
