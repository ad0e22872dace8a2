"""PyTorch-shaped pooling: drop-in layers, a ``functional`` with torch.nn.functional's signatures, models converted."""

from __future__ import annotations

from torch_dmlpool.nn import functional, quantized
from torch_dmlpool.nn.conversion import Conversion, convert
from torch_dmlpool.nn.exported import integer_pooling
from torch_dmlpool.nn.layers import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    LPPool1d,
    LPPool2d,
    LPPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    MaxUnpool1d,
    MaxUnpool2d,
    MaxUnpool3d,
)
from torch_dmlpool.nn.rerouting import rerouted

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d",
    "AvgPool1d", "AvgPool2d", "AvgPool3d",
    "Conversion",
    "LPPool1d", "LPPool2d", "LPPool3d",
    "MaxPool1d", "MaxPool2d", "MaxPool3d",
    "MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d",
    "convert", "functional", "integer_pooling", "quantized", "rerouted",
]  # fmt: skip
