"""What is asked of a pool: named geometries, random ones, and how tests choose among them.

An :class:`Edge` is one axis. Cases of rank 2 and 3 are edges side by side: each edge in turn with
itself, or with plain axes of other sizes on either side, so that swapped axes show.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from dataclasses import dataclass

import oracle
import pytest

from torch_dmlpool.backends import library
from torch_dmlpool.window import Window

OF_THE_LIBRARY = pytest.mark.skipif(
    library.library is None, reason=f"no library: {library.missing}"
)
"""What the compiled kernels of the CPU alone can be asked."""


@dataclass(frozen=True)
class Edge:
    """One spatial dimension whose windows do something worth a name."""

    name: str
    size: int
    window: int
    stride: int = 1
    start: int = 0
    end: int = 0
    dilation: int = 1
    ceil_mode: bool = False

    @property
    def outputs(self):
        return Case((self,)).output_sizes[0]


PLAIN = Edge("plain", 6, window=3)
PADDED = Edge("padded", 5, window=2, start=1, end=1)
EDGES = [
    Edge("identity", 5, window=1),
    Edge("adjacent windows", 8, window=2, stride=2),
    Edge("floor drops a remainder", 9, window=2, stride=2),
    Edge("gaps between windows", 11, window=2, stride=4),
    Edge("window is the input", 7, window=7),
    Edge("size one", 1, window=1),
    Edge("size one in padding", 1, window=3, start=2, end=2),
    Edge("start padding only", 6, window=3, start=1),
    Edge("end padding only", 6, window=3, end=1),
    Edge("uneven padding", 6, window=4, stride=2, start=1, end=3),
    Edge("padding above half", 5, window=3, start=2, end=2),
    Edge("padding above the window", 4, window=2, start=3, end=3),
    Edge("every window in padding", 2, window=2, stride=5, start=2, end=3),
    Edge("dilated", 9, window=3, stride=2, dilation=2),
    Edge("dilation above window and stride", 11, window=3, stride=2, start=3, end=2, dilation=5),
    Edge("taps straddle the input", 3, window=2, start=3, end=3, dilation=5),
    Edge("first tap inside is not tap 0", 6, window=4, stride=2, start=3, dilation=2),
    Edge("wide", 40, window=17, start=8, end=8),
    Edge("wide with stride", 41, window=21, stride=3, start=4, end=9),
    Edge("long windows, the first in padding", 20, window=16, stride=16, start=17, end=17),
    Edge("far apart and dilated", 45, window=3, stride=20, dilation=2),
    Edge("wide and dilated", 30, window=8, start=7, end=6, dilation=3),
    Edge("window wider than the input", 5, window=9, stride=2, start=4, end=5),
    Edge("ceil adds an overhang", 6, window=3, stride=2, ceil_mode=True),
    Edge("ceil overhang past padding", 8, window=4, stride=4, start=1, end=1, ceil_mode=True),
    Edge("ceil changes nothing", 7, window=3, stride=2, ceil_mode=True),
    Edge("ceil refused in end padding", 4, window=2, stride=2, end=1, ceil_mode=True),
    Edge("ceil makes the window fit", 3, window=4, stride=2, ceil_mode=True),
    Edge("ceil overhang, dilated", 8, window=2, stride=3, start=1, dilation=3, ceil_mode=True),
    Edge("ceil window between gaps", 5, window=2, stride=4, ceil_mode=True),
    Edge("equal reads, other counts", 5, window=9, stride=2, start=4, end=1, ceil_mode=True),
    Edge("stride, dilation of one factor", 14, window=3, stride=6, start=8, end=8, dilation=9),
]
BY_NAME = {edge.name: edge for edge in [PLAIN, PADDED, *EDGES]}


@dataclass(frozen=True)
class Case:
    """Spatial sizes and a request, made of one edge per spatial dimension."""

    edges: tuple[Edge, ...]

    @property
    def name(self):
        return " x ".join(edge.name for edge in self.edges)

    @property
    def sizes(self):
        return tuple(edge.size for edge in self.edges)

    @property
    def pooling(self):
        columns = ("window", "stride", "start", "end", "dilation")
        axes = (tuple(getattr(edge, column) for edge in self.edges) for column in columns)
        return oracle.Pooling(*axes, any(edge.ceil_mode for edge in self.edges))

    @property
    def rank(self):
        return len(self.edges)

    @property
    def output_sizes(self):
        return oracle.output_sizes(self.pooling, self.sizes)

    @property
    def arguments(self):
        """Keyword arguments of the public functions."""
        return dict(vars(self.pooling))

    @property
    def has_empty_windows(self):
        """Along any axis: asked of every case when tests are collected, so not of whole windows."""
        return any(
            not set(oracle.tap_positions(self.pooling, axis, output)) & set(range(size))
            for axis, size in enumerate(self.sizes)
            for output in range(self.output_sizes[axis])
        )


def case(*names):
    return Case(tuple(BY_NAME[name] for name in names))


LINES = [Case((edge,)) for edge in [PLAIN, PADDED, *EDGES]]
PLANES, VOLUMES = [Case((PLAIN, PADDED))], [Case((PADDED, PLAIN, PADDED))]
for number, edge in enumerate(EDGES):
    PLANES.append(Case(((edge, PADDED), (PLAIN, edge), (edge, edge))[number % 3]))
    around = (edge, PADDED, PLAIN), (PLAIN, edge, PADDED), (PADDED, PLAIN, edge)
    VOLUMES.append(Case(around[number % 3]))
FEW = [
    case("plain"),
    case("uneven padding"),
    case("ceil overhang past padding"),
    case("padded", "plain"),
    case("adjacent windows", "gaps between windows"),
    case("padding above the window", "uneven padding"),
    case("dilated", "first tap inside is not tap 0"),
    case("ceil adds an overhang", "ceil overhang past padding"),
    case("wide", "padded"),
    case("long windows, the first in padding"),
    case("padded", "uneven padding", "plain"),
    case("ceil adds an overhang", "padded", "ceil overhang, dilated"),
]
"""One case for each thing that code may branch on: for tests that multiply cases with data types or
layouts."""

SMALL = [
    case("plain"),
    case("padding above the window"),
    case("padded", "adjacent windows"),
    case("ceil adds an overhang", "ceil overhang, dilated"),
    case("taps straddle the input", "uneven padding"),
    case("size one in padding", "padded", "adjacent windows"),
]
"""Cases whose numerical derivatives are cheap."""


def random_request(seed):
    """Sizes of a tensor, a window along its spatial dimensions, and whether it is channels_last."""
    chance = random.Random(seed)
    rank = chance.choice([1, 2, 2, 2, 3])
    is_whole = chance.random() < 0.2
    while True:
        sizes = [chance.randint(1, {1: 3000, 2: 70, 3: 16}[rank]) for _ in range(rank)]
        axes = []
        for size in sizes:
            window = chance.choice([1, 2, 3, 3, 5, 7, chance.randint(1, 40), size])
            stride = chance.choice([1, 1, 2, 3, window, chance.randint(1, 9)])
            padding = chance.choice([0, 0, window // 2])
            dilation = chance.choice([1, 1, 1, 2])
            axes.append((size, 1, 0, 1) if is_whole else (window, stride, padding, dilation))
        spans = [(window - 1) * dilation + 1 for window, _, _, dilation in axes]
        rooms = [size + 2 * axis[2] for size, axis in zip(sizes, axes, strict=True)]
        if all(span <= room for span, room in zip(spans, rooms, strict=True)):
            break
    windows, strides, paddings, dilations = zip(*axes, strict=True)
    is_last = rank > 1 and chance.random() < 0.5
    channels = chance.choice([3, 16, 40, 330]) if is_last else chance.choice([1, 3])
    window = Window.directml(rank, windows, strides, paddings, paddings, dilations)
    return (chance.choice([1, 2]), channels, *sizes), window, is_last


def each(names, values, every_day):
    """Some of the values every day, and all of them where there is time."""
    chosen = list(every_day)
    return _rows(
        names,
        ((value if isinstance(names, tuple) else (value,), value in chosen) for value in values),
    )


def _rows(names, rows):
    """Rows of a test's parameters, called by their names, and whether they are for every day; where
    nobody asks for slow ones they are not made."""
    made = []
    for values, is_every_day in rows:
        if is_every_day or os.environ.get("TESTS_ASKED_FOR") != "not slow":
            name = "-".join(getattr(each, "name", str(each)) for each in values)
            marks = [] if is_every_day else [pytest.mark.slow]
            made.append(pytest.param(*values, id=name.replace("torch.", ""), marks=marks))
    backend = "either_backend"
    return pytest.mark.parametrize(names, made, indirect=[backend] if backend in names else False)


def parametrized(cases):
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


def in_pairs(**arguments):
    """Each value of two arguments, each pair of values of two of three and more, in few rows; the
    other rows are slow.

    What three arguments can break together is rare, and `make test-all` tries it.
    """
    fewest, seen = min(map(len, arguments.values())), set()
    every = list(itertools.product(*map(range, map(len, arguments.values()))))
    chosen = {row for row in every if sum(row) % fewest == 0} if len(arguments) < 4 else set()
    for most in range(math.comb(len(arguments), 2) * (not chosen), 0, -1):  # new pairs of a row
        for row in every:
            pairs = [pair for pair in itertools.combinations(enumerate(row), 2) if pair not in seen]
            if len(pairs) == most:
                seen.update(pairs)
                chosen.add(row)
    columns = list(arguments.values())
    return _rows(
        tuple(arguments),
        (
            ([column[at] for column, at in zip(columns, row, strict=True)], row in chosen)
            for row in every
        ),
    )
