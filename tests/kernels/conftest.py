"""The interpreter is chosen when triton is imported, so a run has either interpreted kernels or compiled ones."""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
NEED_THE_INTERPRETER = ("test_additions.py",)
NEED_THE_COMPILER = ("test_emulator.py", "test_every_launch.py", "test_static.py")


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


class Ran(NamedTuple):
    """A launch: its kernel's name without the module, and its constants."""

    kernel: str
    constants: dict[str, Any]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Ran]:
    """What a test launches, in order: on CPU tensors, by the interpreter or, compiled for sm_90, by the emulator."""
    import torch_dmlpool.backends
    from torch_dmlpool.backends import triton as backend

    record: list[Ran] = []
    run = backend.launch
    if not INTERPRETED:
        from emulator.launches import launch as run

        monkeypatch.setattr(backend, "target", lambda _: "sm_90")
        monkeypatch.setattr(torch_dmlpool.backends, "serving", lambda _: backend)

    def recording(how: Any, *arguments: object) -> None:
        record.append(Ran(how.kernel.split(".")[1], dict(how.constants)))
        run(how, *arguments)

    monkeypatch.setattr(backend, "launch", recording)
    return record


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every launch takes the 64-bit form, which tensors of more than 2³¹ elements need."""
    from torch_dmlpool.kernels import average_pooling_launch, launch, max_pooling_launch

    modules = average_pooling_launch, max_pooling_launch
    caches = [each for module in modules for each in vars(module).values() if hasattr(each, "cache_clear")]
    monkeypatch.setattr(launch, "WIDE_FROM", 0)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()
