"""What the bench says of its measurements: lines of a table, sentences, JSON."""

from typing import Any

from torch_dmlpool.bench.calls import Checked
from torch_dmlpool.bench.models import Result
from torch_dmlpool.bench.rows import Measured
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
    """A row of the table."""
    mine, theirs = row.pairs[rival]
    return (
        f"  {row.name:<62}{_milliseconds(mine):>24}  {rival} {_milliseconds(theirs):>24}"
        f"{row.speed_up(rival):>7.2f}x  {row.verdict(rival, load)}"
    )


def _milliseconds(times: Times) -> str:
    """The median with its quartiles."""
    return "{1:.3g} ({0:.3g} to {2:.3g})".format(*(1e3 * each for each in times))


def data(
    conditions: dict[str, str],
    checked: Checked,
    rows: list[Measured],
    load: str | None,
    model: Result | None,
) -> dict[str, Any]:
    """Everything as JSON has it; times in seconds."""

    def compared(row: Measured, rival: str) -> dict[str, Any]:
        mine, theirs = (times._asdict() for times in row.pairs[rival])
        return {"ours": mine, "theirs": theirs, "verdict": row.verdict(rival, load)}

    found: dict[str, Any] = {
        "conditions": conditions,
        "busy": load,
        "correct": checked._asdict() | {"is_right": checked.is_right},
        "rows": [
            {
                "name": row.name,
                "network": row.row.network,
                "shape": row.shape,
                "rivals": {rival: compared(row, rival) for rival in row.pairs},
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
            "comparisons": list(map(str, model.comparisons)),
        }
    return found
