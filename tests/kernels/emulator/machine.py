"""Runs a kernel's programs: all their threads in step, one instruction at a time for all of them."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np

from emulator.memory import FaultError, Memory, Segment
from emulator.program import Instruction, Operand, Program
from emulator.values import SIGNED, UNSIGNED, WORD, RefusedError, fit, kind, width

TOGETHER = 64  # programs that run in step
STEPS = 400_000
UNKNOWN = 0xA5A5A5A5A5A5A5A5  # what a register holds before anything is written to it
IGNORED = ("fence", "membar", "griddepcontrol", "nop", "bar.warp")


@functools.cache
def program_of(ptx: str) -> Program:
    return Program(ptx)


def run(
    ptx: str, memory: Memory, arguments: list[int], grid: int, shared_bytes: int, programs: Iterable[int] | None = None
) -> None:
    """Run a launch of ``grid`` programs, or some of these; arguments are bits, addresses of ``memory`` among them."""
    program = program_of(ptx)
    parameters = dict.fromkeys(program.parameters, 0) | dict(zip(program.parameters, arguments, strict=False))
    numbers = list(range(grid) if programs is None else programs)
    with np.errstate(all="ignore"):
        for first in range(0, len(numbers), TOGETHER):
            threads = Threads(program, memory, parameters, numbers[first : first + TOGETHER], grid, shared_bytes)
            threads.run()
            races = [race for segment in (*memory.segments, threads.shared) for race in segment.races]
            if races:
                raise FaultError(f"{program.name}: " + "; ".join(races))


class Threads:
    """The threads of some programs. An array has an entry for each of them, or one that all share."""

    def __init__(
        self, program: Program, memory: Memory, parameters: dict[str, int], numbers: list[int], grid: int, shared: int
    ) -> None:
        self.program, self.memory, self.parameters = program, memory, parameters
        self.count = len(numbers) * program.threads
        thread = np.tile(np.arange(program.threads, dtype=WORD), len(numbers))
        number = np.repeat(np.array(numbers, WORD), program.threads)
        self.special = {"%tid.x": thread, "%ctaid.x": number, "%nctaid.x": np.array([grid], WORD)}
        self.numbers = number.astype(np.int64) * program.threads + thread
        self.registers: list[np.ndarray | None] = [None] * len(program.widths)
        self.next = np.zeros(self.count, np.int64)
        self.done, self.waits = np.zeros(self.count, bool), np.zeros(self.count, bool)
        self.shared_bytes = -(-shared // 16) * 16
        room = len(numbers) * self.shared_bytes
        self.shared = Segment("shared memory", room, 1, np.zeros(room, np.uint8))
        self.slot = np.repeat(np.arange(len(numbers)), program.threads)
        self.steps, self.text = 0, ""

    def run(self) -> None:
        """Those threads go on that are furthest behind: where branches meet, they are together again."""
        while True:
            ready = ~(self.done | self.waits)
            if not ready.any():
                if self.waits.any():
                    raise FaultError(f"{self.program.name}: a barrier that not every thread of its program comes to")
                return
            at = int(self.next[ready].min())
            active = ready & (self.next == at)
            others = self.next[ready & ~active]
            self._advance(at, None if active.all() else active, int(others.min()) if others.size else -1)

    def _advance(self, at: int, active: np.ndarray | None, stop: int) -> None:
        """Run the active threads until they part, wait, end or come to where others are."""
        instructions = self.program.instructions
        everybody = slice(None) if active is None else active
        while at != stop and at < len(instructions):
            self.steps += 1
            if self.steps > STEPS:
                raise FaultError(f"{self.program.name}: more than {STEPS} instructions: an endless loop?")
            instruction = instructions[at]
            chosen = self._chosen(instruction, active)
            at += 1
            if instruction.opcode in ("bra", "bra.uni"):
                target = self.program.labels[instruction.operands[0].value]
                if chosen is active:
                    at = target
                elif chosen is not None and chosen.any():
                    self.next[everybody] = at
                    self.next[chosen] = target
                    return
                if stop >= 0 and at > stop:
                    break
            elif instruction.opcode in ("ret", "exit"):
                self.done[everybody if chosen is None else chosen] = True
                if chosen is active:
                    return
                self.next[everybody] = at
                return
            elif instruction.opcode.startswith(("bar.sync", "barrier.sync")):
                self.next[everybody] = at
                self._wait(everybody if chosen is None else chosen)
                return
            elif chosen is active or chosen is None or chosen.any():
                self.text = instruction.text
                try:
                    self._execute(instruction, chosen)
                except (FaultError, RefusedError) as error:
                    raise type(error)(f"{self.program.name}: {error}: {instruction.text}") from None
        self.next[everybody] = at
        if at >= len(instructions):
            self.done[everybody] = True

    def _chosen(self, instruction: Instruction, active: np.ndarray | None) -> np.ndarray | None:
        """Active threads whose guard holds; the very object ``active`` where it holds for all of them."""
        if instruction.guard is None:
            return active
        number, wanted = instruction.guard
        holds = self._register(number) == wanted
        if holds.all():
            return active
        holds = np.broadcast_to(holds, self.count)
        return holds if active is None else active if not (active & ~holds).any() else active & holds

    def _wait(self, threads: np.ndarray | slice) -> None:
        """A program goes on when all its threads wait."""
        self.waits[threads] = True
        each = (self.waits | self.done).reshape(-1, self.program.threads)
        released = np.repeat(each.all(1), self.program.threads) & self.waits
        self.waits[released] = False
        for slot in np.flatnonzero(released[:: self.program.threads]):
            self.shared.forget(slot * self.shared_bytes, (slot + 1) * self.shared_bytes)

    # Registers

    def _register(self, number: int) -> np.ndarray:
        held = self.registers[number]
        if held is None:
            size = self.program.widths[number]
            held = self.registers[number] = np.array([UNKNOWN & (1 << size) - 1]).astype(UNSIGNED[size])
        return held

    def _read(self, operand: Operand, size: int) -> np.ndarray:
        if operand.what == "register":
            return fit(self._register(operand.value), size)
        if operand.what == "number":
            return np.array([operand.value & (1 << size) - 1], np.uint64).astype(UNSIGNED[size])
        if operand.what == "symbol" and operand.value == "global_smem":
            return np.zeros(1, UNSIGNED[size])
        if operand.value in self.special:
            return self.special[operand.value]
        if operand.value in ("%ctaid.y", "%ctaid.z", "%tid.y", "%tid.z"):
            return np.zeros(1, WORD)
        raise RefusedError(str(operand.value))

    def _write(self, operand: Operand, result: np.ndarray, chosen: np.ndarray | None) -> None:
        """Signed numbers are extended to the register's width, unsigned ones with zeros."""
        if operand.value == "_":
            return
        if operand.what != "register":
            raise RefusedError(str(operand.value))
        result = result.astype(UNSIGNED[self.program.widths[operand.value]], copy=False)
        if chosen is not None:
            result = np.where(chosen, result, self._register(operand.value))
        self.registers[operand.value] = result

    def _lanes(self, values: np.ndarray, chosen: np.ndarray | None) -> np.ndarray:
        values = np.broadcast_to(values, self.count)
        return values if chosen is None else values[chosen]

    # Instructions

    def _execute(self, instruction: Instruction, chosen: np.ndarray | None) -> None:
        opcode, operands = instruction.opcode, instruction.operands
        if instruction.operation is not None:
            sources, compute = instruction.operation
            results = compute(*(self._read(*each) for each in zip(operands[1:], sources, strict=True)))
            if isinstance(results, tuple):
                for to, result in zip(operands[0].value, results, strict=True):
                    self._write(to, result, chosen)
            else:
                self._write(operands[0], results, chosen)
            return
        name, *modifiers = opcode.split(".")
        if name in ("mov", "cvta"):
            self._move(operands, width(modifiers[-1]), chosen)
        elif opcode.startswith("ld.param"):
            parameter = self.parameters[operands[1].value.value]
            self._write(operands[0], np.array([parameter & (1 << width(modifiers[-1])) - 1], np.uint64), chosen)
        elif name in ("ld", "st"):
            self._access(name, modifiers, operands, chosen)
        elif name == "ldmatrix":
            self._matrix(modifiers, operands, chosen)
        elif not opcode.startswith(IGNORED):
            raise RefusedError("unknown instruction")

    def _move(self, operands: tuple[Operand, ...], size: int, chosen: np.ndarray | None) -> None:
        to, source = operands
        if to.what == "vector":
            part, bits = size // len(to.value), self._read(source, size)
            for i, each in enumerate(to.value):
                self._write(each, fit(bits >> bits.dtype.type(i * part), part), chosen)
            return
        if source.what != "vector":
            self._write(to, self._read(source, size), chosen)
            return
        part, of = size // len(source.value), UNSIGNED[size]
        pieces = [self._read(each, part).astype(of) << of(i * part) for i, each in enumerate(source.value)]
        self._write(to, functools.reduce(np.bitwise_or, pieces), chosen)

    def _addresses(self, operand: Operand, size: int, chosen: np.ndarray | None) -> np.ndarray:
        return self._lanes(self._read(operand.value, size), chosen).astype(np.int64) + operand.offset

    def _segment(
        self, operand: Operand, modifiers: list[str], chosen: np.ndarray | None
    ) -> tuple[Segment, np.ndarray, np.ndarray]:
        """Where an operand lies, offsets there, and the threads."""
        threads = self._lanes(self.numbers, chosen)
        if "global" in modifiers:
            return *self.memory.at(self._addresses(operand, 64, chosen)), threads
        if not any(each.startswith("shared") for each in modifiers):
            raise RefusedError("neither global nor shared memory")
        addresses = self._addresses(operand, 32, chosen)
        if addresses.min() < 0 or addresses.max() >= self.shared_bytes:
            raise FaultError(f"out of bounds of shared memory: {addresses.max()} of {self.shared_bytes}")
        return self.shared, addresses + self._lanes(self.slot, chosen) * self.shared_bytes, threads

    def _access(
        self, name: str, modifiers: list[str], operands: tuple[Operand, ...], chosen: np.ndarray | None
    ) -> None:
        size = width(modifiers[-1])
        segment, offsets, threads = self._segment(operands[name == "ld"], modifiers, chosen)
        parts = operands[name == "st"]
        parts = parts.value if parts.what == "vector" else (parts,)
        if name == "st":
            elements = [self._lanes(self._read(each, size), chosen) for each in parts]
            segment.store(offsets, elements, threads, self.text)
            return
        for to, result in zip(parts, segment.load(offsets, size // 8, len(parts), threads, self.text), strict=True):
            if kind(modifiers[-1]) == "s":
                result = result.view(SIGNED[size])
            if chosen is not None:
                whole = np.zeros(self.count, result.dtype)
                whole[chosen] = result
                result = whole
            self._write(to, result, chosen)

    def _matrix(self, modifiers: list[str], operands: tuple[Operand, ...], chosen: np.ndarray | None) -> None:
        """Eight by eight 16-bit elements at a time: each lane gets two neighbours of a row, or of a column."""
        if chosen is not None or modifiers[-1] != "b16":
            raise RefusedError("a matrix of other elements, or after a branch")
        segment, offsets, threads = self._segment(operands[1], modifiers, None)
        lane = np.arange(self.count) % 32
        to = operands[0].value if operands[0].what == "vector" else operands[:1]
        for matrix, register in enumerate(to):
            pair = []
            for i in range(2):
                row, column = (lane % 4 * 2 + i, lane // 4) if "trans" in modifiers else (lane // 4, lane % 4 * 2 + i)
                place = offsets[np.arange(self.count) - lane + 8 * matrix + row] + 2 * column
                pair.append(segment.load(place, 2, 1, threads, self.text)[0].astype(WORD) << WORD(16 * i))
            self._write(register, pair[0] | pair[1], None)
