"""What threads of a warp exchange: shuffles, reductions and matrices, written by hand and as Triton
compiles them."""

import itertools

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")
pytest.importorskip("triton._C.libtriton")

import triton.language as tl  # noqa: E402
from emulator.memory import FaultError  # noqa: E402
from emulator.trials import launch, run_by_hand, without_barriers  # noqa: E402
from torch import Tensor  # noqa: E402


@triton.jit
def earlier_of_greatest(value, place, other, other_place):
    wins = (other > value) | ((other == value) & (other_place < place))
    if value.dtype.is_floating():
        both = (other != other) & (value != value)
        wins = wins | ((other != other) & (value == value)) | (both & (other_place < place))
    return tl.where(wins, other, value), tl.where(wins, other_place, place)


@triton.jit
def winners(
    source,
    values,
    places,
    M: tl.constexpr,
    N: tl.constexpr,
    AXIS: tl.constexpr,
    SCAN: tl.constexpr,
    REVERSE: tl.constexpr,
):
    """The greatest of each row or column and its place: the last, or those so far."""
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    value = tl.load(source + at)
    along = tl.arange(0, N)[None, :] if AXIS == 1 else tl.arange(0, M)[:, None]
    place = tl.broadcast_to(along, [M, N])
    if SCAN:
        value, place = tl.associative_scan((value, place), AXIS, earlier_of_greatest, REVERSE)
    else:
        value, place = tl.reduce((value, place), AXIS, earlier_of_greatest)
        at = tl.arange(0, M if AXIS == 1 else N)
    tl.store(values + at, value)
    tl.store(places + at, place)


@triton.jit
def accumulated(
    source, target, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, HOW: tl.constexpr
):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    value = tl.load(source + at)
    if HOW == "cumulated":
        value = tl.cumsum(value, AXIS)
    else:
        if HOW == "sum":
            value = tl.sum(value, AXIS)
        elif HOW == "max":
            value = tl.max(value, AXIS)
        elif HOW == "min":
            value = tl.min(value, AXIS)
        else:
            value = tl.xor_sum(value, AXIS)
        at = tl.arange(0, M if AXIS == 1 else N)
    tl.store(target + at, value)


TILES = [(64, 16), (8, 128), (1, 1024), (128, 8), (32, 32), (4, 64)]


def drawn(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Few different numbers, so that maxima are met several times, and some NaN."""
    draw = torch.Generator().manual_seed(1)
    numbers = torch.randint(-3, 4, shape, generator=draw)
    if not dtype.is_floating_point:
        return numbers.to(dtype)
    nan = torch.rand(shape, generator=draw) < 0.02
    return numbers.to(dtype).masked_fill(nan, float("nan"))


def running_winners(rows: np.ndarray, reverse: bool) -> tuple[np.ndarray, np.ndarray]:
    """The first greatest or the first NaN of each row, up to each element or from it on."""
    values, places = rows.copy(), np.zeros(rows.shape, np.int32) + np.arange(rows.shape[1])
    order = list(range(rows.shape[1]))[:: -1 if reverse else 1]
    for k, new in itertools.pairwise(order):
        other, value = rows[:, new], values[:, k]
        wins = (other > value) | (np.isnan(other) & ~np.isnan(value))
        wins |= reverse & ((other == value) | (np.isnan(other) & np.isnan(value)))
        values[:, new] = np.where(wins, other, value)
        places[:, new] = np.where(wins, new, places[:, k])
    return values, places


DTYPES = [torch.float16, torch.float32, torch.float64, torch.int8]


EVERY = [(i, j, axis) for i in range(len(DTYPES)) for j in range(len(TILES)) for axis in (0, 1)]


@pytest.mark.parametrize(
    ("dtype", "tile", "axis"),
    [
        pytest.param(
            DTYPES[i],
            TILES[j],
            axis,
            marks=[] if (i - j) % 4 == 0 and axis == j % 2 else pytest.mark.slow,
            id=f"{DTYPES[i]} {TILES[j]} {axis}",
        )
        for i, j, axis in EVERY
    ],
)
def test_reductions_and_scans_of_values_with_their_places(
    dtype: torch.dtype, tile: tuple[int, int], axis: int
) -> None:
    source = drawn(tile, dtype)
    lines = source.numpy() if axis == 1 else source.numpy().T
    constants = {"M": tile[0], "N": tile[1], "AXIS": axis}
    for scan, reverse in ((False, False), (True, False), (True, True)):
        expected = running_winners(lines, reverse)
        shape = tile if scan else (len(lines),)
        values, places = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=torch.int32)
        launch(winners, [source, values, places], constants | {"SCAN": scan, "REVERSE": reverse})
        for found, right in zip((values.numpy(), places.numpy()), expected, strict=True):
            right = right if scan else right[:, -1]
            right = right.T if scan and axis == 0 else right
            np.testing.assert_array_equal(found, right)


HOWS = {
    "sum": lambda x, axis: x.sum(axis, dtype=x.dtype),
    "cumulated": lambda x, axis: x.cumsum(axis, dtype=x.dtype),
    "max": lambda x, axis: x.max(axis),
    "min": lambda x, axis: x.min(axis),
    "xor": np.bitwise_xor.reduce,
}


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.float32])
def test_reductions_of_numbers(dtype: torch.dtype, how: str) -> None:
    """Integers of up to 32 bits are reduced over a warp by one instruction."""
    if how == "xor" and dtype.is_floating_point:
        pytest.skip("floating numbers have no exclusive or")
    for tile, axis in (((64, 16), 0), ((1, 1024), 1)):
        source = torch.arange(tile[0] * tile[1]).mul(37).remainder(11).sub(5).view(tile).to(dtype)
        expected = HOWS[how](source.numpy(), axis)
        target = torch.zeros(expected.shape, dtype=torch.int32 if dtype is torch.int8 else dtype)
        constants = {"M": tile[0], "N": tile[1], "AXIS": axis, "HOW": how}
        launch(accumulated, [source, target], constants)
        np.testing.assert_array_equal(target.numpy(), expected)


def test_matrices_stored_and_loaded_between_threads_need_a_barrier() -> None:
    """A tile of which a reduction leaves one row is exchanged by ``stmatrix`` and ``ldmatrix``."""
    seen = []

    def noted(ptx: str) -> str:
        seen.append(ptx)
        return ptx

    source = drawn((4, 64), torch.float16)
    values, places = torch.zeros(64, dtype=torch.float16), torch.zeros(64, dtype=torch.int32)
    constants = {"M": 4, "N": 64, "AXIS": 0, "SCAN": False, "REVERSE": False}
    launch(winners, [source, values, places], constants, edit=noted)
    if "stmatrix" not in seen[0]:
        pytest.skip("Triton 3.6 exchanges this tile in another way")
    expected = running_winners(source.numpy().T, False)
    np.testing.assert_array_equal(values.numpy(), expected[0][:, -1])
    with pytest.raises(FaultError, match=r"race: .* shared memory"):
        launch(winners, [source, values, places], constants, edit=without_barriers)


BY_HAND = "st.global.b32 [%rd2+0], %r3;"
LANES = np.arange(64) % 32
SHUFFLES = {
    "bfly.b32 %r3, %r1, 5, 31, -1": LANES ^ 5,
    "up.b32 %r3, %r1, 3, 0, -1": np.where(LANES < 3, LANES, LANES - 3),
    "down.b32 %r3, %r1, 3, 31, -1": np.where(LANES > 28, LANES, LANES + 3),
    "idx.b32 %r3, %r1, 37, 31, -1": np.full(64, 5),
    # Segments of 8: the number's upper bits stay, the last lane of each is its seventh.
    # No lane is past its segment that is below it.
    "bfly.b32 %r3, %r1, 12, 6151, -1": np.where(LANES & 8, LANES ^ 12, LANES),
    "up.b32 %r3, %r1, 3, 6144, -1": np.where(LANES % 8 < 3, LANES, LANES - 3),
    "down.b32 %r3, %r1, 3, 6151, -1": np.where(LANES % 8 > 4, LANES, LANES + 3),
    "idx.b32 %r3, %r1, 3, 6151, -1": LANES // 8 * 8 + 3,
}


@pytest.mark.parametrize("text", SHUFFLES)
def test_shuffles_read_the_lane_that_ptx_says(text: str) -> None:
    """A lane whose source is past its segment keeps its own number."""
    result = run_by_hand(f"shfl.sync.{text}; {BY_HAND}")
    assert result.tolist() == (np.arange(64) // 32 * 32 + SHUFFLES[text]).tolist()


def test_a_shuffle_says_whether_its_lane_lies_in_the_segment() -> None:
    text = "shfl.sync.down.b32 %r3|%p1, %r1, 3, 31, -1; selp.b32 %r3, 1, 0, %p1;"
    assert run_by_hand(text + BY_HAND).tolist() == (LANES <= 28).astype(int).tolist()


NUMBERS = np.arange(-32, 32)
REDUCED = {
    "add.s32": lambda x: x.sum(),
    "min.s32": lambda x: x.min(),
    "max.s32": lambda x: x.max(),
    "min.u32": lambda x: x.astype(np.uint32).min(),
    "max.u32": lambda x: x.astype(np.uint32).max(),
    "and.b32": np.bitwise_and.reduce,
    "or.b32": np.bitwise_or.reduce,
    "xor.b32": np.bitwise_xor.reduce,
}


@pytest.mark.parametrize("kind", REDUCED)
@pytest.mark.parametrize("size", [32, 8])
def test_warps_and_parts_of_them_are_reduced(kind: str, size: int) -> None:
    """Each part's threads name each other, and no other thread, in their mask."""
    expected = [int(REDUCED[kind](part)) for part in NUMBERS.reshape(-1, size)]
    masks = "and.b32 %r4, %r1, 24; shl.b32 %r5, 255, %r4;" if size == 8 else "mov.u32 %r5, -1;"
    result = run_by_hand(
        f"{masks} add.s32 %r6, %r1, -32; redux.sync.{kind} %r3, %r6, %r5; {BY_HAND}"
    )
    assert (
        result.numpy().astype(np.uint32).tolist()
        == np.repeat(expected, size).astype(np.uint32).tolist()
    )


@pytest.mark.parametrize(
    "exchange",
    ["shfl.sync.bfly.b32 %r3, %r1, 1, 31, {}", "redux.sync.add.s32 %r3, %r1, {}"],
    ids=["shuffle", "reduction"],
)
@pytest.mark.parametrize(
    ("before", "mask"),
    [("setp.gt.u32 %p1, %r1, 40; @%p1 bra $skip;", "-1"), ("", "15")],
    ids=["a thread is elsewhere", "a thread is not named"],
)
def test_exchanges_with_a_thread_that_takes_no_part_are_faults(
    exchange: str, before: str, mask: str
) -> None:
    with pytest.raises(FaultError, match="a thread that"):
        run_by_hand(f"{before} mov.u32 %r8, {mask}; {exchange.format('%r8')}; $skip: {BY_HAND}")


def test_a_shuffle_from_a_lane_that_is_not_named_is_a_fault() -> None:
    """Each half of a warp names itself alone."""
    masks = "and.b32 %r4, %r1, 16; shl.b32 %r5, 65535, %r4;"
    assert run_by_hand(f"{masks} shfl.sync.bfly.b32 %r3, %r1, 8, 31, %r5; {BY_HAND}").any()
    with pytest.raises(FaultError, match="that the mask does not name"):
        run_by_hand(f"{masks} shfl.sync.bfly.b32 %r3, %r1, 16, 31, %r5; {BY_HAND}")
