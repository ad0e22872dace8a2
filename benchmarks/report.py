"""From measurements to documentation: docs/benchmarks.md with its pictures, and the README's table
of models.

``python -m benchmarks.report`` reads every JSON file in benchmarks/results, takes the newest of
each kind (device, threads, alone or beside busy processes, rows or curves; not the quick ones), and
writes all of them. The models' and the real calls' are in files of their own, models.json,
calls.json and calls_avx2.json.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks import calls, goals, gpu_report, models, plots, tables
from benchmarks.results import Results
from benchmarks.workloads import GROUPS

IMAGES = "images"

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
MODELS = RESULTS / "models.json"
CALLS = RESULTS / "calls.json"
CALLS_AVX2 = RESULTS / "calls_avx2.json"
"""The same with ``ATEN_CPU_CAPABILITY=avx2``."""

FINDINGS = """---
search:
  boost: 0.3  # its rows name every argument
---
# Benchmarks

The findings come first, then how they were measured, then every row. A row is one pooling call. A ratio is the time of a
peer, such as ATen (PyTorch's own operators), divided by the time of this package ("ours"): above 1x ours is faster. "Window
3/2" is a window of size 3 with stride 2.

## Findings
"""

METHOD = """## How it is measured

`make bench` measures, and writes this page and its pictures. `python -m benchmarks` writes the figures into
`benchmarks/results`, with `--load` beside one busy process per core, and with `--scaling` for curves.
`python -m benchmarks.report` makes this page of them.

Each row is measured in one process. First the results of all contestants are compared: maxima, indices and quantized
averages must be equal, and other averages and gradients equal except for rounding. Then each contestant is called once per
round, in a random order, on fresh random tensors. Times are medians with quartiles. Ratios below 1x are in bold. Where ATen
takes less than 50 µs, the table has the difference in place of the ratio: how many µs longer ours takes.

| column | meaning |
| --- | --- |
| of copy | our bandwidth divided by that of copying the input; each input is counted as read once and each result as written once |
| kept | bytes that the forward pass keeps for the backward pass beside its input and output |
| peak | the most bytes that PyTorch's allocator had handed out at once in both passes: results, temporary memory and what is kept |
| oneDNN | PyTorch's operators on tensors in oneDNN's own format; the conversion is not timed |
| float32 detour | conversion to float32 (or dequantization), ATen's pool, and conversion back |
| ATen by axis | ATen's pool along one axis after the other |
| our layer | the layer of `torch_dmlpool.nn`, whose call takes longer than the operator's |
| our integers | `quantized_linear_average_pooling` in place of the function of quantized tensors |

ATen's quantized pool works on PyTorch's quantized tensors; making them is not timed. JAX takes all threads, because it cannot
be told how many to use. ONNX Runtime's threads sleep between calls, so that they do not take time from the contestant that
is measured next.

A peer that is not installed is left out, and each section ends with a list of these. `make bench` does not install JAX
(`pip install jax`).

Exponents of curves are fitted by least squares to the logarithms of all points, with standard errors. A cost grows "faster
than log k" if its power of log k is above 1 by more than two standard errors. Windows one below a power of two are among the
points, because they need the most additions.
"""

CALLS_INTRODUCTION = """## Calls of real models

`python -m benchmarks --calls` measures the pooling calls of 104 public models (torchvision, timm, MONAI,
segmentation_models.pytorch, ultralytics, speechbrain, pytorchvideo). It takes every second of the different calls in a
forward pass, and calls `torch.nn.functional`'s function and this package's in turn. `batch` multiplies the model's own
samples, of which there are one or two. A ratio is ATen's time divided by ours. "Mean" is the geometric mean of the ratios and
"sums" the ratio of the added times, both over rows in which ATen takes 50 µs and more. "Over ATen" is how many µs longer ours
takes in the other rows. A row that is below .95, or a short one that is 5 µs and more over ATen, is measured a second time,
five times as long. Means and sums have the first measurement, the list below and "most" the second.

A row of 4 MB and more may come out twice as slow for one side by chance, in training above all: the C library hands freed
memory back to the system, and the next call of either side has to wait for new pages.
"""
AVX2_INTRODUCTION = """With AVX2 in place of AVX-512 (`ATEN_CPU_CAPABILITY=avx2`), for ATen and for this package:
"""


AIMS = (
    "What development aims at, and what was found. Means leave out rows of less than 50 µs and the group of extreme windows.\n"
    "The findings above include that group."
)


def newest(results: Iterable[Results]) -> list[Results]:
    """The latest of each kind of run; quick runs are no measurements."""
    kinds: dict[tuple[object, ...], Results] = {}
    for result in sorted(
        (one for one in results if not one.conditions["quick"]),
        key=lambda one: one.conditions["date"],
    ):
        known = result.conditions
        machine = known["machine"]
        place = machine.get("gpu") or machine["processor"]
        kind = (
            known["device"],
            place,
            known["threads"],
            bool(known["busy_processes"]),
            bool(result.curves),
        )
        kinds[kind] = result
    return [kinds[kind] for kind in sorted(kinds, key=str)]


def documentation(results: Sequence[Results]) -> str:
    """The whole of docs/benchmarks.md but the calls of real models."""
    parts = [FINDINGS, *findings(results), METHOD]
    for result in results:
        parts += _section(result)
    if not results:
        parts.append("Nothing has been measured yet.\n")
    return "\n".join(parts)


MAIN = [
    f"{mode}, {layout}, float32"
    for layout in ("contiguous", "channels_last")
    for mode in ("forward", "forward + backward")
]


def findings(results: Sequence[Results]) -> list[str]:
    """The means of each undisturbed run of rows, its slower rows and its chart; whole networks."""
    parts = []
    for result in results:
        known = result.conditions
        if known["busy_processes"] or not result.rows:
            continue
        means = result.geometric_means()
        kinds = [kind for kind in MAIN if kind in means]
        peers = list(dict.fromkeys(peer for kind in kinds for peer in means[kind]))
        lines = [_line(("pooling alone, eager", *peers)), _line(["---", *["---:"] * len(peers)])]
        for kind in kinds:
            cells = [means[kind].get(peer) for peer in peers]
            shown = [f"{tables.times(cell[0])} ({cell[1]})" if cell else "" for cell in cells]
            lines.append(_line((kind, *shown)))
        parts += [
            "Geometric means of ratios, with the number of rows in brackets. Rows for which ATen takes "
            "less than 50 µs are left out:\n",
            "\n".join(lines) + "\n",
            _items([line for line in tables.summary(result) if not line.startswith("Geometric")]),
        ]
        parts += [
            f"![{picture.caption}]({IMAGES}/{picture.file})\n"
            for picture in plots.pictures(result)[:1]
        ]
        parts.append(f"*{tables.conditions(result)}*\n")
    if MODELS.exists():
        parts += [
            "Whole networks of torchvision and timm, with `torch.nn`'s pools and after `convert`:\n",
            models.markdown(json.loads(MODELS.read_text(encoding="utf-8"))) + "\n",
        ]
    if CALLS.exists():
        parts.append(
            "The pooling calls of 104 public models are [at the end](#calls-of-real-models).\n"
        )
    return parts


def calls_section() -> str:
    """The end of docs/benchmarks.md: the calls of real models, where they have been measured."""
    if not CALLS.exists():
        return ""
    tables = [
        calls.markdown(json.loads(path.read_text(encoding="utf-8")))
        for path in (CALLS, CALLS_AVX2)
        if path.exists()
    ]
    return f"\n{CALLS_INTRODUCTION}\n" + f"\n{AVX2_INTRODUCTION}\n".join(tables)


def gpu_section() -> str:
    """What was measured on a GPU, where something was."""
    if not gpu_report.RESULTS.exists():
        return ""
    return "\n" + gpu_report.markdown(json.loads(gpu_report.RESULTS.read_text(encoding="utf-8")))


def _section(results: Results) -> list[str]:
    known = results.conditions
    title = known["machine"].get("gpu") or f"CPU, {tables.count(known['threads'], 'thread')}"
    if known["busy_processes"]:
        title += (
            f", beside {tables.count(known['busy_processes'], 'busy process', 'busy processes')}"
        )
    if results.curves:
        title += ": scaling"
    parts = [f"## {title}\n"]
    conditions = f"*{tables.conditions(results)}*\n"
    if results.rows:
        parts += ["### Summary\n", *_goals(results), _items(tables.summary(results)), conditions]
    for picture in plots.pictures(results):
        parts += [
            f"![{picture.caption}]({IMAGES}/{picture.file})\n",
            f"*{picture.caption}. {conditions[1:]}",
        ]
    if results.curves:
        parts += [
            _items([line for curve in results.curves for line in tables.growth(curve)]),
            conditions,
        ]
    for group, part in tables.by_group(results):
        parts += [f"### {group}: {GROUPS[group]}\n", markdown(part), conditions]
    absent = [f"- {name} took no part: {reason}." for name, reason in known["absent"].items()]
    absent += [f"- {line}" for line in tables.failures(results)]
    if absent:
        parts += ["### Who was left out\n", "\n".join(absent) + "\n"]
    return parts


def _goals(results: Results) -> list[str]:
    """What is aimed at, as a table."""
    found = goals.goals(results)
    if not found:
        return []
    lines = [f"{AIMS}\n", _line(("rows", "aim", "found", "")), _line(["---"] * 4)]
    lines += [
        _line((goal.what, goal.aim, goal.found, "reached" if goal.met else "**missed**"))
        for goal in found
    ]
    return ["\n".join(lines) + "\n"]


def _items(lines: Sequence[str]) -> str:
    """A list; lines that start with spaces belong to the item above."""
    return (
        "\n".join(f"  - {line.strip()}" if line.startswith(" ") else f"- {line}" for line in lines)
        + "\n"
    )


def markdown(results: Results) -> str:
    """One table; columns in which nobody was measured are absent."""
    lines = [
        _line(tables.header(results)),
        _line(["---", *["---:"] * (len(tables.header(results)) - 1)]),
    ]
    for row in results.rows:
        cells = tables.cells(results, row)
        for number, peer in enumerate(results.peers, tables.FIRST_PEER):
            if tables.is_behind(row, peer):
                cells[number] = f"**{cells[number]}**"
        lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def with_models(page: str, table: str) -> str:
    """``page`` with ``table`` between its marks."""
    filled, count = re.subn(
        r"(<!-- models -->\n).*?(<!-- /models -->)",
        lambda marks: f"{marks[1]}{table}\n{marks[2]}",
        page,
        flags=re.DOTALL,
    )
    if count != 1:
        raise ValueError(
            "the README must have <!-- models --> and <!-- /models --> once, each at the start of "
            "a line"
        )
    return filled


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "files", type=Path, nargs="*", help="JSON files (default: all in benchmarks/results)"
    )
    parser.add_argument("--docs", type=Path, default=ROOT / "docs" / "benchmarks.md")
    options = parser.parse_args(arguments)
    results = [
        Results.load(path)
        for path in options.files
        or sorted({*RESULTS.glob("*.json")} - {MODELS, CALLS, CALLS_AVX2, gpu_report.RESULTS})
    ]
    options.docs.parent.mkdir(parents=True, exist_ok=True)
    chosen = newest(results)
    drawn = plots.draw(chosen, options.docs.parent / IMAGES)
    page = documentation(chosen) + gpu_section() + calls_section()
    options.docs.write_text(page, encoding="utf-8")
    if MODELS.exists():
        readme = ROOT / "README.md"
        table = models.markdown(json.loads(MODELS.read_text(encoding="utf-8")))
        readme.write_text(with_models(readme.read_text(encoding="utf-8"), table), encoding="utf-8")
    print(f"Written: {options.docs} and {tables.count(len(drawn), 'picture')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
