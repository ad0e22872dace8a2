"""One busy process per core: what a machine is like that others use too."""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from types import TracebackType

# Ends by itself after its seconds, or when nobody is left who could end it.
_SPIN = """
import os, sys, time
parent, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while time.monotonic() < end and os.getppid() == parent:
    for _ in range(100_000):
        pass
"""


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Load:
    """Busy processes from entering to leaving, for ``seconds`` at most."""

    def __init__(self, processes: int, seconds: float) -> None:
        self._arguments = [sys.executable, "-c", _SPIN, str(os.getpid()), str(seconds)]
        self._wanted = processes
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Load:
        atexit.register(self.stop)
        try:
            for _ in range(self._wanted):
                self._processes.append(subprocess.Popen(self._arguments))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def running(self) -> int:
        return sum(process.poll() is None for process in self._processes)

    def stop(self) -> None:
        """Ends every process and waits until it is gone."""
        atexit.unregister(self.stop)
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        for process in self._processes:
            process.wait()
        self._processes.clear()


@contextlib.contextmanager
def load(processes: int, seconds: float) -> Iterator[Load | None]:
    """Nothing for 0 processes."""
    if not processes:
        yield None
        return
    with Load(processes, seconds) as busy:
        yield busy
