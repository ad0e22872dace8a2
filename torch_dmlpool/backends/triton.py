"""The Triton backend: allocate, choose the launches, launch. Triton is imported inside the calls: it may be absent.

All memory comes from PyTorch's caching allocator and nothing waits for the device, so that CUDA graphs capture every
call. A launch goes to the tensors' own device and that device's current stream.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.window import Window

# --- How kernels are launched ---


@lru_cache
def kernel_named(module: str, name: str) -> Any:
    """A kernel by name; the statement ``import`` would cost each call some microseconds."""
    return getattr(importlib.import_module(f"torch_dmlpool.kernels.{module}"), name)


def target(tensor: Tensor) -> str:
    """What a tensor's device runs: "interpreter", "hip", or CUDA's "sm_70", "cuda" (sm_80) or "sm_90" and later."""
    if tensor.device.type != "cuda":
        return "interpreter"
    if torch.version.hip:
        return "hip"
    generation = _generation(tensor.device.index)
    return "sm_90" if generation >= 9 else "cuda" if generation == 8 else "sm_70"


def _runs_ptx(tensor: Tensor) -> bool:
    """Whether a tensor's device runs inline assembly for sm_80 and later."""
    return target(tensor) in ("cuda", "sm_90")


@lru_cache
def _generation(device: int) -> int:
    """The first part of a CUDA device's compute capability."""
    return torch.cuda.get_device_capability(device)[0]


def launch(how: Any, *arguments: Any) -> None:
    """Run ``how``, a ``kernels.launch.Launch``, over tensors (and numbers) on the first tensor's device."""
    device = arguments[0].device
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        _run(how, arguments, device.index)
        return
    with torch.cuda.device(device):
        _run(how, arguments, device.index)


def _run(how: Any, arguments: tuple[Any, ...], device: int | None) -> None:
    if device is None:  # Triton's interpreter
        kernel = kernel_named(*how.kernel.split("."))
        kernel[(how.programs,)](*arguments, *how.sizes, **dict(how.constants))
        return
    kinds: tuple[Any, ...] = ()
    for each in arguments:
        if isinstance(each, Tensor):
            kinds += (each.dtype, each.data_ptr() % 16 == 0)
        else:  # integers are part of what is compiled, floats are not
            kinds += (type(each), each if type(each) is int else None)
    compiled, constants = _compiled(how.kernel, how.constants, how.size_types, how.num_warps, device, kinds)
    compiled[(how.programs, 1, 1)](*arguments, *how.sizes, *constants)


class _Pointer:
    """What Triton asks of a tensor when it compiles: its type, and whether its address is a multiple of 16."""

    def __init__(self, dtype: torch.dtype, aligned: bool) -> None:
        self.dtype, self.address = dtype, 0 if aligned else 1

    def data_ptr(self) -> int:
        return self.address


@cache
def _compiled(
    name: str,
    constants: tuple[tuple[str, Any], ...],
    size_types: tuple[str, ...],
    num_warps: int,
    device: int,  # noqa: ARG001 - the current one
    kinds: tuple[Any, ...],
) -> tuple[Any, tuple[Any, ...]]:
    """The compiled kernel and its constants by position: Triton's own look-up costs a launch 30 microseconds."""
    kernel = kernel_named(*name.split("."))
    arguments = [
        _Pointer(kind, detail) if isinstance(kind, torch.dtype) else kind() if detail is None else detail
        for kind, detail in zip(kinds[::2], kinds[1::2], strict=True)
    ]
    by_name = dict(constants)
    # Contraction is said aloud because Triton's default is about to change, and 3.9 warns of that.
    options = {"num_warps": num_warps // 2 if torch.version.hip else num_warps, "enable_fp_fusion": True}
    arguments += [2**30 if each == "i32" else 2**40 for each in size_types]
    compiled = kernel.warmup(*arguments, grid=(1,), **by_name, **options)
    return compiled, tuple(by_name[each] for each in kernel.arg_names[len(arguments) :])


def is_aligned(*tensors: Tensor) -> bool:
    """Whether every tensor starts at a multiple of 16 bytes: only then Triton emits its widest loads and stores."""
    return all(tensor.data_ptr() % 16 == 0 for tensor in tensors)


# --- Max pooling ---


def max_pooling(input: Tensor, window: Window) -> Tensor:
    """Max pooling, values alone (rules M1 to M3)."""
    return _maxima(input, window, "values", None)[0]


def max_pooling_with_taps(input: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Max pooling with the number of each winning tap inside its window (rule M6)."""
    return _maxima(input, window, "taps", operands.tap_dtype(window.taps))


def max_pooling_with_indices(
    input: Tensor, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> tuple[Tensor, Tensor]:
    """Max pooling with indices over the whole tensor (rule M4), or inside each plane."""
    return _maxima(input, window, "plane indices" if per_plane else "indices", index_dtype)


def _maxima(input: Tensor, window: Window, with_: str, code_dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """Values, and as ``with_`` says taps or indices of ``code_dtype`` (else the values once more)."""
    memory_format = operands.suggested_memory_format(input)
    input = input.resolve_neg()  # kernels read raw memory
    sizes, passes = _max_plan(
        window, with_, tuple(input.shape), input.stride(), input.dtype, is_aligned(input), _runs_ptx(input),
        memory_format,
    )  # fmt: skip
    values = operands.empty(sizes, input, memory_format)
    codes = values if code_dtype is None else operands.empty(sizes, input, memory_format, code_dtype)
    if not passes:
        return values, codes
    if passes[0].launch.kernel == "max_pooling.max_tile":
        launch(passes[0].launch, input, values, codes)
        return values, codes
    taps = codes
    if with_ in ("plane indices", "indices"):
        taps = operands.empty(sizes, input, memory_format, operands.tap_dtype(window.taps))
    _axis_maxima(passes, input, values, taps, None if code_dtype is None else _signed_tap_dtype)
    if taps is not codes:
        _look_up(input, taps, codes, input.shape[2:], window, with_)
    return values, codes


def _signed_tap_dtype(taps: int) -> torch.dtype:
    """The type of taps between passes, which mark a window that has been empty so far by -1."""
    return torch.int16 if taps <= 2**15 else torch.int32


def _axis_maxima(
    passes: Sequence[Any], input: Tensor, values: Tensor, codes: Tensor, code_dtype: Callable[[int], torch.dtype] | None
) -> None:
    """Run ``max_axis`` along each axis into ``values`` and ``codes``; ``code_dtype`` types the codes in between."""
    source = found = input
    for step in passes:
        result, result_codes = values, codes
        if step is not passes[-1]:
            result = result_codes = torch.empty(step.elements, dtype=input.dtype, device=input.device)
            if code_dtype is not None:
                result_codes = torch.empty(step.elements, dtype=code_dtype(step.taps), device=input.device)
        launch(step.launch, source, found, result, result_codes)
        source, found = result, result_codes


def adaptive_max_pooling(input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Maxima of bins and their positions, axis by axis."""
    from torch_dmlpool.kernels import max_pooling_launch

    memory_format = operands.suggested_memory_format(input)
    sizes = (*input.shape[:2], *output_sizes)
    values = operands.empty(sizes, input, memory_format)
    positions = operands.empty(sizes, input, memory_format, operands.position_dtype(math.prod(input.shape[2:])))
    if values.numel() > 0:
        input = input.resolve_neg()
        problem = _max_problem(
            None, tuple(input.shape), input.stride(), sizes, values.stride(), None, input.dtype, False, False
        )
        passes = max_pooling_launch.axis_passes(problem, with_taps=True, bins=True)
        _axis_maxima(passes, input, values, positions, lambda _: positions.dtype)
    return values, positions


def max_pooling_indices(
    taps: Tensor, spatial_sizes: Sequence[int], window: Window, index_dtype: torch.dtype, per_plane: bool
) -> Tensor:
    """The indices that ``taps`` stand for in an input of ``spatial_sizes``."""
    indices = operands.empty(taps.shape, taps, operands.suggested_memory_format(taps), index_dtype)
    if indices.numel() > 0:
        _look_up(taps, taps, indices, spatial_sizes, window, "plane indices" if per_plane else "indices")
    return indices


def max_pooling_gather(input: Tensor, taps: Tensor, window: Window) -> Tensor:
    """The element of ``input`` at each window's tap; 0 where the window is empty."""
    gathered = operands.empty(taps.shape, input, operands.suggested_memory_format(taps))
    if gathered.numel() > 0:
        _look_up(input.resolve_neg(), taps, gathered, input.shape[2:], window, "values")
    return gathered


def _look_up(input: Tensor, taps: Tensor, result: Tensor, sizes: Sequence[int], window: Window, with_: str) -> None:
    """Into ``result``: the elements of ``input`` at the taps, or the taps' indices (then ``input`` is not read)."""
    launch(
        _lookup_plan(
            window, with_, (*input.shape[:2], *sizes), input.stride(), tuple(taps.shape), result.stride(), taps.stride()
        ),
        input, taps, result,
    )  # fmt: skip


def max_pooling_grad(input: Tensor, input_gradient: Tensor, window: Window) -> Tensor:
    """The gradient of max pooling straight from its input: the taps are found again and then gathered."""
    channels_last = operands.suggested_memory_format(input) is not torch.contiguous_format
    _, taps = max_pooling_with_taps(input, window)
    return max_pooling_grad_from_taps(input_gradient, taps, input.shape[2:], window, channels_last)


def max_pooling_grad_from_taps(
    input_gradient: Tensor, taps: Tensor, spatial_sizes: Sequence[int], window: Window, channels_last: bool
) -> Tensor:
    """Each window's gradient at its winning tap, overlaps added up (rule M5): ``(N, C, *spatial_sizes)``."""
    memory_format = operands.named_memory_format(channels_last, window.rank)
    gradient = operands.empty((*input_gradient.shape[:2], *spatial_sizes), input_gradient, memory_format)
    if gradient.numel() == 0:
        return gradient
    input_gradient = input_gradient.resolve_neg()
    passes = _grad_plan(
        window, tuple(gradient.shape), gradient.stride(), tuple(input_gradient.shape), input_gradient.stride(),
        taps.stride(), gradient.dtype, is_aligned(input_gradient, taps),
    )  # fmt: skip
    if passes[0].launch.kernel == "max_pooling_grad.grad_tile":
        launch(passes[0].launch, input_gradient, taps, gradient)
        return gradient
    source, found = input_gradient, taps
    sums = torch.float64 if gradient.dtype is torch.float64 else torch.float32
    for step in passes:
        result = left = gradient
        if step is not passes[-1]:
            result = torch.empty(step.elements, dtype=sums, device=gradient.device)
            left = torch.empty(step.elements, dtype=_signed_tap_dtype(step.taps), device=gradient.device)
        launch(step.launch, source, found, result, left)
        source, found = result, left
    return gradient


@lru_cache(maxsize=4096)
def _max_plan(
    window: Window,
    with_: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
    aligned: bool,
    runs_ptx: bool,
    memory_format: torch.memory_format,
) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """The output's sizes and the launches; remembered, as a call's time on the host counts."""
    from torch_dmlpool.kernels import max_pooling_launch

    sizes = (*shape[:2], *window.output_sizes(shape[2:]))
    if 0 in sizes:
        return sizes, ()
    output_strides = torch.empty(sizes, dtype=dtype, device="meta", memory_format=memory_format).stride()
    problem = _max_problem(window, shape, strides, sizes, output_strides, None, dtype, aligned, runs_ptx)
    return sizes, max_pooling_launch.max_passes(problem, with_)


@lru_cache(maxsize=4096)
def _grad_plan(
    window: Window, shape: tuple[int, ...], strides: tuple[int, ...], sizes: tuple[int, ...],
    output_strides: tuple[int, ...], tap_strides: tuple[int, ...], dtype: torch.dtype, aligned: bool,
) -> tuple[Any, ...]:  # fmt: skip
    from torch_dmlpool.kernels import max_pooling_grad_launch

    problem = _max_problem(window, shape, strides, sizes, output_strides, tap_strides, dtype, aligned, False)
    return max_pooling_grad_launch.grad_passes(problem)


@lru_cache(maxsize=4096)
def _lookup_plan(
    window: Window, with_: str, shape: tuple[int, ...], strides: tuple[int, ...], sizes: tuple[int, ...],
    result_strides: tuple[int, ...], tap_strides: tuple[int, ...],
) -> Any:  # fmt: skip
    from torch_dmlpool.kernels import max_pooling_grad_launch

    problem = _max_problem(window, shape, strides, sizes, result_strides, tap_strides, torch.uint8, False, False)
    return max_pooling_grad_launch.tap_lookup(problem, with_)


def _max_problem(
    window: Window | None, shape: Sequence[int], strides: Sequence[int], sizes: Sequence[int],
    output_strides: Sequence[int], tap_strides: Sequence[int] | None, dtype: torch.dtype, aligned: bool, runs_ptx: bool,
) -> Any:  # fmt: skip
    """An input, or its gradient, of ``shape`` and ``strides``; outputs of ``sizes``; no window for adaptive bins."""
    from torch_dmlpool.kernels import launch as launches
    from torch_dmlpool.kernels.max_pooling_launch import MaxProblem

    return MaxProblem(
        launches.NO_AXES if window is None else launches.three_axes(window),
        len(shape) - 2,
        tuple(shape[:2]),
        launches.three_sizes(shape[2:]),
        launches.three_sizes(sizes[2:]),
        launches.five_strides(shape, strides),
        launches.five_strides(sizes, output_strides),
        launches.five_strides(sizes, output_strides if tap_strides is None else tap_strides),
        dtype.itemsize,
        aligned,
        runs_ptx and dtype.is_floating_point and dtype.itemsize <= 4,
    )


# --- Averages ---


def average_pooling(input: Tensor, window: Window, include_padding: bool, divisor_override: int | None) -> Tensor:
    """Average pooling (rules A1 to A5)."""
    return _averages(input, window.output_sizes(input.shape[2:]), window, False, include_padding, divisor_override)


def average_pooling_grad(
    input_gradient: Tensor,
    spatial_sizes: Sequence[int],
    window: Window,
    include_padding: bool,
    divisor_override: int | None,
) -> Tensor:
    """The adjoint of average pooling: ``(N, C, *spatial_sizes)`` (rule A6)."""
    return _averages(input_gradient, spatial_sizes, window, True, include_padding, divisor_override)


def adaptive_average_pooling(input: Tensor, output_sizes: Sequence[int]) -> Tensor:
    """Averages of bins."""
    return _averages(input, output_sizes, None, False)


def adaptive_average_pooling_grad(input_gradient: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """The adjoint: gradients divided by their bins' elements, summed over the bins that hold an element."""
    return _averages(input_gradient, spatial_sizes, None, True)


def _averages(
    source: Tensor,
    target_sizes: Sequence[int],
    window: Window | None,
    adjoint: bool,
    include_padding: bool = False,
    divisor_override: int | None = None,
) -> Tensor:
    """Averages or their adjoint over windows, or over bins where there is no window."""
    from torch_dmlpool.kernels import average_pooling_launch as launches

    memory_format = operands.suggested_memory_format(source)
    target = operands.empty((*source.shape[:2], *target_sizes), source, memory_format)
    if target.numel() == 0:
        return target
    source = source.resolve_neg()  # kernels read raw memory
    request = launches.Request(
        window,
        tuple(source.shape),
        source.stride(),
        tuple(target_sizes),
        source.dtype.itemsize,
        is_aligned(source, target),
        memory_format is not torch.contiguous_format,
        adjoint,
        include_padding,
        divisor_override,
    )
    accumulated = torch.float64 if source.dtype is torch.float64 else torch.float32
    *steps, last = launches.bin_launches(request) if window is None else launches.average_launches(request)
    for step in steps:
        workspace = torch.empty(step.sizes[0], dtype=accumulated, device=source.device)
        launch(step, source, workspace)
        source = workspace
    launch(last, source, target)
    return target


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
    """Quantized average pooling (rules Q1, Q2 and Q6); numbers go to the kernels as numbers."""
    from torch_dmlpool.kernels import average_pooling_launch, quantized_launch

    memory_format = operands.suggested_memory_format(input)
    sizes = window.output_sizes(input.shape[2:])
    output = operands.empty((*input.shape[:2], *sizes), input, memory_format, output_dtype)
    if output.numel() == 0:
        return output
    parameters: list[Any] = [
        each.contiguous() if isinstance(each, Tensor) else each or 0
        for each in (input_scale, input_zero_point, output_scale, output_zero_point)
    ]
    request = average_pooling_launch.Request(
        window,
        tuple(input.shape),
        input.stride(),
        sizes,
        1,
        is_aligned(input, output),
        memory_format is not torch.contiguous_format,
        False,
        include_padding,
        None,
    )
    kinds = tuple((2 if each.numel() > 1 else 1) if isinstance(each, Tensor) else 0 for each in parameters)
    *steps, last = quantized_launch.quantized_launches(request, kinds)
    source, kind = input, torch.int32 if window.taps * 255 < 2**31 else torch.int64
    for step in steps:
        sums = torch.empty(step.sizes[0], dtype=kind, device=input.device)
        launch(step, source, sums)
        source = sums
    launch(last, source, output, *parameters)
    return output


# --- Adaptive pooling and positions ---


def _last_writers(positions: Tensor, plane: int) -> tuple[Tensor, Tensor]:
    """Which position is written last to each element of a plane, -1 for none; and where each position writes.

    The maximum of integers is the same in every order: nothing here depends on which thread comes first (rule E3).
    """
    places = positions.flatten(2).long()
    inside = (places >= 0) & (places < plane)
    numbers = torch.arange(places.shape[2], dtype=torch.int64, device=places.device).expand(places.shape)
    places = places.where(inside, 0)
    writers = places.new_full((*places.shape[:2], plane), -1)
    return writers.scatter_reduce_(2, places, numbers.where(inside, -1), "amax"), places


def unique_positions(positions: Tensor, spatial_sizes: Sequence[int]) -> Tensor:
    """Positions inside the plane; of several alike the one that comes last in row-major order, -1 for the others."""
    plane = math.prod(spatial_sizes)
    memory_format = operands.suggested_memory_format(positions)
    unique = operands.empty(positions.shape, positions, memory_format, operands.position_dtype(plane))
    if unique.numel() == 0:
        return unique
    writers, places = _last_writers(positions, plane)
    numbers = torch.arange(places.shape[2], dtype=torch.int64, device=places.device)
    return unique.copy_(places.where(writers.gather(2, places) == numbers, -1).view(positions.shape))


def _gathered(source: Tensor, places: Tensor, target: Tensor) -> Tensor:
    """Into ``target`` the elements of ``source``'s planes at ``places``, 0 where a place is negative."""
    of_as_many_bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[source.dtype.itemsize]
    found = source.view(of_as_many_bits).flatten(2).gather(2, places.clamp(min=0)).masked_fill_(places < 0, 0)
    target.view(of_as_many_bits).copy_(found.view(target.shape))
    return target


def gather_positions(input: Tensor, positions: Tensor) -> Tensor:
    """The element at each position, 0 where it lies outside the plane."""
    gathered = operands.empty(positions.shape, input, operands.suggested_memory_format(positions))
    if gathered.numel() == 0:
        return gathered
    places = positions.flatten(2).long()
    return _gathered(input.resolve_neg(), places.where(places < math.prod(input.shape[2:]), -1), gathered)


def scatter_positions(
    input: Tensor, positions: Tensor, spatial_sizes: Sequence[int], bins: bool, channels_last: bool
) -> Tensor:
    """Zeros with each element at its position; those of ``bins`` may meet, and are added up element by element."""
    from torch_dmlpool.kernels import adaptive_pooling

    memory_format = operands.named_memory_format(channels_last, len(spatial_sizes))
    scattered = operands.empty((*input.shape[:2], *spatial_sizes), input, memory_format)
    input = input.resolve_neg()  # kernels read raw memory
    if scattered.numel() == 0 or input.numel() == 0:
        return scattered.zero_()
    if not bins:
        return _gathered(input, _last_writers(positions, math.prod(spatial_sizes))[0], scattered)
    how = adaptive_pooling.gradient_launch(
        tuple(input.shape), input.stride(), positions.stride(), tuple(spatial_sizes), channels_last
    )
    launch(how, input, positions, scattered)
    return scattered
