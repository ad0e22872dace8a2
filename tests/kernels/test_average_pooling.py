"""The average kernels under Triton's interpreter against the oracle, and which kernel serves which problem."""

from __future__ import annotations

import math

import cases
import numpy as np
import oracle
import pytest
import samples
import torch
from torch import Tensor

from torch_dmlpool.window import Window

backend = pytest.importorskip("torch_dmlpool.backends.triton")

DIVISORS = [(False, None), (True, None), (False, 7), (True, -3)]


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


def pooling(rank: int, window: object, stride: object = 1, start: object = 0, end: object = 0, dilation: object = 1,
            ceil_mode: bool = False) -> oracle.Pooling:  # fmt: skip
    entries = [(e,) * rank if isinstance(e, int) else e for e in (window, stride, start, end, dilation)]
    return oracle.Pooling(*entries, ceil_mode)


def assert_forward(input: Tensor, request: oracle.Pooling, include_padding: bool, divisor: int | None) -> None:
    exact, magnitudes = oracle.average(samples.to_numpy(input), request, include_padding, divisor)
    window = window_of(request)
    result = backend.average_pooling(input, window, include_padding, divisor)
    assert result.dtype == input.dtype
    samples.assert_average(result, exact, magnitudes, window.taps)


def assert_adjoint(
    gradient: Tensor, sizes: tuple[int, ...], request: oracle.Pooling, include_padding: bool, divisor: int | None
) -> None:
    exact, magnitudes = oracle.average_grad(samples.to_numpy(gradient), sizes, request, include_padding, divisor)
    window = window_of(request)
    result = backend.average_pooling_grad(gradient, sizes, window, include_padding, divisor)
    assert result.dtype == gradient.dtype
    samples.assert_gradient(result, exact, magnitudes, window.taps)


def assert_both(
    sizes: tuple[int, ...],
    request: oracle.Pooling,
    *,
    batch: tuple[int, int] = (2, 4),
    dtype: torch.dtype = torch.float32,
    layout: str = "contiguous",
    divisors: list[tuple[bool, int | None]] = DIVISORS[:2],
) -> None:
    arrange = samples.LAYOUTS[layout]
    input = arrange(samples.normal(*batch, *sizes, dtype=dtype))
    gradient = arrange(samples.normal(*batch, *oracle.output_sizes(request, sizes), dtype=dtype, seed=1))
    for include_padding, divisor in divisors:
        assert_forward(input, request, include_padding, divisor)
        assert_adjoint(gradient, sizes, request, include_padding, divisor)


@cases.parametrized(cases.LINES + cases.FEW)
def test_geometry(case: cases.Case) -> None:
    """A1 to A6, G3, G4: every edge of the geometry, forward and adjoint, with every kind of divisor."""
    assert_both(case.sizes, case.pooling, batch=(1, 2), divisors=DIVISORS if case.rank == 1 else DIVISORS[:2])


@pytest.mark.slow
@cases.parametrized(cases.PLANES + cases.VOLUMES)
def test_geometry_of_planes_and_volumes(case: cases.Case) -> None:
    for layout in ("contiguous", "channels last"):
        assert_both(case.sizes, case.pooling, batch=(1, 4), layout=layout)


@pytest.mark.parametrize("layout", samples.LAYOUTS)
def test_layouts(layout: str) -> None:
    """G7: any strides of the input and of the incoming gradient."""
    assert_both((6, 8), pooling(2, 3, 1, 1, 1), layout=layout)
    assert_both((6, 8), pooling(2, (2, 3), 2, (0, 1), 1), layout=layout)


@cases.in_pairs(dtype=samples.FLOATS, layout=["contiguous", "channels last", "sliced"])
def test_data_types(dtype: torch.dtype, layout: str) -> None:
    """A4: one rounding at the end, from float32 or float64."""
    assert_both((5, 16), pooling(2, 3, 1, 1, 1), batch=(1, 8), dtype=dtype, layout=layout)
    assert_both((5, 16), pooling(2, 2, 2), batch=(1, 8), dtype=dtype, layout=layout)


STRIDES_AND_DILATIONS = [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (4, 6), (6, 4)]


@pytest.mark.parametrize(("stride", "dilation"), STRIDES_AND_DILATIONS)
def test_strides_and_dilations(stride: int, dilation: int) -> None:
    """A6: which windows reach an element follows from stride and dilation together."""
    for window in (2, 3, 5):
        assert_both((24,), pooling(1, window, stride, 2, 3, dilation), batch=(1, 2))
    assert_both((24,), pooling(1, 90, stride, 200, 370, dilation), batch=(1, 1))


LARGE = {
    "31": ((14, 16), pooling(2, 31, 1, 15, 15)),
    "31 off centre": ((12, 16), pooling(2, (31, 20), 1, (30, 0), (7, 12))),
    "31 with stride": ((20, 16), pooling(2, 31, 3, 15, 15)),
    "global": ((33, 20), pooling(2, (33, 20), 1)),
    "global in a volume": ((9, 10, 12), pooling(3, (9, 10, 12), 1)),
    "wider than all": ((12, 16), pooling(2, (300, 3), (7, 1), (290, 1), (30, 1))),
    "dilated": ((20, 20), pooling(2, (20, 9), (2, 1), (39, 40), (30, 40), (3, 10))),
    "in strips": ((34, 16), pooling(2, 11, 1, 5, 5)),
    "in several strips": ((140, 8), pooling(2, (15, 13), 1, (7, 0), (7, 12))),
    "in strips, 25": ((34, 16), pooling(2, (25, 11), 1, (14, 5), (10, 5))),
    "ceil overhang": ((30, 30), pooling(2, 20, 13, 3, 3, 1, True)),
}


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("name", LARGE)
def test_large_windows(name: str, layout: str) -> None:
    """E6: the error of a large window's sum grows with the logarithm of its taps."""
    sizes, request = LARGE[name]
    assert_both(sizes, request, batch=(1, 2), layout=layout)


def test_far_positions() -> None:
    """G4: paddings and dilations near 2**31 need 64-bit positions, and no time."""
    far = 2**31 - 1
    assert_both((5,), pooling(1, 3, 2, far - 2, far - 2, far - 3), batch=(1, 2))
    assert_both((4,), pooling(1, 2, far, 0, far, far), batch=(1, 2))
    window = Window.directml(1, far, far, far // 2, far // 2)
    assert torch.equal(backend.average_pooling(torch.ones(1, 1, 8), window, False, None), torch.ones(1, 1, 1))


def test_large_values() -> None:
    """A4: float16 sums that overflow float16; infinities and NaN reach exactly the windows that hold them."""
    input = torch.full((1, 2, 6, 8), 6e4, dtype=torch.float16)
    assert torch.equal(backend.average_pooling(input, Window.directml(2, 3), False, None), input[:, :, :4, :6])
    for width, window in ((8, Window.directml(2, 3, 1, 1, 1)), (9, Window.directml(2, 13, 1, 6, 6))):
        input = samples.normal(1, 1, width, width)
        for value in (math.inf, -math.inf, math.nan):
            spoilt = input.clone()
            spoilt[0, 0, 2, 3] = value
            for include_padding in (False, True):
                clean = backend.average_pooling(input, window, include_padding, None)
                result = backend.average_pooling(spoilt, window, include_padding, None)
                one = torch.zeros_like(input)
                one[0, 0, 2, 3] = 1
                reached = backend.average_pooling(one, window, include_padding, None) != 0
                assert torch.equal(result[~reached], clean[~reached])
                samples.assert_same(result[reached], np.full(int(reached.sum()), value, np.float32))


def test_a_sample_does_not_depend_on_its_batch() -> None:
    """E6: bit for bit."""
    for window in (Window.directml(2, 3, 1, 1, 1), Window.directml(2, 31, 1, 15, 15)):
        input = samples.normal(3, 2, 9, 16)
        together = backend.average_pooling(input, window, False, None)
        for i in range(3):
            alone = backend.average_pooling(input[i : i + 1].clone(), window, False, None)
            assert torch.equal(together[i : i + 1], alone)


def test_empty_batches(ran: list) -> None:
    for shape in ((0, 3, 5, 6), (2, 0, 5, 6)):
        result = backend.average_pooling(torch.empty(shape), Window.directml(2, 2), False, None)
        assert result.shape == (*shape[:2], 4, 5)
        assert backend.average_pooling_grad(result, (5, 6), Window.directml(2, 2), False, None).shape == shape
    assert not ran


def test_negative_bit() -> None:
    """Kernels read raw memory: a lazily negated view is negated first."""
    input = samples.normal(1, 2, 4, 8)
    negated = torch._neg_view(input)
    assert negated.is_neg()
    window = Window.directml(2, 2)
    assert torch.equal(
        backend.average_pooling(negated, window, False, None), -backend.average_pooling(input, window, False, None)
    )
