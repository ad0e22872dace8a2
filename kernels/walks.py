"""How a walk down the rows divides its work: columns and channels among programs, rows into turns."""

from __future__ import annotations

from typing import NamedTuple

from .launch import LANES, divided

PROGRAMS = 396  # 3 on each of 132 multiprocessors, as many as the registers allow; scratch for each
SECTOR_BYTES = 32  # the least that memory sends: neighbouring channels of one program
TASKS_ENOUGH = 240  # nearly 2 on each of 132 multiprocessors: rather than fewer, a task takes fewer rows


class Walk(NamedTuple):
    """The first run-time arguments of a walk."""

    tasks: int
    programs: int
    groups: int  # of channels, or of planes
    group: int  # vectors of channels in one, or planes
    blocks: int  # of columns
    width: int  # columns in one, a multiple of those that share a core
    strips: int  # of rows
    rows: int  # in one: with the window's other rows a multiple of a turn

    def scratch(self, turn: int, elements: int) -> int:
        """Elements of scratch: two turns for each program, ``elements`` of each column of each member of a group."""
        return self.programs * 2 * turn * self.width * self.group * elements


def walk_of_channels(
    samples: int, vectors: int, group: int, rows: int, columns: int, window: int, shared: int, turn: int,
    most_rows: int = 2**31,
) -> Walk:  # fmt: skip
    """A walk over samples of vectors of channels, at least ``group`` to a program: ``turn`` rows at a time.

    A lane reduces ``shared`` neighbouring windows of a row together, so that as many lines of a block keep all busy.
    """
    group = min(vectors, group, LANES // shared)
    # Few columns: more channels instead, so that no lanes are idle.
    while 2 * group <= min(vectors, LANES // shared) and LANES // (2 * group) >= divided(columns, shared) * shared:
        group *= 2
    width = min(LANES // group // shared, divided(columns, shared)) * shared
    groups, blocks = divided(vectors, group), divided(columns, width)
    return _in_strips(samples * groups * blocks, (groups, group, blocks, width), rows, window, turn, most_rows)


def walk_of_planes(
    planes: int, rows: int, columns: int, each: int, window: int, shared: int, turn: int, most_rows: int = 2**31
) -> Walk:
    """A walk over planes of contiguous rows, ``each`` columns to a lane; small planes share a program."""
    width = min(LANES * each // shared, divided(columns, shared)) * shared
    group = min(planes, max(1, LANES * each // width))
    groups, blocks = divided(planes, group), divided(columns, width)
    return _in_strips(groups * blocks, (groups, group, blocks, width), rows, window, turn, most_rows)


def _in_strips(tasks: int, parts: tuple[int, int, int, int], rows: int, window: int, turn: int, most_rows: int) -> Walk:
    strips = divided(rows, most_rows)
    while tasks * strips < TASKS_ENOUGH and rows >= 2 * strips * window:
        strips *= 2
    per_strip = divided(divided(rows, strips) + window - 1, turn) * turn - (window - 1)
    strips = divided(rows, per_strip)
    tasks *= strips
    # All programs go through equally many tasks, or one fewer.
    programs = divided(tasks, divided(tasks, PROGRAMS))
    return Walk(tasks, programs, *parts, strips, per_strip)
