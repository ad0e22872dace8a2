"""Measures one row: outputs compared first, then rounds in which every contestant is called once,
in random order.

Inputs are fresh random tensors that the rounds rotate through, so that no contestant finds its
answer in a cache that another one did not find too. On a GPU the L2 cache is flushed before every
single call, and events take the time.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.bound import Absent, Bound, Problem
from benchmarks.load import load
from benchmarks.memory import kept_for_backward, peak_of_training
from benchmarks.peers import ATEN, BY_AXIS, DETOUR, OURS, Peer, pools
from benchmarks.results import Quartiles, RowResult
from benchmarks.workloads import MODES, Workload

INPUTS = 3
INPUT_BYTES = 2**30  # all of them together; beyond this fewer tensors are rotated
LEAST_ROUNDS = 3
# of calls shorter than this a round takes several, so that one interruption does not count
ROUND_SECONDS = 500e-6
MOST_CALLS = 100
# but no more of them once they have taken this long, as they do where cores are short
TOGETHER_SECONDS = 20e-3
SETTLING_SECONDS = 2e-3  # thread pools spin for about a millisecond after their last task
# or twice the L2 cache: read so that the host gets ahead of the device meanwhile
FLUSHED_BYTES = 2**29
# the first of them that does a row is what everybody else must agree with
REFERENCES = (ATEN, DETOUR, BY_AXIS)
LOAD_SECONDS = 240.0  # no busy process outlives this, whatever becomes of us


class Disagreement(Exception):  # noqa: N818 - a finding about a result
    """A contestant's result differs from the reference's."""


@dataclass(frozen=True)
class Settings:
    """How long and how a row is measured."""

    device: torch.device
    rounds: int
    row_seconds: float
    busy_processes: int = 0
    seed: int = 0
    memory: bool = True  # of training rows: what is kept, and the most that is allocated


Clock = Callable[[Callable[[], Any], int], float]
"""Seconds of one call of a function that is called several times."""


def cpu_clock(run: Callable[[], Any], calls: int) -> float:
    """The median of single calls; results are freed while the clock stands still."""
    taken: list[float] = []
    while len(taken) < calls and sum(taken) < TOGETHER_SECONDS:
        start = time.perf_counter()
        returned = run()
        taken.append(time.perf_counter() - start)
        del returned
    return statistics.median(taken)


def cuda_clock(device: torch.device) -> Clock:
    """The median of single calls between events, each behind a read that throws out what is in the
    L2 cache.

    The calls are queued behind each other, so that what the host needs to launch them passes while
    the device reads. A write would leave lines that are written back while the call is timed.
    """
    amount = max(FLUSHED_BYTES, 2 * torch.cuda.get_device_properties(device).L2_cache_size)
    flush = torch.ones(amount // 4, device=device)

    def clock(run: Callable[[], Any], calls: int) -> float:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
        for start, end in events:
            flush.sum()
            start.record()
            run()
            end.record()
        torch.cuda.synchronize(device)
        return statistics.median(float(start.elapsed_time(end)) / 1e3 for start, end in events)

    return clock


def problem(workload: Workload, settings: Settings) -> Problem:
    """Fresh tensors for a row; the same seed gives the same ones."""
    generator = torch.Generator(settings.device).manual_seed(settings.seed)
    needed = math.prod(workload.sizes) * workload.torch_dtype.itemsize
    count = max(1, min(INPUTS, INPUT_BYTES // needed))
    inputs = [workload.random(workload.sizes, generator) for _ in range(count)]
    training = workload.mode == "training"
    return Problem(
        workload,
        inputs,
        [workload.random(workload.output_sizes, generator) for _ in inputs] if training else [],
    )


def tolerance(workload: Workload, is_gradient: bool) -> float:
    """The tolerance for results that are not the same bits: sums of float16 and bfloat16 gradients
    are rounded in different places.

    A gradient can be a sum of as many terms as a window has taps, in any order.
    """
    epsilon = torch.finfo(workload.torch_dtype).eps
    if workload.torch_dtype.itemsize > 2:
        return max(64, math.prod(workload.window) if is_gradient else 0) * epsilon
    return (16 if is_gradient else 4) * epsilon


def compare(workload: Workload, expected: tuple[Tensor, ...], actual: tuple[Tensor, ...]) -> None:
    """Values of maxima, indices and quantized averages exactly; other averages and gradients within
    a few roundings."""
    for part, (wanted, got) in enumerate(zip(expected, actual, strict=True)):
        is_gradient = workload.mode == "training" and part == 1
        what = "gradients" if is_gradient else ("values", "indices")[part]
        if wanted.shape != got.shape or wanted.dtype != got.dtype:
            raise Disagreement(
                f"{what} are {got.dtype} of {tuple(got.shape)}, not {wanted.dtype} of "
                f"{tuple(wanted.shape)}"
            )
        if workload.mode == "quantized" or (workload.family == "max" and not is_gradient):
            same = torch.equal(wanted, got)
        else:
            allowed = tolerance(workload, is_gradient)
            same = torch.allclose(wanted, got, rtol=allowed, atol=allowed)
        if not same:
            raise Disagreement(
                f"{what} differ by up to {(wanted.double() - got.double()).abs().max().item():.3g}"
            )


def bind(peers: list[Peer], tensors: Problem) -> tuple[dict[Peer, list[Bound]], dict[str, str]]:
    """Everybody's calls, each tried once and compared with the reference's; and who takes no part
    in this row, and why.

    Raises:
        Disagreement: Our own result is not the reference's.
    """
    calls: dict[Peer, list[Bound]] = {}
    skipped: dict[str, str] = {}
    expected: tuple[Tensor, ...] | None = None
    for peer in sorted(peers, key=_place_in_comparison):
        try:
            bound = peer.bind(tensors)
            got = tuple(tensor.detach() for tensor in bound[0].collect(bound[0].run()))
            if expected is None:
                expected = got
            elif got:
                compare(tensors.workload, expected, got)
        except Absent as reason:
            skipped[peer.name] = str(reason)
        except NotImplementedError as reason:
            if peer.name == OURS:
                raise
            skipped[peer.name] = f"not implemented: {reason}"
        except Disagreement as reason:
            if peer.name == OURS:
                raise Disagreement(f"{tensors.workload.name}: our {reason}") from None
            skipped[peer.name] = f"wrong: {reason}"
        except Exception as reason:
            if peer.name == OURS:
                raise
            first_line = next(iter(str(reason).strip().splitlines()), "")
            skipped[peer.name] = f"failed: {type(reason).__name__}: {first_line[:160]}"
        else:
            calls[peer] = bound
    return {peer: calls[peer] for peer in peers if peer in calls}, skipped


def _place_in_comparison(peer: Peer) -> int:
    return REFERENCES.index(peer.name) if peer.name in REFERENCES else len(REFERENCES)


def measure(workload: Workload, peers: list[Peer], settings: Settings) -> RowResult:
    """One row of the table."""
    tensors = problem(workload, settings)
    calls, skipped = bind(peers, tensors)
    kept, peak = {}, {}
    if workload.mode == "training" and settings.memory:
        input, gradient = tensors.inputs[0], tensors.gradients[0]
        kept = {name: kept_for_backward(pool, input) for name, pool in pools(workload).items()}
        peak = {
            name: peak_of_training(pool, input, gradient) for name, pool in pools(workload).items()
        }
    clock = cuda_clock(settings.device) if settings.device.type == "cuda" else cpu_clock
    with load(settings.busy_processes, LOAD_SECONDS) as busy:
        samples, per_round = _rounds(calls, clock, settings)
        if busy is not None and busy.running < settings.busy_processes:
            raise RuntimeError(
                f"{workload.name}: a busy process ended before its row did; allow fewer row seconds"
            )
    layout = "channels_last" if workload.channels_last else "contiguous"
    return RowResult(
        name=workload.name,
        groups=workload.groups,
        origin=workload.origin,
        kind=f"{MODES[workload.mode] or 'forward'}, {layout}, {workload.dtype}",
        bytes_moved=workload.bytes_moved,
        input_bytes=math.prod(workload.sizes) * workload.torch_dtype.itemsize,
        rounds=len(samples[OURS]),
        calls_per_round=per_round,
        seconds={name: Quartiles.of(taken) for name, taken in samples.items()},
        skipped=skipped,
        kept=kept,
        peak=peak,
        window=workload.window,
        outputs=math.prod(workload.output_sizes),
    )


def _rounds(
    calls: dict[Peer, list[Bound]], clock: Clock, settings: Settings
) -> tuple[dict[str, list[float]], int]:
    """Interleaved rounds until there are enough, or the row's time is over, and how many calls were
    timed together."""
    order = list(calls)
    shuffling = random.Random(settings.seed)
    samples: dict[str, list[float]] = {peer.name: [] for peer in order}
    ours = next(bound for peer, bound in calls.items() if peer.name == OURS)
    for several in calls.values():  # the first input was warmed up when results were compared
        several[-1].run()
    estimate = min(clock(bound.run, 1) for bound in [*ours, *ours])
    per_round = max(1, min(MOST_CALLS, math.ceil(ROUND_SECONDS / estimate)))
    others_spin = any(peer.own_threads for peer in order)
    gc.collect()
    gc.disable()
    try:
        end = time.perf_counter() + settings.row_seconds
        for number in range(settings.rounds):
            shuffling.shuffle(order)
            for peer in order:
                bound, next_bound = (
                    calls[peer][turn % len(calls[peer])] for turn in (number, number + 1)
                )
                if others_spin:
                    time.sleep(SETTLING_SECONDS)
                    # threads that fell asleep meanwhile are awake again, as in a user's loop
                    next_bound.run()
                samples[peer.name].append(clock(bound.run, per_round))
            if number + 1 >= LEAST_ROUNDS and time.perf_counter() > end:
                break
    finally:
        gc.enable()
    return samples, per_round
