"""The table of workloads: every row can be asked of ATen, and names are what selects them."""

from __future__ import annotations

import pytest
import torch

workloads = pytest.importorskip("benchmarks.workloads")
ROWS = workloads.WORKLOADS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_valid_and_within_what_aten_can_do(row) -> None:
    """G3, G5: shapes are ATen's own, by its shape function alone."""
    meta = torch.empty(row.sizes, device="meta")
    arguments = (row.window, row.stride, row.padding)
    if row.family == "max":
        pool = getattr(torch.nn.functional, f"max_pool{row.rank}d")
        expected = pool(meta, *arguments, row.dilation, row.ceil_mode)
    else:
        assert set(row.dilation) == {1}
        pool = getattr(torch.nn.functional, f"avg_pool{row.rank}d")
        expected = pool(meta, *arguments, row.ceil_mode, row.include_padding)
    assert row.output_sizes == tuple(expected.shape)
    assert row.mode in workloads.MODES
    assert row.mode != "indices" or row.family == "max"
    assert not row.channels_last or row.rank > 1
    assert row.mode in ("forward", "indices", "quantized") or row.torch_dtype.is_floating_point
    assert row.mode != "quantized" or (row.family == "average" and row.dtype in ("int8", "uint8"))
    assert not row.per_channel or row.mode == "quantized"
    assert row.groups
    assert set(row.groups) <= set(workloads.GROUPS)


def test_names_are_unique_and_groups_are_used() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    for group in workloads.GROUPS:
        assert workloads.select(group)


def test_the_core_rows() -> None:
    """The geometries that the releases are judged by, in every mode and layout."""
    names = {row.name for row in workloads.select("core")}
    for family in ("max", "average"):
        for geometry in ("8x64x112x112 window 3/1 pad 1", "8x64x112x112 window 3/2 pad 1", "8x256x56x56 window 2/2"):
            for rest in ("", " forward + backward", " channels_last", " channels_last forward + backward"):
                assert f"{family} {geometry}{rest}" in names
        assert f"{family} 2x64x112x112 window 31/1 pad 15" in names
    assert {row.rank for row in workloads.select("core")} == {1, 2, 3}


def test_published_rows_are_measured_in_float32_and_as_they_are_published() -> None:
    names = {row.name for row in workloads.select("published")}
    assert "average 3x96x55x57 window 3x5/2 pad 1x2 ceil padding not counted bfloat16" in names
    assert "max 16x128x2048 window 5/2 pad 2 dilation 2 ceil bfloat16" in names
    assert "max 8x64x16x112x112 window 1x2x2/1x2x2 float16" in names
    assert all(row.name.removesuffix(f" {row.dtype}") in names for row in workloads.select("published"))


def test_large_rows_in_every_type_and_layout() -> None:
    """Windows of 2, 3, 5 and 7 forward, with indices and backward, of 31 forward; as many bytes in every type."""
    rows = workloads.select("large")
    for dtype in ("float32", "float16", "bfloat16", "int8"):
        for window, modes in ((2, 3), (3, 3), (5, 3), (7, 3), (31, 1)):
            found = [
                row for row in rows if row.family == "max" and row.dtype == dtype and row.window == (window, window)
            ]
            expected = min(modes, 2) if dtype == "int8" else modes
            assert len({row.mode for row in found}) == expected
            assert {row.channels_last for row in found} == {False, True}
            assert len({row.sizes for row in found}) == 1
    assert len({row.sizes[0] * row.torch_dtype.itemsize for row in rows if row.window != (31, 31)}) == 1


def test_selection() -> None:
    chosen = workloads.select("overhead, AlexNet, max 8x64x112x112 window 3/1 pad 1")
    assert {row.origin[:7] for row in chosen if "networks" in row.groups} == {"AlexNet"}
    assert any(row.mode == "recorded" for row in chosen)
    assert "max 8x64x112x112 window 3/1 pad 1 channels_last" in {row.name for row in chosen}
    assert workloads.select("all") == [row for row in ROWS if row.groups != ("large",)]
    assert not [row for row in workloads.select("float16") if row.groups == ("large",)]
    with pytest.raises(ValueError, match="no row is named 'convolution'; groups are all, core, "):
        workloads.select("core,convolution")
    with pytest.raises(ValueError, match="no rows are named"):
        workloads.select(" , ")


def test_bytes_moved() -> None:
    """By hand: 4 bytes for each of 16 inputs and 4 outputs; indices 8 more; training twice."""
    sizes = {row.mode: row.bytes_moved for row in ROWS if row.name.startswith("max 1x1x4x4 window 2/2")}
    assert sizes == {"forward": 80, "recorded": 80, "training": 160, "indices": 112}
