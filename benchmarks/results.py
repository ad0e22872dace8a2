"""What was measured, as JSON and as figures: quartiles, ratios, geometric means, rows where we are behind."""

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

SMALL_SECONDS = 50e-6
"""Below this much of ATen's time a row is about the cost of a call: differences are reported, not ratios."""


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
    """One workload: what each contestant took, who could not take part and why, what training kept."""

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

    @property
    def ours(self) -> Quartiles:
        return self.seconds[OURS]

    @property
    def small(self) -> bool:
        """By the lower quartile, as a busy machine can stretch the shortest call to milliseconds."""
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
        """Our bytes a second, counting what nobody can avoid, beside those of a copy, which reads and writes."""
        ratio = self.ratio(COPY)
        return None if ratio is None else ratio * self.bytes_moved / (2 * self.input_bytes)


@dataclass(frozen=True)
class Results:
    """A run: its conditions and its rows."""

    conditions: dict[str, Any]
    rows: tuple[RowResult, ...]

    @property
    def peers(self) -> list[str]:
        """Everybody but us who was measured in some row, in a fixed order."""
        order = [OURS, *self.conditions["peers"]]
        found = {name for row in self.rows for name in row.seconds} - {OURS, COPY}
        return sorted(found, key=lambda name: order.index(name) if name in order else len(order))

    def geometric_means(self) -> dict[str, dict[str, tuple[float, int]]]:
        """Per kind of row and peer: the mean ratio and how many rows it is of; tiny tensors are left out."""
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
        text = json.dumps(
            {"conditions": self.conditions, "rows": [dataclasses.asdict(row) for row in self.rows]}, indent=1
        )
        path.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Raises ``ValueError`` for a file that is not of our making."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls(data["conditions"], tuple(map(_row, data["rows"])))
        except (KeyError, TypeError) as reason:
            raise ValueError(f"{path} does not hold results of these benchmarks: {reason!r}") from reason


def _row(data: dict[str, Any]) -> RowResult:
    seconds = {name: Quartiles(**quartiles) for name, quartiles in data["seconds"].items()}
    return RowResult(**{**data, "groups": tuple(data["groups"]), "seconds": seconds})


def geometric_mean(ratios: Iterable[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))
