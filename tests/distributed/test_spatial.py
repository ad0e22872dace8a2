"""Pooling of shards equals that of the whole tensor: every geometry, over one and two mesh
dimensions; shards of D, H and W are gathered."""

import cases
import pytest
import sharded
from test_properties import requests

hypothesis = pytest.importorskip("hypothesis")
strategies = hypothesis.strategies

LINE, SQUARE = (4,), (2, 2)


@pytest.mark.parametrize("dimensions", [(2, 3), (0, 3), (2, 1), (2, 2)])
def test_planes_over_a_square_of_ranks(ranks, dimensions):
    """Two spatial dimensions at once, one beside a shard of the batch or the channels, and one over
    both mesh dimensions."""
    case = cases.case("uneven padding", "padded")
    ranks.run(sharded.compare, case.pooling, (3, 2, *case.sizes), SQUARE, dimensions)


@hypothesis.given(request=requests(), data=strategies.data())
@hypothesis.settings(max_examples=hypothesis.settings().max_examples // 5)
def test_drawn_geometries_on_four_ranks(ranks, request, data):
    """Maxima, taps, indices, averages and all gradients. Uneven and empty shards are among them."""
    pooling, sizes = request
    dimension = data.draw(strategies.integers(0, 2))
    shape = (*data.draw(strategies.sampled_from([(1, 3), (2, 2), (4, 1)])), *sizes)
    ranks.run(sharded.compare, pooling, shape, LINE, (dimension,))
