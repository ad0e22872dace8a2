"""Measuring, counting and reporting, on rows of microseconds; no timing is judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("benchmarks.harness")

from measurements import results, row_result

from benchmarks import harness, load, peers, report, tables
from benchmarks.results import Quartiles, Results
from benchmarks.workloads import WORKLOADS, select


def test_quartiles() -> None:
    assert Quartiles.of([5.0]) == Quartiles(5.0, 5.0, 5.0)
    assert Quartiles.of([4.0, 1.0, 3.0, 2.0, 5.0]) == Quartiles(2.0, 3.0, 4.0)
    assert Quartiles(1, 2, 3).overlaps(Quartiles(3, 4, 5))
    assert not Quartiles(1, 2, 3).overlaps(Quartiles(4, 5, 6))


def test_ratios_means_and_rows_behind() -> None:
    fast, slow = row_result("fast", ours=1, copy=0.5, ATen=8), row_result("slow", ours=4, copy=0.5, ATen=2, oneDNN=8)
    tiny = row_result("tiny", ours=0.03, ATen=0.02)
    measured = results(fast, slow, tiny)
    assert fast.ratio("ATen") == pytest.approx(8)
    assert fast.ratio("oneDNN") is None
    assert fast.copy_fraction == pytest.approx(0.5)  # 200 bytes of ours beside 2 · 100 of the copy's
    assert tiny.small
    assert not fast.small
    assert measured.peers == ["ATen", "oneDNN"]
    ((mean, count),) = [means["ATen"] for means in measured.geometric_means().values()]
    assert mean == pytest.approx(2)  # of 8 and 1/2; the tiny row does not count
    assert count == 2
    assert measured.behind() == [slow]
    summary = "\n".join(tables.summary(measured))
    assert "ATen 2.00x (2), oneDNN 2.00x (1)" in summary
    assert "Rows slower than ATen: 1\n  slow: 0.50x" in summary
    assert "Rows under 50 µs: at most +10.0 µs beside ATen (tiny)" in summary


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


def test_inputs_are_random_seeded_and_in_the_layout_asked_for() -> None:
    for row in select("1x64x56x56"):
        tensors = harness.problem(row, harness.Settings(torch.device("cpu"), 1, 0.0, seed=3))
        again = harness.problem(row, harness.Settings(torch.device("cpu"), 1, 0.0, seed=3))
        assert len(tensors.inputs) == harness.INPUTS
        assert all(torch.equal(one, other) for one, other in zip(tensors.inputs, again.inputs, strict=True))
        assert not torch.equal(tensors.inputs[0], tensors.inputs[1])
        assert tensors.inputs[0].is_contiguous(memory_format=row.memory_format)


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
