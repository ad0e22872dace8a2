"""The Triton backend: allocate, choose the launches, launch. Triton is imported inside the calls: it may be absent.

All memory comes from PyTorch's caching allocator and nothing waits for the device, so that CUDA graphs capture every
call. A launch goes to the tensors' own device and that device's current stream.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
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


def earlier_launch(kernel: Any, how: Any, *tensors: Tensor) -> None:
    """Run ``kernel`` as an ``EarlierLaunch`` says; the device is made current only where it is not."""
    device = tensors[0].device
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        _earlier_run(kernel, how, tensors, device.index)
        return
    with torch.cuda.device(device):
        _earlier_run(kernel, how, tensors, device.index)


def _earlier_run(kernel: Any, how: Any, tensors: tuple[Tensor, ...], device: int | None) -> None:
    key: tuple[Any, ...] = (id(kernel), device)
    for tensor in tensors:
        if isinstance(tensor, Tensor):
            key += (tensor.dtype, tensor.data_ptr() % 16 == 0)
        else:  # a number: integers are part of what is compiled
            key += (type(tensor), tensor if type(tensor) is int else None)
    found = how.compiled.get(key)
    if found is not None:
        compiled, constants = found
        compiled[(how.programs, 1, 1)](*tensors, *how.sizes, *constants)
        return
    options = {"num_warps": how.num_warps // 2 if torch.version.hip else how.num_warps, "enable_fp_fusion": True}
    compiled = kernel[(how.programs,)](*tensors, *how.sizes, **how.constants, **options)
    if compiled is not None:  # as it is in the interpreter
        names = kernel.arg_names[len(tensors) + len(how.sizes) :]
        how.compiled[key] = compiled, tuple(how.constants[name] for name in names)


def is_aligned(*tensors: Tensor) -> bool:
    """Whether every tensor starts at a multiple of 16 bytes: only then Triton emits its widest loads and stores."""
    return all(tensor.data_ptr() % 16 == 0 for tensor in tensors)


# --- Max pooling ---


@lru_cache(maxsize=4096)
def _max_plan(
    window: Window,
    encode: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
    aligned: bool,
    target: str,
    memory_format: torch.memory_format,
) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """The output's sizes and the launches; remembered, as a call's time on the host counts."""
    from torch_dmlpool.kernels import launch, max_pooling_launch

    sizes = (*shape[:2], *window.output_sizes(shape[2:]))
    if 0 in sizes:
        return sizes, ()
    output_strides = torch.empty(sizes, device="meta", memory_format=memory_format).stride()
    problem = max_pooling_launch.MaxProblem(
        launch.three_axes(window),
        len(window.axes),
        shape[:2],
        launch.three_sizes(shape[2:]),
        launch.three_sizes(sizes[2:]),
        launch.five_strides(shape, strides),
        launch.five_strides(sizes, output_strides),
        dtype.itemsize,
        dtype.is_floating_point,
        dtype is torch.bfloat16,
        aligned,
        target,
    )
    return sizes, max_pooling_launch.max_passes(problem, encode)


def _maxima(input: Tensor, window: Window, encode: int, code_dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """Values, and beside them taps or indices of ``code_dtype`` as ``encode`` says (else the values once more)."""
    memory_format = operands.suggested_memory_format(input)
    input = input.resolve_neg()
    aligned = is_aligned(input)
    sizes, passes = _max_plan(
        window,
        encode,
        tuple(input.shape),
        input.stride(),
        input.dtype,
        aligned,
        target(input),
        memory_format,
    )
    values = operands.empty(sizes, input, memory_format)
    codes = values if code_dtype is None else operands.empty(sizes, input, memory_format, code_dtype)
    if not passes:
        return values, codes
    if passes[0].kernel == "max_windows":
        earlier_launch(kernel_named("max_pooling", "max_windows"), passes[0].launch, input, values, codes)
        return values, codes
    from torch_dmlpool.kernels import max_pooling_axes, max_pooling_launch, max_pooling_walk, max_pooling_walk_launch

    taps = codes
    if encode not in (max_pooling_launch.NO_TAPS, max_pooling_launch.TAPS):
        taps = operands.empty(sizes, input, memory_format, operands.tap_dtype(window.taps))
    current, inner = input, input
    for step in passes:
        if step.kernel == "max_stream":
            earlier_launch(kernel_named("max_pooling_stream", "max_stream"), step.launch, input, values, taps)
            break
        if step.kernel == "max_strips":
            scratch = torch.empty(step.scratch, dtype=input.dtype, device=input.device)
            earlier_launch(kernel_named("max_pooling_strips", "max_strips"), step.launch, input, values, scratch)
            break
        if step.kernel == "max_walk":
            kind = max_pooling_walk_launch.scratch_type(step.launch, str(input.dtype).removeprefix("torch."))
            between = torch.empty(step.scratch, dtype=getattr(torch, kind), device=input.device)
            columns = between
            if step.launch.constants["MODE"] == max_pooling_walk_launch.PAIRS:
                columns = torch.empty(step.scratch, dtype=torch.uint8, device=input.device)
            earlier_launch(max_pooling_walk.max_walk, step.launch, input, values, taps, between, columns)
            break
        if step is passes[-1]:
            result, result_taps = values, taps
        else:
            result = torch.empty(step.elements, dtype=input.dtype, device=input.device)
            result_taps = result
            if encode != max_pooling_launch.NO_TAPS:
                # An empty window is marked by -1 until the last pass.
                kind = torch.int16 if step.taps <= 2**15 else torch.int32
                result_taps = torch.empty(step.elements, dtype=kind, device=input.device)
        earlier_launch(max_pooling_axes.max_axis, step.launch, current, inner, result, result_taps)
        current, inner = result, result_taps
    if taps is not codes:
        _look_up(input, taps, codes, input.shape[2:], window, encode)
    return values, codes


def _look_up(input: Tensor, taps: Tensor, result: Tensor, sizes: Sequence[int], window: Window, encode: int) -> None:
    """Into ``result``: the elements of ``input`` at the taps, or the taps' indices (then ``input`` is not read)."""
    from torch_dmlpool.kernels import launch, max_pooling_launch
    from torch_dmlpool.kernels import max_pooling_axes as kernels

    shape = tuple(taps.shape)
    lookup = max_pooling_launch.tap_lookup(
        launch.three_axes(window),
        shape[:2],
        launch.three_sizes(tuple(sizes)),
        launch.three_sizes(shape[2:]),
        launch.five_strides(tuple(input.shape), input.stride()),
        launch.five_strides(shape, taps.stride()),
        launch.five_strides(shape, result.stride()),
        encode,
    )
    earlier_launch(kernels.at_taps, lookup, input, taps, result)


def max_pooling(input: Tensor, window: Window) -> Tensor:
    """Max pooling, values alone (rules M1 to M3)."""
    from torch_dmlpool.kernels.max_pooling_launch import NO_TAPS

    return _maxima(input, window, NO_TAPS, None)[0]


def kept_dtype(input: Tensor, window: Window) -> torch.dtype:  # noqa: ARG001 - a backend's interface
    """The type of the tap numbers that training keeps (rule M6)."""
    return operands.tap_dtype(window.taps)


def max_pooling_with_taps(input: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Max pooling with the number of each winning tap inside its window (rule M6)."""
    from torch_dmlpool.kernels.max_pooling_launch import TAPS

    return _maxima(input, window, TAPS, kept_dtype(input, window))


def max_pooling_with_indices(
    input: Tensor, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> tuple[Tensor, Tensor]:
    """Max pooling with indices over the whole tensor (rule M4), or inside each plane."""
    from torch_dmlpool.kernels.max_pooling_launch import INDICES, PLANE_INDICES

    return _maxima(input, window, PLANE_INDICES if per_plane else INDICES, index_dtype)


def max_pooling_indices(
    taps: Tensor, spatial_sizes: Sequence[int], window: Window, index_dtype: torch.dtype, per_plane: bool
) -> Tensor:
    """The indices that ``taps`` stand for in an input of ``spatial_sizes``."""
    from torch_dmlpool.kernels.max_pooling_launch import INDICES, PLANE_INDICES

    indices = operands.empty(taps.shape, taps, operands.suggested_memory_format(taps), index_dtype)
    if indices.numel() > 0:
        _look_up(taps, taps, indices, spatial_sizes, window, PLANE_INDICES if per_plane else INDICES)
    return indices


def max_pooling_gather(input: Tensor, taps: Tensor, window: Window) -> Tensor:
    """The element of ``input`` at each window's tap; 0 where the window is empty."""
    from torch_dmlpool.kernels.max_pooling_launch import NO_TAPS

    gathered = operands.empty(taps.shape, input, operands.suggested_memory_format(taps))
    if gathered.numel() > 0:
        _look_up(input.resolve_neg(), taps, gathered, input.shape[2:], window, NO_TAPS)
    return gathered


def max_pooling_grad_from_taps(
    input_gradient: Tensor, taps: Tensor, spatial_sizes: Sequence[int], window: Window, channels_last: bool
) -> Tensor:
    """Each window's gradient at its winning tap, overlaps added up (rule M5): ``(N, C, *spatial_sizes)``."""
    memory_format = operands.named_memory_format(channels_last, window.rank)
    return _max_gradient(input_gradient, taps, spatial_sizes, window, memory_format)


def max_pooling_grad(input: Tensor, input_gradient: Tensor, window: Window) -> Tensor:
    """The gradient of max pooling straight from its input: the taps are found again and then gathered."""
    if input_gradient.numel() == 0:
        return _max_gradient(input_gradient, input, input.shape[2:], window, operands.suggested_memory_format(input))
    _, taps = max_pooling_with_taps(input, window)
    return _max_gradient(input_gradient, taps, input.shape[2:], window, operands.suggested_memory_format(input))


def _max_gradient(
    input_gradient: Tensor,
    taps: Tensor,
    spatial_sizes: Sequence[int],
    window: Window,
    memory_format: torch.memory_format,
) -> Tensor:
    gradient = operands.empty((*input_gradient.shape[:2], *spatial_sizes), input_gradient, memory_format)
    if gradient.numel() == 0:
        return gradient
    input_gradient = input_gradient.resolve_neg()
    passes = _max_grad_passes(
        window,
        tuple(gradient.shape),
        gradient.stride(),
        tuple(input_gradient.shape),
        input_gradient.stride(),
        taps.stride(),
        gradient.dtype,
        is_aligned(input_gradient, taps),
        target(gradient),
    )
    current, current_taps = input_gradient, taps
    for step in passes:
        module = "max_pooling_grad_words" if step.kernel.startswith("grad_words") else "max_pooling_grad"
        kernel = kernel_named(module, step.kernel)
        if step.kernel != "grad_axis":
            earlier_launch(kernel, step.launch, current, current_taps, gradient)
            break
        result, result_taps = gradient, gradient
        if not step.launch.constants["LAST"]:
            scratch_type = torch.float64 if gradient.dtype is torch.float64 else torch.float32
            result = torch.empty(step.elements, dtype=scratch_type, device=gradient.device)
            kind = torch.int16 if step.taps <= 2**15 else torch.int32
            result_taps = torch.empty(step.elements, dtype=kind, device=gradient.device)
        earlier_launch(kernel, step.launch, current, current_taps, result, result_taps)
        current, current_taps = result, result_taps
    return gradient


@lru_cache(maxsize=4096)
def _max_grad_passes(
    window: Window,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    shape: tuple[int, ...],
    gradient_strides: tuple[int, ...],
    tap_strides: tuple[int, ...],
    dtype: torch.dtype,
    aligned: bool,
    target: str,
) -> tuple[Any, ...]:
    """The launches of a gradient: a result of ``sizes`` and ``strides`` from an incoming gradient of ``shape``."""
    from torch_dmlpool.kernels import launch, max_pooling_grad_launch

    problem = max_pooling_grad_launch.GradProblem(
        launch.three_axes(window),
        len(window.axes),
        shape[:2],
        launch.three_sizes(sizes[2:]),
        launch.three_sizes(shape[2:]),
        launch.five_strides(shape, gradient_strides),
        launch.five_strides(shape, tap_strides),
        launch.five_strides(sizes, strides),
        dtype.itemsize,
        aligned,
        target,
    )
    return max_pooling_grad_launch.grad_passes(problem)


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
    *steps, last = quantized_launch.quantized_launches(request, kinds, target(input) == "sm_90")
    source, kind = input, torch.int32 if window.taps * 255 < 2**31 else torch.int64
    for step in steps:
        sums = torch.empty(step.sizes[0], dtype=kind, device=input.device)
        launch(step, source, sums)
        source = sums
    launch(last, source, output, *parameters)
    return output


# --- Adaptive pooling and positions ---


def adaptive_max_pooling(input: Tensor, output_sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Maxima of bins and their positions, axis by axis."""
    from torch_dmlpool.kernels import adaptive_pooling as kernels
    from torch_dmlpool.kernels import bins_launch

    memory_format = operands.suggested_memory_format(input)
    sizes = (*input.shape[:2], *output_sizes)
    values = operands.empty(sizes, input, memory_format)
    positions = operands.empty(sizes, input, memory_format, operands.position_dtype(math.prod(input.shape[2:])))
    if values.numel() == 0:
        return values, positions
    source = input.resolve_neg()
    found = positions
    channels_last = memory_format is not torch.contiguous_format
    passes = bins_launch.bin_passes(
        tuple(source.shape), source.stride(), tuple(output_sizes), channels_last, {}, with_steps=True
    )
    for step in passes:
        if step is passes[-1]:
            result, result_positions = values, positions
        else:
            result = torch.empty(step.elements, dtype=input.dtype, device=input.device)
            result_positions = torch.empty(step.elements, dtype=positions.dtype, device=input.device)
        earlier_launch(kernels.max_bins, step.launch, source, found, result, result_positions)
        source, found = result, result_positions
    return values, positions


def _last_writers(positions: Tensor, plane: int) -> tuple[Tensor, Tensor]:
    """Which position is written last to each element of a plane, -1 for none; and where each position writes.

    The maximum of integers is the same in every order: nothing here depends on which thread comes first (rule E3).
    """
    places = positions.flatten(2).long()
    inside = (places >= 0) & (places < plane)
    numbers = torch.arange(places.shape[2], device=places.device).expand(places.shape)
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
    numbers = torch.arange(places.shape[2], device=places.device)
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
    from torch_dmlpool.kernels import adaptive_pooling as kernels
    from torch_dmlpool.kernels import bins_launch

    memory_format = operands.named_memory_format(channels_last, len(spatial_sizes))
    scattered = operands.empty((*input.shape[:2], *spatial_sizes), input, memory_format)
    input = input.resolve_neg()  # kernels read raw memory
    if scattered.numel() == 0 or input.numel() == 0:
        return scattered.zero_()
    if not bins:
        return _gathered(input, _last_writers(positions, math.prod(spatial_sizes))[0], scattered)
    launch = bins_launch.bins_gradient(
        tuple(input.shape), input.stride(), positions.stride(), tuple(spatial_sizes), channels_last
    )
    earlier_launch(kernels.grad_bins, launch, input, positions, scattered)
    return scattered
