"""Draw every window argument, from the package's own geometry: `python docs/pictures.py` writes
docs/images/*.svg.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import torch

import torch_dmlpool as dmlpool
from torch_dmlpool.window import Axis, Window

IMAGES = Path(__file__).parent / "images"
CELL = 34
GAP = 8
MARGIN = 16
CHARACTER = 7.5
INK, INPUT, PADDING, TAP, BETWEEN = "#1a2233", "#dfe6f5", "#f3f3f3", "#f4b653", "#fbe6c3"
"""One palette on a background of its own, so that the pictures stand on light and on dark pages."""


@dataclass(frozen=True)
class Drawn:
    """One window of a request over the row 1, 2, 3, … and what the operators make of it."""

    taps: range
    maximum: float
    average: float
    with_padding: float


def axis_of(arguments: dict[str, Any]) -> Axis:
    (axis,) = Window.directml(1, **arguments).axes
    return axis


def windows(arguments: dict[str, Any], size: int) -> list[Drawn]:
    """Every window of a request in DirectML's words over the row 1 to ``size``."""
    axis, row = axis_of(arguments), torch.arange(1.0, size + 1).reshape(1, 1, size)
    results = (
        dmlpool.max_pooling(row, **arguments),
        dmlpool.average_pooling(row, **arguments),
        dmlpool.average_pooling(row, **arguments, include_padding=True),
    )
    numbers = zip(*(result.flatten().tolist() for result in results), strict=True)
    first = (axis.first_position(output) for output in range(results[0].shape[-1]))
    return [
        Drawn(range(start, start + axis.extent, axis.dilation), *values)
        for start, values in zip(first, numbers, strict=True)
    ]


def positions(axis: Axis, size: int, drawn: list[Drawn]) -> range:
    """From the first position of the padding to the last that the padding or a window has."""
    return range(-axis.start_padding, max(size + axis.end_padding - 1, drawn[-1].taps[-1]) + 1)


def symbol(position: int, size: int, axis: Axis) -> str:
    """An element's number, ``.`` for padding, ``~`` for what ``ceil_mode`` lets a window reach past
    it.
    """
    if 0 <= position < size:
        return str(position + 1)
    return "." if position < size + axis.end_padding else "~"


def box(x: float, y: float, fill: str, text: str = "", dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    centre = CELL / 2
    label = text and (
        f'<text x="{x + centre:g}" y="{y + centre + 5:g}" text-anchor="middle">'
        f"{escape(text)}</text>"
    )
    frame = (
        f'<rect x="{x:g}" y="{y:g}" width="{CELL}" height="{CELL}" rx="4" '
        f'fill="{fill}" stroke="{INK}"{dashes}/>'
    )
    return frame + label


def words(x: float, y: float, text: str) -> str:
    """A line of text beside or above a row of boxes whose top is at ``y``."""
    return f'<text x="{x:g}" y="{y + CELL / 2 + 5:g}">{escape(text)}</text>'


def picture(title: str, width: float, height: float, shapes: Iterator[str]) -> str:
    """An SVG file: the title above, the shapes below it."""
    width = max(width, MARGIN * 2 + len(title) * CHARACTER)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="sans-serif" font-size="14" '
        f'fill="{INK}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="white"/>',
        words(MARGIN, MARGIN - GAP, title),
        *shapes,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def row(title: str, cells: list[tuple[int, str]], lines: list[tuple[range, str]], size: int) -> str:
    """A row of elements, and below it each window with its taps and what is said of it."""
    start = cells[0][0]
    left = {position: MARGIN + (position - start) * CELL for position, _ in cells}
    right = MARGIN * 2 + len(cells) * CELL
    width = right + max(len(text) for _, text in lines) * CHARACTER + MARGIN
    top = MARGIN + CELL + GAP

    def shapes() -> Iterator[str]:
        for position, text in cells:
            inside = 0 <= position < size
            yield box(left[position], top, INPUT if inside else PADDING, text, dashed=not inside)
        for number, (taps, text) in enumerate(lines, 1):
            y = top + number * (CELL + GAP)
            for position in range(taps[0], taps[-1] + 1):
                tapped = position in taps
                shown = dict(cells)[position] if tapped else ""
                yield box(
                    left[position], y, TAP if tapped else BETWEEN, shown, not 0 <= position < size
                )
            yield words(right, y, text)

    return picture(title, width, top + (len(lines) + 1) * (CELL + GAP) + MARGIN - GAP, shapes())


def request(arguments: dict[str, Any], size: int = 6, padding_counts: bool = False) -> str:
    """A request in DirectML's words, with the maximum and the average of each window."""
    axis, drawn = axis_of(arguments), windows(arguments, size)
    lines = []
    for window in drawn:
        average = f"average {window.average:.3g}"
        if padding_counts:
            text = f"{average}, with include_padding=True {window.with_padding:.3g}"
        else:
            text = f"max {window.maximum:.3g}, {average}"
        lines.append((window.taps, text))
    cells = [(position, symbol(position, size, axis)) for position in positions(axis, size, drawn)]
    return row(
        ", ".join(f"{name}={value}" for name, value in arguments.items()), cells, lines, size
    )


def same(kernel_size: int, stride: int, size: int) -> str:
    """``padding="same"`` of the layers, which depends on the size of the input."""
    (axis,) = Window.pytorch(1, kernel_size, stride, "same", sizes=(size,)).axes
    arguments = {
        "window_size": axis.window,
        "strides": axis.stride,
        "start_padding": axis.start_padding,
        "end_padding": axis.end_padding,
    }
    drawn = windows(arguments, size)
    layer = dmlpool.nn.MaxPool1d(kernel_size, stride, "same")
    maxima = layer(torch.arange(1.0, size + 1).reshape(1, size)).flatten().tolist()
    lines = [
        (window.taps, f"max {maximum:.3g}") for window, maximum in zip(drawn, maxima, strict=True)
    ]
    cells = [(position, symbol(position, size, axis)) for position in positions(axis, size, drawn)]
    return row(
        f'MaxPool1d({kernel_size}, stride={stride}, padding="same") of {size} elements',
        cells,
        lines,
        size,
    )


def adaptive(output_size: int, size: int) -> str:
    """The windows of adaptive pooling: what each average depends on."""
    elements = torch.arange(1.0, size + 1).reshape(1, 1, size).requires_grad_()
    averages = dmlpool.adaptive_average_pooling(elements, output_size).flatten()
    lines = []
    for average in averages:
        (gradient,) = torch.autograd.grad(average, elements, retain_graph=True)
        read = gradient.flatten().nonzero().flatten().tolist()
        lines.append((range(read[0], read[-1] + 1), f"average {average.item():.3g}"))
    cells = [(position, str(position + 1)) for position in range(size)]
    return row(
        f"adaptive_average_pooling(output_size={output_size}) of {size} elements",
        cells,
        lines,
        size,
    )


def plane(sizes: tuple[int, int], **arguments: Any) -> str:
    """Two dimensions: the rows and columns that the first window and the last one read."""
    window = Window.directml(2, **arguments)
    outputs = window.output_sizes(sizes)
    starts = [axis.start_padding for axis in window.axes]
    padded = [
        size + axis.start_padding + axis.end_padding
        for size, axis in zip(sizes, window.axes, strict=True)
    ]
    title = ", ".join(f"{name}={value}" for name, value in arguments.items())
    step = padded[1] * CELL + 2 * MARGIN

    def taps(axis: Axis, output: int) -> range:
        return range(
            axis.first_position(output), axis.first_position(output) + axis.extent, axis.dilation
        )

    def shapes() -> Iterator[str]:
        last = (outputs[0] - 1, outputs[1] - 1)
        for number, output in enumerate(((0, 0), last)):
            left, top = MARGIN + number * step, MARGIN + CELL + GAP
            rows, columns = map(taps, window.axes, output)
            yield words(left, top - GAP, f"output[{output[0]}, {output[1]}]")
            for y in range(-starts[0], padded[0] - starts[0]):
                for x in range(-starts[1], padded[1] - starts[1]):
                    inside = 0 <= y < sizes[0] and 0 <= x < sizes[1]
                    fill = TAP if y in rows and x in columns else INPUT if inside else PADDING
                    text = str(y * sizes[1] + x) if inside else "."
                    place = left + (x + starts[1]) * CELL, top + CELL + (y + starts[0]) * CELL
                    yield box(*place, fill, text, dashed=not inside)

    return picture(title, 2 * step, MARGIN * 2 + CELL * 2 + GAP + padded[0] * CELL, shapes())


def speed() -> str:
    """README's rows that have times, as bars of plain PyTorch's time over ours."""
    page = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| ([^|]*?)(?:: [^|]*)? \| ([\d.]+) ms \| ([\d.]+) ms \|$", page)
    ratios = {name: float(plain) / float(ours) for name, plain, ours in rows}
    bar, most = CELL // 2, max(ratios.values())

    def shapes() -> Iterator[str]:
        for line, (name, ratio) in enumerate(ratios.items(), 1):
            top, length = MARGIN + line * 2 * bar, round(300 * ratio / most)
            top += (line - 1) * GAP * 2
            label = f"{ratio:.0f} times" if ratio > 10 else f"{ratio:.1f} times"
            yield words(MARGIN, top - bar // 2 - 4, name)
            yield (
                f'<rect x="{MARGIN}" y="{top + bar}" width="{length}" height="{bar}" fill="{TAP}"/>'
            )
            yield words(MARGIN + length + GAP, top + bar // 2, label)

    height = 2 * MARGIN + len(ratios) * 2 * (bar + GAP) + 2 * bar - GAP
    return picture("Times as fast as plain PyTorch, one thread of a CPU", 450, height, shapes())


def pictures() -> dict[str, str]:
    """Every picture by the name of its file."""
    return {
        "window_size.svg": request({"window_size": 3}),
        "strides.svg": request({"window_size": 3, "strides": 2}, size=7),
        "padding.svg": request(
            {"window_size": 3, "strides": 2, "start_padding": 2, "end_padding": 1}
        ),
        "dilations.svg": request({"window_size": 3, "dilations": 2}),
        "include_padding.svg": request(
            {"window_size": 3, "start_padding": 2, "end_padding": 1}, padding_counts=True
        ),
        "ceil_mode.svg": request(
            {
                "window_size": 3,
                "strides": 2,
                "start_padding": 1,
                "end_padding": 1,
                "ceil_mode": True,
            },
            padding_counts=True,
        ),
        "speed.svg": speed(),
        "same.svg": same(kernel_size=3, stride=2, size=6),
        "adaptive.svg": adaptive(output_size=3, size=8),
        "plane.svg": plane(
            (4, 6),
            window_size=(2, 3),
            strides=(2, 2),
            start_padding=(1, 0),
            end_padding=(1, 1),
            dilations=(2, 1),
        ),
    }


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    for name, content in pictures().items():
        (IMAGES / name).write_text(content, encoding="utf-8")
        print(IMAGES / name)


if __name__ == "__main__":
    main()
