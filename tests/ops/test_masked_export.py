"""Masked pools, minima and bools in programs of torch.export."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool

WINDOW = (3, 2, 1, 1)
FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "averages": lambda x, mask: dmlpool.average_pooling(x, *WINDOW, mask=mask),
    "averages, padding counted": lambda x, mask: dmlpool.average_pooling(
        x, *WINDOW, include_padding=True, mask=mask
    ),
    "maxima": lambda x, mask: dmlpool.max_pooling(x, *WINDOW, mask=mask),
    "maxima with indices": lambda x, mask: dmlpool.max_pooling(
        x, *WINDOW, mask=mask, return_indices=True
    ),
    "minima with indices": lambda x, mask: dmlpool.min_pooling(
        x, *WINDOW, mask=mask, return_indices=True
    ),
    "norms": lambda x, mask: dmlpool.lp_pooling(x, *WINDOW, mask=mask),
    "global averages": lambda x, mask: dmlpool.adaptive_average_pooling(x, 1, mask=mask),
    "averages of bins": lambda x, mask: dmlpool.adaptive_average_pooling(x, (4, 3), mask=mask),
    "maxima of bins": lambda x, mask: dmlpool.adaptive_max_pooling(
        x, (4, 3), mask=mask, return_indices=True
    ),
    "bools": lambda _, mask: (dmlpool.max_pooling(mask, *WINDOW), dmlpool.min_pooling(mask, 2)),
}


class Model(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = FUNCTIONS[name]

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        return self.function(x, mask)


def example() -> tuple[Tensor, Tensor]:
    mask = samples.normal(2, 1, 9, 8) > 0
    mask[0, 0, :4] = False
    return torch.where(mask, samples.ties(2, 3, 9, 8), math.nan), mask


@pytest.mark.parametrize("name", FUNCTIONS)
def test_exported_programs(name: str) -> None:
    """K1 to K6 and E2, of another batch than the traced one."""
    x, mask = example()
    batch = torch.export.Dim("batch", min=1, max=64)
    shapes = {"x": {0: batch}, "mask": {0: batch}}
    program = torch.export.export(Model(name), (x, mask), dynamic_shapes=shapes)
    x, mask = torch.cat([x, x.flip(-1)]), torch.cat([mask, mask.flip(-1)])
    found, expected = program.module()(x, mask), FUNCTIONS[name](x, mask)
    torch.testing.assert_close(found, expected)
