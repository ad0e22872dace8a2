"""DirectML's pooling operators for PyTorch.

>>> import torch, torch_dmlpool as dmlpool
>>> dmlpool.max_pooling(torch.rand(1, 3, 8, 8), window_size=3, strides=2, start_padding=1).shape
torch.Size([1, 3, 4, 4])
"""

from torch_dmlpool import functional, minima, nn
from torch_dmlpool import integrations as integrations
from torch_dmlpool.backends.fallbacks import SlowBackendWarning
from torch_dmlpool.functional import *  # noqa: F403
from torch_dmlpool.minima import *  # noqa: F403
from torch_dmlpool.quantized import quantized_average_pooling, quantized_max_pooling
from torch_dmlpool.window import Window

__version__ = "0.2.0"

__all__ = [
    *functional.__all__,
    *minima.__all__,
    "SlowBackendWarning",
    "Window",
    "__version__",
    "nn",
    "quantized_average_pooling",
    "quantized_max_pooling",
]
