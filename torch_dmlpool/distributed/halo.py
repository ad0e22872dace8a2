"""Which part of a sharded axis each rank reads and computes: integers only, no tensors and no processes.

A rank that owns some windows reads the elements that they span; a rank that owns some elements of a gradient reads the
windows that cover them. Both are the same :class:`Portion`: windows, the elements they span, and the window's geometry
as it looks from those elements, in which every divisor, tap number and empty window is what it is in the whole.
"""

import functools
from dataclasses import dataclass, replace
from typing import Literal

from torch_dmlpool.window import Axis

Side = Literal["input", "output", "channels"]
"""Whose sizes a tensor has: the forward input's, the forward output's, or one entry for all channels or one each."""


@dataclass(frozen=True, slots=True)
class Portion:
    """What one rank computes along one axis, in the whole tensor's numbers."""

    windows: range  # that it computes; more than it owns only where those it owns read no element at all
    elements: range  # of the input, from the first to the last that these windows can read
    axis: Axis  # that gives exactly these windows for an input of these elements alone

    def of(self, side: Side) -> range:
        return self.elements if side == "input" else self.windows


def shards(size: int, parts: int) -> tuple[range, ...]:
    """How DTensor's ``Shard`` splits ``size`` over ``parts`` ranks: equal chunks, the last ones short or empty."""
    chunk = -(-size // parts)
    return tuple(range(min(part * chunk, size), min((part + 1) * chunk, size)) for part in range(parts))


@functools.lru_cache(maxsize=1024)
def portions(axis: Axis, size: int, parts: int, of_elements: bool) -> tuple[Portion, ...]:
    """For each of ``parts`` ranks, the windows that it owns; ``of_elements``, those that cover an element it owns."""
    outputs = axis.output_size(size)
    owned = shards(size if of_elements else outputs, parts)
    return tuple(_portion(axis, size, _covering(axis, outputs, own) if of_elements else own) for own in owned)


def overlap(first: range, second: range) -> range:
    """The numbers in both ranges."""
    start = max(first.start, second.start)
    return range(start, max(start, min(first.stop, second.stop)))


def contains(outer: range, inner: range) -> bool:
    return not inner or (outer.start <= inner.start and inner.stop <= outer.stop)


def _covering(axis: Axis, outputs: int, elements: range) -> range:
    if not elements:
        return range(0)
    low = -(-(elements.start + axis.start_padding - axis.extent + 1) // axis.stride)
    high = (elements.stop - 1 + axis.start_padding) // axis.stride + 1
    low = min(max(low, 0), outputs)
    return range(low, max(low, min(high, outputs)))


def _portion(axis: Axis, size: int, windows: range) -> Portion:
    if not windows:
        return Portion(range(0), range(0), axis)
    first = axis.first_position(windows.start)
    stop = axis.first_position(windows.stop - 1) + axis.extent
    if stop <= 0:
        # All in the start padding. An operator needs an element, so windows are added until one may be read.
        alone = replace(axis, start_padding=-first, end_padding=0)
        return Portion(range(windows.start, windows.start + alone.output_size(1)), range(1), alone)
    elements = range(min(max(first, 0), size - 1), min(stop, size))
    if first >= size:
        # All past the input: windows are added in front, down to one that may read the last element.
        added = -(-(first - elements.start) // axis.stride)
        windows, first = range(windows.start - added, windows.stop), first - added * axis.stride
    # What lies past the counted padding is left over for ceil_mode, here as in the whole.
    end_padding = min(stop, size + axis.end_padding) - elements.stop
    return Portion(windows, elements, replace(axis, start_padding=elements.start - first, end_padding=end_padding))
