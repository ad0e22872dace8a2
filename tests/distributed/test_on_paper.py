"""docs/on_paper.md: the sizes of halos that it states are those that would be exchanged."""

import itertools
import math
import re
from pathlib import Path

import pytest

from torch_dmlpool.distributed import exchange
from torch_dmlpool.window import Window

PAGE = (Path(__file__).parents[2] / "docs/on_paper.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| \d+ \| (\d+) x (\d+) x (\d+) \|(.*)\|$", PAGE, flags=re.MULTILINE)
MIB = 2**20
SIZE = 2048
(AXIS,) = Window.directml(1, window_size=3, strides=2, start_padding=1, end_padding=1).axes


def halo(mesh: tuple[int, ...], to_input: bool) -> int:
    """The most elements, or windows, that a rank fetches: along one dimension after the other,
    each with what was fetched along those before."""
    owned, wanted = [], []
    for parts in mesh:
        portions = exchange.portions(AXIS, SIZE, parts, to_input)
        owned += [exchange.shards(AXIS.output_size(SIZE) if to_input else SIZE, parts)]
        wanted += [[portion.of("output" if to_input else "input") for portion in portions]]

    def fetched(rank: tuple[int, ...]) -> int:
        has = [len(owned[axis][at]) for axis, at in enumerate(rank)]
        needs = [len(wanted[axis][at]) for axis, at in enumerate(rank)]
        return sum(
            math.prod(needs[:axis]) * (needs[axis] - has[axis]) * math.prod(has[axis + 1 :])
            for axis in range(3)
        )

    return max(map(fetched, itertools.product(*map(range, mesh))))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "x".join(row[:3]))
def test_the_halos_and_times_of_the_page(row: tuple[str, str, str, str]) -> None:
    mesh = int(row[0]), int(row[1]), int(row[2])
    forward, backward, shard, times, times_backward = (
        [float(figure) for figure in re.findall(r"[\d.]+", cell)] for cell in row[3].split("|")
    )
    halos = 4 * halo(mesh, to_input=False), 5 * halo(mesh, to_input=True)
    assert [round(size / MIB, 2) for size in halos] == [*forward, *backward]
    elements = SIZE**3 // math.prod(mesh)
    assert shard == [4 * elements / MIB]
    traffic = 3 * 4 * elements + 4 * elements // 8, 3 * 5 * elements // 8 + 3 * 4 * elements
    for size, moved, stated in zip(halos, traffic, (times, times_backward), strict=True):
        assert stated == pytest.approx([size / 50e3, moved / 3.35e6], abs=0.51)


def test_the_page_has_rows() -> None:
    assert len(ROWS) == 9
