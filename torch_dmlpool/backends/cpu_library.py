"""The compiled CPU kernels as Python sees them: the library of this processor, its structs, and the plan of a call.

A library takes pointers, structs of numbers and PyTorch's own threads, so it is tied to no version of Python or
PyTorch. ``library`` is None where none was built for this processor; ``missing`` then says what to do.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torch_dmlpool import operands
from torch_dmlpool.window import Window

DATA_TYPES = {dtype: number for number, dtype in enumerate((
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64,
))}  # fmt: skip
"""The numbers of the data types in kernels/pooling.h."""
TAPS, POSITIONS, INDICES = range(3)
"""What a winner is written as: the numbers of ``Numbering`` in kernels/max_pooling.cpp."""
LEVELS = {"AVX512": ("avx512", "avx2", "default"), "AVX2": ("avx2", "default")}
"""The libraries that suit a processor, the fastest first, by what PyTorch says that it can do."""


def _struct(name: str, **fields: Any) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


_NUMBER, _POINTER = ctypes.c_int64, ctypes.c_void_p
Axis = _struct("Axis", **dict.fromkeys(("size", "outputs", "window", "stride", "padding", "dilation"), _NUMBER))
"""``Axis`` of kernels/pooling.h, as are the next two."""
Counting = _struct("Counting", include_padding=_NUMBER, divisor=_NUMBER, end_padding=_NUMBER * 3)
_LAST = dict.fromkeys(("type", "bytes", "numbering"), _NUMBER)
Problem = _struct("Problem", planes=_NUMBER, lanes=_NUMBER, axes=Axis * 3, counting=Counting, **_LAST)
"""The next is of kernels/requantization.h."""
Quantization = _struct(
    "Quantization",
    **dict.fromkeys(("input_scale", "output_scale", "input_zero", "output_zero"), _POINTER),
    **dict.fromkeys(("input_scales", "output_scales", "input_zeros", "output_zeros"), _NUMBER),
    **dict.fromkeys(("channels", "low", "high"), _NUMBER),
)
_FUNCTIONS = {
    2: ("use_threads",),
    3: ("max_pooling_indices", "unique_positions", "average_pooling", "average_pooling_grad"),
    4: ("max_pooling", "max_pooling_grad", "gather_positions", "scatter_positions", "quantized_average_pooling"),
}
"""The library's functions by how many pointers they take."""


def _load() -> tuple[Any, str | None]:
    """The library for this processor, or why there is none."""
    levels = LEVELS.get(torch.backends.cpu.get_cpu_capability(), ("default",))
    spec = importlib.util.find_spec("torch_dmlpool.kernels")
    folders = spec.submodule_search_locations if spec is not None else None
    paths = [Path(folder) / f"cpu_{level}.so" for level in levels for folder in folders or ()]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return None, f"cpu_{levels[0]}.so was not built: install a C++ compiler, then torch_dmlpool again, from source"
    try:
        library = ctypes.CDLL(str(path))
        ending = "dylib" if sys.platform == "darwin" else "so"
        torchs = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"libtorch_cpu.{ending}"))
        threads = torchs.torch_parallel_for, torchs.torch_get_num_threads
        for count, names in _FUNCTIONS.items():
            for name in names:
                function = getattr(library, f"dmlpool_{name}")
                function.argtypes, function.restype = (_POINTER,) * count, None
    except (OSError, AttributeError) as error:
        return None, f"{path.name} cannot be used: {error}; install torch_dmlpool again, from source"
    library.dmlpool_use_threads(*(ctypes.cast(function, _POINTER) for function in threads))
    return library, None


library, missing = _load()


class Plan(NamedTuple):
    """A call to the library: the address of its struct, and how the tensors lie."""

    problem: int
    memory_format: torch.memory_format
    is_laid_out: bool
    """Whether the tensor that the plan was made for is in this format."""
    is_empty: bool
    number_dtype: torch.dtype
    """Of winners."""
    wider: torch.dtype | None
    """In which elements are compared where their own type has no room for the winners' numbers."""
    sizes: tuple[int, ...]
    """Of what the plan's windows read, and its strides in this format."""
    strides: tuple[int, ...]
    output_sizes: tuple[int, ...]
    """Of what they give, likewise."""
    output_strides: tuple[int, ...]
    struct: Any
    """Kept as long as its address."""


@functools.lru_cache(maxsize=4096)
def planned(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
    window: Window | tuple[int, ...],
    counted: tuple[bool, int | None] | None = None,
    spatial_sizes: tuple[int, ...] | None = None,
    numbered: tuple[torch.dtype | None, int] | None = None,
    memory_format: torch.memory_format | None = None,
) -> Plan:
    """The plan of a call for a tensor of ``shape`` and ``strides``, with elements of ``dtype``.

    The windows read that tensor, or they gave it where the ``spatial_sizes`` of what they read are given. Output sizes
    in place of a window stand for bins, or for positions in planes. An average counts padding and has a divisor.
    Winners, taps or positions are numbers of a data type, a window's tap numbers without one, and count as told.
    Without a memory format it is the one that PyTorch suggests for results computed from the tensor.
    """
    given = torch.empty_strided(shape, strides, dtype=torch.uint8, device="meta")
    memory_format = operands.suggested_memory_format(given) if memory_format is None else memory_format
    spatial_sizes = shape[2:] if spatial_sizes is None else spatial_sizes
    axes: list[tuple[int, ...]]
    if isinstance(window, Window):
        outputs = window.output_sizes(spatial_sizes)
        axes = [
            (size, count, axis.window, axis.stride, axis.start_padding, axis.dilation)
            for size, count, axis in zip(spatial_sizes, outputs, window.axes, strict=True)
        ]
    else:
        outputs = window
        axes = [_bins(*pair, counted is not None) for pair in zip(spatial_sizes, outputs, strict=True)]
    channels_last = memory_format is not torch.contiguous_format
    # A window over whole rows is one along the axis before, whose elements are rows: taps keep their numbers.
    while len(axes) > 1 and counted is None and not channels_last:
        size, count, taps, _, padding, dilation = axes[-1]
        if count != 1 or taps != size or padding != 0 or dilation != 1 or axes[-2][5] != 1:
            break
        rows, count, taps, stride, padding, _ = axes[-2]
        axes[-2:] = [(rows * size, count, taps * size, stride * size, padding * size, 1)]
    samples, channels = shape[:2]
    unit = (1, 1, axes[0][2] and 1, 1, 0, 1)
    lanes = channels if channels_last else 1
    all_axes = (Axis * 3)(*(Axis(*axis) for axis in [unit] * (3 - len(axes)) + axes))
    reach = 0
    for size, _, taps, _, _, dilation in axes:
        reach = reach * size + ((taps - 1) * dilation if taps else size - 1)
    ends = [axis.end_padding for axis in window.axes] if isinstance(window, Window) else []
    include_padding, divisor = counted or (False, None)
    counting = Counting(include_padding, divisor or 0, (_NUMBER * 3)(*[0] * (3 - len(ends)), *ends))
    number_dtype, numbering = numbered or (torch.uint8, TAPS)
    if number_dtype is None:
        number_dtype = operands.tap_dtype(window.taps)  # type: ignore[union-attr]
    # The kernel numbers winners in the lower half of integers of twice an element's size, of four bytes at least.
    highest = math.prod([axis[2] for axis in axes]) if numbering == TAPS else reach + 1
    wider = torch.float32 if highest <= 2**31 else torch.float64
    numbers = DATA_TYPES[dtype], number_dtype.itemsize, numbering
    problem = Problem(samples if channels_last else samples * channels, lanes, all_axes, counting, *numbers)
    sizes, output_sizes = (samples, channels, *spatial_sizes), (samples, channels, *outputs)
    return Plan(
        ctypes.addressof(problem),
        memory_format,
        given.is_contiguous(memory_format=memory_format),
        0 in sizes + output_sizes,
        number_dtype,
        wider if highest > 2**15 and dtype.itemsize < wider.itemsize else None,
        sizes,
        _strides_of(sizes, memory_format),
        output_sizes,
        _strides_of(output_sizes, memory_format),
        problem,
    )


def _strides_of(sizes: tuple[int, ...], memory_format: torch.memory_format) -> tuple[int, ...]:
    """The strides of a new tensor: one that is made from strides takes half the time."""
    return torch.empty(sizes, dtype=torch.uint8, device="meta", memory_format=memory_format).stride()


def _bins(size: int, count: int, are_averaged: bool) -> tuple[int, ...]:
    """An axis of bins, for which a window of 0 stands; averages of bins of one size are those of a window."""
    step, rest = divmod(size, max(1, count))
    if not are_averaged:
        return size, count, 0, max(1, step), 0, 1
    return (size, count, 0, 1, 0, 1) if rest else (size, count, step, step, 0, 1)
