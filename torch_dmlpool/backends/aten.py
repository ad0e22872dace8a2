"""Where PyTorch's own pooling means the same as ours: what it computes for tensors too small to be worth recording.

ATen's pools know symmetric padding of at most half the window, and averages without dilation. Their loops visit one tap
after the other, so that a sum of more than five taps would leave the error bound of rule E6: those are made in double.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_dmlpool.backends import memory, threads
from torch_dmlpool.backends.positions import Places, places, plane_numbers, taps_of
from torch_dmlpool.backends.tape import MOST_THREADS
from torch_dmlpool.backends.ways import Way
from torch_dmlpool.backends.words import are_low_ends
from torch_dmlpool.operands import empty, settled, suggested_memory_format, tap_dtype
from torch_dmlpool.window import Window

MAX_WORK = 2**15
"""Taps read, over the whole tensor, below which ATen's maximum is faster than recording the passes."""
AVERAGE_WORK = 2**13
"""The same for averages, of one sample: the bits of a sample must not depend on how many others there are."""
LARGEST_SAMPLE = 2**21
"""Outputs of one channels_last sample up to which ATen's positions are small enough to be made."""
SAMPLES_BLOCK = 2**19
"""Outputs of channels_last samples that are made at a time, for ATen's positions to stay in the cache."""
PATIENCE, SECONDS_PER_TAP = 3e-3, 0.3e-9
"""Seconds that such a block may take on an idle machine, with several times what it needs, and more for each tap."""
FEW_TAPS_PER_STEP = 3.5
"""Taps per element stepped over up to which ATen's channels_last maximum beats one pass per axis: 3/2, 2/2, not 3/1."""
MANY_TAPS_PER_STEP = 100
"""The same where positions are asked for: there a pass per axis costs a dozen operations per tap."""
TABLE_ENTRIES = 2**14
"""Windows times positions up to which the taps of ATen's indices are looked up instead of computed."""
FEW_TAPS = 4
"""Taps along a single axis without stride up to which ATen's loop over them is as fast as a pass per tap."""
TAPS_PER_STRIDE = 8
"""The same with a stride, for each step of it."""
TAPS_PER_STRIDE_OF_WORDS = 3
"""The same where the passes read every stride-th element as the low end of a word."""
_CHAIN = 5
"""Most taps whose sum, one after the other, keeps rule E6: taps - 1 additions and a division ≤ 2 + ⌈log₂ taps⌉."""
_SHORT_CHAIN = 3
"""Most taps along each of two axes for the same, sums and a division per axis: 2 * 3 ≤ 2 + ⌈log₂ 9⌉."""
_UNKNOWN_TO_ATEN = (torch.uint16, torch.uint32, torch.uint64)


class Request(NamedTuple):
    """A small request in ATen's words: a single axis is the second of two."""

    rank: int
    taps: int
    sizes: list[int]
    strides: list[int]
    padding: list[int]
    dilations: list[int]
    ceil_mode: bool
    small_maximum: bool
    small_average: bool
    places: Places
    table: Tensor | None
    """Where few enough, the tap of every window at every position, and what to add to a position to find it there."""
    first_in_table: Tensor | None


@functools.lru_cache(maxsize=1024)
def _request(window: Window, shape: torch.Size) -> Request | None:
    sizes = shape[2:]
    output_sizes = window.output_sizes(sizes)
    sample_work = shape[1] * math.prod(output_sizes) * window.taps
    small_maximum = sample_work * shape[0] <= MAX_WORK
    small_average = sample_work <= AVERAGE_WORK and all(axis.dilation == 1 for axis in window.axes)
    if window.rank == 3 and any(axis.window > size for axis, size in zip(window.axes, sizes, strict=True)):
        # ATen's 3-D average refuses such a window even where ceil_mode makes it fit.
        small_average = False
    if shape.numel() == 0 or not (small_maximum or small_average):
        return None
    if not window.has_pytorchs_padding:
        return None
    *arguments, ceil_mode = window.arguments
    sizes_, strides, padding, _, dilations = arguments
    if window.rank == 1:
        sizes_, strides, padding, dilations = [1, *sizes_], [1, *strides], [0, *padding], [1, *dilations]
    where = places(window, tuple(sizes), tuple((0, size) for size in output_sizes), torch.device("cpu"))
    return Request(
        window.rank,
        window.taps,
        sizes_,
        strides,
        padding,
        dilations,
        ceil_mode,
        small_maximum,
        small_average,
        where,
        *_table(window, tuple(sizes), output_sizes, where),
    )


def _table(
    window: Window, sizes: tuple[int, ...], output_sizes: tuple[int, ...], where: Places
) -> tuple[Tensor | None, Tensor | None]:
    plane, windows = math.prod(sizes), math.prod(output_sizes)
    if plane * windows > TABLE_ENTRIES:
        return None, None
    every = torch.arange(plane).view(plane, *(1 for _ in sizes)).expand(plane, *output_sizes)
    table = taps_of(every, window, sizes, where.first).to(tap_dtype(window.taps)).movedim(0, -1).contiguous()
    return table, torch.arange(0, windows * plane, plane).view(output_sizes)


def way_of_row_maxima(input: Tensor, window: Window) -> Way | None:
    """Maxima along one axis where ATen's own loop over the taps beats a pass per tap over every stride-th element."""
    if window.rank != 1 or not input.is_cpu or input.numel() == 0:
        return None
    if input.dtype not in (torch.float32, torch.float64):
        return None
    (axis,) = window.axes
    per_stride = TAPS_PER_STRIDE_OF_WORDS if are_low_ends(axis.stride, input.dtype) else TAPS_PER_STRIDE
    most_taps = FEW_TAPS if axis.stride == 1 else per_stride * axis.stride
    if axis.window > most_taps or not window.has_pytorchs_padding:
        return None
    arguments = (axis.window, axis.stride, axis.start_padding, axis.dilation, axis.ceil_mode)
    return lambda tensor: torch.max_pool1d(tensor, *arguments)


def way_of_vector_maxima(input: Tensor, window: Window) -> Way | None:
    """Maxima of a channels_last CPU tensor whose windows hardly overlap: there ATen is as fast as a copy."""
    if not _reads_vectors(input, window, FEW_TAPS_PER_STEP):
        return None
    sizes = (*input.shape[:2], *window.output_sizes(input.shape[2:]))
    if math.prod(sizes) > LARGEST_SAMPLE:
        return partial(_vector_maxima_in_blocks, window=window)
    pool, arguments = torch.max_pool2d if window.rank == 2 else _max_pool3d, _in_words_of_aten(window)
    if min(sizes) > 1:
        return lambda tensor: pool(tensor, *arguments)
    memory_format = suggested_memory_format(input)
    return lambda tensor: settled(pool(tensor, *arguments), memory_format)


def _vector_maxima_in_blocks(input: Tensor, window: Window) -> Tensor:
    sizes = (*input.shape[:2], *window.output_sizes(input.shape[2:]))
    values = memory.empty(sizes, input, suggested_memory_format(input))
    for some, positions in _blocks_of_samples(values, window.taps, torch.int64):
        _maxima_and_positions(input[some], window, values[some], positions)
    return values


def max_pooling_of_vectors_with_indices(
    input: Tensor, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> tuple[Tensor, Tensor] | None:
    """The same with indices. ATen's own take eight bytes each, so they are made for a few samples at a time."""
    if not _reads_vectors(input, window, MANY_TAPS_PER_STEP):
        return None
    sizes, output_sizes = tuple(input.shape[2:]), window.output_sizes(input.shape[2:])
    if window.has_empty_windows(sizes):
        return None
    memory_format = suggested_memory_format(input)
    values = memory.empty((*input.shape[:2], *output_sizes), input, memory_format)
    indices = memory.empty(values.shape, input, memory_format, index_dtype)
    for some, positions in _blocks_of_samples(values, window.taps, torch.int64):
        _maxima_and_positions(input[some], window, values[some], positions)
        if _may_be_misplaced(values[some]):
            return None
        if not per_plane:
            positions += plane_numbers(values, math.prod(sizes))[some]
        indices[some] = positions
    return values, indices


def _may_be_misplaced(maxima: Tensor) -> bool:
    """Whether a window holds several NaN, of which ATen takes the last, or in 3-D the lowest numbers alone.

    Of these ATen takes a place in the first slice, inside the window or not, where channels are vectors.
    """
    if maxima.dim() == 4:
        return maxima.dtype.is_floating_point and math.isnan(maxima.sum().item())
    least = maxima.amin().item()
    lowest = -math.inf if maxima.dtype.is_floating_point else torch.iinfo(maxima.dtype).min
    return math.isnan(least) or least == lowest


def _reads_vectors(input: Tensor, window: Window, most_taps_per_step: float) -> bool:
    """Whether a tensor is channels_last, and its windows few enough taps that ATen's loop over them is worth it."""
    taps_per_step = window.taps / math.prod(axis.stride for axis in window.axes)
    if not input.is_cpu or window.rank == 1 or taps_per_step > most_taps_per_step or input.numel() == 0:
        return False
    if _is_beyond_aten(input) or not window.has_pytorchs_padding:
        return False
    if suggested_memory_format(input) is torch.contiguous_format:
        return False
    return not fills_a_block((*input.shape[:2], *window.output_sizes(input.shape[2:])))


def fills_a_block(sizes: Sequence[int]) -> bool:
    """Whether one sample has more elements than ATen may make positions of at a time."""
    return math.prod(sizes[1:]) > LARGEST_SAMPLE


def _is_beyond_aten(input: Tensor) -> bool:
    """Types that it does not pool, or whose channels_last positions it counts in numbers as narrow as they are."""
    if input.dtype in _UNKNOWN_TO_ATEN:
        return True
    if input.dtype.is_floating_point or input.dtype.itemsize > 2:
        return False
    narrow = torch.iinfo(torch.int8 if input.dtype.itemsize == 1 else torch.int16)
    return math.prod(input.shape[2:]) > narrow.max and suggested_memory_format(input) is not torch.contiguous_format


def _blocks_of_samples(
    like: Tensor, taps: int, dtype: torch.dtype, sizes: Sequence[int] = (), at_least: int = 1
) -> Iterator[tuple[slice, Tensor]]:
    """Samples of a channels_last tensor that together fill a block, and scratch of its sizes or of ``sizes``."""
    sizes = (*like.shape[:2], *(sizes or like.shape[2:]))
    step = min(sizes[0], max(at_least, SAMPLES_BLOCK // math.prod(sizes[1:])))
    patience = PATIENCE + SECONDS_PER_TAP * taps * step * math.prod(sizes[1:])
    scratch = empty((step, *sizes[1:]), like, suggested_memory_format(like), dtype)
    for start in threads.watched(range(0, sizes[0], step), patience):
        yield slice(start, start + step), scratch[: sizes[0] - start]


def _maxima_and_positions(input: Tensor, window: Window, values: Tensor, positions: Tensor) -> None:
    pools: Any = torch._C._nn
    pool = pools.max_pool2d_with_indices if window.rank == 2 else partial(_in_3d, pools.max_pool3d_with_indices)
    pool(input, *_in_words_of_aten(window), out=(values, positions))


def scatter_of_vectors(arriving: Tensor, positions: Tensor, out: Tensor) -> None:
    """Add what arrives at int32 positions of planes of ``out``, in the order of the windows.

    ATen's adaptive pool has the one parallel scatter that knows no geometry. What is added to is channels_last, and so
    are the positions.
    """
    # It gives each thread samples of its own.
    at_least = min(torch.get_num_threads(), MOST_THREADS)
    for some, wide in _blocks_of_samples(positions, 1, torch.int64, at_least=at_least):
        wide.copy_(positions[some])
        arrived = arriving[some].contiguous(memory_format=suggested_memory_format(out))
        rows = [as_rows(tensor) for tensor in (arrived, out[some], wide)]
        torch.ops.aten.adaptive_max_pool2d_backward.grad_input(*rows, grad_input=rows[1])


def as_rows(tensor: Tensor) -> Tensor:
    """A channels_last tensor as ``(N, C, 1, plane)``, with the strides by which ATen knows channels_last, N = 1 too."""
    samples, channels, *sizes = tensor.shape
    plane = math.prod(sizes)
    strides = (channels * plane, 1, channels * plane, channels)
    return tensor.as_strided((samples, channels, 1, plane), strides, tensor.storage_offset())


def way_of_vector_averages(
    input: Tensor, window: Window, include_padding: bool, divisor_override: int | None
) -> Way | None:
    """Averages of a channels_last CPU tensor over few taps, as ATen makes them in one or two sweeps."""
    if window.rank != 2 or any(axis.dilation > 1 for axis in window.axes):
        return None
    if not _reads_vectors(input, window, math.inf):
        return None
    sizes, strides, padding, *_, ceil_mode = window.arguments
    rest = (ceil_mode, include_padding, divisor_override)
    if window.taps <= _CHAIN:
        pool: Any = torch._C._nn.avg_pool2d
        return lambda tensor: pool(tensor, sizes, strides, padding, *rest)
    if max(sizes) > _SHORT_CHAIN:
        return None
    return partial(_vector_averages_in_two_sweeps, window=window, rest=rest)


def _vector_averages_in_two_sweeps(input: Tensor, window: Window, rest: tuple[bool, bool, int | None]) -> Tensor:
    """The columns of all rows, then the rows: each a chain short enough for rule E6."""
    pool: Any = torch._C._nn.avg_pool2d
    sizes, strides, padding, *_ = window.arguments
    ceil_mode, include_padding, uniform = rest
    output_sizes = window.output_sizes(input.shape[2:])
    output = memory.empty((*input.shape[:2], *output_sizes), input, suggested_memory_format(input))
    if uniform is None and (include_padding or not any(padding)) and not ceil_mode:
        uniform = window.taps
    columns = ((1, sizes[1]), (1, strides[1]), (0, padding[1]), *rest[:2], None if uniform is None else 1)
    rows = ((sizes[0], 1), (strides[0], 1), (padding[0], 0), *rest[:2], uniform)
    if input.dtype.itemsize == 2:
        for some, widened in _blocks_of_samples(output, window.taps, torch.float32, input.shape[2:]):
            output[some] = pool(pool(widened.copy_(input[some]), *columns), *rows)
        return output
    between = (input.shape[2], output_sizes[1])
    for some, sums in _blocks_of_samples(output, window.taps, output.dtype, between):
        pool(input[some], *columns, out=sums)
        pool(sums, *rows, out=output[some])
    return output


def _in_words_of_aten(window: Window) -> tuple[Any, ...]:
    sizes, strides, padding, _, dilations, ceil_mode = window.arguments
    return sizes, strides, padding, dilations, ceil_mode


def _served(input: Tensor, window: Window) -> Request | None:
    if not input.is_cpu:
        return None
    return _request(window, input.shape)


def _in_3d(pool: Any, *arguments: Any, **options: Any) -> Any:
    # Autocast would turn the operands of ATen's 3-D pools into float32 (rule E5).
    if not torch.is_autocast_enabled("cpu"):
        return pool(*arguments, **options)
    with torch.autocast("cpu", enabled=False):
        return pool(*arguments, **options)


def way_of_maxima(input: Tensor, window: Window) -> Way | None:
    """Maxima of a small CPU tensor; None where ATen cannot or need not serve."""
    request = _served(input, window)
    if request is None or not request.small_maximum or _is_beyond_aten(input):
        return None
    rest = (request.sizes, request.strides, request.padding, request.dilations, request.ceil_mode)
    # In 2-D ATen allocates as we do.
    if request.rank == 2:
        return lambda tensor: torch.max_pool2d(tensor, *rest)
    memory_format = suggested_memory_format(input)
    if request.rank == 3:
        return lambda tensor: settled(_max_pool3d(tensor, *rest), memory_format)
    return lambda tensor: settled(torch.max_pool2d(tensor.unsqueeze(2), *rest).squeeze(2), memory_format)


def _max_pool3d(input: Tensor, *arguments: Any) -> Tensor:
    return _in_3d(torch.max_pool3d, input, *arguments)


def max_pooling_with_taps(input: Tensor, window: Window) -> tuple[Tensor, Tensor] | None:
    """Maxima of a small CPU tensor with their taps; None where ATen cannot or need not serve."""
    found = max_pooling_with_positions(input, window)
    if found is None:
        return None
    values, positions = found
    request = _request(window, input.shape)
    assert request is not None
    if request.table is not None and request.first_in_table is not None:
        taps = torch.take(request.table, positions + request.first_in_table)
    else:
        taps = taps_of(positions, window, input.shape[2:], request.places.first).to(tap_dtype(window.taps))
    return values, settled(taps, suggested_memory_format(input))


def max_pooling_with_positions(input: Tensor, window: Window) -> tuple[Tensor, Tensor] | None:
    """Maxima of a small CPU tensor with int64 positions in their planes; None where ATen cannot or need not serve.

    Of several NaN in a window ATen names the last, and for an empty window a place outside the plane.
    """
    request = _served(input, window)
    if request is None or not request.small_maximum or _is_beyond_aten(input):
        return None
    if request.places.empty is not None:
        return None
    rest = (request.sizes, request.strides, request.padding, request.dilations, request.ceil_mode)
    pools: Any = torch._C._nn
    if request.rank == 3:
        # Where channels are vectors, ATen misplaces windows of the lowest numbers alone.
        values, positions = _in_3d(pools.max_pool3d_with_indices, input.contiguous(), *rest)
    else:
        values, positions = pools.max_pool2d_with_indices(input.unsqueeze(2) if request.rank == 1 else input, *rest)
    if input.dtype.is_floating_point and math.isnan(values.sum().item()):
        return None
    if request.rank == 1:
        values, positions = values.squeeze(2), positions.squeeze(2)
    return _settled(values, input, request), _settled(positions, input, request)


def _settled(result: Tensor, input: Tensor, request: Request) -> Tensor:
    # In 2-D ATen allocates as we do.
    return result if request.rank == 2 else settled(result, suggested_memory_format(input))


def way_of_averages(input: Tensor, window: Window, include_padding: bool, divisor_override: int | None) -> Way | None:
    """Averages of small samples on the CPU; None where ATen cannot or need not serve."""
    request = _served(input, window)
    if request is None or not request.small_average:
        return None
    dtype = widened = input.dtype
    if request.taps > _CHAIN:
        if dtype is torch.float64:
            return None
        widened = torch.float64
    elif dtype.itemsize == 2:
        widened = torch.float32
    rest = (request.sizes, request.strides, request.padding, request.ceil_mode, include_padding, divisor_override)
    memory_format, rank = suggested_memory_format(input), request.rank
    pools: Any = torch._C._nn
    if rank == 2 and widened is dtype:
        return lambda tensor: pools.avg_pool2d(tensor, *rest)

    def average(input: Tensor) -> Tensor:
        wide = input if widened is dtype else input.to(widened)
        if rank == 3:
            pooled = _in_3d(pools.avg_pool3d, wide, *rest)
        elif rank == 2:
            pooled = pools.avg_pool2d(wide, *rest)
        else:
            pooled = pools.avg_pool2d(wide.unsqueeze(2), *rest).squeeze(2)
        if widened is not dtype:
            pooled = pooled.to(dtype)
        return pooled if rank == 2 else settled(pooled, memory_format)

    return average


def average_pooling_grad(
    input_gradient: Tensor, window: Window, include_padding: bool, divisor_override: int | None, out: Tensor
) -> bool:
    """Write the gradient of small samples of float32 or float64 on the CPU; False where ATen cannot or need not."""
    if input_gradient.dtype.itemsize == 2:
        return False
    if _scatters_few(window, out):
        sizes, strides, padding, *_, ceil_mode = window.arguments
        arguments = (sizes, strides, padding, ceil_mode, include_padding, divisor_override)
        torch.ops.aten.avg_pool2d_backward.grad_input(input_gradient, out, *arguments, grad_input=out)
        return True
    request = _served(out, window)
    if request is None or not request.small_average or request.rank == 1:
        return False
    # ATen writes the gradient of its 3-D average as if it were contiguous.
    if request.rank == 3 and not out.is_contiguous():
        return False
    rest = (request.sizes, request.strides, request.padding, request.ceil_mode, include_padding, divisor_override)
    if request.rank == 3:
        _in_3d(partial(torch.ops.aten.avg_pool3d_backward.grad_input, grad_input=out), input_gradient, out, *rest)
    else:
        torch.ops.aten.avg_pool2d_backward.grad_input(input_gradient, out, *rest, grad_input=out)
    return True


def _scatters_few(window: Window, out: Tensor) -> bool:
    """Whether in a channels_last gradient every element is covered by few enough windows for rule E6."""
    if window.rank != 2 or any(axis.dilation > 1 for axis in window.axes) or not _reads_vectors(out, window, math.inf):
        return False
    return math.prod(-(-axis.window // axis.stride) for axis in window.axes) <= _CHAIN
