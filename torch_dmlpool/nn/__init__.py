"""PyTorch-shaped pooling: drop-in layers and a ``functional`` with torch.nn.functional's signatures."""

from __future__ import annotations

from torch_dmlpool.nn import functional
from torch_dmlpool.nn.layers import AvgPool1d, AvgPool2d, AvgPool3d, MaxPool1d, MaxPool2d, MaxPool3d

__all__ = [
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "functional",
]
