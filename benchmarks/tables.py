"""A row of results as words: the same cells for the terminal and for the documentation."""

from __future__ import annotations

from benchmarks.peers import ATEN, OURS
from benchmarks.results import Quartiles, Results, RowResult

NOTHING = "-"


def header(results: Results) -> list[str]:
    return ["workload", "ours: median (quartiles)", "of copy", *results.peers, "kept: ours / ATen"]


def cells(results: Results, row: RowResult) -> list[str]:
    return [
        row.name,
        duration(row.ours),
        fraction(row),
        *(comparison(row, peer) for peer in results.peers),
        kept(row),
    ]


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
        listed = ", ".join(f"{peer} {times(mean)} ({count})" for peer, (mean, count) in means.items())
        lines.append(f"Geometric mean of ratios (rows), {kind}: {listed}")
    behind = results.behind()
    lines.append(f"Rows slower than ATen: {len(behind) or 'none'}")
    for row in behind:
        close = "; the quartiles overlap" if row.ours.overlaps(row.seconds[ATEN]) else ""
        lines.append(f"  {row.name}: {comparison(row, ATEN)}{close}")
    small = [row for row in results.rows if row.small and ATEN in row.seconds]
    if small:
        worst = max(small, key=lambda row: row.difference(ATEN) or 0)
        lines.append(f"Rows under 50 µs: at most {comparison(worst, ATEN)} beside ATen ({worst.name})")
    return lines


def conditions(results: Results) -> str:
    """One sentence that belongs under every figure."""
    known = results.conditions
    machine = known["machine"]
    caches = ", ".join(f"{level} {amount}" for level, amount in machine["caches"].items())
    place = (
        machine.get("gpu")
        or f"{machine['processor']}, {count(machine['cores'], 'core')} ({caches}; {machine['cpu_capability']})"
    )
    others = known["busy_processes"]
    company = f"beside {count(others, 'busy process', 'busy processes')}" if others else "without added load"
    average = known["load_average"]["start"]
    if average is not None:
        company += f" (load average {average} at the start)"
    peers = ", ".join(f"{name} {version}" for name, version in known["peers"].items() if name not in (OURS, "copy"))
    return (
        f"{place}; {count(known['threads'], 'thread')}; {company}; "
        f"median of up to {known['rounds']} interleaved rounds per row; torch_dmlpool {known['peers'][OURS]}, {peers}; "
        f"Python {known['versions']['python']}; {known['date'][:10]}."
    )


def failures(results: Results) -> list[str]:
    """Peers that tried a row and failed, or gave another answer: more than a limit that they state themselves."""
    return [
        f"{row.name}: {name} {reason}"
        for row in results.rows
        for name, reason in row.skipped.items()
        if reason.startswith(("failed:", "wrong:"))
    ]
