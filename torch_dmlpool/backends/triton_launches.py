"""How the Triton backend launches: on which device and stream, for which target, remembered or recorded.

A launch goes to the tensor's own device and that device's current stream; nothing waits for the device, so that CUDA
graphs can capture every call.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

_records: ContextVar[bool] = ContextVar("whether launches are recorded", default=False)


@lru_cache
def kernel_named(module: str, name: str) -> Any:
    """A kernel by name; the statement ``import`` would cost each call some microseconds."""
    return getattr(importlib.import_module(f"torch_dmlpool.kernels.{module}"), name)


def target(tensor: Tensor) -> str:
    """Which of the kernels' twins runs: inline assembly and its like are for CUDA alone."""
    if tensor.device.type != "cuda":
        return "interpreter"
    if torch.version.hip:
        return "hip"
    generation = _generation(tensor.device.index)
    return "sm_90" if generation >= 9 else "cuda" if generation == 8 else "sm_70"


@lru_cache
def _generation(device: int) -> int:
    """The first part of a CUDA device's compute capability."""
    return torch.cuda.get_device_capability(device)[0]


def launch(kernel: Any, how: Any, *tensors: Tensor) -> None:
    """Run ``kernel`` over ``tensors`` as ``how`` says; the device is made current only where it is not."""
    if _records.get():
        grid, warps = (how.programs,), _warps(how)
        torch.library.wrap_triton(kernel)[grid](*tensors, *how.sizes, **how.constants, num_warps=warps)
        return
    device = tensors[0].device
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        _run(kernel, how, tensors, device.index)
        return
    with torch.cuda.device(device):
        _run(kernel, how, tensors, device.index)


def _run(kernel: Any, how: Any, tensors: tuple[Tensor, ...], device: int | None) -> None:
    """Run a kernel on the current device; what Triton compiled for the same launch before is called directly.

    All that Triton would look at again is in ``how`` but the tensors' types and whether they are aligned.
    """
    key: tuple[Any, ...] = (id(kernel), device)
    for tensor in tensors:
        if isinstance(tensor, Tensor):
            key += (tensor.dtype, tensor.data_ptr() % 16 == 0)
        else:  # a number: integers are part of what is compiled
            key += (type(tensor), tensor if type(tensor) is int else None)
    found = how.compiled.get(key)
    if found is not None:
        compiled, constants = found
        compiled[(how.programs, 1, 1)](*tensors, *how.sizes, *constants)
        return
    # Said aloud because Triton's default is about to change, and Triton 3.9 warns of that at every compilation.
    options = {"num_warps": _warps(how), "enable_fp_fusion": True}
    compiled = kernel[(how.programs,)](*tensors, *how.sizes, **how.constants, **options)
    if compiled is not None:  # as it is in the interpreter
        names = kernel.arg_names[len(tensors) + len(how.sizes) :]
        how.compiled[key] = compiled, tuple(how.constants[name] for name in names)


def _warps(how: Any) -> int:
    """A lane per thread: AMD's wavefronts of 64 threads need half as many."""
    warps: int = how.num_warps
    return warps // 2 if torch.version.hip else warps


@contextmanager
def recorded() -> Iterator[None]:
    """Inside, launches on fake tensors become nodes of the graph that is being traced (``torch.library.wrap_triton``).

    Memory is taken to be aligned, as it is where compiled graphs allocate it; of their inputs they see to it.
    """
    token = _records.set(True)
    try:
        yield
    finally:
        _records.reset(token)


def unused(tensor: Tensor) -> Tensor:
    """What a kernel gets that neither reads nor writes it: ``tensor``, but in a graph nothing may be named twice."""
    return torch.empty(1, dtype=tensor.dtype, device=tensor.device) if _records.get() else tensor


def is_aligned(*tensors: Tensor) -> bool:
    """Whether every tensor starts at a multiple of 16 bytes: only then Triton emits its widest loads and stores."""
    if _records.get():
        return all(tensor.storage_offset() * tensor.itemsize % 16 == 0 for tensor in tensors)
    return all(tensor.data_ptr() % 16 == 0 for tensor in tensors)
