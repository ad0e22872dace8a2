"""Small cases on the paths of large ones."""

from __future__ import annotations

import inspect

import pytest

from torch_dmlpool.backends import aten, tape, torch_average_pooling, torch_max_pooling


def cut_up(monkeypatch: pytest.MonkeyPatch, elements: int, patience: float = tape.PATIENCE) -> None:
    """Blocks of so many elements, and nothing left to ATen, so that small cases take the paths of large ones."""
    monkeypatch.setattr(tape, "block_elements", lambda: elements)
    monkeypatch.setattr(tape, "PATIENCE", patience)
    monkeypatch.setattr(aten, "MAX_WORK", -1)
    monkeypatch.setattr(aten, "AVERAGE_WORK", -1)
    for decided in (torch_max_pooling.way_of_maxima, torch_average_pooling.way_of_averages):
        monkeypatch.setattr(decided, "_kept", {})
    monkeypatch.setattr(aten, "_request", inspect.unwrap(aten._request))
