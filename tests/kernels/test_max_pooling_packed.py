"""Maxima of two numbers in a word, under the interpreter against the oracle; and when numbers are packed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
import samples
import torch
from kernel_checks import (
    KEYED,
    LAST,
    PACKED,
    Ran,
    Recorder,
    assert_forward,
    assert_keyed,
    assert_packed,
    directml,
    lowest_and_awkward,
)
from torch_dmlpool.kernels import launch as shared_launch
from torch_dmlpool.kernels import max_pooling_launch as launches
from torch_dmlpool.kernels import max_pooling_problem as problems

from torch_dmlpool.backends import triton as triton_launches


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Ran]:
    """What the calls of a test launch, in order."""
    recorder = Recorder(triton_launches.earlier_launch)
    monkeypatch.setattr(triton_launches, "earlier_launch", recorder)
    return recorder.record


def some_every_day(names: Iterable[str]) -> pytest.MarkDecorator:
    """Each third row; all of them run every day with their assembly emulated."""
    marked = [
        pytest.param(name, marks=[] if number % 3 == 0 else [pytest.mark.slow]) for number, name in enumerate(names)
    ]
    return pytest.mark.parametrize("name", marked)


@some_every_day(PACKED)
def test_pairs(name: str, ran: list[Ran]) -> None:
    """M1, M2, M7: values of every 16-bit and 8-bit type, in every layout that is read in words."""
    assert_packed(name, ran, asm=False)


@some_every_day(KEYED)
def test_keys_of_bytes(name: str, ran: list[Ran]) -> None:
    """M2 to M4, M6: the first greatest byte, and of nothing but the lowest the first position inside."""
    assert_keyed(name, ran, asm=False)


ONE_BY_ONE = [
    "stream of int8",
    "stream of bfloat16",
    "bfloat16 along channels, stride 2",
    "uint8 in a volume",
    "int16, dilated",
]


@pytest.mark.parametrize(
    "name", [*ONE_BY_ONE, *(pytest.param(name, marks=pytest.mark.slow) for name in PACKED if name not in ONE_BY_ONE)]
)
def test_the_same_one_by_one(name: str, ran: list[Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    """M1, M2, M7, E7: where nothing compares two numbers at once, each is compared alone, bfloat16 as float32."""
    monkeypatch.setattr(triton_launches, "target", lambda _: "hip")
    dtype, sizes, window, layout, _ = PACKED[name]
    assert_forward(samples.LAYOUTS[layout](lowest_and_awkward(*sizes, dtype=dtype)), directml(len(sizes) - 2, *window))
    assert not any(one.launch.constants.get("PACKED") for one in ran)


PACKED_TYPES = [torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.uint16]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 11, 16])
@pytest.mark.parametrize("dtype", PACKED_TYPES, ids=samples.name_of)
def test_sizes(dtype: torch.dtype, size: int, layout: str, ran: list[Ran]) -> None:
    """M1 to M4, M6, M7: windows of many sizes, at stride 1 by long vectors and at stride 2 by short ones."""
    start = (size - 1) // 2
    for elements, stride in ((16, 1), (8, 2)):
        shape = (1, elements, 7, 5) if layout == LAST else (1, 2, 7, elements)
        input = samples.LAYOUTS[layout](lowest_and_awkward(*shape, dtype=dtype))
        ran.clear()
        # As many columns as whole vectors have.
        assert_forward(input, directml(2, size, stride, start, size - stride - start))
        packed = [one.launch.constants.get("PACKED", problems.NOT_PACKED) for one in ran]
        if size <= 7:
            assert packed[1] in (problems.INTEGERS, problems.FLOAT16, problems.BFLOAT16)
        if size <= 5 and dtype.itemsize == 1:
            assert packed[0] == problems.KEYED_BYTES


def problem(dtype: torch.dtype, sizes: tuple[int, ...], *window: object, **changes: object) -> problems.MaxProblem:
    """Of a tensor without memory, for sm_90."""
    geometry = directml(len(sizes) - 2, *window)
    input = torch.empty(sizes, dtype=dtype, device="meta")
    output = torch.empty((*sizes[:2], *geometry.output_sizes(sizes[2:])), device="meta")
    if changes.pop("channels_last", False):
        input, output = samples.channels_last(input), samples.channels_last(output)
    return problems.MaxProblem(
        shared_launch.three_axes(geometry), geometry.rank, sizes[:2], shared_launch.three_sizes(sizes[2:]),
        shared_launch.three_sizes(tuple(output.shape[2:])),
        *(shared_launch.five_strides(tuple(one.shape), one.stride()) for one in (input, output)),
        dtype.itemsize, dtype.is_floating_point, dtype is torch.bfloat16, True, "sm_90",
    )._replace(**changes)  # fmt: skip


def only(problem: problems.MaxProblem, encode: int) -> shared_launch.Launch:
    (step,) = launches.max_passes(problem, encode)
    return step.launch


def packing(problem: problems.MaxProblem, encode: int) -> int:
    """NOT_PACKED, too, where it is a kernel that packs nothing."""
    return int(launches.max_passes(problem, encode)[0].launch.constants.get("PACKED", problems.NOT_PACKED))


THREE, LARGE = (3, 1, 1), (32, 64, 112, 112)
INTEGER_TYPES = [torch.int8, torch.uint8, torch.int16, torch.uint16]


@pytest.mark.parametrize("channels_last", [False, True])
def test_what_is_packed_where(channels_last: bool) -> None:
    """E7: two halves are compared at once from sm_80 on, two int16 from sm_90 on; the interpreter takes it all."""
    kind = {torch.float16: problems.FLOAT16, torch.bfloat16: problems.BFLOAT16}
    for dtype in (*samples.FLOATS, *samples.INTEGERS):
        for window in (THREE, (3, 2, 1, (1, 0)), (7, 1, 3)):
            found = {
                target: packing(
                    problem(dtype, LARGE, *window, channels_last=channels_last, target=target), problems.NO_TAPS
                )
                for target in ("sm_90", "interpreter", "cuda", "sm_70", "hip")
            }
            integers = problems.INTEGERS if dtype in INTEGER_TYPES else problems.NOT_PACKED
            assert found == {
                "sm_90": kind.get(dtype, integers), "interpreter": kind.get(dtype, integers),
                "cuda": kind.get(dtype, problems.NOT_PACKED), "sm_70": problems.NOT_PACKED, "hip": problems.NOT_PACKED,
            }  # fmt: skip


def test_no_word_fits() -> None:
    """Rows of odd length, or of two bytes, are read one by one; so are outputs of which no whole words are written."""
    for dtype, columns, window, expected in (
        (torch.int8, 112, THREE, 16), (torch.int8, 116, THREE, 4), (torch.int8, 114, THREE, 0),
        (torch.int8, 113, THREE, 0), (torch.int8, 112, (3, 1, 1, (1, 0)), 0), (torch.int8, 112, (3, 1, 1, (0, 1)), 16),
        (torch.int16, 112, THREE, 8), (torch.int16, 114, THREE, 2), (torch.int16, 113, THREE, 0),
        (torch.float16, 112, (2, 2, 0), 8), (torch.float16, 108, (2, 2, 0), 2), (torch.float16, 110, (2, 2, 0), 0),
        (torch.bfloat16, 112, (2, 1, 0), 0),
    ):  # fmt: skip
        launch = only(problem(dtype, (32, 64, 112, columns), *window), problems.NO_TAPS)
        assert (launch.constants["PACKED"] != problems.NOT_PACKED) == (expected > 0)
        assert launch.constants["V"] == expected or expected == 0
        if expected:
            assert launch.constants["Q"] == expected // 2
    for channels, packed in ((64, True), (12, True), (4, True), (6, False), (2, False)):
        found = packing(problem(torch.uint8, (32, channels, 112, 112), *THREE, channels_last=True), problems.NO_TAPS)
        assert (found == problems.INTEGERS) is packed
    assert packing(problem(torch.int16, (32, 2, 112, 112), *THREE, channels_last=True), problems.NO_TAPS)
    assert not packing(problem(torch.int16, LARGE, *THREE, aligned=False), problems.NO_TAPS)


def test_which_taps_are_keys() -> None:
    """M6: of bytes in rows and planes, undilated, whose windows all hold an element; and no more positions than 256."""
    for encode in (problems.TAPS, problems.PLANE_INDICES, problems.INDICES):
        for dtype in (*samples.FLOATS, *samples.INTEGERS):
            # Strided, because at stride 1 halves have keys of their own.
            found = packing(problem(dtype, LARGE, 3, 2, 1, (1, 0)), encode)
            assert found == (problems.KEYED_BYTES if dtype.itemsize == 1 else problems.NOT_PACKED)
    for sizes, window, expected in (
        (LARGE, THREE, True), ((32, 64, 4096), THREE, True), ((4, 8, 32, 32, 32), THREE, False),
        (LARGE, (3, 1, 2, 2, 2), False), (LARGE, (3, 1, 3, (1, 0)), False), (LARGE, (3, 1, 2, (1, 0)), True),
    ):  # fmt: skip
        found = packing(problem(torch.int8, sizes, *window), problems.TAPS)
        assert found == (problems.KEYED_BYTES if expected else problems.NOT_PACKED)


def test_numbers_of_positions() -> None:
    """M6: a lane takes fewer rows until the positions it tells apart fit a byte; of values alone it takes them all."""
    for size, rows, rows_of_values in (((3, 3), 4, 4), ((3, 60), 2, 4), ((5, 48), 1, 2), ((4, 62), 1, 2)):
        of = problem(torch.int8, LARGE, size, 1, *([i // 2 for i in size], [(i - 1) // 2 for i in size]))
        launch = only(of, problems.TAPS)
        assert launch.constants["PACKED"] == problems.KEYED_BYTES
        assert launch.constants["R"] == rows
        height, width = size
        assert (rows + height - 2) * width + launch.constants["Q"] - 1 + width <= launches.NUMBERS == 256
        values = launches.max_windows(of, problems.NO_TAPS)
        assert values is not None
        assert values.constants["R"] == rows_of_values
    too_wide = problem(torch.int8, LARGE, (4, 63), 1, (2, 31), (1, 31))
    assert packing(too_wide, problems.TAPS) == problems.NOT_PACKED
    assert packing(too_wide, problems.NO_TAPS) == problems.INTEGERS


@pytest.mark.slow
@pytest.mark.parametrize("size", [(5, 48), (4, 62), (4, 63), (15, 15), (2, 64)], ids=str)
def test_as_many_positions_as_fit(size: tuple[int, int], ran: list[Ran]) -> None:
    """M3, M6: of a window whose every position needs its number, and of the first that has too many."""
    input = lowest_and_awkward(1, 2, 7, 64, dtype=torch.int8)
    flat = input[0, 0]
    flat[...] = -128
    flat[-1, -1] = -127
    assert_forward(input, directml(2, size, 1, tuple(i // 2 for i in size), tuple((i - 1) // 2 for i in size)))
    keyed = ran[0].launch.constants.get("PACKED") == problems.KEYED_BYTES
    assert keyed is (size != (4, 63))


@pytest.mark.parametrize("channels_last", [False, True])
def test_lanes_of_pairs(channels_last: bool) -> None:
    """Of every window that is walked: the rows that a lane keeps fit its registers, and a turn moves none of them."""
    for dtype, size in itertools.product(PACKED_TYPES, range(3, 17)):
        of = problem(dtype, LARGE, size, 1, size // 2, (size - 1) // 2, channels_last=channels_last)
        (step,) = launches.max_passes(of, problems.NO_TAPS)
        constants = step.launch.constants
        assert step.kernel == "max_stream"
        assert constants["PACKED"] != problems.NOT_PACKED
        assert constants["V"] * dtype.itemsize >= 4
        words = constants["Q"] * (constants["V"] // 2 if channels_last else 1)
        assert channels_last or constants["Q"] == constants["V"] // 2
        assert (size - 1) * words < 190
        rows = step.launch.sizes[6]
        assert (rows + size - 1) % constants["M"] == 0
