"""How large the project is, in tokens of code: comments, docstrings and blank lines are free.

``.ci/run`` compares, ``make test`` does not: a contribution of ten lines passes. Whoever adds a
mechanism takes one out, and whoever lowers a total lowers it here.
"""

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST = {
    "torch_dmlpool/**/*.py": 77_900,
    "kernels/cpu/*.[ch]*": 52_900,
    "kernels/*.py": 24_000,
    "tests/**/*.py": 180_000,
    "benchmarks/*.py tools/*.py tools/*.cpp": 25_940,
}
"""The most tokens of the files that match: today's, and at most one in a hundred more."""
_FREE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
_FREE |= {tokenize.ENDMARKER}


def tokens(path: Path) -> int:
    """The tokens of a file of Python or C++."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        text = re.sub(r"//.*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))
        return len(re.findall(r"\w+|[^\w\s]", text))
    documented = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            documented.update(range(node.lineno, (node.end_lineno or 0) + 1))
    read = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(each.type not in _FREE and each.start[0] not in documented for each in read)


def main() -> int:
    too_large = False
    for patterns, most in MOST.items():
        paths = {path for pattern in patterns.split() for path in ROOT.glob(pattern)}
        count = sum(map(tokens, paths))
        too_large |= count > most
        print(f"{patterns:<42}{count:>8} tokens of {most}{'  TOO MANY' * (count > most)}")
    return too_large


if __name__ == "__main__":
    sys.exit(main())
