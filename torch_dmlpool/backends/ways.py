"""Which way serves a request is decided once for all tensors of one layout.

Between large tensors nothing of Python is left in the processor's caches: there a decision costs ten times what it
costs in a loop over small ones, and as much as pooling a megabyte.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor

KEPT_WAYS = 512
"""Decisions that are kept for each operator; the oldest goes first."""

Way = Callable[[Tensor], Tensor]


class DecidedOnce:
    """An operator on one tensor, from a function that decides for a tensor and the rest of a request how it is served.

    The decision may depend on the tensor's layout, its data type and whether it is on the CPU, and on nothing else of
    it. Several threads may decide at once, so that each step below is one that Python cannot interrupt.
    """

    def __init__(self, decide: Callable[..., Way]) -> None:
        self._decide = decide
        self._kept: dict[Hashable, Way] = {}

    def __call__(self, input: Tensor, *request: Any) -> Tensor:
        key = (request, input.shape, input.stride(), input.dtype, input.is_cpu)
        way = self._kept.get(key)
        if way is None:
            way = self._kept[key] = self._decide(input, *request)
            for oldest in list(self._kept)[:-KEPT_WAYS]:
                self._kept.pop(oldest, None)
        return way(input)
