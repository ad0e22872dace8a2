"""Scales and zero points, in every form that they may be given, and what exact arithmetic makes of them."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import oracle
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool

TYPES = [torch.uint8, torch.int8]
FORMS = ["number", "0-D", "one element", "per channel", "per channel, spread"]
TIES = [0.25, 0.5, 1.0, 1.5, 2.0, 3.0]
"""Scales whose quotients make many true ties."""


@dataclass(frozen=True)
class Parameters:
    """The four parameters, an entry per channel each."""

    input_scales: tuple[float, ...]
    input_zeros: tuple[int, ...]
    output_scales: tuple[float, ...]
    output_zeros: tuple[int, ...]

    def given(self, forms: list[str], types: tuple[torch.dtype, torch.dtype], rank: int) -> list[object]:
        """The arguments of the public function; a form for all channels takes the first one's entry."""
        kinds = (torch.float32, types[0], torch.float32, types[1])
        return [given(*row, rank) for row in zip(vars(self).values(), forms, kinds, strict=True)]

    def understood(self, forms: list[str]) -> Parameters:
        """What arguments given in ``forms`` mean."""
        entries = zip(vars(self).values(), forms, strict=True)
        return Parameters(*(entry if "channel" in form else entry[:1] * len(entry) for entry, form in entries))


def given(entries: tuple[float, ...], form: str, dtype: torch.dtype, rank: int) -> object:
    tensor = torch.tensor(entries, dtype=dtype)
    return {
        "number": entries[0],
        "0-D": tensor[0],
        "one element": tensor[:1].view([1] * (rank + 2)),
        "per channel": tensor,
        "per channel, spread": tensor.view(1, -1, *[1] * rank),
    }[form]


def float32(number: float) -> float:
    return float(np.float32(number))


def drawn(seed: int, channels: int, types: tuple[torch.dtype, torch.dtype], ties: bool = False) -> Parameters:
    """Parameters of no special kind, or of many ties; the result mostly neither constant nor cut off."""
    chosen = random.Random(seed)

    def scales() -> tuple[float, ...]:
        if ties:
            return tuple(chosen.choice(TIES) for _ in range(channels))
        return tuple(float32(chosen.uniform(0.05, 0.2)) for _ in range(channels))

    def zeros(dtype: torch.dtype) -> tuple[int, ...]:
        ends = torch.iinfo(dtype)
        return tuple(chosen.randint(ends.min, ends.max) for _ in range(channels))

    return Parameters(scales(), zeros(types[0]), scales(), zeros(types[1]))


def integers(*sizes: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    ends = torch.iinfo(dtype)
    generator = samples.seeded(*sizes, seed=seed)
    return torch.randint(ends.min, ends.max + 1, sizes, generator=generator).to(dtype)


def numpy_type(dtype: torch.dtype) -> np.dtype:
    return torch.empty(0, dtype=dtype).numpy().dtype


def check(
    input: Tensor,
    parameters: Parameters,
    pooling: oracle.Pooling,
    include_padding: bool = False,
    *,
    output_dtype: torch.dtype | None = None,
    forms: list[str] | None = None,
) -> Tensor:
    """Q1, Q2 and G7 for one call: the exact result, in the memory format of the input."""
    forms = ["number"] * 4 if forms is None else forms
    output_dtype = output_dtype or input.dtype
    arguments = [
        argument.to(input.device) if isinstance(argument, Tensor) else argument
        for argument in parameters.given(forms, (input.dtype, output_dtype), input.dim() - 2)
    ]
    result = dmlpool.quantized_linear_average_pooling(
        input, *arguments, **vars(pooling), include_padding=include_padding, output_dtype=output_dtype
    )
    expected = oracle.quantized_average(
        samples.to_numpy(input), *vars(parameters.understood(forms)).values(), pooling, include_padding,
        numpy_type(output_dtype),
    )  # fmt: skip
    assert result.dtype == output_dtype
    samples.assert_same(result, expected)
    return result
