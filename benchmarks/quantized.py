"""Quantized rows: their scales and zero points, and how ours, PyTorch's and a detour over real
numbers pool them.

Scales are powers of two and zero points even, so that real numbers represent every average and
halves are rounded to even by everybody: results must be equal, bit for bit.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from benchmarks.bound import Absent, Bound, Pool, Problem
from benchmarks.workloads import Workload

SCALE = 2.0**-5
ZERO_POINTS = {"uint8": 128, "int8": -4}


@dataclass(frozen=True)
class Quantization:
    """What the integers stand for; a row per channel has as many scales of the input."""

    input_scale: float | Tensor
    output_scale: float
    zero_point: int

    @property
    def spread_input_scale(self) -> float | Tensor:
        """As it meets 2-D tensors."""
        scale = self.input_scale
        return scale.view(1, -1, 1, 1) if isinstance(scale, Tensor) else scale


def quantization(workload: Workload, device: torch.device) -> Quantization:
    scale: float | Tensor = SCALE
    if workload.per_channel:
        scale = SCALE * 2.0 ** (torch.arange(workload.sizes[1], device=device) % 3 - 1)
    return Quantization(scale, SCALE, ZERO_POINTS[workload.dtype])


def our_pool_of_integers(problem: Problem) -> Pool:
    """Our pool of plain integer tensors, with scales and zero points of their own."""
    workload = problem.workload
    numbers = quantization(workload, problem.inputs[0].device)
    return functools.partial(
        dmlpool.quantized_linear_average_pooling,
        input_scale=numbers.input_scale,
        input_zero_point=numbers.zero_point,
        output_scale=numbers.output_scale,
        output_zero_point=numbers.zero_point,
        **_window(workload),
    )


def _window(workload: Workload) -> dict[str, Any]:
    return {
        "window_size": workload.window,
        "strides": workload.stride,
        "start_padding": workload.padding,
        "end_padding": workload.padding,
        "include_padding": workload.include_padding,
        "ceil_mode": workload.ceil_mode,
    }


def bind_ours(problem: Problem) -> list[Bound]:
    """Our pools of ATen's own tensors; of plain integers per channel, which ATen cannot pool."""
    if problem.workload.per_channel:
        return [
            Bound(functools.partial(our_pool_of_integers(problem), input))
            for input in problem.inputs
        ]
    return bind_quantized(
        functools.partial(dmlpool.quantized_average_pooling, **_window(problem.workload)), problem
    )


def bind_quantized(pool: Pool, problem: Problem) -> list[Bound]:
    """A pool on tensors of PyTorch's quantized types; getting there is not timed."""
    workload = problem.workload
    if workload.per_channel:
        raise Absent("one scale for all channels, which the output shares")
    if problem.inputs[0].device.type != "cpu":
        raise Absent("quantized tensors on a CPU alone")
    try:
        make = torch._make_per_tensor_quantized_tensor
    except AttributeError:
        raise Absent("this PyTorch has no quantized tensors") from None
    # these types are deprecated, and measured as long as they are there
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tensors = [make(input, SCALE, ZERO_POINTS[workload.dtype]) for input in problem.inputs]
    inputs = [tensor.contiguous(memory_format=workload.memory_format) for tensor in tensors]
    return [
        Bound(functools.partial(pool, input), lambda returned: (returned.int_repr(),))
        for input in inputs
    ]


def pool_over_real_numbers(pool: Pool, problem: Problem) -> Pool:
    """Dequantize, pool in float32, quantize: what a program does that has no quantized pool."""
    workload = problem.workload
    numbers = quantization(workload, problem.inputs[0].device)
    limits = torch.iinfo(workload.torch_dtype)
    scale = numbers.spread_input_scale

    def detour(input: Tensor) -> Tensor:
        real = pool((input.float() - numbers.zero_point) * scale)
        steps = torch.round(real / numbers.output_scale) + numbers.zero_point
        return steps.clamp(limits.min, limits.max).to(input.dtype)

    return detour
