"""Quantized average pooling in plain PyTorch: integer sums by axis, requantized once."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends import memory, operations, real_sums
from torch_dmlpool.backends.blocks import Reach, halo_of, run, run_planes, window_reach
from torch_dmlpool.backends.combinations import Combination, Elements
from torch_dmlpool.backends.requantization import (
    EXACT_TAPS,
    Multipliers,
    float32_multipliers,
    settle_halves,
    spread_multipliers,
)
from torch_dmlpool.backends.separable import record_axes
from torch_dmlpool.backends.tape import Tape
from torch_dmlpool.backends.threads import considerate
from torch_dmlpool.backends.torch_average_pooling import axis_counts
from torch_dmlpool.window import Window

TRIED_FROM = 2**15
"""Results from which on it pays to look for a float32 multiplier before the first of them."""


class IntegerSum(Combination):
    """Addition without rounding: any order will do."""

    any_order = True
    disjoint = True

    def __init__(self) -> None:
        super().__init__(0)

    def combine(self, tape: Tape, out: Elements, first: Elements, second: Elements, step: int) -> None:
        tape.record(operations.add, first.values, second.values, out.values)


@considerate
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
    """Sums by axis in the smallest integer type that holds them, requantized exactly (rules Q1, Q2 and Q6)."""
    sizes = tuple(input.shape[2:])
    memory_format = operands.suggested_memory_format(input)
    output_sizes = (*input.shape[:2], *window.output_sizes(sizes))
    output = memory.empty(output_sizes, input, memory_format, output_dtype)
    if output.numel() == 0:
        return output
    read = math.prod(min(axis.window, -(-size // axis.dilation)) for axis, size in zip(window.axes, sizes, strict=True))
    sum_type = torch.int16 if read * 255 < 2**15 else torch.int32 if read * 255 < 2**31 else torch.int64
    parameters = [_number(each) for each in (input_scale, input_zero_point, output_scale, output_zero_point)]
    input_scale, input_zero_point, output_scale, output_zero_point = parameters
    multipliers = None
    if sum_type is torch.int16 and output.numel() >= TRIED_FROM and not any(isinstance(p, Tensor) for p in parameters):
        multipliers = float32_multipliers(
            (input_scale, output_scale),
            (input_zero_point or 0, output_zero_point or 0),
            (input.dtype, output_dtype),
            read,
            _divisors(window, sizes, include_padding),
        )
    are_real = real_sums.serves(input, window)
    if are_real:
        sum_type = torch.float32

    beside = {}
    # A number where every window reads as many elements: then the zero points are multiplied by it beforehand.
    counted_inside = _counts(window, sizes, [slice(0, size) for size in output.shape[2:]], False)
    inside = counted_inside if isinstance(counted_inside, int) else None
    # What the multipliers were tried for may as well stand in the recording.
    constant_zero = input_zero_point if multipliers is not None else None
    if input_zero_point is not None and not constant_zero:
        beside["input zero"] = _spread(input_zero_point, sum_type, output, inside or 1)
    if multipliers is None:
        beside["input scale"] = _spread(input_scale, torch.float64, output)
        beside["output scale"] = _spread(output_scale, torch.float64, output)
        if output_zero_point is not None:
            beside["output zero"] = _spread(output_zero_point, torch.float64, output)

    def record(
        tape: Tape, reaches: tuple[Reach, ...], sources: tuple[Tensor, ...], results: tuple[Tensor, ...]
    ) -> None:
        (source,), result, read_beside = sources, results[0], dict(zip(beside, results[1:], strict=True))
        sums = tape.scratch("sums", tuple(result.shape[1:]), sum_type)
        if are_real:
            real_sums.record(tape, window, source, sums)
        else:
            _record_integers(tape, window, reaches, source, sums)
        outputs = [along.results for along in reaches] or [slice(0, size) for size in output_sizes[2:]]
        counted = _as(_counts(window, sizes, outputs, False), sum_type, output.device)
        if constant_zero:
            tape.record(partial(_subtract, counted * constant_zero), sums)
        elif "input zero" in read_beside:
            zeros = read_beside["input zero"]
            if inside is None:
                scaled = tape.scratch("zeros", tuple(result.shape[1:]), sum_type)
                tape.record(partial(_scale, counted), zeros, scaled)
                zeros = scaled
            tape.record(_subtract, zeros, sums)
        divisors = _counts(window, sizes, outputs, include_padding)
        divisors = max(1, divisors) if isinstance(divisors, int) else divisors.clamp(min=1).to(output.device)
        if multipliers is not None:
            _record_float32(tape, multipliers, divisors, sums, result)
        else:
            _record_float64(tape, read > EXACT_TAPS, divisors, sums, read_beside, result)

    multiplied_by = (multipliers, constant_zero, tuple(beside))
    key = ("quantized average", window, sizes, include_padding, output_dtype, sum_type, *multiplied_by)
    results = (output, *beside.values())
    if are_real:
        run_planes(key, (input,), results, record, real_sums.ELEMENTS_AT_ONCE)
    else:
        run(key, (input,), results, halo_of(window), partial(window_reach, window, sizes), record)
    return output


def _record_integers(tape: Tape, window: Window, reaches: Sequence[Reach], source: Tensor, sums: Tensor) -> None:
    """Sums along one axis after the other."""
    wide = tape.scratch("wide", tuple(source.shape[1:]), sums.dtype)
    tape.record(operations.copy, source, wide)
    first_positions = [along.first_position for along in reaches]
    order = range(window.rank)
    record_axes(tape, [IntegerSum()] * window.rank, window, first_positions, Elements(wide), Elements(sums), order)


def _record_float32(tape: Tape, multipliers: Multipliers, divisors: Tensor | int, sums: Tensor, result: Tensor) -> None:
    real = sums
    if sums.dtype is not torch.float32:
        real = tape.scratch("real", tuple(result.shape[1:]), torch.float32)
        tape.record(operations.copy, sums, real)
    if isinstance(divisors, int):
        factor: Tensor | float = dict(multipliers.by_divisor)[divisors]
    else:
        factor = spread_multipliers(multipliers.by_divisor, divisors)
    if isinstance(factor, Tensor) or not multipliers.fusible:
        tape.record(partial(_multiply_then_add, factor, multipliers.addend), real)
    else:
        tape.record(partial(_multiply_add, factor, torch.tensor(multipliers.addend)), real)
    if multipliers.bounds is not None:
        tape.record(partial(_clamp, *multipliers.bounds), real)
    bytes_ = result.view(torch.uint8)
    tape.record(operations.copy, real.view(torch.int32), bytes_)
    if multipliers.shift:
        tape.record(partial(_shift, multipliers.shift), bytes_)


def _record_float64(
    tape: Tape,
    may_miss_halves: bool,
    divisors: Tensor | int,
    sums: Tensor,
    beside: dict[str, Tensor],
    result: Tensor,
) -> None:
    shape = tuple(result.shape[1:])
    real, denominator = (tape.scratch(name, shape, torch.float64) for name in ("real", "denominator"))
    input_scale, output_scale = beside["input scale"], beside["output scale"]
    tape.record(operations.copy, sums, real)
    tape.record(_multiply, input_scale, real)
    tape.record(partial(_scale, _as(divisors, torch.float64)), output_scale, denominator)
    tape.record(_divide, denominator, real)
    if may_miss_halves:
        tape.record(partial(_settle, divisors), sums, input_scale, output_scale, real)
    tape.record(_round, real)
    if "output zero" in beside:
        tape.record(_add_to, beside["output zero"], real)
    information = torch.iinfo(result.dtype)
    tape.record(partial(_clamp, information.min, information.max), real)
    # Straight to bytes takes twice as long.
    narrow = tape.scratch("narrow", shape, torch.int16)
    tape.record(operations.copy, real, narrow)
    tape.record(operations.copy, narrow, result)


# What is recorded: operations whose last operand is written.


def _add_to(addend: Tensor, out: Tensor) -> None:
    out.add_(addend)


def _subtract(subtrahend: Tensor | int, out: Tensor) -> None:
    out.sub_(subtrahend)


def _multiply_add(factor: float, addend: Tensor, out: Tensor) -> None:
    torch.add(addend, out, alpha=factor, out=out)


def _multiply_then_add(factor: Tensor | float, addend: float, out: Tensor) -> None:
    out.mul_(factor).add_(addend)


def _multiply(factor: Tensor, out: Tensor) -> None:
    out.mul_(factor)


def _scale(factor: Tensor | int, source: Tensor, out: Tensor) -> None:
    torch.mul(source, factor, out=out)


def _divide(divisor: Tensor, out: Tensor) -> None:
    out.div_(divisor)


def _round(out: Tensor) -> None:
    out.round_()


def _clamp(least: float, most: float, out: Tensor) -> None:
    out.clamp_(least, most)


def _shift(offset: int, out: Tensor) -> None:
    out.add_(offset)


def _settle(divisors: Tensor | int, sums: Tensor, input_scale: Tensor, output_scale: Tensor, out: Tensor) -> None:
    counted = torch.as_tensor(divisors, device=out.device).expand(out.shape)
    settle_halves(out, sums.long(), counted, input_scale, output_scale)


# What the windows count, and what belongs to each plane.


def _counts(window: Window, sizes: Sequence[int], outputs: Sequence[slice], include_padding: bool) -> Tensor | int:
    """Counted taps of the windows ``outputs``: a number where all agree, else a tensor of their sizes."""
    counts = [
        axis_counts(axis, size, along, include_padding)
        for axis, size, along in zip(window.axes, sizes, outputs, strict=True)
    ]
    if all(isinstance(count, int) for count in counts):
        return math.prod(counts)
    vectors = [torch.full((1,), count) if isinstance(count, int) else count for count in counts]
    product = functools.reduce(lambda left, right: left.unsqueeze(-1) * right, vectors)
    return product.expand([along.stop - along.start for along in outputs])


@functools.lru_cache(maxsize=1024)
def _divisors(window: Window, sizes: tuple[int, ...], include_padding: bool) -> tuple[int, ...]:
    """Every number that some window divides by."""
    axes = []
    for axis, size in zip(window.axes, sizes, strict=True):
        counts = axis_counts(axis, size, slice(0, axis.output_size(size)), include_padding)
        axes.append({counts} if isinstance(counts, int) else set(counts.tolist()))
    return tuple(sorted({max(1, math.prod(counts)) for counts in itertools.product(*axes)}))


def _as(numbers: Tensor | int, dtype: torch.dtype, device: torch.device | None = None) -> Tensor | int:
    return numbers.to(device, dtype) if isinstance(numbers, Tensor) else numbers


def _number(parameter: Any) -> Any:
    """The one entry of a vector of one as a number, where asking does not wait for a device."""
    if isinstance(parameter, Tensor) and parameter.numel() == 1 and parameter.is_cpu:
        return parameter.item()
    return parameter


def _spread(parameter: float | Tensor, dtype: torch.dtype, output: Tensor, factor: int = 1) -> Tensor:
    """A scale or zero point, times a factor, with the output's sizes: an entry per plane, or one for all."""
    if not isinstance(parameter, Tensor):
        return torch.full((), parameter * factor, dtype=dtype, device=output.device).expand(output.shape)
    entries = parameter.to(dtype)
    entries = entries if factor == 1 else entries * factor
    if entries.numel() > 1 and output.shape[0] > 1:
        # Planes that merge in the output must merge here.
        entries = entries.expand(output.shape[:2]).contiguous()
    return entries.view(*entries.shape, *(1 for _ in output.shape[2:])).expand(output.shape)
