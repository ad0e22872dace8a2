"""Shards of the batch under pools of tokens and statistics stay shards (T5)."""

import pytest
import torch
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

import torch_dmlpool as dmlpool


def pooled_in_shards(reduction, is_masked):
    """What one rank does and checks."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (4,))
    tokens, mask = torch.randn(5, 7, 3), torch.rand(5, 7) < 0.6
    leaf = tokens.clone().requires_grad_()
    shards = distribute_tensor(tokens, mesh, [Shard(0)]).requires_grad_()
    of_shards = distribute_tensor(mask, mesh, [Shard(0)]) if is_masked else None
    of_whole = mask if is_masked else None

    def results(tokens, mask):
        frames = tokens.transpose(1, 2)
        of_frames = None if mask is None else mask[:, None]
        pooled = dmlpool.token_pooling(tokens, mask, reduction)
        return [pooled, *dmlpool.statistics_pooling(frames, of_frames)]

    expected, found = results(leaf, of_whole), results(shards, of_shards)
    for whole, part in zip(expected, found, strict=True):
        assert part.placements == (Shard(0),)
        torch.testing.assert_close(part.full_tensor(), whole)
    (gradient,) = torch.autograd.grad(sum(each.nan_to_num().sum() for each in found), shards)
    (wanted,) = torch.autograd.grad(sum(each.nan_to_num().sum() for each in expected), leaf)
    assert gradient.placements == (Shard(0),)
    torch.testing.assert_close(gradient.full_tensor(), wanted)


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "max"])
def test_shards_of_the_batch_are_pooled_where_they_are(ranks, reduction, is_masked):
    ranks.run(pooled_in_shards, reduction, is_masked)
