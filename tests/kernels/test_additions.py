"""E6 for the kernels that add up trees, in worst-case terms: additions counted, not errors
measured.

Under the interpreter the kernel runs in an algebra where a number is how deep a sum is: a source
element is 1, what is not there 0, and a sum of two numbers the greater one plus 1. So each result
is the most additions that one of its terms has gone through, plus 1; an addition of 0 rounds
nothing and counts nothing. The divisor is 1.
"""

import numpy as np
import pytest
import samples
import torch

from torch_dmlpool.window import Window

tl = pytest.importorskip("triton.language")
sums = pytest.importorskip("torch_dmlpool.kernels.sums")
interpreter = pytest.importorskip("triton.runtime.interpreter")
backend = pytest.importorskip("torch_dmlpool.backends.triton")


def deeper(left, right):
    """The depth of a sum of two sums."""
    return np.maximum(left, right) + ((left > 0) & (right > 0)).astype(np.float32)


@pytest.fixture(autouse=True)
def depths(monkeypatch):
    """The algebra. A compensated sum is as deep as its deepest term, and rounds once more at its
    end."""
    builder = interpreter.InterpreterBuilder
    monkeypatch.setattr(
        builder, "create_fadd", lambda self, left, right: self.binary_op(left, right, deeper)
    )
    monkeypatch.setattr(
        sums, "with_group", lambda total, error, group: (tl.maximum(total, group), error)
    )
    monkeypatch.setattr(sums, "compensated", lambda total, _: total + (total > 0).to(tl.float32))


# Where trees are tight: powers of two, products just below and just above one, and unlike sides.
WINDOWS = [(1, 7), (2, 2), (3, 3), (3, 5), (5, 5), (4, 7), (7, 7), (8, 3), (1, 9)]


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize(("rows", "columns"), WINDOWS)
def test_unrolled_windows_add_up_trees(rows, columns, layout, launched):
    """(2 + ⌈log₂ taps⌉) roundings, of which the division is one; and no tree is less deep than a
    balanced one."""
    # The window lies wherever it can among 16 columns.
    source = samples.LAYOUTS[layout](torch.ones(1, 4, rows, 16 * -(-(columns + 15) // 16)))
    depth = (
        int(backend.average_pooling(source, Window.directml(2, (rows, columns), 1), True, 1).max())
        - 1
    )
    balanced = (rows * columns - 1).bit_length()
    assert balanced <= depth <= balanced + 1
    assert [one.kernel for one in launched] == ["sum_tile"]


def test_unrolled_windows_that_do_not_overlap_add_up_trees(launched):
    result = backend.average_pooling(torch.ones(1, 2, 22, 35), Window.directml(2, 11, 11), True, 1)
    assert int(result.max()) - 1 <= (11 * 11 - 1).bit_length() + 1
    assert [one.kernel for one in launched] == ["sum_tile"]


LENGTHS = [*range(1, 20), 95, 96, 97, 161, 192, 193, 700, 768, 769, 1536, 1537, 2049]
LENGTHS += [5000, 16_385, 20_000]


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("length", LENGTHS)
def test_folded_windows_add_up_trees(length, layout, launched):
    """Whole axes of every block, with slices and without."""
    source = samples.LAYOUTS[layout](torch.ones(1, 2, length, 1))
    window = Window.directml(2, (length, 1), 1)
    depth = int(backend.average_pooling(source, window, True, 1).max()) - 1
    assert min(length - 1, 1) <= depth <= (length - 1).bit_length() + 1
    assert {one.kernel for one in launched} == {"fold"}


@pytest.mark.parametrize(("window", "stride"), [(17, 1), (31, 2), (47, 8), (201, 3), (70, 16)])
def test_windows_that_overlap_add_up_trees(window, stride, launched):
    """Whatever windows share: along each axis at most one addition more than in a balanced tree."""
    # One window takes all of the second axis, so that no tile fits.
    source = torch.ones(1, 1, window + 9 * stride, 70)
    request = Window.directml(2, (window, 70), (stride, 1))
    found = backend.average_pooling(source, request, True, 1)
    balanced = (window - 1).bit_length() + (70 - 1).bit_length()
    assert 3 < int(found.max()) - 1 <= balanced + 2
    assert "share" in {one.kernel for one in launched}
