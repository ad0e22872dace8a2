"""What the emulator must catch, each on a kernel that does it; and what instructions compute."""

import re
from fractions import Fraction

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")
pytest.importorskip("triton._C.libtriton")

import triton.language as tl  # noqa: E402
from emulator import values  # noqa: E402
from emulator.memory import FaultError  # noqa: E402
from emulator.trials import launch, run_by_hand, without_barriers  # noqa: E402


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


@triton.jit
def padded(source, target, B: tl.constexpr, V: tl.constexpr, FILL: tl.constexpr):
    row = tl.arange(0, B)[:, None]
    place = row * V + tl.arange(0, V)[None, :]
    tl.store(target + place, tl.load(source + place, mask=row < 8, other=FILL))


@triton.jit(do_not_specialize=["width"])
def fill_planes(target, width, WIDE: tl.constexpr, B: tl.constexpr):
    plane = tl.program_id(0).to(tl.int64)
    base = target + (plane * width * width if WIDE else plane * (width * width))
    tl.store(
        base + (tl.cast(width, tl.int64) * width if WIDE else width * width) - B + tl.arange(0, B),
        1.0,
    )


def test_a_removed_barrier_is_a_race_though_values_are_right() -> None:
    source = torch.arange(4096.0)
    expected = source.view(4, 32, 32).mT.flatten()
    target = torch.zeros(4096)
    launch(turned, [source, target], {"B": 32}, 4)
    assert torch.equal(target, expected)
    target.zero_()
    with pytest.raises(FaultError, match=r"race: .* shared memory.*test_emulator.py"):
        launch(turned, [source, target], {"B": 32}, 4, without_barriers)
    assert torch.equal(target, expected)


BOTH = torch.arange(512.0)
FAULTS = {
    "two programs write the same element": (
        number_of_program,
        [torch.zeros(128, dtype=torch.int32)],
        {"B": 128},
        2,
        "race: two threads write target",
    ),
    "a program writes what another one reads": (
        copy,
        [BOTH[:256], BOTH[128:384]],
        {"B": 128, "V": 1},
        2,
        "race",
    ),
    "a load past the end": (
        copy,
        [torch.zeros(255), torch.zeros(256)],
        {"B": 128, "V": 1},
        2,
        "out of bounds of source: bytes .* of 1020",
    ),
    "a store past the end": (
        copy,
        [torch.zeros(256), torch.zeros(255)],
        {"B": 128, "V": 1},
        2,
        "out of bounds of target: bytes .* of 1020",
    ),
    "a vector from an odd element on": (
        copy,
        [torch.zeros(513)[1:], BOTH],
        {"B": 512, "V": 4},
        1,
        "misaligned access of 16 bytes to source",
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_what_no_kernel_may_do_is_a_fault(what: str) -> None:
    *launched, fault = FAULTS[what]
    with pytest.raises(FaultError, match=fault):
        launch(*launched)


def test_what_is_like_a_fault_is_none() -> None:
    """One program alone, and tensors that are not said to be aligned."""
    launch(number_of_program, [torch.zeros(128, dtype=torch.int32)], {"B": 128}, 1)
    launch(copy, [torch.zeros(513)[1:], torch.zeros(512)], {"B": 512, "V": 4}, aligned=False)


@pytest.mark.parametrize(("dtype", "right"), [(torch.int8, 0x80808080), (torch.int16, 0x80008000)])
def test_padding_of_narrow_signed_integers_is_the_lowest(dtype: torch.dtype, right: int) -> None:
    """Triton before 3.9 sign-extends the fill over its word: upper elements get -1. Either way the
    emulator sees it."""
    lowest = torch.iinfo(dtype).min
    source, target = torch.full((2048,), -3, dtype=dtype), torch.zeros(2048, dtype=dtype)
    constants = {"B": 128, "V": 16, "FILL": lowest}

    def as_triton_3_6(ptx: str) -> str:
        wrong = hex(lowest & (2**64 - 1))
        edited = re.sub(
            rf"mov\.[bu]32\s+(%r\d+),\s*(?:{hex(right)}|{right - 2**32}|{right});",
            rf"mov.u32 \1, {wrong};",
            ptx,
        )
        assert wrong in edited
        return edited

    if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9):
        launch(padded, [source, target], constants)
        assert target.view(128, 16)[8:].eq(lowest).all()
        assert target.view(128, 16)[:8].eq(-3).all()
        with pytest.raises(FaultError, match="a constant wider than its register"):
            launch(padded, [source, target], constants, edit=as_triton_3_6)
    else:
        with pytest.raises(FaultError, match="a constant wider than its register"):
            launch(padded, [source, target], constants)


def test_products_of_sizes_beyond_32_bits_are_seen_without_the_tensor() -> None:
    target = torch.empty(3, 2**16 - 16, 2**16 - 16, dtype=torch.float16, device="meta")
    memory = launch(
        fill_planes, [target], {"WIDE": True, "B": 128}, 3, sizes=(2**16 - 16,), only=[2]
    )
    assert memory.segments[0].stored == target.numel() * 2
    with pytest.raises(FaultError, match="out of bounds of target"):
        launch(fill_planes, [target], {"WIDE": False, "B": 128}, 3, sizes=(2**16 - 16,), only=[0])


LOOP = """setp.gt.u32 %p1, %r1, 9; @%p1 bra $skip;
$again: add.s32 %r2, %r2, %r1; setp.lt.u32 %p2, %r2, 20;
setp.ne.u32 %p3, %r1, 0; and.pred %p2, %p2, %p3;
@%p2 bra $again;
$skip: add.s32 %r2, %r2, 1; st.global.b32 [%rd2+0], %r2;"""


def test_threads_that_part_come_together_again() -> None:
    """Each thread's own number of turns, and a barrier after them all."""
    expected = [1 + (i * -(-20 // i) if i else 0) if i < 10 else 1 for i in range(64)]
    assert run_by_hand(LOOP + "bar.sync 0;").tolist() == expected


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (
            "setp.gt.u32 %p1, %r1, 9; @%p1 bra $skip; bar.sync 0; $skip: bar.sync 0; bar.sync 1;",
            "a barrier that not every thread",
        ),
        ("$again: bra $again;", "an endless loop"),
    ],
    ids=["a barrier that some threads miss", "an endless loop"],
)
def test_what_does_not_end_is_a_fault(body: str, fault: str) -> None:
    with pytest.raises(FaultError, match=fault):
        run_by_hand(body)


def test_a_register_that_nothing_was_written_to_holds_no_zero() -> None:
    assert run_by_hand("st.global.b32 [%rd2+0], %r8;").ne(0).all()


@pytest.mark.parametrize(
    "body",
    [
        "tanh.approx.f32 %r2, %r1;",
        "add.ftz.f32 %r2, %r1, %r1;",
        "mov.u32 %r2, %clock;",
        "st.local.b32 [%rd2], %r1;",
    ],
)
def test_unknown_instructions_are_refused(body: str) -> None:
    with pytest.raises(values.RefusedError):
        run_by_hand(body)


HALF, ONE, NAN, LARGE = 0x3F000000, 0x3F800000, 0x7FC00001, 0x7F7FFFFF
INSTRUCTIONS = [
    ("prmt.b32", (0x33221100, 0x77665544, 0x7531), 0x77553311),
    ("prmt.b32", (0x00008000, 0, 0x9999), 0xFFFFFFFF),
    ("bfe.s32", (0x00000F00, 8, 4), 0xFFFFFFFF),
    ("bfe.u32", (0x00000F00, 8, 3), 7),
    ("bfi.b32", (0xAB, 0x11223344, 24, 8), 0xAB223344),
    ("shl.b32", (1, 32), 0),
    ("shr.s32", (0x80000000, 40), 0xFFFFFFFF),
    ("div.s32", (2**32 - 7, 2), 2**32 - 3),
    ("rem.s32", (2**32 - 7, 2), 2**32 - 1),
    ("mul.hi.s32", (2**31, 2**31), 2**30),
    ("mul.hi.u64", (2**63, 6), 3),
    ("mul.wide.s32", (2**32 - 1, 2**31), 2**31),
    ("mad.wide.s32", (2**32 - 2, 3, 10), 4),
    ("max.f32", (NAN, ONE), ONE),
    ("max.NaN.f32", (NAN, ONE), 0x7FFFFFFF),
    ("max.f32", (0x80000000, 0), 0),
    ("min.f32", (0x80000000, 0), 0x80000000),
    ("max.s16x2", (0x7FFF8000, 0x80000001), 0x7FFF0001),
    ("add.f32", (LARGE, LARGE), 0x7F800000),
    ("add.f16x2", (0x3C007BFF, 0x3C007BFF), 0x40007C00),
    ("cvt.rn.bf16x2.f32", (ONE, 0x3F808000), 0x3F803F80),
    ("cvt.rn.f16.f32", (0x477FF000,), 0x7C00),
    ("cvt.rni.s32.f32", (0x40200000,), 2),
    ("cvt.rzi.u32.f32", (0xBF800000,), 0),
    ("cvt.rzi.s32.f32", (0x4F800000,), 0x7FFFFFFF),
    ("cvt.f32.bf16", (0x3F80,), ONE),
    ("cvt.s64.s32", (2**32 - 1,), 2**64 - 1),
    ("setp.geu.f32", (NAN, ONE), 1),
    ("setp.ne.f32", (NAN, ONE), 0),
    ("setp.neu.f32", (NAN, ONE), 1),
    ("selp.b32", (1, 2, 0), 2),
]


@pytest.mark.parametrize(("opcode", "sources", "expected"), INSTRUCTIONS)
def test_instructions_compute_what_ptx_says(
    opcode: str, sources: tuple[int, ...], expected: int
) -> None:
    sizes, compute = values.operation(opcode)
    given = [
        np.array([each], np.uint64).astype(values.UNSIGNED[size])
        for each, size in zip(sources, sizes, strict=True)
    ]
    with np.errstate(all="ignore"):
        result = compute(*given)
    size = result.dtype.itemsize * 8
    assert int(result[0]) & (2**size - 1) == expected & (2**size - 1)


def test_two_halves_are_compared_at_once() -> None:
    """As numbers: 0 is -0, subnormal ones are not flushed to 0, NaN is not even itself."""
    words = [
        np.array(each, np.uint32)
        for each in ([0x00018000, 0x7E00FBFF, 0x00020001], [0x00010000, 0x7E00FBFE, 0x00010001])
    ]
    first, second = values.operation("setp.eq.f16x2").compute(*words)
    assert first.tolist() == [True, False, True]
    assert second.tolist() == [True, False, False]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_fused_multiply_add_rounds_once(dtype: type[np.floating]) -> None:
    draw = np.random.default_rng(0)
    x, y, z = (draw.standard_normal(2000).astype(dtype) for _ in range(3))
    z = np.where(draw.random(2000) < 0.5, z, -(x * y)).astype(dtype)
    result = values.fused(x, y, z)
    for a, b, c, given in zip(x, y, z, result, strict=True):
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        error = abs(Fraction(float(given)) - exact)
        for other in (np.nextafter(given, dtype(np.inf)), np.nextafter(given, dtype(-np.inf))):
            assert error <= abs(Fraction(float(other)) - exact)
