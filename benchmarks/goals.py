"""What the compiled CPU kernels are to reach, and whether a run shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks import tables
from benchmarks.peers import ATEN
from benchmarks.results import Results, RowResult, geometric_mean
from benchmarks.workloads import MODES

ORT = "ONNX Runtime"

TINY_SECONDS = {"forward": 5e-6, "recorded": 15e-6, "training": 15e-6, "indices": 5e-6}
HALVES, NARROW_TYPES = ("float16", "bfloat16"), ("int8", "uint8", "int16", "int32")


@dataclass(frozen=True)
class Goal:
    """One line: what is asked, and what was found."""

    what: str
    aim: str
    found: str
    met: bool


def goals(results: Results) -> list[Goal]:
    """Those for which there are rows; of a CPU alone."""
    if results.conditions["device"] != "cpu":
        return []
    rows = [row for row in results.rows if not row.small]
    if results.conditions["busy_processes"]:
        found = [_mean("all rows", rows, ATEN, 4), _none_behind("all rows", rows, 0.9)]
        return [goal for goal in found if goal is not None]
    usual = [row for row in rows if row.groups != ("extremes",)]
    forward, training = (
        _of_kind(usual, mode, "contiguous", "float32") for mode in ("forward", MODES["training"])
    )
    found = [
        _mean("contiguous, float32, forward", forward, *aim)
        for aim in ((ATEN, 7), ("oneDNN", 1), (ORT, 1.8))
    ]
    found.append(_mean("contiguous, float32, forward + backward", training, ATEN, 3.5))
    for mode, least in (("forward", 1.8), (MODES["training"], 1.4)):
        found.append(
            _mean(
                f"channels_last, float32, {mode}",
                _of_kind(usual, mode, "channels_last", "float32"),
                ATEN,
                least,
            )
        )
    found += [
        _mean(f"{dtype}, forward", _of_kind(usual, "forward", "contiguous", dtype), ATEN, 10)
        for dtype in HALVES
    ]
    found += [
        _mean(f"{dtype}, forward", _of_kind(usual, "forward", "contiguous", dtype), ATEN, 12)
        for dtype in NARROW_TYPES
    ]
    found.append(
        _mean("int64, forward", _of_kind(usual, "forward", "contiguous", "int64"), ATEN, 6)
    )
    quantized = [row for row in usual if MODES["quantized"] in row.kind]
    found += [_mean("quantized averages", quantized, peer, 4) for peer in (ATEN, ORT)]
    for mode in TINY_SECONDS:
        found.append(
            _tiny(
                mode,
                [row for row in results.rows if row.small and _mode(row) == (MODES[mode] or mode)],
            )
        )
    found.append(_none_behind("rows of 50 µs and more", rows, 1))
    return [goal for goal in found if goal is not None]


def _mode(row: RowResult) -> str:
    return row.kind.partition(",")[0]


def _of_kind(rows: Sequence[RowResult], *parts: str) -> list[RowResult]:
    return [row for row in rows if row.kind == ", ".join(parts)]


def _mean(what: str, rows: Sequence[RowResult], peer: str, least: float) -> Goal | None:
    ratios = [ratio for row in rows if (ratio := row.ratio(peer)) is not None]
    if not ratios:
        return None
    mean = geometric_mean(ratios)
    found = f"{tables.times(mean)} ({tables.count(len(ratios), 'row')})"
    return Goal(what, f"geometric mean at least {tables.times(least)} {peer}", found, mean >= least)


def _none_behind(what: str, rows: Sequence[RowResult], least: float) -> Goal | None:
    aim = "none slower than ATen" if least == 1 else f"none below {tables.times(least)} ATen"
    return _exceptions(what, aim, rows, lambda row: (row.ratio(ATEN) or 1) < least, "below")


def _tiny(mode: str, rows: Sequence[RowResult]) -> Goal | None:
    most = TINY_SECONDS[mode]
    aim = f"within {most * 1e6:.0f} µs of ATen"
    what = f"rows of less than 50 µs, {MODES[mode] or mode}"
    return _exceptions(what, aim, rows, lambda row: (row.difference(ATEN) or 0) > most, "beyond it")


def _exceptions(
    what: str, aim: str, rows: Sequence[RowResult], fails: Callable[[RowResult], bool], fault: str
) -> Goal | None:
    compared = [row for row in rows if ATEN in row.seconds]
    if not compared:
        return None
    failing = sum(map(fails, compared))
    return Goal(
        what,
        aim,
        f"{failing or 'none'} of {tables.count(len(compared), 'row')} {fault}",
        not failing,
    )
