"""Times of calls that are compared: they run in turn, so that a change of the machine
affects all.
"""

import functools
import os
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

Call = Callable[[], object]
_BATCH = 1e-3
"""The least seconds of a sample: short calls are repeated in it."""


class Times(NamedTuple):
    """Seconds of a call: the lower quartile, the median and the upper quartile."""

    lower: float
    median: float
    upper: float


def in_turn(
    calls: Mapping[str, Call],
    device: torch.device,
    seconds: float,
    least: int = 5,
    now: Callable[[], float] = time.perf_counter,
) -> dict[str, Times]:
    """Times of each call, sampled in turn for ``seconds`` and at least ``least`` times.

    Each call has run before, once for warming up and then to find how often a sample has to repeat
    it. ``now`` is the clock of devices other than CUDA's.
    """
    clock = _gpu_seconds if device.type == "cuda" else functools.partial(_seconds, now=now)
    repeats = {name: _repeats(call, device, clock) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    end, rounds = time.monotonic() + seconds, 0
    while rounds < least or time.monotonic() < end:
        # Every second round runs backwards, so that no call always goes first.
        order = list(calls) if rounds % 2 == 0 else list(calls)[::-1]
        for name in order:
            samples[name].append(clock(calls[name], repeats[name], device) / repeats[name])
        rounds += 1
    return {name: _quartiles(taken) for name, taken in samples.items()}


def verdict(ours: Times, theirs: Times, load: str | None = None) -> str:
    """``faster``, ``slower`` or ``cannot tell``, where the quartiles overlap or the machine is
    busy. ``load`` says how busy it is, and is None if it is not.
    """
    if load is not None:
        return "cannot tell"
    if ours.upper < theirs.lower:
        return "faster"
    return "slower" if ours.lower > theirs.upper else "cannot tell"


def line(name: str, rival: str, ours: Times, theirs: Times, load: str | None) -> str:
    """A row of a table: both times in milliseconds, how many times as long the rival takes, and the
    verdict.
    """
    own, other = (
        "{1:.3g} ({0:.3g} to {2:.3g})".format(*(1e3 * each for each in times))
        for times in (ours, theirs)
    )
    ratio = theirs.median / ours.median
    figures = f"{own:>24}  {rival} {other:>24}{ratio:>7.2f}x"
    return f"  {name:<62}{figures}  {verdict(ours, theirs, load)}"


def load() -> str | None:
    """A sentence about the machine's load if less than half of its processors are idle,
    else None.
    """
    try:
        wanted = os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
    processors = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )
    if processors is None or wanted <= processors / 2:
        return None
    return f"{wanted:.1f} processes wanted the {processors} processors in the last minute"


def synchronize(device: torch.device) -> None:
    """Wait until ``device`` has finished all its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _repeats(call: Call, device: torch.device, clock: Callable[..., float]) -> int:
    """The number of calls in a sample, so that it takes about ``_BATCH`` seconds or has 1,000
    calls.
    """
    call()
    synchronize(device)
    repeats = 1
    while repeats < 1000 and clock(call, repeats, device) < _BATCH:
        repeats *= 2
    return repeats


def _seconds(call: Call, repeats: int, device: torch.device, now: Callable[[], float]) -> float:
    """Seconds of ``repeats`` calls."""
    synchronize(device)
    begun = now()
    for _ in range(repeats):
        call()
    synchronize(device)
    return now() - begun


def _gpu_seconds(call: Call, repeats: int, device: torch.device) -> float:
    """Seconds of ``repeats`` calls between two events of a CUDA stream."""
    with torch.cuda.device(device):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
    return begin.elapsed_time(end) / 1000


def _quartiles(samples: list[float]) -> Times:
    ordered = sorted(samples)
    last = len(ordered) - 1
    return Times(*(ordered[round(share * last)] for share in (0.25, 0.5, 0.75)))
