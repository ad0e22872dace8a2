"""Builds the CPU kernels as plain shared libraries, tied to no version of Python or PyTorch;
optional: see below.
"""

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

SOURCES = [f"kernels/{name}.cpp" for name in ("pooling", "max_pooling", "average_pooling")]
# -O2 with vectors is as fast as -O3 (112 rows, geometric mean 1.01), a third smaller, and takes two
# thirds of the time.
FLAGS = [
    "-std=c++17",
    "-O2",
    "-ftree-vectorize",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
]
FLAGS += ["-fvisibility=hidden", "-s"]
# Nothing throws what another library catches: a sixth smaller.
FLAGS += ["-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables"]
# What PyTorch says the processor can do (torch.backends.cpu.get_cpu_capability) and the flags that
# use it.
X86_LEVELS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"],
}


def libraries() -> list[Extension]:
    """One library for each level of vector instructions. Where one cannot be built the install
    succeeds without.

    Not so where a platform is named: such a wheel is built to be handed on.
    """
    named = os.environ.get("_PYTHON_HOST_PLATFORM", "")
    # The machine, not sysconfig's platform: a Python for both of a Mac's processors says
    # "universal2".
    machine = named.split("-")[-1] or platform.machine()
    levels = X86_LEVELS if machine.lower() in ("x86_64", "amd64") else {"default": []}
    depends = ["kernels/pooling.h", "kernels/rows.h"]
    return [
        Extension(
            f"torch_dmlpool.kernels.cpu_{level}",
            SOURCES,
            depends=depends,
            extra_compile_args=flags,
            optional=not named,
        )
        for level, flags in levels.items()
    ]


class BuildLibraries(build_ext):
    """Calls the C++ compiler itself: nothing of Python's own flags or headers is needed."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.parallel = 2

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, extension: Extension) -> None:
        named = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
        compiler = next((name for name in named if shutil.which(name)), None)
        if compiler is None:
            raise CompileError(f"no C++ compiler: none of {', '.join(named)} is installed")
        target = Path(self.get_ext_fullpath(extension.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        version = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, check=False
        ).stdout
        # Clang's cost model is the dynamic one. GCC's calls of memcpy for loops that copy are slow
        # in rows of some KB: without, max 16x128x2048 window 5/2 takes half the time. Without its
        # second scheduling and without anything aligned GCC's code is as fast (182 rows, geometric
        # mean 1.00), a fifteenth smaller; with registers chosen for whole functions it is a
        # twenty-fifth smaller again (225 rows, 1.00). Without partial redundancies moved out of
        # loops it is a fiftieth smaller, and indices of windows 32/32 take .8 of the time (126
        # rows, 1.02); with jumps as they are written, another thirtieth (225 rows, 1.00).
        of_gcc = [
            "-fvect-cost-model=dynamic",
            "-fno-tree-loop-distribute-patterns",
            "-fno-schedule-insns2",
        ]
        of_gcc += ["-falign-functions=1", "-falign-jumps=1", "-falign-loops=1"]
        of_gcc += ["-fira-region=one", "-fno-tree-pre", "-fno-thread-jumps"]
        of_compiler = [] if "clang" in version else of_gcc
        command = [
            compiler,
            *FLAGS,
            *of_compiler,
            *extension.extra_compile_args,
            "-shared",
            "-fPIC",
            *extension.sources,
            "-o",
            target,
        ]
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise CompileError(str(error)) from error


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3 of this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


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
