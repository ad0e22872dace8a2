"""The interpreter is chosen when triton is imported, so a run has either interpreted kernels or compiled ones."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from emulator.launches import Emulated

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
NEED_THE_INTERPRETER = (
    "test_adaptive_pooling.py",
    "test_additions.py",
    "test_average_pooling.py",
    "test_large_tensors.py",
    "test_max_pooling.py",
    "test_quantized_average_pooling.py",
)
NEED_THE_COMPILER = ("test_emulated_launches.py", "test_emulator.py", "test_every_launch.py", "test_static.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name != "kernels":
            continue
        # numpy computes for the interpreter, and warns where a GPU quietly makes a NaN.
        item.add_marker(pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning"))
        if item.path.name in NEED_THE_INTERPRETER and not INTERPRETED:
            item.add_marker(pytest.mark.skip(reason="runs kernels on CPU tensors: set TRITON_INTERPRET=1"))
        if item.path.name in NEED_THE_COMPILER and INTERPRETED:
            item.add_marker(pytest.mark.skip(reason="compiles kernels: TRITON_INTERPRET=1 replaces the compiler"))


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Emulated:
    """The Triton backend's launches run on CPU tensors, as compiled for sm_90."""
    from emulator.launches import Emulated

    from torch_dmlpool.backends import triton as backend

    result = Emulated()
    monkeypatch.setattr(backend, "launch", result.launch)
    monkeypatch.setattr(backend, "target", lambda _: "sm_90")
    return result
