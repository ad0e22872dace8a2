"""What the tests of the max pooling kernels share: awkward tensors, the oracle's judgement, a record of launches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
import pytest
import samples
import torch
from torch import Tensor
from torch_dmlpool.kernels import max_pooling_grad_launch
from torch_dmlpool.kernels import max_pooling_launch as launches
from torch_dmlpool.kernels.launch import Launch

from torch_dmlpool.window import Window

backend = pytest.importorskip("torch_dmlpool.backends.triton")


@dataclasses.dataclass(frozen=True)
class Ran:
    """A launch that a call has made."""

    launch: Launch

    @property
    def kernel(self) -> str:
        return self.launch.kernel.split(".")[1]

    @property
    def constants(self) -> dict[str, Any]:
        return dict(self.launch.constants)

    @property
    def form(self) -> str:
        """The kernel and, where it has several, the layout it reads in."""
        layout = self.constants.get("LAYOUT")
        return self.kernel if layout is None else f"{self.kernel}, {layout}"


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
        max_pooling_grad_launch.tap_lookup,
        max_pooling_grad_launch.grad_passes,
    ):
        cache.cache_clear()


@dataclasses.dataclass
class Recorder:
    """Runs launches and keeps a record of them."""

    launch: Callable[..., None]
    record: list[Ran] = dataclasses.field(default_factory=list)

    def __call__(self, launch: Launch, *tensors: Tensor) -> None:
        self.record.append(Ran(launch))
        self.launch(launch, *tensors)
