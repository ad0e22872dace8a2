"""The table of cases and the oracle are tested too: a case must reach its edge, and the oracle must
know the seeds."""

import dataclasses
from collections.abc import Callable

import cases
import numpy as np
import oracle
import pytest


class Slid(cases.Edge):
    """An edge, and what its window reads where it stands."""

    @property
    def pooling(self) -> oracle.Pooling:
        return cases.Case((self,)).pooling

    @property
    def extent(self) -> int:
        return (self.window - 1) * self.dilation + 1

    @property
    def taps(self) -> list[list[int]]:
        """Input positions of every window's taps, padding and overhang too."""
        return [oracle.tap_positions(self.pooling, 0, output) for output in range(self.outputs)]

    def inside(self, positions: list[int]) -> list[int]:
        return [position for position in positions if 0 <= position < self.size]

    @property
    def empty_windows(self) -> list[list[int]]:
        return [positions for positions in self.taps if not self.inside(positions)]

    @property
    def outputs_by_floor(self) -> int:
        return oracle.output_size(dataclasses.replace(self.pooling, ceil_mode=False), 0, self.size)

    @property
    def overhangs(self) -> bool:
        return self.taps[-1][-1] >= self.size + self.end


CLAIMS: dict[str, Callable[[Slid], bool]] = {
    # The numbers of other edges say it.
    "floor drops a remainder": lambda e: e.taps[-1][-1] < 8,
    "padding above the window": lambda e: (
        e.start > e.window and e.taps[0] in e.empty_windows and e.taps[-1][0] > e.size
    ),
    "every window in padding": lambda e: e.outputs >= 2 and len(e.empty_windows) == e.outputs,
    "taps straddle the input": lambda e: any(
        positions[0] < 0 and positions[-1] >= e.size for positions in e.empty_windows
    ),
    "first tap inside is not tap 0": lambda e: (
        e.taps[0][0] < 0 and e.taps[0][1] < 0 <= e.taps[0][2]
    ),
    "long windows, the first in padding": lambda e: (
        e.window >= 16 and e.empty_windows == e.taps[:1] and e.outputs > 2
    ),
    "window wider than the input": lambda e: (
        e.window > e.size and all(len(e.inside(taps)) < e.window for taps in e.taps)
    ),
    "ceil adds an overhang": lambda e: e.outputs == e.outputs_by_floor + 1 and e.overhangs,
    "ceil overhang past padding": lambda e: e.overhangs and e.end > 0 and e.taps[-1][0] < e.size,
    "ceil changes nothing": lambda e: e.outputs == e.outputs_by_floor and not e.overhangs,
    "ceil refused in end padding": lambda e: (
        e.outputs == e.outputs_by_floor
        and e.taps[-1][-1] < e.size + e.end - 1
        and e.taps[-1][0] + e.stride >= e.size
    ),
    "ceil makes the window fit": lambda e: (
        e.outputs_by_floor == 0 and e.outputs == 1 and e.extent > e.size + e.start + e.end
    ),
    "ceil overhang, dilated": lambda e: e.overhangs and e.dilation > 1,
    "ceil window between gaps": lambda e: (
        e.stride > e.window and len(e.inside(e.taps[-1])) == 1 and e.overhangs
    ),
    "equal reads, other counts": lambda e: (
        e.inside(e.taps[0]) == e.inside(e.taps[1]) and e.taps[0][-1] < 6 <= e.taps[1][-1]
    ),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_edge_reaches_what_it_is_named_after(name: str) -> None:
    edge = Slid(**vars(cases.BY_NAME[name]))
    assert edge.outputs >= 1
    assert CLAIMS[name](edge)


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
