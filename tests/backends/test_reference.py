"""The plain PyTorch backend: every operator on named cases and in extremes, compared with the
oracle; its ways for known sizes."""

import math
from collections.abc import Sequence

import cases
import oracle
import pytest
import samples
import torch

import torch_dmlpool as dmlpool
import torch_dmlpool.backends
from torch_dmlpool.backends import reference, slices
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
    )
]
"""Windows that are computed by slices, tiles, whole sums and ATen's operators, by their layout and
data type too."""
PLAIN = WAYS[0].pooling
CASES = [*cases.LINES, *cases.PLANES[::4], *cases.VOLUMES[::7], *WAYS * 4]
LAYOUTS = list(samples.LAYOUTS)[:7]


def in_turn(**arguments: Sequence[object]) -> pytest.MarkDecorator:
    """Each case once, with the next value of every other argument; lengths that share no factor
    meet in all pairs."""
    rows = [
        pytest.param(
            case, *(values[number % len(values)] for values in arguments.values()), id=case.name
        )
        for number, case in enumerate(CASES)
    ]
    return pytest.mark.parametrize(("case", *arguments), rows)


@pytest.fixture(autouse=True)
def served_by_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by what is compiled for this machine."""
    monkeypatch.setattr(torch_dmlpool.backends, "serving", lambda _: reference.BACKEND)


@in_turn(dtype=samples.FLOATS + samples.INTEGERS, layout=LAYOUTS, of_gradient=samples.FLOATS)
def test_maxima(
    case: cases.Case, dtype: torch.dtype, layout: str, of_gradient: torch.dtype
) -> None:
    """M1 to M6: values, both kinds of index, taps, gradients."""
    samples.check_maximum(
        samples.LAYOUTS[layout](samples.special(2, 3, *case.sizes, dtype=dtype)), case.pooling
    )
    input = samples.LAYOUTS[layout](samples.ties(2, 3, *case.sizes, dtype=of_gradient))
    samples.check_maximum_gradient(input, samples.whole_gradient(input, case.pooling), case.pooling)


@in_turn(dtype=samples.FLOATS, divisor=[(False, None), (True, None), (False, -3)], layout=LAYOUTS)
def test_averages_and_their_gradients(
    case: cases.Case, dtype: torch.dtype, divisor: tuple[bool, int | None], layout: str
) -> None:
    """A1 to A6 and E6."""
    with_layout = samples.LAYOUTS[layout]
    samples.check_average(
        with_layout(samples.normal(2, 3, *case.sizes, dtype=dtype)), case.pooling, *divisor
    )
    gradient = with_layout(samples.normal(2, 3, *case.output_sizes, dtype=dtype))
    samples.check_average_gradient(gradient, case.sizes, case.pooling, *divisor)


@in_turn(
    types=[(torch.int8, torch.uint8), (torch.uint8, torch.uint8)],
    form=samples.PARAMETER_FORMS,
    ties=[True, False, False],
)
def test_quantized_averages(
    case: cases.Case, types: tuple[torch.dtype, ...], form: str, ties: bool
) -> None:
    """Q1 to Q3."""
    input = samples.integers(2, 3, *case.sizes, dtype=types[0])
    forms = [form, "number", form, "per channel"]
    samples.check_quantized(
        input, samples.drawn(1, 3, types, ties), case.pooling, output_dtype=types[1], forms=forms
    )


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8, torch.uint64], ids=str
)
@pytest.mark.parametrize("outputs", [(1, 5), (4, 3), (9, 8), (11, 2), (3, 20)], ids=str)
def test_bins(outputs: tuple[int, int], dtype: torch.dtype) -> None:
    """Also more bins than elements, of every number that divides and does not."""
    sizes = (9, 8)
    bins, input = oracle.Bins(outputs), samples.ties(2, 3, *sizes, dtype=dtype)
    expected = oracle.maximum(samples.to_numpy(input), bins)
    values, positions = reference.adaptive_max_pooling(input, outputs)
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
def test_gradients_are_added_in_order_on_devices_without_ordered_scattering(
    dtype: torch.dtype,
) -> None:
    """E3: what other devices use gives what a CPU gives."""
    added = samples.normal(3, 2, 50, dtype=dtype)
    positions = torch.randint(0, 7, added.shape, generator=samples.seeded(7))
    total = torch.zeros(3, 2, 7, dtype=dtype)
    assert torch.equal(
        reference._add_sorted(total, -1, positions, added), total.scatter_add(-1, positions, added)
    )


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
def test_a_large_batch_gives_the_bits_of_its_samples(layout: str) -> None:
    """E6: past the sizes at which a backend may cut its work into parts."""
    image = samples.LAYOUTS[layout](samples.normal(4, 3, 170, 190))
    for pool in (
        lambda part: dmlpool.max_pooling(part, 3, 2, 1, 1),
        lambda part: dmlpool.average_pooling(part, 3, 2, 1, 1),
        lambda part: operators.max_pooling_with_indices(
            part, *samples.spelled_out(PLAIN), torch.int64, True
        )[1],
        lambda part: dmlpool.average_pooling_grad(part, part.shape, 3, 1, 1, 1),
        lambda part: dmlpool.adaptive_average_pooling(part, (7, 9)),
    ):
        samples.assert_same(pool(image), torch.cat([pool(part) for part in image.split(1)]))


def true_halves(divisor: int) -> list[samples.Quotient]:
    """``k + 1/2`` for an even and an odd ``k``, and the nearest sums beside them; ``divisor`` is
    even."""
    halves = [(2 * k + 1) * divisor // 2 for k in (98, 97)]
    return [(total + beside, 0.75, 0.75) for total in halves for beside in (-1, 0, 1)]


@pytest.mark.parametrize("divisor", [2**21 + 1, 2**21 + 2, 2**30 + 5, 2**30 + 6])
def test_what_float64_takes_for_a_half(divisor: int) -> None:
    """Q1 and Q4: sums that no test could add up."""
    quotients = samples.near_halves(divisor, 24) if divisor % 2 else true_halves(divisor)
    # One window per channel, of as many counted taps: most of them in the padding.
    window = Window.directml(1, divisor, 1, divisor - 1, 0)
    sums, scales, steps = map(torch.tensor, zip(*quotients, strict=True))
    result = reference.requantized(
        sums.view(1, -1, 1), [1], scales, None, steps, None, window, True, torch.uint8
    )
    expected = [oracle.requantized(total, divisor, m, n, 0, "uint8") for total, m, n in quotients]
    assert result.flatten().tolist() == expected


@pytest.mark.parametrize("layout", LAYOUTS[:3])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_winners_where_everything_is_the_lowest(rank: int, layout: str) -> None:
    """M2: the first element of each window, whatever index ATen gives there."""
    input = samples.LAYOUTS[layout](torch.full((2, 3, *(4, 5, 3)[:rank]), -math.inf))
    one = (1,) * rank
    samples.check_maximum(input, oracle.Pooling((2,) * rank, one, one, one, one))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 9, 49, 127, 128, 129, 1000, 4099])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=samples.name_of)
@pytest.mark.parametrize("channels_last", [False, True])
def test_whole_planes_are_summed_within_their_bound(
    count: int, dtype: torch.dtype, channels_last: bool
) -> None:
    """E6, for few and many elements and sums."""
    for channels in (1, 40, 1100):
        input = samples.normal(1, channels, 1, count, dtype=dtype)
        if channels_last:
            input = input.contiguous(memory_format=torch.channels_last)
        result = dmlpool.average_pooling(input, (1, count))
        whole = oracle.Pooling((1, count), (1, 1), (0, 0), (0, 0), (1, 1))
        expected = oracle.average(samples.to_numpy(input), whole)
        samples.assert_average(result, *expected, count)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("channels", [1, 3, 9, 40])
def test_whole_planes_do_not_depend_on_batch_and_threads(
    channels: int, channels_last: bool
) -> None:
    """E3 and E6: a single sum, which PyTorch would cut for its threads, is not special."""
    images = samples.normal(4, channels, 100, 90)
    if channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    together = dmlpool.average_pooling(images, (100, 90))
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for sample in range(4):
                alone = dmlpool.average_pooling(images[sample : sample + 1], (100, 90))
                samples.assert_same(alone, together[sample : sample + 1])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("tap", [-1, 0, 9, 2**14])
def test_foreign_taps_send_their_gradient_nowhere(tap: int) -> None:
    """A tap in the padding or beyond the window is no element of the input."""
    window = Window.directml(2, 3, 1, 1, 1)
    taps = torch.full((1, 1, 2, 2), tap, dtype=torch.int16)
    gradient = torch.ones(1, 1, 2, 2)
    sent = reference.max_pooling_grad_from_taps(gradient, taps, (2, 2), window, False)
    # Tap 0 lies in the padding for all windows but the last.
    assert sent.tolist() == [[[[float(tap == 0), 0], [0, 0]]]]


def test_taps_beyond_32_bits_from_the_input() -> None:
    """Dilation and padding that only 64 bits can add up: each window's last tap is its winner."""
    input, window = torch.arange(4.0).view(1, 1, 4), Window.directml(1, 3, 1, 2**31 - 1, 0, 2**30)
    values, taps = reference.max_pooling_with_taps(input, window)
    assert values.flatten().tolist() == [1, 2, 3]
    assert taps.flatten().tolist() == [2, 2, 2]
    gradient = reference.max_pooling_grad_from_taps(torch.ones(1, 1, 3), taps, (4,), window, False)
    assert gradient.flatten().tolist() == [0, 1, 1, 1]


def test_a_huge_padding_costs_no_memory_of_its_size() -> None:
    """Padding is not written out where it is larger than the input."""
    axis = Window.directml(1, 3, 1, 2**30, 2**30).axes[0]
    assert not slices.is_sliceable(axis, 16)
    assert slices.is_sliceable(Window.directml(1, 3, 1, 1, 1).axes[0], 16)


def test_programs_that_are_taken_apart_hold_no_operator_in_place() -> None:
    """ATen's ways and in-place additions are for plain tensors in eager mode."""
    from torch.fx.experimental.proxy_tensor import make_fx

    window = Window.directml(2, 3, 2, 1, 1)

    def program(input: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, taps = reference.max_pooling_with_taps(input, window)
        return (
            values,
            reference.max_pooling_grad_from_taps(gradient, taps, (8, 8), window, False),
            reference.average_pooling_grad(gradient, (8, 8), window, False, None),
        )

    image, gradient = samples.normal(1, 2, 8, 8), samples.normal(1, 2, 4, 4)
    traced = make_fx(program)(image, gradient)
    names = [node.target.__name__ for node in traced.graph.nodes if node.op == "call_function"]
    assert not [name for name in names if name.split(".")[0].endswith("_") or "max_pool" in name]
    for result, expected in zip(traced(image, gradient), program(image, gradient), strict=True):
        torch.testing.assert_close(result, expected)
