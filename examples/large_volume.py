"""Pool a volume that no single process could hold, over four processes that may each allocate 400 MiB.

    python examples/large_volume.py                            # under a minute on two cores
    python examples/large_volume.py --depth 384 --budget 210   # half of it

Every process limits its own address space to what it occupies after starting plus the budget, so that allocating too
much fails at once. First one of them tries to allocate the whole volume, and cannot. Then the volume is made as a
DTensor that is sharded along its depth, is pooled and differentiated, and every process compares what it owns with a
direct computation, slab by slab. Only halos move between the processes.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the processes share the cores already

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

import torch_dmlpool as dmlpool
import torch_dmlpool.distributed

MEBIBYTE = 2**20
SLAB = 8
"""Planes of the result that are checked at a time."""
WINDOW = {"window_size": 3, "strides": 2, "start_padding": 1, "end_padding": 1}


def planes(depths: range, size: int) -> Tensor:
    """The volume from one depth to another: any process can make any part of it, and no two planes are alike."""
    depth = torch.arange(depths.start, depths.stop).view(-1, 1, 1)
    row, column = torch.arange(size).view(-1, 1), torch.arange(size)
    values = (depth * 2654435 + row * 40503 + column * 9973).remainder_(65521)
    return values.float().sub_(32760).view(1, 1, len(depths), size, size)


def made(depths: range, size: int) -> Tensor:
    """The same, made plane by plane: the whole numbers in between take twice the memory of the result."""
    volume = torch.empty(1, 1, len(depths), size, size)
    for number, depth in enumerate(depths):
        volume[:, :, number : number + 1] = planes(range(depth, depth + 1), size)
    return volume


def limit_memory(budget: int) -> int:
    """Let this process allocate ``budget`` bytes from here on, and return what it may occupy altogether."""
    with open("/proc/self/statm") as file:
        occupied = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (occupied + budget, resource.RLIM_INFINITY))
    return occupied + budget


def slabs(own: range) -> Iterator[range]:
    for start in range(own.start, own.stop, SLAB):
        yield range(start, min(start + SLAB, own.stop))


def check_maxima(local: Tensor, own: range, depth: int, size: int) -> int:
    """Differences between the pooled planes ``own`` and a direct computation from the elements they read."""
    different = 0
    for slab in slabs(own):
        first, stop = 2 * slab.start - 1, 2 * (slab.stop - 1) + 2
        read = range(max(first, 0), min(stop, depth))
        window = {
            **WINDOW,
            "start_padding": (read.start - first, 1, 1),
            "end_padding": (stop - read.stop, 1, 1),
        }
        direct = dmlpool.max_pooling(made(read, size), **window)
        different += int((direct != local[:, :, slab.start - own.start : slab.stop - own.start]).sum())
    return different


def work(rank: int, options: argparse.Namespace, meeting_point: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=options.processes)
    mesh = init_device_mesh("cpu", (options.processes,))
    # What is loaded and connected at the first use should not count.
    first = DTensor.from_local(torch.rand(1, 1, 4, 4, 4), mesh, [Shard(2)]).requires_grad_()
    dmlpool.max_pooling(first, **WINDOW).sum().backward()

    depth, size = options.depth, options.size
    limit_memory(options.budget * MEBIBYTE)
    whole = depth * size * size * 4
    if rank == 0:
        print(
            f"volume: {depth} x {size} x {size} float32, {whole / MEBIBYTE:.0f} MiB; each of {options.processes} ",
            end="",
        )
        print(f"processes may allocate {options.budget} MiB")
        try:
            torch.empty(1, 1, depth, size, size)
        except RuntimeError:
            print("one process alone: cannot even allocate the volume")
        else:
            raise SystemExit("one process alone could hold the volume: ask for more --depth or less --budget")

    chunk = -(-depth // options.processes)
    own = range(min(rank * chunk, depth), min((rank + 1) * chunk, depth))
    strides = (depth * size * size, depth * size * size, size * size, size, 1)
    volume = DTensor.from_local(
        made(own, size), mesh, [Shard(2)], shape=torch.Size((1, 1, depth, size, size)), stride=strides
    )
    dist.barrier()
    start = time.perf_counter()
    pooled = dmlpool.max_pooling(volume.requires_grad_(), **WINDOW)
    dist.barrier()
    forward = time.perf_counter() - start
    outputs = pooled.shape[2]
    out_chunk = -(-outputs // options.processes)
    own_outputs = range(min(rank * out_chunk, outputs), min((rank + 1) * out_chunk, outputs))
    different = check_maxima(pooled.detach().to_local(), own_outputs, depth, size)

    start = time.perf_counter()
    pooled.sum().backward()
    dist.barrier()
    backward = time.perf_counter() - start
    # The gradient of a sum gives each window's 1 to one element: they add up to the number of windows.
    arrived = volume.grad.to_local().sum((3, 4)).double().sum()  # exact: a plane has far fewer than 2²⁴ elements
    received = torch.tensor([arrived, different], dtype=torch.float64)
    dist.all_reduce(received)
    peak = torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024])
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    if rank == 0:
        windows = pooled.numel()
        print(f"over {options.processes} processes: forward {forward:.2f} s, backward {backward:.2f} s, ", end="")
        print(f"peak memory of a process {peak.item() / MEBIBYTE:.0f} MiB, what PyTorch itself takes included")
        print(f"{windows} windows, {int(received[1])} differ from the direct computation")
        print(f"their gradients add up to {received[0]:.0f}")
        if received.tolist() != [windows, 0]:
            raise SystemExit("WRONG")
    dist.destroy_process_group()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--depth", type=int, default=768, help="planes of the volume (default: 768)")
    parser.add_argument("--size", type=int, default=384, help="rows and columns of a plane (default: 384)")
    parser.add_argument("--budget", type=int, default=400, help="MiB that each process may allocate (default: 400)")
    parser.add_argument("--processes", type=int, default=4, help="processes (default: 4)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (options, f"{folder}/store"), options.processes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
