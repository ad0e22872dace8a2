"""The CPU backend: binds the compiled kernels (kernels/*.cpp) through ctypes.

The libraries take pointers, a struct of numbers and PyTorch's own threads, so they are tied to no version of Python or
PyTorch. ``library`` is None where none was built for this processor; ``missing`` then says what to do.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.window import Window

__all__ = [
    "adaptive_average_pooling",
    "adaptive_average_pooling_grad",
    "adaptive_max_pooling",
    "average_pooling",
    "average_pooling_grad",
    "gather_positions",
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
# As an object: a name takes PyTorch 0.4 µs more.
_CPU = torch.device("cpu")
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


def _layout(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[torch.memory_format, bool]:
    """The memory format of results for an input of ``strides``, and whether the input is in it."""
    like = torch.empty_strided(shape, strides, dtype=torch.uint8, device="meta")
    memory_format = operands.suggested_memory_format(like)
    return memory_format, like.is_contiguous(memory_format=memory_format)


@functools.lru_cache(maxsize=4096)
def _arranged(
    shape: tuple[int, ...], strides: tuple[int, ...], window: Window, threads: int
) -> tuple[int, tuple[int, ...], torch.memory_format, bool, int, Problem]:
    """The same for an input of ``strides``: also the format of results, whether the input is in it, and the taps."""
    memory_format, is_laid_out = _layout(shape, strides)
    address, sizes, problem = _planned(shape, window, memory_format is not torch.contiguous_format, threads)
    return address, sizes, memory_format, is_laid_out, window.taps, problem


@functools.lru_cache(maxsize=4096)
def _planned_bins(
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


def _laid_out(tensor: Tensor, memory_format: torch.memory_format) -> Tensor:
    """``tensor`` in one of the two layouts that the kernels read."""
    return (
        tensor if tensor.is_contiguous(memory_format=memory_format) else tensor.contiguous(memory_format=memory_format)
    )


def _empty(sizes: Sequence[int], dtype: torch.dtype, memory_format: torch.memory_format) -> Tensor:
    return torch.empty(sizes, dtype=dtype, device=_CPU, memory_format=memory_format)


# Max pooling.

TAPS, POSITIONS, INDICES = range(3)
"""What a winner is written as: the numbers of ``Numbering`` in kernels/max_pooling.cpp."""


def max_pooling(input: Tensor, window: Window) -> Tensor:
    """Maxima alone."""
    dtype = input.dtype
    address, sizes, memory_format, is_laid_out, _, _ = _arranged(
        input.shape, input.stride(), window, torch.get_num_threads()
    )
    output = torch.empty(sizes, dtype=dtype, device=_CPU, memory_format=memory_format)
    if not is_laid_out:
        input = input.contiguous(memory_format=memory_format)
    if 0 not in sizes:
        library.dmlpool_max_pooling(DATA_TYPES[dtype], input.data_ptr(), output.data_ptr(), None, 0, 0, address)
    return output


def max_pooling_with_taps(input: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Maxima and the numbers of their taps."""
    return _with_winners(input, window, None, TAPS)


def max_pooling_with_indices(
    input: Tensor, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> tuple[Tensor, Tensor]:
    """Maxima and their indices."""
    return _with_winners(input, window, index_dtype, POSITIONS if per_plane else INDICES)


def _with_winners(
    input: Tensor, window: Window, winner_dtype: torch.dtype | None, numbering: int, only_winners: bool = False
) -> tuple[Tensor, Tensor]:
    address, sizes, memory_format, is_laid_out, taps, _ = _arranged(
        input.shape, input.stride(), window, torch.get_num_threads()
    )
    if winner_dtype is None:
        winner_dtype = operands.tap_dtype(taps)
    if taps > 2**15 and input.dtype.itemsize <= 2:
        # The kernel compares elements in lanes of two bytes, which do not hold the numbers of so many taps.
        values, winners = _with_winners(input.to(torch.float32), window, winner_dtype, numbering, only_winners)
        return values.to(input.dtype), winners
    values = input if only_winners else torch.empty(sizes, dtype=input.dtype, device=_CPU, memory_format=memory_format)
    winners = torch.empty(sizes, dtype=winner_dtype, device=_CPU, memory_format=memory_format)
    if not is_laid_out:
        input = input.contiguous(memory_format=memory_format)
    if 0 not in sizes:
        library.dmlpool_max_pooling(
            DATA_TYPES[input.dtype],
            input.data_ptr(),
            None if only_winners else values.data_ptr(),
            winners.data_ptr(),
            winner_dtype.itemsize,
            numbering,
            address,
        )
    return values, winners


def max_pooling_indices(
    taps: Tensor, spatial_sizes: Sequence[int], window: Window, index_dtype: torch.dtype, per_plane: bool
) -> Tensor:
    """Indices that tap numbers stand for."""
    memory_format = operands.suggested_memory_format(taps)
    indices = _empty(taps.shape, index_dtype, memory_format)
    if indices.numel():
        taps = _laid_out(taps, memory_format)
        channels_last = memory_format is not torch.contiguous_format
        shape = (*taps.shape[:2], *spatial_sizes)
        address, _, _ = _planned(shape, window, channels_last, torch.get_num_threads())
        numbering = POSITIONS if per_plane else INDICES
        library.dmlpool_max_pooling_indices(
            taps.data_ptr(), taps.itemsize, indices.data_ptr(), indices.itemsize, numbering, address
        )
    return indices


def max_pooling_grad(input: Tensor, input_gradient: Tensor, window: Window) -> Tensor:
    """The gradient to the winners, which are found again from the input."""
    _, taps = _with_winners(input, window, None, TAPS, only_winners=True)
    return max_pooling_grad_from_taps(input_gradient, taps, input.shape[2:], window, operands.is_channels_last(input))


def max_pooling_grad_from_taps(
    input_gradient: Tensor, taps: Tensor, spatial_sizes: Sequence[int], window: Window, channels_last: bool
) -> Tensor:
    """Each window's gradient, added to its winner's."""
    memory_format = operands.named_memory_format(channels_last, window.rank)
    shape = (*taps.shape[:2], *spatial_sizes)
    gradient = _empty(shape, input_gradient.dtype, memory_format)
    if gradient.numel():
        input_gradient, taps = _laid_out(input_gradient, memory_format), _laid_out(taps, memory_format)
        address, _, _ = _planned(shape, window, channels_last, torch.get_num_threads())
        library.dmlpool_max_pooling_grad(
            DATA_TYPES[gradient.dtype],
            input_gradient.data_ptr(),
            taps.data_ptr(),
            taps.itemsize,
            gradient.data_ptr(),
            address,
        )
    return gradient


def max_pooling_gather(input: Tensor, taps: Tensor, window: Window) -> Tensor:
    """The element at each window's tap, 0 where the window is empty."""
    memory_format = operands.suggested_memory_format(taps)
    gathered = _empty(taps.shape, input.dtype, memory_format)
    if gathered.numel():
        input, taps = _laid_out(input, memory_format), _laid_out(taps, memory_format)
        channels_last = memory_format is not torch.contiguous_format
        address, _, _ = _planned(input.shape, window, channels_last, torch.get_num_threads())
        library.dmlpool_max_pooling_gather(
            input.data_ptr(), input.itemsize, taps.data_ptr(), taps.itemsize, gathered.data_ptr(), address
        )
    return gathered


def adaptive_max_pooling(input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Maxima of bins and their positions in the plane."""
    plane = math.prod(input.shape[2:])
    lane_type = torch.float32 if input.dtype.itemsize <= 2 else torch.float64 if plane >= 2**31 else input.dtype
    if lane_type is not input.dtype and input.dtype.itemsize < 8:
        # The kernel numbers positions in lanes as wide as an element.
        values, positions = adaptive_max_pooling(input.to(lane_type), output_sizes)
        return values.to(input.dtype), positions
    memory_format = operands.suggested_memory_format(input)
    channels_last = memory_format is not torch.contiguous_format
    address, sizes, _ = _planned_bins(input.shape, tuple(output_sizes), channels_last, torch.get_num_threads())
    values = _empty(sizes, input.dtype, memory_format)
    positions = _empty(sizes, operands.position_dtype(plane), memory_format)
    if values.numel():
        input = _laid_out(input, memory_format)
        data_type, pointers = DATA_TYPES[input.dtype], (input.data_ptr(), values.data_ptr(), positions.data_ptr())
        library.dmlpool_max_pooling(data_type, *pointers, positions.itemsize, POSITIONS, address)
    return values, positions


# Elements by their positions in the plane.


def unique_positions(positions: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """Positions inside the plane; of several alike the one that comes last in row-major order."""
    memory_format = operands.suggested_memory_format(positions)
    unique = _empty(positions.shape, operands.position_dtype(math.prod(spatial_sizes)), memory_format)
    if unique.numel():
        positions = _laid_out(positions, memory_format)
        address, _, _ = _planned_positions(positions, spatial_sizes, memory_format)
        library.dmlpool_unique_positions(
            positions.data_ptr(), positions.itemsize, unique.data_ptr(), unique.itemsize, address
        )
    return unique


def gather_positions(input: Tensor, positions: Tensor) -> Tensor:
    """The element at each position, 0 where it lies outside the plane."""
    memory_format = operands.suggested_memory_format(positions)
    gathered = _empty(positions.shape, input.dtype, memory_format)
    if gathered.numel():
        input, positions = _laid_out(input, memory_format), _laid_out(positions, memory_format)
        address, _, _ = _planned_positions(positions, input.shape[2:], memory_format)
        library.dmlpool_gather_positions(
            input.data_ptr(), input.itemsize, positions.data_ptr(), positions.itemsize, gathered.data_ptr(), address
        )
    return gathered


def scatter_positions(
    input: Tensor,
    positions: Tensor,
    spatial_sizes: Sequence[int],
    bins: bool,  # noqa: ARG001 - sums are right for unique positions too
    channels_last: bool,
) -> Tensor:
    """Zeros with each element added at its position."""
    memory_format = operands.named_memory_format(channels_last, len(spatial_sizes))
    scattered = _empty((*input.shape[:2], *spatial_sizes), input.dtype, memory_format)
    if scattered.numel():
        input, positions = _laid_out(input, memory_format), _laid_out(positions, memory_format)
        address, _, _ = _planned_positions(positions, spatial_sizes, memory_format)
        data_type = DATA_TYPES[input.dtype]
        library.dmlpool_scatter_positions(
            data_type, input.data_ptr(), positions.data_ptr(), positions.itemsize, scattered.data_ptr(), address
        )
    return scattered


def _planned_positions(
    positions: Tensor, spatial_sizes: Sequence[int], memory_format: torch.memory_format
) -> tuple[int, tuple[int, ...], Problem]:
    shape = (*positions.shape[:2], *spatial_sizes)
    channels_last = memory_format is not torch.contiguous_format
    return _planned_bins(shape, tuple(positions.shape[2:]), channels_last, torch.get_num_threads())


# Average pooling.


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
def _planned_average(
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
def _arranged_average(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    window: Window,
    include_padding: bool,
    divisor: int | None,
    threads: int,
) -> tuple[int, int, tuple[int, ...], torch.memory_format, bool, Any]:
    """The same for an input of ``strides``: also the format of the result, and whether the input is in it."""
    memory_format, is_laid_out = _layout(shape, strides)
    channels_last = memory_format is not torch.contiguous_format
    address, counting, sizes, structs = _planned_average(
        shape, window, include_padding, divisor, channels_last, threads
    )
    return address, counting, sizes, memory_format, is_laid_out, structs


def average_pooling(input: Tensor, window: Window, include_padding: bool, divisor_override: int | None) -> Tensor:
    """Averages of windows."""
    dtype = input.dtype
    address, counting, sizes, memory_format, is_laid_out, _ = _arranged_average(
        input.shape, input.stride(), window, include_padding, divisor_override, torch.get_num_threads()
    )
    output = torch.empty(sizes, dtype=dtype, device=_CPU, memory_format=memory_format)
    if not is_laid_out:
        input = input.contiguous(memory_format=memory_format)
    if 0 not in sizes:
        library.dmlpool_average_pooling(DATA_TYPES[dtype], input.data_ptr(), output.data_ptr(), address, counting)
    return output


def average_pooling_grad(
    input_gradient: Tensor,
    spatial_sizes: Sequence[int],
    window: Window,
    include_padding: bool,
    divisor_override: int | None,
) -> Tensor:
    """The adjoint of the average for an input of ``spatial_sizes``, in the layout of ``input_gradient``."""
    memory_format = operands.suggested_memory_format(input_gradient)
    channels_last = memory_format is not torch.contiguous_format
    sizes = (*input_gradient.shape[:2], *spatial_sizes)
    address, counting, _, _ = _planned_average(
        sizes, window, include_padding, divisor_override, channels_last, torch.get_num_threads()
    )
    gradient = _empty(sizes, input_gradient.dtype, memory_format)
    if gradient.numel():
        arriving = _laid_out(input_gradient, memory_format)
        library.dmlpool_average_pooling_grad(
            DATA_TYPES[arriving.dtype], arriving.data_ptr(), gradient.data_ptr(), address, counting
        )
    return gradient


_COUNTING_ALL = Counting(0, 0, (ctypes.c_int64 * 3)(0, 0, 0))


@functools.lru_cache(maxsize=4096)
def _planned_average_of_bins(
    shape: tuple[int, ...], outputs: tuple[int, ...], channels_last: bool, threads: int
) -> tuple[int, Problem]:
    """The address of the geometry, and the struct itself; bins of one size are windows."""
    axes = []
    for size, count in zip(shape[2:], outputs, strict=True):
        step, rest = divmod(size, count)
        axes.append((size, count, 0, 1, 0, 1) if rest else (size, count, step, step, 0, 1))
    address, _, problem = _problem(shape, outputs, axes, channels_last, threads)
    return address, problem


def adaptive_average_pooling(input: Tensor, output_sizes: Sequence[int]) -> Tensor:
    """Averages of bins."""
    memory_format = operands.suggested_memory_format(input)
    channels_last = memory_format is not torch.contiguous_format
    address, _ = _planned_average_of_bins(input.shape, tuple(output_sizes), channels_last, torch.get_num_threads())
    output = _empty((*input.shape[:2], *output_sizes), input.dtype, memory_format)
    if output.numel():
        input = _laid_out(input, memory_format)
        library.dmlpool_average_pooling(
            DATA_TYPES[input.dtype], input.data_ptr(), output.data_ptr(), address, ctypes.addressof(_COUNTING_ALL)
        )
    return output


def adaptive_average_pooling_grad(input_gradient: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """The adjoint of averages of bins, in the layout of ``input_gradient``."""
    memory_format = operands.suggested_memory_format(input_gradient)
    channels_last = memory_format is not torch.contiguous_format
    sizes = (*input_gradient.shape[:2], *spatial_sizes)
    address, _ = _planned_average_of_bins(
        sizes, tuple(input_gradient.shape[2:]), channels_last, torch.get_num_threads()
    )
    gradient = _empty(sizes, input_gradient.dtype, memory_format)
    if gradient.numel():
        arriving = _laid_out(input_gradient, memory_format)
        library.dmlpool_average_pooling_grad(
            DATA_TYPES[arriving.dtype],
            arriving.data_ptr(),
            gradient.data_ptr(),
            address,
            ctypes.addressof(_COUNTING_ALL),
        )
    return gradient


def quantized_linear_average_pooling(
    input: Tensor,
    input_scale: float | Tensor,
    input_zero_point: int | Tensor | None,
    output_scale: float | Tensor,
    output_zero_point: int | Tensor | None,
    window: Window,
    include_padding: bool,
    output_dtype: torch.dtype,
) -> Tensor:
    """Averages of integers that stand for real numbers, requantized exactly (rules Q1, Q2 and Q6)."""
    memory_format = operands.suggested_memory_format(input)
    channels_last = memory_format is not torch.contiguous_format
    address, counting, sizes, _ = _planned_average(
        input.shape, window, include_padding, None, channels_last, torch.get_num_threads()
    )
    output = _empty(sizes, output_dtype, memory_format)
    if output.numel():
        input = _laid_out(input, memory_format)
        scales = [_vector(scale, torch.float32) for scale in (input_scale, output_scale)]
        zeros = [_vector(0 if zero is None else zero, torch.int32) for zero in (input_zero_point, output_zero_point)]
        vectors = scales + zeros
        limits = torch.iinfo(output_dtype)
        quantization = Quantization(
            *(vector.data_ptr() for vector in vectors),
            *(vector.numel() for vector in vectors),
            input.shape[1],
            limits.min,
            limits.max,
        )
        library.dmlpool_quantized_average_pooling(
            input.dtype is torch.int8,
            input.data_ptr(),
            output.data_ptr(),
            address,
            counting,
            ctypes.addressof(quantization),
        )
    return output


def _vector(parameter: float | Tensor, dtype: torch.dtype) -> Tensor:
    """A scale or zero point as contiguous entries of ``dtype``: one for all channels, or one each."""
    if isinstance(parameter, Tensor):
        return parameter.to(dtype).contiguous()
    return torch.tensor([parameter], dtype=dtype, device="cpu")
