"""Decodes a kernel's PTX and runs its programs: all threads in step, one instruction at a time for
all of them."""

import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from emulator.memory import FaultError, Segment
from emulator.values import (
    SIGNED_FOR,
    UNSIGNED,
    WORD,
    Operation,
    RefusedError,
    fit,
    halves,
    joined,
    kind,
    operation,
    width,
)

LINE = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)[^\n]*$", re.MULTILINE)
OPERAND = re.compile(r"\[[^\]]*\]|<[^>]*>|[^,\s][^,]*")
STATEMENT = re.compile(r"(?:@(!?)([%\w$]+)\s+)?([\w.:]+)\s*(.*)", re.DOTALL)
NUMBERS = ((r"-?\d+U?", 10), (r"-?0[xX][0-9a-fA-F]+U?", 16), (r"0[fd][0-9a-fA-F]{8,16}", 16))
TOGETHER = 64  # programs that run in step
WARP = 32
STEPS = 100_000
UNKNOWN = 0xA5A5A5A5A5A5A5A5  # what a register holds before anything is written to it


class Operand(NamedTuple):
    """``what`` is register, number, special, symbol, vector or address; ``value`` its number, name
    or parts."""

    what: str
    value: Any
    offset: int = 0


class Instruction(NamedTuple):
    """``guard`` is the number of a predicate register and the value under which the instruction
    runs."""

    guard: tuple[int | None, bool] | None
    opcode: str
    operands: tuple[Operand, ...]
    operation: Operation | None
    text: str


class Program:
    """Instructions, labels, registers' widths, parameters' names and the threads of one program."""

    def __init__(self, ptx):
        ptx = re.sub(r"/\*.*?\*/", "", re.sub(r"//[^\n]*", "", ptx), flags=re.DOTALL)
        files = {
            number: Path(path).name
            for number, path in re.findall(r'\.file\s+(\d+)\s+"([^"]+)"', ptx)
        }
        entry = re.search(r"\.entry\s+([\w$.]+)\s*\((.*?)\)(.*?)\{", ptx, re.DOTALL)
        threads = re.search(r"\.reqntid\s+(\d+)", ptx)
        self.name, self.threads = entry[1], int(threads[1])
        self.parameters = [words.split()[-1] for words in entry[2].split(",") if words.strip()]
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.widths: list[int] = []
        self._scopes: list[dict[str, int]] = [{}]
        body = LINE.sub(
            lambda found: f".loc {files.get(found[1], '?')}:{found[2]};", ptx[entry.end() :]
        )
        body = re.sub(r"^\s*\.(?:file|section)\b[^\n]*$", "", body, flags=re.MULTILINE)
        self._parse(re.sub(r"\{([^{};]*)\}", r"<\1>", body))  # vectors, not blocks

    def _parse(self, body):
        statement, line = "", ""
        for piece in re.split(r"([;{}]|\$[\w$]+:)", body):
            if piece == "{":
                self._scopes.append({})
            elif piece == "}":
                self._scopes.pop()
                if not self._scopes:
                    return
            elif piece == ";":
                text, statement = " ".join(statement.split()), ""
                if text.startswith(".loc"):
                    line = text[5:]
                elif text.startswith(".reg"):
                    self._declare(text)
                elif text and not text.startswith(".pragma"):
                    self.instructions.append(self._decoded(text, line))
            elif piece.endswith(":") and piece.startswith("$"):
                self.labels[piece[:-1]] = len(self.instructions)
            else:
                statement += piece

    def _declare(self, text):
        _, of, names = text.split(maxsplit=2)
        for stem, count in re.findall(r"([%\w$]+)(?:<(\d+)>)?", names):
            for each in [f"{stem}{i}" for i in range(int(count))] if count else [stem]:
                self._scopes[-1][each] = len(self.widths)
                self.widths.append(width(of[1:]))

    def _register(self, name):
        return next((scope[name] for scope in reversed(self._scopes) if name in scope), None)

    def _decoded(self, text, line):
        found = STATEMENT.fullmatch(text)
        if not found or found[3].startswith("."):
            raise RefusedError(text)
        guard = (self._register(found[2]), found[1] != "!") if found[2] else None
        operands = tuple(self._operand(each.strip()) for each in OPERAND.findall(found[4]))
        try:
            computes = operation(found[3])
        except (RefusedError, ValueError, KeyError):
            computes = None  # it touches memory or other threads, or the machine refuses it
        text = f"{text} ({line})" if line else text
        size = int(digits[0]) if (digits := re.findall(r"\d+$", found[3])) else 64
        # In 32 bits -1 and what narrower types cannot hold mean the same when extended; -128 and
        # -32768 do not.
        extended = (2**64 - 1,), range(2**64 - 2**31, 2**64 - 2**15)
        numbers = [each.value for each in operands if each.what == "number"]
        numbers = [each for each in numbers if not any(each in harmless for harmless in extended)]
        if any(not -(2 ** (size - 1)) <= number < 2**size for number in numbers):
            raise FaultError(f"{self.name}: a constant wider than its register: {text}")
        return Instruction(guard, found[3], operands, computes, text)

    def _operand(self, text):
        if text.startswith("<"):
            return Operand(
                "vector", tuple(self._operand(each.strip()) for each in text[1:-1].split(","))
            )
        if text.startswith("["):
            base, _, offset = text[1:-1].partition("+")
            return Operand("address", self._operand(base.strip()), int(offset or 0))
        number = self._register(text)
        if number is not None:
            return Operand("register", number)
        for pattern, base in NUMBERS:
            if re.fullmatch(pattern, text):
                digits = text.rstrip("U")
                return Operand(
                    "number", int(digits[2:] if digits[:2] in ("0f", "0d") else digits, base)
                )
        return Operand("special" if text.startswith("%") else "symbol", text)


program_of = functools.cache(Program)


def run(ptx, memory, arguments, shared_bytes, programs):
    """Run some programs of a launch; arguments are bits, addresses of ``memory`` among them."""
    program, numbers = program_of(ptx), list(programs)
    parameters = dict.fromkeys(program.parameters, 0) | dict(
        zip(program.parameters, arguments, strict=False)
    )
    with np.errstate(all="ignore"):
        for first in range(0, len(numbers), TOGETHER):
            threads = Threads(
                program, memory, parameters, numbers[first : first + TOGETHER], shared_bytes
            )
            threads.run()
            races = [
                race for segment in (*memory.segments, threads.shared) for race in segment.races
            ]
            if races:
                raise FaultError(f"{program.name}: " + "; ".join(races))


class Threads:
    """The threads of some programs. An array has an entry for each of them, or one that all share.

    ``chosen`` are the threads that an instruction is for: a mask, or None for all of them.
    """

    def __init__(self, program, memory, parameters, numbers, shared):
        self.program, self.memory, self.parameters = program, memory, parameters
        self.count = len(numbers) * program.threads
        thread = np.tile(np.arange(program.threads, dtype=WORD), len(numbers))
        number = np.repeat(np.array(numbers, WORD), program.threads)
        self.special = {"%tid.x": thread, "%ctaid.x": number, "global_smem": np.zeros(1, WORD)}
        self.numbers = number.astype(np.int64) * program.threads + thread
        self.registers: list[np.ndarray | None] = [None] * len(program.widths)
        self.shared_bytes = -(-shared // 16) * 16
        room = len(numbers) * self.shared_bytes
        self.shared = Segment("shared memory", room, 1, np.zeros(room, np.uint8))
        self.slot = np.repeat(np.arange(len(numbers)), program.threads)

    def run(self):
        """No kernel lets some threads jump and others not: all go the same way."""
        at: int | None = 0
        for _ in range(STEPS):
            instruction = self.program.instructions[at]
            try:
                at = self._step(instruction, at + 1)
            except (FaultError, RefusedError) as error:
                raise type(error)(f"{self.program.name}: {error}: {instruction.text}") from None
            if at is None:
                return
        raise FaultError(f"{self.program.name}: more than {STEPS} instructions: an endless loop?")

    def _step(self, instruction, after):
        """The number of the instruction that comes next, None at the end."""
        chosen = None
        if instruction.guard is not None:
            number, wanted = instruction.guard
            mask = np.broadcast_to(self._register(number) == wanted, self.count)
            if not mask.any():
                return after
            chosen = None if mask.all() else mask
        if not instruction.opcode.startswith(("bra", "ret", "exit", "bar.sync", "barrier.sync")):
            self._execute(instruction, chosen)
            return after
        if chosen is not None:
            raise RefusedError("threads that part")
        if instruction.opcode.startswith("bra"):
            return self.program.labels[instruction.operands[0].value]
        if instruction.opcode in ("ret", "exit"):
            return None
        self.shared.forget()
        return after

    def _register(self, number):
        held = self.registers[number]
        if held is None:
            size = self.program.widths[number]
            held = self.registers[number] = np.array([UNKNOWN & (1 << size) - 1]).astype(
                UNSIGNED[size]
            )
        return held

    def _read(self, operand, size):
        if operand.what == "register":
            return fit(self._register(operand.value), size)
        if operand.what == "number":
            return np.array([operand.value & (1 << size) - 1], np.uint64).astype(UNSIGNED[size])
        if operand.value not in self.special:
            raise RefusedError(str(operand.value))
        return self.special[operand.value]

    def _write(self, operand, result, chosen):
        """Signed numbers are extended to the register's width, unsigned ones with zeros."""
        if operand.value == "_":
            return
        if operand.what != "register":
            raise RefusedError(str(operand.value))
        result = result.astype(UNSIGNED[self.program.widths[operand.value]], copy=False)
        if chosen is not None:
            result = np.where(chosen, result, self._register(operand.value))
        self.registers[operand.value] = result

    def _lanes(self, values, chosen):
        values = np.broadcast_to(values, self.count)
        return values if chosen is None else values[chosen]

    def _execute(self, instruction, chosen):
        opcode, operands = instruction.opcode, instruction.operands
        name, *modifiers = opcode.split(".")
        if instruction.operation is not None:
            sources, compute = instruction.operation
            result = compute(
                *(self._read(*each) for each in zip(operands[1:], sources, strict=True))
            )
            self._write(operands[0], result, chosen)
        elif name == "mov":
            self._move(*operands, width(modifiers[-1]), chosen)
        elif opcode.startswith("ld.param"):
            parameter = self.parameters[operands[1].value.value]
            self._write(
                operands[0],
                np.array([parameter & (1 << width(modifiers[-1])) - 1], np.uint64),
                chosen,
            )
        elif name in ("ld", "st", "ldmatrix", "stmatrix"):
            register, place = operands[::-1] if name.startswith("st") else operands
            self._access(name, modifiers, register, place, instruction.text, chosen)
        elif opcode.startswith(("shfl.sync", "redux.sync")):
            self._exchange(opcode, operands, chosen)
        else:
            raise RefusedError("unknown instruction")

    def _exchange(self, opcode, operands, chosen):
        """Threads of a warp read each other's registers: those at a distance, or a sum of all."""
        to, *given = operands
        value, *others, masks = (
            np.broadcast_to(self._read(each, 32), self.count) for each in given
        )
        if chosen is not None or (masks != WORD(2**32 - 1)).any():
            raise RefusedError("an exchange between some threads of a warp")
        if opcode == "redux.sync.add.s32":
            sums = value.reshape(-1, WARP).sum(1, dtype=WORD)
            self._write(to, np.repeat(sums, WARP), None)
        elif (
            opcode.startswith(("shfl.sync.bfly", "shfl.sync.idx")) and (others[1] == WARP - 1).all()
        ):
            lanes, given_lanes = np.arange(self.count), others[0].astype(np.int64)
            is_named = "idx" in opcode  # in its warp, else by the bits that differ
            lanes = lanes // WARP * WARP + given_lanes % WARP if is_named else lanes ^ given_lanes
            self._write(to, value[lanes], None)
        else:
            raise RefusedError("unknown exchange")

    def _move(self, to, source, size, chosen):
        """Several registers are parts of a wider one, the lowest first."""
        if to.what == "vector":
            bits, part = self._read(source, size), size // len(to.value)
            for i, each in enumerate(to.value):
                self._write(each, fit(bits >> bits.dtype.type(i * part), part), chosen)
            return
        parts = source.value if source.what == "vector" else (source,)
        part, of = size // len(parts), UNSIGNED[size]
        pieces = [self._read(each, part).astype(of) << of(i * part) for i, each in enumerate(parts)]
        self._write(to, functools.reduce(np.bitwise_or, pieces), chosen)

    def _access(self, name, modifiers, register, place, text, chosen):
        size, threads, segment = (
            width(modifiers[-1]),
            self._lanes(self.numbers, chosen),
            self.shared,
        )
        is_global = "global" in modifiers
        offsets = (
            self._lanes(self._read(place.value, 64 if is_global else 32), chosen).astype(np.int64)
            + place.offset
        )
        if is_global:
            segment, offsets = self.memory.at(offsets)
        elif not any(each.startswith("shared") for each in modifiers):
            raise RefusedError("neither global nor shared memory")
        elif offsets.min() < 0 or offsets.max() >= self.shared_bytes:
            raise FaultError(
                f"out of bounds of shared memory: {offsets.max()} of {self.shared_bytes}"
            )
        else:
            offsets = offsets + self._lanes(self.slot, chosen) * self.shared_bytes
        registers = register.value if register.what == "vector" else (register,)
        if name.endswith("matrix"):
            if chosen is not None or modifiers[-1] != "b16":
                raise RefusedError("a matrix of other elements, or after a branch")
            self._matrices(name, registers, offsets, "trans" in modifiers, text)
            return
        if name == "st":
            segment.store(
                offsets,
                [self._lanes(self._read(each, size), chosen) for each in registers],
                threads,
                text,
            )
            return
        found = segment.load(offsets, size // 8, len(registers), threads, text)
        for to, result in zip(registers, found, strict=True):
            result = result.view(SIGNED_FOR[size]) if kind(modifiers[-1]) == "s" else result
            if chosen is not None:
                whole = np.zeros(self.count, result.dtype)
                whole[chosen] = result
                result = whole
            self._write(to, result, chosen)

    def _matrices(self, name, registers, rows, turned, text):
        """Eight by eight 16-bit elements for each register: a lane's holds two neighbours of a row,
        or of a column.

        Every eight lanes' ``rows`` are the places of the rows of one matrix.
        """
        each = np.arange(self.count)
        row, column = each % 32 // 4, each % 4 * 2
        for i, register in enumerate(registers):
            pairs = (
                ((column, row), (column + 1, row)) if turned else ((row, column), (row, column + 1))
            )
            places = []
            for down, right in pairs:
                first = rows[each - each % 32 + 8 * i + down]
                if (first % 16).any():
                    raise FaultError("misaligned row of a matrix")
                places.append(first + 2 * right)
            if name == "stmatrix":
                word = np.broadcast_to(self._read(register, 32), self.count)
                for place, half in zip(places, halves(word), strict=True):
                    self.shared.store(place, [half], self.numbers, text)
            else:
                found = (self.shared.load(place, 2, 1, self.numbers, text)[0] for place in places)
                self._write(register, joined(*found), None)
