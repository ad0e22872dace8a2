"""Tests of the PyTorch backend."""

from __future__ import annotations

import pytest

import torch_dmlpool.backends
from torch_dmlpool.backends import torch_backend


@pytest.fixture(autouse=True)
def served_by_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under Triton's interpreter too, these tests are about this backend."""
    monkeypatch.setattr(torch_dmlpool.backends, "serving", lambda _: torch_backend)
