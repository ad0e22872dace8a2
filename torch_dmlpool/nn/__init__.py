"""PyTorch-shaped pooling: drop-in layers, a ``functional`` with torch.nn.functional's signatures,
models converted.
"""

from torch_dmlpool.nn import functional, layers, quantized
from torch_dmlpool.nn.conversion import Conversion, convert, rerouted
from torch_dmlpool.nn.exported import integer_pooling
from torch_dmlpool.nn.layers import *  # noqa: F403

__all__ = [
    *layers.__all__,
    "Conversion",
    "convert",
    "functional",
    "integer_pooling",
    "quantized",
    "rerouted",
]
