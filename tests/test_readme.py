"""README.md and CHANGELOG.md: drawings are what the operators compute, code runs, commands and files exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_dmlpool as dmlpool
from torch_dmlpool.window import Window

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROW = torch.arange(1.0, 7.0).reshape(1, 1, 6)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def drawing(request: str) -> str:
    """The windows of a request over the row 1 to 6, with what max and average pooling make of them."""
    arguments: dict[str, Any] = eval(f"dict({request})", {"__builtins__": {"dict": dict}})
    (axis,) = Window.directml(1, **arguments).axes
    size = ROW.shape[-1]
    maxima = dmlpool.max_pooling(ROW, **arguments).flatten().tolist()
    averages = dmlpool.average_pooling(ROW, **arguments).flatten().tolist()
    with_padding = dmlpool.average_pooling(ROW, **arguments, include_padding=True).flatten().tolist()
    last = max(size + axis.end_padding - 1, axis.first_position(len(maxima) - 1) + axis.extent - 1)

    def cell(position: int) -> str:
        if 0 <= position < size:
            return str(position + 1)
        return "." if position < size + axis.end_padding else "~"

    positions = range(-axis.start_padding, last + 1)
    width = 3 * len(positions) + 2
    lines = [request, "", "  ".join(["", *map(cell, positions)])[1:]]
    for output, (maximum, average, padded) in enumerate(zip(maxima, averages, with_padding, strict=True)):
        taps = range(axis.first_position(output), axis.first_position(output) + axis.extent, axis.dilation)
        shown = {position: cell(position) for position in taps}
        inside = "  ".join(shown.get(position, " ") for position in range(taps[0], taps[-1] + 1))
        line = " " * 3 * (taps[0] + axis.start_padding) + f"[{inside}]"
        numbers = f"max {maximum:.3g}   average {average:.3g}"
        if axis.start_padding or axis.end_padding:
            numbers = f"{numbers:23}with include_padding=True {padded:.3g}"
        lines.append(f"{line:{width}}{numbers}")
    return "\n".join(lines) + "\n"


REQUESTS = [block.partition("\n")[0] for block in blocks("text")]


def test_the_first_screen_shows_every_window_argument() -> None:
    """G2, G3, A1, A2."""
    assert len(REQUESTS) == 4
    for argument in ("window_size", "strides", "dilations", "start_padding", "end_padding", "ceil_mode=True"):
        assert any(argument in request for request in REQUESTS), argument
    assert "include_padding=True" in drawing(REQUESTS[2])
    assert "~" in drawing(REQUESTS[3])
    assert "~" not in drawing(REQUESTS[2])


@pytest.mark.parametrize("number", range(len(REQUESTS)), ids=REQUESTS)
def test_a_drawing_is_what_the_operators_compute(number: int) -> None:
    assert blocks("text")[number] == drawing(REQUESTS[number])


def test_the_code_runs() -> None:
    """Block after block in one namespace, as a reader would type them."""
    namespace: dict[str, Any] = {}
    found = blocks("python")
    assert len(found) >= 3
    for block in found:
        exec(compile(block, "README.md", "exec"), namespace)
    assert namespace["images"].grad.shape == (8, 3, 64, 64)
    assert namespace["averages"].shape == (8, 3, 16, 16)


def test_the_commands_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = re.findall(r"\bmake ([a-z][a-z-]*)", README)
    assert {"demo", "test"} <= set(commands)
    for command in commands:
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE), command


def test_the_changelog_begins_with_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\d+\.\d+\.\d+)", changelog, flags=re.MULTILINE)
    assert newest is not None
    assert newest.group(1) == dmlpool.__version__


def test_the_files_it_links_to_exist() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).is_file(), target
