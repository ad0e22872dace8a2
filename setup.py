"""Builds the CPU kernels as plain shared libraries, tied to no version of Python or PyTorch;
optional: see below.
"""

import os
import re
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
HEADERS = sorted(map(str, Path("kernels").rglob("*.h")))
FLAGS = ["-fno-rtti"]
# What PyTorch says the processor can do (torch.backends.cpu.get_cpu_capability) and the flags that
# use it. Intel's processors before Broadwell do nothing for PREFETCHW (-mprfchw).
X86_LEVELS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c", "-mprfchw"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mprfchw"],
}


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
            depends=HEADERS,
            extra_compile_args=[*FLAGS, *flags],
            optional=not compilers.NAMED,
        )
        for level, flags in levels.items()
    ]


class BuildLibraries(build_ext):
    """Calls the C++ compiler itself: nothing of Python's own flags or headers is needed."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.parallel = 2

    def get_ext_filename(self, fullname: str) -> str:
        ending = ".dll" if compilers.system() == "Windows" else ".so"
        return os.path.join(*fullname.split(".")) + ending

    def target(self, extension: Extension) -> Path:
        return Path(self.get_ext_fullpath(extension.name))

    def run(self) -> None:
        # What an earlier build left must not be taken for this one's.
        for extension in self.extensions:
            self.target(extension).unlink(missing_ok=True)
        super().run()

    def build_extension(self, extension: Extension) -> None:
        # An earlier build's, in the folder that files are copied to the checkout from.
        self.target(extension).unlink(missing_ok=True)
        compiler = compilers.found()
        if compiler is None:
            raise CompileError("no C++ compiler works, and zig is not installed")
        try:
            flags = extension.extra_compile_args
            compiler.link(extension.sources, self.target(extension), flags)
        except (OSError, subprocess.CalledProcessError) as error:
            raise CompileError(str(error)) from error


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3 of this platform, or of any platform where no kernels were built."""

    def get_tag(self) -> tuple[str, str, str]:
        build = self.get_finalized_command("build_ext")
        if not (build.inplace or any(build.target(one).is_file() for one in build.extensions)):
            self.root_is_pure = True
            return "py3", "none", "any"
        return "py3", "none", compilers.NAMED or super().get_tag()[2]


# Pictures of the checkout are no files where packages are listed.
description = re.sub(
    r"!\[[^]]*\]\(docs/[^)]*\)\n\n", "", Path("README.md").read_text(encoding="utf-8")
)

setup(
    long_description=description,
    long_description_content_type="text/markdown",
    ext_modules=libraries(),
    cmdclass={"build_ext": BuildLibraries, "bdist_wheel": PlatformWheel},
)
