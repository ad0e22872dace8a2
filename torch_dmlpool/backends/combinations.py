"""How two elements of a sliding window become one: a sum, a maximum, or a maximum with the number of its tap."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torch_dmlpool.backends import operations
from torch_dmlpool.backends.tape import Tape
from torch_dmlpool.backends.words import INTEGERS, number_with_low_byte


class Elements(NamedTuple):
    """What a pass reads and writes: values and, for the argmax, the number of the tap each of them came from."""

    values: Tensor
    taps: Tensor | None = None

    def narrowed(self, dimension: int, start: int, stop: int, step: int) -> Elements:
        index = (slice(None),) * dimension + (slice(start, stop, step),)
        return Elements(self.values[index], None if self.taps is None else self.taps[index])


class Combination:
    """How two elements become one, and what a window that reads nothing holds."""

    any_order = False
    """Whether the order of the taps is free. That of a sum is not: its bits must not depend on where tiles end (E3)."""
    reads_twice = False
    """Whether combining reads each operand more than once."""
    disjoint = False
    """Whether a tap must not be combined twice."""
    longest_chain = 0
    """Taps that may be combined one after the other; 0 for any number."""

    def __init__(self, identity: float) -> None:
        self.identity = identity

    def combine(self, tape: Tape, out: Elements, first: Elements, second: Elements, step: int) -> None:
        """Record ``out = first with second``, which lies ``step`` taps ahead of it."""
        raise NotImplementedError

    def copy(self, tape: Tape, out: Elements, source: Elements, step: int) -> None:
        """Record a copy of elements that lie ``step`` taps ahead."""
        tape.record(operations.copy, source.values, out.values)

    def clear(self, tape: Tape, out: Elements) -> None:
        """Record what windows hold that read nothing."""
        tape.record(partial(operations.fill, self.identity), out.values)


class Sum(Combination):
    """Addition, as a tree beyond three taps so that the error grows with log k (rule E6)."""

    disjoint = True
    longest_chain = 3

    def __init__(self) -> None:
        super().__init__(0)

    def combine(self, tape: Tape, out: Elements, first: Elements, second: Elements, step: int) -> None:
        tape.record(operations.add, first.values, second.values, out.values)


class Maximum(Combination):
    """Maximum of values; NaN wins."""

    any_order = True

    def combine(self, tape: Tape, out: Elements, first: Elements, second: Elements, step: int) -> None:
        tape.record(operations.maximum, first.values, second.values, out.values)


class Winner(Combination):
    """Maximum with the number of its first tap; neighbours along the axis are ``unit`` taps apart.

    A later tap has the larger number wherever it wins, so that the winner's number is itself a maximum. NaN wins only
    where asked for: the comparison that sees it costs three operations more.
    """

    reads_twice = True

    def __init__(self, identity: float, unit: int, nan_wins: bool) -> None:
        super().__init__(identity)
        self._unit, self._nan_wins = unit, nan_wins

    def combine(self, tape: Tape, out: Elements, first: Elements, second: Elements, step: int) -> None:
        assert out.taps is not None
        sizes, dtype, moved = tuple(out.values.shape[1:]), out.taps.dtype, step * self._unit
        candidate = out.taps if first.taps is None else tape.scratch("candidate", sizes, dtype)
        if second.taps is None:
            self._mark_later(tape, first.values, second.values, moved, candidate)
        else:
            wins = tape.scratch("wins", sizes, dtype)
            self._mark_later(tape, first.values, second.values, 1, wins)
            tape.record(partial(operations.shift, moved), second.taps, candidate)
            tape.record(operations.multiply, candidate, wins, candidate)
        # After the comparison, whose operands may be what this writes.
        tape.record(operations.maximum, first.values, second.values, out.values)
        if first.taps is not None:
            tape.record(operations.maximum, first.taps, candidate, out.taps)

    def _mark_later(self, tape: Tape, first: Tensor, second: Tensor, weight: int, out: Tensor) -> None:
        """Record that ``out`` is ``weight`` where ``second`` wins, else 0.

        PyTorch compares vectors where the answer has the operands' type. Of a float's bits the low byte then counts.
        """
        sizes = tuple(out.shape[1:])
        later = tape.scratch("later", sizes, first.dtype)
        if self._nan_wins:
            tape.record(operations.later_or_nan, first, second, tape.scratch("ordered", sizes, first.dtype), later)
        else:
            tape.record(operations.later, first, second, later)
        mark = None
        if first.dtype.is_floating_point and out.dtype is torch.uint8 and tape.reads_words:
            mark = number_with_low_byte(weight, first.dtype)
        if mark is not None:
            tape.record(partial(operations.scale, mark), later, later)
            tape.record(operations.copy, later.view(INTEGERS[later.dtype.itemsize]), out)
            return
        tape.record(operations.copy, later, out)
        if weight != 1:
            tape.record(partial(operations.scale, weight), out, out)

    def copy(self, tape: Tape, out: Elements, source: Elements, step: int) -> None:
        assert out.taps is not None
        super().copy(tape, out, source, step)
        moved = step * self._unit
        if source.taps is None:
            tape.record(partial(operations.fill, moved), out.taps)
        else:
            tape.record(partial(operations.shift, moved), source.taps, out.taps)

    def clear(self, tape: Tape, out: Elements) -> None:
        assert out.taps is not None
        super().clear(tape, out)
        tape.record(partial(operations.fill, 0), out.taps)


def as_float(tape: Tape, source: Tensor) -> Tensor:
    """Half-precision numbers as float32, in scratch."""
    widened = tape.scratch("float", tuple(source.shape[1:]), torch.float32)
    tape.record(operations.copy, source, widened)
    return widened
