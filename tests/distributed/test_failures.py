"""Ranks that disagree, hold the wrong shard, die or never come: an error on the others, and
soon."""

import datetime
import os
import time

import pytest
import samples
import sharded
import torch
import torch.distributed as dist
from sharded import Ranks
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

import torch_dmlpool as dmlpool


def ask_for_different_things() -> list[str]:
    """What every rank is told: another image, another window, another type, another operator on one
    rank."""
    line, square = sharded.mesh_of(4), sharded.mesh_of(2, 2)
    odd = line.get_rank() == 3
    image = samples.normal(1, 1, 16, 16)
    other = samples.normal(1, 1, 24, 16) if odd else image
    told = []
    for mesh, shown, window, average in (
        (line, other, 3, False),
        (square, other, 3, False),
        (line, image, 5 if odd else 3, False),
        (line, image.half() if odd else image, 3, False),
        (line, image, 3, odd),
    ):
        pooling = dmlpool.average_pooling if average else dmlpool.max_pooling
        with pytest.raises(ValueError, match="the ranks disagree about what is pooled") as caught:
            pooling(sharded.spread(shown, mesh, [Shard(2), Shard(3)][: mesh.ndim]), window)
        told.append(str(caught.value))
    return told


def test_requests_that_differ_are_refused_on_every_rank(ranks: Ranks) -> None:
    start = time.monotonic()
    for told in ranks.run(ask_for_different_things):
        assert "rank 0: max_pooling of an input (1, 1, 16, 16)" in told[0]
        assert "rank 3: max_pooling of an input (1, 1, 24, 16)" in told[0]
        assert "window=3" in told[2]
        assert "window=5" in told[2]
        assert "torch.float16" in told[3]
        assert "rank 3: average_pooling" in told[4]
    assert time.monotonic() - start < ranks.timeout


def holds_a_wrong_shard(window: int) -> None:
    mesh = sharded.mesh_of(4)
    rows = 3 if mesh.get_rank() == 1 else 4
    shard = DTensor.from_local(
        torch.zeros(1, 1, rows, 8), mesh, [Shard(2)], shape=(1, 1, 16, 8), stride=(128, 128, 8, 1)
    )
    if window == 2 and rows == 4:
        # Nothing is exchanged, so that the others need not know.
        assert dmlpool.max_pooling(shard, window, window).shape == (1, 1, 8, 4)
        return
    with pytest.raises(
        ValueError, match=r"this rank must hold \(1, 1, 4, 8\) of it, but holds \(1, 1, 3, 8\)"
    ):
        dmlpool.max_pooling(shard, window, window if window == 2 else 1)


@pytest.mark.parametrize("window", [2, 3])
def test_a_shard_of_the_wrong_size_is_refused(ranks: Ranks, window: int) -> None:
    """Where halos are exchanged, on every rank, and all are told whose shard it is."""
    ranks.run(holds_a_wrong_shard, window)


def meets_absent_ranks() -> list[tuple[str, float]]:
    """Rank 1 first stays away, then dies."""
    groups = [dist.new_group(timeout=datetime.timedelta(seconds=seconds)) for seconds in (2, 30)]
    meshes = [DeviceMesh.from_group(group, "cpu") for group in groups]
    whole = samples.normal(1, 1, 8, 8)
    outcomes = []
    for mesh, absence in zip(meshes, (lambda: time.sleep(4), lambda: os._exit(1)), strict=True):
        dist.barrier()
        if dist.get_rank() == 1:
            absence()
            continue
        start = time.monotonic()
        try:
            dmlpool.max_pooling(sharded.spread(whole, mesh, [Shard(2)]), 3)
            outcomes.append(("no error", 0.0))
        except RuntimeError as error:
            outcomes.append((str(error), time.monotonic() - start))
    return outcomes


def test_a_rank_that_stays_away_or_dies_is_an_error_elsewhere() -> None:
    """After the process group's timeout where the rank is alive, at once where its connection
    closes."""
    two = Ranks(2)
    answers, failures = two.outcomes(meets_absent_ranks)
    two.close()
    assert failures == ["rank 1 died"]
    (stayed_away, waited), (died, noticed) = answers[0]
    assert "Timed out" in stayed_away or "timeout" in stayed_away
    assert 1.5 < waited < 20
    assert died != "no error"
    assert noticed < 10
