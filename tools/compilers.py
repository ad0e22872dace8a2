"""Which compiler builds the CPU kernels, for which platform, and its command.

A compiler that ``CXX`` names is taken as it is; ``CXX=none`` builds no kernels. Otherwise the
machine's own compiler is taken where it works, and zig on Windows and where none does: one package
on PyPI brings Clang and the C libraries of every platform. ``TORCH_DMLPOOL_PLATFORM`` names the
platform of a wheel for other machines, such as ``win_amd64``; zig builds it.
"""

import functools
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

PROCESSES = 8
"""Compilers at once: each takes some 350 MB."""
ZIG = "ziglang>=0.17,<0.18"
TARGETS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "win_amd64": "x86_64-windows-gnu",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "macosx_10_13_x86_64": "x86_64-macos.10.13",
}
"""The platforms of the wheels that are handed out, as pip and as zig name them."""
CACHES = "ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"
"""The variables that tell zig where to keep what it has built."""
NAMED = os.environ.get("TORCH_DMLPOOL_PLATFORM", "")
OWN = ["c++", "g++", "clang++"]
WORKS = """#include <vector>
extern "C" long dmlpool_works(long n) {
    return static_cast<long>(std::vector<long>(n).size());
}
"""
"""What a compiler that works can compile."""
FLAGS = [
    "-std=c++20",
    # As fast as -O3 where loops become vectors (112 rows, geometric mean 1.01), a third smaller,
    # and built in two thirds of the time.
    "-O2",
    "-fPIC",
    "-ftree-vectorize",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fvisibility=hidden",
]
OF_GCC = [
    # Clang's cost model is the dynamic one.
    "-fvect-cost-model=dynamic",
    # Calls of memcpy for loops that copy are slow in rows of some KB: without, max 16x128x2048
    # window 5/2 takes half the time.
    "-fno-tree-loop-distribute-patterns",
    # Where short loops begin would be a matter of luck: 2/2 of 512x28x28 takes up to 1.2 times as
    # long (AMD EPYC, family 25, model 1).
    "-falign-loops=32",
]

OF_WHEELS = [
    # A loop that is marked as one of vectors, and of which Clang makes none, is an error.
    "-Werror=pass-failed"
]
OF_ZIG_ON_LINUX = [
    # What is handed out has no symbols but those that it exports.
    "-s",
    # Without zig's own compiler-rt, whose memcpy would take the place of the system's: with it 2/2
    # of 1536x14x14 took twice the time. What would need it is an error.
    "-rtlib=none",
    "-Wl,-z,defs",
]


class Compiler(NamedTuple):
    """A compiler as it is called, and what distinguishes it from others."""

    command: tuple[str, ...]
    is_clang: bool
    is_zig: bool

    def link(self, sources: Iterable[str], target: Path, flags: Sequence[str]):
        """Build the shared library ``target``, which exports what the sources name ``dmlpool_…``
        alone. What the linker leaves beside it stays in a folder that is removed.
        """
        with tempfile.TemporaryDirectory() as folder:
            shared = [*FLAGS, *([] if self.is_clang else OF_GCC), *(OF_WHEELS if NAMED else [])]
            objects = {f"{folder}/{number}.o": str(one) for number, one in enumerate(sources)}
            commands = [
                [*shared, *flags, "-c", source, object] for object, source in objects.items()
            ]
            with ThreadPoolExecutor(min(PROCESSES, os.cpu_count() or 1)) as pool:
                list(pool.map(self.run, commands))  # which raises what a command has raised
            # Without the processor's flags: zig builds its C++ library once for all levels.
            built = f"{folder}/{target.name}"
            self.run(["-shared", *self._linked(objects.values(), Path(folder)), *objects, built])
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(built, target)

    def run(self, arguments: Sequence[str]):
        """Call the compiler; the last argument is what it writes."""
        # The libraries of one build share zig's own; the user's home is not filled.
        environment = {**dict.fromkeys(CACHES, os.path.abspath("build/zig")), **os.environ}
        command = [*self.command, *arguments[:-1], "-o", arguments[-1]]
        subprocess.run(command, check=True, env=environment)

    def _linked(self, sources, folder):
        """Flags of the platform's linker, among them the list of exported functions."""
        names = sorted(exported_by(sources))
        exports = folder / "exports.def"
        if system() == "Windows":
            exports.write_text("EXPORTS\n" + "".join(f"  {name}\n" for name in names))
            # MinGW's own libraries are on no other machine.
            return ["-s", str(exports), *([] if self.is_zig else ["-static"])]
        if system() == "Darwin":
            # zig takes no list: its C++ library's operators new and delete are exported too.
            exports.write_text("".join(f"_{name}\n" for name in names))
            listed = ["-s"] if self.is_zig else [f"-Wl,-exported_symbols_list,{exports}"]
            return ["-Wl,-install_name,@rpath/torch_dmlpool_kernels.so", *listed]
        exports.write_text("{ global: dmlpool_*; local: *; };\n")
        listed = f"-Wl,--version-script={exports}"
        return [*OF_ZIG_ON_LINUX, listed] if self.is_zig else [listed]


def exported_by(sources: Iterable[str | Path]) -> set[str]:
    """The functions that these C++ sources export."""
    text = "".join(Path(source).read_text(encoding="utf-8") for source in sources)
    return set(re.findall(r"\bdmlpool_\w+(?=\()", text))


def system() -> str:
    """The system that is built for, as ``platform.system`` names it."""
    if NAMED:
        return {"win": "Windows", "mac": "Darwin"}.get(NAMED[:3], "Linux")
    return platform.system()


def machine() -> str:
    """The processor that is built for.

    Not as sysconfig says: a Python for both of a Mac's processors says "universal2".
    """
    said = platform.machine().lower()
    if NAMED:
        said = "x86_64" if NAMED.endswith(("x86_64", "amd64")) else "aarch64"
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(said, said)


def found() -> Compiler | None:
    """The compiler that builds the kernels; None where there is none."""
    if os.environ.get("CXX"):
        command = shlex.split(os.environ["CXX"], posix=os.name != "nt")
        return described(command) if shutil.which(command[0]) else None
    return (None if NAMED or os.name == "nt" else own()) or zig()


@functools.cache
def own() -> Compiler | None:
    """The first of the machine's compilers that works: one without its system's headers, or the
    stub of a Mac without developer tools, does not.
    """
    for name in filter(shutil.which, OWN):
        compiler = described([name])
        try:
            with tempfile.TemporaryDirectory() as folder:
                source = Path(folder) / "works.cpp"
                source.write_text(WORKS)
                compiler.link([str(source)], Path(folder) / "library" / "works.so", [])
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"the compiler {name} does not work: {error}", file=sys.stderr)
        else:
            return compiler
    return None


def zig() -> Compiler | None:
    """The compiler of the package ziglang, where that is installed.

    Its target is always named: without one it uses whatever this very processor can do.
    """
    if importlib.util.find_spec("ziglang") is None:
        return None
    target = TARGETS[NAMED] if NAMED else own_target()
    command = sys.executable, "-m", "ziglang", "c++", "-target", target
    return Compiler(command, is_clang=True, is_zig=True)


def own_target() -> str:
    """The name of this machine in zig, with the oldest system that wheels are built for."""
    systems = {"Windows": "windows-gnu", "Darwin": "macos", "Linux": "linux-gnu"}
    target = f"{machine()}-{systems[system()]}"
    return next((one for one in TARGETS.values() if one.startswith(target)), target)


def described(command: Sequence[str]) -> Compiler:
    """The compiler that this command calls, by what it says of itself."""
    is_zig = "ziglang" in command or Path(command[0]).stem == "zig"
    asked = subprocess.run([*command, "--version"], capture_output=True, text=True)
    return Compiler(tuple(command), is_zig or "clang" in asked.stdout, is_zig)


def required() -> list[str]:
    """What the build needs from PyPI: zig exactly where nothing else compiles."""
    if os.environ.get("CXX") or found() is not None:
        return []
    if can_be_had(ZIG):
        return [ZIG]
    print(f"no C++ compiler, and {ZIG} cannot be had: no kernels are built", file=sys.stderr)
    return []


def can_be_had(requirement: str) -> bool:
    """Whether pip finds a wheel of it for this machine.

    The build runs without the environment's packages, hence -I. Another installer than pip is not
    asked: it is told what to get.
    """
    pip = [sys.executable, "-I", "-m", "pip", "--retries", "0", "--timeout", "10"]
    if subprocess.run([*pip, "--version"], capture_output=True).returncode:
        return True
    wanted = ["install", "--dry-run", "--no-deps", "--ignore-installed", "--only-binary", ":all:"]
    asked = subprocess.run([*pip, *wanted, requirement], capture_output=True)
    return asked.returncode == 0


if __name__ == "__main__":
    sys.exit(found() is None)
