"""Pool and differentiate a volume that four processes hold in slabs, by moving nothing but the halo
between them; torch.nn's pools need the whole volume in every process.
"""

import os
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the processes share the cores already

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode

import torch_dmlpool as dmlpool
import torch_dmlpool.distributed

PROCESSES, DEPTH, SIZE = 4, 256, 256
WINDOW = {"window_size": 3, "strides": 2, "start_padding": 1, "end_padding": 1}


def volume(depths: range) -> torch.Tensor:
    """The planes ``depths`` of the volume: any process can make any of them, and no two are
    alike.
    """
    depth = torch.arange(depths.start, depths.stop).view(-1, 1, 1)
    row, column = torch.arange(SIZE).view(-1, 1), torch.arange(SIZE)
    return (
        (depth * 2654435 + row * 40503 + column * 9973)
        .remainder(65521)
        .float()
        .view(1, 1, -1, SIZE, SIZE)
    )


def work(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=PROCESSES)
    mesh = init_device_mesh("cpu", (PROCESSES,))
    own = range(rank * DEPTH // PROCESSES, (rank + 1) * DEPTH // PROCESSES)
    slab = DTensor.from_local(volume(own), mesh, [Shard(2)]).requires_grad_()

    start = time.perf_counter()
    with CommDebugMode() as communication:
        pooled = dmlpool.max_pooling(slab, **WINDOW)
        pooled.sum().backward()
    seconds = time.perf_counter() - start

    # torch.nn's max_pool3d has no rule for shards: the slabs have to be gathered first.
    again = DTensor.from_local(volume(own), mesh, [Shard(2)]).requires_grad_()
    start = time.perf_counter()
    whole = again.full_tensor()
    torch.nn.functional.max_pool3d(whole, 3, 2, 1).sum().backward()
    gathered_seconds = time.perf_counter() - start

    # Checked against the planes that this slab's windows read, pooled by this process alone.
    outputs = range(own.start // 2, own.stop // 2)
    read = range(max(0, 2 * outputs.start - 1), own.stop)
    pads = {**WINDOW, "start_padding": (int(rank == 0), 1, 1), "end_padding": (0, 1, 1)}
    different = (pooled.to_local() != dmlpool.max_pooling(volume(read), **pads)).sum()
    # Each window gives its gradient of 1 to one element: they add up to the number of windows.
    totals = torch.stack([slab.grad.to_local().double().sum(), different.double()])
    dist.all_reduce(totals)
    if rank == 0:
        megabytes = DEPTH * SIZE * SIZE * 4 / 1e6
        print(
            f"volume of {DEPTH} x {SIZE} x {SIZE} float32, {megabytes:.0f} MB, over {PROCESSES} "
            "processes"
        )
        print(
            f"{pooled.numel()} windows: {int(totals[1])} differ, their gradients add up to "
            f"{int(totals[0])}"
        )
        for name, input, spent in (
            ("torch.nn, gathered", whole, gathered_seconds),
            ("torch_dmlpool, in slabs", slab.to_local(), seconds),
        ):
            print(
                f"{name:25}{spent:6.2f} s forward and backward, {input.nbytes / 1e6:5.1f} MB of "
                "input in each process"
            )
        print(f"collectives for the slabs: {communication.get_total_counts()}")
    assert totals.tolist() == [pooled.numel(), 0]
    dist.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (f"{folder}/store",), PROCESSES)


if __name__ == "__main__":
    main()
