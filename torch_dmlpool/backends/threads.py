"""How many of PyTorch's threads an operator on the CPU uses at this moment.

Every operation on all threads waits for the last of them, and on a machine that others use too the scheduler may let
that one wait for milliseconds. So operators watch the clock: where an operation takes far longer than its size
explains, what is left and all calls of the next moments run on half the threads, or a quarter, down to one.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

CALM_AFTER, LONGEST_CALM = 0.03, 1.0
"""Seconds on fewer threads after an operation stalled; doubled each time in a row, up to a limit."""
FORGOTTEN_AFTER = 0.1
"""Seconds, or as many as were just calm, that all threads must do well for the next stall to be the first of a row
again: a hiccup now and then is not a busy machine."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Block = TypeVar("Block")

_calm_until = 0.0
_calm = 0.0
_stalls = 0


def stalled() -> None:
    """Take note that an operation waited for a thread."""
    global _calm_until, _calm, _stalls
    now = time.monotonic()
    in_a_row = now - _calm_until < max(FORGOTTEN_AFTER, _calm)
    _stalls = _stalls + 1 if in_a_row else 1
    _calm = min(2 * _calm, LONGEST_CALM) if in_a_row else CALM_AFTER
    _calm_until = now + _calm


def considerate(operator: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Run an operator on fewer threads for a while after one stalled."""

    @functools.wraps(operator)
    def run(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        if time.monotonic() >= _calm_until:
            return operator(*arguments, **options)
        with fewer():
            return operator(*arguments, **options)

    return run


def can_be_fewer() -> bool:
    """Whether there are threads to do without, and a way to."""
    return torch.get_num_threads() > 1 and _setter() is not None


@contextmanager
def fewer() -> Iterator[None]:
    """Inside, PyTorch uses a share of this thread's threads: the smaller, the more operations stalled in a row."""
    setter, all_threads = _setter(), torch.get_num_threads()
    if setter is None:
        yield
        return
    setter(max(1, all_threads >> _stalls))
    try:
        yield
    finally:
        setter(all_threads)


def watched(blocks: Iterable[Block], patience: float) -> Iterator[Block]:
    """The blocks of an operator's work; after one that takes so many seconds, the rest are for fewer threads."""
    with ExitStack() as until_the_end:
        for block in blocks:
            started = time.perf_counter()
            yield block
            if time.perf_counter() - started > patience and can_be_fewer():
                stalled()
                until_the_end.enter_context(fewer())


@functools.cache
def _setter() -> Callable[[int], Any] | None:
    """OpenMP's own function, which speaks for the calling thread alone; None where PyTorch does without OpenMP.

    ``torch.set_num_threads`` would speak for threads that start meanwhile, too.
    """
    libraries = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib", "libiomp5md.dll", "libomp.dll"):
        try:
            function = ctypes.CDLL(str(libraries / name)).omp_set_num_threads
        except (OSError, AttributeError):
            continue
        function.argtypes, function.restype = [ctypes.c_int], None
        if _limits(function):
            return function
    return None


def _limits(function: Callable[[int], Any]) -> bool:
    """Whether PyTorch listens to it."""
    threads = torch.get_num_threads()
    function(threads + 1)
    listens = torch.get_num_threads() == threads + 1
    function(threads)
    return listens
