"""Runs the CPU kernels under the sanitizers of GCC or Clang: ``python tools/sanitize.py``.

A copy of the package in build/sanitized gets a library with AddressSanitizer and
UndefinedBehaviorSanitizer, and every fourth everyday test of what the library computes is run with
it. Then tools/threads.cpp is built with ThreadSanitizer and run.
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
TESTS = ["tests/ops", "tests/backends/test_cpu.py", "tests/nn/test_layers.py"]
TESTS += ["tests/test_properties.py", "tests/test_quantized.py"]
LEFT_OUT = "not memory_beside"
"""A sanitizer's own memory is not what that test measures."""


def copied() -> Path:
    """The package with its kernels inside it and the tests, without any library."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__", "*.so")
    # An installed checkout may have a link to the kernels inside the package.
    package = shutil.ignore_patterns("__pycache__", "*.so", "kernels")
    kernels = FOLDER / "torch_dmlpool" / "kernels"
    shutil.copytree(ROOT / "torch_dmlpool", FOLDER / "torch_dmlpool", ignore=package)
    shutil.copytree(ROOT / "kernels", kernels, ignore=ignore)
    shutil.copytree(ROOT / "tests", FOLDER / "tests", ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", FOLDER)
    return kernels


def main() -> int:
    named = os.environ.get("CXX")
    own = compilers.described(shlex.split(named)) if named else compilers.own()
    if own is None:
        raise SystemExit(f"no C++ compiler: none of {', '.join(compilers.OWN)} works")
    kernels = copied()
    # A copy is compiled, as the checkout may change meanwhile.
    sources = sorted(map(str, kernels.rglob("*.cpp")))

    def with_sanitizers(*flags: str) -> compilers.Compiler:
        return own._replace(command=(*own.command, *flags))

    # The last is not among GCC's undefined.
    checks = "-fsanitize=address,undefined,float-cast-overflow"
    level = {"AVX512": "avx512", "AVX2": "avx2"}.get(torch.backends.cpu.get_cpu_capability())
    library = kernels / f"cpu_{level or 'default'}.so"
    with_sanitizers(checks, "-fno-sanitize-recover=all").link(sources, library, FLAGS)
    asked = [[*own.command, f"-print-file-name=lib{name}.so"] for name in ("asan", "ubsan")]
    runtimes = [subprocess.check_output(command, text=True).strip() for command in asked]
    environment = os.environ | {
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0:alloc_dealloc_mismatch=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"]
    command += ["-m", "not slow", "--sample", "4", "-k", LEFT_OUT, *TESTS, *sys.argv[1:]]
    found = subprocess.run(command, cwd=FOLDER, env=environment, check=False).returncode

    racing, program = with_sanitizers("-fsanitize=thread"), str(FOLDER / "threads")
    flags = [*FLAGS, f"-I{kernels / 'cpu'}"]
    objects = racing.compile([*sources, str(ROOT / "tools" / "threads.cpp")], FOLDER, flags)
    racing.run(["-pthread", *objects, program])
    return found or subprocess.run([program], check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
