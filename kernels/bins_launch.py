"""How the gradient of adaptive max pooling is launched: a pure function of sizes and strides."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from .launch import LANES, WIDE_FROM, Launch, five_strides, in_plane_span, three_sizes, widest_bin


@lru_cache(maxsize=4096)
def bins_gradient(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    position_strides: tuple[int, ...],
    target_sizes: tuple[int, ...],
    channels_last: bool,
) -> Launch:
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
    constants = {"CHANNELS_INNERMOST": channels_last, "WIDE": wide}
    return Launch.of_lanes("adaptive_pooling.grad_bins", lanes, runtime, constants)
