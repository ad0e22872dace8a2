"""A row of results as words: the same cells for the terminal and for the documentation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from benchmarks.peers import ATEN, COPY, OURS
from benchmarks.results import Curve, Quartiles, Results, RowResult
from benchmarks.workloads import GROUPS

NOTHING = "-"
FIRST_PEER = 3
"""Columns before those of the peers."""


def by_group(results: Results) -> Iterator[tuple[str, Results]]:
    """The groups that were measured, each with the rows that no earlier one has shown."""
    shown: set[str] = set()
    for group in GROUPS:
        rows = tuple(row for row in results.rows if group in row.groups and row.name not in shown)
        shown |= {row.name for row in rows}
        if rows:
            yield group, Results(results.conditions, rows)


def columns(results: Results) -> dict[str, Callable[[RowResult], str]]:
    """Titles, and what makes a cell; columns in which nobody was measured are absent."""
    found: dict[str, Callable[[RowResult], str]] = {
        "workload": lambda row: row.name,
        "ours: median (quartiles)": lambda row: duration(row.ours),
        "of copy": fraction,
    }
    found |= {peer: functools.partial(comparison, peer=peer) for peer in results.peers}
    if any(row.kept for row in results.rows):
        found["kept: ours / ATen"] = kept
    if any(row.peak for row in results.rows):
        found["peak: ours / ATen"] = peak
    return found


def header(results: Results) -> list[str]:
    return list(columns(results))


def cells(results: Results, row: RowResult) -> list[str]:
    return [cell(row) for cell in columns(results).values()]


def duration(quartiles: Quartiles) -> str:
    """``3.62 ms (3.55-3.80)``, in µs below a millisecond."""
    unit, scale = ("ms", 1e3) if quartiles.median >= 1e-3 else ("µs", 1e6)
    lower, median, upper = (
        f"{seconds * scale:.3g}" if seconds * scale < 1000 else f"{seconds * scale:.0f}"
        for seconds in (quartiles.lower, quartiles.median, quartiles.upper)
    )
    return f"{median} {unit} ({lower}-{upper})"


def fraction(row: RowResult) -> str:
    """Share of a copy's bandwidth; of no use where a call costs more than its bytes."""
    share = row.copy_fraction
    return NOTHING if share is None or row.small else f"{share:.0%}"


def comparison(row: RowResult, peer: str) -> str:
    """The peer's time over ours; for tiny tensors by how much ours is longer."""
    ratio, difference = row.ratio(peer), row.difference(peer)
    if ratio is None or difference is None:
        return NOTHING
    return f"{difference * 1e6:+.1f} µs" if row.small else f"{times(ratio)}"


def times(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.3g}x" if ratio >= 10 else f"{ratio:.2f}x"


def is_behind(row: RowResult, peer: str) -> bool:
    return not row.small and (row.ratio(peer) or 1) < 1


def kept(row: RowResult) -> str:
    """Bytes kept for the backward pass beside the input and the output themselves."""
    if not row.kept:
        return NOTHING
    return " / ".join(size(row.kept[name]["extra"]) for name in (OURS, ATEN))


def peak(row: RowResult) -> str:
    """The most bytes that training allocates at once, the input and the gradient that comes in not
    counted."""
    return " / ".join(size(row.peak[name]) for name in (OURS, ATEN)) if row.peak else NOTHING


def size(amount: int) -> str:
    if amount < 1000:
        return f"{amount} B"
    return f"{amount / 1e3:.1f} kB" if amount < 1e6 else f"{amount / 1e6:.1f} MB"


def count(number: int, one: str, several: str | None = None) -> str:
    """``1 thread``, ``2 threads``."""
    return f"{number} {one if number == 1 else several or one + 's'}"


def summary(results: Results) -> list[str]:
    """Geometric means, then the rows where ATen is faster, in plain lines."""
    lines = []
    for kind, means in results.geometric_means().items():
        listed = ", ".join(
            f"{peer} {times(mean)} ({count})" for peer, (mean, count) in means.items()
        )
        lines.append(f"Geometric mean of ratios (rows), {kind}: {listed}")
    behind = results.behind()
    lines.append(f"Rows slower than ATen: {len(behind) or 'none'}")
    for row in behind:
        close = "; the quartiles overlap" if row.ours.overlaps(row.seconds[ATEN]) else ""
        lines.append(f"  {row.name}: {comparison(row, ATEN)}{close}")
    small = [row for row in results.rows if row.small and ATEN in row.seconds]
    if small:
        worst = max(small, key=lambda row: row.difference(ATEN) or 0)
        lines.append(
            f"Rows under 50 µs: at most {comparison(worst, ATEN)} beside ATen ({worst.name})"
        )
    return lines


def growth(curve: Curve) -> list[str]:
    """What a curve says, one line per contestant."""
    lines = []
    for name in curve.contestants:
        slopes, costs = curve.slopes(name), curve.costs(name)
        if not slopes:
            continue
        first, last = min(costs), max(costs)
        if curve.variable == "window":
            speed = "faster" if slopes["logarithm"].faster_than_proportional else "not faster"
            text = f"cost per output grows as (log k)^({slopes['logarithm']}), {speed} than log k"
            doubling = (curve.per_doubling(name) or 0) * 1e9
            text += f" (as k^({slopes['window']})), by {doubling:.3g} ns with each doubling"
            text += f"; {costs[first] * 1e9:.3g} ns at k = {first}"
            text += f", {costs[last] * 1e9:.3g} ns at k = {last}"
        elif curve.variable == "elements":
            text = f"cost per element grows as size^({slopes['elements']}) from 2^18 elements on"
            text += f"; {costs[last] * 1e9:.3g} ns at {last:,}"
            text += f"; a call with {first:,} takes {costs[first] * first * 1e6:.3g} µs"
        else:
            ratio = costs[first] / costs[last]
            text = f"{ratio:.2f} times as fast on {count(last, 'thread')} as on {first}"
        lines.append(f"{curve.name}, {name}: {text}")
    return lines


def conditions(results: Results) -> str:
    """One sentence that belongs under every figure."""
    known = results.conditions
    machine = known["machine"]
    caches = ", ".join(f"{level} {amount}" for level, amount in machine["caches"].items())
    place = machine.get("gpu") or (
        f"{machine['processor']}, {count(machine['cores'], 'core')} "
        f"({caches}; {machine['cpu_capability']})"
    )
    others = known["busy_processes"]
    company = (
        f"beside {count(others, 'busy process', 'busy processes')}"
        if others
        else "without added load"
    )
    average = known["load_average"]["start"]
    if average is not None:
        company += f" (load average {average} at the start)"
    rows = [*results.rows, *(row for curve in results.curves for row in curve.rows)]
    measured = {name for row in rows for name in row.seconds} - {OURS, COPY}
    peers = ", ".join(
        f"{name} {version}" for name, version in known["peers"].items() if name in measured
    )
    return (
        f"{place}; {count(known['threads'], 'thread')}; {company}; "
        f"median of up to {known['rounds']} interleaved rounds per row; torch_dmlpool "
        f"{known['peers'][OURS]}, {peers}; "
        f"Python {known['versions']['python']}; {known['date'][:10]}."
    )


def failures(results: Results) -> list[str]:
    """Peers that tried a row and failed, or gave another answer: more than a limit that they state
    themselves."""
    return [
        f"{row.name}: {name} {reason}"
        for row in results.rows
        for name, reason in row.skipped.items()
        if reason.startswith(("failed:", "wrong:"))
    ]
