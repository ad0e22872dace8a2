"""Launches are pure functions of the problem: tiles and vectors, 32 or 64 bits, loops for large
windows."""

from typing import Any

import pytest
import samples
import torch
from torch_dmlpool.kernels.launch import VECTOR_BYTES, Request, divider

from torch_dmlpool.kernels import launches
from torch_dmlpool.window import Window

Shape = tuple[int, ...]


def dense(shape, is_last=False):
    tensor = torch.empty(shape, device="meta")
    return (samples.channels_last(tensor) if is_last else tensor).stride()


def request(window, shape, **changes):
    """A request for an input of this shape, or for its gradient where ``adjoint`` is set."""
    if not isinstance(window, Window):
        window = Window.directml(len(shape) - 2, *window)
    inputs, results = shape[2:], window.output_sizes(shape[2:])
    if changes.get("adjoint"):
        shape, results = (*shape[:2], *results), inputs
    is_last = changes.setdefault("channels_last", False)
    return Request(window, shape, dense(shape, is_last), results, 4, True, is_last)._replace(
        **changes
    )


COUNTED: dict[str, Any] = {"include_padding": True}
GRADIENT = {"adjoint": True, **COUNTED}
CHOICES = {
    "max": (lambda asked: launches.max_launches(asked, False), {}),
    "taps": (lambda asked: launches.max_launches(asked, True), {}),
    "max grad": (launches.grad_launches, GRADIENT),
    "average": (launches.average_launches, {}),
    "average grad": (launches.average_launches, GRADIENT),
}


def launched(choice, window, shape, **changes):
    function, own = CHOICES[choice]
    return function(request(window, shape, **(own | changes)))


NINE, SEVENTY = (9, 1, 4, 4), (70, 1, 35, 35)
ROWS: list[tuple[str, tuple[Any, ...], Shape, dict[str, Any], str]] = [
    # Small windows take one launch, large ones one for each axis, along columns or channels.
    *(
        (choice, window, shape, {"channels_last": last}, kernels)
        for last in (False, True)
        for choice, small, large in (
            ("taps", "max_tile", "fold fold"),
            ("max grad", "grad_tile", ""),
            ("average", "sum_tile", "share share"),
            ("average grad", "sum_tile", "fold fold"),
        )
        for window, shape, kernels in (
            ((3, 1, 1, 1), (64, 32, 64, 64), small),
            (SEVENTY, (1, 4, 50, 49), large),
        )
    ),
    # What shares little folds. Plain PyTorch serves what no kernel computes.
    ("average", SEVENTY, (1, 4, 50, 49), {"element_size": 1}, ""),
    ("average", (70, 18, 35, 35), (1, 4, 50, 49), {}, "fold fold"),
    ("average", (70, 1, 70, 70, 2), (1, 4, 50, 49), {}, "fold fold"),
    ("average grad", SEVENTY, (2, 4, 50, 49), {"include_padding": False}, "fold fold"),
    ("average grad", (70, 1, 70, 70, 2), (2, 4, 50, 49), {}, ""),
    ("max grad", (70, 1, 70, 70, 2), (2, 4, 50, 49), {}, ""),
    # Windows of columns that do not overlap are one launch up to 11 by 11 elements of 4 or 8 bytes.
    ("average", (11, 11), (2, 3, 44, 33), {}, "sum_tile"),
    ("average", (11, 11), (2, 3, 44, 33), {"element_size": 2}, "fold fold"),
    ("average", (11, 11), (2, 3, 44, 33), {"channels_last": True}, "fold fold"),
    ("average", (11, 22, 0, 0, 2), (2, 3, 44, 33), {}, "fold fold"),
    ("average", (12, 12), (2, 3, 44, 33), {}, "fold fold"),
    # Windows that do not overlap ask no loop for their gradient.
    *(("average grad", window, (2, 4, 96, 96), {}, "spread") for window in ((12, 12), (9, 13))),
    *(("max grad", window, (2, 4, 96, 96), {}, "spread") for window in ((12, 12), (9, 13))),
    ("average grad", (19, 11), (2, 4, 96, 96), {}, "fold fold"),
    ("max grad", (19, 11), (2, 4, 96, 96), {}, ""),
    # Windows that reach an input many at a time are unrolled, too: up to SPP's 13/1.
    *(
        ("max grad", (size, 1, size // 2, size // 2), (2, 8, 20, 20), {"channels_last": last}, tile)
        for size, tile in ((7, "grad_tile"), (13, "grad_tile"), (23, ""))
        for last in (False, True)
    ),
    # Maxima of long windows share what they read where there are enough of them and rows are read
    # by single elements.
    ("taps", NINE, (16, 64, 64, 64), {}, "max_tile"),
    ("max", NINE, (16, 512, 13, 13), {}, "share share"),
    ("max", NINE, (16, 64, 64, 64), {}, "max_tile"),
    # M1: geometry alone decides whether a window can be empty.
    ("taps", (2, 1, (3, 0), (0, 3)), (1, 1, 4, 4), {}, "fold fold"),
    ("taps", (2, 1, 1, 1), (1, 1, 4, 4), {}, "max_tile"),
    ("taps", (3, 1, 2, 2, 2), (1, 1, 8, 8), {}, "fold fold"),
    ("max", (2, 1, (3, 0), (0, 3)), (1, 1, 4, 4), {}, "max_tile"),
]
"""What is computed, the window, the input's shape, what is special, and the kernels."""


def kernels_of(made):
    return " ".join(one.kernel.split(".")[1] for one in made or ())


@pytest.mark.parametrize(("choice", "window", "shape", "changes", "kernels"), ROWS)
def test_the_problem_chooses_its_kernels(choice, window, shape, changes, kernels):
    assert kernels_of(launched(choice, window, shape, **changes)) == kernels


@pytest.mark.parametrize("element_size", [2, 4, 8])
@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 2), (5, 2), (4, 4)])
def test_what_a_lane_owns_of_a_row_of_a_gradient_is_one_store(size, stride, element_size):
    """So that the stores of a warp fill whole sectors; each of two stores of a lane would half fill
    twice as many.
    """
    padding = size // 2 if size % 2 else 0
    window, shape = (size, stride, padding, padding), (2, 4, 112, 112)
    for choice in ("max grad", "average grad"):
        (made,) = launched(choice, window, shape, element_size=element_size) or ()
        form = dict(made.constants)["FORM"]
        assert form.tile[2] * stride == form.store == VECTOR_BYTES // element_size or (
            element_size * stride > VECTOR_BYTES and form.tile[2] == 1
        )


def test_a_window_longer_than_the_line_takes_no_more_turns():
    """Nothing is read of its padding."""
    far = 2**30
    for choice, kernel, turns in (("average", "sliding.share", 2), ("taps", "folding.fold", 2)):
        (made,) = launched(choice, (far, 1, far - 1, 1), (1, 1, 16)) or ()
        assert (made.kernel, made.sizes[1]) == (kernel, turns)


def test_division_by_a_number_at_run_time_is_exact():
    """Below 2³¹, by every number: a multiplication, an addition and a shift."""
    numbers = [*range(1, 300), 1023, 1024, 1025, 10**6, 2**30 - 1, 2**30, 2**31 - 1]
    for number in numbers:
        _, multiplier, shift = divider(number)
        assert -(2**31) <= multiplier < 2**31
        for n in (0, 1, number - 1, number, 7 * number + 3, 2**31 - 1, 2**31 - 1 - number):
            if 0 <= n < 2**31:
                high = n * (multiplier % 2**32) >> 32
                assert (high + n) % 2**32 >> shift == n // number


def form_of(window, shape, **changes):
    (made,) = launched("average", window, shape, **changes) or ()
    return dict(made.constants)["FORM"]


def test_strides_decide_about_vectors():
    """A vector has as many elements as 16 bytes hold, where they lie side by side."""
    three, shape = (3, 1, 1, 1), (2, 4, 8, 16)
    for strides, vector in (
        (dense(shape), 4),
        ((4 * 8 * 20, 8 * 20, 20, 1), 4),
        ((4 * 8 * 18, 8 * 18, 18, 1), 2),
        ((4 * 8 * 32, 8 * 32, 32, 2), 1),
    ):
        assert form_of(three, shape, strides=strides).vector == vector
    form = form_of(three, shape, channels_last=True)
    assert (form.channels, form.vector) == (True, 4)
    # A stride along a dimension of size 1 means nothing.
    one_row = ((1, 3), 1, (0, 1), (0, 1))
    assert form_of(one_row, (2, 4, 1, 16), strides=(64, 16, 7, 1)).vector == 4


def test_64_bits_only_where_needed():
    three = (3, 1, 1, 1)
    # 2**31.7 elements in small planes
    assert not form_of(three, (4096, 64, 112, 112)).wide
    assert form_of(three, (1, 1, 2**16, 2**15)).wide
    assert form_of(three, (1, 2**16, 2**8, 2**8), channels_last=True).wide
    far = (1, 2), 1, (0, 2**30), (0, 2**30), (1, 2**30)
    first, *_ = launched("average", far, (1, 1, 4, 8)) or ()
    assert dict(first.constants)["WIDE"]
