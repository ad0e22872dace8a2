"""Memory for results, in large pages where it is large.

The C library keeps up to 32 MiB for the next call. More it takes anew from the system, which clears it page by page
when it is first written: with pages of 4 KiB that takes several times as long as pooling what goes there.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands

LARGE = 2**25
"""Bytes from which on memory is fresh each time."""


def empty(
    sizes: Sequence[int], like: Tensor, memory_format: torch.memory_format, dtype: torch.dtype | None = None
) -> Tensor:
    """Like :func:`torch_dmlpool.operands.empty`, for a backend to write."""
    result = operands.empty(sizes, like, memory_format, dtype)
    if result.is_cpu and result.nbytes >= LARGE:
        _ask_for_large_pages(result)
    return result


def _ask_for_large_pages(tensor: Tensor) -> None:
    """Advice alone: a system that does not follow it, or does not know it, goes on as before."""
    advise = _madvise()
    if advise is not None:
        start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        length = tensor.data_ptr() + tensor.nbytes - start
        advise(start, length // mmap.PAGESIZE * mmap.PAGESIZE, mmap.MADV_HUGEPAGE)  # type: ignore[attr-defined,unused-ignore]


@functools.cache
def _madvise() -> Callable[[int, int, int], Any] | None:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    advise: Callable[[int, int, int], Any] = function
    return advise
