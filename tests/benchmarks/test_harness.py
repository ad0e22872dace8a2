"""Measuring, counting and reporting, on rows of microseconds; no timing is judged."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("benchmarks.harness")


from benchmarks import harness, load, models, peers, plots, report, scaling
from benchmarks.results import Curve, Quartiles, Results, RowResult
from benchmarks.slopes import Slope, logarithms, per_doubling, slope
from benchmarks.workloads import WORKLOADS, select


def row_result(
    name: str = "max 8x64x112x112 window 3/1 pad 1",
    groups=("core",),
    kind: str = "forward, contiguous, float32",
    window=(3, 3),
    **milliseconds: float,
) -> RowResult:
    seconds = {peer: Quartiles(0.9e-3 * time, 1e-3 * time, 1.1e-3 * time) for peer, time in milliseconds.items()}
    return RowResult(name, groups, "", kind, 200, 100, 5, 1, seconds, window=window)


def results(*rows: RowResult, **changes) -> Results:
    conditions = {
        "date": "2030-01-31T12:00:00+00:00",
        "machine": {"processor": "a processor", "cores": 2, "caches": {"L2": "1024K"}, "cpu_capability": "AVX2"},
        "device": "cpu",
        "threads": 2,
        "busy_processes": 0,
        "load_average": {"start": 0.1, "end": 0.2},
        "rounds": 5,
        "scaling": False,
        "quick": False,
        "versions": {"python": "3.11.0"},
        "peers": {"ours": "1", "copy": "2", "ATen": "2", "oneDNN": "3"},
        "absent": {"JAX": "not installed"},
    }
    return Results({**conditions, **changes}, rows)


def curve(variable: str, values, cost, outputs: int = 10, **others) -> Curve:
    """Of calls that take ``cost(value)`` seconds, ours, and what ``others`` take."""
    contestants = {"ours": cost, **others}
    rows = tuple(
        RowResult(
            f"{variable} {value}",
            ("scaling",),
            "",
            "forward, contiguous, float32",
            *(2, 1, 1, 1),
            {name: Quartiles.of([seconds(value)]) for name, seconds in contestants.items()},
            outputs=outputs,
        )
        for value in values
    )
    return Curve("a curve", variable, tuple(values), rows)


def test_quartiles() -> None:
    assert Quartiles.of([5.0]) == Quartiles(5.0, 5.0, 5.0)
    assert Quartiles.of([4.0, 1.0, 3.0, 2.0, 5.0]) == Quartiles(2.0, 3.0, 4.0)
    assert Quartiles(1, 2, 3).overlaps(Quartiles(3, 4, 5))
    assert not Quartiles(1, 2, 3).overlaps(Quartiles(4, 5, 6))


def test_json_keeps_everything(tmp_path: Path) -> None:
    saved = results(row_result(ours=1, ATen=2))
    saved.save(tmp_path / "deep" / "file.json")
    assert Results.load(tmp_path / "deep" / "file.json") == saved
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="does not hold results"):
        Results.load(tmp_path / "other.json")


def test_every_contestant_has_a_sample_of_every_round() -> None:
    aten, ours = (next(peer for peer in peers.PEERS if peer.name == name) for name in ("ATen", "ours"))
    (row,) = [row for row in WORKLOADS if row.name == "max 1x8x16x16 window 3/2 pad 1"]
    settings = harness.Settings(torch.device("cpu"), rounds=4, row_seconds=60.0, seed=1)
    calls, _ = harness.bind([ours, aten], harness.problem(row, settings))
    clocked: list[object] = []

    def clock(run, count: int) -> float:
        clocked.append(run)
        return 1e-4 * count

    samples, per_round = harness._rounds(calls, clock, settings)
    assert {name: len(taken) for name, taken in samples.items()} == {"ours": 4, "ATen": 4}
    assert per_round == 5  # half a millisecond of calls that take a tenth each
    runs = {bound.run for bounds in calls.values() for bound in bounds}
    assert set(clocked) == runs  # all inputs of all contestants
    stopped = harness._rounds(calls, clock, harness.Settings(torch.device("cpu"), rounds=50, row_seconds=0.0))[0]
    assert len(stopped["ours"]) == harness.LEAST_ROUNDS


def test_busy_processes_run_and_end() -> None:
    with load.Load(2, seconds=30.0) as busy:
        assert busy.running == 2
        processes = list(busy._processes)
    assert [process.poll() is not None for process in processes] == [True, True]

    def interrupted() -> None:
        with load.load(1, seconds=30.0) as busy:
            processes.extend(busy._processes)
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert len(processes) == 3
    assert processes[-1].poll() is not None
    with load.load(0, seconds=30.0) as busy:
        assert busy is None


@pytest.mark.slow
def test_a_reduced_run_writes_json_and_a_table(tmp_path: Path) -> None:
    """The command itself, beside busy processes, then the documentation made of what it wrote."""
    pytest.importorskip("rich")
    path = tmp_path / "run.json"
    options = ["--rows", "1x1x4x4 window 2/2", "--rounds", "2", "--row-seconds", "0", "--threads", "1", "--load"]
    completed = subprocess.run(
        [sys.executable, "-m", "benchmarks", *options, "--out", str(path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=Path(report.ROOT),
    )
    assert completed.returncode == 0, completed.stderr
    chosen = select("1x1x4x4 window 2/2")
    for row in chosen:
        assert row.name in completed.stdout
    assert "Rows slower than ATen: none" in completed.stdout
    data = json.loads(path.read_text(encoding="utf-8"))
    assert [row["name"] for row in data["rows"]] == [row.name for row in chosen]
    conditions = data["conditions"]
    assert conditions["threads"] == 1
    assert conditions["busy_processes"] == load.cores()
    assert set(conditions["peers"]) >= {"ours", "copy", "ATen", "our layer"}
    for row in data["rows"]:
        assert {"ours", "copy", "ATen"} <= set(row["seconds"])
        for quartiles in row["seconds"].values():
            assert 0 < quartiles["lower"] <= quartiles["median"] <= quartiles["upper"]
    training = next(row for row in data["rows"] if row["kept"] and row["name"].startswith("max"))
    assert training["kept"]["ours"]["extra"] == 4
    assert training["peak"]["ours"] >= 4 * (16 + 4)  # the gradient of 16 elements beside 4 results
    text = report.documentation(report.newest([Results.load(path)]))
    assert f"## CPU, 1 thread, beside {load.cores()} busy process" in text
    assert all(f"| {row.name} |" in text for row in chosen)


def test_the_documentation_takes_the_newest_of_each_kind() -> None:
    old, new = (results(row_result(ours=1, ATen=time), date=f"203{time}-01-31T12:00:00+00:00") for time in (2, 4))
    loaded = results(row_result(ours=1, ATen=9), busy_processes=2)
    quick = results(row_result(ours=1, ATen=7.5), quick=True, date="2040-01-31T12:00:00+00:00")
    chosen = report.newest([new, quick, loaded, old])
    assert len(chosen) == 2
    assert new in chosen
    assert loaded in chosen
    text = report.documentation(chosen)
    assert text.count("4.00x") >= 3  # its row, its mean and what a goal is held against
    assert "2.00x" not in text
    assert "7.50x" not in text
    assert "JAX took no part: not installed" in text
    assert "Nothing has been measured yet" in report.documentation([])


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


def test_the_table_of_models_in_the_readme_is_the_one_measured() -> None:
    """``python -m benchmarks.report`` has been run since the models were."""
    table = models.markdown(json.loads(report.MODELS.read_text(encoding="utf-8")))
    page = (report.ROOT / "README.md").read_text(encoding="utf-8")
    assert report.with_models(page, table) == page
    with pytest.raises(ValueError, match="once"):
        report.with_models("no marks", table)
