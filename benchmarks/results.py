"""What was measured, as JSON and as figures: quartiles, ratios, geometric means, rows where we are
behind, slopes."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers import ATEN, COPY, OURS
from benchmarks.slopes import Slope, logarithms, per_doubling, slope

SMALL_SECONDS = 50e-6
"""Below this much of ATen's time a row is about the cost of a call: differences are reported, not
ratios."""
FIRST_ELEMENTS = 2**18
"""Tensors from here on show how cost grows with size; below, the cost of a call shows too."""


@dataclass(frozen=True)
class Quartiles:
    """Seconds of one call."""

    lower: float
    median: float
    upper: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Quartiles:
        if len(samples) == 1:
            return cls(*samples, *samples, *samples)
        return cls(*statistics.quantiles(samples, n=4, method="inclusive"))

    def overlaps(self, other: Quartiles) -> bool:
        return self.lower <= other.upper and other.lower <= self.upper


@dataclass(frozen=True)
class RowResult:
    """One workload: what each contestant took, who could not take part and why, what training kept
    and allocated."""

    name: str
    groups: tuple[str, ...]
    origin: str
    kind: str  # mode, layout and type, which rows must share for a common mean
    bytes_moved: int
    input_bytes: int
    rounds: int
    calls_per_round: int
    seconds: dict[str, Quartiles]
    skipped: dict[str, str] = field(default_factory=dict)
    kept: dict[str, dict[str, int]] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)
    window: tuple[int, ...] = ()
    outputs: int = 0

    @property
    def ours(self) -> Quartiles:
        return self.seconds[OURS]

    @property
    def small(self) -> bool:
        """By the lower quartile, as a busy machine can stretch the shortest call to
        milliseconds."""
        return "overhead" in self.groups or self.seconds.get(ATEN, self.ours).lower < SMALL_SECONDS

    def ratio(self, peer: str) -> float | None:
        """How many times as long as ours the peer takes; above 1, ours is faster."""
        if peer not in self.seconds:
            return None
        return self.seconds[peer].median / self.ours.median

    def difference(self, peer: str) -> float | None:
        """Seconds that ours takes longer."""
        if peer not in self.seconds:
            return None
        return self.ours.median - self.seconds[peer].median

    @property
    def copy_fraction(self) -> float | None:
        """Our bytes a second, counting what nobody can avoid, beside those of a copy, which reads
        and writes."""
        ratio = self.ratio(COPY)
        return None if ratio is None else ratio * self.bytes_moved / (2 * self.input_bytes)


@dataclass(frozen=True)
class Curve:
    """Rows that differ in one number: the taps of the window along each axis, the input's elements,
    or the threads."""

    name: str
    variable: str  # window, elements or threads
    values: tuple[int, ...]
    rows: tuple[RowResult, ...]

    def costs(self, contestant: str) -> dict[int, float]:
        """Seconds of a call: for each output, for each element, or of the call as a whole, by
        variable."""
        costs = {}
        for value, row in zip(self.values, self.rows, strict=True):
            if contestant in row.seconds:
                share = {"window": row.outputs, "elements": value, "threads": 1}[self.variable]
                costs[value] = row.seconds[contestant].median / share
        return costs

    @property
    def contestants(self) -> list[str]:
        return list(
            dict.fromkeys(name for row in self.rows for name in row.seconds if name != COPY)
        )

    def slopes(self, contestant: str) -> dict[str, Slope]:
        """Exponents: of windows, of their logarithms, of elements from ``FIRST_ELEMENTS`` on, of
        threads."""
        costs = self.costs(contestant)
        if self.variable == "elements":
            costs = {value: cost for value, cost in costs.items() if value >= FIRST_ELEMENTS}
        if len(costs) < 2:
            return {}
        found = {self.variable: slope(list(costs), list(costs.values()))}
        if self.variable == "window":
            found["logarithm"] = slope(logarithms(list(costs)), list(costs.values()))
        return found

    def per_doubling(self, contestant: str) -> float | None:
        """Seconds that an output costs more each time that the window doubles."""
        costs = self.costs(contestant)
        return (
            per_doubling(list(costs), list(costs.values()))
            if self.variable == "window" and len(costs) > 1
            else None
        )


@dataclass(frozen=True)
class Results:
    """A run: its conditions, and its rows or its curves."""

    conditions: dict[str, Any]
    rows: tuple[RowResult, ...]
    curves: tuple[Curve, ...] = ()

    @property
    def peers(self) -> list[str]:
        """Everybody but us who was measured in some row, in a fixed order."""
        order = [OURS, *self.conditions["peers"]]
        found = {name for row in self.rows for name in row.seconds} - {OURS, COPY}
        return sorted(found, key=lambda name: order.index(name) if name in order else len(order))

    def geometric_means(self) -> dict[str, dict[str, tuple[float, int]]]:
        """Per kind of row and peer: the mean ratio and how many rows it is of; tiny tensors are
        left out."""
        means: dict[str, dict[str, tuple[float, int]]] = {}
        for kind in dict.fromkeys(row.kind for row in self.rows if not row.small):
            rows = [row for row in self.rows if row.kind == kind and not row.small]
            for peer in self.peers:
                ratios = [ratio for row in rows if (ratio := row.ratio(peer)) is not None]
                if ratios:
                    means.setdefault(kind, {})[peer] = geometric_mean(ratios), len(ratios)
        return means

    def behind(self, peer: str = ATEN) -> list[RowResult]:
        """Rows, tiny ones aside, in which our median is greater; the worst first."""
        rows = [row for row in self.rows if not row.small and (row.ratio(peer) or 1) < 1]
        return sorted(rows, key=lambda row: row.ratio(peer) or 1)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        data = dataclasses.asdict(self)
        for curve, written in zip(self.curves, data["curves"], strict=True):
            written["slopes"] = {
                name: {of: dataclasses.asdict(one) for of, one in curve.slopes(name).items()}
                for name in curve.contestants
            }
            written["seconds_per_doubling"] = {
                name: curve.per_doubling(name) for name in curve.contestants
            }
        text = json.dumps(data, indent=1)
        path.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Raises ``ValueError`` for a file that is not of our making."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            curves = tuple(map(_curve, data.get("curves", ())))
            return cls(data["conditions"], tuple(map(_row, data["rows"])), curves)
        except (KeyError, TypeError) as reason:
            raise ValueError(
                f"{path} does not hold results of these benchmarks: {reason!r}"
            ) from reason


def _row(data: dict[str, Any]) -> RowResult:
    seconds = {name: Quartiles(**quartiles) for name, quartiles in data["seconds"].items()}
    tuples = {name: tuple(data.get(name, ())) for name in ("groups", "window")}
    return RowResult(**{**data, **tuples, "seconds": seconds})


def _curve(data: dict[str, Any]) -> Curve:
    return Curve(
        data["name"], data["variable"], tuple(data["values"]), tuple(map(_row, data["rows"]))
    )


def geometric_mean(ratios: Iterable[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))
