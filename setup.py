"""Builds the CPU kernels as plain shared libraries, tied to no version of Python or PyTorch.

A wheel has a library for each level of vector instructions, a checkout that of its own processor.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))

import compilers

SOURCES = sorted(map(str, Path("kernels").rglob("*.cpp")))
INPUTS = [*SOURCES, *Path("kernels").rglob("*.h"), "setup.py", "tools/compilers.py"]
"""What a library is made of: it is built again where one of these is newer."""
FLAGS = ["-fno-rtti"]
# What PyTorch says the processor can do (torch.backends.cpu.get_cpu_capability) and the flags that
# use it. Intel's processors before Broadwell do nothing for PREFETCHW (-mprfchw).
X86_LEVELS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c", "-mprfchw"],
    "avx512": [
        "-mavx512f",
        "-mavx512bw",
        "-mavx512vl",
        "-mavx512dq",
        "-mfma",
        "-mf16c",
        "-mprfchw",
    ],
}


def own_level() -> str:
    """The best level of this processor, or the one that ATEN_CPU_CAPABILITY names, as PyTorch would
    say; empty where the system does not tell.
    """
    named = os.environ.get("ATEN_CPU_CAPABILITY", "")
    told = Path("/proc/cpuinfo")
    if named in X86_LEVELS or not told.is_file():
        return named
    words = set(told.read_text(encoding="utf-8").split())
    wanted = {flag.removeprefix("-m") for flag in X86_LEVELS["avx512"]} - {"prfchw"}
    return "avx512" if wanted <= words else "avx2"


def libraries() -> list[Extension]:
    """One library for each level of vector instructions. Where one cannot be built the install
    succeeds without.

    Not so where a platform is named: such a wheel is built to be handed on.
    """
    levels = X86_LEVELS if compilers.machine() == "x86_64" else {"default": []}
    return [
        Extension(
            f"torch_dmlpool.kernels.cpu_{level}",
            SOURCES,
            extra_compile_args=[*FLAGS, *flags],
            optional=not compilers.NAMED,
        )
        for level, flags in levels.items()
    ]


class BuildLibraries(build_ext):
    """Calls the C++ compiler itself: nothing of Python's own flags or headers is needed."""

    def get_ext_filename(self, fullname: str) -> str:
        ending = ".dll" if compilers.system() == "Windows" else ".so"
        return os.path.join(*fullname.split(".")) + ending

    def target(self, extension: Extension) -> Path:
        return Path(self.get_ext_fullpath(extension.name))

    def kept(self, extension: Extension) -> Path:
        """Where a checkout has the library."""
        return Path("kernels", self.target(extension).name)

    def run(self) -> None:
        # A checkout is used on this machine: one library is enough, and one that is there is kept.
        self.in_checkout = bool(self.inplace)
        own = [one for one in self.extensions if one.name.endswith(f"_{own_level()}")]
        self.extensions = own if self.in_checkout and own else self.extensions
        super().run()

    def build_extension(self, extension: Extension) -> None:
        # What an earlier build left must not be taken for this one's.
        target, kept = self.target(extension), self.kept(extension)
        target.unlink(missing_ok=True)
        if self.in_checkout and is_current(kept):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(kept, target)
            return
        compiler = compilers.found()
        try:
            if compiler is None:
                raise CompileError("no C++ compiler works, and zig is not installed")
            compiler.link(extension.sources, target, extension.extra_compile_args)
        except (OSError, subprocess.CalledProcessError, CompileError) as error:
            if self.in_checkout:  # tests would be of the library before
                kept.unlink(missing_ok=True)
            raise CompileError(str(error)) from error

    def copy_extensions_to_source(self) -> None:
        """Each library in one step, so that nobody finds a part of it or none."""
        for extension in self.extensions:
            built = Path(self.build_lib, self.get_ext_filename(extension.name))
            kept = self.kept(extension)
            if built.is_file():
                shutil.copy2(built, kept.with_suffix(".part")).replace(kept)


def is_current(library: Path) -> bool:
    """Whether nothing that the library is made of is newer."""
    newest = max(Path(each).stat().st_mtime for each in INPUTS)
    return library.is_file() and library.stat().st_mtime >= newest


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3 of this platform, or of any platform where no kernels were built."""

    def get_tag(self) -> tuple[str, str, str]:
        build = self.get_finalized_command("build_ext")
        if not (build.inplace or any(build.target(one).is_file() for one in build.extensions)):
            self.root_is_pure = True
            return "py3", "none", "any"
        return "py3", "none", compilers.NAMED or super().get_tag()[2]


# The checkout's pages are no files where packages are listed.
description = re.sub(
    r"\[([^]]*)\]\((?!https:)[^)]*\)", r"\1", Path("README.md").read_text(encoding="utf-8")
)

setup(
    long_description=description,
    long_description_content_type="text/markdown",
    ext_modules=libraries(),
    cmdclass={"build_ext": BuildLibraries, "bdist_wheel": PlatformWheel},
)
