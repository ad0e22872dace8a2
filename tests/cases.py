"""Named geometries, and every operator by name. A geometry asserts the edge it is named after: none
stops testing it.

An :class:`Edge` is one axis and one claim. Cases of rank 2 and 3 are edges side by side: each edge
in turn with itself, or with plain axes of other sizes on either side, so that swapped axes show.
"""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import oracle
import pytest
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool


@dataclass(frozen=True)
class Edge:
    """One spatial dimension whose windows do something worth a name."""

    name: str
    size: int
    claim: Callable[[Edge], bool]
    window: int
    stride: int = 1
    start: int = 0
    end: int = 0
    dilation: int = 1
    ceil_mode: bool = False

    @property
    def pooling(self) -> oracle.Pooling:
        return pooling_of([self])

    def without(self, **changes: int | bool) -> oracle.Pooling:
        """The same request with something changed: what a claim compares with."""
        return dataclasses.replace(self.pooling, **changes)

    @property
    def extent(self) -> int:
        return (self.window - 1) * self.dilation + 1

    @property
    def outputs(self) -> int:
        return oracle.output_size(self.pooling, 0, self.size)

    @property
    def taps(self) -> list[list[int]]:
        """Input positions of every window's taps, padding and overhang too."""
        return [oracle.tap_positions(self.pooling, 0, output) for output in range(self.outputs)]

    def inside(self, positions: list[int]) -> list[int]:
        return [position for position in positions if 0 <= position < self.size]

    @property
    def empty_windows(self) -> list[list[int]]:
        return [positions for positions in self.taps if not self.inside(positions)]


def pooling_of(edges: list[Edge]) -> oracle.Pooling:
    return oracle.Pooling(
        tuple(edge.window for edge in edges),
        tuple(edge.stride for edge in edges),
        tuple(edge.start for edge in edges),
        tuple(edge.end for edge in edges),
        tuple(edge.dilation for edge in edges),
        any(edge.ceil_mode for edge in edges),
    )


def _floor_outputs(edge: Edge) -> int:
    return oracle.output_size(edge.without(ceil_mode=False), 0, edge.size)


def _overhangs(edge: Edge) -> bool:
    return edge.taps[-1][-1] >= edge.size + edge.end


PLAIN = Edge(
    "plain", 6, lambda edge: edge.stride < edge.window and not edge.empty_windows, window=3
)
PADDED = Edge("padded", 5, lambda edge: edge.taps[0][0] < 0, window=2, start=1, end=1)

EDGES = [
    Edge("identity", 5, lambda edge: edge.taps == [[x] for x in range(5)], window=1),
    Edge(
        "adjacent windows",
        8,
        lambda edge: edge.window == edge.stride and edge.taps[-1][-1] == 7,
        window=2,
        stride=2,
    ),
    Edge("floor drops a remainder", 9, lambda edge: edge.taps[-1][-1] < 8, window=2, stride=2),
    Edge("gaps between windows", 11, lambda edge: edge.stride > edge.extent, window=2, stride=4),
    Edge(
        "window is the input",
        7,
        lambda edge: edge.outputs == 1 and edge.window == edge.size,
        window=7,
    ),
    Edge("size one", 1, lambda edge: edge.size == 1 == edge.window, window=1),
    Edge(
        "size one in padding",
        1,
        lambda edge: edge.size == 1 and edge.outputs == 3,
        window=3,
        start=2,
        end=2,
    ),
    Edge(
        "start padding only",
        6,
        lambda edge: edge.taps[0][0] < 0 and edge.taps[-1][-1] == 5,
        window=3,
        start=1,
    ),
    Edge(
        "end padding only",
        6,
        lambda edge: edge.taps[0][0] == 0 and edge.taps[-1][-1] == 6,
        window=3,
        end=1,
    ),
    Edge(
        "uneven padding",
        6,
        lambda edge: edge.start != edge.end > 0,
        window=4,
        stride=2,
        start=1,
        end=3,
    ),
    Edge(
        "padding above half",
        5,
        lambda edge: edge.window // 2 < edge.start < edge.window,
        window=3,
        start=2,
        end=2,
    ),
    Edge(
        "padding above the window",
        4,
        window=2,
        start=3,
        end=3,
        claim=lambda edge: (
            edge.start > edge.window
            and edge.taps[0] in edge.empty_windows
            and edge.taps[-1][0] > edge.size
        ),
    ),
    Edge(
        "every window in padding",
        2,
        window=2,
        stride=5,
        start=2,
        end=3,
        claim=lambda edge: edge.outputs >= 2 and len(edge.empty_windows) == edge.outputs,
    ),
    Edge(
        "dilated",
        9,
        lambda edge: edge.dilation > 1 and edge.extent > edge.window,
        window=3,
        stride=2,
        dilation=2,
    ),
    Edge(
        "dilation above window and stride",
        11,
        window=3,
        stride=2,
        start=3,
        end=2,
        dilation=5,
        claim=lambda edge: edge.dilation > max(edge.window, edge.stride),
    ),
    Edge(
        "taps straddle the input",
        3,
        window=2,
        start=3,
        end=3,
        dilation=5,
        claim=lambda edge: any(
            positions[0] < 0 and positions[-1] >= edge.size for positions in edge.empty_windows
        ),
    ),
    Edge(
        "first tap inside is not tap 0",
        6,
        window=4,
        stride=2,
        start=3,
        dilation=2,
        claim=lambda edge: edge.taps[0][0] < 0 and edge.taps[0][1] < 0 <= edge.taps[0][2],
    ),
    Edge(
        "wide", 40, lambda edge: edge.window >= 16 and edge.stride == 1, window=17, start=8, end=8
    ),
    Edge(
        "wide with stride",
        41,
        lambda edge: edge.window > 2 * edge.stride > 2,
        window=21,
        stride=3,
        start=4,
        end=9,
    ),
    Edge(
        "long windows, the first in padding",
        20,
        window=16,
        stride=16,
        start=17,
        end=17,
        claim=lambda edge: (
            edge.window >= 16 and edge.empty_windows == edge.taps[:1] and edge.outputs > 2
        ),
    ),
    Edge(
        "far apart and dilated",
        45,
        window=3,
        stride=20,
        dilation=2,
        claim=lambda edge: edge.stride > 16 and edge.dilation > 1 < edge.outputs,
    ),
    Edge(
        "wide and dilated",
        30,
        window=8,
        start=7,
        end=6,
        dilation=3,
        claim=lambda edge: edge.window >= 8 and edge.dilation > 1,
    ),
    Edge(
        "window wider than the input",
        5,
        window=9,
        stride=2,
        start=4,
        end=5,
        claim=lambda edge: (
            edge.window > edge.size
            and all(len(edge.inside(taps)) < edge.window for taps in edge.taps)
        ),
    ),
    Edge(
        "ceil adds an overhang",
        6,
        window=3,
        stride=2,
        ceil_mode=True,
        claim=lambda edge: edge.outputs == _floor_outputs(edge) + 1 and _overhangs(edge),
    ),
    Edge(
        "ceil overhang past padding",
        8,
        window=4,
        stride=4,
        start=1,
        end=1,
        ceil_mode=True,
        claim=lambda edge: _overhangs(edge) and edge.end > 0 and edge.taps[-1][0] < edge.size,
    ),
    Edge(
        "ceil changes nothing",
        7,
        window=3,
        stride=2,
        ceil_mode=True,
        claim=lambda edge: edge.outputs == _floor_outputs(edge) and not _overhangs(edge),
    ),
    Edge(
        "ceil refused in end padding",
        4,
        window=2,
        stride=2,
        end=1,
        ceil_mode=True,
        claim=lambda edge: (
            edge.outputs == _floor_outputs(edge)
            and edge.taps[-1][-1] < edge.size + edge.end - 1
            and edge.taps[-1][0] + edge.stride >= edge.size
        ),
    ),
    Edge(
        "ceil makes the window fit",
        3,
        window=4,
        stride=2,
        ceil_mode=True,
        claim=lambda edge: (
            _floor_outputs(edge) == 0
            and edge.outputs == 1
            and edge.extent > edge.size + edge.start + edge.end
        ),
    ),
    Edge(
        "ceil overhang, dilated",
        8,
        window=2,
        stride=3,
        start=1,
        end=0,
        dilation=3,
        ceil_mode=True,
        claim=lambda edge: _overhangs(edge) and edge.dilation > 1,
    ),
    Edge(
        "ceil window between gaps",
        5,
        window=2,
        stride=4,
        ceil_mode=True,
        claim=lambda edge: (
            edge.stride > edge.window and len(edge.inside(edge.taps[-1])) == 1 and _overhangs(edge)
        ),
    ),
    Edge(
        "equal reads, other counts",
        5,
        window=9,
        start=4,
        end=1,
        stride=2,
        ceil_mode=True,
        claim=lambda edge: (
            edge.inside(edge.taps[0]) == edge.inside(edge.taps[1])
            and edge.taps[0][-1] < 6 <= edge.taps[1][-1]
        ),
    ),
    Edge(
        "stride, dilation of one factor",
        14,
        window=3,
        stride=6,
        start=8,
        end=8,
        dilation=9,
        claim=lambda edge: edge.stride % 3 == 0 == edge.dilation % 3 and edge.outputs > 1,
    ),
]
BY_NAME = {edge.name: edge for edge in [PLAIN, PADDED, *EDGES]}


@dataclass(frozen=True)
class Case:
    """Spatial sizes and a request, made of one edge per spatial dimension."""

    edges: tuple[Edge, ...]

    @property
    def name(self) -> str:
        return " x ".join(edge.name for edge in self.edges)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(edge.size for edge in self.edges)

    @property
    def pooling(self) -> oracle.Pooling:
        return pooling_of(list(self.edges))

    @property
    def rank(self) -> int:
        return len(self.edges)

    @property
    def output_sizes(self) -> tuple[int, ...]:
        return oracle.output_sizes(self.pooling, self.sizes)

    @property
    def arguments(self) -> dict[str, object]:
        """Keyword arguments of the public functions."""
        return dict(vars(self.pooling))

    @property
    def aten(self) -> dict[str, object] | None:
        """Keyword arguments of torch.nn.functional's max pooling, where it can express the
        request."""
        asked = self.pooling
        pads = zip(asked.start_padding, asked.window_size, strict=True)
        if asked.start_padding != asked.end_padding or any(
            2 * padding > size for padding, size in pads
        ):
            return None
        return {
            "kernel_size": asked.window_size,
            "stride": asked.strides,
            "padding": asked.start_padding,
            "dilation": asked.dilations,
            "ceil_mode": asked.ceil_mode,
        }

    @property
    def has_empty_windows(self) -> bool:
        """Along any axis: asked of every case when tests are collected, so not of whole windows."""
        return any(
            not any(
                0 <= position < size
                for position in oracle.tap_positions(self.pooling, axis, output)
            )
            for axis, size in enumerate(self.sizes)
            for output in range(self.output_sizes[axis])
        )


def case(*names: str) -> Case:
    return Case(tuple(BY_NAME[name] for name in names))


LINES = [Case((edge,)) for edge in [PLAIN, PADDED, *EDGES]]
PLANES = [
    Case((PLAIN, PADDED)),
    *(
        Case(((edge, PADDED), (PLAIN, edge), (edge, edge))[number % 3])
        for number, edge in enumerate(EDGES)
    ),
]
VOLUMES = [
    Case((PADDED, PLAIN, PADDED)),
    *(
        Case(((edge, PADDED, PLAIN), (PLAIN, edge, PADDED), (PADDED, PLAIN, edge))[number % 3])
        for number, edge in enumerate(EDGES)
    ),
]
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


WINDOW = (3, 2, 1, 1)
"""Windows that overlap, on padding."""


def integers(image: Tensor) -> Tensor:
    return (image * 40).clamp(-128, 127).to(torch.int8)


def quantized(image: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(image, 0.05, 3, torch.quint8)


def _average_grad(image: Tensor) -> Tensor:
    sizes = [2 * size - 1 for size in image.shape[2:]]
    return dmlpool.average_pooling_grad(image, (*image.shape[:2], *sizes), *WINDOW)


def _unpooled(image: Tensor) -> Tensor:
    values, indices = dmlpool.max_pooling(image, *WINDOW, return_indices=True)
    return dmlpool.max_unpooling(values, indices, image.shape)


def _requantized(image: Tensor, scale: float | Tensor, zero_point: int | None) -> Tensor:
    return dmlpool.quantized_linear_average_pooling(
        integers(image), scale, zero_point, 0.3, -2, *WINDOW
    )


EVERYTHING: dict[str, Callable[[Tensor], Tensor | tuple[Tensor, ...]]] = {
    "average_pooling": lambda image: dmlpool.average_pooling(image, *WINDOW),
    "average_pooling, whole planes": lambda image: dmlpool.average_pooling(image, image.shape[2:]),
    "average_pooling, float16": lambda image: dmlpool.average_pooling(image.half(), *WINDOW),
    "average_pooling_grad": _average_grad,
    "max_pooling": lambda image: dmlpool.max_pooling(image, *WINDOW),
    "max_pooling, dilated": lambda image: dmlpool.max_pooling(image, 3, 1, 2, 2, 2),
    "max_pooling, indices": lambda image: dmlpool.max_pooling(image, *WINDOW, return_indices=True),
    "max_pooling, integers": lambda image: dmlpool.max_pooling(integers(image), *WINDOW),
    "max_pooling, bools": lambda image: dmlpool.max_pooling(image > 0, *WINDOW),
    "min_pooling": lambda image: dmlpool.min_pooling(image, *WINDOW),
    "min_pooling, indices": lambda image: dmlpool.min_pooling(image, *WINDOW, return_indices=True),
    "adaptive_min_pooling": lambda image: dmlpool.adaptive_min_pooling(image, (3, 4)),
    "average_pooling, masked": lambda image: dmlpool.average_pooling(
        image, *WINDOW, mask=image[:1, :1] > 0
    ),
    "max_pooling, masked": lambda image: dmlpool.max_pooling(
        image, *WINDOW, return_indices=True, mask=image > 0
    ),
    "max_pooling_grad": lambda image: dmlpool.max_pooling_grad(
        image, dmlpool.average_pooling(image, *WINDOW), *WINDOW
    ),
    "lp_pooling": lambda image: dmlpool.lp_pooling(image, *WINDOW),
    "lp_pooling, p 3": lambda image: dmlpool.lp_pooling(image, *WINDOW, p=3),
    "adaptive_average_pooling": lambda image: dmlpool.adaptive_average_pooling(image, 4),
    "adaptive_max_pooling": lambda image: dmlpool.adaptive_max_pooling(image, (3, 4)),
    "adaptive_max_pooling, indices": lambda image: dmlpool.adaptive_max_pooling(
        image, 3, return_indices=True
    ),
    "max_unpooling": _unpooled,
    "quantized_linear_average_pooling": lambda image: _requantized(image, 0.5, 1),
    "quantized_linear_average_pooling, per channel": lambda image: _requantized(
        image, torch.tensor([0.5, 0.25, 0.125]), None
    ),
    "quantized_average_pooling": lambda image: dmlpool.quantized_average_pooling(
        quantized(image), *WINDOW, output_scale=0.1
    ).int_repr(),
    "quantized_max_pooling": lambda image: dmlpool.quantized_max_pooling(
        quantized(image), *WINDOW
    ).int_repr(),
    "nn.MaxPool2d": dmlpool.nn.MaxPool2d(3, 2, "same"),
    "nn.AvgPool2d": dmlpool.nn.AvgPool2d(3, 2, ((1, 0), (0, 1))),
}
"""Functions of a float32 ``(N, 3, H, W)`` image."""


def everything(name: str, image: Tensor) -> list[Tensor]:
    """The results of one of them and, where there is one, its gradient."""
    return samples.results(EVERYTHING[name], image)


class Pools(torch.nn.Module):
    """Layers of this package beyond torch.nn's, and indices; what is exported."""

    def __init__(self, padding: str | int = "same") -> None:
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3),
            dmlpool.nn.MaxPool2d(3, 2, padding),
            dmlpool.nn.AvgPool2d(2, 1, ((1, 0), (0, 1)), True, dilation=2),
        )
        self.last, self.pooled = (
            dmlpool.nn.MaxPool2d(2, return_indices=True),
            dmlpool.nn.AdaptiveAvgPool2d(1),
        )

    def forward(self, input: Tensor) -> tuple[Tensor, ...]:
        values, indices = self.last(self.features(input))
        return values, indices, self.pooled(values)


def each(
    names: str | tuple[str, ...], values: Iterable[object], every_day: Iterable[object]
) -> pytest.MarkDecorator:
    """Some of the values every day, and all of them where there is time."""
    rows, chosen = [], list(every_day)
    for value in values:
        entries = value if isinstance(names, tuple) else (value,)
        name = "-".join(getattr(entry, "name", str(entry)) for entry in entries)
        rows.append(
            pytest.param(*entries, id=name, marks=[] if value in chosen else [pytest.mark.slow])
        )
    return pytest.mark.parametrize(names, rows)


def parametrized(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


def in_pairs(**arguments: Sequence[object]) -> pytest.MarkDecorator:
    """Each value with each value of every other argument, three or more together only as that
    takes; the rest is slow.

    Each pair of values of two arguments occurs. What three arguments can break together is rare,
    and `make test-all` tries it.
    """
    fewest = min(map(len, arguments.values()))
    rows = []
    for numbered in itertools.product(*map(enumerate, arguments.values())):
        numbers, values = zip(*numbered, strict=True)
        name = "-".join(
            getattr(value, "name", str(value).removeprefix("torch.")) for value in values
        )
        rows.append(
            pytest.param(
                *values, id=name, marks=[pytest.mark.slow] if sum(numbers) % fewest else []
            )
        )
    return pytest.mark.parametrize(tuple(arguments), rows)
