"""Sliding windows along one axis at a time, in plain PyTorch: the engine of the PyTorch backend.

A window over several axes is a window over one axis after the other: k + k passes instead of k·k, and along one axis
log k passes by doubling (windows of 1, 2, 4, … taps, then the last two together). Padding is hardly ever stored: a pass
knows for which windows a tap lies inside the input, a contiguous span, and touches no others. What it may have is a
narrow border, where rows are pooled as one.

A pass does not compute: it records operations on a :class:`~torch_dmlpool.backends.tape.Tape`, which replays them for
every block of planes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torch_dmlpool.backends import operations
from torch_dmlpool.backends.combinations import Combination, Elements
from torch_dmlpool.backends.tape import Tape, same_place
from torch_dmlpool.backends.words import are_low_ends, record_every_second, record_low_ends
from torch_dmlpool.window import Axis, Window

HALVED = 24
"""Elements of a window, or as many as lie between two, from which on it pays to halve it."""


@dataclass(frozen=True, slots=True)
class Span:
    """Elements for the consecutive windows ``low … high - 1`` of an axis; element 0 belongs to window ``low``."""

    elements: Elements
    low: int
    high: int


def scratch_like(tape: Tape, like: Elements, purpose: object, sizes: tuple[int, ...]) -> Elements:
    """Scratch for values, and for taps where ``like`` has them."""
    values = tape.scratch((purpose, "values"), sizes, like.values.dtype)
    taps = None if like.taps is None else tape.scratch((purpose, "taps"), sizes, like.taps.dtype)
    return Elements(values, taps)


def uses_doubling(axis: Axis) -> bool:
    """Whether log k passes over every position cost less than k passes over the strided ones."""
    return axis.window >= 4 and (axis.window.bit_length() - 1) * axis.stride + 1 < axis.window - 1


def _keeps_low_ends(tape: Tape, combination: Combination, axis: Axis, dtype: torch.dtype) -> bool:
    """Whether windows of stride 1 along contiguous rows, and the low ends of words of them, are made sooner."""
    reads_them = tape.reads_words and are_low_ends(axis.stride, dtype)
    return reads_them and axis.window > 1 and not combination.reads_twice


class Pass:
    """One axis: pools ``source`` along ``dimension`` into ``out``, whose window 0 begins at ``first_position``.

    Positions outside ``source``, negative ones too, are padding.
    """

    def __init__(
        self,
        tape: Tape,
        combination: Combination,
        axis: Axis,
        first_position: int,
        source: Elements,
        dimension: int,
        out: Elements,
    ) -> None:
        self.tape, self.combination, self.axis, self.first_position = tape, combination, axis, first_position
        self.source, self.dimension, self.out = source, dimension, out
        self.size = source.values.shape[dimension]
        self.outputs = out.values.shape[dimension]
        self.temporaries = 0
        self.phases: dict[int, Elements] = {}

    def record(self) -> None:
        """Record the operations of this pass."""
        if self._keeps_low_ends():
            self._every_position()
            return
        if self.axis.window == 1:
            result = self._copied(self.out, 0, self._tap(0), 0)
        elif self.size < self.axis.dilation:
            result = self._at_most_one_tap()
        elif self._tiles():
            result = self._halving()
        elif uses_doubling(self.axis):
            result = self._doubling()
        else:
            result = self._direct(0, self.axis.window, self.out)
        if result.low > 0:
            self.combination.clear(self.tape, self._part(self.out, 0, result.low))
        if result.high < self.outputs:
            self.combination.clear(self.tape, self._part(self.out, result.high, self.outputs))

    # Spans.

    def _part(self, elements: Elements, start: int, stop: int, step: int = 1) -> Elements:
        if step == 1 and start == 0 and stop == elements.values.shape[self.dimension]:
            return elements
        return elements.narrowed(self.dimension, start, stop, step)

    def _clipped(self, span: Span, low: int, high: int) -> Span:
        low, high = max(low, span.low), min(high, span.high)
        if low >= high:
            return Span(span.elements, low, low)
        return Span(self._part(span.elements, low - span.low, high - span.low), low, high)

    def _tap(self, tap: int) -> Span:
        """The input as tap ``tap`` of each window sees it."""
        first, stride = self.first_position + tap * self.axis.dilation, self.axis.stride
        if not self._splits_phases():
            return self._strided(Span(self.source, -first, self.size - first))
        phase = self._phase(first % stride)
        moved = first // stride
        length = phase.values.shape[self.dimension]
        return self._clipped(Span(phase, -moved, length - moved), 0, self.outputs)

    def _reads_contiguous_rows(self) -> bool:
        source = self.source.values
        return self.dimension == source.dim() - 1 and source.stride(self.dimension) == 1

    def _splits_phases(self) -> bool:
        """Whether every stride-th element is first copied together: an argmax reads each operand twice."""
        strided = self.axis.stride > 1 and self.axis.window > 1
        return strided and self.combination.reads_twice and self._reads_contiguous_rows()

    def _phase(self, offset: int) -> Elements:
        if offset not in self.phases:
            strided = self._part(self.source, offset, self.size, self.axis.stride)
            phase = scratch_like(self.tape, strided, (self.dimension, "phase", offset), tuple(strided.values.shape[1:]))
            if self.axis.stride == 2:
                record_every_second(self.tape, self.source.values, offset, phase.values)
            else:
                self.tape.record(operations.copy, strided.values, phase.values)
            if strided.taps is not None and phase.taps is not None:
                self.tape.record(operations.copy, strided.taps, phase.taps)
            self.phases[offset] = phase
        return self.phases[offset]

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

    def _keeps_low_ends(self) -> bool:
        reads_rows = self._reads_contiguous_rows() and self.out.values.stride(self.dimension) == 1
        return reads_rows and _keeps_low_ends(self.tape, self.combination, self.axis, self.out.values.dtype)

    def _every_position(self) -> None:
        """Windows of stride 1, of which every stride-th is kept."""
        source, out, axis = self.source.values, self.out.values, replace(self.axis, stride=1)
        stride, pitch = self.axis.stride, source.shape[-1]
        last = self.first_position + (self.outputs - 1) * stride + axis.extent
        if self.first_position == 0 and last <= pitch and pitch % stride == 0 and source[0].is_contiguous():
            # Rows without padding are one row: windows that lie in two of them are among those that are not kept.
            every = self._scratch_for_every_position(pitch)
            row, target = source.flatten(1), every.flatten(1)
            starts = row.shape[1] - axis.extent + 1
            flat = Pass(self.tape, self.combination, axis, 0, Elements(row), 1, Elements(target.narrow(1, 0, starts)))
        else:
            every = self._scratch_for_every_position(self.outputs * stride)
            needed = Elements(every).narrowed(self.dimension, 0, (self.outputs - 1) * stride + 1, 1)
            flat = Pass(self.tape, self.combination, axis, self.first_position, self.source, self.dimension, needed)
        flat.record()
        record_low_ends(self.tape, every, stride, out)

    def _scratch_for_every_position(self, pitch: int) -> Tensor:
        sizes = (*self.source.values.shape[1:-1], pitch)
        return self.tape.scratch((self.dimension, "every position"), sizes, self.out.values.dtype)

    def _merge(self, out: Elements, out_low: int, first: Span, second: Span, step: int) -> Span:
        """Combine two spans into ``out``, whose element 0 is of window ``out_low``; where one ends, copy the other.

        The second lies ``step`` taps ahead, so that it begins and ends at earlier windows than the first.
        """
        if second.low >= second.high:
            return self._copied(out, out_low, first, 0)
        if first.low >= first.high:
            return self._copied(out, out_low, second, step)
        low, high = first.low, second.high
        if low < high:
            self.combination.combine(
                self.tape,
                self._part(out, low - out_low, high - out_low),
                self._clipped(first, low, high).elements,
                self._clipped(second, low, high).elements,
                step,
            )
        self._copied(out, out_low, self._clipped(second, second.low, low), step)
        self._copied(out, out_low, self._clipped(first, high, first.high), 0)
        return Span(self._part(out, second.low - out_low, first.high - out_low), second.low, first.high)

    def _copied(self, out: Elements, out_low: int, span: Span, step: int) -> Span:
        if span.low >= span.high:
            return span
        target = self._part(out, span.low - out_low, span.high - out_low)
        # What was accumulated in `out` lies in its place already.
        if not same_place(target.values, span.elements.values):
            self.combination.copy(self.tape, target, span.elements, step)
        return Span(target, span.low, span.high)

    def _temporary(self, length: int) -> Elements:
        self.temporaries += 1
        sizes = list(self.out.values.shape[1:])
        sizes[self.dimension - 1] = length
        return scratch_like(self.tape, self.out, (self.dimension, self.temporaries), tuple(sizes))

    def _direct(self, begin: int, end: int, out: Elements) -> Span:
        """Taps ``begin … end - 1``, one after the other or, where the error bound asks for it, as a tree."""
        chain = self.combination.longest_chain
        if chain == 0 or end - begin <= chain:
            spans = [self._tap(tap) for tap in range(begin, end)]
            whole = [span for span in spans if span.high - span.low == self.outputs]
            if self.combination.any_order and len(whole) > 1:
                # What covers every window goes first, and the rest is added in place: no edge is ever copied.
                spans = whole + [span for span in spans if span.high - span.low < self.outputs]
                return self._accumulated(out, spans)
            if self.combination.reads_twice:
                result = spans[0]
                for tap, span in enumerate(spans[1:], begin + 1):
                    result = self._merge(out, 0, result, span, tap)
                return result
            # The last first: where the padding lies at the start alone, no edge is copied.
            result = spans[-1]
            for span in reversed(spans[:-1]):
                result = self._merge(out, 0, span, result, 1)
            return result
        middle = begin + (end - begin + 1) // 2
        first = self._direct(begin, middle, out)
        second = self._direct(middle, end, self._temporary(self.outputs))
        return self._merge(out, 0, first, second, 0)

    def _accumulated(self, out: Elements, spans: list[Span]) -> Span:
        held = spans[0].elements
        for span in spans[1:]:
            if span.low < span.high:
                target = self._part(out, span.low, span.high)
                first = target if held is out else held
                self.combination.combine(self.tape, target, first, span.elements, 0)
                held = out
        return Span(out, 0, self.outputs)

    def _at_most_one_tap(self) -> Span:
        """Taps further apart than the input is long: each window reads one element at most."""
        self.combination.clear(self.tape, self.out)
        for tap in range(self.axis.window):
            self._copied(self.out, 0, self._tap(tap), tap)
        return Span(self.out, 0, self.outputs)

    def _tiles(self) -> bool:
        """Whether windows lie side by side, every tap inside, and hold enough for their halves to be long."""
        axis, last = self.axis, self.first_position + (self.outputs - 1) * self.axis.stride
        together = axis.window * math.prod(self.source.values.shape[self.dimension + 1 :])
        halves = axis.stride >= axis.window > 3 and axis.dilation == 1 and together >= HALVED
        inside = self.first_position >= 0 and last + axis.window <= self.size
        return halves and inside and self.tape.has_rows and not self.combination.reads_twice

    def _halving(self) -> Span:
        """The first half of all windows with the second, until one element of each is left: few and long operations.

        Of an odd number the element between the halves goes along.
        """
        source, dimension = self.source.values, self.dimension
        step = source.stride(dimension)
        # A dimension of windows and one of taps in the place of the one that both lie in.
        sizes = (*source.shape[:dimension], self.outputs, self.axis.window, *source.shape[dimension + 1 :])
        strides = (*source.stride()[:dimension], self.axis.stride * step, *source.stride()[dimension:])
        held = source.as_strided(sizes, strides, source.storage_offset() + self.first_position * step)
        taps = dimension + 1
        while (left := held.shape[taps]) > 1:
            half = left // 2
            between = list(held.shape)
            between[taps] = left - half
            if left > 2:
                into = self.tape.scratch((dimension, "halves", left), tuple(between[1:]), held.dtype)
            else:
                into = self.out.values.unsqueeze(taps)
            first, second = held.narrow(taps, 0, half), held.narrow(taps, left - half, half)
            self.combination.combine(
                self.tape, Elements(into.narrow(taps, 0, half)), Elements(first), Elements(second), left - half
            )
            if left % 2:
                self.tape.record(operations.copy, held.narrow(taps, half, 1), into.narrow(taps, half, 1))
            held = into
        return Span(self.out, 0, self.outputs)

    def _doubling(self) -> Span:
        """Windows of 1, 2, 4, … taps at every position, put together at the strided ones."""
        window = self.axis.window
        current = Span(self.source, -self.first_position, self.size - self.first_position)
        width, held, held_taps = 1, current, 0
        while 2 * width <= window:
            if self.combination.disjoint and window & width:
                held = self._joined(held, held_taps, current) if held_taps else current
                held_taps += width
            current = self._doubled(current, width)
            width *= 2
        if width == window:
            return self._copied(self.out, 0, self._strided(current), 0)
        if not self.combination.disjoint:
            held, held_taps = current, window - width
        ahead = self._strided(self._ahead(current, held_taps))
        return self._merge(self.out, 0, self._strided(held), ahead, held_taps)

    def _doubled(self, current: Span, width: int) -> Span:
        return self._joined(current, width, current, positions_after=(2 * width - 1) * self.axis.dilation)

    def _joined(self, held: Span, held_taps: int, current: Span, positions_after: int = 0) -> Span:
        """``held`` of ``held_taps`` taps with ``current`` behind it, at every position that some window needs."""
        needed = (self.outputs - 1) * self.axis.stride + self.axis.extent - positions_after
        ahead = self._ahead(current, held_taps)
        low, high = max(0, ahead.low), min(needed, held.high)
        if low >= high:
            return Span(current.elements, low, low)
        first, second = self._clipped(held, low, high), self._clipped(ahead, low, high)
        return self._merge(self._temporary(high - low), low, first, second, held_taps)


def record_axes(
    tape: Tape,
    combinations: Sequence[Combination],
    window: Window,
    first_positions: Sequence[int],
    source: Elements,
    out: Elements,
    order: Sequence[int],
) -> None:
    """Record a pass along one axis after the other, in ``order``; everything but ``tape`` has an entry per axis."""
    leading = out.values.dim() - window.rank
    needed = [
        number
        for number in order
        if window.axes[number].window > 1
        or window.axes[number].stride > 1
        or first_positions[number] != 0
        or source.values.shape[leading + number] != out.values.shape[leading + number]
    ] or order[:1]
    innermost, firsts = window.rank - 1, list(first_positions)
    for number, following in zip(needed, [*needed[1:], None], strict=True):
        into = kept = out
        dimension = leading + number
        if following is not None:
            sizes = list(source.values.shape)
            sizes[dimension] = out.values.shape[dimension]
            before = after = pitch = 0
            if following == innermost and _keeps_low_ends(tape, combinations[-1], window.axes[-1], out.values.dtype):
                before, after, pitch = _border(window.axes[-1], firsts[-1], sizes[-1], out.values.shape[-1])
            kept = into = scratch_like(tape, out, ("axis", number), (*sizes[1:-1], max(pitch, sizes[-1])))
            if pitch > 0:
                end = before + sizes[-1]
                into = kept.narrowed(leading + innermost, before, end, 1)
                for low, high in ((0, before), (end, end + after)):
                    if low < high:
                        combinations[-1].clear(tape, kept.narrowed(leading + innermost, low, high, 1))
                firsts[-1] += before
        Pass(tape, combinations[number], window.axes[number], firsts[number], source, dimension, into).record()
        source = kept


def _border(axis: Axis, first_position: int, size: int, outputs: int) -> tuple[int, int, int]:
    """Elements before and after those of a row, so that no window leaves it, and the length of it in whole words.

    All are 0 where the padding is so wide that it must not be stored.
    """
    before = max(0, -first_position)
    after = max(0, first_position + (outputs - 1) * axis.stride + axis.extent - size)
    if before + after > size:
        return 0, 0, 0
    return before, after, -(-(before + size + after) // axis.stride) * axis.stride
