"""What the 32 threads of a warp exchange with each other: shuffles and reductions of registers.

Arrays have an entry for each thread; threads of a warp are neighbours.
"""

import operator
from collections.abc import Callable

import numpy as np

from emulator.memory import FaultError
from emulator.values import WORD, Bits, RefusedError, as_value

WARP = 32
REDUCTIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add.s32": operator.add,
    "add.u32": operator.add,
    "min.s32": np.minimum,
    "min.u32": np.minimum,
    "max.s32": np.maximum,
    "max.u32": np.maximum,
    "and.b32": operator.and_,
    "or.b32": operator.or_,
    "xor.b32": operator.xor,
}


def members(masks: Bits, chosen: np.ndarray | None) -> np.ndarray:
    """Whether thread ``[warp, lane, other]`` is named by a lane's mask.

    Threads that execute an instruction together are named by each other's masks, and no thread
    that is elsewhere is.
    """
    masks = masks.reshape(-1, WARP)
    if chosen is None and (masks == WORD(2**32 - 1)).all():
        return np.broadcast_to(True, (*masks.shape, WARP))
    named = (masks[:, :, None] >> np.arange(WARP, dtype=WORD) & WORD(1)).astype(bool)
    runs = np.ones(masks.shape, bool) if chosen is None else chosen.reshape(-1, WARP)
    if (runs & ~named[:, range(WARP), range(WARP)]).any():
        raise FaultError("a thread that its own mask does not name")
    together = (masks[:, :, None] == masks[:, None, :]) & runs[:, None, :]
    if (runs[:, :, None] & named & ~together).any():
        raise FaultError("a thread that a mask names is elsewhere, or names others")
    return named


def sources(mode: str, distance: Bits, clamp: Bits, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The thread that each of ``count`` reads by ``shfl.sync``, and whether it lies in its segment.

    The low bits of ``clamp`` are the last lane of a segment (the first one for ``up``), its bits
    from 8 on say which bits of a lane's number are that of its segment.
    """
    if mode not in ("up", "down", "bfly", "idx"):
        raise RefusedError(f"a shuffle of mode {mode}")
    lane = np.arange(count) % WARP
    distance, clamp = distance.astype(np.int64) & 31, clamp.astype(np.int64)
    segment = clamp >> 8 & 31
    end = (lane & segment) | (clamp & 31 & ~segment)
    at = {
        "up": lane - distance,
        "down": lane + distance,
        "bfly": lane ^ distance,
        "idx": (lane & segment) | (distance & ~segment),
    }[mode]
    inside = at >= end if mode == "up" else at <= end
    return np.arange(count) - lane + np.where(inside, at, lane), inside


def reduced(kind: str, values: Bits, named: np.ndarray) -> Bits:
    """What ``redux.sync`` makes of the values of the threads that each thread's mask names."""
    if kind not in REDUCTIONS:
        raise RefusedError(f"a reduction of kind {kind}")
    numbers = as_value(values, kind[-3:]).reshape(-1, 1, WARP)
    combine, result, has = REDUCTIONS[kind], numbers[:, :, 0], named[:, :, 0]
    for other in range(1, WARP):
        here, each = named[:, :, other], numbers[:, :, other]
        result = np.where(has & here, combine(result, each), np.where(here, each, result))
        has = has | here
    return result.reshape(-1).view(WORD)
