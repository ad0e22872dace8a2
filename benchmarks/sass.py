"""Compile a kernel without a GPU and read the machine code: instructions, loads, registers, predicted speed.

The model is an H200 (sm_90): 132 SMs at 1.755 GHz, 4.3 TB/s copy, hence 18.56 DRAM bytes per clock and SM; 4 issue
slots, 64 ALU lanes and one 128-byte L1 wavefront per clock. The predicted fraction of copy bandwidth is DRAM clocks
over the largest of the others, at most 1: an upper bound that knows nothing of latency.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

BYTES_PER_CLOCK = 4.3e12 / (1.755e9 * 132)
TOOLS = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin")
SM_90 = GPUTarget("cuda", 90, 32)
POINTERS = {
    "float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "float64": "*fp64",
    "int8": "*i8", "uint8": "*u8", "int16": "*i16", "uint16": "*u16", "int32": "*i32", "uint32": "*u32",
    "int64": "*i64", "uint64": "*u64",
}  # fmt: skip
# What runs on the ALU pipe, half as wide as the four issue slots.
ALU = frozenset(
    [
        "FMNMX",
        "FMNMX3",
        "IADD3",
        "LOP3",
        "ISETP",
        "FSETP",
        "SEL",
        "FSEL",
        "SHF",
        "PRMT",
        "VIMNMX",
        "VIMNMX3",
        "LEA",
        "IMNMX",
        "PLOP3",
        "VABSDIFF",
        "IABS",
        "HMNMX2",
        "P2R",
        "R2P",
        "VIADD",
        "VIADDMNMX",
        "FSET",
        "FCHK",
        "HSETP2",
        "HSET2",
        "VHMNMX",
    ]
)
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,6}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]+)\s*(.*?);")
LABEL = re.compile(r"^(\.L_x_\d+):")
WIDTH = re.compile(r"\.(128|64)\b")


@dataclass(frozen=True)
class Loop:
    """A backward branch in the machine code: the instructions from its target to itself."""

    first: int
    last: int
    loads: int


@dataclass(frozen=True)
class Code:
    """Machine code of one kernel."""

    opcodes: tuple[str, ...]
    loops: tuple[Loop, ...]
    registers: int
    stack: int
    shared: int

    def count(self, prefix: str) -> int:
        return sum(opcode.startswith(prefix) for opcode in self.opcodes)

    @property
    def local(self) -> int:
        """Accesses to local memory: spills."""
        return self.count("LDL") + self.count("STL")

    def weighted(self, trips: Mapping[int, float]) -> list[tuple[str, float]]:
        """Each instruction with how often it runs, given the trips of the loops by number (innermost last)."""
        weights = [1.0] * len(self.opcodes)
        for number, loop in enumerate(self.loops):
            for i in range(loop.first, loop.last + 1):
                weights[i] *= trips.get(number, 1.0)
        return list(zip(self.opcodes, weights, strict=True))


@dataclass(frozen=True)
class Prediction:
    """Counts per output element, and the predicted fraction of copy bandwidth."""

    instructions: float
    loads: float
    registers: int
    fraction: float
    bound: str


def compiled(
    kernel: Any,
    pointers: Sequence[str],
    sizes: Sequence[int],
    constants: Mapping[str, Any],
    num_warps: int = 4,
    target: GPUTarget = SM_90,
    aligned: bool = True,
    registers: int | None = None,
) -> Any:
    """The kernel as Triton's launcher would compile it for these pointers (data type names), sizes and constants.

    ``registers``: the most that a thread may have, for the assembler, which else decides by itself.
    """
    names = list(kernel.arg_names)
    signature: dict[str, str] = {}
    attributes = {}
    for i, dtype in enumerate(pointers):
        signature[names[i]] = POINTERS[dtype]
        if aligned:
            attributes[(i,)] = [["tt.divisibility", 16]]
    for name, size in zip(names[len(pointers) :], sizes, strict=False):
        signature[name] = "i32" if -(2**31) <= size < 2**31 else "i64"
    for name in names[len(signature) :]:
        signature[name] = "constexpr"
    source = ASTSource(fn=kernel, signature=signature, constexprs=dict(constants), attrs=attributes)
    options = {"num_warps": num_warps, "enable_fp_fusion": True}
    if registers is not None:
        options["maxnreg"] = registers
    return triton.compile(source, target=target, options=options)


def machine_code(binary: Any) -> Code:
    """Disassemble with the tools that Triton brings along."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        text = subprocess.run([TOOLS + "/nvdisasm", "-c", file.name], capture_output=True, text=True, check=True).stdout
        usage = subprocess.run([TOOLS + "/cuobjdump", "-res-usage", file.name], capture_output=True, text=True).stdout
    opcodes: list[str] = []
    labels: dict[str, int] = {}
    branches = []
    for line in text.splitlines():
        if label := LABEL.match(line):
            labels[label.group(1)] = len(opcodes)
        elif found := INSTRUCTION.match(line):
            opcode, operands = found.groups()
            if opcode.startswith("BRA") and (to := re.search(r"(\.L_x_\d+)", operands)):
                branches.append((len(opcodes), to.group(1)))
            opcodes.append(opcode)
    loops = []
    for at, label in branches:
        first = labels.get(label, at)
        if first == at:
            opcodes[at] = "NOP"  # the branch to itself that fills the end
        if first < at:
            loops.append(Loop(first, at, sum(op.startswith("LDG") for op in opcodes[first : at + 1])))
    resources = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", usage)
    registers, stack, shared = map(int, resources.groups()) if resources else (0, 0, 0)
    return Code(
        tuple(opcodes), tuple(sorted(loops, key=lambda loop: (loop.first, -loop.last))), registers, stack, shared
    )


def cost(code: Code, outputs_per_thread: float, trips: Mapping[int, float] = {}) -> Counter[str]:
    """Clocks of one SM per output element: issue, ALU, L1; and instructions and loads per output."""
    result: Counter[str] = Counter()
    for opcode, weight in code.weighted(trips):
        base = opcode.split(".")[0]
        if base == "NOP":
            continue
        result["instructions"] += weight  # type: ignore[assignment]
        if base in ALU:
            result["alu"] += weight / 64  # type: ignore[assignment]
        if base in ("LDG", "STG", "LDS", "STS"):
            width = WIDTH.search(opcode)
            result["L1"] += weight * (int(width.group(1)) // 32 if width else 1) / 32  # type: ignore[assignment]
        if base == "LDG":
            result["loads"] += weight  # type: ignore[assignment]
    result["issue"] = result["instructions"] / 128  # type: ignore[assignment]
    return Counter({name: value / outputs_per_thread for name, value in result.items()})  # type: ignore[misc]


def predicted(clocks: Mapping[str, float], registers: int, bytes_per_output: float) -> Prediction:
    """The fraction of copy bandwidth that ``clocks`` per output leave reachable, and what bounds it."""
    dram = bytes_per_output / BYTES_PER_CLOCK
    worst = max(("issue", "alu", "L1"), key=lambda name: clocks[name])
    fraction = min(1.0, dram / clocks[worst])
    return Prediction(
        clocks["instructions"], clocks["loads"], registers, fraction, "DRAM" if fraction == 1.0 else worst
    )
