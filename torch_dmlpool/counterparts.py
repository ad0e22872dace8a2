"""Which pools PyTorch has. What it has with the same meaning stays PyTorch's: in calls that others
observe, in decomposed programs and in ONNX models (rules W2 and W5).
"""

from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import tensors
from torch_dmlpool.window import Axis, Sizes, Window, is_known


def takes(family: str, rank: int, input: Tensor, has_indices: bool = False) -> bool:
    """Whether PyTorch's function takes such a tensor, batched or not. In a trace of torch.jit sizes
    are tensors and are not looked at.
    """
    dtype, sizes = input.dtype, tuple(input.shape)[-rank - 1 :]
    if input.is_nested or input.dim() not in (rank + 1, rank + 2):
        return False
    if any(type(size) is int and size == 0 for size in sizes):
        return False
    if input.layout is not torch.strided:
        return input.is_mkldnn
    if input.is_quantized:
        is_taken = family in ("max_pool", "avg_pool", "adaptive_avg_pool") and not has_indices
        return is_taken and input.qscheme() is torch.per_tensor_affine
    if dtype in tensors.FLOAT_TYPES:
        # It has no averages of volumes in half precision on the CPU.
        is_narrow = rank == 3 and dtype.itemsize == 2 and input.is_cpu
        return not (is_narrow and family in ("avg_pool", "lp_pool"))
    is_whole = dtype in tensors.INTEGER_TYPES[:5] and input.is_cpu
    return is_whole and family == "max_pool" and (rank > 1 or has_indices)


def arguments_of(family: str, window: Window, sizes: Sizes = ()) -> Any:
    """The kernel size, stride, padding, dilation and ``ceil_mode`` that describe a window to
    PyTorch's pools of a ``family``; None if they have no such window, or do not take an input of
    these spatial ``sizes``, which may be symbolic. Those that are not given are taken to be large
    enough.

    They pad both ends of a dimension by the same number, up to half the kernel size. Averages and
    norms have no dilation, and those of volumes refuse an input smaller than the window, padded or
    not. No window may step over the whole input: such windows mean something else.
    """
    refuses_small = window.rank == 3 and family != "max_pool"
    for axis, size in window.along(sizes or (None,) * window.rank):
        pad = axis.start_padding
        numbers = axis.window, axis.stride, pad, axis.end_padding, axis.dilation
        if any(type(number) is not int for number in numbers):
            return None
        # the smallest input of which the window makes an output
        least = axis.extent - 2 * pad - (axis.stride - 1 if axis.ceil_mode else 0)
        least = max(least, size) if type(size) is int else least
        fits = not refuses_small or size is None or least >= axis.window
        if (
            pad != axis.end_padding
            or 2 * pad > axis.window
            or (axis.dilation > 1 and family != "max_pool")
            or (axis.dilation > 1 and pad > 0 and least < axis.dilation)
            or not (fits or is_known(size >= axis.window))
        ):
            return None
    window_size, strides, padding, _, dilations, ceil_mode = window.arguments
    return window_size, strides, padding, dilations, ceil_mode


def for_onnx(window: Window, sizes: Sizes, include_padding: bool = False) -> Any:
    """The window as ONNX's MaxPool and AveragePool nodes have it, and whether averages count
    padding; None if a version of ONNX Runtime from 1.20 on reads them otherwise, or if padding is
    computed in the graph. ``sizes`` may be symbolic.

    Versions differ in three cases, each named by its report:

    - onnxruntime#15446: 1.20 makes a window too many where it would start past the input.
    - onnxruntime#16203: where padding is counted, 1.20 divides the last window of ``ceil_mode`` by
      all of its taps, and 1.21 to 1.24 do so before opset 19.
    - onnxruntime#24681: :func:`is_miscounted`.
    """
    starts, ends = window.arguments[2:4]
    pads = [*starts, *ends]
    if any(type(pad) is not int for pad in pads):
        return None
    counts_padding = include_padding and any(pads)
    if window.axes[0].ceil_mode:
        along = list(window.along(sizes))
        plain = Window.directml(window.rank, *window.arguments[:-1])
        if all(
            type(size) is int and one.output_size(size) == axis.output_size(size)
            for one, (axis, size) in plain.along(along)
        ):
            window = plain
        elif counts_padding or any(starts_past(*each) for each in along):
            return None
    return None if counts_padding and is_miscounted(pads, ends) else (window, counts_padding)


def starts_past(axis: Axis, size: Any) -> bool:
    """Whether the window that ``ceil_mode`` would add may start past the input (rule G3)."""
    if type(size) is not int:
        return axis.end_padding + axis.stride > axis.extent
    padded = size + axis.start_padding
    steps = -(-(padded + axis.end_padding - axis.extent) // axis.stride)
    return steps * axis.stride >= padded


def is_miscounted(pads: Sizes, ends: Sizes) -> bool:
    """Whether a runtime counts less of the padding at a dimension's end than ``ends`` says.

    ONNX Runtime 1.21 to 1.24 bound the windows along dimension i by entry 2i + 1 of ``pads``, from
    opset 19 on (onnxruntime#24681). That is the end of the last dimension alone.
    """
    return any(bound < end for bound, end in zip(pads[1::2], ends, strict=True))
