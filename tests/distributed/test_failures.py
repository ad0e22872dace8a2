"""A rank that holds another part than its shard."""

import pytest
import sharded
import torch
from torch.distributed.tensor import DTensor, Shard

import torch_dmlpool as dmlpool


def holds_a_wrong_shard():
    mesh = sharded.mesh_of(4)
    samples = 3 if mesh.get_rank() == 1 else 4
    how = {"shape": (16, 1, 8, 8), "stride": (64, 64, 8, 1)}
    shard = DTensor.from_local(torch.zeros(samples, 1, 8, 8), mesh, [Shard(0)], **how)
    if samples == 4:  # nothing moves, so the others need not know
        assert dmlpool.max_pooling(shard, 2, 2).shape == (16, 1, 4, 4)
        return
    text = r"this rank must hold \(4, 1, 8, 8\) of it, but holds \(3, 1, 8, 8\)"
    with pytest.raises(ValueError, match=text):
        dmlpool.max_pooling(shard, 2, 2)


def test_a_shard_of_the_wrong_size_is_refused(ranks):
    ranks.run(holds_a_wrong_shard)
