"""What a tensor must be to be pooled, and how the tensors that pooling returns are laid out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from torch_dmlpool.window import integer

FLOAT_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGER_TYPES = (
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)
AVERAGE_TYPES = FLOAT_TYPES
MAX_TYPES = FLOAT_TYPES + INTEGER_TYPES
INDEX_TYPES = (torch.int32, torch.int64, torch.uint32, torch.uint64)


def check_pooled(name: str, tensor: Tensor, types: tuple[torch.dtype, ...]) -> None:
    """Refuse what is not a dense ``(N, C, *spatial)`` tensor of one of ``types`` (rules G1 and G6)."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_nested:
        layout = "a nested tensor" if tensor.is_nested else f"layout {tensor.layout}"
        raise TypeError(f"{name} must be a dense tensor (torch.strided), got {layout}")
    if tensor.dtype not in types:
        supported = ", ".join(_type_name(dtype) for dtype in types)
        raise TypeError(f"{name} has data type {_type_name(tensor.dtype)}; supported are {supported}")
    if not 3 <= tensor.dim() <= 5:
        raise ValueError(
            f"{name} must be (N, C, *spatial) with 1 to 3 spatial dimensions, "
            f"got {tensor.dim()} dimensions: shape {tuple(tensor.shape)}"
        )


def check_gradient(name: str, gradient: Tensor, output_sizes: Sequence[int], input: Tensor) -> None:
    """Refuse a gradient that does not fit the forward output ``output_sizes`` of ``input`` (rules G6 and G8)."""
    if gradient.dtype is not input.dtype:
        raise TypeError(
            f"{name} must have the input's data type {_type_name(input.dtype)}, got {_type_name(gradient.dtype)}"
        )
    check_device(name, gradient, input)
    check_sizes(name, gradient, output_sizes)


def check_device(name: str, tensor: Tensor, input: Tensor) -> None:
    """Refuse a tensor on another device than the one it is pooled with (rule G6)."""
    if tensor.device != input.device:
        raise ValueError(f"{name} must be on the input's device {input.device}, got {tensor.device}")


def check_sizes(name: str, tensor: Tensor, sizes: Sequence[int]) -> None:
    """Refuse a tensor whose sizes are not those of the forward output (rule G8)."""
    if tuple(tensor.shape) != tuple(sizes):
        raise ValueError(f"{name} must have the forward output's shape {tuple(sizes)}, got shape {tuple(tensor.shape)}")


def check_divisor(divisor_override: int | None) -> None:
    """Refuse a divisor that is no int or that nothing can be divided by (rule A5)."""
    if divisor_override is None:
        return
    if isinstance(divisor_override, bool) or not isinstance(divisor_override, (int, torch.SymInt)):
        raise TypeError(
            f"divisor_override must be an int or None, got {divisor_override!r} of type "
            f"{type(divisor_override).__name__}"
        )
    if divisor_override == 0:
        raise ValueError("divisor_override must not be 0")


def check_flag(name: str, flag: bool) -> None:
    """Refuse what is not a bool (rule G6)."""
    if type(flag) is not bool:
        raise TypeError(f"{name} must be a bool, got {flag!r} of type {type(flag).__name__}")


def checked_input_size(input_size: Sequence[int], input_gradient: Tensor) -> tuple[int, ...]:
    """``input_size`` as ints, refused where it cannot be the size of the input that ``input_gradient`` belongs to."""
    if isinstance(input_size, Tensor) or not isinstance(input_size, Sequence):
        raise TypeError(
            f"input_size must be a sequence of ints (N, C, *spatial), got {input_size!r} of type "
            f"{type(input_size).__name__}"
        )
    sizes = tuple(integer("input_size", size, input_size) for size in input_size)
    if len(sizes) != input_gradient.dim():
        raise ValueError(
            f"input_size must be the full size (N, C, *spatial) with {input_gradient.dim()} entries, got {sizes}"
        )
    for size, name in zip(sizes[:2], ("N", "C"), strict=True):
        if size < 0:
            raise ValueError(f"input_size must be at least 0, got {size} in dimension {name} (input_size={sizes})")
    return sizes


def check_index_type(index_dtype: torch.dtype, sizes: Sequence[int], per_plane: bool = False) -> None:
    """Refuse an index type other than DirectML's and PyTorch's, or too small for a tensor of ``sizes`` (rule M4)."""
    if index_dtype not in INDEX_TYPES:
        supported = ", ".join(_type_name(dtype) for dtype in INDEX_TYPES)
        name = _type_name(index_dtype) if isinstance(index_dtype, torch.dtype) else repr(index_dtype)
        raise TypeError(f"index_dtype must be one of {supported}, got {name}")
    if index_dtype.itemsize == 8:
        return
    elements = math.prod(sizes[2:] if per_plane else sizes)
    # The largest unsigned number marks an empty window, so it numbers no element.
    numbered = torch.iinfo(index_dtype).max + (1 if index_dtype.is_signed else 0)
    if elements > numbered:
        raise ValueError(
            f"index_dtype {_type_name(index_dtype)} numbers at most {numbered} elements, the input has {elements}"
        )


def check_tap_type(taps: Tensor, count: int) -> None:
    """Refuse taps of another type than that of a window of ``count`` taps (rule M6)."""
    if taps.dtype is not tap_dtype(count):
        raise TypeError(
            f"taps of a window of {count} taps must have data type {_type_name(tap_dtype(count))}, "
            f"got {_type_name(taps.dtype)}"
        )


def tap_dtype(taps: int) -> torch.dtype:
    """The integer type that holds the tap numbers of a window of ``taps`` taps (rule M6)."""
    if taps <= 225:
        return torch.uint8
    return torch.int16 if taps <= 2**15 else torch.int32


def suggested_memory_format(tensor: Tensor) -> torch.memory_format:
    """The memory format that PyTorch suggests for results computed from ``tensor`` (rule G7)."""
    rank = tensor.dim()
    if rank == 3:
        return torch.contiguous_format
    if torch.compiler.is_compiling() or not all(type(size) is int for size in tensor.shape):
        return suggest_memory_format(tensor)
    # The same rule as PyTorch's own Python function, which takes several times as long.
    shape, strides = tensor.shape, tensor.stride()
    if strides[1] == 0:
        return torch.contiguous_format
    least = 0
    for dimension in (1, *range(rank - 1, 1, -1), 0):
        stride = strides[dimension]
        if shape[dimension] == 0 or stride < least or (dimension == 0 and least == strides[1]):
            return torch.contiguous_format
        least = stride * max(1, shape[dimension])
    return torch.channels_last if rank == 4 else torch.channels_last_3d


def empty(
    sizes: Sequence[int], like: Tensor, memory_format: torch.memory_format, dtype: torch.dtype | None = None
) -> Tensor:
    """An uninitialised tensor on the device of ``like``, of its data type unless another is given."""
    return torch.empty(
        tuple(sizes), dtype=like.dtype if dtype is None else dtype, device=like.device, memory_format=memory_format
    )


def settled(tensor: Tensor, memory_format: torch.memory_format) -> Tensor:
    """``tensor`` with the very strides that :func:`empty` gives, dimensions of size 1 included."""
    order = range(tensor.dim() - 1, -1, -1)
    if memory_format is not torch.contiguous_format:
        order = (1, *range(tensor.dim() - 1, 1, -1), 0)  # type: ignore[assignment]
    shape, strides, expected = tensor.shape, tensor.stride(), 1
    for dimension in order:
        if strides[dimension] != expected:
            return empty(shape, tensor, memory_format).copy_(tensor)
        expected *= shape[dimension]
    return tensor


def named_memory_format(channels_last: bool, rank: int) -> torch.memory_format:
    """Contiguous or channels_last for ``rank`` spatial dimensions."""
    if not channels_last:
        return torch.contiguous_format
    return {2: torch.channels_last, 3: torch.channels_last_3d}[rank]


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
