"""Times of calls that are compared: they run in turn, so that a change of the machine
affects all.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from timeit import Timer
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
    it: a sample takes ``_BATCH`` seconds or has 1,024 calls. ``now`` is the clock, which is read
    when the device has finished its work.
    """

    def clock() -> float:
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return now()

    timers = {name: Timer(call, timer=clock) for name, call in calls.items()}
    repeats = dict.fromkeys(timers, 1)
    for name, timer in timers.items():
        timer.timeit(1)
        while repeats[name] < 1024 and timer.timeit(repeats[name]) < _BATCH:
            repeats[name] *= 2
    samples: dict[str, list[float]] = {name: [] for name in timers}
    order, end = list(timers), time.monotonic() + seconds
    while len(samples[order[0]]) < least or time.monotonic() < end:
        for name in order:
            samples[name].append(timers[name].timeit(repeats[name]) / repeats[name])
        order.reverse()  # so that no call always goes first
    return {name: Times(*statistics.quantiles(taken, n=4)) for name, taken in samples.items()}


def line(name: str, rival: str, ours: Times, theirs: Times, load: str | None) -> str:
    """A row of a table: both times in milliseconds, how many times as long the rival takes, and
    ``faster``, ``slower`` or ``cannot tell``, where the quartiles overlap or the machine is busy.
    ``load`` says how busy it is, and is None if it is not.
    """
    own, other = (
        "{1:.3g} ({0:.3g} to {2:.3g})".format(*(1e3 * each for each in times))
        for times in (ours, theirs)
    )
    verdict = "cannot tell"
    if load is None and ours.upper < theirs.lower:
        verdict = "faster"
    elif load is None and ours.lower > theirs.upper:
        verdict = "slower"
    times = f"{own:>24}  {rival} {other:>24}{theirs.median / ours.median:>7.2f}x"
    return f"  {name:<62}{times}  {verdict}"


def load() -> str | None:
    """A sentence about the machine's load if less than half of its processors are idle,
    else None.
    """
    try:
        wanted, processors = os.getloadavg()[0], os.cpu_count() or 1
    except (AttributeError, OSError):  # such as on Windows
        return None
    if wanted <= processors / 2:
        return None
    return f"{wanted:.1f} processes wanted the {processors} processors in the last minute"
