"""What PTX instructions compute: functions of arrays of bits, one element for each thread.

Arithmetic makes canonical NaNs, as NVIDIA documents for float32; ``div.full`` is exact here and
within 2 ulp on a GPU.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Bits = np.ndarray
UNSIGNED = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED_FOR = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOATS = {16: np.float16, 32: np.float32, 64: np.float64}
NANS = {16: 0x7FFF, 32: 0x7FFFFFFF, 64: 0x7FF8000000000000}
WORD = np.uint32


class RefusedError(Exception):
    """The emulator does not know this instruction."""


class Operation(NamedTuple):
    """Bits of each source, and a function of them that gives the result."""

    sources: tuple[int, ...]
    compute: Callable[..., Any]


def width(type_name):
    """Bits of a PTX type."""
    return (
        1
        if type_name == "pred"
        else 32
        if type_name.endswith("x2")
        else int(type_name.lstrip("busf"))
    )


def kind(type_name):
    return "bf" if type_name.startswith("bf") else type_name[0]


def fit(bits, size):
    return bits if bits.dtype == UNSIGNED[size] else bits.astype(UNSIGNED[size])


def as_value(bits, type_name):
    """The numbers that bits mean; bfloat16 as float32."""
    size, of = width(type_name), kind(type_name)
    bits = fit(bits, size)
    if of == "bf":
        return (bits.astype(WORD) << WORD(16)).view(np.float32)
    return bits.view({"s": SIGNED_FOR, "f": FLOATS}.get(of, UNSIGNED)[size])


def as_bits(value, type_name):
    """The bits of numbers: the nearest of the type, NaNs canonical."""
    size, of = width(type_name), kind(type_name)
    if of == "bf":
        wide = np.asarray(value, np.float32).view(WORD)
        nearest = (wide + WORD(0x7FFF) + (wide >> WORD(16) & WORD(1))) >> WORD(16)
        return np.where(np.isnan(value), np.uint16(0x7FFF), nearest.astype(np.uint16))
    if of == "f":
        nearest = value.astype(FLOATS[size], copy=False)
        return np.where(np.isnan(nearest), UNSIGNED[size](NANS[size]), nearest.view(UNSIGNED[size]))
    return value


def halves(word):
    word = fit(word, 32)
    return word.astype(np.uint16), (word >> WORD(16)).astype(np.uint16)


def joined(low, high):
    return fit(low, 16).astype(WORD) | fit(high, 16).astype(WORD) << WORD(16)


def extreme(x, y, greater, keeps_nan):
    if x.dtype.kind != "f":
        return np.maximum(x, y) if greater else np.minimum(x, y)
    first = (
        (x > y) | ((x == y) & ~np.signbit(x)) if greater else (x < y) | ((x == y) & np.signbit(x))
    )
    result = np.where(first, x, y)
    other_is_number = np.where(np.isnan(x), y, np.where(np.isnan(y), x, result))
    return np.where(np.isnan(x) | np.isnan(y), x + y, result) if keeps_nan else other_is_number


def fused(x, y, z):
    """``x * y + z`` rounded once; of narrow types by way of a type that holds the product and most
    of the sum."""
    if x.dtype != np.float64:
        return (x.astype(np.longdouble) * y + z).astype(x.dtype)
    product = x * y
    splits = [(a * 134217729.0) - (a * 134217729.0 - a) for a in (x, y)]
    lows = [x - splits[0], y - splits[1]]
    lost = lows[0] * lows[1] - (
        ((product - splits[0] * splits[1]) - lows[0] * splits[1]) - splits[0] * lows[1]
    )
    total = product + z
    rest = total - product
    result = total + ((product - (total - rest)) + (z - rest) + lost)
    return np.where(np.isfinite(result), result, total)


def divided(x, y):
    """Integers towards zero; all ones where ``y`` is 0."""
    inexact = (x % y != 0) & ((x < 0) != (y < 0))
    return np.where(y == 0, np.array(-1).astype(x.dtype), x // y + inexact.astype(x.dtype))


def high_product(x, y):
    size = x.dtype.itemsize * 8
    wide = object if size == 64 else np.int64 if x.dtype.kind == "i" else np.uint64
    return ((x.astype(wide) * y.astype(wide)) >> size).astype(x.dtype)


def shifted(x, by, left):
    """Shifts by the width or more leave the sign, or nothing."""
    size = x.dtype.itemsize * 8
    amount = np.minimum(by, size - 1).astype(x.dtype)
    result = x << amount if left else x >> amount
    return (
        result
        if x.dtype.kind == "i" and not left
        else np.where(by >= size, x.dtype.type(0), result)
    )


def permuted(low, high, selector):
    both = high.astype(np.uint64) << np.uint64(32) | low
    result = np.zeros(1, WORD)
    for place in range(4):
        choice = selector >> WORD(4 * place) & WORD(15)
        byte = (both >> (np.uint64(8) * (choice & WORD(7)))).astype(np.uint8)
        signs = np.where(byte >= 128, np.uint8(255), np.uint8(0))
        result = result | np.where(choice >= 8, signs, byte).astype(WORD) << WORD(8 * place)
    return result


def extracted(x, start, length):
    """A field of bits, its highest repeated where signed; it lies inside the register."""
    size = WORD(x.dtype.itemsize * 8)
    return np.where(
        length == 0,
        x.dtype.type(0),
        shifted(shifted(x, size - start - length, True), size - length, False),
    )


def inserted(field, into, start, length):
    """A word with some bits exchanged."""
    mask = (np.uint64(1) << length.astype(np.uint64)) - np.uint64(1) << start.astype(np.uint64)
    return (into & ~mask | field.astype(np.uint64) << start.astype(np.uint64) & mask).astype(WORD)


def converted(value, to):
    if kind(to) in ("f", "bf"):
        return as_bits(value, to)
    target = np.dtype(SIGNED_FOR[width(to)] if kind(to) == "s" else UNSIGNED[width(to)])
    ends = np.iinfo(target)
    if value.dtype.kind == "f":  # saturates, and makes of NaN 0
        whole = np.trunc(value.astype(np.longdouble))
        exact = np.nan_to_num(whole, nan=0.0, posinf=np.inf, neginf=-np.inf)
        return np.clip(exact, ends.min, ends.max).astype(target)
    return value.astype(target)


COMPARISONS = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def compared(x, y, how):
    if x.dtype.kind != "f":
        return COMPARISONS[how](x, y)
    unordered = np.isnan(x) | np.isnan(y)
    if how in ("nan", "num"):
        return unordered if how == "nan" else ~unordered
    result = COMPARISONS[how[:2]](x, y)
    return result | unordered if how.endswith("u") else result & ~unordered


CALCULATIONS: dict[str, Callable[..., np.ndarray]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": operator.invert,
    "neg": operator.neg,
    "fma": fused,
    "mad": lambda x, y, z: x * y + z,
    "div": lambda x, y: x / y if x.dtype.kind == "f" else divided(x, y),
}
ARITY = {"not": 1, "neg": 1, "fma": 3, "mad": 3}
KNOWN_MODIFIERS = {"lo", "hi", "wide", "rn", "full", "NaN"}


@functools.cache
def operation(opcode):
    """What an instruction does that touches neither memory nor other threads."""
    name, *modifiers = opcode.split(".")
    of = modifiers[-1] if modifiers else ""
    if name == "setp" and len(modifiers) == 2:
        return Operation(
            (width(of),) * 2, lambda x, y: compared(as_value(x, of), as_value(y, of), modifiers[0])
        )
    if name == "setp" and modifiers[1:2] == ["or"]:
        return Operation(
            (width(of), width(of), 1),
            lambda x, y, known: compared(as_value(x, of), as_value(y, of), modifiers[0]) | known,
        )
    if name == "selp":
        return Operation((width(of), width(of), 1), lambda x, y, choice: np.where(choice, x, y))
    if name == "cvt" and {*modifiers[:-2]} <= {"rn" if "f" in modifiers[-2] else "rzi"}:
        to = modifiers[-2]
        convert = lambda x, to=to: converted(as_value(x, of), to)  # noqa: E731
        if to.endswith("x2"):
            return Operation(
                (width(of),) * 2, lambda x, y: joined(convert(y, to[:-2]), convert(x, to[:-2]))
            )
        return Operation((width(of),), convert)
    if name in ("shl", "shr"):
        return Operation((width(of), 32), lambda x, by: shifted(as_value(x, of), by, name == "shl"))
    if opcode == "prmt.b32":
        return Operation((32,) * 3, permuted)
    if opcode == "bfi.b32":
        return Operation((32,) * 4, inserted)
    if name == "bfe":
        return Operation(
            (width(of), 32, 32), lambda x, start, length: extracted(as_value(x, of), start, length)
        )
    if name in (*CALCULATIONS, "min", "max") and {*modifiers[:-1]} <= KNOWN_MODIFIERS:
        return _calculation(name, modifiers, of)
    raise RefusedError(opcode)


def _calculation(name, modifiers, of):
    sources = (width(of),) * ARITY.get(name, 2)
    if of.endswith("x2"):
        half = _calculation(name, modifiers, of[:-2]).compute
        return Operation(
            sources,
            lambda *words: joined(*(half(*each) for each in zip(*map(halves, words), strict=True))),
        )
    calculate = high_product if "hi" in modifiers else CALCULATIONS.get(name)
    if calculate is None:
        calculate = functools.partial(extreme, greater=name == "max", keeps_nan="NaN" in modifiers)
    if "wide" not in modifiers:
        return Operation(
            sources, lambda *each: as_bits(calculate(*(as_value(one, of) for one in each)), of)
        )
    double = of[0] + str(2 * width(of))
    wide = lambda bits: as_value(bits, of).astype(as_value(np.zeros(1, np.uint64), double).dtype)  # noqa: E731
    if name == "mul":
        return Operation(sources, lambda x, y: wide(x) * wide(y))
    return Operation(
        (*sources[:2], 2 * width(of)), lambda x, y, z: wide(x) * wide(y) + as_value(z, double)
    )
