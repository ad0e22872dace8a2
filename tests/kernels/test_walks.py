"""The walks with scratch, for large windows: under the interpreter, against the oracle; and how their work divides."""

from __future__ import annotations

import oracle
import pytest
import samples
import torch
from kernel_checks import Ran, Recorder, awkward, backend, pooling_of
from torch_dmlpool.kernels import average_pooling_walk_launch, max_pooling_walk_launch, sums, walks

from torch_dmlpool.backends import triton as triton_launches
from torch_dmlpool.window import Window


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Ran]:
    """What the calls of a test launch, in order."""
    recorder = Recorder(triton_launches.earlier_launch)
    monkeypatch.setattr(triton_launches, "earlier_launch", recorder)
    return recorder.record


KEYS, PAIRS = max_pooling_walk_launch.KEYS, max_pooling_walk_launch.PAIRS
MAXIMA = {
    "keys": (torch.bfloat16, (1, 2, 6, 8), Window.directml(2, (17, 16), 1, (9, 8), (8, 9)), "contiguous", KEYS),
    "keys along channels": (
        torch.float16, (1, 4, 6, 9), Window.directml(2, (16, 17), 1, (8, 9), (9, 8)), "channels last", KEYS,
    ),
    "pairs": (torch.float32, (2, 2, 6, 8), Window.directml(2, (18, 17), 1, (9, 8), (9, 10)), "contiguous", PAIRS),
    "pairs along channels": (
        torch.float32, (1, 3, 6, 9), Window.directml(2, (3, 31), 1, (2, 17), (1, 15)), "channels last", PAIRS,
    ),
    "integers along channels": (
        torch.int8, (1, 4, 9, 9), Window.directml(2, (18, 17), 1, (9, 8), (9, 10)), "channels last", PAIRS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MAXIMA)
def test_maxima(name: str, ran: list[Ran]) -> None:
    """M1 to M4, M6: values, taps and indices: the first maximum or NaN in row-major order, never padding."""
    dtype, sizes, window, layout, mode = MAXIMA[name]
    input = samples.LAYOUTS[layout](awkward(*sizes, dtype=dtype))
    expected = oracle.maximum(samples.to_numpy(input), pooling_of(window))
    values, taps = backend.max_pooling_with_taps(input, window)
    samples.assert_same(values, expected.values)
    samples.assert_same(taps, expected.taps)
    assert [(one.kernel, one.launch.constants["MODE"]) for one in ran] == [("max_walk", mode)]
    if layout == "channels last":
        samples.assert_same(backend.max_pooling(input, window), expected.values)
        assert ran[-1].kernel == "max_walk"
        values, indices = backend.max_pooling_with_indices(input, window, torch.int64, True)
        samples.assert_same(values, expected.values)
        samples.assert_same(indices, expected.plane_indices)
        assert [one.kernel for one in ran[-2:]] == ["max_walk", "at_taps"]


AVERAGES = {
    "float32": (torch.float32, (1, 2, 7, 9), Window.directml(2, (12, 17), 1, (6, 8), (6, 8)), "channels last"),
    "float16": (torch.float16, (2, 8, 12, 20), Window.directml(2, (9, 8), 1, (3, 0), (7, 12)), "channels last"),
    "several programs": (torch.float32, (1, 3, 40, 19), Window.directml(2, (8, 9), 1, (0, 4), (7, 4)), "channels last"),
    "windows above all": (
        torch.float32,
        (1, 2, 5, 8),
        Window.directml(2, (8, 8), 1, (19, 3), (0, 12)),
        "channels last",
    ),
    "rows of float32": (torch.float32, (2, 3, 7, 24), Window.directml(2, (12, 17), 1, (6, 8), (6, 8)), "contiguous"),
    "rows of float16": (torch.float16, (1, 5, 12, 16), Window.directml(2, (9, 9), 1, (3, 0), (7, 16)), "contiguous"),
    "rows of float64": (torch.float64, (1, 2, 9, 10), Window.directml(2, (10, 9), 1, (9, 8), (0, 2)), "contiguous"),
    "odd rows": (torch.float32, (1, 2, 40, 19), Window.directml(2, (9, 10), 1, (0, 4), (8, 4)), "contiguous"),
    "rows above all": (torch.bfloat16, (3, 2, 5, 8), Window.directml(2, (9, 9), 1, (20, 3), (0, 13)), "contiguous"),
    "unaligned rows": (torch.float32, (1, 2, 9, 24), Window.directml(2, (9, 12), 1, (4, 5), (4, 6)), "storage offset"),
}


@pytest.mark.parametrize("name", AVERAGES)
@pytest.mark.parametrize("adjoint", [False, True])
def test_averages(name: str, adjoint: bool, ran: list[Ran]) -> None:
    """A1 to A6, E6: forward and adjoint, every kind of divisor, within the bound of a balanced tree."""
    dtype, sizes, window, layout = AVERAGES[name]
    for include_padding, divisor in ((True, None), (False, None)):
        if not adjoint:
            input = samples.LAYOUTS[layout](samples.normal(*sizes, dtype=dtype))
            exact = oracle.average(samples.to_numpy(input), pooling_of(window), include_padding, divisor)
            result = backend.average_pooling(input, window, include_padding, divisor)
            samples.assert_average(result, *exact, window.taps)
        else:
            outputs = (*sizes[:2], *window.output_sizes(sizes[2:]))
            gradient = samples.LAYOUTS[layout](samples.normal(*outputs, dtype=dtype))
            exact = oracle.average_grad(
                samples.to_numpy(gradient), sizes[2:], pooling_of(window), include_padding, divisor
            )
            result = backend.average_pooling_grad(gradient, sizes[2:], window, include_padding, divisor)
            samples.assert_gradient(result, *exact, window.taps)
    assert {one.kernel for one in ran} == {"sum_walk"}


def test_additions_of_an_average() -> None:
    """E6: no term goes through more additions than the bound has roundings, beside the one of the division.

    Counted by formulas, for all windows that are walked; ``test_additions.py`` counts what the kernels do.
    """
    for rows in range(7, 65):
        down = (rows - 1).bit_length()  # blocks of 2, 4, 8, ... rows
        assert sum(sums.remembered.fn(rows, level) for level in range(rows.bit_length())) == rows - 1
        for columns in range(7, 65):
            allowed = (rows * columns - 1).bit_length() + 1
            shared = average_pooling_walk_launch.shared_columns(rows, columns)
            assert sums.additions.fn(columns, shared) + down <= allowed
            blocks = (columns - 1).bit_length()  # of 2, 4, 8, ... columns, where a core would be too deep
            shallow = sums.core_is_shallow.fn(rows, columns, average_pooling_walk_launch.NEIGHBOURS)
            assert (sums.additions.fn(columns, 8) if shallow else blocks) + down <= allowed


@pytest.mark.parametrize("columns", [1, 8, 50, 112, 1000])
def test_every_output_has_a_task(columns: int) -> None:
    """Groups, columns and rows are covered, no block is wider than a program, and programs are equally busy."""
    for rows, window, shared in ((1, 31, 8), (112, 31, 8), (500, 7, 4)):
        made = (
            walks.walk_of_channels(3, 20, 4, rows, columns, window, shared, 2 * shared),
            walks.walk_of_planes(60, rows, columns, 4, window, shared, 2 * shared, 100),
        )
        for walk, members, each in zip(made, (20, 60), (1, 4), strict=True):
            assert walk.groups * walk.group >= members
            assert walk.blocks * walk.width >= columns
            assert walk.strips * walk.rows >= rows
            assert (walk.rows + window - 1) % (2 * shared) == 0
            assert walk.width % shared == 0
            assert walk.width * walk.group <= walks.LANES * each
            assert walk.programs * -(-walk.tasks // walk.programs) - walk.tasks < walk.programs
