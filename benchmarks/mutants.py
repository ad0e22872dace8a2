"""How many mistakes the tests see: ``python -m benchmarks.mutants cpu`` makes them, one at a time,
and runs the tests.

A mutant is a source of a backend with one comparison, operator, number or condition changed, drawn
by a seed. Each is tested in a copy of the package until a first test fails. What was found is kept
in .mutants, so that a run goes on where it was ended; docs/trust.md has the results.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SOURCES = {
    "reference": ["torch_dmlpool/backends/reference*.py"],
    "cpu": ["kernels/**/*.cpp", "kernels/**/*.h"],
    "triton": ["kernels/*.py"],
}
OPERATORS = ["tests/ops", "tests/test_properties.py", "tests/test_threads.py"]
EITHER = [
    "tests/ops/test_max_pooling.py::test_half_precision_gradients_are_summed_in_float32",
    "tests/ops/test_quantized_average_pooling.py::test_quotients_beside_a_half",
    "tests/ops/test_quantized_average_pooling.py::test_sums_of_a_large_image",
    "tests/test_properties.py::test_windows_far_larger_than_the_input_cost_what_they_read",
]
"""What is tested with either backend."""
TESTS = {
    "reference": [
        "--backend=reference",
        "tests/backends/test_reference.py",
        "tests/ops/test_max_unpooling.py",
        *EITHER,
    ],
    "cpu": [
        *OPERATORS,
        "tests/test_neighbours.py",
        "tests/test_functional.py",
        "--ignore=tests/ops/test_registration.py",
    ],
    "triton": ["tests/kernels"],
}
COMPILE = ["-std=c++17", "-O1", "-mavx2", "-mfma", "-mf16c", "-ffp-contract=off", "-fPIC", "-w"]
"""One level of vector instructions, and no more optimization than compiles soon."""

PAIRS = [
    ("<", "<="),
    (">", ">="),
    ("==", "!="),
    ("+", "-"),
    ("+=", "-="),
    ("&&", "||"),
    ("and", "or"),
]
PAIRS += [
    ("min", "max"),
    ("minimum", "maximum"),
    ("amin", "amax"),
    ("true", "false"),
    ("True", "False"),
]
SWAPS = {before: after for pair in PAIRS for before, after in (pair, pair[::-1])}
SWAPS |= {"*": "+", "/": "*", "//": "*", "%": "*", "not ": "", "!": ""}
# Binary operators stand between blanks, by the formatters of either language.
PLACES = re.compile(
    r"(?<= )(?:[<>=!]=|[-+]=|//|&&|\|\||[-+*/%<>])(?= "
    r")|\b(?:and|or|[Tt]rue|[Ff]alse|a?min|a?max|minimum|maximum)\b"
    r"|(?<![\w.])\d+(?![\w.])|\bnot (?!in )|!(?=\w)|\bif (?:constexpr )?\(?(?=\S)"
)
DECLARED = r"^\s*(?:#|@|import |from |using |template|static_assert|assert )[^\n]*"
UNREAD = {
    ".py": re.compile(rf'"""[\s\S]*?"""|"[^"\n]*"|#[^\n]*|{DECLARED}', re.MULTILINE),
    ".cpp": re.compile(rf'"(?:\\.|[^"\\\n])*"|//[^\n]*|{DECLARED}', re.MULTILINE),
}
UNREAD[".h"] = UNREAD[".cpp"]


class Mutant(NamedTuple):
    """One change of one source."""

    path: str
    line: int
    start: int
    before: str
    after: str

    @property
    def text(self) -> str:
        source = (ROOT / self.path).read_text()
        return source[: self.start] + self.after + source[self.start + len(self.before) :]

    @property
    def name(self) -> str:
        """Where it is and what is changed."""
        source = (ROOT / self.path).read_text()
        column = self.start - source.rfind("\n", 0, self.start)
        line = source.splitlines()[self.line - 1].strip()
        change = f"{self.before.strip()} → {self.after.strip() or 'nothing'}"
        return f"{self.path}:{self.line}:{column}: {change} in {line}"


def mutants(path: Path) -> Iterator[Mutant]:
    """Every change of a source; what stands in comments, texts and declarations is left."""
    source = path.read_text()
    code = UNREAD[path.suffix].sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source)
    for number, found in enumerate(PLACES.finditer(code)):
        before = found[0]
        if before.startswith("if "):
            python = path.suffix == ".py"
            dropped = [("False and ", "True or "), ("false && ", "true || ")][not python][
                number % 2
            ]
            after = before + dropped
        else:
            after = str(int(before) + 1) if before.isdigit() else SWAPS[before]
        line = source.count("\n", 0, found.start()) + 1
        yield Mutant(str(path.relative_to(ROOT)), line, found.start(), before, after)


def drawn(backend: str, seed: int) -> list[Mutant]:
    """All mutants of a backend in the order in which they are tried."""
    paths = sorted(path for pattern in SOURCES[backend] for path in ROOT.glob(pattern))
    found = [mutant for path in paths for mutant in mutants(path)]
    random.Random(seed).shuffle(found)
    return found


class Copy:
    """The package and its tests in a folder, with the mutant that is tested."""

    def __init__(self, backend: str, folder: Path) -> None:
        self.backend, self.folder = backend, folder
        self.seconds: dict[str, float] = {}
        self.lines: dict[str, dict[str, list[str]]] = {}
        for name in ("torch_dmlpool", "tests", "benchmarks", "docs"):
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "results")
            )
        self.kernels = folder / "torch_dmlpool" / "kernels"
        shutil.copytree(
            ROOT / "kernels",
            self.kernels,
            ignore=shutil.ignore_patterns("__pycache__"),
            dirs_exist_ok=True,
        )
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, folder)
        if backend == "cpu":
            for library in self.kernels.glob("*.so"):
                library.unlink()
            assert not self.built(self.sources())

    def place_of(self, path: str) -> Path:
        inside = path.startswith("kernels/")
        return self.folder / "torch_dmlpool" / path if inside else self.folder / path

    def sources(self) -> list[Path]:
        return sorted(self.kernels.rglob("*.cpp"))

    def built(self, sources: list[Path]) -> str:
        """Makes the library with these sources compiled anew, or says why not; other objects are as
        they were."""
        objects = {path: path.with_suffix(".o") for path in self.sources()}
        is_changed = False
        for path in sources:
            given = objects[path]
            objects[path] = given if not given.exists() else given.with_suffix(".mutant")
            command = ["g++", *COMPILE, "-c", path, "-o", objects[path]]
            if subprocess.run(command, capture_output=True, check=False).returncode:
                return "no program"
            is_changed |= objects[path] == given or objects[path].read_bytes() != given.read_bytes()
        library = self.kernels / "cpu_avx2.so"
        library.unlink(missing_ok=True)
        subprocess.run(["g++", "-shared", *objects.values(), "-o", library], check=True)
        return "" if is_changed else "same program"

    def outcome(self, mutant: Mutant, limit: int, caught: Counter[str]) -> tuple[str, str]:
        """What becomes of a mutant, and the test that saw it; first come the tests that have
        ``caught`` most."""
        place = self.place_of(mutant.path)
        given = place.read_text()
        place.write_text(mutant.text)
        try:
            if self.backend == "cpu":
                every = self.sources()
                if why := self.built([place] if place.suffix == ".cpp" else every):
                    return why, ""
            chosen = self.tests_of(place, mutant.line)
            order = sorted(chosen, key=lambda test: (-caught[test], self.seconds[test]))
            return self.tested(limit, order) if order else ("survived", "runs in no test")
        finally:
            place.write_text(given)

    def as_it_is(self, limit: int) -> tuple[str, str]:
        """The same without a mutant; and what each test takes, and which lines of Python it
        runs."""
        result = self.tested(limit, None)
        self.seconds, self.lines = json.loads((self.folder / "ran").read_text())
        return result

    def tests_of(self, place: Path, line: int) -> Iterable[str]:
        """The tests that run a line; all, where it is run before them or is no Python."""
        if place.suffix != ".py":
            return self.seconds
        inside = [
            range(node.lineno, (node.end_lineno or node.lineno) + 1)
            for node in ast.walk(ast.parse(place.read_text()))
            if isinstance(node, ast.stmt)
        ]
        known = self.lines.get(str(place), {})
        statement = min((each for each in inside if line in each), key=len)
        tests = {test for each in statement for test in known.get(str(each), [])}
        return self.seconds if "" in tests else tests & self.seconds.keys()

    def tested(self, limit: int, order: list[str] | None) -> tuple[str, str]:
        given = (self.backend, self.folder, limit, order)
        child = multiprocessing.get_context("fork").Process(target=run_tests, args=given)
        child.start()
        child.join()
        if not child.exitcode:
            return "survived", ""
        log = (self.folder / "log").read_text(errors="replace")
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", log, re.MULTILINE)
        return "caught", failed[1] if failed else f"ends with {child.exitcode}"


def run_tests(backend: str, folder: Path, limit: int, order: list[str] | None) -> None:
    """In a process of its own, which imports the copy: PyTorch and pytest are imported already.

    Without an order all tests are run, and the file ``ran`` gets what each takes, and by which a
    line is run.
    """
    import coverage
    import pytest

    seconds: dict[str, float] = {}
    lines = coverage.Coverage(
        data_file=None, config_file=False, include=[str(folder / "torch_dmlpool" / "*")]
    )
    is_traced = order is None and backend != "cpu"

    class Chosen:
        """Each test has so much of the processor's time, so that a busy machine makes no hang."""

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            if order is not None:
                places = {test: number for number, test in enumerate(order)}
                items[:] = sorted(
                    (one for one in items if one.nodeid in places),
                    key=lambda one: places[one.nodeid],
                )

        def pytest_runtest_logstart(self, nodeid: str) -> None:
            signal.setitimer(signal.ITIMER_PROF, limit)
            if is_traced:
                lines.switch_context(nodeid)
                # What an earlier test has left in a cache is computed again, so that it is seen.
                for module in [
                    each for name, each in sys.modules.items() if name.startswith("torch_dmlpool.")
                ]:
                    for function in list(vars(module).values()):
                        getattr(function, "cache_clear", int)()

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.when == "call":
                seconds[report.nodeid] = report.duration

    output = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1), os.dup2(output, 2)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    if is_traced:
        lines.start()
    options = [
        "-x",
        "-q",
        "--tb=no",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
    ]
    ended = pytest.main([*options, *TESTS[backend]], plugins=[Chosen()])
    if order is None:
        lines.stop()
        data = lines.get_data()
        found = {path: data.contexts_by_lineno(path) for path in data.measured_files()}
        (folder / "ran").write_text(json.dumps([seconds, found]))
    os._exit(ended)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mutants", description="mutants that the tests catch"
    )
    parser.add_argument("backend", choices=SOURCES)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--like", default="", help="only mutants whose place or line this regular expression finds"
    )
    parser.add_argument(
        "--minutes", type=float, default=600.0, help="begin no mutant after this many minutes"
    )
    parser.add_argument(
        "--limit", type=int, default=20, help="seconds of computing after which a test hangs"
    )
    chosen = parser.parse_args()
    # Plugins, which take most of the time, are not needed.
    os.environ |= {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    if chosen.backend == "triton":
        os.environ["TRITON_INTERPRET"] = "1"
    for module in ("numpy", "torch", "triton", "hypothesis", "pytest"):
        __import__(module)
    kept = ROOT / ".mutants" / f"{chosen.backend}.json"
    known: dict[str, list[str]] = json.loads(kept.read_text()) if kept.exists() else {}
    counts = dict.fromkeys(("caught", "survived"), 0)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants_") as folder:
        copy = Copy(chosen.backend, Path(folder))
        before = copy.as_it_is(chosen.limit)
        assert before[0] == "survived", f"without a mutant: {before}"
        print(f"the tests take {time.monotonic() - start:.0f} s", flush=True)
        for mutant in filter(
            lambda one: re.search(chosen.like, one.name), drawn(chosen.backend, chosen.seed)
        ):
            if (
                sum(counts.values()) == chosen.count
                or time.monotonic() - start > 60 * chosen.minutes
            ):
                break
            if mutant.name not in known:
                began = time.monotonic()
                caught = Counter(
                    test
                    for place, (_, test) in known.items()
                    if place.startswith(f"{mutant.path}:")
                )
                known[mutant.name] = list(copy.outcome(mutant, chosen.limit, caught))
                print(
                    f"{time.monotonic() - began:4.0f} s  {known[mutant.name]}  {mutant.name}",
                    flush=True,
                )
                kept.parent.mkdir(exist_ok=True)
                kept.write_text(json.dumps(known, indent=1, ensure_ascii=False))
            outcome, _ = known[mutant.name]
            if outcome in counts:
                counts[outcome] += 1
            if outcome == "survived":
                print(f"survived: {mutant.name}", flush=True)
    print(f"{chosen.backend}: {counts['caught']} of {sum(counts.values())} mutants are caught")


if __name__ == "__main__":
    main()
