"""The Triton backend: allocate, choose the launches, launch. Triton is imported inside the calls:
it may be absent.

All memory comes from PyTorch's caching allocator and nothing waits for the device, so that CUDA
graphs capture every call. A launch goes to the tensors' own device and that device's current
stream.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool._private import current_gpu
from torch_dmlpool.backends import reference
from torch_dmlpool.backends.compiling import Kinds, compiled, kernel_named
from torch_dmlpool.backends.fallbacks import MissingKernel, NoKernelError, or_reference
from torch_dmlpool.backends.gpu_plans import new, planned, planned_sets
from torch_dmlpool.backends.interface import AnyWindow, Backend, Parameters
from torch_dmlpool.tensors import (
    FLOAT_TYPES,
    Mask,
    Pair,
    Tensors,
    Types,
    ascending,
    cloned_in,
    full_sizes,
    in_format,
    is_channels_last,
    sum_type,
    tap_dtype,
)
from torch_dmlpool.window import Arguments, Ints, Sizes, Window


def runs_ptx(tensor: Tensor) -> bool:
    """Whether a tensor's device runs PTX from sm_80 on."""
    return (
        tensor.is_cuda and torch.version.hip is None and _capability(tensor.get_device()) >= (8, 0)
    )


_capability = lru_cache(torch.cuda.get_device_capability)

MOST_TAPS = 2**20
"""The most taps of the kernels for quantized averages. A quotient of more taps may be a half in
float64 though the exact one is not: the reference compares these in integers."""


def launch(how: Any, *operands: Any) -> None:
    """Launch a kernel with these tensors and numbers, on the first tensor's device. ``how`` is a
    ``kernels.launch.Launch``.
    """
    device = operands[0].get_device()
    if device < 0 or device == current_gpu():
        _run(how, operands, device)
        return
    with torch.cuda.device(device):
        _run(how, operands, device)


def _run(how: Any, operands: Arguments, device: int) -> None:
    if device < 0:  # Triton's interpreter
        kernel = kernel_named(*how.kernel.split("."))
        kernel[(how.programs,)](*operands, how.sizes, **dict(how.constants))
        return
    ready = how.ready.get(device)
    if ready is None:
        # A launch belongs to a plan, whose operands have the same kinds in every call.
        ready = how.ready[device] = _ready(
            how, *_compiled(*what_is_compiled(how, operands, device))
        )
    runner, hooks, stream_of, run, function, metadata, numbers = ready
    stream = stream_of(device)
    if _is_hooked(hooks.launch_enter_hook) or _is_hooked(hooks.launch_exit_hook):
        runner(*operands, *numbers, stream=stream)
    else:  # what ``runner`` does without them, in half the time
        run(how.programs, 1, 1, stream, function, metadata, None, None, None, *operands, *numbers)


def _ready(how: Any, compiled: Any, constants: tuple[Any, ...]) -> tuple[Any, ...]:
    """What ``_run`` needs of a compiled kernel, which is loaded here."""
    import triton

    runner = compiled[(how.programs, 1, 1)]
    stream_of, numbers = triton.runtime.driver.active.get_current_stream, (how.sizes, *constants)
    functions = compiled.run, compiled.function, compiled.packed_metadata
    return runner, triton.knobs.runtime, stream_of, *functions, numbers


def _is_hooked(hook: Any) -> bool:
    """Whether there is a hook: a function, or a chain of them that is not empty."""
    return bool(getattr(hook, "calls", hook))


def what_is_compiled(how: Any, operands: Arguments, device: int) -> Arguments:
    """The arguments of ``_compiled`` for a launch."""
    return how.kernel, how.constants, how.size_types, device, tuple(map(kind_of, operands))


def is_aligned(tensor: Tensor) -> bool:
    """Whether it starts at a multiple of 16 bytes."""
    return tensor.data_ptr() % 16 == 0


def kind_of(operand: Any) -> Any:
    """What Triton compiles for: a tensor's data type and whether it is aligned, a number's type."""
    if isinstance(operand, Tensor):
        return operand.dtype, is_aligned(operand)
    return type(operand)


def _warps(device: int) -> int:
    """The warps of a program: kernels expect 128 lanes, and AMD's waves have 64 or 32."""
    wave = torch.cuda.get_device_properties(device).warp_size if torch.version.hip else 32
    return int(kernel_named("launch", "LANES") // wave)


@lru_cache(1024)  # those of a model are some tens
def _compiled(
    name: str,
    constants: tuple[tuple[str, Any], ...],
    size_types: tuple[Any, ...],
    device: int,
    kinds: Kinds,
) -> tuple[Any, Arguments]:
    """The compiled kernel and its constants by position, cached: Triton's own look-up takes each
    launch 30 microseconds. ``kinds`` has each tensor's type and whether it is aligned.
    """
    # Fused multiply-adds are asked for: Triton's default is about to change, and 3.9 warns of it.
    options = {"num_warps": _warps(device), "enable_fp_fusion": True}
    try:
        return compiled(name, constants, size_types, kinds, options)
    except Exception as error:  # whatever Triton lacks: a C compiler, a driver, its own library
        return MissingKernel(name, error), ()


def _in_turn(
    launches: Sequence[Any],
    sources: Tensors,
    results: Tensors,
    between: Types,
    numbers: tuple[Any, ...] = (),
) -> None:
    """Launch one after the other, from ``sources`` to ``results``. Each but the last writes
    workspaces of the types ``between``, which the next reads. All get ``numbers``.
    """
    for step in launches[:-1]:
        workspaces = tuple([sources[0].new_empty(step.results, dtype=dtype) for dtype in between])
        # A kernel that makes no numbers does not touch what it gets in their place: other memory,
        # or the mask of an adjoint's results, which the last one reads.
        is_mask = sources[-1] is not sources[0]
        workspaces += (sources if is_mask else workspaces)[-1:] * (len(sources) - len(between))
        launch(step, *sources, *workspaces, *numbers)
        sources = workspaces
    launch(launches[-1], *sources, *results, *numbers)


@or_reference
def max_pooling(input: Tensor, window: Window, mask: Mask = None) -> Tensor:
    """Values alone (rules M1 to M3)."""
    return _maxima(input, window, None, mask)[0]


@or_reference
def max_pooling_with_taps(input: Tensor, window: Window, mask: Mask = None) -> Pair:
    """Values, and the number of each winning tap inside its window (rule M6). The winner of a
    window without an element is in the padding; under a mask it is -1, or 255 as a byte.
    """
    return _maxima(input, window, tap_dtype(window.taps), mask)


@or_reference
def max_pooling_with_indices(
    input: Tensor,
    windows: AnyWindow,
    index_dtype: torch.dtype,
    per_plane: bool,
    mask: Mask = None,
) -> Pair:
    """Values, and indices of a data type over the whole tensor (rule M4) or inside each plane."""
    if not isinstance(windows, Window):  # the kernels make positions of bins, and taps of windows
        return _maxima(input, windows, index_dtype, mask)
    values, taps = _maxima(input, windows, tap_dtype(windows.taps), mask)
    return values, max_pooling_indices(taps, input.shape[2:], windows, index_dtype, per_plane)


def _maxima(
    input: Tensor,
    windows: AnyWindow,
    code_dtype: torch.dtype | None,
    mask: Mask = None,
) -> Pair:
    """Values, and the winning taps of a window or the positions of bins, of ``code_dtype``. Without
    one no numbers are computed: the values stand in for them, as kernels take a pointer in any
    case.
    """
    dtype = input.dtype
    has_codes, uses_asm = code_dtype is not None, dtype in _WITH_ASM and runs_ptx(input)
    kept, strides = _bytes_of(mask, input)
    kind = input.shape, input.stride(), (dtype, code_dtype, kind_of(kept)), is_aligned(input)
    plan = planned("max_launches", (has_codes,), windows, *kind, asm=uses_asm, mask=strides)
    values = new(input, plan, dtype)
    codes = values if code_dtype is None else new(input, plan, code_dtype)
    if plan.kernel == "max_pooling.max_tile":
        launch(plan.launches[0], input, kept, values, codes)
    elif plan.launches:
        if not plan.is_dense:
            input = cloned_in(input, plan.channels_last)
        kept = input if mask is None else kept
        between: Types = (dtype,)
        if code_dtype is not None:
            # Numbers in between are signed: -1 marks a window that has been empty so far.
            between += (torch.int64 if code_dtype is torch.int64 else torch.int32,)
        _in_turn(plan.launches, (input, kept), (values, codes), between, (0, 0, 0, 0))
    return values, codes


def _bytes_of(mask: Mask, like: Tensor, sizes: Ints | None = None) -> tuple[Tensor, Ints]:
    """A mask as the kernels read it, which they do not touch without one: bytes of all samples and
    positions, of spatial ``sizes`` or those of a tensor, in whose memory format they are dense. Its
    strides are 0 along a dimension of size 1.
    """
    if mask is None:
        return like, ()
    batch = like.shape[0], min(like.shape[1], mask.shape[1])
    kept = mask.expand(*batch, *(sizes or like.shape[2:]))
    kept = in_format(kept, is_channels_last(like)).view(torch.uint8)
    return kept, kernel_named("launch", "five_strides")(kept.shape, kept.stride())


_WITH_ASM = {torch.float16, torch.bfloat16, torch.float32}


@or_reference
def max_pooling_indices(
    taps: Tensor,
    spatial_sizes: Sizes,
    window: Window,
    index_dtype: torch.dtype,
    per_plane: bool,
) -> Tensor:
    """The indices that ``taps`` stand for in an input of ``spatial_sizes``."""
    channels_last = is_channels_last(taps)
    # The copy is aligned, so the plan is asked for what the kernel reads.
    taps = in_format(taps, channels_last)
    # Only the input's shape is used.
    input = torch.empty(full_sizes(taps, spatial_sizes), dtype=torch.uint8, device="meta")
    kind = input.shape, input.stride(), (index_dtype, kind_of(taps)), False
    plan = planned("indices", (per_plane,), window, *kind, tuple(taps.shape[2:]), channels_last)
    result = new(taps, plan, index_dtype)
    if plan.launches:
        launch(plan.launches[0], taps, result)
    return result


@or_reference
def max_pooling_grad_from_taps(
    input_gradient: Tensor,
    taps: Tensor,
    spatial_sizes: Sizes,
    window: Window,
    channels_last: bool,
) -> Tensor:
    """Each window's gradient at its winning tap, overlaps added up (rule M5): ``(N, C,
    *spatial_sizes)``.
    """
    if input_gradient.shape != taps.shape or input_gradient.device != taps.device:
        raise RuntimeError(
            f"taps of sizes {tuple(taps.shape)} on {taps.device} fit a gradient of the same sizes, "
            f"but that has sizes {tuple(input_gradient.shape)} on {input_gradient.device}"
        )
    source = in_format(input_gradient, channels_last)
    taps = in_format(taps, channels_last)
    operands, sizes = (source.dtype, kind_of(source), kind_of(taps)), tuple(spatial_sizes)
    kind = source.shape, source.stride(), operands, is_aligned(source) and is_aligned(taps)
    options = sizes, channels_last, True, runs_ptx(source)
    plan = planned("grad_launches", (), window, *kind, *options)
    gradient = new(source, plan, source.dtype)
    if plan.launches:
        launch(plan.launches[0], source, taps, gradient)
    return gradient


@or_reference
def average_pooling(
    input: Tensor,
    windows: AnyWindow,
    include_padding: bool,
    divisor: int | None,
    mask: Mask = None,
) -> Tensor:
    """Averages (rules A1 to A5)."""
    return _averages(input, None, windows, include_padding, divisor, mask=mask)


@or_reference
def average_pooling_grad(
    input_gradient: Tensor,
    spatial_sizes: Sizes,
    windows: AnyWindow,
    include_padding: bool,
    divisor: int | None,
    dtype: torch.dtype | None = None,
    mask: Mask = None,
) -> Tensor:
    """The adjoint: ``(N, C, *spatial_sizes)`` (rule A6), of a ``dtype`` or the source's; 0 where
    the mask is False.
    """
    sizes = tuple(spatial_sizes)
    return _averages(input_gradient, sizes, windows, include_padding, divisor, dtype, mask=mask)


@or_reference
def quantized_averages(
    input: Tensor,
    parameters: Parameters,
    window: Window,
    include_padding: bool,
    output_dtype: torch.dtype,
) -> Tensor:
    """Quantized averages (rules Q1, Q2 and Q6)."""
    if window.taps > MOST_TAPS:
        raise NoKernelError
    given = tuple(p.contiguous() if isinstance(p, Tensor) else p or 0 for p in parameters)
    return _averages(input, None, window, include_padding, None, output_dtype, given)


def _averages(
    source: Tensor,
    input_sizes: Ints | None,
    windows: AnyWindow,
    include_padding: bool,
    divisor: int | None,
    dtype: torch.dtype | None = None,
    parameters: Arguments = (0, 0, 0, 0),
    mask: Mask = None,
) -> Tensor:
    """Run one averaging plan, of a window or bins: forward if ``input_sizes`` is None, else the
    gradient of an input of these sizes; quantized by ``parameters`` if a ``dtype`` is given.
    """
    entries: tuple[Any, ...] = parameters
    kept, strides = _bytes_of(mask, source, input_sizes)
    kinds: Kinds = source.dtype, kind_of(kept)
    if dtype is not None:
        entries = tuple(min(p.numel(), 2) if isinstance(p, Tensor) else 0 for p in parameters)
        kinds = source.dtype, dtype, kind_of(kept), *map(kind_of, parameters)
    kind = source.shape, source.stride(), kinds, is_aligned(source), input_sizes, None
    options = input_sizes is not None, False, include_padding, divisor, strides
    plan = planned("average_launches", (entries,), windows, *kind, *options)
    target = new(source, plan, dtype or source.dtype)
    if plan.kernel == "average_pooling.sum_tile":
        launch(plan.launches[0], source, kept, target, *parameters)
    elif plan.launches:
        if not plan.is_dense:
            source = cloned_in(source, plan.channels_last)
        kept = source if mask is None else kept
        if plan.kernel == "spreading.spread":
            launch(plan.launches[0], source, kept, target)
        else:
            is_quantized = not source.is_floating_point()
            summed = torch.int32 if is_quantized else sum_type(source.dtype)
            # Under a mask the next launch reads how many elements each sum has.
            is_counted = mask is not None and input_sizes is None
            between = (summed, torch.int32) if is_counted else (summed,)
            _in_turn(plan.launches, (source, kept), (target, target), between, parameters)
    return target


@or_reference
def segment_sums(input: Tensor, offsets: Tensor | None, mask: Mask, is_mean: bool) -> Tensor:
    """The sum or the mean of each set."""
    return _combined(input, offsets, mask, int(is_mean))[0]


@or_reference
def segment_maxima(input: Tensor, offsets: Tensor | None, mask: Mask, are_minima: bool) -> Pair:
    """The greatest or least element of each channel of a set, and its row."""
    if input.dtype not in FLOAT_TYPES:
        raise NoKernelError
    return _combined(input, offsets, mask, 2 + are_minima)


def _combined(input: Tensor, offsets: Tensor | None, mask: Mask, operation: int) -> Pair:
    """The results of sets, and their rows if ``operation`` has them; else the results again."""
    is_ragged = offsets is not None
    if offsets is None:  # samples are sets of equally many rows, one after the other
        samples, rows, _ = input.shape
        offsets = ascending(samples + 1, input) * rows
        input = input.flatten(0, 1)
    rows, channels = input.shape
    if channels > 1 and input.stride(1) != 1:
        input = input.contiguous()
    values = input.new_empty((offsets.shape[0] - 1, channels))
    winners = values if operation < 2 else values.new_empty(values.shape, dtype=torch.int64)
    if values.numel() > 0:
        # A bool's byte may be any but 0. Without a mask the kernel does not touch it.
        kept = input if mask is None else mask.contiguous().view(torch.uint8)
        tensors = input, offsets.contiguous(), kept, values, winners
        sizes = values.shape[0], rows, channels, input.stride(0)
        options = operation, is_ragged, mask is not None
        launch(planned_sets(sizes, tuple(map(kind_of, tensors)), options), *tensors)
    return values, winners


BACKEND = Backend.of("triton", reference.BACKEND._asdict() | globals() | {"reads_masks": True})
