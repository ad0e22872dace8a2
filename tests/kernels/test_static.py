"""What compiled kernels are predicted to reach: the model on kernels whose bound is known, and the
package's rows."""

import cases
import pytest
import torch

triton = pytest.importorskip("triton")
sass = pytest.importorskip("benchmarks.sass")

import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402

from benchmarks import compiler, static  # noqa: E402

PROGRAMS = 100_000
ROWS = static.rows()


@triton.jit
def copy(source, target, B: tl.constexpr, V: tl.constexpr):
    place = tl.program_id(0) * B * V + tl.arange(0, B * V)
    tl.store(target + place, tl.load(source + place))


@triton.jit(do_not_specialize=["turns"])
def chase(source, target, turns, B: tl.constexpr):
    place = tl.program_id(0) * B + tl.arange(0, B)
    for _ in range(turns):
        place = tl.load(source + place)
    tl.store(target + tl.program_id(0) * B + tl.arange(0, B), place)


def code_of(kernel, types: tuple[str, ...], pointers: int, **constants: int) -> sass.Code:
    request = compiler.Request(kernel, types, tuple(range(pointers)), tuple(constants.items()))
    return sass.machine_code(compiler.binary(request).asm["cubin"])


def test_a_copy_is_bound_by_memory() -> None:
    code = code_of(copy, ("*fp32", "*fp32"), 2, B=128, V=4)
    time = sass.launch_time(code, PROGRAMS, 4, PROGRAMS * 128 * 4 * 8)
    assert time.bound == "memory"
    # 16 programs of 128 threads, a load of 16 bytes for each
    assert time.in_flight == 16 * 128 * 16
    assert code.spills == 0


def test_loads_that_wait_for_each_other_are_bound_by_latency() -> None:
    code = code_of(chase, ("*i32", "*i32", "i32"), 2, B=128)
    loads = len(code.loads())
    few, many = (
        sass.launch_time(code, PROGRAMS, 4, PROGRAMS * 128 * 8, turns)
        for turns in (loads, 20 * loads)
    )
    assert many.bound == "latency"
    assert many.total > 10 * few.total


def test_rows_count_the_bytes_of_their_operands() -> None:
    input = 32 * 64 * 112 * 112
    for row in ROWS:
        if (row.window, row.stride, row.dtype) == (2, 2, torch.float16):
            _, copied = row.launches()
            assert copied == input * 2 * 1.25 + (input // 4 if "max " in row.operator else 0), (
                row.name
            )


@cases.each("row", ROWS, ROWS[2::80])
def test_nothing_spills(row: static.Row) -> None:
    """But one word, which ptxas stores and loads once: under whole planes of 112x112 float16 in
    channels_last, with taps."""
    prediction = static.Prediction(row)
    assert prediction.spills <= 2
    assert 0 < prediction.fraction <= 1


def test_long_maxima_of_vectors_do_not_spill() -> None:
    """E7: 7/1 of float16 on sm_80, where ptxas leaves fewer registers than on sm_90."""
    (launch,), _ = static.Row("max", torch.float16, False, 7, 1, static._maxima).launches()
    binary = compiler.binary(launch.request, GPUTarget("cuda", 80, 32))
    assert sass.machine_code(binary.asm["cubin"]).spills == 0
