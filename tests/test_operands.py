"""What a tensor must be, and how results are laid out: the leaf module on its own (G6, G7, M4, M6)."""

from __future__ import annotations

import pytest
import samples
import torch
from torch._prims_common import suggest_memory_format

from torch_dmlpool import operands


@pytest.mark.parametrize(
    ("taps", "dtype"),
    [
        (1, torch.uint8),
        (225, torch.uint8),
        (226, torch.int16),
        (32768, torch.int16),
        (32769, torch.int32),
        (2**31, torch.int32),
    ],
)
def test_type_of_taps(taps: int, dtype: torch.dtype) -> None:
    """M6, at its boundaries; the greatest tap number fits."""
    assert operands.tap_dtype(taps) == dtype
    assert taps - 1 <= torch.iinfo(dtype).max


@pytest.mark.parametrize(
    ("dtype", "most"),
    [(torch.int32, 2**31), (torch.uint32, 2**32 - 1), (torch.int64, 2**62), (torch.uint64, 2**63)],
    ids=samples.name_of,
)
@pytest.mark.parametrize("per_plane", [False, True], ids=["whole tensor", "plane"])
def test_what_an_index_type_numbers(dtype: torch.dtype, most: int, per_plane: bool) -> None:
    """M1 and M4: all but the number that marks an empty window."""
    operands.check_index_type(dtype, (1, 1, most), per_plane)
    operands.check_index_type(dtype, (5, 7, most if per_plane else 1), per_plane)
    if dtype.itemsize == 4:
        for sizes in ((1, 1, most + 1), (1, 1, 2, most)):
            with pytest.raises(ValueError, match="numbers at most"):
                operands.check_index_type(dtype, sizes, per_plane)


@pytest.mark.parametrize(
    "sizes", [(2, 3, 4), (2, 3, 4, 5), (2, 1, 4, 5), (1, 3, 1, 1), (2, 3, 4, 5, 6), (1, 1, 1, 1, 1)], ids=str
)
@pytest.mark.parametrize("layout", samples.LAYOUTS)
def test_suggested_memory_format(layout: str, sizes: tuple[int, ...]) -> None:
    """G7: PyTorch's own suggestion, whatever shortcut is taken to it."""
    tensor = samples.LAYOUTS[layout](torch.ones(sizes))
    expected = torch.contiguous_format if len(sizes) == 3 else suggest_memory_format(tensor)
    assert operands.suggested_memory_format(tensor) == expected
    output = operands.empty(sizes, tensor, expected, torch.int16)
    assert output.is_contiguous(memory_format=expected)
    assert (output.dtype, output.device, tuple(output.shape)) == (torch.int16, tensor.device, sizes)


@pytest.mark.parametrize(
    ("rank", "channels_last"), [(2, torch.channels_last), (3, torch.channels_last_3d)], ids=["planes", "volumes"]
)
def test_named_memory_format(rank: int, channels_last: torch.memory_format) -> None:
    """G7."""
    assert operands.named_memory_format(True, rank) == channels_last
    assert operands.named_memory_format(False, rank) == torch.contiguous_format


def test_sizes_are_as_many_as_the_window_has_dimensions() -> None:
    """G5, of operators that are called by name with a list of sizes."""
    with pytest.raises(ValueError, match=r"^input_size must have 2 spatial sizes \(H, W\), got \(4,\)$"):
        operands.check_spatial_sizes("input_size", (4,), 2)


def test_supported_types_are_the_contracts() -> None:
    """G6, in the order in which refusals list them."""
    assert set(operands.AVERAGE_TYPES) == set(samples.FLOATS)
    assert set(operands.MAX_TYPES) == set(samples.FLOATS + samples.INTEGERS)
    assert set(operands.INDEX_TYPES) == set(samples.INDEX_TYPES)
