"""Writes torch_dmlpool.nn's layers and functions for one and three dimensions, from those for two.

Signatures and docstrings stand written out in the source, so that editors and type checkers show
what ``help()`` shows. Edit a ``...2d`` in place, run ``python tools/write_dimensions.py``, and
commit all. tests/nn/test_written.py compares.

A new family also needs a function in nn/pools.py and a class in bases.py. Where it applies it
goes into exported._POOL, quantizers._as_pytorch and conversion._effect, all in nn/.
"""

import ast
import re
import textwrap
from pathlib import Path

NN = Path(__file__).parent.parent / "torch_dmlpool" / "nn"
AXES = {1: "W", 2: "H, W", 3: "D, H, W"}


def files() -> dict[Path, str]:
    """What the files of layers and functions say."""
    paths = [*NN.glob("functional/*.py"), *NN.glob("layers/*.py")]
    return {path: written(path.read_text(encoding="utf-8")) for path in paths}


def written(source: str) -> str:
    """A file whose definitions for one and three dimensions follow from those for two."""
    lines = source.split("\n")
    nodes = [
        node
        for node in ast.parse(source).body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and re.search(r"[123]d", node.name)
    ]
    if not nodes:
        return source
    starts = [min([each.lineno, *(d.lineno for d in each.decorator_list)]) - 1 for each in nodes]
    definitions = [
        derived("\n".join(lines[start : node.end_lineno]), rank)
        for node, start in zip(nodes, starts, strict=True)
        if "2d" in node.name
        for rank in AXES
    ]
    before, after = lines[: starts[0]], lines[nodes[-1].end_lineno :]
    return "\n".join([*before, "\n\n\n".join(definitions), *after])


def derived(text: str, rank: int) -> str:
    """A definition for ``rank`` dimensions in place of two."""
    text = re.sub(r"\brank=2\b", f"rank={rank}", text.replace("2d", f"{rank}d"))
    text = re.sub(r"\b2(,\s+input\b)", rf"{rank}\1", text)
    return re.sub('    """.*?"""', lambda found: docstring(found[0], rank), text, flags=re.DOTALL)


def docstring(text: str, rank: int) -> str:
    """A docstring for ``rank`` dimensions, whose lines are as long as the page allows."""
    ones = "1, " * (rank - 1)
    text = text.replace("C, H, W)", f"C, {AXES[rank]})")
    if rank == 1:
        text = re.sub('``"same"`` or ``"valid"``', r'\g<0> or ``"causal"``', text)
    text = re.sub(r"\(1, (\d)\)", rf"({ones}\1)" if rank > 1 else r"\1", text)
    text = text.replace("view(1, 1, ", f"view(1, {ones}")
    return "\n\n".join(map(wrapped, text.split("\n\n")))


def wrapped(paragraph: str) -> str:
    """A paragraph, or each entry of a list of arguments."""
    if ">>>" in paragraph:
        return paragraph
    heading, args, entries = paragraph.rpartition("Args:\n")
    lines = re.split(r"\n(?= {8}\w)", entries)
    indents = (" " * 8, " " * 12) if args else (" " * 4, " " * 4)
    return heading + args + "\n".join(filled(line, *indents) for line in lines)


def filled(text: str, first: str, others: str) -> str:
    return textwrap.fill(
        " ".join(text.split()),
        100,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
