"""What the emulator must catch, each in a kernel that does it. What instructions compute the other
tests compare."""

import re
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")
pytest.importorskip("triton._C.libtriton")

import triton.language as tl  # noqa: E402
from emulator.launches import run  # noqa: E402
from emulator.memory import FaultError  # noqa: E402


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


def without_barriers(ptx):
    edited = re.sub(r"bar\.sync[^;]*;", "", ptx)
    assert edited != ptx
    return edited


def test_a_removed_barrier_is_a_race_though_values_are_right():
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
def test_what_no_kernel_may_do_is_a_fault(kernel, arguments, constants, programs, fault):
    """What one program writes another one touches, ends of tensors, and products of sizes beyond 32
    bits, for which no tensor need be there."""
    with pytest.raises(FaultError, match=fault):
        run(kernel, arguments, constants, programs)
