"""How the kernels of adaptive pooling and of positions are launched: pure functions of sizes and strides."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from .launch import LANES, WIDE_FROM, EarlierLaunch, divided, five_strides, in_plane_span, three_sizes


@dataclass(frozen=True, slots=True)
class Pass:
    """One axis; each pass reads what the one before has written, and the last writes the result."""

    launch: EarlierLaunch
    elements: int


def widest_bin(size: int, outputs: int) -> int:
    """The most elements of a bin, exactly where ``outputs`` divides ``size`` or the reverse, else at most."""
    if size % outputs == 0:
        return size // outputs
    return 1 if outputs % size == 0 else size // outputs + 2


def bin_passes(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    target_sizes: tuple[int, ...],
    channels_last: bool,
    constants: dict[str, bool],
    with_steps: bool = False,
) -> tuple[Pass, ...]:
    """One launch per axis whose size changes (the last axis where none does), outer axes first.

    There neighbouring lanes read neighbouring elements, and the innermost has less left. ``with_steps`` adds how far
    apart, in its plane, elements along the axis lie; and FIRST says which pass has no positions to read yet.
    """
    sizes, targets = three_sizes(shape[2:]), three_sizes(target_sizes)
    order = (0, 2, 3, 4, 1) if channels_last else (0, 1, 2, 3, 4)
    current = [*shape[:2], *sizes]
    current_strides = list(five_strides(shape, strides))
    # Positions are made of every axis that has more than one element; averages need those that change.
    axes = [axis for axis in range(3) if targets[axis] != sizes[axis] or (with_steps and sizes[axis] > 1)] or [2]
    passes = []
    for axis in axes:
        result = list(current)
        result[2 + axis] = targets[axis]
        lanes = prod(result)
        bound = widest_bin(sizes[axis], targets[axis])
        wide = (
            max(
                lanes + LANES,
                (sizes[axis] + 1) * (targets[axis] + 1),
                (sizes[axis] + bound + 8) * abs(current_strides[2 + axis]),
            )
            >= WIDE_FROM
        )
        memory = [result[i] for i in order]
        runtime = (lanes, *memory[1:], *(current_strides[i] for i in order), sizes[axis], targets[axis], bound)
        per_pass = {**constants, "AXIS": order.index(2 + axis), "B": LANES, "WIDE": wide}
        if with_steps:
            runtime = (*runtime, prod(sizes[axis + 1 :]))
            per_pass["FIRST"] = axis == axes[0]
        passes.append(Pass(EarlierLaunch(divided(lanes, LANES), runtime, per_pass), lanes))
        current, dense = result, 1
        for i in reversed(order):
            current_strides[i] = dense
            dense *= current[i]
    return tuple(passes)


def bins_gradient(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    position_strides: tuple[int, ...],
    target_sizes: tuple[int, ...],
    channels_last: bool,
) -> EarlierLaunch:
    """One lane per element of the gradient, which is dense."""
    outputs, sizes = three_sizes(shape[2:]), three_sizes(target_sizes)
    gradient, positions = five_strides(shape, strides), five_strides(shape, position_strides)
    lanes = prod(shape[:2]) * prod(sizes)
    bounds = tuple(widest_bin(output, size) for output, size in zip(outputs, sizes, strict=True))
    wide = (
        max(
            lanes + LANES,
            prod(sizes),
            *((size + 1) * (output + 1) for size, output in zip(sizes, outputs, strict=True)),
            *(in_plane_span(outputs, spatial[2:]) for spatial in (gradient, positions)),
        )
        >= WIDE_FROM
    )
    runtime = (lanes, shape[1], *sizes, *outputs, *bounds, *gradient, *positions)
    return EarlierLaunch(
        divided(lanes, LANES), runtime, {"CHANNELS_INNERMOST": channels_last, "B": LANES, "WIDE": wide}
    )


def unique_launch(planes: int, outputs: int, plane: int) -> EarlierLaunch:
    """One lane per position, for both kernels."""
    lanes = planes * outputs
    wide = max(lanes + LANES, plane) >= WIDE_FROM
    return EarlierLaunch(divided(lanes, LANES), (lanes, outputs, plane), {"B": LANES, "WIDE": wide})


def move_launch(
    shape: tuple[int, ...],
    sizes: tuple[int, ...],
    source_strides: tuple[int, ...],
    position_strides: tuple[int, ...],
    target_strides: tuple[int, ...],
    scatter: bool,
) -> EarlierLaunch:
    """One lane per position of ``shape``, in the order in which the target, or the scatter's source, lies in memory."""
    outputs, planes = three_sizes(shape[2:]), three_sizes(sizes)
    whole = (*shape[:2], *sizes)
    source = five_strides(shape if scatter else whole, source_strides)
    target = five_strides(whole if scatter else shape, target_strides)
    positions = five_strides(shape, position_strides)
    lanes = prod(shape)
    near, far = (source, target) if scatter else (target, source)
    spans = (in_plane_span(outputs, near[2:]), in_plane_span(outputs, positions[2:]), in_plane_span(planes, far[2:]))
    wide = max(lanes + LANES, prod(planes), *spans) >= WIDE_FROM
    runtime = (lanes, shape[1], *outputs, *planes, *source, *positions, *target)
    innermost = near[1] == 1 and near[4] > 1
    constants = {"SCATTER": scatter, "CHANNELS_INNERMOST": innermost, "B": LANES, "WIDE": wide}
    return EarlierLaunch(divided(lanes, LANES), runtime, constants)
