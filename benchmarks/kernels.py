"""Kernels compiled by Triton alone, without a GPU and without PyTorch: into a folder that travels,
and what they should take.

``python -m benchmarks.kernels FOLDER`` compiles what a list in the folder names (``benchmarks.gpu``
writes it) and the folder lacks. The keys of Triton's cache are hashes of the kernels' sources, of
Triton's own files and of what is compiled for; no path, user or order is in them. So this Python
needs the version of the GPU's machine, and its Triton.

The seconds that a launch should take on an H200 are

    T = 3.9 us + sqrt(memory^2 + max(issue, ALU, L1)^2) + .7 us for each further step of a loop

Memory is the bytes of the operands and results at the speed of a copy. The others are those of a
multiprocessor, which runs one program at least: four instructions issued each clock, of which two
go to the ALU, and clocks of L1 for each access of a warp. An access takes as many clocks as a
quarter of its lines of 128 bytes, and as the words that it reads of one of 32 banks, whichever is
more. How lanes lie in memory follows from what a lane owns; where Triton chooses the layout they
are neighbours, as a test of all kernels proves.
tests/test_gpu.py compares T with every row that was measured: benchmarks/results/gpu_counts.json
has what was counted in the code that ran.
"""

import json
import math
import multiprocessing
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
LIST = "kernels.pickle"
OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}
UNUSED = {".ttir", ".ttgir", ".llir", ".source", ".ptx"}


class NoDriver:
    """What Triton asks of a driver when it compiles for a device that is not there."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


def without_pytorch():
    """Let this process import the kernels alone: the package itself would import PyTorch."""
    for name in ("torch_dmlpool", "torch_dmlpool.backends"):
        package = ModuleType(name)
        package.__path__ = [str(ROOT.joinpath(*name.split(".")))]
        sys.modules[name] = package


def compiled(wanted: tuple[Any, ...]) -> tuple[str, str]:
    """The whole way that a launch takes on a GPU, up to the driver: the kernel's folder, and why it
    failed."""
    from triton.backends.nvidia import driver
    from triton.runtime.cache import _base32

    from torch_dmlpool.backends import compiling

    name, constants, size_types, _, kinds = wanted
    try:
        kernel, _ = compiling.compiled(name, constants, size_types, kinds, OPTIONS)
        assert kernel.asm["cubin"]
        if hasattr(driver, "make_launcher"):  # as Triton 3.6 has it: in C, for each signature
            driver.CudaLauncher(kernel.src, kernel.metadata)
    except Exception as error:
        return "", f"{name}: {type(error).__name__}: {error}"
    return _base32(kernel.hash), ""


@contextmanager
def without_the_driver() -> Iterator[None]:
    """Inside, Triton's modules of C are linked with functions that have the names of CUDA's driver,
    and not loaded."""
    from triton.backends.nvidia import driver
    from triton.runtime import build

    texts = [path.read_text() for path in Path(driver.__file__).parent.glob("driver.*")]
    names = {name for each in texts for name in re.findall(r"\bcu[A-Z]\w*(?=\s*\()", each)}
    stub = "".join(f"void {name}(void) {{}}\n" for name in sorted(names))
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, TRITON_LIBCUDA_PATH=folder),
        mock.patch.object(build, "_load_module_from_path"),
    ):
        command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-x", "c", "-", "-o"]
        subprocess.run([*command, f"{folder}/libcuda.so.1"], input=stub, text=True, check=True)
        driver.CudaUtils()
        yield


def prepare(folder: Path, prunes: bool) -> int:
    started = time.monotonic()
    os.environ["TRITON_CACHE_DIR"] = str(folder)
    without_pytorch()
    import triton

    triton.runtime.driver.set_active(NoDriver())
    kernels = pickle.loads((folder / LIST).read_bytes())
    before = {path.parent for path in folder.glob("*/*.cubin")}
    # Forked: this process has no threads, and each import of Triton takes half a second.
    with without_the_driver(), multiprocessing.get_context("fork").Pool() as pool:
        found = list(pool.imap_unordered(compiled, kernels))
    paths = {folder / name for name, _ in found if name}
    failed = [why for _, why in found if why]
    for path in before - paths if prunes else ():
        shutil.rmtree(path)
    for path in folder.glob("*/*"):
        if path.suffix in UNUSED:
            path.unlink()
    size = sum(path.stat().st_size for path in folder.glob("*/*"))
    print(
        f"{len(paths - before) + len(failed)} of {len(kernels)} kernels were missing\n"
        f"{len(paths - before)} kernels compiled in {time.monotonic() - started:.0f} s; "
        f"{folder.name} has {size / 2**20:.1f} MiB"
    )
    for why in failed:
        print(f"Error: {why}")
    return int(bool(failed))


def relocate(folder: Path):
    """Triton's cache names its files by their whole paths: let them be those of the folder as it
    lies here."""
    for path in folder.glob("*/__grp__*.json"):
        group = json.loads(path.read_text())
        group["child_paths"] = {name: str(path.parent / name) for name in group["child_paths"]}
        path.write_text(json.dumps(group))


START = 3.9e-6  # seconds of the shortest launch
NEXT = 1.5e-6  # seconds from the end of a launch to the next one
STEP = 0.7e-6  # seconds until memory answers a step of a loop, which waits for the one before
CLOCK, COPIED = 1.9e9, 4.6e12  # clocks of a second, and bytes that a copy reads and writes in it
PROCESSORS = 132
ALU = re.compile(  # what goes there
    "FMNMX3?|IADD3|LOP3|[IFH]SETP2?|[FI]?SEL|SHF|PRMT|V?H?[IV]?I?MNMX[23]?|LEA|PLOP3|VABSDIFF|IABS"
    "|HMNMX2|P2R|R2P|VIADD|VIADDMNMX|FSET|FCHK|HSET2|VHMNMX"
)
LINE = re.compile(r"^\s+/\*[0-9a-f]{4,6}\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]+)\s*(.*?);")
LABEL, TARGET = re.compile(r"^(\.L_x_\d+):"), re.compile(r"\.L_x_\d+")


class Instruction(NamedTuple):
    opcode: str
    guarded: bool
    target: int | None  # of a branch, the number of an instruction

    @property
    def base(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def words(self) -> int:
        return 4 if ".128" in self.opcode else 2 if ".64" in self.opcode else 1


class Counts(NamedTuple):
    """A launch: how many programs of how many warps, the bytes of its tensors, and of one warp the
    instructions, those of the ALU, the clocks of L1 and the steps in which it reads memory.
    """

    programs: int
    warps: int
    moved: int
    instructions: int
    alu: int
    l1: float
    steps: int = 1

    def seconds(self) -> dict[str, float]:
        """By what could bound it."""
        of_warps = max(1, self.programs / PROCESSORS) * self.warps / CLOCK
        return {
            "memory": self.moved / COPIED,
            "issue": self.instructions * of_warps / 4,
            "ALU": self.alu * of_warps / 2,
            "L1": self.l1 * of_warps,
        }


def predicted(launches: Iterable[Counts]) -> float:
    """The seconds T of a call's launches, one after the other."""
    total = START - NEXT
    for each in launches:
        bounds = each.seconds()
        memory = bounds.pop("memory")
        total += NEXT + math.hypot(memory, max(bounds.values())) + STEP * (each.steps - 1)
    return total


def clocks_of(step: int, count: int) -> float:
    """Clocks of L1 for an access of a warp, whose lanes take ``count`` words of 4 bytes each,
    ``step`` bytes apart."""
    words = {lane * step // 4 + word for lane in range(32) for word in range(count)}
    lines = {each // 32 for each in words}
    return max(1.0, len(lines) / 4, max(Counter(each % 32 for each in words).values(), default=0))


def machine_code(cubin: bytes) -> list[Instruction]:
    """Disassembled with the tool that Triton brings."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        lines = subprocess.check_output([tool, "-c", file.name], text=True).splitlines()
    found = []
    labels = {}
    for line in lines:
        if label := LABEL.match(line):
            labels[label[1]] = len(found)
        elif each := LINE.match(line):
            target = TARGET.search(each[3])
            found.append((each[2], each[1] is not None, target[0] if target else ""))
    return [Instruction(*each, labels.get(label)) for *each, label in found]


def counted(how, asm: Mapping[str, Any], element: int, moved: int, warps: int = 4) -> Counts:
    """The counts of a launch of elements of that many bytes, by what Triton compiled for it."""
    code = machine_code(asm["cubin"])
    constants, loads = dict(how.constants), 8 * how.sizes[1] if "share" in how.kernel else 1
    if how.kernel == "folding.fold":
        block, mask = constants["BLOCK"], constants["MODE"].mask
        loads = how.sizes[1] * math.prod(block[1:4]) // (32 * warps * block.vector)
        loads *= 1 + (mask > 0)  # each has one of the mask beside it
    warp = one_warp(code, lambda in_loop: math.ceil(loads / in_loop), l1_clocks(how, element))
    return Counts(how.programs, warps, moved, *warp)


def one_warp(
    code: Sequence[Instruction], turns_of: Callable[[int], int], l1: Callable[[Instruction], float]
) -> tuple[int, int, float, int]:
    """Instructions, those of the ALU, clocks of L1, and steps. How often a loop turns follows from
    the loads in it; other branches are not taken.
    """
    turns = {}
    at, instructions, alu, clocks, steps = 0, 0, 0, 0.0, 1
    while at < len(code) and instructions < 200_000:
        each = code[at]
        if each.base == "EXIT" and not each.guarded:
            break
        instructions += 1
        alu += ALU.fullmatch(each.base) is not None
        if each.base in ("LDG", "STG", "LDS", "STS"):
            clocks += l1(each)
        at += 1
        target = at if each.target is None else each.target
        if each.base == "BRA" and target == at - 1:
            break  # the end is filled with branches to themselves
        if each.base == "BRA" and target < at:
            in_loop = sum(one.base == "LDG" for one in code[target:at])
            turns[at] = turns.get(at, 0) + 1
            if in_loop and turns[at] < turns_of(in_loop):
                at, steps = target, steps + 1
            else:
                turns[at] = 0
    return instructions, alu, clocks, steps


def l1_clocks(how, element: int) -> Callable[[Instruction], float]:
    """Clocks of an access of a warp to memory, by where its lanes lie."""
    constants = dict(how.constants)
    form, column = constants.get("FORM"), constants.get("COLUMN")
    if form is None or form.channels:
        return lambda each: float(each.words)  # lanes are neighbours
    adjoint = how.kernel.startswith("max_pooling_grad") or getattr(
        constants["MODE"], "adjoint", False
    )
    owned = form.tile[2] * (column.stride if adjoint else 1)  # columns of a lane's results
    read = form.tile[2] * (1 if adjoint else column.stride)

    def clocks(each):
        # Single elements leave through shared memory, so that neighbouring lanes store neighbours.
        step = {"LDG": read, "STG": owned if form.store > 1 else 1}.get(each.base, 0) * element
        step = step or 4 * each.words
        return clocks_of(step, each.words)

    return clocks


if __name__ == "__main__":
    folder, *prunes = sys.argv[1:]  # with --prune what the list does not name is removed
    relocate(Path(folder))
    sys.exit(prepare(Path(folder).resolve(), bool(prunes)))
