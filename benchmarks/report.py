"""From measurements to docs/benchmarks.md, the page of rows and the README's table of networks:
``python -m benchmarks report``.

Everything is made of the files in benchmarks/results.
"""

import argparse
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template

from benchmarks import calls, models
from benchmarks.common import (
    ATEN,
    COPY,
    HOST,
    HOST_OF_ATEN,
    OURS,
    PUBLISHED,
    RESULTS,
    ROOT,
    T_OF_INDUCTOR,
    Named,
    count,
    load,
    mean,
    sentence,
    table,
    times,
)
from benchmarks.rows import PEERS, PLAIN, Result

SHOWN = {
    "core": "max and average pools, layouts, ranks and gradients",
    "overhead": "tiny tensors: what a call costs",
    "networks": "pools of well-known networks, in one to three spatial dimensions",
    "quantized": "averages of 8-bit integers with scales and zero points",
}
"""Groups whose rows the page has; of the others it has the means."""
MAIN = [
    f"{mode}, {layout}, float32"
    for layout in ("contiguous", "channels_last")
    for mode in ("forward", "forward + backward")
]

PAGES = {"page.md": "docs/benchmarks.md", "rows.md": "docs/contributing/rows.md"}
"""Templates in this folder, and the pages that are made of them."""
BY_BANDWIDTH = 4.6 / 3.0
"""How many times as fast as an H100 an H200 copies."""


def results(name: str) -> Named:
    """What a command has written; nothing where there is no file."""
    path = RESULTS / f"{name}.json"
    return load(path) if path.exists() else {"conditions": {}, "rows": []}


def measured(data: Named) -> tuple[Named, list[Result]]:
    """Conditions and rows that the table has."""
    return data["conditions"], list(filter(None, map(Result.of, data["rows"])))


def means(measured: Sequence[Result], kinds: Sequence[str] = ()) -> str:
    """Geometric means by mode, layout and type, of two rows and more."""
    ratios = defaultdict(list)
    for result in measured:
        for peer in result.seconds.keys() - {OURS, COPY, PLAIN}:
            if not result.is_small:
                ratios[result.row.kind, peer].append(result.ratio(peer))
    several = {which: found for which, found in ratios.items() if len(found) > 1}
    chosen = dict.fromkeys(kind for kind, _ in several if not kinds or kind in kinds)
    peers = [peer for peer in PEERS if any((kind, peer) in several for kind in chosen)]
    cells = {which: f"{times(mean(found))} ({len(found)})" for which, found in several.items()}
    lines = [(kind, *(cells.get((kind, peer), "") for peer in peers)) for kind in chosen]
    return table(("pooling alone, eager", *peers), lines)


def behind(rows: Sequence[Result]) -> str:
    """The rows in which ATen is faster, the worst first, and the largest difference of small
    rows."""
    slower = [(ratio, one) for one in rows if (ratio := one.ratio(ATEN)) and not one.is_small]
    slower = sorted((pair for pair in slower if pair[0] < 1), key=lambda pair: pair[0])
    lines = [f"- Rows slower than ATen: {len(slower) or 'none'}"]
    for ratio, one in slower:
        ours, theirs = one.seconds[OURS], one.seconds[ATEN]
        close = "; the quartiles overlap" if ours.lower <= theirs.upper else ""
        lines.append(f"  - {one.row.name}: {times(ratio)}{close}")
    small = [one for one in rows if one.is_small and ATEN in one.seconds]
    if small:
        worst = max(small, key=lambda one: one.seconds[OURS].median - one.seconds[ATEN].median)
        lines.append(f"- Rows under 50 µs: at most {worst.compared(ATEN)} ({worst.row.name})")
    return "\n".join(lines)


def rows_of(rows: Sequence[Result], group: str) -> str:
    """A line for each pool of a group, and a column for each mode, layout and peer."""
    pools = {}
    for result in rows:
        row = result.row
        if group in row.groups:
            copy = "" if result.of_copy is None else f"{result.of_copy:.0%}"
            first = {"pool": row.pool, "ours": duration(result.seconds[OURS].median)}
            cells = pools.setdefault(row.pool, first | {"of copy": copy})
            way = row.name.removeprefix(row.pool).strip() or "forward"
            for peer in PEERS:
                if peer in result.seconds and peer not in (OURS, COPY):
                    cells[way if peer == ATEN else f"{way}: {peer}"] = result.compared(peer)
    heads = list(dict.fromkeys(itertools.chain.from_iterable(pools.values())))
    return table(heads, [[cells.get(head, "") for head in heads] for cells in pools.values()])


def duration(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def pages() -> dict[str, str]:
    """The whole text of each page."""
    (known, rows), (beside_known, beside) = map(measured, map(results, ("cpu", "gpu_beside")))
    groups = []
    unshown = rows
    of_calls = results("calls")
    for group, meaning in SHOWN.items():
        groups.append(f"### {group}: {meaning}\n\n{rows_of(unshown, group)}")
        unshown = [one for one in unshown if group not in one.row.groups]
    parts = dict(
        findings=means(rows, MAIN),
        behind=behind(rows),
        where=sentence(known),
        networks=networks(),
        threads=count(known["threads"], "thread"),
        means=means(rows),
        groups="\n\n".join(groups),
        **of_gpu(results("gpu_rows")),
        beside="\n\n".join(rows_of(beside, group) for group in ("overhead", "published")),
        beside_where=sentence(beside_known),
        calls=calls.markdown(of_calls),
        calls_least=calls.least(of_calls),
        calls_behind=calls.behind(of_calls),
        calls_avx2=calls.markdown(results("calls_avx2")),
    )
    here = Path(__file__)
    return {
        page: Template(here.with_name(name).read_text(encoding="utf-8")).substitute(parts)
        for name, page in PAGES.items()
    }


def of_gpu(found: Named) -> dict[str, str]:
    """What the page says of `make gpu`, by the names of its places."""
    known = found["conditions"]
    rows = {row["name"]: row["seconds"] for row in found["rows"]}
    tables = [gpu_problems(rows), gpu_calls(found["rows"]), gpu_networks(found["models"])]
    for group in ("lowered", "peers"):
        _, beside = measured(results(f"gpu_{group}"))
        tables += [rows_of(beside, group)] * bool(beside)
    versions = known["versions"]
    return {
        "gpu": f"{known['machine']['gpu']} ({known['date'].partition('T')[0]}; PyTorch "
        f"{versions['torch']}, Triton {versions['triton']}, CUDA {known['cuda']})",
        "gpu_steps": ", ".join(f"`{step['name']}` {ending(step)}" for step in found["steps"]),
        "gpu_measured": str(len(rows)),
        "gpu_rows": str(len(rows) + len(found["failed"])),
        "gpu_earlier": str(sum("run" in row for row in found["rows"])),
        "gpu_faster": f"{BY_BANDWIDTH:.2f}",
        "gpu_tables": "\n\n".join(tables),
        "windows": gpu_windows(rows),
    }


def ending(step: Named) -> str:
    """How a step of `make gpu` ended: one without a wrong result that did not pass had no time."""
    last = " ".join(step.get("last", []))
    wrong = re.search(r"[1-9]\d* (?:failed|wrong)|(?<=SUMMARY: )[1-9]\d* errors", last)
    return "passed" if not step["exit_status"] else wrong[0] if wrong else "ran out of time"


def gpu_problems(rows: Named) -> str:
    """KernelBench's problems, beside the times that it publishes."""
    lines = []
    for name, seconds in rows.items():
        problem, ours = name.removesuffix(" contiguous"), seconds[OURS]
        if problem in PUBLISHED:
            cells = [f"{ours * 1e3:.2f}", f"{seconds[COPY] / ours:.2f}"]
            cells.append(f"{seconds[ATEN] / ours:.1f}x")
            ratios = [each / 1e3 / ours for each in PUBLISHED[problem]]
            cells += [f"{each:.1f}x ({each / BY_BANDWIDTH:.2f}x)" for each in ratios]
            lines.append((problem, *cells))
    head = "KernelBench's problem|ms|of copy|ATen|published ATen|torch.compile"
    return table(head.split("|"), lines)


def gpu_calls(measured: Sequence[Named]) -> str:
    """Means of the calls of public models; of those that no GPU has measured T alone."""
    found = defaultdict(lambda: ([], []))
    for place, listed in enumerate((measured, results("expected")["rows"])):
        for row in listed:
            if "models" in row["groups"]:
                found[re.split(r" \d", row["name"])[0]][place].append(row["seconds"])

    def ratios(rows, of, to):
        return [row[of] / row[to] for row in rows if row.keys() >= {of, to}]

    lines = []
    for kind, (known, foreseen) in sorted(found.items()):
        atens = ratios(known, ATEN, OURS)
        of_aten = f"{mean(atens):.2f}x" if atens else ""
        others = ratios(known, HOST, HOST_OF_ATEN), ratios(foreseen, T_OF_INDUCTOR, OURS)
        cells = (calls.extremes(each, min) for each in (ratios(known, COPY, OURS), *others))
        lines.append((kind, len(known), of_aten, sum(each < 1 for each in atens), *cells))
    heads = ["calls of public models, batch 32", "rows", "ATen, mean", "slower than ATen"]
    heads += ["of copy: mean / least", "host over ATen's: mean / least"]
    return table([*heads, "Inductor's T over ours: mean / least"], lines)


def gpu_networks(rows: Iterable[Named]) -> str:
    lines = []
    for row in rows:
        way = "compiled" if row["compiled"] else "eager"
        layout = "channels_last" if row["channels_last"] else "contiguous"
        speeds = [f"{row['sizes'][0] / each:.0f}" for each in row["seconds"].values()]
        peaks = [f"{each / 2**20:.0f}" for each in row["peak"].values()]
        cells = *speeds, f"{models.ratio(row):.3f}", *peaks
        lines.append((f"{row['model']} {way} {layout}", *cells))
    head = "training step, bfloat16 autocast|images/s|converted|ratio|peak MiB|converted"
    return table(head.split("|"), lines)


WINDOW = re.compile(r"([a-z ]+) 32x64x112x112 window (\d/\d)(?: pad \d)?(?: (\w+\d))? (\w+)")


def gpu_windows(rows: Named) -> str:
    """Shares of a copy's speed, by window."""
    found = defaultdict(dict)
    for name, seconds in rows.items():
        if part := WINDOW.fullmatch(name):
            what = part[1], part[3] or "float32", part[4]
            found[", ".join(what)][part[2]] = f"{seconds[COPY] / seconds[OURS]:.2f}"
    sizes = sorted(set(itertools.chain.from_iterable(found.values())))
    lines = [(name, *(cells.get(size, "") for size in sizes)) for name, cells in found.items()]
    return table(["of copy, 32x64x112x112", *sizes], sorted(lines))


def networks() -> str:
    return models.markdown(results("models"))


def with_models(text: str, networks: str) -> str:
    """``text`` with ``networks`` between its marks."""
    marked = re.compile(r"(?<=<!-- models -->\n).*?(?=<!-- /models -->)", flags=re.DOTALL)
    if len(marked.findall(text)) != 1:
        raise ValueError("the README must have <!-- models --> and <!-- /models --> once")
    return marked.sub(lambda _: f"{networks}\n", text)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks report", description=__doc__)
    parser.parse_args(arguments)
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(with_models(text, networks()), encoding="utf-8")
    for page, written in pages().items():
        (ROOT / page).write_text(written, encoding="utf-8")
    print(f"Written: {readme}, {', '.join(PAGES.values())}")
    return 0
