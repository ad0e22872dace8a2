"""Implementations of the operators: Triton for GPUs, compiled kernels for CPUs, plain PyTorch for
any device.
"""

import functools
import importlib.util
import os

import torch

from torch_dmlpool.backends import cpu, fallbacks, reference
from torch_dmlpool.backends.interface import Backend


def chosen(device_type: str) -> tuple[Backend, str | None]:
    """The backend for tensors on ``device_type`` (rule E7). On a CPU without a compiled library
    the second result says why there is none and what to do; else it is None.
    """
    # Triton's interpreter alone runs the kernels on CPU tensors, and it must be chosen before
    # triton is imported.
    interprets = device_type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    is_gpu = device_type == "cuda" and torch.cuda.is_available()
    if (interprets or is_gpu) and not fallbacks.is_turned_off():
        if importlib.util.find_spec("triton") is not None:
            from torch_dmlpool.backends import triton

            return triton.BACKEND, None
        if is_gpu:
            fallbacks.warn("Triton is not installed")
    missing = None
    if device_type == "cpu":
        if cpu.library is not None:
            return cpu.BACKEND, None
        missing = cpu.missing
    return reference.BACKEND, missing


@functools.cache
def serving(device_type: str) -> Backend:
    """The backend for tensors on ``device_type``. It warns once if the CPU has no library."""
    backend, missing = chosen(device_type)
    if missing is not None:
        fallbacks.warn_of_slowness(
            "CPU tensors use plain PyTorch operations, several times slower than compiled kernels: "
            f"{missing}"
        )
    return backend
