"""How operators get along on a busy machine: fewer threads after a stall, for a while, and the same bits (E3)."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import samples
import torch

import torch_dmlpool.backends
from torch_dmlpool.backends import aten, tape, threads, torch_backend
from torch_dmlpool.window import Window

pytestmark = pytest.mark.skipif(
    "OpenMP" not in torch.__config__.parallel_info(), reason="PyTorch's threads are not OpenMP's here"
)


class Clock:
    """Time that passes when told so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Eight threads that have never stalled, and a clock that stands still."""
    clock = Clock()
    monkeypatch.setattr(threads.time, "monotonic", clock)
    for name, value in (("_stalls", 0), ("_calm_until", 0.0), ("_calm", 0.0)):
        monkeypatch.setattr(threads, name, value)
    return clock


@pytest.fixture(autouse=True)
def eight_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    yield
    torch.set_num_threads(before)


@threads.considerate
def threads_at_hand() -> int:
    return torch.get_num_threads()


def test_each_stall_in_a_row_halves_the_threads_for_twice_as_long(clock: Clock) -> None:
    assert threads_at_hand() == 8
    for stalls, expected in enumerate((4, 2, 1, 1), 1):
        threads.stalled()
        calm = threads.CALM_AFTER * 2 ** (stalls - 1)
        assert threads_at_hand() == expected
        clock.now += 0.99 * calm
        assert threads_at_hand() == expected
        clock.now += 0.02 * calm
        assert threads_at_hand() == 8


def test_calm_has_a_limit_and_old_stalls_are_forgotten(clock: Clock) -> None:
    for _ in range(2000):
        threads.stalled()
    clock.now += 1.01 * threads.LONGEST_CALM
    assert threads_at_hand() == 8
    clock.now += threads.LONGEST_CALM
    threads.stalled()
    assert threads_at_hand() == 4
    clock.now += 1.01 * threads.CALM_AFTER
    assert threads_at_hand() == 8


def test_other_threads_keep_theirs(clock: Clock) -> None:
    """What is set aside for a moment is the calling thread's, also where a thread starts in that very moment."""
    counts: list[int] = []
    threads.stalled()
    with threads.fewer():
        caller = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
        caller.start()
        caller.join()
        counts.append(torch.get_num_threads())
    assert counts == [8, 4]


def test_threads_come_back_after_an_error(clock: Clock) -> None:
    threads.stalled()
    with pytest.raises(ValueError, match="on purpose"), threads.fewer():
        raise ValueError("on purpose")
    assert torch.get_num_threads() == 8


def test_without_openmp_all_threads_stay(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_setter", lambda: None)
    threads.stalled()
    assert threads_at_hand() == 8
    assert not threads.can_be_fewer()


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
def test_a_stall_in_the_middle_changes_no_bit(layout: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """E3: every operation takes too long, so that all but the first block is done by fewer threads."""
    monkeypatch.setattr(torch_dmlpool.backends, "serving", lambda _: torch_backend)
    window = Window.directml(2, 3, 2, 1, 1)
    input = samples.LAYOUTS[layout](samples.normal(9, 16, 60, 50))

    def results() -> list[bytes]:
        values, kept = torch_backend.max_pooling_with_taps(input, window)
        found = [
            torch_backend.max_pooling(input, window),
            values,
            kept,
            torch_backend.max_pooling_grad_from_taps(values, kept, input.shape[2:], window, layout == "channels last"),
            torch_backend.average_pooling(input, window, False, None),
            torch_backend.average_pooling_grad(values, input.shape[2:], window, False, None),
        ]
        return [samples.bits(tensor).tobytes() for tensor in found]

    monkeypatch.setattr(aten, "SAMPLES_BLOCK", 16 * 60 * 50)
    for patient in (tape, aten):
        monkeypatch.setattr(patient, "PATIENCE", 1e9)
    expected = results()
    assert threads._stalls == 0
    for patient in (tape, aten):
        monkeypatch.setattr(patient, "PATIENCE", -1.0)
    assert results() == expected
    assert threads._stalls > 1
    assert torch.get_num_threads() == 8


def test_blocks_after_a_slow_one_are_for_fewer_threads(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the blocks are done, or given up."""
    seconds = Clock()
    monkeypatch.setattr(threads.time, "perf_counter", seconds)
    for last in (3, 2):
        counted = []
        blocks = threads.watched(range(4), patience=0.01)
        for block in blocks:
            counted.append(torch.get_num_threads())
            seconds.now += 0.02 if block == 1 else 0.001
            if block == last:
                break
        blocks.close()  # type: ignore[attr-defined]
        assert counted == [8, 8, 4, 4][: last + 1]
        assert torch.get_num_threads() == 8
        clock.now += 1000
