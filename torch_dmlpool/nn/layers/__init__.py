"""torch.nn's pooling layers on this package's operators: subclasses without state of their own."""

from torch_dmlpool.nn.layers.averages import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    LPPool1d,
    LPPool2d,
    LPPool3d,
)
from torch_dmlpool.nn.layers.maxima import (
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)
from torch_dmlpool.nn.layers.minima import (
    AdaptiveMinPool1d,
    AdaptiveMinPool2d,
    AdaptiveMinPool3d,
    MinPool1d,
    MinPool2d,
    MinPool3d,
)
from torch_dmlpool.nn.layers.unpooling import MaxUnpool1d, MaxUnpool2d, MaxUnpool3d

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AdaptiveMinPool1d",
    "AdaptiveMinPool2d",
    "AdaptiveMinPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
    "MinPool1d",
    "MinPool2d",
    "MinPool3d",
]
