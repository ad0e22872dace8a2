"""Plans of calls on a GPU: which launches compute them, where their results lie, and the plans of
their gradients. They are looked up by sizes, strides, window, data types and alignment.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool._private import current_gpu, empty_strided_cuda
from torch_dmlpool.backends.compiling import Kinds, kernel_named
from torch_dmlpool.backends.fallbacks import NoKernelError
from torch_dmlpool.tensors import empty, is_channels_last, lies_in
from torch_dmlpool.window import Ints, Window


@dataclass(slots=True)
class GpuPlan:
    """How an operator's results lie in memory, and the launches that make them."""

    channels_last: bool
    # whether the source lies in this format and starts at 16 bytes, as kernels but those of tiles
    # need it
    is_dense: bool
    sizes: Ints
    strides: Ints
    launches: tuple[Any, ...]  # empty if results are
    kernel: str  # of the first launch; tile kernels read a source of any strides


@lru_cache(4096)
def planned(
    function: str,
    own: tuple[Any, ...],
    windows: Any,
    shape: Ints,
    strides: Ints,
    kinds: Kinds,
    aligned: bool,
    target_sizes: Any = None,
    channels_last: bool | None = None,
    adjoint: bool = False,
    asm: bool = False,
    include_padding: bool = False,
    divisor: int | None = None,
    mask: Ints = (),
) -> GpuPlan:
    """The plan of a call: ``function`` in kernels/launches.py makes its launches.

    ``function`` takes a ``launch.Request``, made of the other arguments, and then the arguments
    ``own``. ``windows`` are a window, or the output sizes of bins. ``target_sizes`` default to the
    output sizes of these, ``channels_last`` to the source's memory format.

    ``kinds`` has the data types of all operands, that of the elements first. With ``aligned`` it
    says which operands are aligned, as new tensors always are. So a plan's launches can keep the
    kernels that were compiled for them. An operand that may be copied first is in the key as the
    copy, or with its strides, which decide whether it is copied.
    """
    source = torch.empty_strided(shape, strides, dtype=torch.uint8, device="meta")
    is_window = isinstance(windows, Window)
    if target_sizes is None:
        target_sizes = windows.output_sizes(shape[2:]) if is_window else windows
    channels_last = is_channels_last(source) if channels_last is None else channels_last
    results = empty((*shape[:2], *target_sizes), source, channels_last)
    launches: tuple[Any, ...] = ()
    if results.numel() > 0:
        sides = tuple(shape), strides, target_sizes, kinds[0].itemsize, aligned, channels_last
        options = adjoint, asm, include_padding, divisor, mask
        request = kernel_named("launch", "Request")(
            windows if is_window else None, *sides, *options
        )
        launches = kernel_named("launches", function)(request, *own)
        if launches is None:
            raise NoKernelError
    kernel = launches[0].kernel if launches else ""
    is_dense = aligned and lies_in(source, channels_last)
    return GpuPlan(
        channels_last, is_dense, tuple(results.shape), results.stride(), launches, kernel
    )


@lru_cache(1024)
def planned_sets(
    sizes: tuple[int, int, int, int], kinds: Kinds, options: tuple[int, bool, bool]
) -> Any:
    """The launch that combines sets of rows. ``sizes`` are the numbers of sets, rows and channels,
    and how far rows lie apart; ``kinds`` the data types of all tensors and whether they are
    aligned. ``options`` say what is computed, and whether there are offsets and a mask.
    """
    sets, rows, channels, _ = sizes
    if max(rows, sets * channels) >= kernel_named("launch", "WIDE_FROM"):
        raise NoKernelError
    (dtype, aligned), *_ = kinds
    constants = dict(zip(("OP", "RAGGED", "MASKED"), options, strict=True))
    return kernel_named("launches", "segments")(sizes, dtype.itemsize, aligned, **constants)


def new(like: Tensor, plan: GpuPlan, dtype: torch.dtype) -> Tensor:
    """An uninitialised result of a plan, on the device of ``like``."""
    device = like.get_device()
    if device < 0 or device != current_gpu():
        return like.new_empty_strided(plan.sizes, plan.strides, dtype=dtype)
    return empty_strided_cuda(plan.sizes, plan.strides, dtype)
