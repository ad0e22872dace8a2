"""Every stride-th element of a row as the low end of a word (A1-A6, M1-M7, E6, G7)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import checks
import oracle
import pytest
import samples
import torch
from cutting import cut_up
from torch import Tensor

from torch_dmlpool.backends import combinations, separable, tape, torch_backend, words
from torch_dmlpool.window import Axis, Window

WIDTHS = [6, 7, 16, 21]
ROWS = [(2, 0, 0, 1), (3, 1, 0, 1), (3, 0, 2, 1), (5, 2, 2, 1), (2, 3, 3, 1), (7, 1, 4, 1), (3, 2, 1, 2), (4, 9, 9, 1)]
"""Taps, padding before and after, dilation."""


@pytest.mark.parametrize("dtype", samples.FLOATS + samples.INTEGERS, ids=samples.name_of)
@pytest.mark.parametrize("stride", [2, 4, 8])
def test_strided_rows_of_every_type(stride: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Odd and even rows, padding on either side and more of it than a border may have, blocks and tiles."""
    for elements, rank in ((2**20, 1), (2**20, 2), (30, 2), (2**20, 3)):
        cut_up(monkeypatch, elements)
        for width, (taps, start, end, dilation) in itertools.product(WIDTHS, ROWS):
            if rank != 2 and width != 7:
                continue
            sizes = (*[4, 5][: rank - 1], width)
            if (taps - 1) * dilation >= width + start + end:
                continue
            outer = [2] * (rank - 1)
            pooling = oracle.Pooling(
                (*outer, taps),
                (*outer, stride),
                (*[0] * (rank - 1), start),
                (*[0] * (rank - 1), end),
                (*[1] * (rank - 1), dilation),
            )
            input = samples.ties(2, 2, *sizes, dtype=dtype)
            checks.check_maximum(input, pooling)
            if dtype.is_floating_point:
                checks.check_average(samples.normal(2, 2, *sizes, dtype=dtype), pooling)


@pytest.mark.parametrize("layout", ["channels last", "channels last, sliced", "transposed", "sliced"])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 3), (2, 1, 4, 6), (1, 2, 1, 7), (1, 1, 1, 1, 8)], ids=str)
def test_layouts_that_look_like_rows(sizes: tuple[int, ...], layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """G7: with one channel, or one element along an axis, a stride says little."""
    cut_up(monkeypatch, 2**20)
    rank = len(sizes) - 2
    outer, last = (1,) * (rank - 1), (0,) * (rank - 1)
    for taps, end in ((2, 0), (2, 1), (3, 2)):
        pooling = oracle.Pooling((*outer, taps), (*outer, 2), (0,) * rank, (*last, end), (1,) * rank)
        input = samples.LAYOUTS[layout](samples.ties(*sizes))
        checks.check_maximum(input, pooling)
        checks.check_average(samples.LAYOUTS[layout](samples.normal(*sizes)), pooling)


@pytest.mark.parametrize("layout", ["contiguous", "channels last", "channels last, sliced", "transposed"])
@pytest.mark.parametrize("sizes", [(1, 1, 4, 6), (2, 3, 12, 17), (2, 3, 8, 13, 9)], ids=str)
def test_windows_side_by_side(sizes: tuple[int, ...], layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A1, M1 and G7, where rows are pooled by halves and where they are not."""
    cut_up(monkeypatch, 2**20)
    rank = len(sizes) - 2
    for window, strides in ((4, 4), ((4,) + (1,) * (rank - 1), (4,) + (1,) * (rank - 1)), (4, 5), (1, 4)):
        request = Window.directml(rank, window, strides)
        axes = zip(*((axis.window, axis.stride) for axis in request.axes), strict=True)
        pooling = oracle.Pooling(*axes, (0,) * rank, (0,) * rank, (1,) * rank)
        for dtype in (torch.float32, torch.float64, torch.int16):
            input = samples.LAYOUTS[layout](samples.ties(*sizes, dtype=dtype))
            checks.check_maximum(input, pooling)
            if dtype.is_floating_point:
                checks.check_average(samples.LAYOUTS[layout](samples.normal(*sizes, dtype=dtype)), pooling)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8, torch.int16], ids=samples.name_of)
def test_a_recording_serves_tensors_that_begin_anywhere(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """G7: winners read every second element of the input itself, as halves of words where these begin with the rows."""
    cut_up(monkeypatch, 2**20)
    window = Window.directml(2, window_size=3, strides=2, start_padding=1, end_padding=1)
    held = samples.ties(1, 1, 1, 2 * 3 * 8 * 10 + 3, dtype=dtype).flatten()
    for offset in (0, 1, 2, 3, 1, 0):
        input = held[offset : offset + 480].view(2, 3, 8, 10)
        values, taps = torch_backend.max_pooling_with_taps(input, window)
        expected, expected_taps = torch_backend.max_pooling_with_taps(input.clone(), window)
        samples.assert_same(values, expected)
        samples.assert_same(taps, expected_taps)
        checks.check_maximum(input, oracle.Pooling((3, 3), (2, 2), (1, 1), (1, 1), (1, 1)))


def test_every_second_element() -> None:
    """Of rows whose words are whole, and of rows and places that cut them."""
    for dtype, width, offset, start in itertools.product(
        [torch.int8, torch.float16, torch.float32, torch.int64], [6, 7], [0, 1], [0, 1]
    ):
        whole = torch.arange(start + 3 * 4 * width).to(dtype)
        source = whole[start:].view(3, 4, width)
        out = torch.empty(3, 4, len(range(offset, width, 2)), dtype=dtype)
        recorded = tape.Tape((source, out), 2, torch.contiguous_format)
        words.record_every_second(recorded, source, offset, out)
        assert recorded.replay((source, out), watch=False) == 3
        assert torch.equal(out, source[..., offset::2])


def test_numbers_with_low_bytes() -> None:
    """Times 0 or 1, the low byte of each is 0 or what was asked for."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    for dtype in samples.FLOATS:
        found = {byte: words.number_with_low_byte(byte, dtype) for byte in range(300)}
        for byte, number in found.items():
            # bfloat16 has seven bits beside the exponent's last.
            assert (number is None) == (byte > (127 if dtype is torch.bfloat16 else 255)), (dtype, byte)
            if number is not None:
                scaled = torch.tensor([0.0, 1.0], dtype=dtype).mul_(number).view(integers[dtype.itemsize])
                assert [bits & 255 for bits in scaled.tolist()] == [0, byte]


def operations_of(input: Tensor, axis: Axis, out: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations of a pass that adds the rows of ``input`` up, after running them."""
    recorded = tape.Tape((input, out), input.shape[0], torch.contiguous_format)
    named: list[str] = []
    record = recorded.record

    def listen(operation: Callable[..., None], *operands: Tensor) -> None:
        named.append(operation.__name__)
        record(operation, *operands)

    monkeypatch.setattr(recorded, "record", listen)
    read, written = combinations.Elements(input), combinations.Elements(out)
    separable.Pass(recorded, combinations.Sum(), axis, 0, read, input.dim() - 1, written).record()
    recorded.replay((input, out), watch=False)
    return named


@pytest.mark.parametrize(("window", "size", "additions"), [(24, 48, 5), (25, 75, 5), (63, 64, 6), (31, 100, 5)])
def test_windows_side_by_side_are_halved(
    window: int, size: int, additions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E6: as many additions as ⌈log₂ taps⌉, one behind the other, and no operation for each tap."""
    input, axis = samples.normal(2, 3, size), Axis(window, window, 0, 0, 1, False)
    out = torch.empty(2, 3, size // window)
    named = operations_of(input, axis, out, monkeypatch)
    torch.testing.assert_close(out, input.unfold(-1, window, window).double().sum(-1).float())
    assert named.count("add") == additions
    assert set(named) <= {"add", "copy"}
