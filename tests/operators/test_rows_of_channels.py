"""Rows of one spatial dimension in (N, W, C) order: every operator pools them in place (G7). That
results stay in that order is in test_memory_format.py."""

import pytest
import samples
import torch
from operators import MASKED

import torch_dmlpool as dmlpool
from torch_dmlpool import backends


@pytest.mark.parametrize("name", ["average_pooling", "max_pooling", "adaptive_average_pooling"])
@pytest.mark.parametrize("is_masked", [False, True])
def test_no_row_is_copied(name, is_masked, device):
    if backends.serving(device.type).name == "reference":
        pytest.skip("PyTorch's own operations copy rows to pad, mask and average them")
    input = samples.normal(3, 50, 20).transpose(1, 2).to(device)
    mask = torch.ones(3, 1, 50, dtype=torch.bool, device=device) if is_masked else None
    MASKED[name](input, mask)
    with torch.profiler.profile(acc_events=True) as profile:  # 2.11 warns without it
        MASKED[name](input, mask)
    copied = [event.name for event in profile.events() if event.name == "aten::copy_"]
    assert not copied or device.type != "cpu"


@pytest.mark.parametrize("masks", [1, 3])
def test_samples_that_are_joined_have_masks_of_their_own(masks, device):
    """K2: windows that tile the rows of all samples as one read one mask for all, or one each."""
    leaf = samples.normal(3, 50, 20).transpose(1, 2).to(device)
    mask = (torch.rand(masks, 1, 50, generator=samples.seeded(masks)) < 0.6).to(device)
    filled = torch.where(mask, leaf, -torch.inf)
    found = dmlpool.max_pooling(leaf, 2, 2, mask=mask)
    assert torch.equal(found, dmlpool.max_pooling(filled, 2, 2))
