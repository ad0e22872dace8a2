"""Sharded pooling equals the whole one, and only halos move: every geometry, over one and two mesh
dimensions."""

from collections.abc import Iterator
from typing import Any

import cases
import pytest
import samples
import sharded
from sharded import Ranks
from test_properties import requests

hypothesis = pytest.importorskip("hypothesis")
strategies = hypothesis.strategies

LINE, SQUARE = (4,), (2, 2)


@cases.each("case", cases.LINES, cases.LINES[::7])
def test_one_dimension_over_four_ranks(ranks: Ranks, case: cases.Case) -> None:
    """Few elements for each rank: uneven and empty shards, windows that reach past the
    neighbours."""
    ranks.run(sharded.compare, case.pooling, (2, 3, *case.sizes), LINE, (2,))


@cases.in_pairs(
    case=[case for case in cases.FEW if case.rank == 2][:4],
    dimensions=[(2, 3), (3, 2), (0, 3), (2, 1)],
)
def test_planes_over_a_square_of_ranks(
    ranks: Ranks, case: cases.Case, dimensions: tuple[int, int]
) -> None:
    """Two spatial dimensions at once, corners too, or one beside a shard of the batch or the
    channels."""
    ranks.run(sharded.compare, case.pooling, (3, 2, *case.sizes), SQUARE, dimensions)


@pytest.mark.slow
@pytest.mark.parametrize("dimensions", [(2, 4), (4, 3)], ids=str)
def test_volumes_over_a_square_of_ranks(ranks: Ranks, dimensions: tuple[int, int]) -> None:
    case = cases.case("ceil adds an overhang", "uneven padding", "dilated")
    ranks.run(sharded.compare, case.pooling, (1, 2, *case.sizes), SQUARE, dimensions)


@pytest.mark.slow
def test_every_data_type(ranks: Ranks) -> None:
    """Halos are moved as bytes, those of unsigned and half-precision types too."""
    case = cases.case("uneven padding", "padded")
    ranks.run(
        sharded.compare,
        case.pooling,
        (1, 2, *case.sizes),
        LINE,
        (2,),
        [*samples.FLOATS[2:], *samples.UNSIGNED[1:]],
    )


def test_windows_side_by_side_need_no_exchange(ranks: Ranks) -> None:
    """Window and stride 2 over shards of even size: no rank reads another's element, and no message
    is sent."""
    edge = cases.BY_NAME["adjacent windows"]
    case = cases.Case((edge,))
    assert (edge.window, edge.stride, edge.size) == (2, 2, 8)
    assert [
        exchanges
        for exchanges, _ in ranks.run(sharded.compare, case.pooling, (1, 1, 8), LINE, (2,))
    ] == [0] * 4


def test_averages_of_larger_shards_have_the_bits_of_the_whole(ranks: Ranks) -> None:
    """Past the sizes that ATen pools, a sum is made in the order of its taps wherever its window
    lies."""
    case = cases.case("uneven padding", "padded")
    answers = ranks.run(sharded.compare, case.pooling, (1, 256, 61, 67), LINE, (2,))
    assert [different for _, different in answers] == [0] * 4


@pytest.fixture(scope="module")
def three_ranks() -> Iterator[Ranks]:
    three = Ranks(3)
    yield three
    three.close()


@hypothesis.given(request=requests(), data=strategies.data())
@hypothesis.settings(max_examples=hypothesis.settings().max_examples // 5)
def test_drawn_geometries_on_three_ranks(
    three_ranks: Ranks, request: Any, data: strategies.DataObject
) -> None:
    """Maxima, taps, indices, averages and all gradients; what arrives is the halo, to the byte.
    Uneven and empty shards are among them."""
    pooling, sizes = request
    dimension = data.draw(strategies.integers(0, len(sizes) + 1))
    shape = (*data.draw(strategies.sampled_from([(1, 3), (2, 2), (4, 1)])), *sizes)
    three_ranks.run(sharded.compare, pooling, shape, (3,), (dimension,))
