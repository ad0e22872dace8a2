"""Pictures of what was measured, for docs/images/."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import OURS
from benchmarks.results import Curve, Results, RowResult, geometric_mean

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#000000")
"""Told apart by those who see few colours, too."""


@dataclass(frozen=True)
class Picture:
    """A file, what stands below it, and who draws it on a figure."""

    file: str
    caption: str
    draw: Callable[[Any, Results], None]
    size: tuple[float, float]


def pictures(results: Results) -> list[Picture]:
    """What can be shown of a run; the files are named after its conditions."""
    stem, found = _stem(results), []
    if any(not row.small for row in results.rows):
        found = [
            Picture(
                f"{stem}-ratios.png",
                "Each row's ratio to each peer, and geometric means",
                ratios,
                (9, 4),
            ),
            Picture(
                f"{stem}-bandwidth.png",
                "Each row's share of a copy's bandwidth",
                bandwidth,
                (9, 1 + 0.25 * len({row.kind for row in results.rows})),
            ),
        ]
    drawn = (
        ("window", "Cost of an output against the window", windows),
        ("elements", "Cost of an element against the size of the tensor", elements),
        ("threads", "Speed-up with threads", threads),
    )
    for variable, caption, draw in drawn:
        if any(curve.variable == variable for curve in results.curves):
            size = (9, 6) if variable == "window" else (9, 3.6)
            found.append(Picture(f"{stem}-{variable}.png", caption, draw, size))
    return found


def draw(results: Iterable[Results], folder: Path) -> list[Path]:
    """Write every picture.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for result in results:
        for picture in pictures(result):
            figure = Figure(figsize=picture.size, layout="constrained")
            FigureCanvasAgg(figure)
            picture.draw(figure, result)
            path = folder / picture.file
            figure.savefig(path, dpi=100, metadata={"Software": None})
            written.append(path)
    return written


def _stem(results: Results) -> str:
    """The processor or GPU, and what else tells kinds of runs apart."""
    known = results.conditions
    place = (
        known["machine"].get("gpu") or f"{known['machine']['processor']} {known['threads']} threads"
    )
    if known["busy_processes"]:
        place += " load"
    return re.sub(r"[^a-z0-9]+", "-", place.lower()).strip("-")


def ratios(figure: Any, results: Results) -> None:
    """A line per peer, a dot per row, a bar at the mean; right of 1 ours is faster."""
    axes = figure.subplots()
    rows = [row for row in results.rows if not row.small]
    peers = [peer for peer in results.peers if any(row.ratio(peer) for row in rows)]
    kinds = _kinds(rows)
    for place, peer in enumerate(peers):
        for number, (kind, members) in enumerate(kinds.items()):
            found = [ratio for row in members if (ratio := row.ratio(peer)) is not None]
            height = place + 0.6 * (number / max(1, len(kinds) - 1) - 0.5)
            axes.plot(
                found,
                [height] * len(found),
                ".",
                color=_colour(number),
                alpha=0.7,
                label=_once(kind, place),
            )
        mean = geometric_mean(ratio for row in rows if (ratio := row.ratio(peer)) is not None)
        axes.plot([mean, mean], [place - 0.4, place + 0.4], color="black", linewidth=2)
        axes.annotate(f" {mean:.2f}x", (mean, place + 0.36), fontsize=8)
    axes.set_yticks(range(len(peers)), peers)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.axvline(1, color="grey", linewidth=1)
    axes.set_xlabel("the peer's time over ours (right of the line ours is faster)")
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)


def bandwidth(figure: Any, results: Results) -> None:
    """A line per mode, layout and type."""
    axes = figure.subplots()
    rows = [row for row in results.rows if not row.small and row.copy_fraction is not None]
    by_kind: dict[str, list[RowResult]] = {}
    for row in rows:
        by_kind.setdefault(row.kind, []).append(row)
    for place, members in enumerate(by_kind.values()):
        axes.plot(
            [row.copy_fraction for row in members],
            [place] * len(members),
            ".",
            color=COLOURS[0],
            alpha=0.7,
        )
    axes.set_yticks(range(len(by_kind)), list(by_kind), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.axvline(1, color="grey", linewidth=1)
    axes.set_xlabel(
        "our bytes a second over a copy's (each input read once, each result written once)"
    )


def windows(figure: Any, results: Results) -> None:
    panels = _curves(results, "window")
    grid = figure.subplots(-(-len(panels) // 2), 2, sharex=True, squeeze=False)
    for axes, curve in zip(grid.flat, panels, strict=False):
        _lines(axes, curve, 1e9)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[-1]:
        axes.set_xlabel("taps along each axis")
    for axes in grid[:, 0]:
        axes.set_ylabel("ns per output")
    grid.flat[0].legend(fontsize=8)


def elements(figure: Any, results: Results) -> None:
    panels = _curves(results, "elements")
    row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, curve in zip(row, panels, strict=True):
        _lines(axes, curve, 1e9)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("elements of the input")
    row[0].set_ylabel("ns per element")
    row[0].legend(fontsize=8)


def threads(figure: Any, results: Results) -> None:
    panels = _curves(results, "threads")
    row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, curve in zip(row, panels, strict=True):
        for number, name in enumerate(curve.contestants):
            costs = curve.costs(name)
            first = costs[min(costs)]
            axes.plot(
                list(costs),
                [first / cost for cost in costs.values()],
                ".-",
                color=_colour(number),
                label=name,
            )
        axes.plot(curve.values, curve.values, ":", color="grey")
        axes.set_title(curve.name, fontsize=9)
        axes.set_xticks(curve.values)
        axes.set_xlabel("threads")
    row[0].set_ylabel("times as fast as one")
    row[0].legend(fontsize=8)


def _curves(results: Results, variable: str) -> list[Curve]:
    return [curve for curve in results.curves if curve.variable == variable]


def _lines(axes: Any, curve: Curve, scale: float) -> None:
    for number, name in enumerate(sorted(curve.contestants, key=lambda name: (name != OURS, name))):
        costs = curve.costs(name)
        axes.plot(
            list(costs),
            [scale * cost for cost in costs.values()],
            ".-",
            color=_colour(number),
            label=name,
        )
    axes.set_title(curve.name, fontsize=9)


def _kinds(rows: Sequence[RowResult]) -> dict[str, list[RowResult]]:
    """By mode and layout."""
    found: dict[str, list[RowResult]] = {}
    for row in rows:
        found.setdefault(row.kind.rpartition(", ")[0], []).append(row)
    return found


def _once(label: str, place: int) -> str | None:
    return label if place == 0 else None


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
