"""What the CPU path is to reach, and whether a run shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks import tables
from benchmarks.peers import ATEN
from benchmarks.results import Results, RowResult, geometric_mean
from benchmarks.workloads import MODES

LARGE_WINDOW = 5
"""Taps along the longest axis from which on a separable algorithm has an advantage over one that reads every tap."""
TINY_SECONDS = 10e-6
NEAR = 1 / 1.3
NARROW_TYPES = ("int8", "uint8", "int16", "int32", "int64", "bfloat16", "float16")
OTHERS = ("ONNX Runtime", "oneDNN")


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
    plain = _of_kind(rows, "forward", "contiguous", "float32")
    large = [row for row in plain if max(row.window, default=0) >= LARGE_WINDOW]
    small = [row for row in plain if row not in large]
    training = _of_kind(rows, MODES["training"], "contiguous", "float32")
    found = [_mean("N, C, … order, float32, forward", plain, ATEN, 5)]
    found += [_mean(f"the same, windows of {LARGE_WINDOW} and more", large, peer, 1) for peer in OTHERS]
    found += [_mean(f"the same, windows below {LARGE_WINDOW}", small, peer, NEAR) for peer in OTHERS]
    found.append(_none_behind("channels_last rows", [row for row in rows if "channels_last" in row.kind]))
    found += [_mean("N, C, … order, float32, forward + backward", training, ATEN, 2.5)]
    found.append(_none_behind("forward + backward rows", [row for row in rows if MODES["training"] in row.kind]))
    for dtype in NARROW_TYPES:
        found.append(_mean(f"{dtype}, forward", _of_kind(rows, "forward", "contiguous", dtype), ATEN, 5))
    found.append(_tiny([row for row in results.rows if row.small]))
    found.append(_none_behind("all rows", rows))
    return [goal for goal in found if goal is not None]


def _of_kind(rows: Sequence[RowResult], *parts: str) -> list[RowResult]:
    return [row for row in rows if row.kind == ", ".join(parts)]


def _mean(what: str, rows: Sequence[RowResult], peer: str, least: float) -> Goal | None:
    ratios = [ratio for row in rows if (ratio := row.ratio(peer)) is not None]
    if not ratios:
        return None
    mean = geometric_mean(ratios)
    found = f"{tables.times(mean)} ({tables.count(len(ratios), 'row')})"
    return Goal(what, f"geometric mean at least {tables.times(least)} {peer}", found, mean >= least)


def _none_behind(what: str, rows: Sequence[RowResult]) -> Goal | None:
    return _exceptions(what, "none slower than ATen", rows, lambda row: (row.ratio(ATEN) or 1) < 1, "slower")


def _tiny(rows: Sequence[RowResult]) -> Goal | None:
    return _exceptions(
        "ATen takes less than 50 µs",
        f"within {TINY_SECONDS * 1e6:.0f} µs of ATen",
        rows,
        lambda row: (row.difference(ATEN) or 0) > TINY_SECONDS,
        "beyond it",
    )


def _exceptions(
    what: str, aim: str, rows: Sequence[RowResult], fails: Callable[[RowResult], bool], fault: str
) -> Goal | None:
    compared = [row for row in rows if ATEN in row.seconds]
    if not compared:
        return None
    failing = sum(map(fails, compared))
    return Goal(what, aim, f"{failing or 'none'} of {tables.count(len(compared), 'row')} {fault}", not failing)
