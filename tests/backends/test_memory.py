"""Large results in large pages (G7: nothing but the time they take depends on it)."""

from __future__ import annotations

import mmap

import pytest
import samples
import torch

from torch_dmlpool.backends import memory


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """What the system is told, instead of telling it."""
    calls: list[tuple[int, int, int]] = []

    def tell(*call: int) -> None:
        calls.append(call)  # type: ignore[arg-type]

    monkeypatch.setattr(memory, "_madvise", lambda: tell)
    return calls


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="Linux has such pages")
def test_whole_pages_of_large_results_alone(advised: list[tuple[int, int, int]]) -> None:
    like = samples.normal(1, 1, 1)
    memory.empty((1, 1, memory.LARGE // 4 - 1), like, torch.contiguous_format)
    memory.empty((1, 1, memory.LARGE), like.to("meta"), torch.contiguous_format)
    assert advised == []
    result = memory.empty((2, 3, memory.LARGE // 4), like, torch.contiguous_format, torch.float64)
    ((start, length, advice),) = advised
    assert advice == mmap.MADV_HUGEPAGE
    assert start % mmap.PAGESIZE == length % mmap.PAGESIZE == 0
    assert result.data_ptr() <= start < result.data_ptr() + mmap.PAGESIZE
    assert result.nbytes - 2 * mmap.PAGESIZE < length <= result.data_ptr() + result.nbytes - start


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="Linux has such pages")
def test_the_system_takes_the_advice_as_such() -> None:
    """Whatever it makes of it, memory is there and may be written."""
    assert memory._madvise() is not None
    result = memory.empty((1, 1, memory.LARGE), samples.normal(1), torch.contiguous_format, torch.uint8)
    assert int(result.fill_(1).sum()) == memory.LARGE


def test_systems_without_such_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    memory._madvise.cache_clear()
    try:
        assert memory._madvise() is None
        assert memory.empty((1, 1, memory.LARGE), samples.normal(1), torch.contiguous_format).shape[-1] == memory.LARGE
    finally:
        memory._madvise.cache_clear()
