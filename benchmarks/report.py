"""From measurements to docs/benchmarks.md, its pictures and the README's table of networks:
``python -m benchmarks report``. With ``--rows GROUP`` it prints the rows of a group instead.

Everything is made of the files in benchmarks/results.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import calls, common, gpu_rows, models
from benchmarks.common import GROUPS, MODES
from benchmarks.rows import ATEN, OURS, PEERS, PLAIN, Result

CPU, GPU_BESIDE, GPU, MODELS, CALLS, CALLS_AVX2 = (
    common.RESULTS / f"{name}.json"
    for name in ("cpu", "gpu_beside", "gpu_rows", "models", "calls", "calls_avx2")
)
IMAGES = common.ROOT / "docs" / "images"
PICTURES = {
    "amd-epyc-family-25-model-17-2-threads-ratios.png": "Each row's ratio to each peer, and means",
    "amd-epyc-family-25-model-17-2-threads-bandwidth.png": "Each row's share of a copy's bandwidth",
}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#000000")
"""Told apart by those who see few colours, too."""
SHOWN = ("core", "overhead", "networks", "quantized")
"""Groups whose rows the page has; of the others it has the means."""
MAIN = [
    f"{mode}, {layout}, float32"
    for layout in ("contiguous", "channels_last")
    for mode in ("forward", "forward + backward")
]

INTRODUCTION = """---
search:
  boost: 0.3  # its rows name every argument
---
# Benchmarks

A row is one pooling call. A ratio is the time of a peer, such as ATen (PyTorch's own operators), divided by the time of this
package ("ours"): above 1x ours is faster. "Window 3/2" is a window of size 3 with stride 2.

## Findings on a CPU

Geometric means of ratios, with the number of rows in brackets. Rows for which ATen takes less than 50 µs are left out:
"""
METHOD = """## How it is measured

`make bench` measures on a CPU and writes this page and its pictures. It calls these commands:

| command | what it measures |
| --- | --- |
| `python -m benchmarks rows` | the rows of `benchmarks/rows.txt`; `rows core` those of a group, `rows all --compile` beside torch.compile too |
| `python -m benchmarks calls` | the calls of real models; with `ATEN_CPU_CAPABILITY=avx2` by AVX2 |
| `python -m benchmarks models` | whole networks |
| `python -m benchmarks report` | nothing: it makes this page of the files in `benchmarks/results`; `report --rows published` prints every row of a group |

Each row is measured in one process. First the results of all contestants are compared: maxima, indices and quantized
averages must be equal, and other averages and gradients equal except for rounding. Then their calls take turns, on random
tensors that take turns too. Times are medians. Ratios below 1x are in bold. Where ATen takes less than 50 µs, the table has
the difference in place of the ratio: how many µs longer ours takes.

| column | meaning |
| --- | --- |
| of copy | our bandwidth divided by that of copying the input; each input is counted as read once and each result as written once |
| kept | bytes that the forward pass keeps for the backward pass beside its input and output |

Columns without a peer's name are ratios to ATen. Where ATen has no pool of a data type, its time is that of a conversion to
float32, its pool, and a conversion back. ONNX Runtime's threads sleep between calls, so that they take no time from others.
"""
CALLS_INTRODUCTION = """## Calls of real models on a CPU

`python -m benchmarks calls` measures the pooling calls of 104 public models (torchvision, timm, MONAI,
segmentation_models.pytorch, ultralytics, speechbrain, pytorchvideo). It takes every second of the different calls in a
forward pass, and calls `torch.nn.functional`'s function and this package's in turn. `batch` multiplies the model's own
samples, of which there are one or two. A ratio is ATen's time divided by ours. "Mean" is the geometric mean of the ratios and
"sums" the ratio of the added times, both over rows in which ATen takes 50 µs and more. "Over ATen" is how many µs longer ours
takes in the other rows. A row that is below .95, or a short one that is 5 µs and more over ATen, is measured a second time,
five times as long. Means and sums have the first measurement, the list below and "most" the second.
A row of 4 MB and more may come out twice as slow for one side by chance, in training above all: the C library hands freed
memory back to the system, and the next call of either side has to wait for new pages.
"""
AVX2_INTRODUCTION = """With AVX2 in place of AVX-512, for ATen and for this package:
"""


def measured(path: Path) -> tuple[dict[str, Any], list[Result]]:
    """Conditions and rows of a file; none where there is no file."""
    if not path.exists():
        return {}, []
    data = common.load(path)
    return data["conditions"], [row for row in map(Result.of, data["rows"]) if row is not None]


def means(results: Sequence[Result], kinds: Iterable[str] | None = None) -> str:
    """Geometric means by mode, layout and type, of two rows and more."""
    ratios: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        for peer in PEERS:
            ratio = result.ratio(peer)
            if ratio is not None and not result.is_small and peer not in (OURS, "copy", PLAIN):
                ratios[result.row.kind][peer].append(ratio)
    chosen = [kind for kind in (kinds or ratios) if any(len(r) > 1 for r in ratios[kind].values())]
    peers = [peer for peer in PEERS if any(len(ratios[kind][peer]) > 1 for kind in chosen)]

    def cell(found: list[float]) -> str:
        return f"{common.times(common.mean(found))} ({len(found)})" if len(found) > 1 else ""

    lines = [(kind, *(cell(ratios[kind][peer]) for peer in peers)) for kind in chosen]
    return common.table(("pooling alone, eager", *peers), lines) + "\n"


def behind(results: Sequence[Result]) -> str:
    """The rows in which ATen is faster, the worst first, and the largest difference of small
    rows."""
    slower = [(ratio, one) for one in results if (ratio := one.ratio(ATEN)) and not one.is_small]
    slower = sorted((pair for pair in slower if pair[0] < 1), key=lambda pair: pair[0])
    lines = [f"- Rows slower than ATen: {len(slower) or 'none'}"]
    for ratio, one in slower:
        ours, theirs = one.seconds[OURS], one.seconds[ATEN]
        close = "; the quartiles overlap" if ours.lower <= theirs.upper else ""
        lines.append(f"  - {one.row.name}: {common.times(ratio)}{close}")
    small = [one for one in results if one.is_small and ATEN in one.seconds]
    if small:
        worst = max(small, key=lambda one: one.seconds[OURS].median - one.seconds[ATEN].median)
        lines.append(f"- Rows under 50 µs: at most {worst.compared(ATEN)} ({worst.row.name})")
    return "\n".join(lines) + "\n"


def rows_of(results: Sequence[Result], group: str) -> str:
    """A line for each pool of a group, and a column for each mode, layout and peer."""
    pools: dict[str, dict[tuple[str, bool, str], Result]] = defaultdict(dict)
    for result in results:
        row = result.row
        if group in row.groups:
            pools[row.pool][row.mode, row.channels_last, row.mask] = result
    ways = [
        way
        for way in itertools.product(MODES, (False, True), ("", "sample", "element"))
        if any(way in found for found in pools.values())
    ]
    peers = [ATEN, *(peer for peer in PEERS if peer not in (OURS, ATEN, "copy"))]
    columns = [
        (way, peer)
        for way, peer in itertools.product(ways, peers)
        if any(way in found and peer in found[way].seconds for found in pools.values())
    ]
    trained = [way for way in ways if any(way in one and one[way].kept for one in pools.values())]
    lines = []
    for pool, found in pools.items():
        first = next(found[way] for way in ways if way in found)
        cells = [duration(first.seconds[OURS].median)]
        cells.append("" if first.of_copy is None else f"{first.of_copy:.0%}")
        for way, peer in columns:
            text = found[way].compared(peer) if way in found else ""
            ratio = found[way].ratio(peer) if way in found else None
            bold = ratio is not None and ratio < 1 and not found[way].is_small and peer != PLAIN
            cells.append(f"**{text}**" if bold else text)
        kept = next((found[way].kept for way in trained if way in found), {})
        cells += [" / ".join(map(size, kept.values()))] * bool(trained)
        lines.append((pool, *cells))
    head = ["pool", "ours", "of copy", *(heading(*column) for column in columns)]
    head += ["kept: ours / ATen"] if trained else []
    return common.table(head, lines) + "\n"


def heading(way: tuple[str, bool, str], peer: str) -> str:
    mode, channels_last, mask = way
    words = [MODES[mode] or "forward", *["channels_last"] * channels_last]
    words += [f"mask of each {mask}"] * bool(mask)
    return ", ".join(words) + (f": {peer}" if peer != ATEN else "")


def duration(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def size(amount: int) -> str:
    if amount < 1000:
        return f"{amount} B"
    return f"{amount / 1e3:.1f} kB" if amount < 1e6 else f"{amount / 1e6:.1f} MB"


def page() -> str:
    """The whole of docs/benchmarks.md."""
    known, results = measured(CPU)
    where = f"*{common.sentence(known)}.*\n"
    pictures = [f"![{caption}](images/{file})\n" for file, caption in PICTURES.items()]
    parts = [INTRODUCTION, means(results, MAIN), behind(results), pictures[0], where]
    parts += ["Whole networks, with `torch.nn`'s pools and after `convert`:\n", networks() + "\n"]
    parts.append(
        "The pooling calls of 104 public models are [at the end](#calls-of-real-models-on-a-cpu), "
        "findings on a GPU [before them](#gpu).\n"
    )
    parts += [METHOD, f"## CPU, {common.count(known['threads'], 'thread')}\n"]
    parts += [means(results), pictures[1], where]
    for number, group in enumerate(SHOWN):
        unshown = [one for one in results if not set(one.row.groups) & set(SHOWN[:number])]
        parts += [f"### {group}: {GROUPS[group]}\n", rows_of(unshown, group)]
    parts.append(gpu_rows.markdown(common.load(GPU)))
    known, results = measured(GPU_BESIDE)
    if results:
        parts.append("### Beside torch.compile on a GPU\n")
        parts += [rows_of(results, group) for group in ("overhead", "published")]
        command = "python -m benchmarks rows overhead,published --device cuda --compile"
        parts.append(f"*`{command}`: {common.sentence(known)}.*\n")
    parts += [CALLS_INTRODUCTION, calls.markdown(common.load(CALLS))]
    parts += [AVX2_INTRODUCTION, calls.markdown(common.load(CALLS_AVX2), lists=False)]
    return "\n".join(parts)


def networks() -> str:
    return models.markdown(common.load(MODELS))


def draw(results: Sequence[Result], folder: Path) -> None:
    """The pictures of rows: ratios to each peer, and shares of a copy's bandwidth."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    large = [result for result in results if not result.is_small]
    ratios, bandwidth = Figure(figsize=(9, 4), layout="constrained"), None
    axes = ratios.subplots()
    kinds = list(dict.fromkeys(result.row.kind.rpartition(", ")[0] for result in large))
    peers = [p for p in PEERS if p not in (OURS, "copy") and any(r.ratio(p) for r in large)]
    for place, peer in enumerate(peers):
        for number, kind in enumerate(kinds):
            chosen = [one for one in large if one.row.kind.startswith(f"{kind}, ")]
            found = [ratio for one in chosen if (ratio := one.ratio(peer)) is not None]
            height = [place + 0.6 * (number / max(1, len(kinds) - 1) - 0.5)] * len(found)
            colour, label = COLOURS[number % len(COLOURS)], kind if place == 0 else None
            axes.plot(found, height, ".", color=colour, alpha=0.7, label=label)
        mean = common.mean(ratio for one in large if (ratio := one.ratio(peer)) is not None)
        axes.plot([mean, mean], [place - 0.4, place + 0.4], color="black", linewidth=2)
        axes.annotate(f" {mean:.2f}x", (mean, place + 0.36), fontsize=8)
    axes.set_yticks(range(len(peers)), peers)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.set_xlabel("the peer's time over ours (right of the line ours is faster)")
    ratios.legend(loc="outside lower center", ncols=4, fontsize=8)

    kinds = list(dict.fromkeys(one.row.kind for one in large if one.of_copy is not None))
    bandwidth = Figure(figsize=(9, 1 + 0.25 * len(kinds)), layout="constrained")
    shares = bandwidth.subplots()
    for place, kind in enumerate(kinds):
        found = [one.of_copy for one in large if one.row.kind == kind and one.of_copy is not None]
        shares.plot(found, [place] * len(found), ".", color=COLOURS[0], alpha=0.7)
    shares.set_yticks(range(len(kinds)), kinds, fontsize=8)
    shares.set_xlim(left=0)
    shares.set_xlabel(
        "our bytes a second over a copy's (each input read once, each result written)"
    )
    for file, figure, plot in zip(PICTURES, (ratios, bandwidth), (axes, shares), strict=True):
        plot.invert_yaxis()
        plot.axvline(1, color="grey", linewidth=1)
        FigureCanvasAgg(figure)
        figure.savefig(folder / file, dpi=100, metadata={"Software": None})


def with_models(text: str, table: str) -> str:
    """``text`` with ``table`` between its marks."""
    marked = re.compile(r"(?<=<!-- models -->\n).*?(?=<!-- /models -->)", flags=re.DOTALL)
    if len(marked.findall(text)) != 1:
        raise ValueError("the README must have <!-- models --> and <!-- /models --> once")
    return marked.sub(lambda _: f"{table}\n", text)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks report", description=__doc__)
    parser.add_argument("--rows", choices=GROUPS, help="print this group's rows, write nothing")
    options = parser.parse_args(arguments)
    _, results = measured(CPU)
    if options.rows:
        print(rows_of(results, options.rows))
        return 0
    draw(results, IMAGES)
    readme, docs = common.ROOT / "README.md", common.ROOT / "docs" / "benchmarks.md"
    text = with_models(readme.read_text(encoding="utf-8"), networks())
    readme.write_text(text, encoding="utf-8")
    docs.write_text(page(), encoding="utf-8")
    print(f"Written: {docs}, {readme} and {len(PICTURES)} pictures")
    return 0
