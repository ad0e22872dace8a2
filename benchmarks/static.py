"""What the compiler makes of each kernel, without a GPU: ``python -m benchmarks.static > docs/static.md``.

Every family adds a function to ``FAMILIES`` that yields the rows of its table; see ``benchmarks.sass`` for the model.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

import triton

from benchmarks.compiled import Row, measured
from benchmarks.compiled_averages import average_rows
from benchmarks.compiled_maxima import max_rows
from benchmarks.compiled_quantized import quantized_rows

FAMILIES = {"average": average_rows, "max": max_rows, "quantized average": quantized_rows}


def table(rows: Iterable[Row]) -> Iterator[str]:
    """The rows as lines of markdown."""
    yield "| operator | layout | type | window / stride | instructions | loads | registers | local | fraction | bound |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        result = measured(row)
        yield (
            f"| {row.operator} | {row.layout} | {row.dtype} | {row.window} | {result.instructions:.1f} | "
            f"{result.loads:.2f} | {result.registers} | {result.local or ''} | {result.fraction:.2f} | {result.bound} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", help=f"which of {', '.join(FAMILIES)}; all where none is named")
    families = parser.parse_args().families or list(FAMILIES)
    print("# What the compiler makes of the kernels\n")
    print(
        f"Triton {triton.__version__} for sm_90; `python -m benchmarks.static` prints this. Instructions and loads per "
        "output element; registers and accesses to\nlocal memory (spills) per thread; the predicted fraction of copy "
        "bandwidth on an H200, an upper bound, and what bounds it. Model and\nlimits: `benchmarks/sass.py`. Sizes "
        "32 x 64 x 112 x 112 where nothing else is said. A window in several launches counts all their traffic.\n"
    )
    for family in families:
        print(f"## {family.capitalize()} pooling\n")
        for line in table(FAMILIES[family]()):
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
