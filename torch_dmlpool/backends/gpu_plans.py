"""Plans of calls on a GPU: which launches compute them, where their results lie, and the plans of
their gradients. They are looked up by sizes, strides, window, data types and alignment.
"""

import contextlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool._private import current_gpu, empty_strided_cuda
from torch_dmlpool.backends.compiling import kernel_named
from torch_dmlpool.backends.fallbacks import KernelError, NoKernelError
from torch_dmlpool.window import Window


@dataclass(slots=True)
class GpuPlan:
    """How an operator's results lie in memory, and the launches that make them."""

    memory_format: torch.memory_format
    # whether the source lies in this format and starts at 16 bytes, as kernels but those of tiles
    # need it
    is_dense: bool
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    launches: tuple[Any, ...]  # empty if results are
    kernel: str  # of the first launch; tile kernels read a source of any strides
    gradient: "GpuGradientPlan | None" = None  # from the first call on that records it


@lru_cache(maxsize=4096)
def planned(
    function: str,
    own: tuple[Any, ...],
    window: Window | None,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    kinds: tuple[Any, ...],
    aligned: bool,
    target_sizes: tuple[int, ...] | None,
    channels_last: bool | None,
    *options: Any,
) -> GpuPlan:
    """The plan of a call: ``function`` in kernels/launches.py makes its launches.

    ``function`` takes a ``launch.Request``, made of the other arguments, and then the arguments
    ``own``. ``target_sizes`` default to the window's output sizes, ``channels_last`` to the
    source's memory format.

    ``kinds`` has the data types of all operands, that of the elements first. With ``aligned`` it
    says which operands are aligned, as new tensors always are. So a plan's launches can keep the
    kernels that were compiled for them. An operand that may be copied first is in the key as the
    copy, or with its strides, which decide whether it is copied.
    """
    source = torch.empty_strided(shape, strides, dtype=torch.uint8, device="meta")
    target_sizes = window.output_sizes(shape[2:]) if target_sizes is None else target_sizes  # type: ignore[union-attr]
    channels_last = operands.is_channels_last(source) if channels_last is None else channels_last
    memory_format = operands.named_memory_format(channels_last, len(target_sizes))
    results = operands.empty((*shape[:2], *target_sizes), source, memory_format)
    launches: tuple[Any, ...] = ()
    if results.numel() > 0:
        sides = tuple(shape), strides, target_sizes
        request = kernel_named("launch", "Request")(
            window, *sides, kinds[0].itemsize, aligned, channels_last, *options
        )
        launches = kernel_named("launches", function)(request, *own)
        if launches is None:
            raise NoKernelError
    kernel = launches[0].kernel if launches else ""
    is_dense = aligned and operands.lies_in(source, memory_format)
    return GpuPlan(
        memory_format, is_dense, tuple(results.shape), results.stride(), launches, kernel
    )


def new(like: Tensor, plan: GpuPlan, dtype: torch.dtype) -> Tensor:
    """An uninitialised result of a plan, on the device of ``like``."""
    device = like.get_device()
    if device < 0 or device != current_gpu():
        return like.new_empty_strided(plan.sizes, plan.strides, dtype=dtype)
    return empty_strided_cuda(plan.sizes, plan.strides, dtype)


class GpuGradientPlan:
    """What the gradient of results of ``plan`` needs: ``interface.GradientPlan``.

    ``fill`` launches the gradient's plan, which the further arguments describe. Without a
    plan, the gradient's operator is called.
    """

    __slots__ = ("back", "dtype", "fill", "like", "plan", "taps")

    def __init__(
        self,
        input: Tensor,
        plan: GpuPlan | None = None,
        fill: Any = None,
        function: str = "",
        own: tuple[Any, ...] = (),
        window: Window | None = None,
        *options: Any,
        taps: torch.dtype | None = None,
    ) -> None:
        self.like = torch.empty_strided(
            input.shape, input.stride(), dtype=input.dtype, device="meta"
        )
        self.dtype, self.plan, self.taps, self.fill = input.dtype, plan, taps, fill
        self.back: GpuPlan | None = None
        if plan is None or not plan.launches:
            return
        kinds = (self.dtype,) if taps is None else (self.dtype, (self.dtype, True), (taps, True))
        shape, sizes = torch.Size(plan.sizes), tuple(input.shape[2:])
        last = plan.memory_format is not torch.contiguous_format
        back = function, own, window, shape, plan.strides, kinds, True, sizes
        with contextlib.suppress(NoKernelError):
            self.back = planned(*back, None if taps is None else last, True, *options)

    def gradient(self, arriving: Tensor, choice: Tensor | None = None) -> Tensor | None:
        """The gradient; None where the operands do not lie in memory as the output does."""
        back, taps = self.back, self.taps
        if back is None or not self._lies_as(arriving, self.dtype):
            return None
        if taps is not None and not (
            self._lies_as(choice, taps) and choice.get_device() == arriving.get_device()  # type: ignore[union-attr]
        ):
            return None
        sources = (arriving,) if choice is None else (arriving, choice)
        gradient = new(arriving, back, self.dtype)
        try:
            self.fill(back, *sources, gradient)
        except KernelError:  # the operator warns
            return None
        return gradient

    def _lies_as(self, tensor: Any, dtype: torch.dtype) -> bool:
        """Whether ``tensor`` lies as the results of the plan do, where kernels expect it."""
        plan: Any = self.plan
        return (
            tensor.stride() == plan.strides
            and tensor.shape == plan.sizes
            and tensor.dtype is dtype
            and tensor.data_ptr() % 16 == 0
        )
