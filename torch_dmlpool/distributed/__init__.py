"""Pooling of DTensors: PyTorch's tensors that are sharded over the processes of a device mesh.

``import torch_dmlpool.distributed``, once in every process, teaches the operators about DTensors;
the public functions and layers then take one like any other tensor. Shards of the batch and of the
channels are pooled where they are. Shards of D, H or W are gathered first.
"""

import torch
from torch.distributed.tensor import DTensor

from torch_dmlpool.distributed.sharding import RULES, pool

# Importing any of the package has registered all operators before.
for _name in RULES:
    torch.library.register_torch_dispatch(f"dmlpool::{_name}", DTensor, pool)
