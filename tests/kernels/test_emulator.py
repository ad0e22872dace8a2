"""What the emulator must catch, each in a kernel that does it. What instructions compute the other
tests compare."""

import re
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")
pytest.importorskip("triton._C.libtriton")

import triton.language as tl  # noqa: E402
from emulator import machine  # noqa: E402
from emulator.launches import run  # noqa: E402
from emulator.memory import FaultError, Memory  # noqa: E402
from emulator.values import RefusedError  # noqa: E402


@triton.jit
def turned(source, target, B: tl.constexpr):
    row = tl.arange(0, B)[:, None]
    column = tl.arange(0, B)[None, :]
    first = tl.program_id(0) * B * B
    tl.store(
        target + first + row * B + column, tl.trans(tl.load(source + first + row * B + column))
    )


@triton.jit
def number_of_program(target, B: tl.constexpr):
    tl.store(target + tl.arange(0, B), tl.program_id(0) + tl.arange(0, B) * 0)


@triton.jit
def copy(source, target, B: tl.constexpr, V: tl.constexpr):
    place = tl.program_id(0) * B + tl.arange(0, B // V)[:, None] * V + tl.arange(0, V)[None, :]
    tl.store(target + place, tl.load(source + place))


@triton.jit(do_not_specialize=["width"])
def fill_planes(target, width, WIDE: tl.constexpr, B: tl.constexpr):
    plane = tl.program_id(0).to(tl.int64)
    base = target + (plane * width * width if WIDE else plane * (width * width))
    tl.store(
        base + (tl.cast(width, tl.int64) * width if WIDE else width * width) - B + tl.arange(0, B),
        1.0,
    )


def without_barriers(ptx: str) -> str:
    edited = re.sub(r"bar\.sync[^;]*;", "", ptx)
    assert edited != ptx
    return edited


def test_a_removed_barrier_is_a_race_though_values_are_right() -> None:
    source = torch.arange(4096.0)
    expected = source.view(4, 32, 32).mT.flatten()
    target = torch.zeros(4096)
    run(turned, (source, target), (("B", 32),), 4)
    assert torch.equal(target, expected)
    target.zero_()
    with pytest.raises(FaultError, match=r"race: .* shared memory.*test_emulator.py"):
        run(turned, (source, target), (("B", 32),), 4, edit=without_barriers)
    assert torch.equal(target, expected)


NUMBERS, BOTH = torch.zeros(128, dtype=torch.int32), torch.arange(512.0)
HUGE = torch.empty(3, 2**16 - 16, 2**16 - 16, dtype=torch.float16, device="meta")
NUMBERED: Any = (number_of_program, (NUMBERS,), (("B", 128),))
COPIED = (("B", 128), ("V", 1))
VECTORS = (("B", 512), ("V", 4))
FILLED: Any = (fill_planes, (HUGE, HUGE.shape[1]))
FAULTS = [
    (*NUMBERED, 2, "race: two threads write target"),
    (copy, (BOTH[:256], BOTH[128:384]), COPIED, 2, "race: a thread .* what another one"),
    (copy, (BOTH[:255].clone(), BOTH), COPIED, 2, "out of bounds of source: .* of 1020"),
    (copy, (BOTH, BOTH[:255].clone()), COPIED, 2, "out of bounds of target: .* of 1020"),
    (*FILLED, (("WIDE", False), ("B", 128)), 3, "out of bounds of target"),
    (*FILLED, (("WIDE", True), ("B", 128)), 2, "does not store the end of target"),
]


@pytest.mark.parametrize(("kernel", "arguments", "constants", "programs", "fault"), FAULTS)
def test_what_no_kernel_may_do_is_a_fault(
    kernel: Any, arguments: Any, constants: Any, programs: int, fault: str
) -> None:
    """What one program writes another one touches, ends of tensors, and products of sizes beyond 32
    bits, for which no tensor need be there."""
    with pytest.raises(FaultError, match=fault):
        run(kernel, arguments, constants, programs)


def test_what_is_like_a_fault_is_none() -> None:
    """One program alone, vectors of a tensor that is known not to be aligned, 64 bits."""
    run(*NUMBERED, 1)
    run(copy, (torch.zeros(513)[1:], torch.zeros(512)), VECTORS, 1)
    run(*FILLED, (("WIDE", True), ("B", 128)), 3)


HEADER = """
.visible .entry hand(.param .u64 .ptr .global target) .reqntid 64
{ .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<4>;
  ld.param.b64 %rd1, [target]; mov.u32 %r1, %tid.x; mad.wide.u32 %rd2, %r1, 4, %rd1;
"""
STOPPED = {
    "ld.global.v2.b32 {%r2, %r3}, [%rd1+4];": "misaligned access of 8 bytes",
    "$again: bra $again;": "an endless loop",
    # As Triton before 3.9 pads several elements of a word, of which all but one become -1.
    "mov.u32 %r2, 0xffffffffffffff80;": "a constant wider than its register",
    "setp.gt.u32 %p1, %r1, 9; @%p1 bra $end; bar.sync 0; $end:": "threads that part",
    "shfl.sync.bfly.b32 %r3, %r1, 1, 31, 15;": "between some threads",
    "redux.sync.add.s32 %r3, %r1, 15;": "between some threads",
    "shfl.sync.up.b32 %r2, %r1, 3, 0, -1;": "unknown exchange",
    "tanh.approx.f32 %r2, %r1;": "unknown instruction",
    "add.ftz.f32 %r2, %r1, %r1;": "unknown instruction",
    "mov.u32 %r2, %clock;": "%clock",
    "st.local.b32 [%rd2], %r1;": "neither global nor shared",
}


def run_by_hand(body: str) -> torch.Tensor:
    target, memory = torch.zeros(64, dtype=torch.int32), Memory()
    machine.run(HEADER + body + "ret; }", memory, [memory.address(target, "target")], 1024, [0])
    return target


@pytest.mark.parametrize("body", STOPPED)
def test_what_the_emulator_does_not_know_it_refuses(body: str) -> None:
    with pytest.raises((FaultError, RefusedError), match=STOPPED[body]):
        run_by_hand(body)


def test_a_register_that_nothing_was_written_to_holds_no_zero() -> None:
    assert run_by_hand("st.global.b32 [%rd2+0], %r8;").ne(0).all()
