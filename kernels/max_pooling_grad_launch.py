"""How gradients of max pooling, and what taps point at, are launched: pure functions of the problem."""

from __future__ import annotations

from functools import lru_cache
from math import gcd, prod
from typing import Literal

from .launch import (
    LANES_ENOUGH,
    Launch,
    Request,
    Tile,
    covering,
    divided,
    farthest,
    five_strides,
    in_plane_span,
    one_axis_at_a_time,
    tile_launch,
    wide,
)
from .max_pooling_launch import CHANNEL_STEP, EXTENT, extents

Pointed = Literal["values", "indices", "plane indices"]

GRADIENT_STEPS = 512  # conditional additions in a lane's straight-line code: more take longer than 3 s to compile
DECODED = 16  # outputs for which a lane that looks up taps finds its place once


@lru_cache(maxsize=4096)
def grad_launches(request: Request) -> tuple[Launch, ...]:
    """The launches of a max pooling's gradient from dense taps and gradients."""
    tile = grad_tile(request)
    if tile is None:
        return tuple(_grad_axes(request))
    return (tile_launch("max_pooling_grad.grad_tile", request, tile, {"ASM": request.asm}),)


def grad_tile(request: Request) -> Tile | None:
    """Windows whose inputs a lane owns; None where none are few enough."""
    axes, vector = request.axes, request.vector
    if max(extents(axes)) > EXTENT or max(axes.stride) > 4:
        return None
    high, broad = axes.stride[1:]
    rows, columns, steps = {1: 4, 2: 2}.get(high, 1), vector, GRADIENT_STEPS
    if request.channels_last:
        rows, columns, steps = min(rows, 2) if vector > 4 else rows, 2 if broad == 1 else 1, steps // CHANNEL_STEP
    elif vector == 1:
        rows = {1: 8, 2: 2}.get(high, 1)
    depth, height, width = (covering(*each).count for each in zip(axes.window, axes.stride, axes.dilation, strict=True))
    of_row = axes.stride[0] * high * depth * height * width * columns * broad
    elements = prod(request.shape[:2]) * prod(request.targets) // axes.stride[0]
    of_lane = high * columns * broad * (vector if request.channels_last else 1)
    while rows > 1 and (
        rows * of_row > steps or rows * high >= 2 * request.targets[1] or elements < LANES_ENOUGH * rows * of_lane
    ):
        rows //= 2
    return Tile((1, rows, columns), vector) if rows * of_row <= steps else None


def _grad_axes(request: Request) -> list[Launch]:
    """Outermost axis first: the taps that won in one row then agree on their column."""
    below, launches = prod(request.axes.window), []
    for along in one_axis_at_a_time(request):
        window, stride, start, _, dilation = along.window
        below //= window
        reach = covering(window, stride, dilation)
        lanes = along.outer * along.targets * along.inner
        largest = lanes, (max(along.source, along.targets) + 1) * along.inner
        constants = {
            "K": window, "S": stride, "P": start, "J": dilation, "COMMON": reach.gcd, "INVERSE": reach.inverse,
            "BELOW": below, "LAST": along.last,
            "WIDE": wide(*largest, farthest(along.targets, along.source, along.window)),
        }  # fmt: skip
        bound = min(reach.count, divided(along.source, reach.output_step))
        sizes = (lanes, along.inner, along.targets, along.source, bound)
        launches.append(Launch.of_lanes("max_pooling_axis.grad_axis", lanes, sizes, constants))
    return launches


@lru_cache(maxsize=4096)
def tap_lookup(request: Request, with_: Pointed) -> Launch:
    """What dense taps point at: elements of the source (``"values"``), or their indices in a contiguous one."""
    axes, sizes, outputs = request.axes, request.sizes, request.targets
    batch, channels = request.shape[:2]
    strides = five_strides(request.shape, request.strides)
    if with_ != "values":
        plane = prod(sizes) if with_ == "indices" else 0
        strides = (channels * plane, plane, sizes[1] * sizes[2], sizes[2], 1)
    vector = gcd(DECODED, channels if request.channels_last else outputs[2])
    ends = (channels // vector, *outputs) if request.channels_last else (channels, *outputs[:2], outputs[2] // vector)
    results = batch * channels * prod(outputs)
    spans = results // vector, prod(sizes), in_plane_span(sizes, strides[2:])
    constants = {
        "WINDOW": axes.window, "STRIDE": axes.stride, "START": axes.start, "DILATION": axes.dilation,
        "RANK": request.rank, "CHANNELS": request.channels_last, "ELEMENTS": with_ == "values", "V": vector,
        "WIDE": wide(*spans, *map(farthest, sizes, outputs, zip(*axes, strict=True))),
    }  # fmt: skip
    numbers = (results // vector, ends[0], *sizes, *strides, *ends[1:])
    return Launch.of_lanes("max_pooling_grad.at_taps", results, numbers, constants)
