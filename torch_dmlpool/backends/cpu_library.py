"""The compiled CPU kernels as Python sees them: the library of this processor, its structs, and its geometry.

A library takes pointers, structs of numbers and PyTorch's own threads, so it is tied to no version of Python or
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

from torch_dmlpool import operands
from torch_dmlpool.window import Window

DATA_TYPES = {dtype: number for number, dtype in enumerate((
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64,
))}  # fmt: skip
"""The numbers of the data types in kernels/pooling.h."""
LEVELS = {"AVX512": ("avx512", "avx2", "default"), "AVX2": ("avx2", "default")}
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
    "dmlpool_max_pooling": (_INT, _POINTER, _POINTER, _POINTER, _INT, _INT, _POINTER),
    "dmlpool_average_pooling": (_INT, _POINTER, _POINTER, _POINTER, _POINTER),
    "dmlpool_average_pooling_grad": (_INT, _POINTER, _POINTER, _POINTER, _POINTER),
    "dmlpool_quantized_average_pooling": (_INT, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER),
    "dmlpool_max_pooling_indices": (_POINTER, _INT, _POINTER, _INT, _INT, _POINTER),
    "dmlpool_max_pooling_grad": (_INT, _POINTER, _POINTER, _INT, _POINTER, _POINTER),
    "dmlpool_max_pooling_gather": (_POINTER, _INT, _POINTER, _INT, _POINTER, _POINTER),
    "dmlpool_unique_positions": (_POINTER, _INT, _POINTER, _INT, _POINTER),
    "dmlpool_gather_positions": (_POINTER, _INT, _POINTER, _INT, _POINTER, _POINTER),
    "dmlpool_scatter_positions": (_INT, _POINTER, _POINTER, _INT, _POINTER, _POINTER),
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
            f"{names[0]} was not built: install a C++ compiler (g++ or clang++), then torch_dmlpool again, from source"
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
def planned(
    shape: tuple[int, ...], window: Window, channels_last: bool, threads: int
) -> tuple[int, tuple[int, ...], Problem]:
    """The address of the geometry as the library takes it, the output's sizes, and the struct itself."""
    outputs = window.output_sizes(shape[2:])
    axes = [
        (size, count, axis.window, axis.stride, axis.start_padding, axis.dilation)
        for size, count, axis in zip(shape[2:], outputs, window.axes, strict=True)
    ]
    # A window over whole rows is one along the axis before, whose elements are rows: taps keep their numbers.
    while len(axes) > 1 and not channels_last:
        size, count, taps, _, padding, dilation = axes[-1]
        if count != 1 or taps != size or padding != 0 or dilation != 1 or axes[-2][5] != 1:
            break
        rows, count, taps, stride, padding, _ = axes[-2]
        axes[-2:] = [(rows * size, count, taps * size, stride * size, padding * size, 1)]
    return _problem(shape, outputs, axes, channels_last, threads)


def layout(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[torch.memory_format, bool]:
    """The memory format of what is computed from such a tensor, and whether the tensor is in it."""
    like = torch.empty_strided(shape, strides, dtype=torch.uint8, device="meta")
    memory_format = operands.suggested_memory_format(like)
    return memory_format, like.is_contiguous(memory_format=memory_format)


def strides_of(sizes: tuple[int, ...], memory_format: torch.memory_format) -> tuple[int, ...]:
    """The strides of a new tensor: one that is made from strides takes half the time."""
    return torch.empty(sizes, dtype=torch.uint8, device="meta", memory_format=memory_format).stride()


@functools.lru_cache(maxsize=4096)
def arranged(
    shape: tuple[int, ...], strides: tuple[int, ...], window: Window, threads: int
) -> tuple[int, tuple[int, ...], tuple[int, ...], torch.memory_format, bool, int, Problem]:
    """The same for an input of ``strides``: also the output's strides, its format, whether the input is in it; taps."""
    memory_format, is_laid_out = layout(shape, strides)
    address, sizes, problem = planned(shape, window, memory_format is not torch.contiguous_format, threads)
    return address, sizes, strides_of(sizes, memory_format), memory_format, is_laid_out, window.taps, problem


@functools.lru_cache(maxsize=4096)
def planned_bins(
    shape: tuple[int, ...], outputs: tuple[int, ...], channels_last: bool, threads: int
) -> tuple[int, tuple[int, ...], Problem]:
    """The same for bins, or for positions in planes of ``shape``: a window of 0 says that there is none."""
    axes = [(size, count, 0, max(1, size // count), 0, 1) for size, count in zip(shape[2:], outputs, strict=True)]
    return _problem(shape, outputs, axes, channels_last, threads)


def _problem(
    shape: Sequence[int], outputs: Sequence[int], axes: list[Any], channels_last: bool, threads: int
) -> tuple[int, tuple[int, ...], Problem]:
    samples, channels = shape[:2]
    planes, lanes = (samples, channels) if channels_last else (samples * channels, 1)
    unit = (1, 1, axes[0][2] and 1, 1, 0, 1)
    all_axes = (Axis * 3)(*(Axis(*axis) for axis in [unit] * (3 - len(axes)) + axes))
    problem = Problem(planes, lanes, all_axes, threads)
    return ctypes.addressof(problem), (samples, channels, *outputs), problem


class Counting(ctypes.Structure):
    """``Counting`` of kernels/average_pooling.cpp."""

    _fields_ = [
        ("include_padding", ctypes.c_int64),
        ("divisor", ctypes.c_int64),
        ("end_padding", ctypes.c_int64 * 3),
    ]


class Quantization(ctypes.Structure):
    """``Quantization`` of kernels/average_pooling.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("input_scale", "output_scale", "input_zero", "output_zero")),
        *((name, ctypes.c_int64) for name in ("input_scales", "output_scales", "input_zeros", "output_zeros")),
        *((name, ctypes.c_int64) for name in ("channels", "low", "high")),
    ]


@functools.lru_cache(maxsize=4096)
def planned_average(
    shape: tuple[int, ...],
    window: Window,
    include_padding: bool,
    divisor: int | None,
    channels_last: bool,
    threads: int,
) -> tuple[int, int, tuple[int, ...], Any]:
    """The addresses of the geometry and of what is counted, the output's sizes, and the structs themselves."""
    outputs = window.output_sizes(shape[2:])
    axes = [
        (size, count, axis.window, axis.stride, axis.start_padding, axis.dilation)
        for size, count, axis in zip(shape[2:], outputs, window.axes, strict=True)
    ]
    address, sizes, problem = _problem(shape, outputs, axes, channels_last, threads)
    ends = [0] * (3 - window.rank) + [axis.end_padding for axis in window.axes]
    counting = Counting(include_padding, divisor or 0, (ctypes.c_int64 * 3)(*ends))
    return address, ctypes.addressof(counting), sizes, (problem, counting)


@functools.lru_cache(maxsize=4096)
def arranged_average(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    inner_sizes: tuple[int, ...] | None,
    window: Window,
    include_padding: bool,
    divisor: int | None,
    threads: int,
) -> tuple[int, int, tuple[int, ...], tuple[int, ...], torch.memory_format, bool, Any]:
    """The same for an input of ``strides``, or for a gradient of them that arrives for an input of ``inner_sizes``.

    Also the strides of the result, its format, and whether the tensor that is given is in it.
    """
    memory_format, is_laid_out = layout(shape, strides)
    inputs = shape if inner_sizes is None else (*shape[:2], *inner_sizes)
    channels_last = memory_format is not torch.contiguous_format
    address, counting, sizes, structs = planned_average(
        inputs, window, include_padding, divisor, channels_last, threads
    )
    made = sizes if inner_sizes is None else inputs
    return address, counting, made, strides_of(made, memory_format), memory_format, is_laid_out, structs


COUNTING_ALL = Counting(0, 0, (ctypes.c_int64 * 3)(0, 0, 0))


@functools.lru_cache(maxsize=4096)
def planned_average_of_bins(
    shape: tuple[int, ...], outputs: tuple[int, ...], channels_last: bool, threads: int
) -> tuple[int, Problem]:
    """The address of the geometry, and the struct itself; bins of one size are windows."""
    axes = []
    for size, count in zip(shape[2:], outputs, strict=True):
        step, rest = divmod(size, count)
        axes.append((size, count, 0, 1, 0, 1) if rest else (size, count, step, step, 0, 1))
    address, _, problem = _problem(shape, outputs, axes, channels_last, threads)
    return address, problem
