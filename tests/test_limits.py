"""How large files and functions may be, as the formatters leave them.

The limits keep a reader's head free: they are met by plainer code, not by squeezing it.
"""

import re
from pathlib import Path

import pytest

lizard = pytest.importorskip("lizard", reason="lizard counts the branches of functions")

ROOT = Path(__file__).parents[1]
PYTHON = sorted((ROOT / "torch_dmlpool").rglob("*.py"))
TRITON = sorted((ROOT / "kernels").rglob("*.py"))
CPP = sorted(path for ending in ("*.cpp", "*.h") for path in (ROOT / "kernels/cpu").glob(ending))
SOURCES = [*PYTHON, *TRITON, *CPP]
FILE_LINES = 500
COLUMNS = 100
FUNCTION = 20, 80
"""Branches and lines of a function, at most."""
TRITON_FUNCTION = 25, 220
"""The same of a Triton kernel and what launches it: unrolled code is long."""


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_the_limits_are_of_real_files():
    """The tests below read what is there."""
    assert min(len(PYTHON), len(TRITON), len(CPP)) >= 10


def test_a_file_is_one_idea():
    """At most 500 lines of source."""
    sizes = {str(path.relative_to(ROOT)): len(lines_of(path)) for path in SOURCES}
    assert not {name: size for name, size in sizes.items() if size > FILE_LINES}


@pytest.mark.parametrize(
    ("paths", "limits"),
    [([*PYTHON, *CPP], FUNCTION), (TRITON, TRITON_FUNCTION)],
    ids=["functions", "kernels"],
)
def test_functions_are_short(paths, limits):
    """Few branches and lines, a docstring among them."""
    most_branches, most_lines = limits
    found = [
        (f"{path.relative_to(ROOT)}:{function.start_line}", function.name)
        for path in paths
        for function in lizard.analyze_file(str(path)).function_list
        if function.cyclomatic_complexity > most_branches or function.length > most_lines
    ]
    assert not found


def test_formatters_see_all_code():
    """No directive keeps a formatter away."""
    directive = re.compile(r"(#\s*fmt:\s*(off|skip)|clang-format off)")
    hidden = [
        str(path.relative_to(ROOT)) for path in SOURCES if directive.search(path.read_text("utf-8"))
    ]
    assert not hidden
