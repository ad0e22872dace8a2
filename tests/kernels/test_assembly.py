"""The kernels' inline assembly, emulated instruction by instruction, against its twins and what is meant."""

from __future__ import annotations

import ast
import functools
import itertools
import os
import pathlib
import types
from collections.abc import Callable

import numpy as np
import ptx
import pytest

pytest.importorskip("triton")

from assembly import Lanes, lanes, plainly, sharing_matters
from torch_dmlpool.kernels import (
    max_pooling_grad,
    max_pooling_grad_launch,
    max_pooling_keys,
    max_pooling_packed,
    max_pooling_rows,
    max_pooling_words,
    requantization,
)

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="runs no kernels: the same with and without the interpreter"
)

ASSEMBLED = {
    max_pooling_grad: {"add_winner", "add_picked", "add_in_row"},
    max_pooling_keys: {"ordered", "restored", "low_halves", "even_bytes", "two_bytes", "greatest"},
    max_pooling_packed: {"pair_of", "greater_packed", "greatest_packed", "joined"},
    max_pooling_rows: {"first_greatest"},
    max_pooling_words: {"bytes_apart", "winning_rows", "add_up_the_rows", "spread", "spread_two"},
    requantization: {"packed"},
}
"""Functions with inline assembly; each is tested below."""
BOUNDARY_TAPS = [0, 1, 127, 128, 223, 224, 225, 254, 255]
SPOILT = max_pooling_words.SPOILT.value
WORD_SIZES = range(max_pooling_grad_launch.WORD_WINDOWS[0], max_pooling_grad_launch.WORD_WINDOWS[1] + 1)
SOME_SIZES = [4, 7, 9, 15]
EVERY = pytest.param(WORD_SIZES, id="every size", marks=pytest.mark.slow)


def paths(module: types.ModuleType, name: str) -> tuple[Callable[..., object], Callable[..., object]]:
    """``(assembly, twin)`` of a device function; all but ASM as in its own signature."""
    assert name in ASSEMBLED[module]
    function = plainly(getattr(module, name))
    return functools.partial(function, ASM=True), functools.partial(function, ASM=False)


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(20)


def words(random: np.random.Generator, count: int = 4096) -> Lanes:
    """Words at random, and all that four boundary bytes make."""
    ends = np.array(np.meshgrid(*[[0, 127, 128, 224, 225, 255]] * 4), np.uint8).reshape(4, -1)
    return np.concatenate([random.integers(0, 2**32, count, np.uint32), ends.T.copy().view(np.uint32).ravel()]).view(
        np.int32
    ).view(Lanes)  # fmt: skip


SPECIAL = np.array([-np.inf, -3.4e38, -1.5, -1e-40, 0.0, 1e-45, 1e-40, 1.5, 3.4e38, np.inf, np.nan], np.float32)


def terms(random: np.random.Generator, count: int) -> Lanes:
    """Gradients: numbers with many bits, both zeros and what is not finite."""
    values = random.normal(size=count).astype(np.float32)
    values[::7] = random.choice([*SPECIAL, np.float32(-0.0)], values[::7].shape)
    return values.view(Lanes)


def test_none_is_missing() -> None:
    """Every function of kernels/ with inline assembly stands in the table above."""
    found = {}
    for path in pathlib.Path(max_pooling_rows.__file__).parent.glob("*.py"):
        for function in ast.parse(path.read_text()).body:
            calls = [one for one in ast.walk(function) if getattr(one, "attr", None) == "inline_asm_elementwise"]
            if calls:
                assert isinstance(function, ast.FunctionDef)
                assert len(calls) == 1
                found.setdefault(path.stem, set()).add(function.name)
    assert found == {module.__name__.rpartition(".")[2]: names for module, names in ASSEMBLED.items()}


def emulate(asm: str, constraints: str, *inputs: object) -> list[int]:
    return [int(bits[0]) for bits in ptx.run(asm, constraints, [np.array([one]) for one in inputs])]


def test_emulator() -> None:
    """The instructions as NVIDIA describes them, and a refusal of everything else."""
    word, other = np.uint32(0x83828180), np.uint32(0x07064544)
    for selector, expected in ((0x3210, 0x83828180), (0x5410, 0x45448180), (0xBB99, 0xFFFFFFFF), (0xF0C4, 0x00800044)):
        assert emulate(f"prmt.b32 $0, $1, $2, {selector:#x};", "=r,r,r", word, other) == [expected]
    a, b, c = np.uint32([0xF0F0AA55, 0xCCCC1234, 0xAAAA5678])
    for table, expected in (
        (0x80, a & b & c), (0xFE, a | b | c), (0x40, a & b & ~c), (0xEA, a & b | c), (0x78, a ^ b & c)
    ):  # fmt: skip
        assert emulate(f"lop3.b32 $0, $1, $2, $3, {table:#x};", "=r,r,r,r", a, b, c) == [expected]
    pairs = "{.reg .pred p, q; setp.eq.f16x2 p|q, $2, $3; selp.f32 $0, $4, 0f00000000, p; selp.f32 $1, $4, $4, q;}"
    for x, y, equal in ((0x00010002, 0x00030002, 1), (0x00017C01, 0x00017C01, 0), (0x00000000, 0x00008000, 1)):
        found = emulate(pairs, "=f,=f,r,r,f", np.uint32(x), np.uint32(y), np.float32(1.0))
        assert found == [0x3F800000 * equal, 0x3F800000]
    assert emulate("add.rn.f16x2 $0, $1, $2;", "=r,r,r", np.uint32(0x3C017BFF), np.uint32(0x10007BFF)) == [0x3C027C00]
    fma = "fma.rn.bf16x2 $0, $1, $2, $3;"
    assert emulate(fma, "=r,r,r,r", *np.uint32([0x3F813FC0, 0x3F813F80, 0x0000_3F80])) == [0x3F824020]
    assert emulate("add.u16x2 $0, $1, $2;", "=r,r,r", np.uint32(0x0001FFFF), np.uint32(0xFFFF0002)) == [0x00000001]
    assert emulate("max.NaN.f32 $0, $1, $2;", "=f,f,f", np.float32(-0.0), np.float32(0.0)) == [0]
    assert emulate("max.NaN.f32 $0, $1, $2;", "=f,f,f", np.uint32(0xFFC00001), np.float32(1.0)) == [0x7FFFFFFF]
    pairs = np.uint32(0x7FFF8000), np.uint32(0x80007FFF)
    assert emulate("max.s16x2 $0, $1, $2;", "=r,r,r", *pairs) == [0x7FFF7FFF]
    assert emulate("max.s16x2 $0, $1, $2;", "=r,r,r", np.uint32(0xFFFE0001), np.uint32(0xFFFF0000)) == [0xFFFF0001]
    for kind, one in (("f16x2", 0x3C00), ("bf16x2", 0x3F80)):
        asm = f"max.NaN.{kind} $0, $1, $2;"
        for x, y, greatest in (
            (0x8000, 0x0000, 0x0000), (0x8001, 0x8002, 0x8001), (0x0001, 0x8000, 0x0001), (one, 0x8000 | one, one),
            (0xFFFF, one, 0x7FFF), (0x7FC1, 0x7FFE, 0x7FFF),
        ):  # fmt: skip
            for first, second in ((x, y), (y, x)):
                found = emulate(asm, "=r,r,r", np.uint32(first << 16 | one), np.uint32(second << 16 | 0x8000))
                assert found == [greatest << 16 | one]
    # Infinity and a NaN of float16 are numbers of bfloat16.
    assert emulate("max.NaN.f16x2 $0, $1, $2;", "=r,r,r", np.uint32(0x7C007C01), np.uint32(0)) == [0x7C007FFF]
    assert emulate("max.NaN.bf16x2 $0, $1, $2;", "=r,r,r", np.uint32(0x7C007C01), np.uint32(0)) == [0x7C007C01]
    four = np.int32([-129, 300, 7]), np.int32([127, -1, 255]), np.uint32(0xABCD1234)
    for kind, expected in (("s8", [0x1234807F, 0x12347FFF, 0x1234077F]), ("u8", [0x1234007F, 0x1234FF00, 0x123407FF])):
        for place, wanted in enumerate(expected):
            given = four[0][place], four[1][place], four[2]
            assert emulate(f"cvt.pack.sat.{kind}.s32.b32 $0, $1, $2, $3;", "=r,r,r,r", *given) == [wanted]
    for refused in (
        "mad.lo.s32 $0, $1, $1, $1;", "add.f32 $0, $1, $1;", "max.s32 $0, $1, $1", "max.s32 $0, $1, m;",
        "max.s32 $1, $1, $1;", "max.s32 $0, $0, $1;", "max.s32 $0, $1;", "{mov.b32 $0, $1;", "cvt.u16.u32 $0, $1;",
        "{.reg .pred p; @p mov.b32 $0, $1;}", "{.reg .pred p; setp.eq.s32 p, $1, $1; @p mov.b32 $0, $1;}",
    ):  # fmt: skip
        with pytest.raises(ptx.RefusedError):
            emulate(refused, "=r,r", np.int32(1))
    with pytest.raises(ptx.RefusedError):
        emulate("max.s32 $0, $1, $1;", "=r,f", np.float32(1))
    with pytest.raises(ptx.RefusedError):
        emulate(fma, "=r,r,r,r", *np.uint32([0x3F81, 0x3F80, 0x0080]))


def test_sharing_is_noticed(random: np.random.Generator) -> None:
    """An output that is written early needs its ``&``; without it the check above fails."""
    asm = max_pooling_grad.add_where_equal(3)
    inputs = [terms(random, 50), lanes(random.integers(0, 6, 50)), terms(random, 50)]
    assert sharing_matters(asm, "=f,f,r,f", inputs) == (0, 3)
    assert sharing_matters(asm, "=&f,f,r,f", inputs) is None
    with pytest.raises(ptx.RefusedError):
        ptx.run(asm, "=&f,f,r,f", inputs, {0: 3})


@pytest.mark.parametrize("bfloat16", [False, True], ids=["float16", "bfloat16"])
def test_order_of_every_half(bfloat16: bool, random: np.random.Generator) -> None:
    """M2, M3: all 65,536, in either half of a word: zeros tie, NaNs are alike and the greatest, padding lowest."""
    assembly, twin = paths(max_pooling_keys, "ordered")
    halves = np.arange(2**16)
    others = random.permutation(2**16)
    word = lanes(halves | others << 16)
    result = assembly(word, bfloat16)
    assert (result == twin(word, bfloat16)).all()
    keys = (result & 0xFFFF).astype(np.uint16).view(np.int16)
    assert ((result >> 16) == keys[others]).all()
    bits = halves.astype(np.uint16)
    values = (bits.astype(np.uint32) << 16).view(np.float32) if bfloat16 else bits.view(np.float16).astype(np.float32)
    number = ~np.isnan(values)
    _, rank = np.unique(values[number], return_inverse=True)
    _, key_rank = np.unique(keys[number], return_inverse=True)
    assert (rank == key_rank).all()
    assert (keys[~number] == 0x7FFF).all()
    assert keys[number].max() < 0x7FFF
    assert keys.min() > np.int16(max_pooling_keys.PADDING.value >> 16)
    # Back from keys, whatever count lies below: the same values, and -0 as 0.
    apart, plain = paths(max_pooling_keys, "restored")
    first, second = (
        lanes((keys[one].astype(np.int64) << 16) | random.integers(0, 2**15, 2**16)) for one in (halves, others)
    )
    back = apart(first, second)
    assert (back == plain(first, second)).all()
    wanted = np.where(number, np.where(values == 0, 0, bits), 0x7FFF)
    assert (back & 0xFFFF == wanted).all()
    assert ((back >> 16) & 0xFFFF == wanted[others]).all()


def test_words_of_keys(random: np.random.Generator) -> None:
    """M6: halves and bytes taken out of two words, and the greatest of three keys."""
    first, second = words(random), random.permutation(words(random))
    for name, of_first, of_second in (
        ("low_halves", first, second),
        ("even_bytes", first & 0xFF00FF, second & 0xFF00FF),
    ):
        assembly, twin = paths(max_pooling_keys, name)
        found = assembly(of_first, of_second)
        assert (found == twin(of_first, of_second)).all()
        parts = [one.view(np.uint16 if name == "low_halves" else np.uint8)[::2] for one in (of_first, of_second)]
        parts = [one.reshape(first.size, -1) for one in parts]
        assert (found.view(parts[0].dtype) == np.concatenate(parts, 1).ravel()).all()
    assembly, twin = paths(max_pooling_keys, "two_bytes")
    found = assembly(first & 0xFF00FF)
    assert found.dtype == np.int16
    assert (found == twin(first & 0xFF00FF)).all()
    assert (found.view(np.uint8) == first.view(np.uint8)[::2]).all()
    assembly, twin = paths(max_pooling_keys, "greatest")
    third = random.permutation(first)
    found = assembly(first, second, third)
    assert (found == twin(first, second, third)).all()
    assert (found == np.max([first, second, third], axis=0)).all()


def test_first_greatest(random: np.random.Generator) -> None:
    """M2, M3: the later pair wins only where it is strictly greater or the first NaN."""
    assembly, _ = paths(max_pooling_rows, "first_greatest")
    values = np.concatenate([SPECIAL, random.normal(size=40).astype(np.float32)])
    values[np.isnan(values)] = np.uint32(0x7FFFFFFF).view(np.float32)  # as an addition leaves it
    earlier, later = (one.ravel() for one in np.meshgrid(values, values))
    codes = random.choice([*BOUNDARY_TAPS, 2**23 - 1], (2, earlier.size)).astype(np.float32) + np.float32(2**23)
    found, code = assembly(earlier, codes[0], later, codes[1])
    wins = (later > earlier) | (np.isnan(later) & ~np.isnan(earlier))
    assert (found.view(np.uint32) == np.where(wins, later, earlier).view(np.uint32)).all()
    assert (code == np.where(wins, codes[1], codes[0])).all()


def halves_of(word: np.ndarray) -> np.ndarray:
    """``(lanes, 2)``: the lower halves, then the upper ones, as int16."""
    return np.ascontiguousarray(word).view(np.int16).reshape(-1, 2)


@pytest.mark.parametrize(("size", "keyed"), [(1, False), (1, True), (2, False)], ids=["bytes", "keys", "int16"])
def test_pairs_of_elements(size: int, keyed: bool, random: np.random.Generator) -> None:
    """M7: any element of one word beside any of another: bytes with their sign, or above a key's count."""
    assembly, twin = paths(max_pooling_packed, "pair_of")
    first, second = words(random), random.permutation(words(random))
    elements = [one.view(np.int8 if size == 1 else np.int16).reshape(-1, 4 // size) for one in (first, second)]
    for low, high in itertools.product(range(4 // size), repeat=2):
        found = assembly(first, second, size, low, high, keyed)
        assert (found == twin(first, second, size, low, high, keyed)).all()
        wanted = np.stack([elements[0][:, low], elements[1][:, high]], 1).astype(np.int16)
        assert (halves_of(found) == (wanted << 8 if keyed else wanted)).all()


@pytest.mark.parametrize("packed", ["INTEGERS", "KEYED_BYTES"])
def test_greatest_pairs(packed: str, random: np.random.Generator) -> None:
    """M2, M3: every two bytes, every int16 and any two words: the greater of both halves, and of three."""
    packing = getattr(max_pooling_packed, packed).value
    every = np.arange(2**16, dtype=np.uint16).view(np.int16)
    byte, other = (one.ravel() for one in np.meshgrid(np.arange(-128, 128), np.arange(-128, 128)))
    if packed == "KEYED_BYTES":  # above counts
        byte, other = byte << 8 | random.integers(0, 256, 2**16), other << 8 | random.integers(0, 256, 2**16)
    pairs = [np.stack([byte, every], 1), np.stack([other, random.permutation(every)], 1)]
    first, second = (
        np.concatenate([one.astype(np.int16).view(np.int32).ravel(), random.permutation(words(random))]).view(Lanes)
        for one in pairs
    )
    third = random.permutation(second)
    for name, arguments in (("greater_packed", (first, second)), ("greatest_packed", (first, second, third))):
        assembly, twin = paths(max_pooling_packed, name)
        found = assembly(*arguments, packing)
        assert (found == twin(*arguments, packing)).all()
        assert (halves_of(found) == np.max([halves_of(one) for one in arguments], axis=0)).all()


@pytest.mark.parametrize("packed", ["FLOAT16", "BFLOAT16"])
def test_greatest_halves(packed: str, random: np.random.Generator) -> None:
    """M2: all 65,536 in both halves, each beside another, itself, NaNs of many bits and both zeros: a NaN wins."""
    packing = getattr(max_pooling_packed, packed).value

    def numbers(word: np.ndarray) -> np.ndarray:
        bits = halves_of(word)
        return (bits.astype(np.int32) << 16).view(np.float32) if packed == "BFLOAT16" else bits.view(np.float16)

    every = np.tile(np.arange(2**16), 3)
    special = random.choice([0, 0x8000, 1, 0x8001, 0x7C00, 0xFC00, 0x7F80, 0xFF80, 0x7FFF, 0xFFFF, 0x7FC1], 2**16)
    beside = np.concatenate([random.permutation(2**16), np.arange(2**16), special])
    shuffled = random.permutation(every.size)
    first, second = lanes(every | beside[shuffled] << 16), lanes(beside | every[shuffled] << 16)
    third = lanes(random.permutation(first))
    for name, arguments in (("greater_packed", (first, second)), ("greatest_packed", (first, second, third))):
        assembly, twin = paths(max_pooling_packed, name)
        found, plain = assembly(*arguments, packing), twin(*arguments, packing)
        wanted = np.maximum.reduce([numbers(one) for one in arguments])  # numpy's keeps NaNs
        np.testing.assert_array_equal(numbers(found), wanted)
        np.testing.assert_array_equal(numbers(plain), wanted)
        assert (halves_of(found)[np.isnan(wanted)] == 0x7FFF).all()


def test_joined_bytes(random: np.random.Generator) -> None:
    """M7: the bytes that a store takes out of two words of pairs or keys, and halves out of two units."""
    assembly, twin = paths(max_pooling_packed, "joined")
    first, second = words(random), random.permutation(words(random))
    both = np.stack([first, second], 1).view(np.uint8).reshape(-1, 8)
    used = [0x7351, 0x6240, 0x7632, 0x5410]
    for selector in (*used, *(int("".join(map(str, order)), 16) for order in random.integers(0, 8, (20, 4)))):
        found = assembly(first, second, selector)
        assert (found == twin(first, second, selector)).all()
        named = [selector >> 4 * place & 15 for place in range(4)]
        assert (found.view(np.uint8).reshape(-1, 4) == both[:, named]).all()


@pytest.mark.parametrize("number", [np.float16, np.float32], ids=["float16", "bfloat16"])
def test_padding_of_pairs(number: type) -> None:
    """M2: what a masked load gives, after the inversion that orders unsigned numbers: the type's lowest, twice."""
    import triton.language as tl

    half = tl.float16 if number is np.float16 else tl.bfloat16
    bits = np.array([max_pooling_packed.outside.fn(half)], np.int32)
    values = bits.view(np.float16) if half is tl.float16 else (halves_of(bits).astype(np.int32) << 16).view(np.float32)
    assert (values == -np.inf).all()
    for dtype in (tl.int8, tl.int16, tl.uint8, tl.uint16):
        word = max_pooling_packed.outside.fn(dtype) ^ max_pooling_packed.sign_bits.fn(dtype)
        signed = np.int8 if dtype.primitive_bitwidth == 8 else np.int16
        assert (np.array([word], np.int32).view(signed) == np.iinfo(signed).min).all()


@pytest.mark.parametrize("signed", [False, True], ids=["uint8", "int8"])
def test_results_as_bytes(signed: bool, random: np.random.Generator) -> None:
    """Q1: four results, cut off at the type's ends, in the order of their places."""
    assembly, twin = paths(requantization, "packed")
    limits = np.iinfo(np.int8 if signed else np.uint8)
    ends = [-(2**31), -129, -128, -1, 0, 1, 127, 128, 255, 256, 2**31 - 1]
    numbers = [lanes(random.choice([*ends, *random.integers(-300, 300, 50)], 4096)) for _ in range(4)]
    found = assembly(*numbers, signed)
    assert (found == twin(*numbers, signed)).all()
    wanted = np.stack(numbers, 1).clip(limits.min, limits.max).astype(limits.dtype)
    assert (np.ascontiguousarray(found).view(limits.dtype).reshape(-1, 4) == wanted).all()


def test_literals() -> None:
    """The digits of a float32 that PTX is given are the number's, as far as taps go."""
    for value in (*range(2**12), *(2**e + d for e in range(12, 24) for d in (-1, 0, 1))):
        assert max_pooling_grad.float_bits(value) == f"{int(np.float32(value).view(np.uint32)):08x}"


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_add_winner(random: np.random.Generator) -> None:
    """M5: the gradient of a window won by this very tap and no other; -1 and 255 stand for no window."""
    assembly, twin = paths(max_pooling_grad, "add_winner")
    taps = lanes(np.tile([-1, *range(300), 2**15 - 1, 2**15, 2**24, 2**31 - 1], 3))
    sums, gradients = terms(random, taps.size), terms(random, taps.size)
    for tap in (*BOUNDARY_TAPS[:-2], *range(0, 222, 10), 2**15 - 1):
        found = assembly(sums, taps, gradients, tap)
        assert_alike([found], [np.where(taps == tap, sums + gradients, sums)])
        assert_alike([found], [twin(sums, taps, gradients, tap)])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_add_in_row_and_picked(random: np.random.Generator) -> None:
    """M5: a row's windows and, along it, the column they were won in: every width that is unrolled, and many rows."""
    in_row, in_row_twin = paths(max_pooling_grad, "add_in_row")
    picked, picked_twin = paths(max_pooling_grad, "add_picked")
    taps = lanes(np.tile([-1, *range(300), *range(4000, 4200), 2**15 - 1, 2**15], 2))
    sums, gradients = terms(random, taps.size), terms(random, taps.size)
    for width in range(1, max_pooling_grad_launch.UNROLLED_EXTENT + 1):
        columns = lanes(random.integers(0, width, taps.size))
        of_column = picked(sums, columns.astype(np.float32), gradients, width // 2)
        assert_alike([of_column], [np.where(columns == width // 2, sums + gradients, sums)])
        assert_alike([of_column], [picked_twin(sums, columns, gradients, width // 2)])
        for first in {0, width, 224 // width * width, 4095 // width * width}:
            found = in_row(sums, columns.astype(np.float32), taps.astype(np.float32), gradients, first, width)
            wins = (taps >= first) & (taps < first + width)
            assert_alike(found, [np.where(wins, sums + gradients, sums), np.where(wins, taps - first, columns)])
            assert_alike(found, in_row_twin(sums, columns, taps, gradients, first, width))


def test_bytes_apart(random: np.random.Generator) -> None:
    """M6: four taps of a byte as two words of two, spoilt or not."""
    assembly, twin = paths(max_pooling_words, "bytes_apart")
    word = words(random)
    for above in (0, SPOILT):
        found = assembly(word, lanes(np.full(word.size, above)))
        for half, (one, same) in enumerate(zip(found, twin(word, above), strict=True)):
            assert (one == same).all()
            taps = word.view(np.uint8).reshape(-1, 4)[:, 2 * half : 2 * half + 2]
            assert (one.view(np.uint16).reshape(-1, 2) == taps + np.uint16(above & 0xFF00)).all()


def test_winning_rows() -> None:
    """M5, M6: every tap, in either half, of every window that is gathered by words; a spoilt word equals no row."""
    assembly, twin = paths(max_pooling_words, "winning_rows")
    by_bytes = 0
    for width in WORD_SIZES:
        for height in (one for one in WORD_SIZES if one * width <= 225):
            taps = np.arange(height * width)
            by_bytes += max_pooling_words.row_shift(height * width, width) == 8
            for shift in range(0, taps.size, 1 + taps.size // 4):
                others = np.roll(taps, shift)
                word = lanes(taps | others << 16)
                found = assembly(word, lanes(np.zeros(word.size)), height, width)
                assert (found == taps // width | others // width << 16).all()
                assert (found == twin(word, 0, height, width)).all()
                spoilt = word | SPOILT
                found = assembly(spoilt, lanes(np.full(word.size, SPOILT)), height, width)
                assert (found == twin(spoilt, SPOILT, height, width)).all()
                assert np.isnan(found.view(np.float16)).all()
    assert by_bytes > 0


def windows_at_random(
    random: np.random.Generator, height: int, width: int, count: int
) -> tuple[Lanes, Lanes, np.ndarray, Lanes, Lanes]:
    """``count`` words of windows: taps, their rows, the taps as two numbers (-1: spoilt), and two gradients."""
    taps = random.integers(0, height * width, (2, count))
    for edge in (one for one in BOUNDARY_TAPS if one < height * width):
        taps[random.integers(2), random.integers(0, count, 9)] = edge
    spoiler = lanes(np.where(random.random(count) < 0.2, SPOILT, 0))
    word = lanes(taps[0] | taps[1] << 16) | spoiler
    assembly, _ = paths(max_pooling_words, "winning_rows")
    rows = assembly(word, spoiler, height, width)
    return word, rows, np.where(spoiler == 0, taps, -1), terms(random, count), terms(random, count)


def unstarted(rows: int, count: int) -> list[Lanes]:
    """What ``no_windows`` gives."""
    return [
        *(lanes(np.zeros(count), np.float32) for _ in range(2 * rows)),
        *(lanes(np.full(count, -1)) for _ in range(rows)),
    ]


def assert_alike(found: object, others: object) -> None:
    """Equal as values: NaN is NaN, and zeros have no sign (M3)."""
    for one, other in zip(found, others, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("sizes", [pytest.param(SOME_SIZES, id="some sizes"), EVERY])
@pytest.mark.parametrize("walk", ["columns", "channels"])
def test_up_the_rows(walk: str, sizes: list[int], random: np.random.Generator) -> None:
    """M5: from the first windows to the last that reach a lane's rows, as the walk along columns or channels does."""
    assembly, twin = paths(max_pooling_words, "add_up_the_rows")
    count = 400
    for height, width in ((one, other) for one in sizes for other in sizes if one * other <= 225):
        rows = height if walk == "columns" else max_pooling_grad_launch.WORD_ROWS
        state = unstarted(rows, count)
        for step in range(height + 1 if walk == "columns" else rows + height - 1):
            word, won, taps, first, second = windows_at_random(random, height, width, count)
            tap_row = 0 if walk == "columns" else height - 1 - step
            halves = 3 if walk == "channels" else (3, 1, 2)[step % 3]
            before = state
            arguments = word, won, first, second, tap_row, rows, height, width, halves
            state = list(assembly(tuple(state), *arguments))
            plain = twin(before, *arguments)
            # The twin always asks for both windows of a word; where the assembly does not, one of them is not used.
            for i in range(2 * rows):
                assert halves >> i % 2 & 1 == 0 or np.array_equal(state[i], plain[i], equal_nan=True)
            assert_alike(state[2 * rows :], plain[2 * rows :])
            for j, row in ((one, tap_row + one) for one in range(rows)):
                for half, gradient in enumerate((first, second)):
                    asked = halves >> half & 1 and 0 <= row < height
                    wins = (taps[half] >= 0) & (taps[half] // width == row) & bool(asked)
                    sums = np.where(wins, before[2 * j + half] + gradient, before[2 * j + half])
                    np.testing.assert_array_equal(state[2 * j + half], sums)
                    picked, earlier = (one[2 * rows + j].view(np.uint16)[half::2] for one in (state, before))
                    column = taps[half] - row * width
                    if 0 <= row < height:
                        is_column = (taps[half] >= 0) & (column >= 0) & (column < width)
                        assert (picked[is_column] == np.minimum(column, earlier)[is_column]).all()
                        # What is no column leaves an earlier one and makes none; nor is it equal to one as a float.
                        assert ((picked == earlier) | (earlier >= width))[~is_column].all()
                        assert (picked[~is_column & (earlier >= width)] >= width).all()
                        assert (picked != 0x8000).all()
                    else:
                        assert (picked == earlier).all()
            if walk == "columns":
                state = one_row_further(state, rows)


def one_row_further(state: list[Lanes], rows: int) -> list[Lanes]:
    """What the walk along columns does between its turns."""
    new = unstarted(1, state[0].size)
    return [*state[2 : 2 * rows], *new[:2], *state[2 * rows + 1 :], new[2]]


def picks(random: np.random.Generator, width: int, count: int) -> tuple[Lanes, np.ndarray]:
    """Words of two picked columns, and the columns (-1: none) as numbers."""
    no_columns = [width, 224, 0xFF2E, 0xFE2E, 0xFFFF, 0xFF00, 0xFF00 | (width - 1)]
    halves = np.where(
        random.random((2, count)) < 0.7, random.integers(0, width, (2, count)), random.choice(no_columns, (2, count))
    )
    return lanes(halves[0] | halves[1] << 16), np.where(halves < width, halves, -1)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("sizes", [pytest.param(SOME_SIZES, id="some sizes"), EVERY])
def test_along_the_row(sizes: list[int], random: np.random.Generator) -> None:
    """M5: all the words that reach a lane's columns, with every padding that changes where words begin."""
    assembly, twin = paths(max_pooling_words, "spread")
    count, across = 200, 8
    for width in sizes:
        paddings = (0, 1, width // 2, width, 2 * width + 1) if sizes is SOME_SIZES else range(2 * width + 2)
        for padding in paddings:
            first, last = padding - width + 1, across - 1 + padding
            start = [lanes(np.zeros(count), np.float32)] * across
            found, plain, expected = start, start, start
            for word in range(first // 2, last // 2 + 1):
                columns, picked = picks(random, width, count)
                sums = terms(random, count), terms(random, count)
                arguments = columns, *sums, padding - 2 * word, padding - 2 * word - 1, across, width
                found, plain = assembly(tuple(found), *arguments), twin(tuple(plain), *arguments)
                for half, window in enumerate((2 * word, 2 * word + 1)):
                    expected = [
                        np.where(
                            (picked[half] == i + padding - window) & (picked[half] >= 0), target + sums[half], target
                        )
                        for i, target in enumerate(expected)
                    ]
            assert_alike(found, expected)
            assert_alike(found, plain)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_two_along_the_row(random: np.random.Generator) -> None:
    """M5: two channels' sums move on by a column each turn, and the last one begins anew."""
    assembly, twin = paths(max_pooling_words, "spread_two")
    count = 200
    for width in WORD_SIZES:
        nothing = lanes(np.zeros(count), np.float32)
        found = [nothing] * (2 * width)
        for _ in range(3):
            columns, picked = picks(random, width, count)
            sums = terms(random, count), terms(random, count)
            expected = [
                np.where(picked[half] == i, found[half * width + i] + sums[half], found[half * width + i])
                for half in range(2) for i in range(width)
            ]  # fmt: skip
            plain = twin(tuple(found), columns, *sums, width)
            found = assembly(tuple(found), columns, *sums, width)
            assert_alike(found, expected)
            assert_alike(found, plain)
            found = [*found[1:width], nothing, *found[width + 1 :], nothing]
