"""Measuring, counting and reporting, on rows of microseconds; no timing is judged."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("benchmarks.harness")

from measurements import results, row_result

from benchmarks import goals, harness, load, peers, report, tables
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


def test_cells() -> None:
    row = row_result(ours=3.6, copy=0.9, ATen=90)
    measured = results(row, row_result("other", ours=0.036, ATen=0.02, oneDNN=0.1))
    assert tables.cells(measured, row)[1:] == ["3.6 ms (3.24-3.96)", "25%", "25x", "-"]
    assert tables.cells(measured, measured.rows[1])[1:] == ["36 µs (32.4-39.6)", "-", "+16.0 µs", "-64.0 µs"]
    assert len(tables.header(measured)) == 5
    both = {"ours": {"extra": 800}, "ATen": {"extra": 1600}}
    training = replace(row, kept=both, peak={"ours": 2_500_000, "ATen": 1600})
    measured = results(row, training)
    assert tables.header(measured)[-2:] == ["kept: ours / ATen", "peak: ours / ATen"]
    assert tables.cells(measured, training)[-2:] == ["800 B / 1.6 kB", "2.5 MB / 1.6 kB"]
    assert tables.cells(measured, row)[-2:] == ["-", "-"]
    assert [tables.size(count) for count in (800, 1600, 2_500_000)] == ["800 B", "1.6 kB", "2.5 MB"]


def test_a_goal_is_reached_or_missed_by_its_own_rows_alone() -> None:
    """Means by kind of row, rows that are behind, tiny tensors by mode; of a GPU there are none."""
    rows = [
        row_result("a", ours=1, ATen=16, **{"ONNX Runtime": 1.7, "oneDNN": 1.1}),
        row_result("b", ours=1, ATen=4, **{"ONNX Runtime": 1.7, "oneDNN": 1.1}),
        row_result("c", kind="forward, channels_last, float32", ours=1, ATen=0.9),
        row_result("d", kind="forward + backward, contiguous, float32", ours=1, ATen=2),
        row_result("e", kind="forward, contiguous, int8", ours=1, ATen=13),
        row_result("f", ("overhead",), ours=0.03, ATen=0.021),
    ]
    found = {(goal.what, goal.aim): (goal.found, goal.met) for goal in goals.goals(results(*rows))}
    mean = "geometric mean at least"
    assert found[("contiguous, float32, forward", f"{mean} 7.00x ATen")] == ("8.00x (2 rows)", True)
    assert found[("contiguous, float32, forward", f"{mean} 1.80x ONNX Runtime")] == ("1.70x (2 rows)", False)
    assert found[("contiguous, float32, forward + backward", f"{mean} 3.50x ATen")] == ("2.00x (1 row)", False)
    assert found[("int8, forward", f"{mean} 12x ATen")] == ("13x (1 row)", True)
    assert found[("rows of less than 50 µs, forward", "within 5 µs of ATen")] == ("1 of 1 row beyond it", False)
    assert found[("rows of 50 µs and more", "none slower than ATen")] == ("1 of 5 rows below", False)
    assert ("int16, forward", f"{mean} 12x ATen") not in found
    assert "| int8, forward | geometric mean at least 12x ATen | 13x (1 row) | reached |" in report.documentation(
        [results(*rows)]
    )
    assert goals.goals(results(*rows, device="cuda")) == []


def test_every_call_on_a_gpu_finds_its_cache_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[object] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            happened.append(self)

        def elapsed_time(self, end) -> float:
            return float(happened.index(end))  # milliseconds: 3, 7 and 11

    class Flush:
        def zero_(self) -> None:
            happened.append("flush")

    sizes = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: happened.append("wait"))
    properties = type("Properties", (), {"L2_cache_size": 2**29})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch, "empty", lambda size, **_: sizes.append(size) or Flush())
    clock = harness.cuda_clock(torch.device("cuda"))
    assert clock(lambda: happened.append("call"), 3) == pytest.approx(7e-3)
    kinds = ["event" if isinstance(one, Event) else one for one in happened]
    assert kinds == [*["flush", "event", "call", "event"] * 3, "wait"]
    assert sizes == [2**30]


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


def test_busy_processes_end_by_themselves() -> None:
    with load.Load(1, seconds=0.05) as busy:
        deadline = time.monotonic() + 30
        while busy.running and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not busy.running


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


def test_bad_options_are_refused() -> None:
    pytest.importorskip("rich")
    completed = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--rows", "nothing of the kind"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=Path(report.ROOT),
    )
    assert completed.returncode == 2
    assert "no row is named 'nothing of the kind'; groups are all, core" in completed.stderr


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
