"""The plain PyTorch backend: every operator on named cases and in extremes, compared with the
oracle; its ways for known sizes."""

import itertools
import math

import cases
import oracle
import pytest
import samples
import torch

import torch_dmlpool as dmlpool
import torch_dmlpool.backends
from torch_dmlpool.backends import reductions, reference
from torch_dmlpool.window import Window

operators = torch.ops.dmlpool
WAYS = [
    cases.Case(tuple(cases.Edge(name, size, *of_axis, **rest) for size, of_axis in axes))
    for name, rest, *axes in (
        ("3/2", {}, (12, (3, 2, 1, 1)), (15, (3, 2, 1, 1))),
        ("3/2, ceil", {"ceil_mode": True}, (12, (3, 2, 1, 1)), (15, (3, 2, 1, 1))),
        ("2/2", {}, (12, (2, 2)), (15, (2, 2))),
        ("tiles", {}, (12, (6, 6)), (15, (5, 5))),
        ("1/2", {}, (12, (1, 2)), (15, (1, 2))),
        ("doubled", {}, (12, (5, 1, 2, 2)), (15, (7, 1, 3, 3))),
        ("uneven and dilated", {}, (12, (3, 2, 1, 2, 2)), (15, (2, 3, 0, 3, 3))),
        ("higher than the plane", {}, (6, (9, 1, 4, 4)), (11, (3, 1, 1, 1))),
        ("beyond the last window", {}, (12, (2, 5)), (15, (3, 4))),
        ("most before the plane", {}, (9, (3, 50, 60, 0)), (4, (1, 7, 0, 2, 3))),
        ("most after the plane", {}, (9, (3, 50, 0, 60)), (5, (3, 100, 1, 1))),
    )
]
"""Windows that are computed by slices, tiles, whole sums and ATen's operators, by their layout and
data type too."""
PLAIN = WAYS[0].pooling
CASES = [*cases.LINES, *WAYS * 4]
LAYOUTS = list(samples.LAYOUTS)[:7]
TYPES = list(itertools.product(samples.QUANTIZED_INTEGERS, repeat=2))


@pytest.fixture(autouse=True)
def served_by_the_reference(monkeypatch):
    """Not by what is compiled for this machine."""
    monkeypatch.setattr(torch_dmlpool.backends, "serving", lambda _: reference.BACKEND)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_way(number):
    """M1 to M6, A1 to A6, E6, Q1 to Q3: the next type, layout and divisor for each case; lengths
    that share no factor meet in all pairs."""
    case, layout = CASES[number], samples.LAYOUTS[LAYOUTS[number % 7]]
    dtype, real = (each[number % len(each)] for each in (samples.NUMBERS, samples.FLOATS))
    sizes, pooling = (2, 3, *case.sizes), case.pooling
    samples.check_maximum(layout(samples.special(*sizes, dtype=dtype)), pooling)
    input = layout(samples.ties(*sizes, dtype=real))
    samples.check_maximum_gradient(input, samples.whole_gradient(input, pooling), pooling)
    divisor = [(False, None), (True, None), (False, -3)][number % 3]
    samples.check_average(layout(samples.normal(*sizes, dtype=real)), pooling, *divisor)
    gradient = layout(samples.normal(2, 3, *case.output_sizes, dtype=real))
    samples.check_average_gradient(gradient, case.sizes, pooling, *divisor)
    types = TYPES[number % 4]
    forms = [samples.PARAMETER_FORMS[number % 5], "number"] * 2
    parameters = samples.drawn(1, 3, types, ties=number % 3 == 0)
    how = {"output_dtype": types[1], "forms": forms}
    samples.check_quantized(samples.integers(*sizes, dtype=types[0]), parameters, pooling, **how)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8, torch.uint64], ids=str
)
@pytest.mark.parametrize("outputs", [(1, 5), (4, 3), (9, 8), (11, 2), (3, 20)], ids=str)
def test_bins(outputs, dtype):
    """Also more bins than elements, of every number that divides and does not."""
    sizes = (9, 8)
    bins, input = oracle.Bins(outputs), samples.ties(2, 3, *sizes, dtype=dtype)
    expected = oracle.maximum(samples.to_numpy(input), bins)
    values, positions = reference.BACKEND.adaptive_max_pooling(input, outputs)
    samples.assert_same(values, expected.values)
    samples.assert_same(positions, expected.plane_indices)
    unique = reference.unique_positions(positions, sizes)
    written, last = oracle.unpooled(samples.to_numpy(values), expected.plane_indices, sizes)
    samples.assert_same(reference.scatter_positions(values, unique, sizes, False, False), written)
    samples.assert_same(
        reference.gather_positions(values.new_ones(input.shape), unique), last.astype(written.dtype)
    )
    if dtype.is_floating_point:
        input, gradient = (
            samples.normal(2, 3, *sizes, dtype=dtype),
            samples.normal(2, 3, *outputs, dtype=dtype),
        )
        average = reference.BACKEND.adaptive_average_pooling(input, outputs)
        samples.assert_average(
            average, *oracle.average(samples.to_numpy(input), bins), math.prod(sizes)
        )
        spread = reference.BACKEND.adaptive_average_pooling_grad(gradient, sizes)
        expected = oracle.average_grad(samples.to_numpy(gradient), sizes, bins)
        samples.assert_gradient(spread, *expected, math.prod(outputs))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=samples.name_of)
def test_gradients_are_added_in_order_on_devices_without_ordered_scattering(dtype):
    """E3: what other devices use gives what a CPU gives."""
    added = samples.normal(50, 2, dtype=dtype)
    places = torch.randint(0, 7, added.shape[:1], generator=samples.seeded(7))
    total = torch.zeros(7, 2, dtype=dtype)
    assert torch.equal(
        reductions.added_sorted(total, places, added), reductions.added(total, places, added)
    )


def true_halves(divisor):
    """``k + 1/2`` for an even and an odd ``k``, and the nearest sums beside them; ``divisor`` is
    even."""
    halves = [(2 * k + 1) * divisor // 2 for k in (98, 97)]
    return [(total + beside, 0.75, 0.75) for total in halves for beside in (-1, 0, 1)]


@pytest.mark.parametrize("divisor", [2**21 + 1, 2**21 + 2, 2**30 + 5, 2**30 + 6])
def test_what_float64_takes_for_a_half(divisor):
    """Q1 and Q4: sums that no test could add up."""
    quotients = samples.near_halves(divisor, 24) if divisor % 2 else true_halves(divisor)
    # One window per channel, of as many counted taps: most of them in the padding.
    window = Window.directml(1, divisor, 1, divisor - 1, 0)
    sums, scales, steps = map(torch.tensor, zip(*quotients, strict=True))
    result = reference.requantized(
        sums.view(1, -1, 1), [1], (scales, None, steps, None), window, True, torch.uint8
    )
    expected = [oracle.requantized(total, divisor, m, n, 0, "uint8") for total, m, n in quotients]
    assert result.flatten().tolist() == expected


@cases.in_pairs(
    layout=["contiguous", "channels last"],
    dtype=[torch.float32, torch.float64],
    channels=[1, 40, 1100],
    count=[1, 2, 3, 9, 49, 127, 128, 129, 1000, 4099],
)
def test_whole_planes_are_summed_within_their_bound(count, channels, dtype, layout):
    """E6, for few and many elements and sums."""
    input = samples.LAYOUTS[layout](samples.normal(1, channels, 1, count, dtype=dtype))
    whole = oracle.Pooling((1, count), (1, 1), (0, 0), (0, 0), (1, 1))
    samples.check_average(input, whole)


@pytest.mark.parametrize("channels", [1, 3, 9, 40])
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
def test_a_batch_gives_the_bits_of_its_samples_with_any_number_of_threads(layout, channels):
    """E3 and E6: past the sizes at which a backend may cut its work into parts, and of a single
    sum, which PyTorch would cut for its threads."""
    image = samples.LAYOUTS[layout](samples.normal(4, channels, 100, 190))
    threads = torch.get_num_threads()
    try:
        for pool in (
            lambda part: dmlpool.max_pooling(part, 3, 2, 1, 1),
            lambda part: dmlpool.average_pooling(part, 3, 2, 1, 1),
            lambda part: dmlpool.average_pooling(part, (100, 190)),
            lambda part: operators.max_pooling_with_indices(
                part, *samples.spelled_out(PLAIN), torch.int64, True
            )[1],
            lambda part: dmlpool.average_pooling_grad(part, part.shape, 3, 1, 1, 1),
            lambda part: dmlpool.adaptive_average_pooling(part, (7, 9)),
        ):
            together = pool(image)
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                samples.assert_same(together, torch.cat([pool(part) for part in image.split(1)]))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("tap", [-1, 0, 9, 2**14])
def test_foreign_taps_send_their_gradient_nowhere(tap):
    """A tap in the padding or beyond the window is no element of the input."""
    window = Window.directml(2, 3, 1, 1, 1)
    taps = torch.full((1, 1, 2, 2), tap, dtype=torch.int16)
    gradient = torch.ones(1, 1, 2, 2)
    sent = reference.max_pooling_grad_from_taps(gradient, taps, (2, 2), window, False)
    # Tap 0 lies in the padding for all windows but the last.
    assert sent.tolist() == [[[[float(tap == 0), 0], [0, 0]]]]


def test_taps_beyond_32_bits_from_the_input():
    """Dilation and padding that only 64 bits can add up: each window's last tap is its winner."""
    input, window = torch.arange(4.0).view(1, 1, 4), Window.directml(1, 3, 1, 2**31 - 1, 0, 2**30)
    values, taps = reference.max_pooling_with_taps(input, window)
    assert values.flatten().tolist() == [1, 2, 3]
    assert taps.flatten().tolist() == [2, 2, 2]
    gradient = reference.max_pooling_grad_from_taps(torch.ones(1, 1, 3), taps, (4,), window, False)
    assert gradient.flatten().tolist() == [0, 1, 1, 1]


def test_a_huge_padding_costs_no_memory_of_its_size():
    """Padding is not written out where it is larger than the input."""
    axis = Window.directml(1, 3, 1, 2**30, 2**30).axes[0]
    assert not reductions.is_sliceable(axis, 16)
    assert reductions.is_sliceable(Window.directml(1, 3, 1, 1, 1).axes[0], 16)
