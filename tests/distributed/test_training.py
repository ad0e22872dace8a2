"""Data-parallel training equals the same steps on one process."""

import copy
from typing import Any

import pytest
import samples
import sharded
import torch
import torch.distributed as dist
from sharded import Ranks
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import torch_dmlpool as dmlpool


def trained(network: nn.Module, images: Tensor) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.2, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        network(images).square().mean().backward()
        optimizer.step()


def trains(how: str) -> None:
    torch.manual_seed(1)
    pools = dmlpool.nn.MaxPool2d(3, 2, padding=1), dmlpool.nn.AvgPool2d(3, 1, 1, count_include_pad=False)
    layers = nn.Conv2d(1, 8, 3), pools[0], nn.Conv2d(8, 8, 3, padding=1), pools[1], nn.Flatten(), nn.Linear(72, 4)
    alone = nn.Sequential(*layers).double()
    parallel: Any = copy.deepcopy(alone)
    images = samples.normal(8, 1, 8, 8, dtype=torch.float64)
    before = copy.deepcopy(alone)
    trained(alone, images)
    if how == "DDP":
        parallel = DistributedDataParallel(parallel)
    else:
        for layer in (*parallel[::2][:2], parallel[-1], parallel):
            fully_shard(layer, mesh=sharded.mesh_of(4))
    trained(parallel, images[dist.get_rank() :: 4])
    for ours, theirs, first in zip(parallel.parameters(), alone.parameters(), before.parameters(), strict=True):
        assert isinstance(ours, DTensor) == (how == "FSDP2")
        torch.testing.assert_close(ours.full_tensor() if isinstance(ours, DTensor) else ours, theirs)
        assert not torch.equal(theirs, first)


@pytest.mark.parametrize("how", ["DDP", pytest.param("FSDP2", marks=pytest.mark.slow)])
def test_training_equals_the_single_process(ranks: Ranks, how: str) -> None:
    ranks.run(trains, how)
