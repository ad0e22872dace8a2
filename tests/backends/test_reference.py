"""The plain PyTorch backend: every operator on named cases and in extremes, compared with the
oracle."""

import math
from collections.abc import Sequence

import cases
import oracle
import pytest
import samples
import torch

import torch_dmlpool as dmlpool
import torch_dmlpool.backends
from torch_dmlpool.backends import reference
from torch_dmlpool.window import Window

operators = torch.ops.dmlpool
PLAIN = oracle.Pooling((3, 3), (2, 2), (1, 1), (1, 1), (1, 1))
CASES = [*cases.LINES, *cases.PLANES[::4], *cases.VOLUMES[::7]]
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
