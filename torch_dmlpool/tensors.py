"""What a tensor must be to be pooled, how results are laid out, and numbers of each data type."""

import math
import numbers
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torch_dmlpool._private import (
    _has_storage,
    _is_functional_tensor,
    _is_zerotensor,
    is_mapped,
    suggest_memory_format,
)
from torch_dmlpool.window import (
    ArgumentError,
    Divisor,
    Ints,
    Sizes,
    Window,
    check_spatial_sizes,
    entries,
    index_of,
    integer,
    is_sure,
    listed,
    shown,
    wrong_type,
)

TensorFunction: TypeAlias = Callable[[Tensor], Any]
Types: TypeAlias = tuple[torch.dtype, ...]
Mask: TypeAlias = Tensor | None  # a bool tensor that leaves out the elements where it is False
Offsets: TypeAlias = Tensor | None  # of ragged sets; None where samples of a batch are the sets
Tensors: TypeAlias = tuple[Tensor, ...]
Pair: TypeAlias = tuple[Tensor, Tensor]  # maxima and their winners, or means and deviations
Pooled: TypeAlias = Tensor | Pair  # maxima or minima, and their indices if these are asked for

# A new data type also goes into _pooled_type of onnx/operators.py and, if it is unsigned,
# SIGNED_FOR. docs/contributing/design.md lists what backends need.
FLOAT_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGER_TYPES = tuple(
    getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)
)
MAX_TYPES = FLOAT_TYPES + INTEGER_TYPES
COMPLEX_TYPES = (torch.complex64, torch.complex128)
AVERAGED_TYPES = FLOAT_TYPES + COMPLEX_TYPES
ORDERED_TYPES = (*MAX_TYPES, torch.bool)  # maxima and minima take these; kernels get bools as bytes
QUANTIZED_INTEGERS = (torch.int8, torch.uint8)
INDEX_TYPES = (torch.int32, torch.int64, torch.uint32, torch.uint64)
SIGNED_FOR = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Unsigned integers for which PyTorch has few operators, and signed ones of the same size."""


class Numbering(NamedTuple):
    """How winners of maxima are numbered: by indices in each plane or in the whole tensor."""

    dtype: torch.dtype
    per_plane: bool


def check_pooled(tensor: Tensor, types: Types, name: str = "input") -> None:
    """Reject what is not a dense ``(N, C, *spatial)`` tensor of one of ``types`` (rules G1 and
    G6).
    """
    check_dense(name, tensor, types)
    if not 3 <= tensor.dim() <= 5:
        raise ArgumentError(
            f"{name} must be (N, C, *spatial) with 1 to 3 spatial dimensions, got shape "
            f"{tuple(tensor.shape)}"
        )


def check_dense(name: str, tensor: Tensor, types: Types, wanted: str = "a dense tensor") -> None:
    """Reject what is not a dense tensor of one of ``types`` (rule G6)."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_nested:
        layout = "a nested tensor" if tensor.is_nested else f"layout {tensor.layout}"
        raise TypeError(f"{name} must be {wanted} (torch.strided), got {layout}")
    if tensor.dtype not in types:
        hint = f": write {name}.bool()" if types == (torch.bool,) else ""
        if torch.float32 in types and tensor.dtype in (*INTEGER_TYPES, torch.bool):
            hint = f": write {name}.float()"
        if tensor.is_quantized and types == QUANTIZED_INTEGERS:
            hint = ": quantized_average_pooling takes quantized tensors"
        raise TypeError(
            f"{name} has data type {name_of(tensor.dtype)}; supported are {names_of(types)}{hint}"
        )


def has_memory(tensor: Tensor) -> bool:
    """Whether the elements of ``tensor`` are in memory. They are not in meta tensors, in wrappers
    and in zeros that PyTorch has not written.
    """
    is_empty = not _has_storage(tensor) or tensor.is_meta or _is_zerotensor(tensor)
    return not is_empty and not _is_functional_tensor(tensor)


def check_memory(tensor: Tensor) -> None:
    """Reject a tensor whose storage was resized to 0."""
    if not has_memory(tensor):
        return
    if tensor.numel() > 0 and not tensor.untyped_storage().data_ptr():
        raise RuntimeError(
            f"a tensor of {tensor.numel()} elements has no memory: its storage was resized to 0"
        )


def check_device(name: str, tensor: Tensor, input: Tensor) -> None:
    """Reject a tensor on another device than the one it is pooled with (rule G6)."""
    if tensor.device != input.device:
        raise ArgumentError(
            f"{name} must be on the input's device {input.device}, got {tensor.device}"
        )


def check_type(name: str, tensor: Tensor, dtype: torch.dtype, whose: str) -> None:
    """Reject a tensor whose data type is not ``dtype``, that of the tensor ``whose`` (G8, Q3)."""
    if tensor.dtype is not dtype:
        raise TypeError(
            f"{name} must have the {whose} data type {name_of(dtype)}, got {name_of(tensor.dtype)}"
        )


def check_sizes(
    name: str,
    tensor: Tensor,
    sizes: Sizes,
    input: Tensor | None = None,
    whose: str = "forward output's",
) -> None:
    """Reject a tensor whose shape is not ``sizes`` (rule G8), or that is not on the device of
    ``input``.

    ``whose`` says in the error which tensor has that shape.
    """
    if input is not None:
        check_device(name, tensor, input)
    if tuple(tensor.shape) != tuple(sizes):
        raise ArgumentError(
            f"{name} must have the {whose} shape {tuple(sizes)}, got shape {tuple(tensor.shape)}"
        )


def checked_mask(mask: Mask, input: Tensor, leading: int = 2) -> Mask:
    """``mask`` with as many dimensions as ``input``, if there is one (rule K1). ``leading`` is how
    many of the input's dimensions come before the spatial ones.
    """
    if mask is None:
        return None
    check_dense("mask", mask, (torch.bool,))
    check_device("mask", mask, input)
    dimensions = input.dim()
    added = dimensions - mask.dim()
    has_right_rank = added in (0, leading)
    if not has_right_rank or any(
        size != 1 and size != wanted
        for size, wanted in zip(mask.shape, input.shape[added:], strict=True)
    ):
        hint = (
            f": it needs {dimensions} dimensions, where sizes of 1 broadcast, or the "
            f"{dimensions - leading} spatial ones alone; mask[:, None] adds one for the channels"
        )
        raise ArgumentError(
            f"mask must broadcast to the input's shape {tuple(input.shape)}, got shape "
            f"{tuple(mask.shape)}{'' if has_right_rank else hint}"
        )
    return mask[(None,) * added] if added else mask


def checked_divisor(divisor_override: Any) -> Divisor:
    """A divisor as an int, rejected if it is 0 or no int of 64 bits (rules A5 and G6)."""
    if divisor_override is None:
        return None
    divisor = index_of(divisor_override)
    if divisor is None:
        raise wrong_type("divisor_override", "an int or None", divisor_override)
    if divisor == 0:
        raise ArgumentError("divisor_override must not be 0")
    if isinstance(divisor, int) and not -(2**63) <= divisor < 2**63:
        raise ArgumentError(f"divisor_override must be an int of 64 bits, got {shown(divisor)}")
    return divisor


def checked_full_size(name: str, full_size: Sizes, tensor: Tensor) -> Ints:
    """``full_size`` as ints, rejected unless it has one int for each dimension of ``tensor``."""
    several = listed(full_size)
    if several is None:
        raise wrong_type(name, "a sequence of ints (N, C, *spatial)", full_size)
    sizes = tuple(integer(name, size, full_size) for size in several)
    if len(sizes) != tensor.dim():
        raise ArgumentError(
            f"{name} must be the full size (N, C, *spatial) with {tensor.dim()} entries, got "
            f"{shown(sizes)}"
        )
    return sizes


def full_sizes(tensor: Tensor, spatial_sizes: Sizes) -> Ints:
    """The samples and channels of a tensor, and these spatial sizes."""
    return *tensor.shape[:2], *spatial_sizes


def pooled_sizes(input: Tensor, window: Window) -> Ints:
    """The sizes of what the windows over an input give; an error if none fits (rule G5)."""
    return full_sizes(input, window.output_sizes(input.shape[2:]))


def ints(sizes: Sizes) -> Ints:
    """Sizes as ints. In a trace of torch.jit they are tensors, which become constants."""
    return tuple(int(size) if isinstance(size, Tensor) else size for size in sizes)


def checked_output_size(output_size: int | Sequence[int | None] | None, sizes: Ints) -> Ints:
    """``output_size`` as one int for each of the input's spatial ``sizes``, at least 0; None keeps
    the input's size.
    """
    sizes = ints(sizes)
    if 0 in sizes:
        check_spatial_sizes("the input", sizes)
    if output_size is None:
        return sizes
    asked = None if type(output_size) is int else listed(output_size)
    if asked is None or len(asked) != len(sizes):
        return entries("output_size", output_size, len(sizes), 0)
    checked = entries("output_size", [0 if each is None else each for each in asked], len(sizes), 0)
    triples = zip(asked, checked, sizes, strict=True)
    return tuple(own if each is None else one for each, one, own in triples)


def checked_norm(name: str, p: Any) -> float:
    """A ``p`` of any real type as a number, rejected if it is below 1, or finite but too large for
    a float.
    """
    number = p if isinstance(p, float) else index_of(p)
    # Ints have an index; numpy's bools and times are no real numbers.
    is_real = isinstance(p, (numbers.Real, Decimal)) and not isinstance(p, numbers.Integral)
    if number is None and is_real:
        number = as_float(p)
    if number is None:
        raise wrong_type(name, "a number", p)
    if not number >= 1:
        raise ArgumentError(f"{name} must be at least 1, got {shown(p)}")
    # A compiler's trace has no ints above the range of floats, and there the comparison would
    # specialize the graph on one p.
    if not torch.compiler.is_compiling() and sys.float_info.max < number and p != math.inf:
        raise ArgumentError(
            f"{name} must be at most {sys.float_info.max}, or infinite, got {shown(p)}"
        )
    return number


def as_float(number: Any) -> float:
    """A real number as a float, infinite if none can hold it."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def check_index_type(index_dtype: torch.dtype, sizes: Sizes, per_plane: bool = False) -> None:
    """Reject an index type other than DirectML's and PyTorch's, or too small for a tensor of
    ``sizes`` (rule M4).
    """
    if not is_one_of(index_dtype, INDEX_TYPES):
        raise TypeError(
            f"index_dtype must be one of {names_of(INDEX_TYPES)}, got {name_of(index_dtype)}"
        )
    if index_dtype.itemsize == 8:
        return
    elements = math.prod(sizes[2:] if per_plane else sizes)
    # The largest unsigned number marks an empty window, so it numbers no element.
    most = torch.iinfo(index_dtype).max + index_dtype.is_signed
    if is_sure(elements > most):
        raise ArgumentError(
            f"index_dtype {name_of(index_dtype)} numbers at most {most} elements, got {elements}"
        )


def is_one_of(dtype: object, types: Types) -> bool:
    """Whether ``dtype`` is one of ``types``; an array would compare its elements with them."""
    return isinstance(dtype, torch.dtype) and dtype in types


def check_taps(taps: int, name: str = "window_size") -> None:
    """Reject windows of more than 2**31 taps, which an int32 cannot number (rule M6)."""
    if is_sure(taps > 2**31):
        raise ArgumentError(
            f"{name} must be at most {2**31} taps in all where winners are numbered, got {taps}"
        )


def tap_dtype(taps: int) -> torch.dtype:
    """The integer type that holds the tap numbers of a window of ``taps`` taps; rejects more than
    fit.
    """
    check_taps(taps)
    # Rule M6 says 225, a window of 15x15: a byte could number 256 taps, but 255 is -1 under a mask.
    if is_sure(taps <= 225):
        return torch.uint8
    return torch.int16 if is_sure(taps <= 2**15) else torch.int32


def position_dtype(spatial_sizes: Sizes) -> torch.dtype:
    """int32 where a plane has fewer than 2**31 elements, else int64. Positions may be -1."""
    return torch.int32 if math.prod(spatial_sizes) < 2**31 else torch.int64


def is_channels_last(tensor: Tensor) -> bool:
    """Whether results computed from ``tensor`` are laid out with channels innermost, as PyTorch
    does, and also where rows lie in (N, W, C) order (rule G7).
    """
    strides = tensor.stride()
    if type(strides[-1]) is int and type(strides[1]) is int and strides[-1] < strides[1]:
        return False  # decided by two strides alone
    is_known = not torch.compiler.is_compiling() and all(type(size) is int for size in tensor.shape)
    if is_known or len(strides) == 3:
        return suggests_channels_last(tensor.shape, strides)
    return suggest_memory_format(tensor) is not torch.contiguous_format


def suggests_channels_last(shape: Ints, strides: Ints) -> bool:
    """Whether results computed from a tensor that lies so are laid out with channels innermost.

    This is PyTorch's ``suggest_memory_format`` for ints, which is slow to import, and the same for
    rows.
    """
    if strides[-1] < strides[1] or (len(shape) == 3 and strides[1] != 1):
        return False
    least = 0
    for dimension in (1, *range(len(shape) - 1, 1, -1), 0):
        stride = strides[dimension]
        if shape[dimension] == 0 or stride < least or (dimension == 0 and least == strides[1]):
            return False
        least = stride * shape[dimension]
    return strides[1] != 0


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements of ``tensor`` fill memory without gaps and overlaps: what PyTorch
    computes of each element then has the same strides.
    """
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def empty(
    sizes: Sizes, like: Tensor, channels_last: bool, dtype: torch.dtype | None = None
) -> Tensor:
    """An uninitialised tensor on the device of ``like``; of its data type if no other is given."""
    dtype, device = dtype or like.dtype, like.device
    if channels_last and len(sizes) == 3:
        rows = sizes[0], sizes[2], sizes[1]
        return torch.empty(rows, dtype=dtype, device=device).transpose(1, 2)
    layout = memory_format(channels_last, len(sizes))
    return torch.empty(tuple(sizes), dtype=dtype, device=device, memory_format=layout)


def lies_in(tensor: Tensor, channels_last: bool) -> bool:
    """Whether ``tensor`` is dense and lies so; rows in channels_last are (N, W, C)."""
    return (tensor.movedim(1, -1) if channels_last else tensor).is_contiguous()


def in_format(tensor: Tensor, channels_last: bool) -> Tensor:
    """``tensor`` if it lies so, else a copy that does."""
    if channels_last and tensor.dim() == 3:
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    return tensor.contiguous(memory_format=memory_format(channels_last, tensor.dim()))


def cloned_in(tensor: Tensor, channels_last: bool) -> Tensor:
    """A copy of ``tensor`` that lies so."""
    if channels_last and tensor.dim() == 3:
        return tensor.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)
    return tensor.clone(memory_format=memory_format(channels_last, tensor.dim()))


def memory_format(channels_last: bool, dimensions: int) -> torch.memory_format:
    """PyTorch's name for the layout of images or volumes, and of contiguous rows."""
    if not channels_last:
        return torch.contiguous_format
    return torch.channels_last_3d if dimensions == 5 else torch.channels_last


def laid_out(tensor: Tensor, channels_last: bool) -> Tensor:
    """``tensor`` with channels innermost or in their place, where sizes are known with the strides
    that :func:`empty` gives. Under vmap, which knows no memory formats, it stays as it is.
    """
    if not torch.compiler.is_dynamo_compiling() and is_mapped():
        return tensor
    if not all(type(size) is int for size in tensor.shape):
        return in_format(tensor, channels_last)
    # The dimensions from the innermost to the outermost.
    dims = list(range(tensor.dim()))[::-1]
    if channels_last:
        dims = [1, *dims[:-2], 0]
    stride, strides = 1, tensor.stride()
    for dim in dims:
        if strides[dim] != stride:
            # It is a clone because decomposed programs must not write in place.
            return cloned_in(tensor, channels_last)
        stride *= max(tensor.shape[dim], 1)
    return tensor


def laid_out_like(results: Any, input: Tensor) -> Any:
    """A result, or a pair of them, in the memory format that PyTorch suggests for results computed
    from ``input`` (rule G7). A trace of torch.jit has no strides.
    """
    if torch.jit.is_tracing():
        return results
    channels_last = is_channels_last(input)
    return changed(results, lambda each: laid_out(each, channels_last))


def changed(results: Any, change: TensorFunction) -> Any:
    """What ``change`` makes of a result, or of each of several."""
    if isinstance(results, Tensor):
        return change(results)
    return tuple(map(change, results))


def name_of(value: object) -> str:
    """A constant of PyTorch's without ``torch.``; anything else as :func:`shown` shows it."""
    return str(value).removeprefix("torch.") if type(value) in _NAMED else shown(value)


_NAMED = (torch.dtype, torch.layout, torch.qscheme, torch.device, torch.memory_format)


def names_of(types: Types) -> str:
    """The names of data types, joined by commas."""
    return ", ".join(map(name_of, types))


def signed(tensor: Tensor) -> Tensor:
    """A view of wide unsigned integers as signed ones; other tensors as they are."""
    return tensor.view(SIGNED_FOR[tensor.dtype]) if tensor.dtype in SIGNED_FOR else tensor


def widened(tensor: Tensor) -> Tensor:
    """``tensor`` in the type that sums are computed in: float32 for half precision (rule A4)."""
    wide = sum_type(tensor.dtype)
    return tensor if wide is tensor.dtype else tensor.to(wide)


def sum_type(dtype: torch.dtype) -> torch.dtype:
    """The data type in which sums of elements of ``dtype`` are computed (rule A4)."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def lowest(dtype: torch.dtype) -> float:
    """The lowest value of a data type, -inf for floats (rule M1)."""
    if dtype.is_floating_point:
        return -math.inf
    return int(torch.iinfo(dtype).min) if dtype.is_signed else 0


def where(condition: Tensor, tensor: Tensor, other: float) -> Tensor:
    """``torch.where`` with a number, for wide unsigned types too. It has a derivative."""
    if tensor.dtype in SIGNED_FOR:
        return torch.where(condition, signed(tensor), other).view(tensor.dtype)
    return torch.where(condition, tensor, other)


def shards_of(tensor: Tensor) -> Any:
    """The placements of a DTensor; None for other tensors."""
    return None if type(tensor) is Tensor else getattr(tensor, "placements", None)


def beside(tensor: Tensor, like: Tensor) -> Tensor:
    """``tensor`` for arithmetic with ``like``: as a replicated DTensor if that is a DTensor."""
    if shards_of(like) is None:
        return tensor
    return type(like).from_local(tensor, like.device_mesh)  # type: ignore[attr-defined]


def ascending(count: int, like: Tensor) -> Tensor:
    """0, 1, ... on the device of ``like``."""
    return torch.arange(count, dtype=torch.int64, device=like.device)


def first_indices(like: Tensor, sizes: Sizes) -> Tensor:
    """The index of each plane's first element in a tensor of ``sizes``, which broadcasts."""
    samples, channels, *spatial_sizes = sizes
    first = ascending(samples * channels, like) * math.prod(spatial_sizes)
    return beside(first.view(samples, channels, *(1 for _ in spatial_sizes)), like)


def numbered(positions: Tensor, sizes: Sizes, index_dtype: torch.dtype, per_plane: bool) -> Tensor:
    """Positions in each plane as indices in a tensor of ``sizes`` (N, C, *spatial); -1 stays."""
    if not per_plane:
        indices = positions + first_indices(positions, sizes)
        positions = torch.where(positions < 0, positions, indices)
    return positions.to(index_dtype)
