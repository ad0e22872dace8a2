"""Data-parallel training equals the same steps on one process."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import sharded
import torch
import torch.distributed as dist
from sharded import Ranks
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import torch_dmlpool as dmlpool

STEPS, BATCH = 8, 64


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Sequential, Tensor, Tensor]:
    """A network that pools maxima and averages, and real digits, in double precision."""
    data = pytest.importorskip("sklearn.datasets").load_digits()
    torch.manual_seed(1)
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        dmlpool.nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        dmlpool.nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
        nn.Flatten(),
        nn.Linear(512, 10),
    )
    images = torch.tensor(data.images[: STEPS * BATCH]).unsqueeze(1) / 16
    return network.double(), images, torch.tensor(data.target[: STEPS * BATCH])


def train(network: nn.Module, parameters: Any, images: Tensor, labels: Tensor, share: slice) -> list[Tensor]:
    optimizer = torch.optim.SGD(parameters, lr=0.2, momentum=0.9)
    losses = []
    for batch, answers in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(batch[share]), answers[share])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def compare_training(network: nn.Sequential, images: Tensor, labels: Tensor, how: str) -> tuple[float, float]:
    """The first loss and the last, after having checked that the parallel run went where the single one does."""
    # What is sent to ranks lies in memory that they share.
    alone, parallel = copy.deepcopy(network), copy.deepcopy(network)
    expected = torch.stack(train(alone, alone.parameters(), images, labels, slice(None)))
    wrapped: nn.Module = parallel
    if how == "DDP":
        wrapped = DistributedDataParallel(parallel)
    else:
        mesh = sharded.mesh_of(4)
        for layer in parallel:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(parallel, mesh=mesh)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    losses = torch.stack(train(wrapped, wrapped.parameters(), images, labels, slice(rank, None, ranks)))
    dist.all_reduce(losses)
    torch.testing.assert_close(losses / ranks, expected, rtol=1e-9, atol=1e-12)
    for ours, theirs in zip(parallel.parameters(), alone.parameters(), strict=True):
        whole = ours.full_tensor() if isinstance(ours, DTensor) else ours
        torch.testing.assert_close(whole, theirs, rtol=1e-8, atol=1e-10)
        assert isinstance(ours, DTensor) == (how == "FSDP2")
    return expected[0].item(), expected[-1].item()


@pytest.mark.parametrize("how", ["DDP", pytest.param("FSDP2", marks=pytest.mark.slow)])
def test_training_equals_the_single_process(ranks: Ranks, digits: Any, how: str) -> None:
    """Losses of every step and all parameters after the last; and it learns, so that there is something to compare."""
    for first, last in ranks.run(compare_training, *digits, how):
        assert last < first - 0.01
