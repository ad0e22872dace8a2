"""Every operator in plain PyTorch, for any device: separable passes over blocks that stay in cache.

This is the CPU path, and the one for devices that Triton does not serve. Scratch memory is bounded by the block.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends.separable import Combination, Elements, Maximum, Scratch, Sum, Winner, pool_axis
from torch_dmlpool.window import Axis, Window

BLOCK = 2**18
"""Input elements of a block: a few of its size fit the second-level cache of two cores together."""

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


@dataclass(frozen=True, slots=True)
class Reach:
    """Along one axis of a block: output windows, the input they read, and where the first tap lies in it."""

    outputs: slice
    inputs: slice
    first_position: int


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the output, and the part of the input that it reads."""

    samples: slice
    channels: slice
    reaches: tuple[Reach, ...]

    @property
    def outputs(self) -> tuple[slice, ...]:
        return self.samples, self.channels, *(reach.outputs for reach in self.reaches)

    @property
    def inputs(self) -> tuple[slice, ...]:
        return self.samples, self.channels, *(reach.inputs for reach in self.reaches)


def _reach(axis: Axis, size: int, start: int, stop: int) -> Reach:
    first = axis.first_position(start)
    low = min(max(first, 0), size)
    high = max(low, min(axis.first_position(stop - 1) + axis.extent, size))
    return Reach(slice(start, stop), slice(low, high), first - low)


def _blocks(sizes: Sequence[int], output_sizes: Sequence[int], window: Window) -> Iterator[Block]:
    """Blocks of about :data:`BLOCK` input elements: samples, then channels, then windows along the outer axes."""
    samples, channels = sizes[0], sizes[1]
    tiles = list(output_sizes)
    volume = math.prod(sizes[2:])
    for number, axis in enumerate(window.axes):
        if volume <= BLOCK:
            break
        rest = volume // sizes[2 + number]
        # A tile reads its halo again: below the window's extent that would cost more than the block saves.
        tiles[number] = min(tiles[number], max(BLOCK // (rest * axis.stride), -(-axis.extent // axis.stride), 1))
        volume = rest * min(sizes[2 + number], (tiles[number] - 1) * axis.stride + axis.extent)
    channel_step = max(1, min(channels, BLOCK // max(1, volume)))
    sample_step = max(1, BLOCK // max(1, volume * channels)) if channel_step == channels else 1
    reaches = [
        [_reach(axis, size, start, min(start + tile, outputs)) for start in range(0, outputs, tile)]
        for axis, size, outputs, tile in zip(window.axes, sizes[2:], output_sizes, tiles, strict=True)
    ]
    for sample in range(0, samples, sample_step):
        for channel in range(0, channels, channel_step):
            for along_axes in itertools.product(*reaches):
                yield Block(
                    slice(sample, min(sample + sample_step, samples)),
                    slice(channel, min(channel + channel_step, channels)),
                    along_axes,
                )


def _is_identity(axis: Axis, reach: Reach) -> bool:
    return axis.window == 1 and axis.stride == 1 and reach.first_position == 0 and (
        reach.outputs.stop - reach.outputs.start == reach.inputs.stop - reach.inputs.start
    )


def _pool_block(
    combinations: Sequence[Combination],
    order: Sequence[int],
    window: Window,
    block: Block,
    source: Elements,
    out: Elements,
    scratch: Scratch,
) -> None:
    """One axis after the other, in ``order``; ``combinations`` has one entry per axis."""
    order = [number for number in order if not _is_identity(window.axes[number], block.reaches[number])] or order[:1]
    for number in order[:-1]:
        sizes = list(source.values.shape)
        sizes[2 + number] = out.values.shape[2 + number]
        between = scratch.elements(("axis", number), tuple(sizes), out)
        first_position = block.reaches[number].first_position
        pool_axis(combinations[number], source, 2 + number, window.axes[number], first_position, between, scratch)
        source = between
    number = order[-1]
    first_position = block.reaches[number].first_position
    pool_axis(combinations[number], source, 2 + number, window.axes[number], first_position, out, scratch)


def average_pooling(input: Tensor, window: Window, include_padding: bool, divisor_override: int | None) -> Tensor:
    """Sums by axis, divided once."""
    sizes = window.output_sizes(input.shape[2:])
    memory_format = operands.suggested_memory_format(input)
    output = operands.empty((*input.shape[:2], *sizes), input, memory_format)
    scratch = Scratch(memory_format, input.device)
    divisor = _divisor(window, tuple(input.shape[2:]), include_padding, divisor_override, input)
    combinations, order = [Sum()] * window.rank, range(window.rank)
    for block in _blocks(input.shape, sizes, window):
        source, target = input[block.inputs], output[block.outputs]
        sums = target
        if input.dtype.itemsize == 2:
            source = scratch.tensor("input", tuple(source.shape), torch.float32).copy_(source)
            sums = scratch.tensor("sums", tuple(target.shape), torch.float32)
        _pool_block(combinations, order, window, block, Elements(source), Elements(sums), scratch)
        if isinstance(divisor, Tensor):
            sums.div_(divisor[block.outputs[2:]])
        elif divisor != 1:
            sums.div_(divisor)
        if sums is not target:
            target.copy_(sums)
    return output


def _divisor(
    window: Window, sizes: tuple[int, ...], include_padding: bool, divisor_override: int | None, like: Tensor
) -> Tensor | int:
    """The number that divides each window's sum: one for all where they agree."""
    if divisor_override is not None:
        return divisor_override
    counts = [
        _counts(axis, size, outputs, include_padding)
        for axis, size, outputs in zip(window.axes, sizes, window.output_sizes(sizes), strict=True)
    ]
    if all(low == high for low, high in map(torch.aminmax, counts)):
        return max(1, math.prod(int(count[0]) for count in counts))
    product = functools.reduce(lambda left, right: left.unsqueeze(-1) * right, counts)
    # A window that counts nothing sums to 0: dividing it by 1 keeps it there (rule A3).
    return product.clamp_(min=1).to(like.device, torch.float64 if like.dtype is torch.float64 else torch.float32)


def _counts(axis: Axis, size: int, outputs: int, include_padding: bool) -> Tensor:
    first = torch.arange(outputs).mul_(axis.stride).sub_(axis.start_padding)

    def taps_before(bound: int) -> Tensor:
        return (first - bound).div_(axis.dilation, rounding_mode="floor").neg_().clamp_(0, axis.window)

    if include_padding:
        return taps_before(size + axis.end_padding)
    return taps_before(size) - taps_before(0)


def max_pooling(input: Tensor, window: Window) -> Tensor:
    """Maxima by axis."""
    sizes = window.output_sizes(input.shape[2:])
    memory_format = operands.suggested_memory_format(input)
    output = operands.empty((*input.shape[:2], *sizes), input, memory_format)
    scratch = Scratch(memory_format, input.device)
    combinations, order = [Maximum(_lowest(input.dtype))] * window.rank, range(window.rank)
    for block in _blocks(input.shape, sizes, window):
        source, target = input[block.inputs], output[block.outputs]
        _pool_block(combinations, order, window, block, Elements(source), Elements(target), scratch)
    return output


def _lowest(dtype: torch.dtype) -> float | int:
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min
