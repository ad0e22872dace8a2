"""The table of cases and the oracle are tested too: neighbours leave an edge as it is, and the
oracle knows the seeds."""

import cases
import numpy as np
import oracle


@cases.parametrized(
    [case for case in cases.LINES + cases.PLANES + cases.VOLUMES if case.pooling.ceil_mode]
)
def test_a_neighbour_in_ceil_mode_still_reaches_its_edge(case: cases.Case) -> None:
    """ceil_mode holds for all axes of a request: plain neighbours must not change under it."""
    for edge, size in zip(case.edges, case.output_sizes, strict=True):
        assert edge.outputs == size


SQUARE = oracle.Pooling((2, 2), (1, 1), (0, 0), (0, 0), (1, 1))


def test_the_oracle_knows_the_seed_of_max_pooling() -> None:
    values = np.array([[[[1, 2, 3], [2, 4, 2], [5, 6, 7]]]], np.float64)
    found = oracle.maximum(values, SQUARE)
    assert found.values.tolist() == [[[[4, 4], [6, 7]]]]
    assert found.indices.tolist() == [[[[4, 4], [7, 8]]]]
    assert found.taps.tolist() == [[[[3, 2], [3, 3]]]]
    gradient = oracle.maximum_grad(values, np.array([[[[1.0, 2.0], [4.0, 5.0]]]]), SQUARE)
    assert gradient.tolist() == [[[[0, 0, 0], [0, 3, 0], [0, 4, 5]]]]


def test_the_oracle_knows_the_seed_of_average_pooling() -> None:
    averages, _ = oracle.average(np.arange(1.0, 10.0).reshape(1, 1, 3, 3), SQUARE)
    assert averages.tolist() == [[[[3, 4], [6, 7]]]]
    gradient, _ = oracle.average_grad(np.array([[[[1.0, 2.0], [3.0, 4.0]]]]), (3, 3), SQUARE)
    assert gradient.tolist() == [[[[0.25, 0.75, 0.5], [1, 2.5, 1.5], [0.75, 1.75, 1]]]]
