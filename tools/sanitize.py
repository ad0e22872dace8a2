"""Runs the CPU kernels under the sanitizers of GCC or Clang: ``python tools/sanitize.py``.

A copy of the package in build/sanitized gets a library with AddressSanitizer and
UndefinedBehaviorSanitizer, and every fourth everyday test of what the library computes is run with
it; operands at odd addresses are among them. Then it gets one with ThreadSanitizer and threads of
its own, and those of tests/test_threads.py that share work are run.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import compilers
import torch

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "sanitized"
FLAGS = ["-O1", "-g1", "-fno-omit-frame-pointer", "-march=native"]
PLAIN = "-m pytest -q -p no:cacheprovider"
# A sanitizer's own memory is not what the test measures that is left out.
PYTEST = f"{PLAIN} -n 2 -m 'not slow' --sample 4 -k 'not memory_beside'"
TESTS = (
    "tests/operators tests/backends/test_cpu.py tests/nn/test_layers.py tests/test_morphology.py "
    "tests/test_properties.py tests/test_quantized.py"
)
ASAN_OPTIONS = "detect_leaks=0:detect_odr_violation=0:alloc_dealloc_mismatch=0"


def run(arguments: list[str], sources: list[Path], runtimes: list[str], *flags: str) -> int:
    """The exit status of Python with the copy and a library that has been compiled with these
    flags.
    """
    own = compilers.found()
    if own is None or own.is_zig:  # which has no runtimes of the sanitizers
        raise SystemExit(f"no C++ compiler: none of {', '.join(compilers.OWN)} works")
    level = {"AVX512": "avx512", "AVX2": "avx2"}.get(torch.backends.cpu.get_cpu_capability())
    library = FOLDER / "kernels" / f"cpu_{level or 'default'}.so"
    compiler = own._replace(command=(*own.command, *flags))
    compiler.link(map(str, sources), library, [*FLAGS, f"-I{FOLDER / 'kernels' / 'cpu'}"])
    asked = [[*own.command, f"-print-file-name=lib{name}.so"] for name in runtimes]
    paths = [subprocess.check_output(command, text=True).strip() for command in asked]
    environment = os.environ | {
        "LD_PRELOAD": " ".join(paths),
        "ASAN_OPTIONS": ASAN_OPTIONS,
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(FOLDER),
    }
    return subprocess.run([sys.executable, *arguments], cwd=FOLDER, env=environment).returncode


def main() -> int:
    # A copy is compiled, as the checkout may change meanwhile.
    shutil.rmtree(FOLDER, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("torch_dmlpool", "kernels", "tests", "tools"):
        shutil.copytree(ROOT / name, FOLDER / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", FOLDER)
    sources = sorted((FOLDER / "kernels").rglob("*.cpp"))
    # The last is not among GCC's undefined.
    checks = "-fsanitize=address,undefined,float-cast-overflow"
    tests = [*shlex.split(f"{PYTEST} {TESTS}"), *sys.argv[1:]]
    wrong = run(tests, sources, ["asan", "ubsan"], checks, "-fno-sanitize-recover=all")
    sources.append(FOLDER / "tools" / "threads.cpp")
    shares = shlex.split(f"{PLAIN} tests/test_threads.py -k share_work")
    return run(shares, sources, ["tsan"], "-fsanitize=thread") or wrong


if __name__ == "__main__":
    raise SystemExit(main())
