"""Runs the CPU kernels under the sanitizers of GCC or Clang: ``python tools/sanitize.py``.

A copy of the package in build/sanitized gets a library with AddressSanitizer and
UndefinedBehaviorSanitizer, and every fourth everyday test of what the library computes is run with
it. Then tools/threads.cpp is built with ThreadSanitizer and run.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import compilers
import torch

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "sanitized"
LEVELS = {
    "AVX512": (
        "avx512",
        ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mprfchw"],
    ),
    "AVX2": ("avx2", ["-mavx2", "-mfma", "-mf16c", "-mprfchw"]),
}
FLAGS = ["-O1", "-g1", "-fno-omit-frame-pointer"]
TESTS = [
    "tests/ops",
    "tests/backends/test_cpu.py",
    "tests/test_properties.py",
    "tests/test_quantized.py",
    "tests/nn/test_layers.py",
]
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


def sources() -> list[str]:
    """The sources of the copy, as the checkout may change while they are compiled."""
    return sorted(map(str, (FOLDER / "torch_dmlpool" / "kernels").rglob("*.cpp")))


def compile_all(compiler: str, files: list[str], target: Path, flags: list[str]) -> None:
    """Compile each file for itself, two at a time, and link them."""
    objects = [target.with_name(f"{target.name}.{number}.o") for number in range(len(files))]
    command = [compiler, "-std=c++17", "-ffp-contract=off", "-fPIC", *FLAGS, *flags]
    waiting = list(zip(files, objects, strict=True))
    running: list[subprocess.Popen[bytes]] = []
    while waiting or running:
        while waiting and len(running) < 2:
            file, made = waiting.pop()
            running.append(subprocess.Popen([*command, "-c", file, "-o", str(made)]))
        if running.pop(0).wait():
            raise SystemExit(f"{compiler} cannot compile what {target.name} is made of")
    subprocess.run([*command, *map(str, objects), "-o", str(target)], check=True)


def of_compiler(compiler: str, name: str) -> str:
    """The path of one of the compiler's libraries."""
    command = [compiler, f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    compiler = os.environ.get("CXX") or next(filter(shutil.which, compilers.OWN), None)
    if compiler is None:
        raise SystemExit(f"no C++ compiler: none of {', '.join(compilers.OWN)} is installed")
    level, flags = LEVELS.get(torch.backends.cpu.get_cpu_capability(), ("default", []))
    kernels = copied()

    named = "address,undefined,float-cast-overflow"  # the last is not among GCC's undefined
    checked = [*flags, f"-fsanitize={named}", "-fno-sanitize-recover=all"]
    compile_all(compiler, sources(), kernels / f"cpu_{level}.so", [*checked, "-shared"])
    runtimes = [of_compiler(compiler, f"lib{name}.so") for name in ("asan", "ubsan")]
    environment = os.environ | {
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0:alloc_dealloc_mismatch=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"]
    command += ["-m", "not slow", "--sample", "4", "-k", LEFT_OUT, *TESTS, *sys.argv[1:]]
    found = subprocess.run(command, cwd=FOLDER, env=environment, check=False).returncode

    program = FOLDER / "threads"
    files = [*sources(), str(shutil.copy(ROOT / "tools" / "threads.cpp", FOLDER))]
    headers = f"-I{kernels / 'cpu'}"
    compile_all(compiler, files, program, [*flags, headers, "-fsanitize=thread", "-pthread"])
    raced = subprocess.run([str(program)], check=False).returncode
    return found or raced


if __name__ == "__main__":
    raise SystemExit(main())
