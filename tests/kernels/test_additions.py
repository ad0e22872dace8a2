"""Rule E6 for every kernel that adds up as a tree, in worst-case terms: additions counted, not errors measured.

Under the interpreter the kernels run in an algebra where a number is how deep a sum is: a source element is 1, what is
not there 0, and a sum of two numbers the greater one plus 1. So each result is the most additions that one of its terms
has gone through, plus 1; an addition of 0 rounds nothing and counts nothing. The divisor is 1.
"""

from __future__ import annotations

import numpy as np
import pytest
import samples
import torch
from kernel_checks import Recorder, backend

from torch_dmlpool.backends import triton as triton_launches
from torch_dmlpool.window import Window

interpreter = pytest.importorskip("triton.runtime.interpreter")


def deeper(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The depth of a sum of two sums."""
    return np.maximum(left, right) + ((left > 0) & (right > 0)).astype(np.float32)


@pytest.fixture
def depths(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Floating additions count; the record of what the calls of the test launch."""
    builder = interpreter.InterpreterBuilder
    monkeypatch.setattr(builder, "create_fadd", lambda self, left, right: self.binary_op(left, right, deeper))
    recorder = Recorder(triton_launches.earlier_launch)
    monkeypatch.setattr(triton_launches, "earlier_launch", recorder)
    return recorder


def additions(rows: int, columns: int, dtype: torch.dtype, layout: str) -> int:
    """The most additions that an element goes through, wherever among 16 columns its window lies."""
    window = Window.directml(2, (rows, columns), 1)
    width = 16 * -(-(columns + 15) // 16)
    source = samples.LAYOUTS[layout](torch.ones(1, 4, rows, width, dtype=dtype))
    return int(backend.average_pooling(source, window, True, 1).max()) - 1


def assert_within_the_bound(depth: int, rows: int, columns: int) -> None:
    """E6: (2 + ⌈log₂ taps⌉) roundings, of which the division is one; and no tree is less deep than a balanced one."""
    balanced = (rows * columns - 1).bit_length()
    assert balanced <= depth <= balanced + 1


# Where trees are tight: powers of two, products just below and just above one, and unlike sides.
TIGHT = [(8, 8), (9, 9), (13, 17), (16, 16), (31, 31), (33, 31), (9, 40), (64, 64)]
FORMS = [(torch.float32, "contiguous"), (torch.float16, "contiguous"), (torch.float32, "channels last")]


@pytest.mark.parametrize(("dtype", "layout"), FORMS, ids=str)
@pytest.mark.parametrize(("rows", "columns"), TIGHT)
def test_walked_windows(rows: int, columns: int, dtype: torch.dtype, layout: str, depths: Recorder) -> None:
    assert_within_the_bound(additions(rows, columns, dtype, layout), rows, columns)
    assert {one.kernel for one in depths.record} <= {"sum_walk", "sum_tile"}


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("window", range(8, 65))
def test_every_walked_window(window: int, layout: str, depths: Recorder) -> None:
    """Square windows, and beside one of as many rows as are missing to 72."""
    for rows in (window, 72 - window):
        assert_within_the_bound(additions(rows, window, torch.float32, layout), rows, window)


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7])
def test_unrolled_windows(rows: int, layout: str, depths: Recorder) -> None:
    for columns in (2, 3, 7):
        assert_within_the_bound(additions(rows, columns, torch.float32, layout), rows, columns)
    assert {one.kernel for one in depths.record} == {"sum_tile"}
