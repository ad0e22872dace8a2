"""The geometry of halos, compared with walking through every window."""

import itertools
import random

import oracle
import pytest

from torch_dmlpool.distributed.halo import Portion, overlap, portions, shards
from torch_dmlpool.window import Axis


def requests(count: int) -> list[tuple[Axis, int, int]]:
    """Seeded axes of every kind, an input size that leaves a window, and a number of ranks."""
    generator = random.Random(0)
    found: list[tuple[Axis, int, int]] = []
    while len(found) < count:
        pick = generator.randint
        axis = Axis(pick(1, 6), pick(1, 5), pick(0, 8), pick(0, 8), pick(1, 4), generator.random() < 0.5)
        size = pick(1, 20)
        if axis.output_size(size) > 0:
            found.append((axis, size, pick(1, 6)))
    return found


def walked(axis: Axis, size: int) -> list[list[int]]:
    """Positions of every window's taps."""
    pooling = oracle.Pooling(
        (axis.window,), (axis.stride,), (axis.start_padding,), (axis.end_padding,), (axis.dilation,), axis.ceil_mode
    )
    return [oracle.tap_positions(pooling, 0, output) for output in range(oracle.output_size(pooling, 0, size))]


def assert_windows_look_the_same(portion: Portion, windows: range, axis: Axis, size: int) -> None:
    """From the portion's elements, every one of ``windows`` reads and counts what it does in the whole."""
    if not portion.windows:
        assert not windows
        return
    taps, seen = walked(axis, size), walked(portion.axis, len(portion.elements))
    assert len(seen) == len(portion.windows)
    start = portion.elements.start
    for window in windows:
        local = seen[window - portion.windows.start]
        inside = [position - start for position in taps[window] if 0 <= position < size]
        assert inside == [position for position in local if 0 <= position < len(portion.elements)]
        assert local[0] + start == taps[window][0]
        counted = sum(position < size + axis.end_padding for position in taps[window])
        assert counted == sum(position < len(portion.elements) + portion.axis.end_padding for position in local)


@pytest.mark.parametrize("count", [2000, pytest.param(40_000, marks=pytest.mark.slow)])
def test_portions_of_windows(count: int) -> None:
    surplus = 0
    for axis, size, parts in requests(count):
        outputs = axis.output_size(size)
        owned = shards(outputs, parts)
        assert list(itertools.chain(*owned)) == list(range(outputs))
        for own, portion in zip(owned, portions(axis, size, parts, of_elements=False), strict=True):
            assert overlap(own, portion.windows) == own or not own
            assert_windows_look_the_same(portion, own, axis, size)
            assert overlap(portion.elements, range(size)) == portion.elements
            if portion.windows != own:
                # Only where nothing is read does a rank compute more than it owns.
                surplus += 1
                assert not any(0 <= position < size for window in own for position in walked(axis, size)[window])
                assert len(portion.elements) == 1
    assert surplus > 0


@pytest.mark.parametrize("count", [2000, pytest.param(40_000, marks=pytest.mark.slow)])
def test_portions_of_elements(count: int) -> None:
    uncovered = 0
    for axis, size, parts in requests(count):
        taps = walked(axis, size)
        for own, portion in zip(shards(size, parts), portions(axis, size, parts, of_elements=True), strict=True):
            reading = {window for window, positions in enumerate(taps) if set(positions) & set(own)}
            assert reading <= set(portion.windows)
            assert_windows_look_the_same(portion, portion.windows, axis, size)
            if portion.windows:
                # No window more than those that span an element.
                for edge in (portion.windows[0], portion.windows[-1]):
                    assert range(max(taps[edge][0], own[0]), min(taps[edge][-1], own[-1]) + 1)
            uncovered += len(own) > 0 and not portion.windows
    assert uncovered > 0
