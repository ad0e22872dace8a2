"""Sliding windows along one axis at a time, in plain PyTorch: the engine of the PyTorch backend.

A window over several axes is a window over one axis after the other: k + k passes instead of k·k, and along one axis
log k passes by doubling (windows of 1, 2, 4, … then the last two together). Padding is never stored: each pass knows
for which windows a tap lies inside, as a contiguous span, and touches no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_dmlpool.window import Axis


class Elements(NamedTuple):
    """What a pass reads and writes: values and, for the argmax, the number of the tap each of them came from."""

    values: Tensor
    taps: Tensor | None = None

    def narrowed(self, dimension: int, start: int, stop: int, step: int = 1) -> Elements:
        index = (slice(None),) * dimension + (slice(start, stop, step),)
        return Elements(self.values[index], None if self.taps is None else self.taps[index])


@dataclass(frozen=True, slots=True)
class Span:
    """Elements for the consecutive windows ``low … high - 1`` of an axis; element 0 belongs to window ``low``."""

    elements: Elements
    low: int
    high: int


class Scratch:
    """Memory for the passes over one block, handed out again for the next block of the same sizes."""

    def __init__(self, memory_format: torch.memory_format, device: torch.device) -> None:
        self._memory_format, self._device = memory_format, device
        self._held: dict[tuple[object, ...], Tensor] = {}

    def tensor(self, purpose: object, sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        key = (purpose, sizes, dtype)
        held = self._held.get(key)
        if held is None:
            held = torch.empty(sizes, dtype=dtype, device=self._device, memory_format=self._memory_format)
            self._held[key] = held
        return held

    def elements(self, purpose: object, sizes: tuple[int, ...], like: Elements) -> Elements:
        values = self.tensor((purpose, "values"), sizes, like.values.dtype)
        taps = None if like.taps is None else self.tensor((purpose, "taps"), sizes, like.taps.dtype)
        return Elements(values, taps)


class Combination:
    """How two elements become one, and what a window that reads nothing holds."""

    leaf: int | None
    """Taps that may be combined one after the other; sums need a tree beyond it to keep their error bound."""
    disjoint: bool
    """Whether a tap must not be combined twice."""
    identity: float | int

    def combine(self, out: Elements, first: Elements, second: Elements, step: int) -> None:
        raise NotImplementedError

    def copy(self, out: Elements, source: Elements, step: int) -> None:
        out.values.copy_(source.values)

    def clear(self, out: Elements) -> None:
        out.values.fill_(self.identity)


class Sum(Combination):
    """Addition: disjoint, and tree-shaped beyond three taps so that the error grows with log k (rule E6)."""

    leaf = 3
    disjoint = True
    identity = 0

    def combine(self, out: Elements, first: Elements, second: Elements, step: int) -> None:
        torch.add(first.values, second.values, out=out.values)


class Maximum(Combination):
    """Maximum of values; NaN wins."""

    leaf = None
    disjoint = False

    def __init__(self, identity: float | int) -> None:
        self.identity = identity

    def combine(self, out: Elements, first: Elements, second: Elements, step: int) -> None:
        torch.maximum(first.values, second.values, out=out.values)


class Winner(Maximum):
    """Maximum with the number of its first tap; ``unit`` taps lie between neighbours along the axis.

    A later tap always has the larger number where it wins, so that the winner's number is itself a maximum.
    """

    def __init__(self, identity: float | int, unit: int, scratch: Scratch, nan_wins: bool) -> None:
        super().__init__(identity)
        self._unit, self._scratch, self._nan_wins = unit, scratch, nan_wins

    def combine(self, out: Elements, first: Elements, second: Elements, step: int) -> None:
        assert out.taps is not None
        later = self._later(first.values, second.values)
        torch.maximum(first.values, second.values, out=out.values)
        sizes, dtype = tuple(later.shape), out.taps.dtype
        wins = later.view(torch.uint8)
        if dtype is not torch.uint8:
            wins = self._scratch.tensor("wins", sizes, dtype).copy_(wins)
        candidate = out.taps if first.taps is None else self._scratch.tensor("candidate", sizes, dtype)
        moved = step * self._unit
        if second.taps is None:
            torch.mul(wins, moved, out=candidate)
        else:
            torch.add(second.taps, moved, out=candidate).mul_(wins)
        if first.taps is not None:
            torch.maximum(first.taps, candidate, out=out.taps)

    def _later(self, first: Tensor, second: Tensor) -> Tensor:
        """Where ``second`` wins: it is greater, or it is NaN and ``first`` is not."""
        sizes = tuple(first.shape)
        later = self._scratch.tensor("later", sizes, torch.bool)
        if not self._nan_wins:
            return torch.lt(first, second, out=later)
        torch.ge(first, second, out=later).logical_not_()
        return later.logical_and_(torch.eq(first, first, out=self._scratch.tensor("ordered", sizes, torch.bool)))

    def copy(self, out: Elements, source: Elements, step: int) -> None:
        assert out.taps is not None
        out.values.copy_(source.values)
        if source.taps is None:
            out.taps.fill_(step * self._unit)
        else:
            torch.add(source.taps, step * self._unit, out=out.taps)

    def clear(self, out: Elements) -> None:
        assert out.taps is not None
        super().clear(out)
        out.taps.zero_()


def pool_axis(
    combination: Combination,
    source: Elements,
    dimension: int,
    axis: Axis,
    first_position: int,
    out: Elements,
    scratch: Scratch,
) -> None:
    """Pool ``source`` along ``dimension`` into ``out``, whose window 0 has its first tap at ``first_position``.

    Positions outside ``source`` (negative ones too) are padding.
    """
    Pass(combination, source, dimension, axis, first_position, out, scratch).run()


class Pass:
    """One axis of one block."""

    def __init__(
        self,
        combination: Combination,
        source: Elements,
        dimension: int,
        axis: Axis,
        first_position: int,
        out: Elements,
        scratch: Scratch,
    ) -> None:
        self.combination, self.source, self.dimension = combination, source, dimension
        self.axis, self.first_position, self.out, self.scratch = axis, first_position, out, scratch
        self.size = source.values.shape[dimension]
        self.outputs = out.values.shape[dimension]
        self.temporaries = 0

    def run(self) -> None:
        axis = self.axis
        if axis.window == 1:
            result = self._copied(self.out, 0, self._tap(0), 0)
        elif self.size < axis.dilation:
            result = self._at_most_one_tap()
        elif axis.window >= 4 and (axis.window.bit_length() - 1) * axis.stride + 1 < axis.window - 1:
            result = self._doubling()
        else:
            result = self._direct(0, axis.window, self.out)
        if result.low > 0:
            self.combination.clear(self._part(self.out, 0, result.low))
        if result.high < self.outputs:
            self.combination.clear(self._part(self.out, result.high, self.outputs))

    # Spans.

    def _part(self, elements: Elements, start: int, stop: int, step: int = 1) -> Elements:
        if step == 1 and start == 0 and stop == elements.values.shape[self.dimension]:
            return elements
        return elements.narrowed(self.dimension, start, stop, step)

    def _between(self, span: Span, low: int, high: int) -> Elements:
        return self._part(span.elements, low - span.low, high - span.low)

    def _clipped(self, span: Span, low: int, high: int) -> Span:
        low, high = max(low, span.low), min(high, span.high)
        if low >= high:
            return Span(span.elements, low, low)
        return Span(self._between(span, low, high), low, high)

    def _tap(self, tap: int) -> Span:
        """The input as tap ``tap`` of each window sees it."""
        first, size = self.first_position + tap * self.axis.dilation, self.size
        return self._strided(Span(self.source, -first, size - first))

    def _strided(self, span: Span) -> Span:
        """From a span over positions, counted from the first tap of window 0, to a span over windows."""
        stride = self.axis.stride
        low = max(0, -(-span.low // stride))
        high = min(self.outputs, -(-span.high // stride))
        if low >= high:
            return Span(span.elements, low, low)
        start = low * stride - span.low
        return Span(self._part(span.elements, start, start + (high - low - 1) * stride + 1, stride), low, high)

    def _ahead(self, span: Span, taps: int) -> Span:
        """The same elements as seen ``taps`` taps earlier."""
        moved = taps * self.axis.dilation
        return Span(span.elements, span.low - moved, span.high - moved)

    # Passes.

    def _merge(self, out: Elements, out_low: int, first: Span, second: Span, step: int) -> Span:
        """Combine two spans into ``out``, whose element 0 belongs to window ``out_low``; where one ends, copy the other.

        The second lies ``step`` taps ahead, so that it begins and ends at earlier windows than the first.
        """
        if second.low >= second.high:
            return self._copied(out, out_low, first, 0)
        if first.low >= first.high:
            return self._copied(out, out_low, second, step)
        low, high = first.low, second.high
        self.combination.combine(
            self._part(out, low - out_low, high - out_low),
            self._between(first, low, high),
            self._between(second, low, high),
            step,
        )
        if second.low < low:
            self._copied(out, out_low, self._clipped(second, second.low, low), step)
        if high < first.high:
            self._copied(out, out_low, self._clipped(first, high, first.high), 0)
        return Span(self._part(out, second.low - out_low, first.high - out_low), second.low, first.high)

    def _copied(self, out: Elements, out_low: int, span: Span, step: int) -> Span:
        if span.low >= span.high:
            return span
        target = self._part(out, span.low - out_low, span.high - out_low)
        # What was accumulated in `out` lies in its place already.
        if target.values.data_ptr() != span.elements.values.data_ptr():
            self.combination.copy(target, span.elements, step)
        return Span(target, span.low, span.high)

    def _temporary(self, length: int) -> Elements:
        self.temporaries += 1
        sizes = list(self.out.values.shape)
        sizes[self.dimension] = length
        return self.scratch.elements((self.dimension, self.temporaries), tuple(sizes), self.out)

    def _direct(self, begin: int, end: int, out: Elements) -> Span:
        """Taps ``begin … end - 1``, one after the other or, where the error bound asks for it, as a tree."""
        leaf = self.combination.leaf
        if leaf is None or end - begin <= leaf:
            result = self._tap(begin)
            for tap in range(begin + 1, end):
                result = self._merge(out, 0, result, self._tap(tap), tap)
            return result
        middle = begin + (end - begin + 1) // 2
        first = self._direct(begin, middle, out)
        second = self._direct(middle, end, self._temporary(self.outputs))
        return self._merge(out, 0, first, second, 0)

    def _at_most_one_tap(self) -> Span:
        """Taps further apart than the input is long: each window reads one element at most."""
        self.combination.clear(self.out)
        for tap in range(self.axis.window):
            self._copied(self.out, 0, self._tap(tap), tap)
        return Span(self.out, 0, self.outputs)

    def _doubling(self) -> Span:
        """Windows of 1, 2, 4, … taps at every position, put together at the strided ones."""
        window = self.axis.window
        self._needed = (self.outputs - 1) * self.axis.stride + self.axis.extent
        current = Span(self.source, -self.first_position, self.size - self.first_position)
        width, held, held_taps = 1, None, 0
        while 2 * width <= window:
            if self.combination.disjoint and window & width:
                held, held_taps = self._joined(held, held_taps, current), held_taps + width
            current = self._doubled(current, width)
            width *= 2
        if width == window:
            return self._copied(self.out, 0, self._strided(current), 0)
        if held is None:
            held, held_taps = current, window - width
        return self._merge(
            self.out, 0, self._strided(held), self._strided(self._ahead(current, held_taps)), held_taps
        )

    def _doubled(self, current: Span, width: int) -> Span:
        ahead = self._ahead(current, width)
        low, high = max(0, ahead.low), min(self._needed - (2 * width - 1) * self.axis.dilation, current.high)
        if low >= high:
            return Span(current.elements, low, low)
        first, second = self._clipped(current, low, high), self._clipped(ahead, low, high)
        return self._merge(self._temporary(high - low), low, first, second, width)

    def _joined(self, held: Span | None, held_taps: int, current: Span) -> Span:
        """What is held of the window's lower bits, with ``current`` behind it; disjoint, and small before large."""
        if held is None:
            return current
        ahead = self._ahead(current, held_taps)
        low, high = max(0, ahead.low), held.high
        if low >= high:
            return Span(current.elements, low, low)
        first, second = self._clipped(held, low, high), self._clipped(ahead, low, high)
        return self._merge(self._temporary(high - low), low, first, second, held_taps)
