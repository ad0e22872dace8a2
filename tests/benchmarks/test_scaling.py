"""Curves, their slopes and the pictures: shapes of growth that are known beforehand, and rows of microseconds."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

pytest.importorskip("benchmarks.harness")

from measurements import curve, results, row_result

from benchmarks import plots, report, scaling, tables
from benchmarks.results import Results
from benchmarks.slopes import Slope, logarithms, per_doubling, slope


def test_slopes_of_known_laws() -> None:
    found = slope([1, 2, 4, 8], [3, 12, 48, 192])
    assert found.exponent == pytest.approx(2)
    assert found.error == pytest.approx(0, abs=1e-9)
    assert slope([1, 10], [5, 50]) == Slope(pytest.approx(1), 0.0)
    assert slope([1, 2, 4], [1, 3, 4]).error > 0.1
    assert logarithms([2, 8]) == [1, 3]
    assert per_doubling([2, 4, 8, 32], [1, 2, 3, 5]) == pytest.approx(1)
    assert not Slope(1.1, 0.1).faster_than_proportional
    assert Slope(1.3, 0.1).faster_than_proportional


def test_growth_with_the_window_is_told_from_faster_growth() -> None:
    """G7: one axis at a time, in doublings, is log k; every tap along an axis is not."""
    windows = scaling.WINDOWS

    def additions(window: int) -> int:
        return window.bit_length() + window.bit_count() - 2

    measured = curve("window", windows, math.log2, ATen=lambda window: window**2.0)
    assert measured.slopes("ours")["logarithm"].exponent == pytest.approx(1)
    assert measured.slopes("ATen")["window"].exponent == pytest.approx(2)
    assert measured.per_doubling("ours") == pytest.approx(0.1)  # of one of ten outputs
    ours, aten = tables.growth(measured)
    assert "a curve, ours: cost per output grows as (log k)^(1.00 ± 0.00), not faster than log k" in ours
    assert "by 1e+08 ns with each doubling; 1e+08 ns at k = 2" in ours
    assert ", faster than log k (as k^(2.00 ± 0.00))" in aten
    by_doublings = curve("window", windows, lambda window: 1 + additions(window), by_tap=float)
    assert not by_doublings.slopes("ours")["logarithm"].faster_than_proportional
    assert by_doublings.slopes("by_tap")["logarithm"].faster_than_proportional


def test_the_points() -> None:
    points = list(scaling.points("cpu", quick=False))
    assert len({point.name for point in points}) == len(points)
    windows = [point for point in points if point.variable == "window"]
    assert {point.value for point in windows} == set(scaling.WINDOWS)
    assert {point.workload.mode for point in windows} == {"forward", "training"}
    for point in points:
        row = point.workload
        if point.variable == "window":
            assert set(row.window) == {point.value}
            assert 2 * row.padding[0] <= point.value
        if point.variable == "elements":
            assert math.prod(row.sizes) == point.value
    assert min(scaling.ELEMENTS) == 2**10
    assert max(scaling.ELEMENTS) == 2**28
    assert scaling.thread_counts(1) == []
    assert scaling.thread_counts(6) == [1, 2, 4, 6]
    assert not [point for point in scaling.points("cuda", quick=False) if point.variable == "threads"]


@pytest.mark.slow
def test_documentation_shows_every_picture_that_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = results(
        row_result("fast", ours=1, copy=0.5, ATen=8, oneDNN=0.7),
        row_result("other", kind="quantized, contiguous, uint8", ours=1, copy=0.5, ATen=2),
        row_result("tiny", ("overhead",), ours=0.03, ATen=0.02),
    )
    loaded = Results({**rows.conditions, "busy_processes": 2}, rows.rows)
    curves = Results(
        rows.conditions,
        (),
        (
            curve("window", (2, 4, 8), math.log2, ATen=float),
            curve("window", (2, 4, 8), math.log2),
            curve("window", (2, 4, 8), math.log2),
            curve("elements", (2**18, 2**20), float),
            curve("threads", (1, 2), float),
        ),
    )
    runs = report.newest([rows, loaded, curves])
    assert len(runs) == 3
    drawn = plots.draw(runs, tmp_path / report.IMAGES)
    for path in drawn:
        assert path.read_bytes().startswith(b"\x89PNG")
    shown = re.findall(r"!\[[^]]+\]\(images/([^)]+)\)", report.documentation(runs))
    assert sorted(shown) == sorted(path.name for path in drawn)
    assert len(set(shown)) == 7
    assert plots.pictures(results(row_result("tiny", ("overhead",), ours=0.03, ATen=0.02))) == []
