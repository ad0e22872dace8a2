"""Implementations of the operators: Triton for GPUs, compiled kernels for CPUs, plain PyTorch for
any device.
"""

import functools
import importlib.util
import os
from types import ModuleType

import torch

from torch_dmlpool.backends import fallbacks


@functools.cache
def serving(device_type: str) -> ModuleType:
    """The backend for tensors on ``device_type`` (rule E7)."""
    # Triton's interpreter alone runs the kernels on CPU tensors, and it must be chosen before
    # triton is imported.
    interprets = device_type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    is_gpu = device_type == "cuda" and torch.cuda.is_available()
    if (interprets or is_gpu) and not fallbacks.is_turned_off():
        if importlib.util.find_spec("triton") is not None:
            from torch_dmlpool.backends import triton

            return triton
        if is_gpu:
            fallbacks.warn("Triton is not installed")
    if device_type == "cpu":
        from torch_dmlpool.backends import cpu

        if cpu.library is not None:
            return cpu
    from torch_dmlpool.backends import reference

    return reference
