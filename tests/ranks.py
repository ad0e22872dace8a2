"""Processes that stand for the ranks of a cluster: started once, then given one job after the other."""

from __future__ import annotations

import datetime
import multiprocessing
import tempfile
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any


class Ranks:
    """Gloo processes on this machine. A job is a function that every rank calls with the same arguments."""

    def __init__(self, count: int, timeout: float = 120.0) -> None:
        self.count, self.timeout = count, timeout
        self.connections: list[Connection] = []
        self.processes: list[Any] = []

    def run(self, job: Callable[..., Any], *arguments: Any, within: float = 300.0) -> list[Any]:
        """What every rank returns; what fails in any of them is raised here, the first failure first."""
        answers, failures = self.outcomes(job, *arguments, within=within)
        if failures:
            raise AssertionError("\n".join(failures))
        return answers

    def outcomes(self, job: Callable[..., Any], *arguments: Any, within: float = 300.0) -> tuple[list[Any], list[str]]:
        """What every rank returns, None where it fails, and the failures.

        Ranks that were left waiting for one that failed are of no more use: the next job gets new ones.
        """
        if not self.connections:
            self._start()
        for connection in self.connections:
            connection.send((job, arguments))
        answers: dict[int, Any] = {}
        failures = []
        while len(answers) < self.count:
            waiting = [connection for rank, connection in enumerate(self.connections) if rank not in answers]
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
        # One process imports everything and forks the ranks: less than half of what it takes if each of them imports.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch_dmlpool.distributed", "torch._dynamo", "torch.distributed.fsdp"])
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


def _serve(rank: int, count: int, meeting_point: str, timeout: float, connection: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting_point}",
        rank=rank,
        world_size=count,
        timeout=datetime.timedelta(seconds=timeout),
    )
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
                warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
                answer = job(*arguments)
        except Exception:
            failure = f"rank {rank}: {traceback.format_exc()}"
        connection.send((answer, failure))
