"""What the emulator must catch, each on a kernel that does it; and what instructions compute."""

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


NUMBERS, BOTH = torch.zeros(128, dtype=torch.int32), torch.arange(512.0)
COPIED = {"B": 128, "V": 1}
FAULTS = [
    (number_of_program, [NUMBERS], {"B": 128}, "race: two threads write target"),
    (copy, [BOTH[:256], BOTH[128:384]], COPIED, "race: a thread .* what another one"),
    (copy, [torch.zeros(255), torch.zeros(256)], COPIED, "out of bounds of source: .* of 1020"),
    (copy, [torch.zeros(256), torch.zeros(255)], COPIED, "out of bounds of target: .* of 1020"),
    (
        copy,
        [torch.ones(1025)[1:], torch.ones(1024)],
        {"B": 512, "V": 4},
        "misaligned .* of 16 bytes",
    ),
]


@pytest.mark.parametrize(("kernel", "tensors", "constants", "fault"), FAULTS)
def test_what_no_kernel_may_do_is_a_fault(
    kernel: object, tensors: list[torch.Tensor], constants: dict[str, int], fault: str
) -> None:
    """What one program writes another one touches, ends of tensors, and vectors from an odd element
    on."""
    with pytest.raises(FaultError, match=fault):
        launch(kernel, tensors, constants, 2)


def test_what_is_like_a_fault_is_none() -> None:
    """One program alone, and tensors that are not said to be aligned."""
    launch(number_of_program, [NUMBERS], {"B": 128}, 1)
    launch(copy, [torch.zeros(513)[1:], torch.zeros(512)], {"B": 512, "V": 4}, aligned=False)


def test_products_of_sizes_beyond_32_bits_are_seen_without_the_tensor() -> None:
    target = torch.empty(3, 2**16 - 16, 2**16 - 16, dtype=torch.float16, device="meta")
    memory = launch(
        fill_planes, [target], {"WIDE": True, "B": 128}, 3, sizes=(2**16 - 16,), only=[2]
    )
    assert memory.segments[0].stored == target.numel() * 2
    with pytest.raises(FaultError, match="out of bounds of target"):
        launch(fill_planes, [target], {"WIDE": False, "B": 128}, 3, sizes=(2**16 - 16,), only=[0])


STORED = "st.global.b32 [%rd2+0], %r3;"
LANES = np.arange(64) % 32
LOOP = """setp.gt.u32 %p1, %r1, 9; mov.u32 %r3, 0; @%p1 bra $skip;
$again: add.s32 %r3, %r3, %r1; setp.lt.u32 %p2, %r3, 20;
setp.ne.u32 %p3, %r1, 0; and.pred %p2, %p2, %p3;
@%p2 bra $again;
$skip: add.s32 %r3, %r3, 1;"""
MATRICES = """shl.b32 %r4, %r1, 4;
stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r4], {%r1}; bar.sync 0;
ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r3}, [%r4];"""
HALVES = "and.b32 %r4, %r1, 16; shl.b32 %r5, 65535, %r4;"  # each half of a warp names itself
COMPUTED = {
    LOOP + "bar.sync 0;": [1 + (i * -(-20 // i) if i else 0) if i < 10 else 1 for i in range(64)],
    MATRICES: np.arange(64, dtype=np.uint32).view(np.uint16).reshape(2, 8, 8).swapaxes(1, 2),
    "shfl.sync.bfly.b32 %r3, %r1, 5, 31, -1;": np.arange(64) ^ 5,
    HALVES + "shfl.sync.bfly.b32 %r3, %r1, 8, 31, %r5;": np.arange(64) ^ 8,
    HALVES + "redux.sync.add.s32 %r3, %r1, %r5;": np.repeat([120, 376, 632, 888], 16),
}


@pytest.mark.parametrize("body", COMPUTED)
def test_threads_exchange_what_ptx_says(body: str) -> None:
    """Each has its own number of turns before they meet; matrices, shuffles and reductions."""
    expected = np.ascontiguousarray(COMPUTED[body])
    expected = expected.view(np.uint32) if expected.dtype == np.uint16 else expected
    assert run_by_hand(body + STORED).tolist() == expected.flatten().tolist()


NOT_ALL = "setp.gt.u32 %p1, %r1, 9; @%p1 bra $skip;"
STOPPED = {
    NOT_ALL + "bar.sync 0; $skip: bar.sync 0; bar.sync 1;": "a barrier that not every thread",
    "$again: bra $again;": "an endless loop",
    MATRICES.replace("bar.sync 0;", ""): "race: .* shared memory",
    "mov.u32 %r2, 0xffffffffffffff80;": "a constant wider than its register",
    HALVES + "shfl.sync.bfly.b32 %r3, %r1, 16, 31, %r5;": "that the mask does not name",
    **{
        f"{before} {exchange}": "a thread that"
        for exchange in (
            "shfl.sync.bfly.b32 %r3, %r1, 1, 31, %r8;",
            "redux.sync.add.s32 %r3, %r1, %r8;",
        )
        for before in (f"{NOT_ALL} mov.u32 %r8, -1;", "mov.u32 %r8, 15;")
    },
}


@pytest.mark.parametrize("body", STOPPED)
def test_what_threads_may_not_do_is_a_fault(body: str) -> None:
    """Waiting for threads that do not come, or reading them; what is not behind a barrier; -128 as
    Triton before 3.9 pads several elements of a word, of which all but one become -1."""
    with pytest.raises(FaultError, match=STOPPED[body]):
        run_by_hand(body if "$skip:" in body else f"{body} $skip: mov.u32 %r3, 0;")


def test_a_register_that_nothing_was_written_to_holds_no_zero() -> None:
    assert run_by_hand("st.global.b32 [%rd2+0], %r8;").ne(0).all()


@pytest.mark.parametrize(
    "body",
    [
        "tanh.approx.f32 %r2, %r1;",
        "add.ftz.f32 %r2, %r1, %r1;",
        "mov.u32 %r2, %clock;",
        "st.local.b32 [%rd2], %r1;",
        "shfl.sync.up.b32 %r2, %r1, 3, 0, -1;",
        "redux.sync.max.s32 %r2, %r1, -1;",
    ],
)
def test_unknown_instructions_are_refused(body: str) -> None:
    with pytest.raises(values.RefusedError):
        run_by_hand(body)


ONE, NAN, LARGE = 0x3F800000, 0x7FC00001, 0x7F7FFFFF
INSTRUCTIONS = [
    ("prmt.b32", (0x00008000, 0, 0x9999), 0xFFFFFFFF),
    ("bfe.s32", (0x00000F00, 8, 4), 0xFFFFFFFF),
    ("bfi.b32", (0xAB, 0x11223344, 24, 8), 0xAB223344),
    ("shl.b32", (1, 32), 0),
    ("shr.s32", (0x80000000, 40), 0xFFFFFFFF),
    ("div.s32", (2**32 - 7, 2), 2**32 - 3),
    ("rem.s32", (2**32 - 7, 2), 2**32 - 1),
    ("mul.hi.s32", (2**31, 2**31), 2**30),
    ("mul.hi.u64", (2**63, 6), 3),
    ("mad.wide.s32", (2**32 - 2, 3, 10), 4),
    ("max.f32", (NAN, ONE), ONE),
    ("max.NaN.f32", (NAN, ONE), 0x7FFFFFFF),
    ("max.f32", (0x80000000, 0), 0),
    ("min.f32", (0x80000000, 0), 0x80000000),
    ("add.f32", (LARGE, LARGE), 0x7F800000),
    ("cvt.rn.bf16x2.f32", (ONE, 0x3F808000), 0x3F803F80),
    ("cvt.rn.f16.f32", (0x477FF000,), 0x7C00),
    ("cvt.rni.s32.f32", (0x40200000,), 2),
    ("cvt.rzi.u32.f32", (0xBF800000,), 0),
    ("cvt.rzi.s32.f32", (0x4F800000,), 0x7FFFFFFF),
    ("setp.geu.f32", (NAN, ONE), 1),
    ("setp.ne.f32", (NAN, ONE), 0),
]
"""Where a plain formula of numpy would do something else."""


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
