"""What the average pooling kernels are asked for: problems, steps, and how windows are divided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from .launch import EarlierLaunch


class AverageProblem(NamedTuple):
    """One call: from a source of any strides (input, or incoming gradient) to a dense target (output, or gradient)."""

    window: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    target_sizes: tuple[int, ...]
    element_size: int
    aligned: bool  # both tensors start at a multiple of 16 bytes
    channels_last: bool  # of the target
    adjoint: bool
    include_padding: bool
    divisor_override: int | None


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel of a sequence; each reads what the one before has written."""

    kernel: str
    launch: EarlierLaunch
    scratch: int = 0  # elements of scratch that it writes instead of the target
    beside: int = 0  # elements of scratch that it needs beside the target


def divisor(problem: AverageProblem) -> tuple[int, int]:
    """``(COUNT, DIVISOR)``: how windows are divided; from the window alone, so no image size makes a new kernel."""
    axes = problem.window.axes
    if problem.divisor_override is not None:
        return 0, problem.divisor_override
    overhang = axes[0].ceil_mode
    if problem.include_padding and not overhang:
        return 0, problem.window.taps
    if not problem.include_padding and not overhang and not any(a.start_padding or a.end_padding for a in axes):
        return 0, problem.window.taps
    return (2 if problem.include_padding else 1), 1
