"""Every operator of the Triton backend against the oracle: interpreted, or as compiled for sm_90 by
the emulator.

Each operator meets every problem, with types and layouts in turn; the slow tests have every layout.
TRITON_INTERPRET=1 chooses the interpreter. The emulator sees addresses and races too, but waits for
the compiler, and has fewer problems.
"""

import itertools
import math
import os
from collections.abc import Callable

import cases
import numpy as np
import oracle
import pytest
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool import tensors

backend = pytest.importorskip("torch_dmlpool.backends.triton")
pytest.importorskip("triton._C.libtriton")

from torch_dmlpool.backends.fallbacks import NoKernelError  # noqa: E402
from torch_dmlpool.window import Window  # noqa: E402

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
only_interpreted = pytest.mark.skipif(
    not INTERPRETED, reason="the compiler would take most of the time"
)
FLOATS = [torch.float16, torch.float32, torch.bfloat16, torch.float64]
NUMBERS = [each for pair in zip(samples.INTEGERS, FLOATS * 2, strict=True) for each in pair]
LAYOUTS = [
    "contiguous",
    "channels last",
    "sliced",
    "storage offset",
    "expanded over columns",
    "transposed",
]
Request = oracle.Pooling | oracle.Bins
Operator = Callable[[Tensor, Request], None]
Shape = tuple[int, ...]
Problem = tuple[Shape, Request]


def pooling(rank, window, stride=1, start=0, end=None, dilation=1, ceil_mode=False):
    entries = (window, stride, start, start if end is None else end, dilation)
    return oracle.Pooling(
        *((each,) * rank if isinstance(each, int) else each for each in entries), ceil_mode
    )


def window_of(request):
    return Window.directml(request.rank, *vars(request).values())


COMPILED: list[Problem] = [
    ((1, 8, 10, 28), pooling(2, 2, 2)),
    ((2, 8, 9, 16), pooling(2, 3, 1, 1)),
    ((1, 2, 12, 16), pooling(2, 31, 1, 15)),
    ((2, 4, 48), pooling(1, 3, 2, 1)),
    ((1, 4, 4, 6, 8), pooling(3, 2, 2)),
]
"""What is compiled and emulated, one of them for each operator every day."""
MORE: list[Problem] = [
    ((1, 16, 9, 28), pooling(2, 3, 2, 1)),
    ((1, 3, 6, 16), pooling(2, 2)),
    ((1, 4, 9, 16), pooling(2, 7, 1, 3)),
    ((1, 8, 9, 16), pooling(2, 3, 1, 2, 2, 2)),
    ((1, 8, 3, 5, 8), pooling(3, 3, 1, 1)),
    ((1, 4, 17, 12), pooling(2, (9, 3), (1, 2), (4, 0))),
    ((1, 2, 12, 16), pooling(2, (17, 10), (2, 1), (8, 3), (9, 2), (1, 2))),
    ((1, 2, 4, 5, 6), pooling(3, 7, 2, 3)),
    ((2, 4, 7, 8), pooling(2, (4, 3), (3, 1), (2, 1), (0, 3), (2, 1))),
    ((1, 4, 7, 8), pooling(2, (9, 3), (2, 5), (30, 2), (30, 2400), (7, 900), True)),
    ((1, 1, 80, 4), pooling(2, (66, 3), (2, 1))),
    ((1, 4, 7, 4, 6), pooling(3, (1, 2, 2), (3, 2, 2))),
]
STRIDES_AND_DILATIONS = [(1, 2), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (4, 6), (6, 4)]
OTHERS: list[Problem] = [
    *(((1, 2, *case.sizes), case.pooling) for case in cases.LINES + cases.FEW[3:]),
    *(
        ((1, 2, 24), pooling(1, 5, stride, 2, 3, dilation))
        for stride, dilation in STRIDES_AND_DILATIONS
    ),
    ((1, 2, 3, 5, 4), pooling(3, (3, 5, 4))),
    ((1, 1, 24), pooling(1, 90, 4, 200, 370, 6)),
    ((1, 2, 5), pooling(1, 3, 2, 2**31 - 3, None, 2**31 - 4)),
]
"""For the interpreter, of every other operator: all edges, what stride and dilation share,
positions near 2**31."""
ADAPTED: list[Problem] = [
    ((1, 8, 9, 16), oracle.Bins((4, 5))),
    ((2, 3, 67), oracle.Bins((3,))),
    ((2, 3, 3, 5), oracle.Bins((7, 9))),
    ((2, 4, 5, 9), oracle.Bins((5, 4))),
    ((2, 4, 6, 5), oracle.Bins((1, 1))),
    ((2, 3, 5, 4, 7), oracle.Bins((2, 6, 3))),
]
APART: list[Problem] = [
    ((2, 3, 24, 47), pooling(2, 11, 11)),
    ((1, 4, 27, 36), pooling(2, 11, (12, 13), 5)),
]
"""Averages of the longest windows that a lane adds up alone."""
WORDS: list[Problem] = [
    *(((2, 3, 6, columns), pooling(2, 3, 1, 1)) for columns in (32, 24, 12, 13)),
    *(((2, channels, 6, 5), pooling(2, 3, 1, 1)) for channels in (32, 12, 7)),
    *(
        ((1, 4, *(each + 4 for each in size)), pooling(len(size), size))
        for size in ((11, 11), (128,), (4, 4, 8))
    ),
]
"""Quantized averages add up words of several elements, and 16-bit fields of at most 257: columns,
channels, taps."""


def maxima(input, request):
    found = backend.max_pooling(input, window_of(request))
    samples.assert_same(found, oracle.maximum(samples.to_numpy(input), request).values)


def maxima_with_taps(input, request):
    """And the indices that taps stand for."""
    expected, window = oracle.maximum(samples.to_numpy(input), request), window_of(request)
    values, taps = backend.max_pooling_with_taps(input, window)
    samples.assert_same(values, expected.values)
    samples.assert_same(taps, expected.taps)
    indices = backend.max_pooling_indices(
        taps, input.shape[2:], window, torch.int32, request.rank == 2
    )
    samples.assert_same(indices, expected.plane_indices if request.rank == 2 else expected.indices)


def maxima_with_indices(input, request):
    expected, of_planes = oracle.maximum(samples.to_numpy(input), request), request.rank == 1
    values, indices = backend.max_pooling_with_indices(
        input, window_of(request), torch.int64, of_planes
    )
    samples.assert_same(values, expected.values)
    samples.assert_same(indices, expected.plane_indices if of_planes else expected.indices)


FAR = 2**29 + 2**12 + 3
"""A stride that int32 holds, but not five times."""


def spread(tensor, dimension):
    """``tensor`` with its parts along a dimension ``FAR`` elements apart; memory between them is
    never touched."""
    strides = [
        stride if size > 1 else 0
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    strides[dimension] = FAR
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True)) + 1
    return torch.empty(reach, dtype=tensor.dtype).as_strided(tensor.shape, strides).copy_(tensor)


def arriving(input, request):
    """A gradient of whole numbers, whose sums are exact, in the input's layout."""
    given = samples.whole_gradient(input, request)
    if FAR in input.stride():
        return spread(given, input.stride().index(FAR))
    return samples.channels_last(given) if input.stride(1) == 1 else given


def max_gradients(input, request):
    """From taps, and elements gathered at taps."""
    values, window, given = samples.to_numpy(input), window_of(request), arriving(input, request)
    winners = oracle.maximum(values, request)
    taps = torch.from_numpy(winners.taps).to(tensors.tap_dtype(window.taps))
    for channels_last in (False, True)[: window.rank]:
        back = backend.max_pooling_grad_from_taps(
            given, taps, input.shape[2:], window, channels_last
        )
        samples.assert_same(back, oracle.maximum_grad(values, samples.to_numpy(given), request))
    gathered = backend.BACKEND.max_pooling_gather(input, taps, window)
    samples.assert_same(gathered, np.where(winners.plane_indices < 0, 0, winners.values))


def averages(input, request):
    for divisor in [(True, None), (False, None), (True, -3)][: 4 - request.rank]:
        samples.check_average(input, request, *divisor)


def complex_averages(input, request):
    """A7: of real and imaginary parts, which lie side by side, and their gradient."""
    taps = math.prod(request.window_size)
    whole = torch.complex(input, input.flip(-1)).requires_grad_()
    found = dmlpool.average_pooling(whole, **vars(request))
    given = arriving(input, request)
    given = torch.complex(given, given.flip(-1))
    (gradient,) = torch.autograd.grad(found, whole, given)
    for part in (torch.real, torch.imag):
        exact = oracle.average(samples.to_numpy(part(whole.detach())), request)
        samples.assert_average(part(found.detach()), *exact, taps)
        exact = oracle.average_grad(samples.to_numpy(part(given)), input.shape[2:], request)
        samples.assert_gradient(part(gradient), *exact, taps)


def average_gradients(input, request):
    given = arriving(input, request)
    for include_padding, divisor in [(True, None), (False, None), (True, -3)][: 4 - request.rank]:
        result = backend.average_pooling_grad(
            given, input.shape[2:], window_of(request), include_padding, divisor
        )
        assert result.dtype == given.dtype
        exact = oracle.average_grad(
            samples.to_numpy(given), input.shape[2:], request, include_padding, divisor
        )
        samples.assert_gradient(result, *exact, math.prod(request.window_size))


def quantized_averages(input, request):
    other = torch.int8 if input.dtype is torch.uint8 and request.strides[0] == 1 else torch.uint8
    # No kernel has long windows that leave padding out.
    one = request.rank % 2 or max(request.window_size) > 16
    for padded in (False, True)[one:][: 1 + INTERPRETED]:
        parameters = samples.drawn(input.dim(), input.shape[1], (input.dtype, other), ties=padded)
        forms = ["number", "per channel"] * 2 if padded else ["per channel", "number"] * 2
        samples.check_quantized(input, parameters, request, padded, output_dtype=other, forms=forms)


def bins(input, request):
    """Maxima and averages of bins, and the gradient of averages."""
    values, sizes, taps = samples.to_numpy(input), input.shape[2:], math.prod(input.shape[2:])
    expected = oracle.maximum(values, request)
    found, positions = backend.BACKEND.adaptive_max_pooling(input, request.outputs)
    samples.assert_same(found, expected.values)
    samples.assert_same(positions, expected.plane_indices)
    if not input.is_floating_point():
        return
    given = arriving(input, request)
    back = backend.BACKEND.adaptive_average_pooling_grad(given, sizes)
    samples.assert_gradient(
        back, *oracle.average_grad(samples.to_numpy(given), sizes, request), taps
    )
    finite = input.nan_to_num(1, 2, 3)
    result = backend.BACKEND.adaptive_average_pooling(finite, request.outputs)
    samples.assert_average(result, *oracle.average(samples.to_numpy(finite), request), taps)


def has_no_gradient(request):
    """Whether a kernel may be missing: for gradients of averages under a dilated window that is
    long or reaches far, and quantized averages of that sort."""
    taps, dilation = math.prod(request.window_size), max(request.dilations)
    return dilation > 1 and (taps > 16 or dilation > 64)


def under_masks(input, request):
    """Maxima, their positions and averages of what masks of all channels and of each one keep, and
    the gradient of averages, which is 0 under a mask."""
    is_bins, sizes, given = (
        isinstance(request, oracle.Bins),
        input.shape[2:],
        arriving(input, request),
    )
    by, divisor = (request.outputs, None) if is_bins else (window_of(request), 1)
    shares = oracle.average_grad(samples.to_numpy(given), sizes, request, True, divisor)
    for name in ("each sample", "each element"):
        mask, whole = samples.masked(name, input)
        expected = oracle.maximum(samples.to_numpy(input), request, whole)
        found = backend.max_pooling_with_indices(input, by, torch.int64, True, mask=mask)
        samples.assert_same(found[0], expected.values)
        samples.assert_same(found[1], expected.plane_indices)
        wide = tensors.widened(given)
        options = True, divisor, given.dtype
        try:
            back = backend.average_pooling_grad(wide, sizes, by, *options, mask=mask)
        except NoKernelError:
            assert has_no_gradient(request)
        else:
            samples.assert_gradient(back, *(each * whole for each in shares), math.prod(sizes))
        if not isinstance(by, Window):
            finite = input.nan_to_num(1, 2, 3)
            result = backend.average_pooling(finite, by, False, None, mask=mask)
            exact = oracle.average(samples.to_numpy(finite), request, mask=whole)
            samples.assert_average(result, *exact, math.prod(input.shape[2:]))
        elif input.is_floating_point():
            samples.assert_same(backend.max_pooling(input, by, mask=mask), expected.values)
            samples.check_average(input.nan_to_num(1, 2, 3), request, False, None, mask=name)


OPERATORS: dict[Operator, tuple[list[torch.dtype], list[Problem]]] = {
    maxima: (NUMBERS, []),
    maxima_with_taps: (NUMBERS, []),
    maxima_with_indices: (NUMBERS, []),
    max_gradients: (FLOATS, []),
    averages: (FLOATS, APART),
    average_gradients: (FLOATS, []),
    quantized_averages: (samples.QUANTIZED_INTEGERS, WORDS),
    bins: (NUMBERS, ADAPTED),
    under_masks: (FLOATS, ADAPTED),
    complex_averages: ([torch.float32, torch.float64], []),
}


def every_case():
    """Each operator with each problem, layout and type in turn. The other layouts are slow, and so
    are four problems of five, or three of four under the interpreter."""
    rows = []
    for o, (operator, (dtypes, special)) in enumerate(OPERATORS.items()):
        problems = special if operator is bins else COMPILED + MORE + special
        everyday = len(problems) if INTERPRETED else len(COMPILED)
        counts = [len(LAYOUTS) if INTERPRETED or i < everyday else 1 for i in range(len(problems))]
        chosen = [(i, j) for i, count in enumerate(counts) for j in range(count)]
        if INTERPRETED and operator is not bins:
            chosen += [(len(problems) + i, 0) for i in range(o % 2, len(OTHERS), 2)]
        for i, j in chosen:
            shape, request = (problems + OTHERS)[i]
            layout, dtype = (
                LAYOUTS[(o + i + j) % len(LAYOUTS)],
                dtypes[(o + 3 * i + i // 4 + j) % len(dtypes)],
            )
            name = f"{operator.__name__}-{i}-{shape}-{layout}-{samples.name_of(dtype)}".replace(
                " ", ""
            )
            kept = (o + i) // 2 % 4 == 0 if INTERPRETED else (o + i) % 5 == 0
            # By tiles, not by axis alone, and of whole planes.
            kept = kept or (operator is under_masks and (i == 0 or request == oracle.Bins((1, 1))))
            left = j or (i >= everyday and not INTERPRETED) or not kept
            marks = [pytest.mark.slow] if left else []
            many = INTERPRETED and (o + i) % 2 == 1
            rows.append(
                pytest.param(operator, shape, request, layout, dtype, many, id=name, marks=marks)
            )
    return rows


def hard(operator, shape, dtype):
    if max(shape) == 80:  # so that the last tap of a large window wins
        return torch.arange(80).view(80, 1).expand(shape).to(dtype).contiguous()
    finite = operator in (averages, average_gradients, complex_averages)
    return samples.ties(*shape, dtype=dtype) if finite else samples.special(*shape, dtype=dtype)


@pytest.mark.parametrize(("operator", "shape", "request_", "layout", "dtype", "many"), every_case())
def test_results(operator, shape, request_, layout, dtype, many, launched, large):
    """E7: the oracle's results, by lanes of one row or of many; what is compiled touches no more
    than it may."""
    if many:
        large("LANES_ENOUGH")
    operator(samples.LAYOUTS[layout](hard(operator, shape, dtype)), request_)
    others = average_gradients, quantized_averages, complex_averages
    assert launched or (operator in others and has_no_gradient(request_))


@only_interpreted
@pytest.mark.parametrize("operator", OPERATORS)
def test_wide_arithmetic(operator, launched, large):
    """G7: the 64-bit form of every kernel, which tensors of more than 2³¹ elements need."""
    large("WIDE_FROM")
    requests = [pooling(2, 3, 1, (4, 1), 1), pooling(2, (70, 3), 1, (40, 1))]
    for request, layout in zip(
        [oracle.Bins((3, 4))] * 2 if operator is bins else requests, LAYOUTS, strict=False
    ):
        operator(
            samples.LAYOUTS[layout](hard(operator, (1, 4, 7, 8), OPERATORS[operator][0][0])),
            request,
        )
    assert all(
        one.constants["FORM"].wide if "FORM" in one.constants else one.constants["WIDE"]
        for one in launched
    )


@only_interpreted
@pytest.mark.parametrize("operator", list(OPERATORS)[:-1])
def test_elements_further_apart_than_32_bits_reach(operator, launched):
    """G7: six samples, channels or rows, of a tensor of which only the pages that hold them are
    touched."""
    dimension = list(OPERATORS).index(operator) % 3
    shape = tuple(6 if number == dimension else size for number, size in enumerate((2, 2, 2, 9)))
    dtype = torch.float16 if torch.float16 in OPERATORS[operator][0] else torch.uint8
    for request in (pooling(2, 2, 1, 1), pooling(2, (2, 3), (2, 3))):
        far = spread(hard(operator, shape, dtype), dimension)
        operator(far, oracle.Bins((1, 4)) if operator is bins else request)
    assert launched


HUGE = [(1, 2, 65537, 65537), (2, 8, 50001, 50001)]


@pytest.mark.skipif(INTERPRETED, reason="the interpreter runs every program")
@cases.each(("shape", "last"), itertools.product(HUGE, (False, True)), [(HUGE[1], True)])
def test_planes_of_more_elements_than_32_bits_count(shape, last, launched):
    """G7: the last program writes the end of the last plane: maxima, averages, their gradients,
    quantized averages."""
    window = Window.directml(2, (1, 3), 1, (0, 1), (0, 1))
    form = torch.channels_last if last else torch.contiguous_format
    input = torch.empty(shape, dtype=torch.float16, device="meta", memory_format=form)
    output = backend.average_pooling(input, window, False, None)
    backend.average_pooling_grad(output, shape[2:], window, False, None)
    output, taps = backend.max_pooling_with_taps(input, window)
    backend.max_pooling_grad_from_taps(output, taps, shape[2:], window, last)
    small = torch.empty(shape, dtype=torch.uint8, device="meta", memory_format=form)
    backend.quantized_averages(small, (0.5, 3, 0.5, 3), window, False, torch.uint8)
    assert [one.kernel for one in launched] == [
        "sum_tile",
        "sum_tile",
        "max_tile",
        "grad_tile",
        "sum_tile",
    ]


@only_interpreted
def test_indices_of_every_type():
    """M4: over N, C, D, H, W in logical order, whatever the layout, straight from the kernel and
    from taps."""
    request = pooling(2, 3, 1, (4, 1), 1)
    for layout in ("contiguous", "channels last", "transposed"):
        input = samples.LAYOUTS[layout](samples.special(2, 4, 3, 4))
        expected = oracle.maximum(samples.to_numpy(input), request)
        _, taps = backend.max_pooling_with_taps(input, window_of(request))
        # Neighbours are read together only where they lie side by side, not where they are the same
        # element.
        alike = taps[..., :1].expand(taps.shape)
        for dtype in samples.INDEX_TYPES:
            wanted = expected.indices.astype(samples.name_of(dtype))
            given = (input.shape[2:], window_of(request), dtype, False)
            samples.assert_same(backend.max_pooling_with_indices(input, *given[1:])[1], wanted)
            samples.assert_same(backend.max_pooling_indices(taps, *given), wanted)
            samples.assert_same(
                *(backend.max_pooling_indices(each, *given) for each in (alike, alike.contiguous()))
            )


@only_interpreted
@pytest.mark.parametrize(
    "scales", [(2.0**-149, 2.0**-149), (2.0**127, 2.0**-149), (2.0**-149, 2.0**127), (1.0, 2.0)]
)
def test_scales_far_apart(scales):
    """Q1 and Q4: as far as float32 has them."""
    parameters = samples.Parameters(scales[:1] * 2, (100, 3), scales[1:] * 2, (7, 40))
    for window, size in ((3, 8), (15, 15)):
        for form in ("per channel", "number"):
            input = samples.integers(1, 2, size, size, dtype=torch.uint8)
            samples.check_quantized(input, parameters, pooling(2, window, 1, 1), forms=[form] * 4)


@only_interpreted
@pytest.mark.parametrize(
    "request_", [pooling(2, 3, 1, 1), pooling(2, 13, 1, 6), oracle.Bins((2, 3))], ids=str
)
def test_infinity_and_nan_stay_in_their_windows(request_):
    """A1 and E6: and sums that overflow float16 do not."""
    input = samples.normal(1, 3, 9, 9)
    input[0, :, 2, 3] = torch.tensor([math.inf, -math.inf, math.nan])
    for given in (input, torch.full((1, 2, 9, 9), 6e4, dtype=torch.float16)):
        if isinstance(request_, oracle.Bins):
            found = backend.BACKEND.adaptive_average_pooling(given, request_.outputs)
        else:
            found = backend.average_pooling(given, window_of(request_), False, None)
        expected = oracle.average(samples.to_numpy(given), request_)[0]
        np.testing.assert_allclose(
            samples.to_numpy(found), expected.astype(np.float64), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("shape", [(0, 3, 6, 6), (2, 0, 6, 6)], ids=["no samples", "no channels"])
@pytest.mark.parametrize(
    "operator", [maxima_with_taps, max_gradients, averages, average_gradients, bins]
)
def test_nothing_to_pool(operator, shape, launched):
    """G5: an empty batch and no channels are legal, and launch nothing."""
    operator(torch.empty(shape), oracle.Bins((3, 4)) if operator is bins else pooling(2, 3, 1, 1))
    window, empty = Window.directml(2, 3, 1, 1, 1), torch.empty(shape, dtype=torch.int8)
    result = backend.quantized_averages(empty, (0.1, 3, 0.1, 3), window, False, torch.int8)
    assert result.shape == shape
    assert not launched
