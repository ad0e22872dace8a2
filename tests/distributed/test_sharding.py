"""What operators do with placements: shards of batch and channels, partial sums, copies;
data-parallel training."""

import copy
import itertools
from typing import Any

import oracle
import pytest
import samples
import sharded
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

import torch_dmlpool as dmlpool
from torch_dmlpool.distributed.sharding import RULES

SHAPE = (4, 8, 7, 6)
POOLING = oracle.Pooling((3, 2), (2, 1), (1, 0), (2, 1), (1, 2), True)


def test_every_operator_has_a_rule():
    """A new one that has none would be refused by DTensor; those that are made of others need
    none."""
    defined = {
        name.split("::")[1]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("dmlpool::")
    }
    composed = {
        name
        for name in defined
        if torch._C._dispatch_has_kernel_for_dispatch_key(
            f"dmlpool::{name}", "CompositeImplicitAutograd"
        )
    }
    # On DTensors operators on rows are PyTorch's own operations, which need no rule of ours:
    # test_rows.py pools shards.
    rows = {"segment_sums", "segment_maxima", "segment_shares", "statistics"}
    assert defined - composed - rows == set(RULES)


def passes_partial_sums_through(reduce_op):
    mesh = sharded.mesh_of(4)
    parts = [samples.ties(*SHAPE, seed=rank) for rank in range(4)]
    whole = torch.stack(parts).sum(0) / (4 if reduce_op == "avg" else 1)
    summed = DTensor.from_local(parts[mesh.get_rank()], mesh, [Partial(reduce_op)])
    leaf = summed.detach().requires_grad_()
    with CommDebugMode() as communication:
        averages = dmlpool.average_pooling(leaf, **vars(POOLING))
    assert communication.get_total_counts() == 0
    assert averages.placements == (Partial(reduce_op),)
    torch.testing.assert_close(
        averages.full_tensor(), dmlpool.average_pooling(whole, **vars(POOLING))
    )
    gradients = [samples.ties(*averages.shape, seed=rank) for rank in range(4)]
    gradient = DTensor.from_local(gradients[mesh.get_rank()], mesh, [Partial()])
    with CommDebugMode() as communication:
        spread = dmlpool.average_pooling_grad(gradient, SHAPE, **vars(POOLING))
    assert communication.get_total_counts() == 0
    assert spread.placements == (Partial(),)
    expected = dmlpool.average_pooling_grad(torch.stack(gradients).sum(0), SHAPE, **vars(POOLING))
    torch.testing.assert_close(spread.full_tensor(), expected)
    # A maximum is not linear: the sum must be made first.
    maxima = dmlpool.max_pooling(summed, **vars(POOLING))
    assert maxima.placements == (Replicate(),)
    torch.testing.assert_close(maxima.to_local(), dmlpool.max_pooling(whole, **vars(POOLING)))
    # The gradient of a maximum is linear in what arrives.
    image = sharded.spread(whole, mesh, [Replicate()])
    spread = dmlpool.max_pooling_grad(image, gradient, **vars(POOLING))
    assert spread.placements == (Partial(),)
    expected = dmlpool.max_pooling_grad(whole, torch.stack(gradients).sum(0), **vars(POOLING))
    torch.testing.assert_close(spread.full_tensor(), expected)


@pytest.mark.parametrize("reduce_op", ["sum", "avg"])
def test_partial_sums_pass_through_what_is_linear(ranks, reduce_op):
    ranks.run(passes_partial_sums_through, reduce_op)


def a_gradient_comes_to_where_its_input_lies():
    mesh = sharded.mesh_of(4)
    whole = samples.distinct(*SHAPE, dtype=torch.float32)
    gradient = samples.ties(*dmlpool.max_pooling(whole, **vars(POOLING)).shape)
    expected = dmlpool.max_pooling_grad(whole, gradient, **vars(POOLING))
    for ours in (Replicate(), Shard(0), Shard(2), Partial()):
        for theirs in (Replicate(), Shard(1), Shard(3), Partial()):
            image, arriving = (
                DTensor.from_local(tensor / 4, mesh, [placement])
                if placement.is_partial()
                else sharded.spread(tensor, mesh, [placement])
                for tensor, placement in ((whole, ours), (gradient, theirs))
            )
            result = dmlpool.max_pooling_grad(image, arriving, **vars(POOLING))
            samples.assert_same(result.full_tensor(), expected)
            if ours == Shard(0):
                assert result.placements == (ours,)


def second_derivatives_and_channels_last_are_those_of_the_whole():
    mesh = sharded.mesh_of(4)
    whole = samples.distinct(2, 4, 9, 8)
    layouts = torch.contiguous_format, torch.channels_last
    for layout, dimension in itertools.product(layouts, (1, 2)):
        leaf = whole.contiguous(memory_format=layout).requires_grad_()
        shard = sharded.spread(leaf.detach(), mesh, [Shard(dimension)]).requires_grad_()
        results = []
        for tensor in (leaf, shard):
            # Cubic in the input, so that second derivatives go through every operator of both
            # families.
            maxima = dmlpool.max_pooling(tensor, **vars(POOLING))
            averages = dmlpool.average_pooling(tensor, **vars(POOLING))
            (first,) = torch.autograd.grad(
                (maxima * averages * averages).sum(), tensor, create_graph=True
            )
            (second,) = torch.autograd.grad((first * first).sum(), tensor)
            results.append((maxima, averages, first, second))
        for expected, result in zip(*results, strict=True):
            assert result.placements == (Shard(1) if dimension == 1 else Replicate(),)
            assert result.stride() == expected.stride()
            torch.testing.assert_close(result.full_tensor(), expected, rtol=1e-12, atol=1e-12)
        for pooled in results[1][:2]:
            assert pooled.to_local().is_contiguous(memory_format=layout)


def layers_take_unbatched_shards_and_return_positions_in_planes():
    mesh = sharded.mesh_of(2, 2)
    whole = samples.ties(3, 9, 10)
    placements = [Shard(0), Shard(2)]
    layer = dmlpool.nn.MaxPool2d(3, 2, padding="same", return_indices=True)
    for result, expected in zip(
        layer(sharded.spread(whole, mesh, placements)), layer(whole), strict=True
    ):
        sharded.assert_shard(result, expected, [Shard(0), Replicate()])
    layer = dmlpool.nn.AvgPool2d(3, 2, padding=1, ceil_mode=True)
    shard = sharded.spread(whole.unsqueeze(0), mesh, [Shard(2), Shard(3)])
    torch.testing.assert_close(layer(shard).full_tensor(), layer(whole.unsqueeze(0)))


def quantized_averages_take_the_parameters_of_their_channels():
    """Scales and zero points are plain tensors, the same on every rank; one per channel is cut with
    the channels."""
    whole = samples.ties(*SHAPE, dtype=torch.uint8)
    scales = torch.rand(8, generator=samples.seeded(8)) + 0.5
    zero_points = torch.arange(8, dtype=torch.uint8)
    arguments = (scales, zero_points, 0.75, torch.tensor([3], dtype=torch.uint8))
    for dimensions in ((0, 1), (1, 2), (2, 3), (None, 1)):
        comparison = sharded.Comparison(POOLING, SHAPE, (2, 2), dimensions)
        request = {**vars(POOLING), "include_padding": True, "rest": arguments}
        comparison.same(dmlpool.quantized_linear_average_pooling, whole, **request)


def a_mesh_may_be_of_some_ranks_in_any_order():
    mesh = DeviceMesh("cpu", [2, 0, 1])
    whole = samples.ties(5, 2, 11)
    for function in (dmlpool.max_pooling, dmlpool.average_pooling):
        shard = sharded.spread(whole, mesh, [Shard(0)])
        pooled = function(shard, 4, 2, 3, 1, 2)
        expected = function(whole, 4, 2, 3, 1, 2)
        assert pooled.shape == expected.shape
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            assert pooled.to_local().numel() == 0
        else:
            samples.assert_same(pooled.to_local(), sharded.own_part(expected, mesh, [Shard(0)]))


def what_no_rule_serves_is_refused():
    """What no rule covers, and an index type that numbers a shard but not the whole (M4)."""
    square, line = sharded.mesh_of(2, 2), sharded.mesh_of(4)
    whole = samples.ties(1, 1, 8, 8)
    shard, gradient = sharded.spread(whole, line, [Shard(2)]), dmlpool.max_pooling(whole, 3)
    with pytest.raises(TypeError, match=r"input_gradient must be a DTensor, .* got Tensor"):
        dmlpool.max_pooling_grad(shard, gradient, 3)
    with pytest.raises(
        ValueError, match="the tensors of max_pooling_grad must be on one device mesh"
    ):
        dmlpool.max_pooling_grad(shard, sharded.spread(gradient, square, [Shard(2), Shard(3)]), 3)
    with pytest.raises(ValueError, match="uint32 numbers at most"):
        dmlpool.max_pooling(
            DTensor.from_local(torch.empty(1).expand(2**14, 1, 2**8, 2**8), line, [Shard(0)]),
            2,
            return_indices=True,
            index_dtype=torch.uint32,
        )


def compiles(backend):
    whole = samples.distinct(2, 4, 9, 8).float()

    def pooled(tensor):
        return dmlpool.max_pooling(tensor, 3, 2, 1) * dmlpool.average_pooling(tensor, 3, 2, 1)

    for dimension in (0, 2):
        leaf = whole.clone().requires_grad_()
        shard = sharded.spread(whole, sharded.mesh_of(4), [Shard(dimension)]).requires_grad_()
        expected, result = (
            pooled(leaf),
            torch.compile(pooled, fullgraph=True, backend=backend)(shard),
        )
        expected.sum().backward()
        result.sum().backward()
        assert result.placements == (Shard(0) if dimension == 0 else Replicate(),)
        # Inductor rounds averages otherwise, within E6: 6 * 2**-24 * 40, times maxima of up to 72.
        torch.testing.assert_close(result.full_tensor(), expected, rtol=1e-6, atol=1e-3)
        torch.testing.assert_close(shard.grad.full_tensor(), leaf.grad)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_whole(ranks, backend):
    """Without a graph break, gathers and all."""
    ranks.run(compiles, backend)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["contextlib.nullcontext", "CommDebugMode"])
def test_a_dtensor_without_the_rules_is_refused_with_the_line_that_loads_them(mode, python):
    """Below a dispatch mode too. Importing the package and pooling plain tensors loads neither
    rules nor DTensor."""
    program = f"""
import contextlib, sys, tempfile, torch
import torch_dmlpool as dmlpool
dmlpool.max_pooling(torch.ones(1, 1, 4, 4), 2)
unwanted = ("torch_dmlpool.distributed", "torch.distributed.tensor")
assert not [name for name in sys.modules if name.startswith(unwanted)]
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method="file://" + folder + "/store", rank=0, world_size=1)
    shard = distribute_tensor(torch.ones(1, 1, 4, 4), init_device_mesh("cpu", (1,)), [Shard(2)])
    with {mode}():
        try:
            dmlpool.max_pooling(shard, 2)
        except TypeError as error:
            print("`import torch_dmlpool.distributed`" in str(error))
        import torch_dmlpool.distributed
        print(dmlpool.max_pooling(shard, 2).shape)
    dist.destroy_process_group()
"""
    finished = python("-c", program)
    assert finished.stdout.split("\n")[:2] == ["True", "torch.Size([1, 1, 3, 3])"]


def operators_without_a_window_and_composed_ones_are_those_of_the_whole():
    """Operators without a window, and those made of others: right on every placement, silent on
    batch and channels."""
    whole = samples.distinct(4, 4, 7, 9)
    for dimension in (0, 1, 2):
        shard = sharded.spread(whole, sharded.mesh_of(4), [Shard(dimension)])
        for function in (
            lambda tensor: dmlpool.adaptive_average_pooling(tensor, (3, 4)),
            lambda tensor: dmlpool.adaptive_max_pooling(tensor, (3, 4)),
            lambda tensor: dmlpool.lp_pooling(tensor, 3, 2, 1, 1, p=3),
            lambda tensor: dmlpool.min_pooling(tensor, 3, 2, 1, 1),
            lambda tensor: dmlpool.max_pooling(tensor, 3, 2, 1, 1, mask=tensor.detach() > 0),
            lambda tensor: dmlpool.average_pooling(
                tensor, 3, 2, 1, 1, include_padding=True, mask=tensor.detach() > 0
            ),
            lambda tensor: dmlpool.adaptive_average_pooling(
                tensor, (3, 4), mask=tensor.detach() > 0
            ),
        ):
            leaf, sharded_leaf = whole.clone().requires_grad_(), shard.detach().requires_grad_()
            expected = function(leaf)
            expected.square().sum().backward()
            with CommDebugMode() as communication:
                result = function(sharded_leaf)
                result.square().sum().backward()
            torch.testing.assert_close(result.full_tensor(), expected)
            torch.testing.assert_close(sharded_leaf.grad.full_tensor(), leaf.grad)
            if dimension < 2:
                assert result.placements == sharded_leaf.grad.placements == (Shard(dimension),)
                assert communication.get_total_counts() == 0
        layers = (
            dmlpool.nn.MaxPool2d(3, 2, padding=1, return_indices=True),
            dmlpool.nn.MaxUnpool2d(3, 2, padding=1),
        )
        restored, expected = (
            layers[1](*layers[0](tensor), output_size=(7, 9)) for tensor in (shard, whole)
        )
        torch.testing.assert_close(restored.full_tensor(), expected)


def adaptive_maxima_have_indices_into_the_whole_tensor():
    whole = samples.ties(3, 4, 7, 9)
    for dimension, sizes in itertools.product((0, 1, 2), ((3, 4), (7, 3), (1, 1))):
        shard = sharded.spread(whole, sharded.mesh_of(4), [Shard(dimension)])
        for index_dtype in (torch.int64, torch.int32):
            request = {"return_indices": True, "index_dtype": index_dtype}
            results = dmlpool.adaptive_max_pooling(shard, sizes, **request)
            for result, expected in zip(
                results, dmlpool.adaptive_max_pooling(whole, sizes, **request), strict=True
            ):
                samples.assert_same(result.full_tensor(), expected)


JOBS = [
    a_gradient_comes_to_where_its_input_lies,
    second_derivatives_and_channels_last_are_those_of_the_whole,
    layers_take_unbatched_shards_and_return_positions_in_planes,
    quantized_averages_take_the_parameters_of_their_channels,
    a_mesh_may_be_of_some_ranks_in_any_order,
    what_no_rule_serves_is_refused,
    operators_without_a_window_and_composed_ones_are_those_of_the_whole,
    adaptive_maxima_have_indices_into_the_whole_tensor,
]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__)
def test_on_four_ranks(ranks, job):
    ranks.run(job)


def trained(network, images):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.2, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        network(images).square().mean().backward()
        optimizer.step()


def trains(how):
    torch.manual_seed(1)
    layers = nn.Conv2d(1, 8, 3), dmlpool.nn.MaxPool2d(3, 2, padding=1)
    layers += nn.Conv2d(8, 8, 3, padding=1), dmlpool.nn.AvgPool2d(3, 1, 1, count_include_pad=False)
    layers += nn.Flatten(), nn.Linear(72, 4)
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
    for ours, theirs, first in zip(
        parallel.parameters(), alone.parameters(), before.parameters(), strict=True
    ):
        assert isinstance(ours, DTensor) == (how == "FSDP2")
        torch.testing.assert_close(
            ours.full_tensor() if isinstance(ours, DTensor) else ours, theirs
        )
        assert not torch.equal(theirs, first)


@pytest.mark.parametrize("how", ["DDP", pytest.param("FSDP2", marks=pytest.mark.slow)])
def test_training_equals_the_single_process(ranks, how):
    ranks.run(trains, how)
