"""What the 32 threads of a warp exchange with each other: shuffles and reductions of registers.

Arrays have an entry for each thread; threads of a warp are neighbours.
"""

import numpy as np

from emulator.memory import FaultError
from emulator.values import WORD, Bits, RefusedError

WARP = 32


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


def neighbours(mode: str, distance: Bits, segment: Bits) -> np.ndarray:
    """The thread that each one reads by ``shfl.sync``: kernels use one mode, over whole warps."""
    if mode != "bfly" or (segment != WARP - 1).any():
        raise RefusedError(f"a shuffle of mode {mode}")
    return np.arange(distance.size) ^ distance.astype(np.int64)


def added(kind: str, values: Bits, named: np.ndarray) -> Bits:
    """What ``redux.sync`` makes of the values of the threads that each thread's mask names."""
    if kind not in ("add.s32", "add.u32"):
        raise RefusedError(f"a reduction of kind {kind}")
    return np.where(named, values.reshape(-1, 1, WARP), WORD(0)).sum(2, dtype=WORD).reshape(-1)
