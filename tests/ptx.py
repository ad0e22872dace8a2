"""An emulator of the PTX that the kernels contain, from NVIDIA's description of the instruction set.

It knows those instructions and no others, and refuses what it cannot do exactly as described: an unknown instruction or
modifier, an undeclared register, one of the wrong type, one read before it is written, an input that is written.
Registers hold bits: an array element for each lane. NaNs that arithmetic makes are the canonical ones, 0x7FFFFFFF and
0x7FFF; that the half-precision instructions make the latter is what GPUs do, the description says it of float32 alone.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

Bits = np.ndarray
PREDICATE = "pred"
KINDS = {"r": "b32", "f": "f32", "h": "b16"}
"""What LLVM's constraints mean."""
_DTYPES = {"b32": np.uint32, "u32": np.uint32, "s32": np.uint32, "f32": np.uint32, "b16": np.uint16, "u16": np.uint16}
_STATEMENT = re.compile(r"(?:@(!?)([a-z]\w*)\s+)?([a-zA-Z0-9.]+)\s+(.+)", re.DOTALL)


class RefusedError(Exception):
    """The emulator does not know what is asked of it, or PTX forbids it."""


@dataclasses.dataclass
class Register:
    kind: str
    bits: Bits | None = None


@dataclasses.dataclass(frozen=True)
class Instruction:
    """Kinds of the results and of the operands (``immediate`` for a number), and what it does to their bits."""

    results: tuple[str, ...]
    operands: tuple[str, ...]
    compute: Callable[..., Bits | tuple[Bits, ...]]


def _float(bits: Bits) -> np.ndarray:
    return bits.view(np.float32)


def _of_float(value: np.ndarray) -> Bits:
    value = np.asarray(value, np.float32)
    return np.where(np.isnan(value), np.uint32(0x7FFFFFFF), value.view(np.uint32))


def _halves(word: Bits) -> tuple[Bits, Bits]:
    return (word & np.uint32(0xFFFF)).astype(np.uint16), (word >> np.uint32(16)).astype(np.uint16)


def _by_halves(compute: Callable[..., Bits]) -> Callable[..., Bits]:
    """The same for the lower and the upper halves of words."""

    def both(*words: Bits) -> Bits:
        low, high = (compute(*halves) for halves in zip(*map(_halves, words), strict=True))
        return low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)

    return both


def _add_float16(a: Bits, b: Bits) -> Bits:
    # float64 holds the sum of any two float16 exactly, so that it is rounded once.
    total = (a.view(np.float16).astype(np.float64) + b.view(np.float16).astype(np.float64)).astype(np.float16)
    return np.where(np.isnan(total), np.uint16(0x7FFF), total.view(np.uint16))


def _greater_half(a: Bits, b: Bits, bfloat16: bool) -> Bits:
    """As ``_greater_float``: a NaN wins, +0 is greater than -0, and denormals stay what they are."""
    x, y = (
        (bits.astype(np.uint32) << np.uint32(16)).view(np.float32) if bfloat16 else bits.view(np.float16)
        for bits in (a, b)
    )
    largest = np.where((x > y) | ((x == y) & ~np.signbit(x)), a, b)
    return np.where(np.isnan(x) | np.isnan(y), np.uint16(0x7FFF), largest)


def _greater_int16(a: Bits, b: Bits) -> Bits:
    return np.maximum(a.view(np.int16), b.view(np.int16)).view(np.uint16)


def _multiply_add_bfloat16(a: Bits, b: Bits, c: Bits) -> Bits:
    x, y, z = ((bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64) for bits in (a, b, c))
    product = x * y  # exact: 16 bits
    total = product + z
    rest = total - product
    lost = (product - (total - rest)) + (z - rest)
    exact = (total.astype(np.float32) == total) & (lost == 0)
    if not exact[np.isfinite(total)].all():
        raise RefusedError("fma.rn.bf16x2 of a sum that is no float32: it would be rounded twice here")
    bits = total.astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(total), np.uint32(0x7FFF), rounded).astype(np.uint16)


def _permute(a: Bits, b: Bits, selector: Bits) -> Bits:
    both = b.astype(np.uint64) << np.uint64(32) | a.astype(np.uint64)
    result = np.zeros_like(a)
    for place in range(4):
        choice = selector >> np.uint32(4 * place) & np.uint32(0xF)
        byte = (both >> (8 * (choice & np.uint32(7))).astype(np.uint64) & np.uint64(0xFF)).astype(np.uint32)
        sign = np.where(byte >= 0x80, np.uint32(0xFF), np.uint32(0))
        result |= np.where(choice >= 8, sign, byte) << np.uint32(8 * place)
    return result


def _any_of_three(a: Bits, b: Bits, c: Bits, table: int) -> Bits:
    result = np.zeros_like(a)
    for case in range(8):
        if table >> case & 1:
            result |= (a if case & 4 else ~a) & (b if case & 2 else ~b) & (c if case & 1 else ~c)
    return result


def _greater_float(a: Bits, b: Bits) -> Bits:
    """The maximum with .NaN: a NaN wins, and +0 is greater than -0."""
    x, y = _float(a), _float(b)
    largest = np.where((x > y) | ((x == y) & ~np.signbit(x)), x, y)
    return _of_float(np.where(np.isnan(x) | np.isnan(y), np.float32(np.nan), largest))


def _equal_halves(a: Bits, b: Bits) -> tuple[Bits, ...]:
    """The lower halves' predicate, then the upper halves'; denormals count, and no NaN equals anything."""
    return tuple(x.view(np.float16) == y.view(np.float16) for x, y in zip(_halves(a), _halves(b), strict=True))


def _packed_bytes(low: int, high: int) -> Callable[[Bits, Bits, Bits], Bits]:
    """Two integers cut off at both ends as bytes, the second below the first, below what the third's lower half is."""

    def pack(a: Bits, b: Bits, c: Bits) -> Bits:
        first, second = (np.clip(_signed(bits), low, high).astype(np.uint8).astype(np.uint32) for bits in (a, b))
        return c << np.uint32(16) | first << np.uint32(8) | second

    return pack


def _signed(bits: Bits) -> np.ndarray:
    return bits.view(np.int32)


WORDS = ("b32", "b32")
FLOATS = ("f32", "f32")
INSTRUCTIONS = {
    "mov.b32": Instruction(("b32",), ("b32",), lambda a: a.copy()),
    "mov.f32": Instruction(("f32",), ("f32",), lambda a: a.copy()),
    "setp.eq.s32": Instruction((PREDICATE,), ("s32", "s32"), lambda a, b: a == b),
    "setp.ne.s32": Instruction((PREDICATE,), ("s32", "s32"), lambda a, b: a != b),
    "setp.lt.u32": Instruction((PREDICATE,), ("u32", "u32"), lambda a, b: a < b),
    "setp.eq.f32": Instruction((PREDICATE,), FLOATS, lambda a, b: _float(a) == _float(b)),
    "setp.eq.f16x2": Instruction((PREDICATE, PREDICATE), WORDS, _equal_halves),
    "selp.f32": Instruction(("f32",), (*FLOATS, PREDICATE), lambda a, b, p: np.where(p, a, b)),
    "add.rn.f32": Instruction(("f32",), FLOATS, lambda a, b: _of_float(_float(a) + _float(b))),
    "sub.rn.f32": Instruction(("f32",), FLOATS, lambda a, b: _of_float(_float(a) - _float(b))),
    "max.NaN.f32": Instruction(("f32",), FLOATS, _greater_float),
    "max.s32": Instruction(("s32",), ("s32", "s32"), lambda a, b: np.maximum(_signed(a), _signed(b)).view(np.uint32)),
    "max.s16x2": Instruction(("b32",), WORDS, _by_halves(_greater_int16)),
    "max.NaN.f16x2": Instruction(("b32",), WORDS, _by_halves(lambda a, b: _greater_half(a, b, False))),
    "max.NaN.bf16x2": Instruction(("b32",), WORDS, _by_halves(lambda a, b: _greater_half(a, b, True))),
    "add.u16x2": Instruction(("b32",), WORDS, _by_halves(np.add)),
    "min.u16x2": Instruction(("b32",), WORDS, _by_halves(np.minimum)),
    "add.rn.f16x2": Instruction(("b32",), WORDS, _by_halves(_add_float16)),
    "fma.rn.bf16x2": Instruction(("b32",), (*WORDS, "b32"), _by_halves(_multiply_add_bfloat16)),
    "prmt.b32": Instruction(("b32",), (*WORDS, "b32"), _permute),
    "lop3.b32": Instruction(("b32",), (*WORDS, "b32", "immediate"), _any_of_three),
    "cvt.pack.sat.s8.s32.b32": Instruction(("b32",), ("s32", "s32", "b32"), _packed_bytes(-128, 127)),
    "cvt.pack.sat.u8.s32.b32": Instruction(("b32",), ("s32", "s32", "b32"), _packed_bytes(0, 255)),
    "cvt.u16.u32": Instruction(("u16",), ("u32",), lambda a: a.astype(np.uint16)),
}


def _fits(kind: str, wanted: str) -> bool:
    """Whether a register of one kind can be an operand of another: bits match any type of their size."""
    if kind == wanted:
        return True
    if PREDICATE in (kind, wanted) or kind[1:] != wanted[1:]:
        return False
    return "b" in (kind[0], wanted[0]) or "f" not in (kind[0], wanted[0])


def outputs_and_inputs(constraints: str) -> tuple[list[str], list[str]]:
    """LLVM's constraints, outputs (``=f``, ``=&r``, ...) before inputs."""
    all_of_them = constraints.split(",")
    outputs = [one for one in all_of_them if one.startswith("=")]
    if all_of_them[: len(outputs)] != outputs or any(one.strip("=&") not in KINDS for one in all_of_them):
        raise RefusedError(f"constraints {constraints!r}")
    return outputs, all_of_them[len(outputs) :]


def operands_of(asm: str) -> set[int]:
    """The numbers of the operands that are named."""
    return {int(number) for number in re.findall(r"\$(\d+)", asm)}


def run(
    asm: str, constraints: str, inputs: Sequence[np.ndarray], shared: Mapping[int, int] | None = None
) -> list[Bits]:
    """The outputs' bits. ``shared`` gives outputs, by number, the register of an input, as a compiler may."""
    outputs, kinds = outputs_and_inputs(constraints)
    if len(inputs) != len(kinds):
        raise RefusedError(f"{len(inputs)} inputs for {constraints!r}")
    machine = _Machine(len(outputs), max((np.asarray(one).size for one in inputs), default=1))
    for number, (kind, values) in enumerate(zip(kinds, inputs, strict=True), len(outputs)):
        dtype = _DTYPES[KINDS[kind]]
        if values.dtype.itemsize != dtype().itemsize:
            raise RefusedError(f"{values.dtype} for ${number} ({kind})")
        machine.scopes[0][f"${number}"] = Register(KINDS[kind], np.ascontiguousarray(values).view(dtype).copy())
    for number, kind in enumerate(outputs):
        register = Register(KINDS[kind.strip("=&")])
        if shared is not None and number in shared:
            if "&" in kind or machine.scopes[0][f"${shared[number]}"].kind != register.kind:
                raise RefusedError(f"${number} and ${shared[number]} cannot share a register")
            register = machine.scopes[0][f"${shared[number]}"]
        machine.scopes[0][f"${number}"] = register
    machine.run(asm)
    results = [machine.scopes[0][f"${number}"].bits for number in range(len(outputs))]
    if any(result is None for result in results):
        raise RefusedError(f"an output of {asm!r} is never written")
    return results


class _Machine:
    def __init__(self, outputs: int, lanes: int) -> None:
        self.outputs = outputs
        self.lanes = lanes
        self.scopes: list[dict[str, Register]] = [{}]

    def run(self, asm: str) -> None:
        *parts, rest = re.split(r"([{};])", asm)
        if rest.strip():
            raise RefusedError(f"no semicolon after {rest!r}")
        for text, end in zip(parts[::2], parts[1::2], strict=True):
            if text.strip() and end != ";":
                raise RefusedError(f"{text + end!r}")
            if end == "{":
                self.scopes.append({})
            elif end == "}":
                self.scopes.pop()
            elif text.strip().startswith(".reg "):
                self.declare(text.strip())
            elif text.strip():
                self.execute(text.strip())
        if len(self.scopes) != 1:
            raise RefusedError(f"braces of {asm!r}")

    def declare(self, text: str) -> None:
        _, kind, names = text.split(maxsplit=2)
        if kind[1:] not in (*_DTYPES, PREDICATE) or len(self.scopes) == 1:
            raise RefusedError(text)
        for name in (one.strip() for one in names.split(",")):
            if not re.fullmatch(r"[a-z]\w*", name) or name in self.scopes[-1]:
                raise RefusedError(text)
            self.scopes[-1][name] = Register(kind[1:])

    def execute(self, text: str) -> None:
        matched = _STATEMENT.fullmatch(text)
        if matched is None or matched[3] not in INSTRUCTIONS:
            raise RefusedError(text)
        negated, guard, opcode, operands = matched.groups()
        instruction = INSTRUCTIONS[opcode]
        first, *rest = (one.strip() for one in operands.split(","))
        names = first.split("|")
        if len(names) != len(instruction.results) or len(rest) != len(instruction.operands):
            raise RefusedError(text)
        values = [self.read(name, kind) for name, kind in zip(rest, instruction.operands, strict=True)]
        computed = instruction.compute(*values)
        computed = computed if isinstance(computed, tuple) else (computed,)
        where = None if guard is None else self.read(guard, PREDICATE)
        for name, kind, bits in zip(names, instruction.results, computed, strict=True):
            register = self.find(name, kind)
            if name.startswith("$") and int(name[1:]) >= self.outputs:
                raise RefusedError(f"{text}: {name} is an input")
            if where is None:
                register.bits = bits
            else:
                register.bits = np.where(where ^ bool(negated), bits, self.read(name, kind))

    def find(self, name: str, kind: str) -> Register:
        for scope in reversed(self.scopes):
            if name in scope:
                if not _fits(scope[name].kind, kind):
                    raise RefusedError(f"{name} is {scope[name].kind}, not {kind}")
                return scope[name]
        raise RefusedError(f"{name} is not declared")

    def read(self, name: str, kind: str) -> Bits | int:
        if kind == "immediate":
            return int(name, 0)
        if re.fullmatch(r"0f[0-9a-fA-F]{8}", name) and kind == "f32":
            return np.full(self.lanes, int(name[2:], 16), np.uint32)
        if re.fullmatch(r"-?\d+|0x[0-9a-fA-F]+", name) and kind in ("b32", "s32", "u32"):
            return np.full(self.lanes, int(name, 0) & 0xFFFFFFFF, np.uint32)
        bits = self.find(name, kind).bits
        if bits is None:
            raise RefusedError(f"{name} is read before it is written")
        return bits
