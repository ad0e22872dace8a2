"""docs/contributing/on_paper.md: its halos are those that would be exchanged, and its times follow
from them."""

import math
import re
from pathlib import Path

import pytest

from torch_dmlpool.distributed import exchange
from torch_dmlpool.window import Window

PAGE = (Path(__file__).parents[2] / "docs/contributing/on_paper.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| \d+ \| (\d+) x (\d+) x (\d+) \|(.*)\|$", PAGE, flags=re.MULTILINE)
SIZE, (AXIS,) = 2048, Window.directml(1, 3, 2, 1, 1).axes


def halo(mesh: tuple[int, ...], side: exchange.Side) -> int:
    """The most that a rank fetches along each dimension, with what came along those before."""
    fetched, needs = 0, 1
    for axis, parts in enumerate(mesh):
        own = (SIZE if side == "input" else SIZE // 2) // parts
        portions = exchange.portions(AXIS, SIZE, parts, side == "output")
        wanted = max(len(portion.of(side)) for portion in portions)
        rest = math.prod((SIZE if side == "input" else SIZE // 2) // n for n in mesh[axis + 1 :])
        fetched += needs * (wanted - own) * rest
        needs *= wanted
    return fetched


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "x".join(row[:3]))
def test_the_halos_and_times_of_the_page(row: tuple[str, ...]) -> None:
    mesh = tuple(map(int, row[:3]))
    figures = [float(figure) for figure in re.findall(r"[\d.]+", row[3])]
    forward, backward = 4 * halo(mesh, "input"), 5 * halo(mesh, "output")
    elements = SIZE**3 / math.prod(mesh)
    sizes = [size / 2**20 for size in (forward, backward, 4 * elements)]
    assert figures[:3] == pytest.approx(sizes, abs=0.006)
    traffic = 12.5 * elements, 13.875 * elements
    times = [forward / 50e3, traffic[0] / 3.35e6, backward / 50e3, traffic[1] / 3.35e6]
    assert figures[3:] == pytest.approx(times, abs=0.51)
