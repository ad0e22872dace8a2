"""Processes that stand for ranks, and one request on the whole tensor and on shards of it."""

import datetime
import functools
import math
import multiprocessing
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import oracle
import samples
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode

import torch_dmlpool as dmlpool
import torch_dmlpool.distributed


class Ranks:
    """Gloo processes on this machine. A job is a function that every rank calls with the same
    arguments."""

    def __init__(self, count: int, timeout: float = 120.0) -> None:
        self.count, self.timeout = count, timeout
        self.connections: list[Connection] = []
        self.processes: list[Any] = []

    def run(self, job: Callable[..., Any], *arguments: Any, within: float = 300.0) -> list[Any]:
        """What every rank returns; what fails in any of them is raised here, the first failure
        first."""
        answers, failures = self.outcomes(job, *arguments, within=within)
        if failures:
            raise AssertionError("\n".join(failures))
        return answers

    def outcomes(
        self, job: Callable[..., Any], *arguments: Any, within: float = 300.0
    ) -> tuple[list[Any], list[str]]:
        """What every rank returns, None where it fails, and the failures.

        Ranks that were left waiting for one that failed are of no more use: the next job gets new
        ones.
        """
        if not self.connections:
            self._start()
        for connection in self.connections:
            connection.send((job, arguments))
        answers: dict[int, Any] = {}
        failures = []
        while len(answers) < self.count:
            waiting = [each for rank, each in enumerate(self.connections) if rank not in answers]
            ready = wait(waiting, timeout=within)
            if not ready:
                failures.append(f"no answer within {within} s from {len(waiting)} ranks")
                break
            for connection in ready:
                rank = self.connections.index(connection)
                try:
                    answers[rank], failure = connection.recv()
                except EOFError:
                    answers[rank], failure = None, f"rank {rank} died"
                if failure is not None:
                    failures.append(failure)
        if failures:
            self.close(patience=0)
        return [answers.get(rank) for rank in range(self.count)], failures

    def _start(self) -> None:
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
            arguments = (rank, self.count, f"{self.folder.name}/store", self.timeout, theirs)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.connections.append(ours)
            self.processes.append(process)

    def close(self, patience: float = 10.0) -> None:
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


def _serve(
    rank: int, count: int, meeting_point: str, timeout: float, connection: Connection
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    patience = datetime.timedelta(seconds=timeout)
    where: Any = {"init_method": f"file://{meeting_point}", "rank": rank, "world_size": count}
    dist.init_process_group("gloo", **where, timeout=patience)
    while True:
        try:
            job, arguments = connection.recv()
        except EOFError:
            return
        answer = failure = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                # Inductor and forward-mode differentiation use TorchScript when they are loaded.
                warnings.filterwarnings("ignore", "`torch.jit.script")
                answer = job(*arguments)
        except Exception:
            failure = f"rank {rank}: {traceback.format_exc()}"
        connection.send((answer, failure))


operators = torch.ops.dmlpool
AGREEMENT = 16
"""Bytes that ranks compare before an exchange."""


@functools.cache
def mesh_of(*sizes: int) -> Any:
    return init_device_mesh("cpu", sizes, mesh_dim_names=("first", "second", "third")[: len(sizes)])


class Traffic(TorchDispatchMode):
    """The collectives that this rank takes part in: bytes that arrive from other ranks, and
    anything unexpected."""

    def __init__(self) -> None:
        super().__init__()
        self.received = self.sent = self.exchanges = 0
        self.unexpected: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # unwrap it first: what happens inside is what counts
        name = str(func)
        if name.startswith(("_c10d_functional", "c10d")) and not any(
            word in name for word in ("wait_tensor", "_wrap_")
        ):
            if "all_to_all_single" in name:
                tensor, received, sent, _ = args
                assert sum(sent) == tensor.numel()
                self.received += sum(received) * tensor.itemsize
                self.sent += sum(sent) * tensor.itemsize
                self.exchanges += 1
            elif "all_reduce" not in name or args[0].numel() * args[0].itemsize != AGREEMENT:
                self.unexpected.append(name)
        return func(*args, **(kwargs or {}))


def chunk(size: int, parts: int, part: int) -> range:
    """What PyTorch's chunking leaves to one of ``parts``."""
    pieces = torch.arange(size).chunk(parts)
    piece = pieces[part] if part < len(pieces) else torch.arange(0)
    return range(int(piece[0]), int(piece[-1]) + 1) if piece.numel() else range(0)


def hull(numbers: Sequence[int]) -> range:
    return range(min(numbers), max(numbers) + 1) if numbers else range(0)


class Halo:
    """What one rank must be sent, found by walking through windows: bytes per byte of an
    element."""

    def __init__(
        self, pooling: oracle.Pooling, shape: Sequence[int], mesh: Any, placements: Sequence[Any]
    ) -> None:
        self.pooling, self.shape, self.mesh, self.placements = pooling, shape, mesh, placements
        self.outputs = (*shape[:2], *oracle.output_sizes(pooling, shape[2:]))

    def elements(self, side: str, to_input: bool) -> int:
        """Elements of a tensor of the ``side`` that must arrive, axis after axis, for a result
        there or here."""
        whole = self.shape if side == "input" else self.outputs
        held = list(whole)
        coordinates = self.mesh.get_coordinate()
        sharded = {}
        for mesh_dimension, placement in enumerate(self.placements):
            if isinstance(placement, Shard):
                part = (self.mesh.size(mesh_dimension), coordinates[mesh_dimension])
                sharded[placement.dim] = part
                held[placement.dim] = len(chunk(whole[placement.dim], *part))
        arriving = 0
        for dimension in sorted(sharded):
            if dimension < 2:
                continue
            own = chunk(whole[dimension], *sharded[dimension])
            wanted = self.wanted(dimension, side, to_input, sharded[dimension])
            missing = len(set(wanted) - set(own))
            held[dimension] = 1
            arriving += missing * math.prod(held)
            held[dimension] = len(wanted)
        return arriving

    def wanted(self, dimension: int, side: str, to_input: bool, part: tuple[int, int]) -> range:
        axis, size, outputs = dimension - 2, self.shape[dimension], self.outputs[dimension]
        spans = [hull(oracle.tap_positions(self.pooling, axis, each)) for each in range(outputs)]
        mine, windows = set(chunk(size, *part)), chunk(outputs, *part)
        if to_input:
            windows = hull([output for output, span in enumerate(spans) if mine & set(span)])
        if side == "output" or not windows:
            return windows
        positions = [position for window in windows for position in spans[window]]
        inside = hull([position for position in hull(positions) if 0 <= position < size])
        # An operator needs an element: windows that span none are given the one that is nearest.
        return inside or (range(1) if max(positions) < 0 else range(size - 1, size))


def own_part(whole: Tensor, mesh: Any, placements: Sequence[Any]) -> Tensor:
    """This rank's shard of the whole, by PyTorch's own chunking."""
    for mesh_dimension, placement in enumerate(placements):
        if isinstance(placement, Shard):
            part = mesh.size(mesh_dimension), mesh.get_coordinate()[mesh_dimension]
            owned = chunk(whole.shape[placement.dim], *part)
            whole = whole.narrow(placement.dim, owned.start, len(owned))
    return whole


def assert_shard(result: DTensor, whole: Tensor, placements: Sequence[Any]) -> None:
    assert isinstance(result, DTensor)
    assert tuple(result.placements) == tuple(placements), result.placements
    assert result.shape == whole.shape
    assert result.dtype == whole.dtype
    samples.assert_same(result.to_local(), own_part(whole, result.device_mesh, placements))


def spread(whole: Tensor, mesh: Any, placements: Sequence[Any]) -> DTensor:
    """Distributed without a word between the ranks: every one of them has the whole."""
    return distribute_tensor(whole, mesh, placements, src_data_rank=None)


class Comparison:
    """One request, on the whole tensor and on shards."""

    def __init__(
        self,
        pooling: oracle.Pooling,
        shape: Sequence[int],
        mesh_sizes: Sequence[int],
        dimensions: Sequence[int | None],
    ) -> None:
        self.pooling, self.shape = pooling, tuple(shape)
        self.mesh = mesh_of(*mesh_sizes)
        self.placements = [Replicate() if each is None else Shard(each) for each in dimensions]
        self.halo = Halo(pooling, shape, self.mesh, self.placements)
        self.window = samples.spelled_out(pooling)
        self.exchanges = 0

    def call(
        self,
        function: Any,
        *arguments: Any,
        arriving: Sequence[tuple[str, bool, int]],
        **keywords: Any,
    ) -> Any:
        """The function's result on shards; what arrives must be the halo, to the byte, in exchanges
        alone."""
        with Traffic() as traffic:
            results = function(*arguments, **keywords)
        assert not traffic.unexpected, traffic.unexpected
        halo = sum(
            self.halo.elements(side, to_input) * itemsize for side, to_input, itemsize in arriving
        )
        assert traffic.received == halo, f"{traffic.received} bytes arrived, the halo has {halo}"
        self.exchanges += traffic.exchanges
        return results

    def spread(self, *tensors: Tensor) -> list[Any]:
        return [spread(tensor, self.mesh, self.placements) for tensor in tensors]

    def same(
        self,
        function: Any,
        *tensors: Tensor,
        rest: Sequence[Any] = (),
        arriving: Any = (),
        **keywords: Any,
    ) -> Any:
        """The function of the whole tensors, once that of their shards is found to be the same."""
        found = self.call(function, *self.spread(*tensors), *rest, arriving=arriving, **keywords)
        expected = function(*tensors, *rest, **keywords)
        for pair in zip(samples.listed(found), samples.listed(expected), strict=True):
            assert_shard(*pair, self.placements)
        return expected

    def maxima(self, dtype: torch.dtype) -> None:
        whole = samples.ties(*self.shape, dtype=dtype)
        if dtype.is_floating_point and whole.numel():
            whole.view(-1)[whole.numel() // 3] = math.nan
        window, request, sizes = self.window, vars(self.pooling), self.shape[2:]
        forward = [("input", False, dtype.itemsize)]
        self.same(dmlpool.max_pooling, whole, **request, arriving=forward)
        for index_dtype in (torch.int64, torch.uint32):
            indexed = {**request, "return_indices": True, "index_dtype": index_dtype}
            self.same(dmlpool.max_pooling, whole, **indexed, arriving=forward)
        if not dtype.is_floating_point:
            return
        _, taps = self.same(operators.max_pooling_with_taps, whole, rest=window, arriving=forward)
        for per_plane in (False, True):
            rest = sizes, *window, torch.int64, per_plane
            self.same(operators.max_pooling_indices, taps, rest=rest)
        tangent = samples.normal(*self.shape, dtype=dtype, seed=3)
        self.same(operators.max_pooling_gather, tangent, taps, rest=window, arriving=forward)
        gradient = samples.ties(*taps.shape, dtype=dtype, seed=1)
        backward = [("output", True, dtype.itemsize), ("output", True, taps.itemsize)]
        spreading = operators.max_pooling_grad_from_taps
        for channels_last in (False, True)[: len(sizes)]:
            rest = sizes, *window, channels_last
            expected = self.same(spreading, gradient, taps, rest=rest, arriving=backward)
        both = [("input", True, dtype.itemsize), ("output", True, dtype.itemsize)]
        self.same(dmlpool.max_pooling_grad, whole, gradient, **request, arriving=both)
        leaf, sharded_gradient = self.spread(whole, gradient)
        pooled = dmlpool.max_pooling(leaf.requires_grad_(), **request)
        arguments = torch.autograd.grad, pooled, leaf, sharded_gradient
        (result,) = self.call(*arguments, arriving=backward)
        assert_shard(result, expected, self.placements)

    def averages(self, dtype: torch.dtype) -> int:
        """Sharded averages within E6 of the whole ones; returns how many of the four results differ
        in any bit."""
        whole = samples.normal(*self.shape, dtype=dtype)
        gradient = samples.normal(*self.halo.outputs, dtype=dtype, seed=1)
        shard, sharded_gradient = self.spread(whole, gradient)
        size, taps = dtype.itemsize, math.prod(self.pooling.window_size)
        forward, backward = [("input", False, size)], [("output", True, size)]
        different = 0
        for divisor in ({}, {"include_padding": True}, {"divisor_override": -3}):
            request = {**vars(self.pooling), **divisor}
            pool = functools.partial(dmlpool.average_pooling, **request)
            adjoint = functools.partial(dmlpool.average_pooling_grad, **request)
            averages = self.call(pool, shard, arriving=forward)
            right = pool(whole), pool(whole.abs()).abs()
            different += self.close(averages, *right, 2 + math.ceil(math.log2(taps)))
            leaf = shard.detach().requires_grad_()
            arguments = torch.autograd.grad, pool(leaf), leaf, sharded_gradient
            (result,) = self.call(*arguments, arriving=backward)
            right = adjoint(gradient, self.shape), adjoint(gradient.abs(), self.shape).abs()
            different += self.close(result, *right, 2 + taps)
        return different

    def close(self, result: DTensor, whole: Tensor, magnitudes: Tensor, roundings: int) -> bool:
        assert tuple(result.placements) == tuple(self.placements)
        assert result.shape == whole.shape
        own = [own_part(each, self.mesh, self.placements) for each in (whole, magnitudes)]
        samples.assert_near(result.to_local(), *own, roundings)
        return not torch.equal(result.to_local(), own[0])


def compare(
    pooling: oracle.Pooling,
    shape: Sequence[int],
    mesh_sizes: Sequence[int],
    dimensions: Sequence[int | None],
    dtypes: Sequence[torch.dtype] = (torch.float32,),
) -> tuple[int, int]:
    """Everything on one request; returns the exchanges there were and the averages that differed in
    a bit."""
    comparison = Comparison(pooling, shape, mesh_sizes, dimensions)
    different = 0
    for dtype in dtypes:
        comparison.maxima(dtype)
        if dtype.is_floating_point:
            different += comparison.averages(dtype)
    return comparison.exchanges, different
