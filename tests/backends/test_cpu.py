"""The CPU backend's promises that no result shows: memory beside operands, foreign taps, numbers
that no kernel knows."""

import ctypes
import os
from pathlib import Path

import cases
import pytest
import samples
import torch

from torch_dmlpool.backends import cpu, library, problems
from torch_dmlpool.backends.interface import Kind
from torch_dmlpool.window import Window

pytestmark = cases.OF_THE_LIBRARY
MEBIBYTE = 2**20
ROWS = Path(__file__).with_name("rows.py")


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="reads Linux's account of a process's memory"
)
@pytest.mark.parametrize(
    ("size", "limit"),
    [
        pytest.param(2**21, 12 * MEBIBYTE, id="2M"),
        pytest.param(2**24, 64 * MEBIBYTE, id="16M", marks=pytest.mark.slow),
    ],
)
def test_memory_beside_operands_is_bounded(size, limit, python):
    """No table grows with a row: 2^24 elements take at most 64 MB beside operands, under a mask
    and in its gradient too (K4)."""
    # Freed memory goes back to the system at once, so that none hides what the next call takes.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "2"}
    output = python(ROWS, size, environment=environment).stdout
    taken = [line.split("\t") for line in output.splitlines()]
    assert len(taken) == 15 + 7 * 4
    assert not [(most, name) for most, name in taken if int(most) > limit]


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize(
    ("window_size", "dtype"),
    [(2, torch.uint8), (9, torch.uint8), (20, torch.int16), (70, torch.int16), (200, torch.int32)],
)
def test_a_tap_that_no_window_has_lies_nowhere(window_size, dtype, layout):
    """Taps come from outside: one below 0 or past a window's last takes no part in the gradient
    and has the index -1, and what it stands beside is as without it."""
    window = Window.directml(2, window_size=window_size, strides=1, start_padding=1, end_padding=1)
    sizes = window_size + 3, window_size + 2
    outputs = window.output_sizes(sizes)
    taps = torch.randint(window_size**2, (2, 33, *outputs), generator=samples.seeded(*sizes))
    limits = torch.iinfo(dtype)
    foreign = [
        number
        for number in (limits.min, -1, window_size**2, window_size**2 + 1, 4096, limits.max)
        if limits.min <= number <= limits.max and not 0 <= number < window_size**2
    ]
    which = torch.rand(taps.shape, generator=samples.seeded(*outputs)) < 0.3
    chosen = torch.tensor(foreign)[
        torch.randint(len(foreign), taps.shape, generator=samples.seeded(*outputs))
    ]
    taps = torch.where(which, chosen, taps).to(dtype)
    arriving = samples.normal(*taps.shape)
    if layout == "channels_last":
        taps, arriving = samples.channels_last(taps), samples.channels_last(arriving)
    is_last = layout == "channels_last"

    gradient = cpu.max_pooling_grad_from_taps(arriving, taps, sizes, window, is_last)
    known = torch.where(which, torch.zeros(()), arriving)
    harmless = torch.where(which, torch.zeros((), dtype=dtype), taps)
    if is_last:
        known, harmless = samples.channels_last(known), samples.channels_last(harmless)
    expected = cpu.max_pooling_grad_from_taps(known, harmless, sizes, window, is_last)
    assert torch.equal(gradient, expected)

    indices = cpu.max_pooling_indices(taps, sizes, window, torch.int64, True)
    assert bool((indices[which] == -1).all())
    allowed = cpu.max_pooling_indices(harmless, sizes, window, torch.int64, True)
    assert torch.equal(indices[~which], allowed[~which])


def problem(**changes):
    """A small problem with some numbers changed, and its address."""
    made = problems.problem_of(
        Kind((1, 1, 8), (8, 8, 1), torch.float32), Window.directml(1, window_size=2)
    )
    copy = library.Problem.from_buffer_copy(made.struct)
    for name, number in changes.items():
        setattr(copy, name, number)
    return copy, ctypes.addressof(copy)


@pytest.mark.parametrize("wrong", [-2, 16])
def test_a_wrong_index_is_found_before_elements_are_written(wrong, monkeypatch):
    """Max unpooling says that an index is outside its plane, and leaves its result as it was."""
    new = cpu._new
    monkeypatch.setattr(cpu, "_new", lambda *arguments: new(*arguments).fill_(7))
    indices = torch.tensor([0, 5, wrong, -1]).view(1, 1, 2, 2)
    for has_unique in (False, True):
        output, _, is_wrong = cpu.max_unpooling(
            torch.ones(1, 1, 2, 2), indices, (4, 4), True, has_unique
        )
        assert is_wrong
        assert torch.equal(output, torch.full((1, 1, 4, 4), 7.0))


@pytest.mark.parametrize(
    ("function", "changes", "reason"),
    [
        ("max_pooling", {"type": 13}, "no data type 13"),
        ("max_pooling", {"type": -1}, "no data type -1"),
        ("max_pooling", {"bytes": 3}, "no integer has this many bytes: 3"),
        ("max_pooling_indices", {"type": 99}, "no data type 99"),
        ("max_pooling_indices", {"type": 7}, "no tap has this many bytes: 8"),
        ("max_pooling_indices", {"type": 8, "bytes": 16}, "no integer has this many bytes: 16"),
        ("max_pooling_grad_from_taps", {"type": 4}, "no gradients of type 4"),
        ("max_pooling_grad_from_taps", {"bytes": 8}, "no tap has this many bytes: 8"),
        ("unique_positions", {"type": 4}, "no position has this many bytes: 1"),
        ("unique_positions", {"type": 7, "bytes": 2}, "no position has this many bytes: 2"),
        ("gather_positions", {"bytes": 1}, "no position has this many bytes: 1"),
        ("scatter_positions", {"bytes": 0}, "no position has this many bytes: 0"),
        ("scatter_positions", {"type": 13, "bytes": 8}, "no data type 13"),
        ("average_pooling", {"type": 6}, "no averages of type 6"),
        ("average_pooling_grad", {"type": 4}, "no averages of type 4"),
        ("quantized_averages", {"type": 0}, "no quantized averages of type 0"),
    ],
)
def test_a_number_that_no_kernel_knows_is_an_error(function, changes, reason):
    """Types and element sizes that a function does not know are refused, and nothing is written."""
    kept, address = problem(**changes)
    operands = [torch.full((1024,), 7, dtype=torch.uint8) for _ in range(3)]
    pointers = [operand.data_ptr() for operand in operands]
    call = getattr(library.library, f"dmlpool_{function}")
    code = call(address, *pointers[: len(call.argtypes) - 1])
    assert code == library.FAILED
    assert reason in str(library.error_of(call, code))
    if "bytes" not in changes:
        assert all(bool(operand.eq(7).all()) for operand in operands)
    del kept
