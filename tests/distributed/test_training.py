"""Data-parallel training of the demo's networks equals the same steps on one process."""

from __future__ import annotations

import copy
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sharded
import torch
import torch.distributed as dist
from ranks import Ranks
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import torch_dmlpool as dmlpool

STEPS, BATCH = 8, 64


def demo() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "digits.py"
    specification = importlib.util.spec_from_file_location("digits_demo", path)
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    assert specification.loader is not None
    sys.modules["digits_demo"] = module  # its dataclasses look themselves up there
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def digits() -> tuple[dict[str, nn.Sequential], Tensor, Tensor]:
    """The demo's networks and its first batches, in double precision: there only real differences are seen."""
    for name in ("sklearn", "matplotlib", "tqdm"):
        pytest.importorskip(name)
    module = demo()
    data = module.Digits.load(torch.device("cpu"))
    networks = {}
    for name, build in module.NETWORKS.items():
        torch.manual_seed(1)
        networks[name] = build(dmlpool.nn).double()
    return networks, data.images[: STEPS * BATCH].double(), data.labels[: STEPS * BATCH]


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


@pytest.mark.parametrize("network", ["max 2/2", "max 3/2, average 3/1"])
@pytest.mark.parametrize("how", ["DDP", "FSDP2"])
def test_training_equals_the_single_process(ranks: Ranks, digits: Any, how: str, network: str) -> None:
    """Losses of every step and all parameters after the last; and it learns, so that there is something to compare."""
    networks, images, labels = digits
    for first, last in ranks.run(compare_training, networks[network], images, labels, how):
        assert last < first - 0.01
