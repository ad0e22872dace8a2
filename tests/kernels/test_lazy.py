"""Operators called by name on tensors that are evaluated lazily, with Triton's kernels, which read
memory as it lies (G7)."""

import cases
import samples
import torch
from operators import NAMES, operators, with_lazy
from torch import Tensor


@cases.in_pairs(kind=list(samples.KINDS), name=NAMES)
def test_kernels_read_what_lazy_tensors_show(kind: str, name: str) -> None:
    for given, expected in with_lazy(kind, name):
        results = samples.listed(getattr(operators, name)(*given))
        for result, right in zip(results, expected, strict=True):
            torch.testing.assert_close(result.detach().as_subclass(Tensor), right)
