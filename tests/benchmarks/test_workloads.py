"""The table of workloads: every row can be asked of ATen, and names are what selects them."""

from __future__ import annotations

import pytest
import torch

workloads = pytest.importorskip("benchmarks.workloads")
ROWS = workloads.WORKLOADS


def test_every_row_is_valid_and_within_what_aten_can_do() -> None:
    """G3, G5: shapes are ATen's own, by its shape function alone."""
    for row in ROWS:
        meta = torch.empty(row.sizes, device="meta")
        arguments = (row.window, row.stride, row.padding)
        if row.family == "max":
            expected = getattr(torch.nn.functional, f"max_pool{row.rank}d")(
                meta, *arguments, row.dilation, row.ceil_mode
            )
        else:
            assert set(row.dilation) == {1}, row.name
            pool = getattr(torch.nn.functional, f"avg_pool{row.rank}d")
            expected = pool(meta, *arguments, row.ceil_mode, row.include_padding)
        assert row.output_sizes == tuple(expected.shape), row.name
        assert row.groups, row.name
        assert set(row.groups) <= set(workloads.GROUPS), row.name


def test_names_are_unique_and_groups_are_used() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    for group in workloads.GROUPS:
        assert workloads.select(group)


def test_selection() -> None:
    chosen = workloads.select("overhead, AlexNet, max 8x64x112x112 window 3/1 pad 1")
    assert {row.origin[:7] for row in chosen if "networks" in row.groups} == {"AlexNet"}
    assert "max 8x64x112x112 window 3/1 pad 1 channels_last" in {row.name for row in chosen}
    with pytest.raises(ValueError, match="no row is named 'convolution'; groups are all, core, "):
        workloads.select("core,convolution")


def test_bytes_moved() -> None:
    """By hand: 4 bytes for each of 16 inputs and 4 outputs; indices 8 more; training twice."""
    sizes = {row.mode: row.bytes_moved for row in ROWS if row.name.startswith("max 1x1x4x4 window 2/2")}
    assert sizes == {"forward": 80, "recorded": 80, "training": 160, "indices": 112}
