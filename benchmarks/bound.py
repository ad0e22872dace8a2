"""What harness and peers hand each other: a row's tensors, and a call that is ready to be timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from benchmarks.workloads import Workload

Pool = Callable[[Tensor], Any]


class Absent(Exception):  # noqa: N818 - not an error: a peer that does not take part, and why
    """A peer is not installed, or cannot do what a row asks."""


@dataclass(frozen=True)
class Problem:
    """A row with several inputs to rotate through, and in training a gradient for each."""

    workload: Workload
    inputs: list[Tensor]
    gradients: list[Tensor]


def as_tensors(returned: Any) -> tuple[Tensor, ...]:
    return tuple(returned) if isinstance(returned, tuple) else (returned,)


@dataclass(frozen=True)
class Bound:
    """One call on one input, and how to read what it returns as tensors on the input's device."""

    run: Callable[[], Any]
    collect: Callable[[Any], tuple[Tensor, ...]] = as_tensors
