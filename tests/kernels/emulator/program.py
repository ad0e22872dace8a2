"""A PTX kernel as a list of decoded instructions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from emulator import values
from emulator.memory import FaultError
from emulator.values import Operation, RefusedError

LINE = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)[^\n]*$", re.MULTILINE)
OPERAND = re.compile(r"\[[^\]]*\]|\{[^}]*\}|[^,\s][^,]*")
STATEMENT = re.compile(r"(?:@(!?)([%\w$]+)\s+)?([\w.:]+)\s*(.*)", re.DOTALL)
NUMBERS = ((r"-?\d+U?", 10), (r"-?0[xX][0-9a-fA-F]+U?", 16), (r"0[fd][0-9a-fA-F]{8,16}", 16))


class Operand(NamedTuple):
    """``what`` is register, number, special, symbol, vector, pair or address; ``value`` its number, name or parts."""

    what: str
    value: Any
    offset: int = 0


class Instruction(NamedTuple):
    """``guard`` is the number of a predicate register and the value under which the instruction runs."""

    guard: tuple[int, bool] | None
    opcode: str
    operands: tuple[Operand, ...]
    operation: Operation | None
    text: str


class Program:
    """Instructions, labels, registers' widths, parameters' names and the threads of one program."""

    def __init__(self, ptx: str) -> None:
        ptx = re.sub(r"/\*.*?\*/", "", re.sub(r"//[^\n]*", "", ptx), flags=re.DOTALL)
        files = {number: Path(path).name for number, path in re.findall(r'\.file\s+(\d+)\s+"([^"]+)"', ptx)}
        entry = re.search(r"\.entry\s+([\w$.]+)\s*\((.*?)\)(.*?)\{", ptx, re.DOTALL)
        threads = re.search(r"\.reqntid\s+(\d+)", ptx)
        if not entry or not threads:
            raise RefusedError("no entry with a required number of threads")
        self.name, self.threads = entry[1], int(threads[1])
        self.parameters = [words.split()[-1] for words in entry[2].split(",") if words.strip()]
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.widths: list[int] = []
        self._scopes: list[dict[str, int]] = [{}]
        body = LINE.sub(lambda found: f".loc {files.get(found[1], '?')}:{found[2]};", ptx[entry.end() :])
        self._parse(re.sub(r"^\s*\.(?:file|section)\b[^\n]*$", "", body, flags=re.MULTILINE))

    def _parse(self, body: str) -> None:
        statement, line, in_vector = "", "", False
        for piece in re.split(r"([;{}]|\$[\w$]+:)", body):
            if piece == "{" and statement.strip():
                statement, in_vector = statement + piece, True
            elif piece == "{":
                self._scopes.append({})
            elif piece == "}" and in_vector:
                statement, in_vector = statement + piece, False
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

    def _declare(self, text: str) -> None:
        _, of, names = text.split(maxsplit=2)
        for name in names.split(","):
            stem, count = found.groups() if (found := re.fullmatch(r"\s*(\S+)<(\d+)>", name)) else (name.strip(), None)
            for each in [stem] if count is None else [f"{stem}{i}" for i in range(int(count))]:
                self._scopes[-1][each] = len(self.widths)
                self.widths.append(values.width(of[1:]))

    def _register(self, name: str) -> int | None:
        return next((scope[name] for scope in reversed(self._scopes) if name in scope), None)

    def _decoded(self, text: str, line: str) -> Instruction:
        found = STATEMENT.fullmatch(text)
        if not found or found[3].startswith("."):
            raise RefusedError(text)
        guard = None
        if found[2]:
            number = self._register(found[2])
            if number is None:
                raise RefusedError(text)
            guard = number, found[1] != "!"
        operands = tuple(self._operand(each.strip()) for each in OPERAND.findall(found[4]))
        try:
            computes = values.operation(found[3])
        except (RefusedError, ValueError, KeyError):
            computes = None  # it touches memory or other threads, or the machine refuses it
        text = f"{text} ({line})" if line else text
        size = int(digits[0]) if (digits := re.findall(r"\d+$", found[3])) else 64
        # Of 32 bits -1 and what narrower types cannot hold mean the same when extended; -128 and -32768 do not.
        extended = (2**64 - 1,), range(2**64 - 2**31, 2**64 - 2**15)
        numbers = [each.value for each in operands if each.what == "number"]
        numbers = [each for each in numbers if not any(each in harmless for harmless in extended)]
        if any(not -(2 ** (size - 1)) <= number < 2**size for number in numbers):
            raise FaultError(f"{self.name}: a constant wider than its register: {text}")
        return Instruction(guard, found[3], operands, computes, text)

    def _operand(self, text: str) -> Operand:
        if text.startswith("{"):
            return Operand("vector", tuple(self._operand(each.strip()) for each in text[1:-1].split(",")))
        if text.startswith("["):
            base, _, offset = text[1:-1].partition("+")
            return Operand("address", self._operand(base.strip()), int(offset or 0))
        if "|" in text:
            return Operand("pair", tuple(self._operand(each.strip()) for each in text.split("|")))
        number = self._register(text)
        if number is not None:
            return Operand("register", number)
        for pattern, base in NUMBERS:
            if re.fullmatch(pattern, text):
                digits = text.rstrip("U")
                return Operand("number", int(digits[2:] if digits[:2] in ("0f", "0d") else digits, base))
        return Operand("special" if text.startswith("%") else "symbol", text)
