"""Kernels compiled without a GPU, and their machine code read for what must hold."""

from __future__ import annotations

import importlib
import pkgutil
import re
import struct
import time
from collections.abc import Callable, Iterator

import pytest

sass = pytest.importorskip("benchmarks.sass")

from torch_dmlpool.kernels import (  # noqa: E402
    adaptive_pooling,
    average_pooling,
    average_pooling_launch,
    bins_launch,
    launch,
    max_unpooling,
)

from benchmarks import compiled, compiled_averages, compiled_maxima, compiled_quantized  # noqa: E402
from torch_dmlpool import kernels  # noqa: E402
from torch_dmlpool.window import Window  # noqa: E402

row = compiled_averages.average_row
ROWS = [
    *(row(dtype, window, stride, adjoint=adjoint, channels_last=channels_last)
      for adjoint in (False, True) for channels_last in (False, True)
      for dtype, window, stride in (("float32", 2, 2), ("float16", 3, 1), ("float16", 5, 1))),
    row("float16", 3, 2),
    row("float32", 7, 1),
    row("float32", 3, 1, include_padding=False),
    row("float16", 3, 1, include_padding=False, adjoint=True),
    row("bfloat16", 3, 1),
    row("float64", 3, 1),
    row("float32", 3, 1, sizes=(113, 113)),
    row("float16", 3, 1, sizes=(32, 32, 32)),
    row("float32", 3, 1, sizes=(4096,)),
    row("float32", 31, 1),
    row("float32", 31, 1, channels_last=True),
    row("float16", 112, 1, padding=0),
]  # fmt: skip
MORE = [
    *(row(dtype, 7, 1, adjoint=adjoint, channels_last=channels_last)
      for adjoint in (False, True) for channels_last in (False, True) for dtype in ("float32", "float16")),
    row("float16", 31, 1),
    row("float64", 31, 1),
    row("float16", 13, 1, adjoint=True, include_padding=False),
    row("float32", 31, 1, adjoint=True, include_padding=False),
    row("float32", 31, 1, channels_last=True, adjoint=True, include_padding=False),
    row("float16", 31, 1, channels_last=True),
    row("float32", 3, 1, sizes=(32, 32, 32), channels_last=True, include_padding=False),
    row("float16", 3, 1, sizes=(32, 32, 32), channels_last=True),
    row("float32", 9, 1, channels_last=True),
    row("float16", 9, 1),
    row("bfloat16", 3, 2, adjoint=True, dilation=3),
]  # fmt: skip

max_row, max_gradient_row = compiled_maxima.max_row, compiled_maxima.max_gradient_row
MAX_ROWS = [
    *(max_row(dtype, window, stride, taps=taps, channels_last=channels_last)
      for taps in (False, True) for channels_last in (False, True)
      for dtype, window, stride in (("float32", 3, 2), ("float16", 2, 2))),
    *(max_gradient_row(dtype, window, stride, channels_last=channels_last)
      for channels_last in (False, True) for dtype, window, stride in (("float32", 3, 1), ("float16", 2, 2))),
    max_row("float32", 5, 1, taps=True),
    max_row("float16", 7, 1, channels_last=True),
    max_row("bfloat16", 3, 1, taps=True),
    max_row("int8", 3, 1),
    max_row("float64", 3, 1, taps=True),
    max_row("float32", 3, 1, sizes=(113, 113)),
    max_row("float16", 2, 2, sizes=(32, 32, 32)),
    max_row("float32", 31, 1),
    max_row("float32", 31, 1, taps=True, channels_last=True),
    max_gradient_row("float32", 5, 1),
    max_gradient_row("float32", 31, 1),
    max_row("uint8", 3, 2),
    max_row("bfloat16", 3, 2),
    max_row("int8", 7, 1, channels_last=True),
    max_row("bfloat16", 7, 1),
    max_row("int8", 3, 1, channels_last=True),
    max_row("int8", 3, 1, taps=True),
    max_row("int16", 5, 1),
    max_row("int8", 7, 1),
    max_row("int8", 3, 1, taps=True, channels_last=True),
]  # fmt: skip
# The launch depends on the device: inline assembly is for CUDA alone.
MAX_ROWS_OF: dict[str, Callable[[str], compiled.Row]] = {
    "values": lambda target: max_row("float32", 3, 1, target=target),
    "taps": lambda target: max_row("float16", 3, 2, taps=True, target=target),
    "taps along channels": lambda target: max_row("float32", 5, 1, taps=True, channels_last=True, target=target),
    "bfloat16": lambda target: max_row("bfloat16", 3, 1, target=target),
    "walk of keys": lambda target: max_row("bfloat16", 5, 1, taps=True, target=target),
    "walk along channels": lambda target: max_row("float32", 5, 1, taps=True, channels_last=True, target=target),
    "gradient by words": lambda target: max_gradient_row("float16", 5, 1, target=target),
    "strips": lambda target: max_row("float16", 31, 1, target=target),
    "walk with scratch": lambda target: max_row("float32", 31, 1, taps=True, target=target),
    "walk with scratch, keys": lambda target: max_row("float16", 31, 1, taps=True, channels_last=True, target=target),
    "axis by axis": lambda target: max_row("float32", 70, 1, taps=True, target=target),
    "gradient": lambda target: max_gradient_row("float16", 3, 1, target=target),
    "gradient by rows and columns": lambda target: max_gradient_row("float32", 5, 1, target=target),
    "gradient axis by axis": lambda target: max_gradient_row("float32", 31, 1, target=target),
}
MORE_MAX = [
    *(max_row(dtype, window, 1, taps=taps, channels_last=channels_last)
      for taps in (False, True) for channels_last in (False, True)
      for dtype in ("float32", "float16", "int8", "int64") for window in (3, 5, 7)),
    *(max_gradient_row(dtype, window, 1, channels_last=channels_last)
      for channels_last in (False, True) for dtype in ("float32", "float16", "float64") for window in (3, 5, 7)),
    max_row("float16", 13, 1),
    max_row("float16", 31, 1),
    *(max_row(dtype, 31, 1, taps=taps, channels_last=channels_last)
      for dtype in ("float32", "float16") for taps, channels_last in ((True, False), (False, True), (True, True))),
    max_row("float32", 3, 1, taps=True, sizes=(32, 32, 32)),
    max_gradient_row("float16", 3, 1, sizes=(32, 32, 32)),
]  # fmt: skip


def names(rows: list[compiled.Row]) -> list[str]:
    return [f"{r.operator}, {r.layout}, {r.dtype}, {r.window}" for r in rows]


def some_every_day(rows: list[compiled.Row]) -> pytest.MarkDecorator:
    """Each third row, for the rows alternate in all they differ by; the others are slow."""
    marked = [
        pytest.param(of, id=name, marks=[] if number % 3 == 1 else [pytest.mark.slow])
        for number, (of, name) in enumerate(zip(rows, names(rows), strict=True))
    ]
    return pytest.mark.parametrize("of", marked)


def binaries(of: compiled.Row, **changes: object) -> list[object]:
    return [
        sass.compiled(k.function, k.pointers, k.launch.sizes, k.launch.constants, k.launch.num_warps, **changes)
        for k in of.kernels
    ]


def assert_no_spills(kernel: compiled.Kernel, code: sass.Code) -> None:
    """Registers are enough; a few words that the assembler keeps elsewhere so that more warps run are no spills."""
    if code.local == 0:
        assert code.stack == 0
        return
    assert code.local <= max(8, len(code.opcodes) // 40), "spills"
    how = kernel.launch
    roomy = sass.compiled(kernel.function, kernel.pointers, how.sizes, how.constants, how.num_warps, registers=255)
    assert sass.machine_code(roomy).local == 0, "spills"


def assert_sound(of: compiled.Row) -> None:
    for kernel, binary in zip(of.kernels, binaries(of), strict=True):
        code = sass.machine_code(binary)
        name = kernel.function.fn.__name__
        assert_no_spills(kernel, code)
        # Between passes through scratch, and where a table of divisors is filled.
        table = name == "sum_walk" and kernel.launch.constants["ADJOINT"] and kernel.launch.constants["COUNT"] > 0
        barriers = 2 + table if name == "sum_walk" else 0
        assert code.count("BAR") == barriers, "a value went through shared memory"
        assert binary.metadata.shared == 0
        constants = kernel.launch.constants
        size = compiled.BYTES[of.dtype]
        if constants.get("V", 1) * size == 16:
            assert any(opcode.startswith("LDG.E.128") for opcode in code.opcodes)
        if constants.get("STORE", 1) * size == 16 or (constants.get("LAYOUT") == 1 and constants["V"] * size == 16):
            stores = [opcode for opcode in code.opcodes if opcode.startswith("STG")]
            assert stores
            assert all(opcode.startswith("STG.E.128") for opcode in stores)
        assert "mul.lo.s64" not in loops_of(binary.asm["ptx"])


def loops_of(ptx: str) -> str:
    """The text of the innermost loops: between a label and a branch back to it, no other loop within."""
    lines = ptx.splitlines()
    labels = {line.split(":")[0].strip(): i for i, line in enumerate(lines) if re.match(r"\$L__BB\d+_\d+:", line)}
    loops = []
    for i, line in enumerate(lines):
        target = re.search(r"\bbra(?:\.uni)?\s+(\$L__BB\d+_\d+);", line)
        if target and labels[target.group(1)] < i:
            loops.append((labels[target.group(1)], i))
    innermost = [(a, b) for a, b in loops if not any(a <= c and d < b for c, d in loops)]
    return "\n".join(line for a, b in innermost for line in lines[a:b])


@some_every_day(ROWS)
def test_machine_code(of: compiled.Row) -> None:
    """No spills, no shared memory, 16-byte loads and stores, no 64-bit multiplication in a loop."""
    assert_sound(of)


@some_every_day(MAX_ROWS)
def test_max_machine_code(of: compiled.Row) -> None:
    """No spills, vectors of 16 bytes, no 64-bit multiplication in a loop; shared memory only between strips' passes."""
    assert_max_sound(of)


@pytest.mark.slow
@pytest.mark.parametrize("of", MORE_MAX, ids=names(MORE_MAX))
def test_more_max_machine_code(of: compiled.Row) -> None:
    assert_max_sound(of)


def assert_max_sound(of: compiled.Row) -> None:
    for kernel, binary in zip(of.kernels, binaries(of), strict=True):
        code = sass.machine_code(binary)
        assert_no_spills(kernel, code)
        name = kernel.function.fn.__name__
        # A walk turns what it read along a row into what it takes down the columns.
        assert binary.metadata.shared == 0 or name == "max_walk"
        if name != "max_strips":  # there once per strip, for the plane's 64-bit base
            assert "mul.lo.s64" not in loops_of(binary.asm["ptx"])
        constants, size = kernel.launch.constants, compiled.BYTES[of.dtype]
        if constants.get("V", 1) * size == 16:
            assert any(opcode.startswith("LDG.E.128") for opcode in code.opcodes)
            if constants.get("STORE", constants.get("DOWN", constants["V"])) * size == 16:
                assert any(opcode.startswith("STG.E.128") for opcode in code.opcodes)


PACKED_ROWS = [
    (max_row("int8", 3, 1), "VIMNMX3.S16x2"),
    (max_row("uint8", 3, 2, channels_last=True), "VIMNMX.S16x2"),
    (max_row("bfloat16", 7, 1), "HMNMX2.BF16_V2.NAN"),
    (max_row("float16", 3, 2), "HMNMX2.NAN"),
    (max_row("int8", 3, 1, taps=True), "VIMNMX.S16x2"),
]


@pytest.mark.parametrize(("of", "opcode"), PACKED_ROWS, ids=names([of for of, _ in PACKED_ROWS]))
def test_pairs_are_compared_at_once(of: compiled.Row, opcode: str) -> None:
    """M7: two numbers by one instruction, and no element turned into another type, nor compared alone."""
    (binary,) = binaries(of)
    code = sass.machine_code(binary)
    constants = of.kernels[0].launch.constants
    pairs = [one for one in code.opcodes if "MNMX" in one and any(kind in one for kind in ("16x2", "BF16_V2", "HMN"))]
    assert opcode in pairs
    assert len(pairs) > constants["V"]
    # A few numbers of rows and columns are kept within bounds.
    assert sum("MNMX" in one for one in code.opcodes) - len(pairs) < 8
    # Addresses are divided by way of float32: of 32-bit numbers.
    turned = re.compile(r"I2F(?!\.RP)|F2F|I2I|HADD2|HFMA2\.|F2I(?!\.FTZ\.U32\.TRUNC\.NTZ)")
    assert not [one for one in code.opcodes if turned.match(one)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_keys_are_made_by_arithmetic(dtype: str) -> None:
    """M2, M3: the assembler does not take the addition of 0, which makes zeros positive and NaNs alike, for nothing."""
    (binary,) = binaries(max_row(dtype, 5, 1, taps=True))
    opcodes = sass.machine_code(binary).opcodes
    halves = [one for one in opcodes if one.startswith(("HADD2", "HFMA2")) and ("BF16" in one) == (dtype == "bfloat16")]
    loads = [one for one in opcodes if one.startswith("LDG")]
    assert len(halves) >= sum(4 if "128" in one else 2 if "64" in one else 1 for one in loads) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "target", [("cuda", 75, 32), ("cuda", 80, 32), ("cuda", 100, 32), ("hip", "gfx942", 64)], ids=str
)
@pytest.mark.parametrize("make", MAX_ROWS_OF.values(), ids=MAX_ROWS_OF)
def test_max_on_other_devices(make: Callable[[str], compiled.Row], target: tuple[str, int | str, int]) -> None:
    from triton.backends.compiler import GPUTarget

    known_as = {75: "sm_70", 100: "sm_90"}.get(target[1], target[0])
    for binary in binaries(make(known_as), target=GPUTarget(*target)):
        assert binary.asm["hsaco" if target[0] == "hip" else "cubin"]


@pytest.mark.slow
@pytest.mark.parametrize("of", MORE, ids=names(MORE))
def test_more_machine_code(of: compiled.Row) -> None:
    assert_sound(of)


def test_every_number_is_a_run_time_number() -> None:
    """Whatever is neither a pointer nor named as a constant is not specialised: sizes compile nothing new."""
    found = 0
    for module in pkgutil.iter_modules(kernels.__path__):
        for kernel in vars(importlib.import_module(f"{kernels.__name__}.{module.name}")).values():
            if getattr(kernel, "do_not_specialize", None):
                found += 1
                kept = [p.name for p in kernel.params if p.do_not_specialize]
                assert sorted(kept) == sorted(kernel.do_not_specialize), kernel.fn.__name__
                first = kernel.arg_names.index(kept[0])
                assert kernel.arg_names[first : first + len(kept)] == kept, kernel.fn.__name__
                assert all(p.is_constexpr for p in kernel.params[first + len(kept) :]), kernel.fn.__name__
    assert found > 10


def test_loops_are_found() -> None:
    """The looped kernel is one loop over 8 taps at a time, with 32-bit multiplications alone; 64-bit when wide."""
    narrow = average_pooling_launch.AverageProblem(
        Window.directml(1, 500), (1, 1, 1000), (1000, 1000, 1), (501,), 4, True, False, False, False, None
    )
    ((step),) = average_pooling_launch.average_steps(narrow)
    constants = dict(step.launch.constants)
    for wide in (False, True):
        constants["WIDE"] = wide
        binary = sass.compiled(average_pooling.sum_axis, ["float32"] * 2, step.launch.sizes, constants)
        loop = loops_of(binary.asm["ptx"])
        assert loop.count("ld.global") >= 8
        assert ("mul.lo.s64" in loop) == wide


def bins_kernels(element: str, wide: bool) -> Iterator[tuple[object, list[str], launch.Launch]]:
    """Every kernel of adaptive pooling and of positions, with the data types of its pointers and a launch."""
    shape, outputs, position = (8, 64, 57, 57), (7, 7), "int64" if wide else "int32"
    strides, small = (64 * 57 * 57, 57 * 57, 57, 1), (64 * 49, 49, 7, 1)
    for adjoint in (False, True):
        given = (shape, strides, outputs) if not adjoint else ((8, 64, 7, 7), small, shape[2:])
        step = bins_launch.bin_passes(*given, False, {"ADJOINT": adjoint})[0]
        yield adaptive_pooling.sum_bins, [element, "float64" if element == "float64" else "float32"], step.launch
    for step in bins_launch.bin_passes(shape, strides, outputs, True, {}, with_steps=True):
        yield adaptive_pooling.max_bins, [element, position, element, position], step.launch
    gradient = bins_launch.bins_gradient((8, 64, 7, 7), small, small, shape[2:], False)
    yield adaptive_pooling.grad_bins, [element, position, element], gradient
    unique = bins_launch.unique_launch(512, 49, 57 * 57)
    yield max_unpooling.claim, ["int64", position], unique
    yield max_unpooling.settle, ["int64", position, position], unique
    for scatter in (False, True):
        near, far = (small, strides) if scatter else (strides, small)
        move = bins_launch.move_launch((8, 64, 7, 7), shape[2:], near, small, far, scatter)
        yield max_unpooling.move_positions, [element, position, element], move


def compile_bins_kernels(element: str, wide: bool, **target: object) -> list[object]:
    return [
        sass.compiled(kernel, pointers, how.sizes, {**how.constants, "WIDE": wide}, **target)
        for kernel, pointers, how in bins_kernels(element, wide)
    ]


@pytest.mark.parametrize("element", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_adaptive_machine_code(element: str) -> None:
    """No spills, no shared memory, and but where positions are 64 bits wide no 64-bit multiplication in a loop."""
    for binary in compile_bins_kernels(element, wide=False):
        code = sass.machine_code(binary)
        assert code.local == 0
        assert code.stack == 0
        assert binary.metadata.shared == 0
        assert "mul.lo.s64" not in loops_of(binary.asm["ptx"])


@pytest.mark.slow
@pytest.mark.parametrize("target", [("cuda", 80, 32), ("cuda", 100, 32), ("hip", "gfx942", 64)], ids=str)
def test_adaptive_kernels_on_other_devices(target: tuple[str, int | str, int]) -> None:
    from triton.backends.compiler import GPUTarget

    for element in ("float16", "float64", "int8", "uint64"):
        for wide in (False, True):
            if element.startswith("float"):
                assert compile_bins_kernels(element, wide, target=GPUTarget(*target))
            else:
                kernels = [row for row in bins_kernels(element, wide) if "sum" not in row[0].fn.__name__]
                for kernel, pointers, how in kernels:
                    if kernel is not adaptive_pooling.grad_bins:  # integers have no gradient
                        assert sass.compiled(
                            kernel, pointers, how.sizes, {**how.constants, "WIDE": wide}, target=GPUTarget(*target)
                        )


def test_compile_time() -> None:
    """Any window compiles in seconds: past the unrolling bound the window is a run-time number."""
    for of in (row("float16", 7, 1), row("float32", 41, 1)):
        before = time.process_time()
        binaries(of)
        assert time.process_time() - before < 6  # 3 on a machine of its own, with room for a busy one


@pytest.mark.slow
@pytest.mark.parametrize("target", [("cuda", 80, 32), ("cuda", 100, 32), ("hip", "gfx942", 64)], ids=str)
@pytest.mark.parametrize("of", ROWS, ids=names(ROWS))
def test_other_devices(of: compiled.Row, target: tuple[str, int | str, int]) -> None:
    from triton.backends.compiler import GPUTarget

    for binary in binaries(of, target=GPUTarget(*target)):
        assert binary.asm["hsaco" if target[0] == "hip" else "cubin"]


quantized_row = compiled_quantized.quantized_row
QUANTIZED: dict[str, Callable[[str], compiled.Row]] = {
    "2 / 2": lambda target: quantized_row(2, 2, target=target),
    "3 / 1": lambda target: quantized_row(3, 1, target=target),
    "3 / 1, padding excluded": lambda target: quantized_row(3, 1, include_padding=False, target=target),
    "3 / 1, channels last, each channel": lambda target: quantized_row(
        3, 1, channels_last=True, each_channel=True, target=target
    ),
    "3 / 2, int8 to uint8": lambda target: quantized_row(3, 2, ("int8", "uint8"), target=target),
    "31 / 1": lambda target: quantized_row(31, 1, target=target),
}
MORE_QUANTIZED: dict[str, Callable[[str], compiled.Row]] = {
    "7 / 1": lambda target: quantized_row(7, 1, target=target),
    "5 / 1, channels last": lambda target: quantized_row(5, 1, channels_last=True, target=target),
    "7 / 1, padding excluded": lambda target: quantized_row(
        7, 1, include_padding=False, each_channel=True, target=target
    ),
    "7 / 1, channels last": lambda target: quantized_row(7, 1, channels_last=True, each_channel=True, target=target),
    "3 / 1, odd columns": lambda target: quantized_row(3, 1, sizes=(113, 113), target=target),
    "3 / 1 in a volume": lambda target: quantized_row(3, 1, sizes=(32, 32, 32), target=target),
    "3 / 1 in a volume, channels last": lambda target: quantized_row(
        3, 1, sizes=(32, 32, 32), channels_last=True, target=target
    ),
    "11 / 1": lambda target: quantized_row(11, 1, ("int8", "int8"), target=target),
}


@pytest.mark.parametrize(
    "make",
    [*QUANTIZED.values(), *(pytest.param(make, marks=pytest.mark.slow) for make in MORE_QUANTIZED.values())],
    ids=[*QUANTIZED, *MORE_QUANTIZED],
)
def test_quantized_machine_code(make: Callable[[str], compiled.Row]) -> None:
    """No spills and no shared memory; words of 16 bytes; the addend that rounds is a float64 to the last bit."""
    of = make("sm_90")
    for kernel, binary in zip(of.kernels, binaries(of), strict=True):
        code = sass.machine_code(binary)
        assert_no_spills(kernel, code)
        assert code.count("BAR") == binary.metadata.shared == 0
        assert "mul.lo.s64" not in loops_of(binary.asm["ptx"])
        constants, name = kernel.launch.constants, kernel.function.fn.__name__
        if constants.get("V") == 16:
            assert any(opcode.startswith("LDG.E.128") for opcode in code.opcodes)
        whole = constants.get("STORE") == 16 or (constants.get("LAYOUT") == 1 and constants.get("V") == 16)
        if whole or (name == "quantized_stream" and constants["V"] == 16):
            stores = [opcode for opcode in code.opcodes if opcode.startswith("STG")]
            assert stores
            assert all(opcode.startswith("STG.E.128") for opcode in stores)
        if name in ("quantized_tile", "quantized_stream"):
            for addend in (1.5 * 2.0**11, 1.5 * 2.0**52 - 1.5 * 2.0**11):
                assert f"0d{struct.pack('>d', addend).hex().upper()}" in binary.asm["ptx"]


@pytest.mark.slow
@pytest.mark.parametrize("target", [("cuda", 80, 32), ("cuda", 100, 32), ("hip", "gfx942", 64)], ids=str)
@pytest.mark.parametrize("make", QUANTIZED.values(), ids=QUANTIZED)
def test_quantized_on_other_devices(make: Callable[[str], compiled.Row], target: tuple[str, int | str, int]) -> None:
    from triton.backends.compiler import GPUTarget

    known_as = {80: "cuda", 100: "sm_90"}.get(target[1], target[0])
    for binary in binaries(make(known_as), target=GPUTarget(*target)):
        assert binary.asm["hsaco" if target[0] == "hip" else "cubin"]
