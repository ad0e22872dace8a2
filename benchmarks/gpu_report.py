"""What `make gpu` has found, as one file and as a section of docs/benchmarks.md: ``python -m
benchmarks.gpu_report FOLDER`` reads the files that it has written into FOLDER.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "gpu_rows.json"
WINDOWS = "2/1", "2/2", "3/1", "3/2", "5/1", "5/2", "7/1", "7/2"
INTRODUCTION = """## GPU

`make gpu` on an {device} ({date}; PyTorch {torch}, Triton {triton}, CUDA {cuda}).
A call's time is the median of ten between two CUDA events; the second-level cache is flushed before
each. "Of copy" is the time of a copy that moves as many bytes as the call must read and write,
divided by the call's time: 1 is the speed of memory. A ratio is the other's time divided by ours.
A step fails where a result was wrong, and where its time ended before all was done.
"""


def collected(folder: Path) -> dict[str, Any]:
    """The machine, how each step ended, and all rows."""
    report = json.loads((folder / "gpu.json").read_text(encoding="utf-8"))
    files = {
        name: [
            json.loads(line)
            for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        for name in ("rows", "models")
        if (folder / f"{name}.jsonl").exists()
    }
    date = datetime.datetime.fromtimestamp((folder / "gpu.json").stat().st_mtime, datetime.UTC)
    return {"date": date.date().isoformat(), **report, **files}


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _problems(rows: list[dict[str, Any]]) -> str:
    """KernelBench's pooling problems, beside the figures that it publishes for an H100."""
    lines = [
        [
            row["row"].removesuffix(" float32 contiguous"),
            f"{row['seconds'] * 1e3:.2f}",
            f"{row['fraction']:.2f}",
            f"{row['aten'] / row['seconds']:.1f}x",
            *(f"{each / row['seconds']:.1f}x" for each in row["published"]),
        ]
        for row in rows
        if "published" in row
    ]
    head = ["KernelBench's problem", "ms", "of copy", "ATen", "published ATen", "torch.compile"]
    return _table(head, lines)


def _windows(rows: list[dict[str, Any]]) -> str:
    """Fractions of a copy's speed, by what is computed and by window."""
    cells: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        parts = row["row"].split(" | ")
        if len(parts) == 4 and parts[3] in WINDOWS:
            cells[", ".join((parts[0], parts[2], parts[1]))][parts[3]] = row["fraction"]
    lines = [
        [name, *(f"{found[w]:.2f}" if w in found else "" for w in WINDOWS)]
        for name, found in sorted(cells.items())
    ]
    return _table(["of copy, 32x64x112x112", *WINDOWS], lines)


def _calls(rows: list[dict[str, Any]]) -> str:
    """The calls of public models: means by operator."""
    kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found = re.match(r"(.*?) (?:to )?\d+(?:x\d+)*[/ ]", row["row"])
        if found and "published" not in row and " | " not in row["row"]:
            kinds[found[1]].append(row)
    lines = []
    for name, of_kind in sorted(kinds.items()):
        ratios = [row["aten"] / row["seconds"] for row in of_kind if "aten" in row]
        long = [row for row in of_kind if row["seconds"] >= 50e-6]
        lines.append(
            [
                name,
                str(len(of_kind)),
                f"{statistics.geometric_mean(row['fraction'] for row in of_kind):.2f}",
                f"{statistics.geometric_mean(ratios):.2f}x" if ratios else "",
                str(sum(ratio < 1 for ratio in ratios)) if ratios else "",
                f"{min(row['fraction'] for row in long):.2f}" if long else "",
            ]
        )
    head = ["calls of public models, batch 32", "rows", "of copy, mean", "ATen, mean"]
    return _table([*head, "slower than ATen", "least of copy, from 50 µs on"], lines)


def _networks(rows: list[dict[str, Any]]) -> str:
    lines = [
        [
            row["row"],
            *(f"{row['images_per_second'][key]:.0f}" for key in ("original", "converted")),
            f"{row['ratio']:.3f}",
            *(f"{row['peak_bytes'][key] / 2**20:.0f}" for key in ("original", "converted")),
        ]
        for row in rows
        if "ratio" in row
    ]
    head = ["training step, bfloat16 autocast", "images/s", "converted", "ratio", "peak MiB"]
    return _table([*head, "converted"], lines)


def markdown(results: dict[str, Any]) -> str:
    """The section of docs/benchmarks.md."""
    machine = results["machine"]
    rows = [row for row in results["rows"] if "failed" not in row]
    steps = [
        f"`{step['name']}` {'passed' if step['exit_status'] == 0 else 'failed'}"
        for step in results["steps"]
    ]
    earlier = sum("run" in row for row in rows)
    parts = [
        INTRODUCTION.format(date=results["date"], **machine),
        f"Steps: {', '.join(steps)}. {len(rows)} of {len(results['rows'])} rows were measured"
        + (f", {earlier} of them in a run before that one.\n" if earlier else ".\n"),
        _problems(rows),
        _calls(rows),
        _networks(results.get("models", [])),
        _windows(rows),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    found = collected(parser.parse_args().folder)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(markdown(found))
    sys.exit(0)
