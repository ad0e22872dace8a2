"""python -m torch_dmlpool bench: what it compares and measures, and what its exit code means."""

import re

import pytest
import torch

from torch_dmlpool import __main__ as program
from torch_dmlpool import bench, timing
from torch_dmlpool.bench import conditions
from torch_dmlpool.timing import Times

CPU = torch.device("cpu")


@pytest.fixture
def small(monkeypatch):
    """Rows of a few elements, on a machine that does nothing else."""
    reduced = [(name, how, (2, 2, 14, 14), *rest) for name, how, _, *rest in bench.ROWS]
    monkeypatch.setattr(bench, "ROWS", reduced)
    monkeypatch.setattr(timing, "load", lambda: None)
    measured = timing.in_turn
    monkeypatch.setattr(
        timing, "in_turn", lambda calls, device, *_, **__: measured(calls, device, 0.0, least=3)
    )


def test_a_wrong_result_is_a_failure(monkeypatch, small, capsys):
    """And so are a wrong gradient and a call that raises."""

    def doubled(*arguments):
        pooled = adaptive(*arguments)
        if pooled.requires_grad:
            pooled.register_hook(lambda gradient: 2 * gradient)
        return pooled

    def refuses(*_):
        raise ValueError("no such window")

    adaptive, average = bench.ours.adaptive_avg_pool2d, bench.ours.avg_pool2d
    monkeypatch.setattr(bench.ours, "adaptive_avg_pool2d", doubled)
    monkeypatch.setattr(bench.ours, "avg_pool2d", lambda *how: average(*how) + 1)
    monkeypatch.setattr(bench.ours, "max_pool3d", refuses)
    assert program.main(["bench", "--device", "cpu"]) == 1
    said = capsys.readouterr().out
    assert "13 of 23 results are right" in said
    assert "WRONG max_pool3d(2,), float32, channels_last: ValueError: no such window" in said
    assert re.search(r"WRONG avg_pool2d\(2,\), float32, contiguous: .* not close! Mismatched", said)
    assert "WRONG adaptive_avg_pool2d((7, 5),), float32, contiguous: AssertionError" in said


def test_a_run_from_its_first_line_to_its_verdicts(small, capsys):
    """Conditions, results and rows."""
    assert program.main(["bench", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert f"  runs on                 {conditions.backend_of(CPU)}" in said
    assert "23 of 23 results are right" in said
    assert len(re.findall(r"_pool2d\(.* torch.nn .*x  [fsc]", said)) == 8


@pytest.mark.parametrize("device", ["cuda:99", "meta", "nowhere", "cpu:x"])
def test_what_cannot_be_measured_is_said_before_any_work(device, capsys):
    with pytest.raises(SystemExit):
        program.main(["bench", "--device", device])
    said = capsys.readouterr().err
    assert f"--device: {device}: " in said


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (Times(1.0, 2.0, 3.0), Times(4.0, 5.0, 6.0), "faster"),
        (Times(4.0, 5.0, 6.0), Times(1.0, 2.0, 3.0), "slower"),
        (Times(1.0, 2.0, 4.0), Times(3.0, 5.0, 6.0), "cannot tell"),
    ],
)
def test_quartiles_that_overlap_tell_nothing(ours, theirs, expected):
    assert timing.line("a pool", "torch.nn", ours, theirs, None).endswith(f"x  {expected}")
    busy = timing.line("a pool", "torch.nn", ours, theirs, "9 processes")
    assert busy.endswith("x  cannot tell")
