"""What training costs in memory: bytes kept for the backward pass, and the most that is allocated
at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.bound import Pool


def train(pool: Pool, input: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The forward and the backward pass that training rows time."""
    values = pool(input)
    return values, torch.autograd.grad(values, input, gradient)[0]


def kept_for_backward(pool: Pool, input: Tensor) -> dict[str, int]:
    """Bytes that a forward pass keeps alive for its backward: all of them, and those beside its
    input and output."""
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    leaf = input.detach().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        values = pool(leaf)
    shared = {leaf.untyped_storage().data_ptr(), values.untyped_storage().data_ptr()}
    return {
        "all": sum(storages.values()),
        "extra": sum(size for place, size in storages.items() if place not in shared),
    }


def peak_of_training(pool: Pool, input: Tensor, gradient: Tensor) -> int:
    """Most bytes allocated at once by a forward and a backward pass: results, scratch and what is
    kept, not the input.

    PyTorch's allocators tell; on a CPU they tell the profiler, and what bypasses them (the
    operators' own vectors) is not counted.
    """
    leaf = input.detach().requires_grad_()
    train(pool, leaf, gradient)  # what only a first call does
    if input.is_cuda:
        torch.cuda.synchronize(input.device)
        torch.cuda.reset_peak_memory_stats(input.device)
        before = torch.cuda.memory_allocated(input.device)
        train(pool, leaf, gradient)
        torch.cuda.synchronize(input.device)
        return torch.cuda.max_memory_allocated(input.device) - before
    with torch.autograd.profiler.profile(use_kineto=True, profile_memory=True) as profile:
        results = train(pool, leaf, gradient)
    del results  # after the profile, in which they count
    return highest([event.nbytes() for event in _allocations(profile)])


def highest(changes: list[int]) -> int:
    """The greatest running sum: allocations are positive, releases negative."""
    most = now = 0
    for change in changes:
        now += change
        most = max(most, now)
    return most


def _allocations(profile: Any) -> list[Any]:
    events = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    return sorted(events, key=lambda event: event.start_ns())
