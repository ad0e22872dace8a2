"""What ``python -m torch_dmlpool bench`` says: a verdict in words, JSON, Markdown for an issue."""

from typing import Any

from torch_dmlpool.bench.calls import Checked
from torch_dmlpool.bench.models import Result
from torch_dmlpool.bench.rows import ATEN, COMPILED, Measured
from torch_dmlpool.timing import Times

MEANINGS = {"faster": "faster", "slower": "slower", "cannot tell": "neither, as far as can be told"}


def verdict(rows: list[Measured], rival: str, load: str | None) -> str:
    """A sentence that says in which rows this package is faster than a rival, and in which
    slower.
    """
    measured = [row for row in rows if rival in row.pairs]
    if not measured:
        return f"Beside {rival}: not measured ({rows[0].missing[rival] if rows else 'no time'})."
    if load is not None:
        return f"Beside {rival}: cannot tell on a busy machine ({load}), the ratios are a hint."
    found: dict[str, list[str]] = {}
    for row in measured:
        found.setdefault(row.verdict(rival), []).append(f"{row.name} ({row.speed_up(rival):.2f}x)")
    sentences = [
        f"{MEANINGS[word]}: {'; '.join(found[word])}" for word in MEANINGS if word in found
    ]
    return f"Beside {rival}, torch_dmlpool is " + ". It is ".join(sentences) + "."


def line(row: Measured, rival: str, load: str | None) -> str:
    """A row of the terminal's table."""
    mine, theirs = row.pairs[rival]
    return (
        f"  {row.name:<62}{_milliseconds(mine):>24}  {rival} {_milliseconds(theirs):>24}"
        f"{row.speed_up(rival):>7.2f}x  {row.verdict(rival, load)}"
    )


def markdown(
    conditions: dict[str, str],
    checked: Checked,
    rows: list[Measured],
    load: str | None,
    model: Result | None,
) -> str:
    """A block to paste into an issue."""
    lines = ["### python -m torch_dmlpool bench", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in conditions.items()]
    lines += [f"| correct | {checked} |", ""]
    lines += [f"- wrong: {name}: {why}" for name, why in checked.wrong.items()]
    lines += [f"- not begun: {name}" for name in checked.left]
    if rows:
        lines += [f"| call | input | ours ms | {ATEN} ms | ratio | | {COMPILED} ratio | |"]
        lines += ["|---|---|---:|---:|---:|---|---:|---|"]
        lines += [_cells(row, load) for row in rows] + [""]
        lines += [f"- {verdict(rows, rival, load)}" for rival in (ATEN, COMPILED)]
    if model is not None:
        lines += [f"- {model.name}: pooling layers take {model.share:.1%} of inference"]
        lines += [f"  - {comparison}" for comparison in model.comparisons]
    return "\n".join(lines)


def data(
    conditions: dict[str, str],
    checked: Checked,
    rows: list[Measured],
    load: str | None,
    model: Result | None,
) -> dict[str, Any]:
    """Everything as JSON has it; times in seconds."""
    found: dict[str, Any] = {
        "conditions": conditions,
        "busy": load,
        "correct": checked._asdict() | {"is_right": checked.is_right},
        "rows": [
            {
                "name": row.name,
                "network": row.row.network,
                "shape": row.shape,
                "rivals": {
                    rival: {
                        "ours": mine._asdict(),
                        "theirs": theirs._asdict(),
                        "verdict": row.verdict(rival, load),
                    }
                    for rival, (mine, theirs) in row.pairs.items()
                },
                "missing": row.missing,
            }
            for row in rows
        ],
    }
    if model is not None:
        found["model"] = {
            "name": model.name,
            "share of pooling layers": model.share,
            "report": model.report,
            "comparisons": [str(comparison) for comparison in model.comparisons],
        }
    return found


def _cells(row: Measured, load: str | None) -> str:
    mine, theirs = row.pairs[ATEN]
    cells = [row.name, "x".join(map(str, row.shape)), _milliseconds(mine), _milliseconds(theirs)]
    for rival in (ATEN, COMPILED):
        if rival in row.pairs:
            cells += [f"{row.speed_up(rival):.2f}x", row.verdict(rival, load)]
        else:
            cells += ["-", row.missing.get(rival, "")]
    return f"| {' | '.join(cells)} |"


def _milliseconds(times: Times) -> str:
    """The median with its quartiles."""
    return "{1:.3g} ({0:.3g} to {2:.3g})".format(*(1e3 * each for each in times))
