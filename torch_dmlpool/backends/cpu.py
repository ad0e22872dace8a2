"""The CPU backend: binds the compiled kernels (kernels/*.cpp) through ctypes.

The libraries take pointers, a struct of numbers and PyTorch's own threads, so they are tied to no version of Python or
PyTorch. ``library`` is None where none was built for this processor; ``missing`` then says what to do.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands

# Until they are compiled too.
from torch_dmlpool.backends.torch_backend import (
    adaptive_average_pooling,
    adaptive_average_pooling_grad,
    adaptive_max_pooling,
    average_pooling,
    average_pooling_grad,
    gather_positions,
    kept_dtype,
    max_pooling_gather,
    max_pooling_grad,
    max_pooling_grad_from_taps,
    max_pooling_indices,
    max_pooling_with_indices,
    max_pooling_with_taps,
    quantized_linear_average_pooling,
    scatter_positions,
    unique_positions,
)
from torch_dmlpool.window import Window

__all__ = [
    "adaptive_average_pooling",
    "adaptive_average_pooling_grad",
    "adaptive_max_pooling",
    "average_pooling",
    "average_pooling_grad",
    "gather_positions",
    "kept_dtype",
    "max_pooling",
    "max_pooling_gather",
    "max_pooling_grad",
    "max_pooling_grad_from_taps",
    "max_pooling_indices",
    "max_pooling_with_indices",
    "max_pooling_with_taps",
    "quantized_linear_average_pooling",
    "scatter_positions",
    "unique_positions",
]

DATA_TYPES = {dtype: number for number, dtype in enumerate((
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64,
))}  # fmt: skip
"""The numbers of the data types in kernels/pooling.h."""
LEVELS = {"AVX512": ("avx512", "avx2"), "AVX2": ("avx2",)}
"""The libraries that suit a processor, the fastest first, by what PyTorch says that it can do."""


class Axis(ctypes.Structure):
    """``Axis`` of kernels/pooling.h."""

    _fields_ = [(name, ctypes.c_int64) for name in ("size", "outputs", "window", "stride", "padding", "dilation")]


class Problem(ctypes.Structure):
    """``Problem`` of kernels/pooling.h."""

    _fields_ = [
        ("planes", ctypes.c_int64),
        ("lanes", ctypes.c_int64),
        ("axes", Axis * 3),
        ("threads", ctypes.c_int64),
    ]


_UNIT = (1, 1, 1, 1, 0, 1)
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_ARGUMENTS = {
    "dmlpool_use_threads": (_POINTER,),
    "dmlpool_max_pooling": (_INT, _POINTER, _POINTER, _POINTER),
}


def _load() -> tuple[Any, str | None]:
    """The library for this processor, or why there is none."""
    capability = torch.backends.cpu.get_cpu_capability()
    names = [f"cpu_{level}.so" for level in LEVELS.get(capability, ("default",))]
    spec = importlib.util.find_spec("torch_dmlpool.kernels")
    folders = spec.submodule_search_locations if spec is not None else None
    paths = [Path(folder) / name for name in names for folder in folders or ()]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return None, (
            f"{names[-1]} was not built: install a C++ compiler (g++ or clang++), then torch_dmlpool again, from source"
        )
    try:
        library = ctypes.CDLL(str(path))
        ending = "dylib" if sys.platform == "darwin" else "so"
        threads = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"libtorch_cpu.{ending}")).torch_parallel_for
        for name, types in _ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, None
    except (OSError, AttributeError) as error:
        return None, f"{path.name} cannot be used: {error}; install torch_dmlpool again, from source"
    library.dmlpool_use_threads(ctypes.cast(threads, _POINTER))
    return library, None


library, missing = _load()


@functools.lru_cache(maxsize=4096)
def _planned(
    shape: tuple[int, ...], window: Window, channels_last: bool, threads: int
) -> tuple[int, tuple[int, ...], Problem]:
    """The address of the geometry as the library takes it, the output's sizes, and the struct itself."""
    samples, channels, *sizes = shape
    outputs = window.output_sizes(sizes)
    axes = [Axis(*_UNIT)] * (3 - len(sizes))
    axes += [
        Axis(size, count, axis.window, axis.stride, axis.start_padding, axis.dilation)
        for size, count, axis in zip(sizes, outputs, window.axes, strict=True)
    ]
    planes, lanes = (samples, channels) if channels_last else (samples * channels, 1)
    problem = Problem(planes, lanes, (Axis * 3)(*axes), threads)
    return ctypes.addressof(problem), (samples, channels, *outputs), problem


def _laid_out(tensor: Tensor, memory_format: torch.memory_format) -> Tensor:
    """``tensor`` in one of the two layouts that the kernels read."""
    return (
        tensor if tensor.is_contiguous(memory_format=memory_format) else tensor.contiguous(memory_format=memory_format)
    )


def _empty(sizes: Sequence[int], dtype: torch.dtype, memory_format: torch.memory_format) -> Tensor:
    return torch.empty(sizes, dtype=dtype, memory_format=memory_format)


# Max pooling.


def max_pooling(input: Tensor, window: Window) -> Tensor:
    """Maxima alone."""
    memory_format = operands.suggested_memory_format(input)
    channels_last = memory_format is not torch.contiguous_format
    address, sizes, _ = _planned(input.shape, window, channels_last, torch.get_num_threads())
    output = _empty(sizes, input.dtype, memory_format)
    if output.numel():
        input = _laid_out(input, memory_format)
        library.dmlpool_max_pooling(DATA_TYPES[input.dtype], input.data_ptr(), output.data_ptr(), address)
    return output
