"""What the tests of the max pooling kernels share: awkward tensors, the oracle's judgement, a record of launches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import oracle
import pytest
import samples
import torch
from torch import Tensor
from torch_dmlpool.kernels import launch as shared_launch
from torch_dmlpool.kernels import max_pooling_grad_launch, max_pooling_problem
from torch_dmlpool.kernels import max_pooling_launch as launches

from torch_dmlpool.window import Window

backend = pytest.importorskip("torch_dmlpool.backends.triton")

LAYOUTS = {
    max_pooling_problem.SCALAR: "scalar",
    max_pooling_problem.COLUMNS: "columns",
    max_pooling_problem.CHANNELS: "channels",
}


@dataclasses.dataclass(frozen=True)
class Ran:
    """A kernel that a call has launched, and the launch."""

    kernel: str
    launch: shared_launch.Launch

    @property
    def form(self) -> str:
        """Kernel and, where it has several, the layout it reads in."""
        layout = self.launch.constants.get("LAYOUT")
        return self.kernel if layout is None else f"{self.kernel}, {LAYOUTS[layout]}"


def pooling_of(window: Window) -> oracle.Pooling:
    *entries, ceil_mode = window.arguments
    return oracle.Pooling(*(tuple(entry) for entry in entries), ceil_mode)


def window_of(pooling: oracle.Pooling) -> Window:
    return Window.directml(
        pooling.rank,
        pooling.window_size,
        pooling.strides,
        pooling.start_padding,
        pooling.end_padding,
        pooling.dilations,
        pooling.ceil_mode,
    )


def awkward(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Ties everywhere; for floats also NaNs, a region of only −inf and +inf; for integers the type's ends."""
    values = samples.ties(*sizes, dtype=dtype)
    if dtype.is_floating_point:
        flat = values.flatten(2)
        flat[0, 0, : flat.shape[2] // 2] = float("-inf")
        flat[-1, -1, flat.shape[2] // 3 :: 7] = float("nan")
        flat[-1, 0, 5::11] = float("inf")
    return values


def lowest_and_awkward(*sizes: int, dtype: torch.dtype) -> Tensor:
    """The same, but of integers, too, a region of nothing but the lowest; and NaNs of many bits."""
    values = awkward(*sizes, dtype=dtype)
    if not dtype.is_floating_point:
        flat = values.flatten(2)
        flat[0, :, : flat.shape[2] // 2] = torch.iinfo(dtype).min
        return values
    integer = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    nans = values.isnan().flatten().nonzero().flatten()
    values.view(integer).flatten()[nans[::2]] = -3
    values.view(integer).flatten()[nans[1::4]] = torch.iinfo(integer).max - 1
    assert values.isnan().flatten().nonzero().numel() == nans.numel() > 0
    return values


def assert_forward(input: Tensor, window: Window) -> Tensor:
    """Values, taps and both kinds of indices are the oracle's; returns the taps."""
    expected = oracle.maximum(samples.to_numpy(input), pooling_of(window))
    values, taps = backend.max_pooling_with_taps(input, window)
    samples.assert_same(values, expected.values)
    samples.assert_same(taps, expected.taps)
    samples.assert_same(backend.max_pooling(input, window), expected.values)
    values, indices = backend.max_pooling_with_indices(input, window, torch.int64, True)
    samples.assert_same(values, expected.values)
    samples.assert_same(indices, expected.plane_indices)
    return taps


def assert_gradient(input: Tensor, window: Window, layout: Callable[[Tensor], Tensor] = lambda g: g) -> None:
    """Integers as gradients, so that sums are exact in every order and every type."""
    output_sizes = (*input.shape[:2], *window.output_sizes(input.shape[2:]))
    gradient = layout(torch.randint(-3, 4, output_sizes, generator=samples.seeded(*output_sizes)).to(input.dtype))
    expected = oracle.maximum_grad(samples.to_numpy(input), samples.to_numpy(gradient), pooling_of(window))
    result = backend.max_pooling_grad(input, gradient, window)
    assert result.dtype == input.dtype
    samples.assert_same(result, expected.astype(np.float64))


def forget_launches() -> None:
    """For a test that changes what launches are chosen from: nothing chosen before or in it is remembered."""
    for cache in (
        launches.max_passes,
        launches.tap_lookup,
        max_pooling_grad_launch.grad_passes,
        backend._max_plan,
        backend._max_grad_passes,
    ):
        cache.cache_clear()


PLAIN, LAST = "contiguous", "channels last"
STREAM, WINDOWS = "max_stream", "max_windows"
UNEVEN = ((6, 4), 1, (2, 1), (3, 2))
PACKED: dict[str, tuple[torch.dtype, tuple[int, ...], tuple[object, ...], str, str]] = {
    "stream of float16": (torch.float16, (1, 2, 9, 16), (3, 1, 1), PLAIN, STREAM),
    "stream of float16 along channels": (torch.float16, (2, 8, 9, 6), (7, 1, 3), LAST, STREAM),
    "stream of bfloat16": (torch.bfloat16, (2, 2, 9, 8), UNEVEN, PLAIN, STREAM),
    "stream of bfloat16 along channels": (torch.bfloat16, (1, 4, 9, 7), UNEVEN, LAST, STREAM),
    "stream of int8": (torch.int8, (2, 2, 9, 32), (3, 1, 1), PLAIN, STREAM),
    "stream of int8 along channels": (torch.int8, (2, 16, 9, 6), (7, 1, 3), LAST, STREAM),
    "stream of uint8": (torch.uint8, (2, 2, 9, 8), UNEVEN, PLAIN, STREAM),
    "stream of uint8 along channels": (torch.uint8, (2, 4, 9, 7), UNEVEN, LAST, STREAM),
    "stream of int16": (torch.int16, (2, 2, 9, 12), UNEVEN, PLAIN, STREAM),
    "stream of int16 along channels": (torch.int16, (2, 6, 9, 7), (5, 1, 2), LAST, STREAM),
    "stream of uint16": (torch.uint16, (2, 2, 9, 16), (5, 1, 2), PLAIN, STREAM),
    "stream of uint16 along channels": (torch.uint16, (2, 8, 9, 7), UNEVEN, LAST, STREAM),
    "stream of bytes, much padding": (torch.uint8, (1, 2, 5, 16), ((4, 5), 1, (3, 4), (3, 4)), PLAIN, STREAM),
    "float16, stride 2": (torch.float16, (2, 2, 9, 16), (3, 2, 1, (2, 1)), PLAIN, WINDOWS),
    "float16 in a volume": (torch.float16, (1, 2, 4, 5, 8), ((2, 3, 3), 1, (1, 0, 2), (1, 1, 0)), PLAIN, WINDOWS),
    "float16 along channels, dilated": (torch.float16, (2, 4, 9, 8), (3, 1, 2, 3, 2), LAST, WINDOWS),
    "bfloat16, one dimension": (torch.bfloat16, (2, 2, 16), (3, 1, 1), PLAIN, WINDOWS),
    "bfloat16 along channels, stride 2": (torch.bfloat16, (2, 4, 9, 8), (3, 2, 1), LAST, WINDOWS),
    "int8": (torch.int8, (2, 2, 6, 16), (2, 1, (1, 0), (0, 1)), PLAIN, WINDOWS),
    "int8, stride 2": (torch.int8, (2, 2, 9, 32), (3, 2, 1, (2, 1)), PLAIN, WINDOWS),
    "int8, stride 2 along channels": (torch.int8, (2, 16, 9, 7), (3, 2, (2, 1), 1), LAST, WINDOWS),
    "uint8 in a volume": (torch.uint8, (1, 2, 4, 5, 8), (3, 1, (1, 2, 2), (1, 1, 0)), PLAIN, WINDOWS),
    "uint8 in a volume, channels last": (torch.uint8, (1, 8, 3, 4, 5), ((2, 3, 3), (1, 2, 1), 1), LAST, WINDOWS),
    "int16, one dimension": (torch.int16, (2, 3, 24), (4, 1, (2,), (1,)), PLAIN, WINDOWS),
    "int16, dilated": (torch.int16, (2, 2, 9, 8), (3, 1, 3, 1, 2), PLAIN, WINDOWS),
    "uint16, stride 2": (torch.uint16, (2, 2, 9, 16), (2, 2, 0), PLAIN, WINDOWS),
    "uint16 along channels, stride 3": (torch.uint16, (2, 2, 9, 8), ((4, 3), (3, 2), (2, 1), 1), LAST, WINDOWS),
}
"""Values of which two travel in a word: type, sizes, window, layout, and the kernel that it is meant for."""
KEYED: dict[str, tuple[torch.dtype, tuple[int, ...], tuple[object, ...], str]] = {
    "int8": (torch.int8, (2, 2, 9, 16), (3, 1, 1), PLAIN),
    "int8, stride 2": (torch.int8, (2, 2, 9, 32), (3, 2, 1, (2, 1)), PLAIN),
    "int8, uneven padding": (torch.int8, (2, 2, 8, 8), ((5, 4), 1, (3, 2), (1, 1)), PLAIN),
    "int8 along channels": (torch.int8, (2, 16, 6, 7), (3, 1, 1), LAST),
    "uint8": (torch.uint8, (2, 2, 6, 16), (2, 2, 0), PLAIN),
    "uint8, much padding": (torch.uint8, (2, 2, 5, 8), ((4, 5), 1, (3, 4), (3, 4)), PLAIN),
    "uint8, one dimension": (torch.uint8, (2, 3, 16), (7, 1, 5, 1), PLAIN),
    "uint8 along channels, stride 2": (torch.uint8, (2, 8, 9, 7), ((4, 3), 2, (3, 2), (2, 1)), LAST),
    "uint8 along channels, uneven padding": (torch.uint8, (2, 4, 7, 6), ((3, 5), 1, (2, 4), (1, 0)), LAST),
}
"""Bytes whose taps or indices are wanted."""


def assert_packed(name: str, ran: list[Ran], asm: bool) -> None:
    """M1, M2, M7: values of a row of ``PACKED`` are the oracle's, two in a word."""
    dtype, sizes, window, layout, kernel = PACKED[name]
    input = samples.LAYOUTS[layout](lowest_and_awkward(*sizes, dtype=dtype))
    window = directml(len(sizes) - 2, *window)
    expected = oracle.maximum(samples.to_numpy(input), pooling_of(window))
    samples.assert_same(backend.max_pooling(input, window), expected.values)
    assert ran[-1].form == f"{kernel}, {'channels' if layout == LAST else 'columns'}"
    halves = {torch.float16: max_pooling_problem.FLOAT16, torch.bfloat16: max_pooling_problem.BFLOAT16}
    assert ran[-1].launch.constants["PACKED"] == halves.get(dtype, max_pooling_problem.INTEGERS)
    assert ran[-1].launch.constants["ASM"] is asm


def assert_keyed(name: str, ran: list[Ran], asm: bool) -> None:
    """M2 to M4, M6: values, taps and both kinds of indices of a row of ``KEYED``; never the position of padding."""
    dtype, sizes, window, layout = KEYED[name]
    input = samples.LAYOUTS[layout](lowest_and_awkward(*sizes, dtype=dtype))
    window = directml(len(sizes) - 2, *window)
    expected = oracle.maximum(samples.to_numpy(input), pooling_of(window))
    values, taps = backend.max_pooling_with_taps(input, window)
    samples.assert_same(values, expected.values)
    samples.assert_same(taps, expected.taps)
    for in_plane, wanted in ((True, expected.plane_indices), (False, expected.indices)):
        values, indices = backend.max_pooling_with_indices(input, window, torch.int64, in_plane)
        samples.assert_same(values, expected.values)
        samples.assert_same(indices, wanted)
    assert {one.form for one in ran} == {f"max_windows, {'channels' if layout == LAST else 'columns'}"}
    assert {one.launch.constants["PACKED"] for one in ran} == {max_pooling_problem.KEYED_BYTES}
    assert {one.launch.constants["ASM"] for one in ran} == {asm}


def directml(rank: int, size: object, stride: object, start: object, end: object = None, dilation: int = 1) -> Window:
    return Window.directml(rank, size, stride, start, start if end is None else end, dilation)


@dataclasses.dataclass
class Recorder:
    """Runs launches and keeps a record of them."""

    launch: Callable[..., None]
    record: list[Ran] = dataclasses.field(default_factory=list)

    def __call__(self, kernel: object, launch: shared_launch.Launch, *tensors: Tensor) -> None:
        self.record.append(Ran(kernel.fn.__name__, launch))
        self.launch(kernel, launch, *tensors)
