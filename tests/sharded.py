"""Processes that stand for ranks, and one request on the whole tensor and on shards of it."""

import datetime
import functools
import math
import multiprocessing
import tempfile
import traceback
import warnings
from multiprocessing.connection import Connection, wait
from typing import Any

import oracle
import samples
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode

import torch_dmlpool as dmlpool
import torch_dmlpool.distributed


class Ranks:
    """Gloo processes on this machine. A job is a function that every rank calls with the same
    arguments."""

    def __init__(self, count):
        self.count = count
        self.connections: list[Connection] = []
        self.processes: list[Any] = []

    def run(self, job, *arguments):
        """What fails in any of them is raised here, the first failure first.

        Ranks that were left waiting for one that failed are of no more use: the next job gets new
        ones.
        """
        if not self.connections:
            self._start()
        for connection in self.connections:
            connection.send((job, arguments))
        waiting, failures = list(self.connections), []
        while waiting:
            ready = wait(waiting, timeout=300.0)
            if not ready:
                failures.append(f"no answer within 300 s from {len(waiting)} ranks")
                break
            for connection in ready:
                waiting.remove(connection)
                try:
                    failures += connection.recv()
                except EOFError:
                    failures.append(f"rank {self.connections.index(connection)} died")
        if failures:
            self.close(patience=0)
            raise AssertionError("\n".join(failures))

    def _start(self):
        # One process imports everything and forks the ranks: less than half of what it takes if
        # each of them imports.
        forks = "forkserver" in multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if forks else "spawn")
        if forks:
            loaded = ["torch_dmlpool.distributed", "torch._dynamo", "torch.distributed.fsdp"]
            context.set_forkserver_preload(loaded)
        self.folder = tempfile.TemporaryDirectory(prefix="torch_dmlpool_ranks_")
        for rank in range(self.count):
            ours, theirs = context.Pipe()
            arguments = (rank, self.count, f"{self.folder.name}/store", theirs)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.connections.append(ours)
            self.processes.append(process)

    def close(self, patience=10.0):
        """End all ranks; those that still work after ``patience`` seconds are killed."""
        for connection in self.connections:
            connection.close()
        for process in self.processes:
            process.join(patience)
            process.kill()
            process.join()
        if self.processes:
            self.folder.cleanup()
        self.connections, self.processes = [], []


def _serve(rank, count, meeting_point, connection):
    torch.set_num_threads(1)
    where: Any = {"init_method": f"file://{meeting_point}", "rank": rank, "world_size": count}
    dist.init_process_group("gloo", **where, timeout=datetime.timedelta(seconds=120))
    while True:
        try:
            job, arguments = connection.recv()
        except EOFError:
            return
        failures = []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                # Inductor and forward-mode differentiation use TorchScript when they are loaded.
                warnings.filterwarnings("ignore", "`torch.jit.script")
                job(*arguments)
        except Exception:
            failures = [f"rank {rank}: {traceback.format_exc()}"]
        connection.send(failures)


operators = torch.ops.dmlpool


@functools.cache
def mesh_of(*sizes):
    return init_device_mesh("cpu", sizes, mesh_dim_names=("first", "second", "third")[: len(sizes)])


def chunk(size, parts, part):
    """What PyTorch's chunking leaves to one of ``parts``."""
    pieces = torch.arange(size).chunk(parts)
    piece = pieces[part] if part < len(pieces) else torch.arange(0)
    return range(int(piece[0]), int(piece[-1]) + 1) if piece.numel() else range(0)


def own_part(whole, mesh, placements):
    """This rank's shard of the whole, by PyTorch's own chunking."""
    for mesh_dimension, placement in enumerate(placements):
        if isinstance(placement, Shard):
            part = mesh.size(mesh_dimension), mesh.get_coordinate()[mesh_dimension]
            owned = chunk(whole.shape[placement.dim], *part)
            whole = whole.narrow(placement.dim, owned.start, len(owned))
    return whole


def assert_shard(result, whole, placements):
    assert isinstance(result, DTensor)
    assert tuple(result.placements) == tuple(placements), result.placements
    assert result.shape == whole.shape
    assert result.dtype == whole.dtype
    samples.assert_same(result.to_local(), own_part(whole, result.device_mesh, placements))


def spread(whole, mesh, placements):
    """Distributed without a word between the ranks: every one of them has the whole."""
    return distribute_tensor(whole, mesh, placements, src_data_rank=None)


def kept(placements):
    """The placements of results: shards of D, H and W are gathered."""
    return [each if each.is_shard() and each.dim < 2 else Replicate() for each in placements]


class Comparison:
    """One request, on the whole tensor and on shards."""

    def __init__(self, pooling, shape, mesh_sizes, dimensions):
        self.pooling, self.shape = pooling, tuple(shape)
        self.outputs = (*shape[:2], *oracle.output_sizes(pooling, shape[2:]))
        self.mesh = mesh_of(*mesh_sizes)
        self.placements = [Replicate() if each is None else Shard(each) for each in dimensions]
        self.window = samples.spelled_out(pooling)

    def call(self, function, *arguments, **keywords):
        """The function's result on shards. Those of the batch and the channels need no word
        between the ranks."""
        with CommDebugMode() as communication:
            results = function(*arguments, **keywords)
        is_gathered = kept(self.placements) != self.placements
        assert is_gathered or communication.get_total_counts() == 0
        return results

    def spread(self, *tensors):
        return [spread(tensor, self.mesh, self.placements) for tensor in tensors]

    def same(self, function, *tensors, rest=(), **keywords):
        """The function of the whole tensors, once that of their shards is found to be the same."""
        found = self.call(function, *self.spread(*tensors), *rest, **keywords)
        expected = function(*tensors, *rest, **keywords)
        for pair in zip(samples.listed(found), samples.listed(expected), strict=True):
            assert_shard(*pair, kept(self.placements))
        return expected

    def same_gradient(self, pool, whole, gradient, expected):
        leaf, sharded_gradient = self.spread(whole, gradient)
        pooled = pool(leaf.requires_grad_())
        (result,) = self.call(torch.autograd.grad, pooled, leaf, sharded_gradient)
        assert_shard(result, expected, kept(self.placements))

    def maxima(self, dtype):
        whole = samples.ties(*self.shape, dtype=dtype)
        if dtype.is_floating_point and whole.numel():
            whole.view(-1)[whole.numel() // 3] = math.nan
        window, request, sizes = self.window, vars(self.pooling), self.shape[2:]
        self.same(dmlpool.max_pooling, whole, **request)
        for index_dtype in (torch.int64, torch.uint32):
            indexed = {**request, "return_indices": True, "index_dtype": index_dtype}
            self.same(dmlpool.max_pooling, whole, **indexed)
        if not dtype.is_floating_point:
            return
        _, taps = self.same(operators.max_pooling_with_taps, whole, rest=window)
        for per_plane in (False, True):
            rest = sizes, *window, torch.int64, per_plane
            self.same(operators.max_pooling_indices, taps, rest=rest)
        tangent = samples.normal(*self.shape, dtype=dtype, seed=3)
        self.same(operators.max_pooling_gather, tangent, taps, rest=window)
        gradient = samples.ties(*taps.shape, dtype=dtype, seed=1)
        spreading = operators.max_pooling_grad_from_taps
        for channels_last in (False, True)[: len(sizes)]:
            rest = sizes, *window, channels_last
            expected = self.same(spreading, gradient, taps, rest=rest)
        self.same(dmlpool.max_pooling_grad, whole, gradient, **request)
        pool = functools.partial(dmlpool.max_pooling, **request)
        self.same_gradient(pool, whole, gradient, expected)

    def averages(self, dtype):
        whole = samples.normal(*self.shape, dtype=dtype)
        gradient = samples.normal(*self.outputs, dtype=dtype, seed=1)
        for divisor in ({}, {"include_padding": True}, {"divisor_override": -3}):
            request = {**vars(self.pooling), **divisor}
            self.same(dmlpool.average_pooling, whole, **request)
            expected = dmlpool.average_pooling_grad(gradient, self.shape, **request)
            pool = functools.partial(dmlpool.average_pooling, **request)
            self.same_gradient(pool, whole, gradient, expected)


def compare(
    pooling,
    shape,
    mesh_sizes,
    dimensions,
    dtypes=(torch.float32,),
):
    """Everything on one request."""
    comparison = Comparison(pooling, shape, mesh_sizes, dimensions)
    for dtype in dtypes:
        comparison.maxima(dtype)
        if dtype.is_floating_point:
            comparison.averages(dtype)
