"""Launches are pure functions of the problem: tiles and vectors, 32 or 64 bits, loops for large
windows."""

from math import prod
from typing import Any

import pytest
from torch_dmlpool.kernels.launch import VECTOR_BYTES, Launch, Request, divider

from torch_dmlpool.kernels import launches
from torch_dmlpool.window import Window


def dense(shape: tuple[int, ...], channels_last: bool = False) -> tuple[int, ...]:
    order = [0, *range(2, len(shape)), 1] if channels_last else list(range(len(shape)))
    strides, step = [0] * len(shape), 1
    for dimension in reversed(order):
        strides[dimension] = step
        step *= shape[dimension]
    return tuple(strides)


def request(window: Window, shape: tuple[int, ...], **changes: object) -> Request:
    channels_last = bool(changes.get("channels_last", False))
    outputs = window.output_sizes(shape[2:])
    made = Request(window, shape, dense(shape, channels_last), outputs, 4, True, channels_last)
    return made._replace(**changes)


def constants_of(request: Request) -> list[dict[str, Any]]:
    return [
        {"kernel": made.kernel, **dict(made.constants)}
        for made in launches.average_launches(request)
    ]


def only(request: Request) -> dict[str, Any]:
    (constants,) = constants_of(request)
    assert constants["kernel"] == "average_pooling.sum_tile"
    return constants


THREE = Window.directml(2, 3, 1, 1, 1)
SEVENTY = Window.directml(2, 70, 1, 35, 35)


def kernels_of(made: tuple[Launch, ...] | None) -> list[str]:
    """None where PyTorch's own operators serve."""
    return [one.kernel.split(".")[1] for one in made or ()]


def test_small_windows_take_one_launch_and_large_ones_one_for_each_axis() -> None:
    """Along columns and along channels, of as many elements as 16 bytes hold where they lie side by
    side."""
    for made, kernels in (
        (lambda given: launches.max_launches(given, True), ("max_tile", "share", "share")),
        (launches.average_launches, ("sum_tile", "share", "share")),
        (
            lambda given: launches.average_launches(
                given._replace(adjoint=True, include_padding=True)
            ),
            ("sum_tile", "fold", "fold"),
        ),
        (
            lambda given: launches.grad_launches(given._replace(adjoint=True)),
            ("grad_tile", "gather", "gather"),
        ),
    ):
        for channels_last in (False, True):
            (small,) = made(request(THREE, (64, 32, 64, 64), channels_last=channels_last))
            form = dict(small.constants)["FORM"]
            assert kernels_of((small,)) == [kernels[0]]
            assert (form.channels, form.vector) == (channels_last, 4)
            large = made(request(SEVENTY, (1, 4, 50, 49), channels_last=channels_last))
            assert kernels_of(large) == [*kernels[1:]]
    quantized = request(SEVENTY, (1, 4, 50, 49), element_size=1)
    assert launches.average_launches(quantized) is None
    quantized = quantized._replace(include_padding=True)
    assert kernels_of(launches.average_launches(quantized)) == ["share", "share"]
    apart = Window.directml(2, 70, 18, 35, 35)
    assert kernels_of(launches.average_launches(request(apart, (1, 4, 50, 49)))) == ["fold"] * 2
    dilated = Window.directml(2, 70, 1, 70, 70, 2)
    assert kernels_of(launches.average_launches(request(dilated, (1, 4, 50, 49)))) == ["fold"] * 2


def test_windows_of_columns_that_do_not_overlap_are_read_in_one_launch_up_to_11_by_11() -> None:
    """One launch for elements of 4 and 8 bytes; other forms and windows go by axis."""
    apart, shape = Window.directml(2, 11, 11), (2, 3, 44, 33)
    for made in (request(apart, shape), request(apart, shape, element_size=8)):
        assert only(made)["FORM"].tile == (1, 1, 1)
    for made in (
        request(apart, shape, element_size=2),
        request(apart, shape, channels_last=True),
        request(Window.directml(2, 11, 10), shape),
        request(Window.directml(2, 11, 22, 0, 0, 2), shape),
        request(Window.directml(2, 12, 12), shape),
    ):
        assert kernels_of(launches.average_launches(made)) == ["fold"] * 2, made


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1), (2, 3), (7, 7), (1, 64), (112, 112), (3, 4, 5)])
def test_whole_planes_are_one_axis(sizes: tuple[int, ...], channels_last: bool) -> None:
    """Planes of any size, as a window and as a bin, and their gradients; large ones take slices."""
    shape = (2, 4, *sizes)
    window = request(Window.directml(len(sizes), sizes, 5), shape, channels_last=channels_last)
    turns = 1 + (prod(sizes) > (1024 if channels_last else 16_384))
    for one in (window, window._replace(window=None)):
        assert kernels_of(launches.average_launches(one)) == ["fold"] * turns
        assert kernels_of(launches.max_launches(one, True)) == ["fold"] * turns
        back = one._replace(shape=(2, 4, *[1] * len(sizes)), target_sizes=sizes, adjoint=True)
        assert kernels_of(launches.average_launches(back)) == ["spread"]
    assert kernels_of(launches.grad_launches(back._replace(window=window.window))) == ["spread"]


def test_windows_that_do_not_overlap_ask_no_loop_for_their_gradient() -> None:
    """Nor do bins of one size; those that overlap are folded. Maxima of windows that do go axis by
    axis, unless these are dilated."""
    shape, sizes = (2, 4, 8, 8), (96, 96)
    for window, of_averages, of_maxima in (
        (Window.directml(2, 12, 12), ["spread"], ["spread"]),
        (Window.directml(2, 9, 13), ["spread"], ["spread"]),
        (Window.directml(2, 19, 11), ["fold"] * 2, ["gather"] * 2),
        (Window.directml(2, 9, 12, 0, 0, 2), [], []),
    ):
        back = request(window, (2, 4, *sizes))
        shape = (2, 4, *back.target_sizes)
        back = back._replace(shape=shape, strides=dense(shape), target_sizes=sizes, adjoint=True)
        assert kernels_of(launches.average_launches(back)) == of_averages
        assert kernels_of(launches.grad_launches(back)) == of_maxima
    for outputs, kernels in (((8, 6), ["spread"]), ((8, 7), ["fold"] * 2)):
        shape = (2, 4, *outputs)
        bins = Request(None, shape, dense(shape), sizes, 4, True, False, adjoint=True)
        assert kernels_of(launches.average_launches(bins)) == kernels


def gradient_of(window: Window, sizes: tuple[int, int], **changes: object) -> Request:
    shape = (2, 4, *window.output_sizes(sizes))
    made = request(window, (2, 4, *sizes))._replace(shape=shape, strides=dense(shape))
    return made._replace(target_sizes=sizes, adjoint=True, include_padding=True, **changes)


def test_gradients_of_long_averages_go_one_axis_after_the_other_unless_dilated() -> None:
    sizes = (50, 49)
    for stride, counted in ((1, True), (1, False), (2, True)):
        back = gradient_of(Window.directml(2, 70, stride, 35, 35), sizes)
        back = back._replace(include_padding=counted)
        assert kernels_of(launches.average_launches(back)) == ["fold"] * 2
    dilated = gradient_of(Window.directml(2, 70, 1, 70, 70, 2), sizes)
    assert launches.average_launches(dilated) is launches.grad_launches(dilated) is None


def test_inputs_that_many_windows_reach_have_them_read_by_one_axis_after_the_other() -> None:
    for window, kernels in (
        (Window.directml(2, 7, 1, 3, 3), ["grad_tile"]),
        (Window.directml(2, 9, 2, 4, 4), ["grad_tile"]),
        (Window.directml(2, 9, 1, 4, 4), ["gather"] * 2),
    ):
        assert kernels_of(launches.grad_launches(gradient_of(window, (50, 49)))) == kernels


def test_maxima_of_long_windows_share_what_is_read_where_there_are_enough() -> None:
    """With taps, and where rows are read by single elements. A second launch would take longer than
    it saves for a small input, and vectors of rows are faster in straight-line code."""
    nine = Window.directml(2, 9, 1, 4, 4)
    large, odd, small = (16, 64, 64, 64), (16, 512, 13, 13), (1, 64, 64, 64)
    for shape, with_taps, kernels in (
        (large, True, ["share"] * 2),
        (small, True, ["max_tile"]),
        (odd, False, ["share"] * 2),
        (large, False, ["max_tile"]),
    ):
        for changes in ({}, {"element_size": 2}):
            made = launches.max_launches(request(nine, shape, **changes), with_taps)
            assert kernels_of(made) == kernels


@pytest.mark.parametrize("element_size", [2, 4, 8])
@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 2), (5, 2), (4, 4)])
def test_what_a_lane_owns_of_a_row_of_a_gradient_is_one_store(
    size: int, stride: int, element_size: int
) -> None:
    """So that the stores of a warp fill whole sectors; each of two stores of a lane would half fill
    twice as many.
    """
    padding = size // 2 if size % 2 else 0
    window = Window.directml(2, size, stride, padding, padding)
    given = gradient_of(window, (112, 112), element_size=element_size)
    for choice in (launches.grad_launches, launches.average_launches):
        (made,) = choice(given) or ()
        form = dict(made.constants)["FORM"]
        assert form.tile[2] * stride == form.store == VECTOR_BYTES // element_size or (
            element_size * stride > VECTOR_BYTES and form.tile[2] == 1
        )


def test_a_window_longer_than_the_line_takes_no_more_turns() -> None:
    """Nothing is read of its padding."""
    far = 2**30
    asked = request(Window.directml(1, far, 1, far - 1, 1), (1, 1, 16))
    for (made,) in (launches.average_launches(asked), launches.max_launches(asked, True)):
        assert (made.kernel, made.sizes[1]) == ("sliding.share", 2)


def test_division_by_a_number_at_run_time_is_exact() -> None:
    """Below 2³¹, by every number: a multiplication, an addition and a shift."""
    numbers = [*range(1, 300), 1023, 1024, 1025, 10**6, 2**30 - 1, 2**30, 2**31 - 1]
    for number in numbers:
        _, multiplier, shift = divider(number)
        assert -(2**31) <= multiplier < 2**31
        for n in (0, 1, number - 1, number, 7 * number + 3, 2**31 - 1, 2**31 - 1 - number):
            if 0 <= n < 2**31:
                high = n * (multiplier % 2**32) >> 32
                assert (high + n) % 2**32 >> shift == n // number


def test_windows_that_may_be_empty_or_are_dilated_have_taps_from_one_axis_after_the_other() -> None:
    """M1: geometry alone decides whether a window can be empty."""
    for window, shape, kernels in (
        (Window.directml(2, 2, 1, (3, 0), (0, 3)), (1, 1, 4, 4), ["fold"] * 2),
        (Window.directml(2, 2, 1, 1, 1), (1, 1, 4, 4), ["max_tile"]),
        (Window.directml(2, 3, 1, 2, 2, 2), (1, 1, 8, 8), ["fold"] * 2),
        (Window.directml(1, 3, 1, 2, 2, 2), (1, 1, 8), ["max_tile"]),
    ):
        asked = request(window, shape)
        assert kernels_of(launches.max_launches(asked, True)) == kernels
        assert kernels_of(launches.max_launches(asked, False)) == ["max_tile"]


def test_strides_decide_about_vectors() -> None:
    shape = (2, 4, 8, 16)
    assert only(request(THREE, shape, strides=(4 * 8 * 20, 8 * 20, 20, 1)))["FORM"].vector == 4
    assert only(request(THREE, shape, strides=(4 * 8 * 18, 8 * 18, 18, 1)))["FORM"].vector == 2
    assert only(request(THREE, shape, strides=(4 * 8 * 32, 8 * 32, 32, 2)))["FORM"].vector == 1
    one_row = (2, 4, 1, 16)  # a stride along a dimension of size 1 means nothing
    made = request(Window.directml(2, (1, 3), 1, (0, 1), (0, 1)), one_row, strides=(64, 16, 7, 1))
    assert only(made)["FORM"].vector == 4


def test_64_bits_only_where_needed() -> None:
    # 2**31.7 elements in small planes
    assert not only(request(THREE, (4096, 64, 112, 112)))["FORM"].wide
    assert only(request(THREE, (1, 1, 2**16, 2**15)))["FORM"].wide
    assert only(request(THREE, (1, 2**16, 2**8, 2**8), channels_last=True))["FORM"].wide
    far = Window.directml(2, (1, 2), 1, (0, 2**30), (0, 2**30), (1, 2**30))
    assert constants_of(request(far, (1, 1, 4, 8)))[0]["WIDE"]
