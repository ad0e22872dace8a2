"""Scales as far apart as float32 has them, against rational arithmetic (Q1, Q4)."""

from __future__ import annotations

import oracle
import pytest
import samples
import torch

pytest.importorskip("torch_dmlpool.backends.triton")


@pytest.mark.parametrize("scales", [(2.0**-149, 2.0**-149), (2.0**127, 2.0**-149), (2.0**-149, 2.0**127), (1.0, 2.0)])
def test_scales_far_apart(scales: tuple[float, float]) -> None:
    for window, size in ((3, 8), (15, 15)):
        input = samples.integers(1, 2, size, size, dtype=torch.uint8)
        parameters = samples.Parameters(scales[:1] * 2, (100, 3), scales[1:] * 2, (7, 40))
        request = oracle.Pooling(*((entry, entry) for entry in (window, 1, 1, 1, 1)))
        for form in ("per channel", "number"):
            samples.check_quantized(input, parameters, request, forms=[form] * 4)
