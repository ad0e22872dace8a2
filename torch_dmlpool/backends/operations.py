"""What tapes record: operations on tensors, of which the last is written."""

from __future__ import annotations

import torch
from torch import Tensor


def copy(source: Tensor, out: Tensor) -> None:
    """Whatever the types."""
    out.copy_(source)


def fill(value: float, out: Tensor) -> None:
    out.fill_(value)


def add(first: Tensor, second: Tensor, out: Tensor) -> None:
    torch.add(first, second, out=out)


def multiply(first: Tensor, second: Tensor, out: Tensor) -> None:
    torch.mul(first, second, out=out)


def scale(factor: float, source: Tensor, out: Tensor) -> None:
    torch.mul(source, factor, out=out)


def shift(offset: int, source: Tensor, out: Tensor) -> None:
    torch.add(source, offset, out=out)


def shift_right(bits: int, source: Tensor, out: Tensor) -> None:
    torch.bitwise_right_shift(source, bits, out=out)


def maximum(first: Tensor, second: Tensor, out: Tensor) -> None:
    torch.maximum(first, second, out=out)


def later(first: Tensor, second: Tensor, out: Tensor) -> None:
    """1 where ``second`` wins, else 0."""
    torch.lt(first, second, out=out)


def later_or_nan(first: Tensor, second: Tensor, ordered: Tensor, out: Tensor) -> None:
    """Where ``second`` wins: ``first`` is a number, and ``second`` is not at most that."""
    torch.ge(first, second, out=out)
    torch.sub(torch.eq(first, first, out=ordered), out, out=out)
