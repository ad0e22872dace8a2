"""How fast an H200 can run compiled kernels: machine code read and one warp of it timed, without a
GPU.

The chip: 132 multiprocessors at 1.755 GHz, 4.3 TB/s copy = 18.56 bytes of memory per clock and
multiprocessor; each has 4 issue slots, 64 ALU lanes, one 128-byte L1 wavefront per clock, 65,536
registers, 227 KiB of shared memory.

A launch takes the longest of: moving its bytes; issuing its instructions; its ALU instructions; its
L1 wavefronts; and latency: a warp's instructions in order, two clocks apart, each waiting for its
operands (a load for 700 ns), times the warps that a multiprocessor runs one after another. Loads
that hit a cache are charged as if they did not, stores never wait, wavefronts are counted as if
lanes were neighbours, and the L2 cache has no limit: neither bound nor measurement.
"""

from __future__ import annotations

import math
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import triton

PROCESSORS, CLOCKS_PER_SECOND = 132, 1.755e9
COPY = 4.3e12  # bytes read and written per second
BYTES_PER_CLOCK = COPY / CLOCKS_PER_SECOND / PROCESSORS
LATENCY = 700e-9 * CLOCKS_PER_SECOND
NEARBY = 30.0  # clocks until shared or local memory answers
RESULT = 5.0  # clocks until an instruction's result can be read
REGISTERS, SHARED_BYTES, MOST_WARPS, MOST_PROGRAMS = 65_536, 227 * 1024, 64, 32
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
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
LINE = re.compile(r"^\s+/\*[0-9a-f]{4,6}\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]+)\s*(.*?);")
LABEL = re.compile(r"^(\.L_x_\d+):")
WITHOUT_RESULT = ("STG", "STS", "STL", "BRA", "BAR", "EXIT", "NOP", "RED")


class Instruction(NamedTuple):
    opcode: str
    guarded: bool
    results: tuple[int, ...]
    sources: tuple[int, ...]
    target: str  # of a branch

    @property
    def base(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def words(self) -> int:
        return 4 if ".128" in self.opcode else 2 if ".64" in self.opcode else 1


@dataclass(frozen=True)
class Code:
    """Machine code of one kernel; ``labels`` are places in it."""

    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]
    registers: int
    shared: int

    @property
    def spills(self) -> int:
        """Accesses to local memory."""
        return sum(each.base in ("LDL", "STL") for each in self.instructions)

    def loads(self) -> list[Instruction]:
        return [each for each in self.instructions if each.base == "LDG"]


class Warp(NamedTuple):
    """One warp from its start to its end."""

    clocks: float
    instructions: int
    alu: int
    wavefronts: int
    in_flight: int  # bytes that its loads wait for, at most


class Time(NamedTuple):
    """A launch on the whole chip, in clocks, by what could bound it; and bytes in flight on a
    multiprocessor."""

    clocks: Mapping[str, float]
    in_flight: float

    @property
    def total(self) -> float:
        return max(self.clocks.values())

    @property
    def bound(self) -> str:
        return max(self.clocks, key=lambda name: self.clocks[name])


def machine_code(cubin: bytes) -> Code:
    """Disassembled with the tools that Triton brings along."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text, usage = (
            subprocess.run(
                [TOOLS / tool, option, file.name], capture_output=True, text=True, check=True
            ).stdout
            for tool, option in (("nvdisasm", "-c"), ("cuobjdump", "-res-usage"))
        )
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif found := LINE.match(line):
            instructions.append(_instruction(*found.groups()))
    used = re.search(r"REG:(\d+) STACK:\d+ SHARED:(\d+)", usage)
    assert used is not None, usage
    return Code(tuple(instructions), labels, int(used[1]), int(used[2]))


def _instruction(guard: str | None, opcode: str, operands: str) -> Instruction:
    target = re.search(r"\.L_x_\d+", operands)
    parts = operands.split(",")
    has_result = not opcode.startswith(WITHOUT_RESULT)
    result, sources = (parts[0], parts[1:]) if has_result else ("", parts)
    words = 4 if ".128" in opcode else 2 if ".64" in opcode or ".WIDE" in opcode else 1
    first = re.findall(r"\bR(\d+)\b", result)
    read = [int(number) for part in sources for number in re.findall(r"\bR(\d+)\b", part)]
    if opcode.startswith(("STG", "STS")) and read:
        read += range(read[-1] + 1, read[-1] + words)
    results = tuple(range(int(first[0]), int(first[0]) + words)) if first else ()
    return Instruction(opcode, guard is not None, results, tuple(read), target[0] if target else "")


def one_warp(code: Code, taps: int = 1) -> Warp:
    """In order, loops as often as their loads make ``taps`` together, other branches not taken."""
    ready: dict[int, float] = {}
    turns: dict[int, int] = {}
    waiting: list[tuple[float, int]] = []
    clock, at, instructions, alu, wavefronts, peak = 0.0, 0, 0, 0, 0, 0
    while at < len(code.instructions) and instructions < 200_000:
        each = code.instructions[at]
        if each.base == "EXIT" and not each.guarded:
            break
        instructions += 1
        alu += each.base in ALU
        clock = max([clock + 2.0, *(ready.get(register, 0.0) for register in each.sources)])
        if each.base in ("LDG", "STG", "LDS", "STS"):
            wavefronts += each.words
        latency = {"LDG": LATENCY, "LDS": NEARBY, "LDL": NEARBY, "ATOMG": LATENCY}.get(
            each.base, RESULT
        )
        ready.update(dict.fromkeys(each.results, clock + latency))
        if each.base == "LDG":
            waiting = [(end, size) for end, size in waiting if end > clock] + [
                (clock + LATENCY, 128 * each.words)
            ]
            peak = max(peak, sum(size for _, size in waiting))
        elif each.base == "BAR":
            clock += 20.0
        at += 1
        target = code.labels.get(each.target, at)
        if each.base == "BRA" and target == at - 1:
            break  # the end is filled with branches to themselves
        if each.base == "BRA" and target < at:
            loads = sum(one.base == "LDG" for one in code.instructions[target:at])
            turns[at] = turns.get(at, 0) + 1
            if turns[at] < math.ceil(taps / loads) if loads else False:
                at = target
            else:
                turns[at] = 0
    return Warp(clock, instructions, alu, wavefronts, peak)


def launch_time(code: Code, programs: int, warps: int, moved: int, taps: int = 1) -> Time:
    """The time of a launch that moves ``moved`` bytes of memory."""
    one = one_warp(code, taps)
    per_warp = math.ceil(max(code.registers, 24) / 8) * 8 * 32
    resident = min(REGISTERS // (per_warp * warps), MOST_WARPS // warps, MOST_PROGRAMS)
    if code.shared:
        resident = min(resident, SHARED_BYTES // (code.shared + 1024))
    busy = programs / PROCESSORS  # programs of one multiprocessor
    clocks = {
        "memory": moved / PROCESSORS / BYTES_PER_CLOCK,
        "issue": one.instructions * warps * busy / 4,
        "ALU": one.alu * warps * busy / 2,
        "L1": one.wavefronts * warps * busy,
        "latency": one.clocks * max(1.0, busy / resident),
    }
    return Time(clocks, one.in_flight * warps * min(resident, busy))
