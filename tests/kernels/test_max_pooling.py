"""The max pooling kernels under Triton's interpreter against the oracle, and which kernel serves which problem."""

from __future__ import annotations

from collections.abc import Callable

import cases
import numpy as np
import oracle
import pytest
import samples
import torch
from torch import Tensor

from torch_dmlpool.window import Window

backend = pytest.importorskip("torch_dmlpool.backends.triton")


def pooling_of(window: Window) -> oracle.Pooling:
    *entries, ceil_mode = window.arguments
    return oracle.Pooling(*(tuple(entry) for entry in entries), ceil_mode)


def window_of(pooling: oracle.Pooling) -> Window:
    return Window.directml(
        pooling.rank,
        pooling.window_size,
        pooling.strides,
        pooling.start_padding,
        pooling.end_padding,
        pooling.dilations,
        pooling.ceil_mode,
    )


def awkward(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Ties everywhere; for floats also NaNs, a region of only −inf and +inf; for integers the type's ends."""
    values = samples.ties(*sizes, dtype=dtype)
    if dtype.is_floating_point:
        flat = values.flatten(2)
        flat[0, 0, : flat.shape[2] // 2] = float("-inf")
        flat[-1, -1, flat.shape[2] // 3 :: 7] = float("nan")
        flat[-1, 0, 5::11] = float("inf")
    return values


def assert_forward(input: Tensor, window: Window) -> Tensor:
    """Values, taps and both kinds of indices are the oracle's; returns the taps."""
    expected = oracle.maximum(samples.to_numpy(input), pooling_of(window))
    values, taps = backend.max_pooling_with_taps(input, window)
    samples.assert_same(values, expected.values)
    samples.assert_same(taps, expected.taps)
    samples.assert_same(backend.max_pooling(input, window), expected.values)
    values, indices = backend.max_pooling_with_indices(input, window, torch.int64, True)
    samples.assert_same(values, expected.values)
    samples.assert_same(indices, expected.plane_indices)
    return taps


def assert_gradient(input: Tensor, window: Window, layout: Callable[[Tensor], Tensor] = lambda g: g) -> None:
    """Integers as gradients, so that sums are exact in every order and every type."""
    output_sizes = (*input.shape[:2], *window.output_sizes(input.shape[2:]))
    gradient = layout(torch.randint(-3, 4, output_sizes, generator=samples.seeded(*output_sizes)).to(input.dtype))
    expected = oracle.maximum_grad(samples.to_numpy(input), samples.to_numpy(gradient), pooling_of(window))
    result = backend.max_pooling_grad(input, gradient, window)
    assert result.dtype == input.dtype
    samples.assert_same(result, expected.astype(np.float64))


WINDOWS = {
    "2, stride 2": Window.directml(2, 2, 2),
    "3, stride 2": Window.directml(2, 3, 2, 1, 1),
    "3": Window.directml(2, 3, 1, 1, 1),
    "5": Window.directml(2, 5, 1, 2, 2),
    "uneven": Window.directml(2, (4, 3), (3, 1), (2, 1), (0, 3), (1, 2)),
}
LAYOUTS = {
    "contiguous": (False, 4),
    "channels last": (True, 4),
    "sliced": (False, 1),
    "expanded over columns": (False, 1),
    "storage offset": (False, 1),
}
"""Whether vectors are of channels, and how many elements they have at most."""


@cases.in_pairs(window=list(WINDOWS), layout=list(LAYOUTS))
def test_unrolled_forward(window: str, layout: str, ran: list) -> None:
    """M1 to M4, G7: every layout has its own form of the unrolled kernel, and all of them agree with the oracle."""
    assert_forward(samples.LAYOUTS[layout](awkward(2, 4, 7, 8)), WINDOWS[window])
    channels, vector = LAYOUTS[layout]
    assert all(one.kernel == "max_tile" and one.constants["CHANNELS"] is channels for one in ran)
    assert max(one.constants["V"] for one in ran) == vector


@cases.in_pairs(layout=["contiguous", "channels last", "sliced"], window=list(WINDOWS))
def test_unrolled_gradient(layout: str, window: str, ran: list) -> None:
    """M5: one gather in the input's layout, whatever the incoming gradient's."""
    input = samples.LAYOUTS[layout](awkward(2, 4, 7, 8))
    for of_gradient in ("contiguous", layout, "expanded over the batch"):
        assert_gradient(input, WINDOWS[window], samples.LAYOUTS[of_gradient])
    gradients = [one.constants["CHANNELS"] for one in ran if one.kernel == "grad_tile"]
    assert gradients == [layout == "channels last"] * 3


@pytest.mark.parametrize("layout", ["contiguous", pytest.param("channels last", marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", samples.FLOATS + samples.INTEGERS, ids=samples.name_of)
def test_data_types(dtype: torch.dtype, layout: str) -> None:
    """M1, M2, M7: every type, integers exactly and with their own lowest value."""
    input = samples.LAYOUTS[layout](awkward(1, 2, 3, 16, dtype=dtype))
    window = Window.directml(2, (2, 3), 1, (3, 1), 1)
    expected = oracle.maximum(samples.to_numpy(input), pooling_of(window))
    values, taps = backend.max_pooling_with_taps(input, window)
    samples.assert_same(values, expected.values)
    samples.assert_same(taps, expected.taps)
    samples.assert_same(backend.max_pooling(input, window), expected.values)
    if dtype.is_floating_point:
        assert_gradient(input, window)
    samples.assert_same(
        backend.max_pooling(input, Window.directml(2, (70, 1), 1, (40, 0), (40, 0))),
        oracle.maximum(samples.to_numpy(input), pooling_of(Window.directml(2, (70, 1), 1, (40, 0), (40, 0)))).values,
    )


@pytest.mark.parametrize("rank", [1, 3])
def test_ranks(rank: int, ran: list) -> None:
    """G1, G4: one and three spatial dimensions through the same kernels."""
    sizes = (8,) if rank == 1 else (4, 5, 8)
    window = Window.directml(rank, (3, 2, 3)[:rank], (1, 2, 1)[:rank], (2, 0, 1)[:rank], 1)
    for arrange in (Tensor.contiguous, samples.channels_last):
        input = arrange(awkward(2, 4, *sizes))
        assert_forward(input, window)
        assert_gradient(input, window)
    assert {one.constants["RANK"] for one in ran} == {rank}


LARGE = {
    "70 x 9 in padding": Window.directml(2, (70, 9), 1, (36, 4), (36, 4)),
    "31 with stride": Window.directml(2, (31, 20), (2, 3), (15, 25), (15, 7)),
    "far dilated": Window.directml(2, (9, 3), (2, 5), (30, 2), (30, 2400), (7, 900), True),
    "dilation shares no stride": Window.directml(2, (40, 7), (4, 1), (90, 5), (150, 5), (6, 1)),
}


@cases.in_pairs(name=list(LARGE), layout=["contiguous", "channels last", "sliced"])
def test_axis_by_axis(name: str, layout: str, ran: list) -> None:
    """M1 to M5: a window past the unrolling bound goes axis by axis, with the same values, taps and gradients."""
    window = LARGE[name]
    input = samples.LAYOUTS[layout](awkward(1, 4, 7, 8))
    taps = assert_forward(input, window)
    assert taps.dtype == (torch.uint8 if window.taps <= 225 else torch.int16)
    assert {one.kernel for one in ran} == {"max_axis", "at_taps"}
    ran.clear()
    assert_gradient(input, window, samples.LAYOUTS[layout])
    assert [one.kernel for one in ran] == ["max_axis", "max_axis", "grad_axis", "grad_axis"]


@pytest.mark.parametrize("edge", cases.EDGES, ids=lambda edge: edge.name)
def test_edges(edge: cases.Edge) -> None:
    """G2 to G4, M1, M2, M5: the named geometries, along the rows and along the columns."""
    for case in (cases.Case((edge, cases.PADDED)), cases.Case((edge,))):
        input = awkward(1, 2, *case.sizes)
        window = window_of(case.pooling)
        expected = oracle.maximum(samples.to_numpy(input), case.pooling)
        values, taps = backend.max_pooling_with_taps(input, window)
        samples.assert_same(values, expected.values)
        samples.assert_same(taps, expected.taps)
        assert_gradient(input, window)


def test_empty_windows_are_compiled_in_only_where_there_are_any(ran: list) -> None:
    """M1: geometry alone decides whether a window can be empty; such a window gives −inf, tap 0 and index −1."""
    empty = Window.directml(2, 2, 1, (3, 0), (0, 3))
    for window, expected in ((empty, True), (Window.directml(2, 2, 1, 1, 1), False)):
        values, _ = backend.max_pooling_with_taps(torch.zeros(1, 1, 4, 4), window)
        assert ran[-1].constants["EMPTY"] is expected
        assert bool((values == float("-inf")).any()) is expected
    indices = backend.max_pooling_with_indices(torch.zeros(1, 1, 4, 4), empty, torch.uint32, False)[1]
    assert indices[0, 0, 0, 0] == 2**32 - 1


def test_indices_count_over_the_whole_tensor() -> None:
    """M4: over N, C, D, H, W in logical order, whatever the layout, straight from the kernel and from taps."""
    window = Window.directml(2, 3, 1, (4, 1), 1)
    for layout in ("contiguous", "channels last", "transposed"):
        input = samples.LAYOUTS[layout](awkward(2, 4, 6, 8))
        expected = oracle.maximum(samples.to_numpy(input), pooling_of(window))
        _, taps = backend.max_pooling_with_taps(input, window)
        for dtype in samples.INDEX_TYPES:
            wanted = expected.indices.astype(samples.to_numpy(torch.empty(0, dtype=dtype)).dtype)
            samples.assert_same(backend.max_pooling_with_indices(input, window, dtype, False)[1], wanted)
            samples.assert_same(backend.max_pooling_indices(taps, input.shape[2:], window, dtype, False), wanted)
        samples.assert_same(
            backend.max_pooling_indices(taps, input.shape[2:], window, torch.int64, True), expected.plane_indices
        )


@pytest.mark.parametrize("layout", ["contiguous", "channels last", "sliced"])
def test_gather(layout: str) -> None:
    """E1: the element at each tap, 0 for an empty window; from a tensor of any strides, in the taps' layout."""
    window = Window.directml(2, 3, 1, (4, 1), 1)
    _, taps = backend.max_pooling_with_taps(samples.LAYOUTS[layout](samples.ties(2, 4, 6, 8)), window)
    tensor = samples.LAYOUTS[layout](samples.normal(2, 4, 6, 8))
    indices = backend.max_pooling_indices(taps, (6, 8), window, torch.int64, False)
    expected = torch.where(indices < 0, 0, tensor.flatten()[indices.clamp(min=0)])
    samples.assert_same(backend.max_pooling_gather(tensor, taps, window), expected)


@pytest.mark.usefixtures("wide")
def test_wide_arithmetic(ran: list) -> None:
    """G7: the 64-bit form of every kernel, which tensors of more than 2³¹ elements need, gives the same results."""
    for layout in ("contiguous", "channels last"):
        input = samples.LAYOUTS[layout](awkward(1, 4, 7, 8))
        for window in (Window.directml(2, 3, 1, (4, 1), 1), Window.directml(2, (70, 3), 1, (40, 1), (40, 1))):
            taps = assert_forward(input, window)
            assert_gradient(input, window)
            backend.max_pooling_gather(input, taps, window)
    assert {one.kernel for one in ran} == {"max_tile", "max_axis", "grad_tile", "grad_axis", "at_taps"}
    assert all(one.constants["WIDE"] for one in ran)


@pytest.mark.parametrize("sizes", [(0, 3, 6, 6), (2, 0, 6, 6)], ids=["no samples", "no channels"])
def test_nothing_to_pool(sizes: tuple[int, ...], ran: list) -> None:
    """G5: an empty batch and no channels are legal, and launch nothing."""
    window = Window.directml(2, 3, 1, 1, 1)
    values, taps = backend.max_pooling_with_taps(torch.empty(sizes), window)
    assert values.shape == taps.shape == sizes
    assert backend.max_pooling_grad(torch.empty(sizes), values, window).shape == sizes
    assert backend.max_pooling_gather(torch.empty(sizes), taps, window).shape == sizes
    assert not ran


@pytest.mark.slow
@pytest.mark.parametrize("case", cases.LINES + cases.PLANES + cases.VOLUMES, ids=lambda case: case.name)
def test_every_case(case: cases.Case) -> None:
    """G1 to G4, M1 to M5: every named geometry of every rank."""
    input = awkward(1, 2, *case.sizes)
    assert_forward(input, window_of(case.pooling))
    assert_gradient(input, window_of(case.pooling))


def test_taps_that_are_one_element_along_a_row() -> None:
    """M4, G7: neighbours are read together only where they lie side by side, not where they are the same element."""
    window = Window.directml(2, 2, 1)
    wide = (torch.arange(2 * 4 * 16).reshape(1, 2, 4, 16) * 7 // 3 % 4).to(torch.uint8)
    taps = wide[..., :1].expand(1, 2, 4, 16)
    for per_plane in (False, True):
        found = backend.max_pooling_indices(taps, (5, 17), window, torch.int64, per_plane)
        samples.assert_same(
            found, backend.max_pooling_indices(taps.contiguous(), (5, 17), window, torch.int64, per_plane)
        )
