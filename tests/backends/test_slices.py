"""The plain PyTorch backend's ways for known sizes: slices, tiles, whole sums, ATen's operators."""

import oracle
import pytest
import samples
import torch

import torch_dmlpool as dmlpool
import torch_dmlpool.backends
from torch_dmlpool import operands
from torch_dmlpool.backends import aten, reference, slices
from torch_dmlpool.window import Window

operators = torch.ops.dmlpool
WINDOWS = {
    "3/2": oracle.Pooling((3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "3/2 with ceil_mode": oracle.Pooling((3, 3), (2, 2), (1, 1), (1, 1), (1, 1), True),
    "2/2": oracle.Pooling((2, 2), (2, 2), (0, 0), (0, 0), (1, 1)),
    "tiles of 6 x 5": oracle.Pooling((6, 5), (6, 5), (0, 0), (0, 0), (1, 1)),
    "1/2": oracle.Pooling((1, 1), (2, 2), (0, 0), (0, 0), (1, 1)),
    "5/1, doubled": oracle.Pooling((5, 7), (1, 1), (2, 3), (2, 3), (1, 1)),
    "uneven padding, dilated": oracle.Pooling((3, 2), (2, 3), (1, 0), (2, 3), (2, 3)),
    "higher than the plane": oracle.Pooling((9, 3), (1, 1), (4, 1), (4, 1), (1, 1)),
    "beyond the last window": oracle.Pooling((2, 3), (5, 4), (0, 0), (0, 0), (1, 1)),
}
SIZES = {"higher than the plane": (6, 11)}


@pytest.fixture(autouse=True)
def served_by_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_dmlpool.backends, "serving", lambda _: reference.BACKEND)


@pytest.mark.parametrize("layout", ["contiguous", "channels last", "sliced", "transposed"])
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8], ids=samples.name_of)
def test_every_way_gives_what_the_oracle_gives(name: str, layout: str, dtype: torch.dtype) -> None:
    """M1 to M6, A1 to A6 and E6, in layouts that take different ways."""
    pooling, sizes = WINDOWS[name], SIZES.get(name, (12, 15))
    with_layout = samples.LAYOUTS[layout]
    samples.check_maximum(with_layout(samples.special(2, 3, *sizes, dtype=dtype)), pooling)
    samples.check_maximum(with_layout(samples.ties(2, 3, *sizes, dtype=dtype)), pooling)
    if not dtype.is_floating_point:
        return
    input = with_layout(samples.ties(2, 3, *sizes, dtype=dtype))
    samples.check_maximum_gradient(input, samples.whole_gradient(input, pooling), pooling)
    input = with_layout(samples.normal(2, 3, *sizes, dtype=dtype))
    outputs = dmlpool.average_pooling(input, **vars(pooling)).shape[2:]
    gradient = with_layout(samples.normal(2, 3, *outputs, dtype=dtype))
    for counted in ((False, None), (True, None), (False, 7)):
        samples.check_average(input, pooling, *counted)
        samples.check_average_gradient(gradient, sizes, pooling, *counted)


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
        expected = oracle.average(
            samples.to_numpy(input), oracle.Pooling((1, count), (1, 1), (0, 0), (0, 0), (1, 1))
        )
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


def test_the_first_of_several_nan_wins_where_aten_takes_the_last() -> None:
    """M3."""
    image = torch.full((1, 1, 4, 4), torch.nan)
    values, indices = dmlpool.max_pooling(image, 2, 2, return_indices=True)
    assert values.isnan().all()
    assert indices.tolist() == [[[[0, 2], [8, 10]]]]
    _, positions = torch.nn.functional.max_pool2d(image, 2, 2, return_indices=True)
    assert positions.tolist() != indices.tolist(), "ATen follows rule M3: the look at NaN can go"


@pytest.mark.parametrize("tap", [-1, 0, 9, 2**14])
def test_foreign_taps_send_their_gradient_nowhere(tap: int) -> None:
    """A tap in the padding or beyond the window is no element of the input."""
    window = Window.directml(2, 3, 1, 1, 1)
    taps = torch.full((1, 1, 2, 2), tap, dtype=torch.int16)
    gradient = torch.ones(1, 1, 2, 2)
    assert aten.positions_at(taps, (2, 2), window) is None
    sent = reference.max_pooling_grad_from_taps(gradient, taps, (2, 2), window, False)
    # Tap 0 lies in the padding for all windows but the last.
    assert sent.tolist() == [[[[float(tap == 0), 0], [0, 0]]]]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    ("sizes", "window"),
    [
        ((9, 8), Window.directml(2, 3, 2, 1, 1, 1, True)),
        ((7, 7), Window.directml(2, (2, 3), 2, 0, 0, 1, True)),
        ((6, 5), Window.directml(2, 2, 2)),
        ((3, 5, 4), Window.directml(3, 2, 1, 1, 1)),
    ],
)
def test_tables_know_which_taps_lie_inside(
    sizes: tuple[int, ...], window: Window, channels_last: bool
) -> None:
    """Taps of any value: the positions by tables are those by arithmetic, or there are none."""
    outputs = window.output_sizes(sizes)
    memory_format = operands.named_memory_format(channels_last, window.rank)
    generator = torch.Generator().manual_seed(0)
    known = 0
    for at in range(64):
        # All windows have the same tap, or their winners', or a few of them another one.
        taps = torch.full((2, 3, *outputs), at % window.taps, dtype=torch.uint8)
        if at >= window.taps:
            taps = reference.max_pooling_with_taps(samples.normal(2, 3, *sizes), window)[1].clone()
            others = torch.rand(taps.shape, generator=generator) < 0.01
            if at % 2:
                taps[others] = at % (window.taps + 1)
        taps = taps.contiguous(memory_format=memory_format)
        expected = reference._positions(taps, sizes, window)
        found = aten.positions_at(taps, sizes, window)
        assert (found is None) == bool((expected == -1).any())
        if found is not None:
            known += 1
            assert found.is_contiguous(memory_format=memory_format)
            samples.assert_same(found, expected.contiguous(memory_format=memory_format))
    assert known >= 8


def test_a_kept_divisor_is_not_that_of_another_type_or_padding() -> None:
    """What is counted once is used for the requests that it was counted for."""
    window = Window.directml(2, 3, 2, 1, 1)
    for dtype in (torch.float32, torch.float64):
        for include_padding in (False, True):
            image = torch.ones(1, 1, 6, 6, dtype=dtype)
            found = [slices.divisor(window, (6, 6), image, include_padding) for _ in range(2)]
            counted = slices.counts(window, (6, 6), image, include_padding).clamp(min=1)
            for each in found:
                # All windows have nine taps where padding counts.
                samples.assert_same(torch.as_tensor(each, dtype=dtype).expand(3, 3), counted)


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
